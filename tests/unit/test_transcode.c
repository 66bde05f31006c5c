/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads both ways: the table of PROTOCOL.md row by row, strict reading, random trees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <json-c/json.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <dlfcn.h>

#include "protocol/hash.h"
#include "protocol/json.h"
#include "protocol/scan.h"
#include "protocol/transcode.h"
#include "random_values.h"

#define BYTES(literal) nl_slice(literal, sizeof(literal) - 1)

static const struct nl_json_options plain_options = {false};

/* The JSON of scanned bytes, NUL-terminated, in a buffer that had something in it before. */
static void to_json(struct nl_buffer *out, struct nl_slice raw, struct nl_json_options options) {
    size_t used;
    assert_int_equal(nl_scan(raw, NL_SCAN_MAX_DEPTH, &used), NL_SCAN_OK);
    assert_int_equal(used, raw.len);
    nl_buffer_append_byte(out, '>');
    nl_json_from_msgpack(out, raw, options);
    nl_buffer_append_byte(out, 0);
    assert_int_equal(out->bytes[0], '>');
    memmove(out->bytes, out->bytes + 1, --out->len);
    out->len--;
}

/* Packs the value of a JSON text; the error, with nothing appended, or NL_OK. */
static enum nl_error from_json(struct nl_buffer *out, const char *text, enum nl_pack_mode mode,
                               const char **why) {
    struct nl_buffer line;
    struct json_object *object = NULL, *value;
    nl_buffer_init(&line);
    nl_buffer_append_str(&line, "{\"v\":");
    nl_buffer_append_str(&line, text);
    nl_buffer_append_str(&line, "}");
    if (nl_json_parse(nl_slice(line.bytes, line.len), 128, &object) != NL_OK)
        fail_msg("not read as JSON: %s", text);
    assert_true(json_object_object_get_ex(object, "v", &value));
    nl_buffer_append_byte(out, '>');
    enum nl_error e = nl_msgpack_from_json(out, value, mode, why);
    if (e != NL_OK)
        assert_int_equal(out->len, 1);
    memmove(out->bytes, out->bytes + 1, --out->len);
    json_object_put(object);
    nl_buffer_deinit(&line);
    return e;
}

struct vector {
    const char *bytes;
    size_t len;
    const char *json;
};

#define V(literal, json)                                                                                     \
    { literal, sizeof(literal) - 1, json }

static void check_to_json(const struct vector *v, struct nl_json_options options) {
    struct nl_buffer b;
    nl_buffer_init(&b);
    to_json(&b, nl_slice(v->bytes, v->len), options);
    assert_string_equal((char *)b.bytes, v->json);
    nl_buffer_deinit(&b);
}

static void check_from_json(const struct vector *v, enum nl_pack_mode mode) {
    struct nl_buffer b;
    const char *why = NULL;
    nl_buffer_init(&b);
    if (from_json(&b, v->json, mode, &why) != NL_OK)
        fail_msg("%s: %s", v->json, why);
    if (b.len != v->len || memcmp(b.bytes, v->bytes, b.len) != 0)
        fail_msg("%s is packed as other bytes", v->json);
    nl_buffer_deinit(&b);
}

#define BIG(byte) "\xcf" byte "\xff\xff\xff\xff\xff\xff\xff"

