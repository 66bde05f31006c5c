/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Own messages that the broker will send back. A retained message must be published with
 * echo, or the broker would never give it to our later subscribers; its copy to ourselves, which
 * our clients have by then, is to be swallowed: the next message of that topic with an equal filter (or
 * a hidden one) and equal data, within NL_ECHO_WAIT_MS.
 */
#ifndef NL_MODEL_ECHOES_H
#define NL_MODEL_ECHOES_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/buffer.h"

#define NL_ECHO_WAIT_MS 5000
#define NL_ECHOES_MAX 4096 /* waiting at once; the oldest gives way */

struct nl_echo;

struct nl_echoes {
    struct nl_echo *list; /* oldest first, linked by prev, next */
    unsigned count;
};

void nl_echoes_init(struct nl_echoes *e);
void nl_echoes_deinit(struct nl_echoes *e); /* forgets all */

/* Expects a copy. key NULL = no filter. digest is nl_digest() of the data. */
void nl_echoes_expect(struct nl_echoes *e, struct nl_slice topic, const char *key, uint64_t digest,
                      uint64_t now_ms);

/* True when the message is an expected copy, which is then no longer expected. hidden: its filter is not
 * told. */
bool nl_echoes_take(struct nl_echoes *e, struct nl_slice topic, struct nl_slice key, bool hidden,
                    uint64_t digest, uint64_t now_ms);

/* False when nothing is expected: the caller can save the digest. */
static inline bool nl_echoes_waiting(const struct nl_echoes *e) {
    return e->list != NULL;
}

#endif
