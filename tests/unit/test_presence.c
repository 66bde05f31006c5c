/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rooms and who is told what, on a broker of a few lines: actors that come, change and go, events to who is
 * present, lists to who asks. A random walk holds what each watcher must believe, from its answer and the
 * events behind it, to what the broker has.
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

#include "daemon/model/presence.h"
#include "protocol/alloc.h"
#include "protocol/transcode.h"
#include "line_text.h"

enum { PEERS = 3, ACTORS = 5, ROOMS = 3, QUEUE = 512, TIMEOUT = 1000, POLL = 300 };

/* What a client believes of the room it watches: the number that each actor shows; 0 = is not there. */
struct belief {
    bool watching, informed;
    int n[ACTORS];
};

struct world {
    struct nl_presence *p;
    struct nl_quotas quotas;
    struct nl_peer peers[PEERS];
    uint64_t now, fences, echoed;
    bool up, full;
    int room[ACTORS], n[ACTORS]; /* at the broker: actor 0 is ours; room 0 = nowhere, n 0 = null */
    char *queue[QUEUE];          /* frames on their way to us, as JSON; "" is an echo */
    unsigned queued, fetches, lines;
    struct nl_line *rest;         /* of the last answer; a reference */
    unsigned shared;              /* answers with the rest of the one before */
    struct belief beliefs[PEERS]; /* of room 1 */
    char last[512];
};

/* ---- the broker ---- */

static void enqueue(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void enqueue(struct world *w, const char *format, ...) {
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    assert_true(w->queued < QUEUE);
    w->queue[w->queued++] = nl_strdup(text);
}

static const char *data_text(int n) {
    static char text[32];

    snprintf(text, sizeof(text), n == 0 ? "null" : "{\"n\":%d}", n);
    return text;
}

/* An event goes to us when we are present in that room. */
static void emit(struct world *w, int room, const char *event, int actor, int n) {
    if (!w->up || w->room[0] != room)
        return;
    if (strcmp(event, "leave") == 0)
        enqueue(w, "{\"type\":\"presence\",\"event\":\"leave\",\"data\":{\"actor_token_id\":\"a%d\"}}",
                actor);
    else
        enqueue(
            w,
            "{\"type\":\"presence\",\"event\":\"%s\",\"data\":{\"actor_token_id\":\"a%d\",\"presence\":%s}}",
            event, actor, data_text(n));
}

static void announce(struct world *w, int actor, int room, int n) {
    bool joins = w->room[actor] != room;

    if (joins && w->room[actor] != 0) {
        emit(w, w->room[actor], "leave", actor, 0);
        w->room[actor] = 0;
    }
    w->room[actor] = room;
    w->n[actor] = n;
    if (room == 0)
        return;
    if (joins)
        emit(w, room, "join", actor, n);
    emit(w, room, "update", actor, n);
}

static void list(struct world *w, const char *slug) {
    char text[600];
    int len = snprintf(text, sizeof(text), "{\"type\":\"presenceList\",\"roomId\":\"%s\",\"data\":[", slug);
    const char *comma = "";

    for (int i = 0; i < ACTORS; i++) {
        if (w->room[i] != slug[1] - '0')
            continue;
        len += snprintf(text + len, sizeof(text) - (size_t)len,
                        "%s{\"actorTokenId\":\"a%d\",\"presence\":%s,\"joinedAt\":5,\"status\":\"online\"}",
                        comma, i, data_text(w->n[i]));
        comma = ",";
    }
    enqueue(w, "%s]}", text);
}

static bool op_send(void *ctx, const struct nl_frame *f) {
    struct world *w = ctx;
    char slug[16];

    if (w->full)
        return false;
    snprintf(slug, sizeof(slug), "%.*s", (int)f->room_id.len, (const char *)f->room_id.ptr);
    if (f->type == NL_FRAME_GET_PRESENCE) {
        w->fetches++;
        list(w, slug);
    } else {
        assert_int_equal(f->type, NL_FRAME_PRESENCE);
        announce(w, 0, slug[1] - '0', f->data.ptr[0] == 0xc0 ? 0 : f->data.ptr[f->data.len - 1]);
    }
    return true;
}

static uint64_t op_fence(void *ctx) {
    struct world *w = ctx;

    enqueue(w, "%s", "");
    return ++w->fences;
}

static uint64_t op_position(void *ctx) {
    (void)ctx;
    return 0;
}

/* ---- what clients are told ---- */

static int actor_of(struct json_object *o) {
    struct json_object *id;

    assert_true(json_object_object_get_ex(o, "actorTokenId", &id));
    return json_object_get_string(id)[1] - '0';
}

static int number_of(struct json_object *o) {
    struct json_object *presence, *n;

    assert_true(json_object_object_get_ex(o, "presence", &presence));
    assert_true(json_object_object_get_ex(presence, "n", &n));
    return json_object_get_int(n);
}

static const char *text_of(struct json_object *o, const char *key) {
    struct json_object *value = NULL;

    json_object_object_get_ex(o, key, &value);
    return value == NULL ? "" : json_object_get_string(value);
}

static void note_rest(struct world *w, const struct nl_line *line) {
    if (line->rest != NULL && line->rest == w->rest)
        w->shared++;
    nl_line_unref(w->rest);
    w->rest = line->rest == NULL ? NULL : nl_line_ref(line->rest);
}

static void op_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct world *w = ctx;
    struct belief *b = &w->beliefs[peer - w->peers];
    struct json_object *o, *data = NULL;

    if (line == NULL)
        return;
    nl_test_line_text(line, w->last, sizeof(w->last));
    note_rest(w, line);
    nl_line_unref(line);
    o = json_tokener_parse(w->last);
    if (strcmp(text_of(o, "type"), "presenceWatched") == 0 && b->watching) {
        if (json_object_object_get_ex(o, "data", &data)) {
            memset(b->n, 0, sizeof(b->n));
            for (size_t i = 0; i < json_object_array_length(data); i++)
                b->n[actor_of(json_object_array_get_idx(data, i))] =
                    number_of(json_object_array_get_idx(data, i));
        }
        b->informed = true;
    }
    json_object_put(o);
}

