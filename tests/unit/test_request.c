/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests. The tests have a table of their own of what each request takes; from it and
 * from values of every kind come the lines that must pass and those that must not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "protocol/request.h"
#include "protocol/transcode.h"
#include "random_values.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DEPTH 64
#define TOPIC "\"app/room/topic\""

/* ---- parsing in tests ---- */

/* The line in memory of exactly its length. */
static enum nl_error parse_bytes(struct nl_slice line, struct nl_request *r, struct nl_refusal *refusal) {
    uint8_t *copy = malloc(line.len ? line.len : 1);
    memcpy(copy, line.ptr, line.len);
    enum nl_error error = nl_request_parse(nl_slice(copy, line.len), DEPTH, r, refusal);
    free(copy);
    return error;
}

static void pass(const char *line, struct nl_request *r) {
    struct nl_refusal refusal;
    if (parse_bytes(nl_slice_str(line), r, &refusal) != NL_OK)
        fail_msg("%.300s\nis refused: %s, field \"%s\": %s", line, nl_error_name(refusal.error),
                 refusal.field, refusal.hint);
}

static void pass_and_drop(const char *line) {
    struct nl_request r;
    pass(line, &r);
    nl_request_deinit(&r);
}

/* Of every refusal: a hint that is text and ends without a full stop. */
static void check_refusal_form(const char *line, const struct nl_refusal *refusal) {
    const char *hint = refusal->hint[0] ? refusal->hint : nl_error_hint(refusal->error);
    size_t len = strlen(hint);
    if (len < 10 || hint[len - 1] == '.' || len == sizeof(refusal->hint) - 1)
        fail_msg("%.300s\nhas the hint \"%s\"", line, hint);
}

static void refuse_into(const char *line, enum nl_error error, const char *field,
                        struct nl_refusal *refusal) {
    struct nl_request r;
    enum nl_error got = parse_bytes(nl_slice_str(line), &r, refusal);
    if (got == NL_OK || got != error || refusal->error != error || strcmp(refusal->field, field) != 0)
        fail_msg("%.300s\n%s field \"%s\" instead of %s field \"%s\"", line, nl_error_name(got),
                 got == NL_OK ? "" : refusal->field, nl_error_name(error), field);
    assert_null(r.object);
    assert_null(r.id);
    assert_int_equal(r.type, NL_REQUEST_NONE);
    check_refusal_form(line, refusal);
}

static void refuse(const char *line, enum nl_error error, const char *field) {
    struct nl_refusal refusal;
    refuse_into(line, error, field, &refusal);
    nl_refusal_deinit(&refusal);
}

/* ---- what each request takes, by PROTOCOL.md ---- */

static const struct kind {
    const char *type, *members; /* members: of the smallest valid request, each ",..." */
    enum nl_request_type number;
} kinds[] = {
    {"hello", "", NL_REQUEST_HELLO},
    {"auth", ",\"session\":\"s\"", NL_REQUEST_AUTH},
    {"auth", ",\"token\":\"t\"", NL_REQUEST_AUTH},
    {"ping", "", NL_REQUEST_PING},
    {"status", "", NL_REQUEST_STATUS},
    {"sessions", "", NL_REQUEST_SESSIONS},
    {"events", "", NL_REQUEST_EVENTS},
    {"subscribe", ",\"topic\":" TOPIC, NL_REQUEST_SUBSCRIBE},
    {"unsubscribe", ",\"topic\":" TOPIC, NL_REQUEST_UNSUBSCRIBE},
    {"setFilters", ",\"topic\":" TOPIC ",\"filters\":[]", NL_REQUEST_SET_FILTERS},
    {"addFilters", ",\"topic\":" TOPIC ",\"filters\":[\"x\"]", NL_REQUEST_ADD_FILTERS},
    {"removeFilters", ",\"topic\":" TOPIC ",\"filters\":[\"x\"]", NL_REQUEST_REMOVE_FILTERS},
    {"publish", ",\"topic\":" TOPIC ",\"data\":1", NL_REQUEST_PUBLISH},
    {"presence", ",\"data\":{}", NL_REQUEST_PRESENCE},
    {"clearPresence", "", NL_REQUEST_CLEAR_PRESENCE},
    {"getPresence", "", NL_REQUEST_GET_PRESENCE},
    {"getActor", ",\"actorTokenId\":\"a\"", NL_REQUEST_GET_ACTOR},
    {"listPresence", "", NL_REQUEST_LIST_PRESENCE},
    {"watchPresence", ",\"roomId\":\"r\"", NL_REQUEST_WATCH_PRESENCE},
    {"unwatchPresence", ",\"roomId\":\"r\"", NL_REQUEST_UNWATCH_PRESENCE},
    {"lobbySubscribe", ",\"lobbyId\":\"l\"", NL_REQUEST_LOBBY_SUBSCRIBE},
    {"lobbyUnsubscribe", ",\"lobbyId\":\"l\"", NL_REQUEST_LOBBY_UNSUBSCRIBE},
    {"getLobbyPresence", ",\"lobbyId\":\"l\"", NL_REQUEST_GET_LOBBY_PRESENCE},
    {"ack", ",\"ackId\":1", NL_REQUEST_ACK},
    {"batchAck", ",\"ackIds\":[1]", NL_REQUEST_BATCH_ACK},
};

static const char *const unsupported[] = {"clients", "stats", "api"};

enum value_kind {
    A_TOPIC,
    TOPIC_OR_TAP,
    FILTERS,
    SOME_FILTERS,
    QOS,
    A_BOOL,
    GROUP,
    LATE_JOIN,
    MSG_REF,
    SESSION,
    TOKEN,
    ONLY,
    BIGINT,
    DATA,
    FILTER,
    PUBLISH_FILTERS,
    PRESENCE
};

/* Each field, with the other members that a valid request with this field has. */
static const struct field {
    const char *type, *name;
    enum value_kind kind;
    bool needed;
    const char *others;
} fields[] = {
    {"hello", "bigint", BIGINT, false, ""},
    {"auth", "session", SESSION, true, ""},
    {"auth", "token", TOKEN, false, ""},
    {"events", "only", ONLY, false, ""},
    {"subscribe", "topic", TOPIC_OR_TAP, true, ""},
    {"subscribe", "filters", FILTERS, false, ",\"topic\":" TOPIC},
    {"subscribe", "qos", QOS, false, ",\"topic\":" TOPIC},
    {"subscribe", "loadBalance", A_BOOL, false, ",\"topic\":" TOPIC},
    {"subscribe", "loadBalanceGroup", GROUP, false, ",\"topic\":" TOPIC ",\"loadBalance\":true"},
    {"subscribe", "lateJoin", LATE_JOIN, false, ",\"topic\":" TOPIC},
    {"unsubscribe", "topic", TOPIC_OR_TAP, true, ""},
    {"setFilters", "topic", A_TOPIC, true, ",\"filters\":[]"},
    {"setFilters", "filters", FILTERS, true, ",\"topic\":" TOPIC},
    {"addFilters", "topic", A_TOPIC, true, ",\"filters\":[\"x\"]"},
    {"addFilters", "filters", SOME_FILTERS, true, ",\"topic\":" TOPIC},
    {"removeFilters", "topic", A_TOPIC, true, ",\"filters\":[\"x\"]"},
    {"removeFilters", "filters", SOME_FILTERS, true, ",\"topic\":" TOPIC},
    {"publish", "topic", A_TOPIC, true, ",\"data\":1"},
    {"publish", "data", DATA, true, ",\"topic\":" TOPIC},
    {"publish", "qos", QOS, false, ",\"topic\":" TOPIC ",\"data\":1"},
    {"publish", "retain", A_BOOL, false, ",\"topic\":" TOPIC ",\"data\":1"},
    {"publish", "echo", A_BOOL, false, ",\"topic\":" TOPIC ",\"data\":1"},
    {"publish", "msgRef", MSG_REF, false, ",\"topic\":" TOPIC ",\"data\":1"},
    {"publish", "filter", FILTER, false, ",\"topic\":" TOPIC ",\"data\":1"},
    {"publish", "filters", PUBLISH_FILTERS, false, ",\"topic\":" TOPIC ",\"data\":1"},
    {"presence", "roomId", GROUP, false, ",\"data\":{}"},
    {"presence", "data", PRESENCE, true, ",\"roomId\":\"r\""},
    {"clearPresence", "roomId", GROUP, false, ""},
    {"getPresence", "roomId", GROUP, false, ""},
    {"getActor", "actorTokenId", SESSION, true, ""},
    {"getActor", "roomId", GROUP, false, ",\"actorTokenId\":\"a\""},
    {"listPresence", "roomId", GROUP, false, ""},
    {"watchPresence", "roomId", GROUP, true, ""},
    {"unwatchPresence", "roomId", GROUP, true, ""},
    {"lobbySubscribe", "lobbyId", GROUP, true, ""},
    {"lobbyUnsubscribe", "lobbyId", GROUP, true, ""},
    {"getLobbyPresence", "lobbyId", GROUP, true, ""},
};

