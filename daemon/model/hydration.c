/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/hydration.h"

#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"
#include "protocol/topic.h"

void nl_hydrations_init(struct nl_hydrations *h) {
    *h = (struct nl_hydrations){0};
}

static void entry_free(struct nl_hydrations *h, struct nl_hydration *entry) {
    while (entry->waiting != NULL)
        nl_hydrations_leave(entry->waiting);
    HASH_DEL(h->names, entry);
    DL_DELETE(h->oldest, entry);
    free(entry->name);
    free(entry);
}

void nl_hydrations_clear(struct nl_hydrations *h) {
    while (h->oldest != NULL)
        entry_free(h, h->oldest);
}

static void drop_expired(struct nl_hydrations *h, uint64_t now_ms) {
    while (h->oldest != NULL && h->oldest->until_ms <= now_ms)
        entry_free(h, h->oldest);
}

static struct nl_hydration *find(const struct nl_hydrations *h, struct nl_slice name) {
    struct nl_hydration *entry;

    HASH_FIND(hh, h->names, name.ptr, name.len, entry);
    return entry;
}

struct nl_hydration *nl_hydrations_expect(struct nl_hydrations *h, struct nl_slice topic, uint64_t now_ms) {
    struct nl_slice name = nl_topic_name(topic);
    struct nl_hydration *entry;

    drop_expired(h, now_ms);
    entry = find(h, name);
    if (entry == NULL) {
        entry = nl_calloc(1, sizeof(*entry));
        entry->name = nl_strndup((const char *)name.ptr, name.len);
        entry->len = name.len;
        HASH_ADD_KEYPTR(hh, h->names, entry->name, entry->len, entry);
    } else {
        DL_DELETE(h->oldest, entry);
    }
    DL_APPEND(h->oldest, entry);
    entry->until_ms = now_ms + NL_HYDRATION_MS;
    entry->expected++;
    return entry;
}

void nl_hydrations_wait(struct nl_hydration *entry, struct nl_subscription *sub) {
    if (sub->hydration == entry)
        return;
    nl_hydrations_leave(sub);
    sub->hydration = entry;
    DL_APPEND2(entry->waiting, sub, hydration_prev, hydration_next);
}

void nl_hydrations_leave(struct nl_subscription *sub) {
    if (sub->hydration == NULL)
        return;
    DL_DELETE2(sub->hydration->waiting, sub, hydration_prev, hydration_next);
    sub->hydration = NULL;
}

unsigned nl_hydrations_take(struct nl_hydrations *h, struct nl_slice name, uint64_t serial, uint64_t now_ms,
                            nl_receive_fn *receive, void *ctx) {
    struct nl_hydration *entry;
    struct nl_subscription *sub;
    unsigned n = 0;

    drop_expired(h, now_ms);
    entry = find(h, name);
    if (entry == NULL)
        return 0;
    DL_FOREACH2(entry->waiting, sub, hydration_next) {
        sub->wishes->hydrates = true;
        /* Not before the answer; and once, in however many rooms the client has such a topic. */
        if (sub->fresh || sub->peer->last_delivery == serial)
            continue;
        sub->peer->last_delivery = serial;
        receive(ctx, sub->peer);
        n++;
    }
    if (++entry->come == entry->expected)
        entry_free(h, entry);
    return n;
}
