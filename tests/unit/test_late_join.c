/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late joiners against a plain model of a broker that retains one message for each filter: clients join,
 * leave and change filters at random, messages are published, the link comes and goes, the broker refuses. A
 * client never gets a message twice unless it asked anew for it; and whenever all is quiet each client has
 * had every retained message of its filters, as a first subscriber would.
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
#include "protocol/alloc.h"

enum { PEERS = 5, KEYS = 3, QUEUE = 1024, MESSAGES = 4096, REFUSED_MS = 3000 };

#define TOPIC "app/room/events"

/* A set of keys, bit k for key k and bit KEYS for a message without filter. */
typedef unsigned set;
#define ALL ((1u << (KEYS + 1)) - 1)

static const char *const keys[KEYS] = {"a", "b", "c"};

struct out {
    enum nl_frame_type type; /* an answer, or NL_FRAME_MESSAGE */
    const char *error;
    unsigned message;
    bool retained;
};

struct client {
    struct nl_peer peer;
    bool subscribed; /* as the answers said */
    bool all;        /* without filters */
    set has;
    bool exempt;              /* nothing was done for it as a late joiner */
    bool asked_none;          /* in its last subscribe */
    unsigned waits;           /* requests without an answer */
    unsigned asked[MESSAGES]; /* how often it may have each message */
    unsigned had[MESSAGES];
    unsigned hydrations;
};

struct world {
    uint64_t random, now, serial;
    struct nl_subscriptions *s;
    struct nl_quotas quotas;
    struct client clients[PEERS];
    bool up, held; /* the broker has a subscription of ours */
    bool filtered;
    set has; /* and with these keys */
    bool reported;
    unsigned refuse;                                     /* per cent */
    unsigned kept[KEYS + 1], key_of[MESSAGES], messages; /* message 0 is none */
    struct {
        enum nl_frame_type type;
        bool filtered;
        set keys;
    } in[QUEUE];
    unsigned in_head, in_tail;
    struct out out[QUEUE]; /* in order; retained ones may be late */
    unsigned out_count;
    struct out delayed[QUEUE];
    unsigned delayed_count;
    unsigned subscribes;
    unsigned receiving; /* the message being delivered; 0 = a hydration */
    bool no_msg_ids;
};

static unsigned pick(struct world *w, unsigned n) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (unsigned)(w->random % n);
}

/* ---- the broker ---- */

static set read_keys(struct nl_slice raw, bool *filtered) {
    struct nl_raw_iter it;
    struct nl_slice item, text;
    set found = 0;

    assert_true(nl_raw_array(raw, &it));
    while (nl_raw_next(&it, &item))
        for (unsigned k = 0; k < KEYS; k++)
            if (nl_raw_string(item, &text) && nl_slice_equal(text, nl_slice_str(keys[k])))
                found |= 1u << k;
    *filtered = found != 0;
    return found == 0 ? ALL : found;
}

static bool on_send(void *ctx, const struct nl_frame *frame) {
    struct world *w = ctx;
    unsigned at = w->in_tail++ % QUEUE;

    assert_true(w->up);
    assert_int_equal(w->in_tail - w->in_head, 1);
    w->in[at].type = frame->type;
    w->in[at].filtered = false;
    w->in[at].keys = NL_FRAME_HAS(frame, filters) ? read_keys(frame->filters, &w->in[at].filtered) : (set)ALL;
    w->subscribes += frame->type == NL_FRAME_SUBSCRIBE;
    return true;
}

static void put(struct world *w, struct out out) {
    assert_true(w->out_count < QUEUE && w->delayed_count < QUEUE);
    if (out.retained)
        w->delayed[w->delayed_count++] = out;
    else
        w->out[w->out_count++] = out;
}

static void send_kept(struct world *w, set which) {
    for (unsigned k = 0; k <= KEYS; k++)
        if ((which & (1u << k)) && w->kept[k] != 0)
            put(w, (struct out){.type = NL_FRAME_MESSAGE, .message = w->kept[k], .retained = true});
}

static void take(struct world *w, bool filtered, set which) {
    w->held = true;
    w->filtered = filtered;
    w->has = which;
}

