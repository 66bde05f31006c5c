/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wishes and what follows from them upstream: which request is due for a topic, what its outcome means for
 * the clients that wait. The way of messages to clients is in subscriptions_delivery.c.
 */
#include "daemon/model/subscriptions.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

#include "daemon/model/subscriptions_private.h"
#include "protocol/alloc.h"

static void hand(void *ctx, struct nl_peer *peer, const struct nl_handout *h) {
    struct nl_subscriptions *s = ctx;

    s->ops.hand(s->ops.ctx, peer, h);
}

static void group_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    struct nl_subscriptions *s = ctx;

    s->ops.event(s->ops.ctx, peer, event, line);
}

static void wake(void *ctx) {
    struct nl_subscriptions *s = ctx;

    s->ops.wake(s->ops.ctx);
}

static void group_over(void *ctx, void *owner, uint64_t now_ms);

struct nl_subscriptions *nl_subscriptions_new(const struct nl_subscriptions_limits *limits,
                                              const struct nl_subscriptions_ops *ops,
                                              enum nl_reported reported, bool learns, uint64_t seed) {
    struct nl_subscriptions *s = nl_calloc(1, sizeof(*s));
    struct nl_groups_ops groups_ops = {.hand = hand,
                                       .event = group_event,
                                       .wake = wake,
                                       .awaited = nl_subscriptions_awaited,
                                       .over = group_over,
                                       .ctx = s};

    s->limits = *limits;
    s->ops = *ops;
    s->reported = reported;
    s->learns = learns;
    s->seed = seed;
    nl_buffer_init(&s->scratch);
    nl_turns_init(&s->turns);
    nl_hydrations_init(&s->hydrations);
    nl_groups_init(&s->groups, &groups_ops);
    return s;
}

/* ---- topics and their places ---- */

static struct nl_topic *topic_for(struct nl_subscriptions *s, struct nl_slice name) {
    struct nl_topic *t = nl_subscriptions_find(s, name);

    if (t != NULL)
        return t;
    t = nl_calloc(1, sizeof(*t));
    t->name = nl_strndup((const char *)name.ptr, name.len);
    t->len = name.len;
    t->turn.topic = t;
    nl_seen_init(&t->keys);
    nl_wishes_init(&t->wishes);
    HASH_ADD_KEYPTR(hh, s->topics, t->name, t->len, t);
    return t;
}

static void leave_turns(struct nl_subscriptions *s, struct nl_topic *t) {
    struct nl_change *c;

    nl_turns_withdraw(&s->turns, &t->turn);
    DL_FOREACH(t->waiting, c) {
        nl_turns_withdraw(&s->turns, &c->turn);
    }
}

/* The only place that changes a topic's place. Who moves it to IN_FLIGHT has taken a slot for it before. */
static void move(struct nl_subscriptions *s, struct nl_topic *t, enum place to) {
    if (t->place != IDLE)
        DL_DELETE(s->lists[t->place], t);
    if (t->place == READY)
        leave_turns(s, t);
    if (t->slot != NULL && to != IN_FLIGHT && to != ABANDONED) {
        nl_turns_give_back(&s->turns, t->slot);
        t->slot = NULL;
    }
    t->place = to;
    if (to != IDLE)
        DL_APPEND(s->lists[to], t);
}

/*
 * Makes the topic READY, or brings its turns up to date with who waits. Each client that waits takes a turn
 * for it: the first one brings it forward for all.
 */
static void make_ready(struct nl_subscriptions *s, struct nl_topic *t) {
    struct nl_change *c;

    if (t->place != READY)
        move(s, t, READY);
    if (t->restoring || t->waiting == NULL) {
        nl_turns_wait(&s->turns, &t->turn, 0, t->restoring ? NL_TURN_RESTORE : NL_TURN_NOBODY);
        return;
    }
    nl_turns_withdraw(&s->turns, &t->turn);
    DL_FOREACH(t->waiting, c) {
        nl_turns_wait(&s->turns, &c->turn, c->peer->uid, c->peer->number);
    }
}

static void set_refused(struct nl_subscriptions *s, struct nl_topic *t, bool refused) {
    s->refused += refused;
    s->refused -= t->refused;
    t->refused = refused;
}

static void restored(struct nl_subscriptions *s, struct nl_topic *t) {
    s->restoring -= t->restoring;
    t->restoring = false;
}