static void op_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    struct world *w = ctx;
    struct belief *b = &w->beliefs[peer - w->peers];
    struct json_object *o, *data;
    const char *what;
    int actor;

    assert_int_equal(event, NL_EVENT_PRESENCE);
    w->lines++;
    nl_test_line_text(line, w->last, sizeof(w->last));
    nl_line_unref(line);
    o = json_tokener_parse(w->last);
    what = text_of(o, "event");
    actor = actor_of(o);
    assert_true(json_object_object_get_ex(o, "data", &data));
    if (b->watching && b->informed && strcmp(text_of(o, "roomId"), "r1") == 0) {
        /* Only what is new: nobody joins twice, leaves without having been there, or changes to the same. */
        if (strcmp(what, "join") == 0)
            assert_int_equal(b->n[actor], 0);
        else
            assert_int_not_equal(b->n[actor], 0);
        if (strcmp(what, "update") == 0)
            assert_int_not_equal(b->n[actor], number_of(data));
        b->n[actor] = strcmp(what, "leave") == 0 ? 0 : number_of(data);
    }
    json_object_put(o);
}

/* ---- the link ---- */

static void arrive(struct world *w, const char *text) {
    struct json_object *o = NULL;
    struct nl_frame frame;
    struct nl_buffer packed;
    const char *why;

    if (text[0] == '\0') {
        nl_presence_fence_passed(w->p, ++w->echoed, w->now);
        return;
    }
    nl_buffer_init(&packed);
    assert_int_equal(nl_json_parse(nl_slice_str(text), 64, &o), NL_OK);
    assert_int_equal(nl_msgpack_from_json(&packed, o, NL_PACK_PLAIN, &why), NL_OK);
    assert_int_equal(nl_frame_decode(nl_slice(packed.bytes, packed.len), &frame), NL_SCAN_OK);
    nl_presence_frame(w->p, &frame, w->now);
    json_object_put(o);
    nl_buffer_deinit(&packed);
}

