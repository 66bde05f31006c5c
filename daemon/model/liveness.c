/* SPDX-License-Identifier: Apache-2.0 */
/* See liveness.h. Only the first heartbeat without an answer begins a wait: further ones give no new time. */
#include "daemon/model/liveness.h"

void nl_liveness_sent(struct nl_liveness *l, uint64_t now_ms) {
    l->sent_ms = now_ms;
}

void nl_liveness_asked(struct nl_liveness *l, uint64_t now_ms) {
    if (l->awaiting_since_ms != 0)
        return;
    l->awaiting_since_ms = now_ms;
    l->look_ms = now_ms;
    l->leaving = true;
}

void nl_liveness_received(struct nl_liveness *l, uint64_t now_ms) {
    l->received_ms = now_ms;
    l->awaiting_since_ms = 0;
    l->leaving = false;
}

void nl_liveness_turn(struct nl_liveness *l, struct nl_arrival arrival, uint64_t now_ms) {
    if (!l->leaving)
        return;
    if (arrival.heartbeats || arrival.bytes != l->arrived)
        l->awaiting_since_ms = now_ms;
    l->arrived = arrival.bytes;
    l->look_ms = now_ms + NL_LIVENESS_LOOK_MS;
    l->leaving = !arrival.heartbeats;
}

uint64_t nl_liveness_heartbeat_due(const struct nl_liveness *l, uint64_t interval_ms) {
    uint64_t from = l->sent_ms;

    if (interval_ms == 0)
        return UINT64_MAX;
    if (l->awaiting_since_ms == 0 && l->received_ms < from)
        from = l->received_ms;
    return from + interval_ms;
}

uint64_t nl_liveness_silence_due(const struct nl_liveness *l, uint64_t timeout_ms) {
    if (l->awaiting_since_ms == 0)
        return UINT64_MAX;
    if (l->leaving && l->look_ms < l->awaiting_since_ms + timeout_ms)
        return l->look_ms;
    return l->awaiting_since_ms + timeout_ms;
}

bool nl_liveness_missed(struct nl_liveness *l, uint64_t deadline_ms, uint64_t now_ms) {
    uint64_t before = l->overdue_ms;

    if (deadline_ms > now_ms)
        return false;
    l->overdue_ms = deadline_ms;
    return before == deadline_ms;
}
