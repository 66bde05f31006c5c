/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/penalties.h"

#include <stdbool.h>
#include <stddef.h>

static bool is(const struct nl_penalty *item, uid_t uid, uint64_t topic) {
    return item->until_ms != 0 && item->uid == uid && item->topic == topic;
}

/* The one of this user and topic; or the one to give up for it, that ends first. */
static struct nl_penalty *place_for(struct nl_penalties *p, uid_t uid, uint64_t topic) {
    struct nl_penalty *first = &p->items[0];

    for (size_t i = 0; i < NL_PENALTIES_MAX; i++) {
        if (is(&p->items[i], uid, topic))
            return &p->items[i];
        if (p->items[i].until_ms < first->until_ms)
            first = &p->items[i];
    }
    return first;
}

void nl_penalties_add(struct nl_penalties *p, uid_t uid, uint64_t topic, uint64_t now_ms) {
    struct nl_penalty *item = place_for(p, uid, topic);
    uint64_t length_ms = NL_PENALTY_MIN_MS;

    if (is(item, uid, topic) && now_ms < item->until_ms + NL_PENALTY_MEMORY_MS)
        length_ms = item->length_ms * 2 < NL_PENALTY_MAX_MS ? item->length_ms * 2 : NL_PENALTY_MAX_MS;
    *item = (struct nl_penalty){uid, topic, length_ms, now_ms + length_ms};
}

uint64_t nl_penalties_wait(const struct nl_penalties *p, uid_t uid, uint64_t topic, uint64_t now_ms) {
    for (size_t i = 0; i < NL_PENALTIES_MAX; i++)
        if (is(&p->items[i], uid, topic) && now_ms < p->items[i].until_ms)
            return p->items[i].until_ms - now_ms;
    return 0;
}
