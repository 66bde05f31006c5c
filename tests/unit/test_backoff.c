/* SPDX-License-Identifier: Apache-2.0 */
/* Backoff and token bucket: ranges, windows and the far ends of their arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/model/backoff.h"

#define BASE 1000
#define CAP 60000
#define STABLE 30000
#define DAY_MS UINT64_C(86400000)

/* splitmix64: the same numbers on every machine. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static struct nl_backoff fresh(void) {
    struct nl_backoff b;
    nl_backoff_init(&b, BASE, CAP, STABLE);
    return b;
}

/* The longest delay that the next failure may bring: the random number that hits the upper end. */
static uint64_t longest(struct nl_backoff b, uint64_t now_ms) {
    uint64_t most = 0;
    uint64_t state = 1;
    for (int i = 0; i < 5000; i++) {
        struct nl_backoff copy = b;
        uint64_t delay = nl_backoff_failed(&copy, now_ms, next_random(&state));
        most = delay > most ? delay : most;
    }
    return most;
}

/* --- backoff --- */

static void first_retry_is_spread(void **state) {
    (void)state;
    unsigned histogram[9] = {0};
    uint64_t seed = 42;
    for (int i = 0; i < 200; i++) {
        struct nl_backoff b = fresh();
        uint64_t delay = nl_backoff_failed(&b, 5000, next_random(&seed));
        assert_in_range(delay, BASE / 10, BASE);
        histogram[delay == BASE ? 8 : (delay - 100) / 100]++;
    }
    for (size_t i = 0; i < 9; i++)
        assert_in_range(histogram[i], 10, 40); /* 22 each on average */
}

static void later_retries_are_spread(void **state) {
    (void)state;
    unsigned histogram[10] = {0};
    uint64_t seed = 43;
    for (int i = 0; i < 200; i++) {
        struct nl_backoff b = fresh();
        for (int failure = 0; failure < 8; failure++)
            nl_backoff_failed(&b, 0, next_random(&seed));
        uint64_t delay = nl_backoff_failed(&b, 0, next_random(&seed));
        histogram[delay >= CAP ? 9 : delay / (CAP / 10)]++;
    }
    for (size_t i = 0; i < 10; i++)
        assert_in_range(histogram[i], 8, 36); /* 20 each on average */
}

/* The shortest delay is no likelier than any other. */
static void floor_is_no_meeting_point(void **state) {
    (void)state;
    unsigned at_floor = 0;
    uint64_t seed = 44;
    for (int i = 0; i < 10000; i++) {
        struct nl_backoff b = fresh();
        at_floor += nl_backoff_failed(&b, 0, next_random(&seed)) <= BASE / 10 + 1;
    }
    assert_in_range(at_floor, 5, 50); /* 22 on average; 1,000 if the floor caught all below it */
}

static void doubles_up_to_the_cap(void **state) {
    (void)state;
    static const uint64_t upper[] = {1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000};
    struct nl_backoff b = fresh();
    for (size_t i = 0; i < sizeof(upper) / sizeof(upper[0]); i++) {
        uint64_t most = longest(b, 0);
        assert_in_range(most, upper[i] * 99 / 100, upper[i]);
        nl_backoff_failed(&b, 0, 0);
    }
}

/* Doubling that just fits under the cap is not the cap. */
static void the_cap_does_not_come_early(void **state) {
    (void)state;
    struct nl_backoff b;
    nl_backoff_init(&b, 1000, 2001, STABLE);
    nl_backoff_failed(&b, 0, 0);
    assert_int_equal(nl_backoff_failed(&b, 0, 1900), 2000);
    assert_int_equal(nl_backoff_failed(&b, 0, 1901), 2001);
}

static void both_ends_are_reached(void **state) {
    (void)state;
    struct nl_backoff b = fresh();
    assert_int_equal(nl_backoff_failed(&b, 0, 0), 100);
    b = fresh();
    assert_int_equal(nl_backoff_failed(&b, 0, 900), 1000);
    b = fresh();
    assert_int_equal(nl_backoff_failed(&b, 0, 901), 100);
}

