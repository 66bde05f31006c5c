/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acknowledgement of messages to the broker, for one session.
 *
 * Each message that asks for it has a receipt, which waits for all local clients that the message is for: a
 * client has it when the kernel took its line whole or, with "ack":"manual", when it acknowledged. When the
 * last one has it or is gone, the msgId goes to the broker, unless nobody has it: that is counted, and not
 * acknowledged.
 *
 * msgIds go in batches: NL_ACK_BATCH of them, or what there is NL_ACK_DELAY_MS after the first. While the
 * link is down they wait, the last NL_ACKS_MAX: to the broker an acknowledgement is a mark, good at any time
 * and as often as it comes. There is no answer to it, so those of which no later heartbeat came back are sent
 * again on the next link.
 *
 * Pure: no loop, no clock, no log.
 */
#ifndef NL_MODEL_ACKS_H
#define NL_MODEL_ACKS_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/buffer.h"
#include "protocol/frame.h"
#include "protocol/line.h"

#define NL_ACK_BATCH 100
#define NL_ACK_DELAY_MS 5
#define NL_ACKS_MAX 10000

struct nl_acks;

struct nl_receipt {
    struct nl_line_watch watch;     /* first */
    struct nl_acks *acks;           /* NULL: the session is gone */
    struct nl_receipt *prev, *next; /* in nl_acks.open, ready or sent */
    uint64_t heartbeat;             /* once sent: how many heartbeats were sent before it on this link */
    size_t len;
    uint8_t msg_id[];
};

struct nl_acks_ops {
    /* Sends a batchAck; false = the link takes no more now. */
    bool (*send)(void *ctx, const struct nl_frame *frame);
    /* nl_acks_run() has something to do, or to put off. May come from wherever a line ends. */
    void (*wake)(void *ctx);
    void *ctx;
};

struct nl_acks {
    struct nl_acks_ops ops;
    struct nl_receipt *open;  /* somebody holds them; linked by prev, next */
    struct nl_receipt *ready; /* to be sent, oldest first; linked by prev, next */
    struct nl_receipt *sent;  /* the broker may not have them yet, oldest first; linked by prev, next */
    uint64_t ready_count, sent_count;
    uint64_t heartbeats; /* sent on this link */
    uint64_t due_ms;     /* when to send what is ready; 0 = not known yet */
    uint64_t nobody;     /* messages that no client has got */
    uint64_t forgotten;  /* not sent: more than NL_ACKS_MAX */
    struct nl_buffer scratch;
};

void nl_acks_init(struct nl_acks *a, const struct nl_acks_ops *ops);
void nl_acks_deinit(struct nl_acks *a); /* receipts that are held still will tell nobody */

/*
 * The receipt of a message, with one hold, which the caller releases when all others are there. NULL when
 * the message asks for none, or its msgId could not be sent: bytes that are not UTF-8 cost the link.
 */
struct nl_receipt *nl_acks_expect(struct nl_acks *a, const struct nl_frame *message);

/* One more to wait for; takes NULL. Returns receipt. */
struct nl_receipt *nl_receipt_hold(struct nl_receipt *receipt);

/* Gives up a hold; takes NULL. got: that client has the message. */
void nl_receipt_release(struct nl_receipt *receipt, bool got);

/* Sends what is due; up: the link takes requests. */
void nl_acks_run(struct nl_acks *a, bool up, uint64_t now_ms);
uint64_t nl_acks_next(const struct nl_acks *a, bool up); /* UINT64_MAX = nothing */

/* A heartbeat goes out, the one with this number on its link; and its echo has come. */
void nl_acks_heartbeat(struct nl_acks *a, uint64_t number);
void nl_acks_echo(struct nl_acks *a, uint64_t number);

/* The link is gone. */
void nl_acks_down(struct nl_acks *a);

/* Sends all that is ready, before the link is closed on purpose. */
void nl_acks_flush(struct nl_acks *a);

#endif
