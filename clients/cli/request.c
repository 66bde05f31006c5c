/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/cli/request.h"

#include <stdio.h>

#include "clients/cli/json.h"
#include "protocol/transcode.h"

int64_t nolag_deadline(const struct nolag_options *o, double fallback) {
    double seconds = o->timeout > 0 ? o->timeout : fallback;

    return seconds > 0 ? nolag_after(seconds) : NOLAG_NEVER;
}

void nolag_request_begin(struct nl_buffer *out, const char *type, uint64_t id) {
    nl_buffer_append_str(out, "{\"type\":\"");
    nl_buffer_append_str(out, type);
    nl_buffer_append_byte(out, '"');
    nolag_request_key(out, "id");
    nl_json_uint(out, id);
}

void nolag_request_key(struct nl_buffer *out, const char *key) {
    nl_buffer_append_str(out, ",\"");
    nl_buffer_append_str(out, key);
    nl_buffer_append_str(out, "\":");
}

void nolag_request_text(struct nl_buffer *out, const char *key, const char *text) {
    nolag_request_key(out, key);
    nl_json_string(out, nl_slice_str(text));
}

void nolag_request_end(struct nl_buffer *out) {
    nl_buffer_append_str(out, "}\n");
}

/* No real filter begins with a bracket and a quote. */
bool nolag_request_filter_is_group(const char *filter) {
    return strncmp(filter, "[\"", 2) == 0;
}

bool nolag_request_filter_valid(const char *filter) {
    return !nolag_request_filter_is_group(filter) ||
           nolag_json_check(nl_slice_str(filter)) == NOLAG_JSON_VALUE;
}

void nolag_request_filter(struct nl_buffer *out, const char *filter) {
    if (nolag_request_filter_is_group(filter))
        nolag_json_compact(out, nl_slice_str(filter));
    else
        nl_json_string(out, nl_slice_str(filter));
}

struct question {
    struct nl_buffer *answer;
    bool answered;
    enum nolag_exit code;
};

static bool on_line(void *ctx, struct nl_slice line) {
    struct question *q = ctx;
    struct nolag_event e;

    if (!nolag_event_read(&e, line))
        return true;
    if (nolag_json_is(e.id, "auth")) {
        q->code = nolag_check_auth(&e);
        q->answered = q->code != NOLAG_OK;
    } else if (nolag_event_is(&e, "error")) {
        q->code = nolag_say_error(&e, "");
        q->answered = true;
    } else if (e.id.len) {
        nl_buffer_append(q->answer, line.ptr, line.len);
        q->answered = true;
    }
    return !q->answered;
}

static enum nolag_exit converse(struct nolag_connection *c, struct question *q, int64_t deadline) {
    nolag_connection_flush(c);
    while (!q->answered) {
        struct pollfd fd = {.fd = c->fd, .events = nolag_connection_interest(c)};

        if (nolag_wait(&fd, 1, deadline) == 0) {
            nolag_say("nolagd did not answer in time");
            return NOLAG_TIMED_OUT;
        }
        nolag_connection_serve(c, fd.revents, on_line, q);
        if (!q->answered && c->ended) {
            nolag_say("nolagd closed the connection without an answer");
            return NOLAG_NO_DAEMON;
        }
    }
    return q->code;
}

enum nolag_exit nolag_request_ask(const struct nolag_options *o, const char *type, struct nl_buffer *answer) {
    int64_t deadline = nolag_deadline(o, NOLAG_ANSWER_SECONDS);
    struct question q = {.answer = answer};
    struct nolag_connection c;
    struct nl_buffer request;
    enum nolag_exit code = nolag_connection_open(&c, nolag_socket_path(o->socket), deadline, false);

    if (code == NOLAG_OK) {
        if (o->session)
            nolag_connection_send_auth(&c, o->session);
        nl_buffer_init(&request);
        nolag_request_begin(&request, type, 1);
        nolag_request_end(&request);
        nolag_connection_send_bytes(&c, nl_slice(request.bytes, request.len));
        nl_buffer_deinit(&request);
        code = converse(&c, &q, deadline);
    }
    nolag_connection_close(&c);
    return code;
}
