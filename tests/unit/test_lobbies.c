/* SPDX-License-Identifier: Apache-2.0 */
/* Lobbies: what is sent when, who gets which snapshot, and whose the events are. The test is the broker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/lobbies.h"
#include "protocol/alloc.h"
#include "protocol/transcode.h"
#include "line_text.h"

enum { PEERS = 3, TIMEOUT = 1000 };

#define SNAPSHOT(type, slug, ops)                                                                            \
    "{\"type\":\"" type "\",\"lobbyId\":\"" slug "\",\"presence\":{\"ops\":{" ops "}}}"
#define ACTOR(id, n) "\"" id "\":{\"actorTokenId\":\"" id "\",\"presence\":{\"n\":" n "},\"joinedAt\":5}"

struct world {
    struct nl_lobbies *l;
    struct nl_quotas quotas;
    struct nl_peer peers[PEERS];
    uint64_t now, fences;
    char sent[2048];        /* "type slug;" for each */
    char told[PEERS][2048]; /* lines */
    struct nl_line *rest;   /* of the last answer; a reference */
    unsigned shared;        /* answers with the rest of the one before */
};

static bool op_send(void *ctx, const struct nl_frame *f) {
    struct world *w = ctx;
    size_t len = strlen(w->sent);

    snprintf(w->sent + len, sizeof(w->sent) - len, "%s %.*s;", nl_frame_type_name(f->type),
             (int)f->lobby_id.len, (const char *)f->lobby_id.ptr);
    return true;
}

static uint64_t op_fence(void *ctx) {
    return ++((struct world *)ctx)->fences;
}

static uint64_t op_position(void *ctx) {
    (void)ctx;
    return 0;
}

static void note_rest(struct world *w, const struct nl_line *line) {
    if (line->rest != NULL && line->rest == w->rest)
        w->shared++;
    nl_line_unref(w->rest);
    w->rest = line->rest == NULL ? NULL : nl_line_ref(line->rest);
}

static void op_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct world *w = ctx;
    char *to = w->told[peer - w->peers];
    size_t len = strlen(to);

    nl_test_line_text(line, to + len, sizeof(w->told[0]) - len);
    note_rest(w, line);
    nl_line_unref(line);
}

static void op_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    assert_true(event == NL_EVENT_LOBBY_PRESENCE || event == NL_EVENT_ERROR);
    op_answer(ctx, peer, line);
}

/* Since the last look. */
static void expect_sent(struct world *w, const char *sent) {
    nl_lobbies_run(w->l, w->now);
    assert_string_equal(w->sent, sent);
    w->sent[0] = '\0';
}

static void expect_told(struct world *w, unsigned peer, const char *part) {
    if (part == NULL ? w->told[peer][0] != '\0' : strstr(w->told[peer], part) == NULL)
        fail_msg("client %u was told %s instead of %s", peer, w->told[peer], part == NULL ? "nothing" : part);
    w->told[peer][0] = '\0';
}

static bool say(struct world *w, const char *text) {
    struct json_object *o = NULL;
    struct nl_frame frame;
    struct nl_buffer packed;
    const char *why;
    bool ours;

    nl_buffer_init(&packed);
    assert_int_equal(nl_json_parse(nl_slice_str(text), 64, &o), NL_OK);
    assert_int_equal(nl_msgpack_from_json(&packed, o, NL_PACK_PLAIN, &why), NL_OK);
    assert_int_equal(nl_frame_decode(nl_slice(packed.bytes, packed.len), &frame), NL_SCAN_OK);
    ours = nl_lobbies_frame(w->l, &frame, w->now);
    json_object_put(o);
    nl_buffer_deinit(&packed);
    return ours;
}

static void event_in(struct world *w, const char *what, const char *id, const char *room, const char *data) {
    char text[300];

    snprintf(text, sizeof(text),
             "{\"type\":\"lobbyPresence\",\"event\":\"%s\",\"lobbyId\":\"%s\",\"roomId\":\"%s\",\"actorId\":"
             "\"bob\","
             "\"data\":%s}",
             what, id, room, data);
    assert_true(say(w, text));
}

