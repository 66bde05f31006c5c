/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads in both directions; json.c has the literals and parse.c the reading of lines.
 *
 * MessagePack to JSON is written in one pass, on the assumption that every map can be a
 * JSON object. When a map turns out not to be one, all is dropped and done again with a
 * plan: first one walk that notes of each map, in the order in which they begin, whether
 * it can be an object, then the writing. So plain payloads cost one pass and hostile ones
 * three; deciding each map by itself would cost a pass for each level of depth.
 */
#include "protocol/transcode.h"

#include <math.h>

#include "protocol/base64.h"
#include "protocol/json.h"
#include "protocol/keys.h"
#include "protocol/packer.h"
#include "protocol/token.h"

enum tag { TAG_NONE, TAG_FLOAT, TAG_BYTES, TAG_STR, TAG_EXT, TAG_MAP, TAG_ESC };

static enum tag find_tag(struct nl_slice key) {
    static const char names[][8] = {[TAG_FLOAT] = "$float", [TAG_BYTES] = "$bytes", [TAG_STR] = "$str",
                                    [TAG_EXT] = "$ext",     [TAG_MAP] = "$map",     [TAG_ESC] = "$esc"};
    if (key.len < 4 || key.len > 6 || key.ptr[0] != '$')
        return TAG_NONE;
    for (enum tag tag = TAG_FLOAT; tag <= TAG_ESC; tag++)
        if (nl_slice_equal(key, nl_slice_str(names[tag])))
            return tag;
    return TAG_NONE;
}

/* -------- MessagePack to JSON -------- */

#define SAFE_INTEGER ((UINT64_C(1) << 53) - 1) /* a double holds all integers up to here */

struct walk {
    struct nl_buffer *out;
    struct nl_json_options options;
    const uint8_t *plan; /* for each map 1 when it cannot be an object; NULL: not known yet */
    size_t next;         /* the next map's place in the plan */
    struct nl_keys keys; /* of the maps we are in, while there is no plan */
};

static const uint8_t *write_value(struct walk *w, const uint8_t *p);

static void write_base64(struct nl_buffer *out, const char *before, struct nl_slice bytes,
                         const char *after) {
    nl_buffer_append_str(out, before);
    nl_base64_encode(out, bytes);
    nl_buffer_append_str(out, after);
}

static void write_str(struct nl_buffer *out, struct nl_slice s) {
    if (!nl_json_string_exact(out, s))
        write_base64(out, "{\"$str\":\"", s, "\"}");
}

static void write_ext(struct nl_buffer *out, const struct nl_token *t) {
    nl_buffer_append_str(out, "{\"$ext\":[");
    nl_json_int(out, t->code);
    write_base64(out, ",\"", nl_token_body(t), "\"]}");
}

static void write_float(struct nl_buffer *out, double v) {
    if (isfinite(v))
        nl_json_double(out, v);
    else
        nl_buffer_append_str(out, isnan(v) ? "{\"$float\":\"nan\"}"
                                  : v > 0  ? "{\"$float\":\"inf\"}"
                                           : "{\"$float\":\"-inf\"}");
}

static void write_integer(const struct walk *w, const struct nl_token *t) {
    bool negative = t->kind == NL_KIND_NEGATIVE;
    uint64_t size = negative ? -(uint64_t)t->negative : t->number;
    bool quoted = w->options.bigint_as_string && size > SAFE_INTEGER;
    if (quoted)
        nl_buffer_append_byte(w->out, '"');
    if (negative)
        nl_buffer_append_byte(w->out, '-');
    nl_json_uint(w->out, size);
    if (quoted)
        nl_buffer_append_byte(w->out, '"');
}

static const uint8_t *write_array(struct walk *w, const uint8_t *p, uint32_t count) {
    nl_buffer_append_byte(w->out, '[');
    for (uint32_t i = 0; i < count && p; i++) {
        if (i)
            nl_buffer_append_byte(w->out, ',');
        p = write_value(w, p);
    }
    nl_buffer_append_byte(w->out, ']');
    return p;
}

/* A map that cannot be an object: {"$map":[[k,v],...]}. */
static const uint8_t *write_pairs(struct walk *w, const uint8_t *p, uint32_t count) {
    nl_buffer_append_str(w->out, "{\"$map\":[");
    for (uint32_t i = 0; i < count; i++) {
        nl_buffer_append_str(w->out, i ? ",[" : "[");
        p = write_value(w, p);
        nl_buffer_append_byte(w->out, ',');
        p = write_value(w, p);
        nl_buffer_append_byte(w->out, ']');
    }
    nl_buffer_append_str(w->out, "]}");
    return p;
}

