/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON literals: strings and numbers. Every message passes through here, so strings are
 * looked at eight bytes at a time and copied in runs, and integers are written by hand.
 */
#include "protocol/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "protocol/transcode.h"
#include "protocol/utf8.h"

#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))
#define HIGH EACH(0x80)

/* Not 0 when one of the eight bytes is 0. */
static inline uint64_t has_zero(uint64_t w) {
    return (w - EACH(1)) & ~w & HIGH;
}

/* Not 0 when one of the eight bytes is not ASCII, a control character, a quote or a backslash. */
static inline uint64_t has_special(uint64_t w) {
    return (w & HIGH) | ((w - EACH(0x20)) & ~w & HIGH) | has_zero(w ^ EACH('"')) | has_zero(w ^ EACH('\\'));
}

static inline bool is_plain(uint8_t c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* Not 0 when one of the eight bytes at p is special. */
static inline uint64_t special_at(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, sizeof(w));
    return has_special(w);
}

/* The same for 4 to 8 bytes: their first four and their last four. */
static inline uint64_t special_in_few(const uint8_t *p, size_t len) {
    uint32_t first, last;
    memcpy(&first, p, sizeof(first));
    memcpy(&last, p + len - sizeof(last), sizeof(last));
    return has_special((uint64_t)first << 32 | last);
}

static inline size_t plain_ascii(const uint8_t *p, size_t len) {
    size_t i = 0;
    while (len - i > 8 && !special_at(p + i))
        i += 8;
    if (len - i <= 8 && len - i >= 4 && !special_in_few(p + i, len - i))
        return len;
    while (i < len && is_plain(p[i]))
        i++;
    return i;
}

size_t nl_json_plain(struct nl_slice s) {
    size_t i = 0;
    if (s.len == 0)
        return 0;
    for (;;) {
        i += plain_ascii(s.ptr + i, s.len - i);
        if (i == s.len || s.ptr[i] < 0x80)
            return i;
        int step = nl_utf8_step(s.ptr + i, s.len - i);
        if (step < 0)
            return i;
        i += (size_t)step;
    }
}

bool nl_utf8_valid(struct nl_slice s) {
    size_t i = 0;
    uint64_t w;
    while (i < s.len) {
        if (s.len - i >= sizeof(w) && (memcpy(&w, s.ptr + i, sizeof(w)), !(w & HIGH))) {
            i += sizeof(w);
            continue;
        }
        int step = nl_utf8_step(s.ptr + i, s.len - i);
        if (step < 0)
            return false;
        i += (size_t)step;
    }
    return true;
}

static void append_escape(struct nl_buffer *out, uint8_t c) {
    static const char digits[] = "0123456789abcdef";
    static const char letters[] = "btn?fr"; /* for 8 to 13; there is none for 11 */
    uint8_t *to = nl_buffer_reserve(out, 6);
    *to++ = '\\';
    if (c == '"' || c == '\\') {
        *to++ = c;
    } else if (c >= 8 && c <= 13 && c != 11) {
        *to++ = (uint8_t)letters[c - 8];
    } else {
        memcpy(to, "u00", 3);
        to[3] = (uint8_t)digits[c >> 4];
        to[4] = (uint8_t)digits[c & 15];
        to += 5;
    }
    out->len = (size_t)(to - out->bytes);
}

/* Appends the inside of a string. exact: false at the first byte that is not UTF-8. */
static bool append_inside(struct nl_buffer *out, struct nl_slice s, bool exact) {
    for (size_t i = 0; i < s.len;) {
        size_t run = nl_json_plain(nl_slice(s.ptr + i, s.len - i));
        nl_buffer_append(out, s.ptr + i, run);
        i += run;
        if (i == s.len)
            break;
        if (s.ptr[i] < 0x80) {
            append_escape(out, s.ptr[i++]);
        } else if (exact) {
            return false;
        } else {
            nl_buffer_append_str(out, "\xef\xbf\xbd");
            i += (size_t)-nl_utf8_step(s.ptr + i, s.len - i);
        }
    }
    return true;
}

