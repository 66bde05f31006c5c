/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/output.h"

#include <assert.h>
#include <stdlib.h>

#include "protocol/alloc.h"

void nl_output_init(struct nl_output *o) {
    *o = (struct nl_output){0};
}

static struct nl_output_entry *at(const struct nl_output *o, uint32_t i) {
    return &o->ring[(o->head + i) & (o->cap - 1)];
}

void nl_output_deinit(struct nl_output *o) {
    /* The newest first, as a group takes them back: see nl_group_leave(). */
    for (uint32_t i = o->count; i > 0; i--)
        nl_line_unref(at(o, i - 1)->line);
    free(o->ring);
    nl_output_init(o);
}

/* How many entries are what is left of a line that is partly out, or being written. */
static uint32_t begun(const struct nl_output *o) {
    if (o->count == 0 || (o->offset == 0 && !o->pinned && !at(o, 0)->rest))
        return 0;
    return o->count > 1 && at(o, 1)->rest ? 2 : 1;
}

/*
 * Makes room for one more: closes up what was dropped behind a begun line, and doubles the ring only when
 * that is less than half of it. The capacity is a power of two.
 */
static void grow(struct nl_output *o) {
    uint32_t cap = o->cap == 0 ? 4 : o->dropped > o->cap / 2 ? o->cap : o->cap * 2;
    struct nl_output_entry *ring = nl_calloc(cap, sizeof(*ring));
    uint32_t kept = 0, scanned = 0;

    for (uint32_t i = 0; i < o->count; i++) {
        if (at(o, i)->line == NULL)
            continue;
        ring[kept++] = *at(o, i);
        scanned += i < o->scanned;
    }
    free(o->ring);
    o->ring = ring;
    o->cap = cap;
    o->head = 0;
    o->count = kept;
    o->scanned = scanned;
    o->dropped = 0;
}

static void push(struct nl_output *o, struct nl_output_entry entry) {
    if (o->count == o->cap)
        grow(o);
    *at(o, o->count++) = entry;
    o->bytes += entry.line->len;
}

void nl_output_push(struct nl_output *o, struct nl_line *line, bool droppable) {
    push(o, (struct nl_output_entry){.line = line, .droppable = droppable});
    if (line->rest != NULL)
        push(o, (struct nl_output_entry){.line = nl_line_ref(line->rest), .rest = true});
}

void nl_output_push_front(struct nl_output *o, struct nl_line *line) {
    uint32_t ahead = begun(o);

    if (o->count == o->cap)
        grow(o);
    o->head = (o->head - 1) & (o->cap - 1);
    o->count++;
    for (uint32_t i = 0; i < ahead; i++)
        *at(o, i) = *at(o, i + 1);
    *at(o, ahead) = (struct nl_output_entry){.line = line};
    o->scanned = 0;
    o->bytes += line->len;
}

unsigned nl_output_peek(const struct nl_output *o, struct iovec *vectors, unsigned max) {
    size_t offset = o->offset;
    unsigned n = 0;

    for (uint32_t i = 0; i < o->count && n < max; i++) {
        struct nl_line *line = at(o, i)->line;
        if (line == NULL)
            continue;
        vectors[n++] = (struct iovec){line->bytes + offset, line->len - offset};
        offset = 0;
    }
    return n;
}

static void take_off(struct nl_output *o) {
    o->head = (o->head + 1) & (o->cap - 1);
    o->count--;
    o->scanned -= o->scanned > 0;
}

/* Takes the first line off, and what was dropped behind it: the first entry always is a line. */
static struct nl_line *pop(struct nl_output *o) {
    struct nl_line *line = at(o, 0)->line;

    take_off(o);
    while (o->count > 0 && at(o, 0)->line == NULL) {
        take_off(o);
        o->dropped--;
    }
    o->offset = 0;
    if (o->count == 0)
        nl_output_deinit(o);
    return line;
}

void nl_output_written(struct nl_output *o, size_t bytes) {
    assert(bytes <= o->bytes);
    o->bytes -= bytes;
    while (o->count > 0 && bytes >= at(o, 0)->line->len - o->offset) {
        struct nl_line *line = at(o, 0)->line;

        bytes -= line->len - o->offset;
        pop(o);
        nl_line_taken(line);
        nl_line_unref(line);
    }
    o->offset += bytes;
}

struct nl_line *nl_output_drop_oldest(struct nl_output *o) {
    for (; o->scanned < o->count; o->scanned++) {
        struct nl_output_entry *e = at(o, o->scanned);
        struct nl_line *line = e->line;

        if (line == NULL || !e->droppable || o->scanned < begun(o))
            continue;
        o->bytes -= line->len;
        if (o->scanned == 0)
            return pop(o);
        e->line = NULL;
        o->dropped++;
        return line;
    }
    return NULL;
}

void nl_output_truncate(struct nl_output *o) {
    uint32_t keep = begun(o);

    while (o->count > keep) {
        struct nl_line *line = at(o, --o->count)->line;
        if (line != NULL)
            o->bytes -= line->len;
        nl_line_unref(line);
    }
    o->scanned = 0;
    o->dropped = 0;
    if (o->count == 0)
        nl_output_deinit(o);
}
