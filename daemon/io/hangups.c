/* SPDX-License-Identifier: Apache-2.0 */
/* The epoll set of half closed connections. */
#include "daemon/io/hangups.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS 64 /* asked for at once */

/* All of them in one turn: the next request must not be judged against one that is gone. */
static void on_events(uv_poll_t *poll, int status, int events) {
    struct nl_hangups *h = poll->data;
    struct epoll_event found[EVENTS];
    int n;

    (void)status;
    (void)events;
    do {
        n = epoll_wait(h->set, found, EVENTS, 0);
        for (int i = 0; i < n; i++)
            h->gone(found[i].data.ptr);
    } while (n == EVENTS);
}

int nl_hangups_init(struct nl_hangups *h, uv_loop_t *loop, void (*gone)(void *who)) {
    int error;

    h->gone = gone;
    h->set = epoll_create1(EPOLL_CLOEXEC);
    if (h->set < 0)
        return -errno;
    error = uv_poll_init(loop, &h->poll, h->set);
    if (error < 0) {
        close(h->set);
        return error;
    }
    h->open = true;
    h->poll.data = h;
    return uv_poll_start(&h->poll, UV_READABLE, on_events);
}

int nl_hangups_add(struct nl_hangups *h, int fd, void *who) {
    /* EPOLLHUP needs no asking for. Once is enough: its owner may not be able to close it yet. */
    struct epoll_event event = {.events = EPOLLET, .data.ptr = who};

    return epoll_ctl(h->set, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

void nl_hangups_close(struct nl_hangups *h) {
    if (!h->open)
        return;
    h->open = false;
    uv_close((uv_handle_t *)&h->poll, NULL);
    close(h->set);
}
