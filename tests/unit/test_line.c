/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines. What a reader tells its sink is written down as text, "<line>" for a line and
 * "!" for one that is too long, and compared with what a splitter that sees all of the
 * input at once makes of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "protocol/line.h"
#include "random_values.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MARK "\xef\xbb\xbf"

/* ---- output lines ---- */

static void test_new_line(void **state) {
    char text[] = "{\"a\":1}";
    (void)state;
    struct nl_line *line = nl_line_new(nl_slice_str(text));
    text[0] = 'x';
    assert_int_equal(line->refs, 1);
    assert_int_equal(line->len, 8);
    assert_memory_equal(line->bytes, "{\"a\":1}\n", 8);
    assert_null(nl_line_unref(line));
    line = nl_line_new(nl_slice(NULL, 0));
    assert_int_equal(line->len, 1);
    assert_int_equal(line->bytes[0], '\n');
    nl_line_unref(line);
}

/* That the memory lives as long as the last reference is for the sanitizer to see. */
static void test_references(void **state) {
    struct nl_line *line = nl_line_new(nl_slice_str("x"));
    (void)state;
    assert_ptr_equal(nl_line_ref(line), line);
    nl_line_ref(line);
    assert_int_equal(line->refs, 3);
    assert_null(nl_line_unref(line));
    assert_null(nl_line_unref(line));
    assert_int_equal(line->refs, 1);
    assert_int_equal(line->bytes[0], 'x');
    assert_null(nl_line_unref(line));
    assert_null(nl_line_unref(NULL));
}

/* Two answers with one list: it lives as long as one of them does. */
static void test_a_shared_rest(void **state) {
    struct nl_line *rest = nl_line_new(nl_slice_str(",\"data\":[]}")), *lines[2];
    struct nl_buffer b;

    (void)state;
    for (int i = 0; i < 2; i++) {
        nl_line_begin(&b, 10);
        nl_buffer_append_str(&b, "{\"id\":1");
        lines[i] = nl_line_end_with(&b, nl_line_ref(rest));
        assert_int_equal(lines[i]->len, 7);
        assert_ptr_equal(lines[i]->rest, rest);
        assert_int_equal(nl_line_size(lines[i]), 7 + 12);
    }
    nl_line_unref(rest);
    nl_line_ref(lines[0]);
    nl_line_unref(lines[0]);
    assert_int_equal(rest->refs, 2);
    nl_line_unref(lines[0]);
    assert_int_equal(rest->refs, 1);
    assert_int_equal(nl_line_size(rest), rest->len);
    nl_line_unref(lines[1]);
}

static void test_line_built_in_place(void **state) {
    (void)state;
    for (size_t room = 0; room < 300; room += 100) {
        struct nl_buffer b;
        nl_line_begin(&b, room);
        for (int i = 0; i < 150; i++)
            nl_buffer_append_byte(&b, (uint8_t)('a' + i % 26));
        struct nl_line *line = nl_line_end(&b);
        assert_null(b.bytes);
        assert_int_equal(b.cap, 0);
        assert_int_equal(line->refs, 1);
        assert_int_equal(line->len, 151);
        assert_int_equal(line->bytes[0], 'a');
        assert_int_equal(line->bytes[149], 'a' + 149 % 26);
        assert_int_equal(line->bytes[150], '\n');
        nl_line_unref(line);
    }
}

/* ---- a sink that writes down what it gets ---- */

struct log {
    struct nl_buffer text;
    struct random rng;
    unsigned stop_one_in; /* 0: never stops */
};

static bool goes_on(struct log *log) {
    return log->stop_one_in == 0 || random_below(&log->rng, log->stop_one_in) != 0;
}

static bool log_line(void *ctx, struct nl_slice text) {
    struct log *log = ctx;
    nl_buffer_append_byte(&log->text, '<');
    nl_buffer_append(&log->text, text.ptr, text.len);
    nl_buffer_append_byte(&log->text, '>');
    return goes_on(log);
}

