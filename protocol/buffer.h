/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growable byte buffer. Appending never fails (see alloc.h); the caller bounds what
 * it appends. The bytes are not NUL-terminated unless the caller appends a NUL.
 */
#ifndef NL_PROTOCOL_BUFFER_H
#define NL_PROTOCOL_BUFFER_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct nl_buffer {
    uint8_t *bytes;
    size_t len;
    size_t cap;
};

/* A view of bytes that somebody else owns. ptr may be NULL only when len is 0. */
struct nl_slice {
    const uint8_t *ptr;
    size_t len;
};

void nl_buffer_init(struct nl_buffer *b);
void nl_buffer_deinit(struct nl_buffer *b);

/* Empties the buffer and keeps its memory. */
static inline void nl_buffer_clear(struct nl_buffer *b) {
    b->len = 0;
}

/* Takes more memory: the part of nl_buffer_reserve() that is seldom needed. */
void nl_buffer_grow(struct nl_buffer *b, size_t extra);

/* Makes room for extra more bytes and returns where they go; len is unchanged. */
static inline uint8_t *nl_buffer_reserve(struct nl_buffer *b, size_t extra) {
    if (b->cap - b->len < extra || !b->bytes)
        nl_buffer_grow(b, extra);
    return b->bytes + b->len;
}

static inline void nl_buffer_append(struct nl_buffer *b, const void *bytes, size_t len) {
    if (len == 0)
        return;
    memcpy(nl_buffer_reserve(b, len), bytes, len);
    b->len += len;
}

static inline void nl_buffer_append_byte(struct nl_buffer *b, uint8_t byte) {
    *nl_buffer_reserve(b, 1) = byte;
    b->len++;
}

void nl_buffer_append_str(struct nl_buffer *b, const char *s); /* without its NUL */

/* Appends text as printf() writes it. */
void nl_buffer_format(struct nl_buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nl_buffer_formatv(struct nl_buffer *b, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Gives the bytes away as text, NUL-terminated, for free(); NULL when there are none. */
char *nl_buffer_take_text(struct nl_buffer *b);

/* Gives the bytes away: the caller frees them with free(); the buffer is as after init. */
uint8_t *nl_buffer_take(struct nl_buffer *b, size_t *len);

static inline struct nl_slice nl_slice(const void *ptr, size_t len) {
    return (struct nl_slice){ptr, len};
}

static inline struct nl_slice nl_slice_str(const char *s) {
    return (struct nl_slice){(const uint8_t *)s, strlen(s)};
}

/* The initialiser of a slice of a string literal, for tables. */
#define NL_SLICE_LITERAL(text)                                                                               \
    { (const uint8_t *)(text), sizeof(text) - 1 }

static inline int nl_slice_equal(struct nl_slice a, struct nl_slice b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

#endif
