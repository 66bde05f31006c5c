/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner against msgpack-c, hostile headers and garbage; the digest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "protocol/scan.h"
#include "random_values.h"

static enum nl_scan_result scan(const void *bytes, size_t len, size_t *used) {
    return nl_scan(nl_slice(bytes, len), NL_SCAN_MAX_DEPTH, used);
}

/* The same bytes at the very end of their own memory, so that reading past them is found. */
static enum nl_scan_result scan_copy(const void *bytes, size_t len, size_t *used) {
    uint8_t *copy = malloc(len ? len : 1);
    memcpy(copy, bytes, len);
    enum nl_scan_result r = scan(copy, len, used);
    free(copy);
    return r;
}

#define VECTOR(bytes, result)                                                                                \
    { bytes, sizeof(bytes) - 1, result }

static void test_forms(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
        enum nl_scan_result result;
    } vectors[] = {
        VECTOR("\x00", NL_SCAN_OK),
        VECTOR("\x7f", NL_SCAN_OK),
        VECTOR("\xe0", NL_SCAN_OK),
        VECTOR("\xff", NL_SCAN_OK),
        VECTOR("\xc0", NL_SCAN_OK),
        VECTOR("\xc2", NL_SCAN_OK),
        VECTOR("\xc3", NL_SCAN_OK),
        VECTOR("\x80", NL_SCAN_OK),
        VECTOR("\x81\x01\x02", NL_SCAN_OK),
        VECTOR("\x90", NL_SCAN_OK),
        VECTOR("\x92\x01\x02", NL_SCAN_OK),
        VECTOR("\xa0", NL_SCAN_OK),
        VECTOR("\xa3"
               "abc",
               NL_SCAN_OK),
        VECTOR("\xc4\x00", NL_SCAN_OK),
        VECTOR("\xc4\x02\xff\xff", NL_SCAN_OK),
        VECTOR("\xc5\x00\x01\xff", NL_SCAN_OK),
        VECTOR("\xc6\x00\x00\x00\x01\xff", NL_SCAN_OK),
        VECTOR("\xc7\x00\x05", NL_SCAN_OK),
        VECTOR("\xc7\x01\x05\xff", NL_SCAN_OK),
        VECTOR("\xc8\x00\x01\x05\xff", NL_SCAN_OK),
        VECTOR("\xc9\x00\x00\x00\x01\x05\xff", NL_SCAN_OK),
        VECTOR("\xca\x00\x00\x00\x00", NL_SCAN_OK),
        VECTOR("\xcb\x00\x00\x00\x00\x00\x00\x00\x00", NL_SCAN_OK),
        VECTOR("\xcc\xff", NL_SCAN_OK),
        VECTOR("\xcd\xff\xff", NL_SCAN_OK),
        VECTOR("\xce\xff\xff\xff\xff", NL_SCAN_OK),
        VECTOR("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", NL_SCAN_OK),
        VECTOR("\xd0\xff", NL_SCAN_OK),
        VECTOR("\xd1\xff\xff", NL_SCAN_OK),
        VECTOR("\xd2\xff\xff\xff\xff", NL_SCAN_OK),
        VECTOR("\xd3\xff\xff\xff\xff\xff\xff\xff\xff", NL_SCAN_OK),
        VECTOR("\xd4\x05\x01", NL_SCAN_OK),
        VECTOR("\xd5\x05\x01\x02", NL_SCAN_OK),
        VECTOR("\xd6\x05\x01\x02\x03\x04", NL_SCAN_OK),
        VECTOR("\xd7\x05\x01\x02\x03\x04\x05\x06\x07\x08", NL_SCAN_OK),
        VECTOR("\xd8\x05"
               "0123456789abcdef",
               NL_SCAN_OK),
        VECTOR("\xd9\x01x", NL_SCAN_OK),
        VECTOR("\xda\x00\x01x", NL_SCAN_OK),
        VECTOR("\xdb\x00\x00\x00\x01x", NL_SCAN_OK),
        VECTOR("\xdc\x00\x01\xc0", NL_SCAN_OK),
        VECTOR("\xdd\x00\x00\x00\x01\xc0", NL_SCAN_OK),
        VECTOR("\xde\x00\x01\xc0\xc0", NL_SCAN_OK),
        VECTOR("\xdf\x00\x00\x00\x01\xc0\xc0", NL_SCAN_OK),
        VECTOR("\x93\x90\x91\x80\x82\x01\x90\x02\xa1z", NL_SCAN_OK),
        VECTOR("", NL_SCAN_TRUNCATED),
        VECTOR("\xc1", NL_SCAN_INVALID),
        VECTOR("\x92\xc0\xc1", NL_SCAN_INVALID),
        VECTOR("\x91", NL_SCAN_TRUNCATED),
        VECTOR("\x81\x01", NL_SCAN_TRUNCATED),
        VECTOR("\xdd\xff\xff\xff\xff\xc0\xc0\xc0\xc0\xc0", NL_SCAN_TRUNCATED),
        VECTOR("\xdd\xee\x6b\x28\x00", NL_SCAN_TRUNCATED),
        VECTOR("\xdf\xff\xff\xff\xff\xc0\xc0\xc0\xc0\xc0", NL_SCAN_TRUNCATED),
        VECTOR("\xdf\x80\x00\x00\x00\xc0\xc0", NL_SCAN_TRUNCATED),
        VECTOR("\xdb\xff\xff\xff\xff"
               "abc",
               NL_SCAN_TRUNCATED),
        VECTOR("\xc6\xff\xff\xff\xff"
               "abc",
               NL_SCAN_TRUNCATED),
        VECTOR("\xc9\xff\xff\xff\xff\x05"
               "abc",
               NL_SCAN_TRUNCATED),
        VECTOR("\xc9\x00\x00\x00\x04\x05"
               "abc",
               NL_SCAN_TRUNCATED),
        VECTOR("\xd9\x04"
               "abc",
               NL_SCAN_TRUNCATED),
        VECTOR("\xde\x00\x02\xc0\xc0\xc0", NL_SCAN_TRUNCATED),
    };
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        size_t used = 99;
        enum nl_scan_result r = scan_copy(vectors[i].bytes, vectors[i].len, &used);
        if (r != vectors[i].result || used != (r == NL_SCAN_OK ? vectors[i].len : 0))
            fail_msg("vector %zu: result %d, used %zu", i, r, used);
    }
}

