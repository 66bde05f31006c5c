/* SPDX-License-Identifier: Apache-2.0 */
/* Which field of a line goes where: the table of event.h. */
#include "clients/cli/event.h"

#include <stddef.h>

#include "clients/cli/json.h"
#include "protocol/errors.h"

static const struct field {
    const char *wire;
    size_t offset;
} fields[] = {
#define X(member, wire) {wire, offsetof(struct nolag_event, member)},
    NOLAG_EVENT_FIELDS(X)
#undef X
};

static void store(struct nolag_event *e, struct nl_slice key, struct nl_slice value) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (nl_slice_equal(key, nl_slice_str(fields[i].wire)))
            memcpy((char *)e + fields[i].offset, &value, sizeof value);
}

bool nolag_event_read(struct nolag_event *e, struct nl_slice line) {
    struct nolag_json_walk walk;
    struct nl_slice key, value;

    memset(e, 0, sizeof *e);
    e->line = line;
    if (line.len == 0 || line.ptr[0] != '{' || !nolag_json_walk(&walk, line))
        return false;
    while (nolag_json_member(&walk, &key, &value))
        store(e, key, value);
    return e->type.len > 0;
}

bool nolag_event_is(const struct nolag_event *e, const char *type) {
    return nolag_json_is(e->type, type);
}

bool nolag_event_is_unread(const struct nolag_event *e) {
    static const enum nl_error unread[] = {NL_ERROR_BAD_JSON, NL_ERROR_LINE_TOO_LONG, NL_ERROR_TOO_DEEP,
                                           NL_ERROR_TOO_MANY_VALUES, NL_ERROR_BAD_UTF8};

    if (!nolag_event_is(e, "error") || e->id.len || e->request.len)
        return false;
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++)
        if (nolag_json_is(e->error, nl_error_name(unread[i])))
            return true;
    return false;
}
