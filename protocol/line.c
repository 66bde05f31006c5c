/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines out and in. What lies whole in the bytes that came is handed over where it is;
 * only the beginning of a line that has not ended is copied.
 */
#include "protocol/line.h"

#include <assert.h>
#include <stdlib.h>

#include "protocol/alloc.h"

#define HEAD offsetof(struct nl_line, bytes)

struct nl_line *nl_line_new(struct nl_slice text) {
    struct nl_buffer b;

    nl_line_begin(&b, text.len);
    nl_buffer_append(&b, text.ptr, text.len);
    return nl_line_end(&b);
}

void nl_line_begin(struct nl_buffer *b, size_t room) {
    nl_buffer_init(b);
    nl_buffer_reserve(b, HEAD + room + 1);
    b->len = HEAD; /* the head is written last, when the length is known */
}

static struct nl_line *finish(struct nl_buffer *b, struct nl_line *rest) {
    size_t size = b->len;
    struct nl_line *line;

    assert(size - HEAD <= UINT32_MAX);
    line = (void *)nl_buffer_take(b, &size);
    line = nl_realloc(line, size); /* it may stay in a queue for long: nothing to spare */
    line->refs = 1;
    line->len = (uint32_t)(size - HEAD);
    line->watch = NULL;
    line->rest = rest;
    return line;
}

struct nl_line *nl_line_end(struct nl_buffer *b) {
    nl_buffer_append_byte(b, '\n');
    return finish(b, NULL);
}

struct nl_line *nl_line_end_with(struct nl_buffer *b, struct nl_line *rest) {
    assert(rest->rest == NULL && rest->watch == NULL);
    return finish(b, rest);
}

void nl_line_set_watch(struct nl_line *line, struct nl_line_watch *watch) {
    assert(line->watch == NULL);
    line->watch = watch;
    watch->holds++;
}

void nl_line_watch_release(struct nl_line_watch *watch, bool taken) {
    watch->taken = watch->taken || taken;
    if (--watch->holds == 0)
        watch->done(watch);
}

struct nl_line *nl_line_ref(struct nl_line *line) {
    line->refs++;
    return line;
}

struct nl_line *nl_line_unref(struct nl_line *line) {
    struct nl_line_watch *watch;

    if (line == NULL || --line->refs > 0)
        return NULL;
    watch = line->watch;
    if (line->rest != NULL)
        nl_line_unref(line->rest);
    free(line);
    if (watch != NULL)
        nl_line_watch_release(watch, false);
    return NULL;
}

void nl_line_reader_init(struct nl_line_reader *r) {
    *r = (struct nl_line_reader){0};
    nl_buffer_init(&r->partial);
}

void nl_line_reader_deinit(struct nl_line_reader *r) {
    nl_buffer_deinit(&r->partial);
}

static struct nl_slice without_mark(struct nl_line_reader *r, struct nl_slice line) {
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf};
    bool first = !r->started;

    r->started = true;
    if (first && line.len >= sizeof(mark) && memcmp(line.ptr, mark, sizeof(mark)) == 0)
        return nl_slice(line.ptr + sizeof(mark), line.len - sizeof(mark));
    return line;
}

/* Hands over a line that has ended, be it too long or empty. Returns false when the sink stops. */
static bool give(struct nl_line_reader *r, struct nl_slice line, size_t max_line,
                 const struct nl_line_sink *sink) {
    if (r->skipping) {
        r->skipping = false;
        return true;
    }
    r->number++;
    if (line.len > 0 && line.ptr[line.len - 1] == '\r')
        line.len--;
    line = without_mark(r, line);
    if (line.len == 0)
        return true;
    return line.len > max_line ? sink->too_long(sink->ctx) : sink->line(sink->ctx, line);
}

/* A line that has not ended: is it too long already? One byte more may be the carriage return. */
static bool begin_skipping(struct nl_line_reader *r, size_t len, size_t max_line,
                           const struct nl_line_sink *sink) {
    static const size_t mark_len = 3;

    if (r->skipping || len <= max_line + 1 + (r->started ? 0 : mark_len))
        return true;
    r->skipping = true;
    r->started = true;
    r->number++;
    return sink->too_long(sink->ctx);
}

static struct nl_slice rest_of(struct nl_slice s, size_t used) {
    return used == 0 ? s : nl_slice(s.ptr + used, s.len - used);
}