/* Writes one pair; NULL when its key cannot be a JSON key. */
static const uint8_t *write_member(struct walk *w, const uint8_t *p) {
    struct nl_token key;
    p = nl_token_read(p, &key);
    if (key.kind != NL_KIND_STR || !nl_json_name(w->out, nl_token_body(&key)))
        return NULL;
    if (!w->plan)
        nl_keys_push(&w->keys, nl_token_body(&key));
    nl_buffer_append_byte(w->out, ':');
    return write_value(w, p);
}

/* Writes a map as an object; NULL when it turns out, without a plan, that it cannot be one. */
static const uint8_t *write_object(struct walk *w, const uint8_t *p, uint32_t count) {
    struct nl_token key;
    size_t from = w->keys.len;
    bool escape = count == 1 && (nl_token_read(p, &key), key.kind == NL_KIND_STR) &&
                  find_tag(nl_token_body(&key)) != TAG_NONE;
    if (escape)
        nl_buffer_append_str(w->out, "{\"$esc\":");
    nl_buffer_append_byte(w->out, '{');
    for (uint32_t i = 0; i < count; i++) {
        if (i)
            nl_buffer_append_byte(w->out, ',');
        p = write_member(w, p);
        if (!p)
            return NULL;
    }
    nl_buffer_append_byte(w->out, '}');
    if (escape)
        nl_buffer_append_byte(w->out, '}');
    if (!w->plan && nl_keys_repeat(&w->keys, from))
        return NULL;
    w->keys.len = from;
    return p;
}

static const uint8_t *write_map(struct walk *w, const uint8_t *p, uint32_t count) {
    if (w->plan && w->plan[w->next++])
        return write_pairs(w, p, count);
    return write_object(w, p, count);
}

/* Writes the value at p and returns the end of it; NULL when a plan is needed first. */
static const uint8_t *write_value(struct walk *w, const uint8_t *p) {
    struct nl_token t;
    p = nl_token_read(p, &t);
    switch (t.kind) {
    case NL_KIND_BOOL:
        nl_buffer_append_str(w->out, t.truth ? "true" : "false");
        return p;
    case NL_KIND_UINT:
    case NL_KIND_NEGATIVE:
        write_integer(w, &t);
        return p;
    case NL_KIND_FLOAT:
        write_float(w->out, t.real);
        return p;
    case NL_KIND_STR:
        write_str(w->out, nl_token_body(&t));
        return p;
    case NL_KIND_BIN:
        write_base64(w->out, "{\"$bytes\":\"", nl_token_body(&t), "\"}");
        return p;
    case NL_KIND_EXT:
        write_ext(w->out, &t);
        return p;
    case NL_KIND_ARRAY:
        return write_array(w, p, t.len);
    case NL_KIND_MAP:
        return write_map(w, p, t.len);
    case NL_KIND_NIL:
    case NL_KIND_INVALID:
        break;
    }
    nl_buffer_append_str(w->out, "null");
    return p;
}

/* Whether nl_json_name() would take the key. */
static bool is_name(const struct nl_token *key) {
    return key->kind == NL_KIND_STR && !memchr(key->body, 0, key->len) && nl_utf8_valid(nl_token_body(key));
}

static const uint8_t *plan_value(struct nl_keys *keys, const uint8_t *p, struct nl_buffer *plan);

static const uint8_t *plan_map(struct nl_keys *keys, const uint8_t *p, uint32_t count,
                               struct nl_buffer *plan) {
    struct nl_token key;
    size_t place = plan->len, from = keys->len;
    bool pairs = false;
    nl_buffer_append_byte(plan, 0);
    for (uint32_t i = 0; i < count; i++) {
        nl_token_read(p, &key);
        if (is_name(&key))
            nl_keys_push(keys, nl_token_body(&key));
        else
            pairs = true;
        p = plan_value(keys, p, plan);
        p = plan_value(keys, p, plan);
    }
    plan->bytes[place] = pairs || nl_keys_repeat(keys, from);
    keys->len = from;
    return p;
}

