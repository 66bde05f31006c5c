/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outbox, with a clock and a broker made of test code. A "world" is one outbox with the log of what it
 * sent and of the outcomes it told. Every publish carries a tag as its payload, by which both logs know it.
 *
 * The last test walks random sequences beside a plain model of what must happen. A failure prints
 * its seed; NL_SEED=n runs that one alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/model/outbox.h"
#include "protocol/alloc.h"

#define MAX_IN_FLIGHT 256
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* splitmix64: the same numbers on every machine. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* --- the world --- */

struct sent {
    uint32_t tag;
    uint64_t ref, at_ms;
};

struct ended {
    uint32_t tag;
    enum nl_error error;
    int64_t code; /* of the broker's error frame; -1 = no frame */
    void *owner;
    bool redelivered, suspect;
};

struct world {
    struct nl_outbox *outbox;
    uint64_t now;
    struct sent *sent;
    size_t sent_count, sent_cap;
    size_t answered; /* of sent, by answer_all() */
    struct ended *ended;
    size_t ended_count, ended_cap;
    size_t refuse_after; /* send says false after so many more */
    void (*on_done)(struct world *w, uint32_t tag, void *owner);
};

static char owners[256]; /* their addresses are the clients */

static uint32_t tag_of(struct nl_slice data) {
    assert_int_equal(data.ptr[0], 0xce);
    return (uint32_t)data.ptr[1] << 24 | (uint32_t)data.ptr[2] << 16 | (uint32_t)data.ptr[3] << 8 |
           data.ptr[4];
}

static uint64_t ref_of(const struct nl_frame *frame) {
    char text[32] = "";
    assert_in_range(frame->msg_ref.len, 1, 20);
    memcpy(text, frame->msg_ref.ptr, frame->msg_ref.len);
    return strtoull(text, NULL, 10);
}

static bool on_send(void *ctx, struct nl_slice bytes) {
    struct world *w = ctx;
    struct nl_frame frame;
    if (w->refuse_after == 0)
        return false;
    w->refuse_after--;
    assert_int_equal(nl_frame_decode(bytes, &frame), NL_SCAN_OK);
    assert_int_equal(frame.type, NL_FRAME_PUBLISH);
    if (w->sent_count == w->sent_cap) {
        w->sent_cap = w->sent_cap ? 2 * w->sent_cap : 256;
        w->sent = nl_realloc(w->sent, w->sent_cap * sizeof(*w->sent));
    }
    w->sent[w->sent_count++] = (struct sent){tag_of(frame.data), ref_of(&frame), w->now};
    return true;
}

static void on_done(void *ctx, struct nl_publish *p, struct nl_outcome outcome) {
    struct world *w = ctx;
    uint32_t tag = p->data_len == 5 ? tag_of(nl_slice(p->data, p->data_len)) : 0;
    if (w->ended_count == w->ended_cap) {
        w->ended_cap = w->ended_cap ? 2 * w->ended_cap : 256;
        w->ended = nl_realloc(w->ended, w->ended_cap * sizeof(*w->ended));
    }
    w->ended[w->ended_count++] =
        (struct ended){tag,      outcome.error,  outcome.broker_error ? outcome.broker_error->code : -1,
                       p->owner, p->redelivered, p->suspect};
    if (w->on_done)
        w->on_done(w, tag, p->owner);
}

static struct nl_outbox_limits limits_of(uint64_t publish_rate) {
    return (struct nl_outbox_limits){publish_rate, 10000, 1 << 20, 60000};
}

static void open_world(struct world *w, struct nl_outbox_limits limits) {
    *w = (struct world){.now = 1000, .refuse_after = SIZE_MAX};
    struct nl_outbox_ops ops = {on_send, on_done, w};
    w->outbox = nl_outbox_new(&limits, &ops, w->now);
}

static void close_world(struct world *w) {
    w->outbox = nl_outbox_free(w->outbox);
    assert_null(w->outbox);
    free(w->sent);
    free(w->ended);
}

static struct nl_publish *make(void *owner, uid_t uid, uint32_t tag) {
    struct nl_publish *p = nl_publish_new();
    p->owner = owner;
    p->uid = uid;
    p->topic = nl_strdup("app/room/topic");
    p->data = nl_malloc(5);
    p->data_len = 5;
    p->data[0] = 0xce;
    for (int i = 0; i < 4; i++)
        p->data[1 + i] = (uint8_t)(tag >> (24 - 8 * i));
    p->qos = 1;
    return p;
}

static void push(struct world *w, int client, uid_t uid, uint32_t tag) {
    uint64_t retry_after = 0;
    assert_int_equal(nl_outbox_push(w->outbox, make(&owners[client], uid, tag), w->now, &retry_after), NL_OK);
}

static void push_range(struct world *w, int client, uid_t uid, uint32_t first, uint32_t last) {
    for (uint32_t tag = first; tag <= last; tag++)
        push(w, client, uid, tag);
}

static void run(struct world *w) {
    nl_outbox_run(w->outbox, w->now);
}

static void up(struct world *w) {
    nl_outbox_up(w->outbox);
    run(w);
}

static void down(struct world *w, int code) {
    nl_outbox_down(w->outbox, code);
    w->answered = w->sent_count;
}

/* Lets time pass, running the outbox when it asks for it and at no other time. */
static void pass(struct world *w, uint64_t ms) {
    uint64_t end = w->now + ms;
    for (int rounds = 0;; rounds++) {
        uint64_t at = nl_outbox_next(w->outbox, w->now);
        assert_true(at >= w->now);
        if (at > end)
            break;
        w->now = at;
        run(w);
        assert_true(rounds < 1000000);
    }
    w->now = end;
}

static bool answer_text(struct world *w, enum nl_frame_type type, const char *ref, const char *error,
                        int64_t code) {
    struct nl_frame frame = {.type = type};
    NL_FRAME_SET(&frame, topic, nl_slice_str("app/room/topic"));
    if (ref)
        NL_FRAME_SET(&frame, msg_ref, nl_slice_str(ref));
    if (error)
        NL_FRAME_SET(&frame, error, nl_slice_str(error));
    if (code)
        NL_FRAME_SET(&frame, code, code);
    return nl_outbox_answer(w->outbox, &frame, w->now);
}

static bool answer(struct world *w, enum nl_frame_type type, uint64_t ref, const char *error, int64_t code) {
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu64, ref);
    return answer_text(w, type, text, error, code);
}

static bool published(struct world *w, uint64_t ref) {
    return answer(w, NL_FRAME_PUBLISHED, ref, NULL, 0);
}

static bool rate_limited(struct world *w, uint64_t ref) {
    return answer(w, NL_FRAME_ERROR, ref, "rate_limit_exceeded", 42910);
}

static void answer_all(struct world *w) {
    while (w->answered < w->sent_count)
        assert_true(published(w, w->sent[w->answered++].ref));
}

/* What was sent from the index-th on has exactly these tags. */
#define assert_sent(w, from, ...)                                                                            \
    do {                                                                                                     \
        static const uint32_t tags_[] = {__VA_ARGS__};                                                       \
        assert_int_equal((w)->sent_count - (from), COUNT(tags_));                                            \
        for (size_t i_ = 0; i_ < COUNT(tags_); i_++)                                                         \
            assert_int_equal((w)->sent[(from) + i_].tag, tags_[i_]);                                         \
    } while (0)

static void assert_ended(const struct world *w, size_t index, uint32_t tag, enum nl_error error) {
    assert_true(index < w->ended_count);
    assert_int_equal(w->ended[index].tag, tag);
    assert_int_equal(w->ended[index].error, error);
}

/* --- frames and answers --- */

struct captured {
    struct nl_buffer bytes;
};

static bool capture(void *ctx, struct nl_slice bytes) {
    struct captured *c = ctx;
    nl_buffer_clear(&c->bytes);
    nl_buffer_append(&c->bytes, bytes.ptr, bytes.len);
    return true;
}

static void forget_outcome(void *ctx, struct nl_publish *p, struct nl_outcome outcome) {
    (void)ctx, (void)p, (void)outcome;
}

/* The frame that p goes out as; p is given away. bytes holds what frame points into. */
static void send_alone(struct nl_publish *p, struct captured *c, struct nl_frame *frame) {
    struct nl_outbox_limits limits = limits_of(0);
    struct nl_outbox_ops ops = {capture, forget_outcome, c};
    struct nl_outbox *o = nl_outbox_new(&limits, &ops, 0);
    uint64_t retry_after;
    nl_buffer_init(&c->bytes);
    nl_outbox_up(o);
    assert_int_equal(nl_outbox_push(o, p, 0, &retry_after), NL_OK);
    nl_outbox_run(o, 0);
    nl_outbox_free(o);
    assert_int_equal(nl_frame_decode(nl_slice(c->bytes.bytes, c->bytes.len), frame), NL_SCAN_OK);
}

static uint64_t fields(size_t count, const enum nl_frame_field *list) {
    uint64_t has = 0;
    for (size_t i = 0; i < count; i++)
        has |= UINT64_C(1) << list[i];
    return has;
}

