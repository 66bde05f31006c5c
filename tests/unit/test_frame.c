/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: the tables, odd input, and every frame of the recorded transcripts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <json-c/json.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>

#include "protocol/frame.h"
#include "protocol/transcode.h"

#define BYTES(literal) nl_slice(literal, sizeof(literal) - 1)

static void assert_slice(struct nl_slice s, const char *text) {
    assert_int_equal(s.len, strlen(text));
    assert_memory_equal(s.ptr, text, s.len);
}

/* The members that are present are equal; RAW ones byte by byte. */
static bool same_frame(const struct nl_frame *a, const struct nl_frame *b) {
#define SAME_STR(x, y) nl_slice_equal(x, y)
#define SAME_RAW(x, y) nl_slice_equal(x, y)
#define SAME_BOOL(x, y) ((x) == (y))
#define SAME_INT(x, y) ((x) == (y))
#define X(member, wire, kind)                                                                                \
    if (NL_FRAME_HAS(a, member) && !SAME_##kind(a->member, b->member))                                       \
        return false;
    NL_FRAME_FIELDS(X)
#undef X
    return a->type == b->type && a->has == b->has;
}

static void test_every_type_has_its_name(void **state) {
    (void)state;
    assert_null(nl_frame_type_name(NL_FRAME_UNKNOWN));
#define X(name, wire)                                                                                        \
    {                                                                                                        \
        struct nl_buffer b;                                                                                  \
        struct nl_frame out, f = {.type = NL_FRAME_##name};                                                  \
        nl_buffer_init(&b);                                                                                  \
        assert_string_equal(nl_frame_type_name(NL_FRAME_##name), wire);                                      \
        nl_frame_encode(&f, &b);                                                                             \
        assert_int_equal(nl_frame_decode(nl_slice(b.bytes, b.len), &out), NL_SCAN_OK);                       \
        assert_int_equal(out.type, NL_FRAME_##name);                                                         \
        assert_int_equal(out.has, 0);                                                                        \
        assert_int_equal(out.extra, 0);                                                                      \
        nl_buffer_deinit(&b);                                                                                \
    }
    NL_FRAME_TYPES(X)
#undef X
}

#define SAMPLE_STR BYTES("text")
#define SAMPLE_RAW BYTES("\x92\x01\xa1x")
#define SAMPLE_BOOL true
#define SAMPLE_INT INT64_MIN

static void test_every_field_survives_alone(void **state) {
    (void)state;
#define X(member, wire, kind)                                                                                \
    {                                                                                                        \
        struct nl_buffer b, one;                                                                             \
        struct nl_frame out, f = {.type = NL_FRAME_MESSAGE};                                                 \
        nl_buffer_init(&b);                                                                                  \
        nl_buffer_init(&one);                                                                                \
        NL_FRAME_SET(&f, member, SAMPLE_##kind);                                                             \
        nl_frame_encode(&f, &b);                                                                             \
        assert_int_equal(nl_frame_decode(nl_slice(b.bytes, b.len), &out), NL_SCAN_OK);                       \
        assert_true(NL_FRAME_HAS(&out, member));                                                             \
        assert_true(same_frame(&f, &out));                                                                   \
        assert_int_equal(out.mistyped, 0);                                                                   \
        nl_pack_str(&one, nl_slice_str(wire));                                                               \
        assert_non_null(memmem(b.bytes, b.len, one.bytes, one.len));                                         \
        nl_buffer_deinit(&b);                                                                                \
        nl_buffer_deinit(&one);                                                                              \
    }
    NL_FRAME_FIELDS(X)
#undef X
}

static struct nl_frame full_frame(void) {
    struct nl_frame f = {.type = NL_FRAME_PUBLISH};
#define X(member, wire, kind) NL_FRAME_SET(&f, member, SAMPLE_##kind);
    NL_FRAME_FIELDS(X)
#undef X
    return f;
}

static void test_all_fields_together(void **state) {
    struct nl_frame out, f = full_frame();
    struct nl_buffer b;
    msgpack_unpacked tree;
    (void)state;
    nl_buffer_init(&b);
    nl_frame_encode(&f, &b);
    assert_int_equal(nl_frame_decode(nl_slice(b.bytes, b.len), &out), NL_SCAN_OK);
    assert_true(same_frame(&f, &out));
    assert_ptr_equal(out.whole.ptr, b.bytes);
    assert_int_equal(out.whole.len, b.len);

    msgpack_unpacked_init(&tree);
    assert_int_equal(msgpack_unpack_next(&tree, (char *)b.bytes, b.len, NULL), MSGPACK_UNPACK_SUCCESS);
    assert_int_equal(tree.data.type, MSGPACK_OBJECT_MAP);
    assert_int_equal(tree.data.via.map.size, NL_FIELD_COUNT + 1);
    assert_memory_equal(tree.data.via.map.ptr[0].key.via.str.ptr, "type", 4);
    assert_memory_equal(tree.data.via.map.ptr[1].key.via.str.ptr, "topic", 5);
    msgpack_unpacked_destroy(&tree);
    nl_buffer_deinit(&b);
}

static void test_every_truncation_is_refused(void **state) {
    struct nl_frame out, f = full_frame();
    struct nl_buffer b;
    (void)state;
    nl_buffer_init(&b);
    nl_frame_encode(&f, &b);
    for (size_t len = 0; len < b.len; len++) {
        uint8_t *copy = malloc(len + 1);
        memcpy(copy, b.bytes, len);
        assert_int_equal(nl_frame_decode(nl_slice(copy, len), &out), NL_SCAN_TRUNCATED);
        free(copy);
    }
    nl_buffer_append_byte(&b, 0xc0);
    assert_int_equal(nl_frame_decode(nl_slice(b.bytes, b.len), &out), NL_SCAN_INVALID);
    nl_buffer_deinit(&b);
}

static void test_what_is_refused(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
        enum nl_scan_result result;
    } vectors[] = {
#define V(literal, result) {literal, sizeof(literal) - 1, result}
        V("", NL_SCAN_TRUNCATED),
        V("\x90", NL_SCAN_INVALID),
        V("\xa4type", NL_SCAN_INVALID),
        V("\xc0", NL_SCAN_INVALID),
        V("\xc1", NL_SCAN_INVALID),
        V("\x80\x00", NL_SCAN_INVALID),
        V("\x81\x01\xc1", NL_SCAN_INVALID),
        V("\xde\x00", NL_SCAN_TRUNCATED),
        V("\xdf\xff\xff\xff\xff\x01\x02", NL_SCAN_TRUNCATED),
        V("\x82\x01\x02\x03", NL_SCAN_TRUNCATED),
        V("\x80", NL_SCAN_OK),
        V("\xde\x00\x00", NL_SCAN_OK),
        V("\xdf\x00\x00\x00\x01\x01\x02", NL_SCAN_OK),
#undef V
    };
    struct nl_frame out;
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        enum nl_scan_result r = nl_frame_decode(nl_slice(vectors[i].bytes, vectors[i].len), &out);
        if (r != vectors[i].result)
            fail_msg("vector %zu: %d", i, r);
    }
}

static void test_depth_counts_the_frame_itself(void **state) {
    uint8_t bytes[3 + NL_SCAN_MAX_DEPTH];
    struct nl_frame out;
    (void)state;
    memset(bytes, 0x91, sizeof(bytes));
    memcpy(bytes, "\x81\xa0", 2);
    bytes[1 + NL_SCAN_MAX_DEPTH] = 0xc0;
    assert_int_equal(nl_frame_decode(nl_slice(bytes, 2 + NL_SCAN_MAX_DEPTH), &out), NL_SCAN_OK);
    bytes[1 + NL_SCAN_MAX_DEPTH] = 0x91;
    bytes[2 + NL_SCAN_MAX_DEPTH] = 0xc0;
    assert_int_equal(nl_frame_decode(nl_slice(bytes, 3 + NL_SCAN_MAX_DEPTH), &out), NL_SCAN_TOO_DEEP);
}

static void decode(struct nl_slice bytes, struct nl_frame *out) {
    assert_int_equal(nl_frame_decode(bytes, out), NL_SCAN_OK);
}

static void test_types(void **state) {
    struct nl_frame f;
    (void)state;
    decode(BYTES("\x81\xa4type\xa4"
                 "auth"),
           &f);
    assert_int_equal(f.type, NL_FRAME_AUTH);
    decode(BYTES("\x81\xa4type\xa5"
                 "autho"),
           &f);
    assert_int_equal(f.type, NL_FRAME_UNKNOWN);
    decode(BYTES("\x81\xa4type\xa4"
                 "Auth"),
           &f);
    assert_int_equal(f.type, NL_FRAME_UNKNOWN);
    decode(BYTES("\x81\xa4type\xc4\x04"
                 "auth"),
           &f);
    assert_int_equal(f.type, NL_FRAME_UNKNOWN);
    decode(BYTES("\x81\xc4\x04type\xa4"
                 "auth"),
           &f);
    assert_int_equal(f.type, NL_FRAME_UNKNOWN);
    assert_int_equal(f.extra, 1);
    decode(BYTES("\x82\xa4type\xa4"
                 "auth\xa4type\xa3"
                 "ack"),
           &f);
    assert_int_equal(f.type, NL_FRAME_ACK);
    decode(BYTES("\x82\xa4type\xa4"
                 "auth\xa4type\x01"),
           &f);
    assert_int_equal(f.type, NL_FRAME_UNKNOWN);
    assert_int_equal(f.extra, 0);
}

static void test_mistyped_fields_are_as_if_absent(void **state) {
    struct nl_frame f;
    (void)state;
    decode(BYTES("\x86\xa5topic\x01\xa4"
                 "code\xa1"
                 "1\xa6retain\x01\xa5msgId\xc0\xa3qos\xcb\x3f\xf0\x00\x00\x00\x00"
                 "\x00\x00\xa4"
                 "data\xc0"),
           &f);
    assert_int_equal(f.mistyped, 5);
    assert_int_equal(f.has, UINT64_C(1) << NL_FIELD_data);
    assert_int_equal(f.topic.len, 0);
    assert_false(f.retain);
    decode(BYTES("\x81\xa5topic\xc4\x01x"), &f);
    assert_int_equal(f.mistyped, 1);
    assert_int_equal(f.has, 0);
}

static void test_of_two_equal_keys_the_last_one_counts(void **state) {
    struct nl_frame f;
    (void)state;
    decode(BYTES("\x82\xa5topic\xa1"
                 "a\xa5topic\xa1"
                 "b"),
           &f);
    assert_slice(f.topic, "b");
    decode(BYTES("\x82\xa5topic\xa1"
                 "a\xa5topic\x05"),
           &f);
    assert_int_equal(f.has, 0);
    assert_int_equal(f.mistyped, 1);
    decode(BYTES("\x82\xa5topic\x05\xa5topic\xa1"
                 "b"),
           &f);
    assert_true(NL_FRAME_HAS(&f, topic));
    assert_int_equal(f.mistyped, 0);
    assert_slice(f.topic, "b");
}

static void test_extra_fields_are_counted(void **state) {
    struct nl_frame f;
    (void)state;
    decode(BYTES("\x84\xa4"
                 "from\xa1x\xa5topic\xa1t\x01\x02\x80\x90"),
           &f);
    assert_int_equal(f.extra, 3);
    assert_slice(f.topic, "t");
}

static void test_integers(void **state) {
    struct nl_frame f;
    (void)state;
    decode(BYTES("\x81\xa4"
                 "code\xd3\x80\x00\x00\x00\x00\x00\x00\x00"),
           &f);
    assert_true(f.code == INT64_MIN);
    decode(BYTES("\x81\xa4"
                 "code\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"),
           &f);
    assert_true(f.code == INT64_MAX);
    decode(BYTES("\x81\xa4"
                 "code\xcf\x80\x00\x00\x00\x00\x00\x00\x00"),
           &f);
    assert_int_equal(f.mistyped, 1);
    decode(BYTES("\x81\xa4"
                 "code\xe0"),
           &f);
    assert_int_equal(f.code, -32);
    decode(BYTES("\x81\xa4"
                 "code\xd1\x00\x05"),
           &f);
    assert_int_equal(f.code, 5);
}

static void test_text_that_is_not_utf8_is_kept(void **state) {
    struct nl_frame f;
    (void)state;
    decode(BYTES("\x81\xa4hint\xa2\xff\xfe"), &f);
    assert_true(NL_FRAME_HAS(&f, hint));
    assert_slice(f.hint, "\xff\xfe");
}

static void test_raw_values(void **state) {
    struct nl_slice s, key, value;
    struct nl_raw_iter it;
    (void)state;
    assert_true(nl_raw_string(BYTES("\xa2hi"), &s));
    assert_slice(s, "hi");
    assert_true(nl_raw_string(BYTES("\xd9\x02hi"), &s));
    assert_slice(s, "hi");
    assert_false(nl_raw_string(BYTES("\xc4\x02hi"), &s));
    assert_false(nl_raw_string(nl_slice(NULL, 0), &s));

    assert_true(nl_raw_array(BYTES("\x93\x01\x92\x02\x03\xa1x"), &it));
    assert_true(nl_raw_next(&it, &s));
    assert_slice(s, "\x01");
    assert_true(nl_raw_next(&it, &s));
    assert_slice(s, "\x92\x02\x03");
    assert_true(nl_raw_next(&it, &s));
    assert_true(nl_raw_string(s, &s));
    assert_slice(s, "x");
    assert_false(nl_raw_next(&it, &s));
    assert_false(nl_raw_array(BYTES("\x80"), &it));
    assert_false(nl_raw_next(&it, &s));
    assert_false(nl_raw_array(nl_slice(NULL, 0), &it));

    assert_true(nl_raw_map(BYTES("\xde\x00\x02\x01\x90\xa1k\xa1v"), &it));
    assert_true(nl_raw_next_pair(&it, &key, &value));
    assert_slice(key, "\x01");
    assert_slice(value, "\x90");
    assert_true(nl_raw_next_pair(&it, &key, &value));
    assert_slice(key, "\xa1k");
    assert_slice(value, "\xa1v");
    assert_false(nl_raw_next_pair(&it, &key, &value));
    assert_false(nl_raw_map(BYTES("\x90"), &it));
}

static void test_packed_headers_are_the_shortest(void **state) {
    struct nl_buffer b;
    (void)state;
    nl_buffer_init(&b);
    nl_pack_str(&b, nl_slice(NULL, 0));
    nl_pack_str(&b, nl_slice_str("hi"));
    nl_pack_int(&b, -1);
    nl_pack_int(&b, -129);
    nl_pack_int(&b, 200);
    nl_pack_uint(&b, UINT64_MAX);
    nl_pack_bool(&b, true);
    nl_pack_bool(&b, false);
    nl_pack_array(&b, 15);
    nl_pack_array(&b, 16);
    nl_pack_map(&b, 2);
    nl_pack_map(&b, 65536);
    struct nl_slice expected =
        BYTES("\xa0\xa2hi\xff\xd1\xff\x7f\xcc\xc8\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc3\xc2\x9f"
              "\xdc\x00\x10\x82\xdf\x00\x01\x00\x00");
    assert_int_equal(b.len, expected.len);
    assert_memory_equal(b.bytes, expected.ptr, b.len);
    nl_buffer_deinit(&b);
}

/* -------- the transcripts -------- */

struct counts {
    unsigned frames, known, compared;
};

static bool read_hex(const char *hex, struct nl_buffer *out) {
    unsigned byte;
    nl_buffer_clear(out);
    if (!*hex || strstr(hex, "..."))
        return false;
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        nl_buffer_append_byte(out, (uint8_t)byte);
    assert_string_equal(hex, "");
    return true;
}

/* What we make of it as JSON is what the recorder, with another codec, made of it. */
static bool compare_json(struct nl_slice bytes, struct json_object *recorded) {
    struct nl_buffer json;
    nl_buffer_init(&json);
    nl_json_from_msgpack(&json, bytes, (struct nl_json_options){false});
    nl_buffer_append_byte(&json, 0);
    bool plain = !strstr((char *)json.bytes, "{\"$") && !json_object_object_get_ex(recorded, "raw", NULL);
    if (plain) {
        struct json_object *ours = json_tokener_parse((char *)json.bytes);
        if (!json_object_equal(ours, recorded))
            fail_msg("%s is not %s", (char *)json.bytes, json_object_to_json_string(recorded));
        json_object_put(ours);
    }
    nl_buffer_deinit(&json);
    return plain;
}

static void check_frame(struct nl_slice bytes, struct json_object *recorded, struct counts *counts) {
    struct nl_frame f, again;
    struct nl_buffer b;
    if (!json_object_is_type(recorded, json_type_object)) {
        assert_int_not_equal(nl_frame_decode(bytes, &f), NL_SCAN_OK);
        return;
    }
    decode(bytes, &f);
    counts->frames++;
    counts->compared += compare_json(bytes, recorded);
    if (f.type == NL_FRAME_UNKNOWN)
        return;
    counts->known++;
    nl_buffer_init(&b);
    nl_frame_encode(&f, &b);
    decode(nl_slice(b.bytes, b.len), &again);
    assert_true(same_frame(&f, &again));
    if (f.extra == 0 && f.mistyped == 0)
        assert_int_equal(b.len, bytes.len);
    nl_buffer_deinit(&b);
}

static void check_transcript(const char *path, struct counts *counts) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    struct nl_buffer bytes;
    assert_non_null(file);
    nl_buffer_init(&bytes);
    while (getline(&line, &size, file) > 0) {
        struct json_object *entry = json_tokener_parse(line), *hex, *recorded = NULL;
        assert_non_null(entry);
        json_object_object_get_ex(entry, "frame", &recorded);
        if (json_object_object_get_ex(entry, "hex", &hex) && read_hex(json_object_get_string(hex), &bytes))
            check_frame(nl_slice(bytes.bytes, bytes.len), recorded, counts);
        json_object_put(entry);
    }
    nl_buffer_deinit(&bytes);
    free(line);
    fclose(file);
}

static void test_transcripts(void **state) {
    const char *folder = getenv("NL_TRANSCRIPTS");
    struct counts counts = {0};
    struct dirent *entry;
    (void)state;
    if (!folder)
        fail_msg("NL_TRANSCRIPTS is not set: run this through meson test");
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        char path[4096];
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".jsonl") != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        check_transcript(path, &counts);
    }
    closedir(dir);
    print_message("%u frames, %u of known types, %u compared as JSON\n", counts.frames, counts.known,
                  counts.compared);
    assert_in_range(counts.known, 500, 100000);
    assert_in_range(counts.compared, counts.frames * 9 / 10, counts.frames);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_has_its_name),
        cmocka_unit_test(test_every_field_survives_alone),
        cmocka_unit_test(test_all_fields_together),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_depth_counts_the_frame_itself),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_mistyped_fields_are_as_if_absent),
        cmocka_unit_test(test_of_two_equal_keys_the_last_one_counts),
        cmocka_unit_test(test_extra_fields_are_counted),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_text_that_is_not_utf8_is_kept),
        cmocka_unit_test(test_raw_values),
        cmocka_unit_test(test_packed_headers_are_the_shortest),
        cmocka_unit_test(test_transcripts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
