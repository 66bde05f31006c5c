/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the subscriptions share: the topics of a session and the requests that
 * have no answer yet. For the files subscriptions*.c only.
 */
#ifndef NL_MODEL_SUBSCRIPTIONS_PRIVATE_H
#define NL_MODEL_SUBSCRIPTIONS_PRIVATE_H

#include <uthash.h>

#include "daemon/model/groups.h"
#include "daemon/model/hydration.h"
#include "daemon/model/subscriptions.h"
#include "daemon/model/turns.h"

enum op { OP_NONE, OP_SUBSCRIBE, OP_SET_FILTERS, OP_UNSUBSCRIBE };

/* Which list of nl_subscriptions a topic is on; idle ones are on none. */
enum place { IDLE, GATHERING, READY, IN_FLIGHT, ABANDONED, REFUSED, PLACES };

/* A client's request that has no answer yet. */
struct nl_change {
    struct nl_peer *peer;
    struct nl_topic *topic;
    struct nl_subscription *subscription; /* once applied; NULL for an unsubscribe */
    enum nl_request_type type;
    char *id;
    struct nl_filters filters; /* the request's; once applied what the client then has */
    uint64_t cost;             /* counted in nl_peer.wish_bytes */
    int qos;
    char *mode; /* of a subscribe; see nl_topic */
    enum nl_ack_manner ack;
    uint32_t prefetch;             /* 0 = not said */
    bool applied;                  /* it is in topic.waiting */
    bool late_join_none;           /* the client wants nothing done if it is a late joiner */
    bool declined;                 /* nothing is done for a late joiner, which is to be told */
    struct nl_turn turn;           /* waits while the topic is READY and the change is in topic.waiting */
    struct nl_change *prev, *next; /* in topic.queue or topic.waiting */
    struct nl_change *of_peer_prev, *of_peer_next; /* in nl_peer.changes */
};

struct nl_topic {
    char *name;
    size_t len;
    struct nl_wishes wishes;
    struct nl_change *queue;   /* not applied: a request is in flight */
    struct nl_change *waiting; /* applied; answered when upstream serves them */
    uint64_t change_count;     /* of both */
    bool held;                 /* the broker has a subscription of ours, or, when unsure, had one */
    bool unsure;               /* it refused to renew it */
    bool no_msg_ids;           /* the last message that the broker sent for it had none */
    uint32_t late;             /* subscriptions of late joiners */
    char *mode;                /* wished: NULL = broadcast, else the group's name, "" for the default one */
    struct nl_group *group;    /* of that mode; it can outlive the wishes for a moment */
    char *held_mode;           /* of what the broker has */
    uint8_t qos;               /* of it */
    uint8_t asked_qos;
    bool restoring; /* counted in nl_subscriptions.restoring */
    bool refused;   /* the broker refuses what is wished */

    enum op op; /* sent and not answered: IN_FLIGHT, or ABANDONED when it timed out */
    enum place place;
    struct nl_turn turn;        /* READY, and restoring or nobody waits: waits in the place of a change */
    struct nl_turn_queue *slot; /* IN_FLIGHT, ABANDONED: whose share it is */
    uint64_t due_ms;     /* IN_FLIGHT: its deadline; ABANDONED: the fence's; REFUSED: when to try again;
                            GATHERING: when it is over */
    uint64_t position;   /* IN_FLIGHT, ABANDONED: when it was sent, counted in publishes */
    uint64_t fence;      /* ABANDONED: the heartbeat behind it */
    uint64_t settled_ms; /* the last change upstream */
    struct nl_seen keys; /* of messages since then; only while reported is unknown */
    struct nl_topic *prev, *next; /* in the list of its place */
    UT_hash_handle hh;            /* in nl_subscriptions.topics */
};

struct nl_subscriptions {
    struct nl_subscriptions_limits limits;
    struct nl_subscriptions_ops ops;
    enum nl_reported reported;
    bool learns; /* reported follows what messages show */
    uint64_t seed;
    bool up;
    const struct nl_topic *renewed; /* just subscribed: what the broker sends for it is to come yet */
    struct nl_topic *topics;        /* by name */
    struct nl_topic *lists[PLACES]; /* by enum place, linked by prev, next; oldest first */
    struct nl_hydrations hydrations;
    struct nl_hydration *expected; /* of renewed */
    struct nl_groups groups;
    struct nl_turns turns; /* of READY ones; IN_FLIGHT and ABANDONED ones hold a slot */
    uint64_t restoring;
    uint64_t refused;
    uint64_t wished;          /* topics */
    struct nl_buffer scratch; /* filters of the frame being sent */
};

static inline struct nl_topic *nl_subscriptions_find(const struct nl_subscriptions *s, struct nl_slice name) {
    struct nl_topic *t;

    HASH_FIND(hh, s->topics, name.ptr, name.len, t);
    return t;
}