static const char *const values[] = {
    "true",
    "false",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "1.0",
    "1e0",
    "0.5",
    "-0.0",
    "4294967296",
    "4294967297",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "-9223372036854775808",
    "\"\"",
    "\"x\"",
    "\"1\"",
    "\"true\"",
    "\"a/b/c\"",
    "\"a/b/c/d\"",
    "\"a/b\"",
    "\"a/b/c/d/e\"",
    "\"*\"",
    "\"#\"",
    "\"a/b/+\"",
    "\"a/b/#\"",
    "\"a/b/c d\"",
    "\"a|b\"",
    "\"a\\u0000\"",
    "\"a/b/c\\u0000\"",
    "\"a\\n\"",
    "\"a\\u007f\"",
    "\"ä\"",
    "\"string\"",
    "\"number\"",
    "\"none\"",
    "\"None\"",
    "\"String\"",
    "\"message\"",
    "[]",
    "[\"x\"]",
    "[\"x\",\"y\"]",
    "[[\"x\",\"y\"]]",
    "[[\"x\"]]",
    "[\"x\",[\"y\",\"Z\"]]",
    "[1]",
    "[null]",
    "[true]",
    "[\"\"]",
    "[\"message\"]",
    "[\"message\",\"error\",\"message\"]",
    "[\"message\",\"x\"]",
    "[\"Message\"]",
    "[\"x|y\"]",
    "[\"x/y\"]",
    "[\"x\\u0000\"]",
    "{}",
    "{\"a\":1}",
    "[{}]",
};

/* Is the JSON text one of these, which are separated by blanks? */
static bool among(const char *value, const char *list) {
    size_t len = strlen(value);
    for (const char *at = strstr(list, value); at; at = strstr(at + 1, value))
        if ((at == list || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0'))
            return true;
    return false;
}

static bool is_string(const char *value) {
    return *value == '"';
}

static enum nl_error topic_error(const char *value) {
    if (!is_string(value))
        return NL_ERROR_BAD_FIELD;
    return among(value, "\"a/b/c\" \"a/b/c/d\"") ? NL_OK : NL_ERROR_BAD_TOPIC;
}

static enum nl_error filters_error(const char *value) {
    if (*value != '[')
        return NL_ERROR_BAD_FIELD;
    return among(value,
                 "[] [\"x\"] [\"x\",\"y\"] [[\"x\",\"y\"]] [\"x\",[\"y\",\"Z\"]] [\"message\"] [\"Message\"] "
                 "[\"message\",\"error\",\"message\"] [\"message\",\"x\"] [\"x|y\"]")
               ? NL_OK
               : NL_ERROR_BAD_FILTER;
}

static enum nl_error unless(bool good) {
    return good ? NL_OK : NL_ERROR_BAD_FIELD;
}

static bool is_group(const char *value) {
    return among(value,
                 "\"x\" \"1\" \"true\" \"string\" \"number\" \"String\" \"message\" \"none\" \"None\"");
}

/* What must come of this value in a field of this kind. */
static enum nl_error expected(enum value_kind kind, const char *value) {
    switch (kind) {
    case A_TOPIC:
        return topic_error(value);
    case TOPIC_OR_TAP:
        return strcmp(value, "\"*\"") == 0 ? NL_OK : topic_error(value);
    case FILTERS:
        return filters_error(value);
    case SOME_FILTERS:
        return strcmp(value, "[]") == 0 ? NL_ERROR_BAD_FIELD : filters_error(value);
    case QOS:
        return unless(among(value, "0 1 2"));
    case A_BOOL:
        return unless(among(value, "true false"));
    case GROUP:
        return unless(is_group(value));
    case LATE_JOIN:
        return unless(among(value, "\"none\""));
    case MSG_REF:
        return unless(is_string(value) && !among(value, "\"\" \"a\\u0000\" \"a/b/c\\u0000\""));
    case SESSION:
    case TOKEN:
        return unless(is_string(value) &&
                      !among(value, "\"\" \"a\\u0000\" \"a/b/c\\u0000\" \"a\\n\" \"a\\u007f\""));
    case ONLY:
        return unless(among(value, "[] [\"message\"] [\"message\",\"error\",\"message\"]"));
    case BIGINT:
        return unless(among(value, "\"string\" \"number\""));
    case DATA:
        return NL_OK;
    case PRESENCE:
        return unless(*value == '{' || strcmp(value, "null") == 0);
    case FILTER:
        return is_group(value) || among(value, "\"*\" \"a|b\" \"a\\n\" \"a\\u007f\" \"ä\"")
                   ? NL_OK
                   : NL_ERROR_BAD_FILTER;
    case PUBLISH_FILTERS:
        return among(value,
                     "[\"x\"] [\"x\",\"y\"] [\"message\"] [\"Message\"] [\"message\",\"error\",\"message\"] "
                     "[\"message\",\"x\"]")
                   ? NL_OK
                   : NL_ERROR_BAD_FILTER;
    }
    return NL_OK;
}

/* ---- from the tables ---- */

static void test_smallest_requests(void **state) {
    char line[300];
    struct nl_request r;
    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        snprintf(line, sizeof(line), "{\"type\":\"%s\"%s}", kinds[i].type, kinds[i].members);
        pass(line, &r);
        assert_int_equal(r.type, kinds[i].number);
        assert_string_equal(nl_request_name(r.type), kinds[i].type);
        assert_null(r.id);
        nl_request_deinit(&r);
    }
    assert_null(nl_request_name(NL_REQUEST_NONE));
}

static void test_every_type_is_here(void **state) {
    bool seen[NL_REQUEST_COUNT] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(kinds); i++)
        seen[kinds[i].number] = true;
    for (int t = 1; t < NL_REQUEST_COUNT; t++)
        for (size_t i = 0; i < COUNT(unsupported); i++)
            seen[t] = seen[t] || strcmp(nl_request_name((enum nl_request_type)t), unsupported[i]) == 0;
    for (int t = 1; t < NL_REQUEST_COUNT; t++)
        if (!seen[t])
            fail_msg("%s is not tested", nl_request_name((enum nl_request_type)t));
}

static void test_unsupported(void **state) {
    char line[300];
    (void)state;
    for (size_t i = 0; i < COUNT(unsupported); i++) {
        struct nl_refusal refusal;
        snprintf(line, sizeof(line), "{\"type\":\"%s\",\"id\":9,\"roomId\":1,\"msgIds\":\"x\"}",
                 unsupported[i]);
        refuse_into(line, NL_ERROR_NOT_SUPPORTED, "", &refusal);
        assert_string_equal(nl_request_name(refusal.type), unsupported[i]);
        assert_string_equal(refusal.id, "9");
        nl_refusal_deinit(&refusal);
    }
}

static void test_every_field_with_every_value(void **state) {
    unsigned good = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(fields); i++)
        for (size_t v = 0; v < COUNT(values); v++) {
            const struct field *f = &fields[i];
            enum nl_error error = expected(f->kind, values[v]);
            char line[500];
            snprintf(line, sizeof(line), "{\"%s\":%s,\"type\":\"%s\"%s}", f->name, values[v], f->type,
                     f->others);
            good += error == NL_OK;
            if (error == NL_OK)
                pass_and_drop(line);
            else
                refuse(line, error, f->name);
        }
    assert_in_range(good, 100, 500);
}

static void test_absent_and_null(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(fields); i++) {
        const struct field *f = &fields[i];
        char without[500], with_null[500];
        if (f->kind == TOKEN || f->kind == SESSION)
            continue; /* one of the two: see below */
        snprintf(without, sizeof(without), "{\"type\":\"%s\"%s}", f->type, f->others);
        snprintf(with_null, sizeof(with_null), "{\"type\":\"%s\"%s,\"%s\":null}", f->type, f->others,
                 f->name);
        if (f->needed)
            refuse(without, NL_ERROR_MISSING_FIELD, f->name);
        else
            pass_and_drop(without);
        if (f->needed && f->kind != DATA && f->kind != PRESENCE)
            refuse(with_null, NL_ERROR_MISSING_FIELD, f->name);
        else
            pass_and_drop(with_null);
    }
}

