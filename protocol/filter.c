/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filters: what the client wrote, the key that it is compared by, and its bytes for
 * upstream, all made once, when the list is read.
 */
#include "protocol/filter.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "protocol/alloc.h"
#include "protocol/frame.h"
#include "protocol/json.h"
#include "protocol/transcode.h"

/* A list with doubles may be longer than NL_FILTERS_MAX, but not without end. */
#define RAW_LIST_MAX 1000

static const char why_filter[] =
    "a filter is a string without / # +, not empty, or a list of two or more without | too";
static const char why_long[] = "a filter is longer than 1024 bytes";
static const char why_list[] = "filters is a list of filters";
static const char why_publish[] = "filter is a string without / # +, not empty; for a list there is filters";
static const char why_publish_list[] = "filters of a publish is a list of strings without / # + |, not empty";

/* A string, not empty, without NUL and without any of forbidden. */
static bool clean(struct json_object *value, const char *forbidden) {
    struct nl_slice s;

    if (!json_object_is_type(value, json_type_string))
        return false;
    s = nl_json_text(value);
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] == '\0' || strchr(forbidden, s.ptr[i]) != NULL)
            return false;
    return s.len > 0;
}

/* ---- keys ---- */

static void append_code_point(struct nl_buffer *out, utf8proc_int32_t code) {
    utf8proc_uint8_t bytes[4];

    nl_buffer_append(out, bytes, (size_t)utf8proc_encode_char(code, bytes));
}

/*
 * Lower case as the broker (Erlang's string:lowercase) has it: by code point, but for
 * U+0130, which becomes two.
 */
static char *lowercase(struct nl_slice s) {
    struct nl_buffer out;
    size_t at = 0, len;
    char *text;

    nl_buffer_init(&out);
    while (at < s.len) {
        utf8proc_int32_t code;
        utf8proc_ssize_t n = utf8proc_iterate(s.ptr + at, (utf8proc_ssize_t)(s.len - at), &code);

        if (n < 1) { /* not UTF-8: cannot come from a checked line; kept as it is */
            nl_buffer_append_byte(&out, s.ptr[at++]);
            continue;
        }
        at += (size_t)n;
        append_code_point(&out, code == 0x130 ? 'i' : utf8proc_tolower(code));
        if (code == 0x130)
            append_code_point(&out, 0x307);
    }
    nl_buffer_append_byte(&out, '\0');
    text = (char *)nl_buffer_take(&out, &len);
    return text;
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lowercased, sorted, joined by "|". The values are clean strings. */
static char *group_key(struct json_object *array) {
    size_t n = json_object_array_length(array);
    char **values = nl_calloc(n, sizeof(*values));
    struct nl_buffer key;
    size_t len;

    for (size_t i = 0; i < n; i++)
        values[i] = lowercase(nl_json_text(json_object_array_get_idx(array, i)));
    qsort(values, n, sizeof(*values), compare);
    nl_buffer_init(&key);
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            nl_buffer_append_byte(&key, '|');
        nl_buffer_append_str(&key, values[i]);
        free(values[i]);
    }
    free(values);
    nl_buffer_append_byte(&key, '\0');
    return (char *)nl_buffer_take(&key, &len);
}

static bool clean_list(struct json_object *array, size_t at_least) {
    size_t n;

    if (!json_object_is_type(array, json_type_array))
        return false;
    n = json_object_array_length(array);
    if (n < at_least || n > RAW_LIST_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!clean(json_object_array_get_idx(array, i), "/#+|"))
            return false;
    return true;
}

/*
 * The list that a string with "|" stands for, for json_object_put(); NULL for anything else,
 * and for what is too long anyway.
 */
static struct json_object *split(struct json_object *value) {
    struct json_object *list;
    struct nl_slice rest;

    if (!json_object_is_type(value, json_type_string))
        return NULL;
    rest = nl_json_text(value);
    if (rest.len == 0 || rest.len > NL_FILTER_KEY_MAX || memchr(rest.ptr, '|', rest.len) == NULL)
        return NULL;
    list = json_object_new_array();
    while (list != NULL) {
        const uint8_t *bar = memchr(rest.ptr, '|', rest.len);
        size_t len = bar == NULL ? rest.len : (size_t)(bar - rest.ptr);
        struct json_object *part = json_object_new_string_len((const char *)rest.ptr, (int)len);

        if (part == NULL || json_object_array_add(list, part) != 0)
            break;
        if (bar == NULL)
            return list;
        rest = nl_slice(bar + 1, rest.len - len - 1);
    }
    nl_out_of_memory(0);
}

