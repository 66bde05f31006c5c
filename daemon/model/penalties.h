/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has made the broker close the session's link with a publish waits before the next publish to that
 * topic: NL_PENALTY_MIN_MS, and twice as long each further time, up to NL_PENALTY_MAX_MS. It is forgotten
 * when nothing happens for NL_PENALTY_MEMORY_MS after that, or when NL_PENALTIES_MAX later ones came. So one
 * program that sends such a publish in a loop cannot keep the session down, and its user's other programs go
 * on.
 *
 * Pure: no clock. now_ms is monotonic.
 */
#ifndef NL_MODEL_PENALTIES_H
#define NL_MODEL_PENALTIES_H

#include <stdint.h>
#include <sys/types.h>

#define NL_PENALTIES_MAX 64
#define NL_PENALTY_MIN_MS 5000
#define NL_PENALTY_MAX_MS 300000
#define NL_PENALTY_MEMORY_MS 600000

struct nl_penalty {
    uid_t uid;
    uint64_t topic;               /* its hash */
    uint64_t length_ms, until_ms; /* until_ms 0 = unused */
};

struct nl_penalties {
    struct nl_penalty items[NL_PENALTIES_MAX]; /* zeroed at the beginning */
};

/* It happened again. topic is a hash of the topic's name. */
void nl_penalties_add(struct nl_penalties *p, uid_t uid, uint64_t topic, uint64_t now_ms);

/* How long this user has to wait with this topic; 0 = not at all. */
uint64_t nl_penalties_wait(const struct nl_penalties *p, uid_t uid, uint64_t topic, uint64_t now_ms);

#endif