static void starts_over_only_when_stable(void **state) {
    (void)state;
    struct nl_backoff b = fresh();
    for (int i = 0; i < 10; i++)
        nl_backoff_failed(&b, 0, 0);
    nl_backoff_live(&b, 100000);
    assert_true(longest(b, 100000 + STABLE - 1) > BASE);
    assert_true(longest(b, 100000 + STABLE) <= BASE);
    nl_backoff_failed(&b, 100000 + STABLE - 1, 0);
    assert_int_equal(b.failures, 11);
    /* No longer live: time that passes now is not stable time. */
    nl_backoff_failed(&b, 100000 + 10 * STABLE, 0);
    assert_int_equal(b.failures, 12);
    nl_backoff_live(&b, 500000);
    nl_backoff_failed(&b, 531000, 0);
    assert_int_equal(b.failures, 1);
    assert_true(longest(b, 531000) <= 2 * BASE);
}

/* Accepts, then closes: fifty times take their time even with the shortest delays there are. */
static void accept_and_close_is_no_hot_loop(void **state) {
    (void)state;
    uint64_t now = 1;
    uint64_t seed = 45;
    struct nl_backoff b = fresh();
    for (int i = 0; i < 50; i++) {
        nl_backoff_live(&b, now);
        now += nl_backoff_failed(&b, now + 5, next_random(&seed)) + 5;
    }
    assert_true(now > 50 * CAP / 3);
    b = fresh();
    for (int i = 0; i < 1000; i++)
        assert_true(nl_backoff_failed(&b, 0, 0) >= BASE / 10);
}

static void no_configuration_gives_a_hot_loop(void **state) {
    (void)state;
    static const uint64_t values[] = {0, 1, 9, 10, UINT64_MAX};
    for (size_t base = 0; base < 5; base++)
        for (size_t cap = 0; cap < 5; cap++) {
            struct nl_backoff b;
            nl_backoff_init(&b, values[base], values[cap], 0);
            for (int i = 0; i < 100; i++) {
                uint64_t delay = nl_backoff_failed(&b, 0, 0);
                assert_true(delay >= 1 && delay <= (values[cap] ? values[cap] : 1));
            }
        }
}

static void ten_thousand_failures(void **state) {
    (void)state;
    struct nl_backoff b = fresh();
    uint64_t seed = 46;
    for (int i = 0; i < 10000; i++)
        assert_in_range(nl_backoff_failed(&b, (uint64_t)i, next_random(&seed)), BASE / 10, CAP);
    assert_int_equal(b.failures, 10000);
    b.failures = UINT32_MAX;
    assert_in_range(nl_backoff_failed(&b, 0, next_random(&seed)), BASE / 10, CAP);
    assert_int_equal(b.failures, UINT32_MAX);
}

static void live_at_time_zero_counts(void **state) {
    (void)state;
    struct nl_backoff b = fresh();
    nl_backoff_failed(&b, 0, 0);
    nl_backoff_live(&b, 0);
    nl_backoff_failed(&b, STABLE + 1, 0);
    assert_int_equal(b.failures, 1);
}

static void clock_back_is_not_stable(void **state) {
    (void)state;
    struct nl_backoff b = fresh();
    nl_backoff_failed(&b, 0, 0);
    nl_backoff_live(&b, 100000);
    nl_backoff_failed(&b, 50000, 0);
    assert_int_equal(b.failures, 2);
}

static void denied_is_the_interval_give_or_take(void **state) {
    (void)state;
    unsigned histogram[6] = {0};
    uint64_t seed = 47;
    for (int i = 0; i < 600; i++) {
        struct nl_backoff b = fresh();
        uint64_t delay = nl_backoff_denied(&b, 300000, next_random(&seed));
        assert_in_range(delay, 270000, 330000);
        histogram[delay == 330000 ? 5 : (delay - 270000) / 10000]++;
        assert_int_equal(b.failures, 1);
    }
    for (size_t i = 0; i < 6; i++)
        assert_in_range(histogram[i], 60, 140);
}

static void denied_at_the_far_ends(void **state) {
    (void)state;
    struct nl_backoff b = fresh();
    assert_int_equal(nl_backoff_denied(&b, 0, UINT64_MAX), 1);
    assert_int_equal(nl_backoff_denied(&b, 5, UINT64_MAX), 5);
    assert_true(nl_backoff_denied(&b, UINT64_MAX, UINT64_MAX) >= UINT64_MAX / 10 * 9);
    uint64_t seed = 48;
    for (int i = 0; i < 100; i++)
        assert_true(nl_backoff_denied(&b, UINT64_MAX - 5, next_random(&seed)) >= UINT64_MAX / 10 * 9);
    nl_backoff_live(&b, 1);
    nl_backoff_denied(&b, 1000, 0);
    assert_int_equal(b.live_since_ms, 0);
}

