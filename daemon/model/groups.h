/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that go to one client and are remembered until it is done with them: those of a load-balanced
 * group, which share one stream of messages, and those of a subscription with "ack":"manual" of its own,
 * which is a group of one.
 *
 * A message waits in its group until a worker takes it: one whose own filters match, who may have one more,
 * and of these the one with the least outstanding; among equals the one whose turn is longest ago. It is
 * then outstanding until
 *
 *   automatic   the kernel took its line whole
 *   manual      the client acknowledged it by its ackId or msgId
 *
 * When the worker goes first, or its line was thrown away, the message waits again, in its old place, and
 * goes to whoever can have it next, with "redelivered". A worker whose line was thrown away rests for
 * NL_GROUP_REST_MS: it does not read.
 *
 * A message that no worker's filters match waits NL_GROUP_LINGER_MS for one who comes, and longer while one
 * is on the way; then it is lost: it is counted, and not acknowledged. So it is with all messages when the
 * last worker has gone.
 *
 * Events (the begin and the end of a replay) have their place in the order of the messages. A worker hears
 * one when no older message waits that it could have, and gets no newer one before. Of more than
 * NL_GROUP_MARKS that not all have heard the oldest is told at once.
 *
 * In a load-balanced group each msgId goes out once: one that waits, is outstanding or was done with before
 * is not taken again. What was lost is.
 *
 * Bounds: NL_GROUP_MESSAGES and NL_GROUP_BYTES for a group, NL_GROUPS_BYTES for all of a session. Beyond that
 * the oldest that waits gives way, in the group that came too far or, for the last bound, in the largest
 * one; where none waits, the new message. The workers are told (`dropped`), at most once in
 * NL_GROUP_REST_MS.
 *
 * Pure: no loop, no clock, no log. Callbacks may not call back, but for what they say.
 */
#ifndef NL_MODEL_GROUPS_H
#define NL_MODEL_GROUPS_H

#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#include "daemon/model/acks.h"
#include "daemon/model/wishes.h"
#include "protocol/frame.h"
#include "protocol/line.h"
#include "protocol/request.h"

#define NL_GROUP_LINGER_MS 500
#define NL_GROUP_REST_MS 1000
#define NL_GROUP_MESSAGES 10000
#define NL_GROUP_MARKS 64
#define NL_GROUP_BYTES (UINT64_C(16) << 20)
#define NL_GROUPS_BYTES (UINT64_C(128) << 20)

struct lane;
struct mark;
struct nl_group;
struct nl_work;

/* A message on its way to the one client that it was given to. */
struct nl_handout {
    struct nl_slice frame;
    uint64_t ack_id; /* 0 = automatic */
    bool redelivered;
    uint64_t serial; /* of the message, see nl_delivery */
    struct nl_line_watch *watch;
};

struct nl_groups_ops {
    /* Makes a line of it, watched, and gives it to the client. */
    void (*hand)(void *ctx, struct nl_peer *peer, const struct nl_handout *h);
    /* An event for a worker: replayStart, replayEnd, dropped. Takes over line. */
    void (*event)(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line);
    /* nl_groups_run() has something to do. */
    void (*wake)(void *ctx);
    /* Is a worker on its way that could take messages with this filter's key (len 0 = none)? */
    bool (*awaited)(void *ctx, void *owner, struct nl_slice key);
    /* The group has no worker and no message any more; it may be freed here. */
    void (*over)(void *ctx, void *owner, uint64_t now_ms);
    void *ctx;
};

/* One subscription's share in a group. */
struct nl_worker {
    struct nl_subscription *subscription;
    struct nl_group *group;
    struct nl_work *outstanding; /* oldest first */
    uint32_t count;              /* of outstanding */
    uint32_t prefetch;           /* the most it may have outstanding; 0 = no limit */
    bool manual;
    bool failed; /* a line was thrown away since the last run */
    bool freed;  /* it may have more than when it was looked at last */
    uint64_t rests_until_ms;
    uint64_t heard;                /* the order of the last event it was told, or of its joining */
    uint64_t turn;                 /* when it got its last message, counted in messages */
    struct nl_worker *prev, *next; /* in nl_group.workers */
};

