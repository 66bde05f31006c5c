/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one actor token's presence at the broker, shared by local clients. It owns the
 * wishes (subscriptions.h), the publishes (outbox.h), presence (presence.h) and lobbies (lobbies.h), and
 * drives the life of its link, of which it has at most one:
 *
 *   WAITING -> CONNECTING -> AUTHENTICATING -> RESTORING -> LIVE
 *      ^            |              |               |          |
 *      +------------+----- (the link is closed) ---+----------+      any -> STOPPED
 *
 * The link itself (sockets, TLS, frames on the wire) is on the I/O side; it is asked for by ops and reports
 * by nl_session_link_*(). Nothing here knows a loop or a clock: now_ms is monotonic, nl_session_next() says
 * when nl_session_run() is due.
 *
 * Callbacks must not call back into the session; they queue lines or start I/O.
 */
#ifndef NL_MODEL_SESSION_H
#define NL_MODEL_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/settings.h"
#include "daemon/model/liveness.h"
#include "daemon/model/peer.h"
#include "protocol/line.h"
#include "protocol/object.h"
#include "protocol/request.h"

enum nl_session_state {
    NL_SESSION_WAITING, /* for the next attempt; the first one at once */
    NL_SESSION_CONNECTING,
    NL_SESSION_AUTHENTICATING,
    NL_SESSION_RESTORING, /* subscribing again to everything wished */
    NL_SESSION_LIVE,
    NL_SESSION_CLOSING, /* the link was told to close and has not yet */
    NL_SESSION_STOPPED, /* no further attempt */
};

/* Why a session is not connected; the same list is in PROTOCOL.md. X(enumerator, "wire name") */
#define NL_REASONS(X)                                                                                        \
    X(STARTING, "starting")                                                                                  \
    X(DNS, "dns")                                                                                            \
    X(CONNECT, "connect")                                                                                    \
    X(TLS, "tls")                                                                                            \
    X(UPGRADE, "upgrade")                                                                                    \
    X(AUTH, "auth")                                                                                          \
    X(ACCESS_DENIED, "access_denied")                                                                        \
    X(HEARTBEAT_TIMEOUT, "heartbeat_timeout")                                                                \
    X(CLOSED, "closed")                                                                                      \
    X(LOST, "lost")                                                                                          \
    X(REVOKED, "revoked")                                                                                    \
    X(CONNECTION_LIMIT, "connection_limit")                                                                  \
    X(PROTOCOL, "protocol")                                                                                  \
    X(ATTEMPTS, "attempts")                                                                                  \
    X(STOPPED, "stopped")

enum nl_reason {
#define X(name, wire) NL_REASON_##name,
    NL_REASONS(X)
#undef X
};

const char *nl_reason_name(enum nl_reason reason);
const char *nl_session_state_name(enum nl_session_state state); /* for the log */

/* How a link ended. */
struct nl_ending {
    enum nl_reason reason;
    int close_code;          /* WebSocket close code; 0 = none */
    bool slow;               /* will not go away by itself: try again slowly */
    uint64_t retry_after_ms; /* the broker asked to wait; 0 = it did not */
    char detail[160];        /* for people; "" = none */
};

struct nl_session_ops {
    /* Opens a link. nl_session_link_closed() comes once for each call, later. */
    void (*connect)(void *ctx);
    /* Closes the link; nl_session_link_closed() comes later. */
    void (*disconnect)(void *ctx);
    /* Queues one frame; false = no room. An empty frame (heartbeat) always fits. */
    bool (*send)(void *ctx, struct nl_slice frame);
    /* What of it has arrived. Asked in the turns after a heartbeat. */
    struct nl_arrival (*arrival)(void *ctx);
    /* How long to wait before connecting, by the limit over all sessions; 0 = go, and one connect is counted.
     */
    uint64_t (*connect_delay)(void *ctx, uint64_t now_ms);
    /* A line for a client: the answer to a request, or an event. Takes over line. */
    void (*answer)(void *ctx, struct nl_peer *peer, struct nl_line *line);
    void (*event)(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line);
    /* The state has changed; ending is not NULL when the link ended. */
    void (*changed)(void *ctx, enum nl_session_state from, enum nl_session_state to,
                    const struct nl_ending *ending);
    /* A publish of this user was given up: it made the broker close the link. For the log. */
    void (*rejected)(void *ctx, uid_t uid, const char *topic);
    /* nl_session_run() is to be called in this turn, or the next. */
    void (*wake)(void *ctx);
    uint64_t (*random)(void *ctx);
    int64_t (*unix_time)(void *ctx); /* seconds */
    void *ctx;
};

