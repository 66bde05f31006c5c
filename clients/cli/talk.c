/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/cli/talk.h"

#include <unistd.h>

#include "clients/cli/json.h"
#include "clients/cli/output.h"
#include "clients/cli/request.h"

static void end(struct nolag_talk *t, enum nolag_exit code) {
    t->over = true;
    t->code = code;
}

static void on_answer(struct nolag_talk *t, const struct nolag_event *e) {
    enum nolag_exit code = NOLAG_OK;

    if (nolag_event_is(e, "error")) {
        end(t, nolag_say_error(e, ""));
        return;
    }
    t->answered = true;
    if (e->pending.len && !t->o->quiet)
        nolag_say("the session is not connected; waiting");
    if (t->on_answer)
        code = t->on_answer(t->o, e);
    if (code != NOLAG_OK || !t->stays)
        end(t, code);
}

static void on_shown(struct nolag_talk *t, const struct nolag_event *e) {
    enum nolag_exit code = t->on_event(t->o, e);

    t->seen++;
    if (code != NOLAG_OK || (t->o->count && t->seen == t->o->count))
        end(t, code);
}

/* It is there again by itself when the session is, unless the token is refused. */
static void on_disconnect(struct nolag_talk *t, const struct nolag_event *e) {
    if (nolag_offline_exit(e) == NOLAG_DENIED) {
        nolag_say_offline(e->line, "");
        end(t, NOLAG_DENIED);
    } else if (!t->o->quiet) {
        nolag_say_offline(e->line, "; waiting");
    }
}

static void on_other(struct nolag_talk *t, const struct nolag_event *e) {
    if (nolag_event_is(e, "error")) {
        end(t, nolag_say_error(e, ""));
    } else if (nolag_event_is(e, "disconnect")) {
        on_disconnect(t, e);
    } else if (nolag_event_is(e, "shutdown")) {
        nolag_say("nolagd is stopping");
        end(t, NOLAG_NO_DAEMON);
    }
}

static bool on_line(void *ctx, struct nl_slice line) {
    struct nolag_talk *t = ctx;
    struct nolag_event e;

    if (!nolag_event_read(&e, line))
        return true;
    if (nolag_json_is(e.id, "auth")) {
        enum nolag_exit code = nolag_check_auth(&e);

        if (code != NOLAG_OK)
            end(t, code);
    } else if (e.id.len) {
        on_answer(t, &e);
    } else if (t->event && nolag_event_is(&e, t->event)) {
        on_shown(t, &e);
    } else {
        on_other(t, &e);
    }
    return !t->over;
}

/* A presence without events to show is there to be held: then the end of the time is what was asked for. */
static void on_deadline(struct nolag_talk *t) {
    bool held = t->answered && !t->event;

    if (!t->answered)
        nolag_say("nolagd did not answer in time");
    else if (!held && !t->o->quiet)
        nolag_say("timed out after %g s", t->o->timeout);
    end(t, held ? NOLAG_OK : NOLAG_TIMED_OUT);
}

static void turn(struct nolag_talk *t, int64_t answer_by, int64_t deadline) {
    /* Stdout is polled for nothing: only that its reader is gone is told. */
    struct pollfd fds[2] = {
        {.fd = t->c.fd, .events = nolag_connection_interest(&t->c)},
        {.fd = STDOUT_FILENO, .events = 0},
    };

    if (nolag_wait(fds, 2, t->answered || deadline < answer_by ? deadline : answer_by) == 0) {
        on_deadline(t);
        return;
    }
    if (fds[1].revents & (POLLERR | POLLHUP))
        nolag_output_gone();
    nolag_connection_serve(&t->c, fds[0].revents, on_line, t);
    if (t->c.ended && !t->over) {
        nolag_connection_say_ended(&t->c, "nolagd closed the connection");
        end(t, NOLAG_NO_DAEMON);
    }
}

enum nolag_exit nolag_talk(struct nolag_talk *t, struct nl_slice request) {
    int64_t answer_by = nolag_after(NOLAG_ANSWER_SECONDS), deadline = nolag_deadline(t->o, 0);
    enum nolag_exit code = nolag_connection_open(&t->c, nolag_socket_path(t->o->socket),
                                                 deadline < answer_by ? deadline : answer_by, false);

    if (code != NOLAG_OK)
        end(t, code);
    if (!t->over) {
        if (t->o->session)
            nolag_connection_send_auth(&t->c, t->o->session);
        nolag_connection_send_bytes(&t->c, request);
        nolag_connection_flush(&t->c);
    }
    while (!t->over)
        turn(t, answer_by, deadline);
    nolag_connection_close(&t->c);
    return t->code;
}
