/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing of a session: checks what clients want to publish, puts it into the outbox (outbox.h), and turns
 * each outcome into an answer to the publisher and a delivery to the session's other clients.
 *
 * Learned from the broker, and kept while the session lives: the kinds of content that it cannot carry, after
 * two closes as proof; such a publish is refused here from then on. What it once took is not suspected. Where
 * nothing of that kind is to blame, the publisher's user waits with that topic (penalties.h).
 * The largest payload it takes is learned from its errors and forgotten at each auth.
 *
 * A retained message goes upstream with echo, as some brokers would else never give it to our later
 * subscribers. What comes back of it (echoes.h) is not delivered to those who had it when it was published.
 *
 * Pure: no loop, no clock. now_ms is monotonic.
 */
#ifndef NL_MODEL_PUBLISHER_H
#define NL_MODEL_PUBLISHER_H

#include "daemon/model/fanout.h"
#include "daemon/model/outbox.h"
#include "daemon/model/settings.h"
#include "daemon/model/subscriptions.h"

struct nl_publisher_ops {
    /* Queues one encoded frame on the link; false = no room. */
    bool (*send)(void *ctx, struct nl_slice frame);
    /* A line for a client; NULL when it only stops waiting. Takes over line. */
    void (*answer)(void *ctx, struct nl_peer *peer, struct nl_line *line);
    /* A publish of this user was given up: it made the broker close the link. */
    void (*rejected)(void *ctx, uid_t uid, const char *topic);
    void *ctx;
};

struct nl_publisher;

/*
 * All but ops are borrowed and must outlive it. no_copies: this broker is known to send none of own messages.
 * seed: of the digests by which copies are known.
 */
struct nl_publisher *nl_publisher_new(const struct nl_session_config *config,
                                      struct nl_subscriptions *subscriptions, struct nl_fanout *fanout,
                                      const struct nl_publisher_ops *ops, bool no_copies, uint64_t seed,
                                      uint64_t now_ms);
struct nl_publisher *nl_publisher_free(struct nl_publisher *pub); /* takes NULL; returns NULL */

/* For what concerns the outbox alone: its times, what is in it, what is passed over, up. */
struct nl_outbox *nl_publisher_outbox(const struct nl_publisher *pub);

/* A client's publish. Takes what it needs out of r. */
void nl_publisher_request(struct nl_publisher *pub, struct nl_peer *peer, struct nl_request *r,
                          uint64_t now_ms);

/* As nl_outbox_run(). */
void nl_publisher_run(struct nl_publisher *pub, uint64_t now_ms);

/* The broker has taken our auth: actor is who we are to it (copied, NULL = not told). */
void nl_publisher_auth(struct nl_publisher *pub, const char *actor, int64_t protocol_version);

/* `published`, or an error with a msgRef. Returns false when it answers nothing of ours. */
bool nl_publisher_answer(struct nl_publisher *pub, const struct nl_frame *frame, uint64_t now_ms);

/*
 * Is this message of the broker our own retained one come back? *mine says so. One with a msgId still goes
 * the way of others, as one seen before: only to who subscribed since. Without, it is to go to nobody:
 * returns true.
 */
bool nl_publisher_swallow(struct nl_publisher *pub, const struct nl_frame *message, uint64_t now_ms,
                          bool *mine);

/* The link is gone. As nl_outbox_down(). */
bool nl_publisher_down(struct nl_publisher *pub, int close_code, uint64_t now_ms);

/* What waits ends with shutting_down, and so does what comes later. */
void nl_publisher_stop(struct nl_publisher *pub);

#endif