struct nl_group {
    struct nl_groups *all;
    struct nl_wishes *wishes;
    void *owner;
    struct nl_slice topic;     /* borrowed from the owner */
    bool shared;               /* load-balanced; else it is of one subscription */
    struct nl_worker *workers; /* linked by prev, next */
    struct nl_work *waiting;   /* by order, oldest first */
    struct nl_work *hint;      /* among them, near which the next one may belong that comes back; or NULL */
    struct lane *lanes;        /* of those with a filter, by that */
    struct mark *marks;        /* events that not all workers have heard, oldest first */
    uint32_t mark_count;
    struct nl_work *by_hash;  /* shared: those with a msgId */
    uint64_t messages, bytes; /* waiting and outstanding */
    uint64_t dropped;         /* not told yet */
    uint64_t told_ms;         /* when that was told last */
    uint64_t loss_ms;         /* not before this is one lost for which nobody came */
    uint64_t due_ms;          /* TIMED: when to look again */
    bool changed;             /* its members or their filters: all that waits is to be looked at */
    enum { NL_GROUP_IDLE, NL_GROUP_TIMED, NL_GROUP_DIRTY } place;
    struct nl_group *prev, *next; /* in the list of its place */
};

struct nl_groups {
    struct nl_groups_ops ops;
    struct nl_group *lists[NL_GROUP_DIRTY + 1]; /* all groups, by place */
    struct nl_work *by_ack_id;
    struct nl_work *by_msg_id; /* outstanding, manual: by client and msgId */
    uint64_t serial, turns, ack_ids;
    uint64_t bytes;
    uint64_t lost; /* messages that came for nobody, or were dropped */
};

void nl_groups_init(struct nl_groups *all, const struct nl_groups_ops *ops);
void nl_groups_deinit(struct nl_groups *all); /* asserts that there is none left */

/* shared: load-balanced. topic and wishes are borrowed. */
struct nl_group *nl_group_new(struct nl_groups *all, struct nl_wishes *wishes, struct nl_slice topic,
                              bool shared, void *owner);
/* Takes NULL; returns NULL. Asserts that nobody works there. What waits is lost, if it is load-balanced. */
struct nl_group *nl_group_free(struct nl_group *g);

/* Is there a message that waits or is outstanding? NULL: no. */
bool nl_group_busy(const struct nl_group *g);

/* Joins; sub->worker is the worker from here on. */
void nl_group_join(struct nl_group *g, struct nl_subscription *sub, bool manual, uint32_t prefetch);

/* Leaves: what it had waits again for the others. */
void nl_group_leave(struct nl_subscription *sub);

/* Filters have changed, or a wish holds: looked at in the next run. */
void nl_group_touch(struct nl_group *g);

/* A message of the broker. */
struct nl_group_message {
    const struct nl_frame *frame;
    struct nl_slice key; /* of its filter; len 0 = none */
    uint64_t msg_hash;   /* 0 = no msgId */
    bool settling;       /* it may be a retained one */
    uint64_t serial;
    struct nl_receipt *receipt; /* or NULL */
};

/* Takes a message; hands it out at once where that can be. False: it is for nobody here, or not new. */
bool nl_group_take(struct nl_group *g, const struct nl_group_message *a, uint64_t now_ms);

/* An event that goes to all workers; to each behind the messages that wait now and that it could have. Takes
 * over line. */
void nl_group_mark(struct nl_group *g, enum nl_event event, struct nl_line *line, uint64_t now_ms);

/* What the client has outstanding under this ackId or msgId; NULL = nothing. */
struct nl_work *nl_groups_find(const struct nl_groups *all, const struct nl_peer *peer, uint64_t ack_id);
struct nl_work *nl_groups_find_msg(const struct nl_groups *all, const struct nl_peer *peer,
                                   struct nl_slice msg_id, uint64_t msg_hash);

/* The client is done with it. */
void nl_groups_acknowledge(struct nl_work *work);

void nl_groups_run(struct nl_groups *all, uint64_t now_ms);
uint64_t nl_groups_next(const struct nl_groups *all); /* 0 = at once; UINT64_MAX = no need */

#endif
