/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session with a link and a clock made of test code. What it sends and what clients are told is read
 * as JSON text, and what the broker says is written as such. serve() is a broker that grants everything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/session.h"
#include "protocol/alloc.h"
#include "protocol/transcode.h"
#include "line_text.h"

enum { PEERS = 4, MAX_SENT = 4096, MAX_LINES = 4096, ANSWER = -1 };

struct told {
    unsigned peer;
    int event; /* ANSWER, or enum nl_event */
    char *text;
};

struct world {
    struct nl_session_config *config;
    struct nl_config *daemon;
    struct nl_session *s;
    struct nl_quotas quotas;
    struct nl_peer peers[PEERS];
    uint64_t now, random, connect_delay;
    unsigned connects, disconnects, rejected;
    bool link, link_full;
    bool slow_line; /* heartbeats are on their way */
    uint64_t arrived;
    char *sent[MAX_SENT]; /* as JSON; "" is a heartbeat */
    uint64_t sent_ms[MAX_SENT];
    unsigned sent_count, served, checked;
    struct told told[MAX_LINES];
    unsigned told_count, read[PEERS];
    enum nl_session_state state; /* as told by ops.changed */
};

/* ---- what the session is given ---- */

static void op_connect(void *ctx) {
    struct world *w = ctx;

    assert_false(w->link);
    w->link = true;
    w->connects++;
}

static void op_disconnect(void *ctx) {
    struct world *w = ctx;

    assert_true(w->link);
    w->disconnects++;
}

static char *json_of(struct nl_slice raw) {
    struct nl_buffer text;

    nl_buffer_init(&text);
    if (raw.len > 0) {
        size_t used;

        assert_int_equal(nl_scan(raw, NL_SCAN_MAX_DEPTH, &used), NL_SCAN_OK);
        assert_int_equal(used, raw.len);
        nl_json_from_msgpack(&text, raw, (struct nl_json_options){0});
    }
    nl_buffer_append_byte(&text, 0);
    return (char *)text.bytes;
}

static bool op_send(void *ctx, struct nl_slice frame) {
    struct world *w = ctx;

    assert_true(w->link);
    if (nl_session_state(w->s) == NL_SESSION_CLOSING || (w->link_full && frame.len > 0))
        return false;
    assert_true(w->sent_count < MAX_SENT);
    w->sent_ms[w->sent_count] = w->now;
    w->sent[w->sent_count++] = json_of(frame);
    return true;
}

static uint64_t op_connect_delay(void *ctx, uint64_t now_ms) {
    struct world *w = ctx;

    assert_int_equal(now_ms, w->now);
    return w->connect_delay;
}

static void tell(struct world *w, const struct nl_peer *peer, int event, struct nl_line *line) {
    struct told *t = &w->told[w->told_count];

    if (line == NULL)
        return;
    assert_true(w->told_count < MAX_LINES);
    *t = (struct told){(unsigned)(peer - w->peers), event, nl_test_line_dup(line)};
    w->told_count++;
    nl_line_unref(line);
}

static void op_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    tell(ctx, peer, ANSWER, line);
}

static void op_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    tell(ctx, peer, (int)event, line);
}

static void op_changed(void *ctx, enum nl_session_state from, enum nl_session_state to,
                       const struct nl_ending *ending) {
    struct world *w = ctx;

    assert_int_equal(from, w->state);
    assert_int_not_equal(from, to);
    assert_int_equal(ending != NULL, to == NL_SESSION_WAITING || to == NL_SESSION_STOPPED);
    w->state = to;
}

static struct nl_arrival op_arrival(void *ctx) {
    struct world *w = ctx;

    assert_true(w->link);
    return (struct nl_arrival){.bytes = w->arrived, .heartbeats = !w->slow_line};
}

static void op_rejected(void *ctx, uid_t uid, const char *topic) {
    struct world *w = ctx;

    w->rejected++;
    assert_true(uid >= 1000 && topic[0] != '\0');
}

static void op_wake(void *ctx) {
    (void)ctx; /* the tests run it after everything anyway */
}

static uint64_t op_random(void *ctx) {
    struct world *w = ctx;

    return w->random;
}

static int64_t op_unix_time(void *ctx) {
    struct world *w = ctx;

    return (int64_t)(w->now / 1000);
}

/* ---- the world ---- */

static struct world *world_new(void) {
    struct world *w = nl_calloc(1, sizeof(*w));

    w->now = 100000;
    w->daemon = nl_config_new();
    w->config = nl_config_add_session(w->daemon, "main");
    nl_config_set_text(&w->config->url, "ws://broker.example/ws");
    nl_config_set_text(&w->config->token, "tok-secret");
    nl_quotas_init(&w->quotas);
    return w;
}

/* Call after the settings are made. */
static void start(struct world *w) {
    struct nl_session_ops ops = {.connect = op_connect,
                                 .disconnect = op_disconnect,
                                 .send = op_send,
                                 .arrival = op_arrival,
                                 .connect_delay = op_connect_delay,
                                 .answer = op_answer,
                                 .event = op_event,
                                 .changed = op_changed,
                                 .rejected = op_rejected,
                                 .wake = op_wake,
                                 .random = op_random,
                                 .unix_time = op_unix_time,
                                 .ctx = w};

    w->s = nl_session_new(w->config, true, &w->daemon->daemon, &ops, w->now);
    for (unsigned p = 0; p < PEERS; p++) {
        w->peers[p].uid = 1000 + p;
        w->peers[p].quota = nl_quota_ref(&w->quotas, 1000 + p);
        nl_session_attach(w->s, &w->peers[p]);
    }
}

static void run(struct world *w) {
    nl_session_run(w->s, w->now);
}

/* Lets time pass, running the session when it asks for it and at no other time. */
static void pass(struct world *w, uint64_t ms) {
    uint64_t end = w->now + ms;

    for (int rounds = 0;; rounds++) {
        uint64_t at = nl_session_next(w->s, w->now);

        if (at > end)
            break;
        w->now = at > w->now ? at : w->now;
        run(w);
        assert_true(rounds < 100000);
    }
    w->now = end;
}

static void closed(struct world *w, enum nl_reason reason, int code) {
    struct nl_ending ending = {.reason = reason, .close_code = code};

    assert_true(w->link);
    w->link = false;
    w->served = w->sent_count;
    nl_session_link_closed(w->s, &ending, w->now);
    run(w);
}

static void world_free(struct world *w) {
    nl_session_stop(w->s, w->now);
    if (w->link)
        closed(w, NL_REASON_STOPPED, 0);
    assert_int_equal(nl_session_state(w->s), NL_SESSION_STOPPED);
    for (unsigned p = 0; p < PEERS; p++) {
        if (w->peers[p].session != NULL)
            nl_session_detach(w->s, &w->peers[p], w->now);
        assert_int_equal(w->peers[p].pending, 0);
        nl_quota_unref(w->peers[p].quota);
    }
    nl_session_free(w->s);
    nl_quotas_deinit(&w->quotas);
    nl_config_free(w->daemon);
    for (unsigned i = 0; i < w->sent_count; i++)
        free(w->sent[i]);
    for (unsigned i = 0; i < w->told_count; i++)
        free(w->told[i].text);
    free(w);
}

/* ---- the broker ---- */

static void frame(struct world *w, const char *json) {
    struct json_object *o = NULL;
    struct nl_buffer raw;
    const char *why;

    nl_buffer_init(&raw);
    if (json[0] != '\0') {
        assert_int_equal(nl_json_parse(nl_slice_str(json), 32, &o), NL_OK);
        assert_int_equal(nl_msgpack_from_json(&raw, o, NL_PACK_TAGGED, &why), NL_OK);
        json_object_put(o);
    }
    nl_session_link_frame(w->s, nl_slice(raw.bytes, raw.len), w->now);
    nl_buffer_deinit(&raw);
    run(w);
}

static const char *text_of(struct json_object *o, const char *key) {
    struct json_object *v;

    return json_object_object_get_ex(o, key, &v) ? json_object_get_string(v) : "";
}

/* The answer that grants what was sent; false when there is none. */
static bool grant(const char *sent, char *answer, size_t size) {
    static const char *const answers[][2] = {{"subscribe", "subscribed"},
                                             {"unsubscribe", "unsubscribed"},
                                             {"setFilters", "filtersUpdated"},
                                             {"publish", "published"}};
    struct json_object *o = json_tokener_parse(sent);
    bool known = false;

    for (unsigned i = 0; o != NULL && i < 4 && !known; i++) {
        known = strcmp(text_of(o, "type"), answers[i][0]) == 0;
        if (i < 3)
            snprintf(answer, size, "{\"type\":\"%s\",\"topic\":\"%s\"}", answers[i][1], text_of(o, "topic"));
        else
            snprintf(answer, size, "{\"type\":\"published\",\"topic\":\"%s\",\"msgRef\":\"%s\"}",
                     text_of(o, "topic"), text_of(o, "msgRef"));
    }
    json_object_put(o);
    return known;
}

