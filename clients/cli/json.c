/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting JSON text, and judging text that may be JSON. */
#include "clients/cli/json.h"

#include <errno.h>
#include <stdlib.h>

#include "protocol/errors.h"
#include "protocol/transcode.h"

#define MAX_DEPTH 128 /* the most nl_json_parse() takes */

static bool is_blank(uint8_t c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const uint8_t *skip_blanks(const uint8_t *p, const uint8_t *end) {
    while (p < end && is_blank(*p))
        p++;
    return p;
}

/* p is behind the opening quote; returns what is behind the closing one, or end. */
static const uint8_t *skip_string(const uint8_t *p, const uint8_t *end) {
    while (p < end && *p != '"')
        p += *p == '\\' && end - p > 1 ? 2 : 1;
    return p < end ? p + 1 : end;
}

static const uint8_t *skip_container(const uint8_t *p, const uint8_t *end) {
    size_t depth = 0;

    while (p < end) {
        uint8_t c = *p++;

        if (c == '"')
            p = skip_string(p, end);
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            break;
    }
    return p;
}

static const uint8_t *skip_value(const uint8_t *p, const uint8_t *end) {
    if (p < end && *p == '"')
        return skip_string(p + 1, end);
    if (p < end && (*p == '{' || *p == '['))
        return skip_container(p, end);
    while (p < end && *p != ',' && *p != '}' && *p != ']' && !is_blank(*p))
        p++;
    return p;
}

bool nolag_json_walk(struct nolag_json_walk *w, struct nl_slice container) {
    if (container.len < 2 || (container.ptr[0] != '{' && container.ptr[0] != '['))
        return false;
    w->at = container.ptr + 1;
    w->end = container.ptr + container.len;
    return true;
}

/* Goes over what stands between members; false when there is no further one. */
static bool next(struct nolag_json_walk *w) {
    w->at = skip_blanks(w->at, w->end);
    if (w->at < w->end && *w->at == ',')
        w->at = skip_blanks(w->at + 1, w->end);
    return w->at < w->end && *w->at != '}' && *w->at != ']';
}

bool nolag_json_item(struct nolag_json_walk *w, struct nl_slice *value) {
    const uint8_t *start;

    if (!next(w))
        return false;
    start = w->at;
    w->at = skip_value(start, w->end);
    *value = nl_slice(start, (size_t)(w->at - start));
    return value->len > 0;
}

bool nolag_json_member(struct nolag_json_walk *w, struct nl_slice *key, struct nl_slice *value) {
    const uint8_t *start;

    if (!next(w) || *w->at != '"')
        return false;
    start = w->at + 1;
    w->at = skip_string(start, w->end);
    *key = nl_slice(start, (size_t)(w->at - start) - (w->at > start ? 1 : 0));
    w->at = skip_blanks(w->at, w->end);
    if (w->at == w->end || *w->at != ':')
        return false;
    w->at = skip_blanks(w->at + 1, w->end);
    start = w->at;
    w->at = skip_value(start, w->end);
    *value = nl_slice(start, (size_t)(w->at - start));
    return value->len > 0;
}

struct nl_slice nolag_json_find(struct nl_slice object, const char *name) {
    struct nolag_json_walk walk;
    struct nl_slice key, value;

    if (nolag_json_walk(&walk, object))
        while (nolag_json_member(&walk, &key, &value))
            if (nl_slice_equal(key, nl_slice_str(name)))
                return value;
    return nl_slice(NULL, 0);
}

bool nolag_json_is(struct nl_slice value, const char *text) {
    size_t len = strlen(text);

    return value.len == len + 2 && value.ptr[0] == '"' && memcmp(value.ptr + 1, text, len) == 0;
}

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits at p, or -1. */
static int hex4(const uint8_t *p, const uint8_t *end) {
    int value = 0;

    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);

        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void append_utf8(struct nl_buffer *out, unsigned c) {
    if (c < 0x80) {
        nl_buffer_append_byte(out, (uint8_t)c);
        return;
    }
    if (c < 0x800) {
        nl_buffer_append_byte(out, (uint8_t)(0xc0 | c >> 6));
    } else {
        if (c < 0x10000) {
            nl_buffer_append_byte(out, (uint8_t)(0xe0 | c >> 12));
        } else {
            nl_buffer_append_byte(out, (uint8_t)(0xf0 | c >> 18));
            nl_buffer_append_byte(out, (uint8_t)(0x80 | (c >> 12 & 0x3f)));
        }
        nl_buffer_append_byte(out, (uint8_t)(0x80 | (c >> 6 & 0x3f)));
    }
    nl_buffer_append_byte(out, (uint8_t)(0x80 | (c & 0x3f)));
}

/* p is behind the backslash and the u; returns what is behind the escape. */
static const uint8_t *append_unicode(struct nl_buffer *out, const uint8_t *p, const uint8_t *end) {
    int high = hex4(p, end), low;

    if (high < 0)
        return end;
    p += 4;
    if (high >= 0xd800 && high < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
        low = hex4(p + 2, end);
        if (low >= 0xdc00 && low < 0xe000) {
            append_utf8(out, 0x10000u + ((unsigned)(high - 0xd800) << 10) + (unsigned)(low - 0xdc00));
            return p + 6;
        }
    }
    append_utf8(out, high >= 0xd800 && high < 0xe000 ? 0xfffdu : (unsigned)high);
    return p;
}

/* p is behind the backslash; returns what is behind the escape. */
static const uint8_t *append_escape(struct nl_buffer *out, const uint8_t *p, const uint8_t *end) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *known = memchr(from, *p, sizeof from - 1);

    if (*p == 'u')
        return append_unicode(out, p + 1, end);
    nl_buffer_append_byte(out, known ? (uint8_t)to[known - from] : *p);
    return p + 1;
}

