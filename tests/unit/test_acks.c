/* SPDX-License-Identifier: Apache-2.0 */
/* Acknowledgements: what is acknowledged, and when, as sends of lines end in all ways. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/acks.h"

struct world {
    struct nl_acks acks;
    bool full;
    unsigned wakes, batches, acked;
    unsigned last_batch;
    bool had[20000]; /* by the number in the msgId */
};

static struct world w;

static bool on_send(void *ctx, const struct nl_frame *frame) {
    struct nl_raw_iter it;
    struct nl_slice item, text;

    assert_ptr_equal(ctx, &w);
    if (w.full)
        return false;
    assert_int_equal(frame->type, NL_FRAME_BATCH_ACK);
    assert_true(nl_raw_array(frame->msg_ids, &it));
    w.batches++;
    w.last_batch = 0;
    while (nl_raw_next(&it, &item)) {
        char number[16] = "";

        assert_true(nl_raw_string(item, &text) && text.len < sizeof(number) && text.ptr[0] == 'm');
        memcpy(number, text.ptr + 1, text.len - 1);
        w.had[atoi(number)] = true;
        w.acked++;
        w.last_batch++;
    }
    return true;
}

static void on_wake(void *ctx) {
    (void)ctx;
    w.wakes++;
}

static int begin(void **state) {
    (void)state;
    memset(&w, 0, sizeof(w));
    nl_acks_init(&w.acks, &(struct nl_acks_ops){.send = on_send, .wake = on_wake, .ctx = &w});
    return 0;
}

static int end(void **state) {
    (void)state;
    nl_acks_deinit(&w.acks);
    return 0;
}

static struct nl_receipt *expect(const char *msg_id, bool requires_ack) {
    struct nl_frame frame = {.type = NL_FRAME_MESSAGE};

    if (msg_id != NULL)
        NL_FRAME_SET(&frame, msg_id, nl_slice_str(msg_id));
    NL_FRAME_SET(&frame, requires_ack, requires_ack);
    return nl_acks_expect(&w.acks, &frame);
}

static void got(unsigned number) {
    char msg_id[16];

    snprintf(msg_id, sizeof(msg_id), "m%u", number);
    nl_receipt_release(expect(msg_id, true), true);
}

static void what_asks_for_none(void **state) {
    (void)state;
    assert_null(expect(NULL, true));
    assert_null(expect("", true));
    assert_null(expect("m1", false));
    assert_null(expect("\xff", true));
    nl_receipt_release(NULL, true);
    assert_null(nl_receipt_hold(NULL));
}

static void a_batch_by_time(void **state) {
    (void)state;
    got(1);
    got(2);
    assert_int_equal(w.wakes, 1);
    nl_acks_run(&w.acks, true, 1000);
    assert_int_equal(w.batches, 0);
    assert_int_equal(nl_acks_next(&w.acks, true), 1000 + NL_ACK_DELAY_MS);
    got(3);
    nl_acks_run(&w.acks, true, 1000 + NL_ACK_DELAY_MS);
    assert_int_equal(w.batches, 1);
    assert_int_equal(w.acked, 3);
    assert_true(nl_acks_next(&w.acks, true) == UINT64_MAX);
}

static void a_batch_by_count(void **state) {
    (void)state;
    for (unsigned i = 0; i < NL_ACK_BATCH + 1; i++)
        got(i);
    assert_int_equal(w.wakes, 2);
    nl_acks_run(&w.acks, true, 1000);
    assert_int_equal(w.last_batch, NL_ACK_BATCH);
    assert_int_equal(w.acks.ready_count, 1);
    nl_acks_flush(&w.acks);
    assert_int_equal(w.acked, NL_ACK_BATCH + 1);
}

static void all_lines_must_end(void **state) {
    struct nl_receipt *r = expect("m7", true);
    struct nl_line *a = nl_line_new(nl_slice_str("a")), *b = nl_line_new(nl_slice_str("b"));

    (void)state;
    nl_line_set_watch(a, &r->watch);
    nl_line_set_watch(b, &r->watch);
    nl_line_ref(a);
    nl_receipt_hold(r);
    nl_receipt_release(r, false);
    nl_line_taken(a);
    nl_line_unref(a);
    nl_line_unref(b);
    nl_receipt_release(r, false);
    assert_int_equal(w.acks.ready_count, 0); /* one reference to a is left */
    nl_line_unref(a);
    assert_int_equal(w.acks.ready_count, 1);
}

static void nobody_got_it(void **state) {
    struct nl_receipt *r = expect("m8", true);
    struct nl_line *line = nl_line_new(nl_slice_str("x"));

    (void)state;
    nl_line_set_watch(line, &r->watch);
    nl_receipt_release(r, false);
    nl_line_unref(line);
    assert_int_equal(w.acks.ready_count, 0);
    assert_int_equal(w.acks.nobody, 1);
}

static void while_the_link_is_down(void **state) {
    (void)state;
    for (unsigned i = 0; i < NL_ACKS_MAX + 10; i++)
        got(i);
    nl_acks_run(&w.acks, false, 1000);
    assert_true(nl_acks_next(&w.acks, false) == UINT64_MAX);
    assert_int_equal(w.acks.forgotten, 10);
    w.full = true;
    nl_acks_run(&w.acks, true, 2000);
    assert_int_equal(w.acked, 0);
    assert_in_range(nl_acks_next(&w.acks, true), 2001, 2100);
    w.full = false;
    nl_acks_run(&w.acks, true, nl_acks_next(&w.acks, true));
    assert_int_equal(w.acked, NL_ACKS_MAX);
    assert_false(w.had[9]);
    assert_true(w.had[10]);
}

static void sent_again_unless_an_echo_came(void **state) {
    (void)state;
    got(1);
    nl_acks_flush(&w.acks);
    nl_acks_heartbeat(&w.acks, 1);
    got(2);
    nl_acks_flush(&w.acks);
    nl_acks_echo(&w.acks, 1); /* it was sent behind m1, before m2 */
    got(3);
    nl_acks_down(&w.acks);
    memset(w.had, 0, sizeof(w.had));
    nl_acks_run(&w.acks, true, 1000);
    nl_acks_run(&w.acks, true, 1000 + NL_ACK_DELAY_MS);
    assert_int_equal(w.last_batch, 2);
    assert_true(!w.had[1] && w.had[2] && w.had[3]);
    nl_acks_heartbeat(&w.acks, 1);
    nl_acks_echo(&w.acks, 1);
    nl_acks_down(&w.acks);
    assert_int_equal(w.acks.ready_count, 0);
}

/* A client's queue can outlive its session. */
static void lines_that_outlive_the_session(void **state) {
    struct nl_receipt *r = expect("m9", true);
    struct nl_line *line = nl_line_new(nl_slice_str("x"));

    nl_line_set_watch(line, &r->watch);
    nl_receipt_release(r, false);
    end(state);
    nl_line_taken(line);
    nl_line_unref(line);
    assert_int_equal(w.wakes, 0);
    begin(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_asks_for_none, begin, end),
        cmocka_unit_test_setup_teardown(a_batch_by_time, begin, end),
        cmocka_unit_test_setup_teardown(a_batch_by_count, begin, end),
        cmocka_unit_test_setup_teardown(all_lines_must_end, begin, end),
        cmocka_unit_test_setup_teardown(nobody_got_it, begin, end),
        cmocka_unit_test_setup_teardown(while_the_link_is_down, begin, end),
        cmocka_unit_test_setup_teardown(sent_again_unless_an_echo_came, begin, end),
        cmocka_unit_test_setup_teardown(lines_that_outlive_the_session, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
