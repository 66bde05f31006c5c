/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/wishes.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"

/* The structures beside the texts: a filter, an interest and a key, with what the allocator adds. */
#define FILTER_OVERHEAD 320

uint64_t nl_wishes_cost(const struct nl_filters *filters) {
    uint64_t cost = 0;

    for (size_t i = 0; i < filters->count; i++)
        cost += FILTER_OVERHEAD + filters->items[i].key_len + filters->items[i].json_len +
                filters->items[i].wire_len;
    return cost;
}

void nl_wishes_charge(struct nl_peer *peer, uint64_t *counted, uint64_t cost) {
    nl_quota_give(&peer->wish_bytes, *counted);
    nl_quota_give(&peer->quota->wish_bytes, *counted);
    peer->wish_bytes += cost;
    peer->quota->wish_bytes += cost;
    *counted = cost;
}

static void charge(struct nl_subscription *sub) {
    uint64_t cost = nl_wishes_cost(&sub->filters);

    if (sub->before != NULL)
        cost += nl_wishes_cost(sub->before);
    nl_wishes_charge(sub->peer, &sub->cost, cost);
}

void nl_wishes_init(struct nl_wishes *w) {
    *w = (struct nl_wishes){0};
    w->everything.name = (char *)"";
    nl_seen_init(&w->seen);
    nl_seen_init(&w->retained);
}

static void key_free(struct nl_wishes *w, struct nl_key *key) {
    HASH_DEL(w->keys, key);
    free(key->name);
    free(key->wire);
    free(key);
}

void nl_wishes_deinit(struct nl_wishes *w) {
    struct nl_key *key, *tmp;

    assert(w->subscriptions == NULL);
    HASH_ITER(hh, w->keys, key, tmp) {
        key_free(w, key);
    }
    nl_seen_deinit(&w->seen);
    nl_seen_deinit(&w->retained);
}

struct nl_subscription *nl_wishes_find(const struct nl_wishes *w, const struct nl_peer *peer) {
    /* A topic can have thousands of subscribers, and a client thousands of topics: walk both at
     * once, which costs twice the shorter list. */
    struct nl_subscription *of_topic = w->subscriptions, *of_peer = peer->subscriptions;

    while (of_topic != NULL && of_peer != NULL) {
        if (of_topic->peer == peer)
            return of_topic;
        if (of_peer->wishes == w)
            return of_peer;
        of_topic = of_topic->topic_next;
        of_peer = of_peer->peer_next;
    }
    return NULL;
}

static struct nl_key *key_find(const struct nl_wishes *w, const char *name, size_t len) {
    struct nl_key *key;

    HASH_FIND(hh, w->keys, name, len, key);
    return key;
}

static struct nl_interest *interest_in(const struct nl_subscription *sub, const struct nl_key *key) {
    for (struct nl_interest *i = sub->interests; i != NULL; i = i->next)
        if (i->key == key)
            return i;
    return NULL;
}

static bool list_has(const struct nl_filters *filters, const struct nl_key *key) {
    return nl_filters_have(filters, nl_slice(key->name, key->len));
}

/* How many keys that nobody else wishes sub would give up for filters. */
static uint32_t given_up(const struct nl_subscription *sub, const struct nl_filters *filters) {
    uint32_t n = 0;

    for (struct nl_interest *i = sub->interests; i != NULL; i = i->next)
        if (i->state != NL_LEAVING && i->key->len > 0 && i->key->wishes == 1 && !list_has(filters, i->key))
            n++;
    return n;
}

struct nl_prospect nl_wishes_prospect(const struct nl_wishes *w, const struct nl_subscription *sub,
                                      const struct nl_filters *filters) {
    bool was_all = sub != NULL && sub->interests != NULL && sub->filters.count == 0;
    bool was_filtered = sub != NULL && sub->filters.count > 0;
    uint32_t all = w->everything.wishes - was_all + (filters->count == 0);
    uint32_t filtered = w->filtered - was_filtered + (filters->count > 0);
    uint32_t keys = w->wished_keys;

    for (size_t i = 0; i < filters->count; i++) {
        const struct nl_key *key = key_find(w, filters->items[i].key, filters->items[i].key_len);
        if (key == NULL || key->wishes == 0)
            keys++;
    }
    if (sub != NULL)
        keys -= given_up(sub, filters);
    return (struct nl_prospect){.mixed = all > 0 && filtered > 0, .keys = keys, .all = all > 0};
}