static void perform(struct world *w, enum nl_frame_type type, bool filtered, set which) {
    set before = w->has;
    bool was_all = w->held && !w->filtered;

    switch (type) {
    case NL_FRAME_SUBSCRIBE:
        take(w, filtered, which);
        put(w, (struct out){.type = NL_FRAME_SUBSCRIBED});
        send_kept(w, which);
        break;
    case NL_FRAME_SET_FILTERS:
        if (!w->held) {
            put(w, (struct out){.type = NL_FRAME_ERROR, .error = "not_subscribed"});
            break;
        }
        take(w, filtered, which);
        put(w, (struct out){.type = NL_FRAME_FILTERS_UPDATED});
        if (was_all == filtered)
            before = 0; /* from all to some, or back: everything counts as added */
        send_kept(w, which & ~before);
        break;
    default:
        w->held = false;
        put(w, (struct out){.type = NL_FRAME_UNSUBSCRIBED});
    }
}

/* Handles the request that is there. A refused subscribe may have cost what the broker had. */
static void broker_step(struct world *w) {
    unsigned at = w->in_head % QUEUE;

    if (w->in_head == w->in_tail)
        return;
    w->in_head++;
    if (w->in[at].type == NL_FRAME_UNSUBSCRIBE || pick(w, 100) >= w->refuse) {
        perform(w, w->in[at].type, w->in[at].filtered, w->in[at].keys);
        return;
    }
    if (w->in[at].type == NL_FRAME_SUBSCRIBE)
        w->held = w->held && pick(w, 2) == 0;
    put(w, (struct out){.type = NL_FRAME_ERROR, .error = w->held ? "busy" : "not_subscribed"});
}

static void publish(struct world *w, unsigned key, bool retain) {
    unsigned m = ++w->messages;

    assert_true(m < MESSAGES);
    w->key_of[m] = key;
    for (unsigned p = 0; p < PEERS; p++)
        w->clients[p].asked[m] = 1;
    if (retain)
        w->kept[key] = m;
    if (w->up && w->held && (w->has & (1u << key)))
        put(w, (struct out){.type = NL_FRAME_MESSAGE, .message = m});
}

/* ---- what comes from the broker ---- */

static void receive(void *ctx, struct nl_peer *peer) {
    struct world *w = ctx;
    struct client *c = (struct client *)(void *)((char *)peer - offsetof(struct client, peer));
    unsigned m = w->receiving;

    assert_true(c->subscribed);
    if (m == 0) {
        c->hydrations++;
        return;
    }
    assert_true(c->has & (1u << w->key_of[m]));
    assert_true(c->had[m] < c->asked[m]);
    c->had[m]++;
}

static void deliver(struct world *w, const struct out *out) {
    struct nl_frame f = {.type = NL_FRAME_MESSAGE};
    unsigned key = w->key_of[out->message];
    bool hidden = !out->retained && !w->reported && !w->filtered;
    struct nl_buffer filter;
    char msg_id[16];
    bool known;

    nl_buffer_init(&filter);
    snprintf(msg_id, sizeof(msg_id), "m%u", out->message);
    NL_FRAME_SET(&f, topic, nl_slice_str(TOPIC));
    if (!w->no_msg_ids)
        NL_FRAME_SET(&f, msg_id, nl_slice_str(msg_id));
    if (key < KEYS || hidden) {
        nl_pack_str(&filter, nl_slice_str(hidden ? "#" : keys[key]));
        NL_FRAME_SET(&f, filter, nl_slice(filter.bytes, filter.len));
    }
    w->receiving = out->message;
    nl_subscriptions_deliver(w->s, &f, NULL, ++w->serial, w->now, receive, w, &known);
    nl_buffer_deinit(&filter);
}

static unsigned hydrate(struct world *w, const char *name) {
    struct nl_frame f = {.type = NL_FRAME_HYDRATION};

    NL_FRAME_SET(&f, topic, nl_slice_str(name));
    w->receiving = 0;
    return nl_subscriptions_hydrate(w->s, &f, ++w->serial, w->now, receive, w);
}