static bool log_too_long(void *ctx) {
    struct log *log = ctx;
    nl_buffer_append_byte(&log->text, '!');
    return goes_on(log);
}

static void log_init(struct log *log, uint64_t seed, unsigned stop_one_in) {
    nl_buffer_init(&log->text);
    log->rng.state = seed;
    log->stop_one_in = stop_one_in;
}

static struct nl_line_sink sink_of(struct log *log) {
    return (struct nl_line_sink){log_line, log_too_long, log};
}

/* Bytes in memory of exactly their length. */
static bool feed(struct nl_line_reader *r, struct nl_slice bytes, size_t max_line, struct log *log) {
    struct nl_line_sink sink = sink_of(log);
    uint8_t *copy = bytes.len ? malloc(bytes.len) : NULL;
    if (copy)
        memcpy(copy, bytes.ptr, bytes.len);
    bool more = nl_line_reader_feed(r, nl_slice(copy, bytes.len), max_line, &sink);
    free(copy);
    return more;
}

static bool finish(struct nl_line_reader *r, size_t max_line, struct log *log) {
    struct nl_line_sink sink = sink_of(log);
    return nl_line_reader_finish(r, max_line, &sink);
}

/* ---- the splitter that the reader is compared with ---- */

static void split_one(struct nl_buffer *out, struct nl_slice line, bool first, size_t max_line) {
    if (line.len && line.ptr[line.len - 1] == '\r')
        line.len--;
    if (first && line.len >= 3 && memcmp(line.ptr, MARK, 3) == 0)
        line = nl_slice(line.ptr + 3, line.len - 3);
    if (line.len == 0)
        return;
    if (line.len > max_line) {
        nl_buffer_append_byte(out, '!');
        return;
    }
    nl_buffer_append_byte(out, '<');
    nl_buffer_append(out, line.ptr, line.len);
    nl_buffer_append_byte(out, '>');
}

static void split(struct nl_buffer *out, struct nl_slice text, size_t max_line) {
    size_t begin = 0;
    for (size_t i = 0; i <= text.len; i++) {
        if (i < text.len && text.ptr[i] != '\n')
            continue;
        if (i > begin)
            split_one(out, nl_slice(text.ptr + begin, i - begin), begin == 0, max_line);
        begin = i + 1;
    }
}

/* ---- by hand ---- */

/* Reads text in steps of so many bytes. */
static void check_steps(struct nl_slice text, size_t max_line, size_t step, const char *expected) {
    struct nl_line_reader r;
    struct log log;
    log_init(&log, 0, 0);
    nl_line_reader_init(&r);
    for (size_t i = 0; i < text.len; i += step)
        assert_true(
            feed(&r, nl_slice(text.ptr + i, text.len - i < step ? text.len - i : step), max_line, &log));
    assert_true(finish(&r, max_line, &log));
    nl_line_reader_deinit(&r);
    if (!nl_slice_equal(nl_slice(log.text.bytes, log.text.len), nl_slice_str(expected)))
        fail_msg("steps of %zu: \"%.*s\" instead of \"%s\"", step, (int)log.text.len, (char *)log.text.bytes,
                 expected);
    nl_buffer_deinit(&log.text);
}

static void check(const char *text, size_t max_line, const char *expected) {
    size_t len = strlen(text);
    for (size_t step = 1; step <= len; step++)
        check_steps(nl_slice(text, len), max_line, step, expected);
}

static void test_lines(void **state) {
    (void)state;
    check("a\nbc\n", 10, "<a><bc>");
    check("a\nbc", 10, "<a><bc>");
    check("a\r\nbc\r\n", 10, "<a><bc>");
    check("a\r\nbc\r", 10, "<a><bc>");
    check("\n\n\r\n\na\n\n", 10, "<a>");
    check("\r\r\n", 10, "<\r>");
    check("a\rb\n", 10, "<a\rb>");
    check(" \n", 10, "< >");
    check("\n", 10, "");
}

