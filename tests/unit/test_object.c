/* SPDX-License-Identifier: Apache-2.0 */
/* Answers and events as lines: text for text, from frames made by hand, at random and recorded; the errors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "protocol/object.h"
#include "random_values.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct nl_json_options plain = {0};
static const struct nl_slice none = {NULL, 0};

/* The line is text and a newline. Ends its life. */
static void check_line(struct nl_line *line, const char *text) {
    size_t len = strlen(text);
    assert_int_equal(line->refs, 1);
    if (line->len != len + 1 || memcmp(line->bytes, text, len) != 0 || line->bytes[len] != '\n')
        fail_msg("%.*s instead of %s", (int)line->len, (char *)line->bytes, text);
    nl_line_unref(line);
}

/* ---- field by field ---- */

static void test_fields(void **state) {
    struct nl_object o;
    struct nl_filters filters;
    struct json_object *list = json_tokener_parse("[\"a\",[\"B\",\"c\"]]");
    const char *why;
    (void)state;
    assert_int_equal(nl_filters_parse(&filters, list, &why), NL_OK);
    nl_object_begin(&o, "welcome");
    nl_object_str(&o, "s", nl_slice("a\"\n\0\xff", 5));
    nl_object_cstr(&o, "c", "ä\\");
    nl_object_cstr(&o, "absent", NULL);
    nl_object_int(&o, "min", INT64_MIN);
    nl_object_int(&o, "max", INT64_MAX);
    nl_object_bool(&o, "t", true);
    nl_object_bool(&o, "f", false);
    nl_object_json(&o, "id", nl_slice_str("\"i\""));
    nl_object_msgpack(&o, "m", nl_slice("\x92\x01\xc0", 3), plain);
    nl_object_filters(&o, "filters", &filters);
    check_line(nl_object_line(&o),
               "{\"type\":\"welcome\",\"s\":\"a\\\"\\n\\u0000\xef\xbf\xbd\",\"c\":\"ä\\\\\","
               "\"min\":-9223372036854775808,\"max\":9223372036854775807,\"t\":true,\"f\":false,"
               "\"id\":\"i\",\"m\":[1,null],\"filters\":[\"a\",[\"B\",\"c\"]]}");
    nl_filters_deinit(&filters);
    json_object_put(list);
}

static void test_bare_object(void **state) {
    struct nl_object o;
    (void)state;
    nl_object_begin(&o, "pong");
    check_line(nl_object_line(&o), "{\"type\":\"pong\"}");
}

static void test_nested(void **state) {
    struct nl_object o;
    (void)state;
    nl_object_begin(&o, "x");
    nl_object_open(&o, "limits", '{');
    nl_object_int(&o, "line", 1);
    nl_object_int(&o, "depth", 2);
    nl_object_close(&o, '}');
    nl_object_open(&o, "list", '[');
    nl_object_cstr(&o, NULL, "a");
    nl_object_open(&o, NULL, '{');
    nl_object_close(&o, '}');
    nl_object_open(&o, NULL, '[');
    nl_object_close(&o, ']');
    nl_object_open(&o, NULL, '{');
    nl_object_bool(&o, "b", true);
    nl_object_close(&o, '}');
    nl_object_int(&o, NULL, 7);
    nl_object_close(&o, ']');
    nl_object_int(&o, "last", 0);
    check_line(nl_object_line(&o),
               "{\"type\":\"x\",\"limits\":{\"line\":1,\"depth\":2},\"list\":[\"a\",{},[],"
               "{\"b\":true},7],\"last\":0}");
}

static void test_long_object(void **state) {
    struct nl_object o;
    (void)state;
    nl_object_begin(&o, "x");
    nl_object_open(&o, "list", '[');
    for (int i = 0; i < 100000; i++)
        nl_object_int(&o, NULL, i);
    nl_object_close(&o, ']');
    struct nl_line *line = nl_object_line(&o);
    line->bytes[line->len - 1] = '\0';
    struct json_object *read = json_tokener_parse((char *)line->bytes), *list;
    assert_true(json_object_object_get_ex(read, "list", &list));
    assert_int_equal(json_object_array_length(list), 100000);
    assert_int_equal(json_object_get_int(json_object_array_get_idx(list, 99999)), 99999);
    json_object_put(read);
    nl_line_unref(line);
}