static void test_used_stops_at_the_value(void **state) {
    size_t used;
    (void)state;
    assert_int_equal(scan("\x92\x01\x02\xff\xff", 5, &used), NL_SCAN_OK);
    assert_int_equal(used, 3);
    assert_int_equal(scan("\x80\xc1", 2, &used), NL_SCAN_OK);
    assert_int_equal(used, 1);
}

static void test_depth(void **state) {
    uint8_t nested[NL_SCAN_MAX_DEPTH + 1];
    size_t used;
    (void)state;
    for (size_t depth = 1; depth <= NL_SCAN_MAX_DEPTH + 1; depth++) {
        memset(nested, 0x91, depth - 1);
        nested[depth - 1] = 0x90;
        enum nl_scan_result expected = depth > NL_SCAN_MAX_DEPTH ? NL_SCAN_TOO_DEEP : NL_SCAN_OK;
        struct nl_slice in = nl_slice(nested, depth);
        assert_int_equal(nl_scan(in, NL_SCAN_MAX_DEPTH, &used), expected);
        assert_int_equal(nl_scan(in, 1000, &used), expected);
        if (depth <= NL_SCAN_MAX_DEPTH)
            assert_int_equal(nl_scan(in, (unsigned)depth, &used), NL_SCAN_OK);
        assert_int_equal(nl_scan(in, (unsigned)depth - 1, &used), NL_SCAN_TOO_DEEP);
    }
    assert_int_equal(nl_scan(nl_slice("\x05", 1), 0, &used), NL_SCAN_OK);
    /* Containers side by side are not within each other. */
    assert_int_equal(nl_scan(nl_slice("\x93\x90\x91\x90\x90", 5), 3, &used), NL_SCAN_OK);
}