static void test_mark(void **state) {
    (void)state;
    check(MARK "a\nb\n", 10, "<a><b>");
    check(MARK "\na\n", 10, "<a>");
    check(MARK "\r\n" MARK "a\n", 10, "<" MARK "a>");
    check("\n" MARK "a\n", 10, "<" MARK "a>");
    check(MARK MARK "a\n", 10, "<" MARK "a>");
    check("a\n" MARK "b", 10, "<a><" MARK "b>");
    check("\xef\xbb\n", 10, "<\xef\xbb>");
    check(MARK "abcde\n", 5, "<abcde>");
    check(MARK "abcde\r\n", 5, "<abcde>");
    check(MARK "abcdef\nx", 5, "!<x>");
    check(MARK "abcdefghijkl\nx", 5, "!<x>");
    check("abcdefghijkl\n" MARK "x", 5, "!<" MARK "x>");
    check("a\n" MARK "bc\n", 5, "<a><" MARK "bc>");
    check("a\n" MARK "bcd\n", 5, "<a>!");
    check(MARK, 5, "");
}

static void test_nul_is_a_byte_like_any(void **state) {
    static const char text[] = "a\0b\n\0\n";
    struct nl_line_reader r;
    struct log log;
    (void)state;
    log_init(&log, 0, 0);
    nl_line_reader_init(&r);
    assert_true(feed(&r, nl_slice(text, sizeof(text) - 1), 10, &log));
    assert_int_equal(log.text.len, 8);
    assert_memory_equal(log.text.bytes, "<a\0b><\0>", 8);
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
}

/* Every length around the limit, with each end, as the first, the second and the last line. */
static void test_too_long(void **state) {
    static const char *const ends[] = {"\n", "\r\n", ""};
    const size_t max_line = 20;
    (void)state;
    for (size_t len = 1; len <= 3 * max_line; len++)
        for (size_t e = 0; e < COUNT(ends); e++)
            for (int place = 0; place < 2; place++) {
                char text[200], expected[200], line[100];
                memset(line, 'x', sizeof(line));
                line[len] = '\0';
                snprintf(text, sizeof(text), "%s%s%s%s", place ? "a\n" : "", line, ends[e],
                         *ends[e] ? "b\n" : "");
                snprintf(expected, sizeof(expected), "%s%s%s%s%s", place ? "<a>" : "",
                         len > max_line ? "!" : "<", len > max_line ? "" : line, len > max_line ? "" : ">",
                         *ends[e] ? "<b>" : "");
                check(text, max_line, expected);
            }
}

static void test_a_line_without_end_takes_no_memory(void **state) {
    struct nl_line_reader r;
    struct log log;
    char bytes[1000];
    (void)state;
    memset(bytes, 'x', sizeof(bytes));
    log_init(&log, 0, 0);
    nl_line_reader_init(&r);
    for (int i = 0; i < 1000; i++) {
        assert_true(feed(&r, nl_slice(bytes, i % 7 + 1), 100, &log));
        assert_true(r.partial.cap <= 256);
    }
    assert_null(r.partial.bytes);
    assert_true(feed(&r, nl_slice_str("\nab"), 100, &log));
    assert_int_equal(r.partial.len, 2);
    assert_true(feed(&r, nl_slice_str("\n"), 100, &log));
    assert_null(r.partial.bytes);
    assert_int_equal(log.text.len, 5);
    assert_memory_equal(log.text.bytes, "!<ab>", 5);
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
}

/* ---- what is whole is not copied, what is kept is let go ---- */

struct bounds {
    const uint8_t *begin, *end;
    unsigned inside, outside;
};

static bool look_where(void *ctx, struct nl_slice text) {
    struct bounds *b = ctx;
    if (text.ptr >= b->begin && text.ptr + text.len <= b->end)
        b->inside++;
    else
        b->outside++;
    return true;
}