static const struct vector both_ways[] = {
    V("\xc0", "null"),
    V("\xc2", "false"),
    V("\xc3", "true"),
    V("\x00", "0"),
    V("\x7f", "127"),
    V("\xcc\x80", "128"),
    V("\xcc\xff", "255"),
    V("\xcd\x01\x00", "256"),
    V("\xce\x00\x01\x00\x00", "65536"),
    V("\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "4294967296"),
    V("\xcf\x00\x1f\xff\xff\xff\xff\xff\xff", "9007199254740991"),
    V("\xcf\x00\x20\x00\x00\x00\x00\x00\x01", "9007199254740993"),
    V(BIG("\x7f"), "9223372036854775807"),
    V("\xcf\x80\x00\x00\x00\x00\x00\x00\x00", "9223372036854775808"),
    V(BIG("\xff"), "18446744073709551615"),
    V("\xff", "-1"),
    V("\xe0", "-32"),
    V("\xd0\xdf", "-33"),
    V("\xd0\x80", "-128"),
    V("\xd1\xff\x7f", "-129"),
    V("\xd2\xff\xff\x7f\xff", "-32769"),
    V("\xd3\xff\xff\xff\xff\x7f\xff\xff\xff", "-2147483649"),
    V("\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "-9223372036854775808"),
    V("\xcb\x00\x00\x00\x00\x00\x00\x00\x00", "0.0"),
    V("\xcb\x80\x00\x00\x00\x00\x00\x00\x00", "-0.0"),
    V("\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00", "1.0"),
    V("\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00", "-1.5"),
    V("\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a", "0.1"),
    V("\xcb\x3f\xd3\x33\x33\x33\x33\x33\x34", "0.30000000000000004"),
    V("\xcb\x3f\xd5\x55\x55\x55\x55\x55\x55", "0.3333333333333333"),
    V("\xcb\x7f\xef\xff\xff\xff\xff\xff\xff", "1.7976931348623157e+308"),
    V("\xcb\x00\x00\x00\x00\x00\x00\x00\x01", "4.94065645841247e-324"),
    V("\xcb\x00\x10\x00\x00\x00\x00\x00\x00", "2.2250738585072014e-308"),
    V("\xcb\x43\x40\x00\x00\x00\x00\x00\x00", "9007199254740992.0"),
    V("\xcb\x44\xb5\x2d\x02\xc7\xe1\x4a\xf6", "1e+23"),
    V("\xcb\x7e\x37\xe4\x3c\x88\x00\x75\x9c", "1e+300"),
    V("\xa0", "\"\""),
    V("\xa5hello", "\"hello\""),
    V("\xa4\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""),
    V("\xa3\"\\/", "\"\\\"\\\\/\""),
    V("\xa7\x08\x09\x0a\x0c\x0d\x00\x1f", "\"\\b\\t\\n\\f\\r\\u0000\\u001f\""),
    V("\xa4\x0b\x7f\xc2\x80", "\"\\u000b\x7f\xc2\x80\""),
    V("\xb2"
      "0123456789abcdef\n!",
      "\"0123456789abcdef\\n!\""),
    V("\x90", "[]"),
    V("\x93\x01\x90\xa1x", "[1,[],\"x\"]"),
    V("\x80", "{}"),
    V("\x82\xa1"
      "b\x01\xa1"
      "a\x81\xa0\x02",
      "{\"b\":1,\"a\":{\"\":2}}"),
    V("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "{\"$float\":\"nan\"}"),
    V("\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", "{\"$float\":\"inf\"}"),
    V("\xcb\xff\xf0\x00\x00\x00\x00\x00\x00", "{\"$float\":\"-inf\"}"),
    V("\xc4\x00", "{\"$bytes\":\"\"}"),
    V("\xc4\x01\x00", "{\"$bytes\":\"AA==\"}"),
    V("\xc4\x02\x00\xff", "{\"$bytes\":\"AP8=\"}"),
    V("\xc4\x03\xfb\xff\xbf", "{\"$bytes\":\"+/+/\"}"),
    V("\xa1\xff", "{\"$str\":\"/w==\"}"),
    V("\xa3"
      "a\xc0\x80",
      "{\"$str\":\"YcCA\"}"),
    V("\xd4\x05\xaa", "{\"$ext\":[5,\"qg==\"]}"),
    V("\xd6\xff\x00\x00\x00\x01", "{\"$ext\":[-1,\"AAAAAQ==\"]}"),
    V("\xc7\x00\x80", "{\"$ext\":[-128,\"\"]}"),
    V("\xc7\x03\x7f"
      "abc",
      "{\"$ext\":[127,\"YWJj\"]}"),
    V("\x81\x01\xa7int-key", "{\"$map\":[[1,\"int-key\"]]}"),
    V("\x82\xa1"
      "a\x01\xc3\x02",
      "{\"$map\":[[\"a\",1],[true,2]]}"),
    V("\x82\xa1"
      "a\x01\xa1"
      "a\x02",
      "{\"$map\":[[\"a\",1],[\"a\",2]]}"),
    V("\x81\xa1\xff\x01", "{\"$map\":[[{\"$str\":\"/w==\"},1]]}"),
    V("\x81\xc4\x01"
      "a\x01",
      "{\"$map\":[[{\"$bytes\":\"YQ==\"},1]]}"),
    V("\x81\xa3"
      "a\0b\x01",
      "{\"$map\":[[\"a\\u0000b\",1]]}"),
    V("\x81\x81\x01\x02\x81\xa1k\x81\xc0\x03",
      "{\"$map\":[[{\"$map\":[[1,2]]},{\"k\":{\"$map\":[[null,3]]}}]]}"),
    V("\x82\xa1"
      "a\x81\xa1"
      "b\x01\xa1"
      "c\x81\x01\x02",
      "{\"a\":{\"b\":1},\"c\":{\"$map\":[[1,2]]}}"),
    V("\x81\xa6$bytes\xa4"
      "AA==",
      "{\"$esc\":{\"$bytes\":\"AA==\"}}"),
    V("\x81\xa6$float\x01", "{\"$esc\":{\"$float\":1}}"),
    V("\x81\xa4$str\xc0", "{\"$esc\":{\"$str\":null}}"),
    V("\x81\xa4$ext\x90", "{\"$esc\":{\"$ext\":[]}}"),
    V("\x81\xa4$map\x90", "{\"$esc\":{\"$map\":[]}}"),
    V("\x81\xa4$esc\x80", "{\"$esc\":{\"$esc\":{}}}"),
    V("\x81\xa4$esc\x81\xa4$esc\xc4\x00", "{\"$esc\":{\"$esc\":{\"$esc\":{\"$esc\":{\"$bytes\":\"\"}}}}}"),
    V("\x82\xa6$bytes\x01\xa4$str\x02", "{\"$bytes\":1,\"$str\":2}"),
    V("\x81\xa4$fmt\x01", "{\"$fmt\":1}"),
    V("\x81\xa7$bytess\x01", "{\"$bytess\":1}"),
};

static void test_table_both_ways(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(both_ways) / sizeof(both_ways[0]); i++) {
        check_to_json(&both_ways[i], plain_options);
        check_from_json(&both_ways[i], NL_PACK_TAGGED);
    }
}

/* Forms that we read but do not write. */
static void test_other_forms_to_json(void **state) {
    static const struct vector vectors[] = {
        V("\xca\x3f\xc0\x00\x00", "1.5"),
        V("\xca\x3d\xcc\xcc\xcd", "0.10000000149011612"),
        V("\xca\x80\x00\x00\x00", "-0.0"),
        V("\xca\x7f\xc0\x00\x00", "{\"$float\":\"nan\"}"),
        V("\xca\xff\xc0\x00\x00", "{\"$float\":\"nan\"}"),
        V("\xca\x7f\x80\x00\x00", "{\"$float\":\"inf\"}"),
        V("\xca\xff\x80\x00\x00", "{\"$float\":\"-inf\"}"),
        V("\xca\x00\x00\x00\x01", "1.401298464324817e-45"),
        V("\xd0\x05", "5"),
        V("\xd3\x00\x00\x00\x00\x00\x00\x00\x05", "5"),
        V("\xd3\x7f\xff\xff\xff\xff\xff\xff\xff", "9223372036854775807"),
        V("\xcf\x00\x00\x00\x00\x00\x00\x00\x05", "5"),
        V("\xd3\xff\xff\xff\xff\xff\xff\xff\xff", "-1"),
        V("\xdb\x00\x00\x00\x01x", "\"x\""),
        V("\xda\x00\x01x", "\"x\""),
        V("\xd9\x01x", "\"x\""),
        V("\xc6\x00\x00\x00\x01\x00", "{\"$bytes\":\"AA==\"}"),
        V("\xc9\x00\x00\x00\x01\x05\x00", "{\"$ext\":[5,\"AA==\"]}"),
        V("\xdd\x00\x00\x00\x01\xc0", "[null]"),
        V("\xdf\x00\x00\x00\x01\xd9\x01k\xc0", "{\"k\":null}"),
        V("\x82\xa1"
          "a\x01\xd9\x01"
          "a\x02",
          "{\"$map\":[[\"a\",1],[\"a\",2]]}"),
        V("\x81\xd9\x04$esc\xc0", "{\"$esc\":{\"$esc\":null}}"),
    };
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
        check_to_json(&vectors[i], plain_options);
}

static void test_other_texts_from_json(void **state) {
    static const struct vector vectors[] = {
        V("\x00", "-0"),
        V("\xcb\x40\x59\x00\x00\x00\x00\x00\x00", "1e2"),
        V("\xcb\x40\x59\x00\x00\x00\x00\x00\x00", "1.0E+2"),
        V("\xcb\x3f\x84\x7a\xe1\x47\xae\x14\x7b", "1e-2"),
        V("\xcb\x00\x00\x00\x00\x00\x00\x00\x00", "1e-400"),
        V("\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00", "1.00000000000000000000000000000"),
        V("\xa4\xf0\x9f\x98\x80", "\"\\ud83d\\uDE00\""),
        V("\xa7\xe2\x82\xac/\x08\x0c\x0d", "\"\\u20AC\\/\\b\\f\\r\""),
        V("\xa3"
          "a\0b",
          "\"a\\u0000b\""),
        V("\x92\x01\x02", " [ 1 ,\t2 ] "),
        V("\x81\xa1"
          "a\x02",
          "{\"a\":1,\"a\":2}"),
        V("\xa3"
          "abc",
          "{\"$str\":\"YWJj\"}"),
        V("\x80", "{\"$map\":[]}"),
        V("\x80", "{\"$esc\":{}}"),
        V("\x82\xa1"
          "a\x01\xa1"
          "b\x02",
          "{\"$esc\":{\"a\":1,\"b\":2}}"),
        V("\x81\xa1"
          "a\x01",
          "{\"$map\":[[\"a\",1]]}"),
    };
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
        check_from_json(&vectors[i], NL_PACK_TAGGED);
}

static void test_plain_mode_reads_no_tags(void **state) {
    static const struct vector vectors[] = {
        V("\x81\xa6$bytes\xa4"
          "AA==",
          "{\"$bytes\":\"AA==\"}"),
        V("\x81\xa6$float\x01", "{\"$float\":1}"),
        V("\x91\x81\xa4$map\x90", "[{\"$map\":[]}]"),
    };
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
        check_from_json(&vectors[i], NL_PACK_PLAIN);
}

static void test_malformed_tags(void **state) {
    static const char *const texts[] = {
        "{\"$float\":\"NaN\"}",
        "{\"$float\":\"\"}",
        "{\"$float\":1.5}",
        "{\"$float\":null}",
        "{\"$float\":\"inf\\u0000\"}",
        "{\"$bytes\":1}",
        "{\"$bytes\":null}",
        "{\"$bytes\":[\"AA==\"]}",
        "{\"$bytes\":\"A\"}",
        "{\"$bytes\":\"AA\"}",
        "{\"$bytes\":\"AAA\"}",
        "{\"$bytes\":\"AA=\"}",
        "{\"$bytes\":\"AA= =\"}",
        "{\"$bytes\":\"AA==\\n\"}",
        "{\"$bytes\":\" AA==\"}",
        "{\"$bytes\":\"AB==\"}",
        "{\"$bytes\":\"AAB=\"}",
        "{\"$bytes\":\"A===\"}",
        "{\"$bytes\":\"====\"}",
        "{\"$bytes\":\"AA==AAAA\"}",
        "{\"$bytes\":\"AA-_\"}",
        "{\"$bytes\":\"=AAA\"}",
        "{\"$bytes\":\"AAA\\u0000\"}",
        "{\"$bytes\":\"AA=A\"}",
        "{\"$str\":\"!\"}",
        "{\"$str\":{}}",
        "{\"$ext\":[5]}",
        "{\"$ext\":[5,\"\",1]}",
        "{\"$ext\":[128,\"\"]}",
        "{\"$ext\":[-129,\"\"]}",
        "{\"$ext\":[1.0,\"\"]}",
        "{\"$ext\":[\"1\",\"\"]}",
        "{\"$ext\":[1,2]}",
        "{\"$ext\":[1,\"x\"]}",
        "{\"$ext\":{}}",
        "{\"$ext\":null}",
        "{\"$map\":{}}",
        "{\"$map\":[1]}",
        "{\"$map\":[[1]]}",
        "{\"$map\":[[1,2,3]]}",
        "{\"$map\":null}",
        "{\"$map\":[[1,2],[3,{\"$float\":0}]]}",
        "{\"$esc\":1}",
        "{\"$esc\":[]}",
        "{\"$esc\":null}",
        "{\"$esc\":{\"a\":{\"$bytes\":1}}}",
        "[1,[{\"$str\":0}]]",
        "{\"a\":{\"$float\":0}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct nl_buffer b;
        const char *why = NULL;
        nl_buffer_init(&b);
        if (from_json(&b, texts[i], NL_PACK_TAGGED, &why) != NL_ERROR_BAD_PAYLOAD || !why || why[0] != '$')
            fail_msg("%s: %s", texts[i], why ? why : "taken");
        nl_buffer_deinit(&b);
    }
}

static void test_every_byte_survives(void **state) {
    uint8_t all[3 + 256] = "\xc5\x01\x00", again[256];
    (void)state;
    for (unsigned len = 0; len <= 256; len++) {
        struct nl_buffer json, b;
        const char *why = NULL;
        nl_buffer_init(&json);
        nl_buffer_init(&b);
        all[1] = (uint8_t)(len >> 8);
        all[2] = (uint8_t)len;
        for (unsigned i = 0; i < len; i++)
            again[i] = all[3 + i] = (uint8_t)(i * 7 + len);
        to_json(&json, nl_slice(all, 3 + len), plain_options);
        assert_int_equal(from_json(&b, (char *)json.bytes, NL_PACK_TAGGED, &why), NL_OK);
        assert_int_equal(b.len, len + (len < 256 ? 2 : 3));
        assert_memory_equal(b.bytes + b.len - len, again, len);
        nl_buffer_deinit(&json);
        nl_buffer_deinit(&b);
    }
}

static void test_bigint_as_string(void **state) {
    static const struct vector vectors[] = {
        V("\xcf\x00\x1f\xff\xff\xff\xff\xff\xff", "9007199254740991"),
        V("\xcf\x00\x20\x00\x00\x00\x00\x00\x00", "\"9007199254740992\""),
        V(BIG("\xff"), "\"18446744073709551615\""),
        V("\xd3\xff\xe0\x00\x00\x00\x00\x00\x01", "-9007199254740991"),
        V("\xd3\xff\xe0\x00\x00\x00\x00\x00\x00", "\"-9007199254740992\""),
        V("\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "\"-9223372036854775808\""),
        V("\x92\x05" BIG("\x7f"), "[5,\"9223372036854775807\"]"),
        V("\xcb\x44\xb5\x2d\x02\xc7\xe1\x4a\xf6", "1e+23"),
    };
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
        check_to_json(&vectors[i], (struct nl_json_options){true});
}

static void check_string(struct nl_slice s, const char *json) {
    struct nl_buffer b;
    nl_buffer_init(&b);
    nl_json_string(&b, s);
    nl_buffer_append_byte(&b, 0);
    assert_string_equal((char *)b.bytes, json);
    nl_buffer_deinit(&b);
}

#define FFFD "\xef\xbf\xbd"

/* Every class of bytes that are not UTF-8, with what stands for them. */
static void test_text_that_is_not_utf8(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
        const char *json;
    } vectors[] = {
        V("\x80", "\"" FFFD "\""),                   /* a continuation alone */
        V("a\xbfz", "\"a" FFFD "z\""),               /* in the middle */
        V("\xc0\x80", "\"" FFFD FFFD "\""),          /* overlong NUL */
        V("\xc1\xbf", "\"" FFFD FFFD "\""),          /* overlong, two bytes */
        V("\xe0\x80\x80", "\"" FFFD FFFD FFFD "\""), /* overlong, three bytes */
        V("\xe0\x9f\xbf", "\"" FFFD FFFD FFFD "\""),
        V("\xf0\x80\x80\x80", "\"" FFFD FFFD FFFD FFFD "\""), /* overlong, four bytes */
        V("\xf0\x8f\xbf\xbf", "\"" FFFD FFFD FFFD FFFD "\""),
        V("\xed\xa0\x80", "\"" FFFD FFFD FFFD "\""), /* a surrogate */
        V("\xed\xbf\xbf", "\"" FFFD FFFD FFFD "\""),
        V("\xf4\x90\x80\x80", "\"" FFFD FFFD FFFD FFFD "\""), /* past U+10FFFF */
        V("\xf5\x80\x80\x80", "\"" FFFD FFFD FFFD FFFD "\""),
        V("\xf8\x88\x80\x80\x80", "\"" FFFD FFFD FFFD FFFD FFFD "\""), /* five bytes */
        V("\xff\xfe", "\"" FFFD FFFD "\""),
        V("\xc3", "\"" FFFD "\""), /* cut short */
        V("\xe2\x82", "\"" FFFD "\""),
        V("\xf0\x9f\x98", "\"" FFFD "\""),
        V("\xe2\x82z", "\"" FFFD "z\""),
        V("\xe2\xc3\xa4", "\"" FFFD "\xc3\xa4\""),
        V("\xf0\x9f\xff", "\"" FFFD FFFD "\""),
        V("01234567\xff"
          "01234567",
          "\"01234567" FFFD "01234567\""),
        V("0123456\xc3"
          "\"",
          "\"0123456" FFFD "\\\"\""),
    };
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct nl_slice s = nl_slice(vectors[i].bytes, vectors[i].len);
        struct json_object *object = NULL;
        char line[64];
        check_string(s, vectors[i].json);
        assert_false(nl_utf8_valid(s));
        snprintf(line, sizeof(line), "{\"k\":\"%s\"}", vectors[i].bytes);
        assert_int_equal(nl_json_parse(nl_slice_str(line), 64, &object), NL_ERROR_BAD_UTF8);
    }
    check_string(nl_slice(NULL, 0), "\"\"");
}

static void test_all_characters_are_valid_at_any_offset(void **state) {
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c += c < 0x1000 ? 1 : 97) {
        char text[32] = "01234567";
        size_t at = c % 9, len = at;
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        if (c < 0x80) {
            text[len++] = (char)c;
        } else if (c < 0x800) {
            text[len++] = (char)(0xc0 | c >> 6);
            text[len++] = (char)(0x80 | (c & 63));
        } else if (c < 0x10000) {
            text[len++] = (char)(0xe0 | c >> 12);
            text[len++] = (char)(0x80 | (c >> 6 & 63));
            text[len++] = (char)(0x80 | (c & 63));
        } else {
            text[len++] = (char)(0xf0 | c >> 18);
            text[len++] = (char)(0x80 | (c >> 12 & 63));
            text[len++] = (char)(0x80 | (c >> 6 & 63));
            text[len++] = (char)(0x80 | (c & 63));
        }
        if (!nl_utf8_valid(nl_slice(text, len)))
            fail_msg("U+%04X", c);
        if (c >= 0x80 && nl_utf8_valid(nl_slice(text, len - 1)))
            fail_msg("U+%04X without its end", c);
    }
}

