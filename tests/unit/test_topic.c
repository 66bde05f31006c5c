/* SPDX-License-Identifier: Apache-2.0 */
/* Topic names: every byte, every length, the vectors of topic.h; patterns against a plain model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "protocol/topic.h"
#include "random_values.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* In memory of exactly that length, so that reading past the end is found. */
static bool valid(const char *text, size_t len) {
    char *copy = malloc(len ? len : 1);
    memcpy(copy, text, len);
    bool result = nl_topic_valid(nl_slice(copy, len));
    free(copy);
    return result;
}

static void test_valid(void **state) {
    static const char *const topics[] = {
        "app/room/topic", "chat-a3f9/general/messages",
        "a/b/c:d_e-1",    "app/scope/room/topic",
        "a/b/c",          "A/Z/0",
        "-/_/:",          "a:b/c:d/e:f/g:h",
        "0/9/z",          "9-9/aZ_:-/x",
        "nolag/a-b/c_d",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(topics); i++)
        if (!valid(topics[i], strlen(topics[i])))
            fail_msg("%s is a topic", topics[i]);
}

static void test_invalid(void **state) {
    static const char *const texts[] = {
        "",        "a",      "app",     "app/room", "a/b/c/d/e", "a/b/c/d/", "/a/b/c",   "a//c",     "a/b/",
        "a/b/+",   "a/b/#",  "+/b/c",   "#",        "*",         "a/b/*",    "a/b/c d",  " a/b/c",   "a/b/c ",
        "a/b/c\n", "a/b/ä",  "a/ä/c",   "a/b/c.d",  "a/b/c,d",   "a/b/c|d",  "a/b/c\\d", "/",        "//",
        "///",     "a/b//c", "a///d",   "//c",      "/b/c",      "a/b/c/",   "a/b/c//d", "a/b/c/d/", "/a/b",
        "a/b/c@d", "a/b/[c", "a/b/`c`", "a/b/{c",   "a/b/;",     "a/b/c\x7f"};
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        if (valid(texts[i], strlen(texts[i])))
            fail_msg("\"%s\" is not a topic", texts[i]);
    assert_false(valid("a/b/\0c", 6));
    assert_false(valid("a/b/c\0", 6));
    assert_false(nl_topic_valid(nl_slice(NULL, 0)));
}

/* Each byte in each of the places of a part: only 65 of 256 may be there. */
static void test_every_byte(void **state) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:-";
    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        bool good = memchr(letters, byte, sizeof(letters) - 1) != NULL;
        for (size_t at = 0; at < 11; at++) {
            char text[] = "aaa/bbb/ccc";
            if (text[at] == '/' || byte == '/')
                continue;
            text[at] = (char)byte;
            if (valid(text, 11) != good)
                fail_msg("byte %d at %zu", byte, at);
        }
    }
}

static void test_length(void **state) {
    char text[NL_TOPIC_MAX + 1];
    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "a/b/", 4);
    assert_true(valid(text, 5));
    assert_true(valid(text, NL_TOPIC_MAX));
    assert_false(valid(text, NL_TOPIC_MAX + 1));
}

static void check_name(const char *topic, const char *name) {
    struct nl_slice found = nl_topic_name(nl_slice_str(topic));
    assert_true(nl_slice_equal(found, nl_slice_str(name)));
    assert_ptr_equal(found.ptr + found.len, topic + strlen(topic));
}

static void test_name(void **state) {
    (void)state;
    check_name("chat-a3f9/general/messages", "messages");
    check_name("a/b/c", "c");
    check_name("app/scope/room/topic", "topic");
}

static const struct match {
    const char *pattern, *topic;
    bool matches;
} matches[] = {
    {"a/+/c", "a/b/c", true},     {"a/+/c", "a/b/d", false},
    {"a/+/c", "a/b/x/c", false},  {"a/#", "a", true},
    {"a/#", "a/b/c", true},       {"a/#", "b/c", false},
    {"a/#", "ab/c", false},       {"#", "a/b/c", true},
    {"+/+/+", "a/b/c", true},     {"+/+/+", "a/b/c/d", false},
    {"+/+/+/+", "a/b/c", false},  {"+/#", "a/b/c", true},
    {"a/b/c", "a/b/c", true},     {"a/b/c", "a/b/cc", false},
    {"a/b/c", "a/b", false},      {"a/b", "a/b/c", false},
    {"a/b/c/#", "a/b/c", true},   {"a/b/c/d/#", "a/b/c", false},
    {"a/b/+", "a/b/c", true},     {"a/b/+", "a/b/c/d", false},
    {"a/b/c/+", "a/b/c", false},  {"a/+/#", "a/b/c", true},
    {"a/#/c", "a/b/c", false},    {"A/b/c", "a/b/c", false},
    {"a/b/c+", "a/b/c+", true},   {"a/b/+c", "a/b/xc", false},
    {"a/b/c#", "a/b/cd", false},  {"", "a/b/c", false},
    {"a/b/", "a/b/c", false},     {"/a/b", "a/b", false},
    {"*", "a/b/c", false},        {"a/b/*", "a/b/c", false},
    {"+", "a/b/c", false},        {"chat-+/a/b", "chat-x/a/b", false},
    {"a/b/c:1", "a/b/c:1", true},
};

static void test_matches(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(matches); i++) {
        const struct match *m = &matches[i];
        if (nl_topic_matches(nl_slice_str(m->pattern), nl_slice_str(m->topic)) != m->matches)
            fail_msg("%s %s %s", m->pattern, m->matches ? "should match" : "should not match", m->topic);
    }
}

/* ---- random patterns against a model on lists of one-letter levels ---- */

/* Writes the levels of letters joined by "/". */
static size_t join(char *out, const char *letters) {
    size_t n = 0;
    for (; *letters; letters++) {
        out[n++] = *letters;
        out[n++] = '/';
    }
    return n - 1;
}

static bool model(const char *pattern, const char *topic) {
    if (*pattern == '#')
        return pattern[1] == '\0';
    if (*pattern == '\0' || *topic == '\0')
        return (*pattern == '\0' || strcmp(pattern, "#") == 0) && *topic == '\0';
    return (*pattern == '+' || *pattern == *topic) && model(pattern + 1, topic + 1);
}

static void random_letters(struct random *rng, char *out, const char *from, unsigned at_least) {
    unsigned n = at_least + random_below(rng, 4);
    for (unsigned i = 0; i < n; i++)
        out[i] = from[random_below(rng, (unsigned)strlen(from))];
    out[n] = '\0';
}

static void test_random_matches(void **state) {
    const uint64_t seed = 20260701;
    struct random rng = {seed};
    unsigned matched = 0;
    (void)state;
    for (int round = 0; round < 100000; round++) {
        char pattern[8], topic[8], p[16], t[16];
        random_letters(&rng, pattern, "abc+#", 1);
        random_letters(&rng, topic, "abc", 1);
        struct nl_slice ps = nl_slice(p, join(p, pattern)), ts = nl_slice(t, join(t, topic));
        bool result = nl_topic_matches(ps, ts);
        matched += result;
        if (result != model(pattern, topic))
            fail_msg("seed %llu round %d: %.*s %.*s", (unsigned long long)seed, round, (int)ps.len, p,
                     (int)ts.len, t);
    }
    assert_in_range(matched, 1000, 99000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),          cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_every_byte),     cmocka_unit_test(test_length),
        cmocka_unit_test(test_name),           cmocka_unit_test(test_matches),
        cmocka_unit_test(test_random_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