static void a_plain_publish_has_no_more_than_it_needs(void **state) {
    (void)state;
    static const enum nl_frame_field expected[] = {NL_FIELD_topic, NL_FIELD_data, NL_FIELD_qos, NL_FIELD_echo,
                                                   NL_FIELD_msg_ref};
    struct captured c;
    struct nl_frame frame;
    send_alone(make(&owners[0], 1, 77), &c, &frame);
    assert_int_equal(frame.type, NL_FRAME_PUBLISH);
    assert_int_equal(frame.has, fields(COUNT(expected), expected));
    assert_int_equal(frame.extra, 0);
    assert_true(nl_slice_equal(frame.topic, nl_slice_str("app/room/topic")));
    assert_true(nl_slice_equal(frame.msg_ref, nl_slice_str("1")));
    assert_int_equal(tag_of(frame.data), 77);
    assert_int_equal(frame.qos, 1);
    assert_false(frame.echo);
    nl_buffer_deinit(&c.bytes);
}

static void a_full_publish_has_all(void **state) {
    (void)state;
    struct captured c;
    struct nl_frame frame;
    struct nl_slice filter;
    struct nl_publish *p = make(&owners[0], 1, 78);
    p->filter_key = nl_strdup("lang:en|size:l");
    p->id = nl_strdup("\"x\"");
    p->msg_ref = nl_strdup("theirs");
    p->retain = p->echo = true;
    p->qos = 2;
    send_alone(p, &c, &frame);
    assert_true(NL_FRAME_HAS(&frame, retain) && frame.retain && frame.echo);
    assert_int_equal(frame.qos, 2);
    assert_true(nl_raw_string(frame.filter, &filter));
    assert_true(nl_slice_equal(filter, nl_slice_str("lang:en|size:l")));
    assert_true(nl_slice_equal(frame.msg_ref, nl_slice_str("1")));
    nl_buffer_deinit(&c.bytes);
}

/* A payload near the largest size goes through whole. */
static void a_large_payload_is_sent_whole(void **state) {
    (void)state;
    enum { SIZE = 900000 };
    struct captured c;
    struct nl_frame frame;
    struct nl_publish *p = make(&owners[0], 1, 0);
    free(p->data);
    p->data_len = SIZE + 5;
    p->data = nl_calloc(1, p->data_len);
    p->data[0] = 0xc6; /* bin 32 */
    p->data[2] = SIZE >> 16, p->data[3] = SIZE >> 8 & 0xff, p->data[4] = SIZE & 0xff;
    send_alone(p, &c, &frame);
    assert_int_equal(frame.data.len, SIZE + 5);
    nl_buffer_deinit(&c.bytes);
}

static void answers_are_matched_and_told(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    push_range(&w, 0, 1, 1, 3);
    run(&w);
    assert_sent(&w, 0, 1, 2, 3);
    assert_int_equal(nl_outbox_in_flight(w.outbox), 3);
    assert_true(published(&w, 1));
    assert_true(answer(&w, NL_FRAME_ERROR, 2, "unknown_topic", 42940));
    assert_true(answer(&w, NL_FRAME_ERROR, 3, "not_subscribed", 0));
    assert_int_equal(w.ended_count, 3);
    assert_ended(&w, 0, 1, NL_OK);
    assert_int_equal(w.ended[0].code, -1);
    assert_ended(&w, 1, 2, NL_ERROR_BROKER_REJECTED);
    assert_int_equal(w.ended[1].code, 42940);
    assert_ended(&w, 2, 3, NL_ERROR_BROKER_REJECTED);
    assert_ptr_equal(w.ended[2].owner, &owners[0]);
    assert_int_equal(nl_outbox_messages(w.outbox), 0);
    assert_int_equal(nl_outbox_bytes(w.outbox), 0);
    close_world(&w);
}

static void strange_answers_are_ignored(void **state) {
    (void)state;
    static const char *const refs[] = {"",
                                       "0",
                                       "01",
                                       "-1",
                                       "+1",
                                       " 1",
                                       "1 ",
                                       "1x",
                                       "x",
                                       "0x1",
                                       "1.0",
                                       "12",
                                       "18446744073709551617",
                                       "99999999999999999999999",
                                       "\xff",
                                       "n1",
                                       ":",
                                       ";",
                                       "\xd9\xa1"};
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    assert_false(published(&w, 1));
    push_range(&w, 0, 1, 1, 11);
    assert_false(published(&w, 1)); /* it waits */
    run(&w);
    for (size_t i = 0; i < COUNT(refs); i++) {
        assert_false(answer_text(&w, NL_FRAME_PUBLISHED, refs[i], NULL, 0));
        assert_false(answer_text(&w, NL_FRAME_ERROR, refs[i], "rate_limit_exceeded", 42910));
    }
    assert_false(answer_text(&w, NL_FRAME_PUBLISHED, NULL, NULL, 0));
    assert_false(answer_text(&w, NL_FRAME_ERROR, NULL, "rate_limit_exceeded", 42910));
    assert_false(answer_text(&w, NL_FRAME_SUBSCRIBED, "1", NULL, 0));
    assert_false(answer_text(&w, NL_FRAME_UNKNOWN, "1", NULL, 0));
    assert_int_equal(w.ended_count, 0);
    assert_true(published(&w, 1));
    assert_false(published(&w, 1));
    assert_int_equal(w.ended_count, 1);
    close_world(&w);
}

static void a_late_answer_is_not_taken_for_a_new_one(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    down(&w, 1006);
    assert_false(published(&w, 1));
    up(&w);
    assert_false(published(&w, 1)); /* it is 2 now */
    assert_true(published(&w, 2));
    assert_true(w.ended[0].redelivered);
    close_world(&w);
}

static void what_is_passed_over_was_ignored(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    push_range(&w, 0, 1, 1, 4);
    run(&w);
    assert_true(published(&w, 3));
    assert_ended(&w, 0, 1, NL_ERROR_BROKER_IGNORED);
    assert_ended(&w, 1, 2, NL_ERROR_BROKER_IGNORED);
    assert_ended(&w, 2, 3, NL_OK);
    assert_false(published(&w, 1));
    assert_int_equal(nl_outbox_in_flight(w.outbox), 1);
    close_world(&w);
}

static void a_heartbeat_tells_what_was_ignored(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    assert_int_equal(nl_outbox_newest(w.outbox), 0);
    assert_null(nl_outbox_oldest(w.outbox));
    push_range(&w, 0, 1, 1, 2);
    run(&w);
    uint64_t mark = nl_outbox_newest(w.outbox);
    push(&w, 0, 1, 3);
    run(&w);
    assert_int_equal(nl_outbox_oldest(w.outbox)->ref, 1);
    assert_true(published(&w, 1));
    assert_int_equal(nl_outbox_oldest(w.outbox)->ref, 2);
    nl_outbox_passed(w.outbox, mark);
    nl_outbox_passed(w.outbox, mark);
    assert_int_equal(w.ended_count, 2);
    assert_ended(&w, 1, 2, NL_ERROR_BROKER_IGNORED);
    assert_true(published(&w, 3));
    close_world(&w);
}

static void no_more_than_256_in_flight(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    push_range(&w, 0, 1, 1, 300);
    run(&w);
    assert_int_equal(w.sent_count, MAX_IN_FLIGHT);
    assert_int_equal(nl_outbox_in_flight(w.outbox), MAX_IN_FLIGHT);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now + 60000); /* only the ttl is left to wait for */
    answer_all(&w);
    run(&w);
    assert_int_equal(w.sent_count, 300);
    close_world(&w);
}

static void without_answers_sent_is_published(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    nl_outbox_set_unanswered(w.outbox, true);
    push_range(&w, 0, 1, 1, 12);
    up(&w);
    assert_int_equal(w.ended_count, 10);
    assert_int_equal(nl_outbox_in_flight(w.outbox), 0);
    pass(&w, 1000);
    assert_int_equal(w.ended_count, 12);
    for (size_t i = 0; i < 12; i++)
        assert_ended(&w, i, (uint32_t)i + 1, NL_OK);
    down(&w, 1011);
    assert_null(nl_outbox_suspect(w.outbox));
    close_world(&w);
}

/* --- order and shares --- */

static void first_in_first_out_within_a_client(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push_range(&w, 0, 1, 1, 100);
    up(&w);
    for (int i = 0; i < 100; i++) {
        answer_all(&w);
        pass(&w, 100);
    }
    assert_int_equal(w.ended_count, 100);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(w.sent[i].tag, i + 1);
        assert_int_equal(w.sent[i].ref, i + 1);
        assert_ended(&w, i, i + 1, NL_OK);
    }
    close_world(&w);
}

/* Tags are client * 1000 + n. Uid 1 has one client, uid 2 three, uid 3 ten. */
static void shares_are_equal_by_uid_then_by_client(void **state) {
    (void)state;
    struct world w;
    unsigned by_client[14] = {0};
    open_world(&w, limits_of(0));
    for (uint32_t client = 0; client < 14; client++)
        for (uint32_t n = 0; n < (client == 0 ? 150 : 60); n++)
            push(&w, (int)client, client == 0 ? 1 : client < 4 ? 2 : 3, client * 1000 + n);
    w.refuse_after = 180;
    up(&w);
    assert_int_equal(w.sent_count, 180);
    for (size_t i = 0; i < 180; i++)
        assert_int_equal(w.sent[i].tag % 1000, by_client[w.sent[i].tag / 1000]++);
    assert_int_equal(by_client[0], 60);
    for (size_t client = 1; client < 4; client++)
        assert_int_equal(by_client[client], 20);
    for (size_t client = 4; client < 14; client++)
        assert_int_equal(by_client[client], 6);
    close_world(&w);
}