static void topic_free(struct nl_subscriptions *s, struct nl_topic *t) {
    assert(t->queue == NULL && t->waiting == NULL);
    move(s, t, IDLE);
    restored(s, t);
    set_refused(s, t, false);
    HASH_DEL(s->topics, t);
    nl_group_free(t->group);
    nl_wishes_deinit(&t->wishes);
    nl_seen_deinit(&t->keys);
    free(t->mode);
    free(t->held_mode);
    free(t->name);
    free(t);
}

struct nl_subscriptions *nl_subscriptions_free(struct nl_subscriptions *s) {
    struct nl_topic *t, *tmp;

    if (s == NULL)
        return NULL;
    HASH_ITER(hh, s->topics, t, tmp) {
        topic_free(s, t);
    }
    nl_hydrations_clear(&s->hydrations);
    nl_buffer_deinit(&s->scratch);
    nl_turns_deinit(&s->turns);
    nl_groups_deinit(&s->groups);
    free(s);
    return NULL;
}

/* ---- requests and their answers ---- */

static void charge(struct nl_change *c) {
    uint64_t id = c->id == NULL ? 0 : strlen(c->id);

    nl_wishes_charge(c->peer, &c->cost, sizeof(*c) + id + nl_wishes_cost(&c->filters));
}

static struct nl_change *change_new(struct nl_peer *peer, struct nl_topic *t, struct nl_request *request) {
    struct nl_change *c = nl_calloc(1, sizeof(*c));

    c->peer = peer;
    c->topic = t;
    c->turn.topic = t;
    c->type = request->type;
    c->qos = request->qos;
    c->late_join_none = request->late_join_none;
    c->mode = nl_subscriptions_mode(request);
    c->ack = request->ack;
    c->prefetch = request->prefetch;
    c->id = request->id;
    request->id = NULL;
    c->filters = request->filters;
    nl_filters_init(&request->filters);
    DL_APPEND2(peer->changes, c, of_peer_prev, of_peer_next);
    peer->pending++;
    peer->change_count++;
    t->change_count++;
    charge(c);
    return c;
}

/* Takes a change out of the list it is on and frees it. Its peer waits for one answer less. */
static void change_free(struct nl_subscriptions *s, struct nl_change *c) {
    nl_turns_withdraw(&s->turns, &c->turn);
    if (c->applied)
        DL_DELETE(c->topic->waiting, c);
    else
        DL_DELETE(c->topic->queue, c);
    if (c->subscription != NULL)
        c->subscription->changes--;
    DL_DELETE2(c->peer->changes, c, of_peer_prev, of_peer_next);
    c->peer->pending--;
    c->peer->change_count--;
    c->topic->change_count--;
    nl_wishes_charge(c->peer, &c->cost, 0);
    nl_filters_deinit(&c->filters);
    free(c->mode);
    free(c->id);
    free(c);
}

/* Gives the answer; the change is gone after. */
static void answer(struct nl_subscriptions *s, struct nl_change *c, struct nl_line *line) {
    struct nl_peer *peer = c->peer;

    change_free(s, c);
    s->ops.answer(s->ops.ctx, peer, line);
}

static struct nl_line *refusal_line(const struct nl_change *c, enum nl_error error, const char *hint) {
    return nl_error_line(error, nl_request_name(c->type), c->id, topic_name(c->topic), hint);
}

static const char *answer_type(enum nl_request_type type) {
    if (type == NL_REQUEST_SUBSCRIBE)
        return "subscribed";
    return type == NL_REQUEST_UNSUBSCRIBE ? "unsubscribed" : "filtersUpdated";
}

static struct nl_line *success_line(const struct nl_change *c, bool pending) {
    struct nl_object o;

    nl_object_begin(&o, answer_type(c->type));
    if (c->id != NULL)
        nl_object_json(&o, "id", nl_slice_str(c->id));
    nl_object_str(&o, "topic", topic_name(c->topic));
    if (c->type == NL_REQUEST_SUBSCRIBE)
        nl_subscriptions_tell_mode(c, &o);
    if (c->type != NL_REQUEST_UNSUBSCRIBE && (c->type != NL_REQUEST_SUBSCRIBE || c->filters.count > 0))
        nl_object_filters(&o, "filters", &c->filters);
    if (c->type == NL_REQUEST_SUBSCRIBE)
        nl_object_int(&o, "qos", pending ? c->subscription->qos : c->topic->qos);
    if (pending)
        nl_object_bool(&o, "pending", true);
    else if (c->declined)
        nl_object_cstr(&o, "lateJoin", "none");
    return nl_object_line(&o);
}

