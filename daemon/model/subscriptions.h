/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All subscriptions of a session: the wishes of local clients (wishes.h), topic by topic,
 * and the least upstream subscription that serves them.
 *
 * Per topic at most one control request (subscribe, setFilters, unsubscribe) is in flight; over all topics
 * there are slots for so many, and turns.h says who gets one. The broker's answers carry no id; they are
 * matched by topic. What clients ask for meanwhile waits, is then applied in the order it came and judged on
 * the wishes as they then are:
 *
 *   topic:  idle --(wishes differ from upstream)--> ready --(a slot is free)--> in flight --(answer)--> idle
 *           in flight --(refused)--> refused: not tried again before refused_interval, unless a client asks
 *
 * A request is answered when upstream, as confirmed, serves it, and before the first message it
 * brings. A refusal goes to those who asked; their wishes are as before. While the session is down
 * requests are answered at once with "pending":true.
 *
 * A control request that is not answered within request_timeout is told as `timeout` to who asked; the
 * slot stays taken until the answer comes after all, or a heartbeat sent behind it comes back (the broker
 * answers in order: then it was ignored). A heartbeat that does not come back within fence_timeout while
 * other frames do is the end of the link: nothing else would free the topic for those who ask next.
 *
 * Late joiners. The broker sends the retained messages of a topic, and the hydration, to who subscribes. A
 * client that joins a topic which is subscribed already, or adds a filter that upstream has already, gets
 * them by a second subscribe with what is wished by then:
 *
 *   topic:  idle --(a late joiner)--> gathering --(NL_GATHER_MS)--> ready --> in flight --(answer)--> idle
 *           gathering --(other filters are needed)--> ready
 *
 * All that join until it is sent share it, and so do those whose requests waited behind it. A late joiner is
 * answered when it is confirmed; what it brings goes to those to whom it is new (grants, see wishes.h). When
 * it is refused nobody knows whether the broker still has the subscription: setFilters with what it should
 * have changes nothing if so, and tells if not.
 *
 * late_join says when: always, never, or (auto) unless the last message of the topic had no msgId, as then
 * everybody would have all retained messages again. A client that is given nothing is told
 * "lateJoin":"none". Who comes with new filters only gets their retained messages by setFilters; it is a late
 * joiner only where the topic is known to have a hydration.
 *
 * What clients hold and what waits is bounded in number and in bytes, by client and by user. Beyond that a
 * request is limit_reached; but while nothing else of a client waits it may always make its filters fewer.
 *
 * Pure: no loop, no clock, no log.
 */
#ifndef NL_MODEL_SUBSCRIPTIONS_H
#define NL_MODEL_SUBSCRIPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/groups.h"
#include "daemon/model/peer.h"
#include "daemon/model/settings.h"
#include "daemon/model/wishes.h"
#include "protocol/frame.h"
#include "protocol/line.h"
#include "protocol/object.h"
#include "protocol/request.h"

#define NL_GRANT_MS 5000  /* how long after a subscribe or added filter retained messages may come */
#define NL_GATHER_MS 50   /* how long late joiners wait for others */
#define NL_SETTLE_MS 5000 /* how long after a change upstream a message may be a retained one */

/*
 * Does the broker tell subscribers without filters the filter of a message? What messages prove to who
 * learns:
 *
 *   no, for good     a message whose filter is "#"
 *   yes, until then  a message with its filter, or without one, on a subscription without filters,
 *                    that cannot be a retained one: those have their filter everywhere. They come
 *                    after a change upstream, one for each filter; so it proves something when the
 *                    last change is NL_SETTLE_MS ago, or when it is the second one with this filter
 *                    since the change (told apart by msgId).
 *
 * On a no after a yes, requests that can no longer be served are refused with wish_conflict, the newest
 * first, and holders whose filters no longer work get one error event wish_conflict: their wish stays, and
 * works again when the client that wants everything leaves.
 */
enum nl_reported { NL_REPORTED_UNKNOWN, NL_REPORTED_YES, NL_REPORTED_NO };

