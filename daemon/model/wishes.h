/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who wants what of one topic, and what follows from it: the union of all filters, and for
 * each message the clients that get it.
 *
 * A subscription is one client's wish on the topic. Its filters are interests, each under
 * the filter's key; no filters is one interest in everything. A message has at most one
 * key, so the clients that get it are those interested in everything and those interested
 * in that key: finding them costs what they are many, not what there is.
 *
 * A change of a subscription is applied first and settled later, when the broker has
 * confirmed or refused what it needs. Until then the interests it adds do not deliver, and
 * the ones it gives up still do:
 *
 *   ADDING   wished, not delivering    confirm -> HELD      undo -> gone
 *   HELD     wished, delivering
 *   LEAVING  not wished, delivering    confirm -> gone      undo -> HELD
 */
#ifndef NL_MODEL_WISHES_H
#define NL_MODEL_WISHES_H

#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#include "daemon/model/peer.h"
#include "daemon/model/seen.h"
#include "protocol/filter.h"

/*
 * A grant begins when the broker has confirmed the interest. One that is added while there is no link, or
 * whose time the link did not live to see, begins when the topic is subscribed again.
 */
#define NL_GRANT_PENDING UINT64_MAX

enum nl_interest_state { NL_ADDING, NL_HELD, NL_LEAVING };

struct nl_interest {
    struct nl_subscription *subscription;
    struct nl_key *key;
    enum nl_interest_state state;
    bool declined;                           /* ADDING: no grant for it once confirmed */
    uint64_t grant_until_ms;                 /* until then retained messages seen before are new to it */
    struct nl_interest *key_prev, *key_next; /* in nl_key.interests */
    struct nl_interest *next;                /* in nl_subscription.interests */
};

/* One filter key of the topic; the key "" is everything. */
struct nl_key {
    char *name;
    size_t len;
    uint8_t *wire; /* the filter as MessagePack; NULL for everything */
    size_t wire_len;
    struct nl_interest *interests; /* linked by key_prev, key_next */
    uint32_t wishes;               /* interests that are ADDING or HELD */
    bool upstream;                 /* the broker's subscription has it */
    bool asked;                    /* the request in flight has it */
    UT_hash_handle hh;             /* in nl_wishes.keys; not for everything */
};

struct nl_worker;

struct nl_subscription {
    struct nl_peer *peer;
    struct nl_worker *worker; /* in a group (groups.h); NULL = it gets every message at once */
    struct nl_wishes *wishes;
    struct nl_filters filters; /* the wish */
    struct nl_filters *before; /* the wish that an unsettled change replaced; NULL = settled or fresh */
    bool fresh;                /* never settled */
    bool unsettled;
    uint64_t cost; /* of filters and before, counted in nl_peer.wish_bytes */
    uint8_t qos;
    uint32_t changes;               /* requests that wait for its settling */
    struct nl_interest *interests;  /* linked by next */
    bool late;                      /* a late joiner: waits for another subscribe, see subscriptions.h */
    uint64_t grant_until_ms;        /* the latest of its interests; NL_GRANT_PENDING: see there */
    struct nl_seen granted;         /* retained messages it had meanwhile */
    struct nl_hydration *hydration; /* that it waits for, see hydration.h; or NULL */
    struct nl_subscription *hydration_prev, *hydration_next; /* in nl_hydration.waiting */
    struct nl_subscription *topic_prev, *topic_next;         /* in nl_wishes.subscriptions */
    struct nl_subscription *peer_prev, *peer_next;           /* in nl_peer.subscriptions */
};

struct nl_wishes {
    struct nl_key everything;
    struct nl_key *keys;                   /* by name */
    struct nl_subscription *subscriptions; /* linked by topic_prev, topic_next */
    uint32_t wished_keys;                  /* keys with wishes, without everything */
    uint32_t filtered;                     /* subscriptions that wish filters */
    bool hydrates;                         /* a hydration has come for the topic */
    struct nl_seen seen;
    struct nl_seen
        retained; /* those that came, or may have come, as retained ones, which come again and again */
};

/* About how many bytes of memory a list of filters takes, with what is made of it. */
uint64_t nl_wishes_cost(const struct nl_filters *filters);