struct nl_subscription *nl_wishes_add(struct nl_wishes *w, struct nl_peer *peer, uint8_t qos) {
    struct nl_subscription *sub = nl_calloc(1, sizeof(*sub));

    sub->peer = peer;
    sub->wishes = w;
    sub->qos = qos;
    sub->fresh = true;
    sub->unsettled = true;
    nl_filters_init(&sub->filters);
    nl_seen_init(&sub->granted);
    DL_APPEND2(w->subscriptions, sub, topic_prev, topic_next);
    DL_APPEND2(peer->subscriptions, sub, peer_prev, peer_next);
    peer->subscription_count++;
    return sub;
}

static void wish_begins(struct nl_wishes *w, struct nl_key *key) {
    if (key->wishes++ == 0 && key->len > 0)
        w->wished_keys++;
}

static void wish_ends(struct nl_wishes *w, struct nl_key *key) {
    if (--key->wishes == 0 && key->len > 0)
        w->wished_keys--;
}

void nl_wishes_release(struct nl_wishes *w, struct nl_key *key) {
    if (key->len > 0 && key->interests == NULL && !key->upstream && !key->asked)
        key_free(w, key);
}

static struct nl_key *key_for(struct nl_wishes *w, const struct nl_filter *filter) {
    struct nl_key *key = key_find(w, filter->key, filter->key_len);

    if (key != NULL)
        return key;
    key = nl_calloc(1, sizeof(*key));
    key->name = nl_strndup(filter->key, filter->key_len);
    key->len = filter->key_len;
    key->wire = nl_malloc(filter->wire_len);
    key->wire_len = filter->wire_len;
    memcpy(key->wire, filter->wire, filter->wire_len);
    HASH_ADD_KEYPTR(hh, w->keys, key->name, key->len, key);
    return key;
}

static void want(struct nl_subscription *sub, struct nl_key *key) {
    struct nl_interest *i = interest_in(sub, key);

    if (i == NULL) {
        i = nl_calloc(1, sizeof(*i));
        i->subscription = sub;
        i->key = key;
        i->state = NL_ADDING;
        DL_APPEND2(key->interests, i, key_prev, key_next);
        LL_PREPEND(sub->interests, i);
        wish_begins(sub->wishes, key);
    } else if (i->state == NL_LEAVING) {
        i->state = NL_HELD;
        wish_begins(sub->wishes, key);
    }
}

/* Takes an interest out of all lists. */
static void drop(struct nl_subscription *sub, struct nl_interest *i) {
    struct nl_key *key = i->key;

    if (i->state != NL_LEAVING)
        wish_ends(sub->wishes, key);
    DL_DELETE2(key->interests, i, key_prev, key_next);
    LL_DELETE(sub->interests, i);
    free(i);
    nl_wishes_release(sub->wishes, key);
}

static void give_up(struct nl_subscription *sub, struct nl_interest *i) {
    if (i->state == NL_ADDING) {
        drop(sub, i);
    } else if (i->state == NL_HELD) {
        i->state = NL_LEAVING;
        wish_ends(sub->wishes, i->key);
    }
}

/* Makes the interests follow from sub->filters. */
static void follow_filters(struct nl_subscription *sub) {
    struct nl_wishes *w = sub->wishes;
    struct nl_interest *i, *tmp;

    LL_FOREACH_SAFE(sub->interests, i, tmp) {
        bool wished = i->key->len == 0 ? sub->filters.count == 0 : list_has(&sub->filters, i->key);
        if (!wished)
            give_up(sub, i);
    }
    if (sub->filters.count == 0)
        want(sub, &w->everything);
    for (size_t n = 0; n < sub->filters.count; n++)
        want(sub, key_for(w, &sub->filters.items[n]));
}

static void set_filters(struct nl_subscription *sub, struct nl_filters *filters) {
    sub->wishes->filtered -= sub->filters.count > 0;
    nl_filters_deinit(&sub->filters);
    sub->filters = *filters;
    nl_filters_init(filters);
    sub->wishes->filtered += sub->filters.count > 0;
}

