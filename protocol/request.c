/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: the table of fields, a reader for each kind of field, and the few rules that
 * concern more than one of them. The first thing that is wrong is the one that is told.
 */
#include "protocol/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/json.h"
#include "protocol/topic.h"
#include "protocol/transcode.h"

/* What is being parsed, and what is wrong with it. */
struct parse {
    struct nl_request *request;
    struct nl_refusal *refusal;
    struct json_object *filter, *filters; /* of a publish; views */
};

/* ---- the table: which fields each type of request has ---- */

/* Reads one field into the request; the value is never JSON null. */
typedef enum nl_error field_reader(struct parse *p, const char *name, struct json_object *value);

static field_reader read_topic, read_topic_or_tap, read_data, read_filters, read_some_filters, read_qos,
    read_retain, read_echo, read_load_balance, read_group, read_late_join, read_msg_ref, read_session,
    read_token, read_only, read_bigint, read_publish_filter, read_publish_filters, read_room, read_lobby,
    read_actor, read_presence, read_ack, read_prefetch, read_ack_id, read_msg_id, read_ack_ids, read_msg_ids;

struct field {
    const char *name;
    field_reader *read;
    bool needed;
};

#define FIELDS_MAX 10

static const struct request_kind {
    const char *name;
    bool supported;
    struct field fields[FIELDS_MAX]; /* up to the first without a name */
} kinds[NL_REQUEST_COUNT] = {
#define X(id, wire, is_supported)                                                                            \
    [NL_REQUEST_##id].name = wire, [NL_REQUEST_##id].supported = (is_supported) != 0,
    NL_REQUESTS(X)
#undef X
        [NL_REQUEST_HELLO]
            .fields = {{"bigint", read_bigint, false}},
    [NL_REQUEST_AUTH].fields = {{"session", read_session, false}, {"token", read_token, false}},
    [NL_REQUEST_EVENTS].fields = {{"only", read_only, false}},
    [NL_REQUEST_SUBSCRIBE].fields = {{"topic", read_topic_or_tap, true},
                                     {"filters", read_filters, false},
                                     {"qos", read_qos, false},
                                     {"loadBalance", read_load_balance, false},
                                     {"loadBalanceGroup", read_group, false},
                                     {"lateJoin", read_late_join, false},
                                     {"ack", read_ack, false},
                                     {"prefetch", read_prefetch, false}},
    [NL_REQUEST_ACK].fields = {{"ackId", read_ack_id, false}, {"msgId", read_msg_id, false}},
    [NL_REQUEST_BATCH_ACK].fields = {{"ackIds", read_ack_ids, false}, {"msgIds", read_msg_ids, false}},
    [NL_REQUEST_UNSUBSCRIBE].fields = {{"topic", read_topic_or_tap, true}},
    [NL_REQUEST_SET_FILTERS].fields = {{"topic", read_topic, true}, {"filters", read_filters, true}},
    [NL_REQUEST_ADD_FILTERS].fields = {{"topic", read_topic, true}, {"filters", read_some_filters, true}},
    [NL_REQUEST_REMOVE_FILTERS].fields = {{"topic", read_topic, true}, {"filters", read_some_filters, true}},
    [NL_REQUEST_PUBLISH].fields = {{"topic", read_topic, true},
                                   {"data", read_data, true},
                                   {"filter", read_publish_filter, false},
                                   {"filters", read_publish_filters, false},
                                   {"qos", read_qos, false},
                                   {"retain", read_retain, false},
                                   {"echo", read_echo, false},
                                   {"msgRef", read_msg_ref, false}},
    [NL_REQUEST_PRESENCE].fields = {{"roomId", read_room, false}, {"data", read_presence, true}},
    [NL_REQUEST_CLEAR_PRESENCE].fields = {{"roomId", read_room, false}},
    [NL_REQUEST_GET_PRESENCE].fields = {{"roomId", read_room, false}},
    [NL_REQUEST_GET_ACTOR].fields = {{"actorTokenId", read_actor, true}, {"roomId", read_room, false}},
    [NL_REQUEST_LIST_PRESENCE].fields = {{"roomId", read_room, false}},
    [NL_REQUEST_WATCH_PRESENCE].fields = {{"roomId", read_room, true}},
    [NL_REQUEST_UNWATCH_PRESENCE].fields = {{"roomId", read_room, true}},
    [NL_REQUEST_LOBBY_SUBSCRIBE].fields = {{"lobbyId", read_lobby, true}},
    [NL_REQUEST_LOBBY_UNSUBSCRIBE].fields = {{"lobbyId", read_lobby, true}},
    [NL_REQUEST_GET_LOBBY_PRESENCE].fields = {{"lobbyId", read_lobby, true}},
};

const char *nl_request_name(enum nl_request_type type) {
    return kinds[type].name;
}

const char *nl_event_name(enum nl_event event) {
    static const char *const names[] = {
#define X(id, wire) [NL_EVENT_##id] = wire,
        NL_EVENTS(X)
#undef X
    };

    return names[event];
}

/* ---- refusing ---- */

static enum nl_error refuse(struct parse *p, enum nl_error error, const char *field, const char *hint) {
    struct nl_refusal *r = p->refusal;

    r->error = error;
    snprintf(r->field, sizeof(r->field), "%s", field == NULL ? "" : field);
    snprintf(r->hint, sizeof(r->hint), "%s", hint == NULL ? "" : hint);
    return error;
}

static enum nl_error bad_field(struct parse *p, const char *field, const char *hint) {
    return refuse(p, NL_ERROR_BAD_FIELD, field, hint);
}

/* ---- readers of values ---- */

static bool is_text(struct json_object *value, size_t max) {
    struct nl_slice s;

    if (!json_object_is_type(value, json_type_string))
        return false;
    s = nl_json_text(value);
    return s.len > 0 && s.len <= max;
}

static bool has_control(struct nl_slice s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] < 0x20 || s.ptr[i] == 0x7f)
            return true;
    return false;
}

