/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines waiting to be written to one client, oldest first: a ring of shared lines. It holds no
 * memory while it is empty, and never room for more than a few times the lines that wait, however many were
 * dropped. Only whole lines are added or dropped; of the first one a part may be written already. The rest of
 * a line (nl_line.rest) is an entry of its own right behind it.
 */
#ifndef NL_IO_OUTPUT_H
#define NL_IO_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "protocol/line.h"

struct nl_output_entry {
    struct nl_line *line; /* NULL: dropped */
    bool droppable;       /* a message, that the policy `drop` may leave out; has no rest */
    bool rest;            /* the end of the line of the entry before it, or of one that is out */
};

struct nl_output {
    struct nl_output_entry *ring;
    uint32_t cap, head, count;
    uint32_t scanned; /* entries from head on that hold nothing to drop */
    uint32_t dropped; /* entries that are only the place of a dropped line */
    size_t offset;    /* bytes of the first entry that are written */
    bool pinned;      /* the first entry is being written right now: it stays where it is */
    size_t bytes;     /* that wait, all lines together */
};

void nl_output_init(struct nl_output *o);
void nl_output_deinit(struct nl_output *o); /* drops what is left */

static inline bool nl_output_empty(const struct nl_output *o) {
    return o->bytes == 0;
}

/* Adds a line; takes over the reference. A droppable one has no rest. */
void nl_output_push(struct nl_output *o, struct nl_line *line, bool droppable);

/* Fills at most max vectors with what comes first; returns how many. They are valid until the next change. */
unsigned nl_output_peek(const struct nl_output *o, struct iovec *vectors, unsigned max);

/* So many bytes are written: lines that are done are released. */
void nl_output_written(struct nl_output *o, size_t bytes);

/*
 * Drops the oldest droppable line that is not begun (partly written, or pinned); returns it with its
 * reference, or NULL when there is none. The caller releases it.
 */
struct nl_line *nl_output_drop_oldest(struct nl_output *o);

/* Drops all but a first line that is begun. */
void nl_output_truncate(struct nl_output *o);

/* Puts a line without a rest right behind one that is begun, before all others. Takes over the reference. */
void nl_output_push_front(struct nl_output *o, struct nl_line *line);

#endif
