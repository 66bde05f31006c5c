/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes one JSON object, field by field, into a buffer: the answers and events of the
 * local protocol. Keys are literals that need no escaping.
 */
#ifndef NL_PROTOCOL_OBJECT_H
#define NL_PROTOCOL_OBJECT_H

#include <stdbool.h>

#include "protocol/buffer.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/line.h"
#include "protocol/request.h"
#include "protocol/transcode.h"

struct nl_object {
    struct nl_buffer out;
    bool first;
};

void nl_object_begin(struct nl_object *o, const char *type); /* {"type":"..." */
void nl_object_str(struct nl_object *o, const char *key, struct nl_slice value);
void nl_object_cstr(struct nl_object *o, const char *key, const char *value); /* nothing when value is NULL */
void nl_object_int(struct nl_object *o, const char *key, int64_t value);
void nl_object_bool(struct nl_object *o, const char *key, bool value);
void nl_object_json(struct nl_object *o, const char *key, struct nl_slice json); /* JSON text as it is */
void nl_object_msgpack(struct nl_object *o, const char *key, struct nl_slice raw,
                       struct nl_json_options options);
/* The same with a name that is data, and so is escaped. */
void nl_object_member(struct nl_object *o, struct nl_slice name, struct nl_slice raw,
                      struct nl_json_options options);
void nl_object_open_member(struct nl_object *o, struct nl_slice name, char bracket);
void nl_object_filters(struct nl_object *o, const char *key, const struct nl_filters *filters);
void nl_object_id(struct nl_object *o, const char *id); /* "id", of a request; nothing when id is NULL */
/* "error", "code" if it has one, and "hint": NULL is the error's default. */
void nl_object_error(struct nl_object *o, enum nl_error error, const char *hint);
/* Nested containers: key NULL inside an array. */
void nl_object_open(struct nl_object *o, const char *key, char bracket); /* '{' or '[' */
void nl_object_close(struct nl_object *o, char bracket);                 /* '}' or ']' */

/* Ends the object and makes it a line with one reference. The object is deinitialised. */
struct nl_line *nl_object_line(struct nl_object *o);

/*
 * The same in two parts, of which the second can be shared: begin_rest() begins an object behind its first
 * fields (nl_object_line() makes it a line), line_with() makes a line of those fields and a rest, to which it
 * takes over a reference.
 */
void nl_object_begin_rest(struct nl_object *o);
struct nl_line *nl_object_line_with(struct nl_object *o, struct nl_line *rest);

/* The answer to a line that could not be used. */
struct nl_line *nl_refusal_line(const struct nl_refusal *r);

/* An error of nolagd's own that answers a request whose line was good. hint NULL means the error's default.
 */
struct nl_line *nl_request_error_line(enum nl_error error, const struct nl_request *r, const char *hint);

/*
 * An error of nolagd's own. request is the wire name it answers (NULL: an event), id the
 * JSON text (NULL: none), hint NULL means the error's default, topic may be empty.
 */
struct nl_line *nl_error_line(enum nl_error error, const char *request, const char *id, struct nl_slice topic,
                              const char *hint);

/*
 * A broker's error frame as an answer or event, with all its fields but type, msgRef and
 * topic as they are: request, id and topic as above. msgRef: the client's own, or empty.
 */
struct nl_line *nl_broker_error_line(const struct nl_frame *frame, const char *request, const char *id,
                                     struct nl_slice topic, struct nl_slice msg_ref);

/*
 * A delivered message as an event line: type, topic and data first, then whatever else
 * the frame holds, unknown fields too. A filter of "#" becomes "filterHidden":true.
 */
struct nl_line *nl_message_line(const struct nl_frame *message, struct nl_json_options options);

/* The same for a client that it was given to alone: with ackId unless it is 0, and redelivered if so. */
struct nl_line *nl_handed_line(const struct nl_frame *message, uint64_t ack_id, bool redelivered,
                               struct nl_json_options options);

/* Any other event of the broker, passed on field by field (hydration, replayStart, replayEnd). */
struct nl_line *nl_event_line(const struct nl_frame *frame, struct nl_json_options options);

/*
 * A message that went from one local client to another: from is our actorTokenId, filter_key
 * NULL when it has none, data MessagePack.
 */
struct nl_line *nl_local_message_line(struct nl_slice topic, struct nl_slice data, const char *filter_key,
                                      struct nl_slice from, struct nl_json_options options);

#endif
