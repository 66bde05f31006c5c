/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nolag pub: publishes one payload, or one per line of stdin. Publishes are pipelined, a
 * bounded number of them unanswered, each with its number as id; every outcome is awaited,
 * and the first failure decides the exit code.
 */
#include "clients/cli/verbs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clients/cli/connection.h"
#include "clients/cli/json.h"
#include "clients/cli/output.h"
#include "clients/cli/payload.h"
#include "clients/cli/request.h"

#define WINDOW 64                     /* unanswered publishes */
#define WAITING_MAX ((size_t)1 << 20) /* bytes for the socket beyond which no more is read */
#define LINE_MAX_STDIN ((size_t)16 << 20)
#define READ_SIZE ((size_t)64 << 10)
#define STATUS_SECONDS 1.0 /* nolagd answers that by itself */
#define NOTE_SECONDS 1.0   /* without an answer for that long, nolagd is asked why */

struct publisher {
    const struct nolag_options *o;
    struct nolag_connection c;
    struct nl_line_reader input;
    size_t per_item;   /* publishes that one payload makes: ids are numbered by item first */
    bool input_ended;  /* nothing more comes from stdin; the reader may still hold lines */
    bool input_paused; /* the reader holds lines that did not fit into the window */
    bool noted;        /* no answer came for a while, and why is told */
    bool asked_status; /* no answer came in time: the last question is why */
    bool over;         /* nothing more is to be awaited */
    uint64_t item;     /* the number of the payload: its line on stdin, or 1 */
    uint64_t sent, answered;
    int64_t deadline, note_at;
    enum nolag_exit code;
};

static void fail(struct publisher *p, enum nolag_exit code) {
    if (p->code == NOLAG_OK)
        p->code = code;
}

static void restart_clock(struct publisher *p) {
    p->deadline = nolag_deadline(p->o, NOLAG_ANSWER_SECONDS);
    p->note_at = nolag_after(NOTE_SECONDS);
    p->noted = false;
}

static bool is_full(const struct publisher *p) {
    return p->sent - p->answered >= WINDOW || nolag_connection_waiting(&p->c) >= WAITING_MAX;
}

static void put_filters(struct nl_buffer *out, const struct nolag_list *filters) {
    if (filters->count == 0)
        return;
    if (filters->count == 1) {
        nolag_request_key(out, nolag_request_filter_is_group(filters->items[0]) ? "filters" : "filter");
        nolag_request_filter(out, filters->items[0]);
        return;
    }
    nolag_request_key(out, "filters");
    for (size_t i = 0; i < filters->count; i++) {
        nl_buffer_append_byte(out, i ? ',' : '[');
        nolag_request_filter(out, filters->items[i]);
    }
    nl_buffer_append_byte(out, ']');
}

/* Ends a publish whose topic, data and filters are written, and sends it. */
static void send_request(struct publisher *p, struct nl_buffer *request) {
    nolag_request_end(request);
    if (p->sent == p->answered)
        restart_clock(p);
    p->sent++;
    nolag_connection_send_bytes(&p->c, nl_slice(request->bytes, request->len));
    nolag_connection_flush(&p->c);
}

static void put_defaults(struct publisher *p, struct nl_buffer *request, bool has_qos, bool has_retain) {
    if (p->o->qos >= 0 && !has_qos) {
        nolag_request_key(request, "qos");
        nl_buffer_append_byte(request, (uint8_t)('0' + p->o->qos));
    }
    if (p->o->retain && !has_retain) {
        nolag_request_key(request, "retain");
        nl_buffer_append_str(request, "true");
    }
}

