/* SPDX-License-Identifier: Apache-2.0 */
/* The socket and what waits in both directions; only the two functions that connection.h names wait. */
#include "clients/cli/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/diagnosis.h"
#include "protocol/transcode.h"

#define READ_SIZE ((size_t)64 << 10)
#define BACKLOG_PAUSE 20 /* ms between attempts while the listen queue is full */

int64_t nolag_now(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t nolag_after(double seconds) {
    return nolag_now() + (int64_t)(seconds * 1000);
}

static int time_left(int64_t deadline) {
    int64_t left = deadline - nolag_now();

    if (deadline == NOLAG_NEVER)
        return -1;
    return left <= 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

int nolag_wait(struct pollfd *fds, nfds_t count, int64_t deadline) {
    for (;;) {
        int ready = poll(fds, count, time_left(deadline));

        if (ready > 0)
            return ready;
        if ((ready < 0 && errno != EINTR) || nolag_now() >= deadline)
            return 0;
    }
}

const char *nolag_socket_path(const char *option) {
    const char *env = getenv("NOLAGD_SOCKET");

    return option && *option ? option : env && *env ? env : NOLAG_SOCKET;
}

/* 0, or an errno value. A full listen queue is EAGAIN at once on a non-blocking socket. */
static int try_connect(int fd, const struct sockaddr_un *address, int64_t deadline) {
    while (connect(fd, (const struct sockaddr *)address, sizeof *address) < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return errno;
        if (nolag_now() >= deadline)
            return ETIMEDOUT;
        nolag_wait(NULL, 0, nolag_now() + BACKLOG_PAUSE);
    }
    return 0;
}

enum nolag_exit nolag_connection_open(struct nolag_connection *c, const char *path, int64_t deadline,
                                      bool quiet) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int error;

    memset(c, 0, sizeof *c);
    nl_buffer_init(&c->out);
    nl_line_reader_init(&c->reader);
    c->fd = -1;
    c->path = path;
    if (strlen(path) >= sizeof address.sun_path) {
        nolag_say("the path of the socket is longer than %zu bytes: %s", sizeof address.sun_path - 1, path);
        return NOLAG_USAGE;
    }
    memcpy(address.sun_path, path, strlen(path));
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    error = c->fd < 0 ? errno : try_connect(c->fd, &address, deadline);
    if (error == 0)
        return NOLAG_OK;
    if (!quiet)
        nolag_say_unreachable(path, error);
    if (error == EACCES || error == EPERM)
        return NOLAG_DENIED;
    return error == ETIMEDOUT ? NOLAG_TIMED_OUT : NOLAG_NO_DAEMON;
}

void nolag_connection_say_ended(const struct nolag_connection *c, const char *what) {
    if (c->foreign)
        nolag_say("what listens at %s is not nolagd", c->path);
    else
        nolag_say("%s", what);
}

void nolag_connection_close(struct nolag_connection *c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    nl_buffer_deinit(&c->out);
    nl_line_reader_deinit(&c->reader);
}

void nolag_connection_send_bytes(struct nolag_connection *c, struct nl_slice bytes) {
    nl_buffer_append(&c->out, bytes.ptr, bytes.len);
}

void nolag_connection_send(struct nolag_connection *c, struct nl_slice line) {
    nolag_connection_send_bytes(c, line);
    nl_buffer_append_byte(&c->out, '\n');
}

void nolag_connection_send_auth(struct nolag_connection *c, const char *session) {
    nl_buffer_append_str(&c->out, "{\"type\":\"auth\",\"id\":\"auth\",\"session\":");
    nl_json_string(&c->out, nl_slice_str(session));
    nl_buffer_append_str(&c->out, "}\n");
}

size_t nolag_connection_waiting(const struct nolag_connection *c) {
    return c->deaf ? 0 : c->out.len - c->out_done;
}

short nolag_connection_interest(const struct nolag_connection *c) {
    return (short)(POLLIN | (nolag_connection_waiting(c) ? POLLOUT : 0));
}

/* Keeps the queue from growing while it is never quite empty. */
static void forget_written(struct nolag_connection *c) {
    size_t left = c->out.len - c->out_done;

    if (c->out_done < READ_SIZE || c->out_done < left)
        return;
    memmove(c->out.bytes, c->out.bytes + c->out_done, left);
    c->out.len = left;
    c->out_done = 0;
}

void nolag_connection_flush(struct nolag_connection *c) {
    while (nolag_connection_waiting(c)) {
        ssize_t n = send(c->fd, c->out.bytes + c->out_done, c->out.len - c->out_done, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            /* When it is deaf, what it said before it closed is still to be read. */
            c->deaf = errno != EAGAIN;
            forget_written(c);
            return;
        }
        c->out_done += (size_t)n;
    }
    nl_buffer_clear(&c->out);
    c->out_done = 0;
}

bool nolag_connection_receive(struct nolag_connection *c, struct nl_buffer *bytes) {
    ssize_t n;

    nl_buffer_clear(bytes);
    do
        n = recv(c->fd, nl_buffer_reserve(bytes, READ_SIZE), READ_SIZE, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        bytes->len = (size_t)n;
    else if (n == 0 || errno != EAGAIN)
        c->ended = true;
    return n > 0;
}

static bool say_too_long(void *ctx) {
    (void)ctx;
    nolag_say("a line from nolagd is longer than %zu bytes; it is passed over", NOLAG_LINE_MAX);
    return true;
}

struct listener {
    struct nolag_connection *c;
    bool (*on_line)(void *ctx, struct nl_slice line);
    void *ctx;
};

static bool take_line(void *ctx, struct nl_slice line) {
    struct listener *l = ctx;
    struct nolag_event e;

    l->c->foreign = !l->c->heard && !nolag_event_read(&e, line);
    l->c->heard = true;
    l->c->ended = l->c->ended || l->c->foreign;
    return !l->c->foreign && l->on_line(l->ctx, line);
}

void nolag_connection_serve(struct nolag_connection *c, short revents,
                            bool (*on_line)(void *ctx, struct nl_slice line), void *ctx) {
    struct listener listener = {.c = c, .on_line = on_line, .ctx = ctx};
    const struct nl_line_sink sink = {.line = take_line, .too_long = say_too_long, .ctx = &listener};
    struct nl_buffer bytes;

    if (revents & POLLOUT)
        nolag_connection_flush(c);
    if (!(revents & (POLLIN | POLLHUP | POLLERR)))
        return;
    nl_buffer_init(&bytes);
    if (nolag_connection_receive(c, &bytes))
        nl_line_reader_feed(&c->reader, nl_slice(bytes.bytes, bytes.len), NOLAG_LINE_MAX, &sink);
    nl_buffer_deinit(&bytes);
}