/* -------- reading lines -------- */

static enum nl_error parse(struct nl_slice line, unsigned depth) {
    struct json_object *object = NULL;
    /* At the end of its own memory, so that reading past it is found. */
    uint8_t *copy = malloc(line.len ? line.len : 1);
    memcpy(copy, line.ptr, line.len);
    enum nl_error e = nl_json_parse(nl_slice(copy, line.len), depth, &object);
    free(copy);
    if (e == NL_OK)
        json_object_put(object);
    return e;
}

static void test_what_is_not_json(void **state) {
    static const char *const lines[] = {
        "",
        " ",
        "x",
        "1",
        "\"a\"",
        "null",
        "[1]",
        "[{}]",
        "{",
        "}",
        "{}}",
        "{}{}",
        "{} x",
        "{}\v",
        "{},",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":1,,\"b\":2}",
        "{\"a\" 1}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":'x'}",
        "{1:2}",
        "{null:1}",
        "{\"a\":[1,]}",
        "{\"a\":[,1]}",
        "{\"a\":[1 2]}",
        "{\"a\":[1}",
        "{\"a\":[1]",
        "{\"a\":{]}",
        "{\"a\":[}]",
        "{\"a\":NaN}",
        "{\"a\":nan}",
        "{\"a\":Infinity}",
        "{\"a\":-Infinity}",
        "{\"a\":inf}",
        "{\"a\":-inf}",
        "{\"a\":TRUE}",
        "{\"a\":True}",
        "{\"a\":tru}",
        "{\"a\":truex}",
        "{\"a\":NULL}",
        "{\"a\":nul}",
        "{\"a\":False}",
        "{\"a\":01}",
        "{\"a\":-01}",
        "{\"a\":00}",
        "{\"a\":-}",
        "{\"a\":+1}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":-.5}",
        "{\"a\":1e}",
        "{\"a\":1e+}",
        "{\"a\":1.e5}",
        "{\"a\":1e5.5}",
        "{\"a\":0x10}",
        "{\"a\":1_000}",
        "{\"a\":1 2}",
        "{\"a\":--1}",
        "{\"a\":1-}",
        "{\"a\":1e1e1}",
        "{\"a\":1,000}",
        "{\"a\":18446744073709551616}",
        "{\"a\":-9223372036854775809}",
        "{\"a\":100000000000000000000}",
        "{\"a\":-10000000000000000000}",
        "{\"a\":99999999999999999999999999999999999999999}",
        "{\"a\":1e309}",
        "{\"a\":-1e309}",
        "{\"a\":1.8e308}",
        "{\"a\":1e99999999999999999999}",
        "{\"a\":0.1e310}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\t\"}",
        "{\"a\":\"\x01\"}",
        "{\"a\":\"\x1f\"}",
        "{\"\n\":1}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\",
        "{\"a\":\"\\\"}",
        "{\"a\":\"\\'\"}",
        "{\"a\":\"\\0\"}",
        "{\"a\":\"\\U0041\"}",
        "{\"a\":\"\\u\"}",
        "{\"a\":\"\\u12\"}",
        "{\"a\":\"\\u123\"}",
        "{\"a\":\"\\u123g\"}",
        "{\"a\":\"\\u 123\"}",
        "{\"a\":\"\\u+123\"}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\\udbff\"}",
        "{\"a\":\"\\udc00\"}",
        "{\"a\":\"\\udfff\"}",
        "{\"a\":\"\\ud800x\"}",
        "{\"a\":\"\\ud800\\n\"}",
        "{\"a\":\"\\ud800\\u0041\"}",
        "{\"a\":\"\\ud800\\ud800\"}",
        "{\"a\":\"\\udc00\\ud800\"}",
        "{\"a\":\"\\ud800\\u\"}",
        "{\"\\ud800\":1}",
        "{\"a\\u0000b\":1}",
        "{\"\\u0000\":1}",
        "{\"v\":{\"\\u0000\":1}}",
        "{\"a\":1}/*c*/",
        "/*c*/{}",
        "{\"a\":/*c*/1}",
        "{\"a\":1//c\n}",
        "{\"a\":\"x",
        "{\"a",
        "\xef\xbb\xbf{}",
        "{\xc2\xa0}",
        "{\"a\":\xc2\xa0 1}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (parse(nl_slice_str(lines[i]), 64) != NL_ERROR_BAD_JSON)
            fail_msg("%zu: %s", i, lines[i]);
    assert_int_equal(parse(BYTES("{}\0"), 64), NL_ERROR_BAD_JSON);
    assert_int_equal(parse(BYTES("\0{}"), 64), NL_ERROR_BAD_JSON);
    assert_int_equal(parse(BYTES("{\"a\":\"x\0y\"}"), 64), NL_ERROR_BAD_JSON);
    assert_int_equal(parse(BYTES("{\"a\0\":1}"), 64), NL_ERROR_BAD_JSON);
    assert_int_equal(parse(BYTES("{\"a\":1\0}"), 64), NL_ERROR_BAD_JSON);
    assert_int_equal(parse(BYTES("{\"a\":\"\\\0\"}"), 64), NL_ERROR_BAD_JSON);
}

