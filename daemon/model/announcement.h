/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the broker is told about our own presence. It holds one presence in one room for each connection;
 * several local clients may hold one each:
 *
 *   - All are in the same room: another client's other room is wish_conflict. Who is alone may move.
 *   - The one set last shows. When it is cleared, or its client goes away, the one before it shows again;
 *     with none left null is sent, which counts as absent.
 *
 * The broker does not answer. What was sent is confirmed by our own event with equal data; one announcement
 * is on its way at a time, and what was set meanwhile goes out next, without what it has replaced:
 *
 *   idle --(what shows differs from what is wished)--> out --(own event)--> idle
 *                                                      out --(deadline, and a heartbeat behind it is back:
 *                                                             the broker knows no such room)--> undone
 *
 * What is undone fails to who asked, whose presence is then the one it had before. After a reconnect all is
 * announced anew. A presence that is on its way at two closes with 1009 or 1011 in a row is given up.
 *
 * Events carry no room. After a move our own leave is the border: what comes before it belongs to the room we
 * left. An own leave without a move is of another connection of our actor, or a mistake: we announce again.
 *
 * Pure: no loop, no clock.
 */
#ifndef NL_MODEL_ANNOUNCEMENT_H
#define NL_MODEL_ANNOUNCEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/asks.h"

/* A presence: a room, and data as MessagePack. */
struct nl_held {
    char *room; /* NULL = there is none */
    uint8_t *data;
    size_t len;
    uint64_t digest;
};

struct nl_holder {
    struct nl_peer *peer;
    struct nl_held held;
    struct nl_held before; /* the last one of its that was sent, while the one it holds is not confirmed */
    uint64_t version;
    bool confirmed; /* what it holds shows, or could */
    struct nl_holder *prev, *next;
};

struct nl_announcement {
    struct nl_presence_ops ops;
    uint64_t deadline_ms;      /* how long an own event may take */
    uint64_t seed;             /* of digests */
    struct nl_holder *holders; /* the newest first */
    struct nl_ask *asks;       /* set and clear; mark: the version they made */
    uint64_t version;          /* of what is wished */
    bool up;
    bool again;           /* announce although it shows already */
    bool sure;            /* room is confirmed on this link */
    char *room;           /* whose events come; NULL = none */
    struct nl_held shown; /* what the broker has; its data is not kept, and digest 0 is null */
    bool out;             /* an announcement is on its way: */
    char *out_room;
    uint64_t out_digest; /* 0 = null */
    uint64_t out_version, out_ms, out_position;
    uint64_t fence;          /* the heartbeat behind it; 0 = none yet */
    uint64_t struck_version; /* was on its way when the broker closed for what it was sent */
};

/* seed: as for nl_digest(). */
void nl_announcement_init(struct nl_announcement *a, const struct nl_presence_ops *ops, uint64_t deadline_ms,
                          uint64_t seed);
void nl_announcement_deinit(struct nl_announcement *a); /* asserts that nobody holds a presence */

/* `presence` with a room, and `clearPresence` or null data. Checked but for what depends on the state. */
void nl_announcement_set(struct nl_announcement *a, struct nl_peer *peer, struct nl_request *r,
                         uint64_t now_ms);
void nl_announcement_clear(struct nl_announcement *a, struct nl_peer *peer, struct nl_request *r,
                           uint64_t now_ms);
void nl_announcement_leave(struct nl_announcement *a, struct nl_peer *peer);
void nl_announcement_fail_all(struct nl_announcement *a, enum nl_error error);

void nl_announcement_up(struct nl_announcement *a);
void nl_announcement_down(struct nl_announcement *a, int close_code);

/*
 * An event about our own actor: a join or update with this data (may be empty: not told), or a leave. Call it
 * before looking at nl_announcement.room: it may be the border.
 */
void nl_announcement_own_event(struct nl_announcement *a, bool join, struct nl_slice data);
void nl_announcement_own_leave(struct nl_announcement *a);

void nl_announcement_fence_passed(struct nl_announcement *a, uint64_t fence);
void nl_announcement_run(struct nl_announcement *a, uint64_t now_ms);
uint64_t nl_announcement_next(const struct nl_announcement *a); /* UINT64_MAX = no need; 0 = at once */

/* Is what is on its way what was on its way when the broker closed the link for what it was sent? */
bool nl_announcement_suspected(const struct nl_announcement *a);

/* The position of what is on its way; UINT64_MAX = nothing. */
uint64_t nl_announcement_oldest(const struct nl_announcement *a);

#endif
