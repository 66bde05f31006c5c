/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outbox of a session: publishes of local clients on their way to the broker.
 *
 * Every entry gets exactly one outcome, by ops.done. When its owner vanished it is still sent, and its
 * outcome comes with owner NULL. Order: round-robin over uids, then over the clients of a uid, first in first
 * out within a client.
 *
 * Pace: a token bucket of burst 10 and rate publish_rate - 10, so that burst and refill together stay
 * under publish_rate in every second; a publish_rate below 20 splits 1 to 4, and 1 is one publish in
 * 1.1 s. After the broker said rate_limit_exceeded all the same, the bucket is empty and fills at half the
 * rate for 10 s; that message goes again, before newer ones of its client. publish_rate 0: no limit, but 25/s
 * in such 10 s. The bucket knows nothing of links: a reconnect gives no new burst.
 *
 * At most 256 entries are in flight (sent, not answered). The broker answers in the order sent, so what was
 * passed over when a later one is answered gets BROKER_IGNORED.
 *
 * When the link goes down, what was in flight is queued again, before everything newer of its
 * client, marked redelivered. If the close was 1009 or 1011, the oldest unanswered entry is the suspect:
 * after the reconnect it is sent alone, and if the link closes like that again while it is the oldest
 * unanswered one, it is rejected (BROKER_REJECTED). Any answer acquits it. Other closes convict nobody and
 * acquit nobody.
 *
 * Bounds: max_messages and max_bytes (of packed data), each entry's ttl. ttl counts while the entry waits to
 * be sent; one that is in flight is not timed out. Nobody can fill the outbox for all others: the last eighth
 * of both bounds is for uids, and the eighth before it for clients, that hold less than an eighth themselves.
 *
 * Pure: no loop, no clock. now_ms is monotonic.
 */
#ifndef NL_MODEL_OUTBOX_H
#define NL_MODEL_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "protocol/buffer.h"
#include "protocol/errors.h"
#include "protocol/frame.h"

/*
 * One publish. The creator fills the first part and hands it over with nl_outbox_push(); the outbox owns it
 * then, until done has returned.
 */
struct nl_publish {
    void *owner; /* the client, not NULL; NULL after nl_outbox_forget() */
    uid_t uid;
    char *topic;   /* owned, NUL-terminated */
    uint8_t *data; /* owned: the packed payload */
    size_t data_len;
    char *filter_key; /* owned, NULL = no filter; sent upstream as "filter" */
    char *id;         /* owned, JSON text of the client's id, or NULL */
    char *msg_ref;    /* owned, the client's msgRef, or NULL */
    unsigned hazards; /* set of enum nl_hazard in data; the outbox does not look at it */
    int qos;
    bool retain;
    bool echo; /* upstream */

    /* The outbox's own. */
    uint64_t ref;     /* our msgRef upstream, 1, 2, 3, ..., as text; a new one each time; 0 = never sent */
    uint64_t seq;     /* the order in which entries were pushed */
    uint64_t sent_ms; /* when it was, the last time */
    uint64_t deadline_ms; /* of its ttl */
    bool in_flight;       /* sent and not answered, else it waits */
    bool redelivered;     /* sent again because a link went down before the answer */
    bool suspect;
    struct nl_outbox_lane *lane;
    struct nl_publish *prev, *next;   /* in its lane's waiting, or in the outbox's in_flight */
    struct nl_publish *older, *newer; /* in the outbox's all */
};

struct nl_publish *nl_publish_new(void);                  /* zeroed */
struct nl_publish *nl_publish_free(struct nl_publish *p); /* takes NULL; returns NULL */

/*
 * The outcome: error NL_OK means published. When the broker answered with an error, broker_error is its frame
 * (it lives until done returns) and error is BROKER_REJECTED: tell the client what the frame says. Else it is
 * NULL, and with BROKER_REJECTED close_code is how the broker closed the link because of this entry.
 */
struct nl_outcome {
    enum nl_error error;
    const struct nl_frame *broker_error;
    int close_code;
};

