/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deadlines of a session, by a clock of the test. The loop runs the session, then reads: what the broker
 * sends lies unread until then.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/model/session.h"
#include "protocol/frame.h"

#define INTERVAL 30000 /* the defaults */
#define TIMEOUT 10000
#define AUTH_TIMEOUT 10000

static struct nl_session *session;
static struct nl_session_config *config;
static uint64_t now;
static unsigned connects, disconnects, heartbeats;

static void op_connect(void *ctx) {
    (void)ctx;
    connects++;
}

static void op_disconnect(void *ctx) {
    (void)ctx;
    disconnects++;
}

static struct nl_arrival op_arrival(void *ctx) {
    (void)ctx;
    return (struct nl_arrival){.heartbeats = true};
}

static bool op_send(void *ctx, struct nl_slice frame) {
    (void)ctx;
    heartbeats += frame.len == 0;
    return true;
}

static uint64_t op_connect_delay(void *ctx, uint64_t now_ms) {
    (void)ctx;
    (void)now_ms;
    return 0;
}

static void op_changed(void *ctx, enum nl_session_state from, enum nl_session_state to,
                       const struct nl_ending *ending) {
    (void)ctx;
    (void)from;
    (void)to;
    (void)ending;
}

static uint64_t op_random(void *ctx) {
    (void)ctx;
    return 1;
}

static int64_t op_unix_time(void *ctx) {
    (void)ctx;
    return 0;
}

static void run_at(uint64_t ms) {
    now = ms;
    nl_session_run(session, now);
}

static void receive(struct nl_slice frame) {
    nl_session_link_frame(session, frame, now);
}

static void receive_auth(void) {
    struct nl_frame frame = {.type = NL_FRAME_AUTH};
    struct nl_buffer bytes;

    NL_FRAME_SET(&frame, success, true);
    NL_FRAME_SET(&frame, protocol_version, 2);
    nl_buffer_init(&bytes);
    nl_frame_encode(&frame, &bytes);
    receive(nl_slice(bytes.bytes, bytes.len));
    nl_buffer_deinit(&bytes);
}

/* A session whose link has just opened. */
static int setup(void **state) {
    static const struct nl_daemon_config limits;
    const struct nl_session_ops ops = {.connect = op_connect,
                                       .disconnect = op_disconnect,
                                       .send = op_send,
                                       .arrival = op_arrival,
                                       .connect_delay = op_connect_delay,
                                       .changed = op_changed,
                                       .random = op_random,
                                       .unix_time = op_unix_time};

    (void)state;
    connects = disconnects = heartbeats = 0;
    config = nl_session_config_like(NULL);
    nl_config_set_text(&config->token, "at_token");
    now = 1000;
    session = nl_session_new(config, false, &limits, &ops, now);
    run_at(1000);
    assert_int_equal(connects, 1);
    nl_session_link_opened(session, now);
    return 0;
}

static int teardown(void **state) {
    const struct nl_ending ending = {.reason = NL_REASON_STOPPED};

    (void)state;
    nl_session_stop(session, now);
    nl_session_link_closed(session, &ending, now);
    nl_session_free(session);
    nl_session_config_free(config);
    return 0;
}

static void make_live(void) {
    receive_auth();
    run_at(now);
    assert_int_equal(nl_session_state(session), NL_SESSION_LIVE);
}

/* Lets the session ask for a heartbeat, which is out when the next turn begins. Returns that turn's time. */
static uint64_t ask_heartbeat(void) {
    run_at(now + INTERVAL);
    assert_int_equal(heartbeats, 1);
    assert_true(nl_session_next(session, now) <= now + 1);
    run_at(now + 1);
    return now;
}

static void silence_is_judged_at_the_second_look(void **state) {
    uint64_t asked;

    (void)state;
    make_live();
    asked = ask_heartbeat();
    assert_int_equal(nl_session_next(session, now), asked + TIMEOUT);
    run_at(asked + TIMEOUT - 1);
    run_at(asked + TIMEOUT);
    assert_int_equal(disconnects, 0);
    assert_true(nl_session_next(session, now) <= now);
    run_at(asked + TIMEOUT + 1);
    assert_int_equal(disconnects, 1);
    assert_int_equal(nl_session_ending(session)->reason, NL_REASON_HEARTBEAT_TIMEOUT);
}

static void what_came_during_a_stall_is_read_first(void **state) {
    uint64_t asked;

    (void)state;
    make_live();
    asked = ask_heartbeat();
    run_at(asked + 100 * TIMEOUT);
    receive(nl_slice(NULL, 0));
    run_at(now + 1);
    assert_int_equal(disconnects, 0);
}

/* The heartbeat goes out at the end of a turn that takes longer than the broker may. */
static void time_begins_when_the_heartbeat_is_out(void **state) {
    (void)state;
    make_live();
    run_at(now + INTERVAL);
    run_at(now + 2 * TIMEOUT);
    run_at(now + 2 * TIMEOUT);
    assert_int_equal(disconnects, 0);
    receive(nl_slice(NULL, 0));
    run_at(now + 1);
    assert_int_equal(disconnects, 0);
}

/* Each further heartbeat without an answer gives no new time. */
static void more_heartbeats_do_not_help(void **state) {
    (void)state;
    config->heartbeat_interval_ms = TIMEOUT / 4;
    make_live();
    for (int i = 0; i < 8 && disconnects == 0; i++)
        run_at(now + TIMEOUT / 4);
    assert_true(heartbeats > 2);
    assert_int_equal(disconnects, 1);
}

static void the_auth_has_a_second_look_too(void **state) {
    (void)state;
    run_at(now + AUTH_TIMEOUT);
    assert_int_equal(disconnects, 0);
    run_at(now + 1);
    assert_int_equal(disconnects, 1);
    assert_int_equal(nl_session_ending(session)->reason, NL_REASON_AUTH);
}

static void an_auth_that_came_during_a_stall_counts(void **state) {
    (void)state;
    run_at(now + 100 * AUTH_TIMEOUT);
    make_live();
    assert_int_equal(disconnects, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(silence_is_judged_at_the_second_look),  TEST(what_came_during_a_stall_is_read_first),
        TEST(time_begins_when_the_heartbeat_is_out), TEST(more_heartbeats_do_not_help),
        TEST(the_auth_has_a_second_look_too),        TEST(an_auth_that_came_during_a_stall_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