static bool is_name(struct nl_slice s) {
    for (size_t i = 0; i < s.len; i++)
        if (!nl_topic_letter(s.ptr[i]))
            return false;
    return true;
}

static enum nl_error read_topic(struct parse *p, const char *name, struct json_object *value) {
    if (!json_object_is_type(value, json_type_string))
        return bad_field(p, name, "topic is a string");
    if (!nl_topic_valid(nl_json_text(value)))
        return refuse(p, NL_ERROR_BAD_TOPIC, name, NULL);
    p->request->topic = nl_json_text(value);
    return NL_OK;
}

static enum nl_error read_topic_or_tap(struct parse *p, const char *name, struct json_object *value) {
    if (!json_object_is_type(value, json_type_string) ||
        !nl_slice_equal(nl_json_text(value), nl_slice_str("*")))
        return read_topic(p, name, value);
    p->request->topic = nl_json_text(value);
    return NL_OK;
}

static enum nl_error read_data(struct parse *p, const char *name, struct json_object *value) {
    (void)name;
    p->request->data = value;
    p->request->has_data = true;
    return NL_OK;
}

static enum nl_error read_filters(struct parse *p, const char *name, struct json_object *value) {
    const char *why = NULL;
    enum nl_error error = nl_filters_parse(&p->request->filters, value, &why);

    return error == NL_OK ? NL_OK : refuse(p, error, name, why);
}

static enum nl_error read_some_filters(struct parse *p, const char *name, struct json_object *value) {
    enum nl_error error = read_filters(p, name, value);

    if (error == NL_OK && p->request->filters.count == 0)
        return bad_field(p, name, "filters is a list of at least one filter here");
    return error;
}

/* Whether the two fit together and what key they have is for check_publish(). */
static enum nl_error read_publish_filter(struct parse *p, const char *name, struct json_object *value) {
    (void)name;
    p->filter = value;
    return NL_OK;
}

static enum nl_error read_publish_filters(struct parse *p, const char *name, struct json_object *value) {
    (void)name;
    p->filters = value;
    return NL_OK;
}

static enum nl_error read_qos(struct parse *p, const char *name, struct json_object *value) {
    int64_t qos = json_object_is_type(value, json_type_int) ? json_object_get_int64(value) : -1;

    if (qos < 0 || qos > 2)
        return bad_field(p, name, "qos is an integer: 0, 1 or 2");
    p->request->qos = (int)qos;
    return NL_OK;
}

static enum nl_error read_bool(struct parse *p, const char *name, struct json_object *value, bool *out) {
    char hint[64];

    if (!json_object_is_type(value, json_type_boolean)) {
        snprintf(hint, sizeof(hint), "%s is true or false", name);
        return bad_field(p, name, hint);
    }
    *out = json_object_get_boolean(value);
    return NL_OK;
}

