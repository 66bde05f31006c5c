/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scanner, and the digest of what it has passed.
 *
 * The scanner keeps one count per open container: how many elements it still lacks. A
 * count is compared with the bytes left before it is taken, as each element has at least
 * one byte; so a header that lies is refused where it stands, and the time is linear in
 * the bytes.
 */
#include "protocol/scan.h"

#include "protocol/hash.h"
#include "protocol/token.h"

struct scan {
    const uint8_t *p;
    const uint8_t *end;
    size_t budget; /* elements that may still come */
    unsigned max_depth;
    unsigned depth;
    size_t missing[NL_SCAN_MAX_DEPTH]; /* elements that each open container lacks */
};

/* Steps over len bytes. */
static inline enum nl_scan_result scan_bytes(struct scan *s, uint64_t len) {
    if (len > (size_t)(s->end - s->p))
        return NL_SCAN_TRUNCATED;
    s->p += len;
    return NL_SCAN_OK;
}

/* Opens a container of count elements (a map has two for each pair). */
static inline enum nl_scan_result scan_open(struct scan *s, uint64_t count) {
    if (s->depth == s->max_depth)
        return NL_SCAN_TOO_DEEP;
    if (count > (size_t)(s->end - s->p))
        return NL_SCAN_TRUNCATED;
    if (count > s->budget)
        return NL_SCAN_TOO_MANY;
    s->budget -= count;
    s->missing[s->depth++] = count;
    return NL_SCAN_OK;
}

/* The rest of a value whose first byte b, 0xc0 to 0xdf, has been read. */
static enum nl_scan_result scan_form(struct scan *s, uint8_t b) {
    const struct nl_form *form = &nl_forms[b - 0xc0];
    if (form->width > s->end - s->p)
        return NL_SCAN_TRUNCATED;
    uint64_t n = form->fixed + nl_big_endian(s->p, form->width);
    s->p += form->width;
    switch (form->kind) {
    case NL_KIND_STR:
    case NL_KIND_BIN:
        return scan_bytes(s, n);
    case NL_KIND_EXT:
        return scan_bytes(s, n + 1);
    case NL_KIND_ARRAY:
        return scan_open(s, n);
    case NL_KIND_MAP:
        return scan_open(s, 2 * n);
    case NL_KIND_INVALID:
        return NL_SCAN_INVALID;
    default:
        return NL_SCAN_OK;
    }
}

/* One head, with the bytes of a str, bin or ext. */
static inline enum nl_scan_result scan_one(struct scan *s) {
    if (s->p == s->end)
        return NL_SCAN_TRUNCATED;
    uint8_t b = *s->p++;
    if (b < 0x80 || b >= 0xe0)
        return NL_SCAN_OK;
    if (b < 0x90)
        return scan_open(s, 2 * (b & 0x0fu));
    if (b < 0xa0)
        return scan_open(s, b & 0x0fu);
    if (b < 0xc0)
        return scan_bytes(s, b & 0x1fu);
    return scan_form(s, b);
}

enum nl_scan_result nl_scan_part(struct nl_slice in, unsigned max_depth, size_t *budget, size_t *used) {
    struct scan s;
    *used = 0;
    if (in.len == 0)
        return NL_SCAN_TRUNCATED;
    s.p = in.ptr;
    s.end = in.ptr + in.len;
    s.budget = *budget;
    s.max_depth = max_depth < NL_SCAN_MAX_DEPTH ? max_depth : NL_SCAN_MAX_DEPTH;
    s.depth = 0;
    if (s.budget == 0)
        return NL_SCAN_TOO_MANY;
    s.budget--;
    do {
        enum nl_scan_result r = scan_one(&s);
        if (r != NL_SCAN_OK)
            return r;
        while (s.depth && s.missing[s.depth - 1] == 0)
            s.depth--;
    } while (s.depth && s.missing[s.depth - 1]--);
    *used = (size_t)(s.p - in.ptr);
    *budget = s.budget;
    return NL_SCAN_OK;
}

