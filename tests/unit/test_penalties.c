/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/model/penalties.h"

static void it_grows_and_is_forgotten(void **state) {
    struct nl_penalties p = {0};
    uint64_t now = 1000, length = NL_PENALTY_MIN_MS;

    (void)state;
    assert_int_equal(nl_penalties_wait(&p, 1, 7, now), 0);
    for (int i = 0; i < 20; i++) {
        nl_penalties_add(&p, 1, 7, now);
        assert_int_equal(nl_penalties_wait(&p, 1, 7, now), length);
        assert_int_equal(nl_penalties_wait(&p, 1, 7, now + length - 1), 1);
        assert_int_equal(nl_penalties_wait(&p, 1, 7, now + length), 0);
        now += length;
        length = length * 2 < NL_PENALTY_MAX_MS ? length * 2 : NL_PENALTY_MAX_MS;
    }
    nl_penalties_add(&p, 1, 7, now + NL_PENALTY_MEMORY_MS - 1);
    now += NL_PENALTY_MEMORY_MS - 1;
    assert_int_equal(nl_penalties_wait(&p, 1, 7, now), NL_PENALTY_MAX_MS);
    now += NL_PENALTY_MAX_MS + NL_PENALTY_MEMORY_MS;
    nl_penalties_add(&p, 1, 7, now);
    assert_int_equal(nl_penalties_wait(&p, 1, 7, now), NL_PENALTY_MIN_MS);
}

static void others_are_not_meant(void **state) {
    struct nl_penalties p = {0};

    (void)state;
    nl_penalties_add(&p, 0, 0, 5);
    assert_int_equal(nl_penalties_wait(&p, 0, 0, 5), NL_PENALTY_MIN_MS);
    assert_int_equal(nl_penalties_wait(&p, 0, 1, 5), 0);
    assert_int_equal(nl_penalties_wait(&p, 1, 0, 5), 0);
}

static void the_one_that_ends_first_gives_way(void **state) {
    struct nl_penalties p = {0};

    (void)state;
    for (uint64_t n = 0; n <= NL_PENALTIES_MAX; n++)
        nl_penalties_add(&p, 1, n, n);
    assert_int_equal(nl_penalties_wait(&p, 1, 0, NL_PENALTIES_MAX), 0);
    for (uint64_t n = 1; n <= NL_PENALTIES_MAX; n++)
        assert_int_equal(nl_penalties_wait(&p, 1, n, NL_PENALTIES_MAX),
                         NL_PENALTY_MIN_MS - NL_PENALTIES_MAX + n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_grows_and_is_forgotten),
        cmocka_unit_test(others_are_not_meant),
        cmocka_unit_test(the_one_that_ends_first_gives_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