/* Publishes data, the JSON text of the current item, on each topic of the command line. */
static void publish(struct publisher *p, struct nl_slice data) {
    for (size_t i = 0; i < p->o->topics.count; i++) {
        struct nl_buffer request;

        nl_buffer_init(&request);
        nolag_request_begin(&request, "publish", (p->item - 1) * p->per_item + i + 1);
        nolag_request_text(&request, "topic", p->o->topics.items[i]);
        put_filters(&request, &p->o->filters);
        put_defaults(p, &request, false, false);
        nolag_request_key(&request, "data");
        nl_buffer_append(&request, data.ptr, data.len);
        send_request(p, &request);
        nl_buffer_deinit(&request);
    }
}

/*
 * Publishes what a line {"topic":...,"data":...} says. The fields of a publish are copied as they are;
 * others, such as the rest of a line of `nolag sub --json`, are not. The command line fills in what is
 * missing.
 */
static void publish_object(struct publisher *p, struct nl_slice object) {
    static const char *const copied[] = {"topic", "qos", "retain", "filter", "filters", "data"};
    bool has[sizeof copied / sizeof copied[0]] = {false};
    struct nl_buffer request;

    nl_buffer_init(&request);
    nolag_request_begin(&request, "publish", p->item);
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++) {
        struct nl_slice value = nolag_json_find(object, copied[i]);

        has[i] = value.len > 0;
        if (!has[i])
            continue;
        nolag_request_key(&request, copied[i]);
        nl_buffer_append(&request, value.ptr, value.len);
    }
    if (!has[0] && p->o->topics.count)
        nolag_request_text(&request, "topic", p->o->topics.items[0]);
    if (!has[3] && !has[4])
        put_filters(&request, &p->o->filters);
    put_defaults(p, &request, has[1], has[2]);
    send_request(p, &request);
    nl_buffer_deinit(&request);
}

static void take_object(struct publisher *p, struct nl_slice line) {
    struct nl_slice object = nolag_json_trim(line);

    if (object.len && *object.ptr == '{' && nolag_json_check(object) == NOLAG_JSON_VALUE) {
        publish_object(p, object);
        return;
    }
    nolag_say("line %llu: not one JSON object", (unsigned long long)p->item);
    fail(p, NOLAG_FAILED);
}

static bool on_input(void *ctx, struct nl_slice line) {
    struct publisher *p = ctx;
    struct nl_buffer data;
    enum nolag_exit code;

    p->item = p->input.number;
    if (p->o->jsonl) {
        take_object(p, line);
        return !is_full(p);
    }
    nl_buffer_init(&data);
    code = nolag_payload(&data, line, p->o);
    if (code == NOLAG_OK)
        publish(p, nl_slice(data.bytes, data.len));
    fail(p, code);
    nl_buffer_deinit(&data);
    return !is_full(p);
}

static bool on_long_input(void *ctx) {
    struct publisher *p = ctx;

    nolag_say("line %llu: more than %zu bytes, which no broker takes", (unsigned long long)p->input.number,
              LINE_MAX_STDIN);
    fail(p, NOLAG_FAILED);
    return true;
}

/* Gives bytes, or what the reader still holds, to on_input() as far as the window allows. */
static void take_input(struct publisher *p, struct nl_slice bytes) {
    const struct nl_line_sink sink = {.line = on_input, .too_long = on_long_input, .ctx = p};

    p->input_paused = !nl_line_reader_feed(&p->input, bytes, LINE_MAX_STDIN, &sink);
    if (!p->input_paused && p->input_ended)
        p->input_paused = !nl_line_reader_finish(&p->input, LINE_MAX_STDIN, &sink);
}

static void read_input(struct publisher *p) {
    uint8_t bytes[READ_SIZE];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n < 0) {
        nolag_say("stdin: %s", strerror(errno));
        fail(p, NOLAG_FAILED);
    }
    p->input_ended = n <= 0;
    take_input(p, nl_slice(bytes, n > 0 ? (size_t)n : 0));
}

