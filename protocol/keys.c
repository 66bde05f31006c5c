/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that come twice: compared one with another while they are few, through a hash
 * table when they are many, and sorted when somebody has chosen them to collide.
 */
#include "protocol/keys.h"

#include <stdlib.h>

#include "protocol/alloc.h"
#include "protocol/hash.h"

#define FEW 16           /* up to here comparing is the fastest way */
#define STEPS_PER_KEY 16 /* an honest table takes about one and a half */

void nl_keys_init(struct nl_keys *k) {
    k->items = k->few;
    k->len = 0;
    k->cap = NL_KEYS_FEW;
}

void nl_keys_deinit(struct nl_keys *k) {
    if (k->items != k->few)
        free(k->items);
    nl_keys_init(k);
}

static void grow(struct nl_keys *k) {
    size_t bytes = k->cap * sizeof(k->items[0]);
    if (k->items == k->few) {
        k->items = nl_malloc(2 * bytes);
        memcpy(k->items, k->few, bytes);
    } else {
        k->items = nl_realloc(k->items, 2 * bytes);
    }
    k->cap *= 2;
}

void nl_keys_push(struct nl_keys *k, struct nl_slice key) {
    if (k->len == k->cap)
        grow(k);
    k->items[k->len++] = key;
}

/* A number from 0 to 63 that equal keys share. */
static unsigned mark(struct nl_slice key) {
    if (key.len == 0)
        return 0;
    return (unsigned)(key.len + 3u * key.ptr[0] + 7u * key.ptr[key.len - 1]) & 63;
}

static bool few_repeat(const struct nl_slice *keys, size_t count) {
    uint64_t marks = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bit = UINT64_C(1) << mark(keys[i]);
        for (size_t j = 0; marks & bit && j < i; j++)
            if (nl_slice_equal(keys[i], keys[j]))
                return true;
        marks |= bit;
    }
    return false;
}

static int compare(const void *a, const void *b) {
    const struct nl_slice *x = a, *y = b;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->len ? memcmp(x->ptr, y->ptr, x->len) : 0;
}

static bool sorted_repeat(const struct nl_slice *keys, size_t count) {
    struct nl_slice *sorted = nl_malloc(count * sizeof(sorted[0]));
    bool found = false;
    memcpy(sorted, keys, count * sizeof(sorted[0]));
    qsort(sorted, count, sizeof(sorted[0]), compare);
    for (size_t i = 1; i < count && !found; i++)
        found = nl_slice_equal(sorted[i - 1], sorted[i]);
    free(sorted);
    return found;
}

/* Puts keys[i] into the table (of 1 + index; 0 is free). Counts steps down; 0 left: gives up. */
static bool table_has(uint32_t *slots, size_t mask, const struct nl_slice *keys, size_t i, size_t *steps) {
    size_t at = nl_hash_bytes(0, keys[i].ptr, keys[i].len) & mask;
    for (; slots[at] && *steps; at = (at + 1) & mask, --*steps)
        if (nl_slice_equal(keys[slots[at] - 1], keys[i]))
            return true;
    if (!slots[at])
        slots[at] = (uint32_t)(i + 1);
    return false;
}

static bool many_repeat(const struct nl_slice *keys, size_t count) {
    size_t size = 64, steps = count * STEPS_PER_KEY;
    bool found = false;
    while (size < 2 * count)
        size *= 2;
    uint32_t *slots = nl_calloc(size, sizeof(slots[0]));
    for (size_t i = 0; i < count && !found && steps; i++)
        found = table_has(slots, size - 1, keys, i, &steps);
    free(slots);
    return steps || found ? found : sorted_repeat(keys, count);
}

bool nl_keys_repeat(const struct nl_keys *k, size_t from) {
    size_t count = k->len - from;
    return count <= FEW ? few_repeat(k->items + from, count) : many_repeat(k->items + from, count);
}