/* Grants all that was sent and not answered yet, heartbeats too. */
static void serve(struct world *w) {
    char answer[512];

    run(w);
    while (w->served < w->sent_count) {
        const char *sent = w->sent[w->served++];

        if (sent[0] == '\0')
            frame(w, "");
        else if (grant(sent, answer, sizeof(answer)))
            frame(w, answer);
    }
}

static void open_link(struct world *w) {
    run(w);
    assert_int_equal(nl_session_state(w->s), NL_SESSION_CONNECTING);
    nl_session_link_opened(w->s, w->now);
    run(w);
    assert_int_equal(nl_session_state(w->s), NL_SESSION_AUTHENTICATING);
}

static const char auth_success[] =
    "{\"type\":\"auth\",\"success\":true,\"actorTokenId\":\"alice\",\"projectId\":\"p1\","
    "\"actorType\":\"user\",\"protocolVersion\":2,\"restoredSubscriptions\":[]}";

static void go_live(struct world *w) {
    open_link(w);
    frame(w, auth_success);
    serve(w);
    assert_int_equal(nl_session_state(w->s), NL_SESSION_LIVE);
    w->checked = w->sent_count;
}

static struct world *live_world(void) {
    struct world *w = world_new();

    start(w);
    go_live(w);
    return w;
}

/* The link is lost and comes back as soon as the session wants it. */
static void reconnect(struct world *w) {
    closed(w, NL_REASON_LOST, 0);
    pass(w, w->config->reconnect_interval_ms); /* no first retry is later */
    go_live(w);
}

/* ---- clients ---- */

static void request(struct world *w, unsigned p, const char *json) {
    struct nl_request r;
    struct nl_refusal refusal;

    assert_int_equal(nl_request_parse(nl_slice_str(json), 32, &r, &refusal), NL_OK);
    nl_session_request(w->s, &w->peers[p], &r, w->now);
    nl_request_deinit(&r);
    run(w);
}

/* The next line that peer p was told and the test has not read, or NULL. */
static const struct told *next_told(struct world *w, unsigned p) {
    while (w->read[p] < w->told_count) {
        const struct told *t = &w->told[w->read[p]++];

        if (t->peer == p)
            return t;
    }
    return NULL;
}

#define assert_told(w, p, kind, expected)                                                                    \
    do {                                                                                                     \
        const struct told *t_ = next_told((w), (p));                                                         \
        assert_non_null(t_);                                                                                 \
        assert_string_equal(t_->text, (expected));                                                           \
        assert_int_equal(t_->event, (kind));                                                                 \
    } while (0)

/* The line begins like that. */
#define assert_told_like(w, p, kind, beginning)                                                              \
    do {                                                                                                     \
        const struct told *t_ = next_told((w), (p));                                                         \
        assert_non_null(t_);                                                                                 \
        assert_memory_equal(t_->text, (beginning), strlen(beginning));                                       \
        assert_int_equal(t_->event, (kind));                                                                 \
    } while (0)

#define assert_nothing_told(w, p) assert_null(next_told((w), (p)))

#define assert_sent(w, expected)                                                                             \
    do {                                                                                                     \
        assert_true((w)->checked < (w)->sent_count);                                                         \
        assert_string_equal((w)->sent[(w)->checked++], (expected));                                          \
    } while (0)

#define assert_nothing_sent(w) assert_int_equal((w)->checked, (w)->sent_count)

#define assert_state(w, expected) assert_int_equal(nl_session_state((w)->s), NL_SESSION_##expected)

/* ---- auth ---- */

static void the_first_frame_is_auth(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    assert_int_equal(nl_session_ending(w->s)->reason, NL_REASON_STARTING);
    open_link(w);
    assert_sent(w, "{\"type\":\"auth\",\"token\":\"tok-secret\",\"protocolVersion\":2}");
    assert_nothing_sent(w);
    assert_false(nl_session_up(w->s));
    frame(w, auth_success);
    assert_state(w, LIVE);
    assert_true(nl_session_up(w->s));
    assert_int_equal(nl_session_stats(w->s)->connects, 1);
    world_free(w);
}

static void reconnect_true_only_after_having_been_live(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    open_link(w);
    closed(w, NL_REASON_LOST, 0);
    pass(w, 60000);
    w->checked = w->sent_count;
    open_link(w);
    assert_sent(w, "{\"type\":\"auth\",\"token\":\"tok-secret\",\"protocolVersion\":2}");
    frame(w, auth_success);
    assert_state(w, LIVE);
    closed(w, NL_REASON_LOST, 0);
    pass(w, 60000);
    open_link(w);
    assert_sent(w, "{\"type\":\"auth\",\"token\":\"tok-secret\",\"protocolVersion\":2,\"reconnect\":true}");
    world_free(w);
}

/* Stored AND groups make the broker's restore fail: then it is done without. */
static void plain_auth_after_1011_in_auth(void **state) {
    static const char plain[] = "{\"type\":\"auth\",\"token\":\"tok-secret\",\"protocolVersion\":2}";
    static const char again[] =
        "{\"type\":\"auth\",\"token\":\"tok-secret\",\"protocolVersion\":2,\"reconnect\":true}";
    struct world *w = live_world();

    (void)state;
    closed(w, NL_REASON_LOST, 0);
    pass(w, 60000);
    open_link(w);
    assert_sent(w, again);
    closed(w, NL_REASON_CLOSED, 1011);
    pass(w, 60000);
    open_link(w);
    assert_sent(w, plain);
    /* Another kind of failure changes nothing about it. */
    closed(w, NL_REASON_LOST, 0);
    pass(w, 60000);
    open_link(w);
    assert_sent(w, plain);
    frame(w, auth_success);
    assert_state(w, LIVE);
    closed(w, NL_REASON_LOST, 0);
    pass(w, 60000);
    open_link(w);
    assert_sent(w, again);
    world_free(w);
}

static void auth_has_a_deadline(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    open_link(w);
    pass(w, w->config->auth_timeout_ms - 1);
    assert_int_equal(w->disconnects, 0);
    pass(w, 1);
    assert_int_equal(w->disconnects, 1);
    assert_state(w, CLOSING);
    closed(w, NL_REASON_STOPPED, 0);
    assert_state(w, WAITING);
    assert_int_equal(nl_session_ending(w->s)->reason, NL_REASON_AUTH);
    world_free(w);
}

static uint64_t retry_after(struct world *w, const char *answer) {
    uint64_t from = w->now;

    open_link(w);
    frame(w, answer);
    assert_state(w, CLOSING);
    closed(w, NL_REASON_STOPPED, 0);
    assert_state(w, WAITING);
    while (nl_session_state(w->s) == NL_SESSION_WAITING)
        pass(w, nl_session_next(w->s, w->now) - w->now);
    return w->now - from;
}

static void a_denied_token_is_tried_again_slowly(void **state) {
    struct world *w = world_new();
    uint64_t wait;

    (void)state;
    start(w);
    wait = retry_after(w, "{\"type\":\"auth\",\"success\":false,\"error\":\"access_denied\"}");
    assert_in_range(wait, w->config->denied_interval_ms * 9 / 10, w->config->denied_interval_ms * 11 / 10);
    assert_int_equal(nl_session_ending(w->s)->reason, NL_REASON_ACCESS_DENIED);
    wait = retry_after(w, "{\"type\":\"auth\",\"success\":false,\"error\":\"connection_limit_reached\"}");
    assert_in_range(wait, 1, w->config->reconnect_interval_ms * 2);
    assert_int_equal(nl_session_ending(w->s)->reason, NL_REASON_CONNECTION_LIMIT);
    wait = retry_after(w, "{\"type\":\"auth\",\"success\":false,\"error\":\"broker_unavailable\"}");
    assert_in_range(wait, 1, w->config->reconnect_interval_ms * 4);
    assert_int_equal(nl_session_ending(w->s)->reason, NL_REASON_AUTH);
    assert_string_equal(nl_session_ending(w->s)->detail, "broker_unavailable");
    world_free(w);
}

