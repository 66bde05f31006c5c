/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks MessagePack bytes before anything is built from them, without recursion and
 * without taking memory: every length and count against the bytes that are left, the
 * depth, and the total number of elements. What passes here can be walked without
 * further bounds checks on structure.
 */
#ifndef NL_PROTOCOL_SCAN_H
#define NL_PROTOCOL_SCAN_H

#include "protocol/buffer.h"

#define NL_SCAN_MAX_DEPTH 64 /* containers within containers */

/*
 * Elements of one frame. What a frame costs follows them rather than its bytes, so they have a
 * bound of their own: above the 921,600 bytes, thus elements, that the broker takes as data.
 */
#define NL_SCAN_MAX_ELEMENTS 1000000u

enum nl_scan_result {
    NL_SCAN_OK = 0,
    NL_SCAN_TRUNCATED, /* a length or count claims more than there is */
    NL_SCAN_INVALID,   /* the byte 0xc1 */
    NL_SCAN_TOO_DEEP,
    NL_SCAN_TOO_MANY,
};

/*
 * Scans exactly one value at the start of in. On NL_SCAN_OK *used is its size in bytes
 * (the caller compares it with in.len when nothing may follow). max_depth counts the
 * value itself when it is a container: [] needs 1, [[]] needs 2.
 */
enum nl_scan_result nl_scan(struct nl_slice in, unsigned max_depth, size_t *used);

/*
 * A 64-bit digest of one scanned value that is equal for what the broker counts as the
 * same data although it packs it anew: the order of map keys, the width of integers and
 * floats, str or bin do not matter; NaN and the infinities equal the strings "nan",
 * "positive_infinity" and "negative_infinity". seed is chosen per process.
 */
uint64_t nl_digest(struct nl_slice value, uint64_t seed);

#endif