/* The one who has little gets it all; what it leaves is shared by the others. */
static void a_share_not_used_is_shared(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    push_range(&w, 0, 1, 1001, 1006);
    push_range(&w, 1, 2, 2001, 2002);
    push_range(&w, 2, 3, 3001, 3004);
    up(&w);
    assert_sent(&w, 0, 1001, 2001, 3001, 1002, 2002, 3002, 1003, 3003, 1004, 3004, 1005, 1006);
    close_world(&w);
}

/* A uid with a hundred clients of one publish each has no more turns than one with a single client. */
static void many_clients_are_one_uid(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    for (int client = 1; client <= 100; client++)
        push(&w, client, 7, (uint32_t)client);
    push_range(&w, 0, 8, 1001, 1100);
    up(&w);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(w.sent[i].tag, i % 2 == 0 ? i / 2 + 1 : 1001 + i / 2);
    close_world(&w);
}

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/*
 * One client publishes once a second (tags from 1000000), the others keep their lanes full for two minutes.
 * The 99th percentile of its waiting must stay under a second.
 */
static void polite_beside(struct world *w, int flooders, uid_t flood_uid, uid_t polite_uid) {
    enum { SECONDS = 120, STEP = 50 };
    uint64_t pushed_at[SECONDS];
    uint64_t waits[SECONDS];
    uint32_t polite = 0;
    size_t seen = 0;
    size_t count = 0;
    up(w);
    for (uint32_t t = 0; t < SECONDS * 1000; t += STEP) {
        for (int f = 0; f < flooders; f++)
            if (nl_outbox_messages(w->outbox) < 2000)
                push_range(w, 1 + f, flood_uid, 1, (uint32_t)(2000 / flooders / 10));
        if (t % 1000 == 0) {
            pushed_at[polite] = w->now;
            push(w, 0, polite_uid, 1000000 + polite++);
        }
        run(w);
        pass(w, STEP);
        for (; seen < w->sent_count; seen++)
            if (w->sent[seen].tag >= 1000000)
                waits[count++] = w->sent[seen].at_ms - pushed_at[w->sent[seen].tag - 1000000];
        answer_all(w);
    }
    assert_true(count >= SECONDS - 1);
    qsort(waits, count, sizeof(waits[0]), compare_u64);
    assert_true(waits[count * 99 / 100] < 1000);
}

static void a_polite_client_is_not_held_up(void **state) {
    (void)state;
    static const struct {
        int flooders;
        uid_t flood_uid, polite_uid;
    } cases[] = {{1, 7, 8}, {100, 7, 8}, {1, 7, 7}, {10, 7, 7}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world w;
        struct nl_outbox_limits limits = limits_of(50);
        limits.ttl_ms = 0;
        open_world(&w, limits);
        polite_beside(&w, cases[i].flooders, cases[i].flood_uid, cases[i].polite_uid);
        close_world(&w);
    }
}

/* --- pace --- */

static void the_pace_is_ten_then_forty(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push_range(&w, 0, 1, 1, 1000);
    up(&w);
    assert_int_equal(w.sent_count, 10);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now + 25);
    for (int second = 1; second <= 5; second++) {
        pass(&w, 1000);
        assert_int_equal(w.sent_count, 10 + 40 * second);
        answer_all(&w);
    }
    close_world(&w);
}

static void every_rate_gets_through(void **state) {
    (void)state;
    static const struct {
        uint64_t rate, in_100_s;
    } cases[] = {{1, 90},         {2, 1 + 100},    {5, 1 + 400},     {19, 3 + 1600},
                 {20, 10 + 1000}, {50, 10 + 4000}, {200, 10 + 19000}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct world w;
        struct nl_outbox_limits limits = {cases[i].rate, 100000, 1 << 24, 0};
        open_world(&w, limits);
        nl_outbox_set_unanswered(w.outbox, true);
        push_range(&w, 0, 1, 1, 20000);
        up(&w);
        pass(&w, 100000);
        assert_int_equal(w.sent_count, cases[i].in_100_s);
        close_world(&w);
    }
}

/* Sent within any second, both of its ends included: more than any broker's second can hold. */
static void assert_windows(const struct world *w, uint64_t rate) {
    for (size_t first = 0, last = 0; first < w->sent_count; first++) {
        while (last < w->sent_count && w->sent[last].at_ms - w->sent[first].at_ms <= 1000)
            last++;
        assert_true(last - first <= rate);
    }
}

static void random_traffic(struct world *w, uint64_t *seed) {
    static const int codes[] = {0, 1000, 1006, 1009, 1011, 4001};
    uint64_t end = w->now + 1000000;
    bool live = false;
    while (w->now < end) {
        uint64_t dice = next_random(seed) % 100;
        if (dice < 40)
            for (uint64_t n = next_random(seed) % 60; n && nl_outbox_messages(w->outbox) < 5000; n--)
                push(w, (int)(n % 5), (uid_t)(n % 3), (uint32_t)n);
        else if (dice < 70)
            answer_all(w);
        else if (dice < 80 && live && w->answered < w->sent_count)
            rate_limited(w, w->sent[w->answered++].ref);
        else if (dice < 85 && live)
            down(w, codes[next_random(seed) % COUNT(codes)]);
        if (dice >= 80 && (live = true))
            nl_outbox_up(w->outbox);
        run(w);
        uint64_t most = next_random(seed) % 10 ? 300 : 5000;
        pass(w, next_random(seed) % most);
    }
}

static void no_second_has_more_than_the_rate(void **state) {
    (void)state;
    static const uint64_t rates[] = {1, 2, 5, 19, 20, 50, 200};
    for (size_t i = 0; i < COUNT(rates); i++) {
        struct world w;
        uint64_t seed = 100 + i;
        struct nl_outbox_limits limits = limits_of(rates[i]);
        open_world(&w, limits);
        random_traffic(&w, &seed);
        assert_true(w.sent_count > 200);
        assert_windows(&w, rates[i]);
        close_world(&w);
    }
}

static void a_reconnect_gives_no_new_burst(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push_range(&w, 0, 1, 1, 500);
    up(&w);
    for (int i = 0; i < 20; i++) {
        down(&w, 1006);
        up(&w);
    }
    assert_int_equal(w.sent_count, 10);
    pass(&w, 100);
    assert_int_equal(w.sent_count, 14);
    close_world(&w);
}

/* Everything in flight is lost at once: it goes again, but no faster than the rest. */
static void a_reconnect_makes_no_storm(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push_range(&w, 0, 1, 1, 256);
    up(&w);
    pass(&w, 8000);
    assert_int_equal(nl_outbox_in_flight(w.outbox), 256);
    down(&w, 1006);
    up(&w);
    pass(&w, 10000);
    assert_int_equal(w.sent_count, 512);
    assert_windows(&w, 50);
    answer_all(&w);
    for (uint32_t i = 0; i < 256; i++) {
        assert_ended(&w, i, i + 1, NL_OK);
        assert_true(w.ended[i].redelivered);
    }
    close_world(&w);
}

/* --- rate_limit_exceeded --- */

static void a_refused_one_goes_first_again(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push_range(&w, 0, 1, 1, 12);
    up(&w);
    assert_int_equal(w.sent_count, 10);
    assert_true(published(&w, 1));
    assert_true(published(&w, 2));
    assert_true(rate_limited(&w, 3));
    assert_true(rate_limited(&w, 4));
    assert_true(rate_limited(&w, 5));
    for (uint64_t ref = 6; ref <= 10; ref++)
        assert_true(published(&w, ref));
    assert_int_equal(w.ended_count, 7);
    run(&w);
    assert_int_equal(w.sent_count, 10); /* the bucket is empty now */
    pass(&w, 1000);
    assert_sent(&w, 10, 3, 4, 5, 11, 12);
    for (uint64_t ref = 11; ref <= 15; ref++)
        assert_true(published(&w, ref));
    assert_ended(&w, 7, 3, NL_OK);
    assert_false(w.ended[7].redelivered); /* the broker had refused it: no second copy exists */
    close_world(&w);
}

/* Refused in two bursts, one before and one after the first went again. */
static void refused_ones_keep_their_order(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push_range(&w, 0, 1, 1, 10);
    push(&w, 1, 1, 100);
    w.refuse_after = 9;
    up(&w);
    assert_sent(&w, 0, 1, 100, 2, 3, 4, 5, 6, 7, 8);
    for (uint64_t ref = 1; ref <= 4; ref++)
        assert_true(rate_limited(&w, ref));
    w.refuse_after = 1;
    pass(&w, 100);
    assert_sent(&w, 9, 1); /* 100 was there too, and is next of its uid */
    for (uint64_t ref = 5; ref <= 10; ref++)
        assert_true(rate_limited(&w, ref));
    w.refuse_after = SIZE_MAX;
    pass(&w, 2000);
    assert_sent(&w, 10, 100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    close_world(&w);
}

static void code_or_name_will_do(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    push_range(&w, 0, 1, 1, 3);
    run(&w);
    assert_true(answer(&w, NL_FRAME_ERROR, 1, NULL, 42910));
    assert_true(answer(&w, NL_FRAME_ERROR, 2, "rate_limit_exceeded", 0));
    assert_true(answer(&w, NL_FRAME_ERROR, 3, "monthly_quota_exceeded", 42920));
    assert_int_equal(w.ended_count, 1);
    assert_int_equal(nl_outbox_messages(w.outbox), 2);
    close_world(&w);
}

static void the_pace_is_halved_for_ten_seconds(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    assert_true(rate_limited(&w, 1));
    push_range(&w, 0, 1, 2, 2000);
    for (int second = 1; second <= 10; second++) {
        pass(&w, 1000);
        assert_int_equal(w.sent_count, 1 + 20 * second);
        w.answered = second == 1 ? 1 : w.answered;
        answer_all(&w);
    }
    pass(&w, 1000);
    assert_int_equal(w.sent_count, 1 + 200 + 40);
    close_world(&w);
}

/* It wakes up for the end of the slow time: from there on the wait is shorter than it was told. */
static void slow_time_ends_on_time(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(1));
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    assert_true(rate_limited(&w, 1));
    push_range(&w, 0, 1, 2, 50);
    pass(&w, 9000);
    assert_int_equal(w.sent_count, 1 + 4); /* 0.45/s */
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now + 1000);
    pass(&w, 11000);
    assert_int_equal(w.sent_count, 1 + 13); /* 4.5 + 9 */
    close_world(&w);
}