/* Not in `status`, not in events, not in the log. */
static void a_token_that_the_broker_quotes_is_hidden(void **state) {
    struct nl_ending quoting = {.reason = NL_REASON_CLOSED, .close_code = 1008, .detail = "bad tok-secret!"};
    struct world *w = world_new();

    (void)state;
    start(w);
    open_link(w);
    frame(w, "{\"type\":\"auth\",\"success\":false,\"error\":\"token tok-secret is not known\"}");
    closed(w, NL_REASON_STOPPED, 0);
    assert_string_equal(nl_session_ending(w->s)->detail, "token (token)");
    pass(w, 60000);
    open_link(w);
    w->link = false;
    nl_session_link_closed(w->s, &quoting, w->now);
    assert_string_equal(nl_session_ending(w->s)->detail, "bad (token)");
    world_free(w);
}

static void odd_auth_answers_are_refusals(void **state) {
    struct world *w = world_new();
    char longest[400] = "{\"type\":\"auth\",\"success\":false,\"error\":\"";

    (void)state;
    start(w);
    open_link(w);
    frame(w, "{\"type\":\"auth\"}");
    assert_state(w, CLOSING);
    closed(w, NL_REASON_STOPPED, 0);
    pass(w, 60000);
    open_link(w);
    frame(w, "{\"type\":\"auth\",\"success\":\"yes\"}");
    assert_state(w, CLOSING);
    closed(w, NL_REASON_STOPPED, 0);
    pass(w, 60000);
    open_link(w);
    memset(longest + strlen(longest), 'x', 300);
    strcat(longest, "\"}");
    frame(w, longest);
    assert_int_equal(strlen(nl_session_ending(w->s)->detail), sizeof(((struct nl_ending *)0)->detail) - 1);
    world_free(w);
}

/* What the link tells, but asking to wait is heard. */
static void how_the_link_ended_decides_on_the_wait(void **state) {
    struct nl_ending busy = {.reason = NL_REASON_UPGRADE, .retry_after_ms = 120000};
    struct nl_ending revoked = {.reason = NL_REASON_REVOKED, .close_code = 4001, .slow = true};
    struct world *w = world_new();

    (void)state;
    start(w);
    run(w);
    w->link = false;
    nl_session_link_closed(w->s, &busy, w->now);
    assert_int_equal(nl_session_next(w->s, w->now), w->now + 120000);
    pass(w, 120000);
    assert_int_equal(w->connects, 2);
    w->link = false;
    nl_session_link_closed(w->s, &revoked, w->now);
    assert_true(nl_session_next(w->s, w->now) >= w->now + w->config->denied_interval_ms * 9 / 10);
    world_free(w);
}

static void the_limiter_over_all_sessions_is_asked(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    w->connect_delay = 700;
    run(w);
    assert_int_equal(w->connects, 0);
    assert_int_equal(nl_session_next(w->s, w->now), w->now + 700);
    w->connect_delay = 0;
    pass(w, 700);
    assert_int_equal(w->connects, 1);
    assert_int_equal(nl_session_stats(w->s)->attempts, 1);
    world_free(w);
}

/* ---- backoff and attempts ---- */

/* Lets the link fail at once; returns the wait that follows. */
static uint64_t fail_once(struct world *w) {
    run(w);
    assert_state(w, CONNECTING);
    closed(w, NL_REASON_CONNECT, 0);
    return nl_session_next(w->s, w->now) - w->now;
}

/* ops.random gives 0 or the highest number: the shortest wait, or nearly the longest. */
static uint64_t longest_wait(struct world *w) {
    uint64_t wait;

    w->random = 0;
    wait = fail_once(w);
    assert_in_range(wait, w->config->reconnect_interval_ms / 10, w->config->reconnect_interval_ms);
    pass(w, wait);
    return wait;
}

static void the_wait_grows_until_the_link_was_stable(void **state) {
    struct world *w = world_new();
    uint64_t wait = 0;

    (void)state;
    start(w);
    longest_wait(w);
    /* A spread of one more than the range of the first wait gives its remainder: compare many. */
    for (int i = 0; i < 20; i++) {
        w->random = UINT64_C(0x123456789abcdef) * (uint64_t)(i + 1);
        wait = fail_once(w);
        assert_true(wait <= w->config->reconnect_max_interval_ms);
        pass(w, wait);
    }
    /* Live, but not for long: still failing. random 0 is the shortest wait, 10000 more tells the range. */
    go_live(w);
    pass(w, w->config->stable_after_ms - 1);
    serve(w);
    w->random = 50000;
    closed(w, NL_REASON_LOST, 0);
    assert_true(nl_session_next(w->s, w->now) - w->now > 40000);
    pass(w, 60000);
    go_live(w);
    pass(w, w->config->stable_after_ms);
    serve(w);
    closed(w, NL_REASON_LOST, 0);
    assert_true(nl_session_next(w->s, w->now) - w->now <= w->config->reconnect_interval_ms);
    world_free(w);
}

/* How many links a session asks for that never come up, and after one that did. */
static void count_attempts(uint64_t max, bool reconnects, unsigned before, unsigned after) {
    struct world *w = world_new();

    w->config->max_reconnect_attempts = max;
    w->config->reconnect = reconnects;
    start(w);
    for (unsigned i = 0; i < 20; i++) {
        pass(w, 60000);
        if (w->link)
            closed(w, NL_REASON_CONNECT, 0);
    }
    assert_int_equal(w->connects, before);
    if (before < 20) {
        assert_state(w, STOPPED);
        assert_int_equal(nl_session_ending(w->s)->reason, NL_REASON_ATTEMPTS);
    }
    world_free(w);
    w = world_new();
    w->config->max_reconnect_attempts = max;
    w->config->reconnect = reconnects;
    start(w);
    go_live(w);
    for (unsigned i = 0; i < 20; i++) {
        if (w->link)
            closed(w, NL_REASON_CONNECT, 0);
        pass(w, 60000);
    }
    assert_int_equal(w->connects, after);
    world_free(w);
}

static void attempts_are_counted(void **state) {
    (void)state;
    count_attempts(0, true, 1, 1);
    count_attempts(1, true, 2, 2);
    count_attempts(3, true, 4, 4);
    count_attempts(UINT64_MAX, true, 20, 21);
    count_attempts(UINT64_MAX, false, 1, 1);
}

static void each_time_live_gives_all_attempts_again(void **state) {
    struct world *w = world_new();

    (void)state;
    w->config->max_reconnect_attempts = 2;
    start(w);
    go_live(w);
    for (int i = 0; i < 5; i++) {
        closed(w, NL_REASON_LOST, 0);
        pass(w, 60000);
        closed(w, NL_REASON_CONNECT, 0);
        assert_state(w, WAITING);
        pass(w, 60000);
        go_live(w);
    }
    world_free(w);
}

/* ---- heartbeats ---- */

static void a_heartbeat_comes_an_interval_after_the_last_frame_sent(void **state) {
    struct world *w = live_world();

    (void)state;
    /* Messages come in all the time, nothing goes out: the broker counts only what it receives. */
    for (int second = 0; second < 29; second++) {
        pass(w, 1000);
        frame(w, "{\"type\":\"message\",\"topic\":\"app/room/x\",\"data\":1}");
    }
    assert_nothing_sent(w);
    pass(w, 1000);
    assert_sent(w, "");
    assert_nothing_sent(w);
    serve(w);
    pass(w, 29999);
    assert_nothing_sent(w);
    pass(w, 1);
    assert_sent(w, "");
    world_free(w);
}

static void what_goes_out_does_not_hide_that_nothing_comes_in(void **state) {
    struct world *w = live_world();
    unsigned heartbeats = 0;

    (void)state;
    /* A publish every second, and the broker is dead. */
    for (int second = 0; second < 45 && w->disconnects == 0; second++) {
        request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1}");
        pass(w, 1000);
    }
    for (unsigned i = 0; i < w->sent_count; i++)
        heartbeats += w->sent[i][0] == '\0';
    assert_int_equal(heartbeats, 1);
    assert_int_equal(w->disconnects, 1);
    /* A second after the first one that got no answer. */
    assert_int_equal(w->now, 101000 + w->config->heartbeat_timeout_ms);
    closed(w, NL_REASON_STOPPED, 0);
    assert_int_equal(nl_session_ending(w->s)->reason, NL_REASON_HEARTBEAT_TIMEOUT);
    world_free(w);
}

