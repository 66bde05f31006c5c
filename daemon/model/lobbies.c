/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From top to bottom: lobbies, what clients are told, requests to the broker, its answers and events,
 * requests of clients, and the link.
 */
#include "daemon/model/lobbies.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "daemon/model/presence_lines.h"
#include "daemon/model/roster.h"
#include "protocol/alloc.h"
#include "protocol/scan.h"

enum flight { IDLE, SUBSCRIBING, LISTING, UNSUBSCRIBING };

struct lobby {
    char *slug;
    struct nl_lobbies *l;
    char *id;                /* the broker's own name for it; NULL = not learned */
    struct nl_roster roster; /* by "room/actor": neither a room nor what comes before it has a slash */
    struct nl_buffer rooms;  /* of the last list: its names, each with a NUL behind it */
    struct nl_watch *watches;
    struct nl_ask *asks; /* lobbySubscribe, getLobbyPresence; mark: enum stage */
    bool subscribed;     /* at the broker */
    bool wanted;         /* to be listed */
    bool filled;         /* the roster was compared with a list */
    enum flight flight;
    uint64_t sent_ms, fence; /* of the flight; fence 0 = none */
    uint64_t renew_ms;       /* when to subscribe again */
    UT_hash_handle hh;
};

struct nl_lobbies {
    struct nl_lobbies_limits limits;
    struct nl_presence_ops ops;
    struct nl_roster_allowance allowance;
    uint64_t seed;
    struct lobby *by_slug;
    unsigned flights; /* lobbies with a request on its way */
    bool up, dirty;
    uint64_t next_ms;
};

struct nl_lobbies *nl_lobbies_new(const struct nl_lobbies_limits *limits, const struct nl_presence_ops *ops,
                                  uint64_t seed) {
    struct nl_lobbies *l = nl_calloc(1, sizeof(*l));

    l->limits = *limits;
    l->ops = *ops;
    l->seed = seed;
    l->allowance.limit = NL_LOBBY_BYTES;
    l->next_ms = UINT64_MAX;
    return l;
}

/* ---- lobbies ---- */

static struct nl_slice slug_of(const struct lobby *lobby) {
    return nl_slice_str(lobby->slug);
}

static struct lobby *find_lobby(const struct nl_lobbies *l, struct nl_slice slug) {
    struct lobby *lobby;

    HASH_FIND(hh, l->by_slug, slug.ptr, slug.len, lobby);
    return lobby;
}

static void link_lobby(struct lobby *lobby) {
    HASH_ADD_KEYPTR(hh, lobby->l->by_slug, lobby->slug, strlen(lobby->slug), lobby);
}

static struct lobby *get_lobby(struct nl_lobbies *l, struct nl_slice slug) {
    struct lobby *lobby = find_lobby(l, slug);

    if (lobby != NULL)
        return lobby;
    lobby = nl_calloc(1, sizeof(*lobby));
    lobby->slug = nl_strndup((const char *)slug.ptr, slug.len);
    lobby->l = l;
    nl_roster_init(&lobby->roster, &l->allowance);
    nl_buffer_init(&lobby->rooms);
    link_lobby(lobby);
    return lobby;
}

static void forget_id(struct lobby *lobby) {
    free(lobby->id);
    lobby->id = NULL;
}

static void free_lobby(struct lobby *lobby) {
    assert(lobby->watches == NULL && lobby->asks == NULL);
    HASH_DEL(lobby->l->by_slug, lobby);
    nl_roster_clear(&lobby->roster);
    nl_buffer_deinit(&lobby->rooms);
    forget_id(lobby);
    free(lobby->slug);
    free(lobby);
}

static bool has_room(const struct lobby *lobby, struct nl_slice room) {
    const char *at = (const char *)lobby->rooms.bytes;
    const char *end = at + lobby->rooms.len;

    for (; at < end; at += strlen(at) + 1)
        if (nl_slice_equal(nl_slice_str(at), room))
            return true;
    return false;
}

/* ---- what clients are told ---- */

struct change {
    const char *event;
    struct nl_slice room, actor, data; /* data: RAW; empty for a leave */
};