static bool deliver_one(struct world *w) {
    char *text;

    if (w->queued == 0)
        return false;
    text = w->queue[0];
    memmove(w->queue, w->queue + 1, --w->queued * sizeof(text));
    arrive(w, text);
    free(text);
    return true;
}

static void run(struct world *w) {
    nl_presence_run(w->p, w->now);
}

static void up(struct world *w) {
    w->up = true;
    nl_presence_up(w->p, "a0", w->now);
    run(w);
}

static void down(struct world *w) {
    w->up = false;
    while (w->queued > 0)
        free(w->queue[--w->queued]);
    w->fences = w->echoed = 0;
    w->room[0] = 0;
    nl_presence_down(w->p, 1006, w->now);
    run(w);
}

/* What is on its way arrives, and every watched room is polled once more. */
static void settle(struct world *w) {
    for (unsigned round = 0; round < 12; round++) {
        do
            run(w);
        while (deliver_one(w));
        w->now += POLL;
    }
    run(w);
    while (deliver_one(w))
        run(w);
}

static void request(struct world *w, unsigned peer, const char *text) {
    struct nl_refusal refusal;
    struct nl_request r;

    assert_int_equal(nl_request_parse(nl_slice_str(text), 64, &r, &refusal), NL_OK);
    nl_presence_request(w->p, &w->peers[peer], &r, w->now);
    nl_request_deinit(&r);
}

static void watch(struct world *w, unsigned peer) {
    w->beliefs[peer].watching = true;
    request(w, peer, "{\"type\":\"watchPresence\",\"id\":1,\"roomId\":\"r1\"}");
}

static void leave(struct world *w, unsigned peer) {
    w->beliefs[peer] = (struct belief){0};
    nl_presence_leave(w->p, &w->peers[peer], w->now);
}

static int setup(void **state) {
    struct world *w = nl_calloc(1, sizeof(*w));
    struct nl_presence_limits limits = {.request_timeout_ms = TIMEOUT,
                                        .unknown_room_ms = TIMEOUT,
                                        .poll_interval_ms = POLL,
                                        .watches = {10, 20}};
    struct nl_presence_ops ops = {.send = op_send,
                                  .fence = op_fence,
                                  .position = op_position,
                                  .answer = op_answer,
                                  .event = op_event,
                                  .ctx = w};

    nl_quotas_init(&w->quotas);
    for (unsigned i = 0; i < PEERS; i++)
        w->peers[i].quota = nl_quota_ref(&w->quotas, (uid_t)(1000 + i));
    w->p = nl_presence_new(&limits, &ops, 7);
    w->now = 1000;
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;

    for (unsigned i = 0; i < PEERS; i++) {
        nl_presence_leave(w->p, &w->peers[i], w->now);
        assert_int_equal(w->peers[i].pending, 0);
        assert_int_equal(w->peers[i].watch_count, 0);
        assert_int_equal(w->peers[i].quota->watches, 0);
        nl_quota_unref(w->peers[i].quota);
    }
    while (w->queued > 0)
        free(w->queue[--w->queued]);
    nl_presence_free(w->p);
    nl_line_unref(w->rest);
    nl_quotas_deinit(&w->quotas);
    free(w);
    return 0;
}

/* ---- tests ---- */

