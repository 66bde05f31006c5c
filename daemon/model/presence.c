/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From top to bottom: rooms, what clients are told, what the broker says, fetching, requests, and the link.
 */
#include "daemon/model/presence.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "daemon/model/presence_lines.h"
#include "daemon/model/roster.h"
#include "protocol/alloc.h"

/* The slug "" stands for `getPresence` without a room. Nobody watches that one. */
struct room {
    char *slug;
    struct nl_presence *p;
    struct nl_roster roster;
    struct nl_line *told[2]; /* the roster as the rest of answers, by bigint_as_string; see forget_told() */
    struct nl_watch *watches;
    struct nl_ask *asks; /* getPresence, watchPresence */
    bool wanted;         /* to be fetched */
    bool in_flight;      /* getPresence was sent, and not answered */
    bool filled;         /* the roster was compared with a list */
    bool fresh;          /* on this link */
    uint64_t sent_ms;
    uint64_t fence; /* the heartbeat behind a fetch that is not answered in time; 0 = none */
    uint64_t fetched_ms;
    UT_hash_handle hh; /* in nl_presence.rooms, the longest not fetched first */
};

struct nl_presence {
    struct nl_presence_limits limits;
    struct nl_presence_ops ops;
    uint64_t seed;
    struct nl_announcement announcement;
    struct nl_roster_allowance allowance;
    struct nl_line *told[2]; /* all rosters */
    struct room *rooms;      /* by slug */
    char *followed;          /* announcement.room, when we last looked and were sure of it; NULL = none */
    char *actor;             /* who we are */
    unsigned fetching;       /* rooms in flight */
    bool up;
    bool any_told;    /* told[], of a room or of all, is set */
    bool dirty;       /* something has changed since next_ms was worked out */
    uint64_t next_ms; /* when a room has something to do */
    uint64_t run_ms;  /* of the last run */
};

struct nl_presence *nl_presence_new(const struct nl_presence_limits *limits,
                                    const struct nl_presence_ops *ops, uint64_t seed) {
    struct nl_presence *p = nl_calloc(1, sizeof(*p));

    p->limits = *limits;
    p->ops = *ops;
    p->seed = seed;
    p->allowance.limit = NL_PRESENCE_BYTES;
    p->next_ms = UINT64_MAX;
    nl_announcement_init(&p->announcement, ops, limits->unknown_room_ms, seed);
    return p;
}

/* ---- rooms ---- */

static struct nl_slice slug_of(const struct room *room) {
    return nl_slice_str(room->slug);
}

static struct room *find_room(const struct nl_presence *p, struct nl_slice slug) {
    struct room *room;

    HASH_FIND(hh, p->rooms, slug.ptr == NULL ? (const void *)"" : slug.ptr, slug.len, room);
    return room;
}

static void link_room(struct nl_presence *p, struct room *room) {
    HASH_ADD_KEYPTR(hh, p->rooms, room->slug, strlen(room->slug), room);
}

static struct room *get_room(struct nl_presence *p, struct nl_slice slug) {
    struct room *room = find_room(p, slug);

    if (room != NULL)
        return room;
    room = nl_calloc(1, sizeof(*room));
    room->slug = nl_strndup(slug.len == 0 ? "" : (const char *)slug.ptr, slug.len);
    room->p = p;
    nl_roster_init(&room->roster, &p->allowance);
    link_room(p, room);
    p->dirty = true;
    return room;
}

static void forget(struct nl_line **told) {
    told[0] = nl_line_unref(told[0]);
    told[1] = nl_line_unref(told[1]);
}

/* What was written of the roster is used for all answers until it changes, but is not kept beyond a run. */
static void forget_told(struct room *room) {
    forget(room->told);
    forget(room->p->told);
}

static void forget_all_told(struct nl_presence *p) {
    struct room *room, *tmp;

    HASH_ITER(hh, p->rooms, room, tmp) {
        forget_told(room);
    }
    p->any_told = false;
}

