/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subscriptions against a plain model: random clients subscribe, change filters, unsubscribe and vanish; a
 * fake broker answers in order, refuses, ignores; the link comes and goes. At every moment each request has
 * at most one answer and the broker's rules hold; whenever all is quiet the broker has exactly the union of
 * what clients have, and a message reaches exactly the clients whose filters match.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/subscriptions.h"
#include "daemon/model/turns.h"
#include "protocol/alloc.h"

enum { PEERS = 6, TOPICS = 3, KEYS = 4, QUEUE = 4096, TIMEOUT_MS = 1000, FENCE_MS = 3000, REFUSED_MS = 5000 };

static const char *const topic_names[TOPICS] = {"app/room/one", "app/room/two", "app/room/three"};
/* Keys of the filters that clients use; the last one is an AND group. */
static const char *const key_names[KEYS] = {"a", "b", "c", "x|y"};
static const char *const key_json[KEYS] = {"\"a\"", "\"b\"", "\"c\"", "[\"Y\",\"x\"]"};

/* A set of keys; ALL is the subscription without filters, NONE is no subscription. */
typedef int set;
#define NONE (-1)
#define ALL 0

struct asked {
    unsigned id, peer, topic;
    enum nl_request_type type;
    set filters;
    bool open;
};

struct request_frame {
    enum nl_frame_type type;
    unsigned topic;
    set filters;
};

struct world {
    uint64_t random;
    struct nl_subscriptions *s;
    struct nl_quotas quotas;
    struct nl_peer peers[PEERS];
    set has[PEERS][TOPICS]; /* as the answers said */
    set broker[TOPICS];
    bool up;
    enum nl_reported reported;
    enum nl_late_join late_join;
    struct request_frame queue[QUEUE]; /* sent, not handled by the broker */
    unsigned head, tail;
    bool outstanding[TOPICS]; /* a request is unanswered */
    bool ignored[TOPICS];     /* the broker passed it over */
    uint64_t publishes;       /* sent so far, or so it says */
    uint64_t fences;
    bool stuck; /* the link was to be closed */
    bool fence_on_its_way;
    struct asked asked[QUEUE];
    unsigned asked_count;
    unsigned refuse, ignore; /* per cent */
    uint64_t now;
    unsigned received[PEERS];
    unsigned errors, subscribes;
    bool link_full;
    char last_error[32]; /* of the last answer; "" = it was none */
    uint64_t serial;     /* of the last message */
};

static unsigned pick(struct world *w, unsigned n) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (unsigned)(w->random % n);
}

/* ---- what the subscriptions are given ---- */

static unsigned topic_number(struct nl_slice name) {
    for (unsigned t = 0; t < TOPICS; t++)
        if (nl_slice_equal(name, nl_slice_str(topic_names[t])))
            return t;
    fail_msg("a topic that nobody named");
    return 0;
}

/* The keys of a MessagePack list of filters. */
static set read_filters(struct nl_slice raw) {
    struct nl_raw_iter it;
    struct nl_slice item, text;
    set found = 0;

    assert_true(nl_raw_array(raw, &it));
    while (nl_raw_next(&it, &item)) {
        if (!nl_raw_string(item, &text)) {
            found |= 1 << (KEYS - 1);
            continue;
        }
        for (int k = 0; k < KEYS - 1; k++)
            if (nl_slice_equal(text, nl_slice_str(key_names[k])))
                found |= 1 << k;
    }
    return found;
}

static bool on_send(void *ctx, const struct nl_frame *frame) {
    struct world *w = ctx;
    struct request_frame *r = &w->queue[w->tail % QUEUE];
    unsigned in_flight = 0;

    if (w->link_full)
        return false;
    assert_true(w->up);
    r->type = frame->type;
    r->topic = topic_number(frame->topic);
    r->filters = NL_FRAME_HAS(frame, filters) ? read_filters(frame->filters) : ALL;
    assert_false(w->outstanding[r->topic]);
    w->outstanding[r->topic] = true;
    for (unsigned t = 0; t < TOPICS; t++)
        in_flight += w->outstanding[t];
    assert_true(in_flight <= NL_CONTROL_IN_FLIGHT);
    w->tail++;
    assert_true(w->tail - w->head < QUEUE);
    w->subscribes += frame->type == NL_FRAME_SUBSCRIBE;
    return true;
}

static uint64_t on_fence(void *ctx) {
    struct world *w = ctx;

    return ++w->fences;
}

static uint64_t on_position(void *ctx) {
    struct world *w = ctx;

    return w->publishes;
}

static bool on_stuck(void *ctx) {
    struct world *w = ctx;

    assert_true(w->up);
    if (w->fence_on_its_way)
        return false;
    w->stuck = true;
    return true;
}

static struct json_object *parse(const struct nl_line *line) {
    char *text = nl_strndup((const char *)line->bytes, line->len - 1);
    struct json_object *o = json_tokener_parse(text);

    assert_non_null(o);
    free(text);
    return o;
}

static const char *text_field(struct json_object *o, const char *name) {
    struct json_object *v;

    return json_object_object_get_ex(o, name, &v) ? json_object_get_string(v) : NULL;
}

/* The keys of an answer's list of filters. */
static set shown_filters(struct json_object *o) {
    struct json_object *list;
    set found = 0;

    if (!json_object_object_get_ex(o, "filters", &list))
        return ALL;
    for (size_t i = 0; i < json_object_array_length(list); i++)
        for (int k = 0; k < KEYS; k++)
            if (strcmp(json_object_to_json_string_ext(json_object_array_get_idx(list, i),
                                                      JSON_C_TO_STRING_PLAIN),
                       key_json[k]) == 0)
                found |= 1 << k;
    return found;
}

