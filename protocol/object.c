/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers and events as text. The text is built where the line will hold it, and what the
 * broker sent is passed on straight from the bytes of its frame.
 */
#include "protocol/object.h"

/* ---- one field after the other ---- */

/* Most answers are shorter. */
#define ANSWER_ROOM 200

static void comma_out(struct nl_object *o) {
    if (!o->first)
        nl_buffer_append_byte(&o->out, ',');
    o->first = false;
}

static void key_out(struct nl_object *o, const char *key) {
    size_t len = key == NULL ? 0 : strlen(key);
    uint8_t *to;

    comma_out(o);
    if (key == NULL)
        return;
    to = nl_buffer_reserve(&o->out, len + 3);
    *to++ = '"';
    memcpy(to, key, len);
    memcpy(to + len, "\":", 2);
    o->out.len += len + 3;
}

static void begin(struct nl_object *o, const char *type, size_t room) {
    nl_line_begin(&o->out, room);
    nl_buffer_append_byte(&o->out, '{');
    o->first = true;
    nl_object_cstr(o, "type", type);
}

void nl_object_begin(struct nl_object *o, const char *type) {
    begin(o, type, ANSWER_ROOM);
}

void nl_object_str(struct nl_object *o, const char *key, struct nl_slice value) {
    key_out(o, key);
    nl_json_string(&o->out, value);
}

void nl_object_cstr(struct nl_object *o, const char *key, const char *value) {
    if (value != NULL)
        nl_object_str(o, key, nl_slice_str(value));
}

void nl_object_int(struct nl_object *o, const char *key, int64_t value) {
    key_out(o, key);
    nl_json_int(&o->out, value);
}

void nl_object_bool(struct nl_object *o, const char *key, bool value) {
    key_out(o, key);
    nl_buffer_append_str(&o->out, value ? "true" : "false");
}

void nl_object_json(struct nl_object *o, const char *key, struct nl_slice json) {
    key_out(o, key);
    nl_buffer_append(&o->out, json.ptr, json.len);
}

void nl_object_msgpack(struct nl_object *o, const char *key, struct nl_slice raw,
                       struct nl_json_options options) {
    key_out(o, key);
    nl_json_from_msgpack(&o->out, raw, options);
}

static void member_out(struct nl_object *o, struct nl_slice name) {
    comma_out(o);
    nl_json_string(&o->out, name);
    nl_buffer_append_byte(&o->out, ':');
}

void nl_object_open_member(struct nl_object *o, struct nl_slice name, char bracket) {
    member_out(o, name);
    nl_buffer_append_byte(&o->out, (uint8_t)bracket);
    o->first = true;
}

void nl_object_member(struct nl_object *o, struct nl_slice name, struct nl_slice raw,
                      struct nl_json_options options) {
    member_out(o, name);
    nl_json_from_msgpack(&o->out, raw, options);
}

void nl_object_filters(struct nl_object *o, const char *key, const struct nl_filters *filters) {
    key_out(o, key);
    nl_filters_json(filters, &o->out);
}

void nl_object_open(struct nl_object *o, const char *key, char bracket) {
    key_out(o, key);
    nl_buffer_append_byte(&o->out, (uint8_t)bracket);
    o->first = true;
}

void nl_object_close(struct nl_object *o, char bracket) {
    nl_buffer_append_byte(&o->out, (uint8_t)bracket);
    o->first = false;
}

struct nl_line *nl_object_line(struct nl_object *o) {
    nl_buffer_append_byte(&o->out, '}');
    return nl_line_end(&o->out);
}

void nl_object_begin_rest(struct nl_object *o) {
    nl_line_begin(&o->out, ANSWER_ROOM);
    o->first = false;
}

struct nl_line *nl_object_line_with(struct nl_object *o, struct nl_line *rest) {
    return nl_line_end_with(&o->out, rest);
}

/* ---- errors ---- */

void nl_object_id(struct nl_object *o, const char *id) {
    if (id != NULL)
        nl_object_json(o, "id", nl_slice_str(id));
}

void nl_object_error(struct nl_object *o, enum nl_error error, const char *hint) {
    nl_object_cstr(o, "error", nl_error_name(error));
    if (nl_error_code(error) != 0)
        nl_object_int(o, "code", nl_error_code(error));
    nl_object_cstr(o, "hint", hint != NULL ? hint : nl_error_hint(error));
}

static void begin_error(struct nl_object *o, const char *request, const char *id) {
    nl_object_begin(o, "error");
    nl_object_cstr(o, "request", request);
    nl_object_id(o, id);
}

static void text_out(struct nl_object *o, const char *key, struct nl_slice text) {
    if (text.len > 0)
        nl_object_str(o, key, text);
}

struct nl_line *nl_refusal_line(const struct nl_refusal *r) {
    struct nl_object o;

    begin_error(&o, nl_request_name(r->type), r->id);
    nl_object_error(&o, r->error, r->hint[0] != '\0' ? r->hint : NULL);
    text_out(&o, "field", nl_slice_str(r->field));
    text_out(&o, "topic", nl_slice_str(r->topic));
    text_out(&o, "msgRef", nl_slice_str(r->msg_ref));
    return nl_object_line(&o);
}

struct nl_line *nl_request_error_line(enum nl_error error, const struct nl_request *r, const char *hint) {
    struct nl_object o;

