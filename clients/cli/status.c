/* SPDX-License-Identifier: Apache-2.0 */
/* nolag status, sessions and ping: one question, one answer, shown for people or as it came (--json). */
#include "clients/cli/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "clients/cli/connection.h"
#include "clients/cli/json.h"
#include "clients/cli/output.h"
#include "clients/cli/request.h"

/* Asks, and hands the answer to show(), or to stdout as it is. */
static enum nolag_exit ask(const struct nolag_options *o, const char *type,
                           enum nolag_exit (*show)(struct nl_slice answer), bool *connected) {
    struct nl_buffer answer;
    struct nl_slice line;
    enum nolag_exit code;

    nl_buffer_init(&answer);
    code = nolag_request_ask(o, type, &answer);
    line = nl_slice(answer.bytes, answer.len);
    if (code == NOLAG_OK && connected)
        *connected = nolag_json_is(nolag_json_find(line, "status"), "connected");
    if (code == NOLAG_OK)
        code = o->json ? nolag_output_line(line) : show(line);
    nl_buffer_deinit(&answer);
    return code;
}

/* What a field says, for people: times are in UTC. For free(). */
static char *readable(struct nl_slice key, struct nl_slice value) {
    time_t since = (time_t)nolag_json_integer(value, -1);
    struct tm utc;
    char text[32];

    if (!nl_slice_equal(key, nl_slice_str("since")) || since < 0 || !gmtime_r(&since, &utc))
        return nolag_text(value);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return nolag_text(nl_slice_str(text));
}

/* Whatever nolagd tells, in its order: a later one may tell more. */
static enum nolag_exit show_status(struct nl_slice answer) {
    struct nolag_json_walk walk;
    struct nl_slice key, value;

    if (!nolag_json_walk(&walk, answer))
        return NOLAG_FAILED;
    while (nolag_json_member(&walk, &key, &value)) {
        char *text = readable(key, value);

        if (!nl_slice_equal(key, nl_slice_str("type")) && !nl_slice_equal(key, nl_slice_str("id")))
            printf("%.*s: %s\n", (int)key.len, (const char *)key.ptr, text);
        free(text);
    }
    return NOLAG_OK;
}

static void show_row(struct nl_slice session) {
    static const char *const columns[] = {"session", "status", "since", "reason"};
    static const int widths[] = {20, 14, 22, 0};

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        struct nl_slice value = nolag_json_find(session, columns[i]);
        char *text = value.len ? readable(nl_slice_str(columns[i]), value) : nolag_text(nl_slice_str("-"));

        printf("%-*s%s", widths[i], text, widths[i] ? " " : "\n");
        free(text);
    }
}

static enum nolag_exit show_sessions(struct nl_slice answer) {
    struct nl_slice list = nolag_json_find(answer, "sessions"), session;
    struct nolag_json_walk walk;

    printf("%-20s %-14s %-22s %s\n", "SESSION", "STATUS", "SINCE", "REASON");
    if (nolag_json_walk(&walk, list))
        while (nolag_json_item(&walk, &session))
            show_row(session);
    return NOLAG_OK;
}

static enum nolag_exit show_pong(struct nl_slice answer) {
    (void)answer;
    puts("pong");
    return NOLAG_OK;
}

static enum nolag_exit run_status(const struct nolag_options *o) {
    bool connected = false;
    enum nolag_exit code = ask(o, "status", show_status, &connected);

    return code == NOLAG_OK && o->exit_code && !connected ? NOLAG_OFFLINE : code;
}

static enum nolag_exit run_sessions(const struct nolag_options *o) {
    return ask(o, "sessions", show_sessions, NULL);
}

static enum nolag_exit run_ping(const struct nolag_options *o) {
    return ask(o, "ping", show_pong, NULL);
}

static const struct nolag_flag status_flags[] = {
    {0, "session", "NAME", "the session to look at (default: nolagd's default session)", NOLAG_FLAG_TEXT,
     NOLAG_AT(session)},
    {0, "exit-code", NULL, "exit with 4 unless the session is connected", NOLAG_FLAG_BOOL,
     NOLAG_AT(exit_code)},
    {0, "json", NULL, "print nolagd's answer as it is", NOLAG_FLAG_BOOL, NOLAG_AT(json)},
    {'W', "timeout", "SECONDS", "wait no longer for the answer (default 30)", NOLAG_FLAG_SECONDS,
     NOLAG_AT(timeout)},
    {0},
};

static const struct nolag_flag plain_flags[] = {
    {0, "json", NULL, "print nolagd's answer as it is", NOLAG_FLAG_BOOL, NOLAG_AT(json)},
    {'W', "timeout", "SECONDS", "wait no longer for the answer (default 30)", NOLAG_FLAG_SECONDS,
     NOLAG_AT(timeout)},
    {0},
};

const struct nolag_verb nolag_verb_status = {
    .name = "status",
    .summary = "Shows whether a session is connected to the broker, and why not.",
    .usage = "[--session NAME] [--exit-code] [flags]",
    .notes = "",
    .run = run_status,
    .flags = status_flags,
};

const struct nolag_verb nolag_verb_sessions = {
    .name = "sessions",
    .summary = "Lists the sessions that you may use.",
    .usage = "[flags]",
    .notes = "",
    .run = run_sessions,
    .flags = plain_flags,
};

const struct nolag_verb nolag_verb_ping = {
    .name = "ping",
    .summary = "Asks nolagd whether it is there.",
    .usage = "[flags]",
    .notes = "",
    .run = run_ping,
    .flags = plain_flags,
};