/* What the client must have after this request was granted. */
static set expected(const struct asked *a, set had) {
    switch (a->type) {
    case NL_REQUEST_SUBSCRIBE:
    case NL_REQUEST_SET_FILTERS:
        return a->filters;
    case NL_REQUEST_ADD_FILTERS:
        return had | a->filters;
    case NL_REQUEST_REMOVE_FILTERS:
        return had & ~a->filters;
    default:
        return NONE;
    }
}

/* What is granted is answered in the order asked; a refusal of our own may come before that. */
static void assert_first_open(const struct world *w, const struct asked *a) {
    for (unsigned i = 0; i < w->asked_count && i < QUEUE; i++)
        assert_false(w->asked[i].open && w->asked[i].peer == a->peer && w->asked[i].topic == a->topic &&
                     w->asked[i].id < a->id);
}

static void on_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct world *w = ctx;
    unsigned p = (unsigned)(peer - w->peers);
    struct json_object *o = parse(line), *id;
    struct asked *a;
    set *has;

    nl_line_unref(line);
    assert_true(json_object_object_get_ex(o, "id", &id));
    a = &w->asked[json_object_get_int64(id) % QUEUE];
    assert_true(a->open && a->peer == p);
    a->open = false;
    snprintf(w->last_error, sizeof(w->last_error), "%s",
             text_field(o, "error") == NULL ? "" : text_field(o, "error"));
    has = &w->has[p][a->topic];
    if (strcmp(text_field(o, "type"), "error") != 0) {
        assert_first_open(w, a);
        *has = expected(a, *has);
        if (*has != NONE)
            assert_int_equal(shown_filters(o), *has);
    }
    json_object_put(o);
}

static void on_error(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct world *w = ctx;
    unsigned p = (unsigned)(peer - w->peers);
    struct json_object *o = parse(line);

    assert_true(w->has[p][topic_number(nl_slice_str(text_field(o, "topic")))] != NONE);
    assert_null(text_field(o, "request"));
    w->errors++;
    json_object_put(o);
    nl_line_unref(line);
}

/* ---- the fake broker ---- */

static void answer_frame(struct world *w, enum nl_frame_type type, unsigned t, const char *error) {
    struct nl_frame frame = {.type = type};

    NL_FRAME_SET(&frame, topic, nl_slice_str(topic_names[t]));
    if (error != NULL)
        NL_FRAME_SET(&frame, error, nl_slice_str(error));
    w->outstanding[t] = false;
    assert_true(nl_subscriptions_answer(w->s, &frame, w->now));
}

static void perform(struct world *w, const struct request_frame *r) {
    switch (r->type) {
    case NL_FRAME_SUBSCRIBE:
        /* A second subscribe has a gap: other changes are made with setFilters. */
        assert_true(w->broker[r->topic] == NONE || w->late_join != NL_LATE_NONE);
        w->broker[r->topic] = r->filters;
        answer_frame(w, NL_FRAME_SUBSCRIBED, r->topic, NULL);
        break;
    case NL_FRAME_SET_FILTERS:
        assert_int_not_equal(w->broker[r->topic], NONE);
        w->broker[r->topic] = r->filters;
        answer_frame(w, NL_FRAME_FILTERS_UPDATED, r->topic, NULL);
        break;
    case NL_FRAME_UNSUBSCRIBE:
        w->broker[r->topic] = NONE;
        answer_frame(w, NL_FRAME_UNSUBSCRIBED, r->topic, NULL);
        break;
    default:
        fail();
    }
}

/* Handles the first request, unless it is passed over. */
static void broker_step(struct world *w) {
    struct request_frame r;

    if (w->head == w->tail)
        return;
    r = w->queue[w->head++ % QUEUE];
    if (r.type != NL_FRAME_UNSUBSCRIBE && pick(w, 100) < w->ignore)
        w->ignored[r.topic] = true;
    else if (r.type != NL_FRAME_UNSUBSCRIBE && pick(w, 100) < w->refuse)
        answer_frame(w, NL_FRAME_ERROR, r.topic, "not_authorized");
    else
        perform(w, &r);
}

/* All heartbeats sent so far come back: the broker has handled everything before them. */
static void echo(struct world *w) {
    while (w->head != w->tail)
        broker_step(w);
    for (unsigned t = 0; t < TOPICS; t++) {
        if (w->ignored[t])
            w->outstanding[t] = false;
        w->ignored[t] = false;
    }
    nl_subscriptions_fence_passed(w->s, w->fences, w->now);
}

static void link_down(struct world *w) {
    if (!w->up)
        return;
    w->up = w->stuck = false;
    w->head = w->tail = 0;
    for (unsigned t = 0; t < TOPICS; t++) {
        w->broker[t] = NONE;
        w->outstanding[t] = w->ignored[t] = false;
    }
    nl_subscriptions_down(w->s, w->now);
}

static void link_up(struct world *w) {
    if (w->up)
        return;
    w->up = true;
    nl_subscriptions_up(w->s, nl_slice(NULL, 0), w->now);
}

/* ---- clients ---- */

static void append_filters(char *text, size_t size, set filters) {
    size_t len = strlen(text);

    for (int k = 0; k < KEYS; k++)
        if (filters & (1 << k))
            len += (size_t)snprintf(text + len, size - len, "%s%s", text[len - 1] == '[' ? "" : ",",
                                    key_json[k]);
}

