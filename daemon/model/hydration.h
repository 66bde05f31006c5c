/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for a hydration. The broker sends one for each subscribe of ours where the app has a webhook for
 * it, and names only the last part of the topic: so it goes to all that wait for one on a topic of that name,
 * in whatever room. Each topic's subscribe brings its own, so they wait until as many have come as were
 * asked for by that name, and at most for NL_HYDRATION_MS, as most apps have none.
 *
 * One entry for each name with an open wait, found by name and ordered by when it is over; the entries that
 * are over go when the next one begins or a hydration comes. A subscription waits in one entry at most and
 * must leave it before it is freed.
 */
#ifndef NL_MODEL_HYDRATION_H
#define NL_MODEL_HYDRATION_H

#include <stdint.h>
#include <uthash.h>

#include "daemon/model/wishes.h"

#define NL_HYDRATION_MS 30000 /* a webhook takes its time */

struct nl_hydration {
    char *name; /* the last part of the topic */
    size_t len;
    uint64_t until_ms;
    uint32_t expected, come;
    struct nl_subscription *waiting;  /* linked by hydration_prev, hydration_next */
    struct nl_hydration *prev, *next; /* in nl_hydrations.oldest */
    UT_hash_handle hh;                /* in nl_hydrations.names */
};

struct nl_hydrations {
    struct nl_hydration *names;
    struct nl_hydration *oldest; /* by until_ms */
};

void nl_hydrations_init(struct nl_hydrations *h);

/* Nobody waits any more: the link is gone, or it is the end. */
void nl_hydrations_clear(struct nl_hydrations *h);

/* The broker has confirmed a subscribe to topic. Until the next call, nl_hydrations_wait() may be given what
 * this returns. */
struct nl_hydration *nl_hydrations_expect(struct nl_hydrations *h, struct nl_slice topic, uint64_t now_ms);
void nl_hydrations_wait(struct nl_hydration *entry, struct nl_subscription *sub);

/* Waits no more; nothing when it does not wait. */
void nl_hydrations_leave(struct nl_subscription *sub);

/*
 * A hydration with this name has come: calls receive for each client that waits for it, and notes in the
 * wishes of each topic that it has one. Returns how many clients got it. serial: as of a message.
 */
unsigned nl_hydrations_take(struct nl_hydrations *h, struct nl_slice name, uint64_t serial, uint64_t now_ms,
                            nl_receive_fn *receive, void *ctx);

#endif