static struct nl_line *event_line(const struct lobby *lobby, const struct change *c, bool bigint) {
    struct nl_object o;

    nl_object_begin(&o, "lobbyPresence");
    nl_object_cstr(&o, "event", c->event);
    nl_object_str(&o, "lobbyId", slug_of(lobby));
    nl_object_str(&o, "roomId", c->room);
    nl_object_str(&o, "actorId", c->actor);
    if (c->data.len > 0)
        nl_object_msgpack(&o, "data", c->data, (struct nl_json_options){.bigint_as_string = bigint});
    else
        nl_object_json(&o, "data", nl_slice_str("{}"));
    return nl_object_line(&o);
}

/* To those who know what was before, or to the blank ones. */
static void tell(struct lobby *lobby, const struct change *c, bool blank) {
    struct nl_line *lines[2] = {NULL, NULL};
    struct nl_watch *w;

    DL_FOREACH(lobby->watches, w) {
        struct nl_line **line = &lines[w->peer->bigint_as_string];

        if (blank ? !w->blank : !w->informed)
            continue;
        if (*line == NULL)
            *line = event_line(lobby, c, w->peer->bigint_as_string);
        lobby->l->ops.event(lobby->l->ops.ctx, w->peer, NL_EVENT_LOBBY_PRESENCE, nl_line_ref(*line));
    }
    nl_line_unref(lines[0]);
    nl_line_unref(lines[1]);
}

static void make_key(struct nl_buffer *out, struct nl_slice room, struct nl_slice actor) {
    nl_buffer_append(out, room.ptr, room.len);
    nl_buffer_append_byte(out, '/');
    nl_buffer_append(out, actor.ptr, actor.len);
}

static struct change split(struct nl_slice key, const char *event) {
    const uint8_t *slash = memchr(key.ptr, '/', key.len);
    size_t len = slash == NULL ? key.len : (size_t)(slash - key.ptr);
    size_t skip = len < key.len ? len + 1 : len;

    return (struct change){event, nl_slice(key.ptr, len), nl_slice(key.ptr + skip, key.len - skip),
                           nl_slice(NULL, 0)};
}

static void on_left(void *ctx, const struct nl_roster_entry *e) {
    struct change c = split(nl_roster_key(e), "leave");

    tell(ctx, &c, false);
}

/* Someone shows data in a room: what that changes is told. listed: by a list. */
static void note(struct lobby *lobby, struct nl_slice room, struct nl_slice actor, struct nl_slice data,
                 bool listed) {
    struct change c = {NULL, room, actor, data};
    enum nl_roster_change change;
    struct nl_buffer key;

    nl_buffer_init(&key);
    make_key(&key, room, actor);
    change =
        nl_roster_put(&lobby->roster, nl_slice(key.bytes, key.len), data, nl_digest(data, lobby->l->seed));
    if (change == NL_ROSTER_JOINED || change == NL_ROSTER_UPDATED)
        c.event = change == NL_ROSTER_JOINED ? "join" : "update";
    if (c.event != NULL)
        tell(lobby, &c, false);
    c.event = "join";
    if (listed)
        tell(lobby, &c, true);
    nl_buffer_deinit(&key);
}

static void write_room(struct nl_object *o, struct nl_slice room, struct nl_slice actors,
                       struct nl_json_options options) {
    struct nl_slice id_raw, item, id;
    struct nl_raw_iter it;
    struct nl_actor actor;

    if (!nl_raw_map(actors, &it))
        return;
    nl_object_open_member(o, room, '{');
    while (nl_raw_next_pair(&it, &id_raw, &item)) {
        nl_actor_read(item, &actor);
        if (nl_raw_string(id_raw, &id) && !nl_raw_is_null(actor.presence))
            nl_object_member(o, id, item, options);
    }
    nl_object_close(o, '}');
}

/* The broker's map of rooms and their actors, but for those whose presence is null, as the rest of answers.
 */
