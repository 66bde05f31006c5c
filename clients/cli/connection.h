/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to nolagd: a non-blocking Unix socket, what waits to be written, and the
 * reader that cuts what comes into lines. Nothing here waits but nolag_wait() and
 * nolag_connection_open(), and both have a deadline.
 *
 * Times are milliseconds of the monotonic clock; NOLAG_NEVER is no deadline.
 */
#ifndef NOLAG_CLI_CONNECTION_H
#define NOLAG_CLI_CONNECTION_H

#include <poll.h>
#include <stdbool.h>

#include "clients/cli/outcome.h"
#include "protocol/buffer.h"
#include "protocol/line.h"

#define NOLAG_NEVER INT64_MAX
#define NOLAG_SOCKET "/run/nolagd.sock"
#define NOLAG_LINE_MAX ((size_t)64 << 20) /* a message of the broker's size, escaped at its worst, fits */

struct nolag_connection {
    int fd;
    const char *path;
    bool ended;   /* nolagd has closed it, or it broke, or it is foreign */
    bool heard;   /* a line has come */
    bool foreign; /* the first line was none of nolagd's: something else listens there */
    bool deaf;    /* nothing more can be written: nolagd does not read any more */
    struct nl_buffer out;
    size_t out_done; /* bytes of out that are written */
    struct nl_line_reader reader;
};

int64_t nolag_now(void);
int64_t nolag_after(double seconds); /* the time that many seconds from now */

/* poll() until an event or the deadline: the number of ready entries, 0 at the deadline. */
int nolag_wait(struct pollfd *fds, nfds_t count, int64_t deadline);

/* The socket's path: the option, or NOLAGD_SOCKET, or the default. */
const char *nolag_socket_path(const char *option);

/*
 * Connects. NOLAG_OK, or why not: NOLAG_NO_DAEMON or NOLAG_TIMED_OUT, explained on stderr
 * unless quiet, or NOLAG_USAGE; NOLAG_DENIED when the socket may not be used. c is to be closed in any case,
 * and path is to outlive it.
 */
enum nolag_exit nolag_connection_open(struct nolag_connection *c, const char *path, int64_t deadline,
                                      bool quiet);
void nolag_connection_close(struct nolag_connection *c);

/* Says that the connection ended too early: in these words, or that it was no nolagd's at all. */
void nolag_connection_say_ended(const struct nolag_connection *c, const char *what);

/* Queues one line. */
void nolag_connection_send(struct nolag_connection *c, struct nl_slice line);

/* Queues bytes as they are. */
void nolag_connection_send_bytes(struct nolag_connection *c, struct nl_slice bytes);

/* Queues an auth for that session, with the id "auth". */
void nolag_connection_send_auth(struct nolag_connection *c, const char *session);

/* Bytes that wait to be written. */
size_t nolag_connection_waiting(const struct nolag_connection *c);

/* What to poll the socket for. */
short nolag_connection_interest(const struct nolag_connection *c);

/* Writes what can be written now. */
void nolag_connection_flush(struct nolag_connection *c);

/* Reads once, at most 64 KiB, into bytes (cleared before). False when there was nothing to read. */
bool nolag_connection_receive(struct nolag_connection *c, struct nl_buffer *bytes);

/*
 * Writes and reads what poll() said is possible; each line goes to on_line, which returns
 * false to get no more. A first line that nolagd cannot have written ends the connection.
 */
void nolag_connection_serve(struct nolag_connection *c, short revents,
                            bool (*on_line)(void *ctx, struct nl_slice line), void *ctx);

#endif
