/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a publish sends for the text or bytes it was given. The rule, for -m, -f, -s and
 * each line of -l alike:
 *
 *   one JSON value                 that value; {"$bytes":"..."} and the other tags count
 *   other text in UTF-8            a string, exactly as it is
 *   bytes that are not UTF-8       bytes: {"$bytes":"base64"}
 *
 * --string always gives a string, --bytes always bytes.
 */
#ifndef NOLAG_CLI_PAYLOAD_H
#define NOLAG_CLI_PAYLOAD_H

#include "clients/cli/options.h"
#include "protocol/buffer.h"

/* Appends the JSON text of the payload for content. A reason why not is reported. */
enum nolag_exit nolag_payload(struct nl_buffer *out, struct nl_slice content, const struct nolag_options *o);

/* Reads a whole file, or stdin when path is NULL. A reason why not is reported. */
enum nolag_exit nolag_payload_read(struct nl_buffer *out, const char *path);

#endif