static void test_whole_lines_are_not_copied(void **state) {
    static const char text[] = "one\ntwo\r\nthr";
    static const char more[] = "ee\nfour\n";
    struct bounds b = {(const uint8_t *)text, (const uint8_t *)text + sizeof(text), 0, 0};
    struct nl_line_sink sink = {look_where, NULL, &b};
    struct nl_line_reader r;
    (void)state;
    nl_line_reader_init(&r);
    assert_true(nl_line_reader_feed(&r, nl_slice_str(text), 10, &sink));
    assert_int_equal(b.inside, 2);
    assert_int_equal(r.partial.len, 3);
    b.begin = (const uint8_t *)more;
    b.end = b.begin + sizeof(more);
    assert_true(nl_line_reader_feed(&r, nl_slice_str(more), 10, &sink));
    assert_int_equal(b.inside, 3);
    assert_int_equal(b.outside, 1);
    assert_null(r.partial.bytes);
    nl_line_reader_deinit(&r);
}

/* ---- stopping ---- */

static void expect_log(struct log *log, const char *expected) {
    nl_buffer_append_byte(&log->text, '\0');
    assert_string_equal((char *)log->text.bytes, expected);
    nl_buffer_clear(&log->text);
}

static void test_stop(void **state) {
    struct nl_line_reader r;
    struct log log;
    (void)state;
    log_init(&log, 0, 1); /* stops after each */
    nl_line_reader_init(&r);
    assert_false(feed(&r, nl_slice_str("a\nb\nxxxxxxxx\nc\nd"), 5, &log));
    expect_log(&log, "<a>");
    assert_false(feed(&r, nl_slice(NULL, 0), 5, &log));
    expect_log(&log, "<b>");
    assert_false(feed(&r, nl_slice_str("e\nf\n"), 5, &log));
    expect_log(&log, "!");
    assert_false(feed(&r, nl_slice(NULL, 0), 5, &log));
    expect_log(&log, "<c>");
    log.stop_one_in = 0;
    assert_true(feed(&r, nl_slice_str("g"), 5, &log));
    expect_log(&log, "<de><f>");
    assert_int_equal(r.partial.len, 1);
    assert_true(finish(&r, 5, &log));
    expect_log(&log, "<g>");
    assert_null(r.partial.bytes);
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
}

/* What the sink has had is let go, also when it stops after each line and never catches up. */
static void test_stops_do_not_pile_up(void **state) {
    struct nl_line_reader r;
    struct log log;
    (void)state;
    log_init(&log, 0, 1);
    nl_line_reader_init(&r);
    assert_false(feed(&r, nl_slice_str("a\nb\n"), 5, &log));
    for (int i = 0; i < 1000; i++) {
        assert_false(feed(&r, nl_slice_str("c\n"), 5, &log));
        assert_true(r.partial.len <= 16);
    }
    assert_false(feed(&r, nl_slice(NULL, 0), 5, &log));
    assert_null(r.partial.bytes);
    assert_true(feed(&r, nl_slice(NULL, 0), 5, &log));
    assert_int_equal(log.text.len, 3 * 1002);
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
}

static void test_stop_in_an_over_long_line(void **state) {
    struct nl_line_reader r;
    struct log log;
    (void)state;
    log_init(&log, 0, 1);
    nl_line_reader_init(&r);
    assert_false(feed(&r, nl_slice_str("xxxxxxxxxxxxxxxx"), 5, &log));
    expect_log(&log, "!");
    assert_null(r.partial.bytes);
    assert_true(feed(&r, nl_slice(NULL, 0), 5, &log));
    assert_true(feed(&r, nl_slice_str("xxxxxxxxxxxxxxxx"), 5, &log));
    assert_false(feed(&r, nl_slice_str("xx\na\nb"), 5, &log));
    expect_log(&log, "<a>");
    assert_false(finish(&r, 5, &log));
    expect_log(&log, "<b>");
    assert_true(finish(&r, 5, &log));
    expect_log(&log, "");
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
}

