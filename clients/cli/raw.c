/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nolag raw: lines to nolagd and lines from it, as they are. Unlike socat it waits, after
 * the end of its input, until nolagd has answered everything and closes.
 */
#include "clients/cli/verbs.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clients/cli/connection.h"
#include "clients/cli/output.h"
#include "clients/cli/request.h"

#define WAITING_MAX ((size_t)1 << 20)
#define READ_SIZE ((size_t)64 << 10)

struct pipe {
    const struct nolag_options *o;
    struct nolag_connection c;
    bool input_ended;
    bool half_closed; /* all of the input is sent, and its end is told */
    bool heard;       /* nolagd has said something */
    int64_t deadline; /* of -W */
    int64_t hear_by;  /* when the first answer must be there: nolagd may have been stopped */
};

static void end_input(struct pipe *p) {
    p->input_ended = true;
    p->hear_by = nolag_after(NOLAG_ANSWER_SECONDS);
}

static enum nolag_exit read_input(struct pipe *p) {
    uint8_t bytes[READ_SIZE];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return NOLAG_OK;
    if (n < 0) {
        nolag_say("stdin: %s", strerror(errno));
        return NOLAG_FAILED;
    }
    if (n == 0)
        end_input(p);
    nolag_connection_send_bytes(&p->c, nl_slice(bytes, (size_t)n));
    return NOLAG_OK;
}

static void send_args(struct pipe *p) {
    if (p->o->session)
        nolag_connection_send_auth(&p->c, p->o->session);
    for (char **arg = p->o->args; *arg; arg++)
        nolag_connection_send(&p->c, nl_slice_str(*arg));
    if (*p->o->args)
        end_input(p);
}

static void send_waiting(struct pipe *p) {
    nolag_connection_flush(&p->c);
    if (!p->input_ended || p->half_closed || nolag_connection_waiting(&p->c))
        return;
    shutdown(p->c.fd, SHUT_WR);
    p->half_closed = true;
}

static enum nolag_exit receive(struct pipe *p) {
    struct nl_buffer bytes;
    enum nolag_exit code = NOLAG_OK;

    nl_buffer_init(&bytes);
    if (nolag_connection_receive(&p->c, &bytes)) {
        p->heard = true;
        code = nolag_output(nl_slice(bytes.bytes, bytes.len));
    }
    nl_buffer_deinit(&bytes);
    return code;
}

static enum nolag_exit turn(struct pipe *p) {
    bool reads = !p->input_ended && nolag_connection_waiting(&p->c) < WAITING_MAX;
    struct pollfd fds[3] = {
        {.fd = p->c.fd, .events = nolag_connection_interest(&p->c)},
        {.fd = reads ? STDIN_FILENO : -1, .events = POLLIN},
        {.fd = STDOUT_FILENO, .events = 0},
    };
    int64_t deadline = p->input_ended && !p->heard && p->hear_by < p->deadline ? p->hear_by : p->deadline;
    enum nolag_exit code = NOLAG_OK;

    if (nolag_wait(fds, 3, deadline) == 0) {
        nolag_say("timed out");
        return NOLAG_TIMED_OUT;
    }
    if (fds[2].revents & (POLLERR | POLLHUP))
        nolag_output_gone();
    if (fds[0].revents & (POLLIN | POLLHUP | POLLERR))
        code = receive(p);
    if (code == NOLAG_OK && fds[1].revents)
        code = read_input(p);
    send_waiting(p);
    return code;
}

static enum nolag_exit run_raw(const struct nolag_options *o) {
    struct pipe p = {.o = o};
    int64_t connect_by = nolag_deadline(o, NOLAG_ANSWER_SECONDS);
    enum nolag_exit code;

    p.deadline = nolag_deadline(o, 0);
    code = nolag_connection_open(&p.c, nolag_socket_path(o->socket), connect_by, false);
    if (code == NOLAG_OK) {
        send_args(&p);
        send_waiting(&p);
    }
    while (code == NOLAG_OK && !p.c.ended)
        code = turn(&p);
    if (code == NOLAG_OK && !p.half_closed) {
        nolag_say("nolagd closed the connection before the end of the input");
        code = NOLAG_NO_DAEMON;
    }
    nolag_connection_close(&p.c);
    return code;
}

static const struct nolag_flag flags[] = {
    {0, "json", NULL, "no effect: what it prints is JSON", NOLAG_FLAG_BOOL, NOLAG_AT(json)},
    {0, "session", "NAME", "the session to use (default: nolagd's default session)", NOLAG_FLAG_TEXT,
     NOLAG_AT(session)},
    {'W', "timeout", "SECONDS", "end after that long (fractions allowed)", NOLAG_FLAG_SECONDS,
     NOLAG_AT(timeout)},
    {0},
};

const struct nolag_verb nolag_verb_raw = {
    .name = "raw",
    .summary = "Sends lines of the local protocol, and shows what nolagd says.",
    .usage = "[LINE...] [flags]",
    .notes = "The lines are the arguments or, without any, those of stdin. It ends when nolagd has\n"
             "answered all of them; with a subscription among them, not before nolagd goes away.\n\n"
             "  nolag raw '{\"type\":\"ping\"}'\n",
    .run = run_raw,
    .flags = flags,
    .takes_args = true,
};