/* ---- errors ---- */

static const struct {
    enum nl_error error;
    const char *constant;
} errors[] = {
#define X(id, code, wire, hint) {NL_ERROR_##id, #id},
    NL_ERRORS(X)
#undef X
};

/* The wire name is the constant's in lower case, so no two are equal. */
static void test_error_names(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(errors); i++) {
        const char *name = nl_error_name(errors[i].error), *constant = errors[i].constant;
        assert_int_equal(strlen(name), strlen(constant));
        for (size_t c = 0; constant[c]; c++)
            assert_int_equal(name[c], tolower(constant[c]));
    }
    assert_int_equal(NL_OK, 0);
}

static void test_error_codes(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(errors); i++) {
        int code = nl_error_code(errors[i].error);
        if (errors[i].error == NL_ERROR_MESSAGE_TOO_LARGE)
            assert_int_equal(code, 42930);
        else if (code != 0)
            assert_in_range(code, 43000, 43999);
        for (size_t j = 0; j < i && code != 0; j++)
            assert_int_not_equal(code, nl_error_code(errors[j].error));
    }
    assert_int_equal(nl_error_code(NL_ERROR_BAD_JSON), 43000);
    assert_int_equal(nl_error_code(NL_ERROR_NOT_SUBSCRIBED), 0);
    assert_int_equal(nl_error_code(NL_ERROR_NOT_SUPPORTED), 43070);
}

static void test_error_hints(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(errors); i++) {
        const char *hint = nl_error_hint(errors[i].error);
        assert_true(strlen(hint) >= 10);
        assert_int_not_equal(hint[strlen(hint) - 1], '.');
    }
}

static char *protocol_md(void) {
    const char *transcripts = getenv("NL_TRANSCRIPTS");
    char path[4096];
    if (!transcripts)
        fail_msg("NL_TRANSCRIPTS is not set: run this through meson test");
    snprintf(path, sizeof(path), "%s/../../../protocol/PROTOCOL.md", transcripts);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    struct nl_buffer text;
    size_t len;
    nl_buffer_init(&text);
    while ((len = fread(nl_buffer_reserve(&text, 4096), 1, 4096, file)) > 0)
        text.len += len;
    fclose(file);
    nl_buffer_append_byte(&text, '\0');
    return (char *)nl_buffer_take(&text, &len);
}

/* The table of errors in PROTOCOL.md is that of errors.h, row for row. */
static void test_errors_are_documented(void **state) {
    char *text = protocol_md(), *at = strstr(text, "| error | code | meaning |\n| --- | --- | --- |\n");
    (void)state;
    assert_non_null(at);
    at = strchr(strchr(at, '\n') + 1, '\n') + 1;
    for (size_t i = 0; i < COUNT(errors); i++) {
        char row[100];
        int code = nl_error_code(errors[i].error);
        int n = snprintf(row, sizeof(row), "| `%s` | ", nl_error_name(errors[i].error));
        snprintf(row + n, sizeof(row) - (size_t)n, code ? "%d | " : "| ", code);
        if (strncmp(at, row, strlen(row)) != 0)
            fail_msg("PROTOCOL.md has \"%.60s\" instead of \"%s\"", at, row);
        at = strchr(at, '\n') + 1;
    }
    assert_int_not_equal(*at, '|');
    free(text);
}