static void one_fetch_serves_all_who_ask(void **state) {
    struct world *w = *state;

    up(w);
    for (unsigned i = 0; i < 30; i++)
        request(w, i % PEERS, "{\"type\":\"getPresence\",\"id\":1,\"roomId\":\"r1\"}");
    run(w);
    assert_int_equal(w->fetches, 1);
    for (unsigned i = 0; i < 30; i++)
        request(w, i % PEERS, "{\"type\":\"getPresence\",\"id\":1,\"roomId\":\"r1\"}");
    run(w);
    deliver_one(w);
    run(w);
    for (unsigned i = 0; i < PEERS; i++)
        assert_int_equal(w->peers[i].pending, 0);
    assert_int_equal(w->fetches, 1);
    assert_int_equal(w->shared, 59); /* written once, whoever asks */
}

/* From the cache it is written once, too, as long as it is the same; and it is not kept beyond the turn. */
static void one_writing_serves_all_who_list(void **state) {
    static const char list[] = "{\"type\":\"listPresence\",\"id\":1,\"roomId\":\"r1\"}";
    static const char all[] = "{\"type\":\"listPresence\",\"id\":1}";
    struct world *w = *state;

    up(w);
    request(w, 2, "{\"type\":\"presence\",\"id\":1,\"roomId\":\"r1\",\"data\":{\"n\":3}}");
    settle(w);
    for (unsigned i = 0; i < 3; i++) {
        request(w, 0, list);
        watch(w, 1);
    }
    assert_int_equal(w->shared, 5);
    w->peers[0].bigint_as_string = true;
    request(w, 0, list);
    assert_int_equal(w->shared, 5);
    request(w, 0, list);
    assert_int_equal(w->shared, 6);
    for (unsigned i = 0; i < 3; i++)
        request(w, 0, all);
    assert_int_equal(w->shared, 8);
    assert_non_null(strstr(w->last, "\"roomId\":\"r1\""));
    announce(w, 1, 1, 5);
    while (deliver_one(w))
        continue;
    request(w, 0, all);
    assert_non_null(strstr(w->last, "\"n\":5"));
    request(w, 0, list);
    assert_non_null(strstr(w->last, "\"n\":5"));
    run(w);
    assert_int_equal(w->rest->refs, 1); /* ours */
}

static void a_watched_room_is_polled(void **state) {
    struct world *w = *state;
    uint64_t next;

    up(w);
    watch(w, 0);
    watch(w, 1);
    run(w);
    deliver_one(w);
    run(w);
    assert_int_equal(w->fetches, 1);
    next = nl_presence_next(w->p);
    assert_int_equal(next, w->now + POLL);
    w->now = next - 1;
    run(w);
    assert_int_equal(w->fetches, 1);
    announce(w, 1, 1, 5);
    w->now = next;
    run(w);
    assert_int_equal(w->fetches, 2);
    deliver_one(w);
    assert_int_equal(w->beliefs[0].n[1], 5);
    assert_int_equal(w->beliefs[1].n[1], 5);
    /* Being present there, we are told. */
    request(w, 2, "{\"type\":\"presence\",\"id\":1,\"roomId\":\"r1\",\"data\":{\"n\":9}}");
    settle(w);
    w->fetches = 0;
    settle(w);
    assert_int_equal(w->fetches, 0);
}

static void what_is_never_answered_times_out_and_is_asked_again(void **state) {
    struct world *w = *state;

    up(w);
    watch(w, 0);
    run(w);
    free(w->queue[0]); /* the list is lost */
    w->queued = 0;
    w->now += TIMEOUT;
    run(w);
    assert_non_null(strstr(w->last, "\"timeout\""));
    assert_int_equal(w->peers[0].watch_count, 0);
    w->beliefs[0].watching = false;
    watch(w, 1);
    run(w);
    assert_int_equal(w->fetches, 1); /* the first one may still be answered */
    deliver_one(w);                  /* the echo says that it will not */
    run(w);
    assert_int_equal(w->fetches, 2);
    deliver_one(w);
    assert_true(w->beliefs[1].informed);
}