static enum nl_error read_retain(struct parse *p, const char *name, struct json_object *value) {
    return read_bool(p, name, value, &p->request->retain);
}

/* Checked and not used: what the broker is told follows from who subscribes. */
static enum nl_error read_echo(struct parse *p, const char *name, struct json_object *value) {
    bool unused;

    return read_bool(p, name, value, &unused);
}

static enum nl_error read_load_balance(struct parse *p, const char *name, struct json_object *value) {
    return read_bool(p, name, value, &p->request->load_balance);
}

static enum nl_error read_group(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, NL_NAME_MAX) || !is_name(nl_json_text(value)))
        return bad_field(p, name, "a group is 1 to 128 characters of [a-zA-Z0-9_:-]");
    p->request->group = nl_json_text(value);
    return NL_OK;
}

static bool is_msg_ref(struct json_object *value) {
    return is_text(value, NL_MSG_REF_MAX) &&
           memchr(json_object_get_string(value), '\0', nl_json_text(value).len) == NULL;
}

static enum nl_error read_msg_ref(struct parse *p, const char *name, struct json_object *value) {
    if (!is_msg_ref(value))
        return bad_field(p, name, "msgRef is a string of 1 to 256 bytes");
    p->request->msg_ref = nl_json_text(value);
    return NL_OK;
}

static enum nl_error read_room(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, NL_NAME_MAX) || !is_name(nl_json_text(value)))
        return bad_field(p, name, "a room is 1 to 128 characters of [a-zA-Z0-9_:-]");
    p->request->room = nl_json_text(value);
    return NL_OK;
}

static enum nl_error read_lobby(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, NL_NAME_MAX) || !is_name(nl_json_text(value)))
        return bad_field(p, name, "a lobby is 1 to 128 characters of [a-zA-Z0-9_:-]");
    p->request->lobby = nl_json_text(value);
    return NL_OK;
}

static enum nl_error read_actor(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, NL_ACTOR_MAX) || has_control(nl_json_text(value)))
        return bad_field(p, name, "actorTokenId is a string of 1 to 256 bytes without control characters");
    p->request->actor = nl_json_text(value);
    return NL_OK;
}

/* One of the one-key objects that stand for something else in a publish. */
static bool is_tag(struct json_object *value) {
    static const char *const tags[] = {"$bytes", "$str", "$float", "$ext", "$map", "$esc"};

    if (json_object_object_length(value) != 1)
        return false;
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
        if (json_object_object_get_ex(value, tags[i], NULL))
            return true;
    return false;
}

/* What is wrong with the value as a part of presence data; NULL when nothing is. */
static const char *presence_problem(struct json_object *value, unsigned depth) {
    const char *why = NULL;

    if (!json_object_is_type(value, json_type_object) && !json_object_is_type(value, json_type_array))
        return NULL;
    if (depth == 0)
        return "presence data nests at most 32 levels deep";
    if (json_object_is_type(value, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(value) && why == NULL; i++)
            why = presence_problem(json_object_array_get_idx(value, i), depth - 1);
        return why;
    }
    if (is_tag(value))
        return "presence data is plain JSON; the $ tags are for the data of a publish";
    json_object_object_foreach(value, name, member) {
        (void)name;
        why = why != NULL ? why : presence_problem(member, depth - 1);
    }
    return why;
}

/* Null stands for none. The broker takes anything, but who reads presence expects a map. */
static enum nl_error read_presence(struct parse *p, const char *name, struct json_object *value) {
    const char *why;

    if (value != NULL && !json_object_is_type(value, json_type_object))
        return bad_field(p, name, "presence data is an object, or null to clear it");
    why = presence_problem(value, NL_PRESENCE_DEPTH);
    if (why != NULL)
        return refuse(p, NL_ERROR_BAD_PAYLOAD, NULL, why);
    return read_data(p, name, value);
}

static enum nl_error read_ack(struct parse *p, const char *name, struct json_object *value) {
    struct nl_slice text =
        json_object_is_type(value, json_type_string) ? nl_json_text(value) : nl_slice_str("");

    if (nl_slice_equal(text, nl_slice_str("manual")))
        p->request->ack = NL_ACK_MANUAL;
    else if (nl_slice_equal(text, nl_slice_str("auto")))
        p->request->ack = NL_ACK_AUTO;
    else
        return bad_field(p, name, "ack is \"auto\" or \"manual\"");
    return NL_OK;
}

