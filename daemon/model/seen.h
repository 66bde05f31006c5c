/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which messages of a topic were seen before: the last NL_SEEN_MAX msgIds, as 64-bit
 * keyed hashes. The broker sends retained messages again after each resubscribe and for each added
 * filter, with the msgId of their first publication; whoever had them must not get them twice.
 *
 * The memory of a topic grows with its traffic up to its bound, so that quiet topics cost nothing.
 */
#ifndef NL_MODEL_SEEN_H
#define NL_MODEL_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/buffer.h"

#define NL_SEEN_MAX 256

struct nl_seen {
    uint64_t *ring;
    uint16_t len, cap, next;
};

void nl_seen_init(struct nl_seen *s);
void nl_seen_deinit(struct nl_seen *s);

/* Hashes a msgId; seed is chosen at random per process. */
uint64_t nl_seen_hash(struct nl_slice msg_id, uint64_t seed);

bool nl_seen_has(const struct nl_seen *s, uint64_t hash);

/* Remembers the hash; the oldest one is forgotten when the ring is full. Not checked for doubles. */
void nl_seen_add(struct nl_seen *s, uint64_t hash);

#endif
