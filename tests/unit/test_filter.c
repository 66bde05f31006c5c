/* SPDX-License-Identifier: Apache-2.0 */
/* Filters: which are valid, their keys, their bytes for upstream, and lists against a plain model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "protocol/filter.h"
#include "random_values.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* json-c itself, not the code under test; it takes any JSON value. */
static struct json_object *json(const char *text) {
    enum json_tokener_error error;
    struct json_object *value = json_tokener_parse_verbose(text, &error);
    if (error != json_tokener_success)
        fail_msg("the test has bad JSON: %s", text);
    return value;
}

static enum nl_error parse(struct nl_filters *out, const char *text) {
    const char *why = NULL;
    struct json_object *value = json(text);
    enum nl_error error = nl_filters_parse(out, value, &why);
    json_object_put(value);
    if (error != NL_OK)
        assert_true(why && *why && why[strlen(why) - 1] != '.');
    return error;
}

static void parse_good(struct nl_filters *out, const char *text) {
    if (parse(out, text) != NL_OK)
        fail_msg("%.200s is refused", text);
}

static void refuse(const char *text, enum nl_error expected) {
    struct nl_filters f;
    enum nl_error error = parse(&f, text);
    if (error != expected)
        fail_msg("%.200s: %s instead of %s", text, nl_error_name(error), nl_error_name(expected));
}

/* The keys of a list, each followed by a blank. */
static void check_keys(const struct nl_filters *f, const char *expected) {
    struct nl_buffer keys;
    nl_buffer_init(&keys);
    for (size_t i = 0; i < f->count; i++) {
        assert_int_equal(f->items[i].key_len, strlen(f->items[i].key));
        nl_buffer_append_str(&keys, f->items[i].key);
        nl_buffer_append_byte(&keys, ' ');
    }
    nl_buffer_append_byte(&keys, '\0');
    assert_string_equal((char *)keys.bytes, expected);
    nl_buffer_deinit(&keys);
}

/* ---- single filters ---- */

static void test_keys(void **state) {
    static const char *const vectors[][2] = {
        {"[]", ""},
        {"[\"region:us\"]", "region:us "},
        {"[\"Region:US\"]", "Region:US "},
        {"[\"ÄÖ\"]", "ÄÖ "},
        {"[\"x\",\"y\"]", "x y "},
        {"[\"b\",\"a\"]", "b a "},
        {"[[\"Region:US\",\"priority:high\"]]", "priority:high|region:us "},
        {"[[\"b\",\"A\"],[\"c\",\"B\",\"a\"]]", "a|b a|b|c "},
        {"[[\"Ä\",\"z\"]]", "z|ä "},
        {"[[\"É\",\"e\",\"Z\"]]", "e|z|é "},
        {"[[\"İ\",\"I\"]]", "i|i\xcc\x87 "},
        /* Erlang lowers a last sigma like any other one, unlike what is usual in Greek. */
        {"[[\"ΑΣ\",\"ẞ\"]]", "ß|ασ "},
        {"[[\"ı\",\"I\"]]", "i|ı "},
        {"[[\"ДОМ\",\"дом2\"]]", "дом|дом2 "},
        {"[[\"Ⅷ\",\"Ⓐ\",\"Ｚ\"]]", "ⅷ|ⓐ|ｚ "},
        {"[[\"\\ud801\\udc00\",\"a\"]]", "a|\xf0\x90\x90\xa8 "},
        {"[[\"ǅ\",\"Ǆ\"]]", "ǆ|ǆ "},
        {"[[\"a\",\"a\"]]", "a|a "},
        {"[[\"ab\",\"a\"],[\"a-\",\"a\"]]", "a|ab a|a- "},
        {"[\"a b\",\" \",\"*\",\"$x\",\"\\t\"]", "a b   * $x \t "},
    };
    struct nl_filters f;
    (void)state;
    for (size_t i = 0; i < COUNT(vectors); i++) {
        parse_good(&f, vectors[i][0]);
        check_keys(&f, vectors[i][1]);
        nl_filters_deinit(&f);
    }
}