static void free_room(struct room *room) {
    assert(room->watches == NULL && room->asks == NULL && !room->in_flight);
    forget_told(room);
    HASH_DEL(room->p->rooms, room);
    nl_roster_clear(&room->roster);
    free(room->slug);
    free(room);
}

/* The room whose events come, if any. */
static bool is_fed(const struct room *room) {
    const char *fed = room->p->announcement.room;

    return fed != NULL && strcmp(fed, room->slug) == 0;
}

static bool is_live(const struct room *room) {
    return room->p->announcement.sure && is_fed(room);
}

static bool is_stale(const struct room *room) {
    return !room->p->up || !room->fresh || (!is_live(room) && room->watches == NULL);
}

static bool is_needed(const struct room *room) {
    return room->watches != NULL || room->asks != NULL || room->in_flight || is_fed(room);
}

/* Of the rooms that nobody needs some are kept for getActor and listPresence. */
static void prune(struct nl_presence *p) {
    struct room *room, *tmp;
    unsigned idle = 0;

    HASH_ITER(hh, p->rooms, room, tmp) {
        if (!is_needed(room) && !room->filled)
            free_room(room);
        else
            idle += !is_needed(room);
    }
    HASH_ITER(hh, p->rooms, room, tmp) {
        if (is_needed(room) || (idle <= NL_ROOMS_KEPT && p->allowance.used < p->allowance.limit / 2))
            continue;
        free_room(room);
        idle--;
    }
}

/* ---- what clients are told ---- */

static void tell_peer(struct room *room, struct nl_peer *peer, struct nl_line **lines, struct nl_slice event,
                      const struct nl_actor *actor) {
    struct nl_line **line = &lines[peer->bigint_as_string];
    struct nl_json_options options = {.bigint_as_string = peer->bigint_as_string};

    if (*line == NULL)
        *line = nl_presence_event_line(event, slug_of(room), actor, options);
    room->p->ops.event(room->p->ops.ctx, peer, NL_EVENT_PRESENCE, nl_line_ref(*line));
}

/* Who is told: those who watch the room, those who hold a presence in it (once, if they watch it too). */
enum { WATCHERS = 1, HOLDERS = 2, ALL = WATCHERS | HOLDERS };

static void tell(struct room *room, const char *event, const struct nl_actor *actor, unsigned whom) {
    struct nl_line *lines[2] = {NULL, NULL};
    struct nl_slice name = nl_slice_str(event);
    struct nl_holder *h;
    struct nl_watch *w;

    DL_FOREACH(room->watches, w) {
        if (w->informed && (whom & WATCHERS))
            tell_peer(room, w->peer, lines, name, actor);
    }
    if ((whom & HOLDERS) && is_fed(room))
        DL_FOREACH(room->p->announcement.holders, h) {
            if (strcmp(h->held.room, room->slug) == 0 && nl_watch_find(h->peer, room) == NULL)
                tell_peer(room, h->peer, lines, name, actor);
        }
    nl_line_unref(lines[0]);
    nl_line_unref(lines[1]);
}

/* An event may come behind the first list that has its actor: those who are told no lists get it then. */
static void tell_untold(struct room *room, const struct nl_actor *actor, bool live) {
    struct nl_roster_entry *e = nl_roster_find(&room->roster, actor->id);

    if (live && e != NULL && e->untold) {
        e->untold = false;
        tell(room, "join", actor, HOLDERS);
    }
}

static void put(struct room *room, const struct nl_actor *actor, bool live) {
    bool all = live || room->filled;

    forget_told(room);
    switch (nl_roster_put(&room->roster, actor->id, actor->whole, nl_actor_digest(actor, room->p->seed))) {
    case NL_ROSTER_JOINED:
        nl_roster_find(&room->roster, actor->id)->untold = !all;
        tell(room, "join", actor, all ? ALL : WATCHERS);
        break;
    case NL_ROSTER_UPDATED:
        tell(room, "update", actor, all ? ALL : WATCHERS);
        break;
    case NL_ROSTER_SAME:
        tell_untold(room, actor, live);
        break;
    case NL_ROSTER_NO_ROOM:
        break;
    }
}

