/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One MessagePack head at a time: what kind of value begins here, and how long it is.
 * Shared by the scanner, which checks, and by those who walk what it has passed. Used
 * inside protocol/ only.
 */
#ifndef NL_PROTOCOL_TOKEN_H
#define NL_PROTOCOL_TOKEN_H

#include <stdbool.h>

#include "protocol/scan.h"

enum nl_kind {
    NL_KIND_NIL,
    NL_KIND_BOOL,
    NL_KIND_UINT, /* any integer of zero or more, whichever form it has on the wire */
    NL_KIND_NEGATIVE,
    NL_KIND_FLOAT,
    NL_KIND_STR,
    NL_KIND_BIN,
    NL_KIND_EXT,
    NL_KIND_ARRAY,
    NL_KIND_MAP,
    NL_KIND_INVALID,
};

struct nl_token {
    enum nl_kind kind;
    uint32_t len; /* str, bin, ext: bytes of body; array: elements; map: pairs */
    union {
        bool truth;      /* bool */
        uint64_t number; /* uint */
        int64_t negative;
        double real; /* float; float32 is widened, which is exact */
        int8_t code; /* ext */
    };
    const uint8_t *body; /* str, bin, ext */
};

/* The first bytes 0xc0 to 0xdf: a kind, and how many bytes of a length or value follow. */
struct nl_form {
    uint8_t kind;
    uint8_t width;
    uint8_t fixed; /* fixext: the length; it is not on the wire */
};

static const struct nl_form nl_forms[32] = {
    {NL_KIND_NIL, 0, 0},      {NL_KIND_INVALID, 0, 0},  {NL_KIND_BOOL, 0, 0},     {NL_KIND_BOOL, 0, 0},
    {NL_KIND_BIN, 1, 0},      {NL_KIND_BIN, 2, 0},      {NL_KIND_BIN, 4, 0},      {NL_KIND_EXT, 1, 0},
    {NL_KIND_EXT, 2, 0},      {NL_KIND_EXT, 4, 0},      {NL_KIND_FLOAT, 4, 0},    {NL_KIND_FLOAT, 8, 0},
    {NL_KIND_UINT, 1, 0},     {NL_KIND_UINT, 2, 0},     {NL_KIND_UINT, 4, 0},     {NL_KIND_UINT, 8, 0},
    {NL_KIND_NEGATIVE, 1, 0}, {NL_KIND_NEGATIVE, 2, 0}, {NL_KIND_NEGATIVE, 4, 0}, {NL_KIND_NEGATIVE, 8, 0},
    {NL_KIND_EXT, 0, 1},      {NL_KIND_EXT, 0, 2},      {NL_KIND_EXT, 0, 4},      {NL_KIND_EXT, 0, 8},
    {NL_KIND_EXT, 0, 16},     {NL_KIND_STR, 1, 0},      {NL_KIND_STR, 2, 0},      {NL_KIND_STR, 4, 0},
    {NL_KIND_ARRAY, 2, 0},    {NL_KIND_ARRAY, 4, 0},    {NL_KIND_MAP, 2, 0},      {NL_KIND_MAP, 4, 0},
};

/* The big-endian number of width (0, 1, 2, 4 or 8) bytes at p. */
static inline uint64_t nl_big_endian(const uint8_t *p, unsigned width) {
    uint64_t n = 0;
    for (unsigned i = 0; i < width; i++)
        n = n << 8 | p[i];
    return n;
}

static inline void nl_token_set_int(struct nl_token *t, uint64_t bits, unsigned width) {
    unsigned shift = 64 - 8 * width;
    int64_t v = (int64_t)(bits << shift) >> shift;
    t->kind = v < 0 ? NL_KIND_NEGATIVE : NL_KIND_UINT;
    if (v < 0)
        t->negative = v;
    else
        t->number = (uint64_t)v;
}

static inline double nl_float_of_bits(uint64_t bits, unsigned width) {
    double wide;
    float narrow;
    uint32_t bits32 = (uint32_t)bits;
    memcpy(&wide, &bits, sizeof(wide));
    memcpy(&narrow, &bits32, sizeof(narrow));
    return width == 8 ? wide : (double)narrow;
}

/* The part of nl_token_read() for first bytes 0xc0 to 0xdf. */
static inline const uint8_t *nl_token_read_form(const uint8_t *p, struct nl_token *t) {
    const struct nl_form *form = &nl_forms[*p - 0xc0];
    uint64_t n = form->fixed + nl_big_endian(p + 1, form->width);
    bool truth = *p == 0xc3;
    p += 1 + form->width;
    t->kind = form->kind;
    switch (t->kind) {
    case NL_KIND_BOOL:
        t->truth = truth;
        return p;
    case NL_KIND_UINT:
        t->number = n;
        return p;
    case NL_KIND_NEGATIVE:
        nl_token_set_int(t, n, form->width);
        return p;
    case NL_KIND_FLOAT:
        t->real = nl_float_of_bits(n, form->width);
        return p;
    case NL_KIND_EXT:
        t->code = (int8_t)*p++;
        /* fall through */
    case NL_KIND_STR:
    case NL_KIND_BIN:
        t->body = p;
        p += n;
        /* fall through */
    case NL_KIND_ARRAY:
    case NL_KIND_MAP:
        t->len = (uint32_t)n;
        return p;
    case NL_KIND_NIL:
    case NL_KIND_INVALID:
        break;
    }
    return p;
}

/*
 * Reads the value that begins at p, which nl_scan() must have passed, and returns where
 * the next one begins: for an array or map that is its first element.
 */
static inline const uint8_t *nl_token_read(const uint8_t *p, struct nl_token *t) {
    uint8_t b = *p;
    t->len = 0;
    t->body = NULL;
    if (b >= 0xc0 && b < 0xe0)
        return nl_token_read_form(p, t);
    p++;
    if (b < 0x80 || b >= 0xe0) {
        nl_token_set_int(t, b, 1);
        return p;
    }
    t->kind = b < 0x90 ? NL_KIND_MAP : b < 0xa0 ? NL_KIND_ARRAY : NL_KIND_STR;
    t->len = b < 0xa0 ? b & 0x0f : b & 0x1f;
    t->body = p;
    return t->kind == NL_KIND_STR ? p + t->len : p;
}

static inline struct nl_slice nl_token_body(const struct nl_token *t) {
    return nl_slice(t->body, t->len);
}

/* As nl_scan(), for a part of something bigger: takes the elements it finds out of *budget. */
enum nl_scan_result nl_scan_part(struct nl_slice in, unsigned max_depth, size_t *budget, size_t *used);

#endif
