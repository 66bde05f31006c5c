/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subscriptions that share their messages or acknowledge them: which mode a topic has, who works in which
 * group (groups.h), and the acknowledgements of clients.
 *
 * A topic has one mode, as the broker allows one for each connection: broadcast, or one load-balanced group.
 * It is that of the first who wishes the topic, and the others' wishes must agree. Whether a message had a
 * filter, and which, is always told in a group: there filters and their absence can be mixed.
 */
#include <stdlib.h>
#include <utlist.h>

#include "daemon/model/subscriptions_private.h"
#include "protocol/alloc.h"
#include "protocol/json.h"

/* Of a group, when the client says nothing: one after the other, so that the least busy is known. */
#define GROUP_PREFETCH 1

char *nl_subscriptions_mode(const struct nl_request *r) {
    if (!r->load_balance)
        return NULL;
    return r->group.ptr == NULL ? nl_strdup("") : nl_strndup((const char *)r->group.ptr, r->group.len);
}

static bool same_mode(const char *a, const char *b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool nl_subscriptions_mode_held(const struct nl_topic *t) {
    return same_mode(t->mode, t->held_mode);
}

void nl_subscriptions_hold_mode(struct nl_topic *t, bool held) {
    free(t->held_mode);
    t->held_mode = held && t->mode != NULL ? nl_strdup(t->mode) : NULL;
}

static bool manual(const struct nl_subscription *sub) {
    return sub->worker != NULL && sub->worker->manual;
}

const char *nl_subscriptions_conflict(const struct nl_topic *t, const struct nl_subscription *sub,
                                      const struct nl_change *c) {
    if (c->type != NL_REQUEST_SUBSCRIBE)
        return NULL;
    if (wished(t) && !same_mode(t->mode, c->mode))
        return "the clients of this session subscribe to this topic without a group, or in another one; one "
               "connection to the broker holds one mode. Use the same group, or another token";
    if (sub != NULL && c->ack != NL_ACK_UNSAID && (c->ack == NL_ACK_MANUAL) != manual(sub))
        return "this client's subscription acknowledges in another way; unsubscribe first";
    return NULL;
}

/* Somebody's wish may match such messages when the broker has confirmed it. */
static bool may_match(const struct nl_change *c, struct nl_slice key) {
    if (c->type == NL_REQUEST_UNSUBSCRIBE || c->type == NL_REQUEST_REMOVE_FILTERS)
        return false;
    return c->filters.count == 0 || nl_filters_have(&c->filters, key);
}

bool nl_subscriptions_awaited(void *ctx, void *owner, struct nl_slice key) {
    const struct nl_topic *t = owner;
    const struct nl_change *c;

    (void)ctx;
    DL_FOREACH(t->queue, c) {
        if (may_match(c, key))
            return true;
    }
    return nl_wishes_awaited(&t->wishes, key);
}

void nl_subscriptions_set_mode(struct nl_subscriptions *s, struct nl_topic *t, const char *mode) {
    if (!same_mode(t->mode, mode))
        t->group = nl_group_free(t->group); /* what it still had was for another group */
    free(t->mode);
    t->mode = mode == NULL ? NULL : nl_strdup(mode);
    if (mode != NULL && t->group == NULL)
        t->group = nl_group_new(&s->groups, &t->wishes, topic_name(t), true, t);
}

/* A fresh subscription takes up work, if it is of the kind; a known one may only change how much. */
void nl_subscriptions_employ(struct nl_subscriptions *s, struct nl_topic *t, const struct nl_change *c,
                             struct nl_subscription *sub, bool fresh) {
    bool by_hand = c->ack == NL_ACK_MANUAL;
    uint32_t prefetch = c->prefetch != 0 ? c->prefetch : by_hand && t->mode != NULL ? GROUP_PREFETCH : 0;

    if (fresh && t->mode != NULL) {
        nl_group_join(t->group, sub, by_hand, prefetch);
    } else if (fresh && by_hand) {
        nl_group_join(nl_group_new(&s->groups, &t->wishes, topic_name(t), false, t), sub, true, prefetch);
    } else if (c->prefetch != 0 && manual(sub)) {
        sub->worker->prefetch = c->prefetch;
        nl_group_touch(sub->worker->group);
    }
}

void nl_subscriptions_dismiss(struct nl_subscription *sub) {
    struct nl_group *g;

    if (sub->worker == NULL)
        return;
    g = sub->worker->group;
    nl_group_leave(sub);
    if (!g->shared)
        nl_group_free(g);
}

void nl_subscriptions_tell_mode(const struct nl_change *c, struct nl_object *o) {
    const struct nl_subscription *sub = c->subscription;

    nl_object_bool(o, "loadBalance", c->mode != NULL);
    if (c->mode != NULL && c->mode[0] != '\0')
        nl_object_cstr(o, "loadBalanceGroup", c->mode);
    if (sub == NULL || !manual(sub))
        return;
    nl_object_cstr(o, "ack", "manual");
    if (sub->worker->prefetch != 0)
        nl_object_int(o, "prefetch", sub->worker->prefetch);
}

bool nl_subscriptions_grouped(const struct nl_subscriptions *s, struct nl_slice topic) {
    const struct nl_topic *t = nl_subscriptions_find(s, topic);

    if (t == NULL)
        return false;
    return (t->held && t->held_mode != NULL) || (t->op == OP_SUBSCRIBE && t->mode != NULL);
}

void nl_subscriptions_replay(struct nl_subscriptions *s, const struct nl_frame *frame, uint64_t now_ms) {
    bool start = frame->type == NL_FRAME_REPLAY_START;
    struct nl_topic *t, *tmp;

    HASH_ITER(hh, s->topics, t, tmp) {
        struct nl_object o;

        if (t->group == NULL)
            continue;
        nl_object_begin(&o, nl_frame_type_name(frame->type));
        nl_object_str(&o, "topic", topic_name(t));
        if (NL_FRAME_HAS(frame, count))
            nl_object_int(&o, "count", frame->count);
        if (NL_FRAME_HAS(frame, replayed))
            nl_object_int(&o, "replayed", frame->replayed);
        nl_group_mark(t->group, start ? NL_EVENT_REPLAY_START : NL_EVENT_REPLAY_END, nl_object_line(&o),
                      now_ms);
    }
}

/* ---- acknowledgements of clients ---- */

static struct nl_work *find_msg(const struct nl_subscriptions *s, const struct nl_peer *peer,
                                struct nl_slice msg_id) {
    return nl_groups_find_msg(&s->groups, peer, msg_id, nl_seen_hash(msg_id, s->seed));
}

/* Number i of what the request names; NULL = the client has no such message. */
static struct nl_work *named(const struct nl_subscriptions *s, const struct nl_peer *peer,
                             const struct nl_request *r, size_t i) {
    if (r->ack_ids != NULL)
        return nl_groups_find(&s->groups, peer,
                              json_object_get_uint64(json_object_array_get_idx(r->ack_ids, i)));
    if (r->msg_ids != NULL)
        return find_msg(s, peer, nl_json_text(json_object_array_get_idx(r->msg_ids, i)));
    return r->ack_id != 0 ? nl_groups_find(&s->groups, peer, r->ack_id) : find_msg(s, peer, r->msg_id);
}

bool nl_subscriptions_acknowledge(struct nl_subscriptions *s, const struct nl_peer *peer,
                                  const struct nl_request *r) {
    size_t n = 1;

    if (r->ack_ids != NULL)
        n = json_object_array_length(r->ack_ids);
    else if (r->msg_ids != NULL)
        n = json_object_array_length(r->msg_ids);
    for (size_t i = 0; i < n; i++)
        if (named(s, peer, r, i) == NULL)
            return false;
    for (size_t i = 0; i < n; i++) {
        struct nl_work *work = named(s, peer, r, i); /* NULL: named twice */

        if (work != NULL)
            nl_groups_acknowledge(work);
    }
    return true;
}

uint64_t nl_subscriptions_groups_next(const struct nl_subscriptions *s) {
    return nl_groups_next(&s->groups);
}

uint64_t nl_subscriptions_lost(const struct nl_subscriptions *s) {
    return s->groups.lost;
}