/* Strings are put in front of, between and behind good ones: each place must be looked at. */
static void refuse_everywhere(const char *filter) {
    char text[200];
    snprintf(text, sizeof(text), "[%s]", filter);
    refuse(text, NL_ERROR_BAD_FILTER);
    snprintf(text, sizeof(text), "[%s,\"x\"]", filter);
    refuse(text, NL_ERROR_BAD_FILTER);
    snprintf(text, sizeof(text), "[\"x\",%s]", filter);
    refuse(text, NL_ERROR_BAD_FILTER);
    snprintf(text, sizeof(text), "[[\"x\",%s]]", filter);
    refuse(text, NL_ERROR_BAD_FILTER);
    snprintf(text, sizeof(text), "[[%s,\"x\",\"y\"]]", filter);
    refuse(text, NL_ERROR_BAD_FILTER);
}

static void test_bad_filters(void **state) {
    static const char *const filters[] = {"\"\"",
                                          "\"a/b\"",
                                          "\"a#\"",
                                          "\"a+\"",
                                          "\"a|\"",
                                          "\"|a\"",
                                          "\"a||b\"",
                                          "\"a|b/c\"",
                                          "\"a|b\\u0000\"",
                                          "[\"a|b\",\"c\"]",
                                          "\"/\"",
                                          "\"#\"",
                                          "\"+\"",
                                          "\"|\"",
                                          "[\"one\"]",
                                          "[]",
                                          "1",
                                          "1.5",
                                          "true",
                                          "null",
                                          "{}",
                                          "[[]]",
                                          "[1,2]",
                                          "[null]",
                                          "[\"a\",\"\"]",
                                          "[\"a\",1]",
                                          "[\"a\",null]",
                                          "[\"a\",[\"b\",\"c\"]]",
                                          "{\"a\":1}",
                                          "\"a\\u0000b\"",
                                          "\"\\u0000\"",
                                          "\"#a\"",
                                          "\"a\\u0000\""};
    (void)state;
    for (size_t i = 0; i < COUNT(filters); i++)
        refuse_everywhere(filters[i]);
}