static void test_what_is_json(void **state) {
    static const char *const lines[] = {
        "{}",
        " {} ",
        "\t{\r\n}\r",
        "{\"a\":1}",
        "{ \"a\" : 1 , \"b\" : [ ] }",
        "{\"\":\"\"}",
        "{\"a\":-0}",
        "{\"a\":0.0}",
        "{\"a\":-0.5e-7}",
        "{\"a\":1E5}",
        "{\"a\":1.5e+308}",
        "{\"a\":1e-999}",
        "{\"a\":0e99999}",
        "{\"a\":1.7976931348623157e308}",
        "{\"a\":18446744073709551615}",
        "{\"a\":-9223372036854775808}",
        "{\"a\":\"\\u0000\"}",
        "{\"a\":\"\\ud83d\\ude00\"}",
        "{\"a\":\"\\uFFFF\"}",
        "{\"\\u0001\":1}",
        "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}",
        "{\"a\":\"\x7f\"}",
        "{\"\xf0\x9f\x98\x80\":1}",
        "{\"a\":[[],{},\"\"]}",
        "{\"a\":[true,false,null]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (parse(nl_slice_str(lines[i]), 64) != NL_OK)
            fail_msg("%zu: %s", i, lines[i]);
}

static void test_invalid_utf8_anywhere_in_a_line(void **state) {
    (void)state;
    assert_int_equal(parse(BYTES("\xff"), 64), NL_ERROR_BAD_UTF8);
    assert_int_equal(parse(BYTES("{\"\xff\":1}"), 64), NL_ERROR_BAD_UTF8);
    assert_int_equal(parse(BYTES("{} \x80"), 64), NL_ERROR_BAD_UTF8);
    assert_int_equal(parse(BYTES("{\"a\":\"\xed\xa0\x80\"}"), 64), NL_ERROR_BAD_UTF8);
    assert_int_equal(parse(BYTES("{\"a\":\"\xc3"), 64), NL_ERROR_BAD_UTF8);
}

static void nested(struct nl_buffer *b, unsigned depth, const char *open, const char *inner,
                   const char *close) {
    nl_buffer_clear(b);
    for (unsigned i = 0; i < depth; i++)
        nl_buffer_append_str(b, open);
    nl_buffer_append_str(b, inner);
    for (unsigned i = 0; i < depth; i++)
        nl_buffer_append_str(b, close);
}

static void test_depth_of_lines(void **state) {
    struct nl_buffer b;
    (void)state;
    nl_buffer_init(&b);
    for (unsigned depth = 1; depth <= 128; depth++) {
        nested(&b, depth, "{\"a\":", "1", "}");
        assert_int_equal(parse(nl_slice(b.bytes, b.len), depth), NL_OK);
        assert_int_equal(parse(nl_slice(b.bytes, b.len), depth - 1), NL_ERROR_TOO_DEEP);
    }
    nested(&b, 129, "{\"a\":", "1", "}");
    assert_int_equal(parse(nl_slice(b.bytes, b.len), 129), NL_ERROR_TOO_DEEP);
    nested(&b, 1000000, "[", "", "]");
    memcpy(b.bytes, "{\"a\":", 5);
    assert_int_equal(parse(nl_slice(b.bytes, b.len), 128), NL_ERROR_TOO_DEEP);
    assert_int_equal(parse(nl_slice_str("{\"a\":[[],[],[]],\"b\":[[]]}"), 3), NL_OK);
    nl_buffer_deinit(&b);
}

static void test_depth_of_data(void **state) {
    struct nl_buffer text, out;
    const char *why = NULL;
    (void)state;
    nl_buffer_init(&text);
    nl_buffer_init(&out);
    nested(&text, NL_SCAN_MAX_DEPTH - 1, "[", "1", "]");
    nl_buffer_append_byte(&text, 0);
    assert_int_equal(from_json(&out, (char *)text.bytes, NL_PACK_TAGGED, &why), NL_OK);
    nl_buffer_clear(&out);
    nested(&text, NL_SCAN_MAX_DEPTH, "[", "1", "]");
    nl_buffer_append_byte(&text, 0);
    assert_int_equal(from_json(&out, (char *)text.bytes, NL_PACK_PLAIN, &why), NL_ERROR_BAD_PAYLOAD);
    assert_non_null(strstr(why, "deep"));
    nl_buffer_deinit(&text);
    nl_buffer_deinit(&out);
}

static void test_garbage_lines_are_survived(void **state) {
    static const char letters[] = "{{}}[[]],,::\"\"\"\\ud8dcabtrfn0123.-+eE \xc3\xa4\x01";
    struct random r = {99};
    (void)state;
    for (unsigned i = 0; i < 60000; i++) {
        uint8_t line[40] = "{\"a\":";
        size_t len = 5 + random_below(&r, sizeof(line) - 5);
        for (size_t j = 5; j < len; j++)
            line[j] = (uint8_t)letters[random_below(&r, sizeof(letters) - 1)];
        if (random_below(&r, 2))
            line[len - 1] = '}';
        parse(nl_slice(line, len), 5);
    }
}

/* Whatever one byte of a good line becomes, the line is good JSON for json-c too or refused. */
static void test_mutated_lines(void **state) {
    static const char good[] =
        "{\"a\":[1,-2.5e3,\"\\u00e4\\ud83d\\ude00\\n\",true,null],\"b\":{\"c\":false}}";
    (void)state;
    for (size_t at = 0; at < sizeof(good) - 1; at++)
        for (unsigned byte = 0; byte < 256; byte++) {
            char line[sizeof(good)];
            memcpy(line, good, sizeof(good));
            line[at] = (char)byte;
            enum nl_error e = parse(nl_slice(line, sizeof(good) - 1), 64);
            if (e != NL_OK)
                continue;
            struct json_object *object = json_tokener_parse(line);
            assert_non_null(object);
            json_object_put(object);
        }
}

/* -------- numbers -------- */

/* Shortest of what %.15g to %.17g write, the slow way. */
static void reference_double(char *text, size_t size, double v) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
}

