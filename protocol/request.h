/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of local clients. One table says for each type which fields it has, of which
 * kind, in which range and whether they are needed; nl_request_parse() checks a line
 * against it, so that the rest of the daemon sees only well-formed requests. Fields that no
 * request has are ignored; a field of other requests only is refused, as what was meant by
 * it would be left out silently.
 *
 * The broker closes the connection that all clients share, or never answers, when a field
 * has a wrong type or holds what it does not expect; nothing of that kind may pass here.
 */
#ifndef NL_PROTOCOL_REQUEST_H
#define NL_PROTOCOL_REQUEST_H

#include <json-c/json.h>
#include <stdbool.h>

#include "protocol/buffer.h"
#include "protocol/errors.h"
#include "protocol/filter.h"
#include "protocol/topic.h"

/* X(enumerator, "wire name", supported): unsupported types are recognised and refused with NOT_SUPPORTED. */
#define NL_REQUESTS(X)                                                                                       \
    X(HELLO, "hello", 1)                                                                                     \
    X(AUTH, "auth", 1)                                                                                       \
    X(PING, "ping", 1)                                                                                       \
    X(STATUS, "status", 1)                                                                                   \
    X(SESSIONS, "sessions", 1)                                                                               \
    X(EVENTS, "events", 1)                                                                                   \
    X(SUBSCRIBE, "subscribe", 1)                                                                             \
    X(UNSUBSCRIBE, "unsubscribe", 1)                                                                         \
    X(SET_FILTERS, "setFilters", 1)                                                                          \
    X(ADD_FILTERS, "addFilters", 1)                                                                          \
    X(REMOVE_FILTERS, "removeFilters", 1)                                                                    \
    X(PUBLISH, "publish", 1)                                                                                 \
    X(ACK, "ack", 1)                                                                                         \
    X(BATCH_ACK, "batchAck", 1)                                                                              \
    X(PRESENCE, "presence", 1)                                                                               \
    X(CLEAR_PRESENCE, "clearPresence", 1)                                                                    \
    X(GET_PRESENCE, "getPresence", 1)                                                                        \
    X(GET_ACTOR, "getActor", 1)                                                                              \
    X(LIST_PRESENCE, "listPresence", 1)                                                                      \
    X(WATCH_PRESENCE, "watchPresence", 1)                                                                    \
    X(UNWATCH_PRESENCE, "unwatchPresence", 1)                                                                \
    X(LOBBY_SUBSCRIBE, "lobbySubscribe", 1)                                                                  \
    X(LOBBY_UNSUBSCRIBE, "lobbyUnsubscribe", 1)                                                              \
    X(GET_LOBBY_PRESENCE, "getLobbyPresence", 1)                                                             \
    X(CLIENTS, "clients", 0)                                                                                 \
    X(STATS, "stats", 0)                                                                                     \
    X(API, "api", 0)

enum nl_request_type {
    NL_REQUEST_NONE, /* the type could not be read */
#define X(name, wire, supported) NL_REQUEST_##name,
    NL_REQUESTS(X)
#undef X
        NL_REQUEST_COUNT
};

#define NL_ID_MAX 256         /* bytes of an id's JSON text, quotes included */
#define NL_MSG_REF_MAX 256    /* bytes of a msgRef */
#define NL_NAME_MAX 128       /* bytes of the name of a session, group, room or lobby */
#define NL_ACTOR_MAX 256      /* bytes of an actorTokenId */
#define NL_MSG_ID_MAX 256     /* bytes of a msgId that is acknowledged */
#define NL_ACKS_IN_BATCH 1000 /* in one batchAck */
#define NL_PREFETCH_MAX 10000
#define NL_TOKEN_MAX 4096 /* bytes of a token */

/*
 * What presence data may be. The broker hands it on within its own maps and lists, to be read by everybody
 * in the room, and sends all of a room in one frame: so it nests and weighs far less than a frame can.
 */
#define NL_PRESENCE_DEPTH 32
#define NL_PRESENCE_MAX 65536 /* bytes, packed */

/* Event types that {"type":"events","only":[...]} can choose. X(enumerator, "wire name") */
#define NL_EVENTS(X)                                                                                         \
    X(MESSAGE, "message")                                                                                    \
    X(PRESENCE, "presence")                                                                                  \
    X(LOBBY_PRESENCE, "lobbyPresence")                                                                       \
    X(HYDRATION, "hydration")                                                                                \
    X(REPLAY_START, "replayStart")                                                                           \
    X(REPLAY_END, "replayEnd")                                                                               \
    X(CONNECT, "connect")                                                                                    \
    X(DISCONNECT, "disconnect")                                                                              \
    X(RECONNECT, "reconnect")                                                                                \
    X(SHUTDOWN, "shutdown")                                                                                  \
    X(DROPPED, "dropped")                                                                                    \
    X(ERROR, "error")

