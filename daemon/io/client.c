/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/client.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <utlist.h>

#include "daemon/io/dispatch.h"
#include "daemon/io/server.h"
#include "daemon/io/upstream.h"
#include "protocol/alloc.h"
#include "protocol/object.h"

#define READ_SIZE 65536
#define VECTORS 128             /* lines in one writev */
#define TURN_BYTES (256 * 1024) /* written to one client in one turn, so that others get theirs */
#define DROPPED_TOPICS 32       /* told one by one; more are told together */

/* One buffer serves all clients: what is read is used up, or copied by the reader, before the next read. */
static char read_buffer[READ_SIZE];

static bool log_allowed(struct nl_client *c) {
    uint32_t suppressed;

    return nl_log_budget_take(&c->log_budget, nl_server_now(c->server), 10, 1000, &suppressed);
}

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

static bool watched(const struct nl_client *c) {
    return c->half_closed || c->condemned;
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
    if (c->dirty) {
        c->dirty = false;
        DL_DELETE2(server->dirty, c, dirty_prev, dirty_next);
    }
    if (watched(c))
        DL_DELETE2(server->watched, c, watch_prev, watch_next);
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

static bool done(const struct nl_client *c) {
    return c->half_closed && !c->auth_waits && c->peer.pending == 0 && !nl_peer_stands(&c->peer) &&
           nl_output_empty(&c->output) && c->dropped == NULL;
}

static void close_if_done(struct nl_client *c) {
    if (c->closing || !nl_output_empty(&c->output))
        return;
    if (c->condemned)
        nl_client_close(c, "condemned and told so");
    else if (done(c))
        nl_client_close(c, "it has sent all and got all");
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

/* Makes room by the policy `drop`; false when there is nothing left to drop. */
static bool make_room(struct nl_client *c, size_t limit) {
    while (c->output.bytes > limit) {
        size_t before = c->output.bytes;
        struct nl_line *line = nl_output_drop_oldest(&c->output);

        if (line == NULL)
            return false;
        give_output_quota(c, before);
        note_dropped(c, line);
        nl_line_unref(line);
    }
    return true;
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

static void overflow(struct nl_client *c) {
    const struct nl_daemon_config *config = &c->server->config->daemon;

    if (config->slow_consumer == NL_SLOW_DROP && make_room(c, config->client_output_limit))
        return;
    /* Not here: we may be in the middle of a delivery to many. */
    c->overflown = true;
}

void nl_client_send(struct nl_client *c, struct nl_line *line, bool droppable) {
    const struct nl_daemon_config *config = &c->server->config->daemon;
    struct nl_uid_quota *quota = c->peer.quota;

    if (c->closing || c->condemned || c->overflown || line == NULL) {
        nl_line_unref(line);
        mark_dirty(c);
        return;
    }
    quota->output_bytes += line->len;
    nl_output_push(&c->output, line, droppable);
    mark_dirty(c);
    if (c->output.bytes > config->client_output_limit ||
        (config->output_per_uid != 0 && quota->output_bytes > config->output_per_uid))
        overflow(c);
}

static void stop_reading(struct nl_client *c) {
    if (c->reading)
        uv_read_stop((uv_stream_t *)&c->pipe);
    c->reading = false;
}

static void watch(struct nl_client *c) {
    if (!watched(c))
        DL_APPEND2(c->server->watched, c, watch_prev, watch_next);
}

void nl_client_condemn(struct nl_client *c, enum nl_error error) {
    size_t before = c->output.bytes;
    struct nl_line *line;

    if (c->closing || c->condemned)
        return;
    if (log_allowed(c))
        nl_log_warning("client %llu (pid %d, uid %u): %s, %zu bytes wait", (unsigned long long)c->peer.number,
                       (int)c->peer.pid, (unsigned)c->peer.uid, nl_error_name(error), before);
    watch(c);
    c->condemned = true;
    c->linger_until_ms = nl_server_now(c->server) + NL_CLIENT_LINGER_MS;
    stop_reading(c);
    forget_dropped(c);
    nl_output_truncate(&c->output);
    give_output_quota(c, before);
    line = nl_error_line(error, NULL, NULL, nl_slice(NULL, 0), NULL);
    c->peer.quota->output_bytes += line->len;
    nl_output_push(&c->output, line, false);
    mark_dirty(c);
}

static void written(struct nl_client *c, size_t bytes) {
    nl_quota_give(&c->peer.quota->output_bytes, bytes);
    nl_output_written(&c->output, bytes);
}

static void on_written(uv_write_t *request, int status) {
    struct nl_client *c = request->data;

    c->writing = false;
    c->output.pinned = false;
    if (c->closing)
        return;
    if (status < 0) {
        nl_client_close(c, uv_strerror(status));
        return;
    }
    written(c, c->write_bytes);
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
        nl_client_close(c, uv_strerror(error));
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

static void flush(struct nl_client *c) {
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
            nl_client_close(c, uv_strerror(result));
            return;
        }
        sent += result;
    }
}

void nl_client_flush(struct nl_client *c) {
    unmark_dirty(c);
    if (c->overflown) {
        c->overflown = false;
        nl_client_condemn(c, NL_ERROR_SLOW_CONSUMER);
        unmark_dirty(c);
    }
    if (c->writing)
        return;
    flush(c);
    close_if_done(c);
}

/* ---- input ---- */

static bool on_line(void *ctx, struct nl_slice text) {
    struct nl_client *c = ctx;

    nl_dispatch_line(c, text);
    return !c->closing && !c->condemned && !c->auth_waits;
}

static bool on_too_long(void *ctx) {
    struct nl_client *c = ctx;

    nl_dispatch_too_long(c);
    return !c->closing && !c->condemned;
}

static void feed(struct nl_client *c, struct nl_slice bytes) {
    struct nl_line_sink sink = {.line = on_line, .too_long = on_too_long, .ctx = c};
    size_t limit = c->server->config->daemon.line_limit;

    if (!nl_line_reader_feed(&c->reader, bytes, limit, &sink))
        return;
    if (c->half_closed)
        nl_line_reader_finish(&c->reader, limit, &sink);
}

/* After an end of file libuv tells nothing more: whether a quiet client has gone fully must be asked for. */
static bool gone(const struct nl_client *c) {
    struct pollfd p = {.events = 0};
    uv_os_fd_t fd;

    if (uv_fileno((const uv_handle_t *)&c->pipe, &fd) < 0)
        return true;
    p.fd = fd;
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

/*
 * A client that only closed its sending side waits for what it asked, and may go on receiving; one that is
 * gone fully holds nothing any more. The end of the stream looks the same, so it is asked for here; later
 * only look_after() would find out.
 */
static void on_eof(struct nl_client *c) {
    stop_reading(c);
    watch(c);
    c->half_closed = true;
    if (!c->auth_waits)
        feed(c, nl_slice(NULL, 0));
    mark_dirty(c);
    if (!c->auth_waits && gone(c))
        nl_client_close(c, "gone");
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    struct nl_client *c = stream->data;

    if (n == UV_EOF) {
        on_eof(c);
    } else if (n < 0) {
        nl_client_close(c, uv_strerror((int)n));
    } else if (n > 0) {
        feed(c, nl_slice(buffer->base, (size_t)n));
        if (c->auth_waits)
            stop_reading(c);
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    (void)handle;
    (void)suggested;
    *buffer = uv_buf_init(read_buffer, sizeof(read_buffer));
}

static void start_reading(struct nl_client *c) {
    int error;

    if (c->reading || c->half_closed || c->closing || c->condemned)
        return;
    error = uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
    if (error < 0)
        nl_client_close(c, uv_strerror(error));
    else
        c->reading = true;
}

void nl_client_resume(struct nl_client *c) {
    if (c->closing || c->auth_waits)
        return;
    feed(c, nl_slice(NULL, 0));
    if (!c->auth_waits)
        start_reading(c);
    mark_dirty(c);
}

void nl_client_look_after(struct nl_client *c, uint64_t now_ms) {
    if (c->condemned && c->linger_until_ms <= now_ms)
        nl_client_close(c, "condemned and did not read");
    else if (c->half_closed && !c->auth_waits && gone(c))
        nl_client_close(c, "gone");
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
        nl_client_condemn(c, NL_ERROR_TOO_MANY_CLIENTS);
    else
        start_reading(c);
}
