/* SPDX-License-Identifier: Apache-2.0 */
/* Whose control request is next: everybody gets turns and slots, whatever others ask for or never get
 * answered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/model/turns.h"

enum { MANY = 300 };

/* Turns of several clients; topic points to the number of the queue. */
struct hall {
    struct nl_turns turns;
    struct nl_turn waiting[8][MANY];
    uint64_t numbers[8];
    struct nl_turn_queue *slots[NL_CONTROL_IN_FLIGHT];
    uint64_t held_by[NL_CONTROL_IN_FLIGHT];
    unsigned held;
};

static void hall_init(struct hall *h) {
    *h = (struct hall){0};
    nl_turns_init(&h->turns);
}

static void wait_many(struct hall *h, unsigned row, uint64_t uid, uint64_t number, unsigned n) {
    h->numbers[row] = number;
    for (unsigned i = 0; i < n; i++) {
        h->waiting[row][i].topic = &h->numbers[row];
        nl_turns_wait(&h->turns, &h->waiting[row][i], uid, number);
    }
}

/* Gives one slot; returns whose it is. */
static uint64_t take(struct hall *h) {
    struct nl_turn *turn = nl_turns_next(&h->turns);
    uint64_t number;

    assert_non_null(turn);
    number = *(uint64_t *)turn->topic;
    h->slots[h->held] = nl_turns_take(&h->turns, turn);
    h->held_by[h->held++] = number;
    assert_null(turn->queue);
    return number;
}

static unsigned take_all(struct hall *h) {
    unsigned n = 0;

    for (; nl_turns_next(&h->turns) != NULL; n++)
        take(h);
    return n;
}

static unsigned held_by(const struct hall *h, uint64_t number) {
    unsigned n = 0;

    for (unsigned i = 0; i < h->held; i++)
        n += h->held_by[i] == number;
    return n;
}

static void give_back_all(struct hall *h) {
    while (h->held > 0)
        nl_turns_give_back(&h->turns, h->slots[--h->held]);
}

static void hall_deinit(struct hall *h) {
    give_back_all(h);
    for (unsigned row = 0; row < 8; row++)
        for (unsigned i = 0; i < MANY; i++)
            nl_turns_withdraw(&h->turns, &h->waiting[row][i]);
    nl_turns_deinit(&h->turns);
}

static void test_users_then_clients_take_turns(void **state) {
    static const uint64_t expected[] = {1, 3, 2, 3, 1, 3, 2, 3};
    struct hall h;

    (void)state;
    hall_init(&h);
    wait_many(&h, 0, 1000, 1, 9);
    wait_many(&h, 1, 1000, 2, 9);
    wait_many(&h, 2, 1001, 3, 9);
    for (unsigned i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        assert_int_equal(take(&h), expected[i]);
    hall_deinit(&h);
}

static void test_first_in_first_out_within_a_client(void **state) {
    struct hall h;

    (void)state;
    hall_init(&h);
    wait_many(&h, 0, 1000, 1, 3);
    nl_turns_withdraw(&h.turns, &h.waiting[0][0]);
    nl_turns_wait(&h.turns, &h.waiting[0][1], 1000, 1); /* waits already: keeps its place */
    nl_turns_wait(&h.turns, &h.waiting[0][0], 1000, 1);
    assert_ptr_equal(nl_turns_next(&h.turns), &h.waiting[0][1]);
    take(&h);
    assert_ptr_equal(nl_turns_next(&h.turns), &h.waiting[0][2]);
    take(&h);
    assert_ptr_equal(nl_turns_next(&h.turns), &h.waiting[0][0]);
    hall_deinit(&h);
}

static void test_unanswered_requests_leave_slots_for_others(void **state) {
    struct hall h;

    (void)state;
    hall_init(&h);
    wait_many(&h, 0, 1000, 1, MANY);
    assert_int_equal(take_all(&h), NL_CONTROL_PER_USER / 2);
    /* Each further client of the user has some left, */
    for (unsigned row = 1; row < 6; row++) {
        wait_many(&h, row, 1000, row + 1, MANY);
        assert_int_equal(take(&h), row + 1);
        take_all(&h);
        assert_true(held_by(&h, row + 1) <= (NL_CONTROL_PER_USER / 2u) >> row || held_by(&h, row + 1) <= 2);
    }
    /* and however many they are, other users have, too. */
    assert_true(h.held <= NL_CONTROL_PER_USER);
    wait_many(&h, 6, 1001, 7, 1);
    assert_int_equal(take(&h), 7);
    hall_deinit(&h);
}

static void test_a_client_that_comes_again_has_no_new_share_for_its_user(void **state) {
    struct hall h;
    unsigned before;

    (void)state;
    hall_init(&h);
    for (uint64_t number = 1; number < 50; number++) {
        wait_many(&h, 0, 1000, number, 40);
        take_all(&h);
        for (unsigned i = 0; i < 40; i++)
            nl_turns_withdraw(&h.turns, &h.waiting[0][i]);
    }
    before = h.held;
    assert_true(before <= NL_CONTROL_PER_USER);
    wait_many(&h, 1, 1001, 100, 1);
    assert_int_equal(take(&h), 100);
    hall_deinit(&h);
}

static void test_restoring_may_have_all_slots(void **state) {
    struct hall h;

    (void)state;
    hall_init(&h);
    wait_many(&h, 0, 0, NL_TURN_RESTORE, MANY);
    assert_int_equal(take_all(&h), NL_CONTROL_IN_FLIGHT);
    give_back_all(&h);
    wait_many(&h, 0, 0, NL_TURN_RESTORE, MANY);
    /* Who asks for something new takes turns with it, */
    wait_many(&h, 1, 1000, 1, MANY);
    for (unsigned i = 0; i < 20; i++)
        take(&h);
    assert_int_equal(held_by(&h, 1), 10);
    /* and so does what nobody waits for, with the share of a client. */
    wait_many(&h, 2, 0, NL_TURN_NOBODY, MANY);
    take_all(&h);
    assert_int_equal(h.held, NL_CONTROL_IN_FLIGHT);
    assert_true(held_by(&h, NL_TURN_NOBODY) > 5 && held_by(&h, NL_TURN_NOBODY) <= NL_CONTROL_IN_FLIGHT / 2);
    hall_deinit(&h);
}

static void test_a_turn_moves_to_another_queue(void **state) {
    struct hall h;

    (void)state;
    hall_init(&h);
    wait_many(&h, 0, 0, NL_TURN_NOBODY, 1);
    nl_turns_wait(&h.turns, &h.waiting[0][0], 1000, 5);
    assert_ptr_equal(nl_turns_next(&h.turns), &h.waiting[0][0]);
    nl_turns_withdraw(&h.turns, &h.waiting[0][0]);
    assert_null(nl_turns_next(&h.turns));
    nl_turns_withdraw(&h.turns, &h.waiting[0][0]);
    nl_turns_deinit(&h.turns);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_users_then_clients_take_turns),
        cmocka_unit_test(test_first_in_first_out_within_a_client),
        cmocka_unit_test(test_unanswered_requests_leave_slots_for_others),
        cmocka_unit_test(test_a_client_that_comes_again_has_no_new_share_for_its_user),
        cmocka_unit_test(test_restoring_may_have_all_slots),
        cmocka_unit_test(test_a_turn_moves_to_another_queue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
