/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random MessagePack values in canonical form (each value has one encoding, the one that
 * nolagd itself writes), from a seed that a failing test prints. They are packed with
 * msgpack-c, not with the code under test.
 */
#ifndef NL_TESTS_RANDOM_VALUES_H
#define NL_TESTS_RANDOM_VALUES_H

#include <math.h>
#include <msgpack.h>

#include "protocol/buffer.h"

struct random {
    uint64_t state;
};

/* splitmix64 */
static inline uint64_t random_next(struct random *r) {
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline unsigned random_below(struct random *r, unsigned bound) {
    return (unsigned)(random_next(r) % bound);
}

static inline int random_write(void *buffer, const char *bytes, size_t len) {
    nl_buffer_append(buffer, bytes, len);
    return 0;
}

/* Which values may come beyond what JSON has by itself. */
enum random_flags { RANDOM_PLAIN = 0, RANDOM_ALL = 1 };

struct random_source {
    struct random rng;
    msgpack_packer pk;
    enum random_flags flags;
};

static inline void random_source_init(struct random_source *s, uint64_t seed, enum random_flags flags,
                                      struct nl_buffer *out) {
    s->rng.state = seed;
    s->flags = flags;
    msgpack_packer_init(&s->pk, out, random_write);
}

static inline void random_integer(struct random_source *s) {
    static const int64_t edges[] = {0,
                                    1,
                                    -1,
                                    31,
                                    -32,
                                    -33,
                                    127,
                                    128,
                                    -128,
                                    -129,
                                    255,
                                    256,
                                    32767,
                                    32768,
                                    -32768,
                                    -32769,
                                    65535,
                                    65536,
                                    2147483647,
                                    2147483648,
                                    -2147483648,
                                    -2147483649,
                                    4294967295,
                                    4294967296,
                                    9007199254740991,
                                    9007199254740992,
                                    -9007199254740992,
                                    INT64_MAX,
                                    INT64_MIN};
    unsigned kind = random_below(&s->rng, 4);
    if (kind == 0)
        msgpack_pack_int64(&s->pk, edges[random_below(&s->rng, sizeof(edges) / sizeof(edges[0]))]);
    else if (kind == 1)
        msgpack_pack_uint64(&s->pk, UINT64_MAX - random_next(&s->rng) % 3);
    else if (kind == 2)
        msgpack_pack_int64(&s->pk, (int64_t)random_next(&s->rng) >> random_below(&s->rng, 64));
    else
        msgpack_pack_int64(&s->pk, (int64_t)random_below(&s->rng, 1000));
}

static inline double random_double(struct random_source *s) {
    uint64_t bits = random_next(&s->rng);
    double v;
    switch (random_below(&s->rng, 5)) {
    case 0:
        return (double)random_below(&s->rng, 1000000) / 1000.0;
    case 1:
        return -(double)random_below(&s->rng, 3);
    case 2:
        return (double)(int64_t)bits;
    case 3:
        return ldexp(1.0, (int)random_below(&s->rng, 2000) - 1000);
    default:
        memcpy(&v, &bits, sizeof(v));
        return isfinite(v) ? v : 0.1;
    }
}

static inline void random_float(struct random_source *s) {
    unsigned special = s->flags & RANDOM_ALL ? random_below(&s->rng, 20) : 20;
    msgpack_pack_double(&s->pk, special == 0   ? (double)NAN
                                : special == 1 ? (double)INFINITY
                                : special == 2 ? -(double)INFINITY
                                               : random_double(s));
}

/* A string of up to max pieces, each of which is a kind of character that needs care. */
static inline size_t random_text(struct random_source *s, char *text, unsigned max) {
    static const char *const pieces[] = {"a",
                                         "Zz9",
                                         "\"",
                                         "\\",
                                         "/",
                                         "\n",
                                         "\x01",
                                         "\x1f",
                                         "\x7f",
                                         " ",
                                         "\xc3\xa4",
                                         "\xdf\xbf",
                                         "\xe0\xa0\x80",
                                         "\xed\x9f\xbf",
                                         "\xee\x80\x80",
                                         "\xef\xbf\xbd",
                                         "\xf0\x90\x80\x80",
                                         "\xf4\x8f\xbf\xbf",
                                         "temperature sensor ",
                                         "\xe2\x80\xa8"};
    static const char *const bad[] = {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\x80", "\xe2\x82"};
    size_t len = 0;
    for (unsigned n = random_below(&s->rng, max + 1); n; n--) {
        bool broken = s->flags & RANDOM_ALL && random_below(&s->rng, 100) == 0;
        const char *piece = broken ? bad[random_below(&s->rng, sizeof(bad) / sizeof(bad[0]))]
                                   : pieces[random_below(&s->rng, sizeof(pieces) / sizeof(pieces[0]))];
        memcpy(text + len, piece, strlen(piece));
        len += strlen(piece);
        if (s->flags & RANDOM_ALL && random_below(&s->rng, 60) == 0)
            text[len++] = '\0';
    }
    return len;
}

static inline void random_str(struct random_source *s, const char *text, size_t len) {
    msgpack_pack_str(&s->pk, len);
    msgpack_pack_str_body(&s->pk, text, len);
}

static inline void random_string(struct random_source *s) {
    char text[1024];
    random_str(s, text, random_text(s, text, random_below(&s->rng, 30) ? 8 : 40));
}

static inline void random_bytes(struct random_source *s) {
    char bytes[300];
    size_t len = random_below(&s->rng, random_below(&s->rng, 4) ? 20 : sizeof(bytes));
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)random_next(&s->rng);
    if (random_below(&s->rng, 2)) {
        msgpack_pack_bin(&s->pk, len);
        msgpack_pack_bin_body(&s->pk, bytes, len);
    } else {
        msgpack_pack_ext(&s->pk, len, (int8_t)random_next(&s->rng));
        msgpack_pack_ext_body(&s->pk, bytes, len);
    }
}

static inline void random_value(struct random_source *s, unsigned depth);

/* Plain: names that differ. All: also tags, names that come twice, keys of any type. */
static inline void random_key(struct random_source *s, unsigned i, unsigned depth) {
    static const char *const tags[] = {"$float", "$bytes", "$str", "$ext", "$map", "$esc", "$", "$other"};
    char text[1024];
    unsigned kind = s->flags & RANDOM_ALL ? random_below(&s->rng, 24) : 24;
    if (kind == 0) {
        random_value(s, depth);
    } else if (kind < 4) {
        const char *tag = tags[random_below(&s->rng, sizeof(tags) / sizeof(tags[0]))];
        random_str(s, tag, strlen(tag));
    } else {
        size_t len = random_text(s, text, 5);
        if (kind > 4) { /* 4: may well come twice */
            text[len++] = (char)('a' + i % 26);
            text[len++] = (char)('a' + i / 26 % 26);
        }
        random_str(s, text, len);
    }
}

static inline void random_container(struct random_source *s, unsigned depth) {
    unsigned count = random_below(&s->rng, random_below(&s->rng, 12) ? 5 : 40);
    if (random_below(&s->rng, 3) == 0) {
        msgpack_pack_array(&s->pk, count);
        while (count--)
            random_value(s, depth - 1);
        return;
    }
    msgpack_pack_map(&s->pk, count);
    for (unsigned i = 0; i < count; i++) {
        random_key(s, i, depth - 1);
        random_value(s, depth - 1);
    }
}

static inline void random_scalar(struct random_source *s) {
    switch (random_below(&s->rng, s->flags & RANDOM_ALL ? 7 : 6)) {
    case 0:
        msgpack_pack_nil(&s->pk);
        return;
    case 1:
        if (random_below(&s->rng, 2))
            msgpack_pack_true(&s->pk);
        else
            msgpack_pack_false(&s->pk);
        return;
    case 2:
        random_integer(s);
        return;
    case 3:
        random_float(s);
        return;
    case 6:
        random_bytes(s);
        return;
    default:
        random_string(s);
    }
}

/* Appends one value that nests at most depth containers. */
static inline void random_value(struct random_source *s, unsigned depth) {
    if (depth > 0 && random_below(&s->rng, 2))
        random_container(s, depth);
    else
        random_scalar(s);
}

#endif