/* Nobody looks when it ends: each side of the border counts at its own rate. */
static void slow_time_ends_unseen(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    assert_true(rate_limited(&w, 1));
    push_range(&w, 0, 1, 2, 50);
    w.now += 9900;
    run(&w);
    assert_int_equal(w.sent_count, 1 + 10);
    w.now += 200;
    run(&w);
    assert_int_equal(w.sent_count, 1 + 10 + 2 + 4);
    close_world(&w);
}

/* Always refused and no limit of our own: still no more than 25 a second go out. */
static void without_a_limit_a_refusal_slows_down(void **state) {
    (void)state;
    struct world w;
    struct nl_outbox_limits limits = limits_of(0);
    limits.ttl_ms = 0;
    open_world(&w, limits);
    up(&w);
    push_range(&w, 0, 1, 1, 300);
    run(&w);
    for (int second = 0; second < 20; second++) {
        while (w.answered < w.sent_count)
            assert_true(rate_limited(&w, w.sent[w.answered++].ref));
        size_t before = w.sent_count;
        pass(&w, 1000);
        assert_in_range(w.sent_count - before, 24, 25);
    }
    answer_all(&w);
    pass(&w, 10000);
    answer_all(&w);
    run(&w);
    answer_all(&w);
    assert_int_equal(w.ended_count, 300);
    close_world(&w);
}

static void a_refused_one_keeps_its_deadline(void **state) {
    (void)state;
    struct world w;
    struct nl_outbox_limits limits = limits_of(50);
    limits.ttl_ms = 1000;
    open_world(&w, limits);
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    pass(&w, 990);
    assert_true(rate_limited(&w, 1));
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now + 10);
    pass(&w, 10);
    assert_ended(&w, 0, 1, NL_ERROR_TIMEOUT);
    close_world(&w);
}

/* --- bounds and ttl --- */

static enum nl_error try_push_as(struct world *w, int client, uid_t uid, size_t size, uint64_t *retry_after) {
    struct nl_publish *p = make(&owners[client], uid, 9);
    free(p->data);
    p->data = nl_calloc(1, size); /* zeros; the tests that use it send none of these */
    p->data_len = size;
    enum nl_error error = nl_outbox_push(w->outbox, p, w->now, retry_after);
    if (error)
        nl_publish_free(p);
    return error;
}

static enum nl_error try_push(struct world *w, size_t size, uint64_t *retry_after) {
    return try_push_as(w, 0, 1, size, retry_after);
}