static void a_cache_is_stale_while_nobody_feeds_it(void **state) {
    struct world *w = *state;

    up(w);
    announce(w, 1, 1, 5);
    watch(w, 0);
    settle(w);
    request(w, 1, "{\"type\":\"getActor\",\"id\":1,\"actorTokenId\":\"a1\"}");
    assert_non_null(strstr(w->last, "\"stale\":false"));
    assert_non_null(strstr(w->last, "\"n\":5"));
    down(w);
    request(w, 1, "{\"type\":\"getActor\",\"id\":1,\"actorTokenId\":\"a1\"}");
    assert_non_null(strstr(w->last, "\"stale\":true"));
    assert_non_null(strstr(w->last, "\"n\":5"));
    request(w, 1, "{\"type\":\"listPresence\",\"id\":1,\"roomId\":\"r2\"}");
    assert_non_null(strstr(w->last, "\"stale\":true,\"data\":[]"));
    w->lines = 0;
    up(w);
    settle(w);
    assert_int_equal(w->lines, 0); /* nothing has changed */
}

static void few_rooms_are_kept_and_few_fetched_at_once(void **state) {
    struct world *w = *state;
    char text[100];

    up(w);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "{\"type\":\"getPresence\",\"id\":1,\"roomId\":\"x%u\"}", i);
        request(w, 0, text);
    }
    run(w);
    assert_int_equal(w->fetches, NL_FETCHES);
    settle(w);
    assert_int_equal(w->fetches, 100);
    assert_int_equal(w->peers[0].pending, 0);
    request(w, 0, "{\"type\":\"listPresence\",\"id\":1,\"roomId\":\"x0\"}");
    assert_non_null(strstr(w->last, "\"stale\":true"));
    assert_int_equal(nl_presence_next(w->p), UINT64_MAX); /* what is only read stirs nothing */
}

static void check_beliefs(struct world *w) {
    for (unsigned i = 0; i < PEERS; i++) {
        if (!w->beliefs[i].watching)
            continue;
        assert_true(w->beliefs[i].informed);
        for (int a = 0; a < ACTORS; a++)
            assert_int_equal(w->beliefs[i].n[a], w->room[a] == 1 ? w->n[a] : 0);
    }
}

static void walk_step(struct world *w) {
    unsigned peer = (unsigned)rand() % PEERS;
    int actor = 1 + rand() % (ACTORS - 1), room = rand() % ROOMS;
    char text[100];

    switch (rand() % 12) {
    case 0:
    case 1:
    case 2:
        announce(w, actor, room, rand() % 4);
        break;
    case 3:
        watch(w, peer);
        break;
    case 4:
        leave(w, peer);
        break;
    case 5:
        snprintf(text, sizeof(text), "{\"type\":\"presence\",\"roomId\":\"r%d\",\"data\":{\"n\":%d}}",
                 1 + rand() % 2, 1 + rand() % 3);
        request(w, peer, text);
        break;
    case 6:
        if (rand() % 4 == 0) {
            if (w->up)
                down(w);
            else
                up(w);
        }
        break;
    case 7:
        w->full = !w->full;
        break;
    default:
        deliver_one(w);
        run(w);
        w->now += (uint64_t)rand() % 50;
    }
}

static void random_walk(void **state) {
    struct world *w = *state;
    unsigned told = 0;

    srand(4711);
    for (unsigned i = 0; i < 30000; i++) {
        walk_step(w);
        if (i % 37 != 0)
            continue;
        w->full = false;
        if (!w->up)
            up(w);
        settle(w);
        check_beliefs(w);
        told += w->lines;
        w->lines = 0;
    }
    assert_true(told > 2000);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(one_fetch_serves_all_who_ask),
        TEST(one_writing_serves_all_who_list),
        TEST(a_watched_room_is_polled),
        TEST(what_is_never_answered_times_out_and_is_asked_again),
        TEST(a_cache_is_stale_while_nobody_feeds_it),
        TEST(few_rooms_are_kept_and_few_fetched_at_once),
        TEST(random_walk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