/* An actor leaves with what was known of it left out: only its id is told. */
static void tell_left(struct room *room, struct nl_slice id) {
    struct nl_actor actor = {.id = id};

    tell(room, "leave", &actor, ALL);
}

static void on_left(void *ctx, const struct nl_roster_entry *e) {
    tell_left(ctx, nl_roster_key(e));
}

static void write_roster(struct nl_object *o, const struct room *room, bool with_room, bool bigint) {
    struct nl_json_options options = {.bigint_as_string = bigint};
    struct nl_roster_entry *e, *tmp;
    struct nl_actor actor;

    HASH_ITER(hh, room->roster.entries, e, tmp) {
        if (nl_actor_read(e->value, &actor))
            nl_actor_write(o, NULL, &actor, with_room ? slug_of(room) : nl_slice(NULL, 0), options);
    }
}

static void begin_data(struct nl_object *o) {
    nl_object_begin_rest(o);
    nl_object_open(o, "data", '[');
}

static struct nl_line *end_data(struct nl_object *o) {
    nl_object_close(o, ']');
    return nl_object_line(o);
}

/* The roster of one room as the rest of an answer: a new reference. */
static struct nl_line *room_told(struct room *room, bool bigint) {
    struct nl_object o;

    if (room->told[bigint] == NULL) {
        begin_data(&o);
        write_roster(&o, room, false, bigint);
        room->told[bigint] = end_data(&o);
        room->p->any_told = true;
    }
    return nl_line_ref(room->told[bigint]);
}

/* Those of all rooms. */
static struct nl_line *all_told(struct nl_presence *p, bool bigint) {
    struct room *room, *tmp;
    struct nl_object o;

    if (p->told[bigint] == NULL) {
        begin_data(&o);
        HASH_ITER(hh, p->rooms, room, tmp) {
            write_roster(&o, room, true, bigint);
        }
        p->told[bigint] = end_data(&o);
        p->any_told = true;
    }
    return nl_line_ref(p->told[bigint]);
}

static struct nl_line *watched_line(struct room *room, const struct nl_ask *ask, bool pending) {
    struct nl_object o;

    nl_ask_begin(&o, "presenceWatched", ask);
    nl_object_str(&o, "roomId", slug_of(room));
    if (room->roster.incomplete)
        nl_object_bool(&o, "incomplete", true);
    if (pending)
        nl_object_bool(&o, "pending", true);
    if (!room->filled)
        return nl_object_line(&o);
    return nl_object_line_with(&o, room_told(room, ask->peer->bigint_as_string));
}

/* From here on the watcher is told differences to what this answer shows. */
static void answer_watch(struct room *room, struct nl_ask *ask, bool pending) {
    struct nl_watch *w = nl_watch_find(ask->peer, room);

    if (w != NULL)
        w->informed = true;
    nl_ask_answer(ask, &room->p->ops, watched_line(room, ask, pending));
}

/* The broker's list, but for those whose presence is null, as the rest of answers. */
static struct nl_line *list_told(struct nl_slice list, bool bigint) {
    struct nl_json_options options = {.bigint_as_string = bigint};
    struct nl_raw_iter it;
    struct nl_slice item;
    struct nl_actor actor;
    struct nl_object o;

    begin_data(&o);
    if (nl_raw_array(list, &it))
        while (nl_raw_next(&it, &item)) {
            if (nl_actor_read(item, &actor) && !nl_raw_is_null(actor.presence))
                nl_actor_write(&o, NULL, &actor, nl_slice(NULL, 0), options);
        }
    return end_data(&o);
}

/* told: what was written of the list already. */
static void answer_get(struct room *room, struct nl_ask *ask, struct nl_slice list, struct nl_line **told) {
    struct nl_line **rest = &told[ask->peer->bigint_as_string];
    struct nl_object o;

    if (*rest == NULL)
        *rest = list_told(list, ask->peer->bigint_as_string);
    nl_ask_begin(&o, "presenceList", ask);
    if (room->slug[0] != '\0')
        nl_object_str(&o, "roomId", slug_of(room));
    nl_ask_answer(ask, &room->p->ops, nl_object_line_with(&o, nl_line_ref(*rest)));
}

