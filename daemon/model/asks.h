/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of local clients about presence and lobbies that wait for something, and the way to tell their
 * clients: what announcement.h, presence.h and lobbies.h share. Each list has one owner; an ask is on one
 * list, and on its client's, until it is answered or that client goes away, and counted in nl_peer.pending,
 * ask_count and its user's quota.
 *
 * Pure: no loop, no clock.
 */
#ifndef NL_MODEL_ASKS_H
#define NL_MODEL_ASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/peer.h"
#include "protocol/frame.h"
#include "protocol/line.h"
#include "protocol/object.h"
#include "protocol/request.h"

#define NL_ASKS_PER_CLIENT 128 /* each can be answered by a list of its own, of up to a frame's size */
#define NL_ASKS_PER_UID 4096
#define NL_ASKS_HINT "128 requests of this client about presence and lobbies wait, or 4096 of its user"

/* What these parts need of the session. */
struct nl_presence_ops {
    /* Sends a request; false = the link takes no more now, it is tried again at the next run. */
    bool (*send)(void *ctx, const struct nl_frame *frame);
    /* Sends a heartbeat; returns its number, for the *_fence_passed() functions. */
    uint64_t (*fence)(void *ctx);
    /* How many publishes have been sent before. */
    uint64_t (*position)(void *ctx);
    /* A line for a client: the answer to a request (NULL: it only stops waiting), or an event. Takes over
     * line. */
    void (*answer)(void *ctx, struct nl_peer *peer, struct nl_line *line);
    void (*event)(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line);
    void *ctx;
};

struct nl_ask {
    struct nl_peer *peer;
    enum nl_request_type type;
    char *id; /* JSON text, or NULL */
    uint64_t deadline_ms;
    uint64_t mark;     /* of the owner of the list */
    const void *owner; /* of the list */
    struct nl_ask **list;
    struct nl_ask *prev, *next;           /* in *list */
    struct nl_ask *peer_prev, *peer_next; /* in nl_peer.asks */
};

/* May the client ask one thing more? */
bool nl_asks_full(const struct nl_peer *peer);

/* Adds an ask at the end. owner: for nl_asks_leave(). Takes the id out of r. */
struct nl_ask *nl_asks_add(struct nl_ask **list, const void *owner, struct nl_peer *peer,
                           struct nl_request *r, uint64_t deadline_ms);

/* The one answer: removes, tells and frees. Takes over line. */
void nl_ask_answer(struct nl_ask *ask, const struct nl_presence_ops *ops, struct nl_line *line);

/* An error of nolagd's own as the answer; room or lobby: what it was about, may be empty. */
void nl_ask_fail(struct nl_ask *ask, const struct nl_presence_ops *ops, enum nl_error error,
                 struct nl_slice name);

/* All of them get this error. */
void nl_asks_fail(struct nl_ask **list, const struct nl_presence_ops *ops, enum nl_error error,
                  struct nl_slice name);

/* The client is gone: its asks on lists of this owner get no answer, and it watches none of its rooms or
 * lobbies any more. Returns whether there was anything. */
bool nl_asks_leave(struct nl_peer *peer, const void *owner);

uint64_t nl_asks_deadline(const struct nl_ask *list); /* the earliest; UINT64_MAX = none */

/* Begins the answer to ask: type and id. */
void nl_ask_begin(struct nl_object *o, const char *type, const struct nl_ask *ask);

/* An error event about a room or lobby: key is its name's. */
struct nl_line *nl_ask_error_event(enum nl_error error, const char *key, struct nl_slice name,
                                   const char *hint);

/*
 * A client that gets what happens in a room or lobby. It is in the list of that and in nl_peer.watches, and
 * counted in watch_count of the client and watches of its user.
 */
struct nl_watch {
    struct nl_peer *peer;
    void *of;          /* the room or lobby */
    bool informed;     /* it knows the state that differences are told against */
    bool blank;        /* not, and its answer was "pending": it is told all of the next list */
    const void *owner; /* of that */
    struct nl_watch **list;
    struct nl_watch *prev, *next;           /* in *list, of the room or lobby */
    struct nl_watch *peer_prev, *peer_next; /* in nl_peer.watches */
};

struct nl_watch_limits {
    uint64_t per_client, per_uid; /* 0 = no limit */
};

struct nl_watch *nl_watch_find(const struct nl_peer *peer, const void *of);

/* Adds a watch to list; NULL when a limit is reached, with *hint naming it. */
struct nl_watch *nl_watch_add(struct nl_watch **list, const void *owner, void *of, struct nl_peer *peer,
                              const struct nl_watch_limits *limits, const char **hint);
void nl_watch_remove(struct nl_watch *watch);

#endif
