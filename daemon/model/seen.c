/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/seen.h"

#include <stdlib.h>

#include "protocol/alloc.h"
#include "protocol/hash.h"

void nl_seen_init(struct nl_seen *s) {
    *s = (struct nl_seen){0};
}

void nl_seen_deinit(struct nl_seen *s) {
    free(s->ring);
    nl_seen_init(s);
}

uint64_t nl_seen_hash(struct nl_slice msg_id, uint64_t seed) {
    return nl_hash_bytes(seed, msg_id.ptr, msg_id.len);
}

bool nl_seen_has(const struct nl_seen *s, uint64_t hash) {
    for (uint16_t i = 0; i < s->len; i++)
        if (s->ring[i] == hash)
            return true;
    return false;
}

static void grow(struct nl_seen *s) {
    uint16_t cap = s->cap == 0 ? 4 : (uint16_t)(s->cap * 2);

    s->cap = cap > NL_SEEN_MAX ? NL_SEEN_MAX : cap;
    s->ring = nl_realloc(s->ring, s->cap * sizeof(*s->ring));
}

void nl_seen_add(struct nl_seen *s, uint64_t hash) {
    if (s->len == s->cap && s->cap < NL_SEEN_MAX)
        grow(s);
    if (s->len < s->cap) {
        s->ring[s->len++] = hash;
        return;
    }
    s->ring[s->next] = hash;
    s->next = (uint16_t)((s->next + 1) % NL_SEEN_MAX);
}
