/* SPDX-License-Identifier: Apache-2.0 */
/* What the broker has of a topic and what it should have: the request that leads from one to the other. */
#include <utlist.h>

#include "daemon/model/subscriptions_private.h"

bool nl_subscriptions_wants_all(const struct nl_topic *t) {
    return t->wishes.everything.wishes > 0 || t->wishes.wished_keys > NL_FILTERS_MAX;
}

bool nl_subscriptions_upstream_fits(const struct nl_topic *t) {
    bool all = nl_subscriptions_wants_all(t);
    struct nl_key *key, *tmp;

    if (t->wishes.everything.upstream != all)
        return false;
    if (all)
        return true;
    HASH_ITER(hh, t->wishes.keys, key, tmp) {
        if (key->upstream != (key->wishes > 0))
            return false;
    }
    return true;
}

enum op nl_subscriptions_due(const struct nl_topic *t) {
    if (!wished(t))
        return t->held ? OP_UNSUBSCRIBE : OP_NONE;
    if (!t->held)
        return OP_SUBSCRIBE;
    /* A subscribe would do it, too; but then nothing tells which mode a message of the time between is. */
    if (!nl_subscriptions_mode_held(t))
        return OP_UNSUBSCRIBE;
    if (t->unsure)
        return OP_SET_FILTERS;
    if (t->late > 0)
        return OP_SUBSCRIBE;
    return nl_subscriptions_upstream_fits(t) ? OP_NONE : OP_SET_FILTERS;
}

/* Notes for each key what the request asks for, and packs the filters that go with it. */
static void ask(struct nl_subscriptions *s, struct nl_topic *t, enum op op) {
    bool all = op != OP_UNSUBSCRIBE && nl_subscriptions_wants_all(t);
    bool filters = op != OP_UNSUBSCRIBE && !all;
    struct nl_key *key, *tmp;

    nl_buffer_clear(&s->scratch);
    nl_pack_array(&s->scratch, filters ? t->wishes.wished_keys : 0);
    t->wishes.everything.asked = all;
    HASH_ITER(hh, t->wishes.keys, key, tmp) {
        key->asked = filters && key->wishes > 0;
        if (key->asked)
            nl_buffer_append(&s->scratch, key->wire, key->wire_len);
    }
}

static uint8_t wished_qos(const struct nl_topic *t) {
    struct nl_subscription *sub;
    uint8_t qos = 0;

    DL_FOREACH2(t->wishes.subscriptions, sub, topic_next) {
        if (sub->qos > qos)
            qos = sub->qos;
    }
    return qos;
}

void nl_subscriptions_describe(struct nl_subscriptions *s, struct nl_topic *t, enum op op,
                               struct nl_frame *frame) {
    static const enum nl_frame_type types[] = {
        [OP_SUBSCRIBE] = NL_FRAME_SUBSCRIBE,
        [OP_SET_FILTERS] = NL_FRAME_SET_FILTERS,
        [OP_UNSUBSCRIBE] = NL_FRAME_UNSUBSCRIBE,
    };
    struct nl_slice filters;

    ask(s, t, op);
    filters = nl_slice(s->scratch.bytes, s->scratch.len);
    frame->type = types[op];
    NL_FRAME_SET(frame, topic, topic_name(t));
    if (op == OP_SUBSCRIBE) {
        t->asked_qos = wished_qos(t);
        NL_FRAME_SET(frame, qos, t->asked_qos);
        if (t->mode != NULL)
            NL_FRAME_SET(frame, load_balance, true);
        if (t->mode != NULL && t->mode[0] != '\0')
            NL_FRAME_SET(frame, load_balance_group, nl_slice_str(t->mode));
    }
    /* An empty list means everything to setFilters, which is not answered without one. */
    if (op == OP_SET_FILTERS || (op == OP_SUBSCRIBE && !t->wishes.everything.asked))
        NL_FRAME_SET(frame, filters, filters);
}

/* Drops keys that neither the broker nor a client has any more. */
static void sweep_keys(struct nl_topic *t) {
    struct nl_key *key, *tmp;

    HASH_ITER(hh, t->wishes.keys, key, tmp) {
        nl_wishes_release(&t->wishes, key);
    }
}

void nl_subscriptions_conclude(struct nl_topic *t, bool granted) {
    struct nl_key *key, *tmp;

    if (granted)
        t->wishes.everything.upstream = t->wishes.everything.asked;
    t->wishes.everything.asked = false;
    HASH_ITER(hh, t->wishes.keys, key, tmp) {
        if (granted)
            key->upstream = key->asked;
        key->asked = false;
    }
    sweep_keys(t);
    t->op = OP_NONE;
}

void nl_subscriptions_forget(struct nl_topic *t) {
    struct nl_key *key, *tmp;

    t->held = t->unsure = false;
    nl_subscriptions_hold_mode(t, false);
    t->wishes.everything.upstream = false;
    HASH_ITER(hh, t->wishes.keys, key, tmp) {
        key->upstream = false;
    }
    sweep_keys(t);
}

bool nl_subscriptions_fits(const struct nl_frame *frame, enum op op) {
    switch (op) {
    case OP_SUBSCRIBE:
        return frame->type == NL_FRAME_SUBSCRIBED;
    case OP_SET_FILTERS:
        return frame->type == NL_FRAME_FILTERS_UPDATED;
    case OP_UNSUBSCRIBE:
        return frame->type == NL_FRAME_UNSUBSCRIBED;
    case OP_NONE:
        break;
    }
    return false;
}