/* ---- lengths ---- */

static const struct length {
    const char *type, *name, *others, *prefix;
    size_t max;
    enum nl_error error;
} lengths[] = {
    {"auth", "session", "", "", 128, NL_ERROR_BAD_FIELD},
    {"auth", "token", "", "", 4096, NL_ERROR_BAD_FIELD},
    {"publish", "msgRef", ",\"data\":1,\"topic\":" TOPIC, "", 256, NL_ERROR_BAD_FIELD},
    {"subscribe", "loadBalanceGroup", ",\"loadBalance\":true,\"topic\":" TOPIC, "", 128, NL_ERROR_BAD_FIELD},
    {"publish", "filter", ",\"data\":1,\"topic\":" TOPIC, "", 1024, NL_ERROR_BAD_FILTER},
    {"publish", "topic", ",\"data\":1", "a/b/", 1024, NL_ERROR_BAD_TOPIC},
    {"subscribe", "topic", "", "a/b/", 1024, NL_ERROR_BAD_TOPIC},
    {"unsubscribe", "topic", "", "a/b/", 1024, NL_ERROR_BAD_TOPIC},
};

static void write_long(struct nl_buffer *line, const struct length *l, size_t len) {
    char begin[200];
    nl_buffer_clear(line);
    snprintf(begin, sizeof(begin), "{\"type\":\"%s\"%s,\"%s\":\"%s", l->type, l->others, l->name, l->prefix);
    nl_buffer_append_str(line, begin);
    for (size_t i = strlen(l->prefix); i < len; i++)
        nl_buffer_append_byte(line, 'x');
    nl_buffer_append(line, "\"}", 3);
}

static void test_lengths(void **state) {
    struct nl_buffer line;
    (void)state;
    nl_buffer_init(&line);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        write_long(&line, &lengths[i], lengths[i].max);
        pass_and_drop((char *)line.bytes);
        write_long(&line, &lengths[i], lengths[i].max + 1);
        refuse((char *)line.bytes, lengths[i].error, lengths[i].name);
        write_long(&line, &lengths[i], 1000000);
        refuse((char *)line.bytes, lengths[i].error, lengths[i].name);
    }
    nl_buffer_deinit(&line);
}

/* A bound is in bytes, not in characters. */
static void test_lengths_are_bytes(void **state) {
    char line[600] = "{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":1,\"msgRef\":\"";
    (void)state;
    for (int i = 0; i < 128; i++)
        strcat(line, "ä");
    strcat(line, "\"}");
    pass_and_drop(line);
    strcpy(line + strlen(line) - 2, "x\"}");
    refuse(line, NL_ERROR_BAD_FIELD, "msgRef");
}

static void test_number_of_filters(void **state) {
    static const char *const types[] = {"subscribe", "setFilters", "addFilters", "removeFilters"};
    char line[2000], filter[16];
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++)
        for (int count = 100; count <= 101; count++) {
            snprintf(line, sizeof(line), "{\"type\":\"%s\",\"topic\":" TOPIC ",\"filters\":[", types[t]);
            for (int i = 0; i < count; i++) {
                snprintf(filter, sizeof(filter), "%s\"f%d\"", i ? "," : "", i);
                strcat(line, filter);
            }
            strcat(line, "]}");
            if (count == 100)
                pass_and_drop(line);
            else
                refuse(line, NL_ERROR_TOO_MANY_FILTERS, "filters");
        }
}

/* ---- what a checked request holds ---- */

static void check_slice(struct nl_slice s, const char *text) {
    if (!text)
        assert_null(s.ptr);
    else
        assert_true(nl_slice_equal(s, nl_slice_str(text)));
}