static void test_error_lines(void **state) {
    (void)state;
    check_line(
        nl_error_line(NL_ERROR_OUTBOX_FULL, "publish", "7", nl_slice_str("a/b/c"), "wait \"here\""),
        "{\"type\":\"error\",\"request\":\"publish\",\"id\":7,\"error\":\"outbox_full\",\"code\":43050,"
        "\"hint\":\"wait \\\"here\\\"\",\"topic\":\"a/b/c\"}");
    check_line(nl_error_line(NL_ERROR_NOT_SUBSCRIBED, NULL, NULL, none, NULL),
               "{\"type\":\"error\",\"error\":\"not_subscribed\",\"hint\":\"subscribe to the topic first\"}");
    check_line(nl_error_line(NL_ERROR_TIMEOUT, NULL, "\"i\\\"\"", none, "x"),
               "{\"type\":\"error\",\"id\":\"i\\\"\",\"error\":\"timeout\",\"code\":43051,\"hint\":\"x\"}");
}

static void test_refusal_lines(void **state) {
    char id[] = "\"i\"";
    struct nl_refusal r = {.error = NL_ERROR_BAD_FIELD,
                           .type = NL_REQUEST_PUBLISH,
                           .id = id,
                           .field = "retain",
                           .hint = "true or false",
                           .topic = "a/b/c",
                           .msg_ref = "m \"1\""};
    struct nl_refusal bare = {.error = NL_ERROR_UNKNOWN_TYPE};
    (void)state;
    check_line(
        nl_refusal_line(&r),
        "{\"type\":\"error\",\"request\":\"publish\",\"id\":\"i\",\"error\":\"bad_field\",\"code\":43011,"
        "\"hint\":\"true or false\",\"field\":\"retain\",\"topic\":\"a/b/c\",\"msgRef\":\"m \\\"1\\\"\"}");
    check_line(nl_refusal_line(&bare), "{\"type\":\"error\",\"error\":\"unknown_type\",\"code\":43004,"
                                       "\"hint\":\"see PROTOCOL.md for the request types\"}");
}

static void test_errors_of_a_request(void **state) {
    char id[] = "7";
    struct nl_request r = {
        .type = NL_REQUEST_PUBLISH, .id = id, .topic = nl_slice_str("a/b/c"), .msg_ref = nl_slice_str("m1")};
    struct nl_request bare = {.type = NL_REQUEST_STATUS};
    (void)state;
    check_line(
        nl_request_error_line(NL_ERROR_NOT_PERMITTED, &r, "x"),
        "{\"type\":\"error\",\"request\":\"publish\",\"id\":7,\"error\":\"not_permitted\",\"code\":43030,"
        "\"hint\":\"x\",\"topic\":\"a/b/c\",\"msgRef\":\"m1\"}");
    check_line(nl_request_error_line(NL_ERROR_ACCESS_DENIED, &bare, NULL),
               "{\"type\":\"error\",\"request\":\"status\",\"error\":\"access_denied\","
               "\"hint\":\"the broker refuses this token\"}");
}

/* ---- frames ---- */

/* A frame from JSON text; transcoding has tests of its own. */
struct made {
    struct nl_buffer bytes;
    struct nl_frame frame;
};

static struct nl_frame *decode(struct made *m) {
    assert_int_equal(nl_frame_decode(nl_slice(m->bytes.bytes, m->bytes.len), &m->frame), NL_SCAN_OK);
    return &m->frame;
}

static struct nl_frame *make(struct made *m, const char *json) {
    struct json_object *object = json_tokener_parse(json);
    const char *why;
    assert_non_null(object);
    nl_buffer_init(&m->bytes);
    assert_int_equal(nl_msgpack_from_json(&m->bytes, object, NL_PACK_TAGGED, &why), NL_OK);
    json_object_put(object);
    return decode(m);
}

static struct nl_frame *make_bytes(struct made *m, const char *bytes, size_t len) {
    nl_buffer_init(&m->bytes);
    nl_buffer_append(&m->bytes, bytes, len);
    return decode(m);
}

static void check_message(const char *frame, const char *line) {
    struct made m;
    check_line(nl_message_line(make(&m, frame), plain), line);
    nl_buffer_deinit(&m.bytes);
}