static const uint8_t *plan_value(struct nl_keys *keys, const uint8_t *p, struct nl_buffer *plan) {
    struct nl_token t;
    p = nl_token_read(p, &t);
    if (t.kind == NL_KIND_MAP)
        return plan_map(keys, p, t.len, plan);
    if (t.kind == NL_KIND_ARRAY)
        for (uint32_t i = 0; i < t.len; i++)
            p = plan_value(keys, p, plan);
    return p;
}

static void write_planned(struct walk *w, const uint8_t *p) {
    struct nl_buffer plan;
    nl_buffer_init(&plan);
    w->keys.len = 0;
    plan_value(&w->keys, p, &plan);
    w->plan = plan.bytes;
    write_value(w, p);
    nl_buffer_deinit(&plan);
}

void nl_json_from_msgpack(struct nl_buffer *out, struct nl_slice raw, struct nl_json_options options) {
    struct walk w;
    size_t before = out->len;
    w.out = out;
    w.options = options;
    w.plan = NULL;
    w.next = 0;
    nl_keys_init(&w.keys);
    if (!write_value(&w, raw.ptr)) {
        out->len = before;
        write_planned(&w, raw.ptr);
    }
    nl_keys_deinit(&w.keys);
}

/* -------- JSON to MessagePack -------- */

/* A frame that holds the data is one level more; deeper ones we would not read back. */
#define PACK_DEPTH (NL_SCAN_MAX_DEPTH - 1)

struct pack {
    msgpack_packer pk;
    enum nl_pack_mode mode;
    unsigned depth; /* containers we are in */
    const char *why;
};

static bool pack_value(struct pack *p, struct json_object *value);

static bool refuse(struct pack *p, const char *why) {
    p->why = why;
    return false;
}

static bool enter(struct pack *p) {
    return p->depth++ < PACK_DEPTH || refuse(p, "data is nested too deeply for the broker's frames");
}

static bool pack_members(struct pack *p, struct json_object *object) {
    struct json_object_iterator it = json_object_iter_begin(object);
    struct json_object_iterator end = json_object_iter_end(object);
    if (!enter(p))
        return false;
    msgpack_pack_map(&p->pk, (size_t)json_object_object_length(object));
    for (; !json_object_iter_equal(&it, &end); json_object_iter_next(&it)) {
        nl_packer_str(&p->pk, nl_slice_str(json_object_iter_peek_name(&it)));
        if (!pack_value(p, json_object_iter_peek_value(&it)))
            return false;
    }
    p->depth--;
    return true;
}

static bool pack_array(struct pack *p, struct json_object *array) {
    size_t count = json_object_array_length(array);
    if (!enter(p))
        return false;
    msgpack_pack_array(&p->pk, count);
    for (size_t i = 0; i < count; i++)
        if (!pack_value(p, json_object_array_get_idx(array, i)))
            return false;
    p->depth--;
    return true;
}

static bool pack_float_tag(struct pack *p, struct json_object *value) {
    struct nl_slice name = {NULL, 0};
    if (json_object_is_type(value, json_type_string))
        name = nl_json_text(value);
    if (nl_slice_equal(name, nl_slice_str("nan")))
        msgpack_pack_double(&p->pk, (double)NAN);
    else if (nl_slice_equal(name, nl_slice_str("inf")))
        msgpack_pack_double(&p->pk, (double)INFINITY);
    else if (nl_slice_equal(name, nl_slice_str("-inf")))
        msgpack_pack_double(&p->pk, -(double)INFINITY);
    else
        return refuse(p, "$float is \"nan\", \"inf\" or \"-inf\"");
    return true;
}

/* Packs the bytes of a $bytes, a $str or, with its code, an $ext. */
static bool pack_bytes(struct pack *p, enum tag tag, int8_t code, struct json_object *base64,
                       const char *why) {
    struct nl_buffer bytes;
    nl_buffer_init(&bytes);
    bool good =
        json_object_is_type(base64, json_type_string) && nl_base64_decode(&bytes, nl_json_text(base64));
    if (good && tag == TAG_STR) {
        nl_packer_str(&p->pk, nl_slice(bytes.bytes, bytes.len));
    } else if (good && tag == TAG_BYTES) {
        msgpack_pack_bin(&p->pk, bytes.len);
        msgpack_pack_bin_body(&p->pk, bytes.bytes, bytes.len);
    } else if (good) {
        msgpack_pack_ext(&p->pk, bytes.len, code);
        msgpack_pack_ext_body(&p->pk, bytes.bytes, bytes.len);
    }
    nl_buffer_deinit(&bytes);
    return good || refuse(p, why);
}

