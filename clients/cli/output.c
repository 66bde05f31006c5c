/* SPDX-License-Identifier: Apache-2.0 */
/* Whole pieces to stdout, and the end when nobody reads them. */
#include "clients/cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

void nolag_output_prepare(void) {
    sigset_t pipe_signal;

    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigprocmask(SIG_UNBLOCK, &pipe_signal, NULL);
    /* Read-only, so that writing to a closed stdout still fails. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
            _exit(NOLAG_FAILED);
}

void nolag_output_gone(void) {
    raise(SIGPIPE);
    _exit(128 + SIGPIPE);
}

enum nolag_exit nolag_output(struct nl_slice bytes) {
    while (bytes.len > 0) {
        ssize_t n = write(STDOUT_FILENO, bytes.ptr, bytes.len);

        if (n < 0 && errno == EAGAIN) {
            /* Somebody else made it non-blocking. */
            poll(&(struct pollfd){.fd = STDOUT_FILENO, .events = POLLOUT}, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            nolag_say("cannot write to stdout: %s", strerror(errno));
            return NOLAG_FAILED;
        } else if (n > 0) {
            bytes.ptr += n;
            bytes.len -= (size_t)n;
        }
    }
    return NOLAG_OK;
}

enum nolag_exit nolag_output_line(struct nl_slice text) {
    struct nl_buffer line;
    enum nolag_exit code;

    nl_buffer_init(&line);
    nl_buffer_append(&line, text.ptr, text.len);
    nl_buffer_append_byte(&line, '\n');
    code = nolag_output(nl_slice(line.bytes, line.len));
    nl_buffer_deinit(&line);
    return code;
}