const char *nl_reported_name(enum nl_reported reported); /* as status tells it */

struct nl_subscriptions_ops {
    /* Sends a control request; false = the link takes no more now, it is tried again at the next run. */
    bool (*send)(void *ctx, const struct nl_frame *frame);
    /* How many publishes have been sent before: what comes back from nl_subscriptions_oldest(). */
    uint64_t (*position)(void *ctx);
    /* Sends a heartbeat; returns its number, for nl_subscriptions_fence_passed(). */
    uint64_t (*fence)(void *ctx);
    /* A fence did not come back in time: the link is to be closed. Returns false when that is not so, as the
     * fence is still on its way; then it has its time again. */
    bool (*stuck)(void *ctx);
    /* The one answer to a request (if it was counted in peer->pending, it no longer is). Takes over line. */
    void (*answer)(void *ctx, struct nl_peer *peer, struct nl_line *line);
    /* An error event for a holder. Takes over line. */
    void (*error)(void *ctx, struct nl_peer *peer, struct nl_line *line);
    /* As in nl_groups_ops. */
    void (*hand)(void *ctx, struct nl_peer *peer, const struct nl_handout *h);
    void (*event)(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line);
    void (*wake)(void *ctx);
    void *ctx;
};

struct nl_subscriptions_limits {
    uint64_t request_timeout_ms;
    uint64_t fence_timeout_ms;
    uint64_t refused_interval_ms;
    uint64_t per_client; /* topics; 0 = no limit */
    uint64_t per_uid;
    uint64_t pending_per_client; /* requests without an answer; 0 = no limit, here and below */
    uint64_t pending_per_topic;  /* of one client on one topic */
    uint64_t bytes_per_client;   /* nl_peer.wish_bytes, of a client and of all clients of its user */
    uint64_t bytes_per_uid;
    uint8_t qos; /* of a subscribe that says none */
    enum nl_late_join late_join;
};

struct nl_subscriptions;

struct nl_subscriptions *nl_subscriptions_new(const struct nl_subscriptions_limits *limits,
                                              const struct nl_subscriptions_ops *ops,
                                              enum nl_reported reported, bool learns,
                                              uint64_t seed); /* learns: reported is only a first guess */
struct nl_subscriptions *
nl_subscriptions_free(struct nl_subscriptions *s); /* asserts that nobody holds anything */

/*
 * A client's subscribe, unsubscribe, setFilters, addFilters or removeFilters (of a real topic, not the tap).
 * Its answer comes by ops.answer, maybe before this returns. Takes what it needs out of request.
 */
void nl_subscriptions_request(struct nl_subscriptions *s, struct nl_peer *peer, struct nl_request *request,
                              uint64_t now_ms);

/*
 * Every request that has no answer yet gets this error; wishes are as before those. An unsubscribe that has
 * taken effect is answered with success all the same.
 */
void nl_subscriptions_fail_all(struct nl_subscriptions *s, enum nl_error error, uint64_t now_ms);

/* The client leaves everything; what it asked for gets no answer. */
void nl_subscriptions_leave(struct nl_subscriptions *s, struct nl_peer *peer, uint64_t now_ms);

/*
 * The link is authenticated: everything wished is subscribed again. restored is the broker's list of what it
 * restored by itself (RAW; may be empty); what nobody wants of it is unsubscribed.
 */
void nl_subscriptions_up(struct nl_subscriptions *s, struct nl_slice restored, uint64_t now_ms);

/* True from nl_subscriptions_up() until every topic of then was confirmed, refused or given up. */
bool nl_subscriptions_restoring(const struct nl_subscriptions *s);

/* The link is gone. Who waits is answered "pending":true. */
void nl_subscriptions_down(struct nl_subscriptions *s, uint64_t now_ms);

/* subscribed, filtersUpdated, unsubscribed, or an error with a topic and no msgRef. False: nothing was asked
 * like that. */
bool nl_subscriptions_answer(struct nl_subscriptions *s, const struct nl_frame *frame, uint64_t now_ms);

