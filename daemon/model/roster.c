/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/roster.h"

#include <stdlib.h>

#include "protocol/alloc.h"

void nl_roster_init(struct nl_roster *r, struct nl_roster_allowance *allowance) {
    *r = (struct nl_roster){.allowance = allowance};
}

static uint64_t cost(size_t key_len, size_t value_len) {
    return sizeof(struct nl_roster_entry) + key_len + value_len;
}

struct nl_slice nl_roster_key(const struct nl_roster_entry *e) {
    return nl_slice(e->key, e->key_len);
}

void nl_roster_remove(struct nl_roster *r, struct nl_roster_entry *e) {
    r->allowance->used -= cost(e->key_len, e->value.len);
    HASH_DEL(r->entries, e);
    free(e->key);
    free(e);
}

void nl_roster_clear(struct nl_roster *r) {
    struct nl_roster_entry *e, *tmp;

    HASH_ITER(hh, r->entries, e, tmp) {
        nl_roster_remove(r, e);
    }
}

struct nl_roster_entry *nl_roster_find(const struct nl_roster *r, struct nl_slice key) {
    struct nl_roster_entry *e;

    HASH_FIND(hh, r->entries, key.ptr, key.len, e);
    return e;
}

/* Key and value in one piece of memory. */
static void hold(struct nl_roster *r, struct nl_roster_entry *e, struct nl_slice key, struct nl_slice value) {
    uint8_t *bytes = nl_malloc(key.len + value.len);

    memcpy(bytes, key.ptr, key.len);
    memcpy(bytes + key.len, value.ptr, value.len);
    e->key = bytes;
    e->key_len = key.len;
    e->value = nl_slice(bytes + key.len, value.len);
    r->allowance->used += cost(key.len, value.len);
}

enum nl_roster_change nl_roster_put(struct nl_roster *r, struct nl_slice key, struct nl_slice value,
                                    uint64_t digest) {
    struct nl_roster_entry *e = nl_roster_find(r, key);
    enum nl_roster_change change = e == NULL             ? NL_ROSTER_JOINED
                                   : digest == e->digest ? NL_ROSTER_SAME
                                                         : NL_ROSTER_UPDATED;
    struct nl_slice old = e == NULL ? nl_slice(NULL, 0) : e->value;
    uint64_t before = e == NULL ? 0 : cost(e->key_len, old.len);
    uint8_t *replaced = e == NULL ? NULL : e->key;

    if (r->allowance->used - before + cost(key.len, value.len) > r->allowance->limit) {
        r->incomplete = true;
        if (e != NULL)
            e->seen = true; /* what is known of it is old, but it is there */
        return NL_ROSTER_NO_ROOM;
    }
    if (e == NULL) {
        e = nl_calloc(1, sizeof(*e));
    } else {
        /* The key that the table points to moves with the value. */
        HASH_DEL(r->entries, e);
        r->allowance->used -= before;
    }
    hold(r, e, key, value);
    free(replaced);
    e->digest = digest;
    e->seen = true;
    HASH_ADD_KEYPTR(hh, r->entries, e->key, e->key_len, e);
    return change;
}

void nl_roster_begin(struct nl_roster *r) {
    struct nl_roster_entry *e, *tmp;

    r->incomplete = false;
    HASH_ITER(hh, r->entries, e, tmp) {
        e->seen = false;
    }
}

void nl_roster_end(struct nl_roster *r, void (*left)(void *ctx, const struct nl_roster_entry *e), void *ctx) {
    struct nl_roster_entry *e, *tmp;

    HASH_ITER(hh, r->entries, e, tmp) {
        if (e->seen)
            continue;
        left(ctx, e);
        nl_roster_remove(r, e);
    }
}