static void test_messages(void **state) {
    (void)state;
    check_message(
        "{\"data\":{\"b\":1,\"a\":[]},\"msgId\":\"m1\",\"requiresAck\":true,\"filter\":\"region:us\","
        "\"topic\":\"a/b/c\",\"type\":\"message\"}",
        "{\"type\":\"message\",\"topic\":\"a/b/c\",\"data\":{\"b\":1,\"a\":[]},\"msgId\":\"m1\","
        "\"requiresAck\":true,\"filter\":\"region:us\"}");
    check_message("{\"type\":\"message\",\"topic\":\"a/b/c\",\"data\":null}",
                  "{\"type\":\"message\",\"topic\":\"a/b/c\",\"data\":null}");
    check_message("{\"type\":\"message\",\"data\":1}", "{\"type\":\"message\",\"data\":1}");
    check_message("{\"type\":\"message\",\"topic\":\"a/b/c\"}", "{\"type\":\"message\",\"topic\":\"a/b/c\"}");
    check_message("{\"type\":\"message\",\"topic\":\"a\\\"\\n/b/c\",\"data\":\"x\\\"\\\\\\u0001\"}",
                  "{\"type\":\"message\",\"topic\":\"a\\\"\\n/b/c\",\"data\":\"x\\\"\\\\\\u0001\"}");
}

static void test_hidden_filter(void **state) {
    (void)state;
    check_message("{\"type\":\"message\",\"filter\":\"#\",\"msgId\":\"m\",\"topic\":\"t\",\"data\":1}",
                  "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"filterHidden\":true,\"msgId\":\"m\"}");
    check_message("{\"type\":\"message\",\"filter\":\"##\",\"topic\":\"t\",\"data\":\"#\"}",
                  "{\"type\":\"message\",\"topic\":\"t\",\"data\":\"#\",\"filter\":\"##\"}");
    check_message("{\"type\":\"message\",\"filter\":\"\",\"topic\":\"t\",\"data\":1}",
                  "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"filter\":\"\"}");
    check_message("{\"type\":\"message\",\"filter\":null,\"topic\":\"t\",\"data\":1}",
                  "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"filter\":null}");
    check_message("{\"type\":\"message\",\"filter\":[\"#\"],\"topic\":\"t\",\"data\":1}",
                  "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"filter\":[\"#\"]}");
    check_message(
        "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"filterHidden\":\"x\",\"filters\":\"#\"}",
        "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"filterHidden\":\"x\",\"filters\":\"#\"}");
}

static void test_unknown_fields_are_kept(void **state) {
    (void)state;
    check_message(
        "{\"zeta\":{\"$bytes\":\"AA==\"},\"type\":\"message\",\"from\":\"bob\",\"data\":1,\"timestamp\":1.5,"
        "\"topic\":\"t\",\"alpha\":[null,{\"x\":-1}],\"id\":7,\"dat\":1,\"Topic\":2,\"typed\":3}",
        "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"zeta\":{\"$bytes\":\"AA==\"},\"from\":\"bob\","
        "\"timestamp\":1.5,\"alpha\":[null,{\"x\":-1}],\"id\":7,\"dat\":1,\"Topic\":2,\"typed\":3}");
}

/* Names of fields are the broker's: any text, or none. */
static void test_names_are_escaped(void **state) {
    static const char frame[] = "\x86\xa4type\xa7message\xa5"
                                "a\"\n\\b\x01\xa0\x02\xa2\xff\xfe\x03\x07\x04\xa5topic\xa1t";
    struct made m;
    (void)state;
    check_line(nl_message_line(make_bytes(&m, frame, sizeof(frame) - 1), plain),
               "{\"type\":\"message\",\"topic\":\"t\",\"a\\\"\\n\\\\b\":1,\"\":2,"
               "\"\xef\xbf\xbd\xef\xbf\xbd\":3}");
    nl_buffer_deinit(&m.bytes);
}