static void anything_that_comes_is_a_sign_of_life(void **state) {
    struct world *w = live_world();

    (void)state;
    pass(w, w->config->heartbeat_interval_ms + w->config->heartbeat_timeout_ms - 1);
    assert_sent(w, "");
    frame(w, "{\"type\":\"message\",\"topic\":\"app/room/x\",\"data\":1}");
    pass(w, w->config->heartbeat_timeout_ms);
    assert_int_equal(w->disconnects, 0);
    world_free(w);
}

static void no_interval_no_heartbeats(void **state) {
    struct world *w = world_new();

    (void)state;
    w->config->heartbeat_interval_ms = 0;
    start(w);
    go_live(w);
    pass(w, 3600000);
    assert_nothing_sent(w);
    assert_int_equal(w->disconnects, 0);
    world_free(w);
}

static void after_a_suspend_a_heartbeat_goes_at_once(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    nl_session_resumed(w->s, w->now);
    assert_nothing_sent(w);
    go_live(w);
    nl_session_resumed(w->s, w->now);
    assert_sent(w, "");
    pass(w, w->config->heartbeat_timeout_ms);
    assert_int_equal(w->disconnects, 1);
    world_free(w);
}

/* ---- a reconnect ---- */

static void subscriptions_are_back_before_anything_is_published(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":1}");
    serve(w);
    assert_told(
        w, 0, ANSWER,
        "{\"type\":\"subscribed\",\"id\":1,\"topic\":\"app/room/t\",\"loadBalance\":false,\"qos\":1}");
    closed(w, NL_REASON_LOST, 0);
    assert_told(w, 0, NL_EVENT_DISCONNECT,
                "{\"type\":\"disconnect\",\"session\":\"main\",\"reason\":\"lost\"}");
    request(w, 1, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":2}");
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/u\",\"id\":3}");
    assert_told(w, 1, ANSWER,
                "{\"type\":\"subscribed\",\"id\":3,\"topic\":\"app/room/u\",\"loadBalance\":false,\"qos\":1,"
                "\"pending\":true}");
    pass(w, 10000);
    w->checked = w->sent_count;
    open_link(w);
    assert_sent(w, "{\"type\":\"auth\",\"token\":\"tok-secret\",\"protocolVersion\":2,\"reconnect\":true}");
    frame(w, auth_success);
    assert_sent(w, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"qos\":1}");
    assert_sent(w, "{\"type\":\"subscribe\",\"topic\":\"app/room/u\",\"qos\":1}");
    pass(w, 5000);
    assert_nothing_sent(w);
    assert_state(w, RESTORING);
    frame(w, "{\"type\":\"subscribed\",\"topic\":\"app/room/u\"}");
    assert_nothing_sent(w);
    assert_nothing_told(w, 0);
    frame(w, "{\"type\":\"subscribed\",\"topic\":\"app/room/t\"}");
    assert_state(w, LIVE);
    assert_told(w, 0, NL_EVENT_RECONNECT, "{\"type\":\"reconnect\",\"session\":\"main\"}");
    assert_told(w, 1, NL_EVENT_RECONNECT, "{\"type\":\"reconnect\",\"session\":\"main\"}");
    assert_sent(w, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"msgRef\":\"1\",\"qos\":1,"
                   "\"echo\":false}");
    /* Who holds nothing is told nothing of all this. */
    assert_nothing_told(w, 2);
    world_free(w);
}

static void a_link_that_dies_while_restoring_was_no_reconnect(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":1}");
    serve(w);
    closed(w, NL_REASON_CLOSED, 1001);
    assert_told_like(w, 0, ANSWER, "{\"type\":\"subscribed\"");
    assert_told(w, 0, NL_EVENT_DISCONNECT,
                "{\"type\":\"disconnect\",\"session\":\"main\",\"reason\":\"closed\",\"code\":1001}");
    for (int i = 0; i < 3; i++) {
        pass(w, 60000);
        open_link(w);
        frame(w, auth_success);
        assert_state(w, RESTORING);
        closed(w, NL_REASON_LOST, 0);
    }
    pass(w, 60000);
    go_live(w);
    assert_told(w, 0, NL_EVENT_RECONNECT, "{\"type\":\"reconnect\",\"session\":\"main\"}");
    assert_nothing_told(w, 0);
    assert_int_equal(nl_session_stats(w->s)->connects, 2);
    world_free(w);
}

static void the_first_time_is_connect_and_only_for_holders(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":1}");
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"*\",\"id\":1}");
    assert_told_like(w, 0, ANSWER, "{\"type\":\"subscribed\"");
    assert_told(w, 1, ANSWER, "{\"type\":\"subscribed\",\"id\":1,\"topic\":\"*\"}");
    go_live(w);
    assert_told(w, 0, NL_EVENT_CONNECT, "{\"type\":\"connect\",\"session\":\"main\"}");
    assert_told(w, 1, NL_EVENT_CONNECT, "{\"type\":\"connect\",\"session\":\"main\"}");
    assert_nothing_told(w, 2);
    world_free(w);
}

/* ---- publishing ---- */

static void a_publish_goes_to_the_others_when_the_broker_has_taken_it(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 0);
    next_told(w, 1);
    w->checked = w->sent_count;
    request(w, 0,
            "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":{\"a\":1},\"id\":\"x\","
            "\"msgRef\":\"mine\"}");
    assert_sent(w, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":{\"a\":1},\"msgRef\":\"1\","
                   "\"qos\":1,\"echo\":false}");
    assert_nothing_told(w, 1);
    assert_int_equal(w->peers[0].pending, 1);
    serve(w);
    assert_told(w, 1, NL_EVENT_MESSAGE,
                "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":{\"a\":1},\"from\":\"alice\"}");
    assert_told(w, 0, ANSWER,
                "{\"type\":\"published\",\"id\":\"x\",\"topic\":\"app/room/t\",\"msgRef\":\"mine\"}");
    assert_nothing_told(w, 0);
    assert_int_equal(w->peers[0].pending, 0);
    /* Silent without id and msgRef. */
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":null}");
    serve(w);
    assert_nothing_told(w, 0);
    assert_int_equal(w->peers[0].pending, 0);
    world_free(w);
}

static void own_messages_echo_brings_it_back(void **state) {
    struct world *w = world_new();

    (void)state;
    w->config->own_messages = NL_OWN_ECHO;
    start(w);
    go_live(w);
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"filters\":[\"a\"]}");
    serve(w);
    next_told(w, 0);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"filter\":\"b\"}");
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":2,\"filter\":\"a\"}");
    serve(w);
    assert_told(w, 0, NL_EVENT_MESSAGE,
                "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":2,\"filter\":\"a\",\"from\":"
                "\"alice\"}");
    assert_nothing_told(w, 0);
    world_free(w);
}

static void refusals_of_the_broker_reach_who_published(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 0);
    request(w, 1, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    frame(w, "{\"type\":\"error\",\"error\":\"unknown_topic\",\"code\":42940,\"hint\":\"h\","
             "\"topic\":\"app/room/t\",\"msgRef\":\"1\"}");
    assert_told_like(w, 1, ANSWER, "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,");
    assert_non_null(strstr(w->told[w->told_count - 1].text, "\"error\":\"unknown_topic\""));
    assert_non_null(strstr(w->told[w->told_count - 1].text, "\"code\":42940"));
    assert_null(strstr(w->told[w->told_count - 1].text, "msgRef"));
    assert_nothing_told(w, 0);
    assert_int_equal(w->peers[1].pending, 0);
    world_free(w);
}

static void the_largest_message_is_learned(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":\"0123456789\",\"id\":1}");
    frame(w, "{\"type\":\"error\",\"error\":\"message_too_large\",\"code\":42930,\"maxSizeBytes\":10,"
             "\"msgRef\":\"1\"}");
    assert_told_like(w, 0, ANSWER, "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,");
    w->checked = w->sent_count;
    /* Eleven bytes packed, ten may be. */
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":\"0123456789\",\"id\":2}");
    assert_nothing_sent(w);
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":2,\"error\":\"message_too_large\","
                     "\"code\":42930,\"topic\":\"app/room/t\",");
    assert_non_null(strstr(w->told[w->told_count - 1].text, "\"maxSizeBytes\":10"));
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":\"012345678\",\"id\":3}");
    serve(w);
    assert_told_like(w, 0, ANSWER, "{\"type\":\"published\",\"id\":3,");
    assert_int_equal(w->peers[0].pending, 0);
    world_free(w);
}

