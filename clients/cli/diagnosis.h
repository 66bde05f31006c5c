/* SPDX-License-Identifier: Apache-2.0 */
/* Why nolagd cannot be reached, and what the user can do about it. */
#ifndef NOLAG_CLI_DIAGNOSIS_H
#define NOLAG_CLI_DIAGNOSIS_H

/* Explains the errno value that connecting to path ended with, in one line on stderr. */
void nolag_say_unreachable(const char *path, int error);

#endif
