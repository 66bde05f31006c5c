/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to try again: exponential backoff with full jitter, from the first retry on
 * (delay = random in [base / 10, min(cap, base * 2^failures)], evenly spread, at least 1 ms), so that many
 * daemons that lose one broker do not come back as one herd. It starts over only after the link
 * was live for stable_ms: a broker that accepts and closes at once is still failing.
 *
 * Pure: time and randomness are passed in.
 */
#ifndef NL_MODEL_BACKOFF_H
#define NL_MODEL_BACKOFF_H

#include <stdint.h>

struct nl_backoff {
    uint64_t base_ms;
    uint64_t cap_ms;
    uint64_t stable_ms;
    uint32_t failures;      /* since it last started over */
    uint64_t live_since_ms; /* 0 = not live */
};

void nl_backoff_init(struct nl_backoff *b, uint64_t base_ms, uint64_t cap_ms, uint64_t stable_ms);

/* The link became live. */
void nl_backoff_live(struct nl_backoff *b, uint64_t now_ms);

/*
 * The link failed or ended: returns the delay until the next attempt. random is any
 * uniformly distributed 64-bit number.
 */
uint64_t nl_backoff_failed(struct nl_backoff *b, uint64_t now_ms, uint64_t random);

/* The same for a refusal that will not go away by itself: interval_ms with 10 % jitter either way. */
uint64_t nl_backoff_denied(struct nl_backoff *b, uint64_t interval_ms, uint64_t random);

/*
 * A token bucket: burst at once (a burst of 0 counts as 1), then rate_per_s. Used for connects and
 * for publishes. rate 0 means no limit. In no n milliseconds more than burst + n * rate / 1000
 * are taken, whatever the clock does: one that stands still or goes back gives nothing.
 */
struct nl_bucket {
    uint64_t rate_per_s;
    uint64_t burst;
    uint64_t level_milli; /* thousandths of a token */
    uint64_t updated_ms;
};

void nl_bucket_init(struct nl_bucket *b, uint64_t rate_per_s, uint64_t burst, uint64_t now_ms);

/* Takes a token and returns 0, or returns in how many ms there will be one. */
uint64_t nl_bucket_take(struct nl_bucket *b, uint64_t now_ms);

/* The same for count tokens, all or none. Ask for no more than burst: they would never be there. */
uint64_t nl_bucket_take_many(struct nl_bucket *b, uint64_t count, uint64_t now_ms);

/* From now_ms on it fills at another rate; what is in it stays. */
void nl_bucket_set_rate(struct nl_bucket *b, uint64_t rate_per_s, uint64_t now_ms);

/* Takes all that is in it. */
void nl_bucket_drain(struct nl_bucket *b, uint64_t now_ms);

#endif
