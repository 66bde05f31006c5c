/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nolag raw: lines to nolagd and lines from it, as they are. Unlike socat it waits, after
 * the end of its input, until nolagd has answered everything and closes. An error is an
 * answer like any other, and shown as one; --exit-code makes it count.
 */
#include "clients/cli/verbs.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clients/cli/connection.h"
#include "clients/cli/json.h"
#include "clients/cli/output.h"
#include "clients/cli/request.h"

#define WAITING_MAX ((size_t)1 << 20)
#define READ_SIZE ((size_t)64 << 10)

struct pipe {
    const struct nolag_options *o;
    struct nolag_connection c;
    bool input_ended;
    bool half_closed;              /* all of the input is sent, and its end is told */
    bool heard;                    /* nolagd has said something */
    bool attached;                 /* what comes is for the user: no --session, or its auth is answered */
    struct nl_buffer first;        /* the beginning of the answer to the auth, which is not the user's */
    struct nl_line_reader answers; /* for --exit-code */
    int64_t deadline;              /* of -W */
    int64_t hear_by;               /* when the first answer must be there: nolagd may have been stopped */
    enum nolag_exit code;          /* of the first answer that is an error */
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

static bool judge(void *ctx, struct nl_slice line) {
    struct pipe *p = ctx;
    struct nolag_event e;

    if (p->code == NOLAG_OK && nolag_event_read(&e, line))
        p->code = nolag_outcome(&e);
    return true;
}

static bool pass_over(void *ctx) {
    (void)ctx;
    return true;
}

static enum nolag_exit show(struct pipe *p, struct nl_slice bytes) {
    const struct nl_line_sink sink = {.line = judge, .too_long = pass_over, .ctx = p};

    if (p->o->exit_code)
        nl_line_reader_feed(&p->answers, bytes, NOLAG_LINE_MAX, &sink);
    return nolag_output(bytes);
}

/*
 * The first line is the answer to the auth of --session, which the user has not written: a refusal ends it,
 * and anything else than an answer to it is shown.
 */
static enum nolag_exit take_auth(struct pipe *p, struct nl_slice bytes) {
    const uint8_t *newline = memchr(bytes.ptr, '\n', bytes.len);
    enum nolag_exit code = NOLAG_OK;
    struct nolag_event e;

    nl_buffer_append(&p->first, bytes.ptr, bytes.len);
    if (!newline && p->first.len > NOLAG_LINE_MAX) {
        nolag_say("the answer to auth is longer than %zu bytes", NOLAG_LINE_MAX);
        return NOLAG_FAILED;
    }
    if (!newline)
        return NOLAG_OK;
    p->attached = true;
    bytes = nl_slice(p->first.bytes, p->first.len);
    newline = memchr(bytes.ptr, '\n', bytes.len);
    if (nolag_event_read(&e, nl_slice(bytes.ptr, (size_t)(newline - bytes.ptr))) &&
        nolag_json_is(e.id, "auth")) {
        code = nolag_check_auth(&e);
        bytes = nl_slice(newline + 1, (size_t)(bytes.ptr + bytes.len - newline - 1));
    }
    return code == NOLAG_OK ? show(p, bytes) : code;
}

static enum nolag_exit receive(struct pipe *p) {
    struct nl_buffer bytes;
    enum nolag_exit code = NOLAG_OK;

    nl_buffer_init(&bytes);
    if (nolag_connection_receive(&p->c, &bytes)) {
        struct nl_slice got = nl_slice(bytes.bytes, bytes.len);

        p->heard = true;
        code = p->attached ? show(p, got) : take_auth(p, got);
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
    struct pipe p = {.o = o, .attached = !o->session};
    int64_t connect_by = nolag_deadline(o, NOLAG_ANSWER_SECONDS);
    enum nolag_exit code;

    p.deadline = nolag_deadline(o, 0);
    nl_buffer_init(&p.first);
    nl_line_reader_init(&p.answers);
    code = nolag_connection_open(&p.c, nolag_socket_path(o->socket), connect_by, false);
    if (code == NOLAG_OK) {
        send_args(&p);
        send_waiting(&p);
    }
    while (code == NOLAG_OK && !p.c.ended)
        code = turn(&p);
    if (code == NOLAG_OK && !(p.half_closed && p.attached)) {
        nolag_say("nolagd closed the connection before %s",
                  p.attached ? "the end of the input" : "it answered the auth");
        code = NOLAG_NO_DAEMON;
    }
    nolag_connection_close(&p.c);
    nl_buffer_deinit(&p.first);
    nl_line_reader_deinit(&p.answers);
    return code == NOLAG_OK ? p.code : code;
}

static const struct nolag_flag flags[] = {
    {0, "json", NULL, "no effect: what it prints is JSON", NOLAG_FLAG_BOOL, NOLAG_AT(json)},
    {0, "exit-code", NULL, "end as the first answer that is an error says (otherwise 0)", NOLAG_FLAG_BOOL,
     NOLAG_AT(exit_code)},
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
             "answered all of them; with a subscription among them, not before nolagd goes away.\n"
             "An error is an answer: it is shown on stdout, and without --exit-code the exit code is 0.\n\n"
             "  nolag raw '{\"type\":\"ping\"}'\n",
    .run = run_raw,
    .flags = flags,
    .takes_args = true,
};
