/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is announced for several local holders, on a broker that is a few lines of C: it knows some rooms,
 * tells us our own events in order and late, and forgets us when the link goes. A random walk is held to a
 * plain stack of holders.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/announcement.h"
#include "protocol/alloc.h"
#include "protocol/transcode.h"
#include "line_text.h"

enum { PEERS = 4, EVENTS = 64, DEADLINE = 5000 };

struct own_event {
    char what; /* 'j'oin, 'u'pdate, 'l'eave */
    uint8_t data[64];
    size_t len;
};

struct world {
    struct nl_announcement a;
    struct nl_quotas quotas;
    struct nl_peer peers[PEERS];
    uint64_t now;
    bool full; /* the link takes nothing */
    unsigned sent, answers, errors, pendings, hiddens, events;
    char last[256]; /* line told */
    uint64_t fences, echoed;
    char room[16]; /* at the broker; "" = none */
    uint8_t data[64];
    size_t len;
    struct own_event queue[EVENTS];
    unsigned queued;
};

/* ---- the broker ---- */

static void enqueue(struct world *w, char what) {
    struct own_event *e = &w->queue[w->queued++];

    assert_true(w->queued <= EVENTS);
    e->what = what;
    memcpy(e->data, w->data, w->len);
    e->len = w->len;
}

static bool op_send(void *ctx, const struct nl_frame *f) {
    struct world *w = ctx;
    char room[16];
    bool there;

    if (w->full)
        return false;
    assert_int_equal(f->type, NL_FRAME_PRESENCE);
    assert_true(NL_FRAME_HAS(f, room_id) && NL_FRAME_HAS(f, data) && f->data.len <= sizeof(w->data));
    w->sent++;
    snprintf(room, sizeof(room), "%.*s", (int)f->room_id.len, (const char *)f->room_id.ptr);
    if (room[0] != 'r')
        return true; /* unknown rooms are passed over without a word */
    there = strcmp(room, w->room) == 0;
    if (w->room[0] != '\0' && !there)
        enqueue(w, 'l');
    strcpy(w->room, room);
    memcpy(w->data, f->data.ptr, f->data.len);
    w->len = f->data.len;
    if (!there)
        enqueue(w, 'j');
    enqueue(w, 'u');
    return true;
}

static uint64_t op_fence(void *ctx) {
    struct world *w = ctx;

    return ++w->fences;
}

static uint64_t op_position(void *ctx) {
    struct world *w = ctx;

    return w->sent;
}

static void op_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct world *w = ctx;

    (void)peer;
    w->answers++;
    if (line == NULL)
        return;
    nl_test_line_text(line, w->last, sizeof(w->last));
    w->errors += strstr(w->last, "\"error\"") != NULL;
    w->pendings += strstr(w->last, "\"pending\":true") != NULL;
    w->hiddens += strstr(w->last, "\"hidden\":true") != NULL;
    nl_line_unref(line);
}

static void op_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    struct world *w = ctx;

    (void)peer;
    assert_int_equal(event, NL_EVENT_ERROR);
    w->events++;
    nl_test_line_text(line, w->last, sizeof(w->last));
    nl_line_unref(line);
}

static bool deliver_one(struct world *w) {
    struct own_event e;

    if (w->queued == 0)
        return false;
    e = w->queue[0];
    memmove(w->queue, w->queue + 1, --w->queued * sizeof(e));
    if (e.what == 'l')
        nl_announcement_own_leave(&w->a);
    else
        nl_announcement_own_event(&w->a, e.what == 'j', nl_slice(e.data, e.len));
    return true;
}

/* All that is on its way arrives, and all deadlines pass. */
static void settle(struct world *w) {
    for (unsigned round = 0; round < 40; round++) {
        while (deliver_one(w))
            ;
        nl_announcement_run(&w->a, w->now);
        if (w->queued > 0)
            continue;
        if (nl_announcement_next(&w->a) == UINT64_MAX && w->echoed == w->fences)
            return;
        w->now += DEADLINE;
        nl_announcement_run(&w->a, w->now);
        w->echoed = w->fences;
        nl_announcement_fence_passed(&w->a, w->echoed);
    }
    fail_msg("it never comes to rest");
}

/* ---- clients ---- */

