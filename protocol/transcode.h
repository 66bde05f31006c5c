/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads between MessagePack and JSON, without loss in either direction, by the table
 * in PROTOCOL.md "Payloads":
 *
 *   nil, bool, valid UTF-8 str, array, map with string keys    themselves
 *   int64, uint64              digits, never through a double
 *   float32/64                 shortest text that reads back equal, always with . or e
 *   NaN, +inf, -inf            {"$float":"nan"} {"$float":"inf"} {"$float":"-inf"}
 *   bin                        {"$bytes":"base64"}
 *   str that is not UTF-8      {"$str":"base64"}
 *   ext                        {"$ext":[code,"base64"]}
 *   map with another key, or with one key twice   {"$map":[[k,v],...]}
 *       (a key with U+0000 in it is another key: json-c could not read it back)
 *   map of one of these one-key shapes            {"$esc":{...}}
 */
#ifndef NL_PROTOCOL_TRANSCODE_H
#define NL_PROTOCOL_TRANSCODE_H

#include <json-c/json.h>
#include <stdbool.h>

#include "protocol/buffer.h"
#include "protocol/errors.h"

struct nl_json_options {
    bool bigint_as_string; /* integers beyond +-(2^53-1) become strings of digits (for jq 1.6) */
};

/*
 * Appends the JSON text of the one value in raw, which must have passed nl_scan().
 * Streams: no tree, no recursion deeper than NL_SCAN_MAX_DEPTH. The output is valid
 * UTF-8 whatever the input; control characters are escaped, nothing else need be.
 */
void nl_json_from_msgpack(struct nl_buffer *out, struct nl_slice raw, struct nl_json_options options);

/* Appends a JSON string literal. Bytes that are not UTF-8 become U+FFFD. */
void nl_json_string(struct nl_buffer *out, struct nl_slice s);
void nl_json_int(struct nl_buffer *out, int64_t v);
void nl_json_uint(struct nl_buffer *out, uint64_t v);
void nl_json_double(struct nl_buffer *out, double v); /* finite */

/* True when all of s is well-formed UTF-8 (no surrogates, no overlong forms). */
bool nl_utf8_valid(struct nl_slice s);

/*
 * How many values a client's line may hold, where an array counts as two and an object as
 * eight: json-c takes 60 to 100 bytes and 0.1 to 0.2 us for each so counted, so that the worst
 * line takes 100 MB and 0.2 s. A line of 2 MiB reaches it only with next to nothing in its
 * objects; and the data of a frame has as many elements at most (NL_SCAN_MAX_ELEMENTS).
 */
#define NL_VALUES_MAX 1000000

/*
 * Parses one line (without its newline) as a JSON object. Strict RFC 8259: no comments,
 * no NaN or Infinity, no leading zeros, no trailing text. Refused is also what JSON has and
 * json-c cannot hold: numbers that no 64-bit integer or finite double holds, unpaired
 * surrogate escapes, U+0000 in keys. Of a key that comes twice the last one counts. On
 * NL_OK *out is the object, which the caller frees with json_object_put(). Errors: BAD_JSON,
 * TOO_DEEP, BAD_UTF8; the number of values has no bound. max_depth is at most 128.
 */
enum nl_error nl_json_parse(struct nl_slice line, unsigned max_depth, struct json_object **out);

enum nl_pack_mode {
    NL_PACK_TAGGED, /* publish data: the $ tags above are read back */
    NL_PACK_PLAIN,  /* everything else: an object is a map, whatever its keys */
};

/*
 * Appends value as MessagePack. NULL is nil. Integers take their shortest form, doubles
 * are float64. In tagged mode a one-key object whose key is a tag is read as that tag;
 * base64 is RFC 4648 with padding. What nests deeper than NL_SCAN_MAX_DEPTH - 1 is refused, as a frame
 * that holds it could not be read back. Errors: BAD_PAYLOAD with *why a static text that
 * says what is wrong; out is then as it was.
 */
enum nl_error nl_msgpack_from_json(struct nl_buffer *out, struct json_object *value, enum nl_pack_mode mode,
                                   const char **why);

#endif
