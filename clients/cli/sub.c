/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nolag sub: subscribes and shows messages until it has seen enough of them (-C), the
 * time is over (-W), the reader of its output is gone, nolagd goes away, or the broker
 * refuses the session's token.
 */
#include "clients/cli/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clients/cli/connection.h"
#include "clients/cli/format.h"
#include "clients/cli/json.h"
#include "clients/cli/output.h"
#include "clients/cli/request.h"
#include "protocol/alloc.h"

#define FIRST_PAUSE 100 /* ms before --retry connects again; doubled up to the last one */
#define LAST_PAUSE 5000
#define LOOK_SECONDS 2.0 /* between looks at a session that is down: a refused token is no event */

/* Questions for the status: one whose answer is told, and one that only looks for a refused token. */
#define LOOK_AND_TELL "{\"type\":\"status\",\"id\":\"status\"}\n"
#define LOOK "{\"type\":\"status\",\"id\":\"look\"}\n"

struct subscriber {
    const struct nolag_options *o;
    struct nolag_connection c;
    bool terminal;      /* messages go to one */
    bool talkative;     /* connection events are told */
    bool over;          /* code says how it ends */
    bool *lost;         /* by topic: the broker refuses it now */
    bool pending;       /* some are answered, but wait for the session's connection */
    bool complete;      /* the broker has confirmed all of them, and that is told */
    size_t answers;     /* subscriptions that are answered */
    bool finishing;     /* all messages are shown; the answer to the last ack is awaited */
    bool down;          /* the session is not connected */
    int64_t look_at;    /* then: when to ask for its status again */
    int64_t answers_by; /* when all of them must be */
    int64_t deadline;   /* of -W */
    int64_t seen;       /* messages shown */
    enum nolag_exit code;
};

static void end(struct subscriber *s, enum nolag_exit code) {
    if (s->over)
        return;
    s->over = true;
    s->code = code;
}

static void request_subscription(struct nl_buffer *out, const struct nolag_options *o, size_t i) {
    nolag_request_begin(out, "subscribe", i + 1);
    nolag_request_text(out, "topic", o->topics.items[i]);
    if (o->filters.count)
        nolag_request_key(out, "filters");
    for (size_t j = 0; j < o->filters.count; j++) {
        nl_buffer_append_byte(out, j ? ',' : '[');
        nolag_request_filter(out, o->filters.items[j]);
    }
    if (o->filters.count)
        nl_buffer_append_byte(out, ']');
    if (o->qos >= 0) {
        nolag_request_key(out, "qos");
        nl_buffer_append_byte(out, (uint8_t)('0' + o->qos));
    }
    if (o->group) {
        nolag_request_key(out, "loadBalance");
        nl_buffer_append_str(out, "true");
        nolag_request_text(out, "loadBalanceGroup", o->group);
    }
    if (o->ack)
        nolag_request_text(out, "ack", o->ack);
    if (o->prefetch) {
        char number[24];

        snprintf(number, sizeof number, "%lld", (long long)o->prefetch);
        nolag_request_key(out, "prefetch");
        nl_buffer_append_str(out, number);
    }
    nolag_request_end(out);
}

static void send_requests(struct subscriber *s) {
    struct nl_buffer requests;

    if (s->o->session)
        nolag_connection_send_auth(&s->c, s->o->session);
    nl_buffer_init(&requests);
    for (size_t i = 0; i < s->o->topics.count; i++)
        request_subscription(&requests, s->o, i);
    nolag_connection_send_bytes(&s->c, nl_slice(requests.bytes, requests.len));
    nl_buffer_deinit(&requests);
    nolag_connection_flush(&s->c);
    s->answers_by = nolag_after(NOLAG_ANSWER_SECONDS);
}

/*
 * The message is out: nolagd may forget it. The last one asks for an answer, as what is on its way when the
 * connection ends may be lost, and the message given to somebody else.
 */
static void acknowledge(struct subscriber *s, const struct nolag_event *e) {
    struct nl_buffer line;

    nl_buffer_init(&line);
    nl_buffer_append_str(&line, "{\"type\":\"ack\",\"ackId\":");
    nl_buffer_append(&line, e->ack_id.ptr, e->ack_id.len);
    nl_buffer_append_str(&line, s->finishing ? ",\"id\":\"last\"}\n" : "}\n");
    nolag_connection_send_bytes(&s->c, nl_slice(line.bytes, line.len));
    nolag_connection_flush(&s->c);
    nl_buffer_deinit(&line);
    s->answers_by = nolag_after(NOLAG_ANSWER_SECONDS);
}