/* A client that goes away leaves nothing behind, whatever it sent before. */
/* The beginning of a line is given up: its rest is not taken for a line, the next one is one. */
static void test_skip(void **state) {
    struct nl_line_reader r;
    struct log log;
    (void)state;
    nl_line_reader_init(&r);
    log_init(&log, 1, 0);
    nl_line_reader_skip(&r); /* nothing has begun */
    assert_true(feed(&r, nl_slice_str("a\nbeginning"), 100, &log));
    nl_line_reader_skip(&r);
    assert_int_equal(r.partial.cap, 0);
    assert_true(feed(&r, nl_slice_str(" middle"), 100, &log));
    assert_true(feed(&r, nl_slice_str(" end\nb\nc"), 100, &log));
    assert_true(finish(&r, 100, &log));
    assert_int_equal(log.text.len, 9);
    assert_memory_equal(log.text.bytes, "<a><b><c>", 9);
    nl_buffer_deinit(&log.text);
    nl_line_reader_deinit(&r);
}

static void test_deinit_frees_what_is_kept(void **state) {
    struct nl_line_reader r;
    struct log log;
    (void)state;
    log_init(&log, 0, 1);
    nl_line_reader_init(&r);
    assert_false(feed(&r, nl_slice_str("a\nb\nc"), 5, &log));
    assert_non_null(r.partial.bytes);
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
}

static double take_line_by_line(size_t lines) {
    struct nl_buffer text;
    struct nl_line_reader r;
    struct log log;
    nl_buffer_init(&text);
    for (size_t i = 0; i < lines; i++)
        nl_buffer_append_str(&text, "x\n");
    log_init(&log, 0, 1);
    nl_line_reader_init(&r);
    clock_t begin = clock();
    bool more = feed(&r, nl_slice(text.bytes, text.len), 5, &log);
    while (!more)
        more = feed(&r, nl_slice(NULL, 0), 5, &log);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    assert_int_equal(log.text.len, 3 * lines);
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
    nl_buffer_deinit(&text);
    return seconds;
}

/* Sixteen times as many lines take about sixteen times as long, not 256 times. */
static void test_stopping_after_each_line_is_linear(void **state) {
    double few = take_line_by_line(25000), many = take_line_by_line(400000);
    (void)state;
    if (many > 70 * (few + 0.002))
        fail_msg("25,000 lines: %g s, 400,000 lines: %g s", few, many);
}

/* ---- random text, split at random places ---- */

#define MAX_LINE 8

static void random_line(struct random *rng, struct nl_buffer *out) {
    unsigned len = random_below(rng, 2) ? random_below(rng, 4) : random_below(rng, 2 * MAX_LINE);
    while (len--)
        nl_buffer_append_byte(out, (uint8_t) "abc\r "[random_below(rng, 5)]);
    if (random_below(rng, 3) == 0)
        nl_buffer_append_byte(out, '\r');
}

static void random_text_lines(struct random *rng, struct nl_buffer *out) {
    unsigned lines = random_below(rng, 12);
    if (random_below(rng, 3) == 0)
        nl_buffer_append_str(out, MARK);
    for (unsigned i = 0; i < lines; i++) {
        random_line(rng, out);
        nl_buffer_append_byte(out, '\n');
    }
    if (random_below(rng, 2))
        random_line(rng, out);
}

/* Feeds text in random pieces; after a stop, sometimes with nothing new. */
static void feed_in_pieces(struct random *rng, struct nl_line_reader *r, struct nl_slice text,
                           struct log *log) {
    unsigned largest = 1 + random_below(rng, 40);
    bool more = true;
    size_t at = 0;
    while (at < text.len || !more) {
        size_t n = random_below(rng, largest + 1);
        if (n > text.len - at)
            n = text.len - at;
        if (!more && random_below(rng, 2))
            n = 0;
        more = feed(r, nl_slice(n ? text.ptr + at : NULL, n), MAX_LINE, log);
        at += n;
    }
    while (!finish(r, MAX_LINE, log)) {
    }
}

