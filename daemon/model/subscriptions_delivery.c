/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a message to the clients that wish it, and what it tells about the broker. */
#include "daemon/model/subscriptions_private.h"

const char *nl_reported_name(enum nl_reported reported) {
    static const char *const names[] = {
        [NL_REPORTED_UNKNOWN] = "unknown", [NL_REPORTED_YES] = "yes", [NL_REPORTED_NO] = "no"};

    return names[reported];
}

static bool settling(const struct nl_topic *t, uint64_t now_ms) {
    return now_ms - t->settled_ms < NL_SETTLE_MS;
}

/* Is it certain that the message, which has its filter or none, is not a retained one? See subscriptions.h.
 */
static bool surely_live(const struct nl_subscriptions *s, struct nl_topic *t, const struct nl_delivery *d,
                        uint64_t now_ms) {
    uint64_t key = nl_seen_hash(d->key, s->seed);
    bool second = nl_seen_has(&t->keys, key);

    if (!settling(t, now_ms))
        return true;
    if (d->msg_hash == 0)
        return false;
    if (!second)
        nl_seen_add(&t->keys, key);
    return second && !nl_wishes_seen(&t->wishes, d->msg_hash);
}

/* What a message's filter field tells about the broker. */
static void learn_reported(struct nl_subscriptions *s, struct nl_topic *t, const struct nl_delivery *d,
                           const struct nl_frame *message, uint64_t now_ms) {
    if (!s->learns || t->held_mode != NULL || s->reported == NL_REPORTED_NO)
        return;
    if (d->hidden)
        nl_subscriptions_hidden(s, now_ms);
    else if (s->reported == NL_REPORTED_UNKNOWN && t->held && t->wishes.everything.upstream &&
             t->op == OP_NONE && !message->is_replay && surely_live(s, t, d, now_ms))
        s->reported = NL_REPORTED_YES;
}

static void read_filter(struct nl_delivery *d, const struct nl_frame *message) {
    struct nl_slice filter;

    if (!NL_FRAME_HAS(message, filter) || !nl_raw_string(message->filter, &filter))
        return;
    d->hidden = nl_slice_equal(filter, nl_slice_str("#"));
    if (!d->hidden)
        d->key = filter;
}

/* One for a subscription that acknowledges by hand. */
struct arrival {
    struct nl_group_message a;
    uint64_t now_ms;
};

static void hand(void *ctx, struct nl_subscription *sub) {
    const struct arrival *arrival = ctx;

    nl_group_take(sub->worker->group, &arrival->a, arrival->now_ms);
}

/* To the group of a topic, or to all who wish it. */
static unsigned deliver(struct nl_topic *t, struct nl_delivery *d, struct arrival *arrival,
                        nl_receive_fn *receive, void *ctx) {
    if (t->group != NULL)
        return nl_group_take(t->group, &arrival->a, arrival->now_ms);
    d->hand = hand;
    d->hand_ctx = arrival;
    return nl_wishes_deliver(&t->wishes, d, arrival->now_ms, receive, ctx);
}

unsigned nl_subscriptions_deliver(struct nl_subscriptions *s, const struct nl_frame *message,
                                  struct nl_receipt *receipt, uint64_t serial, uint64_t now_ms,
                                  nl_receive_fn *receive, void *ctx, bool *known) {
    struct nl_topic *t = NL_FRAME_HAS(message, topic) ? nl_subscriptions_find(s, message->topic) : NULL;
    struct nl_delivery d = {.serial = serial};
    struct arrival arrival;

    *known = t != NULL;
    if (t == NULL)
        return 0;
    read_filter(&d, message);
    if (NL_FRAME_HAS(message, msg_id) && message->msg_id.len > 0)
        d.msg_hash = nl_seen_hash(message->msg_id, s->seed);
    t->no_msg_ids = d.msg_hash == 0;
    d.settling = settling(t, now_ms);
    learn_reported(s, t, &d, message, now_ms);
    /* What was learnt can have taken the last wish away. */
    t = nl_subscriptions_find(s, message->topic);
    if (t == NULL)
        return 0;
    arrival = (struct arrival){.a = {.frame = message,
                                     .key = d.key,
                                     .msg_hash = d.msg_hash,
                                     .settling = d.settling,
                                     .serial = serial,
                                     .receipt = receipt},
                               .now_ms = now_ms};
    return deliver(t, &d, &arrival, receive, ctx);
}

unsigned nl_subscriptions_hydrate(struct nl_subscriptions *s, const struct nl_frame *frame, uint64_t serial,
                                  uint64_t now_ms, nl_receive_fn *receive, void *ctx) {
    if (!NL_FRAME_HAS(frame, topic))
        return 0;
    return nl_hydrations_take(&s->hydrations, frame->topic, serial, now_ms, receive, ctx);
}

static struct nl_slice key_slice(const char *filter_key) {
    return filter_key == NULL ? nl_slice(NULL, 0) : nl_slice_str(filter_key);
}

unsigned nl_subscriptions_deliver_local(struct nl_subscriptions *s, struct nl_slice topic,
                                        const char *filter_key, const struct nl_peer *except, uint64_t token,
                                        uint64_t serial, uint64_t now_ms, nl_receive_fn *receive, void *ctx) {
    struct nl_topic *t = nl_subscriptions_find(s, topic);
    struct nl_delivery d = {
        .serial = serial, .except = except, .key = key_slice(filter_key), .msg_hash = token};

    /* A group's messages are those that the broker gives to this member of it, no others. */
    return t == NULL || t->group != NULL ? 0 : nl_wishes_deliver(&t->wishes, &d, now_ms, receive, ctx);
}

bool nl_subscriptions_upstream_matches(const struct nl_subscriptions *s, struct nl_slice topic,
                                       const char *filter_key) {
    const struct nl_topic *t = nl_subscriptions_find(s, topic);
    struct nl_slice key = key_slice(filter_key);
    struct nl_key *found = NULL;

    if (t == NULL || !t->held || t->held_mode != NULL)
        return false;
    if (key.len > 0)
        HASH_FIND(hh, t->wishes.keys, key.ptr, key.len, found);
    return t->wishes.everything.upstream || (found != NULL && found->upstream);
}

void nl_subscriptions_note_seen(struct nl_subscriptions *s, struct nl_slice topic, struct nl_slice msg_id,
                                uint64_t token, uint64_t now_ms) {
    struct nl_topic *t = nl_subscriptions_find(s, topic);

    if (t != NULL)
        nl_wishes_note(&t->wishes, nl_seen_hash(msg_id, s->seed), token, now_ms);
}

uint64_t nl_subscriptions_changed(const struct nl_subscriptions *s, struct nl_slice topic, uint64_t now_ms) {
    const struct nl_topic *t = nl_subscriptions_find(s, topic);

    return t != NULL && t->held && settling(t, now_ms) ? t->settled_ms : 0;
}
