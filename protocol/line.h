/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the local protocol, in both directions.
 *
 * nl_line is one finished output line, newline included, shared by reference between all
 * the clients that get it: it is encoded once, whatever their number. A line whose beginning is one client's
 * own (an answer has its id) may share the rest.
 *
 * nl_line_reader cuts input into lines. It takes whatever read() brought (one byte or a
 * thousand lines) and holds memory only while a line is incomplete.
 */
#ifndef NL_PROTOCOL_LINE_H
#define NL_PROTOCOL_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/buffer.h"

/*
 * Waits for the end of all lines that were made of one message, and of whatever else holds it: each hold is
 * released once, and when the last one is, done is called (and may free the watch).
 */
struct nl_line_watch {
    uint32_t holds;
    bool taken; /* a client got it: the kernel took a line whole, or a holder said so */
    void (*done)(struct nl_line_watch *w);
};

struct nl_line {
    uint32_t refs;
    uint32_t len;
    struct nl_line_watch *watch; /* NULL, or it holds this until its last reference is gone */
    struct nl_line *rest;        /* NULL, or what comes behind bytes; it has no rest of its own. Owned */
    uint8_t bytes[];             /* len bytes; the last one is '\n' where there is no rest */
};

/* Of the whole line, in bytes. */
static inline size_t nl_line_size(const struct nl_line *line) {
    return line->len + (line->rest == NULL ? 0 : (size_t)line->rest->len);
}

/* Makes a line of text (without newline) with one reference. */
struct nl_line *nl_line_new(struct nl_slice text);

/*
 * The same without the copy: begin makes b (uninitialised before) a buffer with room for
 * about that much text, to be appended to; end makes a line of what was appended and
 * leaves b as after init.
 */
void nl_line_begin(struct nl_buffer *b, size_t room);
struct nl_line *nl_line_end(struct nl_buffer *b);

/* Makes of it the beginning of a line that ends as rest does. Takes over a reference to rest, which has none
 * itself. */
struct nl_line *nl_line_end_with(struct nl_buffer *b, struct nl_line *rest);

/* Makes watch wait for the end of the line, too. */
void nl_line_set_watch(struct nl_line *line, struct nl_line_watch *watch);

/* The kernel took the whole line for a client. */
static inline void nl_line_taken(struct nl_line *line) {
    if (line->watch != NULL)
        line->watch->taken = true;
}

/* Gives up one hold; taken: it got to a client. The watch may be gone after. */
void nl_line_watch_release(struct nl_line_watch *watch, bool taken);

struct nl_line *nl_line_ref(struct nl_line *line);
struct nl_line *nl_line_unref(struct nl_line *line); /* takes NULL; returns NULL */

struct nl_line_reader {
    struct nl_buffer partial; /* the beginning of a line whose end has not come */
    size_t given;             /* bytes of partial that the sink has had; 0 unless stopped */
    uint64_t number;          /* of the line that the sink has, from 1; empty lines count */
    bool skipping;            /* the line was too long: its rest is thrown away */
    bool started;             /* a byte order mark can only stand at the very beginning */
    bool stopped;             /* partial may hold whole lines that a sink did not want yet */
};

void nl_line_reader_init(struct nl_line_reader *r);
void nl_line_reader_deinit(struct nl_line_reader *r);

/* What a reader found: a line, or that a line longer than max_line ended or began to be skipped. */
struct nl_line_sink {
    /* text has no newline and no carriage return before it; it is never empty. Returns false to
     * stop: the rest of the input is then kept and comes with the next call. */
    bool (*line)(void *ctx, struct nl_slice text);
    /* Called once per over-long line, when it is known to be too long. */
    bool (*too_long)(void *ctx);
    void *ctx;
};

/*
 * Reads bytes; call with none to go on after a stop. Empty lines are passed over; a UTF-8
 * byte order mark at the start of the stream is too. max_line counts bytes without the
 * newline. The reader must not be freed or given bytes from inside a sink function.
 * Returns false when the sink stopped it.
 */
bool nl_line_reader_feed(struct nl_line_reader *r, struct nl_slice bytes, size_t max_line,
                         const struct nl_line_sink *sink);

/*
 * Gives up the line that has begun: its rest is thrown away, as of one that is too long. Nothing but the
 * beginning of a line may be kept: the last feed was not stopped.
 */
void nl_line_reader_skip(struct nl_line_reader *r);

/* At the end of the stream: gives a last line that has no newline, if there is one. */
bool nl_line_reader_finish(struct nl_line_reader *r, size_t max_line, const struct nl_line_sink *sink);

#endif
