/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/server.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/util/log.h"
#include "daemon/util/notify.h"
#include "protocol/object.h"

#define TICK_MS 1000
#define CONNECT_BURST 10
#define RESERVED_FILES 64 /* not for clients: links, look-ups, the log, the library's own */
#define DRAIN_STEP_MS 20
#define LAST_ANSWERS_MS 3000 /* for clients to take the answers that the end of the drain makes */
#define STOP_MARGIN_MS 8000  /* for the links to close after the drain, and for a slow host */

uint64_t nl_server_now(const struct nl_server *s) {
    return uv_now(s->loop);
}

struct nl_upstream *nl_server_default(struct nl_server *s) {
    const struct nl_session_config *config = nl_config_default_session(s->config);

    return config == NULL ? NULL : nl_upstream_by_name(s, nl_slice_str(config->name));
}

/* ---- each turn ---- */

static void run_upstreams(struct nl_server *s) {
    struct nl_upstream *u, *tmp;

    DL_FOREACH_SAFE2(s->busy, u, tmp, dirty_next) {
        nl_upstream_run(u);
    }
}

static void flush_clients(struct nl_server *s) {
    struct nl_client *c, *last = s->dirty == NULL ? NULL : s->dirty->dirty_prev;

    /* One pass: who has more than fits a turn is dirty again, behind the others. */
    while ((c = s->dirty) != NULL) {
        bool at_end = c == last;
        nl_client_flush(c);
        if (at_end)
            break;
    }
}

static void on_idle(uv_idle_t *handle) {
    (void)handle;
}

/*
 * Sessions first, as they bring lines; then the clients. What that leaves to do (a client went away, or has
 * more than fits a turn) is for the next turn: then the loop must not wait.
 */
static void at_end_of_turn(uv_prepare_t *handle) {
    struct nl_server *s = handle->data;

    run_upstreams(s);
    flush_clients(s);
    if (s->busy != NULL || s->dirty != NULL)
        uv_idle_start(&s->again, on_idle);
    else
        uv_idle_stop(&s->again);
}

/* ---- now and then ---- */

