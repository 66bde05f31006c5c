/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads an actor token from a file that is kept as a secret should be.
 */
#ifndef NL_UTIL_TOKEN_FILE_H
#define NL_UTIL_TOKEN_FILE_H

/*
 * Returns NULL with *token, for free() (wipe it first), or why there is none, a static text that goes on from
 * "the file ...": not a regular file, readable or writable by everyone, empty, longer than 4096 bytes, blanks
 * or control characters, more than one line. White space behind the token is cut.
 */
const char *nl_token_file_read(const char *path, char **token);

#endif
