/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading from, writing to and judging local clients. Little is done for each in one loop turn, so that the
 * others get theirs; what is left is done in the next one.
 */
#include "daemon/io/client.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <utlist.h>

#include "daemon/io/dispatch.h"
#include "daemon/io/server.h"
#include "daemon/io/upstream.h"
#include "daemon/util/log.h"
#include "protocol/alloc.h"
#include "protocol/object.h"

#define READ_SIZE 16384         /* read from one client in one turn */
#define VECTORS 128             /* lines in one writev */
#define TURN_BYTES (256 * 1024) /* written to one client in one turn */
#define DROPPED_TOPICS 32       /* told one by one; more are told together */
#define FREE_INPUT 65536        /* kept of a line that has not ended, without counting for its user */
#define LOG_BURST 10            /* clients refused or cut off: log lines at once, then one every */
#define LOG_INTERVAL_MS 1000

/* One buffer serves all clients: what is read is used up, or copied by the reader, before the next read. */
static char read_buffer[READ_SIZE];

/* ---- the list of those with something to do at the end of the turn, and of those to look after ---- */

static void mark_dirty(struct nl_client *c) {
    if (c->dirty || c->closing)
        return;
    c->dirty = true;
    DL_APPEND2(c->server->dirty, c, dirty_prev, dirty_next);
}

static void unmark_dirty(struct nl_client *c) {
    if (!c->dirty)
        return;
    c->dirty = false;
    DL_DELETE2(c->server->dirty, c, dirty_prev, dirty_next);
}

static void watch(struct nl_client *c) {
    if (c->watched)
        return;
    c->watched = true;
    DL_APPEND2(c->server->watched, c, watch_prev, watch_next);
}

static void unwatch(struct nl_client *c) {
    if (!c->watched)
        return;
    c->watched = false;
    DL_DELETE2(c->server->watched, c, watch_prev, watch_next);
}

/* ---- the end ---- */

static void forget_dropped(struct nl_client *c) {
    struct nl_dropped *d, *tmp;

    DL_FOREACH_SAFE(c->dropped, d, tmp) {
        DL_DELETE(c->dropped, d);
        free(d->topic);
        free(d);
    }
}

static void give_output_quota(struct nl_client *c, size_t before) {
    nl_quota_give(&c->peer.quota->output_bytes, before - c->output.bytes);
}

static void on_closed(uv_handle_t *handle) {
    struct nl_client *c = handle->data;

    nl_quota_give(&c->peer.quota->output_bytes, c->output.bytes);
    nl_quota_give(&c->peer.quota->input_bytes, c->input_bytes);
    nl_output_deinit(&c->output);
    nl_line_reader_deinit(&c->reader);
    forget_dropped(c);
    free(c->auth_id);
    nl_quota_unref(c->peer.quota);
    free(c);
}

void nl_client_close(struct nl_client *c, const char *reason) {
    struct nl_server *server = c->server;

    if (c->closing)
        return;
    c->closing = true;
    nl_log_debug("client %llu: closed: %s", (unsigned long long)c->peer.number, reason);
    unmark_dirty(c);
    unwatch(c);
    if (c->peer.session != NULL) {
        struct nl_upstream *u = nl_upstream_of(c->peer.session);
        nl_session_detach(c->peer.session, &c->peer, nl_server_now(server));
        nl_upstream_wake(u);
    }
    DL_DELETE(server->clients, c);
    server->client_count--;
    nl_quota_give(&c->peer.quota->clients, 1);
    uv_close((uv_handle_t *)&c->pipe, on_closed);
}

/* ---- output ---- */

/* Nobody is there any more, or it has sent all and got all. */
static bool done(const struct nl_client *c) {
    if (!c->half_closed || c->auth_waits || c->reader.stopped)
        return false;
    return c->deaf || (nl_output_empty(&c->output) && c->peer.pending == 0 && !nl_peer_stands(&c->peer) &&
                       c->dropped == NULL);
}

static void close_if_done(struct nl_client *c) {
    if (c->closing)
        return;
    if (c->condemned && (c->deaf || nl_output_empty(&c->output)))
        nl_client_close(c, "condemned and told so");
    else if (done(c))
        nl_client_close(c, c->deaf ? "gone" : "it has sent all and got all");
}

/* All that waits, but for a line that is being written. */
static void discard_output(struct nl_client *c) {
    size_t before = c->output.bytes;

    forget_dropped(c);
    if (c->writing)
        nl_output_truncate(&c->output);
    else
        nl_output_deinit(&c->output);
    give_output_quota(c, before);
}