static void check_double(double v) {
    char expected[64];
    struct nl_buffer b;
    nl_buffer_init(&b);
    nl_json_double(&b, v);
    nl_buffer_append_byte(&b, 0);
    reference_double(expected, sizeof(expected), v);
    if (strcmp((char *)b.bytes, expected) != 0)
        fail_msg("%a is written %s, not %s", v, (char *)b.bytes, expected);
    double back = strtod((char *)b.bytes, NULL);
    assert_memory_equal(&back, &v, sizeof(v));
    nl_buffer_deinit(&b);
}

static void test_doubles(void **state) {
    static const double edges[] = {0.0,
                                   5e-5,
                                   0.00012,
                                   9.9e-5,
                                   -0.0,
                                   1e-4,
                                   9.999999e-5,
                                   0.00099999,
                                   0.000123,
                                   0.1,
                                   0.5,
                                   1e9,
                                   1e9 - 1,
                                   999999999.999999,
                                   999999999.9999999,
                                   1e15,
                                   1e16,
                                   123456789012345678.0,
                                   1e22,
                                   1e23,
                                   5e-324,
                                   1.5,
                                   100,
                                   0.05,
                                   1.000001,
                                   1.0000001,
                                   3.141592653589793,
                                   2.5e-8,
                                   1e21,
                                   123456.7,
                                   99.99,
                                   1e5,
                                   0.0001234567};
    struct nl_buffer unused;
    struct random_source s;
    (void)state;
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        check_double(edges[i]);
        check_double(-edges[i]);
        check_double(nextafter(edges[i], 1e300));
        check_double(nextafter(edges[i], -1e300));
    }
    nl_buffer_init(&unused);
    random_source_init(&s, 12345, RANDOM_PLAIN, &unused);
    for (unsigned i = 0; i < 10000; i++) {
        check_double(random_double(&s));
        check_double((double)random_below(&s.rng, 1000000000) / pow(10, random_below(&s.rng, 12)));
    }
}