/* Counts cost, in the place of what *counted says, among the bytes of peer and its user. */
void nl_wishes_charge(struct nl_peer *peer, uint64_t *counted, uint64_t cost);

void nl_wishes_init(struct nl_wishes *w);
void nl_wishes_deinit(struct nl_wishes *w); /* asserts that there are no subscriptions */

/* The subscription of peer, or NULL. */
struct nl_subscription *nl_wishes_find(const struct nl_wishes *w, const struct nl_peer *peer);

/* What the topic's wishes would be if sub (NULL: a fresh one) wished filters. */
struct nl_prospect {
    bool mixed;    /* somebody wishes everything and somebody filters */
    uint32_t keys; /* different filters wished */
    bool all;      /* somebody wishes everything */
};
struct nl_prospect nl_wishes_prospect(const struct nl_wishes *w, const struct nl_subscription *sub,
                                      const struct nl_filters *filters);

/* Makes a fresh, unsettled subscription without any interest. The caller sets a wish next. */
struct nl_subscription *nl_wishes_add(struct nl_wishes *w, struct nl_peer *peer, uint8_t qos);

/* Changes the wish; takes over the content of filters (left empty). The subscription is unsettled after. */
void nl_wishes_change(struct nl_subscription *sub, struct nl_filters *filters);

/* Settles: what was asked for holds. What was added, and not declined, has a grant until then. */
void nl_wishes_confirm(struct nl_subscription *sub, uint64_t now_ms, uint64_t grant_until_ms);

/* The link is gone: the grants that last still are pending, and nothing is declined. The topic is subscribed
 * again: those begin. */
void nl_wishes_suspend_grants(struct nl_wishes *w, uint64_t now_ms);
void nl_wishes_begin_grants(struct nl_wishes *w, uint64_t grant_until_ms);

/* Settles: all is as before. Not for a fresh subscription, which has no before: that one is removed. */
void nl_wishes_undo(struct nl_subscription *sub);

/* Removes and frees. Returns NULL. */
struct nl_subscription *nl_wishes_remove(struct nl_subscription *sub);

/* Does the broker's subscription, as it is now, serve all that sub wishes? reported: the broker tells real
 * filters. */
bool nl_wishes_served(const struct nl_subscription *sub, bool reported);

/* Frees a key that nobody is interested in and that is neither upstream nor asked for. */
void nl_wishes_release(struct nl_wishes *w, struct nl_key *key);

/* A message on its way to local clients. */
struct nl_delivery {
    bool hidden;                  /* it may have a filter, the broker does not say which */
    struct nl_slice key;          /* its filter's key; len 0 = none */
    uint64_t msg_hash;            /* nl_seen_hash of its msgId; 0 = it has none */
    bool settling;                /* upstream has changed lately: it may be a retained one */
    const struct nl_peer *except; /* who published it; or NULL */
    uint64_t serial;              /* of this message; a peer gets each serial once */
    /* For a subscription with a worker, in the place of receive; or NULL. */
    void (*hand)(void *ctx, struct nl_subscription *sub);
    void *hand_ctx;
};

/* Was a message with this hash of its msgId delivered on the topic before? */
bool nl_wishes_seen(const struct nl_wishes *w, uint64_t msg_hash);

/*
 * Notes the hash of a msgId as that of a message which was delivered before under the hash token: whoever had
 * it then has no more claim to it.
 */
void nl_wishes_note(struct nl_wishes *w, uint64_t msg_hash, uint64_t token, uint64_t now_ms);

/* Calls each for the subscriptions that get messages with this key (len 0 = none), as it is now. */
void nl_wishes_each(const struct nl_wishes *w, struct nl_slice key,
                    void (*each)(void *ctx, struct nl_subscription *sub), void *ctx);

/* Does somebody wish messages with this key whose wish the broker has not confirmed? */
bool nl_wishes_awaited(const struct nl_wishes *w, struct nl_slice key);

/*
 * Calls receive for each client that gets the message. A message seen before goes only to
 * interests with a grant, once to each client. Returns how many got it.
 */
typedef void nl_receive_fn(void *ctx, struct nl_peer *peer);
unsigned nl_wishes_deliver(struct nl_wishes *w, const struct nl_delivery *d, uint64_t now_ms,
                           nl_receive_fn *receive, void *ctx);

#endif
