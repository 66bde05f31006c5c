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

/* A message of the broker: {"data": number, "from": from}, of which NULL is absent. */
static enum nl_echo_kind take_message(struct nl_echoes *e, const char *name, const char *key, uint64_t number,
                                      const char *from, uint64_t changed, uint64_t now, uint64_t *token) {
    struct nl_buffer whole, data, filter;
    struct nl_frame m = {.type = NL_FRAME_MESSAGE};
    enum nl_echo_kind kind;

    nl_buffer_init(&whole);
    nl_buffer_init(&data);
    nl_buffer_init(&filter);
    nl_pack_int(&data, (int64_t)number);
    if (from != NULL) {
        nl_pack_map(&whole, 1);
        nl_pack_str(&whole, nl_slice_str("from"));
        nl_pack_str(&whole, nl_slice_str(from));
        m.whole = nl_slice(whole.bytes, whole.len);
    }
    NL_FRAME_SET(&m, topic, nl_slice_str(name));
    NL_FRAME_SET(&m, data, nl_slice(data.bytes, data.len));
    if (key != NULL) {
        nl_pack_str(&filter, nl_slice_str(key));
        NL_FRAME_SET(&m, filter, nl_slice(filter.bytes, filter.len));
    }
    kind = nl_echoes_take(e, &m, nl_slice_str("me"), changed, now, token);
    nl_buffer_deinit(&whole);
    nl_buffer_deinit(&data);
    nl_buffer_deinit(&filter);
    return kind;
}

static bool take(struct nl_echoes *e, const char *name, const char *key, uint64_t number, uint64_t now) {
    uint64_t token;

    return take_message(e, name, key, number, NULL, 0, now, &token) == NL_ECHO_COPY;
}

static bool take_hidden(struct nl_echoes *e, const char *name, uint64_t number, uint64_t now) {
    return take(e, name, "#", number, now);
}

/* As it comes when upstream has changed. */
static bool take_retained(struct nl_echoes *e, const char *key, uint64_t number, uint64_t now) {
    uint64_t token = 0;
    enum nl_echo_kind kind = take_message(e, topic, key, number, NULL, now, now, &token);

    if (kind == NL_ECHO_RETAINED)
        assert_int_equal(token, number + 100);
    return kind == NL_ECHO_RETAINED;
}

static void expect(struct nl_echoes *e, const char *key, uint64_t number, uint64_t now) {
    struct nl_buffer data;

    nl_buffer_init(&data);
    nl_pack_int(&data, (int64_t)number);
    nl_echoes_expect(e, nl_slice_str(topic), key, nl_slice(data.bytes, data.len), number + 100, now);
    nl_buffer_deinit(&data);
}

static void each_copy_is_taken_once(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e, false, 42);
    assert_false(take(&e, topic, NULL, 1, 0));
    expect(&e, NULL, 1, 0);
    expect(&e, NULL, 1, 0);
    assert_true(take(&e, topic, NULL, 1, 0));
    assert_true(take(&e, topic, NULL, 1, 0));
    assert_false(take(&e, topic, NULL, 1, 0));
    nl_echoes_deinit(&e);
}

static void topic_filter_and_data_must_be_equal(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e, false, 42);
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
    nl_echoes_init(&e, false, 42);
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
    nl_echoes_init(&e, false, 42);
    expect(&e, NULL, 1, 1000);
    assert_true(take(&e, topic, NULL, 1, 1000 + NL_ECHO_FIRST_WAIT_MS - 1));
    expect(&e, NULL, 2, 2000);
    expect(&e, NULL, 3, 2000);
    assert_true(take(&e, topic, NULL, 3, 2000 + NL_ECHO_WAIT_MS - 1));
    assert_false(take(&e, topic, NULL, 2, 2000 + NL_ECHO_WAIT_MS));
    assert_null(e.expected.head);
    nl_echoes_deinit(&e);
}

static void the_oldest_gives_way(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e, false, 42);
    for (uint64_t n = 0; n <= NL_ECHOES_MAX; n++)
        expect(&e, NULL, n, 0);
    assert_int_equal(e.expected.count, NL_ECHOES_MAX);
    assert_false(take(&e, topic, NULL, 0, 0));
    for (uint64_t n = 1; n <= NL_ECHOES_MAX; n++)
        assert_true(take(&e, topic, NULL, n, 0));
    assert_int_equal(e.expected.count, 0);
    expect(&e, "left over", 1, 0);
    nl_echoes_deinit(&e);
}

static void somebody_elses_message_is_no_copy(void **state) {
    struct nl_echoes e;
    uint64_t token;

    (void)state;
    nl_echoes_init(&e, false, 42);
    expect(&e, NULL, 1, 0);
    assert_int_equal(take_message(&e, topic, NULL, 1, "other", 0, 0, &token), NL_ECHO_NONE);
    assert_int_equal(take_message(&e, topic, NULL, 1, "me", 0, 0, &token), NL_ECHO_COPY);
    nl_echoes_deinit(&e);
}

/* They are passed on, as they may be somebody else's; but after some in a row the next one is expected again.
 */