enum nl_scan_result nl_scan(struct nl_slice in, unsigned max_depth, size_t *used) {
    size_t budget = NL_SCAN_MAX_ELEMENTS;
    return nl_scan_part(in, max_depth, &budget, used);
}

/* What is digested differently although its bytes may be equal. str stands for bin as well. */
enum {
    DIGEST_NIL = 1,
    DIGEST_BOOL,
    DIGEST_UINT,
    DIGEST_NEGATIVE,
    DIGEST_FLOAT,
    DIGEST_STR,
    DIGEST_EXT,
    DIGEST_ARRAY,
    DIGEST_MAP
};

static const uint8_t *digest_value(const uint8_t *p, uint64_t seed, uint64_t *out);

static uint64_t digest_bytes(uint64_t seed, uint64_t kind, struct nl_slice s) {
    return nl_hash_bytes(nl_hash_mix(seed, kind), s.ptr, s.len);
}

static uint64_t digest_float(uint64_t seed, double v) {
    uint64_t bits;
    if (v != v)
        return digest_bytes(seed, DIGEST_STR, nl_slice_str("nan"));
    if (v - v != 0)
        return digest_bytes(seed, DIGEST_STR,
                            nl_slice_str(v > 0 ? "positive_infinity" : "negative_infinity"));
    memcpy(&bits, &v, sizeof(bits));
    return nl_hash_mix(nl_hash_mix(seed, DIGEST_FLOAT), bits);
}

static const uint8_t *digest_array(const uint8_t *p, uint32_t count, uint64_t seed, uint64_t *out) {
    uint64_t h = nl_hash_mix(seed, DIGEST_ARRAY);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t element;
        p = digest_value(p, seed, &element);
        h = nl_hash_mix(h, element);
    }
    *out = nl_hash_mix(h, count);
    return p;
}

/* Pairs are summed, so that their order does not matter. */
static const uint8_t *digest_map(const uint8_t *p, uint32_t count, uint64_t seed, uint64_t *out) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t key, value;
        p = digest_value(p, seed, &key);
        p = digest_value(p, seed, &value);
        sum += nl_hash_mix(nl_hash_mix(seed, key), value);
    }
    *out = nl_hash_mix(nl_hash_mix(nl_hash_mix(seed, DIGEST_MAP), sum), count);
    return p;
}

static uint64_t digest_scalar(const struct nl_token *t, uint64_t seed) {
    switch (t->kind) {
    case NL_KIND_BOOL:
        return nl_hash_mix(nl_hash_mix(seed, DIGEST_BOOL), t->truth);
    case NL_KIND_UINT:
        return nl_hash_mix(nl_hash_mix(seed, DIGEST_UINT), t->number);
    case NL_KIND_NEGATIVE:
        return nl_hash_mix(nl_hash_mix(seed, DIGEST_NEGATIVE), (uint64_t)t->negative);
    case NL_KIND_FLOAT:
        return digest_float(seed, t->real);
    case NL_KIND_STR:
    case NL_KIND_BIN:
        return digest_bytes(seed, DIGEST_STR, nl_token_body(t));
    case NL_KIND_EXT:
        return digest_bytes(nl_hash_mix(seed, (uint8_t)t->code), DIGEST_EXT, nl_token_body(t));
    default:
        return nl_hash_mix(seed, DIGEST_NIL);
    }
}

static const uint8_t *digest_value(const uint8_t *p, uint64_t seed, uint64_t *out) {
    struct nl_token t;
    p = nl_token_read(p, &t);
    if (t.kind == NL_KIND_ARRAY)
        return digest_array(p, t.len, seed, out);
    if (t.kind == NL_KIND_MAP)
        return digest_map(p, t.len, seed, out);
    *out = digest_scalar(&t, seed);
    return p;
}

uint64_t nl_digest(struct nl_slice value, uint64_t seed) {
    uint64_t h;
    digest_value(value.ptr, seed, &h);
    return h;
}