static void succeed(struct nl_subscriptions *s, struct nl_change *c, bool pending, uint64_t now_ms) {
    if (c->subscription != NULL && c->subscription->worker != NULL)
        nl_group_touch(c->subscription->worker->group);
    if (c->subscription != NULL)
        nl_wishes_confirm(c->subscription, now_ms, s->up ? now_ms + NL_GRANT_MS : NL_GRANT_PENDING);
    answer(s, c, success_line(c, pending));
}

/* ---- applying requests to the wishes ---- */

static bool at_limit(const struct nl_subscriptions *s, const struct nl_peer *peer) {
    return (s->limits.per_client != 0 && peer->subscription_count >= s->limits.per_client) ||
           (s->limits.per_uid != 0 && peer->quota->subscriptions >= s->limits.per_uid);
}

static struct nl_topic *topic_of(const struct nl_subscription *sub) {
    return (struct nl_topic *)(void *)((char *)sub->wishes - offsetof(struct nl_topic, wishes));
}

static void remove_subscription(struct nl_subscriptions *s, struct nl_subscription *sub) {
    struct nl_topic *t = topic_of(sub);

    nl_subscriptions_not_late(t, sub);
    nl_hydrations_leave(sub);
    nl_quota_give(&sub->peer->quota->subscriptions, 1);
    nl_subscriptions_dismiss(sub);
    nl_wishes_remove(sub);
    s->wished -= !wished(t);
}

static void undo(struct nl_subscriptions *s, struct nl_subscription *sub) {
    nl_subscriptions_not_late(topic_of(sub), sub);
    if (sub->fresh)
        remove_subscription(s, sub);
    else
        nl_wishes_undo(sub);
}

/* The list that the change would leave its subscription with. */
static enum nl_error wished_filters(struct nl_change *c, const struct nl_subscription *sub,
                                    struct nl_filters *out) {
    enum nl_error error = NL_OK;

    if (c->type == NL_REQUEST_SUBSCRIBE || c->type == NL_REQUEST_SET_FILTERS) {
        *out = c->filters;
        nl_filters_init(&c->filters);
        return NL_OK;
    }
    nl_filters_copy(out, &sub->filters);
    if (c->type == NL_REQUEST_ADD_FILTERS)
        error = nl_filters_add(out, &c->filters);
    else
        nl_filters_remove(out, &c->filters);
    if (error != NL_OK)
        nl_filters_deinit(out);
    return error;
}

static const char conflict_hint[] = "another client wants all messages of this topic, or filtered ones, and "
                                    "the broker may hide filters from who "
                                    "wants all; if it does not, set filters_reported = yes for this session";

/* Would the topic with these filters still be one subscription upstream? */
static enum nl_error judge(const struct nl_subscriptions *s, const struct nl_topic *t,
                           const struct nl_subscription *sub, const struct nl_filters *filters) {
    struct nl_prospect p = nl_wishes_prospect(&t->wishes, sub, filters);

    if (nl_subscriptions_tells(s, t))
        return NL_OK;
    if (p.mixed)
        return NL_ERROR_WISH_CONFLICT;
    return p.keys > NL_FILTERS_MAX ? NL_ERROR_TOO_MANY_FILTERS : NL_OK;
}

static struct nl_subscription *fresh_subscription(struct nl_subscriptions *s, struct nl_change *c) {
    uint8_t qos = c->qos < 0 ? s->limits.qos : (uint8_t)c->qos;

    c->peer->quota->subscriptions++;
    s->wished += !wished(c->topic);
    if (!wished(c->topic))
        nl_subscriptions_set_mode(s, c->topic, c->mode);
    return nl_wishes_add(&c->topic->wishes, c->peer, qos);
}

static bool served(const struct nl_subscriptions *s, const struct nl_change *c) {
    if (c->type == NL_REQUEST_UNSUBSCRIBE)
        return wished(c->topic) || !c->topic->held;
    return c->topic->held && !c->topic->unsure && !c->subscription->late &&
           nl_subscriptions_mode_held(c->topic) &&
           nl_wishes_served(c->subscription, nl_subscriptions_tells(s, c->topic));
}