static void event(struct world *w, const char *what, const char *id, const char *data) {
    event_in(w, what, id, "ops", data);
}

static void request(struct world *w, unsigned peer, const char *type, const char *slug) {
    struct nl_refusal refusal;
    struct nl_request r;
    char text[200];

    snprintf(text, sizeof(text), "{\"type\":\"%s\",\"id\":1,\"lobbyId\":\"%s\"}", type, slug);
    assert_int_equal(nl_request_parse(nl_slice_str(text), 64, &r, &refusal), NL_OK);
    nl_lobbies_request(w->l, &w->peers[peer], &r, w->now);
    nl_request_deinit(&r);
}

static void enter(struct world *w, unsigned peer) {
    request(w, peer, "lobbySubscribe", "all");
    expect_sent(w, "lobbySubscribe all;");
    assert_true(say(w, "{\"type\":\"lobbySubscribed\",\"lobbyId\":\"all\",\"presence\":{}}"));
    expect_told(w, peer, NULL);
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "1"))));
    expect_told(w, peer,
                "{\"type\":\"lobbySubscribed\",\"id\":1,\"lobbyId\":\"all\",\"presence\":{\"ops\":{" ACTOR(
                    "bob", "1"));
}

static int setup(void **state) {
    struct world *w = nl_calloc(1, sizeof(*w));
    struct nl_lobbies_limits limits = {.request_timeout_ms = TIMEOUT, .watches = {3, 5}};
    struct nl_presence_ops ops = {.send = op_send,
                                  .fence = op_fence,
                                  .position = op_position,
                                  .answer = op_answer,
                                  .event = op_event,
                                  .ctx = w};

    nl_quotas_init(&w->quotas);
    for (unsigned i = 0; i < PEERS; i++)
        w->peers[i].quota = nl_quota_ref(&w->quotas, (uid_t)(1000 + i));
    w->l = nl_lobbies_new(&limits, &ops, 7);
    w->now = 1000;
    nl_lobbies_up(w->l);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;

    for (unsigned i = 0; i < PEERS; i++) {
        nl_lobbies_leave(w->l, &w->peers[i]);
        assert_int_equal(w->peers[i].pending, 0);
        assert_int_equal(w->peers[i].watch_count, 0);
        assert_int_equal(w->peers[i].quota->watches, 0);
        nl_quota_unref(w->peers[i].quota);
    }
    nl_lobbies_free(w->l);
    nl_line_unref(w->rest);
    nl_quotas_deinit(&w->quotas);
    free(w);
    return 0;
}

static void the_snapshot_is_a_list_behind_the_subscribe(void **state) {
    struct world *w = *state;

    enter(w, 0);
    request(w, 1, "lobbySubscribe", "all");
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "2"))));
    expect_told(w, 1, ACTOR("bob", "2"));
    /* Who was there before is told the difference. */
    expect_told(
        w, 0,
        "\"event\":\"update\",\"lobbyId\":\"all\",\"roomId\":\"ops\",\"actorId\":\"bob\",\"data\":{\"n\":2}");
}

static void one_writing_serves_all_who_ask(void **state) {
    struct world *w = *state;

    enter(w, 0);
    w->peers[2].bigint_as_string = true;
    for (unsigned i = 0; i < 3; i++)
        request(w, 1, i == 0 ? "lobbySubscribe" : "getLobbyPresence", "all");
    request(w, 2, "lobbySubscribe", "all");
    expect_sent(w, "getLobbyPresence all;");
    request(w, 1, "getLobbyPresence", "all");
    w->shared = 0;
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "9007199254740993"))));
    assert_int_equal(w->shared, 2);
    expect_sent(w, "");
    expect_told(w, 1, "9007199254740993");
    expect_told(w, 2, "\"9007199254740993\"");
    assert_int_equal(w->rest->refs, 1); /* ours */
}

