/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Was the host asleep? CLOCK_BOOTTIME goes on while it sleeps, CLOCK_MONOTONIC does not: how far they are
 * apart is the time asleep since boot. They cannot be read at the same time, and a host that is busy can
 * stall this process between two readings; so the monotonic clock is read before and after, and what lies
 * between is taken for the stall that it may be.
 *
 * Pure: the clocks are passed in.
 */
#ifndef NL_UTIL_SUSPEND_H
#define NL_UTIL_SUSPEND_H

#include <stdint.h>

#define NL_SUSPEND_MIN_MS 10000 /* shorter ones are not told */

/* One reading, in this order; in ms. */
struct nl_clocks {
    int64_t before_ms; /* CLOCK_MONOTONIC */
    int64_t boot_ms;   /* CLOCK_BOOTTIME */
    int64_t after_ms;  /* CLOCK_MONOTONIC */
};

struct nl_suspend {
    int64_t known_ms; /* no less than the time asleep that was told, or was there at the beginning */
};

void nl_suspend_init(struct nl_suspend *s, struct nl_clocks now);

/* How long the host has certainly slept since it was told last, in ms; 0 = less than NL_SUSPEND_MIN_MS. */
uint64_t nl_suspend_look(struct nl_suspend *s, struct nl_clocks now);

#endif
