/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening Unix socket: the one that systemd passed, or our own. Our own is made so that nobody ever
 * sees it with wider rights than configured, replaces only a stale socket (one that refuses connections), and
 * is removed at the end only if it is still ours. A lock on PATH.lock, which is there as long as the daemon,
 * keeps two that start at the same time from taking each other's socket for a stale one.
 */
#ifndef NL_IO_LISTENER_H
#define NL_IO_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/model/settings.h"

struct nl_listener {
    uv_pipe_t pipe;
    bool open;
    bool ours; /* we made the socket file */
    bool locked;
    int lock; /* descriptor of the lock file, or -1 */
    char *path, *lock_path;
    dev_t device; /* of the file that we made */
    ino_t inode;
};

/* Returns 0, or a negative errno with a log line. on_connection is libuv's; pipe.data is data. */
int nl_listener_start(struct nl_listener *l, uv_loop_t *loop, const struct nl_daemon_config *config,
                      uv_connection_cb on_connection, void *data);

/* Stops listening; idempotent. */
void nl_listener_close(struct nl_listener *l);

#endif
