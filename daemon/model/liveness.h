/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the broker still there? When to ask it (a heartbeat), and when it has been silent for too long after
 * that.
 *
 * The time of the broker is not ours: what it sent may lie unread in the socket while this process or the
 * whole host stalls, and a heartbeat is behind all that was sent before it, which takes its time on a slow
 * line. So a wait begins when the heartbeat has arrived, as far as TCP knows, or nothing more arrives; and a
 * deadline is missed at the second look after it: the loop has read in between.
 *
 * Pure: no loop, no clock. UINT64_MAX = never.
 */
#ifndef NL_MODEL_LIVENESS_H
#define NL_MODEL_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

#define NL_LIVENESS_LOOK_MS 100 /* how often to look whether a heartbeat has arrived */

/* What the link knows of what was sent. */
struct nl_arrival {
    uint64_t bytes;  /* that TCP says have arrived, since the link opened */
    bool heartbeats; /* all of them have */
};

struct nl_liveness {
    uint64_t sent_ms, received_ms; /* the last frame */
    uint64_t
        awaiting_since_ms; /* a heartbeat was sent and nothing came since; the wait began then; 0 = none */
    bool leaving;          /* that heartbeat is on its way still */
    uint64_t look_ms;      /* when to look again, while it is */
    uint64_t arrived;      /* bytes, at the last look */
    uint64_t overdue_ms;   /* the deadline that had passed at the last look */
};

void nl_liveness_sent(struct nl_liveness *l, uint64_t now_ms);     /* any frame */
void nl_liveness_asked(struct nl_liveness *l, uint64_t now_ms);    /* a heartbeat */
void nl_liveness_received(struct nl_liveness *l, uint64_t now_ms); /* any frame, or that the link opened */

/* A turn of the loop: call it before the look at the deadlines. */
void nl_liveness_turn(struct nl_liveness *l, struct nl_arrival arrival, uint64_t now_ms);

/*
 * The next heartbeat: an interval after our last sent frame (the broker's idle timer counts only these), and
 * after the last received one. interval_ms 0 = none.
 */
uint64_t nl_liveness_heartbeat_due(const struct nl_liveness *l, uint64_t interval_ms);

/* The end of the broker's time to send something after a heartbeat; while that one leaves, the next look. */
uint64_t nl_liveness_silence_due(const struct nl_liveness *l, uint64_t timeout_ms);

/* A look at a deadline of the broker's, once a turn: was it missed? */
bool nl_liveness_missed(struct nl_liveness *l, uint64_t deadline_ms, uint64_t now_ms);

#endif
