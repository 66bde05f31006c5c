/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames of the NoLag broker protocol: one MessagePack map per WebSocket frame,
 * with a "type" and fields (see PROTOCOL.md for where each comes from). One table of
 * fields drives both directions: nl_frame_decode() fills a struct of views into the
 * received bytes, nl_frame_encode() writes a struct back as bytes. No tree is built and
 * nothing is copied.
 *
 * A heartbeat is an empty frame; it is the link's business and never comes here.
 */
#ifndef NL_PROTOCOL_FRAME_H
#define NL_PROTOCOL_FRAME_H

#include <stdbool.h>

#include "protocol/buffer.h"
#include "protocol/scan.h"

/* X(enumerator, "wire name") */
#define NL_FRAME_TYPES(X)                                                                                    \
    X(AUTH, "auth")                                                                                          \
    X(SUBSCRIBE, "subscribe")                                                                                \
    X(SUBSCRIBED, "subscribed")                                                                              \
    X(UNSUBSCRIBE, "unsubscribe")                                                                            \
    X(UNSUBSCRIBED, "unsubscribed")                                                                          \
    X(SET_FILTERS, "setFilters")                                                                             \
    X(FILTERS_UPDATED, "filtersUpdated")                                                                     \
    X(PUBLISH, "publish")                                                                                    \
    X(PUBLISHED, "published")                                                                                \
    X(MESSAGE, "message")                                                                                    \
    X(ACK, "ack")                                                                                            \
    X(BATCH_ACK, "batchAck")                                                                                 \
    X(ERROR, "error")                                                                                        \
    X(PRESENCE, "presence")                                                                                  \
    X(GET_PRESENCE, "getPresence")                                                                           \
    X(PRESENCE_LIST, "presenceList")                                                                         \
    X(LOBBY_SUBSCRIBE, "lobbySubscribe")                                                                     \
    X(LOBBY_SUBSCRIBED, "lobbySubscribed")                                                                   \
    X(LOBBY_UNSUBSCRIBE, "lobbyUnsubscribe")                                                                 \
    X(LOBBY_UNSUBSCRIBED, "lobbyUnsubscribed")                                                               \
    X(GET_LOBBY_PRESENCE, "getLobbyPresence")                                                                \
    X(LOBBY_PRESENCE_LIST, "lobbyPresenceList")                                                              \
    X(LOBBY_PRESENCE, "lobbyPresence")                                                                       \
    X(HYDRATION, "hydration")                                                                                \
    X(REPLAY_START, "replayStart")                                                                           \
    X(REPLAY_END, "replayEnd")

enum nl_frame_type {
    NL_FRAME_UNKNOWN, /* a map whose "type" is absent, not a string, or none of these */
#define X(name, wire) NL_FRAME_##name,
    NL_FRAME_TYPES(X)
#undef X
};

/*
 * X(member, "wire name", kind). Kinds: STR a UTF-8 string (a slice of its bytes, without
 * the MessagePack header); BOOL; INT a signed 64-bit integer; RAW any value (a slice of
 * its MessagePack bytes, header included). A field of another type than its kind is as
 * if absent, except that nl_frame.mistyped counts it.
 */
#define NL_FRAME_FIELDS(X)                                                                                   \
    X(topic, "topic", STR)                                                                                   \
    X(data, "data", RAW)                                                                                     \
    X(filter, "filter", RAW)                                                                                 \
    X(filters, "filters", RAW)                                                                               \
    X(msg_id, "msgId", STR)                                                                                  \
    X(msg_ids, "msgIds", RAW)                                                                                \
    X(msg_ref, "msgRef", STR)                                                                                \
    X(requires_ack, "requiresAck", BOOL)                                                                     \
    X(is_replay, "isReplay", BOOL)                                                                           \
    X(qos, "qos", INT)                                                                                       \
    X(retain, "retain", BOOL)                                                                                \
    X(echo, "echo", BOOL)                                                                                    \
    X(load_balance, "loadBalance", BOOL)                                                                     \
    X(load_balance_group, "loadBalanceGroup", STR)                                                           \
    X(error, "error", STR)                                                                                   \
    X(code, "code", INT)                                                                                     \
    X(hint, "hint", STR)                                                                                     \
    X(max_size_bytes, "maxSizeBytes", INT)                                                                   \
    X(token, "token", STR)                                                                                   \
    X(protocol_version, "protocolVersion", INT)                                                              \
    X(reconnect, "reconnect", BOOL)                                                                          \
    X(success, "success", BOOL)                                                                              \
    X(actor_token_id, "actorTokenId", STR)                                                                   \
    X(project_id, "projectId", STR)                                                                          \
    X(actor_type, "actorType", STR)                                                                          \
    X(restored, "restoredSubscriptions", RAW)                                                                \
    X(room_id, "roomId", STR)                                                                                \
    X(lobby_id, "lobbyId", STR)                                                                              \
    X(actor_id, "actorId", STR)                                                                              \
    X(presence, "presence", RAW)                                                                             \
    X(event, "event", STR)                                                                                   \
    X(count, "count", INT)                                                                                   \
    X(replayed, "replayed", INT)