static bool append_string(struct nl_buffer *out, struct nl_slice s, bool exact) {
    size_t before = out->len;
    size_t plain = nl_json_plain(s);
    uint8_t *to = nl_buffer_reserve(out, s.len + 2);
    *to = '"';
    if (plain)
        memcpy(to + 1, s.ptr, plain);
    out->len += 1 + plain;
    if (plain < s.len && !append_inside(out, nl_slice(s.ptr + plain, s.len - plain), exact)) {
        out->len = before;
        return false;
    }
    nl_buffer_append_byte(out, '"');
    return true;
}

void nl_json_string(struct nl_buffer *out, struct nl_slice s) {
    append_string(out, s, false);
}

bool nl_json_string_exact(struct nl_buffer *out, struct nl_slice s) {
    return append_string(out, s, true);
}

bool nl_json_name(struct nl_buffer *out, struct nl_slice s) {
    size_t before = out->len;
    if (!append_string(out, s, true))
        return false;
    /* Only where something was escaped can there have been a NUL. */
    if (out->len - before == s.len + 2 || !memchr(s.ptr, 0, s.len))
        return true;
    out->len = before;
    return false;
}

static const char two_digits[] = "0001020304050607080910111213141516171819"
                                 "2021222324252627282930313233343536373839"
                                 "4041424344454647484950515253545556575859"
                                 "6061626364656667686970717273747576777879"
                                 "8081828384858687888990919293949596979899";

/* The digits of v, the last one just before end; returns where they begin. */
static inline uint8_t *digits_before(uint8_t *end, uint64_t v) {
    for (; v >= 100; v /= 100)
        memcpy(end -= 2, two_digits + v % 100 * 2, 2);
    if (v >= 10)
        return memcpy(end - 2, two_digits + v * 2, 2);
    *--end = (uint8_t)('0' + v);
    return end;
}

void nl_json_uint(struct nl_buffer *out, uint64_t v) {
    uint8_t text[20];
    uint8_t *begin = digits_before(text + sizeof(text), v);
    nl_buffer_append(out, begin, (size_t)(text + sizeof(text) - begin));
}

void nl_json_int(struct nl_buffer *out, int64_t v) {
    if (v < 0)
        nl_buffer_append_byte(out, '-');
    nl_json_uint(out, v < 0 ? -(uint64_t)v : (uint64_t)v);
}

/*
 * Most doubles in payloads are decimals of few digits. When m / 10^k is v, with m and
 * 10^k small enough to be exact, then reading the text of m / 10^k gives v too, as
 * division and strtod() round alike; and the smallest such k is the shortest text.
 * The range is where %g would write no exponent.
 */
static bool append_short_decimal(struct nl_buffer *out, double v) {
    static const uint32_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000};
    double size = fabs(v);
    if (FLT_EVAL_METHOD != 0 || (v != 0 && !(size >= 1e-4 && size < 1e9)))
        return false;
    for (unsigned k = 0; k < sizeof(powers) / sizeof(powers[0]); k++) {
        uint64_t m = (uint64_t)(size * powers[k] + 0.5);
        if ((double)m / powers[k] != size)
            continue;
        if (signbit(v))
            nl_buffer_append_byte(out, '-');
        nl_json_uint(out, m / powers[k]);
        /* A one in front keeps the zeros that follow the point; then it becomes the point. */
        size_t point = out->len;
        nl_json_uint(out, powers[k] + m % powers[k]);
        out->bytes[point] = '.';
        if (k == 0)
            nl_buffer_append_byte(out, '0');
        return true;
    }
    return false;
}

/*
 * snprintf() and strtod() follow the locale. The daemon never calls setlocale(), so it is
 * "C"; should something else call it, whatever separates the digits becomes a point here.
 */
void nl_json_double(struct nl_buffer *out, double v) {
    char text[40];
    bool integral = true, point = false;
    if (append_short_decimal(out, v))
        return;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (digits == 17 || strtod(text, NULL) == v)
            break;
    }
    for (const char *c = text; *c; c++) {
        bool known = (*c >= '0' && *c <= '9') || *c == '-' || *c == '+' || *c == 'e';
        if (known)
            nl_buffer_append_byte(out, (uint8_t)*c);
        else if (!point)
            nl_buffer_append_byte(out, '.');
        point = point || !known;
        integral = integral && known && *c != 'e';
    }
    if (integral)
        nl_buffer_append_str(out, ".0");
}
