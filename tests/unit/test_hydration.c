/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for a hydration: names without rooms, several rooms at once, and the end of waiting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "daemon/model/hydration.h"

enum { SUBS = 3 };

struct world {
    struct nl_hydrations h;
    struct nl_wishes wishes[2]; /* of two rooms */
    struct nl_peer peers[SUBS];
    struct nl_subscription subs[SUBS];
    unsigned received[SUBS];
    uint64_t serial;
};

/* Subscriptions of three clients, the last one in the second room. */
static void world_init(struct world *w) {
    memset(w, 0, sizeof(*w));
    nl_hydrations_init(&w->h);
    for (unsigned i = 0; i < SUBS; i++) {
        w->subs[i].peer = &w->peers[i];
        w->subs[i].wishes = &w->wishes[i == SUBS - 1];
    }
}

static void expect(struct world *w, const char *topic, unsigned sub, uint64_t now) {
    nl_hydrations_wait(nl_hydrations_expect(&w->h, nl_slice_str(topic), now), &w->subs[sub]);
}

static void receive(void *ctx, struct nl_peer *peer) {
    struct world *w = ctx;

    w->received[peer - w->peers]++;
}

static unsigned come(struct world *w, const char *name, uint64_t now) {
    memset(w->received, 0, sizeof(w->received));
    return nl_hydrations_take(&w->h, nl_slice_str(name), ++w->serial, now, receive, w);
}

static void by_the_last_part_of_the_topic(void **state) {
    struct world w;

    (void)state;
    world_init(&w);
    expect(&w, "app/room/events", 0, 0);
    expect(&w, "app/scope/room/tasks", 1, 0);
    assert_int_equal(come(&w, "room/events", 1), 0);
    assert_int_equal(come(&w, "event", 1), 0);
    assert_int_equal(come(&w, "", 1), 0);
    assert_int_equal(come(&w, "tasks", 1), 1);
    assert_int_equal(w.received[1], 1);
    assert_int_equal(come(&w, "tasks", 1), 0);
    assert_int_equal(come(&w, "events", 1), 1);
    assert_null(w.h.names);
    assert_true(w.wishes[0].hydrates);
    assert_false(w.wishes[1].hydrates);
}

/* Two rooms have such a topic: nobody can tell whose the first one is. */
static void as_many_come_as_were_asked_for(void **state) {
    struct world w;

    (void)state;
    world_init(&w);
    expect(&w, "app/one/events", 0, 0);
    expect(&w, "app/two/events", 2, 0);
    assert_int_equal(come(&w, "events", 1), 2);
    assert_int_equal(come(&w, "events", 1), 2);
    assert_int_equal(come(&w, "events", 1), 0);
}

static void one_client_in_two_rooms_gets_each_once(void **state) {
    struct world w;

    (void)state;
    world_init(&w);
    w.subs[2].peer = &w.peers[0];
    expect(&w, "app/one/events", 0, 0);
    expect(&w, "app/two/events", 2, 0);
    assert_int_equal(come(&w, "events", 1), 1);
    assert_int_equal(w.received[0], 1);
    nl_hydrations_clear(&w.h);
}

static void nothing_comes_before_the_answer(void **state) {
    struct world w;

    (void)state;
    world_init(&w);
    w.subs[0].fresh = true;
    expect(&w, "app/room/events", 0, 0);
    assert_int_equal(come(&w, "events", 1), 0);
    assert_int_equal(w.received[0], 0);
}

static void waiting_ends(void **state) {
    struct world w;

    (void)state;
    world_init(&w);
    expect(&w, "app/room/events", 0, 0);
    expect(&w, "app/room/tasks", 1, NL_HYDRATION_MS - 1);
    assert_int_equal(come(&w, "events", NL_HYDRATION_MS), 0);
    assert_null(w.subs[0].hydration);
    assert_int_equal(come(&w, "tasks", NL_HYDRATION_MS), 1);
    /* Another subscribe makes the time begin anew, for all of that name. */
    expect(&w, "app/room/events", 0, 0);
    expect(&w, "app/room/events", 1, NL_HYDRATION_MS - 1);
    assert_int_equal(come(&w, "events", NL_HYDRATION_MS + 1), 2);
    nl_hydrations_clear(&w.h);
    assert_null(w.subs[0].hydration);
    assert_null(w.h.oldest);
}

static void who_leaves_waits_no_more(void **state) {
    struct world w;

    (void)state;
    world_init(&w);
    expect(&w, "app/room/events", 0, 0);
    expect(&w, "app/room/events", 1, 0);
    nl_hydrations_leave(&w.subs[0]);
    nl_hydrations_leave(&w.subs[0]);
    assert_int_equal(come(&w, "events", 1), 1);
    assert_int_equal(w.received[1], 1);
    nl_hydrations_clear(&w.h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_the_last_part_of_the_topic),
        cmocka_unit_test(as_many_come_as_were_asked_for),
        cmocka_unit_test(one_client_in_two_rooms_gets_each_once),
        cmocka_unit_test(nothing_comes_before_the_answer),
        cmocka_unit_test(waiting_ends),
        cmocka_unit_test(who_leaves_waits_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