static enum nl_error apply_wish(struct nl_subscriptions *s, struct nl_change *c, const char **hint) {
    struct nl_subscription *sub = nl_wishes_find(&c->topic->wishes, c->peer);
    bool fresh = sub == NULL;
    struct nl_filters filters;
    enum nl_error error;

    if (sub == NULL && c->type != NL_REQUEST_SUBSCRIBE)
        return NL_ERROR_NOT_SUBSCRIBED;
    if (sub == NULL && at_limit(s, c->peer)) {
        *hint = "this client, or its user, has as many subscriptions as it may";
        return NL_ERROR_LIMIT_REACHED;
    }
    *hint = nl_subscriptions_conflict(c->topic, sub, c);
    if (*hint != NULL)
        return NL_ERROR_WISH_CONFLICT;
    error = wished_filters(c, sub, &filters);
    if (error != NL_OK)
        return error;
    error = judge(s, c->topic, sub, &filters);
    if (error == NL_OK && !nl_subscriptions_affordable(s, c, sub, &filters))
        error = NL_ERROR_LIMIT_REACHED;
    if (error != NL_OK) {
        *hint = error == NL_ERROR_WISH_CONFLICT   ? conflict_hint
                : error == NL_ERROR_LIMIT_REACHED ? nl_subscriptions_bytes_hint
                                                  : NULL;
        nl_filters_deinit(&filters);
        return error;
    }
    if (fresh)
        sub = fresh_subscription(s, c);
    else if (c->type == NL_REQUEST_SUBSCRIBE && c->qos >= 0)
        sub->qos = (uint8_t)c->qos;
    if (c->type == NL_REQUEST_SUBSCRIBE)
        nl_subscriptions_employ(s, c->topic, c, sub, fresh);
    nl_filters_deinit(&c->filters);
    nl_filters_copy(&c->filters, &filters);
    charge(c);
    nl_wishes_change(sub, &filters);
    c->subscription = sub;
    sub->changes++;
    nl_subscriptions_joined(s, c);
    return NL_OK;
}

/* Unsubscribing takes effect here and now; only its answer may wait. */
static void apply_unsubscribe(struct nl_subscriptions *s, const struct nl_change *c) {
    struct nl_subscription *sub = nl_wishes_find(&c->topic->wishes, c->peer);

    if (sub != NULL)
        remove_subscription(s, sub);
}

/* An unsubscribe waits for the outcome of what the same client asked before. */
static bool blocked(const struct nl_change *c) {
    const struct nl_subscription *sub;

    if (c->type != NL_REQUEST_UNSUBSCRIBE)
        return false;
    sub = nl_wishes_find(&c->topic->wishes, c->peer);
    return sub != NULL && sub->changes > 0;
}

/* Applies the first request of the queue; a refusal of our own is answered here. */
static void apply_first(struct nl_subscriptions *s, struct nl_topic *t) {
    struct nl_change *c = t->queue;
    const char *hint = NULL;
    enum nl_error error = NL_OK;

    if (c->type == NL_REQUEST_UNSUBSCRIBE)
        apply_unsubscribe(s, c);
    else
        error = apply_wish(s, c, &hint);
    if (error != NL_OK) {
        answer(s, c, refusal_line(c, error, hint));
        return;
    }
    DL_DELETE(t->queue, c);
    DL_APPEND(t->waiting, c);
    c->applied = true;
}

/* Answers whoever is served by what the broker has confirmed. */
static void answer_served(struct nl_subscriptions *s, struct nl_topic *t, uint64_t now_ms) {
    struct nl_change *c, *tmp;

    DL_FOREACH_SAFE(t->waiting, c, tmp) {
        if (!s->up)
            succeed(s, c, c->type != NL_REQUEST_UNSUBSCRIBE, now_ms);
        else if (served(s, c))
            succeed(s, c, false, now_ms);
    }
}

/* Applies the queue as far as it goes. Who is served is answered before the next request changes what it has.
 */
static void apply_queue(struct nl_subscriptions *s, struct nl_topic *t, uint64_t now_ms) {
    answer_served(s, t, now_ms);
    while (t->queue != NULL && !blocked(t->queue)) {
        while (t->queue != NULL && !blocked(t->queue))
            apply_first(s, t);
        answer_served(s, t, now_ms);
    }
}

