/* SPDX-License-Identifier: Apache-2.0 */
/* What writes JSON shares beyond transcode.h. Used inside protocol/ only. */
#ifndef NL_PROTOCOL_JSON_H
#define NL_PROTOCOL_JSON_H

#include <json-c/json.h>
#include <stdbool.h>

#include "protocol/buffer.h"

/* The bytes of a JSON string, without the quotes and escapes. */
static inline struct nl_slice nl_json_text(struct json_object *string) {
    return nl_slice(json_object_get_string(string), (size_t)json_object_get_string_len(string));
}

/* As nl_json_string(), but false, with out as it was, when s is not UTF-8. */
bool nl_json_string_exact(struct nl_buffer *out, struct nl_slice s);

/* As nl_json_string_exact(), and false also when s holds U+0000: json-c cannot read such a key back. */
bool nl_json_name(struct nl_buffer *out, struct nl_slice s);

/* How many bytes of s, from its start, stand for themselves inside a JSON string. */
size_t nl_json_plain(struct nl_slice s);

#endif