/* The echo of the heartbeat with this number has come. */
void nl_subscriptions_fence_passed(struct nl_subscriptions *s, uint64_t fence, uint64_t now_ms);

/* Sends what waits, times out what is too old. Call after the functions above and at nl_subscriptions_next().
 */
void nl_subscriptions_run(struct nl_subscriptions *s, uint64_t now_ms);
uint64_t nl_subscriptions_next(const struct nl_subscriptions *s); /* UINT64_MAX = no need */

/* A message of the broker. *known tells whether the topic is one that somebody asked for. receipt: what is to
 * be told who has it; may be NULL. Returns how many clients got it, or wait for it. */
unsigned nl_subscriptions_deliver(struct nl_subscriptions *s, const struct nl_frame *message,
                                  struct nl_receipt *receipt, uint64_t serial, uint64_t now_ms,
                                  nl_receive_fn *receive, void *ctx, bool *known);

/* A hydration of the broker, for those who wait for one; see hydration.h. Returns how many clients got it. */
unsigned nl_subscriptions_hydrate(struct nl_subscriptions *s, const struct nl_frame *frame, uint64_t serial,
                                  uint64_t now_ms, nl_receive_fn *receive, void *ctx);

/* A message of a local client (except), published with this key (NULL = no filter). token: a hash that stands
 * for the msgId of a retained message until it is known; 0 = not retained. */
unsigned nl_subscriptions_deliver_local(struct nl_subscriptions *s, struct nl_slice topic,
                                        const char *filter_key, const struct nl_peer *except, uint64_t token,
                                        uint64_t serial, uint64_t now_ms, nl_receive_fn *receive, void *ctx);

/* Will the broker send us a message published to topic with this key (NULL = no filter)? */
bool nl_subscriptions_upstream_matches(const struct nl_subscriptions *s, struct nl_slice topic,
                                       const char *filter_key);

/*
 * The msgId of a message of topic that was delivered locally with this token. It counts as seen, and whoever
 * had it, or published it, does not get it again: the broker's own delivery goes to the others that it is new
 * to.
 */
void nl_subscriptions_note_seen(struct nl_subscriptions *s, struct nl_slice topic, struct nl_slice msg_id,
                                uint64_t token, uint64_t now_ms);

/* The position of the oldest request that the broker has not answered; UINT64_MAX = none. */
uint64_t nl_subscriptions_oldest(const struct nl_subscriptions *s);

/* When the upstream subscription changed, if that is so lately that the broker may send retained messages for
 * it; 0 = it did not. */
uint64_t nl_subscriptions_changed(const struct nl_subscriptions *s, struct nl_slice topic, uint64_t now_ms);

/* Has the broker, or will it have with the next frame, a load-balanced subscription of ours to the topic? */
bool nl_subscriptions_grouped(const struct nl_subscriptions *s, struct nl_slice topic);

/* replayStart or replayEnd: for all who are in a group, topic by topic, in order with the messages. */
void nl_subscriptions_replay(struct nl_subscriptions *s, const struct nl_frame *frame, uint64_t now_ms);

/* An ack or batchAck. False: the client has nothing of one that it names, and nothing is acknowledged. */
bool nl_subscriptions_acknowledge(struct nl_subscriptions *s, const struct nl_peer *peer,
                                  const struct nl_request *r);

/* When nl_subscriptions_run() is due for messages that wait, link or not; 0 = now, UINT64_MAX = no need. */
uint64_t nl_subscriptions_groups_next(const struct nl_subscriptions *s);
uint64_t nl_subscriptions_lost(const struct nl_subscriptions *s); /* messages of groups that nobody got */

enum nl_reported nl_subscriptions_reported(const struct nl_subscriptions *s);
uint64_t nl_subscriptions_topics(const struct nl_subscriptions *s);  /* topics that somebody wishes */
uint64_t nl_subscriptions_refused(const struct nl_subscriptions *s); /* of these, refused by the broker */

#endif