static void request(struct world *w, unsigned peer, const char *text) {
    struct nl_refusal refusal;
    struct nl_request r;

    assert_int_equal(nl_request_parse(nl_slice_str(text), 64, &r, &refusal), NL_OK);
    if (r.type == NL_REQUEST_PRESENCE && r.data != NULL)
        nl_announcement_set(&w->a, &w->peers[peer], &r, w->now);
    else
        nl_announcement_clear(&w->a, &w->peers[peer], &r, w->now);
    nl_request_deinit(&r);
}

static void set(struct world *w, unsigned peer, const char *room, unsigned n) {
    char text[128];

    snprintf(text, sizeof(text), "{\"type\":\"presence\",\"id\":1,\"roomId\":\"%s\",\"data\":{\"n\":%u}}",
             room, n);
    request(w, peer, text);
}

static void clear(struct world *w, unsigned peer) {
    request(w, peer, "{\"type\":\"clearPresence\",\"id\":1}");
}

/* The number that shows at the broker; 0 = none. */
static unsigned shows(const struct world *w) {
    return w->room[0] == '\0' || w->data[0] == 0xc0 ? 0 : w->data[w->len - 1];
}

static void down(struct world *w, int code) {
    nl_announcement_down(&w->a, code);
    w->queued = 0;
    w->room[0] = '\0';
}

static int setup(void **state) {
    struct world *w = nl_calloc(1, sizeof(*w));
    struct nl_presence_ops ops = {.send = op_send,
                                  .fence = op_fence,
                                  .position = op_position,
                                  .answer = op_answer,
                                  .event = op_event,
                                  .ctx = w};

    nl_quotas_init(&w->quotas);
    for (unsigned i = 0; i < PEERS; i++)
        w->peers[i].quota = nl_quota_ref(&w->quotas, 1000);
    nl_announcement_init(&w->a, &ops, DEADLINE, 7);
    w->now = 1;
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;

    for (unsigned i = 0; i < PEERS; i++) {
        nl_announcement_leave(&w->a, &w->peers[i]);
        assert_int_equal(w->peers[i].pending, 0);
        assert_int_equal(w->peers[i].ask_count, 0);
        assert_false(w->peers[i].present);
        nl_quota_unref(w->peers[i].quota);
    }
    nl_announcement_deinit(&w->a);
    nl_quotas_deinit(&w->quotas);
    free(w);
    return 0;
}

/* ---- tests ---- */

static void the_answer_waits_for_our_own_event(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "r1", 1);
    assert_int_equal(w->sent, 1);
    assert_int_equal(w->answers, 0);
    assert_int_equal(nl_announcement_oldest(&w->a), 0);
    deliver_one(w);
    assert_int_equal(w->answers, 1);
    assert_non_null(strstr(w->last, "presenceSet"));
    assert_int_equal(nl_announcement_oldest(&w->a), UINT64_MAX);
    settle(w);
    assert_int_equal(w->answers, 1);
    /* The same again needs nothing of the broker. */
    set(w, 0, "r1", 1);
    assert_int_equal(w->answers, 2);
    assert_int_equal(w->sent, 1);
}

static void what_was_replaced_meanwhile_is_not_sent(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    for (unsigned n = 1; n <= 50; n++)
        set(w, n % 2, "r1", n);
    settle(w);
    assert_int_equal(w->sent, 2);
    assert_int_equal(w->answers, 50);
    assert_int_equal(w->hiddens, 25); /* the other one set its own behind */
    assert_int_equal(shows(w), 50);
}

static void an_unknown_room_leaves_what_was(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "bad", 1);
    settle(w);
    assert_int_equal(w->errors, 1);
    assert_non_null(strstr(w->last, "\"unknown_room\""));
    assert_null(w->a.room);
    assert_false(w->peers[0].present);
    set(w, 0, "r1", 2);
    settle(w);
    set(w, 0, "bad", 3);
    assert_string_equal(w->a.room, "r1");
    settle(w);
    assert_int_equal(w->errors, 2);
    assert_string_equal(w->a.room, "r1");
    assert_int_equal(shows(w), 2);
    /* The older one of two that are on their way. */
    set(w, 0, "r1", 4);
    set(w, 0, "bad", 5);
    settle(w);
    assert_int_equal(w->errors, 3);
    assert_int_equal(shows(w), 4);
    set(w, 0, "bad", 6);
    set(w, 0, "r1", 7);
    settle(w);
    assert_int_equal(w->errors, 4);
    assert_int_equal(shows(w), 7);
    assert_int_equal(w->answers, 7);
}