static void the_last_one_ends_it(void **state) {
    struct world *w = *state;

    enter(w, 0);
    request(w, 0, "lobbyUnsubscribe", "all");
    expect_told(w, 0, "lobbyUnsubscribed");
    expect_sent(w, "lobbyUnsubscribe all;");
    /* Who comes meanwhile is subscribed anew. */
    request(w, 1, "lobbySubscribe", "all");
    expect_sent(w, "");
    assert_true(say(w, "{\"type\":\"lobbyUnsubscribed\",\"lobbyId\":\"all\"}"));
    expect_sent(w, "lobbySubscribe all;");
    assert_false(say(w, "{\"type\":\"lobbyUnsubscribed\",\"lobbyId\":\"all\"}"));
    nl_lobbies_leave(w->l, &w->peers[1]);
    assert_true(say(w, "{\"type\":\"lobbySubscribed\",\"lobbyId\":\"all\",\"presence\":{}}"));
    expect_sent(w, "lobbyUnsubscribe all;");
}

static void it_is_renewed(void **state) {
    struct world *w = *state;

    enter(w, 0);
    nl_lobbies_run(w->l, w->now);
    assert_int_equal(nl_lobbies_next(w->l), w->now + NL_LOBBY_RENEW_MS);
    w->now += NL_LOBBY_RENEW_MS - 1;
    expect_sent(w, "");
    w->now++;
    expect_sent(w, "lobbySubscribe all;");
    assert_true(say(w, "{\"type\":\"lobbySubscribed\",\"lobbyId\":\"all\",\"presence\":{}}"));
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "1"))));
    expect_told(w, 0, NULL);
    nl_lobbies_run(w->l, w->now);
    assert_int_equal(nl_lobbies_next(w->l), w->now + NL_LOBBY_RENEW_MS);
}

static void the_brokers_own_id_is_learned(void **state) {
    struct world *w = *state;

    enter(w, 0);
    event(w, "update", "lobby-17", "{\"n\":2}");
    expect_told(w, 0, "\"lobbyId\":\"all\"");
    event(w, "update", "lobby-17", "{\"n\":2}");
    expect_told(w, 0, NULL);
    event(w, "join", "lobby-18", "{\"n\":9}"); /* of nobody's lobby, as far as is known */
    expect_told(w, 0, NULL);
    expect_sent(w, "getLobbyPresence all;");
}

/* The event may be of a lobby whose rooms are not known yet. */
static void no_id_is_learned_while_a_lobby_is_not_listed(void **state) {
    struct world *w = *state;

    enter(w, 0);
    request(w, 1, "lobbySubscribe", "more");
    expect_sent(w, "lobbySubscribe more;");
    assert_true(say(w, "{\"type\":\"lobbySubscribed\",\"lobbyId\":\"more\",\"presence\":{}}"));
    expect_sent(w, "getLobbyPresence more;");
    event(w, "update", "lobby-18", "{\"n\":9}");
    expect_told(w, 0, NULL);
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "more", "")));
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "1"))));
    expect_told(w, 0, NULL);
    w->told[1][0] = '\0';
}

/* An event in a room that the lobby does not have: the room is new, or the id was learned for the wrong one.
 */
static void a_wrong_id_is_forgotten(void **state) {
    struct world *w = *state;

    enter(w, 0);
    event(w, "update", "lobby-17", "{\"n\":2}");
    expect_told(w, 0, "\"lobbyId\":\"all\"");
    event_in(w, "join", "lobby-17", "elsewhere", "{\"n\":3}");
    expect_told(w, 0, NULL);
    expect_sent(w, "getLobbyPresence all;");
    event(w, "update", "lobby-18", "{\"n\":4}"); /* nothing is learned from the old list */
    expect_told(w, 0, "\"lobbyId\":\"all\"");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "4"))));
    event(w, "update", "lobby-18", "{\"n\":5}");
    expect_told(w, 0, "\"n\":5");
}

