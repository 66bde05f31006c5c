/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the command ends and what it says on the way: exit codes, messages on stderr, and
 * which error of nolagd or the broker leads to which exit code.
 */
#ifndef NOLAG_CLI_OUTCOME_H
#define NOLAG_CLI_OUTCOME_H

#include "clients/cli/event.h"

/* X(enumerator, code, what it means) */
#define NOLAG_EXITS(X)                                                                                       \
    X(OK, 0, "done")                                                                                         \
    X(FAILED, 1, "failed for another reason than those below")                                               \
    X(USAGE, 2, "wrong use of the command line")                                                             \
    X(NO_DAEMON, 3, "nolagd cannot be reached, or went away")                                                \
    X(OFFLINE, 4, "the session is not connected to the broker")                                              \
    X(DENIED, 5, "not authenticated, or not permitted, the socket included")                                 \
    X(LIMITED, 6, "a rate limit, a quota, or a full queue")                                                  \
    X(TIMED_OUT, 27, "the time given with -W is over, or no answer came in time")

enum nolag_exit {
#define X(name, code, text) NOLAG_##name = code,
    NOLAG_EXITS(X)
#undef X
};

/* Writes "nolag: " and a line to stderr. */
void nolag_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The exit code that this line stands for: NOLAG_OK unless it is an error or a refused auth. Reports nothing.
 */
enum nolag_exit nolag_outcome(const struct nolag_event *e);

/* Reports an error answer or event: where (may be "") is put in front of it. Returns its exit code. */
enum nolag_exit nolag_say_error(const struct nolag_event *e, const char *where);

/* Looks at the answer to auth: NOLAG_OK, or what its refusal, which is reported, ends with. */
enum nolag_exit nolag_check_auth(const struct nolag_event *e);

/* How waiting for this session ends, by a status or disconnect line: NOLAG_DENIED when its token is refused,
 * which waiting seldom mends, or NOLAG_OFFLINE. */
enum nolag_exit nolag_offline_exit(const struct nolag_event *e);

/* Says that a session is not connected, and why, from a status, sessions or disconnect line. */
void nolag_say_offline(struct nl_slice object, const char *consequence);

/* The text of a JSON value as a C string for messages, without control characters; for free(). */
char *nolag_text(struct nl_slice value);

#endif