static void test_bigint_option(void **state) {
    const struct nl_json_options strings = {.bigint_as_string = true};
    struct made m;
    (void)state;
    make(&m,
         "{\"type\":\"message\",\"topic\":\"t\",\"data\":9007199254740993,\"timestamp\":9007199254740992}");
    check_line(nl_message_line(&m.frame, strings),
               "{\"type\":\"message\",\"topic\":\"t\",\"data\":"
               "\"9007199254740993\",\"timestamp\":\"9007199254740992\"}");
    check_line(nl_message_line(&m.frame, plain),
               "{\"type\":\"message\",\"topic\":\"t\",\"data\":9007199254740993,"
               "\"timestamp\":9007199254740992}");
    check_line(nl_local_message_line(nl_slice_str("t"), m.frame.data, NULL, nl_slice_str("a"), strings),
               "{\"type\":\"message\",\"topic\":\"t\",\"data\":\"9007199254740993\",\"from\":\"a\"}");
    nl_buffer_deinit(&m.bytes);
}

static void test_local_messages(void **state) {
    (void)state;
    check_line(nl_local_message_line(nl_slice_str("a/b/c"), nl_slice("\x81\xa1k\xc0", 4), "x|\"y",
                                     nl_slice_str("alice"), plain),
               "{\"type\":\"message\",\"topic\":\"a/b/c\",\"data\":{\"k\":null},\"filter\":\"x|\\\"y\","
               "\"from\":\"alice\"}");
    check_line(nl_local_message_line(nl_slice_str("t"), nl_slice("\x01", 1), NULL, nl_slice_str("a"), plain),
               "{\"type\":\"message\",\"topic\":\"t\",\"data\":1,\"from\":\"a\"}");
}

static void check_event(const char *frame, const char *line) {
    struct made m;
    check_line(nl_event_line(make(&m, frame), plain), line);
    nl_buffer_deinit(&m.bytes);
}

static void test_events(void **state) {
    (void)state;
    check_event("{\"data\":[1],\"topic\":\"events\",\"type\":\"hydration\",\"more\":{\"filter\":\"#\"}}",
                "{\"type\":\"hydration\",\"data\":[1],\"topic\":\"events\",\"more\":{\"filter\":\"#\"}}");
    check_event("{\"type\":\"replayStart\",\"count\":3}", "{\"type\":\"replayStart\",\"count\":3}");
    check_event("{\"type\":\"replayEnd\"}", "{\"type\":\"replayEnd\"}");
}

static void check_broker_error(const char *frame, const char *request, const char *id, const char *topic,
                               const char *msg_ref, const char *line) {
    struct made m;
    make(&m, frame);
    check_line(nl_broker_error_line(&m.frame, request, id, nl_slice_str(topic), nl_slice_str(msg_ref)), line);
    nl_buffer_deinit(&m.bytes);
}

static void test_broker_errors(void **state) {
    (void)state;
    check_broker_error(
        "{\"type\":\"error\",\"topic\":\"x/y/z\",\"msgRef\":\"ours\",\"hint\":\"do \\\"this\\\"\","
        "\"code\":42940,\"error\":\"unknown_topic\",\"maxSizeBytes\":9,\"new\":[1]}",
        "publish", "1", "a/b/c", "theirs",
        "{\"type\":\"error\",\"request\":\"publish\",\"id\":1,\"error\":\"unknown_topic\",\"code\":42940,"
        "\"topic\":\"a/b/c\",\"msgRef\":\"theirs\",\"hint\":\"do \\\"this\\\"\",\"maxSizeBytes\":9,"
        "\"new\":[1]}");
    /* What the broker writes must not pass for the answer to another request. */
    check_broker_error(
        "{\"type\":\"error\",\"error\":\"not_authorized\",\"id\":5,\"request\":\"auth\",\"msgRef\":\"x\"}",
        NULL, NULL, "", "", "{\"type\":\"error\",\"error\":\"not_authorized\"}");
    check_broker_error(
        "{\"type\":\"error\",\"code\":\"x\",\"error\":7,\"hint\":1}", "subscribe", NULL, "t", "",
        "{\"type\":\"error\",\"request\":\"subscribe\",\"error\":\"error\",\"topic\":\"t\",\"hint\":1}");
}

/* ---- random frames ---- */

struct pairs {
    char names[16][16];
    struct nl_slice values[16];
    unsigned count;
};