static void arrive(struct world *w, const struct out *out) {
    struct nl_frame f = {.type = out->type};

    if (out->type == NL_FRAME_MESSAGE) {
        deliver(w, out);
        return;
    }
    NL_FRAME_SET(&f, topic, nl_slice_str(TOPIC));
    if (out->error != NULL)
        NL_FRAME_SET(&f, error, nl_slice_str(out->error));
    assert_true(nl_subscriptions_answer(w->s, &f, w->now));
}

static void arrive_next(struct world *w) {
    struct out out;

    if (w->out_count == 0)
        return;
    out = w->out[0];
    memmove(w->out, w->out + 1, --w->out_count * sizeof(out));
    arrive(w, &out);
}

/* Retained ones are not in order with anything, but behind the answer that brings them. */
static void arrive_delayed(struct world *w) {
    struct out out;

    if (w->delayed_count == 0 || w->out_count > 0)
        return;
    out = w->delayed[0];
    memmove(w->delayed, w->delayed + 1, --w->delayed_count * sizeof(out));
    arrive(w, &out);
}

/* ---- clients ---- */

static void begin_again(struct client *c) {
    c->subscribed = c->exempt = false;
    c->has = 0;
    memset(c->had, 0, sizeof(c->had));
    for (unsigned m = 0; m < MESSAGES; m++)
        c->asked[m] = 1;
}

/* The client has these keys now; for what is new it may have everything once more. */
static void now_has(struct world *w, struct client *c, bool all, set has) {
    set added = has & ~(c->all == all ? c->has : 0);

    for (unsigned m = 1; m <= w->messages; m++)
        if ((added & (1u << w->key_of[m])) && c->had[m] > 0)
            c->asked[m] = c->had[m] + 1;
    c->has = has;
    c->all = all;
}

static void on_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct world *w = ctx;
    struct client *c = (struct client *)(void *)((char *)peer - offsetof(struct client, peer));
    char *text = nl_strndup((const char *)line->bytes, line->len - 1);
    struct json_object *o = json_tokener_parse(text), *v, *filters;
    const char *type;
    set has = 0;

    c->waits--;
    assert_true(json_object_object_get_ex(o, "type", &v));
    type = json_object_get_string(v);
    if (strcmp(type, "unsubscribed") == 0) {
        begin_again(c);
    } else if (strcmp(type, "error") != 0) {
        if (!json_object_object_get_ex(o, "filters", &filters))
            filters = NULL;
        for (size_t i = 0; filters != NULL && i < json_object_array_length(filters); i++)
            has |= 1u << (json_object_get_string(json_object_array_get_idx(filters, i))[0] - 'a');
        c->exempt |= json_object_object_get_ex(o, "lateJoin", &v);
        c->subscribed = true;
        now_has(w, c, has == 0, has == 0 ? (set)ALL : has);
    }
    json_object_put(o);
    free(text);
    nl_line_unref(line);
}

static void request(struct world *w, unsigned p, const char *type, set filters, bool none) {
    struct nl_request r;
    struct nl_refusal refusal;
    char line[256];
    size_t len;

    len = (size_t)snprintf(line, sizeof(line), "{\"type\":\"%s\",\"topic\":\"" TOPIC "\"%s", type,
                           none ? ",\"lateJoin\":\"none\"" : "");
    if (strcmp(type, "unsubscribe") != 0) {
        len += (size_t)snprintf(line + len, sizeof(line) - len, ",\"filters\":[");
        for (unsigned k = 0; k < KEYS; k++)
            if (filters & (1u << k))
                len += (size_t)snprintf(line + len, sizeof(line) - len, "%s\"%s\"",
                                        line[len - 1] == '[' ? "" : ",", keys[k]);
        len += (size_t)snprintf(line + len, sizeof(line) - len, "]");
    }
    snprintf(line + len, sizeof(line) - len, "}");
    assert_int_equal(nl_request_parse(nl_slice_str(line), 8, &r, &refusal), NL_OK);
    w->clients[p].waits++;
    nl_subscriptions_request(w->s, &w->clients[p].peer, &r, w->now);
    nl_request_deinit(&r);
}