/* ---- what the broker says ---- */

/* Who holds a presence is not told who was there before; a watcher whose answer was "pending" is. */
static void compare(struct room *room, struct nl_slice list) {
    struct nl_raw_iter it;
    struct nl_slice item;
    struct nl_actor actor;

    forget_told(room);
    nl_roster_begin(&room->roster);
    if (nl_raw_array(list, &it))
        while (nl_raw_next(&it, &item)) {
            if (nl_actor_read(item, &actor) && !nl_raw_is_null(actor.presence))
                put(room, &actor, false);
        }
    nl_roster_end(&room->roster, on_left, room);
    room->filled = room->fresh = true;
}

static bool on_list(struct nl_presence *p, const struct nl_frame *frame, uint64_t now_ms) {
    struct nl_slice slug = NL_FRAME_HAS(frame, room_id) ? frame->room_id : nl_slice(NULL, 0);
    struct nl_slice list = NL_FRAME_HAS(frame, data) ? frame->data : nl_slice(NULL, 0);
    struct room *room = find_room(p, slug);
    struct nl_line *told[2] = {NULL, NULL};
    struct nl_ask *ask, *tmp;

    if (room == NULL || !room->in_flight)
        return false;
    room->in_flight = false;
    p->fetching--;
    p->dirty = true;
    room->fetched_ms = now_ms;
    if (room->slug[0] != '\0')
        compare(room, list);
    DL_FOREACH_SAFE(room->asks, ask, tmp) {
        if (ask->type == NL_REQUEST_WATCH_PRESENCE)
            answer_watch(room, ask, false);
        else
            answer_get(room, ask, list, told);
    }
    forget(told);
    return true;
}

/* Our room may have changed. The new one is fetched when we are there: so our own join comes before its list.
 */
static void follow(struct nl_presence *p) {
    const char *room = p->announcement.sure ? p->announcement.room : NULL;
    bool same = room == NULL ? p->followed == NULL : p->followed != NULL && strcmp(p->followed, room) == 0;

    if (same)
        return;
    free(p->followed);
    p->followed = room == NULL ? NULL : nl_strdup(room);
    if (room != NULL)
        get_room(p, nl_slice_str(room))->wanted = true;
    p->dirty = true;
}

/* Maybe one connection of the actor only is gone: the list tells. */
static void look_after(struct room *room, const struct nl_actor *actor) {
    bool known = nl_roster_find(&room->roster, actor->id) != NULL;

    room->wanted = room->wanted || (known && is_needed(room));
    room->p->dirty = true;
}

/* Null counts as absent. */
static void on_change(struct room *room, const struct nl_actor *actor) {
    if (nl_raw_is_null(actor->presence))
        look_after(room, actor);
    else
        put(room, actor, true);
}

static bool is(struct nl_slice name, const char *text) {
    return nl_slice_equal(name, nl_slice_str(text));
}

/* Tells the announcement what concerns our own actor. */
static void on_own(struct nl_presence *p, struct nl_slice event, const struct nl_actor *actor) {
    if (p->actor == NULL || !is(actor->id, p->actor))
        return;
    if (is(event, "leave"))
        nl_announcement_own_leave(&p->announcement);
    else if (is(event, "join") || is(event, "update"))
        nl_announcement_own_event(&p->announcement, is(event, "join"), actor->presence);
}

static bool on_event(struct nl_presence *p, const struct nl_frame *frame) {
    struct nl_slice event = NL_FRAME_HAS(frame, event) ? frame->event : nl_slice(NULL, 0);
    const char *fed = p->announcement.room;
    struct nl_actor actor;
    struct room *room;

    if (fed == NULL || !NL_FRAME_HAS(frame, data) || !nl_actor_read(frame->data, &actor))
        return false;
    room = get_room(p, nl_slice_str(fed));
    if (is(event, "leave")) {
        on_own(p, event, &actor); /* our own is the border behind which another room begins */
        look_after(room, &actor);
        return true;
    }
    on_own(p, event, &actor);
    if (p->announcement.room != NULL)
        room = get_room(p, nl_slice_str(p->announcement.room));
    if (is(event, "join") || is(event, "update"))
        on_change(room, &actor);
    else if (is(event, "waking"))
        tell(room, "waking", &actor, ALL);
    return true;
}