/* ---- one filter ---- */

static void filter_deinit(struct nl_filter *f) {
    free(f->key);
    free(f->json);
    free(f->wire);
}

static void write_wire(struct nl_filter *f, struct json_object *value) {
    struct nl_buffer out;
    const char *why;

    nl_buffer_init(&out);
    nl_msgpack_from_json(&out, value, NL_PACK_PLAIN, &why);
    f->wire = nl_buffer_take(&out, &f->wire_len);
}

/* As it goes upstream, in JSON. */
static void write_json(struct nl_filter *f) {
    struct nl_buffer out;

    nl_buffer_init(&out);
    nl_json_from_msgpack(&out, nl_slice(f->wire, f->wire_len), (struct nl_json_options){0});
    f->json = (char *)nl_buffer_take(&out, &f->json_len);
}

/* A string without "|" or a list. */
static enum nl_error read_filter(struct nl_filter *f, struct json_object *value, const char **why) {
    bool single = clean(value, "/#+|");

    *why = why_filter;
    if (!single && !clean_list(value, 2))
        return NL_ERROR_BAD_FILTER;
    if (single)
        f->key = nl_strndup(json_object_get_string(value), (size_t)json_object_get_string_len(value));
    else
        f->key = group_key(value);
    f->key_len = strlen(f->key);
    if (f->key_len > NL_FILTER_KEY_MAX) {
        *why = why_long;
        free(f->key);
        return NL_ERROR_BAD_FILTER;
    }
    write_wire(f, value);
    write_json(f);
    return NL_OK;
}

static enum nl_error filter_parse(struct nl_filter *f, struct json_object *value, const char **why) {
    struct json_object *group = split(value);
    enum nl_error error = read_filter(f, group != NULL ? group : value, why);

    json_object_put(group);
    return error;
}

static struct nl_filter filter_copy(const struct nl_filter *from) {
    struct nl_filter to = *from;

    to.key = nl_strndup(from->key, from->key_len);
    to.json = nl_strndup(from->json, from->json_len);
    to.wire = nl_malloc(from->wire_len);
    memcpy(to.wire, from->wire, from->wire_len);
    return to;
}

/* ---- lists ---- */

void nl_filters_init(struct nl_filters *f) {
    *f = (struct nl_filters){0};
}

void nl_filters_deinit(struct nl_filters *f) {
    for (size_t i = 0; i < f->count; i++)
        filter_deinit(&f->items[i]);
    free(f->items);
    nl_filters_init(f);
}

void nl_filters_copy(struct nl_filters *to, const struct nl_filters *from) {
    nl_filters_init(to);
    if (from->count == 0)
        return;
    to->items = nl_calloc(from->count, sizeof(*to->items));
    for (; to->count < from->count; to->count++)
        to->items[to->count] = filter_copy(&from->items[to->count]);
}

static struct nl_filter *find_key(const struct nl_filters *f, struct nl_slice key) {
    for (size_t i = 0; i < f->count; i++)
        if (f->items[i].key_len == key.len && memcmp(f->items[i].key, key.ptr, key.len) == 0)
            return &f->items[i];
    return NULL;
}

static struct nl_filter *find(const struct nl_filters *f, const struct nl_filter *filter) {
    return find_key(f, nl_slice(filter->key, filter->key_len));
}

static void append(struct nl_filters *f, struct nl_filter filter) {
    f->items = nl_realloc(f->items, (f->count + 1) * sizeof(*f->items));
    f->items[f->count++] = filter;
}

/* Adds a parsed filter, which is the list's or freed after. */
static enum nl_error add_parsed(struct nl_filters *out, struct nl_filter *filter, const char **why) {
    if (find(out, filter) != NULL) {
        filter_deinit(filter);
        return NL_OK;
    }
    if (out->count == NL_FILTERS_MAX) {
        *why = nl_error_hint(NL_ERROR_TOO_MANY_FILTERS);
        filter_deinit(filter);
        return NL_ERROR_TOO_MANY_FILTERS;
    }
    append(out, *filter);
    return NL_OK;
}