void nl_wishes_change(struct nl_subscription *sub, struct nl_filters *filters) {
    if (!sub->unsettled) {
        sub->before = nl_malloc(sizeof(*sub->before));
        nl_filters_copy(sub->before, &sub->filters);
        sub->unsettled = true;
    }
    set_filters(sub, filters);
    follow_filters(sub);
    charge(sub);
}

static void settled(struct nl_subscription *sub) {
    if (sub->before != NULL) {
        nl_filters_deinit(sub->before);
        free(sub->before);
        sub->before = NULL;
    }
    sub->unsettled = false;
    sub->fresh = false;
    charge(sub);
}

static void grant(struct nl_subscription *sub, struct nl_interest *i, uint64_t now_ms, uint64_t until_ms) {
    if (sub->grant_until_ms <= now_ms)
        nl_seen_deinit(&sub->granted);
    i->grant_until_ms = sub->grant_until_ms = until_ms;
}

void nl_wishes_confirm(struct nl_subscription *sub, uint64_t now_ms, uint64_t grant_until_ms) {
    struct nl_interest *i, *tmp;

    LL_FOREACH_SAFE(sub->interests, i, tmp) {
        if (i->state == NL_LEAVING) {
            drop(sub, i);
        } else if (i->state == NL_ADDING) {
            i->state = NL_HELD;
            if (!i->declined)
                grant(sub, i, now_ms, grant_until_ms);
            i->declined = false;
        }
    }
    settled(sub);
}

void nl_wishes_suspend_grants(struct nl_wishes *w, uint64_t now_ms) {
    struct nl_subscription *sub;
    struct nl_interest *i;

    DL_FOREACH2(w->subscriptions, sub, topic_next) {
        if (sub->grant_until_ms > now_ms)
            sub->grant_until_ms = NL_GRANT_PENDING;
        LL_FOREACH(sub->interests, i) {
            i->declined = false;
            if (i->grant_until_ms > now_ms)
                i->grant_until_ms = NL_GRANT_PENDING;
        }
    }
}

void nl_wishes_begin_grants(struct nl_wishes *w, uint64_t grant_until_ms) {
    struct nl_subscription *sub;
    struct nl_interest *i;

    DL_FOREACH2(w->subscriptions, sub, topic_next) {
        if (sub->grant_until_ms != NL_GRANT_PENDING)
            continue;
        sub->grant_until_ms = grant_until_ms;
        LL_FOREACH(sub->interests, i) {
            if (i->grant_until_ms == NL_GRANT_PENDING)
                i->grant_until_ms = grant_until_ms;
        }
    }
}

void nl_wishes_undo(struct nl_subscription *sub) {
    assert(!sub->fresh);
    if (!sub->unsettled)
        return;
    set_filters(sub, sub->before);
    follow_filters(sub);
    settled(sub);
}

struct nl_subscription *nl_wishes_remove(struct nl_subscription *sub) {
    struct nl_interest *i, *tmp;

    LL_FOREACH_SAFE(sub->interests, i, tmp) {
        drop(sub, i);
    }
    sub->wishes->filtered -= sub->filters.count > 0;
    settled(sub);
    nl_wishes_charge(sub->peer, &sub->cost, 0);
    nl_filters_deinit(&sub->filters);
    nl_seen_deinit(&sub->granted);
    DL_DELETE2(sub->wishes->subscriptions, sub, topic_prev, topic_next);
    DL_DELETE2(sub->peer->subscriptions, sub, peer_prev, peer_next);
    sub->peer->subscription_count--;
    free(sub);
    return NULL;
}

bool nl_wishes_served(const struct nl_subscription *sub, bool reported) {
    bool all = sub->wishes->everything.upstream;

    for (struct nl_interest *i = sub->interests; i != NULL; i = i->next) {
        if (i->state == NL_LEAVING || i->key->upstream)
            continue;
        if (i->key->len == 0 || !(all && reported))
            return false;
    }
    return true;
}

