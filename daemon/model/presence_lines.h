/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the broker says about actors, read and written: one shape of an actor, however the broker spells it.
 * Used by presence.c and lobbies.c only.
 */
#ifndef NL_MODEL_PRESENCE_LINES_H
#define NL_MODEL_PRESENCE_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/buffer.h"
#include "protocol/line.h"
#include "protocol/object.h"

/* An actor in a list or an event: views. */
struct nl_actor {
    struct nl_slice whole;    /* the map it was read from */
    struct nl_slice id;       /* actorTokenId, or actor_token_id */
    struct nl_slice presence; /* RAW; len 0 when absent */
    struct nl_slice status;   /* len 0 when absent */
};

/* False when raw is no map with an id. */
bool nl_actor_read(struct nl_slice raw, struct nl_actor *out);

/* Absent or null: it shows nothing. */
bool nl_raw_is_null(struct nl_slice raw);

/* Of the presence and the status; absent counts as "online". */
uint64_t nl_actor_digest(const struct nl_actor *actor, uint64_t seed);

/* Writes the actor as {"actorTokenId":...} with all else that the broker told; room: "roomId", may be empty.
 */
void nl_actor_write(struct nl_object *o, const char *key, const struct nl_actor *actor, struct nl_slice room,
                    struct nl_json_options options);

/* A `presence` event. */
struct nl_line *nl_presence_event_line(struct nl_slice event, struct nl_slice room,
                                       const struct nl_actor *actor, struct nl_json_options options);

#endif
