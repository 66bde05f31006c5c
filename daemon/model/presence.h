/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presence of a session: who is in which room, told to the local clients that want to know, and what we show
 * ourselves (announcement.h).
 *
 * Each room that somebody watches or asks for, and the one we are present in, has a roster of who is there:
 *
 *   live    while we are present there the broker tells every change
 *   polled  while somebody watches it otherwise: `getPresence` every poll_interval_ms
 *   stale   neither; or the link is down
 *
 * What comes is compared with the roster, and only the difference is told: a join and an update with the same
 * data are one event, and after an outage only what has changed meanwhile. Presence null counts as absent.
 * A `leave` may be of one of an actor's connections of several: the room is fetched, and it is told when the
 * actor is not there any more. A room is fetched once at a time, whoever asks.
 *
 * Events of a room go to who watches it and, while we are present there, to those who hold a presence, as the
 * broker tells everybody in the room.
 *
 * Bounds: watches per client and per user; NL_ROOMS_KEPT rooms that nobody needs; NL_PRESENCE_BYTES of memory
 * for all rosters (what does not fit is not told); NL_FETCHES fetches at a time.
 *
 * Pure: no loop, no clock.
 */
#ifndef NL_MODEL_PRESENCE_H
#define NL_MODEL_PRESENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/announcement.h"
#include "daemon/model/asks.h"

#define NL_ROOMS_KEPT 16
#define NL_PRESENCE_BYTES (UINT64_C(32) << 20)
#define NL_FETCHES 16

struct nl_presence_limits {
    uint64_t request_timeout_ms;
    uint64_t unknown_room_ms; /* how long our own event may take after an announcement */
    uint64_t poll_interval_ms;
    struct nl_watch_limits watches;
};

struct nl_presence;

struct nl_presence *nl_presence_new(const struct nl_presence_limits *limits,
                                    const struct nl_presence_ops *ops, uint64_t seed);
struct nl_presence *nl_presence_free(struct nl_presence *p); /* asserts that nobody holds anything */

/* Is it a request of this part? */
bool nl_presence_wants(enum nl_request_type type);

/* A client's request. The answer comes by ops.answer, maybe before this returns. */
void nl_presence_request(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms);

/* The client leaves everything; what it asked for gets no answer. */
void nl_presence_leave(struct nl_presence *p, struct nl_peer *peer, uint64_t now_ms);
void nl_presence_fail_all(struct nl_presence *p, enum nl_error error);

/* The link is authenticated as actor (may be NULL), or gone. */
void nl_presence_up(struct nl_presence *p, const char *actor, uint64_t now_ms);
void nl_presence_down(struct nl_presence *p, int close_code, uint64_t now_ms);

/* `presence` and `presenceList`. False: nothing of ours. */
bool nl_presence_frame(struct nl_presence *p, const struct nl_frame *frame, uint64_t now_ms);

void nl_presence_fence_passed(struct nl_presence *p, uint64_t fence, uint64_t now_ms);

/* Sends what waits, times out what is too old. */
void nl_presence_run(struct nl_presence *p, uint64_t now_ms);
uint64_t nl_presence_next(const struct nl_presence *p); /* UINT64_MAX = no need */

/* Is an announcement on its way that was on its way when the broker closed for what it was sent? Nothing that
 * could be a reason for another such close may then be sent. */
bool nl_presence_suspected(const struct nl_presence *p);

/* The position of an announcement that the broker has not confirmed; UINT64_MAX = none. */
uint64_t nl_presence_oldest(const struct nl_presence *p);

#endif
