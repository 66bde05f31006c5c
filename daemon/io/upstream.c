/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <utlist.h>

#include "daemon/io/dispatch.h"
#include "daemon/io/server.h"
#include "daemon/util/log.h"
#include "protocol/alloc.h"

#define MAX_FRAME (16 * 1024 * 1024) /* from the broker; its own limit is 1 MiB */
#define MAX_QUEUED (4 * 1024 * 1024) /* bytes on their way to the broker */
#define RESOLVE_TIMEOUT_MS 10000
#define FAILURE_LOG_MS 60000 /* in which each reason of a failure is logged once */

/* ---- what the session asks for ---- */

static void on_link_open(void *ctx) {
    struct nl_upstream *u = ctx;

    nl_session_link_opened(u->session, nl_server_now(u->server));
    nl_upstream_wake(u);
}

static void on_link_frame(void *ctx, struct nl_slice frame) {
    struct nl_upstream *u = ctx;

    nl_session_link_frame(u->session, frame, nl_server_now(u->server));
    nl_upstream_wake(u);
}

/* The broker closes with 4001 when it has revoked the token, with 4002 above the connection limit. */
static void read_close_code(struct nl_ending *to, int code) {
    to->reason = NL_REASON_CLOSED;
    to->close_code = code;
    if (code == 4001) {
        to->reason = NL_REASON_REVOKED;
        to->slow = true;
    } else if (code == 4002) {
        to->reason = NL_REASON_CONNECTION_LIMIT;
    }
}

static struct nl_ending ending_of(const struct nl_link_ending *from) {
    static const enum nl_reason reasons[] = {
        [NL_LINK_CLOSED_BY_US] = NL_REASON_STOPPED,
        [NL_LINK_DNS] = NL_REASON_DNS,
        [NL_LINK_CONNECT] = NL_REASON_CONNECT,
        [NL_LINK_TLS] = NL_REASON_TLS,
        [NL_LINK_UPGRADE] = NL_REASON_UPGRADE,
        [NL_LINK_CLOSED] = NL_REASON_CLOSED,
        [NL_LINK_LOST] = NL_REASON_LOST,
        [NL_LINK_OVERSIZE] = NL_REASON_PROTOCOL,
    };
    struct nl_ending to = {.reason = reasons[from->end], .retry_after_ms = from->retry_after_ms};

    if (from->end == NL_LINK_CLOSED)
        read_close_code(&to, from->code);
    to.slow = to.slow || from->certificate || from->http_status == 401 || from->http_status == 403;
    memcpy(to.detail, from->detail, sizeof(to.detail));
    return to;
}

static void on_link_closed(void *ctx, const struct nl_link_ending *ending) {
    struct nl_upstream *u = ctx;
    struct nl_ending e = ending_of(ending);

    u->link = NULL;
    nl_session_link_closed(u->session, &e, nl_server_now(u->server));
    nl_upstream_wake(u);
}

static void op_connect(void *ctx) {
    struct nl_upstream *u = ctx;
    const struct nl_session_config *config = nl_session_config(u->session);
    struct nl_link_options options = {
        .url = config->url,
        .ca_file = config->ca_file,
        .connect_timeout_ms = config->connect_timeout_ms,
        .resolve_timeout_ms = RESOLVE_TIMEOUT_MS,
        .max_frame = MAX_FRAME,
        .max_queued = MAX_QUEUED,
    };
    struct nl_link_handler handler = {
        .on_open = on_link_open, .on_frame = on_link_frame, .on_closed = on_link_closed, .ctx = u};

    u->link = nl_link_open(u->server->links, &options, &handler);
}

static void op_disconnect(void *ctx) {
    struct nl_upstream *u = ctx;

    if (u->link != NULL)
        nl_link_close(u->link);
}

static bool op_send(void *ctx, struct nl_slice frame) {
    struct nl_upstream *u = ctx;

    return u->link != NULL && nl_link_send(u->link, frame);
}

static struct nl_arrival op_arrival(void *ctx) {
    struct nl_upstream *u = ctx;
    struct nl_arrival nothing_sent = {.heartbeats = true};

    return u->link == NULL ? nothing_sent : nl_link_arrival(u->link);
}

