/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views into JSON text. Payloads must come out exactly as they came in (integers, the
 * digits of a float, the order of keys), so lines are cut into slices of their own text
 * instead of being built as a tree and written again.
 *
 * The cutting functions expect valid JSON, as nolagd writes it. What is not valid gives
 * odd slices or an early end, never a read outside of the text. nolag_json_check() is for
 * text from anywhere else.
 */
#ifndef NOLAG_CLI_JSON_H
#define NOLAG_CLI_JSON_H

#include <stdbool.h>

#include "protocol/buffer.h"

/* Goes through an object or array: the text between its brackets that is left. */
struct nolag_json_walk {
    const uint8_t *at, *end;
};

/* Starts at the first member or item of container; false when it is neither object nor array. */
bool nolag_json_walk(struct nolag_json_walk *w, struct nl_slice container);

/* The next member of an object; key without its quotes, escapes as they are. False at the end. */
bool nolag_json_member(struct nolag_json_walk *w, struct nl_slice *key, struct nl_slice *value);

/* The next item of an array. False at the end. */
bool nolag_json_item(struct nolag_json_walk *w, struct nl_slice *value);

/* The member of that name, or an empty slice. name needs no escaping. */
struct nl_slice nolag_json_find(struct nl_slice object, const char *name);

/* True when value is the JSON string "text", where text needs no escaping. */
bool nolag_json_is(struct nl_slice value, const char *text);

/* Appends what value says to a human: the text of a string, anything else as it is. */
void nolag_json_text(struct nl_buffer *out, struct nl_slice value);

/* An integer; fallback when value is not one. */
int64_t nolag_json_integer(struct nl_slice value, int64_t fallback);

enum nolag_json_verdict {
    NOLAG_JSON_NOT,   /* not one JSON value, or one with a number that no payload can carry */
    NOLAG_JSON_VALUE, /* exactly one value */
    NOLAG_JSON_DEEP,  /* nested too deep to tell */
};

/* text without the blanks around it. */
struct nl_slice nolag_json_trim(struct nl_slice text);

/* Judges text from anywhere, strictly, with blanks around it allowed. */
enum nolag_json_verdict nolag_json_check(struct nl_slice text);

/* Appends valid JSON text without the blanks between its tokens, so that it fits on one line. */
void nolag_json_compact(struct nl_buffer *out, struct nl_slice text);

#endif