static void test_too_many(void **state) {
    size_t len = NL_SCAN_MAX_ELEMENTS + 5, used;
    uint8_t *bytes = malloc(len);
    (void)state;
    memset(bytes, 0xc0, len);
    memcpy(bytes, "\xdd\x00\x0f\x42\x3f", 5); /* 999,999 and the array itself */
    assert_int_equal(scan(bytes, len, &used), NL_SCAN_OK);
    assert_int_equal(used, len - 1);
    bytes[4]++;
    assert_int_equal(scan(bytes, len, &used), NL_SCAN_TOO_MANY);
    memcpy(bytes, "\xdf\x00\x07\xa1\x20", 5); /* 500,000 pairs */
    assert_int_equal(scan(bytes, len, &used), NL_SCAN_TOO_MANY);
    free(bytes);
}

/* Mebibytes of whatever could make a scanner take more than one step a byte. */
static void test_time_is_linear(void **state) {
    static const struct {
        const char *pattern;
        size_t len;
    } patterns[] = {{"\x91", 1},        {"\x81\x01", 2}, {"\xdc\xff\xff", 3},
                    {"\x90", 1},        {"\x80", 1},     {"\xdd\x00\x0f\x00\x00", 5},
                    {"\xa0", 1},        {"\xd9\x00", 2}, {"\x9f", 1},
                    {"\xc7\x00\x00", 3}};
    size_t len = 1 << 20, used;
    uint8_t *bytes = malloc(len);
    (void)state;
    clock_t begin = clock();
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        memcpy(bytes, "\xdd\x00\x03\xff\xff", 5);
        for (size_t at = 5; at < len; at++)
            bytes[at] = (uint8_t)patterns[i].pattern[(at - 5) % patterns[i].len];
        scan(bytes, len, &used);
    }
    free(bytes);
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
}

static bool msgpack_c_takes(const uint8_t *bytes, size_t len, size_t *used) {
    msgpack_unpacked result;
    msgpack_unpacked_init(&result);
    *used = 0;
    msgpack_unpack_return r = msgpack_unpack_next(&result, (const char *)bytes, len, used);
    msgpack_unpacked_destroy(&result);
    return r == MSGPACK_UNPACK_SUCCESS || r == MSGPACK_UNPACK_EXTRA_BYTES;
}

static void test_random_values_and_their_truncations(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        struct nl_buffer b;
        struct random_source s;
        size_t used, theirs;
        nl_buffer_init(&b);
        random_source_init(&s, seed, RANDOM_ALL, &b);
        random_value(&s, 5);
        if (scan_copy(b.bytes, b.len, &used) != NL_SCAN_OK || used != b.len)
            fail_msg("seed %llu", (unsigned long long)seed);
        assert_true(msgpack_c_takes(b.bytes, b.len, &theirs));
        assert_int_equal(theirs, used);
        for (size_t len = 0; len < b.len && len < 400; len++)
            if (scan_copy(b.bytes, len, &used) != NL_SCAN_TRUNCATED)
                fail_msg("seed %llu cut to %zu", (unsigned long long)seed, len);
        nl_buffer_deinit(&b);
    }
}

/* msgpack-c believes 32-bit counts and asks for the memory: such bytes are not shown to it. */
static void random_garbage(struct random *r, uint8_t *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) {
        do
            bytes[i] = (uint8_t)(random_next(r) >> (random_below(r, 3) ? 56 : 57));
        while (bytes[i] == 0xdd || bytes[i] == 0xdf);
    }
}

