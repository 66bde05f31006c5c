/* SPDX-License-Identifier: Apache-2.0 */
/* Two open-addressed tables; nothing is ever taken out of one but all of it. */
#include "daemon/model/seen.h"

#include <stdlib.h>

#include "protocol/alloc.h"
#include "protocol/hash.h"

void nl_seen_init(struct nl_seen *s) {
    *s = (struct nl_seen){0};
}

void nl_seen_deinit(struct nl_seen *s) {
    free(s->newer.slots);
    free(s->older.slots);
    nl_seen_init(s);
}

uint64_t nl_seen_hash(struct nl_slice msg_id, uint64_t seed) {
    uint64_t hash = nl_hash_bytes(seed, msg_id.ptr, msg_id.len);

    return hash == 0 ? 1 : hash;
}

/* The slot that holds hash, or the empty one where it belongs. The table is not empty. */
static uint64_t *slot_of(const struct nl_seen_generation *g, uint64_t hash) {
    uint32_t at = (uint32_t)hash & (g->cap - 1);

    while (g->slots[at] != 0 && g->slots[at] != hash)
        at = (at + 1) & (g->cap - 1);
    return &g->slots[at];
}

static bool holds(const struct nl_seen_generation *g, uint64_t hash) {
    return hash != 0 && g->cap > 0 && *slot_of(g, hash) == hash;
}

bool nl_seen_has(const struct nl_seen *s, uint64_t hash) {
    return holds(&s->newer, hash) || holds(&s->older, hash);
}

bool nl_seen_forgets(const struct nl_seen *s) {
    return s->older.cap > 0;
}

static void grow(struct nl_seen_generation *g) {
    struct nl_seen_generation old = *g;

    g->cap = old.cap == 0 ? 8 : old.cap * 2;
    g->slots = nl_calloc(g->cap, sizeof(*g->slots));
    for (uint32_t i = 0; i < old.cap; i++)
        if (old.slots[i] != 0)
            *slot_of(g, old.slots[i]) = old.slots[i];
    free(old.slots);
}

void nl_seen_add(struct nl_seen *s, uint64_t hash) {
    struct nl_seen_generation *g = &s->newer;

    if (holds(g, hash))
        return;
    if (g->len == NL_SEEN_MAX) {
        free(s->older.slots);
        s->older = *g;
        *g = (struct nl_seen_generation){0};
    }
    if (g->len * 2 >= g->cap)
        grow(g);
    *slot_of(g, hash) = hash;
    g->len++;
}