/* May a client have a message that the topic has seen before? Once each, while the grant lasts. */
static bool granted(const struct nl_interest *i, uint64_t hash, uint64_t now_ms) {
    const struct nl_seen *had = &i->subscription->granted;

    return i->grant_until_ms > now_ms && !nl_seen_forgets(had) && !nl_seen_has(had, hash);
}

static void note_granted(struct nl_subscription *sub, uint64_t hash, uint64_t now_ms) {
    if (sub->grant_until_ms == 0)
        return;
    if (sub->grant_until_ms > now_ms) {
        nl_seen_add(&sub->granted, hash);
        return;
    }
    nl_seen_deinit(&sub->granted);
    sub->grant_until_ms = 0;
}

static unsigned deliver_to(struct nl_key *key, const struct nl_delivery *d, bool seen, uint64_t now_ms,
                           nl_receive_fn *receive, void *ctx) {
    struct nl_interest *i;
    unsigned n = 0;

    DL_FOREACH2(key->interests, i, key_next) {
        struct nl_subscription *sub = i->subscription;

        if (i->state == NL_ADDING || sub->peer->last_delivery == d->serial)
            continue;
        if (seen && !granted(i, d->msg_hash, now_ms))
            continue;
        if (d->msg_hash != 0)
            note_granted(sub, d->msg_hash, now_ms);
        if (sub->peer == d->except)
            continue;
        sub->peer->last_delivery = d->serial;
        if (sub->worker != NULL && d->hand != NULL)
            d->hand(d->hand_ctx, sub);
        else
            receive(ctx, sub->peer);
        n++;
    }
    return n;
}

static void each_of(const struct nl_key *key, void (*each)(void *ctx, struct nl_subscription *sub),
                    void *ctx) {
    const struct nl_interest *i;

    DL_FOREACH2(key->interests, i, key_next) {
        if (i->state != NL_ADDING)
            each(ctx, i->subscription);
    }
}

void nl_wishes_each(const struct nl_wishes *w, struct nl_slice key,
                    void (*each)(void *ctx, struct nl_subscription *sub), void *ctx) {
    const struct nl_key *found = key.len == 0 ? NULL : key_find(w, (const char *)key.ptr, key.len);

    each_of(&w->everything, each, ctx);
    if (found != NULL)
        each_of(found, each, ctx);
}

static bool awaited_in(const struct nl_key *key) {
    const struct nl_interest *i;

    DL_FOREACH2(key->interests, i, key_next) {
        if (i->state == NL_ADDING)
            return true;
    }
    return false;
}

bool nl_wishes_awaited(const struct nl_wishes *w, struct nl_slice key) {
    const struct nl_key *found = key.len == 0 ? NULL : key_find(w, (const char *)key.ptr, key.len);

    return awaited_in(&w->everything) || (found != NULL && awaited_in(found));
}

bool nl_wishes_seen(const struct nl_wishes *w, uint64_t msg_hash) {
    return msg_hash != 0 && (nl_seen_has(&w->seen, msg_hash) || nl_seen_has(&w->retained, msg_hash));
}

void nl_wishes_note(struct nl_wishes *w, uint64_t msg_hash, uint64_t token, uint64_t now_ms) {
    struct nl_subscription *sub;

    nl_seen_add(&w->retained, msg_hash);
    DL_FOREACH2(w->subscriptions, sub, topic_next) {
        if (nl_seen_has(&sub->granted, token))
            note_granted(sub, msg_hash, now_ms);
    }
}

unsigned nl_wishes_deliver(struct nl_wishes *w, const struct nl_delivery *d, uint64_t now_ms,
                           nl_receive_fn *receive, void *ctx) {
    bool seen = nl_wishes_seen(w, d->msg_hash);
    struct nl_key *key = NULL;
    unsigned n;

    if (d->msg_hash != 0 && !seen)
        nl_seen_add(&w->seen, d->msg_hash);
    if (seen || (d->msg_hash != 0 && d->settling))
        nl_seen_add(&w->retained, d->msg_hash);
    n = deliver_to(&w->everything, d, seen, now_ms, receive, ctx);
    if (!d->hidden && d->key.len > 0)
        key = key_find(w, (const char *)d->key.ptr, d->key.len);
    if (key != NULL)
        n += deliver_to(key, d, seen, now_ms, receive, ctx);
    return n;
}