/* --- bucket --- */

static void gives_the_burst_then_the_rate(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, 40, 10, 1000);
    for (int i = 0; i < 10; i++)
        assert_int_equal(nl_bucket_take(&b, 1000), 0);
    assert_int_equal(nl_bucket_take(&b, 1000), 25);
    assert_int_equal(nl_bucket_take(&b, 1024), 1);
    assert_int_equal(nl_bucket_take(&b, 1025), 0);
    assert_int_equal(nl_bucket_take(&b, 1025), 25);
}

/* The wait it tells is neither a millisecond too short nor too long. */
static void the_wait_is_exact(void **state) {
    (void)state;
    static const uint64_t rates[] = {1, 3, 7, 16, 40, 333, 999, 1000, 1001, 5000};
    uint64_t seed = 50;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        struct nl_bucket b;
        uint64_t now = 77;
        nl_bucket_init(&b, rates[i], 1 + i, now);
        for (int step = 0; step < 2000; step++) {
            now += next_random(&seed) % 3;
            uint64_t wait = nl_bucket_take(&b, now);
            if (wait == 0)
                continue;
            struct nl_bucket early = b;
            assert_true(wait == 1 || nl_bucket_take(&early, now + wait - 1) == 1);
            assert_int_equal(nl_bucket_take(&b, now + wait), 0);
            now += wait;
        }
    }
}

/* Asked every millisecond: what is given over a thousand seconds is exact, to the token. */
static void fractions_add_up(void **state) {
    (void)state;
    static const uint64_t rates[] = {1, 3, 7, 19, 333, 999};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        struct nl_bucket b;
        uint64_t taken = 0;
        nl_bucket_init(&b, rates[i], 2, 0);
        for (uint64_t now = 0; now <= 1000000; now++)
            while (nl_bucket_take(&b, now) == 0)
                taken++;
        assert_int_equal(taken, 2 + 1000 * rates[i]);
    }
}

static void no_window_has_more(uint64_t rate, uint64_t burst, uint64_t seed) {
    enum { MOST = 65536 };
    uint64_t *at = calloc(MOST, sizeof(*at));
    size_t count = 0;
    uint64_t now = next_random(&seed) % 100000;
    struct nl_bucket b;
    nl_bucket_init(&b, rate, burst, now);
    uint64_t end = now + 100000;
    while (now < end && count < MOST) {
        for (uint64_t tries = next_random(&seed) % 8; tries && count < MOST; tries--)
            if (nl_bucket_take(&b, now) == 0)
                at[count++] = now;
        uint64_t most = next_random(&seed) % 20 ? 40 : 3000;
        now += next_random(&seed) % most;
    }
    for (size_t first = 0; first < count; first++)
        for (size_t last = first; last < count && at[last] - at[first] <= 1000; last++)
            assert_true((last - first + 1) * 1000 <= burst * 1000 + (at[last] - at[first]) * rate);
    free(at);
}

static void windows_hold(void **state) {
    (void)state;
    static const uint64_t rates[] = {1, 2, 5, 16, 40, 190, 2000};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        for (uint64_t burst = 1; burst <= 16; burst *= 4)
            no_window_has_more(rates[i], burst, 1000 * i + burst);
}

static void rate_zero_is_no_limit(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, 0, 1, 0);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(nl_bucket_take(&b, 0), 0);
    assert_int_equal(nl_bucket_take_many(&b, UINT64_MAX, 0), 0);
}

static void burst_zero_is_one(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, 4, 0, 0);
    assert_int_equal(nl_bucket_take(&b, 0), 0);
    assert_int_equal(nl_bucket_take(&b, 0), 250);
    assert_int_equal(nl_bucket_take(&b, 250), 0);
}

static void days_give_no_more_than_the_burst(void **state) {
    (void)state;
    struct nl_bucket b;
    uint64_t now = 5;
    nl_bucket_init(&b, 40, 10, now);
    for (int jump = 0; jump < 5; jump++) {
        int given = 0;
        for (now += DAY_MS * 400; nl_bucket_take(&b, now) == 0;)
            given++;
        assert_int_equal(given, 10);
    }
    assert_true(nl_bucket_take(&b, UINT64_MAX) == 0);
}

static void clock_back_gives_nothing(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, 10, 1, 100000);
    assert_int_equal(nl_bucket_take(&b, 100000), 0);
    for (int i = 0; i < 100; i++) {
        assert_true(nl_bucket_take(&b, 99000) > 0);
        assert_true(nl_bucket_take(&b, 100000) > 0);
    }
    assert_int_equal(nl_bucket_take(&b, 99000), 1100);
    assert_int_equal(nl_bucket_take(&b, 100100), 0);
}