static void test_publish(void **state) {
    struct nl_request r;
    (void)state;
    pass("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":{\"a\":[1]},\"qos\":2,\"retain\":true,"
         "\"echo\":false,\"filters\":[\"B\",\"a\"],\"msgRef\":\"m\",\"id\":\"i\",\"other\":1}",
         &r);
    check_slice(r.topic, "app/room/topic");
    assert_true(r.has_data);
    assert_string_equal(json_object_to_json_string_ext(r.data, JSON_C_TO_STRING_PLAIN), "{\"a\":[1]}");
    assert_int_equal(r.qos, 2);
    assert_true(r.retain);
    assert_string_equal(r.filter_key, "a|b");
    check_slice(r.msg_ref, "m");
    assert_string_equal(r.id, "\"i\"");
    nl_request_deinit(&r);
    pass("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":null,\"filter\":\"X\",\"retain\":false}", &r);
    assert_true(r.has_data);
    assert_null(r.data);
    assert_int_equal(r.qos, -1);
    assert_false(r.retain);
    assert_string_equal(r.filter_key, "X");
    check_slice(r.msg_ref, NULL);
    nl_request_deinit(&r);
    pass("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":0,\"qos\":0,\"filter\":null,\"filters\":null}",
         &r);
    assert_int_equal(r.qos, 0);
    assert_null(r.filter_key);
    nl_request_deinit(&r);
}

static void test_subscribe(void **state) {
    struct nl_request r;
    (void)state;
    pass("{\"type\":\"subscribe\",\"topic\":" TOPIC
         ",\"qos\":1,\"loadBalance\":true,\"loadBalanceGroup\":\"g_1:-\","
         "\"filters\":[\"x\",[\"B\",\"a\"],\"x\"]}",
         &r);
    check_slice(r.topic, "app/room/topic");
    assert_int_equal(r.qos, 1);
    assert_true(r.load_balance);
    check_slice(r.group, "g_1:-");
    assert_int_equal(r.filters.count, 2);
    assert_string_equal(r.filters.items[1].key, "a|b");
    nl_request_deinit(&r);
    pass("{\"type\":\"subscribe\",\"topic\":\"*\"}", &r);
    check_slice(r.topic, "*");
    assert_int_equal(r.qos, -1);
    assert_false(r.load_balance);
    check_slice(r.group, NULL);
    assert_int_equal(r.filters.count, 0);
    nl_request_deinit(&r);
    pass("{\"type\":\"subscribe\",\"topic\":\"*\",\"filters\":[],\"loadBalance\":false,"
         "\"loadBalanceGroup\":null}",
         &r);
    nl_request_deinit(&r);
}

static void test_auth(void **state) {
    struct nl_request r;
    (void)state;
    pass("{\"type\":\"auth\",\"session\":\"x y\"}", &r);
    check_slice(r.session, "x y");
    check_slice(r.token, NULL);
    nl_request_deinit(&r);
    pass("{\"type\":\"auth\",\"session\":null,\"token\":\"t/+==\"}", &r);
    check_slice(r.session, NULL);
    check_slice(r.token, "t/+==");
    nl_request_deinit(&r);
}

static void test_events(void **state) {
    const unsigned all = (1u << NL_EVENT_COUNT) - 1;
    struct nl_request r;
    char line[100];
    (void)state;
    pass("{\"type\":\"events\"}", &r);
    assert_int_equal(r.only, all);
    nl_request_deinit(&r);
    pass("{\"type\":\"events\",\"only\":null}", &r);
    assert_int_equal(r.only, all);
    nl_request_deinit(&r);
    pass("{\"type\":\"events\",\"only\":[]}", &r);
    assert_int_equal(r.only, 0);
    nl_request_deinit(&r);
    pass("{\"type\":\"events\",\"only\":[\"shutdown\",\"message\",\"shutdown\"]}", &r);
    assert_int_equal(r.only, 1u << NL_EVENT_MESSAGE | 1u << NL_EVENT_SHUTDOWN);
    nl_request_deinit(&r);
    for (unsigned e = 0; e < NL_EVENT_COUNT; e++) {
        snprintf(line, sizeof(line), "{\"type\":\"events\",\"only\":[\"%s\"]}",
                 nl_event_name((enum nl_event)e));
        pass(line, &r);
        assert_int_equal(r.only, 1u << e);
        nl_request_deinit(&r);
    }
}

static void test_hello(void **state) {
    struct nl_request r;
    (void)state;
    pass("{\"type\":\"hello\",\"bigint\":\"string\"}", &r);
    assert_true(r.has_bigint && r.bigint_as_string);
    nl_request_deinit(&r);
    pass("{\"type\":\"hello\",\"bigint\":\"number\"}", &r);
    assert_true(r.has_bigint && !r.bigint_as_string);
    nl_request_deinit(&r);
    pass("{\"type\":\"hello\"}", &r);
    assert_false(r.has_bigint || r.bigint_as_string);
    nl_request_deinit(&r);
}

/* Fields that no request has, whatever they hold. */
static void test_unknown_fields_are_ignored(void **state) {
    (void)state;
    pass_and_drop("{\"type\":\"ping\",\"x\":[[]],\"Topic\":7,\"\":{},\"request\":\"x\",\"\\u0000\":1}");
    pass_and_drop("{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"ttl\":1,\"filt\":[\"x\"]}");
    pass_and_drop("{\"type\":\"ping\",\"x\":1e999,\"y\":\"\\ud800\",\"z\":[{\"\\u0000\":1}]}");
}

/* Fields that only other requests have, whatever they hold; null counts as absent. */
static void test_fields_of_other_requests(void **state) {
    unsigned refused = 0;
    (void)state;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (size_t f = 0; f < COUNT(fields); f++) {
            char line[500];
            bool own = false;
            for (size_t i = 0; i < COUNT(fields); i++)
                own = own || (strcmp(fields[i].type, kinds[k].type) == 0 &&
                              strcmp(fields[i].name, fields[f].name) == 0);
            if (own)
                continue;
            snprintf(line, sizeof(line), "{\"type\":\"%s\"%s,\"%s\":null}", kinds[k].type, kinds[k].members,
                     fields[f].name);
            pass_and_drop(line);
            snprintf(line, sizeof(line), "{\"type\":\"%s\"%s,\"%s\":[]}", kinds[k].type, kinds[k].members,
                     fields[f].name);
            refuse(line, NL_ERROR_BAD_FIELD, fields[f].name);
            refused++;
        }
    assert_in_range(refused, 100, 1000);
}

/* ---- rules beyond single fields ---- */

static void test_rules(void **state) {
    (void)state;
    refuse("{\"type\":\"auth\"}", NL_ERROR_MISSING_FIELD, "session");
    refuse("{\"type\":\"auth\",\"session\":null,\"token\":null}", NL_ERROR_MISSING_FIELD, "session");
    refuse("{\"type\":\"auth\",\"session\":\"s\",\"token\":\"t\"}", NL_ERROR_BAD_FIELD, "token");
    refuse("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":1,\"filter\":\"x\",\"filters\":[\"x\"]}",
           NL_ERROR_BAD_FIELD, "filters");
    refuse("{\"type\":\"publish\",\"topic\":\"*\",\"data\":1}", NL_ERROR_BAD_TOPIC, "topic");
    refuse("{\"type\":\"subscribe\",\"topic\":\"*\",\"filters\":[\"x\"]}", NL_ERROR_BAD_FIELD, "filters");
    refuse("{\"type\":\"subscribe\",\"topic\":\"*\",\"loadBalance\":true}", NL_ERROR_BAD_FIELD,
           "loadBalance");
    refuse("{\"type\":\"subscribe\",\"topic\":\"*\",\"loadBalance\":true,\"loadBalanceGroup\":\"g\"}",
           NL_ERROR_BAD_FIELD, "loadBalance");
    refuse("{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"loadBalanceGroup\":\"g\"}", NL_ERROR_BAD_FIELD,
           "loadBalanceGroup");
    refuse("{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"loadBalance\":false,\"loadBalanceGroup\":\"g\"}",
           NL_ERROR_BAD_FIELD, "loadBalanceGroup");
    pass_and_drop("{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"loadBalance\":true}");
}

/* ---- ids ---- */

static void test_good_ids(void **state) {
    static const char *const ids[][2] = {
        {"0", "0"},
        {"7", "7"},
        {"-1", "-1"},
        {"-0", "0"},
        {"9007199254740993", "9007199254740993"},
        {"9223372036854775807", "9223372036854775807"},
        {"9223372036854775808", "9223372036854775808"},
        {"18446744073709551615", "18446744073709551615"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"\"\"", "\"\""},
        {"\"a\"", "\"a\""},
        {"\"7\"", "\"7\""},
        {"\"\\u00e4\\/\"", "\"ä/\""},
        {"\"\\\"\\\\\\n\"", "\"\\\"\\\\\\n\""},
        {"\"a\\u0000b\"", "\"a\\u0000b\""},
        {"\"\\ud83d\\ude00\"", "\"😀\""},
    };
    struct nl_refusal refusal;
    struct nl_request r;
    char line[200];
    (void)state;
    for (size_t i = 0; i < COUNT(ids); i++) {
        snprintf(line, sizeof(line), "{\"type\":\"ping\",\"id\":%s}", ids[i][0]);
        pass(line, &r);
        assert_string_equal(r.id, ids[i][1]);
        nl_request_deinit(&r);
        snprintf(line, sizeof(line), "{\"type\":\"publish\",\"id\":%s}", ids[i][0]);
        refuse_into(line, NL_ERROR_MISSING_FIELD, "topic", &refusal);
        assert_string_equal(refusal.id, ids[i][1]);
        nl_refusal_deinit(&refusal);
    }
    pass("{\"type\":\"ping\",\"id\":null}", &r);
    assert_null(r.id);
    nl_request_deinit(&r);
}

static void test_bad_ids(void **state) {
    static const char *const ids[] = {"1.0",   "1e3", "0.5", "-0.0", "true",
                                      "false", "[]",  "{}",  "[1]",  "{\"a\":1}"};
    char line[200];
    (void)state;
    for (size_t i = 0; i < COUNT(ids); i++) {
        struct nl_refusal refusal;
        snprintf(line, sizeof(line), "{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"id\":%s}", ids[i]);
        refuse_into(line, NL_ERROR_BAD_FIELD, "id", &refusal);
        assert_null(refusal.id);
        assert_int_equal(refusal.type, NL_REQUEST_SUBSCRIBE);
        assert_string_equal(refusal.topic, "app/room/topic");
        nl_refusal_deinit(&refusal);
    }
    refuse("{\"type\":\"ping\",\"id\":18446744073709551616}", NL_ERROR_BAD_FIELD, "id");
    refuse("{\"type\":\"ping\",\"id\":-9223372036854775809}", NL_ERROR_BAD_FIELD, "id");
    refuse("{\"type\":\"x\",\"id\":1.5}", NL_ERROR_UNKNOWN_TYPE, "");
}

/* An id of count times unit. */
static enum nl_error long_id(const char *unit, size_t count) {
    struct nl_buffer line;
    struct nl_refusal refusal;
    struct nl_request r;
    nl_buffer_init(&line);
    nl_buffer_append_str(&line, "{\"type\":\"ping\",\"id\":\"");
    while (count--)
        nl_buffer_append_str(&line, unit);
    nl_buffer_append_str(&line, "\"}");
    enum nl_error error = parse_bytes(nl_slice(line.bytes, line.len), &r, &refusal);
    if (error == NL_OK) {
        assert_true(strlen(r.id) <= NL_ID_MAX);
        nl_request_deinit(&r);
    } else {
        assert_null(refusal.id);
        nl_refusal_deinit(&refusal);
    }
    nl_buffer_deinit(&line);
    return error;
}

static void test_long_ids(void **state) {
    (void)state;
    assert_int_equal(long_id("x", 254), NL_OK);
    assert_int_equal(long_id("x", 255), NL_ERROR_BAD_FIELD);
    assert_int_equal(long_id("x", 256), NL_ERROR_BAD_FIELD);
    assert_int_equal(long_id("x", 257), NL_ERROR_BAD_FIELD);
    assert_int_equal(long_id("x", 1000000), NL_ERROR_BAD_FIELD);
    assert_int_equal(long_id("\\\"", 127), NL_OK);
    assert_int_equal(long_id("\\\"", 128), NL_ERROR_BAD_FIELD);
    assert_int_equal(long_id("\\u0001", 42), NL_OK);
    assert_int_equal(long_id("\\u0001", 43), NL_ERROR_BAD_FIELD);
    assert_int_equal(long_id("ä", 127), NL_OK);
    assert_int_equal(long_id("ä", 128), NL_ERROR_BAD_FIELD);
    assert_int_equal(long_id("\\u0061", 254), NL_OK); /* as it is echoed, not as it was written */
}

/* ---- refusals ---- */

static void test_every_refusal_has_the_id(void **state) {
    static const struct {
        const char *members;
        enum nl_error error;
        const char *field;
        enum nl_request_type type;
    } cases[] = {
        {"\"x\":1", NL_ERROR_MISSING_FIELD, "type", NL_REQUEST_NONE},
        {"\"type\":null", NL_ERROR_MISSING_FIELD, "type", NL_REQUEST_NONE},
        {"\"type\":7", NL_ERROR_BAD_FIELD, "type", NL_REQUEST_NONE},
        {"\"type\":[\"ping\"]", NL_ERROR_BAD_FIELD, "type", NL_REQUEST_NONE},
        {"\"type\":\"nonsense\"", NL_ERROR_UNKNOWN_TYPE, "", NL_REQUEST_NONE},
        {"\"type\":\"Ping\"", NL_ERROR_UNKNOWN_TYPE, "", NL_REQUEST_NONE},
        {"\"type\":\"ping\\u0000\"", NL_ERROR_UNKNOWN_TYPE, "", NL_REQUEST_NONE},
        {"\"type\":\"\"", NL_ERROR_UNKNOWN_TYPE, "", NL_REQUEST_NONE},
        {"\"type\":\"message\"", NL_ERROR_UNKNOWN_TYPE, "", NL_REQUEST_NONE},
        {"\"type\":\"api\"", NL_ERROR_NOT_SUPPORTED, "", NL_REQUEST_API},
        {"\"type\":\"subscribe\"", NL_ERROR_MISSING_FIELD, "topic", NL_REQUEST_SUBSCRIBE},
        {"\"type\":\"subscribe\",\"topic\":\"a\"", NL_ERROR_BAD_TOPIC, "topic", NL_REQUEST_SUBSCRIBE},
        {"\"type\":\"setFilters\",\"topic\":" TOPIC ",\"filters\":[1]", NL_ERROR_BAD_FILTER, "filters",
         NL_REQUEST_SET_FILTERS},
        {"\"type\":\"publish\",\"topic\":" TOPIC, NL_ERROR_MISSING_FIELD, "data", NL_REQUEST_PUBLISH},
    };
    char line[300];
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct nl_refusal refusal;
        snprintf(line, sizeof(line), "{%s,\"id\":\"i-7\"}", cases[i].members);
        refuse_into(line, cases[i].error, cases[i].field, &refusal);
        assert_int_equal(refusal.type, cases[i].type);
        assert_string_equal(refusal.id, "\"i-7\"");
        nl_refusal_deinit(&refusal);
        assert_null(refusal.id);
    }
}