/* A string with "|" is the group of its parts: the same key, and the same bytes for the broker. */
static void test_joined_groups(void **state) {
    static const char *const same[][2] = {
        {"[\"b|A\"]", "[[\"b\",\"A\"]]"},
        {"[\"x\",\"c|B|a\"]", "[\"x\",[\"c\",\"B\",\"a\"]]"},
        {"[\"ä|Ä\"]", "[[\"ä\",\"Ä\"]]"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(same); i++) {
        struct nl_filters joined, listed;
        parse(&joined, same[i][0]);
        parse(&listed, same[i][1]);
        assert_int_equal(joined.count, listed.count);
        for (size_t k = 0; k < joined.count; k++) {
            assert_string_equal(joined.items[k].key, listed.items[k].key);
            assert_int_equal(joined.items[k].json_len, listed.items[k].json_len);
            assert_memory_equal(joined.items[k].json, listed.items[k].json, joined.items[k].json_len);
            assert_int_equal(joined.items[k].wire_len, listed.items[k].wire_len);
            assert_memory_equal(joined.items[k].wire, listed.items[k].wire, joined.items[k].wire_len);
        }
        nl_filters_deinit(&joined);
        nl_filters_deinit(&listed);
    }
}

static void test_not_a_list(void **state) {
    (void)state;
    refuse("\"x\"", NL_ERROR_BAD_FIELD);
    refuse("{}", NL_ERROR_BAD_FIELD);
    refuse("{\"0\":\"x\"}", NL_ERROR_BAD_FIELD);
    refuse("1", NL_ERROR_BAD_FIELD);
    refuse("1.5", NL_ERROR_BAD_FIELD);
    refuse("true", NL_ERROR_BAD_FIELD);
    refuse("null", NL_ERROR_BAD_FIELD);
}

static void append_letters(struct nl_buffer *b, size_t count) {
    memset(nl_buffer_reserve(b, count), 'x', count);
    b->len += count;
}

/* One filter, or a group of two, whose key has len bytes. */
static enum nl_error parse_long(size_t len, bool group) {
    struct nl_buffer text;
    struct nl_filters f;
    nl_buffer_init(&text);
    nl_buffer_append_str(&text, group ? "[[\"a\",\"" : "[\"");
    append_letters(&text, group ? len - 2 : len);
    nl_buffer_append_str(&text, group ? "\"]]" : "\"]");
    nl_buffer_append_byte(&text, '\0');
    enum nl_error error = parse(&f, (char *)text.bytes);
    if (error == NL_OK) {
        assert_int_equal(f.items[0].key_len, len);
        nl_filters_deinit(&f);
    }
    nl_buffer_deinit(&text);
    return error;
}

static void test_key_length(void **state) {
    (void)state;
    for (int group = 0; group < 2; group++) {
        assert_int_equal(parse_long(NL_FILTER_KEY_MAX, group), NL_OK);
        assert_int_equal(parse_long(NL_FILTER_KEY_MAX + 1, group), NL_ERROR_BAD_FILTER);
        assert_int_equal(parse_long(1000000, group), NL_ERROR_BAD_FILTER);
    }
}

/* ---- lists ---- */

static void check_json(const struct nl_filters *f, const char *expected) {
    struct nl_buffer out;
    nl_buffer_init(&out);
    nl_buffer_append_str(&out, "before");
    nl_filters_json(f, &out);
    nl_buffer_append_byte(&out, '\0');
    assert_string_equal((char *)out.bytes + 6, expected);
    nl_buffer_deinit(&out);
}

static void test_json_and_wire(void **state) {
    static const char wire[] = "\x93\xa9region:us\x92\xa7Lang:EN\xa1"
                               "b\xa5"
                               "\xc3\x84\"\n1";
    struct nl_filters f;
    struct nl_buffer out;
    (void)state;
    parse_good(&f, " [ \"region:us\" , [\"Lang:EN\",\"b\"],\"\\u00c4\\\"\\n1\" ]");
    check_json(&f, "[\"region:us\",[\"Lang:EN\",\"b\"],\"Ä\\\"\\n1\"]");
    nl_buffer_init(&out);
    nl_buffer_append_byte(&out, 'x');
    nl_filters_wire(&f, &out);
    assert_int_equal(out.len, sizeof(wire));
    assert_memory_equal(out.bytes + 1, wire, sizeof(wire) - 1);
    nl_buffer_deinit(&out);
    nl_filters_deinit(&f);
}

static void test_empty_list(void **state) {
    struct nl_filters f, copy;
    struct nl_buffer out;
    (void)state;
    parse_good(&f, "[]");
    nl_filters_copy(&copy, &f);
    assert_int_equal(copy.count, 0);
    check_json(&copy, "[]");
    nl_buffer_init(&out);
    nl_filters_wire(&copy, &out);
    assert_int_equal(out.len, 1);
    assert_int_equal(out.bytes[0], 0x90);
    nl_buffer_deinit(&out);
    nl_filters_deinit(&copy);
    nl_filters_deinit(&f);
    nl_filters_init(&f);
    check_json(&f, "[]");
    nl_filters_deinit(&f);
}

static void test_doubles(void **state) {
    struct nl_filters f;
    (void)state;
    parse_good(&f, "[\"a\",\"b\",\"a\",\"A\",[\"B\",\"a\"],[\"a\",\"b\"],[\"A\",\"b\"],\"b\"]");
    check_keys(&f, "a b A a|b ");
    check_json(&f, "[\"a\",\"b\",\"A\",[\"B\",\"a\"]]");
    nl_filters_deinit(&f);
}

static void append_filters(struct nl_buffer *text, unsigned from, unsigned count) {
    char filter[32];
    for (unsigned i = 0; i < count; i++) {
        snprintf(filter, sizeof(filter), ",\"f%u\"", from + i);
        nl_buffer_append_str(text, filter);
    }
}

/* A list of "f<from>" to "f<from + count - 1>", times times over. */
static enum nl_error parse_many(struct nl_filters *f, unsigned from, unsigned count, unsigned times) {
    struct nl_buffer text;
    nl_buffer_init(&text);
    while (times--)
        append_filters(&text, from, count);
    nl_buffer_append(&text, "]", 2);
    text.bytes[0] = '[';
    enum nl_error error = parse(f, (char *)text.bytes);
    nl_buffer_deinit(&text);
    return error;
}

static void test_limit_counts_different_filters(void **state) {
    struct nl_filters f;
    (void)state;
    assert_int_equal(parse_many(&f, 0, 100, 1), NL_OK);
    assert_int_equal(f.count, 100);
    nl_filters_deinit(&f);
    assert_int_equal(parse_many(&f, 0, 100, 3), NL_OK);
    assert_int_equal(f.count, 100);
    nl_filters_deinit(&f);
    assert_int_equal(parse_many(&f, 0, 101, 1), NL_ERROR_TOO_MANY_FILTERS);
    assert_int_equal(parse_many(&f, 0, 101, 2), NL_ERROR_TOO_MANY_FILTERS);
}

/* What fills a line of 2 MiB is refused by its number, before anything is made of it. */
static void test_a_million_equal_filters_are_refused_fast(void **state) {
    struct json_object *array = json_object_new_array(), *one = json_object_new_string("x");
    const char *why;
    struct nl_filters f;
    (void)state;
    for (int i = 0; i < 1000000; i++)
        json_object_array_add(array, json_object_get(one));
    clock_t begin = clock();
    for (int round = 0; round < 1000; round++)
        assert_int_equal(nl_filters_parse(&f, array, &why), NL_ERROR_TOO_MANY_FILTERS);
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 5);
    json_object_put(one);
    json_object_put(array);
}

