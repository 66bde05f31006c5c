/* SPDX-License-Identifier: Apache-2.0 */
/* What reads and writes JSON shares beyond transcode.h. Used inside protocol/ only. */
#ifndef NL_PROTOCOL_JSON_H
#define NL_PROTOCOL_JSON_H

#include <json-c/json.h>
#include <stdbool.h>

#include "protocol/buffer.h"
#include "protocol/errors.h"

/* What is wrong with a line that is BAD_JSON. */
struct nl_json_fault {
    const char *why; /* static text; NULL when the error says it all */
    size_t at;       /* the byte of the line where, counted from 1 */
};

/*
 * As nl_json_parse(), but for a line of a client: one with more than NL_VALUES_MAX values is
 * TOO_MANY_VALUES, before anything is built; and what is JSON, but cannot be held as it was
 * written, harms only the member of the line's object that it is in: a mark is put in its
 * place. fault is filled on errors.
 */
enum nl_error nl_json_parse_line(struct nl_slice line, unsigned max_depth, struct json_object **out,
                                 struct nl_json_fault *fault);

/* For a mark: why the member cannot be held, with the byte of the line. NULL for any other value. */
const char *nl_json_unheld(struct json_object *value);

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