enum nl_event {
#define X(name, wire) NL_EVENT_##name,
    NL_EVENTS(X)
#undef X
        NL_EVENT_COUNT
};

/* How a subscription acknowledges. */
enum nl_ack_manner { NL_ACK_UNSAID, NL_ACK_AUTO, NL_ACK_MANUAL };

/*
 * A checked request. The slices and json pointers are views into object; the struct owns
 * object, id, filters and filter_key. Which members mean something follows from type.
 */
struct nl_request {
    enum nl_request_type type;
    struct json_object *object;
    char *id; /* its JSON text: digits, or a quoted string; NULL when there is none */

    struct nl_slice
        topic; /* subscribe, unsubscribe, *Filters, publish; "*" only for subscribe and unsubscribe */
    struct nl_slice session;  /* auth: ptr NULL when absent */
    struct nl_slice token;    /* auth: ptr NULL when absent */
    struct nl_slice room;     /* presence requests: ptr NULL when absent */
    struct nl_slice lobby;    /* lobby requests */
    struct nl_slice actor;    /* getActor */
    struct json_object *data; /* publish, presence: NULL is JSON null, see has_data */
    bool has_data;
    struct nl_filters filters;             /* subscribe, *Filters */
    char *filter_key;                      /* publish: NULL when it has no filter */
    struct nl_slice msg_ref;               /* publish: ptr NULL when absent */
    int qos;                               /* 0 to 2; -1 when absent */
    bool retain;                           /* publish */
    bool load_balance;                     /* subscribe */
    bool late_join_none;                   /* subscribe: "lateJoin":"none" */
    struct nl_slice group;                 /* subscribe: ptr NULL when absent */
    enum nl_ack_manner ack;                /* subscribe */
    uint32_t prefetch;                     /* subscribe: 0 when absent */
    uint64_t ack_id;                       /* ack: 0 when absent */
    struct nl_slice msg_id;                /* ack: ptr NULL when absent */
    struct json_object *ack_ids, *msg_ids; /* batchAck: lists of such; NULL when absent */
    unsigned only;         /* events: bit NL_EVENT_x for each chosen one; all when "only" is absent or null */
    bool bigint_as_string; /* hello: "bigint":"string" */
    bool has_bigint;
};

/* The answer to a line that could not be used: all that the client is told about it. */
struct nl_refusal {
    enum nl_error error;
    enum nl_request_type type;        /* NL_REQUEST_NONE when not known */
    char *id;                         /* for free(); NULL when there is none or it was not readable */
    char field[32];                   /* the offending field, or "" */
    char hint[160];                   /* for this case; "" = the error's default hint */
    char topic[NL_TOPIC_MAX + 1];     /* the topic, when it is a valid one; or "" */
    char msg_ref[NL_MSG_REF_MAX + 1]; /* of a publish, when it is a valid one; or "" */
};

/*
 * Parses and checks one line. Returns NL_OK with *out filled (free with
 * nl_request_deinit()), or an error with *refusal filled (free with nl_refusal_deinit())
 * and nothing in *out to free.
 *
 * id: a string, or an integer of 64 bits, of at most NL_ID_MAX bytes as JSON text.
 * Rules beyond single fields: subscribe to "*" takes no filters, no loadBalance and no lateJoin;
 * publish needs data, and has filter or filters, not both; auth has session or token, not
 * both and not neither; a token and a session name hold no control characters.
 * qos is an integer 0 to 2; retain, echo, loadBalance are booleans; lateJoin is "none"; msgRef is a string of
 * 1 to NL_MSG_REF_MAX bytes; loadBalanceGroup is a string of 1 to NL_NAME_MAX bytes of [a-zA-Z0-9_:-], and
 * only with loadBalance true; roomId and lobbyId are such names too. presence needs data: null, or an object
 * of at most NL_PRESENCE_DEPTH levels that holds none of the tags of a publish's data. ack is "auto" or
 * "manual"; prefetch is 1 to NL_PREFETCH_MAX, and only with "ack":"manual". ack has ackId (an integer of 1 or
 * more) or msgId (a string of 1 to NL_MSG_ID_MAX bytes); batchAck has ackIds or msgIds, lists of 1 to
 * NL_ACKS_IN_BATCH of these. JSON null counts as absent for every field but data. What is JSON but cannot be
 * held (see nl_json_parse_line()) is BAD_PAYLOAD in data, BAD_FIELD in another field, and ignored in one that
 * no request has.
 */
enum nl_error nl_request_parse(struct nl_slice line, unsigned max_depth, struct nl_request *out,
                               struct nl_refusal *refusal);
void nl_request_deinit(struct nl_request *r);
void nl_refusal_deinit(struct nl_refusal *r);

const char *nl_request_name(enum nl_request_type type); /* NULL for NL_REQUEST_NONE */
const char *nl_event_name(enum nl_event event);

#endif
