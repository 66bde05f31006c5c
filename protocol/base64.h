/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 as RFC 4648 section 4 has it, with padding. */
#ifndef NL_PROTOCOL_BASE64_H
#define NL_PROTOCOL_BASE64_H

#include <stdbool.h>

#include "protocol/buffer.h"

/* Appends in as base64. */
void nl_base64_encode(struct nl_buffer *out, struct nl_slice in);

/*
 * Appends what text stands for. Each sequence of bytes has one text: blanks, missing or
 * excess padding and set bits in the unused end are refused with false, out as before.
 */
bool nl_base64_decode(struct nl_buffer *out, struct nl_slice text);

#endif