/* An integer of 1 or more; 0 when it is something else. */
static uint64_t positive(struct json_object *value) {
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 1)
        return 0;
    return json_object_get_uint64(value);
}

static enum nl_error read_prefetch(struct parse *p, const char *name, struct json_object *value) {
    uint64_t n = positive(value);

    if (n == 0 || n > NL_PREFETCH_MAX)
        return bad_field(p, name, "prefetch is an integer from 1 to 10000");
    p->request->prefetch = (uint32_t)n;
    return NL_OK;
}

static enum nl_error read_ack_id(struct parse *p, const char *name, struct json_object *value) {
    p->request->ack_id = positive(value);
    return p->request->ack_id != 0 ? NL_OK
                                   : bad_field(p, name, "ackId is the integer that came with a message");
}

static enum nl_error read_msg_id(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, NL_MSG_ID_MAX))
        return bad_field(p, name, "msgId is a string of 1 to 256 bytes, as it came with a message");
    p->request->msg_id = nl_json_text(value);
    return NL_OK;
}

static bool is_batch(struct json_object *value) {
    return json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0 &&
           json_object_array_length(value) <= NL_ACKS_IN_BATCH;
}

static enum nl_error read_ack_ids(struct parse *p, const char *name, struct json_object *value) {
    bool good = is_batch(value);

    for (size_t i = 0; good && i < json_object_array_length(value); i++)
        good = positive(json_object_array_get_idx(value, i)) != 0;
    p->request->ack_ids = value;
    return good ? NL_OK
                : bad_field(p, name, "ackIds is a list of 1 to 1000 integers that came with messages");
}

static enum nl_error read_msg_ids(struct parse *p, const char *name, struct json_object *value) {
    bool good = is_batch(value);

    for (size_t i = 0; good && i < json_object_array_length(value); i++)
        good = is_text(json_object_array_get_idx(value, i), NL_MSG_ID_MAX);
    p->request->msg_ids = value;
    return good ? NL_OK : bad_field(p, name, "msgIds is a list of 1 to 1000 strings, each of 1 to 256 bytes");
}

static enum nl_error read_session(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, NL_NAME_MAX) || has_control(nl_json_text(value)))
        return bad_field(p, name, "session is the name of a configured session");
    p->request->session = nl_json_text(value);
    return NL_OK;
}

static enum nl_error read_token(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, NL_TOKEN_MAX) || has_control(nl_json_text(value)))
        return bad_field(p, name, "token is a string of 1 to 4096 bytes without control characters");
    p->request->token = nl_json_text(value);
    return NL_OK;
}

/* The bit of an event type's name; 0 = there is none of this name. */
static unsigned event_bit(struct json_object *name) {
    if (!json_object_is_type(name, json_type_string))
        return 0;
    for (unsigned e = 0; e < NL_EVENT_COUNT; e++)
        if (nl_slice_equal(nl_json_text(name), nl_slice_str(nl_event_name((enum nl_event)e))))
            return 1u << e;
    return 0;
}

static enum nl_error read_only(struct parse *p, const char *name, struct json_object *value) {
    unsigned only = 0;

    if (!json_object_is_type(value, json_type_array))
        return bad_field(p, name, "only is a list of event types");
    for (size_t i = 0; i < json_object_array_length(value); i++) {
        unsigned bit = event_bit(json_object_array_get_idx(value, i));
        if (bit == 0)
            return bad_field(p, name, "only holds something that is no event type; see PROTOCOL.md");
        only |= bit;
    }
    p->request->only = only;
    return NL_OK;
}

static enum nl_error read_late_join(struct parse *p, const char *name, struct json_object *value) {
    if (!is_text(value, 16) || !nl_slice_equal(nl_json_text(value), nl_slice_str("none")))
        return bad_field(p, name, "lateJoin is \"none\", or left out");
    p->request->late_join_none = true;
    return NL_OK;
}

static enum nl_error read_bigint(struct parse *p, const char *name, struct json_object *value) {
    bool string = is_text(value, 16) && nl_slice_equal(nl_json_text(value), nl_slice_str("string"));

    if (!string && !(is_text(value, 16) && nl_slice_equal(nl_json_text(value), nl_slice_str("number"))))
        return bad_field(p, name, "bigint is \"string\" or \"number\"");
    p->request->has_bigint = true;
    p->request->bigint_as_string = string;
    return NL_OK;
}