static uint64_t op_connect_delay(void *ctx, uint64_t now_ms) {
    struct nl_upstream *u = ctx;

    /* Tokens that are tried out take nothing from the configured sessions. */
    return nl_bucket_take(u->owned == NULL ? &u->server->connects : &u->server->token_connects, now_ms);
}

static void op_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    (void)ctx;
    nl_client_send(nl_client_of(peer), line, false);
}

static void op_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    (void)ctx;
    if (peer->only & (1u << event))
        nl_client_send(nl_client_of(peer), line, event == NL_EVENT_MESSAGE);
    else
        nl_line_unref(line);
}

static void op_wake(void *ctx) {
    nl_upstream_wake(ctx);
}

static uint64_t op_random(void *ctx) {
    uint64_t random = 0;

    (void)ctx;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        random = uv_hrtime() * UINT64_C(0x9e3779b97f4a7c15);
    return random;
}

static int64_t op_unix_time(void *ctx) {
    struct timespec now;

    (void)ctx;
    clock_gettime(CLOCK_REALTIME, &now); /* time() may be a tick behind it */
    return now.tv_sec;
}

/* ---- the log: each transition once; failures that repeat are summed up, each reason once a minute ---- */

static void name_of(const struct nl_upstream *u, char *out, size_t size) {
    const char *name = nl_session_name(u->session);

    if (name != NULL)
        snprintf(out, size, "session %s", name);
    else
        snprintf(out, size, "session of a token, number %llu", (unsigned long long)u->number);
}

/* Has this reason been logged in this minute? A minute begins with the first failure. */
static bool logged_lately(struct nl_upstream *u, enum nl_reason reason) {
    uint64_t now = nl_server_now(u->server);

    if (u->reasons_logged == 0 || now - u->failures_since_ms >= FAILURE_LOG_MS) {
        u->failures_since_ms = now;
        u->reasons_logged = 0;
    }
    return u->reasons_logged & (1u << reason);
}

static void log_failure(struct nl_upstream *u, const char *name, const struct nl_ending *ending,
                        bool for_good) {
    char code[32] = "", more[64] = "";

    if (logged_lately(u, ending->reason) && !for_good) {
        u->failures_unlogged++;
        return;
    }
    u->reasons_logged |= 1u << ending->reason;
    if (ending->close_code != 0)
        snprintf(code, sizeof(code), ", close code %d", ending->close_code);
    if (u->failures_unlogged != 0)
        snprintf(more, sizeof(more), "; %llu failures since the last such line",
                 (unsigned long long)u->failures_unlogged);
    nl_log_warning("%s: %s: %s%s%s%s%s", name, for_good ? "disconnected for good" : "not connected",
                   nl_reason_name(ending->reason), ending->detail[0] == '\0' ? "" : ": ", ending->detail,
                   code, more);
    u->failures_unlogged = 0;
}

static void op_rejected(void *ctx, uid_t uid, const char *topic) {
    char name[96];

    name_of(ctx, name, sizeof(name));
    nl_log_warning("%s: the broker closed the connection twice at a publish of uid %u to %s; it is given up",
                   name, (unsigned)uid, topic);
}

static void op_changed(void *ctx, enum nl_session_state from, enum nl_session_state to,
                       const struct nl_ending *ending) {
    struct nl_upstream *u = ctx;
    char name[96];

    u->review = true;
    name_of(u, name, sizeof(name));
    if (to == NL_SESSION_LIVE) {
        nl_log_notice("%s: connected", name);
        u->reasons_logged = 0;
        u->failures_unlogged = 0;
    } else if (ending != NULL && ending->reason != NL_REASON_STOPPED) {
        log_failure(u, name, ending, to == NL_SESSION_STOPPED);
    }
    nl_log_debug("%s: %s -> %s", name, nl_session_state_name(from), nl_session_state_name(to));
}

/* ---- making and finding ---- */

static void on_timer(uv_timer_t *timer) {
    nl_upstream_wake(timer->data);
}

