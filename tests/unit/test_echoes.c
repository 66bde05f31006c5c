/* SPDX-License-Identifier: Apache-2.0 */
/* Own retained messages that come back: which message is such a copy, once, and for how long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "daemon/model/echoes.h"

static const char topic[] = "app/room/topic";

static bool take(struct nl_echoes *e, const char *name, const char *key, uint64_t digest, uint64_t now) {
    return nl_echoes_take(e, nl_slice_str(name), key == NULL ? nl_slice(NULL, 0) : nl_slice_str(key), false,
                          digest, now);
}

static bool take_hidden(struct nl_echoes *e, const char *name, uint64_t digest, uint64_t now) {
    return nl_echoes_take(e, nl_slice_str(name), nl_slice_str("#"), true, digest, now);
}

static void expect(struct nl_echoes *e, const char *key, uint64_t digest, uint64_t now) {
    nl_echoes_expect(e, nl_slice_str(topic), key, digest, now);
}

static void each_copy_is_taken_once(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e);
    assert_false(nl_echoes_waiting(&e));
    assert_false(take(&e, topic, NULL, 1, 0));
    expect(&e, NULL, 1, 0);
    expect(&e, NULL, 1, 0);
    assert_true(nl_echoes_waiting(&e));
    assert_true(take(&e, topic, NULL, 1, 0));
    assert_true(take(&e, topic, NULL, 1, 0));
    assert_false(take(&e, topic, NULL, 1, 0));
    assert_false(nl_echoes_waiting(&e));
    nl_echoes_deinit(&e);
}

static void topic_filter_and_data_must_be_equal(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e);
    expect(&e, "a", 1, 0);
    assert_false(take(&e, "app/room/topi", "a", 1, 0));
    assert_false(take(&e, "app/room/topic2", "a", 1, 0));
    assert_false(take(&e, topic, "b", 1, 0));
    assert_false(take(&e, topic, "", 1, 0));
    assert_false(take(&e, topic, NULL, 1, 0));
    assert_false(take(&e, topic, "a", 2, 0));
    assert_true(take(&e, topic, "a", 1, 0));
    expect(&e, NULL, 1, 0);
    assert_false(take(&e, topic, "a", 1, 0));
    assert_true(take(&e, topic, NULL, 1, 0));
    nl_echoes_deinit(&e);
}

static void a_hidden_filter_is_any(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e);
    expect(&e, "a", 1, 0);
    expect(&e, NULL, 2, 0);
    assert_false(take_hidden(&e, topic, 3, 0));
    assert_true(take_hidden(&e, topic, 2, 0));
    assert_true(take_hidden(&e, topic, 1, 0));
    nl_echoes_deinit(&e);
}

static void the_wait_ends(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e);
    expect(&e, NULL, 1, 1000);
    expect(&e, NULL, 2, 2000);
    assert_true(take(&e, topic, NULL, 1, 1000 + NL_ECHO_WAIT_MS - 1));
    expect(&e, NULL, 3, 2000);
    assert_false(take(&e, topic, NULL, 2, 2000 + NL_ECHO_WAIT_MS));
    assert_false(nl_echoes_waiting(&e));
    nl_echoes_deinit(&e);
}

static void the_oldest_gives_way(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e);
    for (uint64_t n = 0; n <= NL_ECHOES_MAX; n++)
        expect(&e, NULL, n, 0);
    assert_int_equal(e.count, NL_ECHOES_MAX);
    assert_false(take(&e, topic, NULL, 0, 0));
    for (uint64_t n = 1; n <= NL_ECHOES_MAX; n++)
        assert_true(take(&e, topic, NULL, n, 0));
    assert_int_equal(e.count, 0);
    expect(&e, "left over", 1, 0);
    nl_echoes_deinit(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_copy_is_taken_once), cmocka_unit_test(topic_filter_and_data_must_be_equal),
        cmocka_unit_test(a_hidden_filter_is_any),  cmocka_unit_test(the_wait_ends),
        cmocka_unit_test(the_oldest_gives_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
