/* SPDX-License-Identifier: Apache-2.0 */
/* Who is too slow: a burst is forgiven, not reading is not, and reading slower than more comes is not either.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/util/backlog.h"

#define LIMIT 1000
#define PERIOD NL_BACKLOG_PERIOD_MS
#define HEAVY (LIMIT * NL_BACKLOG_FACTOR)

static bool slow(struct nl_backlog *b, uint64_t bytes, uint64_t now_ms) {
    return nl_backlog_too_slow(b, bytes, LIMIT, now_ms);
}

static void within_the_limit_nobody_is_slow(void **state) {
    struct nl_backlog b = {0};

    (void)state;
    for (uint64_t now = 1; now < 100 * PERIOD; now += PERIOD / 3)
        assert_false(slow(&b, LIMIT, now));
    assert_false(b.over);
}

static void who_takes_nothing_has_one_period(void **state) {
    struct nl_backlog b = {0};

    (void)state;
    assert_false(slow(&b, LIMIT + 1, 5));
    assert_false(slow(&b, LIMIT + 1, 5 + PERIOD - 1));
    assert_true(slow(&b, LIMIT + 1, 5 + PERIOD));
    assert_false(slow(&b, LIMIT + 1, 5 + PERIOD + 1)); /* the next one */
    assert_true(slow(&b, LIMIT + 1, 5 + 2 * PERIOD));
}

static void with_much_waiting_the_period_is_short(void **state) {
    struct nl_backlog b = {0};

    (void)state;
    assert_false(slow(&b, LIMIT + 1, 5));
    assert_false(slow(&b, HEAVY, 5 + NL_BACKLOG_SHORT_MS - 1));
    assert_true(slow(&b, HEAVY, 5 + NL_BACKLOG_SHORT_MS));
}

/* However large the burst was, and however long it takes to read it. */
static void who_reads_a_burst_is_not_slow(void **state) {
    struct nl_backlog b = {0};
    uint64_t bytes = HEAVY * 10;

    (void)state;
    for (uint64_t now = 5; bytes > 100; now += NL_BACKLOG_SHORT_MS / 4) {
        assert_false(slow(&b, bytes, now));
        nl_backlog_taken(&b, 100);
        bytes -= 100;
    }
}

/* A second burst in the first period is part of it. */
static void a_burst_may_come_in_two(void **state) {
    struct nl_backlog b = {0};

    (void)state;
    assert_false(slow(&b, HEAVY * 2, 5));
    assert_false(slow(&b, HEAVY * 4, 6));
    nl_backlog_taken(&b, 1);
    assert_false(slow(&b, HEAVY * 4 - 1, 5 + NL_BACKLOG_SHORT_MS));
}

static void who_reads_slower_than_more_comes_is_slow(void **state) {
    struct nl_backlog b = {0};
    uint64_t bytes = LIMIT + 1;
    unsigned periods = 0;

    (void)state;
    assert_false(slow(&b, bytes, 5));
    do {
        nl_backlog_taken(&b, 50);
        bytes += 10;
        periods++;
    } while (!slow(&b, bytes, 5 + periods * (uint64_t)PERIOD));
    assert_int_equal(periods, 2);
}

static void coming_back_begins_anew(void **state) {
    struct nl_backlog b = {0};

    (void)state;
    assert_false(slow(&b, LIMIT + 1, 5));
    assert_false(slow(&b, LIMIT, 6));
    assert_false(slow(&b, LIMIT + 1, 5 + PERIOD));
    assert_false(slow(&b, LIMIT + 1, 4 + 2 * PERIOD));
    assert_true(slow(&b, LIMIT + 1, 5 + 2 * PERIOD));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_the_limit_nobody_is_slow),
        cmocka_unit_test(who_takes_nothing_has_one_period),
        cmocka_unit_test(with_much_waiting_the_period_is_short),
        cmocka_unit_test(who_reads_a_burst_is_not_slow),
        cmocka_unit_test(a_burst_may_come_in_two),
        cmocka_unit_test(who_reads_slower_than_more_comes_is_slow),
        cmocka_unit_test(coming_back_begins_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