static struct nl_line *snapshot(const struct lobby *lobby, struct nl_slice presence, bool bigint) {
    struct nl_json_options options = {.bigint_as_string = bigint};
    struct nl_slice room_raw, actors, room;
    struct nl_raw_iter rooms;
    struct nl_object o;

    nl_object_begin_rest(&o);
    nl_object_str(&o, "lobbyId", slug_of(lobby));
    nl_object_open(&o, "presence", '{');
    if (nl_raw_map(presence, &rooms))
        while (nl_raw_next_pair(&rooms, &room_raw, &actors)) {
            if (nl_raw_string(room_raw, &room))
                write_room(&o, room, actors, options);
        }
    nl_object_close(&o, '}');
    return nl_object_line(&o);
}

/* told: what was written of this list already, by bigint_as_string. */
static void answer_list(struct lobby *lobby, struct nl_ask *ask, struct nl_slice presence,
                        struct nl_line **told) {
    bool joins = ask->type == NL_REQUEST_LOBBY_SUBSCRIBE;
    struct nl_line **rest = &told[ask->peer->bigint_as_string];
    struct nl_watch *w = nl_watch_find(ask->peer, lobby);
    struct nl_object o;

    if (*rest == NULL)
        *rest = snapshot(lobby, presence, ask->peer->bigint_as_string);
    nl_ask_begin(&o, joins ? "lobbySubscribed" : "lobbyPresenceList", ask);
    if (joins && w != NULL) {
        w->informed = true;
        w->blank = false;
    }
    nl_ask_answer(ask, &lobby->l->ops, nl_object_line_with(&o, nl_line_ref(*rest)));
}

/* It will be told what is there, as events, when the broker is. */
static void answer_pending(struct lobby *lobby, struct nl_ask *ask) {
    struct nl_watch *w = nl_watch_find(ask->peer, lobby);
    struct nl_object o;

    nl_ask_begin(&o, "lobbySubscribed", ask);
    nl_object_str(&o, "lobbyId", slug_of(lobby));
    nl_object_bool(&o, "pending", true);
    if (w != NULL)
        w->blank = !w->informed;
    nl_ask_answer(ask, &lobby->l->ops, nl_object_line(&o));
}

/* ---- requests to the broker ---- */

static void send(struct lobby *lobby, enum flight flight, enum nl_frame_type type, uint64_t now_ms) {
    struct nl_frame frame = {.type = type};

    NL_FRAME_SET(&frame, lobby_id, slug_of(lobby));
    if (!lobby->l->ops.send(lobby->l->ops.ctx, &frame))
        return;
    lobby->flight = flight;
    lobby->sent_ms = now_ms;
    lobby->fence = 0;
    if (flight == LISTING)
        lobby->wanted = false;
    lobby->l->flights++;
    /* To the end: others are before it next time. */
    HASH_DEL(lobby->l->by_slug, lobby);
    link_lobby(lobby);
}

static void end_flight(struct lobby *lobby) {
    lobby->l->flights -= lobby->flight != IDLE;
    lobby->flight = IDLE;
}

/* What is to be sent next; UNKNOWN = nothing. */
static enum nl_frame_type next_request(const struct lobby *lobby, uint64_t now_ms) {
    if (lobby->flight != IDLE || !lobby->l->up || lobby->l->flights >= NL_LOBBY_FLIGHTS)
        return NL_FRAME_UNKNOWN;
    if (lobby->watches != NULL && (!lobby->subscribed || lobby->renew_ms <= now_ms))
        return NL_FRAME_LOBBY_SUBSCRIBE;
    if (lobby->watches == NULL && lobby->subscribed)
        return NL_FRAME_LOBBY_UNSUBSCRIBE;
    return lobby->wanted ? NL_FRAME_GET_LOBBY_PRESENCE : NL_FRAME_UNKNOWN;
}

static bool asks_to_join(const struct lobby *lobby, const struct nl_peer *peer) {
    const struct nl_ask *ask;

    DL_FOREACH(lobby->asks, ask) {
        if (ask->peer == peer && ask->type == NL_REQUEST_LOBBY_SUBSCRIBE)
            return true;
    }
    return false;
}

