/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of the maps that are being walked, outermost first, on one stack; and whether
 * one of them comes twice. Views only. Used inside protocol/ only.
 */
#ifndef NL_PROTOCOL_KEYS_H
#define NL_PROTOCOL_KEYS_H

#include <stdbool.h>

#include "protocol/buffer.h"

#define NL_KEYS_FEW 32

struct nl_keys {
    struct nl_slice *items;
    size_t len, cap;
    struct nl_slice few[NL_KEYS_FEW]; /* usually enough: then no memory is taken */
};

void nl_keys_init(struct nl_keys *k);
void nl_keys_deinit(struct nl_keys *k);
void nl_keys_push(struct nl_keys *k, struct nl_slice key);

/* True when two of the keys from index from on are equal. Not quadratic, whatever the keys. */
bool nl_keys_repeat(const struct nl_keys *k, size_t from);

#endif
