/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames in both directions, driven by the tables in frame.h.
 *
 * Decoding is one pass: each key and value is scanned where it stands, looked up and put
 * into its member. Encoding goes through msgpack-c.
 */
#include "protocol/frame.h"

#include "protocol/hash.h"
#include "protocol/packer.h"
#include "protocol/token.h"

enum member_kind { MEMBER_STR, MEMBER_BOOL, MEMBER_INT, MEMBER_RAW };

struct field {
    struct nl_slice name;
    enum member_kind kind;
    size_t offset; /* of the member in struct nl_frame */
};

static const struct field fields[NL_FIELD_COUNT] = {
#define X(member, wire, kind) {NL_SLICE_LITERAL(wire), MEMBER_##kind, offsetof(struct nl_frame, member)},
    NL_FRAME_FIELDS(X)
#undef X
};

_Static_assert(NL_FIELD_COUNT <= 64, "nl_frame.has has one bit for each field");

static const struct nl_slice type_names[] = {{NULL, 0},
#define X(name, wire) NL_SLICE_LITERAL(wire),
                                             NL_FRAME_TYPES(X)
#undef X
};

#define TYPE_COUNT (sizeof(type_names) / sizeof(type_names[0]))

/*
 * Names are looked up in open hash tables of small numbers (0 is a free slot), which are
 * filled once, before main(): the tables above stay the only list of names.
 */
#define SLOTS 128

static uint8_t field_slots[SLOTS]; /* 1 + enum nl_frame_field */
static uint8_t type_slots[SLOTS];  /* enum nl_frame_type */

_Static_assert(NL_FIELD_COUNT < SLOTS / 2 && TYPE_COUNT < SLOTS / 2, "a look-up must end at a free slot");

static unsigned name_slot(struct nl_slice name) {
    return (unsigned)(nl_hash_bytes(0, name.ptr, name.len) % SLOTS);
}

static void fill_slot(uint8_t *slots, struct nl_slice name, uint8_t number) {
    unsigned slot = name_slot(name);
    while (slots[slot])
        slot = (slot + 1) % SLOTS;
    slots[slot] = number;
}

__attribute__((constructor)) static void fill_slots(void) {
    for (unsigned i = 0; i < NL_FIELD_COUNT; i++)
        fill_slot(field_slots, fields[i].name, (uint8_t)(i + 1));
    for (unsigned i = 1; i < TYPE_COUNT; i++)
        fill_slot(type_slots, type_names[i], (uint8_t)i);
}

/* The field of this name, or NL_FIELD_COUNT. */
static unsigned find_field(struct nl_slice name) {
    for (unsigned slot = name_slot(name); field_slots[slot]; slot = (slot + 1) % SLOTS)
        if (nl_slice_equal(fields[field_slots[slot] - 1].name, name))
            return field_slots[slot] - 1u;
    return NL_FIELD_COUNT;
}

static enum nl_frame_type find_type(struct nl_slice name) {
    for (unsigned slot = name_slot(name); type_slots[slot]; slot = (slot + 1) % SLOTS)
        if (nl_slice_equal(type_names[type_slots[slot]], name))
            return type_slots[slot];
    return NL_FRAME_UNKNOWN;
}

static struct nl_slice *slice_member(struct nl_frame *f, const struct field *field) {
    return (struct nl_slice *)(void *)((char *)f + field->offset);
}

static bool *bool_member(struct nl_frame *f, const struct field *field) {
    return (bool *)((char *)f + field->offset);
}

static int64_t *int_member(struct nl_frame *f, const struct field *field) {
    return (int64_t *)(void *)((char *)f + field->offset);
}

static bool token_int(const struct nl_token *t, int64_t *out) {
    if (t->kind == NL_KIND_NEGATIVE)
        *out = t->negative;
    else if (t->kind == NL_KIND_UINT && t->number <= INT64_MAX)
        *out = (int64_t)t->number;
    else
        return false;
    return true;
}

