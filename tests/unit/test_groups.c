/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups against a plain model: clients join, change filters, acknowledge, leave; lines are taken or thrown
 * away; messages come, come again, and time passes. Each message is with at most one client at any time, one
 * whose filters match and who may have it, the least busy one; none waits while somebody could have it; what
 * is done is acknowledged to the broker once, what is lost never.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/subscriptions.h"
#include "protocol/alloc.h"

#define TOPIC "app/room/work"

enum { PEERS = 5, MESSAGES = 400, STEPS = 1500, KEYS = 2 };

static const char *const key_names[KEYS + 1] = {"a", "b", NULL};

enum state { UNKNOWN, WAITING, OUTSTANDING, DONE, LOST };

struct message {
    enum state state;
    unsigned key; /* KEYS = none */
    unsigned peer;
    uint64_t ack_id;
    struct nl_line_watch *line; /* on its way to the peer */
    uint64_t unmatched_ms;      /* WAITING: since when nobody's filters match; 0 = somebody's do */
    unsigned epoch;             /* DONE: of the topic */
    unsigned acks_due, acked;
};

struct member {
    bool in, manual;
    unsigned prefetch, count;
    unsigned filters; /* bit set of keys; 0 = everything */
    uint64_t rests_until_ms;
    bool failed;
};

struct world {
    uint64_t random, now, serial;
    struct nl_subscriptions *s;
    struct nl_acks acks;
    struct nl_quotas quotas;
    struct nl_peer peers[PEERS];
    struct member members[PEERS];
    struct message messages[MESSAGES];
    unsigned count, epoch;
    uint64_t lost;
    bool asked; /* a request is unanswered */
    enum nl_frame_type request;
    struct nl_line_watch *stray[STEPS * 4]; /* lines of clients that are gone */
    unsigned strays;
    unsigned handed, redelivered;
};

static unsigned pick(struct world *w, unsigned n) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (unsigned)(w->random % n);
}

/* ---- the model ---- */

static bool matches(const struct member *m, unsigned key) {
    return m->in && (m->filters == 0 || (key < KEYS && (m->filters & (1u << key)) != 0));
}

static bool may_have(const struct world *w, const struct member *m) {
    return !m->failed && m->rests_until_ms <= w->now && (m->prefetch == 0 || m->count < m->prefetch);
}

static unsigned members(const struct world *w) {
    unsigned n = 0;

    for (unsigned p = 0; p < PEERS; p++)
        n += w->members[p].in;
    return n;
}

static bool anyone_matches(const struct world *w, unsigned key) {
    for (unsigned p = 0; p < PEERS; p++)
        if (matches(&w->members[p], key))
            return true;
    return false;
}

static unsigned in_state(const struct world *w, enum state state) {
    unsigned n = 0;

    for (unsigned i = 0; i < w->count; i++)
        n += w->messages[i].state == state;
    return n;
}

static void give_back(struct world *w, struct message *m) {
    w->members[m->peer].count--;
    m->state = WAITING;
    m->unmatched_ms = 0;
    if (m->line != NULL)
        w->stray[w->strays++] = m->line;
    m->line = NULL;
}

static void done(struct world *w, struct message *m) {
    w->members[m->peer].count--;
    m->state = DONE;
    m->epoch = w->epoch;
    m->acks_due++;
}

/* ---- what the subscriptions are given ---- */

static unsigned number_of(struct nl_slice frame) {
    struct nl_frame f;
    char text[16] = "";

    assert_int_equal(nl_frame_decode(frame, &f), NL_SCAN_OK);
    memcpy(text, f.msg_id.ptr, f.msg_id.len);
    return (unsigned)atoi(text);
}

static void on_hand(void *ctx, struct nl_peer *peer, const struct nl_handout *h) {
    struct world *w = ctx;
    unsigned p = (unsigned)(peer - w->peers);
    struct member *member = &w->members[p];
    struct message *m = &w->messages[number_of(h->frame)];

    assert_int_equal(m->state, WAITING);
    assert_true(matches(member, m->key) && may_have(w, member));
    for (unsigned q = 0; q < PEERS; q++)
        if (matches(&w->members[q], m->key) && may_have(w, &w->members[q]))
            assert_true(w->members[q].count >= member->count);
    assert_int_equal(h->ack_id != 0, member->manual);
    m->state = OUTSTANDING;
    m->peer = p;
    m->ack_id = h->ack_id;
    m->line = h->watch;
    m->line->holds++;
    member->count++;
    w->handed++;
    w->redelivered += h->redelivered;
}

