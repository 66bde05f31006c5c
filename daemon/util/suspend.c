/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time asleep lies between two bounds, by which of the monotonic readings the boot clock is compared
 * with. What is known is an upper bound, and only a lower bound beyond it is news.
 */
#include "daemon/util/suspend.h"

static int64_t at_most(struct nl_clocks c) {
    return c.boot_ms - c.before_ms;
}

static int64_t at_least(struct nl_clocks c) {
    return c.boot_ms - c.after_ms;
}

void nl_suspend_init(struct nl_suspend *s, struct nl_clocks now) {
    s->known_ms = at_most(now);
}

uint64_t nl_suspend_look(struct nl_suspend *s, struct nl_clocks now) {
    int64_t slept = at_least(now) - s->known_ms;

    if (slept >= NL_SUSPEND_MIN_MS) {
        s->known_ms = at_most(now);
        return (uint64_t)slept;
    }
    if (at_most(now) < s->known_ms) /* a better bound than one that a stall has made */
        s->known_ms = at_most(now);
    return 0;
}