bool nl_presence_frame(struct nl_presence *p, const struct nl_frame *frame, uint64_t now_ms) {
    bool ours = frame->type == NL_FRAME_PRESENCE_LIST ? on_list(p, frame, now_ms) : on_event(p, frame);

    follow(p);
    return ours;
}

/* ---- fetching ---- */

static void fetch(struct room *room, uint64_t now_ms) {
    struct nl_presence *p = room->p;
    struct nl_frame frame = {.type = NL_FRAME_GET_PRESENCE};

    if (room->slug[0] != '\0')
        NL_FRAME_SET(&frame, room_id, slug_of(room));
    if (!p->ops.send(p->ops.ctx, &frame))
        return;
    room->wanted = false;
    room->in_flight = true;
    room->fence = 0;
    room->sent_ms = now_ms;
    p->fetching++;
    /* To the end: others are before it next time. */
    HASH_DEL(p->rooms, room);
    link_room(p, room);
}

static uint64_t poll_due(const struct room *room) {
    if (room->watches == NULL || is_live(room))
        return UINT64_MAX;
    return room->fetched_ms + room->p->limits.poll_interval_ms;
}

static bool asks_to_watch(const struct room *room, const struct nl_peer *peer) {
    const struct nl_ask *ask;

    DL_FOREACH(room->asks, ask) {
        if (ask->peer == peer && ask->type == NL_REQUEST_WATCH_PRESENCE)
            return true;
    }
    return false;
}

/* Whose watch was never answered watches nothing. */
static void time_out_asks(struct room *room, uint64_t now_ms) {
    struct nl_ask *ask, *tmp;

    DL_FOREACH_SAFE(room->asks, ask, tmp) {
        struct nl_peer *peer = ask->peer;
        struct nl_watch *w;

        if (ask->deadline_ms > now_ms)
            continue;
        w = nl_watch_find(peer, room);
        nl_ask_fail(ask, &room->p->ops, NL_ERROR_TIMEOUT, slug_of(room));
        if (w != NULL && !w->informed && !asks_to_watch(room, peer))
            nl_watch_remove(w);
    }
}