static void check_hint(const char *line, enum nl_error error, const char *field, const char *part) {
    struct nl_refusal refusal;
    refuse_into(line, error, field, &refusal);
    if (!strstr(refusal.hint, part))
        fail_msg("%s\nhas the hint \"%s\" without \"%s\"", line, refusal.hint, part);
    nl_refusal_deinit(&refusal);
}

static void test_hints(void **state) {
    struct nl_refusal refusal;
    (void)state;
    check_hint("{\"type\":\"nonsense\"}", NL_ERROR_UNKNOWN_TYPE, "", "\"nonsense\"");
    check_hint("{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"id\":1}", NL_ERROR_MISSING_FIELD, "type",
               "not JSON-RPC");
    check_hint("{\"op\":\"publish\"}", NL_ERROR_MISSING_FIELD, "type", "\"op\"");
    check_hint("{\"type\":\"publish\",\"data\":1}", NL_ERROR_MISSING_FIELD, "topic",
               "publish needs \"topic\"");
    check_hint("{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"qos\":3}", NL_ERROR_BAD_FIELD, "qos",
               "0, 1 or 2");
    check_hint("{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"filter\":\"x\"}", NL_ERROR_BAD_FIELD, "filter",
               "subscribe has no \"filter\" but \"filters\"");
    check_hint("{\"type\":\"status\",\"session\":\"x\"}", NL_ERROR_BAD_FIELD, "session",
               "status has no \"session\"; it is a field of auth");
    check_hint("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":1,\"filter\":[\"x\"]}",
               NL_ERROR_BAD_FILTER, "filter", "for a list there is filters");
    check_hint("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":1,\"retain\":1}", NL_ERROR_BAD_FIELD,
               "retain", "retain is true or false");
    /* What cannot be shown, or is too long to be, is not. */
    refuse_into("{\"type\":\"\\u001b[2J\"}", NL_ERROR_UNKNOWN_TYPE, "", &refusal);
    assert_string_equal(refusal.hint, "");
    refuse_into("{\"type\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}", NL_ERROR_UNKNOWN_TYPE, "",
                &refusal);
    assert_string_equal(refusal.hint, "");
}

/* What is wrong with a line, and at which byte of it. */
static void test_hints_of_bad_json(void **state) {
    static const struct {
        const char *line, *hint;
    } cases[] = {
        {"GET / HTTP/1.1", "byte 1: an object must begin here"},
        {"  \"topic\": \"a/b/c\",", "byte 3: an object must begin here"},
        {"}", "byte 1: an object must begin here"},
        {"   ", "byte 4: an object must begin here"},
        {"[{\"type\":\"ping\"}]", "byte 1: an object must begin here"},
        {"{", "byte 2: the line ends within the object"},
        {"{\"type\":\"ping\",", "byte 16: the line ends within the object"},
        {"{\"type\":\"pi", "byte 12: the line ends within the object"},
        {"{\"type\":tr", "byte 9: this is no JSON value"},
        {"{\"type\":\"ping\"} {\"type\":\"ping\"}", "byte 17: a second object"},
        {"{\"type\":\"ping\"}}", "byte 16: something follows"},
        {"{\"type\":\"ping\",}", "byte 16: a comma is followed by a key"},
        {"{'type':'ping'}", "byte 2: a key in double quotes"},
        {"{\"type\":'ping'}", "byte 9: strings have double quotes"},
        {"{type:\"ping\"}", "byte 2: a key in double quotes"},
        {"{\"type\" \"ping\"}", "byte 9: a colon"},
        {"{\"type\":\"ping\" \"id\":1}", "byte 16: a comma or the }"},
        {"{\"x\":[1 2]}", "byte 9: a comma or the ]"},
        {"{\"x\":[1,]}", "byte 9: a value is missing"},
        {"{\"x\":}", "byte 6: a value is missing"},
        {"{\"x\":NaN}", "byte 6: NaN and Infinity"},
        {"{\"x\":-Infinity}", "byte 6: NaN and Infinity"},
        {"{\"x\":True}", "byte 6: true, false and null are lower case"},
        {"{\"x\":undefined}", "byte 6: this is no JSON value"},
        {"{\"x\":+1}", "byte 6: this is no JSON value"},
        {"{\"x\":01}", "byte 6: a number has no leading zeros"},
        {"{\"x\":1.}", "byte 8: a digit is missing"},
        {"{\"x\":1e+}", "byte 9: a digit is missing"},
        {"{\"x\":\"a\tb\"}", "byte 8: a control character"},
        {"{\"x\":\"\\x41\"}", "byte 8: JSON has no such escape"},
        {"{\"x\":\"\\u12g4\"}", "byte 11: four hexadecimal digits"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct nl_refusal refusal;
        refuse_into(cases[i].line, NL_ERROR_BAD_JSON, "", &refusal);
        if (strncmp(refusal.hint, cases[i].hint, strlen(cases[i].hint)) != 0)
            fail_msg("%s\nhas the hint \"%s\"", cases[i].line, refusal.hint);
        nl_refusal_deinit(&refusal);
    }
}

/* JSON that cannot be held harms the field that it is in, and is told with id, topic and msgRef. */
static void test_what_cannot_be_held(void **state) {
    static const struct {
        const char *value, *hint;
    } values_unheld[] = {
        {"18446744073709551616", "an integer that 64 bits do not hold"},
        {"-9223372036854775809", "an integer that 64 bits do not hold"},
        {"1e999", "a number that a double does not hold"},
        {"-1e999", "a number that a double does not hold"},
        {"\"\\ud800\"", "half of a surrogate pair"},
        {"\"\\udc00\"", "half of a surrogate pair"},
        {"\"\\ud800\\ud83d\\ude00\"", "half of a surrogate pair"},
        {"\"\\ud800\\n\"", "half of a surrogate pair"},
        {"{\"\\u0000\":1}", "a key with U+0000"},
        {"[{\"a\":[\"\\udfff\",1e999]}]", "half of a surrogate pair"},
    };
    (void)state;
    for (size_t f = 0; f < COUNT(fields); f++)
        for (size_t v = 0; v < COUNT(values_unheld); v++) {
            bool data = fields[f].kind == DATA || fields[f].kind == PRESENCE;
            struct nl_refusal refusal;
            char line[500];
            snprintf(line, sizeof(line), "{\"id\":7,\"type\":\"%s\"%s,\"%s\" : %s }", fields[f].type,
                     fields[f].others, fields[f].name, values_unheld[v].value);
            refuse_into(line, data ? NL_ERROR_BAD_PAYLOAD : NL_ERROR_BAD_FIELD, data ? "" : fields[f].name,
                        &refusal);
            assert_string_equal(refusal.id, "7");
            assert_string_equal(nl_request_name(refusal.type), fields[f].type);
            assert_non_null(strstr(refusal.hint, values_unheld[v].hint));
            nl_refusal_deinit(&refusal);
        }
    check_hint("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":[1,1e999]}", NL_ERROR_BAD_PAYLOAD, "",
               "byte 54: a number");
    refuse("{\"type\":1e999}", NL_ERROR_BAD_FIELD, "type");
    refuse("{\"type\":\"ping\",\"id\":\"\\ud800\"}", NL_ERROR_BAD_FIELD, "id");
}