static void messages_are_bounded(void **state) {
    (void)state;
    struct world w;
    uint64_t retry_after = 0;
    struct nl_outbox_limits limits = limits_of(50);
    limits.max_messages = 7; /* too few to keep some for others */
    open_world(&w, limits);
    push_range(&w, 0, 1, 1, 7);
    assert_int_equal(try_push(&w, 5, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(retry_after, 1000); /* down */
    up(&w);
    assert_int_equal(try_push(&w, 5, &retry_after), NL_ERROR_OUTBOX_FULL); /* those in flight count, too */
    assert_int_equal(retry_after, 100);
    assert_int_equal(nl_outbox_messages(w.outbox), 7);
    answer_all(&w);
    assert_int_equal(nl_outbox_messages(w.outbox), 0);
    push_range(&w, 0, 1, 13, 19);
    assert_int_equal(try_push(&w, 5, &retry_after), NL_ERROR_OUTBOX_FULL);
    close_world(&w);
}

static void bytes_are_bounded(void **state) {
    (void)state;
    struct world w;
    uint64_t retry_after = 0;
    struct nl_outbox_limits limits = limits_of(50);
    limits.max_bytes = 1000;
    open_world(&w, limits);
    assert_int_equal(try_push(&w, 1001, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(try_push(&w, SIZE_MAX > 1u << 20 ? 1u << 20 : 1001, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(try_push(&w, 600, &retry_after), NL_OK);
    assert_int_equal(try_push(&w, 151, &retry_after), NL_ERROR_OUTBOX_FULL); /* 250 are kept */
    assert_int_equal(try_push(&w, 150, &retry_after), NL_OK);
    assert_int_equal(nl_outbox_bytes(w.outbox), 750);
    assert_int_equal(try_push(&w, 1, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(try_push(&w, 0, &retry_after), NL_OK);
    assert_int_equal(try_push_as(&w, 1, 1, 126, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(try_push_as(&w, 1, 1, 125, &retry_after), NL_OK);
    assert_int_equal(try_push_as(&w, 2, 2, 126, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(try_push_as(&w, 2, 2, 125, &retry_after), NL_OK);
    assert_int_equal(try_push_as(&w, 3, 3, 1, &retry_after), NL_ERROR_OUTBOX_FULL);
    nl_outbox_fail_all(w.outbox, NL_ERROR_SHUTTING_DOWN);
    assert_int_equal(nl_outbox_bytes(w.outbox), 0);
    assert_int_equal(try_push(&w, 1000, &retry_after), NL_OK); /* who holds nothing may have all */
    close_world(&w);
}

/* One client cannot fill it for the others of its user, nor one user for other users. */
static void the_last_quarter_is_for_small_ones(void **state) {
    (void)state;
    struct world w;
    uint64_t retry_after = 0;
    struct nl_outbox_limits limits = limits_of(50);
    limits.max_messages = 80;
    open_world(&w, limits);
    push_range(&w, 0, 1, 1, 60);
    assert_int_equal(try_push(&w, 1, &retry_after), NL_ERROR_OUTBOX_FULL);
    push_range(&w, 1, 1, 61, 70);
    assert_int_equal(try_push_as(&w, 1, 1, 1, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(try_push_as(&w, 2, 1, 1, &retry_after), NL_ERROR_OUTBOX_FULL);
    push_range(&w, 3, 2, 71, 80);
    assert_int_equal(try_push_as(&w, 4, 3, 1, &retry_after), NL_ERROR_OUTBOX_FULL);
    close_world(&w);
}

static void retry_after_is_the_pace_when_that_is_long(void **state) {
    (void)state;
    struct world w;
    uint64_t retry_after = 0;
    struct nl_outbox_limits limits = limits_of(2);
    limits.max_messages = 3;
    open_world(&w, limits);
    up(&w);
    push_range(&w, 0, 1, 1, 3);
    run(&w);
    assert_int_equal(w.sent_count, 1);
    w.now += 300;
    assert_int_equal(try_push(&w, 5, &retry_after), NL_ERROR_OUTBOX_FULL);
    assert_int_equal(retry_after, 700);
    close_world(&w);
}

static void who_waits_too_long_times_out(void **state) {
    (void)state;
    struct world w;
    struct nl_outbox_limits limits = limits_of(50);
    limits.ttl_ms = 5000;
    open_world(&w, limits);
    push(&w, 0, 1, 1);
    w.now += 100;
    push(&w, 1, 2, 2);
    push(&w, 0, 1, 3);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now + 4900);
    pass(&w, 4899);
    assert_int_equal(w.ended_count, 0);
    pass(&w, 1);
    assert_int_equal(w.ended_count, 1);
    assert_ended(&w, 0, 1, NL_ERROR_TIMEOUT);
    pass(&w, 100);
    assert_int_equal(w.ended_count, 3);
    assert_ended(&w, 1, 2, NL_ERROR_TIMEOUT);
    assert_ended(&w, 2, 3, NL_ERROR_TIMEOUT);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), UINT64_MAX);
    up(&w);
    assert_int_equal(w.sent_count, 0);
    close_world(&w);
}

static void too_late_is_not_sent_even_if_it_could_be(void **state) {
    (void)state;
    struct world w;
    struct nl_outbox_limits limits = limits_of(50);
    limits.ttl_ms = 5000;
    open_world(&w, limits);
    push(&w, 0, 1, 1);
    w.now += 100000;
    push(&w, 0, 1, 2);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now);
    up(&w);
    assert_sent(&w, 0, 2);
    assert_ended(&w, 0, 1, NL_ERROR_TIMEOUT);
    close_world(&w);
}

static void in_flight_does_not_time_out(void **state) {
    (void)state;
    struct world w;
    struct nl_outbox_limits limits = limits_of(50);
    limits.ttl_ms = 5000;
    open_world(&w, limits);
    up(&w);
    push_range(&w, 0, 1, 1, 2);
    run(&w);
    pass(&w, 100000);
    assert_int_equal(w.ended_count, 0);
    assert_true(published(&w, 1));
    assert_ended(&w, 0, 1, NL_OK);
    down(&w, 1006);
    assert_int_equal(w.ended_count, 1);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now);
    run(&w);
    assert_ended(&w, 1, 2, NL_ERROR_TIMEOUT);
    assert_true(w.ended[1].redelivered);
    close_world(&w);
}

static void ttl_none_and_ttl_for_ever(void **state) {
    (void)state;
    static const uint64_t ttls[] = {0, UINT64_MAX, UINT64_MAX - 1000};
    for (size_t i = 0; i < COUNT(ttls); i++) {
        struct world w;
        struct nl_outbox_limits limits = limits_of(50);
        limits.ttl_ms = ttls[i];
        open_world(&w, limits);
        push(&w, 0, 1, 1);
        w.now = UINT64_MAX / 2;
        assert_int_equal(nl_outbox_next(w.outbox, w.now), UINT64_MAX);
        up(&w);
        assert_int_equal(w.sent_count, 1);
        close_world(&w);
    }
}

static void a_full_outbox_times_out_in_order(void **state) {
    (void)state;
    struct world w;
    struct nl_outbox_limits limits = limits_of(50);
    limits.max_messages = 12000; /* with an eighth that is kept */
    open_world(&w, limits);
    for (uint32_t i = 0; i < 10000; i++) {
        push(&w, (int)(i % 100), (uid_t)(i % 7), i);
        w.now += i % 10 == 0;
    }
    pass(&w, 60000);
    assert_int_equal(w.ended_count, 10000);
    for (uint32_t i = 0; i < 10000; i++)
        assert_ended(&w, i, i, NL_ERROR_TIMEOUT);
    close_world(&w);
}

/* --- the link goes down --- */

static void what_was_in_flight_goes_before_what_is_newer(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    push_range(&w, 0, 1, 1, 3);
    push_range(&w, 1, 2, 101, 102);
    run(&w);
    assert_true(published(&w, 1));
    down(&w, 0);
    assert_int_equal(nl_outbox_in_flight(w.outbox), 0);
    assert_int_equal(nl_outbox_messages(w.outbox), 4);
    push(&w, 0, 1, 4);
    push(&w, 1, 2, 103);
    run(&w);
    assert_int_equal(w.sent_count, 5);
    up(&w);
    assert_sent(&w, 5, 101, 2, 102, 3, 103, 4);
    answer_all(&w);
    assert_int_equal(w.ended_count, 7);
    for (size_t i = 1; i < 7; i++)
        assert_int_equal(w.ended[i].redelivered, w.ended[i].tag != 4 && w.ended[i].tag != 103);
    close_world(&w);
}

static void refused_and_lost_keep_their_order(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 6);
    w.refuse_after = 5;
    run(&w);
    assert_true(published(&w, 1));
    assert_true(rate_limited(&w, 2));
    assert_true(rate_limited(&w, 3));
    down(&w, 1006);
    w.refuse_after = SIZE_MAX;
    up(&w);
    pass(&w, 1000);
    assert_sent(&w, 5, 2, 3, 4, 5, 6);
    close_world(&w);
}

/* A is poison, B and C are not: the sequence of the header. */
static void poison_is_found_and_the_rest_goes_on(void **state) {
    (void)state;
    static const int codes[] = {1009, 1011};
    for (size_t i = 0; i < COUNT(codes); i++) {
        struct world w;
        open_world(&w, limits_of(50));
        up(&w);
        push(&w, 0, 1, 1);
        push(&w, 1, 2, 2);
        push(&w, 0, 1, 3);
        run(&w);
        assert_sent(&w, 0, 1, 2, 3);
        down(&w, codes[i]);
        assert_non_null(nl_outbox_suspect(w.outbox));
        push(&w, 2, 3, 4);
        up(&w);
        pass(&w, 5000);
        assert_sent(&w, 3, 1); /* alone, whatever waits */
        assert_int_equal(nl_outbox_suspect(w.outbox)->ref, 4);
        down(&w, codes[1 - i]);
        assert_int_equal(w.ended_count, 1);
        assert_ended(&w, 0, 1, NL_ERROR_BROKER_REJECTED);
        assert_int_equal(w.ended[0].code, -1);
        assert_true(w.ended[0].redelivered && w.ended[0].suspect);
        assert_null(nl_outbox_suspect(w.outbox));
        up(&w);
        assert_int_equal(w.sent_count, 7);
        answer_all(&w);
        assert_int_equal(w.ended_count, 4);
        for (size_t k = 1; k < 4; k++) {
            assert_int_equal(w.ended[k].error, NL_OK);
            assert_int_equal(w.ended[k].redelivered, w.ended[k].tag != 4);
        }
        close_world(&w);
    }
}

/* Suspected wrongly: its answer frees it, and the true one is found next. */
static void an_answer_acquits(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 3);
    run(&w);
    down(&w, 1011); /* 1 is suspected; 2 is poison */
    up(&w);
    assert_sent(&w, 3, 1);
    assert_true(published(&w, 4));
    assert_null(nl_outbox_suspect(w.outbox));
    run(&w);
    assert_sent(&w, 4, 2, 3);
    down(&w, 1011);
    up(&w);
    assert_sent(&w, 6, 2);
    down(&w, 1011);
    assert_ended(&w, 0, 1, NL_OK);
    assert_ended(&w, 1, 2, NL_ERROR_BROKER_REJECTED);
    up(&w);
    answer_all(&w);
    assert_ended(&w, 2, 3, NL_OK);
    assert_false(w.ended[2].suspect);
    close_world(&w);
}

static void a_refusal_acquits_too(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 2);
    run(&w);
    down(&w, 1011);
    up(&w);
    assert_true(rate_limited(&w, 3));
    assert_null(nl_outbox_suspect(w.outbox));
    pass(&w, 1000);
    assert_sent(&w, 3, 1, 2);
    down(&w, 1011); /* the first time again: it is suspected, not rejected */
    assert_int_equal(w.ended_count, 0);
    assert_non_null(nl_outbox_suspect(w.outbox));
    close_world(&w);
}

static void other_closes_convict_nobody(void **state) {
    (void)state;
    static const int codes[] = {0, 1000, 1001, 1002, 1006, 1008, 1010, 1012, 4001, 4002};
    struct world w;
    open_world(&w, limits_of(0));
    push_range(&w, 0, 1, 1, 3);
    for (size_t i = 0; i < 3 * COUNT(codes); i++) {
        up(&w);
        assert_int_equal(nl_outbox_in_flight(w.outbox), 3);
        down(&w, codes[i % COUNT(codes)]);
        assert_null(nl_outbox_suspect(w.outbox));
    }
    assert_int_equal(w.ended_count, 0);
    close_world(&w);
}

static void other_closes_acquit_nobody(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 2);
    run(&w);
    down(&w, 1011);
    up(&w);
    assert_sent(&w, 2, 1);
    down(&w, 1006); /* says nothing about it */
    up(&w);
    assert_sent(&w, 3, 1);
    down(&w, 0);
    nl_outbox_up(w.outbox);
    down(&w, 1011); /* before it was sent: not its fault */
    assert_int_equal(w.ended_count, 0);
    up(&w);
    assert_sent(&w, 4, 1);
    down(&w, 1009);
    assert_int_equal(w.ended_count, 1);
    assert_ended(&w, 0, 1, NL_ERROR_BROKER_REJECTED);
    close_world(&w);
}

static void a_close_with_nothing_in_flight_suspects_nobody(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push(&w, 0, 1, 1);
    down(&w, 1011);
    nl_outbox_up(w.outbox);
    down(&w, 1011);
    assert_null(nl_outbox_suspect(w.outbox));
    assert_int_equal(w.ended_count, 0);
    close_world(&w);
}

static void a_suspect_can_time_out(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    down(&w, 1011);
    pass(&w, 30000);
    push(&w, 0, 1, 2);
    pass(&w, 30000);
    assert_ended(&w, 0, 1, NL_ERROR_TIMEOUT);
    assert_null(nl_outbox_suspect(w.outbox));
    up(&w);
    assert_sent(&w, 1, 2);
    close_world(&w);
}

static void a_suspect_can_be_ignored_or_fail(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 3);
    run(&w);
    down(&w, 1011);
    up(&w);
    nl_outbox_passed(w.outbox, nl_outbox_newest(w.outbox));
    assert_ended(&w, 0, 1, NL_ERROR_BROKER_IGNORED);
    assert_null(nl_outbox_suspect(w.outbox));
    run(&w);
    down(&w, 1011);
    assert_non_null(nl_outbox_suspect(w.outbox));
    nl_outbox_fail_all(w.outbox, NL_ERROR_SHUTTING_DOWN);
    assert_null(nl_outbox_suspect(w.outbox));
    assert_int_equal(w.ended_count, 3);
    close_world(&w);
}

/* The suspect of one client is not the oldest of its lane: a refused one waits before it. */
static void a_suspect_goes_before_older_refused_ones(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 3);
    run(&w);
    assert_true(rate_limited(&w, 1));
    down(&w, 1011);
    up(&w);
    pass(&w, 1000);
    assert_sent(&w, 3, 2);
    assert_true(published(&w, 4));
    run(&w);
    pass(&w, 1000);
    assert_sent(&w, 4, 1, 3);
    close_world(&w);
}

/* --- the link is full --- */

static void a_full_link_stops_and_costs_nothing(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    push_range(&w, 0, 1, 1, 20);
    push_range(&w, 1, 2, 101, 120);
    w.refuse_after = 3;
    up(&w);
    assert_sent(&w, 0, 1, 101, 2);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now + 10);
    for (int i = 0; i < 100; i++)
        run(&w);
    assert_int_equal(nl_outbox_in_flight(w.outbox), 3);
    w.refuse_after = SIZE_MAX;
    run(&w);
    assert_sent(&w, 0, 1, 101, 2, 102, 3, 103, 4, 104, 5, 105); /* no token lost, no turn either */
    assert_int_equal(w.sent[9].ref, 10);
    close_world(&w);
}

/* Once the link takes frames again, the pace is all there is to wait for. */
static void a_link_that_was_full_is_forgotten(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(200));
    push_range(&w, 0, 1, 1, 20);
    w.refuse_after = 3;
    up(&w);
    w.refuse_after = SIZE_MAX;
    run(&w);
    assert_int_equal(w.sent_count, 10);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now + 6);
    close_world(&w);
}