static void on_message(struct subscriber *s, const struct nolag_event *e) {
    struct nl_buffer out;
    bool by_hand = e->ack_id.len > 0;

    if (s->finishing)
        return; /* it was asked for no more: not acknowledged, it goes to somebody else */

    nl_buffer_init(&out);
    nolag_format(&out, e, s->o, s->terminal);
    if (nolag_output(nl_slice(out.bytes, out.len)) != NOLAG_OK)
        end(s, NOLAG_FAILED);
    nl_buffer_deinit(&out);
    s->seen++;
    s->finishing = by_hand && s->o->count && s->seen == s->o->count;
    if (by_hand && !s->over)
        acknowledge(s, e);
    else if (s->o->count && s->seen == s->o->count)
        end(s, NOLAG_OK);
}

static void on_acknowledged(struct subscriber *s, const struct nolag_event *e) {
    if (nolag_json_is(e->id, "last"))
        end(s, NOLAG_OK);
}

/* Everything asked for is confirmed by the broker: for scripts that publish next, -d and -E. */
static void check_complete(struct subscriber *s) {
    if (s->complete || s->pending || s->answers < s->o->topics.count)
        return;
    s->complete = true;
    if (s->talkative)
        nolag_say("subscribed");
    if (s->o->only_subscribe)
        end(s, NOLAG_OK);
}

/* Asks for the status, whose answer is on_status()'s. */
static void look(struct subscriber *s, const char *request) {
    nolag_connection_send_bytes(&s->c, nl_slice_str(request));
    nolag_connection_flush(&s->c);
    s->down = true;
    s->look_at = nolag_after(LOOK_SECONDS);
}

static void on_subscribed(struct subscriber *s, const struct nolag_event *e) {
    s->answers++;
    /* Why it waits is told once. */
    if (e->pending.len && !s->pending)
        look(s, LOOK_AND_TELL);
    s->pending = s->pending || e->pending.len;
    check_complete(s);
}

/* Waits for the session, told or not; but not, without --retry, for a refused token. */
static void on_offline(struct subscriber *s, const struct nolag_event *e, bool told) {
    enum nolag_exit code = nolag_offline_exit(e);

    if (code == NOLAG_DENIED && !s->o->retry) {
        nolag_say_offline(e->line, "");
        end(s, code);
    } else if (told) {
        nolag_say_offline(e->line, "; waiting");
    }
}

static void on_status(struct subscriber *s, const struct nolag_event *e) {
    if (!nolag_json_is(e->status, "connected"))
        on_offline(s, e, !s->o->quiet && nolag_json_is(e->id, "status"));
}

static void on_auth(struct subscriber *s, const struct nolag_event *e) {
    enum nolag_exit code = nolag_check_auth(e);

    if (code != NOLAG_OK)
        end(s, code);
}

/* True when no subscription is left. */
static bool lose(struct subscriber *s, struct nl_slice topic) {
    size_t left = 0;

    for (size_t i = 0; i < s->o->topics.count; i++) {
        s->lost[i] = s->lost[i] || nolag_json_is(topic, s->o->topics.items[i]);
        left += !s->lost[i];
    }
    return left == 0;
}

static void on_error(struct subscriber *s, const struct nolag_event *e) {
    enum nolag_exit code;

    if (nolag_json_is(e->id, "status") || nolag_json_is(e->id, "look"))
        return;
    code = nolag_say_error(e, "");
    /* A refusal ends it, and so does the loss of this client itself. */
    if (s->o->only_subscribe || e->id.len || nolag_event_is_unread(e) || !e->topic.len || lose(s, e->topic))
        end(s, code);
}

static void on_connection(struct subscriber *s, const struct nolag_event *e) {
    char *session;

    if (nolag_event_is(e, "disconnect")) {
        on_offline(s, e, s->talkative);
        s->down = true;
        s->look_at = nolag_after(LOOK_SECONDS);
        return;
    }
    session = nolag_text(e->session);
    if (s->talkative)
        nolag_say("session %s is connected", session);
    free(session);
    /* nolagd says that when all subscriptions are there. */
    s->pending = s->down = false;
    check_complete(s);
}

static void on_dropped(struct subscriber *s, const struct nolag_event *e) {
    char *count = nolag_text(e->count), *topic = nolag_text(e->topic);

    if (!s->o->quiet)
        nolag_say("%s messages were left out, because this reader is too slow%s%s", count, *topic ? ": " : "",
                  topic);
    free(count);
    free(topic);
}

static void on_shutdown(struct subscriber *s, const struct nolag_event *e) {
    (void)e;
    if (!s->o->quiet || !s->o->retry)
        nolag_say("nolagd is stopping");
    end(s, NOLAG_NO_DAEMON);
}