static void send_request(struct world *w, unsigned p, unsigned t, enum nl_request_type type, set filters) {
    struct asked *a = &w->asked[w->asked_count % QUEUE];
    struct nl_request request;
    struct nl_refusal refusal;
    char line[512];

    *a = (struct asked){
        .id = w->asked_count, .peer = p, .topic = t, .type = type, .filters = filters, .open = true};
    snprintf(line, sizeof(line), "{\"type\":\"%s\",\"topic\":\"%s\",\"id\":%u%s", nl_request_name(type),
             topic_names[t], w->asked_count, type == NL_REQUEST_UNSUBSCRIBE ? "" : ",\"filters\":[");
    if (type != NL_REQUEST_UNSUBSCRIBE) {
        append_filters(line, sizeof(line), filters);
        strcat(line, "]");
    }
    strcat(line, "}");
    w->asked_count++;
    assert_int_equal(nl_request_parse(nl_slice_str(line), 8, &request, &refusal), NL_OK);
    nl_subscriptions_request(w->s, &w->peers[p], &request, w->now);
    nl_request_deinit(&request);
}

static void random_request(struct world *w) {
    static const enum nl_request_type types[] = {NL_REQUEST_SUBSCRIBE,      NL_REQUEST_SUBSCRIBE,
                                                 NL_REQUEST_SET_FILTERS,    NL_REQUEST_ADD_FILTERS,
                                                 NL_REQUEST_REMOVE_FILTERS, NL_REQUEST_UNSUBSCRIBE};
    enum nl_request_type type = types[pick(w, 6)];
    set filters = (set)pick(w, 1 << KEYS);

    /* Half of all subscribes want everything. */
    if (type == NL_REQUEST_SUBSCRIBE && pick(w, 2) == 0)
        filters = ALL;
    if ((type == NL_REQUEST_ADD_FILTERS || type == NL_REQUEST_REMOVE_FILTERS) && filters == 0)
        filters = 1;
    send_request(w, pick(w, PEERS), pick(w, TOPICS), type, filters);
}

static void vanish(struct world *w, unsigned p) {
    nl_subscriptions_leave(w->s, &w->peers[p], w->now);
    assert_int_equal(w->peers[p].pending, 0);
    assert_int_equal(w->peers[p].subscription_count, 0);
    assert_int_equal(w->peers[p].change_count, 0);
    assert_int_equal(w->peers[p].wish_bytes, 0);
    assert_int_equal(w->peers[p].quota->wish_bytes, 0);
    assert_null(w->peers[p].subscriptions);
    for (unsigned t = 0; t < TOPICS; t++)
        w->has[p][t] = NONE;
    for (unsigned i = 0; i < QUEUE; i++)
        if (w->asked[i].open && w->asked[i].peer == p)
            w->asked[i].open = false;
}

/* ---- what must hold ---- */

static set union_of(const struct world *w, unsigned t) {
    set all = NONE;

    for (unsigned p = 0; p < PEERS; p++) {
        if (w->has[p][t] == ALL)
            return ALL;
        if (w->has[p][t] != NONE)
            all = (all == NONE ? 0 : all) | w->has[p][t];
    }
    return all;
}

static void receive(void *ctx, struct nl_peer *peer) {
    struct world *w = ctx;

    w->received[peer - w->peers]++;
}

/* Does the broker send us a message with this key (KEYS = without filter)? */
static bool comes(set subscription, int key) {
    return subscription == ALL || (subscription != NONE && key < KEYS && (subscription & (1 << key)) != 0);
}

/* One message with each filter and without one; except: published by that client itself, or nobody. */
static void check_delivery(struct world *w, unsigned t, const struct nl_peer *except) {
    for (int key = 0; key <= KEYS; key++) {
        bool hidden = w->reported != NL_REPORTED_YES && w->broker[t] == ALL;
        struct nl_frame message = {.type = NL_FRAME_MESSAGE};
        struct nl_buffer filter;
        unsigned n = 0;
        bool known;

        memset(w->received, 0, sizeof(w->received));
        nl_buffer_init(&filter);
        nl_pack_str(&filter, nl_slice_str(hidden || key == KEYS ? "#" : key_names[key]));
        NL_FRAME_SET(&message, topic, nl_slice_str(topic_names[t]));
        if (key < KEYS || hidden)
            NL_FRAME_SET(&message, filter, nl_slice(filter.bytes, filter.len));
        if (except != NULL)
            n = nl_subscriptions_deliver_local(w->s, nl_slice_str(topic_names[t]),
                                               key < KEYS ? key_names[key] : NULL, except, 0, ++w->serial,
                                               w->now, receive, w);
        else if (comes(w->broker[t], key))
            n = nl_subscriptions_deliver(w->s, &message, NULL, ++w->serial, w->now, receive, w, &known);
        nl_buffer_deinit(&filter);
        for (unsigned p = 0; p < PEERS; p++) {
            bool wants = comes(w->has[p][t], key) && &w->peers[p] != except;

            /* Wishes that became unservable, of which their holders were told. */
            if (except == NULL && hidden && w->has[p][t] != ALL)
                wants = false;
            assert_int_equal(w->received[p], wants);
            n -= wants;
        }
        assert_int_equal(n, 0);
    }
}

/* In the middle of everything: nobody gets what was not granted, least of all before the answer. */
static void check_nothing_early(struct world *w, unsigned t) {
    for (int key = 0; key < KEYS; key++) {
        memset(w->received, 0, sizeof(w->received));
        nl_subscriptions_deliver_local(w->s, nl_slice_str(topic_names[t]), key_names[key], NULL, 0,
                                       ++w->serial, w->now, receive, w);
        for (unsigned p = 0; p < PEERS; p++)
            assert_true(w->received[p] <= comes(w->has[p][t], key));
    }
}

