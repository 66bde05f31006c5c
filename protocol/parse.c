/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a line of JSON. json-c builds the tree, but it takes much that is not JSON (NaN,
 * "1.", 'single quotes', raw control characters, TRUE) and changes some of what is
 * (integers that are too big, lone surrogates). So the text is first checked against RFC
 * 8259 here, and json-c sees only what it cannot get wrong.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "protocol/alloc.h"
#include "protocol/json.h"
#include "protocol/transcode.h"

#define DEPTH_MAX 128

struct reader {
    const uint8_t *p;
    const uint8_t *end;
    unsigned depth_left;
};

static enum nl_error check_value(struct reader *r);

/* The next byte; 0, which no JSON text holds, at the end. */
static inline uint8_t peek(const struct reader *r) {
    return r->p < r->end ? *r->p : 0;
}

static void skip_blanks(struct reader *r) {
    for (uint8_t c = peek(r); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = peek(r))
        r->p++;
}

static bool skip_text(struct reader *r, const char *text) {
    size_t len = strlen(text);
    if ((size_t)(r->end - r->p) < len || memcmp(r->p, text, len) != 0)
        return false;
    r->p += len;
    return true;
}

/* Reads the four digits of a \u escape, or -1. */
static int hex4(struct reader *r) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = peek(r);
        if (c >= '0' && c <= '9')
            v = v * 16 + c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v * 16 + (c | 0x20) - 'a' + 10;
        else
            return -1;
        r->p++;
    }
    return v;
}

/* A \u escape behind its "\u". json-c keeps keys as C strings, so U+0000 cannot be in one. */
static bool check_unicode(struct reader *r, bool key) {
    int v = hex4(r);
    if (v < 0 || (v >= 0xdc00 && v <= 0xdfff) || (key && v == 0))
        return false;
    if (v < 0xd800 || v > 0xdfff)
        return true;
    if (!skip_text(r, "\\u"))
        return false;
    v = hex4(r);
    return v >= 0xdc00 && v <= 0xdfff;
}

/* Whether a string begins here and is whole. */
static bool check_string(struct reader *r, bool key) {
    if (peek(r) != '"')
        return false;
    r->p++;
    for (;;) {
        r->p += nl_json_plain(nl_slice(r->p, (size_t)(r->end - r->p)));
        uint8_t c = peek(r);
        if (c != '"' && c != '\\')
            return false;
        r->p++;
        if (c == '"')
            return true;
        c = peek(r);
        if (!c || !strchr("\"\\/bfnrtu", c))
            return false;
        r->p++;
        if (c == 'u' && !check_unicode(r, key))
            return false;
    }
}

static size_t skip_digits(struct reader *r) {
    const uint8_t *begin = r->p;
    while (peek(r) >= '0' && peek(r) <= '9')
        r->p++;
    return (size_t)(r->p - begin);
}

/* Whether 64 bits hold the integer of these digits. */
static bool fits_64(const uint8_t *digits, size_t len, bool negative) {
    const char *limit = negative ? "9223372036854775808" : "18446744073709551615";
    size_t limit_len = strlen(limit);
    return len < limit_len || (len == limit_len && memcmp(digits, limit, len) <= 0);
}

/* Whether a double holds the number. Only an exponent or very many digits can be too big. */
static bool is_finite(const uint8_t *text, size_t len, bool exponent) {
    if (!exponent && len < DBL_MAX_10_EXP)
        return true;
    char *copy = nl_strndup((const char *)text, len);
    double v = strtod(copy, NULL);
    free(copy);
    return isfinite(v);
}

static bool check_number(struct reader *r) {
    const uint8_t *begin = r->p;
    bool negative = skip_text(r, "-");
    const uint8_t *digits = r->p;
    size_t count = skip_digits(r);
    if (count == 0 || (*digits == '0' && count > 1))
        return false;
    bool fraction = skip_text(r, ".");
    if (fraction && skip_digits(r) == 0)
        return false;
    bool exponent = (peek(r) | 0x20) == 'e';
    if (exponent) {
        r->p++;
        if (peek(r) == '+' || peek(r) == '-')
            r->p++;
        if (skip_digits(r) == 0)
            return false;
    }
    if (!fraction && !exponent)
        return fits_64(digits, count, negative);
    return is_finite(begin, (size_t)(r->p - begin), exponent);
}

/* After an element: 1 when another follows, 0 when this was the last one, -1 when neither. */
static int next_element(struct reader *r, const char *close) {
    skip_blanks(r);
    if (skip_text(r, ","))
        return 1;
    return skip_text(r, close) ? 0 : -1;
}

static enum nl_error check_key(struct reader *r) {
    skip_blanks(r);
    if (!check_string(r, true))
        return NL_ERROR_BAD_JSON;
    skip_blanks(r);
    return skip_text(r, ":") ? NL_OK : NL_ERROR_BAD_JSON;
}

/* An object or array, of which bracket is the next byte. */
static enum nl_error check_container(struct reader *r, uint8_t bracket) {
    const char *close = bracket == '{' ? "}" : "]";
    int more = 1;
    if (r->depth_left == 0)
        return NL_ERROR_TOO_DEEP;
    r->depth_left--;
    r->p++;
    skip_blanks(r);
    if (skip_text(r, close))
        more = 0;
    while (more > 0) {
        enum nl_error e = bracket == '{' ? check_key(r) : NL_OK;
        if (e == NL_OK)
            e = check_value(r);
        if (e != NL_OK)
            return e;
        more = next_element(r, close);
    }
    r->depth_left++;
    return more == 0 ? NL_OK : NL_ERROR_BAD_JSON;
}

static enum nl_error check_value(struct reader *r) {
    bool good;
    skip_blanks(r);
    uint8_t c = peek(r);
    switch (c) {
    case '{':
    case '[':
        return check_container(r, c);
    case '"':
        good = check_string(r, false);
        break;
    case 't':
        good = skip_text(r, "true");
        break;
    case 'f':
        good = skip_text(r, "false");
        break;
    case 'n':
        good = skip_text(r, "null");
        break;
    default:
        good = check_number(r);
    }
    return good ? NL_OK : NL_ERROR_BAD_JSON;
}

/* Checks the whole line; *object is then the object without the blanks around it. */
static enum nl_error check_line(struct nl_slice line, unsigned max_depth, struct nl_slice *object) {
    struct reader r = {line.ptr, line.ptr + line.len, max_depth < DEPTH_MAX ? max_depth : DEPTH_MAX};
    if (!nl_utf8_valid(line))
        return NL_ERROR_BAD_UTF8;
    skip_blanks(&r);
    if (peek(&r) != '{')
        return NL_ERROR_BAD_JSON;
    const uint8_t *begin = r.p;
    enum nl_error e = check_container(&r, '{');
    if (e != NL_OK)
        return e;
    *object = nl_slice(begin, (size_t)(r.p - begin));
    skip_blanks(&r);
    return r.p == r.end ? NL_OK : NL_ERROR_BAD_JSON;
}

enum nl_error nl_json_parse(struct nl_slice line, unsigned max_depth, struct json_object **out) {
    struct nl_slice object;
    if (line.len == 0 || line.len > INT32_MAX)
        return NL_ERROR_BAD_JSON;
    enum nl_error e = check_line(line, max_depth, &object);
    if (e != NL_OK)
        return e;
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX + 2);
    if (!tokener)
        return NL_ERROR_BAD_JSON;
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    *out = json_tokener_parse_ex(tokener, (const char *)object.ptr, (int)object.len);
    json_tokener_free(tokener);
    return *out ? NL_OK : NL_ERROR_BAD_JSON;
}
