/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a line of JSON. json-c builds the tree, but it takes much that is not JSON (NaN,
 * "1.", 'single quotes', raw control characters, TRUE), changes some of what is (integers
 * that are too big, lone surrogates), and takes hundreds of bytes for each `{}`. So the
 * text is first checked here: against RFC 8259, against the limits, and for what json-c
 * would change. Only then it is built; a member of the line's object that cannot be built
 * as it was written is left out, with a mark in its place.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "protocol/alloc.h"
#include "protocol/json.h"
#include "protocol/transcode.h"

#define DEPTH_MAX 128

/*
 * What json-c takes for an array is about twice, for an object ten times what it takes for
 * another value, in bytes and in time.
 */
#define COST_VALUE 1
#define COST_ARRAY 2
#define COST_OBJECT 8

struct reader {
    const uint8_t *p;
    const uint8_t *end;
    unsigned depth_left;
    size_t values_left;
    const char *why;    /* when the text is not JSON: what is wrong at p */
    const char *unheld; /* the first thing that is JSON, but that json-c would change; or NULL */
    const uint8_t *unheld_at;
};

static enum nl_error check_value(struct reader *r);

/* The next byte; 0, which no JSON text holds, at the end. */
static inline uint8_t peek(const struct reader *r) {
    return r->p < r->end ? *r->p : 0;
}

static enum nl_error bad_json(struct reader *r, const char *why) {
    r->why = why;
    return NL_ERROR_BAD_JSON;
}

