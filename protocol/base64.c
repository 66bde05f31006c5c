/* SPDX-License-Identifier: Apache-2.0 */
/* Base64, strict in what it reads, so that bytes and text are one to one. */
#include "protocol/base64.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void encode_group(uint8_t *to, const uint8_t *from, size_t len) {
    uint32_t bits = (uint32_t)from[0] << 16;
    if (len > 1)
        bits |= (uint32_t)from[1] << 8;
    if (len > 2)
        bits |= from[2];
    to[0] = (uint8_t)alphabet[bits >> 18];
    to[1] = (uint8_t)alphabet[bits >> 12 & 63];
    to[2] = (uint8_t)(len > 1 ? alphabet[bits >> 6 & 63] : '=');
    to[3] = (uint8_t)(len > 2 ? alphabet[bits & 63] : '=');
}

void nl_base64_encode(struct nl_buffer *out, struct nl_slice in) {
    uint8_t *to = nl_buffer_reserve(out, (in.len / 3 + 1) * 4);
    size_t i = 0;
    for (; in.len - i >= 3; i += 3, to += 4)
        encode_group(to, in.ptr + i, 3);
    if (i < in.len) {
        encode_group(to, in.ptr + i, in.len - i);
        to += 4;
    }
    out->len = (size_t)(to - out->bytes);
}

/* The six bits that c stands for, or more than 63. */
static uint32_t sextet(uint8_t c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26u;
    if (c >= '0' && c <= '9')
        return c - '0' + 52u;
    return c == '+' ? 62 : c == '/' ? 63 : UINT32_MAX;
}

/* Four letters, the last pad of which are padding, give 3 - pad bytes. */
static bool decode_group(uint8_t *to, const uint8_t *from, size_t pad) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; i++) {
        uint32_t six = i < 4 - pad ? sextet(from[i]) : 0;
        if (six > 63)
            return false;
        bits = bits << 6 | six;
    }
    if ((pad == 1 && (bits & 0xff)) || (pad == 2 && (bits & 0xffff)))
        return false;
    for (size_t i = 0; i < 3 - pad; i++)
        to[i] = (uint8_t)(bits >> (16 - 8 * i));
    return true;
}

bool nl_base64_decode(struct nl_buffer *out, struct nl_slice text) {
    if (text.len == 0)
        return true;
    if (text.len % 4 != 0)
        return false;
    size_t pad = text.ptr[text.len - 1] != '=' ? 0 : text.ptr[text.len - 2] != '=' ? 1 : 2;
    uint8_t *to = nl_buffer_reserve(out, text.len / 4 * 3);
    for (size_t i = 0; i < text.len; i += 4, to += 3)
        if (!decode_group(to, text.ptr + i, i + 4 == text.len ? pad : 0))
            return false;
    out->len += text.len / 4 * 3 - pad;
    return true;
}