static void on_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    (void)ctx;
    (void)peer;
    (void)event;
    nl_line_unref(line);
    fail();
}

static void on_wake(void *ctx) {
    (void)ctx; /* run() follows each step */
}

static bool on_send(void *ctx, const struct nl_frame *frame) {
    struct world *w = ctx;

    assert_false(w->asked);
    w->asked = true;
    w->request = frame->type;
    if (frame->type == NL_FRAME_SUBSCRIBE)
        assert_true(frame->load_balance && nl_slice_equal(frame->load_balance_group, nl_slice_str("g")));
    return true;
}

static uint64_t on_position(void *ctx) {
    (void)ctx;
    return 0;
}

static void on_line(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    (void)ctx;
    (void)peer;
    assert_null(memmem(line->bytes, line->len, "\"error\"", 7));
    nl_line_unref(line);
}

static bool on_acks(void *ctx, const struct nl_frame *frame) {
    struct world *w = ctx;
    struct nl_raw_iter it;
    struct nl_slice item, text;

    assert_true(nl_raw_array(frame->msg_ids, &it));
    while (nl_raw_next(&it, &item)) {
        char number[16] = "";

        assert_true(nl_raw_string(item, &text));
        memcpy(number, text.ptr, text.len);
        w->messages[atoi(number)].acked++;
    }
    return true;
}

/* ---- steps ---- */

static void answer(struct world *w) {
    static const enum nl_frame_type answers[] = {[NL_FRAME_SUBSCRIBE] = NL_FRAME_SUBSCRIBED,
                                                 [NL_FRAME_SET_FILTERS] = NL_FRAME_FILTERS_UPDATED,
                                                 [NL_FRAME_UNSUBSCRIBE] = NL_FRAME_UNSUBSCRIBED};
    struct nl_frame frame = {.type = answers[w->request]};

    w->asked = false;
    NL_FRAME_SET(&frame, topic, nl_slice_str(TOPIC));
    assert_true(nl_subscriptions_answer(w->s, &frame, w->now));
}

static void expect_losses(struct world *w) {
    for (unsigned i = 0; i < w->count; i++) {
        struct message *m = &w->messages[i];

        if (m->state != WAITING)
            continue;
        if (anyone_matches(w, m->key)) {
            m->unmatched_ms = 0;
        } else if (m->unmatched_ms == 0) {
            m->unmatched_ms = w->now;
        } else if (m->unmatched_ms + NL_GROUP_LINGER_MS <= w->now) {
            m->state = LOST;
            w->lost++;
        }
    }
}

static void run(struct world *w) {
    do {
        for (unsigned p = 0; p < PEERS; p++) {
            if (w->members[p].failed)
                w->members[p].rests_until_ms = w->now + NL_GROUP_REST_MS;
            w->members[p].failed = false;
        }
        expect_losses(w);
        nl_subscriptions_run(w->s, w->now);
        if (w->asked)
            answer(w);
    } while (w->asked || nl_subscriptions_next(w->s) <= w->now ||
             nl_subscriptions_groups_next(w->s) <= w->now);
    nl_acks_flush(&w->acks);
    if (members(w) == 0 && in_state(w, WAITING) == 0)
        w->epoch++;
}

static void send(struct world *w, unsigned p, const char *line) {
    struct nl_request request;
    struct nl_refusal refusal;

    assert_int_equal(nl_request_parse(nl_slice_str(line), 8, &request, &refusal), NL_OK);
    if (request.type == NL_REQUEST_ACK)
        assert_true(nl_subscriptions_acknowledge(w->s, &w->peers[p], &request));
    else
        nl_subscriptions_request(w->s, &w->peers[p], &request, w->now);
    nl_request_deinit(&request);
}

static const char *filters_text(unsigned filters) {
    static const char *const texts[] = {"[]", "[\"a\"]", "[\"b\"]", "[\"a\",\"b\"]"};

    return texts[filters];
}