/* Only where a locale with a decimal comma is installed. */
static void test_doubles_do_not_depend_on_the_locale(void **state) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "fr_FR", "ps_AF"};
    const char *found = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]);
    if (!found)
        skip();
    check_to_json(&(struct vector)V("\xcb\x3f\xd3\x33\x33\x33\x33\x33\x34", "0.30000000000000004"),
                  plain_options);
    check_to_json(&(struct vector)V("\xcb\x44\xb5\x2d\x02\xc7\xe1\x4a\xf6", "1e+23"), plain_options);
    check_from_json(&(struct vector)V("\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", "1.5"), NL_PACK_TAGGED);
    setlocale(LC_NUMERIC, "C");
}

static void test_integers(void **state) {
    struct random r = {31};
    (void)state;
    for (unsigned i = 0; i < 20000; i++) {
        char expected[32];
        struct nl_buffer b;
        uint64_t v = random_next(&r) >> random_below(&r, 64);
        nl_buffer_init(&b);
        nl_json_uint(&b, v);
        snprintf(expected, sizeof(expected), "%llu", (unsigned long long)v);
        assert_int_equal(b.len, strlen(expected));
        assert_memory_equal(b.bytes, expected, b.len);
        nl_buffer_clear(&b);
        nl_json_int(&b, (int64_t)v);
        snprintf(expected, sizeof(expected), "%lld", (long long)v);
        assert_int_equal(b.len, strlen(expected));
        assert_memory_equal(b.bytes, expected, b.len);
        nl_buffer_deinit(&b);
    }
}

/* -------- random trees -------- */

/* MessagePack -> JSON -> MessagePack gives the same bytes, and the JSON is JSON. */
static void round_trip(uint64_t seed, enum random_flags flags) {
    struct nl_buffer b, json, again;
    struct random_source s;
    const char *why = "";
    nl_buffer_init(&b);
    nl_buffer_init(&json);
    nl_buffer_init(&again);
    random_source_init(&s, seed, flags, &b);
    random_value(&s, 6);
    to_json(&json, nl_slice(b.bytes, b.len), plain_options);
    if (from_json(&again, (char *)json.bytes, NL_PACK_TAGGED, &why) != NL_OK)
        fail_msg("seed %llu: %s: %s", (unsigned long long)seed, why, (char *)json.bytes);
    if (again.len != b.len || memcmp(again.bytes, b.bytes, b.len) != 0)
        fail_msg("seed %llu: other bytes come back: %s", (unsigned long long)seed, (char *)json.bytes);
    if (strchr((char *)json.bytes, '\n') || (flags == RANDOM_PLAIN && strstr((char *)json.bytes, "{\"$")))
        fail_msg("seed %llu: %s", (unsigned long long)seed, (char *)json.bytes);
    nl_buffer_deinit(&b);
    nl_buffer_deinit(&json);
    nl_buffer_deinit(&again);
}