/* Both are told, each by the answer to its own request, and nobody is told that it shows. */
static void two_holders_of_the_same_in_an_unknown_room(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "bad", 1);
    set(w, 1, "bad", 1);
    settle(w);
    settle(w);
    assert_int_equal(w->errors, 2);
    assert_int_equal(w->events, 0);
    assert_int_equal(w->answers, 2);
    assert_false(w->peers[0].present || w->peers[1].present);
}

/* However many ask for it, one deadline tells them all. */
static void an_unknown_room_is_tried_once(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "bad", 1);
    for (unsigned i = 0; i < PEERS; i++)
        set(w, i, "bad", 10 + i);
    nl_announcement_run(&w->a, w->now);
    w->now += DEADLINE;
    nl_announcement_run(&w->a, w->now);
    assert_int_equal(w->fences, 1);
    nl_announcement_fence_passed(&w->a, 1);
    assert_int_equal(w->errors, PEERS + 1);
    assert_int_equal(w->sent, 1);
    assert_null(w->a.holders);
    set(w, 0, "r1", 2);
    settle(w);
    assert_int_equal(shows(w), 2);
}

/* Another connection of our actor goes while we try to move to a room that is none. */
static void a_leave_of_another_connection_is_no_border(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "r1", 1);
    settle(w);
    set(w, 0, "bad", 2);
    nl_announcement_own_leave(&w->a);
    assert_string_equal(w->a.room, "bad");
    settle(w);
    assert_int_equal(w->errors, 1);
    assert_string_equal(w->a.room, "r1");
    assert_int_equal(w->sent, 3); /* we are announced again */
    assert_int_equal(shows(w), 1);
}

/* What was passed over has closed nothing, so what is sent next is on no trial. */
static void an_unknown_room_acquits(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "bad", 1);
    down(w, 1011);
    assert_false(nl_announcement_suspected(&w->a));
    nl_announcement_up(&w->a);
    assert_true(nl_announcement_suspected(&w->a));
    set(w, 0, "bad", 2);
    w->now += DEADLINE;
    nl_announcement_run(&w->a, w->now);
    settle(w);
    set(w, 0, "bad", 3);
    assert_true(w->a.out);
    assert_false(nl_announcement_suspected(&w->a));
}

static void a_room_is_not_unknown_while_the_broker_is_slow(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "r1", 1);
    w->now += 10 * DEADLINE;
    nl_announcement_run(&w->a, w->now);
    w->now += 10 * DEADLINE;
    nl_announcement_run(&w->a, w->now);
    assert_int_equal(w->fences, 1);
    assert_int_equal(w->answers, 0);
    deliver_one(w);
    assert_int_equal(w->answers, 1);
    assert_int_equal(w->errors, 0);
}

static void the_border_of_a_move_is_our_own_leave(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "r1", 1);
    settle(w);
    set(w, 0, "r2", 2);
    assert_string_equal(w->a.room, "r1");
    deliver_one(w); /* leave */
    assert_string_equal(w->a.room, "r2");
    assert_int_equal(w->answers, 1);
    settle(w);
    assert_int_equal(w->answers, 2);
    assert_int_equal(w->sent, 2);
    /* One that we did not cause. */
    nl_announcement_own_leave(&w->a);
    settle(w);
    assert_int_equal(w->sent, 3);
    assert_int_equal(shows(w), 2);
}

static void two_closes_are_proof(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    set(w, 0, "r1", 1);
    settle(w);
    set(w, 1, "r1", 2);
    down(w, 1011);
    assert_int_equal(w->pendings, 1);
    nl_announcement_up(&w->a);
    down(w, 1006); /* says nothing, and acquits nobody */
    nl_announcement_up(&w->a);
    assert_int_equal(w->events, 0);
    down(w, 1011);
    assert_int_equal(w->events, 1);
    assert_non_null(strstr(w->last, "broker_rejected"));
    nl_announcement_up(&w->a);
    settle(w);
    assert_int_equal(shows(w), 1);
    assert_false(w->peers[1].present);
}