/* Around what cannot be held all else is read as ever; of a key that comes twice the last one counts. */
static void test_around_what_cannot_be_held(void **state) {
    struct nl_request r;
    (void)state;
    pass(" { \"x\" : 1e999 , \"data\" : { \"a\" : [ 1, null, \"\\u00e4\" ] } , \"\\u0074ype\" : \"publish\" ,"
         " \"y\\u0000\":\"\\ud800\", \"topic\":" TOPIC ",\"retain\":true,\"filter\":null,\"qos\":2} ",
         &r);
    assert_string_equal(json_object_to_json_string_ext(r.data, JSON_C_TO_STRING_PLAIN),
                        "{\"a\":[1,null,\"ä\"]}");
    assert_true(r.retain);
    assert_int_equal(r.qos, 2);
    nl_request_deinit(&r);
    pass("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":1e999,\"data\":null}", &r);
    assert_true(r.has_data);
    assert_null(r.data);
    nl_request_deinit(&r);
    refuse("{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":null,\"data\":1e999}", NL_ERROR_BAD_PAYLOAD,
           "");
}

static void test_msg_ref_of_a_refusal(void **state) {
    static const struct {
        const char *members;
        enum nl_error error;
        const char *field, *msg_ref;
    } cases[] = {
        {"\"topic\":\"bad\",\"data\":1,\"msgRef\":\"m1\"", NL_ERROR_BAD_TOPIC, "topic", "m1"},
        {"\"topic\":" TOPIC ",\"msgRef\":\"m1\"", NL_ERROR_MISSING_FIELD, "data", "m1"},
        {"\"msgRef\":\"m1\",\"topic\":" TOPIC ",\"data\":1e999", NL_ERROR_BAD_PAYLOAD, "", "m1"},
        {"\"topic\":" TOPIC ",\"data\":1,\"filter\":\"\",\"msgRef\":\"ä\"", NL_ERROR_BAD_FILTER, "filter",
         "ä"},
        {"\"topic\":" TOPIC ",\"data\":1,\"id\":[],\"msgRef\":\"m1\"", NL_ERROR_BAD_FIELD, "id", "m1"},
        {"\"topic\":" TOPIC ",\"data\":1,\"token\":\"\",\"msgRef\":\"m1\"", NL_ERROR_BAD_FIELD, "token",
         "m1"},
        {"\"topic\":" TOPIC ",\"data\":1,\"msgRef\":7", NL_ERROR_BAD_FIELD, "msgRef", ""},
        {"\"topic\":" TOPIC ",\"data\":1,\"msgRef\":\"a\\u0000\"", NL_ERROR_BAD_FIELD, "msgRef", ""},
    };
    struct nl_refusal refusal;
    char line[600], ref[NL_MSG_REF_MAX + 1] = {0};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(line, sizeof(line), "{\"type\":\"publish\",%s}", cases[i].members);
        refuse_into(line, cases[i].error, cases[i].field, &refusal);
        assert_string_equal(refusal.msg_ref, cases[i].msg_ref);
        nl_refusal_deinit(&refusal);
    }
    memset(ref, 'r', NL_MSG_REF_MAX);
    snprintf(line, sizeof(line), "{\"type\":\"publish\",\"topic\":\"bad\",\"data\":1,\"msgRef\":\"%s\"}",
             ref);
    refuse_into(line, NL_ERROR_BAD_TOPIC, "topic", &refusal);
    assert_string_equal(refusal.msg_ref, ref);
    nl_refusal_deinit(&refusal);
}

static void test_topic_of_a_refusal(void **state) {
    struct nl_refusal refusal;
    char line[1200], topic[NL_TOPIC_MAX + 2];
    (void)state;
    refuse_into("{\"type\":\"subscribe\",\"topic\":" TOPIC ",\"qos\":9}", NL_ERROR_BAD_FIELD, "qos",
                &refusal);
    assert_string_equal(refusal.topic, "app/room/topic");
    refuse_into("{\"type\":\"stats\",\"topic\":\"a/b\"}", NL_ERROR_NOT_SUPPORTED, "", &refusal);
    assert_string_equal(refusal.topic, "");
    refuse_into("{\"type\":\"subscribe\",\"topic\":7}", NL_ERROR_BAD_FIELD, "topic", &refusal);
    assert_string_equal(refusal.topic, "");
    for (size_t len = NL_TOPIC_MAX; len <= NL_TOPIC_MAX + 1; len++) {
        memset(topic, 'x', len);
        memcpy(topic, "a/b/", 4);
        topic[len] = '\0';
        snprintf(line, sizeof(line), "{\"type\":\"subscribe\",\"qos\":9,\"topic\":\"%s\",\"x\":1}", topic);
        bool fits = len <= NL_TOPIC_MAX;
        refuse_into(line, fits ? NL_ERROR_BAD_FIELD : NL_ERROR_BAD_TOPIC, fits ? "qos" : "topic", &refusal);
        assert_string_equal(refusal.topic, fits ? topic : "");
    }
}

/* ---- how many values ---- */

/* A ping with count times text, and rest, in an unknown field. */
static enum nl_error many(const char *text, size_t count, const char *rest) {
    struct nl_refusal refusal;
    struct nl_request r;
    struct nl_buffer line;
    nl_buffer_init(&line);
    nl_buffer_append_str(&line, "{\"type\":\"ping\",\"x\":[");
    while (count--) {
        nl_buffer_append_str(&line, text);
        nl_buffer_append_byte(&line, ',');
    }
    nl_buffer_append_str(&line, rest);
    nl_buffer_append_str(&line, "]}");
    enum nl_error error = nl_request_parse(nl_slice(line.bytes, line.len), DEPTH, &r, &refusal);
    nl_buffer_deinit(&line);
    if (error == NL_OK)
        nl_request_deinit(&r);
    else
        assert_null(refusal.id);
    return error;
}

static void test_number_of_values(void **state) {
    const size_t left = NL_VALUES_MAX - 8 - 1 - 2; /* the request itself, its type, and the list */
    (void)state;
    assert_int_equal(many("1", left - 1, "1"), NL_OK);
    assert_int_equal(many("1", left, "1"), NL_ERROR_TOO_MANY_VALUES);
    assert_int_equal(many("\"\"", left, "null"), NL_ERROR_TOO_MANY_VALUES);
    assert_int_equal(many("[]", left / 2, "0"), left % 2 ? NL_OK : NL_ERROR_TOO_MANY_VALUES);
    assert_int_equal(many("[]", left / 2, "[]"), NL_ERROR_TOO_MANY_VALUES);
    assert_int_equal(many("{}", left / 8 - 1, "{}"), NL_OK);
    assert_int_equal(many("{}", left / 8, "{}"), NL_ERROR_TOO_MANY_VALUES);
}