void nolag_json_text(struct nl_buffer *out, struct nl_slice value) {
    const uint8_t *p = value.ptr, *end = p + value.len;

    if (value.len < 2 || *p != '"') {
        nl_buffer_append(out, value.ptr, value.len);
        return;
    }
    p++;
    end--;
    while (p < end) {
        const uint8_t *escape = memchr(p, '\\', (size_t)(end - p));
        const uint8_t *stop = escape ? escape : end;

        nl_buffer_append(out, p, (size_t)(stop - p));
        p = stop < end && end - stop > 1 ? append_escape(out, stop + 1, end) : end;
    }
}

int64_t nolag_json_integer(struct nl_slice value, int64_t fallback) {
    char text[24], *end;
    long long number;

    if (value.len == 0 || value.len >= sizeof text)
        return fallback;
    memcpy(text, value.ptr, value.len);
    text[value.len] = '\0';
    errno = 0;
    number = strtoll(text, &end, 10);
    return errno || *end ? fallback : number;
}

struct nl_slice nolag_json_trim(struct nl_slice text) {
    const uint8_t *end = text.ptr + text.len;
    const uint8_t *start = skip_blanks(text.ptr, end);

    while (end > start && is_blank(end[-1]))
        end--;
    return nl_slice(start, (size_t)(end - start));
}

/* Cheap: most text that is not JSON is told by its first character. */
static bool may_begin_json(uint8_t c) {
    return c == '-' || (c >= '0' && c <= '9') || memchr("{[\"tfn", c, 6);
}

enum nolag_json_verdict nolag_json_check(struct nl_slice text) {
    struct nl_slice value = nolag_json_trim(text);
    const uint8_t *end = value.ptr + value.len;
    struct json_object *object = NULL;
    struct nl_buffer wrapped;
    enum nl_error error;

    /* The extent is found first: `1,"topic":2` must not slip through the object around it. */
    if (value.len == 0 || !may_begin_json(*value.ptr) || skip_value(value.ptr, end) != end)
        return NOLAG_JSON_NOT;
    nl_buffer_init(&wrapped);
    nl_buffer_append_str(&wrapped, "{\"\":");
    nl_buffer_append(&wrapped, value.ptr, value.len);
    nl_buffer_append_byte(&wrapped, '}');
    error = nl_json_parse(nl_slice(wrapped.bytes, wrapped.len), MAX_DEPTH, &object);
    nl_buffer_deinit(&wrapped);
    if (error == NL_OK)
        json_object_put(object);
    if (error == NL_ERROR_TOO_DEEP)
        return NOLAG_JSON_DEEP;
    return error == NL_OK ? NOLAG_JSON_VALUE : NOLAG_JSON_NOT;
}

void nolag_json_compact(struct nl_buffer *out, struct nl_slice text) {
    const uint8_t *p = text.ptr, *end = p + text.len;

    while (p < end) {
        const uint8_t *start = p;

        if (*p == '"')
            p = skip_string(p + 1, end);
        else if (is_blank(*p))
            start = ++p;
        else
            p++;
        nl_buffer_append(out, start, (size_t)(p - start));
    }
}