/* ---- adding and removing ---- */

static enum nl_error add(struct nl_filters *f, const char *text) {
    struct nl_filters more;
    parse_good(&more, text);
    enum nl_error error = nl_filters_add(f, &more);
    nl_filters_deinit(&more);
    return error;
}

static void take_away(struct nl_filters *f, const char *text) {
    struct nl_filters less;
    parse_good(&less, text);
    nl_filters_remove(f, &less);
    nl_filters_deinit(&less);
}

static void test_add_and_remove(void **state) {
    struct nl_filters f;
    (void)state;
    nl_filters_init(&f);
    assert_int_equal(add(&f, "[\"a\",[\"X\",\"y\"]]"), NL_OK);
    assert_int_equal(add(&f, "[\"b\",\"a\",[\"Y\",\"x\"]]"), NL_OK);
    check_json(&f, "[\"a\",[\"X\",\"y\"],\"b\"]");
    take_away(&f, "[\"A\",\"c\"]");
    check_json(&f, "[\"a\",[\"X\",\"y\"],\"b\"]");
    take_away(&f, "[[\"y\",\"x\"]]");
    check_json(&f, "[\"a\",\"b\"]");
    take_away(&f, "[\"b\",\"a\"]");
    check_json(&f, "[]");
    assert_int_equal(add(&f, "[]"), NL_OK);
    take_away(&f, "[\"a\"]");
    assert_int_equal(add(&f, "[\"z\"]"), NL_OK);
    check_json(&f, "[\"z\"]");
    nl_filters_deinit(&f);
}

static void test_add_past_the_limit_changes_nothing(void **state) {
    struct nl_filters f;
    (void)state;
    assert_int_equal(parse_many(&f, 0, 98, 1), NL_OK);
    assert_int_equal(add(&f, "[\"f0\",\"x\",\"y\",\"z\"]"), NL_ERROR_TOO_MANY_FILTERS);
    assert_int_equal(f.count, 98);
    assert_int_equal(add(&f, "[\"f0\",\"x\",\"f1\",\"y\"]"), NL_OK);
    assert_int_equal(f.count, 100);
    assert_string_equal(f.items[99].key, "y");
    assert_int_equal(add(&f, "[\"f97\",\"y\"]"), NL_OK);
    assert_int_equal(add(&f, "[\"z\"]"), NL_ERROR_TOO_MANY_FILTERS);
    assert_int_equal(f.count, 100);
    nl_filters_deinit(&f);
}