static struct nl_upstream *make(struct nl_server *server, const struct nl_session_config *config,
                                bool named) {
    static uint64_t number;
    struct nl_upstream *u = nl_calloc(1, sizeof(*u));
    struct nl_session_ops ops = {
        .connect = op_connect,
        .disconnect = op_disconnect,
        .send = op_send,
        .arrival = op_arrival,
        .connect_delay = op_connect_delay,
        .answer = op_answer,
        .event = op_event,
        .changed = op_changed,
        .rejected = op_rejected,
        .wake = op_wake,
        .random = op_random,
        .unix_time = op_unix_time,
        .ctx = u,
    };

    u->server = server;
    u->number = ++number;
    uv_timer_init(server->loop, &u->timer);
    u->timer.data = u;
    u->session = nl_session_new(config, named, &server->config->daemon, &ops, nl_server_now(server));
    DL_APPEND(server->upstreams, u);
    nl_upstream_wake(u);
    return u;
}

struct nl_upstream *nl_upstream_new(struct nl_server *server, const struct nl_session_config *config) {
    return make(server, config, true);
}

struct nl_upstream *nl_upstream_by_name(struct nl_server *server, struct nl_slice name) {
    struct nl_upstream *u;

    DL_FOREACH(server->upstreams, u) {
        const char *other = nl_session_name(u->session);
        if (other != NULL && nl_slice_equal(nl_slice_str(other), name))
            return u;
    }
    return NULL;
}

/* Takes as long wherever the first difference is: the time tells nothing about a token. */
static bool same_token(const char *token, struct nl_slice shown) {
    size_t len = strlen(token);
    unsigned char differs = len != shown.len;

    for (size_t i = 0; i < shown.len; i++)
        differs |= (unsigned char)(shown.ptr[i] ^ (unsigned char)token[len == 0 ? 0 : i % len]);
    return differs == 0;
}

/* A session by token is like the default one, but for the token and, maybe, the broker. */
static struct nl_session_config *token_config(const struct nl_server *server, struct nl_slice token) {
    struct nl_session_config *config = nl_session_config_like(nl_config_default_session(server->config));

    nl_config_set_text(&config->url, server->config->daemon.client_token_url);
    config->token = nl_strndup((const char *)token.ptr, token.len);
    return config;
}

static struct nl_upstream *open_by_token(struct nl_server *server, struct nl_slice token,
                                         struct nl_uid_quota *user, enum nl_error *error, const char **hint) {
    const struct nl_daemon_config *config = &server->config->daemon;
    struct nl_session_config *owned;
    struct nl_upstream *u;

    if (!config->allow_client_tokens) {
        *error = NL_ERROR_NOT_PERMITTED;
        *hint = "allow_client_tokens is off; use a configured session";
        return NULL;
    }
    if (user->guess_after_ms > nl_server_now(server)) {
        *error = NL_ERROR_LIMIT_REACHED;
        *hint = "a token shown by this user was denied; wait before showing another one";
        return NULL;
    }
    if (!nl_quota_take(&user->token_sessions, 1, config->client_token_sessions_per_uid)) {
        *error = NL_ERROR_LIMIT_REACHED;
        *hint = "this user has as many sessions by token as it may";
        return NULL;
    }
    owned = token_config(server, token);
    u = make(server, owned, false);
    u->owned = owned;
    u->opener = nl_quota_ref(&server->quotas, user->uid);
    return u;
}

struct nl_upstream *nl_upstream_by_token(struct nl_server *server, struct nl_slice token,
                                         struct nl_uid_quota *user, enum nl_error *error, const char **hint) {
    struct nl_upstream *u;

    DL_FOREACH(server->upstreams, u) {
        if (!u->closing && same_token(nl_session_config(u->session)->token, token))
            return u;
    }
    return open_by_token(server, token, user, error, hint);
}

/* ---- the end of a turn ---- */

void nl_upstream_wake(struct nl_upstream *u) {
    if (u->dirty || uv_is_closing((uv_handle_t *)&u->timer)) /* an acknowledgement may come on its way out */
        return;
    u->dirty = true;
    DL_APPEND2(u->server->busy, u, dirty_prev, dirty_next);
}

static void rest(struct nl_upstream *u) {
    if (!u->dirty)
        return;
    u->dirty = false;
    DL_DELETE2(u->server->busy, u, dirty_prev, dirty_next);
}

bool nl_upstream_starting(const struct nl_upstream *u) {
    return u->owned != NULL && !nl_session_up(u->session) &&
           nl_session_ending(u->session)->reason == NL_REASON_STARTING;
}