/* Late joiners wait for others, and from the first one on. */
static void gather(struct nl_subscriptions *s, struct nl_topic *t, uint64_t now_ms) {
    if (t->place == GATHERING)
        return;
    t->due_ms = now_ms + NL_GATHER_MS;
    move(s, t, GATHERING);
}

/* What was refused rests, unless somebody asks anew or nobody wishes it any more. */
static bool rests(const struct nl_topic *t) {
    return t->place == REFUSED && t->waiting == NULL && wished(t) && !t->unsure;
}

/* Brings a topic without a request in flight forward as far as it goes by itself. May free it. */
static void settle(struct nl_subscriptions *s, struct nl_topic *t, uint64_t now_ms) {
    if (t->op != OP_NONE)
        return;
    apply_queue(s, t, now_ms);
    if (s->up && nl_subscriptions_due(t) != OP_NONE) {
        if (nl_subscriptions_may_gather(t) && t->place != READY)
            gather(s, t, now_ms);
        else if (!rests(t))
            make_ready(s, t);
        return;
    }
    move(s, t, IDLE);
    restored(s, t);
    set_refused(s, t, t->refused && wished(t) && !t->held);
    if (!wished(t) && !nl_group_busy(t->group))
        topic_free(s, t);
}

static void group_over(void *ctx, void *owner, uint64_t now_ms) {
    settle(ctx, owner, now_ms);
}

static void turn_away(struct nl_subscriptions *s, struct nl_peer *peer, const struct nl_request *request,
                      const char *why) {
    s->ops.answer(s->ops.ctx, peer,
                  nl_error_line(NL_ERROR_LIMIT_REACHED, nl_request_name(request->type), request->id,
                                request->topic, why));
}

/*
 * As settle(), for a change that comes while the topic waits for its turn: it looks at this one only, however
 * many wait with it. Upstream is as it was, so none of the others is served by it.
 */
static void join_ready(struct nl_subscriptions *s, struct nl_topic *t, struct nl_change *c, uint64_t now_ms) {
    if (t->queue != c || blocked(c))
        return; /* in the order they came */
    apply_first(s, t);
    if (t->waiting == NULL || t->waiting->prev != c)
        return; /* it was refused */
    if (served(s, c)) {
        settle(s, t, now_ms);
        return;
    }
    if (t->restoring)
        return;
    nl_turns_withdraw(&s->turns, &t->turn);
    nl_turns_wait(&s->turns, &c->turn, c->peer->uid, c->peer->number);
}

void nl_subscriptions_request(struct nl_subscriptions *s, struct nl_peer *peer, struct nl_request *request,
                              uint64_t now_ms) {
    const char *why = nl_subscriptions_turned_away(s, peer, request);
    struct nl_topic *t;
    struct nl_change *c;

    if (why != NULL) {
        turn_away(s, peer, request, why);
        return;
    }
    t = topic_for(s, request->topic);
    c = change_new(peer, t, request);
    DL_APPEND(t->queue, c);
    if (t->place == READY)
        join_ready(s, t, c, now_ms);
    else
        settle(s, t, now_ms);
}

void nl_subscriptions_leave(struct nl_subscriptions *s, struct nl_peer *peer, uint64_t now_ms) {
    while (peer->changes != NULL) {
        struct nl_topic *t = peer->changes->topic;

        change_free(s, peer->changes);
        if (nl_wishes_find(&t->wishes, peer) == NULL)
            settle(s, t, now_ms);
    }
    while (peer->subscriptions != NULL) {
        struct nl_subscription *sub = peer->subscriptions;
        struct nl_topic *t = topic_of(sub);

        remove_subscription(s, sub);
        settle(s, t, now_ms);
    }
}

/* ---- requests to the broker ---- */

static bool send_request(struct nl_subscriptions *s, struct nl_turn *turn, uint64_t now_ms) {
    struct nl_topic *t = turn->topic;
    struct nl_frame frame = {0};
    enum op op = nl_subscriptions_due(t);

    assert(op != OP_NONE);
    nl_subscriptions_describe(s, t, op, &frame);
    if (!s->ops.send(s->ops.ctx, &frame))
        return false;
    t->op = op;
    t->due_ms = now_ms + s->limits.request_timeout_ms;
    t->position = s->ops.position(s->ops.ctx);
    t->slot = nl_turns_take(&s->turns, turn);
    move(s, t, IN_FLIGHT);
    return true;
}