static void a_full_link_is_tried_again(void **state) {
    struct world *w = *state;

    nl_announcement_up(&w->a);
    w->full = true;
    set(w, 0, "r1", 1);
    assert_int_equal(nl_announcement_next(&w->a), 0);
    w->full = false;
    nl_announcement_run(&w->a, w->now);
    settle(w);
    assert_int_equal(shows(w), 1);
    assert_int_equal(w->answers, 1);
}

/* ---- the walk ---- */

struct stack {
    unsigned peer[PEERS], n[PEERS], count;
    unsigned room;
};

static void stack_remove(struct stack *s, unsigned peer) {
    for (unsigned i = 0; i < s->count; i++) {
        if (s->peer[i] != peer)
            continue;
        memmove(s->peer + i, s->peer + i + 1, (s->count - i - 1) * sizeof(s->peer[0]));
        memmove(s->n + i, s->n + i + 1, (s->count - i - 1) * sizeof(s->n[0]));
        s->count--;
        return;
    }
}

static bool stack_has(const struct stack *s, unsigned peer) {
    for (unsigned i = 0; i < s->count; i++)
        if (s->peer[i] == peer)
            return true;
    return false;
}

/* Sets, and says whether that must be refused. */
static bool stack_set(struct stack *s, unsigned peer, unsigned room, unsigned n) {
    bool others = s->count > (stack_has(s, peer) ? 1u : 0u);

    if (others && s->room != room)
        return true;
    stack_remove(s, peer);
    s->peer[s->count] = peer;
    s->n[s->count++] = n;
    s->room = room;
    return false;
}

static void walk_step(struct world *w, struct stack *s, unsigned *asked, unsigned *refused, bool *up) {
    unsigned peer = (unsigned)rand() % PEERS, n = 1 + (unsigned)rand() % 100;
    unsigned room = 1 + (rand() % 4 == 0);
    char name[8];

    switch (rand() % 10) {
    case 0:
    case 1:
    case 2:
        snprintf(name, sizeof(name), "r%u", room);
        set(w, peer, name, n);
        ++*asked;
        *refused += stack_set(s, peer, room, n);
        break;
    case 3:
        *refused += !stack_has(s, peer);
        stack_remove(s, peer);
        clear(w, peer);
        ++*asked;
        break;
    case 4:
        *asked -= w->peers[peer].ask_count; /* nobody is there to be answered */
        nl_announcement_leave(&w->a, &w->peers[peer]);
        stack_remove(s, peer);
        break;
    case 5:
        if (*up)
            down(w, 1006);
        else
            nl_announcement_up(&w->a);
        *up = !*up;
        break;
    case 6:
        if (*up)
            nl_announcement_own_leave(&w->a);
        break;
    case 7:
        w->full = !w->full;
        break;
    default:
        deliver_one(w);
        nl_announcement_run(&w->a, w->now++);
    }
}

static void random_walk(void **state) {
    struct world *w = *state;
    struct stack s = {.count = 0};
    unsigned asked = 0, refused = 0, checked = 0;
    bool up = false;

    srand(42);
    for (unsigned i = 0; i < 60000; i++) {
        walk_step(w, &s, &asked, &refused, &up);
        if (i % 23 != 0)
            continue;
        if (!up)
            nl_announcement_up(&w->a);
        up = true;
        w->full = false;
        settle(w);
        checked++;
        assert_int_equal(w->answers, asked);
        assert_int_equal(w->errors, refused);
        assert_int_equal(w->events, 0);
        assert_int_equal(shows(w), s.count == 0 ? 0 : s.n[s.count - 1]);
        if (s.count > 0)
            assert_int_equal(w->room[1], '0' + (int)s.room);
        for (unsigned p = 0; p < PEERS; p++)
            assert_int_equal(w->peers[p].present, stack_has(&s, p));
    }
    assert_true(checked > 2000 && refused > 100 && w->answers > 10000);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_answer_waits_for_our_own_event),
        TEST(what_was_replaced_meanwhile_is_not_sent),
        TEST(an_unknown_room_leaves_what_was),
        TEST(two_holders_of_the_same_in_an_unknown_room),
        TEST(an_unknown_room_is_tried_once),
        TEST(a_leave_of_another_connection_is_no_border),
        TEST(an_unknown_room_acquits),
        TEST(a_room_is_not_unknown_while_the_broker_is_slow),
        TEST(the_border_of_a_move_is_our_own_leave),
        TEST(two_closes_are_proof),
        TEST(a_full_link_is_tried_again),
        TEST(random_walk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