/* ---- the parts of every request ---- */

/* A value that could not be held as it was written is refused whichever field it is in. */
static enum nl_error check_held(struct parse *p, const char *name, struct json_object *value) {
    const char *why = nl_json_unheld(value);

    if (why == NULL)
        return NL_OK;
    return strcmp(name, "data") == 0 ? refuse(p, NL_ERROR_BAD_PAYLOAD, NULL, why) : bad_field(p, name, why);
}

static enum nl_error read_id(struct parse *p) {
    struct json_object *value;
    struct nl_buffer out;
    size_t len;

    if (!json_object_object_get_ex(p->request->object, "id", &value) || value == NULL)
        return NL_OK;
    if (nl_json_unheld(value) != NULL)
        return check_held(p, "id", value);
    nl_buffer_init(&out);
    if (json_object_is_type(value, json_type_string) &&
        (size_t)json_object_get_string_len(value) <= NL_ID_MAX)
        nl_json_string(&out, nl_json_text(value));
    else if (json_object_is_type(value, json_type_int) && json_object_get_int64(value) < 0)
        nl_json_int(&out, json_object_get_int64(value));
    else if (json_object_is_type(value, json_type_int))
        nl_json_uint(&out, json_object_get_uint64(value));
    if (out.len == 0 || out.len > NL_ID_MAX) {
        nl_buffer_deinit(&out);
        return bad_field(p, "id", "id is a string, or an integer of 64 bits, of at most 256 bytes as JSON");
    }
    nl_buffer_append_byte(&out, '\0');
    p->request->id = (char *)nl_buffer_take(&out, &len);
    return NL_OK;
}

/* Who has no type may have taken the socket for one of another protocol. */
static enum nl_error no_type(struct parse *p) {
    const char *hint = "every request has a \"type\"; see PROTOCOL.md for the request types";

    if (json_object_object_get_ex(p->request->object, "jsonrpc", NULL))
        hint = "this is not JSON-RPC: a request is {\"type\":...,\"id\":...}";
    else if (json_object_object_get_ex(p->request->object, "op", NULL))
        hint = "what to do is named by \"type\", not by \"op\"";
    return refuse(p, NL_ERROR_MISSING_FIELD, "type", hint);
}

/* Names what was asked for, if it is short and plain enough to be shown. */
static enum nl_error unknown_type(struct parse *p, struct nl_slice name) {
    char hint[sizeof(p->refusal->hint)];

    if (name.len == 0 || name.len > 40 || !is_name(name))
        return refuse(p, NL_ERROR_UNKNOWN_TYPE, NULL, NULL);
    snprintf(hint, sizeof(hint), "there is no request \"%.*s\"; see PROTOCOL.md", (int)name.len,
             (const char *)name.ptr);
    return refuse(p, NL_ERROR_UNKNOWN_TYPE, NULL, hint);
}

static enum nl_error read_type(struct parse *p) {
    struct json_object *value;

    if (!json_object_object_get_ex(p->request->object, "type", &value) || value == NULL)
        return no_type(p);
    if (nl_json_unheld(value) != NULL)
        return check_held(p, "type", value);
    if (!json_object_is_type(value, json_type_string))
        return bad_field(p, "type", "type is a string");
    for (int t = NL_REQUEST_NONE + 1; t < NL_REQUEST_COUNT; t++) {
        if (!nl_slice_equal(nl_json_text(value), nl_slice_str(kinds[t].name)))
            continue;
        p->request->type = (enum nl_request_type)t;
        return kinds[t].supported ? NL_OK : refuse(p, NL_ERROR_NOT_SUPPORTED, NULL, NULL);
    }
    return unknown_type(p, nl_json_text(value));
}

static enum nl_error missing_field(struct parse *p, const char *field) {
    char hint[sizeof(p->refusal->hint)];

    snprintf(hint, sizeof(hint), "%s needs \"%s\"", nl_request_name(p->request->type), field);
    return refuse(p, NL_ERROR_MISSING_FIELD, field, hint);
}

static enum nl_error read_fields(struct parse *p) {
    const struct request_kind *kind = &kinds[p->request->type];