/* Other errors may have such a field by accident, and the next auth may come with another plan. */
static void the_largest_message_is_not_learned_from_anything(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":\"0123456789\",\"id\":1}");
    frame(w, "{\"type\":\"error\",\"error\":\"x\",\"code\":42920,\"maxSizeBytes\":10,\"msgRef\":\"1\"}");
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":\"0123456789\",\"id\":2}");
    frame(w, "{\"type\":\"error\",\"error\":\"message_too_large\",\"code\":42930,\"maxSizeBytes\":10,"
             "\"msgRef\":\"2\"}");
    reconnect(w);
    w->served = w->sent_count;
    w->read[0] = w->told_count;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":\"0123456789\",\"id\":3}");
    serve(w);
    assert_told_like(w, 0, ANSWER, "{\"type\":\"published\",\"id\":3,");
    world_free(w);
}

static void local_refusals(void **state) {
    struct world *w = world_new();

    (void)state;
    w->config->outbox_max_messages = 1;
    start(w);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":{\"$bytes\":\"!\"},\"id\":1}");
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,\"error\":\"bad_payload\",");
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":2}");
    assert_nothing_told(w, 0);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":3,\"msgRef\":\"r\"}");
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":3,\"error\":\"outbox_full\",");
    assert_non_null(strstr(w->told[w->told_count - 1].text, "\"retryAfterMs\":"));
    assert_non_null(strstr(w->told[w->told_count - 1].text, "\"msgRef\":\"r\""));
    assert_int_equal(w->peers[0].pending, 1);
    pass(w, w->config->ttl_ms);
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":2,\"error\":\"timeout\",");
    world_free(w);
}

static void what_was_in_flight_goes_again(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    reconnect(w);
    serve(w);
    assert_told(w, 0, ANSWER,
                "{\"type\":\"published\",\"id\":1,\"topic\":\"app/room/t\",\"redelivered\":true}");
    world_free(w);
}

/* A heartbeat behind it was echoed: the broker has passed it over. */
static void an_ignored_publish_is_told(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    pass(w, 1000);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":2,\"id\":2}");
    frame(w, "");
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,\"error\":\"broker_ignored\",");
    /* The second one was sent behind the heartbeat. */
    assert_nothing_told(w, 0);
    world_free(w);
}

/* Other traffic shows that the link is alive, and keeps its heartbeats away, but says nothing about a
 * publish. */
static void traffic_does_not_hide_an_ignored_publish(void **state) {
    struct world *w = world_new();

    (void)state;
    w->config->heartbeat_interval_ms = 0;
    start(w);
    go_live(w);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    w->served = w->sent_count;
    for (int i = 0; i < 8; i++) {
        request(w, 1,
                i % 2 == 0 ? "{\"type\":\"subscribe\",\"topic\":\"app/room/u\"}"
                           : "{\"type\":\"unsubscribe\",\"topic\":\"app/room/u\"}");
        pass(w, 250);
        serve(w);
    }
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,\"error\":\"broker_ignored\",");
    world_free(w);
}

/* A heartbeat behind a megabyte on a slow line takes its time; on one where nothing arrives any more it does
 * not. */
static void what_is_on_its_way_is_waited_for(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    w->slow_line = true;
    for (int second = 0; second < 300; second++) {
        w->arrived += 1000;
        pass(w, 1000);
        if (second % 7 == 0)
            frame(w, "{\"type\":\"message\",\"topic\":\"app/room/x\",\"data\":1}");
    }
    assert_int_equal(w->disconnects, 0);
    pass(w, w->config->heartbeat_interval_ms + w->config->heartbeat_timeout_ms + NL_LIVENESS_LOOK_MS);
    assert_int_equal(w->disconnects, 1);
    world_free(w);
}

static void the_wait_begins_when_the_heartbeat_has_arrived(void **state) {
    struct world *w = live_world();

    (void)state;
    w->slow_line = true;
    pass(w, w->config->heartbeat_interval_ms);
    for (int second = 0; second < 60; second++) {
        w->arrived++;
        pass(w, 1000);
    }
    w->slow_line = false;
    pass(w, w->config->heartbeat_timeout_ms - 1);
    assert_int_equal(w->disconnects, 0);
    pass(w, 2 * NL_LIVENESS_LOOK_MS);
    assert_int_equal(w->disconnects, 1);
    world_free(w);
}

static void a_broker_that_echoes_no_heartbeat_is_left(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    for (int i = 0; i < 30 && w->disconnects == 0; i++) {
        pass(w, 1000);
        frame(w, "{\"type\":\"message\",\"topic\":\"app/room/x\",\"data\":1}");
    }
    assert_int_equal(w->disconnects, 1);
    assert_int_equal(w->now, 101000 + w->config->request_timeout_ms + w->config->heartbeat_timeout_ms);
    world_free(w);
}

static void on_a_v1_broker_written_is_published(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    open_link(w);
    frame(w, "{\"type\":\"auth\",\"success\":true,\"actorTokenId\":\"alice\"}");
    assert_state(w, LIVE);
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 1);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    assert_told(w, 0, ANSWER, "{\"type\":\"published\",\"id\":1,\"topic\":\"app/room/t\"}");
    assert_told(w, 1, NL_EVENT_MESSAGE,
                "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":1,\"from\":\"alice\"}");
    world_free(w);
}

/* ---- retained publishes ---- */

static void copy_of(struct world *w, const char *msg_id, const char *filter) {
    char json[256];

    snprintf(json, sizeof(json),
             "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":{\"k\":[1]},\"filter\":\"%s\","
             "\"msgId\":\"%s\"}",
             filter, msg_id);
    frame(w, json);
}

static struct world *retained_world(void) {
    struct world *w = live_world();

    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 1);
    w->checked = w->sent_count;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":{\"k\":[1]},\"retain\":true}");
    assert_sent(w, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":{\"k\":[1]},\"msgRef\":\"1\","
                   "\"qos\":1,\"retain\":true,\"echo\":true}");
    serve(w);
    assert_told_like(w, 1, NL_EVENT_MESSAGE, "{\"type\":\"message\",\"topic\":\"app/room/t\"");
    return w;
}

static void the_own_copy_of_a_retained_message_is_swallowed_once(void **state) {
    struct world *w = retained_world();

    (void)state;
    copy_of(w, "m1", "#");
    assert_nothing_told(w, 1);
    assert_int_equal(nl_session_stats(w->s)->swallowed, 1);
    /* Its id counts as seen: the broker may send it again as a retained message. */
    copy_of(w, "m1", "#");
    assert_nothing_told(w, 1);
    assert_int_equal(nl_session_stats(w->s)->swallowed, 1);
    /* The same thing said again by somebody else is another message. */
    copy_of(w, "m2", "#");
    assert_told_like(w, 1, NL_EVENT_MESSAGE, "{\"type\":\"message\"");
    world_free(w);
}

static void the_wait_for_the_own_copy_ends(void **state) {
    struct world *w = retained_world();

    (void)state;
    frame(w, "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":{\"k\":[2]},\"filter\":\"#\"}");
    assert_told_like(w, 1, NL_EVENT_MESSAGE, "{\"type\":\"message\"");
    pass(w, 5000);
    copy_of(w, "m1", "#");
    assert_told_like(w, 1, NL_EVENT_MESSAGE, "{\"type\":\"message\"");
    assert_int_equal(nl_session_stats(w->s)->swallowed, 0);
    world_free(w);
}

static void without_a_matching_subscription_no_copy_comes(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"filters\":[\"a\"]}");
    serve(w);
    next_told(w, 1);
    request(w, 0,
            "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":{\"k\":[1]},\"retain\":true,"
            "\"filter\":\"b\"}");
    serve(w);
    copy_of(w, "m1", "a");
    assert_told_like(w, 1, NL_EVENT_MESSAGE, "{\"type\":\"message\"");
    world_free(w);
}

/* ---- messages ---- */

static void messages_that_nobody_asked_for_are_counted(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 0);
    frame(w, "{\"type\":\"message\",\"topic\":\"app/room/u\",\"data\":1}");
    frame(w, "{\"type\":\"message\",\"data\":1}");
    assert_nothing_told(w, 0);
    assert_int_equal(nl_session_stats(w->s)->foreign, 2);
    assert_int_equal(nl_session_stats(w->s)->messages, 2);
    world_free(w);
}

static void integers_are_text_for_who_asked_for_that(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 0);
    next_told(w, 1);
    w->peers[1].bigint_as_string = true;
    frame(w, "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":9007199254740993}");
    assert_told(w, 0, NL_EVENT_MESSAGE,
                "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":9007199254740993}");
    assert_told(w, 1, NL_EVENT_MESSAGE,
                "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":\"9007199254740993\"}");
    world_free(w);
}

