/* SPDX-License-Identifier: Apache-2.0 */
/* Writing requests, checking what goes into them, and asking one question. */
#include "clients/cli/request.h"

#include <stdio.h>

#include "clients/cli/json.h"
#include "protocol/filter.h"
#include "protocol/topic.h"
#include "protocol/transcode.h"

#define FILTER_DEPTH 8 /* a filter needs three: the object and the list around it, and its own list */
#define TOPICS "topics are app/room/topic or app/scope/room/topic, of letters, digits and _ : -"

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

static bool begins_with(const char *text, char c) {
    return text[strspn(text, " \t\r\n")] == c;
}

bool nolag_request_filter_is_group(const char *filter) {
    return begins_with(filter, '[');
}

/* nolagd's own rule for a filter of a subscription: what it refuses there, publishing does not send either.
 */
static const char *filter_problem(const char *filter) {
    const char *why = "not a JSON list of strings";
    struct json_object *object = NULL;
    struct nl_filters parsed;
    struct nl_buffer text;

    if (!nl_utf8_valid(nl_slice_str(filter)))
        return "not UTF-8";
    if (begins_with(filter, '{'))
        return "a filter is text or a JSON list of texts, no object";
    if (nolag_request_filter_is_group(filter) && nolag_json_check(nl_slice_str(filter)) != NOLAG_JSON_VALUE)
        return why;
    nl_buffer_init(&text);
    nl_buffer_append_str(&text, "{\"\":[");
    nolag_request_filter(&text, filter);
    nl_buffer_append_str(&text, "]}");
    if (nl_json_parse(nl_slice(text.bytes, text.len), FILTER_DEPTH, &object) == NL_OK) {
        if (nl_filters_parse(&parsed, json_object_object_get(object, ""), &why) == NL_OK) {
            nl_filters_deinit(&parsed);
            why = NULL;
        }
        json_object_put(object);
    }
    nl_buffer_deinit(&text);
    return why;
}

static const char *topic_problem(const char *topic) {
    if (nl_topic_valid(nl_slice_str(topic)))
        return NULL;
    return strpbrk(topic, "+#*") ? "there are no wildcards; " TOPICS : TOPICS;
}

enum nolag_exit nolag_request_check(const struct nolag_verb *verb, const struct nolag_options *o, bool tap) {
    const char *problem;

    for (size_t i = 0; i < o->topics.count; i++) {
        const char *topic = o->topics.items[i];

        problem = tap && strcmp(topic, "*") == 0 ? NULL : topic_problem(topic);
        if (problem)
            return nolag_options_misused(verb, "-t %.80s: %s", topic, problem);
    }
    for (size_t i = 0; i < o->filters.count; i++) {
        problem = filter_problem(o->filters.items[i]);
        if (problem)
            return nolag_options_misused(verb, "--filter %.80s: %s", o->filters.items[i], problem);
    }
    return NOLAG_OK;
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
            nolag_connection_say_ended(c, "nolagd closed the connection without an answer");
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