static void step(struct room *room, uint64_t now_ms) {
    struct nl_presence *p = room->p;

    time_out_asks(room, now_ms);
    if (room->in_flight) {
        if (room->fence == 0 && now_ms >= room->sent_ms + p->limits.request_timeout_ms)
            room->fence = p->ops.fence(p->ops.ctx);
        return;
    }
    if (p->up && p->fetching < NL_FETCHES && (room->wanted || poll_due(room) <= now_ms))
        fetch(room, now_ms);
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* 0: it would have been fetched, but the link takes no more. */
static uint64_t room_next(const struct room *room) {
    const struct nl_presence *p = room->p;
    uint64_t next = nl_asks_deadline(room->asks);

    if (room->in_flight)
        return room->fence != 0 ? next : earlier(next, room->sent_ms + p->limits.request_timeout_ms);
    if (!p->up || p->fetching >= NL_FETCHES)
        return next;
    return room->wanted ? 0 : earlier(next, poll_due(room));
}

void nl_presence_run(struct nl_presence *p, uint64_t now_ms) {
    struct room *room, *tmp;

    p->run_ms = now_ms;
    if (p->any_told)
        forget_all_told(p);
    nl_announcement_run(&p->announcement, now_ms);
    follow(p);
    if (!p->dirty && now_ms < p->next_ms)
        return;
    p->dirty = false;
    HASH_ITER(hh, p->rooms, room, tmp) {
        step(room, now_ms);
    }
    prune(p);
    p->next_ms = UINT64_MAX;
    HASH_ITER(hh, p->rooms, room, tmp) {
        p->next_ms = earlier(p->next_ms, room_next(room));
    }
}

uint64_t nl_presence_next(const struct nl_presence *p) {
    return p->dirty && p->rooms != NULL ? 0 : earlier(p->next_ms, nl_announcement_next(&p->announcement));
}

/* The broker has passed a fetch over: it is sent again, as long as somebody needs it. */
void nl_presence_fence_passed(struct nl_presence *p, uint64_t fence, uint64_t now_ms) {
    struct room *room, *tmp;

    nl_announcement_fence_passed(&p->announcement, fence);
    follow(p);
    HASH_ITER(hh, p->rooms, room, tmp) {
        if (!room->in_flight || room->fence == 0 || room->fence > fence)
            continue;
        room->in_flight = false;
        p->fetching--;
        room->wanted = is_fed(room) || room->asks != NULL;
        room->fetched_ms = now_ms;
    }
    p->dirty = true;
}

/* ---- requests ---- */

static void refuse(struct nl_presence *p, struct nl_peer *peer, const struct nl_request *r,
                   enum nl_error error, const char *hint) {
    p->ops.answer(p->ops.ctx, peer, nl_request_error_line(error, r, hint));
}

static bool too_many(struct nl_presence *p, struct nl_peer *peer, const struct nl_request *r) {
    if (!nl_asks_full(peer))
        return false;
    refuse(p, peer, r, NL_ERROR_LIMIT_REACHED, NL_ASKS_HINT);
    return true;
}

/* Deprecated, and nobody is told by the broker; nothing of it is held. */
static void pass_on(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r) {
    struct nl_frame frame = {.type = NL_FRAME_PRESENCE};
    const char *why = NULL;
    struct nl_buffer data;
    struct nl_object o;
    enum nl_error error;

    nl_buffer_init(&data);
    error = nl_msgpack_from_json(&data, r->data, NL_PACK_PLAIN, &why);
    NL_FRAME_SET(&frame, data, nl_slice(data.bytes, data.len));
    if (error == NL_OK && data.len > NL_PRESENCE_MAX) {
        error = NL_ERROR_BAD_PAYLOAD;
        why = "presence data is larger than 65536 bytes, packed";
    }
    if (error == NL_OK && (!p->up || !p->ops.send(p->ops.ctx, &frame)))
        error = NL_ERROR_TIMEOUT;
    nl_buffer_deinit(&data);
    if (error != NL_OK) {
        refuse(p, peer, r, error, why);
        return;
    }
    nl_object_begin(&o, "presenceSet");
    nl_object_id(&o, r->id);
    if (r->id != NULL)
        p->ops.answer(p->ops.ctx, peer, nl_object_line(&o));
    else
        nl_line_unref(nl_object_line(&o));
}

static void on_presence(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    if (r->data == NULL)
        nl_announcement_clear(&p->announcement, peer, r, now_ms);
    else if (r->room.ptr == NULL)
        pass_on(p, peer, r);
    else
        nl_announcement_set(&p->announcement, peer, r, now_ms);
}

static void on_clear(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    nl_announcement_clear(&p->announcement, peer, r, now_ms);
}

/* A list that is on its way serves whoever asks meanwhile. */
static void want(struct room *room) {
    room->wanted = room->wanted || !room->in_flight;
}

/* Waits for the broker as long as any request does, also while the link is down. */
static void on_get(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    struct room *room;

    if (too_many(p, peer, r))
        return;
    room = get_room(p, r->room);
    nl_asks_add(&room->asks, p, peer, r, now_ms + p->limits.request_timeout_ms);
    want(room);
    p->dirty = true;
}

static void on_watch(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    const char *hint = NULL;
    struct room *room;
    struct nl_ask *ask;

    if (too_many(p, peer, r))
        return;
    room = get_room(p, r->room);
    p->dirty = true;
    if (nl_watch_find(peer, room) == NULL &&
        nl_watch_add(&room->watches, p, room, peer, &p->limits.watches, &hint) == NULL) {
        refuse(p, peer, r, NL_ERROR_LIMIT_REACHED, hint);
        return;
    }
    ask = nl_asks_add(&room->asks, p, peer, r, now_ms + p->limits.request_timeout_ms);
    if (!p->up)
        answer_watch(room, ask, true);
    else if (is_live(room) && room->fresh)
        answer_watch(room, ask, false);
    else
        want(room);
}

static void on_unwatch(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    struct room *room = find_room(p, r->room);
    struct nl_watch *w = room == NULL ? NULL : nl_watch_find(peer, room);
    struct nl_ask *ask, *tmp;
    struct nl_object o;

    (void)now_ms;
    if (w == NULL) {
        refuse(p, peer, r, NL_ERROR_NOT_WATCHED, NULL);
        return;
    }
    /* What waits for the first list has its answer before this one. */
    DL_FOREACH_SAFE(room->asks, ask, tmp) {
        if (ask->peer == peer && ask->type == NL_REQUEST_WATCH_PRESENCE)
            answer_watch(room, ask, true);
    }
    nl_watch_remove(w);
    p->dirty = true;
    nl_object_begin(&o, "presenceUnwatched");
    nl_object_id(&o, r->id);
    nl_object_str(&o, "roomId", r->room);
    p->ops.answer(p->ops.ctx, peer, nl_object_line(&o));
}

/* The cached actor: in that room; or, without one, where we are present, or where it is told most lately. */
static struct room *room_of_actor(const struct nl_presence *p, const struct nl_request *r,
                                  struct nl_actor *actor) {
    struct room *room, *tmp, *found = NULL;

    HASH_ITER(hh, p->rooms, room, tmp) {
        struct nl_roster_entry *e = nl_roster_find(&room->roster, r->actor);

        if (e == NULL || (r->room.ptr != NULL && !nl_slice_equal(slug_of(room), r->room)))
            continue;
        if (found != NULL && (is_fed(found) || (is_stale(room) && !is_stale(found))))
            continue;
        if (nl_actor_read(e->value, actor))
            found = room;
    }
    return found;
}

static void on_actor(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    struct nl_actor actor;
    struct room *room = room_of_actor(p, r, &actor);
    struct room *asked = r->room.ptr == NULL ? NULL : find_room(p, r->room);
    struct nl_object o;

    (void)now_ms;
    nl_object_begin(&o, "actor");
    nl_object_id(&o, r->id);
    nl_object_str(&o, "actorTokenId", r->actor);
    if (room != NULL || r->room.ptr != NULL)
        nl_object_str(&o, "roomId", room != NULL ? slug_of(room) : r->room);
    if (room != NULL)
        nl_actor_write(&o, "data", &actor, nl_slice(NULL, 0),
                       (struct nl_json_options){.bigint_as_string = peer->bigint_as_string});
    else
        nl_object_json(&o, "data", nl_slice_str("null"));
    room = room != NULL ? room : asked;
    nl_object_bool(&o, "stale", room == NULL || is_stale(room));
    p->ops.answer(p->ops.ctx, peer, nl_object_line(&o));
}

/* Of one room, which may be unknown, or of all. */
struct listing {
    bool stale, incomplete;
    struct nl_line *told; /* a reference; NULL = nobody */
};

static struct listing list_room(struct room *room, bool bigint) {
    if (room == NULL)
        return (struct listing){.stale = true};
    return (struct listing){is_stale(room), room->roster.incomplete, room_told(room, bigint)};
}

static struct listing list_all(struct nl_presence *p, bool bigint) {
    struct listing all = {.stale = p->rooms == NULL};
    struct room *room, *tmp;

    HASH_ITER(hh, p->rooms, room, tmp) {
        all.stale = all.stale || is_stale(room);
        all.incomplete = all.incomplete || room->roster.incomplete;
    }
    all.told = all_told(p, bigint);
    return all;
}

static void on_list_request(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r,
                            uint64_t now_ms) {
    bool all = r->room.ptr == NULL, bigint = peer->bigint_as_string;
    struct listing l = all ? list_all(p, bigint) : list_room(find_room(p, r->room), bigint);
    struct nl_object o;

    (void)now_ms;
    nl_object_begin(&o, "presenceList");
    nl_object_id(&o, r->id);
    if (!all)
        nl_object_str(&o, "roomId", r->room);
    nl_object_bool(&o, "stale", l.stale);
    if (l.incomplete)
        nl_object_bool(&o, "incomplete", true);
    if (l.told == NULL)
        nl_object_json(&o, "data", nl_slice_str("[]"));
    p->ops.answer(p->ops.ctx, peer, l.told == NULL ? nl_object_line(&o) : nl_object_line_with(&o, l.told));
}

typedef void request_handler(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r,
                             uint64_t now_ms);

static request_handler *const handlers[NL_REQUEST_COUNT] = {
    [NL_REQUEST_PRESENCE] = on_presence,          [NL_REQUEST_CLEAR_PRESENCE] = on_clear,
    [NL_REQUEST_GET_PRESENCE] = on_get,           [NL_REQUEST_GET_ACTOR] = on_actor,
    [NL_REQUEST_LIST_PRESENCE] = on_list_request, [NL_REQUEST_WATCH_PRESENCE] = on_watch,
    [NL_REQUEST_UNWATCH_PRESENCE] = on_unwatch,
};

bool nl_presence_wants(enum nl_request_type type) {
    return handlers[type] != NULL;
}

void nl_presence_request(struct nl_presence *p, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    handlers[r->type](p, peer, r, now_ms);
    follow(p);
}

/* ---- clients and the link ---- */

void nl_presence_leave(struct nl_presence *p, struct nl_peer *peer, uint64_t now_ms) {
    (void)now_ms;
    if (nl_asks_leave(peer, p))
        p->dirty = true;
    nl_announcement_leave(&p->announcement, peer);
    follow(p);
}

void nl_presence_fail_all(struct nl_presence *p, enum nl_error error) {
    struct room *room, *tmp;

    nl_announcement_fail_all(&p->announcement, error);
    HASH_ITER(hh, p->rooms, room, tmp) {
        nl_asks_fail(&room->asks, &p->ops, error, slug_of(room));
    }
    p->dirty = true;
}

void nl_presence_up(struct nl_presence *p, const char *actor, uint64_t now_ms) {
    struct room *room, *tmp;

    (void)now_ms;
    free(p->actor);
    p->actor = actor == NULL ? NULL : nl_strdup(actor);
    p->up = true;
    nl_announcement_up(&p->announcement);
    follow(p);
    HASH_ITER(hh, p->rooms, room, tmp) {
        room->wanted = room->watches != NULL || room->asks != NULL;
    }
    p->dirty = true;
}

void nl_presence_down(struct nl_presence *p, int close_code, uint64_t now_ms) {
    struct room *room, *tmp;
    struct nl_ask *ask, *next;

    (void)now_ms;
    p->up = false;
    p->fetching = 0;
    nl_announcement_down(&p->announcement, close_code);
    follow(p);
    HASH_ITER(hh, p->rooms, room, tmp) {
        room->in_flight = room->wanted = room->fresh = false;
        DL_FOREACH_SAFE(room->asks, ask, next) {
            if (ask->type == NL_REQUEST_WATCH_PRESENCE)
                answer_watch(room, ask, true);
        }
    }
    p->dirty = true;
}

bool nl_presence_suspected(const struct nl_presence *p) {
    return nl_announcement_suspected(&p->announcement);
}

uint64_t nl_presence_oldest(const struct nl_presence *p) {
    return nl_announcement_oldest(&p->announcement);
}

struct nl_presence *nl_presence_free(struct nl_presence *p) {
    struct room *room, *tmp;

    if (p == NULL)
        return NULL;
    nl_announcement_deinit(&p->announcement);
    HASH_ITER(hh, p->rooms, room, tmp) {
        room->in_flight = false;
        free_room(room);
    }
    free(p->followed);
    free(p->actor);
    free(p);
    return NULL;
}