    begin_error(&o, nl_request_name(r->type), r->id);
    nl_object_error(&o, error, hint);
    text_out(&o, "topic", r->topic);
    text_out(&o, "roomId", r->room);
    text_out(&o, "lobbyId", r->lobby);
    text_out(&o, "msgRef", r->msg_ref);
    return nl_object_line(&o);
}

struct nl_line *nl_error_line(enum nl_error error, const char *request, const char *id, struct nl_slice topic,
                              const char *hint) {
    struct nl_object o;

    begin_error(&o, request, id);
    nl_object_error(&o, error, hint);
    text_out(&o, "topic", topic);
    return nl_object_line(&o);
}

/* ---- what the broker sends, passed on ---- */

/* JSON is longer than MessagePack, mostly by quotes and commas; this is enough for most frames. */
static void begin_event(struct nl_object *o, const char *type, const struct nl_frame *frame) {
    begin(o, type, frame->whole.len + frame->whole.len / 4 + 64);
}

/* The fields of a frame that are written by hand or not at all. */
struct but {
    struct nl_slice names[8]; /* up to the first empty one */
};

static bool named(const struct but *but, struct nl_slice name) {
    for (const struct nl_slice *n = but->names; n->len > 0; n++)
        if (nl_slice_equal(*n, name))
            return true;
    return false;
}

/* All other fields. Their names are the broker's, that is data: they are escaped like any text. */
static void rest_out(struct nl_object *o, const struct nl_frame *frame, const struct but *but,
                     struct nl_json_options options) {
    struct nl_slice key, value, name;
    struct nl_raw_iter it;

    if (!nl_raw_map(frame->whole, &it))
        return;
    while (nl_raw_next_pair(&it, &key, &value)) {
        if (!nl_raw_string(key, &name) || named(but, name))
            continue;
        nl_object_member(o, name, value, options);
    }
}

struct nl_line *nl_broker_error_line(const struct nl_frame *frame, const char *request, const char *id,
                                     struct nl_slice topic, struct nl_slice msg_ref) {
    static const struct but but = {{NL_SLICE_LITERAL("type"), NL_SLICE_LITERAL("msgRef"),
                                    NL_SLICE_LITERAL("topic"), NL_SLICE_LITERAL("request"),
                                    NL_SLICE_LITERAL("id"), NL_SLICE_LITERAL("error"),
                                    NL_SLICE_LITERAL("code")}};
    struct nl_object o;

    begin_error(&o, request, id);
    nl_object_str(&o, "error", NL_FRAME_HAS(frame, error) ? frame->error : nl_slice_str("error"));
    if (NL_FRAME_HAS(frame, code))
        nl_object_int(&o, "code", frame->code);
    text_out(&o, "topic", topic);
    text_out(&o, "msgRef", msg_ref);
    rest_out(&o, frame, &but, (struct nl_json_options){0});
    return nl_object_line(&o);
}

static bool hidden_filter(const struct nl_frame *message) {
    struct nl_slice filter;

    return NL_FRAME_HAS(message, filter) && nl_raw_string(message->filter, &filter) &&
           nl_slice_equal(filter, nl_slice_str("#"));
}

static void message_out(struct nl_object *o, const struct nl_frame *message, struct nl_json_options options) {
    static const struct but told = {
        {NL_SLICE_LITERAL("type"), NL_SLICE_LITERAL("topic"), NL_SLICE_LITERAL("data")}};
    static const struct but hidden = {{NL_SLICE_LITERAL("type"), NL_SLICE_LITERAL("topic"),
                                       NL_SLICE_LITERAL("data"), NL_SLICE_LITERAL("filter")}};
    bool hides = hidden_filter(message);

    begin_event(o, "message", message);
    if (NL_FRAME_HAS(message, topic))
        nl_object_str(o, "topic", message->topic);
    if (NL_FRAME_HAS(message, data))
        nl_object_msgpack(o, "data", message->data, options);
    if (hides)
        nl_object_bool(o, "filterHidden", true);
    rest_out(o, message, hides ? &hidden : &told, options);
}

struct nl_line *nl_message_line(const struct nl_frame *message, struct nl_json_options options) {
    struct nl_object o;

    message_out(&o, message, options);
    return nl_object_line(&o);
}

struct nl_line *nl_handed_line(const struct nl_frame *message, uint64_t ack_id, bool redelivered,
                               struct nl_json_options options) {
    struct nl_object o;

    message_out(&o, message, options);
    if (ack_id != 0)
        nl_object_int(&o, "ackId", (int64_t)ack_id);
    if (redelivered)
        nl_object_bool(&o, "redelivered", true);
    return nl_object_line(&o);
}

struct nl_line *nl_event_line(const struct nl_frame *frame, struct nl_json_options options) {
    static const struct but type = {{NL_SLICE_LITERAL("type")}};
    struct nl_object o;

    begin_event(&o, nl_frame_type_name(frame->type), frame);
    rest_out(&o, frame, &type, options);
    return nl_object_line(&o);
}

struct nl_line *nl_local_message_line(struct nl_slice topic, struct nl_slice data, const char *filter_key,
                                      struct nl_slice from, struct nl_json_options options) {
    struct nl_object o;

    begin(&o, "message", data.len + data.len / 4 + ANSWER_ROOM);
    nl_object_str(&o, "topic", topic);
    nl_object_msgpack(&o, "data", data, options);
    nl_object_cstr(&o, "filter", filter_key);
    nl_object_str(&o, "from", from);
    return nl_object_line(&o);
}
