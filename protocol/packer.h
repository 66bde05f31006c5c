/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack-c's packer, writing into an nl_buffer. Used inside protocol/ only. */
#ifndef NL_PROTOCOL_PACKER_H
#define NL_PROTOCOL_PACKER_H

#include <msgpack.h>

#include "protocol/buffer.h"

static inline int nl_packer_write(void *buffer, const char *bytes, size_t len) {
    nl_buffer_append(buffer, bytes, len);
    return 0;
}

static inline msgpack_packer nl_packer(struct nl_buffer *out) {
    msgpack_packer pk;
    msgpack_packer_init(&pk, out, nl_packer_write);
    return pk;
}

/* A header and its bytes. body.ptr may be NULL when it is empty. */
static inline void nl_packer_str(msgpack_packer *pk, struct nl_slice s) {
    msgpack_pack_str(pk, s.len);
    if (s.len)
        msgpack_pack_str_body(pk, s.ptr, s.len);
}

#endif