static void join(struct world *w, unsigned p) {
    struct member *m = &w->members[p];
    char line[300], ack[60] = "";
    unsigned filters = pick(w, 4);

    if (m->in)
        return;
    *m = (struct member){.in = true, .manual = pick(w, 2) == 0, .filters = filters};
    if (m->manual) {
        m->prefetch = 1 + pick(w, 3);
        snprintf(ack, sizeof(ack), ",\"ack\":\"manual\",\"prefetch\":%u", m->prefetch);
    }
    snprintf(line, sizeof(line),
             "{\"type\":\"subscribe\",\"topic\":\"" TOPIC
             "\",\"loadBalance\":true,\"loadBalanceGroup\":\"g\",\"filters\":%s%s}",
             filters_text(filters), ack);
    send(w, p, line);
}

static void change_filters(struct world *w, unsigned p) {
    char line[200];

    if (!w->members[p].in)
        return;
    w->members[p].filters = pick(w, 4);
    snprintf(line, sizeof(line), "{\"type\":\"setFilters\",\"topic\":\"" TOPIC "\",\"filters\":%s}",
             filters_text(w->members[p].filters));
    send(w, p, line);
}

static void leave(struct world *w, unsigned p) {
    if (!w->members[p].in)
        return;
    w->members[p].in = false;
    for (unsigned i = 0; i < w->count; i++)
        if (w->messages[i].state == OUTSTANDING && w->messages[i].peer == p)
            give_back(w, &w->messages[i]);
    if (pick(w, 2) == 0)
        nl_subscriptions_leave(w->s, &w->peers[p], w->now);
    else
        send(w, p, "{\"type\":\"unsubscribe\",\"topic\":\"" TOPIC "\"}");
}

/* Message i comes; before it is new the model says whether it is taken. */
static void deliver(struct world *w, unsigned i) {
    struct message *m = &w->messages[i];
    struct nl_frame frame = {.type = NL_FRAME_MESSAGE}, decoded;
    struct nl_buffer filter, bytes;
    struct nl_receipt *receipt;
    char id[16];
    bool known, there = members(w) > 0 || in_state(w, WAITING) > 0;
    bool seen = m->state == WAITING || m->state == OUTSTANDING || (m->state == DONE && m->epoch == w->epoch);
    bool taken = there && !seen;

    m->acks_due += there && seen && m->state == DONE;
    if (taken) {
        m->state = WAITING;
        m->unmatched_ms = anyone_matches(w, m->key) ? 0 : w->now;
    }
    snprintf(id, sizeof(id), "%u", i);
    nl_buffer_init(&filter);
    nl_buffer_init(&bytes);
    NL_FRAME_SET(&frame, topic, nl_slice_str(TOPIC));
    NL_FRAME_SET(&frame, msg_id, nl_slice_str(id));
    NL_FRAME_SET(&frame, requires_ack, true);
    if (m->key < KEYS) {
        nl_pack_str(&filter, nl_slice_str(key_names[m->key]));
        NL_FRAME_SET(&frame, filter, nl_slice(filter.bytes, filter.len));
    }
    nl_frame_encode(&frame, &bytes);
    nl_frame_decode(nl_slice(bytes.bytes, bytes.len), &decoded);
    receipt = nl_acks_expect(&w->acks, &decoded);
    assert_int_equal(
        nl_subscriptions_deliver(w->s, &decoded, receipt, ++w->serial, w->now, NULL, NULL, &known), taken);
    nl_receipt_release(receipt, false);
    nl_buffer_deinit(&filter);
    nl_buffer_deinit(&bytes);
}

/* A line ends, of which that client has the message still. */
static void end_line(struct world *w, struct message *m, bool taken) {
    struct nl_line_watch *line = m->line;
    struct member *member = &w->members[m->peer];

    if (m->state != OUTSTANDING || line == NULL)
        return;
    m->line = NULL;
    if (taken && !member->manual) {
        done(w, m);
    } else if (!taken) {
        give_back(w, m);
        member->failed = true;
    }
    nl_line_watch_release(line, taken);
}