/* Gives the lines that end in bytes; *used is how far that went. Returns false when the sink stopped. */
static bool give_lines(struct nl_line_reader *r, struct nl_slice bytes, size_t max_line,
                       const struct nl_line_sink *sink, size_t *used) {
    *used = 0;
    while (*used < bytes.len) {
        const uint8_t *start = bytes.ptr + *used;
        const uint8_t *end = memchr(start, '\n', bytes.len - *used);

        if (end == NULL)
            return true;
        *used += (size_t)(end - start) + 1;
        if (!give(r, nl_slice(start, (size_t)(end - start)), max_line, sink))
            return false;
    }
    return true;
}

static void drop_partial(struct nl_line_reader *r) {
    nl_buffer_deinit(&r->partial);
    nl_buffer_init(&r->partial);
}

/* Keeps what has not ended, or was not wanted; nothing of an over-long line that is being skipped. */
static void keep(struct nl_line_reader *r, struct nl_slice rest) {
    if (r->skipping)
        drop_partial(r);
    else
        nl_buffer_append(&r->partial, rest.ptr, rest.len);
}

/* Drops what the sink has had of what was kept. */
static void forget_given(struct nl_line_reader *r) {
    size_t left = r->partial.len - r->given;

    if (left == 0)
        drop_partial(r);
    else
        memmove(r->partial.bytes, r->partial.bytes + r->given, left);
    r->partial.len = left;
    r->given = 0;
}

/*
 * Goes on with what was kept when a sink stopped. Afterwards partial holds at most one line
 * that has not ended, unless the sink stopped again; then what was given is dropped only
 * when it is most of it, so that a sink that takes line by line costs no more than another.
 */
static bool give_kept(struct nl_line_reader *r, size_t max_line, const struct nl_line_sink *sink) {
    struct nl_slice kept = rest_of(nl_slice(r->partial.bytes, r->partial.len), r->given);
    size_t used;
    bool more;

    if (!r->stopped)
        return true;
    more = give_lines(r, kept, max_line, sink, &used);
    r->stopped = !more;
    r->given += used;
    if (more || r->given > r->partial.len / 2)
        forget_given(r);
    return more;
}

/* Completes the kept beginning of a line with the first bytes; *used is how many it took. */
static bool complete(struct nl_line_reader *r, struct nl_slice bytes, size_t max_line,
                     const struct nl_line_sink *sink, size_t *used) {
    const uint8_t *end = bytes.len == 0 ? NULL : memchr(bytes.ptr, '\n', bytes.len);
    struct nl_buffer line;
    bool more;

    *used = 0;
    if (r->partial.len == 0 || end == NULL)
        return true;
    *used = (size_t)(end - bytes.ptr) + 1;
    nl_buffer_append(&r->partial, bytes.ptr, *used - 1);
    line = r->partial;
    nl_buffer_init(&r->partial);
    more = give(r, nl_slice(line.bytes, line.len), max_line, sink);
    nl_buffer_deinit(&line);
    return more;
}

bool nl_line_reader_feed(struct nl_line_reader *r, struct nl_slice bytes, size_t max_line,
                         const struct nl_line_sink *sink) {
    size_t used = 0, more_used = 0;
    bool more = give_kept(r, max_line, sink);

    if (more)
        more = complete(r, bytes, max_line, sink, &used);
    if (more) {
        more = give_lines(r, rest_of(bytes, used), max_line, sink, &more_used);
        used += more_used;
    }
    if (more)
        more = begin_skipping(r, r->partial.len + bytes.len - used, max_line, sink);
    keep(r, rest_of(bytes, used));
    r->stopped = !more;
    return more;
}

void nl_line_reader_skip(struct nl_line_reader *r) {
    assert(!r->stopped);
    if (r->partial.len == 0)
        return;
    drop_partial(r);
    r->skipping = true;
    r->started = true;
}

bool nl_line_reader_finish(struct nl_line_reader *r, size_t max_line, const struct nl_line_sink *sink) {
    struct nl_buffer line;
    bool more;

    if (!give_kept(r, max_line, sink))
        return false;
    line = r->partial;
    nl_buffer_init(&r->partial);
    more = line.len == 0 || give(r, nl_slice(line.bytes, line.len), max_line, sink);
    nl_buffer_deinit(&line);
    return more;
}