static void expect_pair(struct nl_buffer *out, const char *name, struct nl_slice value) {
    nl_buffer_append_str(out, ",\"");
    nl_buffer_append_str(out, name);
    nl_buffer_append_str(out, "\":");
    nl_json_from_msgpack(out, value, plain);
}

/* What the line must be: topic and data in front, the others as they come. */
static void expect_line(struct nl_buffer *out, const struct pairs *p) {
    nl_buffer_append_str(out, "{\"type\":\"message\"");
    for (unsigned i = 0; i < p->count; i++)
        if (strcmp(p->names[i], "topic") == 0)
            expect_pair(out, "topic", p->values[i]);
    for (unsigned i = 0; i < p->count; i++)
        if (strcmp(p->names[i], "data") == 0)
            expect_pair(out, "data", p->values[i]);
    for (unsigned i = 0; i < p->count; i++)
        if (strcmp(p->names[i], "topic") != 0 && strcmp(p->names[i], "data") != 0)
            expect_pair(out, p->names[i], p->values[i]);
    nl_buffer_append_byte(out, '}');
}

/* Appends a field to a frame of random fields. The value is made apart, so that it does not move. */
static void random_field(struct random_source *s, struct nl_buffer *value, struct pairs *p) {
    static const char *const names[] = {"topic", "data", "msgId", "from", "filter", "timestamp", "isReplay"};
    unsigned i = p->count++;
    if (i < COUNT(names))
        snprintf(p->names[i], sizeof(p->names[i]), "%s", names[i]);
    else
        snprintf(p->names[i], sizeof(p->names[i]), "x%u", i);
    nl_buffer_init(value);
    random_source_init(s, random_next(&s->rng), RANDOM_ALL, value);
    if (i == 0)
        nl_pack_str(value, nl_slice_str("a/b/\"c"));
    else
        random_value(s, 3);
    p->values[i] = nl_slice(value->bytes, value->len);
}

static void shuffle(struct random *rng, struct pairs *p) {
    for (unsigned i = p->count; i > 1; i--) {
        unsigned j = random_below(rng, i);
        struct nl_slice value = p->values[j];
        char name[16];
        memcpy(name, p->names[j], sizeof(name));
        memcpy(p->names[j], p->names[i - 1], sizeof(name));
        memcpy(p->names[i - 1], name, sizeof(name));
        p->values[j] = p->values[i - 1];
        p->values[i - 1] = value;
    }
}

static void pack_frame(struct nl_buffer *out, const struct pairs *p, unsigned type_at) {
    nl_buffer_init(out);
    nl_pack_map(out, p->count + 1);
    for (unsigned i = 0; i <= p->count; i++) {
        if (i == type_at) {
            nl_pack_str(out, nl_slice_str("type"));
            nl_pack_str(out, nl_slice_str("message"));
        }
        if (i == p->count)
            break;
        nl_pack_str(out, nl_slice_str(p->names[i]));
        nl_buffer_append(out, p->values[i].ptr, p->values[i].len);
    }
}

static void check_random_frame(uint64_t seed) {
    struct random_source s = {.rng = {seed}};
    struct nl_buffer values[16], expected;
    struct pairs p = {.count = 0};
    struct made m;
    unsigned fields = 1 + random_below(&s.rng, 12);
    while (p.count < fields)
        random_field(&s, &values[p.count], &p);
    shuffle(&s.rng, &p);
    pack_frame(&m.bytes, &p, random_below(&s.rng, fields + 1));
    decode(&m);
    nl_buffer_init(&expected);
    expect_line(&expected, &p);
    struct nl_line *line = nl_message_line(&m.frame, plain);
    if (!nl_slice_equal(nl_slice(line->bytes, line->len - 1), nl_slice(expected.bytes, expected.len)) ||
        memchr(line->bytes, '\n', line->len) != line->bytes + line->len - 1)
        fail_msg("seed %llu: %.*s instead of %.*s", (unsigned long long)seed, (int)line->len,
                 (char *)line->bytes, (int)expected.len, (char *)expected.bytes);
    nl_line_unref(line);
    nl_buffer_deinit(&expected);
    nl_buffer_deinit(&m.bytes);
    for (unsigned i = 0; i < fields; i++)
        nl_buffer_deinit(&values[i]);
}

