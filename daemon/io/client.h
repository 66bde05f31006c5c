/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connected local client: its socket, the lines it sends, the lines that wait for it.
 *
 * Life: accepted -> open -> (half closed: it sends no more) -> closing -> freed. nl_client_close() is the
 * only way out; the memory goes in libuv's close callback, when no event can come any more.
 *
 * Output is queued and written at the end of the loop turn, all that waits in one writev. A client that reads
 * is never cut off: it is judged only by what the kernel does not take, over time (util/backlog.h). Beyond
 * client_output_limit, the policy `drop` leaves out its oldest messages; with `disconnect`, or when there is
 * nothing to drop, one that is too slow is condemned: what waits is dropped, an error line goes out, and it
 * is closed when that is written or after NL_CLIENT_LINGER_MS. Beyond output_per_uid the same happens to
 * those clients of the user that have most waiting. When a write fails only the output is thrown away: what
 * the client wrote before it went is read to the end.
 *
 * Input is read once in a turn, a little at a time, and not at all while half of client_output_limit waits:
 * who sends many requests gets their answers at the speed at which it reads them.
 */
#ifndef NL_IO_CLIENT_H
#define NL_IO_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/io/output.h"
#include "daemon/model/peer.h"
#include "daemon/util/backlog.h"
#include "protocol/errors.h"
#include "protocol/line.h"
#include "protocol/request.h"

#define NL_CLIENT_LINGER_MS 10000
/* What long lines that have not ended may hold for all clients of a user, in longest lines. */
#define NL_CLIENT_LINES_PER_UID 32

struct nl_server;

/* Messages left out for a slow client, until it is told. */
struct nl_dropped {
    char *topic;
    uint64_t count;
    struct nl_dropped *prev, *next;
};

struct nl_client {
    struct nl_peer peer; /* first: a peer is its client */
    struct nl_server *server;
    uv_pipe_t pipe;
    uv_write_t write;   /* one at most: of the first line that waits */
    size_t write_bytes; /* of it, that are not known to be written */
    struct nl_line_reader reader;
    struct nl_output output;
    struct nl_dropped *dropped;
    char *auth_id;      /* id of the auth that waits */
    bool auth_waits;    /* a barrier: no line is read until its outcome */
    bool auth_failed;   /* unattached for good */
    bool attached_once; /* auth comes too late */
    bool reading, writing, dirty, watched, half_closed, condemned, closing;
    bool has_read;            /* in this turn */
    bool deaf;                /* a write failed: it takes nothing any more, but may still send */
    uint64_t input_bytes;     /* that its unfinished line counts for its user */
    uint64_t linger_until_ms; /* condemned */
    struct nl_backlog backlog;
    struct nl_client *prev, *next;             /* in nl_server.clients */
    struct nl_client *dirty_prev, *dirty_next; /* in nl_server.dirty */
    struct nl_client *watch_prev, *watch_next; /* in nl_server.watched: condemned, or judged by time */
};

static inline struct nl_client *nl_client_of(struct nl_peer *peer) {
    return (struct nl_client *)(void *)peer;
}

/* Accepts a connection from listener. Always takes one off its queue. */
void nl_client_accept(struct nl_server *server, uv_stream_t *listener);

/* Queues a line (takes over the reference); NULL only makes the client look whether it is done. */
void nl_client_send(struct nl_client *c, struct nl_line *line, bool droppable);

/* Writes what waits, and reads on as far as that makes room. Called by the server at the end of the turn, for
 * dirty clients. */
void nl_client_flush(struct nl_client *c);

/* The auth it waited for has its outcome: it reads on at the end of the turn. */
void nl_client_resume(struct nl_client *c);

/* A half closed client is gone fully: for nl_hangups. */
void nl_client_hung_up(void *who);

/* Looks after condemned and slow clients, and tells how many were not logged; about once a second. */
void nl_clients_look_after(struct nl_server *server);

void nl_client_close(struct nl_client *c, const char *reason);

#endif