/* --- owners that go --- */

static void a_forgotten_owner_has_its_entries_sent(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 12);
    push(&w, 1, 1, 50);
    run(&w);
    nl_outbox_forget(w.outbox, &owners[0]);
    nl_outbox_forget(w.outbox, &owners[0]);
    nl_outbox_forget(w.outbox, &owners[99]);
    nl_outbox_forget(w.outbox, NULL);
    answer_all(&w);
    pass(&w, 1000);
    answer_all(&w);
    assert_int_equal(w.ended_count, 13);
    for (size_t i = 0; i < 13; i++) {
        assert_int_equal(w.ended[i].error, NL_OK);
        assert_ptr_equal(w.ended[i].owner, w.ended[i].tag == 50 ? &owners[1] : NULL);
    }
    close_world(&w);
}

/* The allocator gives a new client the address of one that is gone: they are two all the same. */
static void the_same_address_is_another_owner(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    push_range(&w, 0, 1, 2, 4);
    nl_outbox_forget(w.outbox, &owners[0]);
    push_range(&w, 0, 2, 11, 13);
    down(&w, 1006);
    up(&w);
    assert_sent(&w, 1, 1, 11, 2, 12, 3, 13, 4);
    answer_all(&w);
    for (size_t i = 0; i < w.ended_count; i++)
        assert_ptr_equal(w.ended[i].owner, w.ended[i].tag > 10 ? &owners[0] : NULL);
    nl_outbox_forget(w.outbox, &owners[0]);
    close_world(&w);
}

/* --- what done may do --- */

static void push_again(struct world *w, uint32_t tag, void *owner) {
    if (tag < 1000 && owner) {
        push(w, 0, 1, tag + 100);
        nl_outbox_forget(w->outbox, &owners[0]);
        push(w, 0, 1, tag + 1000);
        nl_outbox_run(w->outbox, w->now); /* more than is promised, and harmless */
    }
}

static void done_may_push_and_forget(void **state) {
    (void)state;
    struct world w;
    struct nl_outbox_limits limits = limits_of(0);
    limits.ttl_ms = 100;
    open_world(&w, limits);
    w.on_done = push_again;
    push_range(&w, 0, 1, 1, 5);
    w.now += 100;
    run(&w); /* five time out; the first of them makes the others forgotten */
    assert_int_equal(w.ended_count, 5);
    assert_int_equal(nl_outbox_messages(w.outbox), 2);
    up(&w);
    assert_sent(&w, 0, 101, 1001);
    assert_true(published(&w, 2)); /* 101 is passed over */
    assert_ended(&w, 5, 101, NL_ERROR_BROKER_IGNORED);
    assert_null(w.ended[5].owner);
    assert_ended(&w, 6, 1001, NL_OK);
    assert_ptr_equal(w.ended[6].owner, &owners[0]);
    close_world(&w);
}

static void push_one_more(struct world *w, uint32_t tag, void *owner) {
    (void)owner;
    push(w, 0, 1, tag + 1);
}

/* Sent, done, pushed again, for ever: run must come back all the same. */
static void done_may_push_without_end(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(0));
    nl_outbox_set_unanswered(w.outbox, true);
    w.on_done = push_one_more;
    push_range(&w, 0, 1, 1, 3);
    up(&w);
    assert_sent(&w, 0, 1, 2, 3);
    assert_int_equal(nl_outbox_next(w.outbox, w.now), w.now);
    run(&w);
    assert_int_equal(w.sent_count, 6);
    nl_outbox_fail_all(w.outbox, NL_ERROR_SHUTTING_DOWN);
    assert_int_equal(nl_outbox_messages(w.outbox), 3); /* those pushed meanwhile */
    close_world(&w);
}

static void a_convict_may_push(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push(&w, 0, 1, 1);
    run(&w);
    down(&w, 1011);
    up(&w);
    w.on_done = push_one_more;
    down(&w, 1011);
    w.on_done = NULL;
    up(&w);
    assert_sent(&w, 2, 2);
    close_world(&w);
}

static void fail_all_ends_everything(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 30);
    run(&w);
    nl_outbox_fail_all(w.outbox, NL_ERROR_SHUTTING_DOWN);
    assert_int_equal(w.ended_count, 30);
    for (uint32_t i = 0; i < 30; i++)
        assert_ended(&w, i, i + 1, NL_ERROR_SHUTTING_DOWN);
    assert_int_equal(nl_outbox_messages(w.outbox), 0);
    assert_int_equal(nl_outbox_in_flight(w.outbox), 0);
    assert_false(published(&w, 1));
    close_world(&w);
}

static void free_tells_nobody(void **state) {
    (void)state;
    struct world w;
    open_world(&w, limits_of(50));
    up(&w);
    push_range(&w, 0, 1, 1, 30);
    push_range(&w, 1, 2, 31, 40);
    run(&w);
    nl_outbox_forget(w.outbox, &owners[0]);
    down(&w, 1011);
    close_world(&w);
    assert_int_equal(w.ended_count, 0);
    assert_null(nl_outbox_free(NULL));
    assert_null(nl_publish_free(NULL));
}

/* --- random walks beside a plain model --- */

enum { CLIENTS = 8, UIDS = 4, LANES = 512, ENTRIES = 8192, STEPS = 1500, NOBODY = -1 };

enum condition { NOT_PUSHED, WAITING, IN_FLIGHT, ENDED };

/* What the walk is doing, and so which outcomes are right. */
enum doing { PUSHING, RUNNING, ANSWERING, PASSING, GOING_DOWN, FAILING };

struct model_entry {
    enum condition condition;
    int lane; /* of a client until it is forgotten */
    uint64_t deadline, ref;
    size_t size;
    bool redelivered;
};

/* A turn is the moment something went to the end of a ring. The smallest is served first. */
struct model_lane {
    int client; /* NOBODY = forgotten */
    uid_t uid;
    uint64_t turn;
};

struct walk {
    uint64_t seed, random;
    unsigned step;
    struct nl_outbox *outbox;
    struct nl_outbox_limits limits;
    uint64_t now;
    bool up, unanswered, refused, pushed_by_done, ever_slow;
    enum doing doing;
    uint64_t target; /* ref of what is answered or passed */
    enum nl_error verdict;
    int convict, suspect;
    uint64_t last_ref, turns;
    struct model_entry entries[ENTRIES]; /* by tag */
    int pushed, live_from, lane_count;
    int lane_of[CLIENTS];
    struct model_lane lanes[LANES];
    uint64_t uid_turn[UIDS];
    uint64_t sent_at[ENTRIES * 4];
    size_t sent_count;
};

#define CHECK(walk, condition)                                                                               \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            print_error("NL_SEED=%" PRIu64 " step %u: ", (walk)->seed, (walk)->step);                        \
            fail_msg("%s", #condition);                                                                      \
        }                                                                                                    \
    } while (0)

static uint64_t dice(struct walk *k, uint64_t sides) {
    return next_random(&k->random) % sides;
}

static bool waits_in(const struct walk *k, int lane, uid_t uid) {
    for (int i = k->live_from; i < k->pushed; i++)
        if (k->entries[i].condition == WAITING &&
            (lane == NOBODY ? k->lanes[k->entries[i].lane].uid == uid : k->entries[i].lane == lane))
            return true;
    return false;
}

static void model_wait(struct walk *k, int tag) {
    struct model_lane *lane = &k->lanes[k->entries[tag].lane];
    if (!waits_in(k, k->entries[tag].lane, 0))
        lane->turn = ++k->turns;
    if (!waits_in(k, NOBODY, lane->uid))
        k->uid_turn[lane->uid] = ++k->turns;
    k->entries[tag].condition = WAITING;
}

static void model_end(struct walk *k, int tag) {
    k->entries[tag].condition = ENDED;
    if (k->suspect == tag)
        k->suspect = NOBODY;
    while (k->live_from < k->pushed && k->entries[k->live_from].condition == ENDED)
        k->live_from++;
}

static uint64_t count_of(const struct walk *k, enum condition condition) {
    uint64_t count = 0;
    for (int i = k->live_from; i < k->pushed; i++)
        count += k->entries[i].condition == condition;
    return count;
}

static uint64_t model_bytes(const struct walk *k) {
    uint64_t bytes = 0;
    for (int i = k->live_from; i < k->pushed; i++)
        bytes += k->entries[i].condition == ENDED ? 0 : k->entries[i].size;
    return bytes;
}

static bool before(const struct walk *k, int a, int b) {
    const struct model_lane *x = &k->lanes[k->entries[a].lane];
    const struct model_lane *y = &k->lanes[k->entries[b].lane];
    if (x->uid != y->uid)
        return k->uid_turn[x->uid] < k->uid_turn[y->uid];
    return x != y ? x->turn < y->turn : a < b;
}