static void granted(struct nl_subscriptions *s, struct nl_topic *t, uint64_t now_ms) {
    enum op op = t->op;
    bool was_held = t->held;

    nl_subscriptions_conclude(t, true);
    t->held = op != OP_UNSUBSCRIBE;
    if (op != OP_SET_FILTERS)
        nl_subscriptions_hold_mode(t, t->held);
    t->qos = op == OP_SUBSCRIBE ? t->asked_qos : 1;
    t->settled_ms = now_ms;
    nl_seen_deinit(&t->keys);
    move(s, t, IDLE);
    restored(s, t);
    set_refused(s, t, false);
    t->unsure = false;
    if (op == OP_SUBSCRIBE)
        nl_subscriptions_renewed(s, t, was_held, now_ms);
    settle(s, t, now_ms);
    s->renewed = NULL;
}

/*
 * What a request is answered when the broker's answer was frame, or none and error says why. Who unsubscribed
 * is out, whatever the broker says to it.
 */
static struct nl_line *outcome_line(const struct nl_change *c, const struct nl_frame *frame,
                                    enum nl_error error) {
    if (c->type == NL_REQUEST_UNSUBSCRIBE)
        return success_line(c, false);
    if (frame == NULL)
        return refusal_line(c, error, NULL);
    return nl_broker_error_line(frame, nl_request_name(c->type), c->id, topic_name(c->topic),
                                nl_slice(NULL, 0));
}

/* Everyone who waits gets the outcome; the wishes of those who were refused are as before. */
static void refuse_waiting(struct nl_subscriptions *s, struct nl_topic *t, const struct nl_frame *frame,
                           enum nl_error error) {
    while (t->waiting != NULL) {
        struct nl_change *c = t->waiting;
        struct nl_subscription *sub = c->subscription;

        answer(s, c, outcome_line(c, frame, error));
        if (sub != NULL && sub->changes == 0)
            undo(s, sub);
    }
}

/* Tells those who hold on to a topic that the broker refuses it, once. */
static void tell_holders(struct nl_subscriptions *s, struct nl_topic *t, const struct nl_frame *frame,
                         enum nl_error error) {
    struct nl_subscription *sub;
    struct nl_line *line;

    if (t->refused || !wished(t))
        return;
    line = frame == NULL ? nl_error_line(error, NULL, NULL, topic_name(t), NULL)
                         : nl_broker_error_line(frame, NULL, NULL, topic_name(t), nl_slice(NULL, 0));
    DL_FOREACH2(t->wishes.subscriptions, sub, topic_next) {
        s->ops.error(s->ops.ctx, sub->peer, nl_line_ref(line));
    }
    nl_line_unref(line);
    set_refused(s, t, true);
}

/* The request in flight came to nothing. frame is the broker's error, or NULL and error says why. */
static void refused(struct nl_subscriptions *s, struct nl_topic *t, const struct nl_frame *frame,
                    enum nl_error error, uint64_t now_ms) {
    enum op op = t->op;
    bool unproven = op == OP_SET_FILTERS && t->unsure;

    nl_subscriptions_conclude(t, false);
    t->unsure = op == OP_SUBSCRIBE && t->held;
    /* One that should have shown that the topic is still there, and did not, is taken to show that it is
     * gone. */
    if (!t->unsure && (unproven || op != OP_SET_FILTERS ||
                       (frame != NULL && nl_slice_equal(frame->error, nl_slice_str("not_subscribed")))))
        nl_subscriptions_forget(t);
    refuse_waiting(s, t, frame, error);
    if (!t->held)
        tell_holders(s, t, frame, error);
    restored(s, t);
    t->due_ms = now_ms + s->limits.refused_interval_ms;
    move(s, t, REFUSED);
    settle(s, t, now_ms);
}

void nl_subscriptions_fail_all(struct nl_subscriptions *s, enum nl_error error, uint64_t now_ms) {
    struct nl_topic *t, *tmp;

    HASH_ITER(hh, s->topics, t, tmp) {
        refuse_waiting(s, t, NULL, error);
        while (t->queue != NULL)
            answer(s, t->queue, outcome_line(t->queue, NULL, error));
        settle(s, t, now_ms);
    }
}