static void on_failure(struct publisher *p, const struct nolag_event *e) {
    int64_t number = nolag_json_integer(e->id, 0);
    char where[48] = "";

    if (number > 0 && (p->o->lines || p->o->jsonl))
        snprintf(where, sizeof where, "line %" PRId64 ": ", (number - 1) / (int64_t)p->per_item + 1);
    fail(p, nolag_say_error(e, where));
}

/* Why no answer comes. A refused token is not waited for. */
static void on_note(struct publisher *p, const struct nolag_event *e) {
    if (!nolag_event_is(e, "status") || nolag_json_is(e->status, "connected") || p->sent == p->answered)
        return;
    if (nolag_offline_exit(e) == NOLAG_DENIED) {
        nolag_say_offline(e->line, "; nothing is sent before the broker takes the token");
        fail(p, NOLAG_DENIED);
        p->over = true;
    } else if (!p->o->quiet && !p->noted) {
        nolag_say_offline(e->line, "; waiting");
        p->noted = true;
    }
}

/* Why no answer came in time: the last question before giving up. */
static void on_status(struct publisher *p, const struct nolag_event *e) {
    if (!p->asked_status)
        return;
    p->over = true;
    if (nolag_event_is(e, "error")) {
        fail(p, nolag_say_error(e, ""));
        return;
    }
    if (nolag_json_is(e->status, "connected")) {
        nolag_say("no answer from the broker in time; whether it has the message is not known");
        fail(p, NOLAG_TIMED_OUT);
        return;
    }
    nolag_say_offline(e->line, "; what waits is sent when it is back, if that is within ttl (nolagd.conf)");
    fail(p, nolag_offline_exit(e));
}

static void on_answer(struct publisher *p, struct nl_slice line) {
    p->answered++;
    p->asked_status = false;
    restart_clock(p);
    if (p->o->json)
        fail(p, nolag_output_line(line));
}

static bool on_line(void *ctx, struct nl_slice line) {
    struct publisher *p = ctx;
    struct nolag_event e;
    bool is_error;

    if (!nolag_event_read(&e, line))
        return true;
    is_error = nolag_event_is(&e, "error");
    if (nolag_json_is(e.id, "auth")) {
        fail(p, nolag_check_auth(&e));
        p->over = p->code != NOLAG_OK;
    } else if (nolag_json_is(e.id, "note")) {
        on_note(p, &e);
    } else if (nolag_json_is(e.id, "status")) {
        on_status(p, &e);
    } else if (is_error || nolag_event_is(&e, "published")) {
        if (is_error)
            on_failure(p, &e);
        if (e.id.len || nolag_event_is_unread(&e))
            on_answer(p, line);
    }
    return !p->over;
}

static bool is_finished(const struct publisher *p) {
    return p->over || (p->input_ended && !p->input_paused && p->sent == p->answered);
}

static void ask_status(struct publisher *p, const char *request) {
    nolag_connection_send(&p->c, nl_slice_str(request));
    nolag_connection_flush(&p->c);
}

/* The daemon lives or it does not; the session is connected or it is not: the exit code tells which. */
static void on_deadline(struct publisher *p) {
    if (!p->asked_status && nolag_now() < p->deadline) {
        p->note_at = nolag_after(NOTE_SECONDS);
        ask_status(p, "{\"type\":\"status\",\"id\":\"note\"}");
        return;
    }
    if (p->asked_status) {
        nolag_say("nolagd did not answer in time");
        fail(p, NOLAG_TIMED_OUT);
        p->over = true;
        return;
    }
    p->asked_status = true;
    p->deadline = nolag_after(STATUS_SECONDS);
    ask_status(p, "{\"type\":\"status\",\"id\":\"status\"}");
}

static void on_end(struct publisher *p) {
    char what[128] = "nolagd closed the connection before the end of the input";

    if (is_finished(p))
        return;
    if (p->sent > p->answered)
        snprintf(what, sizeof what,
                 "nolagd closed the connection; what became of the last %llu messages is not known",
                 (unsigned long long)(p->sent - p->answered));
    nolag_connection_say_ended(&p->c, what);
    fail(p, NOLAG_NO_DAEMON);
    p->over = true;
}