/* The tag that must be sent next, or NOBODY. */
static int model_choose(const struct walk *k) {
    int best = NOBODY;
    if (!k->up || count_of(k, IN_FLIGHT) >= MAX_IN_FLIGHT)
        return NOBODY;
    if (k->suspect != NOBODY)
        return k->entries[k->suspect].condition == WAITING ? k->suspect : NOBODY;
    for (int i = k->live_from; i < k->pushed; i++)
        if (k->entries[i].condition == WAITING && (best == NOBODY || before(k, i, best)))
            best = i;
    return best;
}

static int model_oldest(const struct walk *k) {
    int best = NOBODY;
    for (int i = k->live_from; i < k->pushed; i++)
        if (k->entries[i].condition == IN_FLIGHT &&
            (best == NOBODY || k->entries[i].ref < k->entries[best].ref))
            best = i;
    return best;
}

static int tag_in(const uint8_t *data) {
    return data[2] << 24 | data[3] << 16 | data[4] << 8 | data[5];
}

static bool walk_send(void *ctx, struct nl_slice bytes) {
    struct walk *k = ctx;
    struct nl_frame frame;
    if (dice(k, 30) == 0) {
        k->refused = true;
        return false;
    }
    CHECK(k, k->doing == RUNNING && !k->refused);
    CHECK(k, nl_frame_decode(bytes, &frame) == NL_SCAN_OK);
    int tag = tag_in(frame.data.ptr);
    struct model_entry *e = &k->entries[tag];
    CHECK(k, tag == model_choose(k));
    CHECK(k, e->deadline > k->now);
    CHECK(k, ref_of(&frame) == ++k->last_ref);
    CHECK(k, k->sent_count < COUNT(k->sent_at));
    k->sent_at[k->sent_count++] = k->now;
    e->ref = k->last_ref;
    e->condition = IN_FLIGHT;
    k->lanes[e->lane].turn = ++k->turns;
    k->uid_turn[k->lanes[e->lane].uid] = ++k->turns;
    return true;
}

static bool outcome_is_right(const struct walk *k, int tag, struct nl_outcome outcome) {
    const struct model_entry *e = &k->entries[tag];
    switch (k->doing) {
    case PUSHING:
        return false;
    case RUNNING:
        if (e->condition == WAITING)
            return outcome.error == NL_ERROR_TIMEOUT && e->deadline <= k->now;
        return k->unanswered && outcome.error == NL_OK && e->ref == k->last_ref;
    case ANSWERING:
        return e->condition == IN_FLIGHT && e->ref <= k->target &&
               outcome.error == (e->ref < k->target ? NL_ERROR_BROKER_IGNORED : k->verdict);
    case PASSING:
        return e->condition == IN_FLIGHT && e->ref <= k->target && outcome.error == NL_ERROR_BROKER_IGNORED;
    case GOING_DOWN:
        return tag == k->convict && outcome.error == NL_ERROR_BROKER_REJECTED;
    case FAILING:
        return outcome.error == NL_ERROR_SHUTTING_DOWN;
    }
    return false;
}

static void walk_push(struct walk *k);
static void walk_forget(struct walk *k);

static void walk_done(void *ctx, struct nl_publish *p, struct nl_outcome outcome) {
    struct walk *k = ctx;
    int tag = tag_in(p->data);
    struct model_entry *e = &k->entries[tag];
    int client = k->lanes[e->lane].client;
    CHECK(k, e->condition == WAITING || e->condition == IN_FLIGHT);
    CHECK(k, outcome_is_right(k, tag, outcome));
    CHECK(k, p->owner == (client == NOBODY ? NULL : &owners[client]));
    CHECK(k, p->redelivered == e->redelivered);
    CHECK(k, p->suspect == (tag == k->suspect));
    CHECK(k, (outcome.broker_error != NULL) ==
                 (k->doing == ANSWERING && outcome.error == NL_ERROR_BROKER_REJECTED));
    model_end(k, tag);
    if (k->doing == FAILING || dice(k, 8))
        return;
    k->pushed_by_done = true;
    if (dice(k, 3) == 0)
        walk_forget(k);
    walk_push(k);
}

static int lane_for(struct walk *k, int client) {
    if (k->lane_of[client] == NOBODY) {
        CHECK(k, k->lane_count < LANES);
        k->lanes[k->lane_count] = (struct model_lane){client, (uid_t)dice(k, UIDS), 0};
        k->lane_of[client] = k->lane_count++;
    }
    return k->lane_of[client];
}

struct held {
    uint64_t messages, bytes;
};

static void hold(struct held *h, const struct model_entry *e) {
    h->messages++;
    h->bytes += e->size;
}

static bool model_fits(uint64_t all, uint64_t more, uint64_t limit, uint64_t of_client, uint64_t of_uid) {
    uint64_t eighth = limit / 8;
    uint64_t kept = of_client >= eighth ? 2 * eighth : of_uid >= eighth ? eighth : 0;

    return all + more <= limit - kept;
}

static bool model_full(const struct walk *k, int lane, size_t size) {
    struct held all = {0}, of_lane = {0}, of_uid = {0};
    for (int i = k->live_from; i < k->pushed; i++) {
        const struct model_entry *e = &k->entries[i];
        if (e->condition != WAITING && e->condition != IN_FLIGHT)
            continue;
        hold(&all, e);
        if (e->lane == lane)
            hold(&of_lane, e);
        if (k->lanes[e->lane].uid == k->lanes[lane].uid)
            hold(&of_uid, e);
    }
    return !model_fits(all.messages, 1, k->limits.max_messages, of_lane.messages, of_uid.messages) ||
           !model_fits(all.bytes, size, k->limits.max_bytes, of_lane.bytes, of_uid.bytes);
}

static void walk_push(struct walk *k) {
    int tag = k->pushed;
    int lane = lane_for(k, (int)dice(k, CLIENTS));
    size_t size = 6 + dice(k, 100);
    if (tag == ENTRIES)
        return;
    struct nl_publish *p = make(&owners[k->lanes[lane].client], k->lanes[lane].uid, 0);
    free(p->data);
    p->data = nl_calloc(1, size);
    p->data_len = size;
    p->data[0] = 0xc4; /* bin 8 */
    p->data[1] = (uint8_t)(size - 2);
    for (int i = 0; i < 4; i++)
        p->data[2 + i] = (uint8_t)(tag >> (24 - 8 * i));
    uint64_t retry_after = 0;
    bool full = model_full(k, lane, size);
    enum nl_error error = nl_outbox_push(k->outbox, p, k->now, &retry_after);
    CHECK(k, error == (full ? NL_ERROR_OUTBOX_FULL : NL_OK));
    CHECK(k, !full || retry_after >= 100);
    if (full) {
        nl_publish_free(p);
        return;
    }
    uint64_t deadline = k->limits.ttl_ms ? k->now + k->limits.ttl_ms : UINT64_MAX;
    k->entries[tag] = (struct model_entry){NOT_PUSHED, lane, deadline, 0, size, false};
    k->pushed++;
    model_wait(k, tag);
}

static void walk_forget(struct walk *k) {
    int client = (int)dice(k, CLIENTS);
    nl_outbox_forget(k->outbox, &owners[client]);
    if (k->lane_of[client] != NOBODY)
        k->lanes[k->lane_of[client]].client = NOBODY;
    k->lane_of[client] = NOBODY;
}

/* Nothing that could go stays, and next comes soon enough for all that may. */
static void walk_run(struct walk *k) {
    k->doing = RUNNING;
    k->refused = k->pushed_by_done = false;
    nl_outbox_run(k->outbox, k->now);
    k->doing = PUSHING;
    uint64_t next = nl_outbox_next(k->outbox, k->now);
    bool more = model_choose(k) != NOBODY;
    for (int i = k->live_from; i < k->pushed; i++)
        if (k->entries[i].condition == WAITING)
            CHECK(k, k->entries[i].deadline > k->now && next <= k->entries[i].deadline);
    CHECK(k, next > k->now || (more && k->pushed_by_done));
    CHECK(k, !more || next <= k->now + 2300);
    CHECK(k, !k->refused || next <= k->now + 10 || !more || k->limits.publish_rate);
    if (k->limits.publish_rate == 0 && !k->ever_slow)
        CHECK(k, !more || k->refused || k->pushed_by_done);
}

static void send_answer(struct walk *k, int tag, uint64_t kind) {
    struct nl_frame frame = {.type = kind < 6 ? NL_FRAME_PUBLISHED : NL_FRAME_ERROR};
    char ref[32];
    snprintf(ref, sizeof(ref), "%" PRIu64, k->entries[tag].ref);
    NL_FRAME_SET(&frame, msg_ref, nl_slice_str(ref));
    if (kind >= 6)
        NL_FRAME_SET(&frame, code, kind == 6 ? 42940 : 42910);
    k->doing = ANSWERING;
    k->target = k->entries[tag].ref;
    k->verdict = kind < 6 ? NL_OK : NL_ERROR_BROKER_REJECTED;
    if (k->suspect == tag)
        k->suspect = NOBODY;
    CHECK(k, nl_outbox_answer(k->outbox, &frame, k->now));
    k->doing = PUSHING;
    if (kind > 6) {
        CHECK(k, k->entries[tag].condition == IN_FLIGHT);
        k->ever_slow = true;
        model_wait(k, tag);
    }
    CHECK(k, k->entries[tag].condition == (kind > 6 ? WAITING : ENDED));
    CHECK(k, !nl_outbox_answer(k->outbox, &frame, k->now));
}

