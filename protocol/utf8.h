/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 one character at a time. Used inside protocol/ only. */
#ifndef NL_PROTOCOL_UTF8_H
#define NL_PROTOCOL_UTF8_H

#include <stddef.h>
#include <stdint.h>

/*
 * The length of the well-formed character at p, of which left (one or more) bytes are
 * there; or minus the length of an ill-formed piece that one U+FFFD stands for (Unicode's
 * "maximal subpart": as much as could have begun a character).
 */
static inline int nl_utf8_step(const uint8_t *p, size_t left) {
    uint8_t lead = p[0];
    unsigned more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    /* The second byte's range excludes overlong forms, surrogates and what is past U+10FFFF. */
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4)
        return -1;
    for (unsigned i = 1; i <= more; i++) {
        if (i == left || p[i] < low || p[i] > high)
            return -(int)i;
        low = 0x80;
        high = 0xbf;
    }
    return (int)more + 1;
}

#endif
