/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines that wait for one client, beside a plain array of them: whatever is pushed, written in
 * pieces, dropped and cut off, what is read out is what the array says, byte for byte, and a line that is
 * being written, or of which a part is out, stays where it is until it is out, its rest included. A failure
 * prints its seed; NL_SEED=n runs that one alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "daemon/io/output.h"

#define MAX_LINES 256

struct entry {
    struct nl_line *line; /* a reference of the test's own: it knows when the output gives up the other */
    bool droppable, rest;
};

struct world {
    uint64_t random;
    struct nl_output output;
    struct entry model[MAX_LINES];
    unsigned count;
    size_t offset; /* bytes of the first one that are out */
    bool pinned;
    unsigned number;
    struct nl_line *rest; /* that lines share */
};

static unsigned pick(struct world *w, unsigned n) {
    uint64_t z = w->random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (unsigned)((z ^ (z >> 31)) % n);
}

/* ---- the model ---- */

static void model_insert(struct world *w, unsigned at, struct nl_line *line, bool droppable, bool rest) {
    assert_true(w->count < MAX_LINES);
    memmove(&w->model[at + 1], &w->model[at], (w->count - at) * sizeof(w->model[0]));
    w->model[at] = (struct entry){nl_line_ref(line), droppable, rest};
    w->count++;
}

/* The output has given up its reference by now. */
static void model_remove(struct world *w, unsigned at) {
    if (!w->model[at].rest)
        assert_int_equal(w->model[at].line->refs, 1);
    nl_line_unref(w->model[at].line);
    w->count--;
    memmove(&w->model[at], &w->model[at + 1], (w->count - at) * sizeof(w->model[0]));
}

/* Entries of the line that is begun. */
static unsigned begun(const struct world *w) {
    if (w->count == 0 || (w->offset == 0 && !w->pinned && !w->model[0].rest))
        return 0;
    return w->count > 1 && w->model[1].rest ? 2 : 1;
}

static size_t model_bytes(const struct world *w) {
    size_t bytes = 0;

    for (unsigned i = 0; i < w->count; i++)
        bytes += w->model[i].line->len;
    return bytes - w->offset;
}

static void check(const struct world *w) {
    struct iovec vectors[MAX_LINES];
    unsigned n = nl_output_peek(&w->output, vectors, MAX_LINES);

    assert_int_equal(w->output.bytes, model_bytes(w));
    assert_int_equal(nl_output_empty(&w->output), w->count == 0);
    assert_int_equal(n, w->count);
    for (unsigned i = 0; i < n; i++) {
        size_t out = i == 0 ? w->offset : 0;

        assert_ptr_equal(vectors[i].iov_base, w->model[i].line->bytes + out);
        assert_int_equal(vectors[i].iov_len, w->model[i].line->len - out);
    }
    if (n > 1)
        assert_int_equal(nl_output_peek(&w->output, vectors, 1), 1);
}

/* ---- the operations ---- */

static struct nl_line *next_line(struct world *w) {
    char text[64];

    snprintf(text, sizeof(text), "%u%.*s", w->number++, (int)pick(w, 40),
             "........................................");
    return nl_line_new(nl_slice_str(text));
}

static void push(struct world *w, bool droppable) {
    struct nl_line *line = next_line(w);

    model_insert(w, w->count, line, droppable, false);
    nl_output_push(&w->output, line, droppable);
}

/* An answer, whose rest other answers have too. */
static void push_shared(struct world *w) {
    struct nl_buffer b;
    struct nl_line *line;

    nl_line_begin(&b, 10);
    nl_buffer_append_str(&b, "answer ");
    nl_buffer_append_byte(&b, (uint8_t)('0' + w->number++ % 10));
    line = nl_line_end_with(&b, nl_line_ref(w->rest));
    model_insert(w, w->count, line, false, false);
    model_insert(w, w->count, w->rest, false, true);
    nl_output_push(&w->output, line, false);
}

static void push_front(struct world *w) {
    struct nl_line *line = next_line(w);

    model_insert(w, begun(w), line, false, false);
    nl_output_push_front(&w->output, line);
}

static void written(struct world *w, size_t bytes) {
    w->pinned = w->output.pinned = false;
    nl_output_written(&w->output, bytes);
    bytes += w->offset;
    w->offset = 0;
    while (bytes > 0 && bytes >= w->model[0].line->len) {
        bytes -= w->model[0].line->len;
        model_remove(w, 0);
    }
    w->offset = bytes;
}

/* The first line, as it waits, is being written: it comes out whole and not before finish_first(). */
static void pin(struct world *w) {
    w->pinned = w->output.pinned = true;
}

static void finish_first(struct world *w) {
    written(w, w->model[0].line->len - w->offset);
}

static void drop_oldest(struct world *w) {
    struct nl_line *line = nl_output_drop_oldest(&w->output);
    unsigned i = begun(w);

    while (i < w->count && !w->model[i].droppable)
        i++;
    if (i >= w->count) {
        assert_null(line);
        return;
    }
    assert_ptr_equal(line, w->model[i].line);
    nl_line_unref(line);
    model_remove(w, i);
}

static void truncate_all(struct world *w) {
    nl_output_truncate(&w->output);
    while (w->count > begun(w))
        model_remove(w, w->count - 1);
}

