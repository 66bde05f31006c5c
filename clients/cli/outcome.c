/* SPDX-License-Identifier: Apache-2.0 */
/* From errors to words and exit codes. */
#include "clients/cli/outcome.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "clients/cli/json.h"

static const struct {
    const char *error;
    enum nolag_exit exit;
} exits[] = {
    {"timeout", NOLAG_OFFLINE},
    {"shutting_down", NOLAG_NO_DAEMON},
    {"access_denied", NOLAG_DENIED},
    {"auth_denied", NOLAG_DENIED},
    {"not_authenticated", NOLAG_DENIED},
    {"not_authorized", NOLAG_DENIED},
    {"not_permitted", NOLAG_DENIED},
    {"unknown_session", NOLAG_DENIED},
    {"rate_limit_exceeded", NOLAG_LIMITED},
    {"monthly_quota_exceeded", NOLAG_LIMITED},
    {"quota_exceeded", NOLAG_LIMITED},
    {"connection_limit_reached", NOLAG_LIMITED},
    {"outbox_full", NOLAG_LIMITED},
    {"limit_reached", NOLAG_LIMITED},
    {"too_many_clients", NOLAG_LIMITED},
    {"slow_consumer", NOLAG_LIMITED},
};

/* Where nolagd's hint speaks of fields and events that users of this command do not see. */
static const struct {
    const char *error, *hint;
} hints[] = {
    {"line_too_long", "longer than nolagd takes; see line_limit in nolagd.conf (2 MiB unless set)"},
    {"not_supported", "this version of nolagd does not do this"},
};

void nolag_say(const char *format, ...) {
    va_list args;

    va_start(args, format);
    fputs("nolag: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

/* Makes a C string of text, without control characters; for free(). */
static char *finish(struct nl_buffer *text) {
    size_t len;

    for (size_t i = 0; i < text->len; i++)
        if (text->bytes[i] < ' ' || text->bytes[i] == 0x7f)
            text->bytes[i] = ' ';
    nl_buffer_append_byte(text, '\0');
    return (char *)nl_buffer_take(text, &len);
}

char *nolag_text(struct nl_slice value) {
    struct nl_buffer text;

    nl_buffer_init(&text);
    nolag_json_text(&text, value);
    return finish(&text);
}

static enum nolag_exit exit_of(struct nl_slice error) {
    for (size_t i = 0; i < sizeof exits / sizeof exits[0]; i++)
        if (nolag_json_is(error, exits[i].error))
            return exits[i].exit;
    return NOLAG_FAILED;
}

enum nolag_exit nolag_outcome(const struct nolag_event *e) {
    bool refused = nolag_event_is(e, "auth") && nl_slice_equal(e->success, nl_slice_str("false"));

    return refused || nolag_event_is(e, "error") ? exit_of(e->error) : NOLAG_OK;
}

/* Appends value, if there is one, and what stands around it. */
static void put(struct nl_buffer *text, const char *before, struct nl_slice value, const char *behind) {
    if (value.len == 0)
        return;
    nl_buffer_append_str(text, before);
    nolag_json_text(text, value);
    nl_buffer_append_str(text, behind);
}

static struct nl_slice hint_of(const struct nolag_event *e) {
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (nolag_json_is(e->error, hints[i].error))
            return nl_slice_str(hints[i].hint);
    return e->hint;
}

enum nolag_exit nolag_say_error(const struct nolag_event *e, const char *where) {
    struct nl_buffer text;
    char *line;

    nl_buffer_init(&text);
    put(&text, "", e->topic, ": ");
    put(&text, "", e->error, "");
    put(&text, " ", e->field, "");
    put(&text, ": ", hint_of(e), "");
    put(&text, " (at most ", e->max_size, " bytes)");
    put(&text, " (in ", e->retry_after, " ms)");
    line = finish(&text);
    nolag_say("%s%s", where, line);
    free(line);
    return exit_of(e->error);
}

enum nolag_exit nolag_check_auth(const struct nolag_event *e) {
    enum nolag_exit code;

    if (nolag_event_is(e, "auth") && nl_slice_equal(e->success, nl_slice_str("true")))
        return NOLAG_OK;
    code = nolag_say_error(e, "auth: ");
    return code == NOLAG_FAILED ? NOLAG_DENIED : code;
}

enum nolag_exit nolag_offline_exit(const struct nolag_event *e) {
    bool refused = nolag_json_is(e->reason, "access_denied") || nolag_json_is(e->reason, "revoked");

    return refused ? NOLAG_DENIED : NOLAG_OFFLINE;
}

void nolag_say_offline(struct nl_slice object, const char *consequence) {
    struct nl_slice status = nolag_json_find(object, "status");
    char *session = nolag_text(nolag_json_find(object, "session"));
    char *state = nolag_text(status.len ? status : nl_slice_str("disconnected"));
    char *reason = nolag_text(nolag_json_find(object, "reason"));
    char *detail = nolag_text(nolag_json_find(object, "detail"));

    nolag_say("session %s is %s%s%s%s%s%s%s", session, state, *reason ? " (" : "", reason,
              *detail ? ": " : "", detail, *reason ? ")" : "", consequence);
    free(session);
    free(state);
    free(reason);
    free(detail);
}