enum nl_frame_field {
#define X(member, wire, kind) NL_FIELD_##member,
    NL_FRAME_FIELDS(X)
#undef X
        NL_FIELD_COUNT
};

#define NL_FRAME_MEMBER_STR struct nl_slice
#define NL_FRAME_MEMBER_RAW struct nl_slice
#define NL_FRAME_MEMBER_BOOL bool
#define NL_FRAME_MEMBER_INT int64_t

struct nl_frame {
    enum nl_frame_type type;
    uint64_t has;          /* bit NL_FIELD_x is set when member x is present */
    unsigned mistyped;     /* known fields of a wrong type */
    unsigned extra;        /* fields that are not in the table */
    struct nl_slice whole; /* the frame's bytes; set by decode, not read by encode */
#define X(member, wire, kind) NL_FRAME_MEMBER_##kind member;
    NL_FRAME_FIELDS(X)
#undef X
};

#define NL_FRAME_HAS(frame, member) (((frame)->has >> NL_FIELD_##member) & 1u)
/* Sets a member and marks it present: NL_FRAME_SET(&f, topic, slice). */
#define NL_FRAME_SET(frame, member, value)                                                                   \
    ((void)((frame)->member = (value), (frame)->has |= UINT64_C(1) << NL_FIELD_##member))

/*
 * Reads one frame. The views live as long as bytes. Returns NL_SCAN_OK, or why the
 * bytes are refused; trailing bytes are NL_SCAN_INVALID, and so is a frame that is not
 * a map. Duplicate keys: the last one counts.
 */
enum nl_scan_result nl_frame_decode(struct nl_slice bytes, struct nl_frame *out);

/* Appends the frame: "type" first, then the present fields in table order. */
void nl_frame_encode(const struct nl_frame *frame, struct nl_buffer *out);

/* The wire name of a type; NULL for NL_FRAME_UNKNOWN. */
const char *nl_frame_type_name(enum nl_frame_type type);

/* The string value of a RAW slice that is a MessagePack str: true and *out, else false. */
bool nl_raw_string(struct nl_slice raw, struct nl_slice *out);

/*
 * Walks a RAW slice that is an array: start with an iterator from nl_raw_array(), then
 * call next until it returns false. For anything but an array nl_raw_array() is false.
 */
struct nl_raw_iter {
    struct nl_slice rest;
    uint32_t left;
};
bool nl_raw_array(struct nl_slice raw, struct nl_raw_iter *it);
bool nl_raw_next(struct nl_raw_iter *it, struct nl_slice *item);

/*
 * The same for a map; each step gives a key and its value as RAW slices.
 */
bool nl_raw_map(struct nl_slice raw, struct nl_raw_iter *it);
bool nl_raw_next_pair(struct nl_raw_iter *it, struct nl_slice *key, struct nl_slice *value);

/* Appends a MessagePack str, int, bool or container header to out (shortest form). */
void nl_pack_str(struct nl_buffer *out, struct nl_slice s);
void nl_pack_int(struct nl_buffer *out, int64_t v);
void nl_pack_uint(struct nl_buffer *out, uint64_t v);
void nl_pack_bool(struct nl_buffer *out, bool v);
void nl_pack_array(struct nl_buffer *out, uint32_t count);
void nl_pack_map(struct nl_buffer *out, uint32_t count);

#endif
