/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A local client as the model sees it: who it is, which session it is on and what it
 * holds there. It is embedded in the I/O side's client, which owns it.
 */
#ifndef NL_MODEL_PEER_H
#define NL_MODEL_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/util/quota.h"

struct nl_session;
struct nl_subscription;
struct nl_change;
struct nl_watch;
struct nl_ask;

struct nl_peer {
    uint64_t number; /* unique in this process; for logs */
    uid_t uid;
    gid_t gid;
    pid_t pid;
    struct nl_uid_quota *quota; /* of its uid; referenced while the peer lives */

    struct nl_session *session;                  /* NULL = not attached */
    struct nl_peer *session_prev, *session_next; /* in nl_session.peers */

    struct nl_subscription *subscriptions; /* linked by of_peer */
    struct nl_change *changes; /* filter and subscription requests without an answer, by of_peer */
    uint32_t subscription_count;
    uint32_t change_count;    /* of changes */
    struct nl_watch *watches; /* rooms watched and lobbies, linked by of_peer */
    uint32_t watch_count;
    struct nl_ask *asks; /* requests about presence and lobbies without an answer, linked by of_peer */
    uint32_t ask_count;
    bool present;        /* holds a presence */
    uint64_t wish_bytes; /* of its subscriptions and changes; also in quota->wish_bytes */
    uint32_t pending;    /* requests whose outcome is not known yet */
    uint32_t only;       /* bit NL_EVENT_x for each event it wants */
    bool bigint_as_string;
    bool tap;                            /* gets all that the session delivers */
    uint64_t last_delivery;              /* the serial of the last message it got: nobody gets one twice */
    struct nl_peer *tap_prev, *tap_next; /* in nl_session.taps */
};

/* Something that outlives its requests: then connection events and the half close rule apply. */
static inline bool nl_peer_stands(const struct nl_peer *peer) {
    return peer->subscription_count > 0 || peer->watch_count > 0 || peer->present || peer->tap;
}

#endif