static void note_unheld(struct reader *r, const uint8_t *at, const char *why) {
    if (r->unheld != NULL)
        return;
    r->unheld = why;
    r->unheld_at = at;
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

static enum nl_error spend(struct reader *r, size_t cost) {
    if (cost > r->values_left)
        return NL_ERROR_TOO_MANY_VALUES;
    r->values_left -= cost;
    return NL_OK;
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

/* Whether the second half of a surrogate pair follows; if it does not, what follows is left for later. */
static bool skip_low_surrogate(struct reader *r) {
    const uint8_t *before = r->p;
    int v = skip_text(r, "\\u") ? hex4(r) : -1;
    if (v >= 0xdc00 && v <= 0xdfff)
        return true;
    r->p = before;
    return false;
}

/* A \u escape behind its "\u". json-c keeps keys as C strings, so U+0000 cannot be in one. */
static bool check_unicode(struct reader *r, bool key) {
    const uint8_t *begin = r->p - 2;
    int v = hex4(r);
    if (v == 0 && key)
        note_unheld(r, begin, "a key with U+0000; data has {\"$map\":[[key,value]]} for it");
    bool high = v >= 0xd800 && v < 0xdc00;
    if ((high && !skip_low_surrogate(r)) || (v >= 0xdc00 && v <= 0xdfff))
        note_unheld(r, begin,
                    "half of a surrogate pair is no character; data has {\"$bytes\":\"base64\"} for bytes");
    return v >= 0;
}

static enum nl_error check_escape(struct reader *r, bool key) {
    uint8_t c = peek(r);
    if (!c || !strchr("\"\\/bfnrtu", c))
        return bad_json(r, "JSON has no such escape");
    r->p++;
    if (c == 'u' && !check_unicode(r, key))
        return bad_json(r, "four hexadecimal digits must follow a \\u");
    return NL_OK;
}

/* A string, of which the quote is the next byte. */
static enum nl_error check_string(struct reader *r, bool key) {
    enum nl_error e = NL_OK;
    r->p++;
    while (e == NL_OK) {
        r->p += nl_json_plain(nl_slice(r->p, (size_t)(r->end - r->p)));
        uint8_t c = peek(r);
        if (c != '"' && c != '\\')
            return bad_json(r, "a control character; in JSON strings it is written as an escape");
        r->p++;
        if (c == '"')
            return NL_OK;
        e = check_escape(r, key);
    }
    return e;
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

/* The digits before the point. */
static enum nl_error check_integer(struct reader *r, size_t *count) {
    const uint8_t *digits = r->p;
    *count = skip_digits(r);
    if (*digits != '0' || *count == 1)
        return NL_OK;
    r->p = digits;
    return bad_json(r, "a number has no leading zeros in JSON");
}

/* Point and exponent; *whole tells whether there is neither. */
static enum nl_error check_fraction(struct reader *r, bool *exponent, bool *whole) {
    const uint8_t *begin = r->p;
    bool good = !skip_text(r, ".") || skip_digits(r) > 0;
    *exponent = good && (peek(r) | 0x20) == 'e';
    if (*exponent) {
        r->p++;
        if (peek(r) == '+' || peek(r) == '-')
            r->p++;
        good = skip_digits(r) > 0;
    }
    *whole = r->p == begin;
    return good ? NL_OK : bad_json(r, "a digit is missing in a number");
}

/* A number, of which a digit or the sign before one is next. */
static enum nl_error check_number(struct reader *r) {
    const uint8_t *begin = r->p;
    bool negative = skip_text(r, "-"), exponent = false, whole = true;
    const uint8_t *digits = r->p;
    size_t count;
    enum nl_error e = check_integer(r, &count);
    if (e == NL_OK)
        e = check_fraction(r, &exponent, &whole);
    if (e != NL_OK)
        return e;
    if (whole && !fits_64(digits, count, negative))
        note_unheld(r, begin, "an integer that 64 bits do not hold; send it as a string");
    if (!whole && !is_finite(begin, (size_t)(r->p - begin), exponent))
        note_unheld(r, begin,
                    "a number that a double does not hold; data has {\"$float\":\"inf\"} for infinity");
    return NL_OK;
}

static bool is_digit(uint8_t c) {
    return c >= '0' && c <= '9';
}

/* What is not a value, in the words that help most those who meet it. */
static enum nl_error no_value(struct reader *r) {
    uint8_t c = peek(r);
    if (c == '-')
        c = r->p + 1 < r->end ? r->p[1] : 0;
    if (c == '\'')
        return bad_json(r, "strings have double quotes in JSON");
    if (c == 'N' || c == 'I')
        return bad_json(r, "NaN and Infinity are not in JSON; data has {\"$float\":\"nan\"} for it");
    if (c == 'T' || c == 'F')
        return bad_json(r, "true, false and null are lower case in JSON");
    if (c == ',' || c == ']' || c == '}')
        return bad_json(r, "a value is missing here");
    return bad_json(r, "this is no JSON value");
}

static enum nl_error check_scalar(struct reader *r) {
    uint8_t c = peek(r);
    enum nl_error e = spend(r, COST_VALUE);
    if (e != NL_OK)
        return e;
    if (c == '"')
        return check_string(r, false);
    if (is_digit(c) || (c == '-' && r->p + 1 < r->end && is_digit(r->p[1])))
        return check_number(r);
    if (skip_text(r, "true") || skip_text(r, "false") || skip_text(r, "null"))
        return NL_OK;
    return no_value(r);
}

/* After an element: *more when another one follows, not *more when this was the last one. */
static enum nl_error next_element(struct reader *r, const char *close, bool *more) {
    skip_blanks(r);
    *more = skip_text(r, ",");
    if (*more || skip_text(r, close))
        return NL_OK;
    return bad_json(r, *close == '}' ? "a comma or the } of the object must come here"
                                     : "a comma or the ] of the list must come here");
}

static enum nl_error check_key(struct reader *r) {
    skip_blanks(r);
    if (peek(r) == '}')
        return bad_json(r, "a comma is followed by a key; JSON has none at the end");
    if (peek(r) != '"')
        return bad_json(r, "a key in double quotes must come here");
    enum nl_error e = check_string(r, true);
    if (e != NL_OK)
        return e;
    skip_blanks(r);
    return skip_text(r, ":") ? NL_OK : bad_json(r, "a colon must come here, between key and value");
}

static enum nl_error check_elements(struct reader *r, bool object) {
    const char *close = object ? "}" : "]";
    enum nl_error e = NL_OK;
    bool more = true;
    skip_blanks(r);
    if (skip_text(r, close))
        return NL_OK;
    while (e == NL_OK && more) {
        if (object)
            e = check_key(r);
        if (e == NL_OK)
            e = check_value(r);
        if (e == NL_OK)
            e = next_element(r, close, &more);
    }
    return e;
}

/* An object or array, of which the bracket is the next byte. */
static enum nl_error check_container(struct reader *r) {
    bool object = peek(r) == '{';
    enum nl_error e = spend(r, object ? COST_OBJECT : COST_ARRAY);
    if (e != NL_OK)
        return e;
    if (r->depth_left == 0)
        return NL_ERROR_TOO_DEEP;
    r->depth_left--;
    r->p++;
    e = check_elements(r, object);
    r->depth_left++;
    return e;
}

static enum nl_error check_value(struct reader *r) {
    skip_blanks(r);
    uint8_t c = peek(r);
    return c == '{' || c == '[' ? check_container(r) : check_scalar(r);
}

static enum nl_error check_end(struct reader *r) {
    skip_blanks(r);
    if (r->p == r->end)
        return NL_OK;
    return bad_json(r, peek(r) == '{' ? "a second object; each one has a line of its own"
                                      : "something follows the object on its line");
}

/* Checks the whole line; *object is then the object without the blanks around it. */
static enum nl_error check_line(struct reader *r, struct nl_slice *object) {
    skip_blanks(r);
    const uint8_t *begin = r->p;
    if (peek(r) != '{')
        return bad_json(r, "an object must begin here, and end on the same line (jq -c writes it so)");
    enum nl_error e = check_container(r);
    if (e == NL_ERROR_BAD_JSON && r->p == r->end)
        return bad_json(r, "the line ends within the object; write it on one line (jq -c does)");
    if (e != NL_OK)
        return e;
    *object = nl_slice(begin, (size_t)(r->p - begin));
    return check_end(r);
}

/* ---- building what was checked ---- */

/*
 * The value that text begins with; the rest of text is not looked at. As it is checked,
 * only memory can be missing: that is all a failure without an error can be in json-c.
 */
static struct json_object *build_value(struct json_tokener *tokener, struct nl_slice text) {
    json_tokener_reset(tokener);
    struct json_object *value = json_tokener_parse_ex(tokener, (const char *)text.ptr, (int)text.len);
    if (value == NULL && *text.ptr != 'n' && json_tokener_get_error(tokener) == json_tokener_success)
        nl_out_of_memory(text.len);
    return value;
}

static size_t place(struct nl_slice line, const uint8_t *at) {
    return (size_t)(at - line.ptr) + 1;
}

/* Stands for a value that cannot be built; nl_json_unheld() finds why. */
static struct json_object *build_mark(struct nl_slice line, const struct reader *r) {
    struct json_object *mark = json_object_new_boolean(false);
    struct nl_buffer why;
    if (mark == NULL)
        nl_out_of_memory(0);
    nl_buffer_init(&why);
    nl_buffer_format(&why, "byte %zu: %s", place(line, r->unheld_at), r->unheld);
    json_object_set_userdata(mark, nl_buffer_take_text(&why), json_object_free_userdata);
    return mark;
}

const char *nl_json_unheld(struct json_object *value) {
    return json_object_is_type(value, json_type_boolean) ? json_object_get_userdata(value) : NULL;
}

/* The checked value at r, or a mark. */
static struct json_object *build_held(struct json_tokener *tokener, struct nl_slice line, struct reader *r) {
    skip_blanks(r);
    struct nl_slice text = nl_slice(r->p, (size_t)(r->end - r->p));
    r->unheld = NULL;
    (void)!check_value(r);
    if (r->unheld != NULL)
        return build_mark(line, r);
    struct json_object *value = build_value(tokener, text);
    if (json_tokener_get_error(tokener) == json_tokener_success)
        return value;
    note_unheld(r, text.ptr, "this cannot be read");
    return build_mark(line, r);
}

/* One member of the line's object. A name that json-c cannot hold is no field's, and left out. */
static void build_member(struct json_tokener *tokener, struct nl_slice line, struct reader *r,
                         struct json_object *object) {
    skip_blanks(r);
    struct json_object *key = build_value(tokener, nl_slice(r->p, (size_t)(r->end - r->p)));
    (void)!check_key(r);
    struct json_object *value = build_held(tokener, line, r);
    const char *name = json_object_get_string(key);
    if (strlen(name) != (size_t)json_object_get_string_len(key))
        json_object_put(value);
    else if (json_object_object_add(object, name, value) != 0)
        nl_out_of_memory(0);
    json_object_put(key);
}

/* The object without what json-c would change: see nl_json_parse_line(). */
static struct json_object *build_members(struct json_tokener *tokener, struct nl_slice line,
                                         struct nl_slice text) {
    struct reader r = {
        .p = text.ptr + 1, .end = text.ptr + text.len, .depth_left = DEPTH_MAX, .values_left = SIZE_MAX};
    struct json_object *object = json_object_new_object();
    if (object == NULL)
        nl_out_of_memory(0);
    for (bool more = true; more; (void)!next_element(&r, "}", &more))
        build_member(tokener, line, &r, object);
    return object;
}

static struct json_object *build(struct nl_slice line, struct nl_slice text, bool whole) {
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX + 2);
    if (tokener == NULL)
        nl_out_of_memory(0);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8 |
                                        JSON_TOKENER_ALLOW_TRAILING_CHARS);
    struct json_object *object = whole ? build_value(tokener, text) : build_members(tokener, line, text);
    json_tokener_free(tokener);
    return object;
}

/* ---- a line ---- */

static enum nl_error check(struct nl_slice line, struct reader *r, struct nl_slice *object) {
    if (line.len > INT32_MAX)
        return bad_json(r, "the line is too long");
    return nl_utf8_valid(line) ? check_line(r, object) : NL_ERROR_BAD_UTF8;
}

static struct reader reader_of(struct nl_slice line, unsigned max_depth, size_t max_values) {
    return (struct reader){.p = line.ptr,
                           .end = line.len ? line.ptr + line.len : line.ptr,
                           .depth_left = max_depth < DEPTH_MAX ? max_depth : DEPTH_MAX,
                           .values_left = max_values};
}

enum nl_error nl_json_parse_line(struct nl_slice line, unsigned max_depth, struct json_object **out,
                                 struct nl_json_fault *fault) {
    struct reader r = reader_of(line, max_depth, NL_VALUES_MAX);
    struct nl_slice object;
    enum nl_error e = check(line, &r, &object);
    if (e == NL_OK) {
        *out = build(line, object, r.unheld == NULL);
        if (*out == NULL)
            e = bad_json(&r, "this is no JSON object");
    }
    *fault = (struct nl_json_fault){r.why, e == NL_OK ? 0 : place(line, r.p)};
    return e;
}

enum nl_error nl_json_parse(struct nl_slice line, unsigned max_depth, struct json_object **out) {
    struct reader r = reader_of(line, max_depth, SIZE_MAX);
    struct nl_slice object;
    enum nl_error e = check(line, &r, &object);
    if (e != NL_OK)
        return e;
    *out = r.unheld == NULL ? build(line, object, true) : NULL;
    return *out ? NL_OK : NL_ERROR_BAD_JSON;
}