static void a_tap_gets_each_delivered_message_once(void **state) {
    static const char message[] = "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":1}";
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"*\",\"id\":1}");
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"*\",\"id\":2}");
    assert_nothing_sent(w);
    assert_told(w, 0, ANSWER, "{\"type\":\"subscribed\",\"id\":1,\"topic\":\"*\"}");
    assert_told(w, 0, ANSWER, "{\"type\":\"subscribed\",\"id\":2,\"topic\":\"*\"}");
    frame(w, message);
    assert_nothing_told(w, 0);
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    request(w, 2, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    frame(w, message);
    assert_told(w, 0, NL_EVENT_MESSAGE, message);
    assert_nothing_told(w, 0);
    /* One that holds the topic itself, and one that publishes. */
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 0);
    frame(w, message);
    assert_told(w, 0, NL_EVENT_MESSAGE, message);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1}");
    serve(w);
    assert_nothing_told(w, 0);
    request(w, 1, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":2}");
    serve(w);
    assert_told_like(w, 0, NL_EVENT_MESSAGE, "{\"type\":\"message\"");
    request(w, 0, "{\"type\":\"unsubscribe\",\"topic\":\"*\",\"id\":3}");
    assert_told(w, 0, ANSWER, "{\"type\":\"unsubscribed\",\"id\":3,\"topic\":\"*\"}");
    request(w, 0, "{\"type\":\"unsubscribe\",\"topic\":\"app/room/t\"}");
    next_told(w, 0);
    frame(w, message);
    assert_nothing_told(w, 0);
    world_free(w);
}

/* ---- what the broker should not say ---- */

static const char *const odd_frames[] = {
    "{\"type\":\"nonsense\"}",
    "{\"no\":\"type\"}",
    "{\"type\":7}",
    "{\"type\":\"published\",\"msgRef\":\"77\"}",
    "{\"type\":\"published\"}",
    "{\"type\":\"subscribed\",\"topic\":\"app/room/never\"}",
    "{\"type\":\"subscribed\"}",
    "{\"type\":\"filtersUpdated\",\"topic\":\"app/room/t\"}",
    "{\"type\":\"unsubscribed\",\"topic\":\"app/room/t\"}",
    "{\"type\":\"error\",\"error\":\"not_authorized\",\"topic\":\"app/room/never\"}",
    "{\"type\":\"error\",\"error\":\"not_authorized\",\"topic\":\"app/room/t\"}",
    "{\"type\":\"error\",\"error\":\"x\",\"msgRef\":\"99\"}",
    "{\"type\":\"error\"}",
    "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}",
    "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1}",
    "{\"type\":\"presence\",\"event\":\"join\",\"data\":{}}",
    "{\"type\":\"hydration\",\"topic\":\"never\",\"data\":1}",
    "{\"type\":\"hydration\"}",
};
#define ODD_FRAMES (sizeof(odd_frames) / sizeof(odd_frames[0]))

static void say_odd_things(struct world *w) {
    static const uint8_t garbage[][4] = {
        {0xc1}, {0x81, 0xa4, 't'}, {0x93, 1, 2, 3}, {0xdf, 0xff, 0xff, 0xff}};
    uint64_t before = nl_session_stats(w->s)->unexpected;
    enum nl_session_state state = nl_session_state(w->s);
    unsigned told = w->told_count;

    for (unsigned i = 0; i < ODD_FRAMES; i++)
        frame(w, odd_frames[i]);
    for (unsigned i = 0; i < 4; i++) {
        nl_session_link_frame(w->s, nl_slice(garbage[i], sizeof(garbage[i])), w->now);
        run(w);
    }
    /* The echo of a heartbeat that was never sent. */
    frame(w, "");
    assert_int_equal(nl_session_state(w->s), state);
    if (w->told_count != told)
        fail_msg("%s", w->told[told].text);
    if (state != NL_SESSION_CLOSING)
        assert_int_equal(nl_session_stats(w->s)->unexpected - before, ODD_FRAMES + 5);
}

static void odd_frames_are_harmless_in_every_state(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    run(w);
    say_odd_things(w); /* connecting, really: what comes now is a stray from an old link */
    open_link(w);
    say_odd_things(w);
    frame(w, auth_success);
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    say_odd_things(w);
    frame(w, auth_success);
    assert_state(w, LIVE);
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"lateJoin\":\"none\"}");
    frame(w, "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":1}");
    assert_int_equal(nl_session_stats(w->s)->delivered, 2);
    closed(w, NL_REASON_LOST, 0);
    say_odd_things(w);
    pass(w, 60000);
    open_link(w);
    frame(w, auth_success);
    pass(w, 9000);
    assert_state(w, RESTORING);
    pass(w, w->config->auth_timeout_ms);
    world_free(w);
}

static void nothing_goes_out_before_auth_or_while_closing(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    open_link(w);
    w->checked = w->sent_count;
    frame(w, "{\"type\":\"message\",\"topic\":\"app/room/t\",\"data\":1}");
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":2}");
    assert_nothing_sent(w);
    assert_int_equal(nl_session_stats(w->s)->messages, 0);
    frame(w, "{\"type\":\"auth\",\"success\":false,\"error\":\"broker_unavailable\"}");
    assert_state(w, CLOSING);
    frame(w, auth_success);
    assert_state(w, CLOSING);
    pass(w, 2000);
    assert_nothing_sent(w);
    world_free(w);
}

/* An empty frame too many must not be taken for the echo of a later heartbeat, which tells what was ignored.
 */
static void a_stray_heartbeat_is_no_echo(void **state) {
    struct world *w = live_world();

    (void)state;
    frame(w, "");
    frame(w, "");
    pass(w, w->config->heartbeat_interval_ms);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":2}");
    nl_session_resumed(w->s, w->now);
    frame(w, "");
    assert_nothing_told(w, 0);
    pass(w, w->config->request_timeout_ms - 1);
    serve(w);
    assert_told_like(w, 0, ANSWER, "{\"type\":\"published\",\"id\":1,");
    assert_told_like(w, 0, ANSWER, "{\"type\":\"subscribed\",\"id\":2,");
    world_free(w);
}

static void a_full_link_is_tried_again(void **state) {
    struct world *w = live_world();

    (void)state;
    w->link_full = true;
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":2}");
    pass(w, 1000);
    assert_nothing_sent(w);
    w->link_full = false;
    pass(w, 100);
    serve(w);
    assert_told_like(w, 0, ANSWER, "{\"type\":\"subscribed\",\"id\":2,");
    assert_told_like(w, 0, ANSWER, "{\"type\":\"published\",\"id\":1,");
    world_free(w);
}

/* ---- clients go, the session ends ---- */

static void a_client_that_left_is_told_nothing(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    next_told(w, 1);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":1}");
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/u\",\"id\":2}");
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"*\"}");
    next_told(w, 0);
    nl_session_detach(w->s, &w->peers[0], w->now);
    assert_int_equal(w->peers[0].pending, 0);
    assert_int_equal(w->peers[0].quota->subscriptions, 0);
    serve(w);
    assert_nothing_told(w, 0);
    /* What it published is published. */
    assert_told_like(w, 1, NL_EVENT_MESSAGE, "{\"type\":\"message\"");
    /* And what only it wanted is gone upstream. */
    assert_string_equal(w->sent[w->sent_count - 1], "{\"type\":\"unsubscribe\",\"topic\":\"app/room/u\"}");
    world_free(w);
}

static void what_waits_when_it_stops_is_told_so(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":1}");
    serve(w);
    next_told(w, 0);
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":2}");
    request(w, 1, "{\"type\":\"setFilters\",\"topic\":\"app/room/t\",\"filters\":[\"a\"],\"id\":3}");
    next_told(w, 1); /* not_subscribed */
    request(w, 0, "{\"type\":\"setFilters\",\"topic\":\"app/room/t\",\"filters\":[\"a\"],\"id\":3}");
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"filters\":[\"a\"],\"id\":4}");
    request(w, 1, "{\"type\":\"unsubscribe\",\"topic\":\"app/room/t\",\"id\":5}");
    nl_session_stop(w->s, w->now);
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":2,\"error\":\"shutting_down\",");
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"setFilters\",\"id\":3,\"error\":\"shutting_down\",");
    assert_told_like(w, 1, ANSWER,
                     "{\"type\":\"error\",\"request\":\"subscribe\",\"id\":4,\"error\":\"shutting_down\",");
    assert_told(w, 1, ANSWER, "{\"type\":\"unsubscribed\",\"id\":5,\"topic\":\"app/room/t\"}");
    assert_state(w, CLOSING);
    request(w, 2, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1,\"id\":6}");
    request(w, 2, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"id\":7}");
    assert_told_like(w, 2, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":6,\"error\":\"shutting_down\",");
    assert_told_like(w, 2, ANSWER,
                     "{\"type\":\"error\",\"request\":\"subscribe\",\"id\":7,\"error\":\"shutting_down\",");
    closed(w, NL_REASON_STOPPED, 0);
    assert_state(w, STOPPED);
    /* Of the daemon's end they know by `shutdown`. */
    assert_nothing_told(w, 0);
    for (unsigned p = 0; p < PEERS; p++)
        assert_int_equal(w->peers[p].pending, 0);
    pass(w, 600000);
    assert_int_equal(w->connects, 1);
    world_free(w);
}