static bool on_line(void *ctx, struct nl_slice line) {
    static const struct {
        const char *type;
        void (*handle)(struct subscriber *s, const struct nolag_event *e);
    } handlers[] = {
        {"message", on_message},           {"subscribed", on_subscribed}, {"error", on_error},
        {"acknowledged", on_acknowledged}, {"status", on_status},         {"connect", on_connection},
        {"disconnect", on_connection},     {"reconnect", on_connection},  {"dropped", on_dropped},
        {"shutdown", on_shutdown},
    };
    struct subscriber *s = ctx;
    struct nolag_event e;

    if (!nolag_event_read(&e, line))
        return true;
    if (nolag_json_is(e.id, "auth"))
        on_auth(s, &e);
    for (size_t i = 0; !s->over && i < sizeof handlers / sizeof handlers[0]; i++)
        if (nolag_event_is(&e, handlers[i].type)) {
            handlers[i].handle(s, &e);
            break;
        }
    return !s->over;
}

static void on_deadline(struct subscriber *s) {
    if (nolag_now() < s->deadline)
        nolag_say("nolagd did not answer in time");
    else if (!s->o->quiet)
        nolag_say("timed out after %g s", s->o->timeout);
    end(s, NOLAG_TIMED_OUT);
}

/* The next time at which something is to be done although nothing comes. */
static int64_t next_deadline(const struct subscriber *s) {
    bool answered = s->answers == s->o->topics.count && !s->finishing;
    int64_t deadline = answered || s->deadline < s->answers_by ? s->deadline : s->answers_by;

    return s->down && s->look_at < deadline ? s->look_at : deadline;
}

static void turn(struct subscriber *s) {
    /* Stdout is polled for nothing: only that its reader is gone is told. */
    struct pollfd fds[2] = {
        {.fd = s->c.fd, .events = nolag_connection_interest(&s->c)},
        {.fd = STDOUT_FILENO, .events = 0},
    };
    int64_t deadline = next_deadline(s);

    if (nolag_wait(fds, 2, deadline) == 0) {
        if (s->down && deadline == s->look_at)
            look(s, LOOK);
        else
            on_deadline(s);
        return;
    }
    if (fds[1].revents & (POLLERR | POLLHUP))
        nolag_output_gone();
    nolag_connection_serve(&s->c, fds[0].revents, on_line, s);
    if (s->c.ended && !s->over) {
        if (!s->o->quiet || !s->o->retry)
            nolag_connection_say_ended(&s->c, "nolagd closed the connection");
        end(s, NOLAG_NO_DAEMON);
    }
}

/* One connection, from its beginning to its end. */
static void converse(struct subscriber *s, bool quiet) {
    enum nolag_exit code;
    int64_t deadline = nolag_after(NOLAG_ANSWER_SECONDS);

    s->over = false;
    s->answers = 0;
    s->pending = s->complete = s->down = s->finishing = false;
    memset(s->lost, 0, s->o->topics.count * sizeof *s->lost);
    if (s->deadline < deadline)
        deadline = s->deadline;
    code = nolag_connection_open(&s->c, nolag_socket_path(s->o->socket), deadline, quiet);
    if (code == NOLAG_OK)
        send_requests(s);
    else
        /* With --retry a socket that may not be used yet is like one that is not there yet. */
        end(s, code == NOLAG_DENIED && s->o->retry ? NOLAG_NO_DAEMON : code);
    while (!s->over)
        turn(s);
    nolag_connection_close(&s->c);
}

/* Waits before the next attempt; false when -W is over first. */
static bool rest(struct subscriber *s, int64_t pause) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = 0};
    int64_t until = nolag_now() + pause;

    if (nolag_wait(&out, 1, until < s->deadline ? until : s->deadline) > 0 &&
        out.revents & (POLLERR | POLLHUP))
        nolag_output_gone();
    if (nolag_now() < s->deadline)
        return true;
    s->over = false;
    on_deadline(s);
    return false;
}

static void converse_again(struct subscriber *s) {
    int64_t pause = FIRST_PAUSE;

    while (s->code == NOLAG_NO_DAEMON && rest(s, pause)) {
        converse(s, true);
        pause = s->answers ? FIRST_PAUSE : pause * 2 < LAST_PAUSE ? pause * 2 : LAST_PAUSE;
    }
}

static enum nolag_exit check(const struct nolag_options *o) {
    const char *unknown = o->format ? nolag_format_unknown(o->format) : NULL;

    if (o->topics.count == 0)
        return nolag_options_misused(&nolag_verb_sub, "to what? -t TOPIC");
    if (unknown)
        return nolag_options_misused(&nolag_verb_sub, "--format knows no %.2s; the letters are in --help",
                                     unknown);
    if ((o->format != NULL) + o->json + o->verbose > 1)
        return nolag_options_misused(&nolag_verb_sub, "only one of --format, --json and --verbose");
    if (o->ack && strcmp(o->ack, "manual") != 0 && strcmp(o->ack, "auto") != 0)
        return nolag_options_misused(&nolag_verb_sub, "--ack is manual or auto");
    if (o->prefetch && (!o->ack || strcmp(o->ack, "manual") != 0))
        return nolag_options_misused(&nolag_verb_sub, "--prefetch needs --ack manual");
    return nolag_request_check(&nolag_verb_sub, o, true);
}