static void check_quiet(struct world *w) {
    unsigned held[PEERS] = {0};

    for (unsigned i = 0; i < QUEUE; i++)
        assert_false(w->asked[i].open);
    for (unsigned t = 0; t < TOPICS; t++) {
        assert_int_equal(w->broker[t], union_of(w, t));
        check_delivery(w, t, NULL);
        check_delivery(w, t, &w->peers[t]);
        for (unsigned p = 0; p < PEERS; p++)
            held[p] += w->has[p][t] != NONE;
    }
    for (unsigned p = 0; p < PEERS; p++) {
        assert_int_equal(w->peers[p].pending, 0);
        assert_int_equal(w->peers[p].subscription_count, held[p]);
        assert_int_equal(w->peers[p].quota->subscriptions, held[p]);
    }
    assert_int_equal(nl_subscriptions_refused(w->s), 0);
    assert_false(nl_subscriptions_restoring(w->s));
}

/* Lets everything come to rest: no refusals, all heartbeats echoed, refused topics tried again. */
static void rest(struct world *w) {
    unsigned refuse = w->refuse, ignore = w->ignore;

    w->refuse = w->ignore = 0;
    w->link_full = false;
    link_up(w);
    for (int round = 0; round < 8; round++) {
        nl_subscriptions_run(w->s, w->now);
        echo(w);
        while (w->head != w->tail || nl_subscriptions_next(w->s) == 0) {
            nl_subscriptions_run(w->s, w->now);
            broker_step(w);
        }
        w->now += REFUSED_MS + 1;
    }
    w->refuse = refuse;
    w->ignore = ignore;
}

/* ---- the walk ---- */

static void world_start(struct world *w, uint64_t seed, const struct nl_subscriptions_limits *limits) {
    static const enum nl_reported modes[] = {NL_REPORTED_YES, NL_REPORTED_NO, NL_REPORTED_UNKNOWN};
    struct nl_subscriptions_ops ops = {.send = on_send,
                                       .position = on_position,
                                       .fence = on_fence,
                                       .stuck = on_stuck,
                                       .answer = on_answer,
                                       .error = on_error,
                                       .ctx = w};

    memset(w, 0, sizeof(*w));
    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    w->reported = modes[seed % 3];
    w->refuse = pick(w, 3) * 15;
    w->ignore = pick(w, 3) * 10;
    w->late_join = limits->late_join;
    w->now = 1000;
    nl_quotas_init(&w->quotas);
    for (unsigned p = 0; p < PEERS; p++) {
        w->peers[p].uid = 1000 + p;
        w->peers[p].number = p;
        w->peers[p].quota = nl_quota_ref(&w->quotas, 1000 + p);
        for (unsigned t = 0; t < TOPICS; t++)
            w->has[p][t] = NONE;
    }
    for (unsigned t = 0; t < TOPICS; t++)
        w->broker[t] = NONE;
    w->s = nl_subscriptions_new(limits, &ops, w->reported, w->reported != NL_REPORTED_NO, seed);
}

static void world_init(struct world *w, uint64_t seed) {
    struct nl_subscriptions_limits limits = {.request_timeout_ms = TIMEOUT_MS,
                                             .fence_timeout_ms = FENCE_MS,
                                             .refused_interval_ms = REFUSED_MS,
                                             .qos = 1};

    /* A third of the walks pushes against the limits all the time. */
    if (seed / 3 % 3 == 1)
        limits = (struct nl_subscriptions_limits){.request_timeout_ms = TIMEOUT_MS,
                                                  .fence_timeout_ms = FENCE_MS,
                                                  .refused_interval_ms = REFUSED_MS,
                                                  .qos = 1,
                                                  .per_client = 2,
                                                  .pending_per_client = 4,
                                                  .pending_per_topic = 3,
                                                  .bytes_per_client = 3000,
                                                  .bytes_per_uid = 4000};
    limits.late_join = (enum nl_late_join)(seed / 9 % 3);
    world_start(w, seed, &limits);
}

static void world_deinit(struct world *w) {
    for (unsigned p = 0; p < PEERS; p++) {
        vanish(w, p);
        nl_quota_unref(w->peers[p].quota);
    }
    link_down(w);
    assert_int_equal(nl_subscriptions_topics(w->s), 0);
    nl_subscriptions_free(w->s);
    nl_quotas_deinit(&w->quotas);
}

/* The broker that told filters hides them from now on. */
static void flip(struct world *w) {
    struct nl_frame m = {.type = NL_FRAME_MESSAGE};
    struct nl_buffer filter;
    bool known;

    nl_buffer_init(&filter);
    nl_pack_str(&filter, nl_slice_str("#"));
    NL_FRAME_SET(&m, topic, nl_slice_str(topic_names[pick(w, TOPICS)]));
    NL_FRAME_SET(&m, filter, nl_slice(filter.bytes, filter.len));
    nl_subscriptions_deliver(w->s, &m, NULL, ++w->serial, w->now, receive, w, &known);
    nl_buffer_deinit(&filter);
    if (known)
        w->reported = NL_REPORTED_NO;
    assert_int_equal(nl_subscriptions_reported(w->s), w->reported);
}