/* The error of a line that is no request has nothing of what the line may have held. */
static void test_unreadable_lines(void **state) {
    static const struct {
        const char *line;
        enum nl_error error;
    } lines[] = {
        {"not json", NL_ERROR_BAD_JSON},
        {"[]", NL_ERROR_BAD_JSON},
        {"7", NL_ERROR_BAD_JSON},
        {"\"ping\"", NL_ERROR_BAD_JSON},
        {"null", NL_ERROR_BAD_JSON},
        {"{\"type\":\"ping\",\"id\":1", NL_ERROR_BAD_JSON},
        {"{\"type\":\"ping\",\"id\":1}}", NL_ERROR_BAD_JSON},
        {"{\"type\":\"ping\",\"id\":1} {\"type\":\"ping\"}", NL_ERROR_BAD_JSON},
        {"{'type':'ping','id':1}", NL_ERROR_BAD_JSON},
        {"{\"type\":\"ping\",\"id\":1,\"x\":NaN}", NL_ERROR_BAD_JSON},
        {"{\"type\":\"ping\",\"id\":1,\"x\":\"\xff\"}", NL_ERROR_BAD_UTF8},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct nl_refusal refusal;
        refuse_into(lines[i].line, lines[i].error, "", &refusal);
        assert_int_equal(refusal.type, NL_REQUEST_NONE);
        assert_null(refusal.id);
        assert_string_equal(refusal.topic, "");
    }
}

static void test_depth(void **state) {
    struct nl_refusal refusal;
    struct nl_request r;
    (void)state;
    struct nl_slice line = nl_slice_str("{\"type\":\"ping\",\"x\":[[]]}");
    assert_int_equal(nl_request_parse(line, 3, &r, &refusal), NL_OK);
    nl_request_deinit(&r);
    assert_int_equal(nl_request_parse(line, 2, &r, &refusal), NL_ERROR_TOO_DEEP);
    nl_refusal_deinit(&refusal);
}

/* A token is in no part of a refusal. */
static void test_token_is_not_told(void **state) {
    static const char *const lines[] = {
        "{\"type\":\"auth\",\"token\":\"s3cret\",\"session\":\"x\"}",
        "{\"type\":\"auth\",\"token\":\"s3cret\\n\"}",
        "{\"type\":\"auth\",\"token\":\"s3cret\",\"session\":7}",
        "{\"type\":\"auth\",\"token\":[\"s3cret\"]}",
        "{\"type\":\"auth\",\"token\":\"s3cret\",\"id\":1.5}",
        "{\"type\":\"Auth\",\"token\":\"s3cret\"}",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct nl_refusal refusal;
        struct nl_request r;
        if (parse_bytes(nl_slice_str(lines[i]), &r, &refusal) == NL_OK)
            fail_msg("%s is not refused", lines[i]);
        assert_null(strstr(refusal.hint, "s3cret"));
        assert_null(strstr(refusal.field, "s3cret"));
        assert_null(strstr(refusal.topic, "s3cret"));
        nl_refusal_deinit(&refusal);
    }
}

/* Nor does it stay in memory that is given back. A reference of our own keeps it from being used anew. */
static void test_token_is_wiped(void **state) {
    struct json_object *token;
    struct nl_request r;
    (void)state;
    for (int length = 6; length <= 600; length *= 10) {
        char line[700], zeros[600] = {0};
        snprintf(line, sizeof(line), "{\"type\":\"auth\",\"token\":\"%0*d\"}", length, 7);
        pass(line, &r);
        assert_true(json_object_object_get_ex(r.object, "token", &token));
        assert_int_equal(json_object_get_string_len(token), length);
        json_object_get(token);
        nl_request_deinit(&r);
        assert_memory_equal(json_object_get_string(token), zeros, (size_t)length);
        json_object_put(token);
    }
}

/* ---- what would harm the broker's connection ---- */