static int64_t clock_ms(clockid_t clock) {
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static struct nl_clocks read_clocks(void) {
    struct nl_clocks clocks;

    clocks.before_ms = clock_ms(CLOCK_MONOTONIC);
    clocks.boot_ms = clock_ms(CLOCK_BOOTTIME);
    clocks.after_ms = clock_ms(CLOCK_MONOTONIC);
    return clocks;
}

static void check_suspend(struct nl_server *s) {
    uint64_t slept_ms = nl_suspend_look(&s->suspend, read_clocks());
    struct nl_upstream *u;

    if (slept_ms == 0)
        return;
    nl_log_notice("the host was asleep for %llu s", (unsigned long long)slept_ms / 1000);
    DL_FOREACH(s->upstreams, u) {
        nl_session_resumed(u->session, nl_server_now(s));
        nl_upstream_wake(u);
    }
}

static void tell_status(struct nl_server *s) {
    unsigned live = 0, all = 0;
    struct nl_upstream *u;
    char status[128];

    DL_FOREACH(s->upstreams, u) {
        all++;
        live += nl_session_state(u->session) == NL_SESSION_LIVE;
    }
    snprintf(status, sizeof(status), "%u of %u sessions connected, %llu clients", live, all,
             (unsigned long long)s->client_count);
    if (strcmp(status, s->status) == 0)
        return;
    memcpy(s->status, status, sizeof(status));
    nl_notify_status(status);
}

static void on_tick(uv_timer_t *timer) {
    struct nl_server *s = timer->data;

    check_suspend(s);
    tell_status(s);
    nl_clients_look_after(s);
}

static void on_watchdog(uv_timer_t *timer) {
    (void)timer;
    nl_notify_watchdog();
}

static void on_connection(uv_stream_t *listener, int status) {
    if (status < 0)
        nl_log_warning("accept: %s", uv_strerror(status));
    else
        nl_client_accept(listener->data, listener);
}

/* ---- start ---- */

/* How many files may be open, after it was made as many as allowed. */
static rlim_t file_limit(void) {
    struct rlimit limit, most;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return RLIM_INFINITY;
    most = (struct rlimit){.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    return setrlimit(RLIMIT_NOFILE, &most) < 0 ? limit.rlim_cur : most.rlim_cur;
}

/* As many clients as configured, if there are file descriptors for them. */
static uint64_t client_limit(const struct nl_daemon_config *config) {
    rlim_t files = file_limit();

    if (files == RLIM_INFINITY || files >= config->max_clients + RESERVED_FILES)
        return config->max_clients;
    nl_log_warning("the limit of %llu open files allows fewer clients than max_clients",
                   (unsigned long long)files);
    return files > RESERVED_FILES + 1 ? files - RESERVED_FILES : 1;
}

static void start_timers(struct nl_server *s) {
    uint64_t watchdog_ms = nl_notify_watchdog_interval();

    uv_prepare_init(s->loop, &s->turn);
    uv_idle_init(s->loop, &s->again);
    uv_timer_init(s->loop, &s->tick);
    uv_timer_init(s->loop, &s->watchdog);
    uv_timer_init(s->loop, &s->drain);
    s->turn.data = s->tick.data = s->watchdog.data = s->drain.data = s;
    uv_prepare_start(&s->turn, at_end_of_turn);
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    if (watchdog_ms > 0)
        uv_timer_start(&s->watchdog, on_watchdog, watchdog_ms, watchdog_ms);
}

int nl_server_start(struct nl_server *s, uv_loop_t *loop, const struct nl_config *config) {
    const char *why = NULL;
    int error;

    *s = (struct nl_server){.loop = loop, .config = config, .access = {.own_uid = geteuid()}};
    nl_quotas_init(&s->quotas);
    s->max_clients = client_limit(&config->daemon);
    nl_suspend_init(&s->suspend, read_clocks());
    s->links = nl_link_context_new(loop, &why);
    if (s->links == NULL) {
        nl_log_error("%s", why);
        return -ENOTSUP;
    }
    error = nl_listener_start(&s->listener, loop, &config->daemon, on_connection, s);
    if (error < 0) {
        nl_link_context_close(s->links);
        return error;
    }
    error = nl_hangups_init(&s->hangups, loop, nl_client_hung_up);
    if (error < 0) {
        nl_log_error("epoll: %s", strerror(-error));
        nl_hangups_close(&s->hangups);
        nl_listener_close(&s->listener);
        nl_link_context_close(s->links);
        return error;
    }
    nl_bucket_init(&s->connects, config->daemon.connect_rate, CONNECT_BURST, nl_server_now(s));
    nl_bucket_init(&s->token_connects, config->daemon.connect_rate, CONNECT_BURST, nl_server_now(s));
    start_timers(s);
    for (size_t i = 0; i < config->session_count; i++)
        nl_upstream_new(s, &config->sessions[i]);
    nl_notify_ready("serving");
    return 0;
}

/* ---- stop ---- */

/* What has no outcome yet gets its error: all that clients still wait for is in their output then. */
static void stop_sessions(struct nl_server *s) {
    struct nl_upstream *u, *tmp;

    s->stopped = true;
    flush_clients(s); /* what they get now can still be acknowledged */
    DL_FOREACH_SAFE(s->upstreams, u, tmp) {
        nl_upstream_close(u);
        nl_upstream_run(u);
    }
    flush_clients(s);
}

/* Those who have read all, or everyone. */
static void close_clients(struct nl_server *s, bool all) {
    struct nl_client *c, *tmp;

    DL_FOREACH_SAFE(s->clients, c, tmp) {
        if (all || nl_output_empty(&c->output))
            nl_client_close(c, "the daemon stops");
    }
}

static void close_handles(struct nl_server *s) {
    if (uv_is_closing((uv_handle_t *)&s->turn))
        return;
    uv_close((uv_handle_t *)&s->turn, NULL);
    uv_close((uv_handle_t *)&s->again, NULL);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&s->watchdog, NULL);
    uv_close((uv_handle_t *)&s->drain, NULL);
    nl_hangups_close(&s->hangups);
    nl_link_context_close(s->links);
}

static bool published(const struct nl_server *s) {
    const struct nl_upstream *u;

    DL_FOREACH(s->upstreams, u) {
        if (nl_session_outbox_messages(u->session) > 0)
            return false;
    }
    return true;
}

static void on_drain(uv_timer_t *timer) {
    struct nl_server *s = timer->data;
    uint64_t now_ms = nl_server_now(s);
    bool hurry = s->stop_requests > 1;

    if (!s->stopped && (hurry || s->drain_until_ms <= now_ms || published(s)))
        stop_sessions(s);
    if (!s->stopped)
        return;
    close_clients(s, hurry || s->drain_until_ms + LAST_ANSWERS_MS <= now_ms);
    if (s->upstreams == NULL && s->clients == NULL)
        close_handles(s);
}

static void announce_shutdown(struct nl_server *s) {
    struct nl_upstream *u;
    struct nl_object o;
    struct nl_line *line;

    nl_object_begin(&o, "shutdown");
    line = nl_object_line(&o);
    DL_FOREACH(s->upstreams, u) {
        nl_session_announce(u->session, NL_EVENT_SHUTDOWN, nl_line_ref(line));
    }
    nl_line_unref(line);
}

void nl_server_stop(struct nl_server *s) {
    if (s->stop_requests++ > 0)
        return;
    nl_log_notice("stopping");
    nl_notify_stopping((s->config->daemon.drain_timeout_ms + STOP_MARGIN_MS) * 1000);
    nl_listener_close(&s->listener);
    announce_shutdown(s);
    s->drain_until_ms = nl_server_now(s) + s->config->daemon.drain_timeout_ms;
    /* Not at once: what clients have written before is read first. */
    uv_timer_start(&s->drain, on_drain, DRAIN_STEP_MS, DRAIN_STEP_MS);
}

void nl_server_deinit(struct nl_server *s) {
    nl_link_context_free(s->links);
    nl_quotas_deinit(&s->quotas);
}