/* The broker denies this token: whoever is on a session of it is on none, with all that was asked answered.
 */
static void deny_all(struct nl_upstream *u) {
    struct nl_peer *peer;

    nl_session_fail_all(u->session, NL_ERROR_ACCESS_DENIED, nl_server_now(u->server));
    while ((peer = nl_session_first_peer(u->session)) != NULL) {
        struct nl_client *c = nl_client_of(peer);

        if (c->auth_waits) {
            nl_dispatch_auth_outcome(c, u, NL_ERROR_ACCESS_DENIED);
            continue;
        }
        nl_session_detach(u->session, peer, nl_server_now(u->server));
        c->auth_failed = true;
        nl_client_send(c, nl_error_line(NL_ERROR_ACCESS_DENIED, NULL, NULL, nl_slice(NULL, 0), NULL), false);
    }
}

/* Clients whose auth waited for the outcome of the first attempt; a session that closes under them had none.
 */
static void settle_waiting(struct nl_upstream *u) {
    struct nl_peer *peer = nl_session_first_peer(u->session), *next;
    enum nl_error error = u->closing ? NL_ERROR_SHUTTING_DOWN : NL_OK;

    for (; peer != NULL; peer = next) {
        next = peer->session_next;
        nl_dispatch_auth_outcome(nl_client_of(peer), u, error);
    }
}

static void review(struct nl_upstream *u) {
    const struct nl_ending *ending = nl_session_ending(u->session);
    bool denied;

    u->review = false;
    if (u->owned == NULL || nl_upstream_starting(u))
        return;
    denied = ending->reason == NL_REASON_ACCESS_DENIED && !nl_session_up(u->session);
    /* The states that a denied session goes through on its way out are one denial. */
    if (!u->closing && (denied || nl_session_up(u->session)))
        nl_quota_guessed(u->opener, !denied, nl_server_now(u->server));
    if (denied)
        deny_all(u);
    else
        settle_waiting(u);
}

static void set_timer(struct nl_upstream *u) {
    uint64_t now = nl_server_now(u->server);
    uint64_t next = nl_session_next(u->session, now);

    if (u->drain_until_ms != 0 && u->drain_until_ms < next)
        next = u->drain_until_ms;
    if (next == UINT64_MAX)
        uv_timer_stop(&u->timer);
    else
        uv_timer_start(&u->timer, on_timer, next > now ? next - now : 1, 0);
}

static void on_closed(uv_handle_t *handle) {
    struct nl_upstream *u = handle->data;

    nl_session_free(u->session);
    if (u->opener != NULL) {
        nl_quota_give(&u->opener->token_sessions, 1);
        nl_quota_unref(u->opener);
    }
    nl_session_config_free(u->owned);
    free(u);
}

static void free_if_over(struct nl_upstream *u) {
    if (!u->closing || u->link != NULL || nl_session_first_peer(u->session) != NULL ||
        uv_is_closing((uv_handle_t *)&u->timer))
        return;
    rest(u);
    DL_DELETE(u->server->upstreams, u);
    uv_close((uv_handle_t *)&u->timer, on_closed);
}

/* A token's session without clients stays until what they published is out, as long as a publish may wait. */
static bool drained(struct nl_upstream *u) {
    uint64_t now = nl_server_now(u->server);

    if (u->drain_until_ms == 0)
        u->drain_until_ms = now + nl_session_config(u->session)->ttl_ms;
    return nl_session_outbox_messages(u->session) == 0 || u->drain_until_ms <= now ||
           nl_session_state(u->session) == NL_SESSION_STOPPED;
}

static void close_if_unused(struct nl_upstream *u) {
    if (u->owned == NULL || u->closing)
        return;
    if (nl_session_first_peer(u->session) != NULL)
        u->drain_until_ms = 0;
    else if (drained(u))
        nl_upstream_close(u);
}

void nl_upstream_run(struct nl_upstream *u) {
    rest(u);
    nl_session_run(u->session, nl_server_now(u->server));
    if (u->review)
        review(u);
    close_if_unused(u);
    set_timer(u);
    free_if_over(u);
}

void nl_upstream_close(struct nl_upstream *u) {
    if (u->closing)
        return;
    u->closing = true;
    nl_session_stop(u->session, nl_server_now(u->server));
    nl_upstream_wake(u);
}