/* Each of these closes a broker connection, hangs or does something else than was meant. */
static void test_poison(void **state) {
#define PUBLISH(members) "{\"type\":\"publish\",\"topic\":" TOPIC ",\"data\":1," members "}"
#define SUBSCRIBE(members) "{\"type\":\"subscribe\",\"topic\":" TOPIC "," members "}"
    static const struct {
        const char *line;
        enum nl_error error;
        const char *field;
    } poison[] = {
        {PUBLISH("\"retain\":1"), NL_ERROR_BAD_FIELD, "retain"},
        {PUBLISH("\"retain\":\"true\""), NL_ERROR_BAD_FIELD, "retain"},
        {SUBSCRIBE("\"loadBalance\":true,\"loadBalanceGroup\":7"), NL_ERROR_BAD_FIELD, "loadBalanceGroup"},
        {SUBSCRIBE("\"loadBalance\":true,\"loadBalanceGroup\":\"a/b\""), NL_ERROR_BAD_FIELD,
         "loadBalanceGroup"},
        {SUBSCRIBE("\"loadBalance\":1"), NL_ERROR_BAD_FIELD, "loadBalance"},
        {"{\"type\":\"publish\",\"topic\":7,\"data\":1}", NL_ERROR_BAD_FIELD, "topic"},
        {"{\"type\":\"subscribe\",\"topic\":7}", NL_ERROR_BAD_FIELD, "topic"},
        {"{\"type\":\"unsubscribe\",\"topic\":[]}", NL_ERROR_BAD_FIELD, "topic"},
        {"{\"type\":\"subscribe\",\"topic\":\"app/room\"}", NL_ERROR_BAD_TOPIC, "topic"},
        {"{\"type\":\"subscribe\",\"topic\":\"app/room/+\"}", NL_ERROR_BAD_TOPIC, "topic"},
        {"{\"type\":\"subscribe\",\"topic\":\"app/room/#\"}", NL_ERROR_BAD_TOPIC, "topic"},
        {"{\"type\":\"batchAck\",\"msgIds\":\"x\"}", NL_ERROR_BAD_FIELD, "msgIds"},
        {"{\"type\":\"presence\",\"roomId\":7,\"data\":{}}", NL_ERROR_BAD_FIELD, "roomId"},
        {"{\"type\":\"presence\",\"data\":{\"a\":[{\"$bytes\":\"/w==\"}]}}", NL_ERROR_BAD_PAYLOAD, ""},
        {"{\"type\":\"presence\",\"data\":{\"$str\":\"/w==\"}}", NL_ERROR_BAD_PAYLOAD, ""},
        {"{\"type\":\"presence\",\"data\":{\"$map\":[]}}", NL_ERROR_BAD_PAYLOAD, ""},
        {"{\"type\":\"publish\",\"topic\":\"\xff\xfe\",\"data\":1}", NL_ERROR_BAD_UTF8, ""},
        {"{\"type\":\"presence\",\"roomId\":\"\xff\xfe\",\"data\":{}}", NL_ERROR_BAD_UTF8, ""},
        {"{\"type\":\"presence\",\"roomId\":\"ops\",\"data\":{\"k\":\"\xff\xfe\"}}", NL_ERROR_BAD_UTF8, ""},
        {PUBLISH("\"msgRef\":\"\xff\xfe\""), NL_ERROR_BAD_UTF8, ""},
        {PUBLISH("\"filters\":[\"a\",\"\xff\xfe\"]"), NL_ERROR_BAD_UTF8, ""},
        {PUBLISH("\"filter\":\"\xff\xfe\""), NL_ERROR_BAD_UTF8, ""},
        {PUBLISH("\"filter\":\"\\ud800\""), NL_ERROR_BAD_FIELD, "filter"},
        {PUBLISH("\"filters\":[\"\\udc00\"]"), NL_ERROR_BAD_FIELD, "filters"},
        {PUBLISH("\"filters\":[{\"$str\":\"//5B\"}]"), NL_ERROR_BAD_FILTER, "filters"},
        {PUBLISH("\"filter\":{\"$str\":\"//5B\"}"), NL_ERROR_BAD_FILTER, "filter"},
        {PUBLISH("\"msgRef\":{\"$str\":\"//5B\"}"), NL_ERROR_BAD_FIELD, "msgRef"},
        {"{\"type\":\"publish\",\"topic\":{\"$str\":\"//5B\"},\"data\":1}", NL_ERROR_BAD_FIELD, "topic"},
        {PUBLISH("\"msgRef\":7"), NL_ERROR_BAD_FIELD, "msgRef"},
        {PUBLISH("\"msgRef\":\"\""), NL_ERROR_BAD_FIELD, "msgRef"},
        {PUBLISH("\"filters\":[1,2]"), NL_ERROR_BAD_FILTER, "filters"},
        {PUBLISH("\"filters\":\"x\""), NL_ERROR_BAD_FILTER, "filters"},
        {PUBLISH("\"qos\":9"), NL_ERROR_BAD_FIELD, "qos"},
        {PUBLISH("\"qos\":-1"), NL_ERROR_BAD_FIELD, "qos"},
        {PUBLISH("\"echo\":\"false\""), NL_ERROR_BAD_FIELD, "echo"},
        {PUBLISH("\"echo\":0"), NL_ERROR_BAD_FIELD, "echo"},
        {SUBSCRIBE("\"qos\":3"), NL_ERROR_BAD_FIELD, "qos"},
        {SUBSCRIBE("\"filters\":\"x\""), NL_ERROR_BAD_FIELD, "filters"},
        {SUBSCRIBE("\"filters\":[[\"one\"]]"), NL_ERROR_BAD_FILTER, "filters"},
        {SUBSCRIBE("\"filters\":[\"\"]"), NL_ERROR_BAD_FILTER, "filters"},
        {"{\"type\":\"setFilters\",\"topic\":" TOPIC "}", NL_ERROR_MISSING_FIELD, "filters"},
        {"{\"type\":\"publish\",\"topic\":" TOPIC "}", NL_ERROR_MISSING_FIELD, "data"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(poison); i++)
        refuse(poison[i].line, poison[i].error, poison[i].field);
}

/* ---- garbage ---- */

/* Good lines with some bytes changed: whatever comes of it, nothing leaks and nothing is read past its end.
 */
static void test_acks(void **state) {
    static const struct {
        const char *line;
        enum nl_error error;
        const char *field;
    } bad[] = {
        {"{\"type\":\"ack\"}", NL_ERROR_MISSING_FIELD, "ackId"},
        {"{\"type\":\"ack\",\"ackId\":1,\"msgId\":\"m\"}", NL_ERROR_BAD_FIELD, "ackId"},
        {"{\"type\":\"ack\",\"ackId\":0}", NL_ERROR_BAD_FIELD, "ackId"},
        {"{\"type\":\"ack\",\"ackId\":-1}", NL_ERROR_BAD_FIELD, "ackId"},
        {"{\"type\":\"ack\",\"ackId\":\"1\"}", NL_ERROR_BAD_FIELD, "ackId"},
        {"{\"type\":\"ack\",\"ackId\":1.5}", NL_ERROR_BAD_FIELD, "ackId"},
        {"{\"type\":\"ack\",\"msgId\":\"\"}", NL_ERROR_BAD_FIELD, "msgId"},
        {"{\"type\":\"ack\",\"msgId\":7}", NL_ERROR_BAD_FIELD, "msgId"},
        {"{\"type\":\"ack\",\"msgIds\":[\"m\"]}", NL_ERROR_BAD_FIELD, "msgIds"},
        {"{\"type\":\"batchAck\"}", NL_ERROR_MISSING_FIELD, "ackIds"},
        {"{\"type\":\"batchAck\",\"ackIds\":[1],\"msgIds\":[\"m\"]}", NL_ERROR_BAD_FIELD, "ackIds"},
        {"{\"type\":\"batchAck\",\"ackIds\":[]}", NL_ERROR_BAD_FIELD, "ackIds"},
        {"{\"type\":\"batchAck\",\"ackIds\":[1,0]}", NL_ERROR_BAD_FIELD, "ackIds"},
        {"{\"type\":\"batchAck\",\"ackIds\":[null]}", NL_ERROR_BAD_FIELD, "ackIds"},
        {"{\"type\":\"batchAck\",\"ackIds\":1}", NL_ERROR_BAD_FIELD, "ackIds"},
        {"{\"type\":\"batchAck\",\"msgIds\":[\"m\",7]}", NL_ERROR_BAD_FIELD, "msgIds"},
        {"{\"type\":\"batchAck\",\"msgIds\":{}}", NL_ERROR_BAD_FIELD, "msgIds"},
        {SUBSCRIBE("\"ack\":true"), NL_ERROR_BAD_FIELD, "ack"},
        {SUBSCRIBE("\"ack\":\"Manual\""), NL_ERROR_BAD_FIELD, "ack"},
        {SUBSCRIBE("\"prefetch\":1"), NL_ERROR_BAD_FIELD, "prefetch"},
        {SUBSCRIBE("\"ack\":\"auto\",\"prefetch\":1"), NL_ERROR_BAD_FIELD, "prefetch"},
        {SUBSCRIBE("\"ack\":\"manual\",\"prefetch\":0"), NL_ERROR_BAD_FIELD, "prefetch"},
        {SUBSCRIBE("\"ack\":\"manual\",\"prefetch\":10001"), NL_ERROR_BAD_FIELD, "prefetch"},
        {SUBSCRIBE("\"ack\":\"manual\",\"prefetch\":\"1\""), NL_ERROR_BAD_FIELD, "prefetch"},
        {"{\"type\":\"subscribe\",\"topic\":\"*\",\"ack\":\"manual\"}", NL_ERROR_BAD_FIELD, "ack"},
    };
    struct nl_request r;
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        refuse(bad[i].line, bad[i].error, bad[i].field);
    pass("{\"type\":\"ack\",\"ackId\":9007199254740993}", &r);
    assert_true(r.ack_id == UINT64_C(9007199254740993));
    nl_request_deinit(&r);
    pass(SUBSCRIBE("\"ack\":\"manual\",\"prefetch\":10000"), &r);
    assert_int_equal(r.ack, NL_ACK_MANUAL);
    assert_int_equal(r.prefetch, 10000);
    nl_request_deinit(&r);
    pass(SUBSCRIBE("\"ack\":\"auto\""), &r);
    assert_int_equal(r.ack, NL_ACK_AUTO);
    nl_request_deinit(&r);
    pass("{\"type\":\"batchAck\",\"msgIds\":[\"a\",\"b\"]}", &r);
    assert_true(r.ack_ids == NULL && r.msg_ids != NULL);
    nl_request_deinit(&r);
}

static void test_damaged_lines(void **state) {
    const uint64_t seed = 7;
    struct random rng = {seed};
    unsigned good = 0;
    (void)state;
    for (int round = 0; round < 60000; round++) {
        const struct field *f = &fields[random_below(&rng, COUNT(fields))];
        struct nl_refusal refusal;
        struct nl_request r;
        char line[500];
        int len = snprintf(line, sizeof(line), "{\"type\":\"%s\"%s,\"%s\":%s,\"id\":%s}", f->type, f->others,
                           f->name, values[random_below(&rng, COUNT(values))],
                           values[random_below(&rng, COUNT(values))]);
        for (unsigned n = random_below(&rng, 3); n > 0; n--)
            line[random_below(&rng, (unsigned)len)] = (char)random_below(&rng, 256);
        if (parse_bytes(nl_slice(line, (size_t)len), &r, &refusal) == NL_OK) {
            good++;
            assert_in_range(r.type, 1, NL_REQUEST_COUNT - 1);
            nl_request_deinit(&r);
        } else {
            assert_true(nl_error_name(refusal.error)[0]);
            check_refusal_form(line, &refusal);
            nl_refusal_deinit(&refusal);
        }
    }
    assert_in_range(good, 1000, 59000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smallest_requests),
        cmocka_unit_test(test_every_type_is_here),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_every_field_with_every_value),
        cmocka_unit_test(test_acks),
        cmocka_unit_test(test_absent_and_null),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_lengths_are_bytes),
        cmocka_unit_test(test_number_of_filters),
        cmocka_unit_test(test_publish),
        cmocka_unit_test(test_subscribe),
        cmocka_unit_test(test_auth),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_unknown_fields_are_ignored),
        cmocka_unit_test(test_fields_of_other_requests),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_good_ids),
        cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_long_ids),
        cmocka_unit_test(test_every_refusal_has_the_id),
        cmocka_unit_test(test_hints),
        cmocka_unit_test(test_hints_of_bad_json),
        cmocka_unit_test(test_what_cannot_be_held),
        cmocka_unit_test(test_around_what_cannot_be_held),
        cmocka_unit_test(test_msg_ref_of_a_refusal),
        cmocka_unit_test(test_topic_of_a_refusal),
        cmocka_unit_test(test_number_of_values),
        cmocka_unit_test(test_unreadable_lines),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_token_is_not_told),
        cmocka_unit_test(test_token_is_wiped),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_damaged_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
