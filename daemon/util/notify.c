/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Talking to systemd: the one file that knows libsystemd. Failures to notify are not reported: nobody could
 * do anything about them, and systemd notices by itself that READY or the watchdog's sign is missing.
 */
#include "daemon/util/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

enum { STATUS_MAX = 256 };

/*
 * One line of printable ASCII: a line end would begin another variable of the notification, and systemd drops
 * a status that is not UTF-8, which half a character at the end would make of it.
 */
static const char *one_line(char *out, const char *text) {
    size_t i;

    for (i = 0; i < STATUS_MAX - 1 && text[i]; i++) {
        unsigned char byte = (unsigned char)text[i];

        out[i] = byte < 0x20 ? ' ' : byte >= 0x7f ? '?' : text[i];
    }
    out[i] = '\0';
    return out;
}

void nl_notify_ready(const char *status) {
    char line[STATUS_MAX];

    if (status)
        (void)sd_notifyf(0, "READY=1\nSTATUS=%s", one_line(line, status));
    else
        (void)sd_notify(0, "READY=1");
}

void nl_notify_status(const char *status) {
    char line[STATUS_MAX];

    (void)sd_notifyf(0, "STATUS=%s", one_line(line, status));
}

void nl_notify_stopping(uint64_t extend_usec) {
    if (extend_usec > 0)
        (void)sd_notifyf(0, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64, extend_usec);
    else
        (void)sd_notify(0, "STOPPING=1");
}

void nl_notify_watchdog(void) {
    (void)sd_notify(0, "WATCHDOG=1");
}

uint64_t nl_notify_watchdog_interval(void) {
    uint64_t usec = 0, ms;

    if (sd_watchdog_enabled(0, &usec) <= 0)
        return 0;
    ms = usec / 3 / 1000;
    return ms > 0 ? ms : 1; /* 0 would read as "no watchdog" */
}

/* libsystemd has set close-on-exec; a socket unit leaves O_NONBLOCK to the service. */
static int set_nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    return 0;
}

int nl_notify_listen_fd(const char **why) {
    int count = sd_listen_fds(1);

    *why = NULL;
    if (count == 0)
        return -ENOENT;
    if (count < 0)
        *why = "cannot make sense of $LISTEN_PID and $LISTEN_FDS";
    else if (count > 1)
        *why = "systemd passed more than one socket; nolagd serves one (one ListenStream= in nolagd.socket)";
    else if (sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_STREAM, 1, NULL, 0) <= 0)
        *why = "what systemd passed is not a listening Unix stream socket (ListenStream=, Accept=no)";
    else if (set_nonblocking(SD_LISTEN_FDS_START) < 0)
        *why = "cannot make the socket that systemd passed non-blocking";
    return *why ? -EINVAL : SD_LISTEN_FDS_START;
}