/* Who never got the answer is not subscribed. */
static void drop_unanswered(struct lobby *lobby, struct nl_peer *peer) {
    struct nl_watch *w = nl_watch_find(peer, lobby);

    if (w != NULL && !w->informed && !w->blank && !asks_to_join(lobby, peer))
        nl_watch_remove(w);
}

static void time_out_asks(struct lobby *lobby, uint64_t now_ms) {
    struct nl_ask *ask, *tmp;

    DL_FOREACH_SAFE(lobby->asks, ask, tmp) {
        struct nl_peer *peer = ask->peer;

        if (ask->deadline_ms > now_ms)
            continue;
        nl_ask_fail(ask, &lobby->l->ops, NL_ERROR_TIMEOUT, slug_of(lobby));
        drop_unanswered(lobby, peer);
    }
}

static void step(struct lobby *lobby, uint64_t now_ms) {
    time_out_asks(lobby, now_ms);
    if (lobby->flight != IDLE && lobby->fence == 0 &&
        now_ms >= lobby->sent_ms + lobby->l->limits.request_timeout_ms)
        lobby->fence = lobby->l->ops.fence(lobby->l->ops.ctx);
    switch (next_request(lobby, now_ms)) {
    case NL_FRAME_LOBBY_SUBSCRIBE:
        send(lobby, SUBSCRIBING, NL_FRAME_LOBBY_SUBSCRIBE, now_ms);
        break;
    case NL_FRAME_LOBBY_UNSUBSCRIBE:
        send(lobby, UNSUBSCRIBING, NL_FRAME_LOBBY_UNSUBSCRIBE, now_ms);
        break;
    case NL_FRAME_GET_LOBBY_PRESENCE:
        send(lobby, LISTING, NL_FRAME_GET_LOBBY_PRESENCE, now_ms);
        break;
    default:
        break;
    }
    if (lobby->watches == NULL && lobby->asks == NULL && lobby->flight == IDLE && !lobby->subscribed)
        free_lobby(lobby);
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t lobby_next(const struct lobby *lobby) {
    uint64_t next = nl_asks_deadline(lobby->asks);

    if (lobby->flight != IDLE)
        return lobby->fence != 0 ? next : earlier(next, lobby->sent_ms + lobby->l->limits.request_timeout_ms);
    if (next_request(lobby, 0) != NL_FRAME_UNKNOWN)
        return 0;
    return lobby->l->up && lobby->subscribed ? earlier(next, lobby->renew_ms) : next;
}

void nl_lobbies_run(struct nl_lobbies *l, uint64_t now_ms) {
    struct lobby *lobby, *tmp;

    if (!l->dirty && now_ms < l->next_ms)
        return;
    l->dirty = false;
    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        step(lobby, now_ms);
    }
    l->next_ms = UINT64_MAX;
    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        l->next_ms = earlier(l->next_ms, lobby_next(lobby));
    }
}

uint64_t nl_lobbies_next(const struct nl_lobbies *l) {
    return l->dirty && l->by_slug != NULL ? 0 : l->next_ms;
}

/* ---- the broker's answers and events ---- */

static void compare_room(struct lobby *lobby, struct nl_slice room, struct nl_slice actors) {
    struct nl_slice id_raw, item, id;
    struct nl_actor actor;
    struct nl_raw_iter it;

    nl_buffer_append(&lobby->rooms, room.ptr, room.len);
    nl_buffer_append_byte(&lobby->rooms, '\0');
    if (!nl_raw_map(actors, &it))
        return;
    while (nl_raw_next_pair(&it, &id_raw, &item)) {
        nl_actor_read(item, &actor);
        if (nl_raw_string(id_raw, &id) && !nl_raw_is_null(actor.presence))
            note(lobby, room, id, actor.presence, true);
    }
}

