/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line from nolagd, answer or event, cut into the fields that this command looks at.
 * Everything is a view into the line and as good as long as the line is.
 */
#ifndef NOLAG_CLI_EVENT_H
#define NOLAG_CLI_EVENT_H

#include <stdbool.h>

#include "protocol/buffer.h"

/* X(member, "wire name") */
#define NOLAG_EVENT_FIELDS(X)                                                                                \
    X(type, "type")                                                                                          \
    X(id, "id")                                                                                              \
    X(request, "request")                                                                                    \
    X(topic, "topic")                                                                                        \
    X(data, "data")                                                                                          \
    X(filter, "filter")                                                                                      \
    X(filters, "filters")                                                                                    \
    X(msg_id, "msgId")                                                                                       \
    X(ack_id, "ackId")                                                                                       \
    X(from, "from")                                                                                          \
    X(error, "error")                                                                                        \
    X(hint, "hint")                                                                                          \
    X(field, "field")                                                                                        \
    X(success, "success")                                                                                    \
    X(pending, "pending")                                                                                    \
    X(session, "session")                                                                                    \
    X(status, "status")                                                                                      \
    X(reason, "reason")                                                                                      \
    X(detail, "detail")                                                                                      \
    X(count, "count")                                                                                        \
    X(max_size, "maxSizeBytes")                                                                              \
    X(retry_after, "retryAfterMs")

struct nolag_event {
    struct nl_slice line;
#define X(member, wire) struct nl_slice member; /* JSON text; ptr NULL when absent */
    NOLAG_EVENT_FIELDS(X)
#undef X
};

/* False when line is not an object with a type. */
bool nolag_event_read(struct nolag_event *e, struct nl_slice line);

/* True when e is of that type. */
bool nolag_event_is(const struct nolag_event *e, const char *type);

/* True when e answers a line that could not be read, and so says neither id nor request. */
bool nolag_event_is_unread(const struct nolag_event *e);

#endif
