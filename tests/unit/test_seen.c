/* SPDX-License-Identifier: Apache-2.0 */
/* The last message ids of a topic: none forgotten too early, none remembered for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "daemon/model/seen.h"

static uint64_t hash_of(unsigned number) {
    char text[24];

    snprintf(text, sizeof(text), "message-%u", number);
    return nl_seen_hash(nl_slice_str(text), 42);
}

static void the_last_ones_are_remembered(void **state) {
    struct nl_seen s;

    (void)state;
    nl_seen_init(&s);
    for (unsigned n = 0; n < 4 * NL_SEEN_MAX + 7; n++) {
        assert_false(nl_seen_has(&s, hash_of(n)));
        nl_seen_add(&s, hash_of(n));
        for (unsigned back = 0; back <= n && back < NL_SEEN_MAX; back += 1 + back / 8)
            assert_true(nl_seen_has(&s, hash_of(n - back)));
        if (n >= 2 * NL_SEEN_MAX)
            assert_false(nl_seen_has(&s, hash_of(n - 2 * NL_SEEN_MAX)));
        assert_int_equal(nl_seen_forgets(&s), n >= NL_SEEN_MAX);
    }
    nl_seen_deinit(&s);
    assert_false(nl_seen_has(&s, hash_of(4 * NL_SEEN_MAX)));
    nl_seen_add(&s, hash_of(1));
    assert_true(nl_seen_has(&s, hash_of(1)));
    nl_seen_deinit(&s);
}

/* What is added again and again is never forgotten, whatever comes in between. */
static void what_comes_again_stays(void **state) {
    struct nl_seen s;

    (void)state;
    nl_seen_init(&s);
    for (unsigned n = 1; n < 8 * NL_SEEN_MAX; n++) {
        if (n % (NL_SEEN_MAX / 2) == 1)
            nl_seen_add(&s, hash_of(0));
        nl_seen_add(&s, hash_of(n));
        assert_true(nl_seen_has(&s, hash_of(0)));
    }
    nl_seen_deinit(&s);
}

static void quiet_topics_cost_nothing(void **state) {
    struct nl_seen s;

    (void)state;
    nl_seen_init(&s);
    assert_null(s.newer.slots);
    assert_false(nl_seen_has(&s, 0));
    nl_seen_add(&s, 7);
    assert_true(s.newer.cap <= 16);
    assert_false(nl_seen_has(&s, 0));
    for (unsigned n = 1; n < 10 * NL_SEEN_MAX; n++)
        nl_seen_add(&s, n);
    assert_int_equal((s.newer.cap + s.older.cap) * sizeof(*s.newer.slots), 32768);
    nl_seen_deinit(&s);
    assert_null(s.newer.slots);
    assert_null(s.older.slots);
}

static void the_seed_and_all_bytes_count(void **state) {
    (void)state;
    assert_true(nl_seen_hash(nl_slice_str("abc"), 1) == nl_seen_hash(nl_slice_str("abc"), 1));
    assert_true(nl_seen_hash(nl_slice_str("abc"), 1) != nl_seen_hash(nl_slice_str("abc"), 2));
    assert_true(nl_seen_hash(nl_slice_str("abc"), 1) != nl_seen_hash(nl_slice_str("abd"), 1));
    assert_true(nl_seen_hash(nl_slice("a", 1), 1) != nl_seen_hash(nl_slice("a\0", 2), 1));
    assert_true(nl_seen_hash(nl_slice_str("12345678a"), 1) != nl_seen_hash(nl_slice_str("12345678b"), 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_ones_are_remembered),
        cmocka_unit_test(what_comes_again_stays),
        cmocka_unit_test(quiet_topics_cost_nothing),
        cmocka_unit_test(the_seed_and_all_bytes_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
