/* SPDX-License-Identifier: Apache-2.0 */
/* A walk by calls, as deep as nl_scan() lets a payload be. */
#include "protocol/hazards.h"

#include <stdbool.h>

#include "protocol/token.h"
#include "protocol/utf8.h"

static bool is_utf8(struct nl_slice s) {
    for (size_t at = 0; at < s.len;) {
        int step = nl_utf8_step(s.ptr + at, s.len - at);

        if (step < 0)
            return false;
        at += (size_t)step;
    }
    return true;
}

static unsigned of_key(enum nl_kind kind) {
    switch (kind) {
    case NL_KIND_FLOAT:
        return NL_HAZARD_FLOAT_KEY;
    case NL_KIND_ARRAY:
    case NL_KIND_MAP:
        return NL_HAZARD_COMPOUND_KEY;
    default:
        return 0;
    }
}

/* Walks one value at p, adds what it finds to *found, and returns where the next one begins. */
static const uint8_t *walk(const uint8_t *p, bool key, unsigned *found) {
    struct nl_token t;

    p = nl_token_read(p, &t);
    if (key)
        *found |= of_key(t.kind);
    if ((t.kind == NL_KIND_STR || t.kind == NL_KIND_BIN) && !is_utf8(nl_token_body(&t)))
        *found |= NL_HAZARD_BYTES;
    if (t.kind == NL_KIND_ARRAY)
        for (uint32_t i = 0; i < t.len; i++)
            p = walk(p, false, found);
    if (t.kind == NL_KIND_MAP)
        for (uint64_t i = 0; i < 2 * (uint64_t)t.len; i++)
            p = walk(p, i % 2 == 0, found);
    return p;
}

unsigned nl_hazards(struct nl_slice packed) {
    unsigned found = 0;

    walk(packed.ptr, false, &found);
    return found;
}