/* While nothing is under way there is no answer to wait for: the input takes its time. */
static int64_t next_deadline(const struct publisher *p) {
    if (p->asked_status)
        return p->deadline;
    if (p->sent == p->answered)
        return NOLAG_NEVER;
    return p->deadline < p->note_at ? p->deadline : p->note_at;
}

static void turn(struct publisher *p) {
    bool reads = !p->input_ended && !p->input_paused && !is_full(p);
    struct pollfd fds[2] = {
        {.fd = p->c.fd, .events = nolag_connection_interest(&p->c)},
        {.fd = reads ? STDIN_FILENO : -1, .events = POLLIN},
    };

    if (nolag_wait(fds, 2, next_deadline(p)) == 0) {
        on_deadline(p);
        return;
    }
    nolag_connection_serve(&p->c, fds[0].revents, on_line, p);
    if (p->c.ended)
        on_end(p);
    else if (!p->over && p->input_paused && !is_full(p))
        take_input(p, nl_slice(NULL, 0));
    else if (!p->over && fds[1].revents)
        read_input(p);
}

/* The one payload of -m, -f, -s or -n. */
static enum nolag_exit read_single(struct nl_buffer *data, const struct nolag_options *o) {
    struct nl_buffer content;
    enum nolag_exit code = NOLAG_OK;

    if (o->null) {
        nl_buffer_append_str(data, "null");
        return NOLAG_OK;
    }
    nl_buffer_init(&content);
    if (o->message)
        nl_buffer_append_str(&content, o->message);
    else
        code = nolag_payload_read(&content, o->file);
    if (code == NOLAG_OK)
        code = nolag_payload(data, nl_slice(content.bytes, content.len), o);
    nl_buffer_deinit(&content);
    return code;
}

static enum nolag_exit run(const struct nolag_options *o, struct nl_slice data) {
    struct publisher p = {.o = o, .per_item = o->jsonl ? 1 : o->topics.count};
    enum nolag_exit code;

    restart_clock(&p);
    code = nolag_connection_open(&p.c, nolag_socket_path(o->socket), p.deadline, false);
    nl_line_reader_init(&p.input);
    if (code == NOLAG_OK) {
        if (o->session)
            nolag_connection_send_auth(&p.c, o->session);
        p.input_ended = data.len > 0;
        p.item = 1;
        if (p.input_ended)
            publish(&p, data);
        while (!is_finished(&p))
            turn(&p);
        code = p.code;
    }
    nl_line_reader_deinit(&p.input);
    nolag_connection_close(&p.c);
    return code;
}

static enum nolag_exit check(const struct nolag_options *o) {
    int sources = (o->message != NULL) + (o->file != NULL) + o->null + o->stdin_whole + o->lines + o->jsonl;

    if (sources != 1)
        return nolag_options_misused(&nolag_verb_pub, "%s",
                                     sources ? "only one of -m, -f, -s, -l, -n and --jsonl"
                                             : "what to publish? -m TEXT, -f FILE, -s, -l, -n or --jsonl");
    if (o->topics.count == 0 && !o->jsonl)
        return nolag_options_misused(&nolag_verb_pub, "where to? -t TOPIC");
    if (o->topics.count > 1 && o->jsonl)
        return nolag_options_misused(&nolag_verb_pub, "--jsonl takes one -t, for lines without a topic");
    if (o->as_string && o->as_bytes)
        return nolag_options_misused(&nolag_verb_pub, "only one of --string and --bytes");
    for (size_t i = 0; o->filters.count > 1 && i < o->filters.count; i++)
        if (nolag_request_filter_is_group(o->filters.items[i]))
            return nolag_options_misused(&nolag_verb_pub,
                                         "--filter %s: one list alone, or filters without brackets",
                                         o->filters.items[i]);
    return nolag_request_check(&nolag_verb_pub, o, false);
}