static void compare(struct lobby *lobby, struct nl_slice presence) {
    struct nl_slice room_raw, actors, room;
    struct nl_raw_iter rooms;
    struct nl_watch *w;

    nl_buffer_clear(&lobby->rooms);
    nl_roster_begin(&lobby->roster);
    if (nl_raw_map(presence, &rooms))
        while (nl_raw_next_pair(&rooms, &room_raw, &actors)) {
            if (nl_raw_string(room_raw, &room) && memchr(room.ptr, '\0', room.len) == NULL)
                compare_room(lobby, room, actors);
        }
    nl_roster_end(&lobby->roster, on_left, lobby);
    lobby->filled = true;
    DL_FOREACH(lobby->watches, w) {
        w->informed = w->informed || w->blank;
        w->blank = false;
    }
}

static void on_list(struct lobby *lobby, const struct nl_frame *frame) {
    struct nl_slice presence = NL_FRAME_HAS(frame, presence) ? frame->presence : nl_slice(NULL, 0);
    struct nl_line *told[2] = {NULL, NULL};
    struct nl_ask *ask, *tmp;

    /* Who is not subscribed has a look only: there is nothing to compare with. */
    if (lobby->subscribed)
        compare(lobby, presence);
    DL_FOREACH_SAFE(lobby->asks, ask, tmp) {
        if (lobby->subscribed || ask->type == NL_REQUEST_GET_LOBBY_PRESENCE)
            answer_list(lobby, ask, presence, told);
    }
    nl_line_unref(told[0]);
    nl_line_unref(told[1]);
}

/* Does somebody who was told that it is pending wait for a list? */
static bool owes_a_list(const struct lobby *lobby) {
    const struct nl_watch *w;

    DL_FOREACH(lobby->watches, w) {
        if (w->blank)
            return true;
    }
    return !lobby->filled;
}

static void refuse_asks(struct lobby *lobby, const struct nl_frame *frame) {
    struct nl_ask *ask, *tmp;

    DL_FOREACH_SAFE(lobby->asks, ask, tmp) {
        struct nl_peer *peer = ask->peer;

        nl_ask_answer(ask, &lobby->l->ops,
                      nl_broker_error_line(frame, nl_request_name(ask->type), ask->id, nl_slice(NULL, 0),
                                           nl_slice(NULL, 0)));
        drop_unanswered(lobby, peer);
    }
    lobby->wanted = false;
}

/* The broker says no to the lobby: those who wait are told so, and those who are subscribed are not any
 * more. */
static void on_refused(struct lobby *lobby, const struct nl_frame *frame) {
    const struct nl_presence_ops *ops = &lobby->l->ops;
    struct nl_watch *w, *next;

    refuse_asks(lobby, frame);
    DL_FOREACH_SAFE(lobby->watches, w, next) {
        ops->event(ops->ctx, w->peer, NL_EVENT_ERROR,
                   nl_broker_error_line(frame, NULL, NULL, nl_slice(NULL, 0), nl_slice(NULL, 0)));
        nl_watch_remove(w);
    }
}

/* Is this the answer to what is on its way? */
static bool answers(const struct lobby *lobby, enum nl_frame_type type) {
    switch (lobby->flight) {
    case SUBSCRIBING:
        return type == NL_FRAME_LOBBY_SUBSCRIBED || type == NL_FRAME_ERROR;
    case LISTING:
        return type == NL_FRAME_LOBBY_PRESENCE_LIST || type == NL_FRAME_ERROR;
    case UNSUBSCRIBING:
        return type == NL_FRAME_LOBBY_UNSUBSCRIBED || type == NL_FRAME_ERROR;
    case IDLE:
        break;
    }
    return false;
}

static void on_answer(struct lobby *lobby, const struct nl_frame *frame, uint64_t now_ms) {
    enum flight flight = lobby->flight;

    end_flight(lobby);
    if (flight == UNSUBSCRIBING) {
        lobby->subscribed = false;
        nl_roster_clear(&lobby->roster);
        lobby->filled = false;
    } else if (frame->type == NL_FRAME_ERROR && flight == LISTING) {
        refuse_asks(lobby, frame); /* of the list, not of the lobby */
        if (owes_a_list(lobby))
            lobby->renew_ms = now_ms + NL_LOBBY_RETRY_MS;
    } else if (frame->type == NL_FRAME_ERROR) {
        on_refused(lobby, frame); /* one that was to be renewed the broker still has: it is unsubscribed */
    } else if (flight == LISTING) {
        on_list(lobby, frame);
    } else {
        lobby->subscribed = lobby->wanted = true;
        lobby->renew_ms = now_ms + NL_LOBBY_RENEW_MS;
    }
}

