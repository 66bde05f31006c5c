/* SPDX-License-Identifier: Apache-2.0 */
/* A session from inside. For the files session*.c only. */
#ifndef NL_MODEL_SESSION_PRIVATE_H
#define NL_MODEL_SESSION_PRIVATE_H

#include "daemon/model/acks.h"
#include "daemon/model/backoff.h"
#include "daemon/model/fanout.h"
#include "daemon/model/liveness.h"
#include "daemon/model/lobbies.h"
#include "daemon/model/presence.h"
#include "daemon/model/publisher.h"
#include "daemon/model/session.h"
#include "daemon/model/subscriptions.h"

/* Who we are to the broker, since the last successful auth; NULL and 0 = not told. */
struct nl_identity {
    char *actor_token_id, *project_id, *actor_type;
    int64_t protocol_version;
};

struct nl_session {
    const struct nl_session_config *config;
    bool named;
    struct nl_session_ops ops;
    enum nl_session_state state;
    int64_t since;               /* Unix seconds of the last change of the told status */
    struct nl_ending ending;     /* of the last link, or the one being closed */
    struct nl_identity identity; /* of the last successful auth */
    bool was_live;               /* once, ever */
    bool announced;              /* holders were told connect or reconnect, and no disconnect since */
    bool plain_auth;             /* the last auth with reconnect:true made the broker crash */
    bool stopping;
    uint64_t due_ms;     /* WAITING: the next attempt; AUTHENTICATING: its deadline */
    uint64_t hurried_ms; /* the last reconnect that did not wait; 0 = none */
    struct nl_liveness liveness;
    uint64_t heartbeats, echoes_seen; /* sent and come back on this link */
    struct {
        uint64_t heartbeat; /* its number on this link; 0 = none is out */
        uint64_t ref;       /* the newest publish sent before it */
        uint64_t sent_ms;   /* when it had arrived, or was seen on its way last */
        bool leaving;       /* it is on its way */
    } fence;                /* the heartbeat whose echo says that the turn of publishes has passed */
    struct nl_backoff backoff;
    struct nl_subscriptions *subscriptions;
    struct nl_publisher *publisher;
    struct nl_outbox *outbox; /* the publisher's */
    struct nl_presence *presence;
    struct nl_lobbies *lobbies;
    struct nl_acks acks;
    struct nl_fanout fanout;
    struct nl_peer *peers; /* linked by session_prev, session_next */
    struct nl_session_stats stats;
    struct nl_buffer scratch; /* the frame being encoded */
    uint64_t now_ms;          /* of the call being served, for callbacks of the parts */
    uint64_t seed;
};

/* The word that `status` tells for that state. */
const char *nl_session_status_word(const struct nl_session *s, enum nl_session_state state);

#endif