static void acknowledge(struct world *w, unsigned i) {
    struct message *m = &w->messages[i];
    char line[80];

    if (m->state != OUTSTANDING || m->ack_id == 0)
        return;
    if (pick(w, 2) == 0)
        snprintf(line, sizeof(line), "{\"type\":\"ack\",\"ackId\":%llu}", (unsigned long long)m->ack_id);
    else
        snprintf(line, sizeof(line), "{\"type\":\"ack\",\"msgId\":\"%u\"}", i);
    if (m->line != NULL)
        w->stray[w->strays++] = m->line;
    m->line = NULL;
    w->members[m->peer].failed = false;
    w->members[m->peer].rests_until_ms = 0;
    done(w, m);
    send(w, m->peer, line);
}

static void step(struct world *w) {
    unsigned p = pick(w, PEERS), what = pick(w, 20);
    unsigned i = w->count == 0 ? 0 : pick(w, w->count);

    if (what < 6 && w->count < MESSAGES) {
        w->messages[w->count].key = pick(w, KEYS + 1);
        deliver(w, w->count++);
    } else if (what == 6) {
        if (w->count > 0)
            deliver(w, i);
    } else if (what < 10) {
        acknowledge(w, i);
    } else if (what < 14) {
        end_line(w, &w->messages[i], pick(w, 5) > 0);
    } else if (what < 16) {
        join(w, p);
    } else if (what == 16) {
        leave(w, p);
    } else if (what == 17) {
        change_filters(w, p);
    } else if (what == 18 && w->strays > 0) {
        nl_line_watch_release(w->stray[--w->strays], pick(w, 2) == 0);
    } else {
        w->now += pick(w, 400);
    }
}

static void check(const struct world *w) {
    for (unsigned i = 0; i < w->count; i++) {
        const struct message *m = &w->messages[i];

        assert_int_equal(m->acked, m->acks_due);
        for (unsigned p = 0; m->state == WAITING && p < PEERS; p++)
            assert_false(matches(&w->members[p], m->key) && may_have(w, &w->members[p]));
    }
    assert_int_equal(nl_subscriptions_lost(w->s), w->lost);
}

static void begin(struct world *w, uint64_t seed) {
    struct nl_subscriptions_limits limits = {
        .request_timeout_ms = 1000000, .fence_timeout_ms = 1000, .refused_interval_ms = 1000, .qos = 1};
    struct nl_subscriptions_ops ops = {.send = on_send,
                                       .position = on_position,
                                       .answer = on_line,
                                       .error = on_line,
                                       .hand = on_hand,
                                       .event = on_event,
                                       .wake = on_wake,
                                       .ctx = w};

    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    w->now = 1000;
    nl_quotas_init(&w->quotas);
    nl_acks_init(&w->acks, &(struct nl_acks_ops){.send = on_acks, .wake = on_wake, .ctx = w});
    w->s = nl_subscriptions_new(&limits, &ops, NL_REPORTED_NO, true, seed);
    for (unsigned p = 0; p < PEERS; p++) {
        w->peers[p].number = p + 1;
        w->peers[p].quota = nl_quota_ref(&w->quotas, 1000 + p);
    }
    nl_subscriptions_up(w->s, nl_slice(NULL, 0), w->now);
}

static void end(struct world *w) {
    for (unsigned p = 0; p < PEERS; p++)
        leave(w, p);
    run(w);
    w->now += NL_GROUP_LINGER_MS;
    run(w);
    check(w);
    assert_int_equal(in_state(w, WAITING) + in_state(w, OUTSTANDING), 0);
    assert_true(nl_subscriptions_groups_next(w->s) == UINT64_MAX);
    while (w->strays > 0)
        nl_line_watch_release(w->stray[--w->strays], true);
    nl_subscriptions_free(w->s);
    nl_acks_deinit(&w->acks);
    for (unsigned p = 0; p < PEERS; p++)
        nl_quota_unref(w->peers[p].quota);
    nl_quotas_deinit(&w->quotas);
}

static void random_walks(void **state) {
    unsigned handed = 0, redelivered = 0;
    uint64_t lost = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world *w = nl_calloc(1, sizeof(*w));

        begin(w, seed);
        for (unsigned i = 0; i < STEPS; i++) {
            step(w);
            run(w);
            check(w);
        }
        end(w);
        handed += w->handed;
        redelivered += w->redelivered;
        lost += w->lost;
        free(w);
    }
    /* It has gone everywhere. */
    assert_true(handed > 5000 && redelivered > 500 && lost > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_walks)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
