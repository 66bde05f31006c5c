/* SPDX-License-Identifier: Apache-2.0 */
/* The accounting by user: bounds at their edges, lifetimes, and how guesses of tokens are slowed down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/util/quota.h"

static void a_limit_is_reached_and_not_passed(void **state) {
    uint64_t used = 0;

    (void)state;
    assert_true(nl_quota_take(&used, 3, 5));
    assert_false(nl_quota_take(&used, 3, 5));
    assert_int_equal(used, 3);
    assert_true(nl_quota_take(&used, 2, 5));
    assert_false(nl_quota_take(&used, 1, 5));
    assert_true(nl_quota_take(&used, 0, 5));
    nl_quota_give(&used, 4);
    assert_int_equal(used, 1);
    assert_true(nl_quota_take(&used, 1, 5));
}

static void odd_limits_and_amounts(void **state) {
    uint64_t used = 10;

    (void)state;
    assert_true(nl_quota_take(&used, 1000, 0));
    assert_int_equal(used, 1010);
    /* The limit came down by a reload: what is used stays, no more is given. */
    assert_false(nl_quota_take(&used, 1, 5));
    assert_false(nl_quota_take(&used, 0, 5));
    assert_false(nl_quota_take(&used, UINT64_MAX, 2000));
    assert_int_equal(used, 1010);
}

static void an_entry_lives_as_long_as_its_references(void **state) {
    struct nl_quotas q;
    struct nl_uid_quota *a, *b;

    (void)state;
    nl_quotas_init(&q);
    a = nl_quota_ref(&q, 1000);
    b = nl_quota_ref(&q, 0);
    assert_ptr_not_equal(a, b);
    assert_ptr_equal(nl_quota_ref(&q, 1000), a);
    a->clients = 1;
    assert_null(nl_quota_unref(a));
    assert_ptr_equal(nl_quota_ref(&q, 1000), a);
    assert_int_equal(a->clients, 1);
    nl_quota_unref(a);
    a->clients = 0;
    nl_quota_unref(a);
    assert_int_equal(HASH_COUNT(q.by_uid), 1);
    nl_quota_unref(b);
    assert_int_equal(HASH_COUNT(q.by_uid), 0);
    assert_null(nl_quota_unref(NULL));
    nl_quotas_deinit(&q);
}

static void guesses_cost_more_each_time(void **state) {
    struct nl_uid_quota u = {0};
    uint64_t wait = NL_GUESS_MIN_MS;

    (void)state;
    for (unsigned i = 0; i < NL_GUESSES_FREE; i++)
        nl_quota_guessed(&u, false, 1000);
    assert_int_equal(u.guess_after_ms, 0);
    for (unsigned i = 0; i < 40; i++) {
        nl_quota_guessed(&u, false, 1000);
        assert_int_equal(u.guess_after_ms, 1000 + wait);
        wait = wait * 2 > NL_GUESS_MAX_MS ? NL_GUESS_MAX_MS : wait * 2;
    }
    assert_int_equal(wait, NL_GUESS_MAX_MS);
    u.guesses = UINT32_MAX;
    nl_quota_guessed(&u, false, 1000);
    assert_int_equal(u.guess_after_ms, 1000 + NL_GUESS_MAX_MS);
    nl_quota_guessed(&u, true, 2000);
    assert_int_equal(u.guess_after_ms, 0);
    nl_quota_guessed(&u, false, 3000);
    assert_int_equal(u.guess_after_ms, 0);
}

/* Connecting anew does not make anyone forget. */
static void guesses_outlive_the_client(void **state) {
    struct nl_quotas q;
    struct nl_uid_quota *u;

    (void)state;
    nl_quotas_init(&q);
    u = nl_quota_ref(&q, 7);
    for (unsigned i = 0; i <= NL_GUESSES_FREE; i++)
        nl_quota_guessed(u, false, 50);
    nl_quota_unref(u);
    u = nl_quota_ref(&q, 7);
    assert_int_equal(u->guess_after_ms, 50 + NL_GUESS_MIN_MS);
    nl_quota_guessed(u, true, 60);
    nl_quota_unref(u);
    assert_int_equal(HASH_COUNT(q.by_uid), 0);
    u = nl_quota_ref(&q, 8);
    nl_quota_guessed(u, false, 50);
    nl_quota_unref(u);
    nl_quotas_deinit(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_is_reached_and_not_passed),
        cmocka_unit_test(odd_limits_and_amounts),
        cmocka_unit_test(an_entry_lives_as_long_as_its_references),
        cmocka_unit_test(guesses_cost_more_each_time),
        cmocka_unit_test(guesses_outlive_the_client),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
