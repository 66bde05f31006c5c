/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices at once when half closed connections are gone fully. After the end of a stream libuv tells nothing
 * more about it, and a second watcher on its descriptor is not allowed; so all of them are in one epoll set
 * of our own, which the loop watches. A descriptor leaves the set when it is closed.
 */
#ifndef NL_IO_HANGUPS_H
#define NL_IO_HANGUPS_H

#include <stdbool.h>
#include <uv.h>

struct nl_hangups {
    uv_poll_t poll;
    int set; /* an epoll descriptor */
    bool open;
    void (*gone)(void *who);
};

/* Returns 0 or a negative errno. gone is called once for each connection that was added and is gone. */
int nl_hangups_init(struct nl_hangups *h, uv_loop_t *loop, void (*gone)(void *who));

/* Begins to watch fd. who is valid until fd is closed, and in the loop turn in which it is. Returns 0 or
 * -errno. */
int nl_hangups_add(struct nl_hangups *h, int fd, void *who);

/* Idempotent; h lives until the loop has run dry. */
void nl_hangups_close(struct nl_hangups *h);

#endif