static void vanish(struct world *w, unsigned p) {
    nl_subscriptions_leave(w->s, &w->clients[p].peer, w->now);
    w->clients[p].waits = 0;
    begin_again(&w->clients[p]);
}

static void random_request(struct world *w) {
    static const char *const types[] = {"subscribe",     "subscribe",   "setFilters", "addFilters",
                                        "removeFilters", "unsubscribe", "unsubscribe"};
    unsigned what = pick(w, sizeof(types) / sizeof(types[0]));
    set filters = what < 2 && pick(w, 2) == 0 ? 0 : 1 + pick(w, (1u << KEYS) - 1);

    request(w, pick(w, PEERS), types[what], filters, what < 2 && pick(w, 8) == 0);
}

/* ---- the link ---- */

static void link_down(struct world *w) {
    if (!w->up)
        return;
    w->up = w->held = false;
    w->in_head = w->in_tail = 0;
    w->out_count = w->delayed_count = 0;
    nl_subscriptions_down(w->s, w->now);
}

static void link_up(struct world *w) {
    if (!w->up)
        nl_subscriptions_up(w->s, nl_slice(NULL, 0), w->now);
    w->up = true;
}

static bool busy(const struct world *w) {
    return w->in_head != w->in_tail || w->out_count > 0 || w->delayed_count > 0;
}

/* Until nothing is on its way and nothing is due within that time. */
static void rest(struct world *w, uint64_t within_ms) {
    for (;;) {
        uint64_t next;

        nl_subscriptions_run(w->s, w->now);
        next = nl_subscriptions_next(w->s);
        if (!busy(w) && next > w->now + within_ms)
            return;
        if (!busy(w) && next > w->now)
            w->now = next;
        broker_step(w);
        arrive_next(w);
        arrive_delayed(w);
    }
}

/* ---- what must hold when all is quiet ---- */

static void check_everybody_has_all(const struct world *w) {
    for (unsigned p = 0; p < PEERS; p++) {
        const struct client *c = &w->clients[p];

        assert_int_equal(c->waits, 0);
        if (!c->subscribed || c->exempt)
            continue;
        for (unsigned k = 0; k <= KEYS; k++)
            if (w->kept[k] != 0 && (c->has & (1u << k)) && c->had[w->kept[k]] == 0)
                fail_msg("client %u has not had message %u with key %u", p, w->kept[k], k);
    }
}

/* ---- the walk ---- */

static uint64_t on_number(void *ctx) {
    (void)ctx;
    return 0;
}

static bool on_stuck(void *ctx) {
    (void)ctx;
    fail();
    return true;
}

static void on_error(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    (void)ctx;
    (void)peer;
    nl_line_unref(line);
}

static struct world *world_new(uint64_t seed, bool reported, enum nl_late_join late_join) {
    struct nl_subscriptions_limits limits = {.request_timeout_ms = 1000000,
                                             .fence_timeout_ms = 1000,
                                             .refused_interval_ms = REFUSED_MS,
                                             .late_join = late_join};
    struct world *w = nl_calloc(1, sizeof(*w));
    struct nl_subscriptions_ops ops = {.send = on_send,
                                       .position = on_number,
                                       .fence = on_number,
                                       .stuck = on_stuck,
                                       .answer = on_answer,
                                       .error = on_error,
                                       .ctx = w};

    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    w->now = 1000;
    w->reported = reported;
    nl_quotas_init(&w->quotas);
    for (unsigned p = 0; p < PEERS; p++) {
        w->clients[p].peer.uid = 1000 + p;
        w->clients[p].peer.number = p;
        w->clients[p].peer.quota = nl_quota_ref(&w->quotas, 1000 + p);
        begin_again(&w->clients[p]);
    }
    w->s = nl_subscriptions_new(&limits, &ops, reported ? NL_REPORTED_YES : NL_REPORTED_NO, false, seed);
    link_up(w);
    return w;
}