/* Puts a value into its member; false when it is of another type, with the member then empty. */
static bool set_member(struct nl_frame *f, const struct field *field, struct nl_slice value) {
    struct nl_token t;
    nl_token_read(value.ptr, &t);
    switch (field->kind) {
    case MEMBER_RAW:
        *slice_member(f, field) = value;
        return true;
    case MEMBER_STR:
        *slice_member(f, field) = t.kind == NL_KIND_STR ? nl_token_body(&t) : nl_slice(NULL, 0);
        return t.kind == NL_KIND_STR;
    case MEMBER_BOOL:
        *bool_member(f, field) = t.kind == NL_KIND_BOOL && t.truth;
        return t.kind == NL_KIND_BOOL;
    case MEMBER_INT:
        *int_member(f, field) = 0;
        return token_int(&t, int_member(f, field));
    }
    return false;
}

/* Takes one pair in. *mistyped has a bit for each field whose last value has a wrong type. */
static void take_pair(struct nl_frame *f, struct nl_slice key, struct nl_slice value, uint64_t *mistyped) {
    struct nl_slice name;
    if (!nl_raw_string(key, &name)) {
        f->extra++;
        return;
    }
    unsigned i = find_field(name);
    if (i < NL_FIELD_COUNT) {
        uint64_t bit = UINT64_C(1) << i;
        bool good = set_member(f, &fields[i], value);
        f->has = good ? f->has | bit : f->has & ~bit;
        *mistyped = good ? *mistyped & ~bit : *mistyped | bit;
    } else if (nl_slice_equal(name, nl_slice_str("type"))) {
        struct nl_slice type;
        f->type = nl_raw_string(value, &type) ? find_type(type) : NL_FRAME_UNKNOWN;
    } else {
        f->extra++;
    }
}

/* Reads the head of a map whose pairs follow in *rest. */
static enum nl_scan_result open_map(struct nl_slice in, struct nl_slice *rest, uint32_t *pairs) {
    struct nl_token t;
    if (in.len == 0)
        return NL_SCAN_TRUNCATED;
    uint8_t b = in.ptr[0];
    if (b >> 4 != 0x8 && b != 0xde && b != 0xdf)
        return NL_SCAN_INVALID;
    size_t head = b == 0xde ? 3 : b == 0xdf ? 5 : 1;
    if (head > in.len)
        return NL_SCAN_TRUNCATED;
    *rest = nl_slice(nl_token_read(in.ptr, &t), in.len - head);
    *pairs = t.len;
    return t.len > rest->len / 2 ? NL_SCAN_TRUNCATED : NL_SCAN_OK;
}

/* Cuts one scanned value off the front of *rest. The frame's own map is one level of the depth. */
static enum nl_scan_result cut_value(struct nl_slice *rest, size_t *budget, struct nl_slice *value) {
    size_t used;
    enum nl_scan_result r = nl_scan_part(*rest, NL_SCAN_MAX_DEPTH - 1, budget, &used);
    *value = nl_slice(rest->ptr, used);
    *rest = nl_slice(rest->ptr + used, rest->len - used);
    return r;
}

enum nl_scan_result nl_frame_decode(struct nl_slice bytes, struct nl_frame *out) {
    struct nl_slice rest, key, value;
    uint32_t pairs;
    uint64_t mistyped = 0;
    size_t budget = NL_SCAN_MAX_ELEMENTS - 1;
    *out = (struct nl_frame){.whole = bytes};
    enum nl_scan_result r = open_map(bytes, &rest, &pairs);
    while (r == NL_SCAN_OK && pairs-- > 0) {
        r = cut_value(&rest, &budget, &key);
        if (r == NL_SCAN_OK)
            r = cut_value(&rest, &budget, &value);
        if (r == NL_SCAN_OK)
            take_pair(out, key, value, &mistyped);
    }
    out->mistyped = (unsigned)__builtin_popcountll(mistyped);
    return r == NL_SCAN_OK && rest.len > 0 ? NL_SCAN_INVALID : r;
}