static void step(struct world *w) {
    unsigned what = pick(w, 100);

    if (what < 28 && w->count < MAX_LINES - 1)
        push(w, pick(w, 3) != 0);
    else if (what < 35 && w->count < MAX_LINES - 2)
        push_shared(w);
    else if (what < 40 && w->count < MAX_LINES - 1)
        push_front(w);
    else if (what < 55 && w->count > 0 && !w->pinned)
        pin(w);
    else if (what < 65 && w->pinned)
        finish_first(w);
    else if (what < 75 && w->count > 0 && !w->pinned)
        written(w, 1 + pick(w, (unsigned)model_bytes(w)));
    else if (what < 98)
        drop_oldest(w);
    else
        truncate_all(w);
    check(w);
}

static void walk(uint64_t seed) {
    struct world w = {.random = seed, .rest = nl_line_new(nl_slice_str(" and the rest"))};

    nl_output_init(&w.output);
    for (unsigned i = 0; i < 500; i++)
        step(&w);
    nl_output_deinit(&w.output);
    while (w.count > 0)
        model_remove(&w, 0);
    assert_int_equal(w.rest->refs, 1);
    nl_line_unref(w.rest);
}

static uint64_t walking; /* the seed of the walk under way */

static int name_the_seed(void **state) {
    (void)state;
    if (walking != 0)
        print_error("NL_SEED=%llu\n", (unsigned long long)walking);
    walking = 0;
    return 0;
}

static void what_waits_is_what_an_array_says(void **state) {
    const char *only = getenv("NL_SEED");
    uint64_t first = only != NULL ? strtoull(only, NULL, 10) : 1;
    uint64_t last = only != NULL ? first : 1000;

    (void)state;
    for (walking = first; walking <= last; walking++)
        walk(walking);
    walking = 0;
}

/* ---- single rules ---- */

static void it_holds_no_memory_while_it_is_empty(void **state) {
    struct world w = {0};

    (void)state;
    nl_output_init(&w.output);
    assert_null(w.output.ring);
    for (int i = 0; i < 100; i++)
        push(&w, true);
    written(&w, model_bytes(&w));
    assert_true(nl_output_empty(&w.output));
    assert_null(w.output.ring);
    for (int i = 0; i < 3; i++)
        push(&w, true);
    truncate_all(&w);
    assert_null(w.output.ring);
}

/* What was dropped in front of it must not hide which line is the one being written. */
static void a_line_behind_dropped_ones_can_be_pinned(void **state) {
    struct world w = {0};

    (void)state;
    nl_output_init(&w.output);
    push(&w, true);
    push(&w, true);
    push(&w, true);
    drop_oldest(&w);
    pin(&w);
    drop_oldest(&w);
    assert_int_equal(w.count, 1);
    drop_oldest(&w);
    push_front(&w);
    check(&w);
    truncate_all(&w);
    check(&w);
    assert_int_equal(w.count, 1);
    finish_first(&w);
    assert_true(nl_output_empty(&w.output));
}

/* A client that has stopped reading in the middle of a line, under the policy `drop`, for days. */
static void what_is_dropped_takes_no_room(void **state) {
    struct world w = {0};

    (void)state;
    nl_output_init(&w.output);
    push(&w, false);
    pin(&w);
    for (int i = 0; i < 10; i++)
        push(&w, i % 2 == 0);
    for (int i = 0; i < 10000; i++) {
        push(&w, true);
        drop_oldest(&w);
        assert_true(w.output.cap <= 64);
    }
    check(&w);
    finish_first(&w);
    check(&w);
    written(&w, model_bytes(&w));
    assert_null(w.output.ring);
}

/* Cut off when its first part is out and nothing of the second: the line is whole all the same. */
static void a_line_is_whole_with_its_rest(void **state) {
    struct world w = {.rest = nl_line_new(nl_slice_str(" and the rest"))};

    (void)state;
    nl_output_init(&w.output);
    push_shared(&w);
    push(&w, true);
    assert_int_equal(w.output.bytes, nl_line_size(w.model[0].line) + w.model[2].line->len);
    finish_first(&w);
    truncate_all(&w);
    assert_int_equal(w.count, 1);
    push_front(&w);
    check(&w);
    finish_first(&w);
    finish_first(&w);
    assert_true(nl_output_empty(&w.output));
    push_shared(&w);
    pin(&w);
    truncate_all(&w);
    assert_int_equal(w.count, 2);
    check(&w);
    nl_output_deinit(&w.output);
    model_remove(&w, 0);
    model_remove(&w, 0);
    assert_int_equal(w.rest->refs, 1);
    nl_line_unref(w.rest);
}

static void dropping_everything_leaves_nothing(void **state) {
    struct world w = {0};

    (void)state;
    nl_output_init(&w.output);
    for (int i = 0; i < 10; i++)
        push(&w, true);
    for (int i = 0; i < 11; i++)
        drop_oldest(&w);
    check(&w);
    push(&w, false);
    check(&w);
    written(&w, model_bytes(&w));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_holds_no_memory_while_it_is_empty),
        cmocka_unit_test(a_line_behind_dropped_ones_can_be_pinned),
        cmocka_unit_test(what_is_dropped_takes_no_room),
        cmocka_unit_test(a_line_is_whole_with_its_rest),
        cmocka_unit_test(dropping_everything_leaves_nothing),
        cmocka_unit_test_teardown(what_waits_is_what_an_array_says, name_the_seed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