static void world_free(struct world *w) {
    for (unsigned p = 0; p < PEERS; p++) {
        vanish(w, p);
        nl_quota_unref(w->clients[p].peer.quota);
    }
    link_down(w);
    assert_int_equal(nl_subscriptions_topics(w->s), 0);
    nl_subscriptions_free(w->s);
    nl_quotas_deinit(&w->quotas);
    free(w);
}

/* Longer than any grant. */
static void long_outage(struct world *w) {
    link_down(w);
    w->now += NL_GRANT_MS + 1;
}

static void step(struct world *w) {
    unsigned what = pick(w, 100);

    if (what < 35)
        random_request(w);
    else if (what < 55)
        broker_step(w);
    else if (what < 70)
        arrive_next(w);
    else if (what < 78)
        arrive_delayed(w);
    else if (what < 88)
        publish(w, pick(w, KEYS + 1), pick(w, 2) == 0);
    else if (what < 90)
        vanish(w, pick(w, PEERS));
    else if (what < 91)
        long_outage(w);
    else if (what < 92)
        link_down(w);
    else if (what < 94)
        link_up(w);
    else
        w->now += pick(w, 2 * NL_GATHER_MS);
    if (pick(w, 3) != 0)
        nl_subscriptions_run(w->s, w->now);
}

static void walk(uint64_t seed) {
    struct world *w = world_new(seed, seed % 2 == 0, seed % 8 == 7 ? NL_LATE_RESUBSCRIBE : NL_LATE_AUTO);

    for (unsigned round = 0; round < 12; round++) {
        w->refuse = seed % 3 == 0 ? 20 : 0;
        for (unsigned n = 1 + pick(w, 50); n > 0; n--)
            step(w);
        link_up(w);
        w->refuse = 0;
        rest(w, REFUSED_MS);
        check_everybody_has_all(w);
        if (pick(w, 2) == 0)
            w->now += NL_GRANT_MS + 1;
    }
    world_free(w);
}

static void random_walks(void **state) {
    const char *only = getenv("NL_SEED");

    (void)state;
    for (uint64_t seed = 1; only == NULL && seed <= 600; seed++)
        walk(seed);
    if (only != NULL)
        walk(strtoull(only, NULL, 10));
}

/* ---- single rules ---- */

static unsigned had(const struct world *w, unsigned p, unsigned message) {
    return w->clients[p].had[message];
}

/* The first one is there, and has long had what is retained for "a". */
static struct world *world_with_first(enum nl_late_join late_join) {
    struct world *w = world_new(1, false, late_join);

    publish(w, 0, true);
    request(w, 0, "subscribe", 1, false);
    rest(w, NL_GATHER_MS);
    assert_int_equal(had(w, 0, 1), 1);
    w->now += NL_GRANT_MS + 1;
    return w;
}

static void those_who_join_together_share_one_subscribe(void **state) {
    struct world *w = world_with_first(NL_LATE_AUTO);
    uint64_t began = w->now;

    (void)state;
    for (unsigned p = 1; p < PEERS; p++) {
        request(w, p, "subscribe", 1, false);
        nl_subscriptions_run(w->s, w->now);
        w->now += NL_GATHER_MS / PEERS;
    }
    assert_false(busy(w));
    assert_int_equal(nl_subscriptions_next(w->s), began + NL_GATHER_MS);
    rest(w, NL_GATHER_MS);
    assert_int_equal(w->subscribes, 2);
    for (unsigned p = 0; p < PEERS; p++)
        assert_int_equal(had(w, p, 1), 1);
    world_free(w);
}

static void who_waits_behind_a_subscribe_is_in_time(void **state) {
    struct world *w = world_with_first(NL_LATE_AUTO);

    (void)state;
    request(w, 1, "subscribe", 1, false);
    w->now += NL_GATHER_MS;
    nl_subscriptions_run(w->s, w->now);
    request(w, 2, "subscribe", 1, false);
    rest(w, NL_GATHER_MS);
    assert_int_equal(w->subscribes, 2);
    assert_int_equal(had(w, 0, 1) + had(w, 1, 1) + had(w, 2, 1), 3);
    world_free(w);
}