static void test_copy_is_its_own(void **state) {
    struct nl_filters f, copy;
    (void)state;
    parse_good(&f, "[\"a\",[\"C\",\"b\"]]");
    nl_filters_copy(&copy, &f);
    nl_filters_deinit(&f);
    check_keys(&copy, "a b|c ");
    check_json(&copy, "[\"a\",[\"C\",\"b\"]]");
    assert_int_equal(copy.items[1].wire_len, 5);
    assert_memory_equal(copy.items[1].wire,
                        "\x92\xa1"
                        "C\xa1"
                        "b",
                        5);
    nl_filters_deinit(&copy);
}

/* ---- random adding and removing, against an ordered list of letters ---- */

/* A random list of single filters "a" to "h", each at most once; letters names the same. */
static void random_list(struct random *rng, char *text, char *letters) {
    size_t n = 0;
    text += sprintf(text, "[");
    for (unsigned i = random_below(rng, 6); i > 0; i--) {
        char c = (char)('a' + random_below(rng, 8));
        if (memchr(letters, c, n))
            continue;
        text += sprintf(text, "%s\"%c\"", n ? "," : "", c);
        letters[n++] = c;
    }
    letters[n] = '\0';
    sprintf(text, "]");
}

static void model_change(char *list, const char *letters, bool adds) {
    for (; *letters; letters++) {
        char *at = strchr(list, *letters);
        if (adds && !at) {
            size_t n = strlen(list);
            list[n] = *letters;
            list[n + 1] = '\0';
        } else if (!adds && at) {
            memmove(at, at + 1, strlen(at));
        }
    }
}

static bool has_letters(const struct nl_filters *f, const char *list) {
    for (size_t i = 0; i < f->count; i++)
        if (f->items[i].key_len != 1 || f->items[i].key[0] != list[i])
            return false;
    return f->count == strlen(list);
}

static void test_random_changes(void **state) {
    const uint64_t seed = 42;
    struct random rng = {seed};
    struct nl_filters f;
    char list[16] = "", text[64], letters[16];
    (void)state;
    nl_filters_init(&f);
    for (int round = 0; round < 5000; round++) {
        bool adds = random_below(&rng, 2);
        random_list(&rng, text, letters);
        if (adds)
            assert_int_equal(add(&f, text), NL_OK);
        else
            take_away(&f, text);
        model_change(list, letters, adds);
        if (!has_letters(&f, list))
            fail_msg("seed %llu round %d: not %s", (unsigned long long)seed, round, list);
    }
    nl_filters_deinit(&f);
}

/* ---- publishing ---- */

static enum nl_error publish_key(char **key, const char *filter, const char *filters) {
    const char *why = NULL;
    struct json_object *one = filter ? json(filter) : NULL, *list = filters ? json(filters) : NULL;
    enum nl_error error = nl_publish_filter_key(key, one, list, &why);
    json_object_put(one);
    json_object_put(list);
    if (error != NL_OK) {
        assert_null(*key);
        assert_true(why && *why);
    }
    return error;
}

static void test_publish_keys(void **state) {
    static const struct {
        const char *filter, *filters, *key;
    } vectors[] = {
        {"\"x\"", NULL, "x"},
        {"\"Region:US\"", NULL, "Region:US"},
        {"\"priority:high|region:us\"", NULL, "priority:high|region:us"},
        {"\"B|a\"", NULL, "a|b"},
        {NULL, "[\"B\",\"a\"]", "a|b"},
        {NULL, "[\"Lang:EN\"]", "lang:en"},
        {NULL, "[\"Ä\"]", "ä"},
        {NULL, "[\"c\",\"B\",\"a\"]", "a|b|c"},
    };
    char *key;
    (void)state;
    for (size_t i = 0; i < COUNT(vectors); i++) {
        assert_int_equal(publish_key(&key, vectors[i].filter, vectors[i].filters), NL_OK);
        assert_string_equal(key, vectors[i].key);
        free(key);
    }
    assert_int_equal(publish_key(&key, NULL, NULL), NL_OK);
    assert_null(key);
}