    for (const struct field *f = kind->fields; f < kind->fields + FIELDS_MAX && f->name != NULL; f++) {
        struct json_object *value = NULL;
        bool there = json_object_object_get_ex(p->request->object, f->name, &value);
        enum nl_error error = NL_OK;

        /* null counts as absent, but for data: it is a payload like any other. */
        there = there && (value != NULL || f->read == read_data || f->read == read_presence);
        if (there)
            error = check_held(p, f->name, value);
        if (there && error == NL_OK)
            error = f->read(p, f->name, value);
        if (!there && f->needed)
            error = missing_field(p, f->name);
        if (error != NL_OK)
            return error;
    }
    return NL_OK;
}

/* ---- fields of other requests ---- */

static const struct field *find_field(const struct request_kind *kind, const char *name) {
    for (const struct field *f = kind->fields; f < kind->fields + FIELDS_MAX && f->name != NULL; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

/* The first type that has the field; NULL when none has it. */
static const char *home_of(const char *name) {
    for (int t = NL_REQUEST_NONE + 1; t < NL_REQUEST_COUNT; t++)
        if (find_field(&kinds[t], name) != NULL)
            return kinds[t].name;
    return NULL;
}

/* The field of this type of which name is the beginning, or which is the beginning of name. */
static const char *near_field(const struct request_kind *kind, const char *name) {
    for (const struct field *f = kind->fields; f < kind->fields + FIELDS_MAX && f->name != NULL; f++)
        if (strncmp(f->name, name, strlen(name)) == 0 || strncmp(f->name, name, strlen(f->name)) == 0)
            return f->name;
    return NULL;
}

static enum nl_error foreign_field(struct parse *p, const char *name, const char *home) {
    const struct request_kind *kind = &kinds[p->request->type];
    const char *near = near_field(kind, name);
    char hint[sizeof(p->refusal->hint)];

    if (near != NULL)
        snprintf(hint, sizeof(hint), "%s has no \"%s\" but \"%s\"", kind->name, name, near);
    else
        snprintf(hint, sizeof(hint), "%s has no \"%s\"; it is a field of %s", kind->name, name, home);
    return bad_field(p, name, hint);
}

/* Nobody writes a field of another request for nothing: left out, it would change what was asked. */
static enum nl_error check_foreign(struct parse *p) {
    const struct request_kind *kind = &kinds[p->request->type];

    json_object_object_foreach(p->request->object, name, value) {
        const char *home = value == NULL || find_field(kind, name) != NULL ? NULL : home_of(name);

        if (home != NULL)
            return foreign_field(p, name, home);
    }
    return NL_OK;
}

/* ---- rules beyond single fields ---- */

static enum nl_error check_publish(struct parse *p) {
    const char *why = NULL;
    enum nl_error error;

    if (p->filter != NULL && p->filters != NULL)
        return bad_field(p, "filters", "give filter or filters, not both");
    error = nl_publish_filter_key(&p->request->filter_key, p->filter, p->filters, &why);
    return error == NL_OK ? NL_OK : refuse(p, error, p->filter != NULL ? "filter" : "filters", why);
}

static enum nl_error check_subscribe(struct parse *p) {
    struct nl_request *r = p->request;

    if (r->group.ptr != NULL && !r->load_balance)
        return bad_field(p, "loadBalanceGroup", "loadBalanceGroup needs \"loadBalance\":true");
    if (r->prefetch != 0 && r->ack != NL_ACK_MANUAL)
        return bad_field(p, "prefetch", "prefetch needs \"ack\":\"manual\"");
    if (!nl_slice_equal(r->topic, nl_slice_str("*")))
        return NL_OK;
    if (r->ack == NL_ACK_MANUAL)
        return bad_field(p, "ack", "the tap acknowledges nothing");
    if (r->filters.count > 0)
        return bad_field(p, "filters", "the tap takes no filters");
    if (r->late_join_none)
        return bad_field(p, "lateJoin",
                         "the tap asks the broker for nothing, so there is nothing to join late");
    return r->load_balance ? bad_field(p, "loadBalance", "the tap is not load-balanced") : NL_OK;
}

static enum nl_error check_auth(struct parse *p) {
    bool session = p->request->session.ptr != NULL, token = p->request->token.ptr != NULL;

    if (session && token)
        return bad_field(p, "token", "give session or token, not both");
    return session || token ? NL_OK
                            : refuse(p, NL_ERROR_MISSING_FIELD, "session", "auth needs session or token");
}

/* One of two fields, of which one is an id of ours and the other the broker's. */
static enum nl_error check_ack(struct parse *p, const char *ours, bool has_ours, const char *other,
                               bool has_other) {
    char hint[sizeof(p->refusal->hint)];

    if (has_ours != has_other)
        return NL_OK;
    snprintf(hint, sizeof(hint), "%s has %s or %s%s", nl_request_name(p->request->type), ours, other,
             has_ours ? ", not both" : "");
    return refuse(p, has_ours ? NL_ERROR_BAD_FIELD : NL_ERROR_MISSING_FIELD, ours, hint);
}

static enum nl_error check_rules(struct parse *p) {
    switch (p->request->type) {
    case NL_REQUEST_PUBLISH:
        return check_publish(p);
    case NL_REQUEST_SUBSCRIBE:
        return check_subscribe(p);
    case NL_REQUEST_AUTH:
        return check_auth(p);
    case NL_REQUEST_ACK:
        return check_ack(p, "ackId", p->request->ack_id != 0, "msgId", p->request->msg_id.ptr != NULL);
    case NL_REQUEST_BATCH_ACK:
        return check_ack(p, "ackIds", p->request->ack_ids != NULL, "msgIds", p->request->msg_ids != NULL);
    default:
        return NL_OK;
    }
}

/* ---- all together ---- */

static void copy_text(char *to, struct nl_slice text) {
    memcpy(to, text.ptr, text.len);
    to[text.len] = '\0';
}

/* The topic and, of a publish, the msgRef tell the client which of its requests failed. */
static void note_names(struct parse *p) {
    struct json_object *value;

    if (json_object_object_get_ex(p->request->object, "topic", &value) &&
        json_object_is_type(value, json_type_string) && nl_topic_valid(nl_json_text(value)))
        copy_text(p->refusal->topic, nl_json_text(value));
    if (p->request->type == NL_REQUEST_PUBLISH &&
        json_object_object_get_ex(p->request->object, "msgRef", &value) && is_msg_ref(value))
        copy_text(p->refusal->msg_ref, nl_json_text(value));
}

static enum nl_error parse_object(struct parse *p) {
    enum nl_error id_error = read_id(p); /* first, so that any refusal has the id */
    enum nl_error error = read_type(p);  /* a wrong type is told rather than a wrong id */

    if (error == NL_OK)
        error = id_error;
    if (error == NL_OK)
        error = read_fields(p);
    if (error == NL_OK)
        error = check_foreign(p);
    if (error == NL_OK)
        error = check_rules(p);
    return error;
}

/* A line that is no request: where it fails is told, as far as there is such a place. */
static enum nl_error refuse_line(struct parse *p, enum nl_error error, const struct nl_json_fault *fault) {
    char hint[sizeof(p->refusal->hint)];

    if (fault->why == NULL)
        return refuse(p, error, NULL, NULL);
    snprintf(hint, sizeof(hint), "byte %zu: %s", fault->at, fault->why);
    return refuse(p, error, NULL, hint);
}

enum nl_error nl_request_parse(struct nl_slice line, unsigned max_depth, struct nl_request *out,
                               struct nl_refusal *refusal) {
    struct parse p = {.request = out, .refusal = refusal};
    struct nl_json_fault fault;
    enum nl_error error;

    *out = (struct nl_request){.qos = -1, .only = (1u << NL_EVENT_COUNT) - 1};
    *refusal = (struct nl_refusal){0};
    error = nl_json_parse_line(line, max_depth, &out->object, &fault);
    if (error != NL_OK)
        return refuse_line(&p, error, &fault);
    error = parse_object(&p);
    if (error == NL_OK)
        return NL_OK;
    note_names(&p);
    refusal->type = out->type;
    refusal->id = out->id;
    out->id = NULL;
    nl_request_deinit(out);
    *out = (struct nl_request){0};
    return error;
}

/* The tree's copy of a token that was shown; the line itself is the reader's. */
static void wipe_token(struct nl_request *r) {
    struct json_object *token = NULL;

    json_object_object_get_ex(r->object, "token", &token);
    if (json_object_is_type(token, json_type_string))
        explicit_bzero((void *)(uintptr_t)nl_json_text(token).ptr, nl_json_text(token).len);
}

void nl_request_deinit(struct nl_request *r) {
    wipe_token(r);
    json_object_put(r->object);
    free(r->id);
    nl_filters_deinit(&r->filters);
    free(r->filter_key);
}

void nl_refusal_deinit(struct nl_refusal *r) {
    free(r->id);
    r->id = NULL;
}