bool nl_subscriptions_answer(struct nl_subscriptions *s, const struct nl_frame *frame, uint64_t now_ms) {
    struct nl_topic *t = NL_FRAME_HAS(frame, topic) ? nl_subscriptions_find(s, frame->topic) : NULL;

    if (t == NULL || t->op == OP_NONE)
        return false;
    if (frame->type == NL_FRAME_ERROR)
        refused(s, t, frame, NL_OK, now_ms);
    else if (nl_subscriptions_fits(frame, t->op))
        granted(s, t, now_ms);
    else
        return false;
    return true;
}

uint64_t nl_subscriptions_oldest(const struct nl_subscriptions *s) {
    const struct nl_topic *t, *in_flight = s->lists[IN_FLIGHT];
    uint64_t oldest = in_flight == NULL ? UINT64_MAX : in_flight->position;

    DL_FOREACH(s->lists[ABANDONED], t) {
        oldest = t->position < oldest ? t->position : oldest;
    }
    return oldest;
}

/* ---- time ---- */

static void time_out(struct nl_subscriptions *s, struct nl_topic *t, uint64_t now_ms) {
    move(s, t, ABANDONED);
    t->due_ms = now_ms + s->limits.fence_timeout_ms;
    t->fence = s->ops.fence(s->ops.ctx);
    refuse_waiting(s, t, NULL, NL_ERROR_TIMEOUT);
}

static bool expired(const struct nl_topic *head, uint64_t now_ms) {
    return head != NULL && head->due_ms <= now_ms;
}

void nl_subscriptions_fence_passed(struct nl_subscriptions *s, uint64_t fence, uint64_t now_ms) {
    struct nl_topic *t, *tmp;

    DL_FOREACH_SAFE(s->lists[ABANDONED], t, tmp) {
        if (t->fence <= fence)
            refused(s, t, NULL, NL_ERROR_BROKER_IGNORED, now_ms);
    }
}

static void send_ready(struct nl_subscriptions *s, uint64_t now_ms) {
    struct nl_turn *turn;

    while ((turn = nl_turns_next(&s->turns)) != NULL)
        if (!send_request(s, turn, now_ms))
            return;
}

/* Has the link to go, as the echo of a fence does not come? When the fence is only on its way still, it has
 * its time again. */
static bool fence_lost(struct nl_subscriptions *s, uint64_t now_ms) {
    struct nl_topic *t;

    if (!expired(s->lists[ABANDONED], now_ms))
        return false;
    if (s->ops.stuck(s->ops.ctx))
        return true;
    while (expired(s->lists[ABANDONED], now_ms)) {
        t = s->lists[ABANDONED];
        t->due_ms = now_ms + s->limits.fence_timeout_ms;
        move(s, t, ABANDONED);
    }
    return false;
}

void nl_subscriptions_run(struct nl_subscriptions *s, uint64_t now_ms) {
    nl_groups_run(&s->groups, now_ms);
    if (!s->up)
        return;
    while (expired(s->lists[IN_FLIGHT], now_ms))
        time_out(s, s->lists[IN_FLIGHT], now_ms);
    if (fence_lost(s, now_ms))
        return;
    while (expired(s->lists[REFUSED], now_ms))
        make_ready(s, s->lists[REFUSED]);
    while (expired(s->lists[GATHERING], now_ms))
        make_ready(s, s->lists[GATHERING]);
    send_ready(s, now_ms);
}

uint64_t nl_subscriptions_next(const struct nl_subscriptions *s) {
    static const enum place timed[] = {GATHERING, IN_FLIGHT, ABANDONED, REFUSED};
    uint64_t next = UINT64_MAX;

    if (nl_turns_next(&s->turns) != NULL)
        return 0;
    for (size_t i = 0; i < sizeof(timed) / sizeof(timed[0]); i++) {
        const struct nl_topic *head = s->lists[timed[i]];

        if (head != NULL && head->due_ms < next)
            next = head->due_ms;
    }
    return next;
}

/* ---- the link comes and goes ---- */