/* Mostly the oldest is answered; else it is passed over. */
static void walk_answer(struct walk *k) {
    int tag = model_oldest(k);
    if (tag == NOBODY)
        return;
    if (dice(k, 15) == 0)
        for (int i = k->live_from; i < k->pushed; i++)
            if (k->entries[i].condition == IN_FLIGHT && dice(k, 3) == 0)
                tag = i;
    send_answer(k, tag, dice(k, 8));
}

static void walk_pass(struct walk *k) {
    uint64_t newest = nl_outbox_newest(k->outbox);
    CHECK(k, newest == k->last_ref);
    k->doing = PASSING;
    k->target = newest - dice(k, 3 < newest ? 3 : newest + 1);
    nl_outbox_passed(k->outbox, k->target);
    k->doing = PUSHING;
    int oldest = model_oldest(k);
    CHECK(k, oldest == NOBODY || k->entries[oldest].ref > k->target);
}

static void walk_down(struct walk *k) {
    static const int codes[] = {0, 1000, 1006, 1009, 1011, 1011, 4001};
    int code = codes[dice(k, COUNT(codes))];
    int oldest = model_oldest(k);
    bool evidence = (code == 1009 || code == 1011) && oldest != NOBODY;
    k->up = false;
    for (int tag = oldest; tag != NOBODY; tag = model_oldest(k)) {
        k->entries[tag].redelivered = true;
        model_wait(k, tag);
    }
    k->convict = evidence && oldest == k->suspect ? oldest : NOBODY;
    k->doing = GOING_DOWN;
    nl_outbox_down(k->outbox, code);
    k->doing = PUSHING;
    CHECK(k, k->convict == NOBODY || k->entries[k->convict].condition == ENDED);
    if (evidence && k->convict == NOBODY)
        k->suspect = oldest;
}

static void walk_step(struct walk *k) {
    uint64_t what = dice(k, 100);
    if (what < 30)
        for (uint64_t n = dice(k, 6); n; n--)
            walk_push(k);
    else if (what < 55)
        for (uint64_t n = dice(k, 6); n; n--)
            walk_answer(k);
    else if (what < 57)
        walk_pass(k);
    else if (what < 60)
        walk_down(k);
    else if (what < 67) {
        k->up = true;
        nl_outbox_up(k->outbox);
    } else if (what < 70)
        walk_forget(k);
    else
        k->now += dice(k, what < 98 ? 200 : 5000);
    if (dice(k, 10))
        walk_run(k);
}

static void check_counts(const struct walk *k) {
    uint64_t flying = count_of(k, IN_FLIGHT);
    const struct nl_publish *oldest = nl_outbox_oldest(k->outbox);
    const struct nl_publish *suspect = nl_outbox_suspect(k->outbox);
    CHECK(k, nl_outbox_in_flight(k->outbox) == flying);
    CHECK(k, nl_outbox_messages(k->outbox) == flying + count_of(k, WAITING));
    CHECK(k, nl_outbox_bytes(k->outbox) == model_bytes(k));
    CHECK(k, (oldest ? tag_in(oldest->data) : NOBODY) == model_oldest(k));
    CHECK(k, (suspect ? tag_in(suspect->data) : NOBODY) == k->suspect);
}

static void check_windows(const struct walk *k) {
    for (size_t first = 0, last = 0; k->limits.publish_rate && first < k->sent_count; first++) {
        while (last < k->sent_count && k->sent_at[last] - k->sent_at[first] <= 1000)
            last++;
        CHECK(k, last - first <= k->limits.publish_rate);
    }
}

static void start_walk(struct walk *k, uint64_t seed) {
    static const uint64_t rates[] = {0, 0, 1, 2, 5, 19, 20, 50, 200};
    static const uint64_t ttls[] = {0, 50, 1000, 10000, 60000};
    static const uint64_t most[] = {5, 50, 400};
    *k = (struct walk){.seed = seed, .random = seed, .now = 5, .suspect = NOBODY, .convict = NOBODY};
    k->limits.publish_rate = rates[dice(k, COUNT(rates))];
    k->limits.ttl_ms = ttls[dice(k, COUNT(ttls))];
    k->limits.max_messages = most[dice(k, COUNT(most))];
    k->limits.max_bytes = dice(k, 2) ? 2000 : 1 << 20;
    k->unanswered = dice(k, 8) == 0;
    for (int i = 0; i < CLIENTS; i++)
        k->lane_of[i] = NOBODY;
    struct nl_outbox_ops ops = {walk_send, walk_done, k};
    k->outbox = nl_outbox_new(&k->limits, &ops, k->now);
    nl_outbox_set_unanswered(k->outbox, k->unanswered);
}

static void walk_once(struct walk *k, uint64_t seed) {
    start_walk(k, seed);
    for (k->step = 0; k->step < STEPS; k->step++) {
        walk_step(k);
        check_counts(k);
    }
    check_windows(k);
    k->doing = FAILING;
    nl_outbox_fail_all(k->outbox, NL_ERROR_SHUTTING_DOWN);
    for (int i = 0; i < k->pushed; i++)
        CHECK(k, k->entries[i].condition == ENDED);
    CHECK(k, nl_outbox_messages(k->outbox) == 0 && nl_outbox_bytes(k->outbox) == 0);
    nl_outbox_free(k->outbox);
}

static void random_walks_agree_with_a_plain_model(void **state) {
    (void)state;
    const char *only = getenv("NL_SEED");
    uint64_t first = only ? strtoull(only, NULL, 10) : 1;
    uint64_t last = only ? first : 150;
    struct walk *k = nl_malloc(sizeof(*k));
    print_message("seeds %" PRIu64 " to %" PRIu64 "\n", first, last);
    for (uint64_t seed = first; seed <= last; seed++)
        walk_once(k, seed);
    free(k);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_publish_has_no_more_than_it_needs),
        cmocka_unit_test(a_full_publish_has_all),
        cmocka_unit_test(a_large_payload_is_sent_whole),
        cmocka_unit_test(answers_are_matched_and_told),
        cmocka_unit_test(strange_answers_are_ignored),
        cmocka_unit_test(a_late_answer_is_not_taken_for_a_new_one),
        cmocka_unit_test(what_is_passed_over_was_ignored),
        cmocka_unit_test(a_heartbeat_tells_what_was_ignored),
        cmocka_unit_test(no_more_than_256_in_flight),
        cmocka_unit_test(without_answers_sent_is_published),
        cmocka_unit_test(first_in_first_out_within_a_client),
        cmocka_unit_test(shares_are_equal_by_uid_then_by_client),
        cmocka_unit_test(a_share_not_used_is_shared),
        cmocka_unit_test(many_clients_are_one_uid),
        cmocka_unit_test(a_polite_client_is_not_held_up),
        cmocka_unit_test(the_pace_is_ten_then_forty),
        cmocka_unit_test(every_rate_gets_through),
        cmocka_unit_test(no_second_has_more_than_the_rate),
        cmocka_unit_test(a_reconnect_gives_no_new_burst),
        cmocka_unit_test(a_reconnect_makes_no_storm),
        cmocka_unit_test(a_refused_one_goes_first_again),
        cmocka_unit_test(refused_ones_keep_their_order),
        cmocka_unit_test(code_or_name_will_do),
        cmocka_unit_test(the_pace_is_halved_for_ten_seconds),
        cmocka_unit_test(slow_time_ends_on_time),
        cmocka_unit_test(slow_time_ends_unseen),
        cmocka_unit_test(without_a_limit_a_refusal_slows_down),
        cmocka_unit_test(a_refused_one_keeps_its_deadline),
        cmocka_unit_test(messages_are_bounded),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(the_last_quarter_is_for_small_ones),
        cmocka_unit_test(retry_after_is_the_pace_when_that_is_long),
        cmocka_unit_test(who_waits_too_long_times_out),
        cmocka_unit_test(too_late_is_not_sent_even_if_it_could_be),
        cmocka_unit_test(in_flight_does_not_time_out),
        cmocka_unit_test(ttl_none_and_ttl_for_ever),
        cmocka_unit_test(a_full_outbox_times_out_in_order),
        cmocka_unit_test(what_was_in_flight_goes_before_what_is_newer),
        cmocka_unit_test(refused_and_lost_keep_their_order),
        cmocka_unit_test(poison_is_found_and_the_rest_goes_on),
        cmocka_unit_test(an_answer_acquits),
        cmocka_unit_test(a_refusal_acquits_too),
        cmocka_unit_test(other_closes_convict_nobody),
        cmocka_unit_test(other_closes_acquit_nobody),
        cmocka_unit_test(a_close_with_nothing_in_flight_suspects_nobody),
        cmocka_unit_test(a_suspect_can_time_out),
        cmocka_unit_test(a_suspect_can_be_ignored_or_fail),
        cmocka_unit_test(a_suspect_goes_before_older_refused_ones),
        cmocka_unit_test(a_full_link_stops_and_costs_nothing),
        cmocka_unit_test(a_link_that_was_full_is_forgotten),
        cmocka_unit_test(a_forgotten_owner_has_its_entries_sent),
        cmocka_unit_test(the_same_address_is_another_owner),
        cmocka_unit_test(done_may_push_and_forget),
        cmocka_unit_test(done_may_push_without_end),
        cmocka_unit_test(a_convict_may_push),
        cmocka_unit_test(fail_all_ends_everything),
        cmocka_unit_test(free_tells_nobody),
        cmocka_unit_test(random_walks_agree_with_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
