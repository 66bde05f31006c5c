/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/fanout.h"

#include <utlist.h>

/* One message while it goes out. lines: plain, and with big integers as strings; NULL until needed. */
struct delivery {
    struct nl_fanout *fanout;
    enum nl_event event;
    const struct nl_frame *frame;           /* from the broker, or */
    const struct nl_local_message *message; /* from a local client */
    struct nl_receipt *receipt;             /* of one that is to be acknowledged; or NULL */
    struct nl_line *lines[2];
};

void nl_fanout_init(struct nl_fanout *f, struct nl_acks *acks,
                    void (*event)(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line),
                    void *ctx) {
    *f = (struct nl_fanout){.event = event, .ctx = ctx, .acks = acks};
}

void nl_fanout_tap(struct nl_fanout *f, struct nl_peer *peer) {
    if (peer->tap)
        return;
    peer->tap = true;
    DL_APPEND2(f->taps, peer, tap_prev, tap_next);
}

void nl_fanout_untap(struct nl_fanout *f, struct nl_peer *peer) {
    if (!peer->tap)
        return;
    peer->tap = false;
    DL_DELETE2(f->taps, peer, tap_prev, tap_next);
}

static struct nl_line *encode(const struct delivery *d, bool bigint_as_string) {
    struct nl_json_options options = {.bigint_as_string = bigint_as_string};
    const struct nl_local_message *m = d->message;

    if (d->event == NL_EVENT_HYDRATION)
        return nl_event_line(d->frame, options);
    if (d->frame != NULL)
        return nl_message_line(d->frame, options);
    return nl_local_message_line(m->topic, m->data, m->filter_key, m->from, options);
}

static void receive(void *ctx, struct nl_peer *peer) {
    struct delivery *d = ctx;
    struct nl_line **line = &d->lines[peer->bigint_as_string];

    if (*line == NULL) {
        *line = encode(d, peer->bigint_as_string);
        if (d->receipt != NULL)
            nl_line_set_watch(*line, &d->receipt->watch);
    }
    d->fanout->event(d->fanout->ctx, peer, d->event, nl_line_ref(*line));
}

/* Messages are numbered over all sessions, as a peer may change its session. */
static uint64_t next_serial(void) {
    static uint64_t serial;

    return ++serial;
}

/* All clients have their lines in their queues. */
static void release(struct delivery *d) {
    d->lines[0] = nl_line_unref(d->lines[0]);
    d->lines[1] = nl_line_unref(d->lines[1]);
    nl_receipt_release(d->receipt, false);
    d->receipt = NULL;
}

static void finish(struct delivery *d, unsigned receivers, const struct nl_peer *except, uint64_t serial) {
    struct nl_peer *tap;

    if (d->receipt != NULL)
        release(d);
    if (receivers > 0)
        DL_FOREACH2(d->fanout->taps, tap, tap_next) {
            if (tap != except && tap->last_delivery != serial)
                receive(d, tap);
        }
    release(d);
}

unsigned nl_fanout_message(struct nl_fanout *f, struct nl_subscriptions *subscriptions,
                           const struct nl_frame *message, uint64_t now_ms, bool *known) {
    struct delivery d = {.fanout = f,
                         .event = NL_EVENT_MESSAGE,
                         .frame = message,
                         .receipt = nl_acks_expect(f->acks, message)};
    uint64_t serial = next_serial();
    unsigned n =
        nl_subscriptions_deliver(subscriptions, message, d.receipt, serial, now_ms, receive, &d, known);

    finish(&d, n, NULL, serial);
    return n;
}

unsigned nl_fanout_hydration(struct nl_fanout *f, struct nl_subscriptions *subscriptions,
                             const struct nl_frame *frame, uint64_t now_ms) {
    struct delivery d = {.fanout = f, .event = NL_EVENT_HYDRATION, .frame = frame};
    uint64_t serial = next_serial();
    unsigned n = nl_subscriptions_hydrate(subscriptions, frame, serial, now_ms, receive, &d);

    finish(&d, n, NULL, serial);
    return n;
}

void nl_fanout_hand(struct nl_fanout *f, struct nl_peer *peer, const struct nl_handout *h) {
    struct nl_json_options options = {.bigint_as_string = peer->bigint_as_string};
    struct nl_frame frame;
    struct nl_line *line;

    nl_frame_decode(h->frame, &frame); /* it was good when it came */
    line = nl_handed_line(&frame, h->ack_id, h->redelivered, options);
    nl_line_set_watch(line, h->watch);
    if (peer->last_delivery < h->serial)
        peer->last_delivery = h->serial;
    f->event(f->ctx, peer, NL_EVENT_MESSAGE, line);
}

unsigned nl_fanout_local(struct nl_fanout *f, struct nl_subscriptions *subscriptions,
                         const struct nl_local_message *message, uint64_t now_ms) {
    struct delivery d = {.fanout = f, .event = NL_EVENT_MESSAGE, .message = message};
    uint64_t serial = next_serial();
    unsigned n = nl_subscriptions_deliver_local(subscriptions, message->topic, message->filter_key,
                                                message->except, message->token, serial, now_ms, receive, &d);

    finish(&d, n, message->except, serial);
    return n;
}
