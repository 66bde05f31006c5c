/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/line.h"

#include <assert.h>
#include <stdlib.h>

#include "protocol/alloc.h"

struct nl_line *nl_line_new(struct nl_slice text) {
    struct nl_line *line = nl_malloc(sizeof(*line) + text.len + 1);

    assert(text.len < UINT32_MAX);
    line->refs = 1;
    line->len = (uint32_t)text.len + 1;
    memcpy(line->bytes, text.len > 0 ? (const char *)text.ptr : "", text.len);
    line->bytes[text.len] = '\n';
    return line;
}

struct nl_line *nl_line_ref(struct nl_line *line) {
    line->refs++;
    return line;
}

struct nl_line *nl_line_unref(struct nl_line *line) {
    if (line != NULL && --line->refs == 0)
        free(line);
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
    return sink->too_long(sink->ctx);
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

/* Keeps what has not ended, or was not wanted; nothing of an over-long line that is being skipped. */
static void keep(struct nl_line_reader *r, struct nl_slice rest) {
    if (rest.len == 0 || r->skipping)
        return;
    nl_buffer_append(&r->partial, rest.ptr, rest.len);
}

static void drop_partial(struct nl_line_reader *r) {
    nl_buffer_deinit(&r->partial);
    nl_buffer_init(&r->partial);
}

/* Goes on with what was kept. Afterwards partial holds at most one line that has not ended, unless the sink
 * stopped. */
static bool give_kept(struct nl_line_reader *r, size_t max_line, const struct nl_line_sink *sink) {
    struct nl_buffer kept = r->partial;
    size_t used;
    bool more;

    if (!r->stopped)
        return true;
    r->stopped = false;
    nl_buffer_init(&r->partial);
    more = give_lines(r, nl_slice(kept.bytes, kept.len), max_line, sink, &used);
    if (used == 0) {
        r->partial = kept;
        return more;
    }
    nl_buffer_append(&r->partial, kept.bytes + used, kept.len - used);
    nl_buffer_deinit(&kept);
    if (r->partial.len == 0)
        drop_partial(r);
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
        struct nl_slice rest = nl_slice(bytes.ptr + used, bytes.len - used);
        more = give_lines(r, rest, max_line, sink, &more_used);
        used += more_used;
    }
    if (more && !begin_skipping(r, r->partial.len + bytes.len - used, max_line, sink))
        more = false;
    if (r->skipping)
        drop_partial(r);
    keep(r, nl_slice(bytes.ptr + used, bytes.len - used));
    r->stopped = !more;
    return more;
}

bool nl_line_reader_finish(struct nl_line_reader *r, size_t max_line, const struct nl_line_sink *sink) {
    struct nl_buffer line;
    bool more;

    if (!give_kept(r, max_line, sink)) {
        r->stopped = true;
        return false;
    }
    line = r->partial;
    nl_buffer_init(&r->partial);
    more = line.len == 0 || give(r, nl_slice(line.bytes, line.len), max_line, sink);
    nl_buffer_deinit(&line);
    r->skipping = false;
    return more;
}