static void step(struct world *w) {
    unsigned what = pick(w, 100);

    if (w->reported == NL_REPORTED_YES && w->up && pick(w, 150) == 0)
        flip(w);

    if (what < 45)
        random_request(w);
    else if (what < 75)
        broker_step(w);
    else if (what < 80)
        vanish(w, pick(w, PEERS));
    else if (what < 83)
        link_down(w);
    else if (what < 90)
        link_up(w);
    else if (what < 93 && w->up)
        echo(w);
    else
        w->now += pick(w, TIMEOUT_MS * 2);
    check_nothing_early(w, pick(w, TOPICS));
    w->link_full = pick(w, 20) == 0;
    /* The daemon runs at the end of each turn; several things can happen in one. */
    if (pick(w, 3) != 0)
        nl_subscriptions_run(w->s, w->now);
    if (w->stuck)
        link_down(w);
}

static void walk(uint64_t seed) {
    struct world *w = nl_calloc(1, sizeof(*w));

    world_init(w, seed);
    for (int round = 0; round < 12; round++) {
        unsigned steps = 1 + pick(w, 60);

        for (unsigned i = 0; i < steps; i++)
            step(w);
        rest(w);
        check_quiet(w);
    }
    world_deinit(w);
    free(w);
}

static void test_random_walks(void **state) {
    const char *only = getenv("NL_SEED");

    (void)state;
    if (only != NULL) {
        walk(strtoull(only, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= 300; seed++)
        walk(seed);
}

/* ---- single rules ---- */

static struct world *world_up(enum nl_reported reported) {
    struct world *w = nl_calloc(1, sizeof(*w));
    uint64_t seed = reported == NL_REPORTED_YES ? 3 : reported == NL_REPORTED_NO ? 1 : 2;

    world_init(w, seed);
    assert_int_equal(w->reported, reported);
    w->refuse = w->ignore = 0;
    link_up(w);
    return w;
}

static void world_done(struct world *w) {
    world_deinit(w);
    free(w);
}

static bool gathers(const struct world *w) {
    uint64_t next = nl_subscriptions_next(w->s);

    return next > w->now && next <= w->now + NL_GATHER_MS;
}

static void run(struct world *w) {
    nl_subscriptions_run(w->s, w->now);
    while (w->head != w->tail || gathers(w)) {
        if (w->head == w->tail)
            w->now = nl_subscriptions_next(w->s);
        broker_step(w);
        nl_subscriptions_run(w->s, w->now);
    }
}

static void test_a_hundred_clients_cost_one_subscribe(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);

    (void)state;
    for (unsigned p = 0; p < PEERS; p++)
        send_request(w, p, 0, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    assert_int_equal(w->subscribes, 1);
    check_quiet(w);
    link_down(w);
    link_up(w);
    run(w);
    assert_int_equal(w->subscribes, 2);
    check_quiet(w);
    world_done(w);
}

static void test_mixed_wishes(void **state) {
    struct world *w = world_up(NL_REPORTED_UNKNOWN);

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    assert_int_equal(w->has[1][0], NONE);
    /* Judged on the wishes of clients: the one in the way leaves, and nothing else has to happen first. */
    send_request(w, 0, 0, NL_REQUEST_UNSUBSCRIBE, 0);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    assert_int_equal(w->has[1][0], 1);
    check_quiet(w);
    world_done(w);
}

static void test_a_refusal_on_restore_is_told_once_and_tried_again(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, ALL);
    send_request(w, 2, 1, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    for (int outage = 0; outage < 2; outage++) {
        link_down(w);
        w->refuse = 100;
        link_up(w);
        nl_subscriptions_run(w->s, w->now);
        broker_step(w); /* topic 0 is refused */
        w->refuse = 0;
        run(w);
        assert_int_equal(w->errors, 2);
        assert_int_equal(nl_subscriptions_refused(w->s), 1);
        assert_int_equal(w->broker[1], ALL);
        assert_false(nl_subscriptions_restoring(w->s));
    }
    assert_true(nl_subscriptions_next(w->s) > w->now && nl_subscriptions_next(w->s) <= w->now + REFUSED_MS);
    /* A new subscriber does not wait for the next try. */
    send_request(w, 3, 0, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    check_quiet(w);
    world_done(w);
}

static void test_time_outs(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
    nl_subscriptions_run(w->s, w->now);
    assert_int_equal(nl_subscriptions_next(w->s), w->now + TIMEOUT_MS);
    w->now += TIMEOUT_MS;
    nl_subscriptions_run(w->s, w->now);
    assert_false(w->asked[0].open);
    assert_int_equal(w->has[0][0], NONE);
    assert_int_equal(w->fences, 1);
    /* The answer comes after all: the broker has what nobody wants any more. */
    run(w);
    check_quiet(w);
    world_done(w);
}

static void test_restored_topics_that_nobody_wants(void **state) {
    /* ["app/room/one", {"topic":"app/room/two"}, 7] */
    static const uint8_t list[] = "\x93\xac"
                                  "app/room/one"
                                  "\x81\xa5"
                                  "topic"
                                  "\xac"
                                  "app/room/two"
                                  "\x07";
    struct world *w = world_up(NL_REPORTED_NO);

    (void)state;
    send_request(w, 0, 1, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    link_down(w);
    w->up = true;
    w->broker[0] = ALL;
    nl_subscriptions_up(w->s, nl_slice(list, sizeof(list) - 1), w->now);
    run(w);
    check_quiet(w);
    world_done(w);
}

/* A frame of a message with this msgId; filter NULL = none. */
static unsigned deliver(struct world *w, const char *msg_id, const char *filter, bool *known) {
    struct nl_frame m = {.type = NL_FRAME_MESSAGE};
    struct nl_buffer raw;
    unsigned n;

    nl_buffer_init(&raw);
    memset(w->received, 0, sizeof(w->received));
    NL_FRAME_SET(&m, topic, nl_slice_str(topic_names[0]));
    if (msg_id != NULL)
        NL_FRAME_SET(&m, msg_id, nl_slice_str(msg_id));
    if (filter != NULL) {
        nl_pack_str(&raw, nl_slice_str(filter));
        NL_FRAME_SET(&m, filter, nl_slice(raw.bytes, raw.len));
    }
    n = nl_subscriptions_deliver(w->s, &m, NULL, ++w->serial, w->now, receive, w, known);
    nl_buffer_deinit(&raw);
    return n;
}

static void test_what_was_seen_goes_to_who_asked_for_it(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);
    bool known;

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, 1);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, 2);
    run(w);
    w->now += NL_GRANT_MS + 1;
    assert_int_equal(deliver(w, "m1", "a", &known), 1);
    assert_int_equal(deliver(w, "m1", "a", &known), 0);
    send_request(w, 1, 0, NL_REQUEST_ADD_FILTERS, 1);
    run(w);
    assert_int_equal(deliver(w, "m1", "a", &known), 1);
    assert_int_equal(w->received[1], 1);
    assert_int_equal(deliver(w, "m1", "a", &known), 0);
    send_request(w, 2, 0, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    w->now += NL_GRANT_MS;
    assert_int_equal(deliver(w, "m1", "a", &known), 0);
    assert_int_equal(deliver(w, NULL, "a", &known), 3);
    assert_int_equal(deliver(w, NULL, "a", &known), 3);
    link_down(w);
    link_up(w);
    run(w);
    assert_int_equal(deliver(w, "m1", "a", &known), 0);
    world_done(w);
}

static void test_what_proves_that_filters_are_told(void **state) {
    struct world *w = world_up(NL_REPORTED_UNKNOWN);
    bool known;

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    w->now += NL_SETTLE_MS - 1;
    deliver(w, "m1", NULL, &known); /* may be a retained one: proves nothing */
    assert_int_equal(nl_subscriptions_reported(w->s), NL_REPORTED_UNKNOWN);
    w->now += 1;
    deliver(w, "m2", "a", &known);
    assert_int_equal(nl_subscriptions_reported(w->s), NL_REPORTED_YES);
    deliver(w, "m3", "#", &known);
    assert_int_equal(nl_subscriptions_reported(w->s), NL_REPORTED_NO);
    deliver(w, "m4", "a", &known);
    assert_int_equal(nl_subscriptions_reported(w->s), NL_REPORTED_NO);
    world_done(w);
}

/* Of retained messages there is one for each filter: the second with the same one is live. */
static void test_the_second_message_with_a_filter_proves_it(void **state) {
    static const char *const keys[] = {"a", NULL};

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        struct world *w = world_up(NL_REPORTED_UNKNOWN);
        bool known;

        send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
        run(w);
        deliver(w, "m1", keys[k], &known);
        deliver(w, "m2", "b", &known);
        deliver(w, "m1", keys[k], &known); /* the same one again */
        deliver(w, NULL, keys[k], &known); /* no telling whether it is */
        assert_int_equal(nl_subscriptions_reported(w->s), NL_REPORTED_UNKNOWN);
        link_down(w);
        link_up(w);
        run(w);
        deliver(w, "m3", keys[k], &known); /* after a change all retained ones come again */
        assert_int_equal(nl_subscriptions_reported(w->s), NL_REPORTED_UNKNOWN);
        deliver(w, "m4", keys[k], &known);
        assert_int_equal(nl_subscriptions_reported(w->s), NL_REPORTED_YES);
        world_done(w);
    }
}

static void test_what_is_configured_is_not_learned(void **state) {
    static const enum nl_reported configured[] = {NL_REPORTED_YES, NL_REPORTED_NO};
    struct nl_subscriptions_limits limits = {
        .request_timeout_ms = TIMEOUT_MS, .fence_timeout_ms = FENCE_MS, .refused_interval_ms = REFUSED_MS};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct nl_subscriptions_ops ops = {.send = on_send, .position = on_position, .answer = on_answer};
        struct world *w = nl_calloc(1, sizeof(*w));
        bool known;

        world_start(w, 1, &limits);
        nl_subscriptions_free(w->s);
        ops.ctx = w;
        w->s = nl_subscriptions_new(&limits, &ops, configured[i], false, 1);
        w->refuse = w->ignore = 0;
        link_up(w);
        send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
        run(w);
        w->now += NL_SETTLE_MS;
        deliver(w, "m1", "a", &known);
        assert_int_equal(nl_subscriptions_reported(w->s), configured[i]);
        deliver(w, "m2", "#", &known);
        assert_int_equal(nl_subscriptions_reported(w->s), configured[i]);
        world_done(w);
    }
}