struct nl_outbox_ops {
    /*
     * Gives one encoded publish frame to the link; false = the link takes no more right now. It calls nothing
     * of the outbox.
     */
    bool (*send)(void *ctx, struct nl_slice frame);
    /*
     * The one outcome. p->owner may be NULL. p is freed when this returns. It may call nl_outbox_push() and
     * nl_outbox_forget().
     */
    void (*done)(void *ctx, struct nl_publish *p, struct nl_outcome outcome);
    void *ctx;
    /* Is it to be sent with echo? Asked when its turn has come; NULL = as p->echo says. */
    bool (*echo)(void *ctx, const struct nl_publish *p);
};

struct nl_outbox_limits {
    uint64_t publish_rate; /* per second; 0 = none */
    uint64_t max_messages;
    uint64_t max_bytes;
    uint64_t ttl_ms; /* 0 = none */
};

struct nl_outbox;

struct nl_outbox *nl_outbox_new(const struct nl_outbox_limits *limits, const struct nl_outbox_ops *ops,
                                uint64_t now_ms);

/* Frees what is left without telling anyone: call nl_outbox_fail_all() first when somebody waits. */
struct nl_outbox *nl_outbox_free(struct nl_outbox *o); /* takes NULL; returns NULL */

/*
 * Takes a publish. Returns NL_OK (p is the outbox's), or OUTBOX_FULL (p is still the
 * caller's) with *retry_after_ms an estimate of when there will be room, at least 100.
 * Does not send: call nl_outbox_run() after.
 */
enum nl_error nl_outbox_push(struct nl_outbox *o, struct nl_publish *p, uint64_t now_ms,
                             uint64_t *retry_after_ms);

/* Sends what may be sent, times out what is too old. Call after push, answers, and at nl_outbox_next(). */
void nl_outbox_run(struct nl_outbox *o, uint64_t now_ms);

/* When to call nl_outbox_run() again, at the latest; UINT64_MAX = no need. */
uint64_t nl_outbox_next(const struct nl_outbox *o, uint64_t now_ms);

/* The link is live and subscriptions are restored: sending may go on. */
void nl_outbox_up(struct nl_outbox *o);

/*
 * The link is gone. close_code is the WebSocket close code, 0 when there was none, or when another request
 * than the oldest publish is the suspect. Returns whether a publish is why it is gone: a new suspect, whose
 * guilt a reconnect at once would show before others have waited for long, or one that is convicted.
 */
bool nl_outbox_down(struct nl_outbox *o, int close_code);

/*
 * The broker's answer to a publish (published, or error with a msgRef). Returns false when msg_ref is none of
 * ours in flight (a late one: ignored). Entries sent before it that have no answer end with BROKER_IGNORED.
 */
bool nl_outbox_answer(struct nl_outbox *o, const struct nl_frame *frame, uint64_t now_ms);

/*
 * The newest ref sent so far. Who sends another request or a heartbeat behind it and has that answered knows
 * that the turn of everything up to this ref has passed: nl_outbox_passed() ends what of it has no answer
 * with BROKER_IGNORED. Not across a reconnect: refs of what is sent again are new.
 */
uint64_t nl_outbox_newest(const struct nl_outbox *o);
void nl_outbox_passed(struct nl_outbox *o, uint64_t ref);

/* The oldest unanswered entry, or NULL. */
const struct nl_publish *nl_outbox_oldest(const struct nl_outbox *o);

/* The suspect, from the nl_outbox_down() that made it one until its answer or end, or NULL. Meanwhile nothing
 * else is sent. */
const struct nl_publish *nl_outbox_suspect(const struct nl_outbox *o);

/* A broker without answers to publishes (protocol version 1): entries are done as soon as they are sent. */
void nl_outbox_set_unanswered(struct nl_outbox *o, bool unanswered);

/* The owner is gone: its entries stay, with owner NULL. The same address may come again as another owner. */
void nl_outbox_forget(struct nl_outbox *o, void *owner);

/* Every entry ends with this error (SHUTTING_DOWN, say); what done pushes meanwhile stays. */
void nl_outbox_fail_all(struct nl_outbox *o, enum nl_error error);

uint64_t nl_outbox_messages(const struct nl_outbox *o); /* waiting or in flight */
uint64_t nl_outbox_bytes(const struct nl_outbox *o);
uint64_t nl_outbox_in_flight(const struct nl_outbox *o);

#endif