static void test_random_messages(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++)
        check_random_frame(seed);
}

/* ---- recorded frames ---- */

static void read_hex(const char *hex, struct nl_buffer *out) {
    unsigned byte;
    nl_buffer_init(out);
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        nl_buffer_append_byte(out, (uint8_t)byte);
}

/* The line has what the recording has, but for a filter that is hidden. */
static void compare_member(struct json_object *read, const char *key, struct json_object *want) {
    bool hidden = strcmp(key, "filter") == 0 && strcmp(json_object_get_string(want), "#") == 0;
    struct json_object *value;
    assert_true(json_object_object_get_ex(read, hidden ? "filterHidden" : key, &value));
    if (hidden)
        assert_true(json_object_get_boolean(value));
    else if (!json_object_equal(value, want))
        fail_msg("%s: %s instead of %s", key, json_object_to_json_string(value),
                 json_object_to_json_string(want));
}

static void compare_message(struct json_object *read, struct json_object *recorded) {
    struct json_object_iterator it = json_object_iter_begin(recorded), end = json_object_iter_end(recorded);
    for (; !json_object_iter_equal(&it, &end); json_object_iter_next(&it))
        compare_member(read, json_object_iter_peek_name(&it), json_object_iter_peek_value(&it));
    assert_int_equal(json_object_object_length(read), json_object_object_length(recorded));
}

static bool check_recorded(struct json_object *entry) {
    struct json_object *recorded, *type, *hex;
    struct made m;
    if (!json_object_object_get_ex(entry, "frame", &recorded) ||
        !json_object_object_get_ex(entry, "hex", &hex) ||
        !json_object_object_get_ex(recorded, "type", &type) ||
        strcmp(json_object_get_string(type), "message") != 0 || strstr(json_object_get_string(hex), "..."))
        return false;
    read_hex(json_object_get_string(hex), &m.bytes);
    struct nl_line *line = nl_message_line(decode(&m), plain);
    line->bytes[line->len - 1] = '\0';
    struct json_object *read = json_tokener_parse((char *)line->bytes);
    assert_non_null(read);
    compare_message(read, recorded);
    json_object_put(read);
    nl_line_unref(line);
    nl_buffer_deinit(&m.bytes);
    return true;
}

static unsigned check_recording(const char *name) {
    char path[4096], *line = NULL;
    size_t size = 0;
    unsigned messages = 0;
    assert_non_null(getenv("NL_TRANSCRIPTS"));
    snprintf(path, sizeof(path), "%s/%s", getenv("NL_TRANSCRIPTS"), name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (getline(&line, &size, file) > 0) {
        struct json_object *entry = json_tokener_parse(line);
        messages += check_recorded(entry);
        json_object_put(entry);
    }
    free(line);
    fclose(file);
    return messages;
}

static void test_recorded_messages(void **state) {
    (void)state;
    assert_true(check_recording("filters_delivery.jsonl") > 3);
    assert_true(check_recording("filters_and_groups.jsonl") > 3);
    assert_true(check_recording("retained_filters.jsonl") > 3);
    assert_true(check_recording("load_balance.jsonl") > 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_bare_object),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_long_object),
        cmocka_unit_test(test_error_names),
        cmocka_unit_test(test_error_codes),
        cmocka_unit_test(test_error_hints),
        cmocka_unit_test(test_errors_are_documented),
        cmocka_unit_test(test_error_lines),
        cmocka_unit_test(test_refusal_lines),
        cmocka_unit_test(test_errors_of_a_request),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_hidden_filter),
        cmocka_unit_test(test_unknown_fields_are_kept),
        cmocka_unit_test(test_names_are_escaped),
        cmocka_unit_test(test_bigint_option),
        cmocka_unit_test(test_local_messages),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_broker_errors),
        cmocka_unit_test(test_random_messages),
        cmocka_unit_test(test_recorded_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