/* Two changes that together need filters to be told wait for the broker when it turns out to hide them. */
static void test_what_waits_when_filters_turn_out_hidden(void **state) {
    struct world *w = world_up(NL_REPORTED_YES);
    bool known;

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    send_request(w, 0, 0, NL_REQUEST_ADD_FILTERS, 2);
    nl_subscriptions_run(w->s, w->now);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, ALL);
    send_request(w, 0, 0, NL_REQUEST_ADD_FILTERS, 4);
    broker_step(w);
    nl_subscriptions_run(w->s, w->now);
    assert_true(w->asked[2].open && w->asked[3].open);
    deliver(w, "m1", "#", &known);
    assert_string_equal(w->last_error, "wish_conflict");
    assert_false(w->asked[2].open || w->asked[3].open);
    assert_int_equal(w->errors, 0);
    w->reported = NL_REPORTED_NO;
    run(w);
    assert_int_equal(w->has[0][0], 1 | 2);
    /* The topic works for all. */
    send_request(w, 0, 0, NL_REQUEST_UNSUBSCRIBE, 0);
    send_request(w, 2, 0, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    assert_int_equal(w->has[2][0], ALL);
    check_quiet(w);
    world_done(w);
}

static void test_who_holds_when_filters_turn_out_hidden(void **state) {
    struct world *w = world_up(NL_REPORTED_YES);
    bool known;

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, 1);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, ALL);
    send_request(w, 2, 0, NL_REQUEST_SUBSCRIBE, 2);
    send_request(w, 3, 1, NL_REQUEST_SUBSCRIBE, 2);
    run(w);
    assert_int_equal(deliver(w, "m1", "#", &known), 1);
    assert_int_equal(w->errors, 2);
    deliver(w, "m2", "#", &known);
    assert_int_equal(w->errors, 2);
    w->reported = NL_REPORTED_NO;
    run(w);
    check_quiet(w);
    /* Their wishes work again when nobody wants everything. */
    send_request(w, 1, 0, NL_REQUEST_UNSUBSCRIBE, 0);
    run(w);
    assert_int_equal(w->broker[0], 1 | 2);
    check_quiet(w);
    world_done(w);
}

