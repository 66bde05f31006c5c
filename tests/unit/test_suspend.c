/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/util/suspend.h"

/* A reading at this monotonic time on a host that slept so long since boot, with stalls between the readings.
 */
static struct nl_clocks reading(int64_t at, int64_t asleep, int64_t stall_1, int64_t stall_2) {
    return (struct nl_clocks){
        .before_ms = at, .boot_ms = at + stall_1 + asleep, .after_ms = at + stall_1 + stall_2};
}

static void a_sleep_is_told_once(void **state) {
    struct nl_suspend s;

    (void)state;
    nl_suspend_init(&s, reading(1000, 500, 0, 0));
    assert_int_equal(nl_suspend_look(&s, reading(2000, 500, 0, 0)), 0);
    assert_int_equal(nl_suspend_look(&s, reading(3000, 60500, 0, 0)), 60000);
    assert_int_equal(nl_suspend_look(&s, reading(4000, 60500, 0, 0)), 0);
    assert_int_equal(nl_suspend_look(&s, reading(5000, 80500, 0, 0)), 20000);
}

static void short_ones_add_up(void **state) {
    struct nl_suspend s;

    (void)state;
    nl_suspend_init(&s, reading(1000, 0, 0, 0));
    assert_int_equal(nl_suspend_look(&s, reading(2000, 9999, 0, 0)), 0);
    assert_int_equal(nl_suspend_look(&s, reading(3000, 10000, 0, 0)), 10000);
}

static void a_stall_is_no_sleep(void **state) {
    struct nl_suspend s;

    (void)state;
    nl_suspend_init(&s, reading(1000, 0, 0, 0));
    assert_int_equal(nl_suspend_look(&s, reading(2000, 0, 90000, 0)), 0);
    assert_int_equal(nl_suspend_look(&s, reading(200000, 0, 0, 90000)), 0);
    assert_int_equal(nl_suspend_look(&s, reading(400000, 0, 45000, 45000)), 0);
    assert_int_equal(nl_suspend_look(&s, reading(600000, 0, 0, 0)), 0);
    assert_int_equal(nl_suspend_look(&s, reading(700000, 30000, 0, 0)), 30000);
}

static void a_stall_at_the_beginning_is_no_sleep_either(void **state) {
    struct nl_suspend s;

    (void)state;
    for (int which = 0; which < 2; which++) {
        nl_suspend_init(&s, reading(1000, 0, which == 0 ? 90000 : 0, which == 1 ? 90000 : 0));
        assert_int_equal(nl_suspend_look(&s, reading(200000, 0, 0, 0)), 0);
        assert_int_equal(nl_suspend_look(&s, reading(300000, 0, 0, 0)), 0);
        assert_int_equal(nl_suspend_look(&s, reading(400000, 20000, 0, 0)), 20000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sleep_is_told_once),
        cmocka_unit_test(short_ones_add_up),
        cmocka_unit_test(a_stall_is_no_sleep),
        cmocka_unit_test(a_stall_at_the_beginning_is_no_sleep_either),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
