/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/asks.h"

#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"

bool nl_asks_full(const struct nl_peer *peer) {
    return peer->ask_count >= NL_ASKS_PER_CLIENT || peer->quota->asks >= NL_ASKS_PER_UID;
}

struct nl_ask *nl_asks_add(struct nl_ask **list, const void *owner, struct nl_peer *peer,
                           struct nl_request *r, uint64_t deadline_ms) {
    struct nl_ask *ask = nl_calloc(1, sizeof(*ask));

    ask->peer = peer;
    ask->type = r->type;
    ask->id = r->id;
    r->id = NULL;
    ask->deadline_ms = deadline_ms;
    ask->owner = owner;
    ask->list = list;
    DL_APPEND(*list, ask);
    DL_APPEND2(peer->asks, ask, peer_prev, peer_next);
    peer->pending++;
    peer->ask_count++;
    peer->quota->asks++;
    return ask;
}

static void discard(struct nl_ask *ask) {
    DL_DELETE(*ask->list, ask);
    DL_DELETE2(ask->peer->asks, ask, peer_prev, peer_next);
    ask->peer->pending--;
    ask->peer->ask_count--;
    nl_quota_give(&ask->peer->quota->asks, 1);
    free(ask->id);
    free(ask);
}

void nl_ask_answer(struct nl_ask *ask, const struct nl_presence_ops *ops, struct nl_line *line) {
    struct nl_peer *peer = ask->peer;

    discard(ask);
    ops->answer(ops->ctx, peer, line);
}

/* What the requests of this type are about. */
static const char *key_of(enum nl_request_type type) {
    return type == NL_REQUEST_LOBBY_SUBSCRIBE || type == NL_REQUEST_LOBBY_UNSUBSCRIBE ||
                   type == NL_REQUEST_GET_LOBBY_PRESENCE
               ? "lobbyId"
               : "roomId";
}

void nl_ask_fail(struct nl_ask *ask, const struct nl_presence_ops *ops, enum nl_error error,
                 struct nl_slice name) {
    struct nl_object o;

    nl_object_begin(&o, "error");
    nl_object_cstr(&o, "request", nl_request_name(ask->type));
    nl_object_id(&o, ask->id);
    nl_object_error(&o, error, NULL);
    if (name.len > 0)
        nl_object_str(&o, key_of(ask->type), name);
    nl_ask_answer(ask, ops, nl_object_line(&o));
}

void nl_asks_fail(struct nl_ask **list, const struct nl_presence_ops *ops, enum nl_error error,
                  struct nl_slice name) {
    while (*list != NULL)
        nl_ask_fail(*list, ops, error, name);
}

bool nl_asks_leave(struct nl_peer *peer, const void *owner) {
    struct nl_watch *watch, *next_watch;
    struct nl_ask *ask, *next_ask;
    bool any = false;

    DL_FOREACH_SAFE2(peer->asks, ask, next_ask, peer_next) {
        if (ask->owner != owner)
            continue;
        discard(ask);
        any = true;
    }
    DL_FOREACH_SAFE2(peer->watches, watch, next_watch, peer_next) {
        if (watch->owner != owner)
            continue;
        nl_watch_remove(watch);
        any = true;
    }
    return any;
}

uint64_t nl_asks_deadline(const struct nl_ask *list) {
    uint64_t first = UINT64_MAX;
    const struct nl_ask *ask;

    DL_FOREACH(list, ask) {
        if (ask->deadline_ms < first)
            first = ask->deadline_ms;
    }
    return first;
}

void nl_ask_begin(struct nl_object *o, const char *type, const struct nl_ask *ask) {
    nl_object_begin(o, type);
    nl_object_id(o, ask->id);
}

struct nl_line *nl_ask_error_event(enum nl_error error, const char *key, struct nl_slice name,
                                   const char *hint) {
    struct nl_object o;

    nl_object_begin(&o, "error");
    nl_object_error(&o, error, hint);
    nl_object_str(&o, key, name);
    return nl_object_line(&o);
}

/* ---- watches ---- */

struct nl_watch *nl_watch_find(const struct nl_peer *peer, const void *of) {
    struct nl_watch *watch;

    DL_FOREACH2(peer->watches, watch, peer_next) {
        if (watch->of == of)
            return watch;
    }
    return NULL;
}

struct nl_watch *nl_watch_add(struct nl_watch **list, const void *owner, void *of, struct nl_peer *peer,
                              const struct nl_watch_limits *limits, const char **hint) {
    struct nl_watch *watch;

    if (limits->per_client != 0 && peer->watch_count >= limits->per_client) {
        *hint = "max_watches rooms and lobbies are watched by this client";
        return NULL;
    }
    if (!nl_quota_take(&peer->quota->watches, 1, limits->per_uid)) {
        *hint = "max_watches_per_uid rooms and lobbies are watched by the clients of this user";
        return NULL;
    }
    watch = nl_calloc(1, sizeof(*watch));
    watch->peer = peer;
    watch->of = of;
    peer->watch_count++;
    watch->owner = owner;
    watch->list = list;
    DL_APPEND(*list, watch);
    DL_APPEND2(peer->watches, watch, peer_prev, peer_next);
    return watch;
}

void nl_watch_remove(struct nl_watch *watch) {
    nl_quota_give(&watch->peer->quota->watches, 1);
    watch->peer->watch_count--;
    DL_DELETE2(watch->peer->watches, watch, peer_prev, peer_next);
    DL_DELETE(*watch->list, watch);
    free(watch);
}
