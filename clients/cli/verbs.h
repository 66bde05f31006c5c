/* SPDX-License-Identifier: Apache-2.0 */
/* What `nolag VERB` runs. The table of verbs is in main.c. */
#ifndef NOLAG_CLI_VERBS_H
#define NOLAG_CLI_VERBS_H

#include "clients/cli/connection.h"
#include "clients/cli/options.h"

extern const struct nolag_verb nolag_verb_sub, nolag_verb_pub, nolag_verb_status, nolag_verb_sessions,
    nolag_verb_ping, nolag_verb_raw, nolag_verb_presence, nolag_verb_lobby;

#define NOLAG_AT(member) offsetof(struct nolag_options, member)

#endif