static void test_garbage_is_judged_as_by_msgpack_c(void **state) {
    struct random r = {4711};
    unsigned taken = 0;
    (void)state;
    for (unsigned i = 0; i < 60000; i++) {
        uint8_t bytes[24];
        size_t len = 1 + random_below(&r, sizeof(bytes)), ours, theirs;
        random_garbage(&r, bytes, len);
        bool we_do = scan_copy(bytes, len, &ours) == NL_SCAN_OK;
        bool they_do = msgpack_c_takes(bytes, len, &theirs);
        if (we_do != they_do || (we_do && ours != theirs))
            fail_msg("round %u: ours %d (%zu), theirs %d (%zu)", i, we_do, ours, they_do, theirs);
        taken += we_do;
    }
    assert_in_range(taken, 1000, 59000);
}

static void test_any_garbage_is_survived(void **state) {
    struct random r = {815};
    (void)state;
    for (unsigned i = 0; i < 100000; i++) {
        uint8_t bytes[40];
        size_t len = random_below(&r, sizeof(bytes)), used;
        for (size_t j = 0; j < len; j++)
            bytes[j] = (uint8_t)(random_below(&r, 2) ? 0x80 + random_below(&r, 0x60) : random_next(&r));
        if (scan_copy(bytes, len, &used) == NL_SCAN_OK)
            (void)nl_digest(nl_slice(bytes, used), i);
    }
}

#define DIGEST(literal) nl_digest(nl_slice(literal, sizeof(literal) - 1), 42)

static void test_digest_sees_what_the_broker_repacks_as_equal(void **state) {
    (void)state;
    assert_true(DIGEST("\x82\x01\x02\x03\x04") == DIGEST("\x82\x03\x04\x01\x02"));
    assert_true(DIGEST("\x81\xa1"
                       "a\x01") == DIGEST("\xde\x00\x01\xd9\x01"
                                          "a\x01"));
    assert_true(DIGEST("\x05") == DIGEST("\xcc\x05"));
    assert_true(DIGEST("\x05") == DIGEST("\xcf\x00\x00\x00\x00\x00\x00\x00\x05"));
    assert_true(DIGEST("\x05") == DIGEST("\xd3\x00\x00\x00\x00\x00\x00\x00\x05"));
    assert_true(DIGEST("\xff") == DIGEST("\xd3\xff\xff\xff\xff\xff\xff\xff\xff"));
    assert_true(DIGEST("\xd0\x80") == DIGEST("\xd1\xff\x80"));
    assert_true(DIGEST("\xca\x3f\xc0\x00\x00") == DIGEST("\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"));
    assert_true(DIGEST("\xa2hi") == DIGEST("\xc4\x02hi"));
    assert_true(DIGEST("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00") == DIGEST("\xa3nan"));
    assert_true(DIGEST("\xca\x7f\xc0\x00\x00") == DIGEST("\xa3nan"));
    assert_true(DIGEST("\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00") == DIGEST("\xb1positive_infinity"));
    assert_true(DIGEST("\xcb\xff\xf0\x00\x00\x00\x00\x00\x00") == DIGEST("\xb1negative_infinity"));
    assert_true(DIGEST("\x91\x05") == DIGEST("\xdc\x00\x01\x05"));
    assert_true(DIGEST("\xd4\x05\x01") == DIGEST("\xc7\x01\x05\x01"));
}

