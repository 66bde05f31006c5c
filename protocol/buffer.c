/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer. It at least doubles when it grows, so appending is linear over all. */
#include "protocol/buffer.h"

#include <stdio.h>

#include <stdlib.h>

#include "protocol/alloc.h"

#define FIRST_CAPACITY 64

void nl_buffer_init(struct nl_buffer *b) {
    *b = (struct nl_buffer){0};
}

void nl_buffer_deinit(struct nl_buffer *b) {
    free(b->bytes);
    nl_buffer_init(b);
}

/* A sum that overflows asks for SIZE_MAX bytes, which ends the process as any failed allocation does. */
void nl_buffer_grow(struct nl_buffer *b, size_t extra) {
    size_t need = extra > SIZE_MAX - b->len ? SIZE_MAX : b->len + extra;
    size_t cap = b->cap > SIZE_MAX / 2 ? SIZE_MAX : b->cap * 2;
    if (cap < FIRST_CAPACITY)
        cap = FIRST_CAPACITY;
    if (cap < need)
        cap = need;
    b->bytes = nl_realloc(b->bytes, cap);
    b->cap = cap;
}

void nl_buffer_append_str(struct nl_buffer *b, const char *s) {
    nl_buffer_append(b, s, strlen(s));
}

uint8_t *nl_buffer_take(struct nl_buffer *b, size_t *len) {
    uint8_t *bytes = b->bytes;
    *len = b->len;
    nl_buffer_init(b);
    return bytes;
}

void nl_buffer_formatv(struct nl_buffer *b, const char *format, va_list args) {
    va_list again;
    int len;

    va_copy(again, args);
    len = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (len < 0)
        return;
    vsnprintf((char *)nl_buffer_reserve(b, (size_t)len + 1), (size_t)len + 1, format, args);
    b->len += (size_t)len;
}

void nl_buffer_format(struct nl_buffer *b, const char *format, ...) {
    va_list args;

    va_start(args, format);
    nl_buffer_formatv(b, format, args);
    va_end(args);
}

char *nl_buffer_take_text(struct nl_buffer *b) {
    if (b->len == 0) {
        nl_buffer_deinit(b);
        return NULL;
    }
    nl_buffer_append_byte(b, '\0');
    return (char *)nl_buffer_take(b, &(size_t){0});
}
