/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session and its link, put together: carries out what the session model asks for, on the loop, and tells
 * it what happened. Sessions of the configuration live as long as the daemon; one opened by a token ends
 * after its last client, when what was published on it is out or after its ttl, and at once when the broker
 * denies access.
 */
#ifndef NL_IO_UPSTREAM_H
#define NL_IO_UPSTREAM_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/model/settings.h"
#include "daemon/io/link.h"
#include "daemon/model/session.h"
#include "daemon/util/quota.h"
#include "protocol/errors.h"

struct nl_server;

struct nl_upstream {
    struct nl_server *server;
    struct nl_session *session;
    struct nl_link *link; /* NULL = none */
    uv_timer_t timer;
    uint64_t number;                 /* for the log */
    struct nl_session_config *owned; /* of a session opened by token; NULL for configured ones */
    struct nl_uid_quota *opener;     /* who opened it by token */
    bool dirty;                      /* on the server's list: the session has something to do this turn */
    bool review;                     /* its state changed: clients may wait for that */
    bool closing;
    uint64_t
        drain_until_ms; /* opened by token and without clients: when it ends at the latest; 0 = it has some */
    uint64_t failures_since_ms; /* when the first failure of this minute was logged */
    uint32_t reasons_logged;    /* bit NL_REASON_x for each that was, since then; 0 = none */
    uint64_t failures_unlogged;
    struct nl_upstream *prev, *next;             /* in nl_server.upstreams */
    struct nl_upstream *dirty_prev, *dirty_next; /* in nl_server.busy */
};

struct nl_upstream *nl_upstream_new(struct nl_server *server, const struct nl_session_config *config);

/*
 * The session of this token, opened for the user when there is none. On error NULL and *error: LIMIT_REACHED
 * or NOT_PERMITTED with a hint.
 */
struct nl_upstream *nl_upstream_by_token(struct nl_server *server, struct nl_slice token,
                                         struct nl_uid_quota *user, enum nl_error *error, const char **hint);
struct nl_upstream *nl_upstream_by_name(struct nl_server *server, struct nl_slice name);

/* The upstream whose session this is. */
static inline struct nl_upstream *nl_upstream_of(const struct nl_session *session) {
    return nl_session_owner(session);
}

/* The session was given work: run it before the loop waits. */
void nl_upstream_wake(struct nl_upstream *u);

/* Runs the session, settles clients that wait for it, and sets the timer. */
void nl_upstream_run(struct nl_upstream *u);

/* Does its first link still have no outcome? Then an auth by token waits. */
bool nl_upstream_starting(const struct nl_upstream *u);

/* Stops the session and frees everything when the link is closed. */
void nl_upstream_close(struct nl_upstream *u);

#endif