static void test_random_values_come_back(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++)
        round_trip(seed, RANDOM_ALL);
    for (uint64_t seed = 1; seed <= 1500; seed++)
        round_trip(seed, RANDOM_PLAIN);
}

/* JSON -> MessagePack -> JSON -> json-c gives an equal tree. */
static void test_random_json_comes_back(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        struct nl_buffer b, json;
        struct random_source s;
        struct json_object *first = NULL, *second = NULL;
        const char *why;
        nl_buffer_init(&b);
        nl_buffer_init(&json);
        random_source_init(&s, seed, RANDOM_PLAIN, &b);
        msgpack_pack_map(&s.pk, 1);
        random_str(&s, "v", 1);
        random_value(&s, 6);
        to_json(&json, nl_slice(b.bytes, b.len), plain_options);
        assert_int_equal(nl_json_parse(nl_slice(json.bytes, json.len), 128, &first), NL_OK);
        /* Written by json-c this time, with its own escapes and blanks. */
        const char *theirs = json_object_to_json_string_ext(first, JSON_C_TO_STRING_SPACED);
        assert_int_equal(nl_json_parse(nl_slice_str(theirs), 128, &second), NL_OK);
        nl_buffer_clear(&b);
        assert_int_equal(nl_msgpack_from_json(&b, second, NL_PACK_PLAIN, &why), NL_OK);
        nl_buffer_clear(&json);
        json_object_put(second);
        to_json(&json, nl_slice(b.bytes, b.len), plain_options);
        assert_int_equal(nl_json_parse(nl_slice(json.bytes, json.len), 128, &second), NL_OK);
        if (!json_object_equal(first, second))
            fail_msg("seed %llu", (unsigned long long)seed);
        json_object_put(first);
        json_object_put(second);
        nl_buffer_deinit(&b);
        nl_buffer_deinit(&json);
    }
}

/* -------- maps that are made to be slow -------- */

static void big_map(struct nl_buffer *b, unsigned count, const char *last) {
    struct random_source s;
    random_source_init(&s, 1, RANDOM_PLAIN, b);
    msgpack_pack_map(&s.pk, count);
    for (unsigned i = 0; i < count; i++) {
        char key[32];
        int len = snprintf(key, sizeof(key), "key%u", i);
        if (i + 1 == count && last)
            len = snprintf(key, sizeof(key), "%s", last);
        random_str(&s, key, (size_t)len);
        msgpack_pack_nil(&s.pk);
    }
}

static bool becomes_pairs(unsigned count, const char *last) {
    struct nl_buffer b, json;
    nl_buffer_init(&b);
    nl_buffer_init(&json);
    big_map(&b, count, last);
    to_json(&json, nl_slice(b.bytes, b.len), plain_options);
    bool pairs = memmem(json.bytes, 16, "$map", 4) != NULL;
    nl_buffer_deinit(&b);
    nl_buffer_deinit(&json);
    return pairs;
}

static void test_keys_that_come_twice_in_maps_of_any_size(void **state) {
    static const unsigned counts[] = {2, 15, 16, 17, 18, 31, 32, 33, 34, 64, 65, 100, 1000, 60000};
    clock_t begin = clock();
    (void)state;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        assert_false(becomes_pairs(counts[i], NULL));
        assert_false(becomes_pairs(counts[i], "other"));
        assert_true(becomes_pairs(counts[i], "key0"));
        assert_true(becomes_pairs(counts[i], counts[i] > 2 ? "key1" : "key0"));
    }
    assert_true(clock() - begin < 20 * CLOCKS_PER_SEC);
}

/* Keys of which each is sent to the same place of the table: it must give up, and still be right. */
static bool colliding_keys_become_pairs(bool twice) {
    enum { COUNT = 400, PLACES = 1024 };
    struct nl_buffer b, json;
    struct random_source s;
    char key[32];
    int len = 0;
    nl_buffer_init(&b);
    nl_buffer_init(&json);
    random_source_init(&s, 1, RANDOM_PLAIN, &b);
    msgpack_pack_map(&s.pk, COUNT);
    for (unsigned i = 0, found = 0; found < COUNT; i++) {
        if (!twice || found + 1 < COUNT)
            len = snprintf(key, sizeof(key), "%u", i);
        if (nl_hash_bytes(0, (uint8_t *)key, (size_t)len) % PLACES != 0)
            continue;
        random_str(&s, key, (size_t)len);
        msgpack_pack_nil(&s.pk);
        found++;
    }
    to_json(&json, nl_slice(b.bytes, b.len), plain_options);
    bool pairs = memmem(json.bytes, 16, "$map", 4) != NULL;
    nl_buffer_deinit(&b);
    nl_buffer_deinit(&json);
    return pairs;
}

static void test_keys_that_are_chosen_to_collide(void **state) {
    (void)state;
    assert_false(colliding_keys_become_pairs(false));
    assert_true(colliding_keys_become_pairs(true));
}

/* Deciding each map by itself, or writing it twice, would cost the product of the levels here. */
static void test_pairs_at_every_level(void **state) {
    struct nl_buffer b, json, again;
    struct random_source s;
    const char *why;
    (void)state;
    nl_buffer_init(&b);
    nl_buffer_init(&json);
    nl_buffer_init(&again);
    random_source_init(&s, 1, RANDOM_PLAIN, &b);
    for (unsigned depth = 0; depth < 40; depth++) {
        msgpack_pack_map(&s.pk, 2);
        random_str(&s, "a", 1);
    }
    msgpack_pack_nil(&s.pk);
    for (unsigned depth = 0; depth < 40; depth++) {
        msgpack_pack_int(&s.pk, (int)depth);
        msgpack_pack_nil(&s.pk);
    }
    clock_t begin = clock();
    to_json(&json, nl_slice(b.bytes, b.len), plain_options);
    assert_true(clock() - begin < CLOCKS_PER_SEC);
    /* 40 levels are 120 of JSON; the value that parse() wraps around them is one more. */
    assert_int_equal(from_json(&again, (char *)json.bytes, NL_PACK_TAGGED, &why), NL_OK);
    assert_int_equal(again.len, b.len);
    assert_memory_equal(again.bytes, b.bytes, b.len);
    nl_buffer_deinit(&b);
    nl_buffer_deinit(&json);
    nl_buffer_deinit(&again);
}

