/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests as this command writes them, and the short conversation of one question and
 * one answer.
 */
#ifndef NOLAG_CLI_REQUEST_H
#define NOLAG_CLI_REQUEST_H

#include "clients/cli/connection.h"
#include "clients/cli/options.h"

#define NOLAG_ANSWER_SECONDS 30.0 /* how long an answer may take unless -W says otherwise */

/* The deadline that -W, or else fallback (seconds; 0: never), sets from now. */
int64_t nolag_deadline(const struct nolag_options *o, double fallback);

/* Begins {"type":"TYPE","id":ID; members follow, each with nolag_request_key(), then nolag_request_end(). */
void nolag_request_begin(struct nl_buffer *out, const char *type, uint64_t id);
void nolag_request_key(struct nl_buffer *out, const char *key); /* ,"key": */
void nolag_request_text(struct nl_buffer *out, const char *key, const char *text);
void nolag_request_end(struct nl_buffer *out); /* the bracket, and the newline */

/*
 * Looks at the topics and filters of a command line, by nolagd's rules and the same for every verb; tap:
 * "*" is a topic. NOLAG_USAGE after a message that names the wrong one.
 */
enum nolag_exit nolag_request_check(const struct nolag_verb *verb, const struct nolag_options *o, bool tap);

/*
 * One filter of the command line: its text, or, when it begins with "[" (blanks before it do not count),
 * a JSON list of texts: an AND group.
 */
bool nolag_request_filter_is_group(const char *filter);
void nolag_request_filter(struct nl_buffer *out, const char *filter);

/*
 * Connects, asks for TYPE and gives the answer line in *answer (initialised by the
 * caller). Anything but NOLAG_OK is reported.
 */
enum nolag_exit nolag_request_ask(const struct nolag_options *o, const char *type, struct nl_buffer *answer);

#endif