static bool pack_ext_tag(struct pack *p, struct json_object *value) {
    static const char why[] = "$ext is [code, \"base64\"] with a code from -128 to 127";
    if (!json_object_is_type(value, json_type_array) || json_object_array_length(value) != 2)
        return refuse(p, why);
    struct json_object *code = json_object_array_get_idx(value, 0);
    if (!json_object_is_type(code, json_type_int))
        return refuse(p, why);
    int64_t n = json_object_get_int64(code);
    if (n < INT8_MIN || n > INT8_MAX)
        return refuse(p, why);
    return pack_bytes(p, TAG_EXT, (int8_t)n, json_object_array_get_idx(value, 1), why);
}

static bool pack_map_tag(struct pack *p, struct json_object *value) {
    static const char why[] = "$map is a list of [key, value] pairs";
    if (!json_object_is_type(value, json_type_array))
        return refuse(p, why);
    size_t count = json_object_array_length(value);
    if (!enter(p))
        return false;
    msgpack_pack_map(&p->pk, count);
    for (size_t i = 0; i < count; i++) {
        struct json_object *pair = json_object_array_get_idx(value, i);
        if (!json_object_is_type(pair, json_type_array) || json_object_array_length(pair) != 2)
            return refuse(p, why);
        if (!pack_value(p, json_object_array_get_idx(pair, 0)) ||
            !pack_value(p, json_object_array_get_idx(pair, 1)))
            return false;
    }
    p->depth--;
    return true;
}

static bool pack_tag(struct pack *p, enum tag tag, struct json_object *value) {
    switch (tag) {
    case TAG_FLOAT:
        return pack_float_tag(p, value);
    case TAG_BYTES:
        return pack_bytes(p, tag, 0, value, "$bytes is a string of padded base64 without blanks");
    case TAG_STR:
        return pack_bytes(p, tag, 0, value, "$str is a string of padded base64 without blanks");
    case TAG_EXT:
        return pack_ext_tag(p, value);
    case TAG_MAP:
        return pack_map_tag(p, value);
    case TAG_ESC:
    case TAG_NONE:
        break;
    }
    if (!json_object_is_type(value, json_type_object))
        return refuse(p, "$esc is the object that is meant literally");
    return pack_members(p, value);
}

static bool pack_object(struct pack *p, struct json_object *object) {
    if (p->mode == NL_PACK_TAGGED && json_object_object_length(object) == 1) {
        struct json_object_iterator it = json_object_iter_begin(object);
        enum tag tag = find_tag(nl_slice_str(json_object_iter_peek_name(&it)));
        if (tag != TAG_NONE)
            return pack_tag(p, tag, json_object_iter_peek_value(&it));
    }
    return pack_members(p, object);
}

static void pack_integer(struct pack *p, struct json_object *value) {
    int64_t v = json_object_get_int64(value); /* the largest one there is for what is above it */
    if (v < 0)
        msgpack_pack_int64(&p->pk, v);
    else
        msgpack_pack_uint64(&p->pk, json_object_get_uint64(value));
}

static bool pack_value(struct pack *p, struct json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_boolean:
        if (json_object_get_boolean(value))
            msgpack_pack_true(&p->pk);
        else
            msgpack_pack_false(&p->pk);
        return true;
    case json_type_int:
        pack_integer(p, value);
        return true;
    case json_type_double:
        msgpack_pack_double(&p->pk, json_object_get_double(value));
        return true;
    case json_type_string:
        nl_packer_str(&p->pk, nl_json_text(value));
        return true;
    case json_type_array:
        return pack_array(p, value);
    case json_type_object:
        return pack_object(p, value);
    case json_type_null:
        break;
    }
    msgpack_pack_nil(&p->pk);
    return true;
}

enum nl_error nl_msgpack_from_json(struct nl_buffer *out, struct json_object *value, enum nl_pack_mode mode,
                                   const char **why) {
    struct pack p = {nl_packer(out), mode, 0, NULL};
    size_t before = out->len;
    if (pack_value(&p, value))
        return NL_OK;
    out->len = before;
    *why = p.why;
    return NL_ERROR_BAD_PAYLOAD;
}