static void a_late_copy_shows_that_copies_come(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e, false, 42);
    for (uint64_t n = 0; n < NL_ECHOES_LATE; n++) {
        expect(&e, NULL, n, n * 2000);
        assert_false(take(&e, topic, NULL, n, n * 2000 + NL_ECHO_FIRST_WAIT_MS));
        assert_false(take(&e, topic, NULL, n, n * 2000 + NL_ECHO_FIRST_WAIT_MS)); /* counts once */
    }
    expect(&e, NULL, 9, 9000);
    assert_true(take(&e, topic, NULL, 9, 9000));
    nl_echoes_deinit(&e);
    /* One that does not come says that none comes. */
    nl_echoes_init(&e, false, 42);
    for (uint64_t n = 0; n < 3 * NL_ECHOES_LATE; n++) {
        expect(&e, NULL, n, n * 2000);
        assert_false(take(&e, topic, NULL, n % 3 == 2 ? 99 : n, n * 2000 + NL_ECHO_FIRST_WAIT_MS));
    }
    nl_echoes_deinit(&e);
    /* But not on a broker that is known to send none. */
    nl_echoes_init(&e, true, 42);
    expect(&e, NULL, 1, 0);
    assert_false(take(&e, topic, NULL, 1, 1));
    expect(&e, NULL, 2, 3000);
    assert_false(take(&e, topic, NULL, 2, 3000));
    nl_echoes_deinit(&e);
}

/* Where no copy came none is expected any more; where one came the next one may be late. */
static void whether_copies_come_is_learned(void **state) {
    struct nl_echoes e;

    (void)state;
    nl_echoes_init(&e, false, 42);
    expect(&e, NULL, 1, 0);
    assert_false(take(&e, topic, NULL, 9, NL_ECHO_FIRST_WAIT_MS));
    expect(&e, NULL, 2, NL_ECHO_WAIT_MS);
    assert_null(e.expected.head);
    assert_false(take(&e, topic, NULL, 2, 2 * NL_ECHO_WAIT_MS));
    expect(&e, NULL, 2, 2 * NL_ECHO_WAIT_MS);
    assert_null(e.expected.head);
    nl_echoes_down(&e); /* the next link may be to another broker */
    expect(&e, NULL, 3, NL_ECHO_WAIT_MS);
    assert_true(take(&e, topic, NULL, 3, NL_ECHO_WAIT_MS));
    expect(&e, NULL, 4, NL_ECHO_WAIT_MS);
    expect(&e, NULL, 5, 2 * NL_ECHO_WAIT_MS);
    assert_true(take(&e, topic, NULL, 5, 2 * NL_ECHO_WAIT_MS));
    nl_echoes_deinit(&e);
    nl_echoes_init(&e, true, 42);
    expect(&e, NULL, 1, 0);
    assert_false(take(&e, topic, NULL, 1, 0));
    nl_echoes_down(&e);
    expect(&e, NULL, 1, 0);
    assert_false(take(&e, topic, NULL, 1, 0));
    nl_echoes_deinit(&e);
}

/* A link lost before the copy: it comes as a retained message, once, and never beside a change upstream. */
static void a_lost_copy_comes_as_retained(void **state) {
    struct nl_echoes e;
    uint64_t token;

    (void)state;
    nl_echoes_init(&e, false, 42);
    expect(&e, "a", 1, 0);
    expect(&e, NULL, 2, 0);
    nl_echoes_down(&e);
    assert_false(take(&e, topic, "a", 1, 1));
    assert_true(take_retained(&e, "a", 1, 1000000));
    assert_false(take_retained(&e, "a", 1, 1000000));
    assert_false(take_retained(&e, "#", 2, 1000000));
    /* What came before it was published is not for it. */
    expect(&e, "b", 6, 500);
    nl_echoes_down(&e);
    assert_int_equal(take_message(&e, topic, "b", 6, NULL, 499, 2000, &token), NL_ECHO_NONE);
    assert_true(take_retained(&e, "b", 6, 2000));
    /* Another one has taken its place at the broker: an equal one later is not ours. */
    assert_false(take_retained(&e, NULL, 3, 1000000));
    assert_false(take_retained(&e, NULL, 2, 1000000));
    /* The broker keeps the last one. */
    expect(&e, NULL, 4, 0);
    expect(&e, NULL, 5, 1);
    nl_echoes_down(&e);
    assert_int_equal(e.kept.count, 1);
    assert_true(take_retained(&e, NULL, 5, 2));
    nl_echoes_deinit(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_copy_is_taken_once),
        cmocka_unit_test(topic_filter_and_data_must_be_equal),
        cmocka_unit_test(a_hidden_filter_is_any),
        cmocka_unit_test(the_wait_ends),
        cmocka_unit_test(the_oldest_gives_way),
        cmocka_unit_test(somebody_elses_message_is_no_copy),
        cmocka_unit_test(whether_copies_come_is_learned),
        cmocka_unit_test(a_late_copy_shows_that_copies_come),
        cmocka_unit_test(a_lost_copy_comes_as_retained),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
