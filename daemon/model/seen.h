/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which messages of a topic were seen before: the last msgIds, at least NL_SEEN_MAX of them, as 64-bit
 * keyed hashes. The broker sends retained messages again after each resubscribe and for each added
 * filter, with the msgId of their first publication; whoever had them must not get them twice.
 *
 * They are kept in two generations: when the newer one is full it becomes the older one, which is forgotten.
 * Looking up takes the same time however many there are. The memory of a set grows with the traffic up to
 * its bound (32 KiB), so that quiet topics cost nothing.
 */
#ifndef NL_MODEL_SEEN_H
#define NL_MODEL_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/buffer.h"

#define NL_SEEN_MAX 1024

/* A set of hashes; 0 is an empty slot. */
struct nl_seen_generation {
    uint64_t *slots; /* a power of two, at most half of them taken */
    uint32_t cap, len;
};

struct nl_seen {
    struct nl_seen_generation newer, older;
};

void nl_seen_init(struct nl_seen *s);
void nl_seen_deinit(struct nl_seen *s);

/* Hashes a msgId; seed is chosen at random per process. Never 0. */
uint64_t nl_seen_hash(struct nl_slice msg_id, uint64_t seed);

bool nl_seen_has(const struct nl_seen *s, uint64_t hash);

/* Remembers the hash, as the newest one if it was known. */
void nl_seen_add(struct nl_seen *s, uint64_t hash);

/* Has it had so many that something may be forgotten? */
bool nl_seen_forgets(const struct nl_seen *s);

#endif