static void check_random(uint64_t seed, unsigned stop_one_in) {
    struct random rng = {seed};
    struct nl_buffer text, expected;
    struct nl_line_reader r;
    struct log log;
    nl_buffer_init(&text);
    nl_buffer_init(&expected);
    random_text_lines(&rng, &text);
    split(&expected, nl_slice(text.bytes, text.len), MAX_LINE);
    log_init(&log, seed, stop_one_in);
    nl_line_reader_init(&r);
    feed_in_pieces(&rng, &r, nl_slice(text.bytes, text.len), &log);
    if (!nl_slice_equal(nl_slice(log.text.bytes, log.text.len), nl_slice(expected.bytes, expected.len)))
        fail_msg("seed %llu, stops %u: \"%.*s\" instead of \"%.*s\"", (unsigned long long)seed, stop_one_in,
                 (int)log.text.len, (char *)log.text.bytes, (int)expected.len, (char *)expected.bytes);
    assert_null(r.partial.bytes);
    nl_line_reader_deinit(&r);
    nl_buffer_deinit(&log.text);
    nl_buffer_deinit(&expected);
    nl_buffer_deinit(&text);
}

static void test_random_text_in_random_pieces(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40000; seed++)
        check_random(seed, 0);
}

static void test_random_stops(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40000; seed++)
        check_random(seed, 1 + (unsigned)(seed % 4));
}

/* ---- numbers ---- */

struct numbers {
    struct nl_line_reader *reader;
    char text[64]; /* of each line told, over-long ones too */
};

static void note_number(struct numbers *n) {
    size_t len = strlen(n->text);

    snprintf(n->text + len, sizeof(n->text) - len, "%d ", (int)n->reader->number);
}

static bool note_line(void *ctx, struct nl_slice text) {
    (void)text;
    note_number(ctx);
    return true;
}

static bool note_too_long(void *ctx) {
    note_number(ctx);
    return true;
}

/* In pieces of every size: an over-long line is known to be one before its end, or at its end. */
static void test_lines_are_numbered_as_in_the_file(void **state) {
    static const char text[] = "\n\r\nthree\n\nxxxxxxxxxxxxxxxx\nsix\nxxxxxxxxx\r\n\nnine";
    (void)state;
    for (size_t step = 1; step < sizeof(text); step++) {
        struct nl_line_reader reader;
        struct numbers numbers = {.reader = &reader};
        const struct nl_line_sink sink = {note_line, note_too_long, &numbers};

        nl_line_reader_init(&reader);
        for (size_t at = 0; at < sizeof(text) - 1; at += step) {
            size_t left = sizeof(text) - 1 - at;
            nl_line_reader_feed(&reader, nl_slice(text + at, left < step ? left : step), 8, &sink);
        }
        nl_line_reader_finish(&reader, 8, &sink);
        assert_string_equal(numbers.text, "3 5 6 7 9 ");
        nl_line_reader_deinit(&reader);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_line),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_a_shared_rest),
        cmocka_unit_test(test_line_built_in_place),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_mark),
        cmocka_unit_test(test_nul_is_a_byte_like_any),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_a_line_without_end_takes_no_memory),
        cmocka_unit_test(test_whole_lines_are_not_copied),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stops_do_not_pile_up),
        cmocka_unit_test(test_stop_in_an_over_long_line),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_deinit_frees_what_is_kept),
        cmocka_unit_test(test_stopping_after_each_line_is_linear),
        cmocka_unit_test(test_random_text_in_random_pieces),
        cmocka_unit_test(test_random_stops),
        cmocka_unit_test(test_lines_are_numbered_as_in_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