static void the_last_one_to_wait_may_leave(void **state) {
    struct world *w = world_with_first(NL_LATE_AUTO);

    (void)state;
    request(w, 1, "subscribe", 1, false);
    vanish(w, 1);
    rest(w, NL_GATHER_MS);
    assert_int_equal(w->subscribes, 1);
    assert_int_equal(nl_subscriptions_next(w->s), UINT64_MAX);
    world_free(w);
}

/* Whatever it is that says so. */
static void where_nothing_is_done_the_answer_says_so(void **state) {
    (void)state;
    for (unsigned why = 0; why < 3; why++) {
        struct world *w = world_with_first(why == 0 ? NL_LATE_NONE : NL_LATE_AUTO);

        w->no_msg_ids = why == 1;
        if (why == 1) {
            publish(w, 0, false);
            rest(w, NL_GATHER_MS);
        }
        request(w, 1, "subscribe", 1, why == 2);
        assert_true(w->clients[1].subscribed && w->clients[1].exempt);
        request(w, 0, "addFilters", 2, false); /* new upstream: nobody is late */
        rest(w, NL_GATHER_MS);
        assert_false(w->clients[0].exempt);
        assert_int_equal(w->subscribes, 1);
        assert_int_equal(had(w, 1, 1), 0);
        /* Not what another one's joining brings either. */
        if (why == 2) {
            request(w, 2, "subscribe", 1, false);
            rest(w, NL_GATHER_MS);
            assert_int_equal(had(w, 1, 1), 0);
            assert_int_equal(had(w, 2, 1), 1);
        }
        world_free(w);
    }
}

static void resubscribe_does_not_ask_for_ids(void **state) {
    struct world *w = world_with_first(NL_LATE_RESUBSCRIBE);

    (void)state;
    w->no_msg_ids = true;
    w->clients[0].asked[1] = 2; /* the price */
    publish(w, 0, false);
    rest(w, NL_GATHER_MS);
    request(w, 1, "subscribe", 1, false);
    rest(w, NL_GATHER_MS);
    assert_int_equal(w->subscribes, 2);
    assert_int_equal(had(w, 0, 1), 2);
    assert_int_equal(had(w, 1, 1), 1);
    world_free(w);
}

static void an_added_filter_brings_its_own_only(void **state) {
    struct world *w = world_with_first(NL_LATE_AUTO);

    (void)state;
    publish(w, 1, true);
    request(w, 1, "subscribe", 2, false);
    rest(w, NL_GATHER_MS);
    assert_int_equal(had(w, 1, 2), 1);
    w->now += NL_GRANT_MS + 1;
    request(w, 1, "addFilters", 1, false);
    rest(w, NL_GATHER_MS);
    assert_int_equal(w->subscribes, 2);
    assert_int_equal(had(w, 1, 1), 1);
    assert_int_equal(had(w, 1, 2), 1);
    world_free(w);
}

/* The broker may have dropped the subscription when it refused to renew it: that is found out. */
static void a_refused_one_leaves_the_others_as_they_were(void **state) {
    (void)state;
    for (unsigned lost = 0; lost < 2; lost++) {
        struct world *w = world_with_first(NL_LATE_AUTO);

        request(w, 1, "subscribe", 1, false);
        w->now += NL_GATHER_MS;
        nl_subscriptions_run(w->s, w->now);
        w->in_head++;
        w->held = lost == 0;
        arrive(w, &(struct out){.type = NL_FRAME_ERROR, .error = "not_authorized"});
        assert_false(w->clients[1].subscribed);
        assert_true(w->clients[0].subscribed);
        rest(w, NL_GATHER_MS);
        assert_int_equal(nl_subscriptions_refused(w->s), lost);
        rest(w, REFUSED_MS);
        assert_true(w->held);
        assert_int_equal(w->subscribes, 2 + lost);
        assert_int_equal(had(w, 0, 1), 1);
        world_free(w);
    }
}

