/* SPDX-License-Identifier: Apache-2.0 */
/* What a client may hold and have waiting: subscriptions.h, struct nl_subscriptions_limits. */
#include <utlist.h>

#include "daemon/model/subscriptions_private.h"
#include "daemon/util/quota.h"

static const char pending_hint[] =
    "too many requests of this client wait for the broker; send more when these are answered";
const char nl_subscriptions_bytes_hint[] =
    "the filters of this client, or its user, and the requests that wait take as much memory as they may; "
    "use fewer or shorter filters, or wait for answers";

static bool bytes_fit(const struct nl_subscriptions *s, const struct nl_peer *peer, uint64_t more) {
    return (s->limits.bytes_per_client == 0 || peer->wish_bytes + more <= s->limits.bytes_per_client) &&
           (s->limits.bytes_per_uid == 0 || peer->quota->wish_bytes + more <= s->limits.bytes_per_uid);
}

bool nl_subscriptions_affordable(const struct nl_subscriptions *s, const struct nl_change *c,
                                 const struct nl_subscription *sub, const struct nl_filters *filters) {
    uint64_t cost = nl_wishes_cost(filters), had = sub == NULL ? 0 : nl_wishes_cost(&sub->filters);

    return bytes_fit(s, c->peer, cost + (cost > had ? cost - had : 0)) ||
           (cost <= had && c->peer->change_count == 1);
}

/* How many requests of peer wait on t, as far as it matters: counted on the shorter of the two lists. */
static uint64_t pending_on(const struct nl_peer *peer, const struct nl_topic *t) {
    const struct nl_change *c;
    uint64_t n = 0;

    if (peer->change_count <= t->change_count) {
        DL_FOREACH2(peer->changes, c, of_peer_next)
            n += c->topic == t;
        return n;
    }
    DL_FOREACH(t->queue, c)
        n += c->peer == peer;
    DL_FOREACH(t->waiting, c)
        n += c->peer == peer;
    return n;
}

const char *nl_subscriptions_turned_away(const struct nl_subscriptions *s, const struct nl_peer *peer,
                                         const struct nl_request *request) {
    const struct nl_topic *t = nl_subscriptions_find(s, request->topic);
    uint64_t per_client = s->limits.pending_per_client, per_topic = s->limits.pending_per_topic;

    if (per_client != 0 && peer->change_count >= per_client)
        return pending_hint;
    if (per_topic != 0 && t != NULL && peer->change_count >= per_topic && t->change_count >= per_topic &&
        pending_on(peer, t) >= per_topic)
        return pending_hint;
    if (request->type == NL_REQUEST_UNSUBSCRIBE || peer->change_count == 0)
        return NULL; /* judged when it is applied */
    return bytes_fit(s, peer, nl_wishes_cost(&request->filters)) ? NULL : nl_subscriptions_bytes_hint;
}
