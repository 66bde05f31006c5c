/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon is made of while it runs: the listening socket, the clients, the upstreams (one per
 * session), and the work at the end of each loop turn: run the sessions that have something to do, then write
 * to the clients that have something waiting.
 */
#ifndef NL_IO_SERVER_H
#define NL_IO_SERVER_H

#include <uv.h>

#include "daemon/model/settings.h"
#include "daemon/io/client.h"
#include "daemon/io/hangups.h"
#include "daemon/io/link.h"
#include "daemon/io/listener.h"
#include "daemon/io/upstream.h"
#include "daemon/model/access.h"
#include "daemon/model/backoff.h"
#include "daemon/util/log.h"
#include "daemon/util/quota.h"
#include "daemon/util/suspend.h"

struct nl_server {
    uv_loop_t *loop;
    const struct nl_config *config;
    struct nl_access access;
    struct nl_quotas quotas;
    struct nl_listener listener;
    struct nl_link_context *links;
    uint64_t max_clients; /* by configuration and by the file limit */
    uint64_t client_count;
    uint64_t client_number;          /* of the last one */
    struct nl_client *clients;       /* linked by prev, next */
    struct nl_client *dirty;         /* linked by dirty_prev, dirty_next */
    struct nl_client *watched;       /* linked by watch_prev, watch_next */
    struct nl_hangups hangups;       /* of half closed clients */
    struct nl_log_budget client_log; /* for clients refused or cut off: each is a new one */
    struct nl_upstream *upstreams;   /* linked by prev, next */
    struct nl_upstream *busy;        /* those with something to do this turn, by dirty_prev, dirty_next */
    struct nl_bucket connects;       /* over all configured sessions */
    struct nl_bucket token_connects; /* over all sessions opened by token */
    uv_prepare_t turn;               /* the end of each loop turn */
    uv_idle_t again;                 /* active when there is more to do than the last turn did */
    uv_timer_t tick;                 /* suspend detection, half closed clients, watchdog status */
    uv_timer_t watchdog;
    uv_timer_t drain;
    struct nl_suspend suspend;
    uint64_t drain_until_ms;
    bool stopped; /* the sessions are: nothing is asked of them any more */
    unsigned stop_requests;
    char status[128]; /* as last told to systemd */
};

/*
 * Starts serving on the socket that systemd passed, or on config->daemon.socket. The server and config are
 * the caller's and live until the loop has run dry. Returns 0 or a negative errno, with a log line that says
 * why.
 */
int nl_server_start(struct nl_server *s, uv_loop_t *loop, const struct nl_config *config);

/*
 * Stops: no new clients, `shutdown` to those who hold something; publishes are sent; what then has no outcome
 * is answered `shutting_down`; each client is closed when it has taken what waits for it. All that has
 * drain_timeout, then the rest is closed and the loop runs dry. A second call does not wait.
 */
void nl_server_stop(struct nl_server *s);

/* After the loop has run dry. */
void nl_server_deinit(struct nl_server *s);

/* The session for clients that chose none, or NULL. */
struct nl_upstream *nl_server_default(struct nl_server *s);

uint64_t nl_server_now(const struct nl_server *s);

#endif