/* The lobby that this id stands for; NULL when it is not known, with all that may be meant to be listed. */
static struct lobby *meant_by(struct nl_lobbies *l, struct nl_slice id, struct nl_slice room) {
    struct lobby *lobby, *tmp, *found = find_lobby(l, id);
    unsigned candidates = 0;
    bool unlisted = false;

    if (found != NULL)
        return found;
    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        if (lobby->id != NULL && nl_slice_equal(nl_slice_str(lobby->id), id)) {
            if (has_room(lobby, room))
                return lobby;
            /* It has a new room, or the id was another's: its next list tells. */
            forget_id(lobby);
            lobby->wanted = unlisted = true;
        }
        if (!lobby->subscribed || lobby->id != NULL)
            continue;
        unlisted = unlisted || !lobby->filled;
        if (!has_room(lobby, room))
            continue;
        found = lobby;
        candidates++;
    }
    /* One whose rooms are not known yet may be meant as well. */
    if (candidates == 1 && !unlisted) {
        found->id = nl_strndup((const char *)id.ptr, id.len);
        return found;
    }
    l->dirty = true;
    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        bool candidate = candidates == 0 || (lobby->id == NULL && has_room(lobby, room));

        lobby->wanted = lobby->wanted || (lobby->subscribed && candidate);
    }
    return NULL;
}

static bool on_event(struct nl_lobbies *l, const struct nl_frame *frame) {
    struct nl_slice data = NL_FRAME_HAS(frame, data) ? frame->data : nl_slice(NULL, 0);
    struct lobby *lobby;

    if (!NL_FRAME_HAS(frame, event) || !NL_FRAME_HAS(frame, room_id) || !NL_FRAME_HAS(frame, actor_id))
        return false;
    lobby = meant_by(l, frame->lobby_id, frame->room_id);
    /* Before the first list there is nothing to compare with, and that list is on its way. */
    if (lobby == NULL || !lobby->filled)
        return true;
    if (nl_slice_equal(frame->event, nl_slice_str("leave")) || nl_raw_is_null(data))
        lobby->wanted = l->dirty = true; /* maybe of one of its connections only: the list tells */
    else
        note(lobby, frame->room_id, frame->actor_id, data, false);
    return true;
}

bool nl_lobbies_frame(struct nl_lobbies *l, const struct nl_frame *frame, uint64_t now_ms) {
    struct lobby *lobby;

    if (!NL_FRAME_HAS(frame, lobby_id))
        return false;
    if (frame->type == NL_FRAME_LOBBY_PRESENCE)
        return on_event(l, frame);
    lobby = find_lobby(l, frame->lobby_id);
    if (lobby == NULL || !answers(lobby, frame->type))
        return false;
    on_answer(lobby, frame, now_ms);
    l->dirty = true;
    return true;
}

/* The broker has passed a request over: it is sent again, as long as somebody waits for it. */
void nl_lobbies_fence_passed(struct nl_lobbies *l, uint64_t fence) {
    struct lobby *lobby, *tmp;

    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        if (lobby->flight == IDLE || lobby->fence == 0 || lobby->fence > fence)
            continue;
        if (lobby->flight == UNSUBSCRIBING)
            lobby->subscribed = false;
        lobby->wanted = lobby->asks != NULL || (lobby->subscribed && lobby->flight == LISTING);
        end_flight(lobby);
    }
    l->dirty = true;
}

/* ---- requests of clients ---- */

static void refuse(struct nl_lobbies *l, struct nl_peer *peer, const struct nl_request *r,
                   enum nl_error error, const char *hint) {
    l->ops.answer(l->ops.ctx, peer, nl_request_error_line(error, r, hint));
}

