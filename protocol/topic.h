/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Topic names.
 *
 *   valid      app/room/topic   chat-a3f9/general/messages   a/b/c:d_e-1
 *              app/scope/room/topic (scoped actors)
 *   invalid    app  app/room  a/b/c/d/e  /a/b/c  a//c  a/b/  a/b/+  a/b/#  "a/b/c d"  a/b/ä
 */
#ifndef NL_PROTOCOL_TOPIC_H
#define NL_PROTOCOL_TOPIC_H

#include <stdbool.h>

#include "protocol/buffer.h"

#define NL_TOPIC_MAX 1024 /* bytes; our own bound, far above any real name */

/* What a part of a topic is made of, and a name that can be one: [a-zA-Z0-9_:-]. */
static inline bool nl_topic_letter(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == ':' || c == '-';
}

bool nl_topic_valid(struct nl_slice topic);

/* The last part of a valid topic: "messages" of "chat-a3f9/general/messages". */
struct nl_slice nl_topic_name(struct nl_slice topic);

/*
 * True when topic matches pattern as MQTT has it: "+" is one level, a last "#" is all
 * levels from there on, including none. Used for access rules, never for subscriptions.
 *   a/+/c      matches a/b/c      not a/b/d, a/b/x/c
 *   a/#        matches a, a/b/c   not b/c
 */
bool nl_topic_matches(struct nl_slice pattern, struct nl_slice topic);

#endif
