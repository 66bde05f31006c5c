/* SPDX-License-Identifier: Apache-2.0 */
/* Who joins late, and what comes of it; see subscriptions.h. */
#include <utlist.h>

#include "daemon/model/subscriptions_private.h"

/* Has the broker's subscription this interest already, so that asking for it would bring nothing? */
static bool upstream_has(const struct nl_subscriptions *s, const struct nl_interest *i) {
    const struct nl_wishes *w = i->subscription->wishes;

    return i->key->upstream || (w->everything.upstream && s->reported == NL_REPORTED_YES);
}

/* Counts what sub adds and upstream has already, and notes it as declined if it is. */
static unsigned had_already(const struct nl_subscriptions *s, struct nl_subscription *sub, bool decline) {
    struct nl_interest *i;
    unsigned n = 0;

    LL_FOREACH(sub->interests, i) {
        if (i->state != NL_ADDING || i->declined || !upstream_has(s, i))
            continue;
        i->declined = decline;
        n++;
    }
    return n;
}

static bool policy_renews(const struct nl_subscriptions *s, const struct nl_change *c) {
    if (c->late_join_none || c->topic->mode != NULL) /* nobody joins a group late */
        return false;
    switch (s->limits.late_join) {
    case NL_LATE_AUTO:
        return !c->topic->no_msg_ids;
    case NL_LATE_RESUBSCRIBE:
        return true;
    case NL_LATE_NONE:
        break;
    }
    return false;
}

/* Who waited behind a subscribe that serves it is as good as one for whom it was sent. */
static bool in_time(struct nl_subscriptions *s, const struct nl_topic *t, struct nl_subscription *sub) {
    if (s->renewed != t || !nl_wishes_served(sub, s->reported == NL_REPORTED_YES))
        return false;
    if (sub->fresh)
        nl_hydrations_wait(s->expected, sub);
    return true;
}

void nl_subscriptions_joined(struct nl_subscriptions *s, struct nl_change *c) {
    struct nl_subscription *sub = c->subscription;
    struct nl_topic *t = c->topic;
    bool misses_hydration = sub->fresh && t->wishes.hydrates;

    if (!t->held || sub->late || in_time(s, t, sub))
        return;
    if (had_already(s, sub, false) == 0 && !misses_hydration) {
        /* setFilters will do for its retained messages; the hydration is that of the subscribe before. */
        if (s->renewed == t && sub->fresh)
            nl_hydrations_wait(s->expected, sub);
        return;
    }
    if (policy_renews(s, c)) {
        sub->late = true;
        t->late++;
        return;
    }
    had_already(s, sub, true);
    c->declined = true;
}

void nl_subscriptions_not_late(struct nl_topic *t, struct nl_subscription *sub) {
    t->late -= sub->late;
    sub->late = false;
}

static void nobody_is_late(struct nl_topic *t) {
    struct nl_subscription *sub;

    if (t->late == 0)
        return;
    DL_FOREACH2(t->wishes.subscriptions, sub, topic_next) {
        nl_subscriptions_not_late(t, sub);
    }
}

void nl_subscriptions_renewed(struct nl_subscriptions *s, struct nl_topic *t, bool was_held,
                              uint64_t now_ms) {
    struct nl_subscription *sub;

    s->renewed = t;
    s->expected = nl_hydrations_expect(&s->hydrations, topic_name(t), now_ms);
    /* On a new link it comes to all, as it tells how things are now. */
    DL_FOREACH2(t->wishes.subscriptions, sub, topic_next) {
        if (sub->fresh || !was_held)
            nl_hydrations_wait(s->expected, sub);
    }
    nobody_is_late(t);
    nl_wishes_begin_grants(&t->wishes, now_ms + NL_GRANT_MS);
}

void nl_subscriptions_interrupted(struct nl_topic *t, uint64_t now_ms) {
    nobody_is_late(t);
    nl_wishes_suspend_grants(&t->wishes, now_ms);
}

bool nl_subscriptions_may_gather(const struct nl_topic *t) {
    return t->held && !t->unsure && t->late > 0 && nl_subscriptions_upstream_fits(t);
}
