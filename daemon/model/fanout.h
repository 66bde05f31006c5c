/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one message to the lines of many clients: each variant of the line is encoded when the first client
 * needs it, and shared by all others. Taps get every message and hydration that anyone gets; no
 * acknowledgement waits for them, so theirs are lines of their own where one is due.
 */
#ifndef NL_MODEL_FANOUT_H
#define NL_MODEL_FANOUT_H

#include "daemon/model/acks.h"
#include "daemon/model/peer.h"
#include "daemon/model/subscriptions.h"
#include "protocol/frame.h"
#include "protocol/line.h"
#include "protocol/request.h"

struct nl_fanout {
    void (*event)(void *ctx, struct nl_peer *peer, enum nl_event event,
                  struct nl_line *line); /* takes over line */
    void *ctx;
    struct nl_acks *acks;
    struct nl_peer *taps; /* linked by tap_prev, tap_next */
};

/* acks is borrowed. */
void nl_fanout_init(struct nl_fanout *f, struct nl_acks *acks,
                    void (*event)(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line),
                    void *ctx);

/* Begins and ends a tap; both may be called in any state. */
void nl_fanout_tap(struct nl_fanout *f, struct nl_peer *peer);
void nl_fanout_untap(struct nl_fanout *f, struct nl_peer *peer);

/* A message of the broker. Returns how many clients got it; *known: somebody asked for this topic. */
unsigned nl_fanout_message(struct nl_fanout *f, struct nl_subscriptions *subscriptions,
                           const struct nl_frame *message, uint64_t now_ms, bool *known);

/* A hydration of the broker. Returns how many clients got it. */
unsigned nl_fanout_hydration(struct nl_fanout *f, struct nl_subscriptions *subscriptions,
                             const struct nl_frame *frame, uint64_t now_ms);

/* A message for this client alone; see nl_groups_ops. */
void nl_fanout_hand(struct nl_fanout *f, struct nl_peer *peer, const struct nl_handout *h);

/* A message that a local client (except; may be NULL) published. from: our own actor. */
struct nl_local_message {
    struct nl_slice topic, data, from;
    const char *filter_key; /* NULL = none */
    uint64_t token;         /* of a retained one; see nl_subscriptions_note_seen() */
    const struct nl_peer *except;
};
unsigned nl_fanout_local(struct nl_fanout *f, struct nl_subscriptions *subscriptions,
                         const struct nl_local_message *message, uint64_t now_ms);

#endif