static void test_an_empty_message_id_is_none(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);
    bool known;

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    assert_int_equal(deliver(w, "", "#", &known), 1);
    assert_int_equal(deliver(w, "", "#", &known), 1);
    world_done(w);
}

static void test_topics_that_somebody_wishes_are_counted(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, ALL);
    send_request(w, 1, 1, NL_REQUEST_SUBSCRIBE, ALL);
    run(w);
    assert_int_equal(nl_subscriptions_topics(w->s), 2);
    send_request(w, 1, 1, NL_REQUEST_UNSUBSCRIBE, 0);
    nl_subscriptions_run(w->s, w->now);
    assert_true(w->outstanding[1]);
    assert_int_equal(nl_subscriptions_topics(w->s), 1);
    run(w);
    world_done(w);
}

/* A retained message comes again at each change upstream, however much came in between. */
static void test_a_retained_message_stays_known(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);
    char id[24];
    bool known;

    (void)state;
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    assert_int_equal(deliver(w, "kept", "a", &known), 1);
    for (unsigned round = 0; round < 3; round++) {
        w->now += NL_SETTLE_MS;
        for (unsigned n = 0; n < 3 * NL_SEEN_MAX; n++) {
            snprintf(id, sizeof(id), "%u-%u", round, n);
            assert_int_equal(deliver(w, id, "a", &known), 1);
        }
        link_down(w);
        link_up(w);
        run(w);
        assert_int_equal(deliver(w, "kept", "a", &known), 0);
    }
    world_done(w);
}

/* Published here, with the msgId learned later: not twice to who had it or published it, once to who came
 * since. */
static void test_an_own_retained_message_goes_to_each_once(void **state) {
    struct world *w = world_up(NL_REPORTED_NO);
    struct nl_slice topic = nl_slice_str(topic_names[0]);
    const uint64_t token = 4711;
    bool known;

    (void)state;
    for (unsigned p = 0; p < 2; p++)
        send_request(w, p, 0, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    memset(w->received, 0, sizeof(w->received));
    assert_int_equal(nl_subscriptions_deliver_local(w->s, topic, "a", &w->peers[1], token, ++w->serial,
                                                    w->now, receive, w),
                     1);
    assert_int_equal(w->received[0], 1);
    send_request(w, 2, 0, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    nl_subscriptions_note_seen(w->s, topic, nl_slice_str("m1"), token, w->now);
    assert_int_equal(deliver(w, "m1", "a", &known), 1);
    assert_int_equal(w->received[2], 1);
    assert_int_equal(deliver(w, "m1", "a", &known), 0);
    assert_int_equal(nl_subscriptions_changed(w->s, topic, w->now), w->now);
    w->now += NL_SETTLE_MS;
    assert_int_equal(nl_subscriptions_changed(w->s, topic, w->now), 0);
    world_done(w);
}

/* A broker that answers nothing: what waits for it is bounded, and what was there is not touched. */
static void test_requests_that_wait_are_bounded(void **state) {
    struct nl_subscriptions_limits limits = {.request_timeout_ms = TIMEOUT_MS,
                                             .fence_timeout_ms = FENCE_MS,
                                             .refused_interval_ms = REFUSED_MS,
                                             .pending_per_client = 6,
                                             .pending_per_topic = 4};
    struct world *w = nl_calloc(1, sizeof(*w));

    (void)state;
    world_start(w, 1, &limits);
    w->refuse = w->ignore = 0;
    link_up(w);
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, 1);
    nl_subscriptions_run(w->s, w->now);
    for (unsigned n = 0; n < 3; n++)
        send_request(w, 0, 0, NL_REQUEST_SET_FILTERS, 2);
    assert_int_equal(w->peers[0].change_count, 4);
    send_request(w, 0, 0, NL_REQUEST_SET_FILTERS, 2);
    assert_string_equal(w->last_error, "limit_reached");
    assert_int_equal(w->peers[0].change_count, 4);
    /* Other topics and other clients are not concerned. */
    send_request(w, 0, 1, NL_REQUEST_SUBSCRIBE, 1);
    send_request(w, 0, 2, NL_REQUEST_SUBSCRIBE, 1);
    send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, 4);
    assert_int_equal(w->peers[0].change_count, 6);
    send_request(w, 0, 1, NL_REQUEST_UNSUBSCRIBE, 0);
    assert_string_equal(w->last_error, "limit_reached");
    run(w);
    assert_int_equal(w->has[0][0], 2);
    assert_int_equal(w->has[1][0], 4);
    check_quiet(w);
    world_done(w);
}

