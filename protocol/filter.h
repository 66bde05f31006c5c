/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filters and filter lists.
 *
 *   "region:us"                     one filter: matches a message published with exactly this
 *                                   filter; case counts ("Region:US" is another filter)
 *   ["Region:US","priority:high"]   an AND group of two or more: its key is the lowercased,
 *                                   sorted values joined by "|": "priority:high|region:us"
 *   "priority:high|region:us"       the same group: a string with "|" stands for the list of its parts,
 *                                   so that the "filter" of a message can be used as it came
 *   invalid                         ""  "a/b"  "a#"  "a+"  "a|"  "|"  ["one"]  ["a",""]  ["a|b","c"]  1  null
 *   a message published with        filter "x" has key "x"; filters ["B","a"], and filter "B|a", have
 *                                   key "a|b"; filters ["Lang:EN"] has key "lang:en"
 *
 * Two filters are the same when their keys are. A message matches a filter when their
 * keys are equal; that is all there is to matching.
 */
#ifndef NL_PROTOCOL_FILTER_H
#define NL_PROTOCOL_FILTER_H

#include <json-c/json.h>
#include <stdbool.h>

#include "protocol/buffer.h"
#include "protocol/errors.h"

#define NL_FILTERS_MAX 100     /* the broker's limit for one topic of one connection */
#define NL_FILTER_KEY_MAX 1024 /* bytes of one key; our own bound */

struct nl_filter {
    char *key;     /* canonical, NUL-terminated, never empty; holds no NUL inside */
    char *json;    /* what wire holds: a JSON string or array of strings */
    uint8_t *wire; /* as the client wrote it, but a string with "|" as a list; MessagePack for upstream */
    size_t key_len, json_len, wire_len;
};

/* A list in the order given, without doubles (by key). count 0 means: all messages. */
struct nl_filters {
    struct nl_filter *items;
    size_t count;
};

void nl_filters_init(struct nl_filters *f);
void nl_filters_deinit(struct nl_filters *f);
void nl_filters_copy(struct nl_filters *to, const struct nl_filters *from); /* to is uninitialised */

/*
 * Reads a JSON array of filters into out (uninitialised before; on error nothing to free).
 * Errors: BAD_FIELD (not an array), BAD_FILTER, TOO_MANY_FILTERS (more than NL_FILTERS_MAX
 * different ones). *why is a static text.
 */
enum nl_error nl_filters_parse(struct nl_filters *out, struct json_object *array, const char **why);

/* Is the filter with this key in the list? */
bool nl_filters_have(const struct nl_filters *f, struct nl_slice key);

/* Adds those of more that are not in f yet; TOO_MANY_FILTERS leaves f as it was. */
enum nl_error nl_filters_add(struct nl_filters *f, const struct nl_filters *more);

/* Removes those of less that are in f. */
void nl_filters_remove(struct nl_filters *f, const struct nl_filters *less);

/* Appends the list as a JSON array, or as a MessagePack array. */
void nl_filters_json(const struct nl_filters *f, struct nl_buffer *out);
void nl_filters_wire(const struct nl_filters *f, struct nl_buffer *out);

/*
 * The key of a publish: from its "filter" (a string without / # +) or its "filters" (a
 * list of one or more strings, each without / # + |), of which at least one is NULL. *key
 * is for free(); NULL when both are NULL: the message has
 * no filter. The only error is BAD_FILTER, with *why a static text.
 */
enum nl_error nl_publish_filter_key(char **key, struct json_object *filter, struct json_object *filters,
                                    const char **why);

#endif