/*
 * It takes nothing any more. What it wrote before is still to be read: it may have closed only its receiving
 * side, and when it closed both, the end of the stream comes behind all that it wrote.
 */
static void go_deaf(struct nl_client *c, int why) {
    if (c->deaf)
        return;
    nl_log_debug("client %llu: takes no more: %s", (unsigned long long)c->peer.number, uv_strerror(why));
    c->deaf = true;
    discard_output(c);
    mark_dirty(c);
}

static struct nl_dropped *dropped_entry(struct nl_client *c, const char *topic, size_t len) {
    struct nl_dropped *d;
    unsigned n = 0;

    DL_FOREACH(c->dropped, d) {
        if (d->topic == NULL || (strlen(d->topic) == len && memcmp(d->topic, topic, len) == 0))
            return d;
        n++;
    }
    d = nl_calloc(1, sizeof(*d));
    d->topic = n < DROPPED_TOPICS ? nl_strndup(topic, len) : NULL;
    DL_APPEND(c->dropped, d);
    return d;
}

/* The topic of a message line, which nl_message_line() writes first. */
static void note_dropped(struct nl_client *c, const struct nl_line *line) {
    static const char prefix[] = "{\"type\":\"message\",\"topic\":\"";
    const char *topic = (const char *)line->bytes + sizeof(prefix) - 1;
    const char *end = line->len < sizeof(prefix) ? NULL : memchr(topic, '"', line->len - sizeof(prefix));

    if (end == NULL || memcmp(line->bytes, prefix, sizeof(prefix) - 1) != 0)
        dropped_entry(c, "", 0)->count++;
    else
        dropped_entry(c, topic, (size_t)(end - topic))->count++;
}

/* Makes room by the policy `drop`, as far as there is something to drop. */
static void make_room(struct nl_client *c, uint64_t limit) {
    while (c->output.bytes > limit) {
        size_t before = c->output.bytes;
        struct nl_line *line = nl_output_drop_oldest(&c->output);

        if (line == NULL)
            return;
        give_output_quota(c, before);
        note_dropped(c, line);
        nl_line_unref(line);
    }
}

/* Tells what was dropped, in the place of what was. */
static void tell_dropped(struct nl_client *c) {
    while (c->dropped != NULL) {
        struct nl_dropped *d = c->dropped->prev; /* the last one: each goes before the others */
        struct nl_line *line;
        struct nl_object o;

        nl_object_begin(&o, "dropped");
        nl_object_int(&o, "count", (int64_t)d->count);
        nl_object_cstr(&o, "topic", d->topic);
        line = nl_object_line(&o);
        if (c->peer.only & (1u << NL_EVENT_DROPPED)) {
            c->peer.quota->output_bytes += line->len;
            nl_output_push_front(&c->output, line);
        } else {
            nl_line_unref(line);
        }
        DL_DELETE(c->dropped, d);
        free(d->topic);
        free(d);
    }
}

void nl_client_send(struct nl_client *c, struct nl_line *line, bool droppable) {
    mark_dirty(c);
    if (c->closing || c->condemned || c->deaf || line == NULL) {
        nl_line_unref(line);
        return;
    }
    c->peer.quota->output_bytes += nl_line_size(line);
    nl_output_push(&c->output, line, droppable);
}

static void stop_reading(struct nl_client *c) {
    if (c->reading)
        uv_read_stop((uv_stream_t *)&c->pipe);
    c->reading = false;
}

static void tell_suppressed(uint32_t count) {
    if (count > 0)
        nl_log_warning("%u more clients were refused or cut off", (unsigned)count);
}

static bool log_allowed(struct nl_server *server, uint32_t *suppressed) {
    return nl_log_budget_take(&server->client_log, nl_server_now(server), LOG_BURST, LOG_INTERVAL_MS,
                              suppressed);
}

static void log_condemned(struct nl_client *c, enum nl_error error) {
    uint32_t suppressed;

    if (!log_allowed(c->server, &suppressed))
        return;
    tell_suppressed(suppressed);
    nl_log_warning("client %llu (pid %d, uid %u): %s, %zu bytes wait", (unsigned long long)c->peer.number,
                   (int)c->peer.pid, (unsigned)c->peer.uid, nl_error_name(error), c->output.bytes);
}