/* The ids may be others on another connection. */
static void ids_are_forgotten_with_the_link(void **state) {
    struct world *w = *state;

    enter(w, 0);
    event(w, "update", "lobby-17", "{\"n\":2}");
    expect_told(w, 0, "\"n\":2");
    nl_lobbies_down(w->l);
    nl_lobbies_up(w->l);
    expect_sent(w, "lobbySubscribe all;");
    assert_true(say(w, "{\"type\":\"lobbySubscribed\",\"lobbyId\":\"all\",\"presence\":{}}"));
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "2"))));
    expect_told(w, 0, NULL);
    event(w, "update", "lobby-99", "{\"n\":3}");
    expect_told(w, 0, "\"n\":3");
}

static void few_requests_are_on_their_way(void **state) {
    struct world *w = *state;
    char slug[16];

    for (unsigned i = 0; i < NL_LOBBY_FLIGHTS + 2; i++) {
        snprintf(slug, sizeof(slug), "l%u", i);
        request(w, 0, "getLobbyPresence", slug);
    }
    nl_lobbies_run(w->l, w->now);
    assert_non_null(strstr(w->sent, "getLobbyPresence l31;"));
    assert_null(strstr(w->sent, "getLobbyPresence l32;"));
    w->sent[0] = '\0';
    assert_true(nl_lobbies_next(w->l) > w->now); /* it waits for an answer, and does not turn */
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "l7", "")));
    request(w, 1, "getLobbyPresence", "l7"); /* those before it come first */
    expect_sent(w, "getLobbyPresence l32;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "l3", "")));
    expect_sent(w, "getLobbyPresence l33;");
    nl_lobbies_down(w->l);
    nl_lobbies_up(w->l);
    nl_lobbies_run(w->l, w->now);
    assert_non_null(strstr(w->sent, "getLobbyPresence l0;")); /* none is counted twice */
    nl_lobbies_fail_all(w->l, NL_ERROR_TIMEOUT);
}

/* Neither a leave nor a null says whether the actor is there with another connection. */
static void look_after(struct world *w, const char *what, const char *data) {
    enter(w, 0);
    event(w, what, "all", data);
    expect_told(w, 0, NULL);
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", "")));
    expect_told(w, 0,
                "\"event\":\"leave\",\"lobbyId\":\"all\",\"roomId\":\"ops\",\"actorId\":\"bob\",\"data\":{}");
}

static void a_leave_is_looked_after(void **state) {
    look_after(*state, "leave", "{}");
}

static void a_null_is_looked_after(void **state) {
    look_after(*state, "update", "null");
}

static void a_refusal_ends_it_for_all(void **state) {
    struct world *w = *state;

    enter(w, 0);
    nl_lobbies_down(w->l);
    request(w, 1, "lobbySubscribe", "all");
    expect_told(w, 1, "\"pending\":true");
    nl_lobbies_up(w->l);
    expect_sent(w, "lobbySubscribe all;");
    assert_true(say(w, "{\"type\":\"error\",\"error\":\"not_authorized\",\"lobbyId\":\"all\"}"));
    for (unsigned i = 0; i < 2; i++) {
        expect_told(w, i, "{\"type\":\"error\",\"error\":\"not_authorized\",\"lobbyId\":\"all\"}");
        assert_int_equal(w->peers[i].watch_count, 0);
    }
    expect_sent(w, "");
    assert_int_equal(nl_lobbies_next(w->l), UINT64_MAX);
}

/* The list, not the lobby: who asked for it is told, and nobody else. */
static void a_refused_list_ends_nothing(void **state) {
    struct world *w = *state;

    enter(w, 0);
    request(w, 1, "getLobbyPresence", "all");
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, "{\"type\":\"error\",\"error\":\"rate_limit_exceeded\",\"lobbyId\":\"all\"}"));
    expect_told(w, 1, "\"request\":\"getLobbyPresence\"");
    expect_told(w, 0, NULL);
    assert_int_equal(w->peers[0].watch_count, 1);
    nl_lobbies_leave(w->l, &w->peers[0]);
    expect_sent(w, "lobbyUnsubscribe all;");
}

