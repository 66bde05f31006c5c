/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 64-bit hash of bytes, fast for the short strings that keys are. Not cryptographic:
 * who knows the seed can make collisions.
 */
#ifndef NL_PROTOCOL_HASH_H
#define NL_PROTOCOL_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Stirs word into h: every bit of both reaches every bit of the result. */
static inline uint64_t nl_hash_mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ (h >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ (h >> 29);
}

static inline uint64_t nl_hash_bytes(uint64_t seed, const uint8_t *bytes, size_t len) {
    uint64_t h = nl_hash_mix(seed, len);
    uint64_t word;
    for (; len >= sizeof(word); bytes += sizeof(word), len -= sizeof(word)) {
        memcpy(&word, bytes, sizeof(word));
        h = nl_hash_mix(h, word);
    }
    if (len == 0)
        return h;
    word = 0;
    memcpy(&word, bytes, len);
    return nl_hash_mix(h, word);
}

#endif