static void test_digest_tells_different_values_apart(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
    } values[] = {
#define V(literal) {literal, sizeof(literal) - 1}
        V("\xc0"),
        V("\xc2"),
        V("\xc3"),
        V("\x00"),
        V("\x01"),
        V("\xff"),
        V("\xa0"),
        V("\xa1"
          "0"),
        V("\xa1"
          "1"),
        V("\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"),
        V("\xcb\x00\x00\x00\x00\x00\x00\x00\x00"),
        V("\xcb\x80\x00\x00\x00\x00\x00\x00\x00"),
        V("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        V("\x90"),
        V("\x80"),
        V("\x91\x90"),
        V("\x91\x80"),
        V("\x92\x01\x02"),
        V("\x92\x02\x01"),
        V("\x93\x01\x02\x00"),
        V("\x81\x01\x02"),
        V("\x81\x02\x01"),
        V("\x82\x01\x02\x03\x04"),
        V("\x82\x01\x04\x03\x02"),
        V("\x82\x01\x01\x02\x02"),
        V("\x82\x01\x02\x02\x01"),
        V("\xd4\x05\x01"),
        V("\xd4\x06\x01"),
        V("\xd4\x05\x02"),
        V("\xa8"
          "01234567"),
        V("\xa9"
          "01234567\0"),
        V("\xa2\0\0"),
        V("\xa1\0"),
        V("\x92\x91\x01\x90"),
        V("\x92\x90\x91\x01"),
#undef V
    };
    size_t count = sizeof(values) / sizeof(values[0]);
    (void)state;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (nl_digest(nl_slice(values[i].bytes, values[i].len), 7) ==
                nl_digest(nl_slice(values[j].bytes, values[j].len), 7))
                fail_msg("values %zu and %zu", i, j);
    assert_true(nl_digest(nl_slice("\x05", 1), 1) != nl_digest(nl_slice("\x05", 1), 2));
}

/* Packs v anew with every map turned round and every number in its widest form. */
static void repack(struct nl_buffer *out, const msgpack_object *v) {
    msgpack_packer pk;
    uint8_t wide[9];
    msgpack_packer_init(&pk, out, random_write);
    switch (v->type) {
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        wide[0] = v->type == MSGPACK_OBJECT_POSITIVE_INTEGER ? 0xcf : 0xd3;
        for (unsigned i = 0; i < 8; i++)
            wide[1 + i] = (uint8_t)(v->via.u64 >> (56 - 8 * i));
        nl_buffer_append(out, wide, sizeof(wide));
        return;
    case MSGPACK_OBJECT_ARRAY:
        msgpack_pack_array(&pk, v->via.array.size);
        for (uint32_t i = 0; i < v->via.array.size; i++)
            repack(out, &v->via.array.ptr[i]);
        return;
    case MSGPACK_OBJECT_MAP:
        msgpack_pack_map(&pk, v->via.map.size);
        for (uint32_t i = v->via.map.size; i-- > 0;) {
            repack(out, &v->via.map.ptr[i].key);
            repack(out, &v->via.map.ptr[i].val);
        }
        return;
    case MSGPACK_OBJECT_BIN:
        msgpack_pack_str(&pk, v->via.bin.size);
        msgpack_pack_str_body(&pk, v->via.bin.ptr, v->via.bin.size);
        return;
    default:
        msgpack_pack_object(&pk, *v);
    }
}

static void test_digest_of_random_values_survives_repacking(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        struct nl_buffer b, again;
        struct random_source s;
        msgpack_unpacked tree;
        nl_buffer_init(&b);
        nl_buffer_init(&again);
        random_source_init(&s, seed, RANDOM_ALL, &b);
        random_value(&s, 5);
        msgpack_unpacked_init(&tree);
        assert_int_equal(msgpack_unpack_next(&tree, (char *)b.bytes, b.len, NULL), MSGPACK_UNPACK_SUCCESS);
        repack(&again, &tree.data);
        if (nl_digest(nl_slice(b.bytes, b.len), seed) != nl_digest(nl_slice(again.bytes, again.len), seed))
            fail_msg("seed %llu", (unsigned long long)seed);
        msgpack_unpacked_destroy(&tree);
        nl_buffer_deinit(&b);
        nl_buffer_deinit(&again);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_used_stops_at_the_value),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_time_is_linear),
        cmocka_unit_test(test_random_values_and_their_truncations),
        cmocka_unit_test(test_garbage_is_judged_as_by_msgpack_c),
        cmocka_unit_test(test_any_garbage_is_survived),
        cmocka_unit_test(test_digest_sees_what_the_broker_repacks_as_equal),
        cmocka_unit_test(test_digest_tells_different_values_apart),
        cmocka_unit_test(test_digest_of_random_values_survives_repacking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