/* What was to show that the topic is still there has shown nothing: it is subscribed to afresh. */
static void a_check_without_an_answer_proves_nothing(void **state) {
    struct world *w = world_with_first(NL_LATE_AUTO);

    (void)state;
    request(w, 1, "subscribe", 1, false);
    w->now += NL_GATHER_MS;
    nl_subscriptions_run(w->s, w->now);
    w->in_head++;
    w->held = false;
    arrive(w, &(struct out){.type = NL_FRAME_ERROR, .error = "not_authorized"});
    nl_subscriptions_run(w->s, w->now);
    w->in_head++;
    arrive(w, &(struct out){.type = NL_FRAME_ERROR, .error = "internal_error"});
    assert_int_equal(nl_subscriptions_refused(w->s), 1);
    rest(w, REFUSED_MS);
    assert_true(w->held);
    world_free(w);
}

/* Joined while the link was down, long before it came back. */
static void who_joins_without_a_link_gets_it_all_the_same(void **state) {
    struct world *w = world_with_first(NL_LATE_AUTO);

    (void)state;
    link_down(w);
    request(w, 1, "subscribe", 1, false);
    assert_true(w->clients[1].subscribed && !w->clients[1].exempt);
    w->now += 10 * NL_GRANT_MS;
    link_up(w);
    rest(w, NL_GATHER_MS);
    assert_int_equal(had(w, 0, 1), 1);
    assert_int_equal(had(w, 1, 1), 1);
    world_free(w);
}

/* ---- hydration ---- */

static void a_hydration_goes_to_who_waits(void **state) {
    struct world *w = world_with_first(NL_LATE_AUTO);

    (void)state;
    assert_int_equal(hydrate(w, "others"), 0);
    assert_int_equal(hydrate(w, "events"), 1);
    assert_int_equal(hydrate(w, "events"), 0);
    request(w, 1, "subscribe", 1, false);
    assert_int_equal(hydrate(w, "events"), 0);
    rest(w, NL_GATHER_MS);
    assert_int_equal(hydrate(w, "events"), 1);
    assert_int_equal(w->clients[0].hydrations, 1);
    assert_int_equal(w->clients[1].hydrations, 1);
    /* setFilters would bring its retained message, but no hydration. */
    request(w, 2, "subscribe", 4, false);
    rest(w, NL_GATHER_MS);
    assert_int_equal(w->subscribes, 3);
    assert_int_equal(hydrate(w, "events"), 1);
    assert_int_equal(w->clients[2].hydrations, 1);
    /* To everyone on a new link; and not for ever. */
    link_down(w);
    link_up(w);
    rest(w, NL_GATHER_MS);
    assert_int_equal(hydrate(w, "events"), 3);
    request(w, 3, "subscribe", 1, false);
    rest(w, NL_GATHER_MS);
    w->now += 31000;
    assert_int_equal(hydrate(w, "events"), 0);
    world_free(w);
}

/* The subscribe is in flight when the second one comes with a filter of its own. */
static void a_hydration_goes_to_who_came_before_it(void **state) {
    struct world *w = world_new(1, false, NL_LATE_AUTO);

    (void)state;
    request(w, 0, "subscribe", 1, false);
    nl_subscriptions_run(w->s, w->now);
    request(w, 1, "subscribe", 2, false);
    rest(w, NL_GATHER_MS);
    assert_int_equal(w->subscribes, 1);
    assert_int_equal(hydrate(w, "events"), 2);
    assert_int_equal(w->clients[1].hydrations, 1);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_who_join_together_share_one_subscribe),
        cmocka_unit_test(who_waits_behind_a_subscribe_is_in_time),
        cmocka_unit_test(the_last_one_to_wait_may_leave),
        cmocka_unit_test(where_nothing_is_done_the_answer_says_so),
        cmocka_unit_test(resubscribe_does_not_ask_for_ids),
        cmocka_unit_test(an_added_filter_brings_its_own_only),
        cmocka_unit_test(a_refused_one_leaves_the_others_as_they_were),
        cmocka_unit_test(a_check_without_an_answer_proves_nothing),
        cmocka_unit_test(who_joins_without_a_link_gets_it_all_the_same),
        cmocka_unit_test(a_hydration_goes_to_who_waits),
        cmocka_unit_test(a_hydration_goes_to_who_came_before_it),
        cmocka_unit_test(random_walks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