static enum nolag_exit run_sub(const struct nolag_options *o) {
    struct subscriber s = {.o = o};
    enum nolag_exit code = check(o);

    if (code != NOLAG_OK)
        return code;
    s.terminal = isatty(STDOUT_FILENO) == 1;
    s.talkative = !o->quiet && (o->debug || isatty(STDERR_FILENO) == 1);
    s.deadline = nolag_deadline(o, 0);
    s.lost = nl_calloc(o->topics.count, sizeof *s.lost);
    converse(&s, false);
    if (o->retry)
        converse_again(&s);
    free(s.lost);
    return s.code;
}

static const struct nolag_flag flags[] = {
    {'t', "topic", "TOPIC", "what to subscribe to; repeatable; no wildcards; \"*\": see below",
     NOLAG_FLAG_LIST, NOLAG_AT(topics)},
    {0, "filter", "FILTER", "only messages with this filter; repeatable: with any of them", NOLAG_FLAG_LIST,
     NOLAG_AT(filters)},
    {0, "group", "NAME", "share the messages with all who use this group: each goes to one", NOLAG_FLAG_TEXT,
     NOLAG_AT(group)},
    {0, "ack", "HOW", "manual: done with a message only when it is written out; auto (default)",
     NOLAG_FLAG_TEXT, NOLAG_AT(ack)},
    {0, "prefetch", "N", "with --ack manual: so many messages at a time (1 in a group)", NOLAG_FLAG_INTEGER,
     NOLAG_AT(prefetch), 1, 10000},
    {'q', "qos", "QOS", "0, 1 or 2 (default 1)", NOLAG_FLAG_INTEGER, NOLAG_AT(qos), 0, 2},
    {'C', "count", "COUNT", "end after that many messages", NOLAG_FLAG_INTEGER, NOLAG_AT(count), 1,
     INT64_MAX},
    {'v', "verbose", NULL, "show the topic in front of the payload", NOLAG_FLAG_BOOL, NOLAG_AT(verbose)},
    {'F', "format", "FORMAT", "show messages like that, see below", NOLAG_FLAG_TEXT, NOLAG_AT(format)},
    {'N', "no-newline", NULL, "no newline after each message", NOLAG_FLAG_BOOL, NOLAG_AT(no_newline)},
    {0, "bytes", NULL, "show a payload that is bytes as these bytes", NOLAG_FLAG_BOOL, NOLAG_AT(bytes)},
    {'E', "only-subscribe", NULL, "end when the broker has confirmed all subscriptions", NOLAG_FLAG_BOOL,
     NOLAG_AT(only_subscribe)},
    {0, "retry", NULL, "connect again when nolagd goes away; wait when access is denied", NOLAG_FLAG_BOOL,
     NOLAG_AT(retry)},
    {0, "quiet", NULL, "no notes on stderr, only errors", NOLAG_FLAG_BOOL, NOLAG_AT(quiet)},
    {'d', "debug", NULL, "tell when it is subscribed, and about the connection, as on a terminal",
     NOLAG_FLAG_BOOL, NOLAG_AT(debug)},
    {0, "json", NULL, "show the whole event as JSON", NOLAG_FLAG_BOOL, NOLAG_AT(json)},
    {0, "session", "NAME", "the session to use (default: nolagd's default session)", NOLAG_FLAG_TEXT,
     NOLAG_AT(session)},
    {'W', "timeout", "SECONDS", "end after that long (fractions allowed)", NOLAG_FLAG_SECONDS,
     NOLAG_AT(timeout)},
    {0},
};

#define FORMAT_LINE(letter, text) "  %" letter "  " text "\n"
#define FORMAT_LINES NOLAG_FORMATS(FORMAT_LINE)

const struct nolag_verb nolag_verb_sub = {
    .name = "sub",
    .summary = "Shows the messages of topics, one per line: the payload, text as it is, all else as JSON.",
    .usage = "-t TOPIC [-t TOPIC] [--filter FILTER] [flags]",
    .notes = "A FILTER that must match together with others is a JSON list: --filter '[\"a\",\"b\"]'.\n"
             "The TOPIC \"*\" is what nolagd delivers to its other clients, so nothing while nobody else\n"
             "subscribes; it is for root and nolagd's own user.\n\n"
             "FORMAT is text with \\n \\t \\r \\0 \\a \\e \\\\ and\n" FORMAT_LINES "\n"
             "  nolag sub -t demo/ops/events -C 1 -W 10\n"
             "  nolag sub -t demo/ops/events --json | jq .data\n",
    .run = run_sub,
    .flags = flags,
};