struct nl_session_stats {
    uint64_t connects; /* links that became live */
    uint64_t attempts; /* since the last one that did */
    uint64_t frames_received;
    uint64_t messages;   /* message frames received */
    uint64_t delivered;  /* lines given to clients for them */
    uint64_t foreign;    /* messages for a topic that nobody asked for */
    uint64_t unexpected; /* frames that could not be read or fit nothing */
    uint64_t swallowed;  /* own retained messages that came back */
};

/*
 * config is borrowed and must outlive the session; config->token is sent in auth and nowhere else.
 * named: it is a configured session, whose name may be told.
 */
struct nl_session *nl_session_new(const struct nl_session_config *config, bool named,
                                  const struct nl_daemon_config *limits, const struct nl_session_ops *ops,
                                  uint64_t now_ms);
struct nl_session *
nl_session_free(struct nl_session *s); /* asserts that no peer is attached and no link open */

const char *nl_session_name(const struct nl_session *s); /* NULL when it is not a configured one */
const struct nl_session_config *nl_session_config(const struct nl_session *s);
void *nl_session_owner(const struct nl_session *s); /* ops.ctx */
enum nl_session_state nl_session_state(const struct nl_session *s);
const struct nl_ending *
nl_session_ending(const struct nl_session *s); /* of the last link; reason STARTING before */
const struct nl_session_stats *nl_session_stats(const struct nl_session *s);
uint64_t nl_session_outbox_messages(const struct nl_session *s);

/* Is the session authenticated, so that requests reach the broker now? */
bool nl_session_up(const struct nl_session *s);

/* Peers come and go; a leaving one gives up everything. nl_session_first_peer() walks them by session_next.
 */
void nl_session_attach(struct nl_session *s, struct nl_peer *peer);
void nl_session_detach(struct nl_session *s, struct nl_peer *peer, uint64_t now_ms);
struct nl_peer *nl_session_first_peer(const struct nl_session *s);

/*
 * A client's subscribe, unsubscribe, *Filters, publish, or request about presence and lobbies. Permission was
 * asked before. The answer comes by ops.answer. Call nl_session_run() before the loop waits again.
 */
void nl_session_request(struct nl_session *s, struct nl_peer *peer, struct nl_request *request,
                        uint64_t now_ms);

/* A client's ack or batchAck; its answer, if any, comes at once. */
void nl_session_acknowledge(struct nl_session *s, struct nl_peer *peer, const struct nl_request *request);

/* What the link reports. */
void nl_session_link_opened(struct nl_session *s, uint64_t now_ms);
void nl_session_link_frame(struct nl_session *s, struct nl_slice frame, uint64_t now_ms);
void nl_session_link_closed(struct nl_session *s, const struct nl_ending *ending, uint64_t now_ms);

/* The host was suspended: ask for a heartbeat at once. */
void nl_session_resumed(struct nl_session *s, uint64_t now_ms);

/*
 * Does what is due. What the broker has not sent in time is missed at the second run after its deadline only:
 * let the loop read in between.
 */
void nl_session_run(struct nl_session *s, uint64_t now_ms);
uint64_t nl_session_next(const struct nl_session *s, uint64_t now_ms); /* UINT64_MAX = nothing */

/* Every request that has no answer yet, publish or not, is answered with this error now. */
void nl_session_fail_all(struct nl_session *s, enum nl_error error, uint64_t now_ms);

/* Ends it: what waits fails with shutting_down, the link is closed, no other is opened. */
void nl_session_stop(struct nl_session *s, uint64_t now_ms);

/* Tells every client that holds something standing. */
void nl_session_announce(struct nl_session *s, enum nl_event event,
                         struct nl_line *line); /* takes over line */

/* Writes what `status` and `sessions` tell: session, status, since, reason, ... */
void nl_session_describe(const struct nl_session *s, struct nl_object *o, uint64_t now_ms);

/* Only session and status, for `welcome`. */
void nl_session_describe_short(const struct nl_session *s, struct nl_object *o);

/* The fields of a successful auth answer: session, actorTokenId, ... or pending. */
void nl_session_describe_auth(const struct nl_session *s, struct nl_object *o);

#endif