static void condemn(struct nl_client *c, enum nl_error error) {
    size_t before = c->output.bytes;
    struct nl_line *line;

    log_condemned(c, error);
    watch(c);
    c->condemned = true;
    c->linger_until_ms = nl_server_now(c->server) + NL_CLIENT_LINGER_MS;
    stop_reading(c);
    forget_dropped(c);
    nl_output_truncate(&c->output); /* a line that is begun will be whole */
    give_output_quota(c, before);
    line = nl_error_line(error, NULL, NULL, nl_slice(NULL, 0), NULL);
    c->peer.quota->output_bytes += line->len;
    nl_output_push(&c->output, line, false);
    mark_dirty(c);
}

static void written(struct nl_client *c, size_t bytes) {
    nl_backlog_taken(&c->backlog, bytes);
    nl_backlog_taken(&c->peer.quota->output, bytes);
    nl_quota_give(&c->peer.quota->output_bytes, bytes);
    nl_output_written(&c->output, bytes);
}

/* Counts what the kernel has taken of a line that is being written, which may be most of what waits. */
static void count_partly_written(struct nl_client *c) {
    size_t left = uv_stream_get_write_queue_size((uv_stream_t *)&c->pipe);

    if (!c->writing || left == 0 || left >= c->write_bytes)
        return;
    written(c, c->write_bytes - left);
    c->write_bytes = left;
}

static void on_written(uv_write_t *request, int status) {
    struct nl_client *c = request->data;

    c->writing = false;
    c->output.pinned = false;
    if (c->closing)
        return;
    if (status == 0)
        written(c, c->write_bytes);
    else if (c->deaf)
        discard_output(c);
    else
        go_deaf(c, status);
    mark_dirty(c);
}

/*
 * The kernel takes no more: have libuv wait for room and write the rest of the first line then. Only that
 * one, so that all others can still be dropped.
 */
static void write_later(struct nl_client *c) {
    struct iovec vector;
    uv_buf_t buffer;
    int error;

    nl_output_peek(&c->output, &vector, 1);
    buffer = uv_buf_init(vector.iov_base, (unsigned)vector.iov_len);
    c->write_bytes = vector.iov_len;
    c->write.data = c;
    error = uv_write(&c->write, (uv_stream_t *)&c->pipe, &buffer, 1, on_written);
    if (error < 0) {
        go_deaf(c, error);
        return;
    }
    c->writing = true;
    c->output.pinned = true;
}

/* Writes once; returns what uv_try_write() does. */
static int write_now(struct nl_client *c) {
    struct iovec vectors[VECTORS];
    unsigned n = nl_output_peek(&c->output, vectors, VECTORS);
    int result;

    /* On Unix a uv_buf_t is an iovec: libuv says so and relies on it. */
    result = uv_try_write((uv_stream_t *)&c->pipe, (const uv_buf_t *)(const void *)vectors, n);
    if (result > 0)
        written(c, (size_t)result);
    return result;
}

static void write_out(struct nl_client *c) {
    int sent = 0;

    if (c->dropped != NULL)
        tell_dropped(c);
    while (!nl_output_empty(&c->output)) {
        int result;

        if (sent > TURN_BYTES) {
            mark_dirty(c);
            return;
        }
        result = write_now(c);
        if (result == UV_EAGAIN) {
            write_later(c);
            return;
        }
        if (result < 0) {
            go_deaf(c, result);
            return;
        }
        sent += result;
    }
}

/* ---- who has too much waiting ---- */

/* The kernel takes more again: it has read, and we have only not come to it yet. */
static bool has_room(const struct nl_client *c) {
    struct pollfd p = {.events = POLLOUT};
    uv_os_fd_t fd;

    if (!c->writing || uv_fileno((const uv_handle_t *)&c->pipe, &fd) < 0)
        return true;
    p.fd = fd;
    return poll(&p, 1, 0) > 0;
}

static bool over_uid_bound(const struct nl_client *c) {
    uint64_t bound = c->server->config->daemon.output_per_uid;

    return bound != 0 && c->peer.quota->output_bytes > bound;
}

/*
 * The policy `drop`: down to the client's bound, and beyond the user's, each of its clients down to an equal
 * share. Only those for whom the kernel takes no more: the others have not been offered all yet.
 */
static void drop_what_is_too_much(struct nl_client *c) {
    const struct nl_daemon_config *config = &c->server->config->daemon;
    struct nl_uid_quota *quota = c->peer.quota;
    struct nl_client *other;

    if (!c->writing)
        return;
    make_room(c, config->client_output_limit);
    if (!over_uid_bound(c))
        return;
    DL_FOREACH(c->server->clients, other) {
        if (other->peer.quota == quota && other->writing)
            make_room(other, config->output_per_uid / quota->clients);
    }
}