static void on_unsubscribe(struct nl_lobbies *l, struct nl_peer *peer, struct nl_request *r) {
    struct lobby *lobby = find_lobby(l, r->lobby);
    struct nl_watch *w = lobby == NULL ? NULL : nl_watch_find(peer, lobby);
    struct nl_ask *ask, *tmp;
    struct nl_object o;

    if (w != NULL) {
        /* What waits for its snapshot has its answer before this one. */
        DL_FOREACH_SAFE(lobby->asks, ask, tmp) {
            if (ask->peer == peer && ask->type == NL_REQUEST_LOBBY_SUBSCRIBE)
                answer_pending(lobby, ask);
        }
        nl_watch_remove(w);
    }
    nl_object_begin(&o, "lobbyUnsubscribed");
    nl_object_id(&o, r->id);
    nl_object_str(&o, "lobbyId", r->lobby);
    l->ops.answer(l->ops.ctx, peer, nl_object_line(&o));
}

static void on_ask(struct nl_lobbies *l, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    bool joins = r->type == NL_REQUEST_LOBBY_SUBSCRIBE;
    const char *hint = NL_ASKS_HINT;
    struct lobby *lobby;
    struct nl_ask *ask;

    if (nl_asks_full(peer)) {
        refuse(l, peer, r, NL_ERROR_LIMIT_REACHED, hint);
        return;
    }
    lobby = get_lobby(l, r->lobby);
    if (joins && nl_watch_find(peer, lobby) == NULL &&
        nl_watch_add(&lobby->watches, l, lobby, peer, &l->limits.watches, &hint) == NULL) {
        refuse(l, peer, r, NL_ERROR_LIMIT_REACHED, hint);
        return;
    }
    ask = nl_asks_add(&lobby->asks, l, peer, r, now_ms + l->limits.request_timeout_ms);
    if (joins && !l->up)
        answer_pending(lobby, ask);
    else if ((!joins || lobby->subscribed) && lobby->flight != LISTING)
        lobby->wanted = true;
}

bool nl_lobbies_wants(enum nl_request_type type) {
    return type == NL_REQUEST_LOBBY_SUBSCRIBE || type == NL_REQUEST_LOBBY_UNSUBSCRIBE ||
           type == NL_REQUEST_GET_LOBBY_PRESENCE;
}

void nl_lobbies_request(struct nl_lobbies *l, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    l->dirty = true;
    if (r->type == NL_REQUEST_LOBBY_UNSUBSCRIBE)
        on_unsubscribe(l, peer, r);
    else
        on_ask(l, peer, r, now_ms);
}

/* ---- clients and the link ---- */

void nl_lobbies_leave(struct nl_lobbies *l, struct nl_peer *peer) {
    if (nl_asks_leave(peer, l))
        l->dirty = true;
}

void nl_lobbies_fail_all(struct nl_lobbies *l, enum nl_error error) {
    struct lobby *lobby, *tmp;

    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        nl_asks_fail(&lobby->asks, &l->ops, error, slug_of(lobby));
    }
    l->dirty = true;
}

void nl_lobbies_up(struct nl_lobbies *l) {
    struct lobby *lobby, *tmp;

    l->up = true;
    l->dirty = true;
    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        lobby->wanted = lobby->asks != NULL;
    }
}

void nl_lobbies_down(struct nl_lobbies *l) {
    struct lobby *lobby, *tmp;
    struct nl_ask *ask, *next;

    l->up = false;
    l->dirty = true;
    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        end_flight(lobby);
        lobby->subscribed = lobby->wanted = false;
        forget_id(lobby);
        DL_FOREACH_SAFE(lobby->asks, ask, next) {
            if (ask->type == NL_REQUEST_LOBBY_SUBSCRIBE)
                answer_pending(lobby, ask);
        }
    }
}

struct nl_lobbies *nl_lobbies_free(struct nl_lobbies *l) {
    struct lobby *lobby, *tmp;

    if (l == NULL)
        return NULL;
    HASH_ITER(hh, l->by_slug, lobby, tmp) {
        free_lobby(lobby);
    }
    free(l);
    return NULL;
}