static void test_bad_publish_keys(void **state) {
    static const char *const filters[] = {"\"\"", "\"a/b\"", "\"a#\"",        "\"+\"",        "1",  "true",
                                          "{}",   "[]",      "[\"a\",\"b\"]", "\"a\\u0000\"", "1.5"};
    static const char *const lists[] = {"[]",           "\"x\"",           "{}",       "1",
                                        "[\"\"]",       "[\"a/b\"]",       "[\"a#\"]", "[\"a+\"]",
                                        "[\"a|b\"]",    "[1,2]",           "[null]",   "[[\"a\",\"b\"]]",
                                        "[\"a\",\"\"]", "[\"a\",\"b\",3]", "true",     "[\"\\u0000\"]"};
    char *key;
    (void)state;
    for (size_t i = 0; i < COUNT(filters); i++)
        if (publish_key(&key, filters[i], NULL) != NL_ERROR_BAD_FILTER)
            fail_msg("filter %s is not refused", filters[i]);
    for (size_t i = 0; i < COUNT(lists); i++)
        if (publish_key(&key, NULL, lists[i]) != NL_ERROR_BAD_FILTER)
            fail_msg("filters %s is not refused", lists[i]);
}

static void test_publish_key_length(void **state) {
    char text[NL_FILTER_KEY_MAX + 8];
    char *key;
    (void)state;
    memset(text, 'x', sizeof(text));
    text[0] = '"';
    memcpy(text + NL_FILTER_KEY_MAX + 1, "\"", 2);
    assert_int_equal(publish_key(&key, text, NULL), NL_OK);
    assert_int_equal(strlen(key), NL_FILTER_KEY_MAX);
    free(key);
    memcpy(text + NL_FILTER_KEY_MAX + 1, "x\"", 3);
    assert_int_equal(publish_key(&key, text, NULL), NL_ERROR_BAD_FILTER);
    text[0] = '[';
    text[1] = '"';
    memcpy(text + NL_FILTER_KEY_MAX + 2, "\"]", 3);
    assert_int_equal(publish_key(&key, NULL, text), NL_OK);
    free(key);
    memcpy(text + NL_FILTER_KEY_MAX + 2, "x\"]", 4);
    assert_int_equal(publish_key(&key, NULL, text), NL_ERROR_BAD_FILTER);
}

/* What is subscribed to and what is published meet by their keys. */
static void test_keys_meet(void **state) {
    struct nl_filters f;
    char *key;
    (void)state;
    parse_good(&f, "[[\"Region:US\",\"priority:high\"],\"lang:en\"]");
    assert_int_equal(publish_key(&key, NULL, "[\"PRIORITY:high\",\"region:us\"]"), NL_OK);
    assert_string_equal(key, f.items[0].key);
    free(key);
    assert_int_equal(publish_key(&key, NULL, "[\"Lang:EN\"]"), NL_OK);
    assert_string_equal(key, f.items[1].key);
    free(key);
    nl_filters_deinit(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_bad_filters),
        cmocka_unit_test(test_joined_groups),
        cmocka_unit_test(test_not_a_list),
        cmocka_unit_test(test_key_length),
        cmocka_unit_test(test_json_and_wire),
        cmocka_unit_test(test_empty_list),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_limit_counts_different_filters),
        cmocka_unit_test(test_a_million_equal_filters_are_refused_fast),
        cmocka_unit_test(test_add_and_remove),
        cmocka_unit_test(test_add_past_the_limit_changes_nothing),
        cmocka_unit_test(test_copy_is_its_own),
        cmocka_unit_test(test_random_changes),
        cmocka_unit_test(test_publish_keys),
        cmocka_unit_test(test_bad_publish_keys),
        cmocka_unit_test(test_publish_key_length),
        cmocka_unit_test(test_keys_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