enum nl_error nl_filters_parse(struct nl_filters *out, struct json_object *array, const char **why) {
    enum nl_error error = NL_OK;
    size_t n;

    nl_filters_init(out);
    *why = why_list;
    if (!json_object_is_type(array, json_type_array))
        return NL_ERROR_BAD_FIELD;
    n = json_object_array_length(array);
    if (n > RAW_LIST_MAX) {
        *why = nl_error_hint(NL_ERROR_TOO_MANY_FILTERS);
        return NL_ERROR_TOO_MANY_FILTERS;
    }
    for (size_t i = 0; i < n && error == NL_OK; i++) {
        struct nl_filter filter = {0};
        error = filter_parse(&filter, json_object_array_get_idx(array, i), why);
        if (error == NL_OK)
            error = add_parsed(out, &filter, why);
    }
    if (error != NL_OK)
        nl_filters_deinit(out);
    return error;
}

bool nl_filters_have(const struct nl_filters *f, struct nl_slice key) {
    return find_key(f, key) != NULL;
}

enum nl_error nl_filters_add(struct nl_filters *f, const struct nl_filters *more) {
    size_t fresh = 0;

    for (size_t i = 0; i < more->count; i++)
        fresh += find(f, &more->items[i]) == NULL;
    if (f->count + fresh > NL_FILTERS_MAX)
        return NL_ERROR_TOO_MANY_FILTERS;
    for (size_t i = 0; i < more->count; i++)
        if (find(f, &more->items[i]) == NULL)
            append(f, filter_copy(&more->items[i]));
    return NL_OK;
}

void nl_filters_remove(struct nl_filters *f, const struct nl_filters *less) {
    size_t kept = 0;

    for (size_t i = 0; i < f->count; i++) {
        if (find(less, &f->items[i]) != NULL)
            filter_deinit(&f->items[i]);
        else
            f->items[kept++] = f->items[i];
    }
    f->count = kept;
    if (kept == 0)
        nl_filters_deinit(f);
}

void nl_filters_json(const struct nl_filters *f, struct nl_buffer *out) {
    nl_buffer_append_byte(out, '[');
    for (size_t i = 0; i < f->count; i++) {
        if (i > 0)
            nl_buffer_append_byte(out, ',');
        nl_buffer_append(out, f->items[i].json, f->items[i].json_len);
    }
    nl_buffer_append_byte(out, ']');
}

void nl_filters_wire(const struct nl_filters *f, struct nl_buffer *out) {
    nl_pack_array(out, (uint32_t)f->count);
    for (size_t i = 0; i < f->count; i++)
        nl_buffer_append(out, f->items[i].wire, f->items[i].wire_len);
}

/* ---- the filter of a publish ---- */

static enum nl_error key_of_filter(char **key, struct json_object *filter, const char **why) {
    struct json_object *group = split(filter);
    bool good = group != NULL ? clean_list(group, 2) : clean(filter, "/#+");

    *why = why_publish;
    if (good && group != NULL)
        *key = group_key(group);
    else if (good)
        *key = nl_strndup(json_object_get_string(filter), (size_t)json_object_get_string_len(filter));
    json_object_put(group);
    return good ? NL_OK : NL_ERROR_BAD_FILTER;
}

static enum nl_error key_of_filters(char **key, struct json_object *filters, const char **why) {
    *why = why_publish_list;
    if (!clean_list(filters, 1))
        return NL_ERROR_BAD_FILTER;
    *key = group_key(filters);
    return NL_OK;
}

enum nl_error nl_publish_filter_key(char **key, struct json_object *filter, struct json_object *filters,
                                    const char **why) {
    enum nl_error error = NL_OK;

    *key = NULL;
    if (filter != NULL)
        error = key_of_filter(key, filter, why);
    else if (filters != NULL)
        error = key_of_filters(key, filters, why);
    if (*key == NULL || strlen(*key) <= NL_FILTER_KEY_MAX)
        return error;
    *why = why_long;
    free(*key);
    *key = NULL;
    return NL_ERROR_BAD_FILTER;
}
