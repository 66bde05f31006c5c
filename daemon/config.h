/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: nolagd.conf and the files *.conf of conf.d beside it (in the folder of FILE, by
 * name), read with inih into the settings of model/settings.h.
 *
 * Tokens are read from token_file at load time into heap memory that
 * nl_config_free() wipes. They are never printed.
 */
#ifndef NL_CONFIG_H
#define NL_CONFIG_H

#include "daemon/model/settings.h"

/*
 * What is wrong, one line (with its '\n') per finding: "FILE:LINE: unknown key \"utl\" in [session x]; did
 * you mean \"url\"?". The caller frees it with free(). Collected, not stopped at the first.
 */
struct nl_config_report {
    char *errors;   /* NULL when there are none */
    char *warnings; /* NULL when there are none */
};

/*
 * Reads path and its conf.d. Returns the configuration, for nl_config_free(), or NULL when the report holds
 * errors. Values: "10s", "250ms", "1m" for times (a bare number is seconds), "64KiB", "2MiB" or a bare number
 * for sizes, yes/no/true/false/on/off/1/0 for booleans. A token_file that others than its owner and group can
 * read, that is empty, or whose content is no token (blanks, control characters, over 4096 bytes) is an
 * error, and so is a socket_group that does not exist.
 */
struct nl_config *nl_config_load(const char *path, struct nl_config_report *report);

#endif