/* A topic that the broker restored and nobody wishes: its place in the table is only to unsubscribe it. */
static void note_restored(struct nl_subscriptions *s, struct nl_slice raw) {
    struct nl_slice name, key, value;
    struct nl_raw_iter fields;
    struct nl_topic *t;
    bool found = nl_raw_string(raw, &name);

    if (!found && nl_raw_map(raw, &fields)) {
        struct nl_slice text;
        while (!found && nl_raw_next_pair(&fields, &key, &value))
            found = nl_raw_string(key, &text) && nl_slice_equal(text, nl_slice_str("topic")) &&
                    nl_raw_string(value, &name);
    }
    if (!found)
        return;
    t = topic_for(s, name);
    if (wished(t) || t->held)
        return;
    t->held = true;
    t->held_mode = nl_strdup("?"); /* the broker does not tell whether it is a group: no mode fits */
}

void nl_subscriptions_up(struct nl_subscriptions *s, struct nl_slice restored_list, uint64_t now_ms) {
    struct nl_raw_iter items;
    struct nl_slice item;
    struct nl_topic *t, *tmp;

    s->up = true;
    if (nl_raw_array(restored_list, &items))
        while (nl_raw_next(&items, &item))
            note_restored(s, item);
    HASH_ITER(hh, s->topics, t, tmp) {
        t->restoring = true;
        s->restoring++;
        settle(s, t, now_ms);
    }
}

bool nl_subscriptions_restoring(const struct nl_subscriptions *s) {
    return s->restoring > 0;
}

void nl_subscriptions_down(struct nl_subscriptions *s, uint64_t now_ms) {
    struct nl_topic *t, *tmp;

    s->up = false;
    nl_hydrations_clear(&s->hydrations);
    HASH_ITER(hh, s->topics, t, tmp) {
        if (t->op != OP_NONE)
            nl_subscriptions_conclude(t, false);
        nl_subscriptions_forget(t);
        nl_subscriptions_interrupted(t, now_ms);
        move(s, t, IDLE);
        settle(s, t, now_ms);
    }
}

/* ---- what messages prove ---- */

/* Filters that only work where the broker tells them. */
static bool unservable(const struct nl_topic *t) {
    return t->mode == NULL && t->wishes.filtered > 0 && nl_subscriptions_wants_all(t);
}

/* Refuses all that waits of one subscription, which is as before. */
static void refuse_subscription(struct nl_subscriptions *s, struct nl_topic *t, struct nl_subscription *sub) {
    struct nl_change *c, *tmp;

    DL_FOREACH_SAFE(t->waiting, c, tmp) {
        if (c->subscription == sub)
            answer(s, c, refusal_line(c, NL_ERROR_WISH_CONFLICT, conflict_hint));
    }
    undo(s, sub);
}

static struct nl_subscription *newest_asked(const struct nl_topic *t) {
    struct nl_subscription *sub = NULL;
    const struct nl_change *c;

    DL_FOREACH(t->waiting, c) {
        if (c->subscription != NULL)
            sub = c->subscription;
    }
    return sub;
}

static void tell_unserved(struct nl_subscriptions *s, const struct nl_topic *t) {
    struct nl_line *line = nl_error_line(NL_ERROR_WISH_CONFLICT, NULL, NULL, topic_name(t), conflict_hint);
    struct nl_subscription *sub;

    DL_FOREACH2(t->wishes.subscriptions, sub, topic_next) {
        if (sub->filters.count > 0)
            s->ops.error(s->ops.ctx, sub->peer, nl_line_ref(line));
    }
    nl_line_unref(line);
}

void nl_subscriptions_hidden(struct nl_subscriptions *s, uint64_t now_ms) {
    struct nl_subscription *sub;
    struct nl_topic *t, *tmp;

    s->reported = NL_REPORTED_NO;
    HASH_ITER(hh, s->topics, t, tmp) {
        while (unservable(t) && (sub = newest_asked(t)) != NULL)
            refuse_subscription(s, t, sub);
        if (unservable(t))
            tell_unserved(s, t);
        settle(s, t, now_ms);
    }
}

enum nl_reported nl_subscriptions_reported(const struct nl_subscriptions *s) {
    return s->reported;
}

uint64_t nl_subscriptions_topics(const struct nl_subscriptions *s) {
    return s->wished;
}

uint64_t nl_subscriptions_refused(const struct nl_subscriptions *s) {
    return s->refused;
}
