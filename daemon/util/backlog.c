/* SPDX-License-Identifier: Apache-2.0 */
/* The periods of somebody who has more waiting than a limit. */
#include "daemon/util/backlog.h"

void nl_backlog_taken(struct nl_backlog *b, uint64_t bytes) {
    b->taken += bytes;
}

static void begin_period(struct nl_backlog *b, uint64_t before, uint64_t now_ms) {
    *b = (struct nl_backlog){.over = true, .since_ms = now_ms, .before = before};
}

bool nl_backlog_too_slow(struct nl_backlog *b, uint64_t bytes, uint64_t limit, uint64_t now_ms) {
    bool heavy = bytes / NL_BACKLOG_FACTOR >= limit;
    bool slow;

    if (bytes <= limit) {
        *b = (struct nl_backlog){0};
        return false;
    }
    if (!b->over) {
        begin_period(b, UINT64_MAX, now_ms);
        return false;
    }
    if (now_ms - b->since_ms < (heavy ? NL_BACKLOG_SHORT_MS : NL_BACKLOG_PERIOD_MS))
        return false;
    slow = b->taken == 0 || bytes >= b->before;
    begin_period(b, bytes, now_ms);
    return slow;
}