/* The broker has it still: nobody wants it any more, so it is unsubscribed. */
static void a_refused_renewal_leaves_nothing_behind(void **state) {
    struct world *w = *state;

    enter(w, 0);
    w->now += NL_LOBBY_RENEW_MS;
    expect_sent(w, "lobbySubscribe all;");
    assert_true(say(w, "{\"type\":\"error\",\"error\":\"rate_limit_exceeded\",\"lobbyId\":\"all\"}"));
    expect_told(w, 0, "\"rate_limit_exceeded\"");
    assert_int_equal(w->peers[0].watch_count, 0);
    expect_sent(w, "lobbyUnsubscribe all;");
}

static void who_was_told_pending_gets_a_list_in_the_end(void **state) {
    struct world *w = *state;

    nl_lobbies_down(w->l);
    request(w, 0, "lobbySubscribe", "all");
    expect_told(w, 0, "\"pending\":true");
    nl_lobbies_up(w->l);
    expect_sent(w, "lobbySubscribe all;");
    assert_true(say(w, "{\"type\":\"lobbySubscribed\",\"lobbyId\":\"all\",\"presence\":{}}"));
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, "{\"type\":\"error\",\"error\":\"rate_limit_exceeded\",\"lobbyId\":\"all\"}"));
    expect_sent(w, "");
    assert_int_equal(nl_lobbies_next(w->l), w->now + NL_LOBBY_RETRY_MS);
    w->now += NL_LOBBY_RETRY_MS;
    expect_sent(w, "lobbySubscribe all;");
    assert_true(say(w, "{\"type\":\"lobbySubscribed\",\"lobbyId\":\"all\",\"presence\":{}}"));
    expect_sent(w, "getLobbyPresence all;");
    assert_true(say(w, SNAPSHOT("lobbyPresenceList", "all", ACTOR("bob", "1"))));
    expect_told(w, 0, "\"event\":\"join\"");
}

/* Neither has a client more than its share of what waits, nor has its user. */
static void questions_are_bounded_for_a_user(void **state) {
    struct world *w = *state;
    char slug[16];

    w->peers[0].quota->asks = NL_ASKS_PER_UID - 1;
    for (unsigned i = 0; i < 2; i++) {
        snprintf(slug, sizeof(slug), "l%u", i);
        request(w, 0, "getLobbyPresence", slug);
    }
    expect_told(w, 0, "\"limit_reached\"");
    request(w, 1, "getLobbyPresence", "l2");
    expect_told(w, 1, NULL);
    nl_lobbies_leave(w->l, &w->peers[0]);
    assert_int_equal(w->peers[0].quota->asks, NL_ASKS_PER_UID - 1);
    nl_lobbies_down(w->l);
}

static void what_is_never_answered_times_out(void **state) {
    struct world *w = *state;

    request(w, 0, "lobbySubscribe", "all");
    expect_sent(w, "lobbySubscribe all;");
    w->now += TIMEOUT;
    expect_sent(w, "");
    expect_told(w, 0, "\"timeout\"");
    assert_int_equal(w->peers[0].watch_count, 0);
    assert_int_equal(w->fences, 1);
    request(w, 1, "getLobbyPresence", "all");
    expect_sent(w, ""); /* the first one may still be answered */
    nl_lobbies_fence_passed(w->l, 1);
    expect_sent(w, "getLobbyPresence all;");
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_snapshot_is_a_list_behind_the_subscribe),
        TEST(one_writing_serves_all_who_ask),
        TEST(the_last_one_ends_it),
        TEST(it_is_renewed),
        TEST(the_brokers_own_id_is_learned),
        TEST(no_id_is_learned_while_a_lobby_is_not_listed),
        TEST(a_wrong_id_is_forgotten),
        TEST(ids_are_forgotten_with_the_link),
        TEST(few_requests_are_on_their_way),
        TEST(a_leave_is_looked_after),
        TEST(a_null_is_looked_after),
        TEST(a_refusal_ends_it_for_all),
        TEST(a_refused_list_ends_nothing),
        TEST(a_refused_renewal_leaves_nothing_behind),
        TEST(who_was_told_pending_gets_a_list_in_the_end),
        TEST(questions_are_bounded_for_a_user),
        TEST(what_is_never_answered_times_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