/* Of the clients of the same user that do not read, the one with most waiting; or NULL. */
static struct nl_client *slowest_of_uid(const struct nl_client *c) {
    struct nl_client *other, *found = NULL;

    DL_FOREACH(c->server->clients, other) {
        if (other->peer.quota == c->peer.quota && !other->condemned && !other->deaf &&
            (found == NULL || other->output.bytes > found->output.bytes) && !has_room(other))
            found = other;
    }
    return found;
}

static void judge_uid(struct nl_client *c, uint64_t now_ms) {
    struct nl_uid_quota *quota = c->peer.quota;
    uint64_t bound = c->server->config->daemon.output_per_uid;
    struct nl_client *slowest;

    if (bound == 0 || !nl_backlog_too_slow(&quota->output, quota->output_bytes, bound, now_ms))
        return;
    while (over_uid_bound(c) && (slowest = slowest_of_uid(c)) != NULL)
        condemn(slowest, NL_ERROR_SLOW_CONSUMER);
}

/* Called after the kernel was offered what waits. */
static void judge(struct nl_client *c) {
    const struct nl_daemon_config *config = &c->server->config->daemon;
    uint64_t now_ms = nl_server_now(c->server);

    if (c->condemned || c->deaf)
        return;
    count_partly_written(c);
    if (config->slow_consumer == NL_SLOW_DROP)
        drop_what_is_too_much(c);
    if (nl_backlog_too_slow(&c->backlog, c->output.bytes, config->client_output_limit, now_ms) &&
        !has_room(c))
        condemn(c, NL_ERROR_SLOW_CONSUMER);
    judge_uid(c, now_ms);
    if (c->backlog.over || c->peer.quota->output.over)
        watch(c);
}

/* ---- input ---- */

/* What it has not read yet is so much that more answers must wait; or it waits for its auth. */
static bool held_back(const struct nl_client *c) {
    return c->auth_waits || c->output.bytes > c->server->config->daemon.client_output_limit / 2;
}

static bool wants_more(const struct nl_client *c) {
    return !c->closing && !c->condemned && !held_back(c);
}

static bool on_line(void *ctx, struct nl_slice text) {
    struct nl_client *c = ctx;

    nl_dispatch_line(c, text);
    return wants_more(c);
}

static bool on_too_long(void *ctx) {
    struct nl_client *c = ctx;

    nl_dispatch_too_long(c);
    return wants_more(c);
}

/* What is kept of a long line without end counts for the user; beyond its bound the line is given up. */
static void count_input(struct nl_client *c) {
    uint64_t bound = NL_CLIENT_LINES_PER_UID * c->server->config->daemon.line_limit;
    struct nl_uid_quota *quota = c->peer.quota;

    nl_quota_give(&quota->input_bytes, c->input_bytes);
    c->input_bytes = c->reader.stopped || c->reader.partial.len <= FREE_INPUT ? 0 : c->reader.partial.len;
    if (nl_quota_take(&quota->input_bytes, c->input_bytes, bound))
        return;
    c->input_bytes = 0;
    nl_line_reader_skip(&c->reader);
    nl_client_send(
        c,
        nl_error_line(NL_ERROR_LIMIT_REACHED, NULL, NULL, nl_slice(NULL, 0),
                      "too many long lines of this user are on their way; this one was skipped to its end"),
        false);
}

/* Takes bytes, and what was kept when a line made it stop. */
static void take(struct nl_client *c, struct nl_slice bytes) {
    struct nl_line_sink sink = {.line = on_line, .too_long = on_too_long, .ctx = c};
    size_t limit = c->server->config->daemon.line_limit;

    if (nl_line_reader_feed(&c->reader, bytes, limit, &sink) && c->half_closed)
        nl_line_reader_finish(&c->reader, limit, &sink);
    count_input(c);
}