/* Does anybody wish the topic? */
static inline bool wished(const struct nl_topic *t) {
    return t->wishes.subscriptions != NULL;
}

static inline struct nl_slice topic_name(const struct nl_topic *t) {
    return nl_slice(t->name, t->len);
}

/* ---- subscriptions.c ---- */

/* The broker turned out to hide filters: what was granted, or asked for, under another belief is put right.
 */
void nl_subscriptions_hidden(struct nl_subscriptions *s, uint64_t now_ms);

/* ---- subscriptions_late.c ---- */

/* The change is applied: is its client a late joiner, and what is done? */
void nl_subscriptions_joined(struct nl_subscriptions *s, struct nl_change *c);

/* Is a late joiner one no more? */
void nl_subscriptions_not_late(struct nl_topic *t, struct nl_subscription *sub);

/* The broker has confirmed a subscribe: what is retained, and the hydration, is to come. was_held: it had the
 * topic already. */
void nl_subscriptions_renewed(struct nl_subscriptions *s, struct nl_topic *t, bool was_held, uint64_t now_ms);

/* The link is gone: what it did not bring any more comes with the next one. */
void nl_subscriptions_interrupted(struct nl_topic *t, uint64_t now_ms);

/* Is a request due only for late joiners, who may wait for others? */
bool nl_subscriptions_may_gather(const struct nl_topic *t);

/* ---- subscriptions_groups.c ---- */

/* The mode that a subscribe asks for; to be freed. */
char *nl_subscriptions_mode(const struct nl_request *r);

/* Has the broker's subscription the mode that is wished? */
bool nl_subscriptions_mode_held(const struct nl_topic *t);

/* The broker has a subscription of the wished mode now, or none. */
void nl_subscriptions_hold_mode(struct nl_topic *t, bool held);

/* Why the topic cannot be subscribed to in the way of c, of whose client sub is (or NULL); NULL = it can. */
const char *nl_subscriptions_conflict(const struct nl_topic *t, const struct nl_subscription *sub,
                                      const struct nl_change *c);

/* nl_groups_ops.awaited; the owner is the topic. */
bool nl_subscriptions_awaited(void *ctx, void *owner, struct nl_slice key);

/* The first wish on a topic says its mode. */
void nl_subscriptions_set_mode(struct nl_subscriptions *s, struct nl_topic *t, const char *mode);

/* Gives the subscription of c its place in a group, or a new prefetch; and takes it away again. */
void nl_subscriptions_employ(struct nl_subscriptions *s, struct nl_topic *t, const struct nl_change *c,
                             struct nl_subscription *sub, bool fresh);
void nl_subscriptions_dismiss(struct nl_subscription *sub);

/* The fields of `subscribed` that tell it. */
void nl_subscriptions_tell_mode(const struct nl_change *c, struct nl_object *o);

/* Are filters told on this topic, whatever the broker does elsewhere? */
static inline bool nl_subscriptions_tells(const struct nl_subscriptions *s, const struct nl_topic *t) {
    return t->mode != NULL || s->reported == NL_REPORTED_YES;
}

/* ---- subscriptions_limits.c ---- */

/* Why the request cannot even wait; NULL = it can. */
const char *nl_subscriptions_turned_away(const struct nl_subscriptions *s, const struct nl_peer *peer,
                                         const struct nl_request *request);

/* May the subscription have these filters? They are kept for the answer, too. What makes a list no larger is
 * let through when nothing else of the client waits: else who is at the limit could never get below it. */
bool nl_subscriptions_affordable(const struct nl_subscriptions *s, const struct nl_change *c,
                                 const struct nl_subscription *sub, const struct nl_filters *filters);

extern const char nl_subscriptions_bytes_hint[];

/* ---- subscriptions_upstream.c ---- */

/* Does the broker's subscription have the filters that are wished? */
bool nl_subscriptions_upstream_fits(const struct nl_topic *t);

/* Is one subscription to everything what serves the wishes? */
bool nl_subscriptions_wants_all(const struct nl_topic *t);

/* The request that brings what the broker has to what is wished. */
enum op nl_subscriptions_due(const struct nl_topic *t);

/* Makes the frame of that request, which borrows from s, and notes what it asks for. */
void nl_subscriptions_describe(struct nl_subscriptions *s, struct nl_topic *t, enum op op,
                               struct nl_frame *frame);

/* Is frame the answer to such a request? */
bool nl_subscriptions_fits(const struct nl_frame *frame, enum op op);

/* The request in flight is over: what it asked for is what the broker has, or it is not. */
void nl_subscriptions_conclude(struct nl_topic *t, bool granted);

/* The broker has nothing of the topic any more. */
void nl_subscriptions_forget(struct nl_topic *t);

#endif