static void it_can_stop_in_every_state(void **state) {
    struct world *w;

    (void)state;
    w = world_new();
    start(w);
    world_free(w); /* waiting */
    w = world_new();
    start(w);
    run(w);
    world_free(w); /* connecting */
    w = world_new();
    start(w);
    open_link(w);
    world_free(w); /* authenticating */
    w = world_new();
    start(w);
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    open_link(w);
    frame(w, auth_success);
    assert_state(w, RESTORING);
    world_free(w);
    w = world_new();
    w->config->reconnect = false;
    start(w);
    run(w);
    closed(w, NL_REASON_DNS, 0);
    assert_state(w, STOPPED);
    world_free(w);
}

/* ---- poison ---- */

static const char poison[] = "{\"type\":\"publish\",\"topic\":\"app/room/p\",\"data\":1,\"id\":1}";

/* Proof is two closes: for the second one a suspect has the link at once, and for itself. */
static void a_suspect_is_sent_alone_and_at_once(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, poison);
    request(w, 1, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":2,\"id\":2}");
    w->random = 500;
    closed(w, NL_REASON_CLOSED, 1011);
    assert_state(w, CONNECTING);
    open_link(w);
    frame(w, auth_success);
    w->checked = w->sent_count - 1;
    assert_non_null(strstr(w->sent[w->checked], "app/room/p"));
    closed(w, NL_REASON_CLOSED, 1011);
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,\"error\":\"broker_rejected\",");
    /* Nobody is suspected now: no hurry. */
    assert_state(w, WAITING);
    pass(w, 30000);
    go_live(w);
    assert_told_like(w, 1, ANSWER, "{\"type\":\"published\",\"id\":2,");
    assert_int_equal(w->rejected, 1);
    world_free(w);
}

/* Publishes data until it is convicted, with two closes of that code. */
static void convict(struct world *w, const char *request_json, int code) {
    request(w, 0, request_json);
    for (int i = 0; i < 2; i++) {
        closed(w, NL_REASON_CLOSED, code);
        pass(w, 2000);
        open_link(w);
        frame(w, auth_success);
        assert_state(w, LIVE);
    }
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,\"error\":\"broker_rejected\",");
    w->checked = w->served = w->sent_count;
}

#define PUBLISH(data, id) "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":" data ",\"id\":" id "}"

/* What proved to be more than this broker can carry is sent no more, by nobody. */
static void proof_is_remembered_for_its_kind(void **state) {
    struct world *w = live_world();

    (void)state;
    convict(w, PUBLISH("{\"a\":{\"$bytes\":\"/w==\"}}", "1"), 1011);
    request(w, 1, PUBLISH("[{\"$str\":\"/w==\"}]", "2"));
    assert_told_like(w, 1, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":2,\"error\":\"binary_refused\",");
    assert_nothing_sent(w);
    /* Bytes that are UTF-8, and other kinds, are not meant. */
    request(w, 1, PUBLISH("{\"$bytes\":\"w6Q=\"}", "3"));
    request(w, 1, PUBLISH("{\"$map\":[[1.5,1]]}", "4"));
    serve(w);
    assert_told_like(w, 1, ANSWER, "{\"type\":\"published\",\"id\":3,");
    assert_told_like(w, 1, ANSWER, "{\"type\":\"published\",\"id\":4,");
    world_free(w);
}

static void keys_that_the_broker_cannot_take_are_remembered_too(void **state) {
    struct world *w = live_world();

    (void)state;
    convict(w, PUBLISH("{\"$map\":[[1.5,1]]}", "1"), 1011);
    request(w, 1, PUBLISH("[{\"$map\":[[2.5,2]]}]", "2"));
    assert_told_like(w, 1, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":2,\"error\":\"broker_rejected\",");
    assert_non_null(strstr(w->told[w->told_count - 1].text, "keys"));
    assert_nothing_sent(w);
    world_free(w);
}

static void what_was_once_carried_is_not_the_reason(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, PUBLISH("{\"$bytes\":\"/w==\"}", "9"));
    serve(w);
    assert_told_like(w, 0, ANSWER, "{\"type\":\"published\",\"id\":9,");
    convict(w, PUBLISH("{\"$map\":[[{\"$bytes\":\"/w==\"},[1]],[0.5,1]]}", "1"), 1011);
    request(w, 1, PUBLISH("{\"$bytes\":\"/w==\"}", "2"));
    serve(w);
    assert_told_like(w, 1, ANSWER, "{\"type\":\"published\",\"id\":2,");
    world_free(w);
}

/* 1009: it was too big. That says nothing about what was in it. */
static void a_close_for_size_proves_no_kind(void **state) {
    struct world *w = live_world();

    (void)state;
    convict(w, PUBLISH("{\"$bytes\":\"/w==\"}", "1"), 1009);
    request(w, 0, PUBLISH("1", "3"));
    assert_told_like(w, 0, ANSWER,
                     "{\"type\":\"error\",\"request\":\"publish\",\"id\":3,\"error\":\"limit_reached\",");
    assert_non_null(strstr(w->told[w->told_count - 1].text, "\"retryAfterMs\":"));
    assert_nothing_sent(w);
    /* Not the others. */
    request(w, 1, PUBLISH("{\"$bytes\":\"/w==\"}", "2"));
    serve(w);
    assert_told_like(w, 1, ANSWER, "{\"type\":\"published\",\"id\":2,");
    world_free(w);
}

static void a_suspect_gets_one_hurried_retry(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 0, poison);
    closed(w, NL_REASON_CLOSED, 1009);
    assert_state(w, CONNECTING);
    closed(w, NL_REASON_CONNECT, 0);
    assert_state(w, WAITING);
    assert_true(nl_session_next(w->s, w->now) > w->now);
    w->connect_delay = 300;
    pass(w, 30000);
    assert_state(w, WAITING);
    w->connect_delay = 0;
    pass(w, 300);
    go_live(w);
    assert_told_like(w, 0, ANSWER, "{\"type\":\"published\",\"id\":1,");
    world_free(w);
}

/* It may have been a group: who joins meanwhile is not put on it. */
static void what_the_broker_restored_is_not_taken_over(void **state) {
    struct world *w = live_world();

    (void)state;
    closed(w, NL_REASON_LOST, 0);
    pass(w, 5000);
    open_link(w);
    w->checked = w->sent_count;
    w->link_full = true;
    frame(w, "{\"type\":\"auth\",\"success\":true,\"actorTokenId\":\"alice\",\"protocolVersion\":2,"
             "\"restoredSubscriptions\":[\"app/room/t\"]}");
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"filters\":[\"a\"]}");
    w->link_full = false;
    pass(w, 100);
    assert_sent(w, "{\"type\":\"unsubscribe\",\"topic\":\"app/room/t\"}");
    frame(w, "{\"type\":\"unsubscribed\",\"topic\":\"app/room/t\"}");
    pass(w, 100);
    assert_sent(w, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\",\"filters\":[\"a\"],\"qos\":1}");
    world_free(w);
}

/* A presence in an unknown room has no answer; the answer to a publish behind it shows that it was passed
 * over. */
static void a_presence_that_was_passed_over_acquits_nobody(void **state) {
    struct world *w = live_world();

    (void)state;
    request(w, 1, "{\"type\":\"presence\",\"roomId\":\"bad\",\"data\":{},\"id\":1}");
    request(w, 0, "{\"type\":\"publish\",\"topic\":\"app/room/t\",\"data\":1}");
    frame(w, "{\"type\":\"published\",\"topic\":\"app/room/t\",\"msgRef\":\"1\"}");
    request(w, 0, poison);
    closed(w, NL_REASON_CLOSED, 1011);
    assert_state(w, CONNECTING);
    world_free(w);
}