static void test_long_strings(void **state) {
    (void)state;
    for (size_t len = 0; len < 300; len += len < 40 ? 1 : 13) {
        char text[300], expected[302];
        struct nl_buffer b;
        nl_buffer_init(&b);
        memset(text, 'x', len);
        memset(expected, 'x', sizeof(expected));
        expected[0] = expected[len + 1] = '"';
        nl_json_string(&b, nl_slice(text, len));
        assert_int_equal(b.len, len + 2);
        assert_memory_equal(b.bytes, expected, len + 2);
        /* One special character at each place, so that it is found at each place of a word. */
        for (size_t at = 0; at < len; at++) {
            nl_buffer_clear(&b);
            text[at] = "\"\\\n\x1f"[at % 4];
            nl_json_string(&b, nl_slice(text, len));
            assert_int_equal(b.len, len + 3 + (at % 4 == 3 ? 4 : 0));
            assert_int_equal(b.bytes[at + 1], '\\');
            text[at] = 'x';
        }
        nl_buffer_deinit(&b);
    }
}

static void test_buffers_grow_and_are_given_away(void **state) {
    struct nl_buffer b;
    size_t len;
    (void)state;
    nl_buffer_init(&b);
    assert_null(nl_buffer_take(&b, &len));
    assert_int_equal(len, 0);
    nl_buffer_append(&b, NULL, 0);
    for (unsigned i = 0; i < 100000; i++)
        nl_buffer_append_byte(&b, (uint8_t)i);
    nl_buffer_append_str(&b, "end");
    memcpy(nl_buffer_reserve(&b, 1000000), "x", 1);
    assert_int_equal(b.len, 100003);
    assert_true(b.cap >= b.len + 1000000);
    uint8_t *bytes = nl_buffer_take(&b, &len);
    assert_int_equal(len, 100003);
    assert_int_equal(bytes[300], 300 & 255);
    assert_memory_equal(bytes + 100000, "end", 3);
    free(bytes);
    assert_null(b.bytes);
    nl_buffer_deinit(&b);
}

/* ---- no memory ---- */

/* Which of json-c's functions finds no memory: it then returns NULL and tells no error. */
static enum { ENOUGH, NO_TOKENER, NO_TREE } memory;

struct json_tokener *json_tokener_new_ex(int depth) {
    struct json_tokener *(*real)(int);
    *(void **)&real = dlsym(RTLD_NEXT, "json_tokener_new_ex");
    return memory == NO_TOKENER ? NULL : real(depth);
}

struct json_object *json_tokener_parse_ex(struct json_tokener *tokener, const char *text, int len) {
    struct json_object *(*real)(struct json_tokener *, const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "json_tokener_parse_ex");
    return memory == NO_TREE ? NULL : real(tokener, text, len);
}

/* As everywhere the process ends: the line is not blamed. 1e999 is read member by member. */
static void test_no_memory_is_no_bad_json(void **state) {
    static const char *const lines[] = {"{\"a\":1}", "{\"a\":1e999}"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct json_object *object = NULL;
        struct nl_json_fault fault;
        int status;
        pid_t child = fork();
        if (child == 0) {
            fclose(stderr);
            memory = i % 2 ? NO_TREE : NO_TOKENER;
            _exit(nl_json_parse_line(nl_slice_str(lines[i / 2]), 64, &object, &fault) == NL_OK ? 2 : 3);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_FAILURE);
    }
}

/* What json-c can hold it gets, and only that: the marked members are those that it would change. */
static void test_marks(void **state) {
    static const char *const held[] = {"0",
                                       "-0.0",
                                       "1e308",
                                       "18446744073709551615",
                                       "true",
                                       "false",
                                       "null",
                                       "\"\\u0000\"",
                                       "\"\\ud83d\\ude00\"",
                                       "[{}]",
                                       "{\"\\u0001\":[]}"};
    struct json_object *object, *value;
    struct nl_json_fault fault;
    char line[200];
    (void)state;
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
        snprintf(line, sizeof(line), "{\"x\":%s,\"bad\":-1e999,\"y\":%s}", held[i], held[i]);
        assert_int_equal(nl_json_parse_line(nl_slice_str(line), 64, &object, &fault), NL_OK);
        assert_int_equal(json_object_object_length(object), 3);
        assert_null(nl_json_unheld(json_object_object_get(object, "x")));
        assert_null(nl_json_unheld(json_object_object_get(object, "y")));
        assert_true(json_object_object_get_ex(object, "bad", &value));
        assert_non_null(nl_json_unheld(value));
        assert_true(
            json_object_equal(json_object_object_get(object, "x"), json_object_object_get(object, "y")));
        json_object_put(object);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_both_ways),
        cmocka_unit_test(test_other_forms_to_json),
        cmocka_unit_test(test_other_texts_from_json),
        cmocka_unit_test(test_plain_mode_reads_no_tags),
        cmocka_unit_test(test_malformed_tags),
        cmocka_unit_test(test_every_byte_survives),
        cmocka_unit_test(test_bigint_as_string),
        cmocka_unit_test(test_text_that_is_not_utf8),
        cmocka_unit_test(test_all_characters_are_valid_at_any_offset),
        cmocka_unit_test(test_what_is_not_json),
        cmocka_unit_test(test_what_is_json),
        cmocka_unit_test(test_invalid_utf8_anywhere_in_a_line),
        cmocka_unit_test(test_depth_of_lines),
        cmocka_unit_test(test_depth_of_data),
        cmocka_unit_test(test_garbage_lines_are_survived),
        cmocka_unit_test(test_mutated_lines),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_doubles_do_not_depend_on_the_locale),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_random_values_come_back),
        cmocka_unit_test(test_random_json_comes_back),
        cmocka_unit_test(test_keys_that_come_twice_in_maps_of_any_size),
        cmocka_unit_test(test_keys_that_are_chosen_to_collide),
        cmocka_unit_test(test_pairs_at_every_level),
        cmocka_unit_test(test_long_strings),
        cmocka_unit_test(test_buffers_grow_and_are_given_away),
        cmocka_unit_test(test_no_memory_is_no_bad_json),
        cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