static void test_bytes_of_filters_are_bounded(void **state) {
    struct nl_subscriptions_limits limits = {.request_timeout_ms = TIMEOUT_MS,
                                             .fence_timeout_ms = FENCE_MS,
                                             .refused_interval_ms = REFUSED_MS,
                                             .bytes_per_client = 2500,
                                             .bytes_per_uid = 2500};
    struct world *w = nl_calloc(1, sizeof(*w));

    (void)state;
    world_start(w, 1, &limits);
    w->refuse = w->ignore = 0;
    link_up(w);
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, 1 | 2);
    run(w);
    assert_string_equal(w->last_error, "");
    assert_true(w->peers[0].wish_bytes > 0 && w->peers[0].wish_bytes < 2500);
    send_request(w, 0, 1, NL_REQUEST_SUBSCRIBE, 1 | 2 | 4);
    run(w);
    assert_string_equal(w->last_error, "limit_reached");
    assert_int_equal(w->has[0][1], NONE);
    /* Fewer filters are always possible, and make room. */
    send_request(w, 0, 0, NL_REQUEST_REMOVE_FILTERS, 2);
    run(w);
    assert_int_equal(w->has[0][0], 1);
    send_request(w, 0, 1, NL_REQUEST_SUBSCRIBE, 1);
    run(w);
    assert_int_equal(w->has[0][1], 1);
    check_quiet(w);
    world_done(w);
}

/* What is held counts for the user, over all its clients. */
static void test_bytes_are_counted_by_user(void **state) {
    struct nl_subscriptions_limits limits = {.request_timeout_ms = TIMEOUT_MS,
                                             .fence_timeout_ms = FENCE_MS,
                                             .refused_interval_ms = REFUSED_MS,
                                             .bytes_per_uid = 3500};
    struct world *w = nl_calloc(1, sizeof(*w));
    struct nl_uid_quota *own;

    (void)state;
    world_start(w, 1, &limits);
    w->refuse = w->ignore = 0;
    own = w->peers[1].quota;
    w->peers[1].quota = w->peers[0].quota;
    link_up(w);
    send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, 1 | 2 | 4);
    run(w);
    send_request(w, 1, 1, NL_REQUEST_SUBSCRIBE, 1 | 2 | 4);
    run(w);
    assert_string_equal(w->last_error, "limit_reached");
    send_request(w, 2, 1, NL_REQUEST_SUBSCRIBE, 1 | 2 | 4);
    run(w);
    assert_string_equal(w->last_error, "");
    vanish(w, 0);
    send_request(w, 1, 1, NL_REQUEST_SUBSCRIBE, 1 | 2 | 4);
    run(w);
    assert_string_equal(w->last_error, "");
    vanish(w, 1);
    w->peers[1].quota = own;
    world_done(w);
}

/* Frames come, the heartbeat behind the request does not: whoever asks next is answered when the link is
 * closed. */
static void test_a_fence_has_a_deadline(void **state) {
    for (int restoring = 0; restoring < 2; restoring++) {
        struct world *w = world_up(NL_REPORTED_NO);

        (void)state;
        send_request(w, 0, 0, NL_REQUEST_SUBSCRIBE, ALL);
        if (restoring) {
            run(w);
            link_down(w);
            link_up(w);
        }
        nl_subscriptions_run(w->s, w->now);
        w->now += TIMEOUT_MS;
        nl_subscriptions_run(w->s, w->now);
        assert_int_equal(w->fences, 1);
        send_request(w, 1, 0, NL_REQUEST_SUBSCRIBE, ALL);
        send_request(w, 1, 0, NL_REQUEST_UNSUBSCRIBE, 0);
        assert_int_equal(nl_subscriptions_next(w->s), w->now + FENCE_MS);
        w->now += FENCE_MS - 1;
        nl_subscriptions_run(w->s, w->now);
        assert_false(w->stuck);
        w->now++;
        nl_subscriptions_run(w->s, w->now);
        assert_true(w->stuck && w->asked[1].open);
        link_down(w);
        for (unsigned i = 0; i < w->asked_count; i++)
            assert_false(w->asked[i].open);
        link_up(w);
        run(w);
        check_quiet(w);
        world_done(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hundred_clients_cost_one_subscribe),
        cmocka_unit_test(test_mixed_wishes),
        cmocka_unit_test(test_a_refusal_on_restore_is_told_once_and_tried_again),
        cmocka_unit_test(test_time_outs),
        cmocka_unit_test(test_a_fence_has_a_deadline),
        cmocka_unit_test(test_restored_topics_that_nobody_wants),
        cmocka_unit_test(test_what_was_seen_goes_to_who_asked_for_it),
        cmocka_unit_test(test_what_proves_that_filters_are_told),
        cmocka_unit_test(test_the_second_message_with_a_filter_proves_it),
        cmocka_unit_test(test_what_is_configured_is_not_learned),
        cmocka_unit_test(test_what_waits_when_filters_turn_out_hidden),
        cmocka_unit_test(test_who_holds_when_filters_turn_out_hidden),
        cmocka_unit_test(test_an_empty_message_id_is_none),
        cmocka_unit_test(test_topics_that_somebody_wishes_are_counted),
        cmocka_unit_test(test_a_retained_message_stays_known),
        cmocka_unit_test(test_an_own_retained_message_goes_to_each_once),
        cmocka_unit_test(test_requests_that_wait_are_bounded),
        cmocka_unit_test(test_bytes_of_filters_are_bounded),
        cmocka_unit_test(test_bytes_are_counted_by_user),
        cmocka_unit_test(test_random_walks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