/* Has it gone fully, or only closed its sending side? The end of the stream looks the same. */
static bool hung_up(uv_os_fd_t fd) {
    struct pollfd p = {.fd = fd};

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

/*
 * A client that only closed its sending side waits for what it asked, and may go on receiving; one that is
 * gone fully holds nothing any more, from now on: the next request may be somebody else's wish for the same.
 */
static void on_end(struct nl_client *c, int error) {
    uv_os_fd_t fd;

    stop_reading(c);
    c->half_closed = true;
    if (uv_fileno((uv_handle_t *)&c->pipe, &fd) < 0 || error != UV_EOF || hung_up(fd))
        go_deaf(c, error);
    else if (nl_hangups_add(&c->server->hangups, fd, c) < 0)
        go_deaf(c, UV_ENOMEM);
    take(c, nl_slice(NULL, 0));
    mark_dirty(c);
    close_if_done(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    struct nl_client *c = stream->data;

    if (n == UV_ENOBUFS || n == 0)
        return; /* on_alloc() gave none */
    if (n < 0) {
        on_end(c, (int)n);
        return;
    }
    c->has_read = true;
    mark_dirty(c);
    take(c, nl_slice(buffer->base, (size_t)n));
    if (!wants_more(c))
        stop_reading(c);
}

/* One read in a turn. Without a buffer libuv stops for now, and comes again as long as there is something. */
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    const struct nl_client *c = handle->data;

    (void)suggested;
    *buffer = uv_buf_init(read_buffer, c->has_read ? 0 : sizeof(read_buffer));
}

static void start_reading(struct nl_client *c) {
    int error;

    if (c->reading || c->half_closed)
        return;
    error = uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
    if (error < 0)
        nl_client_close(c, uv_strerror(error));
    else
        c->reading = true;
}

/* Reads, or not, as there is room for its answers. */
static void go_on_reading(struct nl_client *c) {
    if (c->reader.stopped && wants_more(c))
        take(c, nl_slice(NULL, 0));
    if (!wants_more(c))
        stop_reading(c);
    else if (!c->reader.stopped)
        start_reading(c);
}

void nl_client_resume(struct nl_client *c) {
    mark_dirty(c);
}

void nl_client_hung_up(void *who) {
    struct nl_client *c = who;

    if (c->closing)
        return;
    go_deaf(c, UV_EPIPE);
    go_on_reading(c);
    close_if_done(c);
}

/* ---- each turn, and each second ---- */

void nl_client_flush(struct nl_client *c) {
    unmark_dirty(c);
    c->has_read = false;
    if (!c->writing)
        write_out(c);
    judge(c);
    go_on_reading(c);
    close_if_done(c);
}

static void look_after(struct nl_client *c, uint64_t now_ms) {
    if (c->condemned) {
        if (c->linger_until_ms <= now_ms)
            nl_client_close(c, "condemned and did not read");
        return;
    }
    judge(c);
    if (!c->condemned && !c->backlog.over && !c->peer.quota->output.over)
        unwatch(c);
}

void nl_clients_look_after(struct nl_server *server) {
    struct nl_client *c, *tmp;
    uint32_t suppressed;

    if (server->client_log.suppressed > 0) {
        if (log_allowed(server, &suppressed))
            tell_suppressed(suppressed);
        else
            server->client_log.suppressed--; /* this was not one more */
    }
    DL_FOREACH_SAFE2(server->watched, c, tmp, watch_next) {
        look_after(c, nl_server_now(server));
    }
}

/* ---- the beginning ---- */

static int read_credentials(struct nl_client *c) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&c->pipe, &fd) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return -1;
    c->peer.uid = cred.uid;
    c->peer.gid = cred.gid;
    c->peer.pid = cred.pid;
    return 0;
}

static void enter(struct nl_client *c) {
    struct nl_server *server = c->server;

    c->peer.number = ++server->client_number;
    c->peer.only = (1u << NL_EVENT_COUNT) - 1;
    c->peer.quota = nl_quota_ref(&server->quotas, c->peer.uid);
    c->peer.quota->clients++;
    DL_APPEND(server->clients, c);
    server->client_count++;
}

static bool admitted(const struct nl_client *c) {
    const struct nl_daemon_config *config = &c->server->config->daemon;
    uint64_t per_uid = config->max_clients_per_uid;

    return c->server->client_count <= c->server->max_clients &&
           (per_uid == 0 || c->peer.quota->clients <= per_uid);
}

static void on_refused_closed(uv_handle_t *handle) {
    free(handle->data);
}

void nl_client_accept(struct nl_server *server, uv_stream_t *listener) {
    struct nl_client *c = nl_calloc(1, sizeof(*c));

    c->server = server;
    nl_line_reader_init(&c->reader);
    nl_output_init(&c->output);
    uv_pipe_init(server->loop, &c->pipe, 0);
    c->pipe.data = c;
    if (uv_accept(listener, (uv_stream_t *)&c->pipe) < 0 || read_credentials(c) < 0) {
        uv_close((uv_handle_t *)&c->pipe, on_refused_closed);
        return;
    }
    enter(c);
    nl_log_debug("client %llu: pid %d, uid %u", (unsigned long long)c->peer.number, (int)c->peer.pid,
                 (unsigned)c->peer.uid);
    if (!admitted(c))
        condemn(c, NL_ERROR_TOO_MANY_CLIENTS);
    else
        start_reading(c);
}
