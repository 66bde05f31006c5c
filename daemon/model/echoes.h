/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Own retained messages that the broker sends us. A retained message must be published with
 * echo, or the broker would never give it to our later subscribers. Our clients have it by the time it is
 * published, and are not to have it a second time when it comes as
 *
 *   a copy      the next message of that topic with an equal filter (or a hidden one) and equal data,
 *               within NL_ECHO_WAIT_MS. Not every broker sends copies: when the first one of a link
 *               does not come within NL_ECHO_FIRST_WAIT_MS none is expected on it any more, or
 *               somebody else's equal message would be taken for it.
 *
 *   retained    after a change upstream, when the copy did not come, as a link was lost first or the
 *               broker sends none. One is kept for each topic and filter; the first message with
 *               these after a change upstream is it, or has taken its place if its data differs.
 *
 * A message whose `from` is not our own actor is neither.
 */
#ifndef NL_MODEL_ECHOES_H
#define NL_MODEL_ECHOES_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/frame.h"

#define NL_ECHO_WAIT_MS 5000
#define NL_ECHO_FIRST_WAIT_MS 1000 /* a copy comes right after published */
#define NL_ECHOES_LATE 3           /* so many late ones in a row show that copies come after all */
#define NL_ECHOES_MAX 4096         /* of each kind at once; the oldest gives way */

struct nl_echo;

/* Linked by prev, next; oldest first. */
struct nl_echo_list {
    struct nl_echo *head;
    unsigned count;
};

enum nl_copies { NL_COPIES_UNKNOWN, NL_COPIES_COME, NL_COPIES_NEVER };

struct nl_echoes {
    struct nl_echo_list expected; /* copies */
    struct nl_echo_list kept;     /* retained ones whose msgId is not known */
    enum nl_copies copies;
    unsigned late; /* how many of the last ones in a row came though none was expected */
    bool never;    /* copies is known */
    uint64_t seed;
};

/* never: this broker is known to send no copies. */
void nl_echoes_init(struct nl_echoes *e, bool never, uint64_t seed);
void nl_echoes_deinit(struct nl_echoes *e); /* forgets all */

/* An own message was published that the broker sends us too. key NULL = no filter. token: what take gives
 * back. */
void nl_echoes_expect(struct nl_echoes *e, struct nl_slice topic, const char *key, struct nl_slice data,
                      uint64_t token, uint64_t now_ms);

/* The link is gone: no copy comes any more. */
void nl_echoes_down(struct nl_echoes *e);

enum nl_echo_kind { NL_ECHO_NONE, NL_ECHO_COPY, NL_ECHO_RETAINED };

/*
 * Which own message is this message of the broker? It is no longer waited for then. self: our actor, len 0 =
 * not known. changed_ms: when upstream changed, if that is so lately that retained messages may come for it;
 * 0 = it did not. *token is set unless NONE.
 */
enum nl_echo_kind nl_echoes_take(struct nl_echoes *e, const struct nl_frame *message, struct nl_slice self,
                                 uint64_t changed_ms, uint64_t now_ms, uint64_t *token);

#endif
