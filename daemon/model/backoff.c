/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backoff and token bucket: arithmetic only. Every sum saturates, so that neither ten thousand
 * failures nor a clock that jumps by days gives a short delay or a burst.
 */
#include "daemon/model/backoff.h"

#include <assert.h>

#define MILLI 1000u /* of a token; a rate per second is then a whole number of these per millisecond */

static uint64_t times(uint64_t a, uint64_t b) {
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

/* Evenly in [low, high]; low is at least 1. The bias of % is nothing beside 64 bits. */
static uint64_t spread(uint64_t low, uint64_t high, uint64_t random) {
    return low + random % (high - low + 1);
}

void nl_backoff_init(struct nl_backoff *b, uint64_t base_ms, uint64_t cap_ms, uint64_t stable_ms) {
    *b = (struct nl_backoff){.base_ms = base_ms, .cap_ms = cap_ms, .stable_ms = stable_ms};
}

void nl_backoff_live(struct nl_backoff *b, uint64_t now_ms) {
    b->live_since_ms = now_ms ? now_ms : 1; /* 0 says not live */
}

static void count_failure(struct nl_backoff *b) {
    b->live_since_ms = 0;
    if (b->failures < UINT32_MAX)
        b->failures++;
}

/* min(cap, base * 2^failures), and never 0: even a base of 0 must not loop without a pause. */
static uint64_t longest_delay(const struct nl_backoff *b) {
    uint64_t delay = b->cap_ms;
    if (b->failures < 64 && b->base_ms <= b->cap_ms >> b->failures)
        delay = b->base_ms << b->failures;
    return delay ? delay : 1;
}

uint64_t nl_backoff_failed(struct nl_backoff *b, uint64_t now_ms, uint64_t random) {
    if (b->live_since_ms && now_ms >= b->live_since_ms && now_ms - b->live_since_ms >= b->stable_ms)
        b->failures = 0;
    uint64_t high = longest_delay(b);
    uint64_t low = b->base_ms / 10 ? b->base_ms / 10 : 1;
    count_failure(b);
    return spread(low < high ? low : high, high, random);
}

uint64_t nl_backoff_denied(struct nl_backoff *b, uint64_t interval_ms, uint64_t random) {
    uint64_t interval = interval_ms ? interval_ms : 1;
    uint64_t jitter = interval / 10;
    uint64_t high = interval > UINT64_MAX - jitter ? UINT64_MAX : interval + jitter;
    count_failure(b);
    return spread(interval - jitter, high, random);
}

void nl_bucket_init(struct nl_bucket *b, uint64_t rate_per_s, uint64_t burst, uint64_t now_ms) {
    *b = (struct nl_bucket){.rate_per_s = rate_per_s, .burst = burst ? burst : 1, .updated_ms = now_ms};
    b->level_milli = times(b->burst, MILLI);
}

/* A clock that went back is waited for (updated_ms is then ahead of now_ms): no time counts twice. */
static void refill(struct nl_bucket *b, uint64_t now_ms) {
    if (now_ms <= b->updated_ms)
        return;
    uint64_t room = times(b->burst, MILLI) - b->level_milli;
    uint64_t gain = times(now_ms - b->updated_ms, b->rate_per_s);
    b->level_milli += gain < room ? gain : room;
    b->updated_ms = now_ms;
}

uint64_t nl_bucket_take_many(struct nl_bucket *b, uint64_t count, uint64_t now_ms) {
    if (b->rate_per_s == 0)
        return 0;
    assert(count <= b->burst);
    refill(b, now_ms);
    uint64_t cost = times(count, MILLI);
    if (b->level_milli >= cost) {
        b->level_milli -= cost;
        return 0;
    }
    uint64_t missing = cost - b->level_milli;
    return b->updated_ms - now_ms + missing / b->rate_per_s + (missing % b->rate_per_s != 0);
}

uint64_t nl_bucket_take(struct nl_bucket *b, uint64_t now_ms) {
    return nl_bucket_take_many(b, 1, now_ms);
}

void nl_bucket_set_rate(struct nl_bucket *b, uint64_t rate_per_s, uint64_t now_ms) {
    refill(b, now_ms);
    b->rate_per_s = rate_per_s;
}

void nl_bucket_drain(struct nl_bucket *b, uint64_t now_ms) {
    refill(b, now_ms);
    b->level_milli = 0;
}