static void far_ends_do_not_overflow(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, UINT64_MAX, UINT64_MAX, 0);
    for (uint64_t now = 0; now < 5; now++)
        assert_int_equal(nl_bucket_take(&b, now * DAY_MS), 0);
    nl_bucket_init(&b, UINT64_MAX, 1, 0);
    assert_int_equal(nl_bucket_take(&b, 0), 0);
    assert_int_equal(nl_bucket_take(&b, 0), 1);
    assert_int_equal(nl_bucket_take(&b, 1), 0);
    nl_bucket_init(&b, UINT64_C(1) << 62, UINT64_C(1) << 63, 0); /* products that would wrap to 0 */
    assert_int_equal(nl_bucket_take(&b, 0), 0);
    nl_bucket_drain(&b, 0);
    assert_int_equal(nl_bucket_take(&b, 4), 0);
    nl_bucket_init(&b, 1, UINT64_MAX, 0);
    nl_bucket_drain(&b, 0);
    assert_int_equal(nl_bucket_take(&b, 0), 1000);
    assert_int_equal(nl_bucket_take(&b, UINT64_MAX), 0);
}

static void many_are_all_or_none(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, 10, 10, 0);
    assert_int_equal(nl_bucket_take_many(&b, 7, 0), 0);
    assert_int_equal(nl_bucket_take_many(&b, 4, 0), 100);
    assert_int_equal(nl_bucket_take_many(&b, 3, 0), 0);
    assert_int_equal(nl_bucket_take_many(&b, 10, 0), 1000);
    assert_int_equal(nl_bucket_take_many(&b, 10, 1000), 0);
}

static void a_drained_bucket_has_nothing_left(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, 10, 20, 0);
    nl_bucket_drain(&b, 1000);
    nl_bucket_drain(&b, 2000);
    assert_int_equal(nl_bucket_take(&b, 2000), 100);
}

static void a_new_rate_counts_from_now_on(void **state) {
    (void)state;
    struct nl_bucket b;
    nl_bucket_init(&b, 10, 20, 0);
    nl_bucket_drain(&b, 0);
    nl_bucket_set_rate(&b, 1, 1000); /* ten are in it */
    assert_int_equal(nl_bucket_take_many(&b, 11, 1000), 1000);
    assert_int_equal(nl_bucket_take_many(&b, 11, 2000), 0);
    nl_bucket_set_rate(&b, 0, 2000);
    assert_int_equal(nl_bucket_take_many(&b, 20, 2000), 0);
    nl_bucket_set_rate(&b, 10, 9000); /* time without a limit fills nothing */
    assert_int_equal(nl_bucket_take(&b, 9000), 100);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_retry_is_spread),
        cmocka_unit_test(later_retries_are_spread),
        cmocka_unit_test(floor_is_no_meeting_point),
        cmocka_unit_test(doubles_up_to_the_cap),
        cmocka_unit_test(the_cap_does_not_come_early),
        cmocka_unit_test(both_ends_are_reached),
        cmocka_unit_test(starts_over_only_when_stable),
        cmocka_unit_test(accept_and_close_is_no_hot_loop),
        cmocka_unit_test(no_configuration_gives_a_hot_loop),
        cmocka_unit_test(ten_thousand_failures),
        cmocka_unit_test(live_at_time_zero_counts),
        cmocka_unit_test(clock_back_is_not_stable),
        cmocka_unit_test(denied_is_the_interval_give_or_take),
        cmocka_unit_test(denied_at_the_far_ends),
        cmocka_unit_test(gives_the_burst_then_the_rate),
        cmocka_unit_test(the_wait_is_exact),
        cmocka_unit_test(fractions_add_up),
        cmocka_unit_test(windows_hold),
        cmocka_unit_test(rate_zero_is_no_limit),
        cmocka_unit_test(burst_zero_is_one),
        cmocka_unit_test(days_give_no_more_than_the_burst),
        cmocka_unit_test(clock_back_gives_nothing),
        cmocka_unit_test(far_ends_do_not_overflow),
        cmocka_unit_test(many_are_all_or_none),
        cmocka_unit_test(a_drained_bucket_has_nothing_left),
        cmocka_unit_test(a_new_rate_counts_from_now_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