static enum nolag_exit run_pub(const struct nolag_options *o) {
    struct nl_buffer data;
    enum nolag_exit code = check(o);

    if (code != NOLAG_OK)
        return code;
    nl_buffer_init(&data);
    if (!o->lines && !o->jsonl)
        code = read_single(&data, o);
    if (code == NOLAG_OK)
        code = run(o, nl_slice(data.bytes, data.len));
    nl_buffer_deinit(&data);
    return code;
}

static const struct nolag_flag flags[] = {
    {'t', "topic", "TOPIC", "where to publish; repeatable: on each of them; no wildcards", NOLAG_FLAG_LIST,
     NOLAG_AT(topics)},
    {'m', "message", "TEXT", "publish this", NOLAG_FLAG_TEXT, NOLAG_AT(message)},
    {'f', "file", "FILE", "publish the content of this file", NOLAG_FLAG_TEXT, NOLAG_AT(file)},
    {'s', "stdin", NULL, "publish all of stdin as one message", NOLAG_FLAG_BOOL, NOLAG_AT(stdin_whole)},
    {'l', "lines", NULL, "publish each line of stdin; empty ones are left out", NOLAG_FLAG_BOOL,
     NOLAG_AT(lines)},
    {0, "jsonl", NULL, "publish what each line {\"topic\",\"data\",\"filter\",...} says", NOLAG_FLAG_BOOL,
     NOLAG_AT(jsonl)},
    {'n', "null", NULL, "publish null", NOLAG_FLAG_BOOL, NOLAG_AT(null)},
    {0, "string", NULL, "the payload is a string, even if it is JSON too", NOLAG_FLAG_BOOL,
     NOLAG_AT(as_string)},
    {0, "bytes", NULL, "the payload is bytes, even if it is text", NOLAG_FLAG_BOOL, NOLAG_AT(as_bytes)},
    {0, "filter", "FILTER", "publish with this filter; repeatable, or a JSON list: with all of them",
     NOLAG_FLAG_LIST, NOLAG_AT(filters)},
    {'q', "qos", "QOS", "0, 1 or 2 (default 1)", NOLAG_FLAG_INTEGER, NOLAG_AT(qos), 0, 2},
    {'r', "retain", NULL, "the broker keeps it for later subscribers", NOLAG_FLAG_BOOL, NOLAG_AT(retain)},
    {0, "quiet", NULL, "no notes on stderr, only errors", NOLAG_FLAG_BOOL, NOLAG_AT(quiet)},
    {0, "json", NULL, "print each answer of nolagd", NOLAG_FLAG_BOOL, NOLAG_AT(json)},
    {0, "session", "NAME", "the session to use (default: nolagd's default session)", NOLAG_FLAG_TEXT,
     NOLAG_AT(session)},
    {'W', "timeout", "SECONDS", "wait no longer for an answer (default 30)", NOLAG_FLAG_SECONDS,
     NOLAG_AT(timeout)},
    {0},
};

const struct nolag_verb nolag_verb_pub = {
    .name = "pub",
    .summary = "Publishes messages, and waits until the broker has taken them.",
    .usage = "-t TOPIC {-m TEXT | -f FILE | -s | -l | -n | --jsonl} [flags]",
    .notes = "The payload is the JSON value that the text is; text that is not JSON is a string; what is\n"
             "not UTF-8 is bytes. So -m 42 is a number and -m hello a string. In JSON,\n"
             "{\"$bytes\":\"aGk=\"} is bytes too. --string and --bytes decide otherwise.\n\n"
             "-W limits the wait for each answer (default 30).\n\n"
             "  nolag pub -t demo/ops/events -m '{\"text\":\"hi\"}'\n"
             "  tail -F log | nolag pub -t demo/ops/log -l --string\n",
    .run = run_pub,
    .flags = flags,
};