static void encode_member(const struct nl_frame *f, const struct field *field, struct nl_buffer *out) {
    const char *member = (const char *)f + field->offset;
    struct nl_slice slice;
    int64_t number;
    switch (field->kind) {
    case MEMBER_STR:
        memcpy(&slice, member, sizeof(slice));
        nl_pack_str(out, slice);
        return;
    case MEMBER_RAW:
        memcpy(&slice, member, sizeof(slice));
        nl_buffer_append(out, slice.ptr, slice.len);
        return;
    case MEMBER_BOOL:
        nl_pack_bool(out, *(const bool *)member);
        return;
    case MEMBER_INT:
        memcpy(&number, member, sizeof(number));
        nl_pack_int(out, number);
        return;
    }
}

void nl_frame_encode(const struct nl_frame *frame, struct nl_buffer *out) {
    uint32_t has_type = frame->type != NL_FRAME_UNKNOWN;
    nl_pack_map(out, (uint32_t)__builtin_popcountll(frame->has) + has_type);
    if (has_type) {
        nl_pack_str(out, nl_slice_str("type"));
        nl_pack_str(out, type_names[frame->type]);
    }
    for (unsigned i = 0; i < NL_FIELD_COUNT; i++) {
        if (!(frame->has >> i & 1))
            continue;
        nl_pack_str(out, fields[i].name);
        encode_member(frame, &fields[i], out);
    }
}

const char *nl_frame_type_name(enum nl_frame_type type) {
    return (const char *)(const void *)type_names[type].ptr;
}

bool nl_raw_string(struct nl_slice raw, struct nl_slice *out) {
    struct nl_token t;
    if (raw.len == 0)
        return false;
    nl_token_read(raw.ptr, &t);
    if (t.kind != NL_KIND_STR)
        return false;
    *out = nl_token_body(&t);
    return true;
}

static bool raw_container(struct nl_slice raw, enum nl_kind kind, struct nl_raw_iter *it) {
    struct nl_token t;
    *it = (struct nl_raw_iter){{NULL, 0}, 0};
    if (raw.len == 0)
        return false;
    const uint8_t *first = nl_token_read(raw.ptr, &t);
    if (t.kind != kind)
        return false;
    it->rest = nl_slice(first, raw.len - (size_t)(first - raw.ptr));
    it->left = t.len;
    return true;
}

bool nl_raw_array(struct nl_slice raw, struct nl_raw_iter *it) {
    return raw_container(raw, NL_KIND_ARRAY, it);
}

bool nl_raw_map(struct nl_slice raw, struct nl_raw_iter *it) {
    return raw_container(raw, NL_KIND_MAP, it);
}

bool nl_raw_next(struct nl_raw_iter *it, struct nl_slice *item) {
    size_t budget = NL_SCAN_MAX_ELEMENTS;
    if (it->left == 0 || cut_value(&it->rest, &budget, item) != NL_SCAN_OK)
        return false;
    it->left--;
    return true;
}

bool nl_raw_next_pair(struct nl_raw_iter *it, struct nl_slice *key, struct nl_slice *value) {
    size_t budget = NL_SCAN_MAX_ELEMENTS;
    if (it->left == 0 || cut_value(&it->rest, &budget, key) != NL_SCAN_OK ||
        cut_value(&it->rest, &budget, value) != NL_SCAN_OK)
        return false;
    it->left--;
    return true;
}

void nl_pack_str(struct nl_buffer *out, struct nl_slice s) {
    msgpack_packer pk = nl_packer(out);
    nl_packer_str(&pk, s);
}

void nl_pack_int(struct nl_buffer *out, int64_t v) {
    msgpack_packer pk = nl_packer(out);
    msgpack_pack_int64(&pk, v);
}

void nl_pack_uint(struct nl_buffer *out, uint64_t v) {
    msgpack_packer pk = nl_packer(out);
    msgpack_pack_uint64(&pk, v);
}

void nl_pack_bool(struct nl_buffer *out, bool v) {
    msgpack_packer pk = nl_packer(out);
    if (v)
        msgpack_pack_true(&pk);
    else
        msgpack_pack_false(&pk);
}

void nl_pack_array(struct nl_buffer *out, uint32_t count) {
    msgpack_packer pk = nl_packer(out);
    msgpack_pack_array(&pk, count);
}

void nl_pack_map(struct nl_buffer *out, uint32_t count) {
    msgpack_packer pk = nl_packer(out);
    msgpack_pack_map(&pk, count);
}