/* The broker answers in order: the older, unanswered request is the suspect, not the publish behind it. */
static void an_older_control_request_is_the_suspect(void **state) {
    struct world *w = live_world();

    (void)state;
    for (int i = 0; i < 2; i++) {
        request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
        request(w, 0, poison);
        closed(w, NL_REASON_CLOSED, 1011);
        assert_state(w, WAITING);
        pass(w, 60000);
        open_link(w);
        frame(w, auth_success);
        if (i == 0) {
            serve(w);
            request(w, 1, "{\"type\":\"unsubscribe\",\"topic\":\"app/room/t\"}");
            serve(w);
        }
    }
    /* Sent before the subscribe it is the suspect after all. */
    serve(w);
    request(w, 0, poison);
    request(w, 1, "{\"type\":\"subscribe\",\"topic\":\"app/room/u\"}");
    closed(w, NL_REASON_CLOSED, 1011);
    assert_state(w, CONNECTING);
    world_free(w);
}

/* ---- what is told about it ---- */

static char *description(struct world *w, bool full) {
    struct nl_object o;
    struct nl_line *line;
    char *text;

    nl_object_begin(&o, "status");
    if (full)
        nl_session_describe(w->s, &o, w->now);
    else
        nl_session_describe_auth(w->s, &o);
    line = nl_object_line(&o);
    text = nl_strndup((const char *)line->bytes, line->len - 1);
    nl_line_unref(line);
    return text;
}

#define assert_described(w, full, expected)                                                                  \
    do {                                                                                                     \
        char *text_ = description((w), (full));                                                              \
        assert_string_equal(text_, (expected));                                                              \
        free(text_);                                                                                         \
    } while (0)

static void status_uses_the_words_of_the_sdk(void **state) {
    struct world *w = world_new();

    (void)state;
    start(w);
    assert_described(w, true,
                     "{\"type\":\"status\",\"session\":\"main\",\"status\":\"connecting\",\"since\":100,"
                     "\"reason\":\"starting\",\"nextAttemptMs\":0,\"filtersReported\":\"unknown\","
                     "\"subscriptions\":0,\"outbox\":0}");
    assert_described(w, false, "{\"type\":\"status\",\"session\":\"main\",\"pending\":true}");
    pass(w, 3000);
    go_live(w);
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    assert_described(
        w, true,
        "{\"type\":\"status\",\"session\":\"main\",\"status\":\"connected\",\"since\":103,"
        "\"actorTokenId\":\"alice\",\"filtersReported\":\"unknown\",\"subscriptions\":1,\"outbox\":0}");
    assert_described(w, false,
                     "{\"type\":\"status\",\"session\":\"main\",\"actorTokenId\":\"alice\",\"projectId\":"
                     "\"p1\",\"actorType\":\"user\",\"protocolVersion\":2}");
    /* Nobody wants it, though the broker does not know yet. */
    request(w, 0, "{\"type\":\"unsubscribe\",\"topic\":\"app/room/t\"}");
    pass(w, 2000);
    closed(w, NL_REASON_CLOSED, 1006);
    assert_described(w, true,
                     "{\"type\":\"status\",\"session\":\"main\",\"status\":\"reconnecting\",\"since\":105,"
                     "\"reason\":\"closed\",\"code\":1006,\"nextAttemptMs\":100,\"actorTokenId\":\"alice\","
                     "\"filtersReported\":\"unknown\",\"subscriptions\":0,\"outbox\":0}");
    nl_session_stop(w->s, w->now);
    assert_described(w, true,
                     "{\"type\":\"status\",\"session\":\"main\",\"status\":\"disconnected\",\"since\":105,"
                     "\"reason\":\"stopped\",\"code\":1006,\"actorTokenId\":\"alice\",\"filtersReported\":"
                     "\"unknown\",\"subscriptions\":0,"
                     "\"outbox\":0}");
    world_free(w);
}

static void a_topic_is_counted_while_somebody_wants_it(void **state) {
    struct world *w = live_world();
    char *text;

    (void)state;
    request(w, 0, "{\"type\":\"subscribe\",\"topic\":\"app/room/t\"}");
    serve(w);
    request(w, 0, "{\"type\":\"unsubscribe\",\"topic\":\"app/room/t\"}");
    text = description(w, true);
    assert_non_null(strstr(text, "\"subscriptions\":0"));
    free(text);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_frame_is_auth),
        cmocka_unit_test(reconnect_true_only_after_having_been_live),
        cmocka_unit_test(plain_auth_after_1011_in_auth),
        cmocka_unit_test(auth_has_a_deadline),
        cmocka_unit_test(a_denied_token_is_tried_again_slowly),
        cmocka_unit_test(a_token_that_the_broker_quotes_is_hidden),
        cmocka_unit_test(odd_auth_answers_are_refusals),
        cmocka_unit_test(how_the_link_ended_decides_on_the_wait),
        cmocka_unit_test(the_limiter_over_all_sessions_is_asked),
        cmocka_unit_test(the_wait_grows_until_the_link_was_stable),
        cmocka_unit_test(attempts_are_counted),
        cmocka_unit_test(each_time_live_gives_all_attempts_again),
        cmocka_unit_test(a_heartbeat_comes_an_interval_after_the_last_frame_sent),
        cmocka_unit_test(what_goes_out_does_not_hide_that_nothing_comes_in),
        cmocka_unit_test(anything_that_comes_is_a_sign_of_life),
        cmocka_unit_test(no_interval_no_heartbeats),
        cmocka_unit_test(after_a_suspend_a_heartbeat_goes_at_once),
        cmocka_unit_test(subscriptions_are_back_before_anything_is_published),
        cmocka_unit_test(a_link_that_dies_while_restoring_was_no_reconnect),
        cmocka_unit_test(the_first_time_is_connect_and_only_for_holders),
        cmocka_unit_test(a_publish_goes_to_the_others_when_the_broker_has_taken_it),
        cmocka_unit_test(own_messages_echo_brings_it_back),
        cmocka_unit_test(refusals_of_the_broker_reach_who_published),
        cmocka_unit_test(the_largest_message_is_learned),
        cmocka_unit_test(the_largest_message_is_not_learned_from_anything),
        cmocka_unit_test(local_refusals),
        cmocka_unit_test(what_was_in_flight_goes_again),
        cmocka_unit_test(an_ignored_publish_is_told),
        cmocka_unit_test(traffic_does_not_hide_an_ignored_publish),
        cmocka_unit_test(what_is_on_its_way_is_waited_for),
        cmocka_unit_test(the_wait_begins_when_the_heartbeat_has_arrived),
        cmocka_unit_test(a_broker_that_echoes_no_heartbeat_is_left),
        cmocka_unit_test(on_a_v1_broker_written_is_published),
        cmocka_unit_test(the_own_copy_of_a_retained_message_is_swallowed_once),
        cmocka_unit_test(the_wait_for_the_own_copy_ends),
        cmocka_unit_test(without_a_matching_subscription_no_copy_comes),
        cmocka_unit_test(messages_that_nobody_asked_for_are_counted),
        cmocka_unit_test(integers_are_text_for_who_asked_for_that),
        cmocka_unit_test(a_tap_gets_each_delivered_message_once),
        cmocka_unit_test(odd_frames_are_harmless_in_every_state),
        cmocka_unit_test(nothing_goes_out_before_auth_or_while_closing),
        cmocka_unit_test(a_stray_heartbeat_is_no_echo),
        cmocka_unit_test(a_full_link_is_tried_again),
        cmocka_unit_test(a_client_that_left_is_told_nothing),
        cmocka_unit_test(what_waits_when_it_stops_is_told_so),
        cmocka_unit_test(it_can_stop_in_every_state),
        cmocka_unit_test(a_suspect_is_sent_alone_and_at_once),
        cmocka_unit_test(proof_is_remembered_for_its_kind),
        cmocka_unit_test(keys_that_the_broker_cannot_take_are_remembered_too),
        cmocka_unit_test(what_was_once_carried_is_not_the_reason),
        cmocka_unit_test(a_close_for_size_proves_no_kind),
        cmocka_unit_test(a_suspect_gets_one_hurried_retry),
        cmocka_unit_test(what_the_broker_restored_is_not_taken_over),
        cmocka_unit_test(a_presence_that_was_passed_over_acquits_nobody),
        cmocka_unit_test(an_older_control_request_is_the_suspect),
        cmocka_unit_test(status_uses_the_words_of_the_sdk),
        cmocka_unit_test(a_topic_is_counted_while_somebody_wants_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
