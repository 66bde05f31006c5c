/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/announcement.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "protocol/alloc.h"
#include "protocol/scan.h"
#include "protocol/transcode.h"

#define CLOSE_TOO_LARGE 1009
#define CLOSE_INTERNAL_ERROR 1011

void nl_announcement_init(struct nl_announcement *a, const struct nl_presence_ops *ops, uint64_t deadline_ms,
                          uint64_t seed) {
    *a = (struct nl_announcement){.ops = *ops, .deadline_ms = deadline_ms, .seed = seed};
}

void nl_announcement_deinit(struct nl_announcement *a) {
    assert(a->holders == NULL && a->asks == NULL);
    free(a->room);
    free(a->shown.room);
    free(a->out_room);
}

/* ---- holders ---- */

static void held_clear(struct nl_held *h) {
    free(h->room);
    free(h->data);
    *h = (struct nl_held){0};
}

static struct nl_holder *find(const struct nl_announcement *a, const struct nl_peer *peer) {
    struct nl_holder *h;

    DL_FOREACH(a->holders, h) {
        if (h->peer == peer)
            return h;
    }
    return NULL;
}

static void drop(struct nl_announcement *a, struct nl_holder *h) {
    DL_DELETE(a->holders, h);
    h->peer->present = false;
    held_clear(&h->held);
    held_clear(&h->before);
    free(h);
    a->version++;
}

static bool room_is(const char *room, const char *other) {
    return room != NULL && other != NULL && strcmp(room, other) == 0;
}

/* ---- answers ---- */

static struct nl_line *set_line(const struct nl_announcement *a, const struct nl_ask *ask, bool pending) {
    const char *type = ask->type == NL_REQUEST_PRESENCE ? "presenceSet" : "presenceCleared";
    const struct nl_holder *h = find(a, ask->peer);
    struct nl_object o;

    /* A presence is silent on success, as with the broker. */
    if (ask->type == NL_REQUEST_PRESENCE && ask->id == NULL)
        return NULL;
    nl_ask_begin(&o, type, ask);
    if (h != NULL)
        nl_object_cstr(&o, "roomId", h->held.room);
    if (h != NULL && h != a->holders)
        nl_object_bool(&o, "hidden", true);
    if (pending)
        nl_object_bool(&o, "pending", true);
    return nl_object_line(&o);
}

/* All that was asked up to this version shows now, or will. */
static void settle(struct nl_announcement *a, uint64_t version, bool pending) {
    struct nl_ask *ask, *tmp;

    DL_FOREACH_SAFE(a->asks, ask, tmp) {
        if (ask->mark <= version)
            nl_ask_answer(ask, &a->ops, set_line(a, ask, pending));
    }
}

/* ---- to the broker ---- */

static void send_presence(struct nl_announcement *a, const struct nl_holder *h) {
    static const uint8_t nil = 0xc0;
    const char *room = h == NULL ? a->shown.room : h->held.room;
    struct nl_frame frame = {.type = NL_FRAME_PRESENCE};

    NL_FRAME_SET(&frame, room_id, nl_slice_str(room));
    NL_FRAME_SET(&frame, data, h == NULL ? nl_slice(&nil, 1) : nl_slice(h->held.data, h->held.len));
    a->out_position = a->ops.position(a->ops.ctx);
    if (!a->ops.send(a->ops.ctx, &frame))
        return;
    a->out = true;
    a->again = false;
    a->fence = 0;
    a->out_room = nl_strdup(room);
    a->out_digest = h == NULL ? 0 : h->held.digest;
    a->out_version = a->version;
    a->out_ms = 0; /* the next run knows the time */
    if (a->room == NULL)
        a->room = nl_strdup(room);
}

/* Does the broker have what is wished? */
static bool shows(const struct nl_announcement *a) {
    const struct nl_holder *h = a->holders;

    if (h == NULL)
        return a->shown.room == NULL || a->shown.digest == 0;
    return !a->again && room_is(a->shown.room, h->held.room) && a->shown.digest == h->held.digest;
}

static void sync(struct nl_announcement *a) {
    if (!a->up || a->out)
        return;
    if (shows(a))
        settle(a, a->version, false);
    else
        send_presence(a, a->holders);
}

static void forget_out(struct nl_announcement *a) {
    a->out = false;
    free(a->out_room);
    a->out_room = NULL;
}

static void set_room(struct nl_announcement *a, const char *room) {
    char *copy = room == NULL ? NULL : nl_strdup(room);

    free(a->room);
    a->room = copy;
}

static bool is_out(const struct nl_announcement *a, const struct nl_held *held) {
    return a->out && room_is(held->room, a->out_room) && held->digest == a->out_digest;
}

/* Who has asked for something else since falls back to what is confirmed now. */
static void remember(struct nl_announcement *a) {
    struct nl_holder *h;

    DL_FOREACH(a->holders, h) {
        if (h->version > a->out_version)
            continue;
        held_clear(&h->before);
        h->confirmed = true;
    }
}

static void confirm(struct nl_announcement *a) {
    uint64_t version = a->out_version;

    free(a->shown.room);
    a->shown.room = nl_strdup(a->out_room);
    a->shown.digest = a->out_digest;
    a->sure = true;
    a->struck_version = 0;
    remember(a);
    forget_out(a);
    settle(a, version, false);
    sync(a);
}

/* ---- what does not work ---- */

/* Tells who made a wish for the room of what is on its way, by the answers that it waits for or by an event.
 * until: the version of that wish. */
static void tell_undone(struct nl_announcement *a, struct nl_peer *peer, uint64_t until,
                        enum nl_error error) {
    struct nl_slice room = nl_slice_str(a->out_room);
    struct nl_ask *ask, *tmp;
    bool told = false;

    DL_FOREACH_SAFE(a->asks, ask, tmp) {
        if (ask->peer != peer || ask->mark > until)
            continue;
        nl_ask_fail(ask, &a->ops, error, room);
        told = true;
    }
    if (!told)
        a->ops.event(a->ops.ctx, peer, NL_EVENT_ERROR, nl_ask_error_event(error, "roomId", room, NULL));
}

/* The holder has what it had before, if anything. */
static void fall_back(struct nl_announcement *a, struct nl_holder *h) {
    if (h->before.room == NULL) {
        drop(a, h);
        return;
    }
    held_clear(&h->held);
    h->held = h->before;
    h->before = (struct nl_held){0};
    h->confirmed = true;
    h->version = ++a->version;
}

/* What is on its way will not show. */
static void undo(struct nl_announcement *a, struct nl_holder *h, enum nl_error error) {
    tell_undone(a, h->peer, a->out_version, error);
    if (is_out(a, &h->held))
        fall_back(a, h);
    else
        held_clear(&h->before); /* it has asked for something else since */
}

/* The room is none: what else was asked for there will not show either. */
static void undo_room(struct nl_announcement *a) {
    struct nl_holder *h, *tmp;

    DL_FOREACH_SAFE(a->holders, h, tmp) {
        if (h->confirmed || !room_is(h->held.room, a->out_room))
            continue;
        tell_undone(a, h->peer, UINT64_MAX, NL_ERROR_UNKNOWN_ROOM);
        fall_back(a, h);
    }
}

/* Whose presence is on its way; NULL when that has gone meanwhile. */
static struct nl_holder *holder_of_out(const struct nl_announcement *a) {
    struct nl_holder *h;

    DL_FOREACH(a->holders, h) {
        /* A later wish for the same is not what was sent. */
        if ((h->version <= a->out_version && is_out(a, &h->held)) || is_out(a, &h->before))
            return h;
    }
    return NULL;
}

/* We did not move. An own leave that looked like the border was of another connection: we announce again. */
static void stay(struct nl_announcement *a) {
    const char *room = a->sure ? a->shown.room : NULL;

    a->again = a->again || (room != NULL && !room_is(a->room, room));
    set_room(a, room);
}

/* The broker passed it over. */
static void unknown_room(struct nl_announcement *a) {
    struct nl_holder *h = holder_of_out(a);

    /* Null, or what nobody holds any more: nobody is to be told. */
    if (a->out_digest == 0) {
        free(a->shown.room);
        a->shown = (struct nl_held){0};
    }
    stay(a);
    if (h != NULL)
        undo(a, h, NL_ERROR_UNKNOWN_ROOM);
    if (!room_is(a->shown.room, a->out_room))
        undo_room(a);
    forget_out(a);
    a->struck_version = 0; /* it was passed over and closed nothing */
    sync(a);
}

/* ---- requests ---- */

static void refuse(struct nl_announcement *a, struct nl_peer *peer, const struct nl_request *r,
                   enum nl_error error, const char *hint) {
    a->ops.answer(a->ops.ctx, peer, nl_request_error_line(error, r, hint));
}

static bool too_many(struct nl_announcement *a, struct nl_peer *peer, const struct nl_request *r) {
    if (!nl_asks_full(peer))
        return false;
    refuse(a, peer, r, NL_ERROR_LIMIT_REACHED, NL_ASKS_HINT);
    return true;
}

/* Somebody else holds a presence in another room. */
static bool conflicts(const struct nl_announcement *a, const struct nl_peer *peer, struct nl_slice room) {
    const struct nl_holder *h;

    DL_FOREACH(a->holders, h) {
        if (h->peer != peer && !nl_slice_equal(nl_slice_str(h->held.room), room))
            return true;
    }
    return false;
}

/* Makes the client the newest holder, of what it asks for. */
static void hold(struct nl_announcement *a, struct nl_peer *peer, const struct nl_request *r,
                 struct nl_buffer *data) {
    struct nl_holder *h = find(a, peer);

    if (h == NULL) {
        h = nl_calloc(1, sizeof(*h));
        h->peer = peer;
        peer->present = true;
    } else {
        DL_DELETE(a->holders, h);
        if (h->confirmed || is_out(a, &h->held)) {
            held_clear(&h->before);
            h->before = h->held;
        } else {
            held_clear(&h->held);
        }
    }
    DL_PREPEND(a->holders, h);
    h->held = (struct nl_held){.room = nl_strndup((const char *)r->room.ptr, r->room.len),
                               .digest = nl_digest(nl_slice(data->bytes, data->len), a->seed)};
    if (h->held.digest == 0)
        h->held.digest = 1; /* 0 is null's */
    h->held.data = nl_buffer_take(data, &h->held.len);
    h->version = ++a->version;
    h->confirmed = false;
}

/* Answers what waits for the broker, or, while it is not there, at once. */
static void ask(struct nl_announcement *a, struct nl_peer *peer, struct nl_request *r) {
    nl_asks_add(&a->asks, a, peer, r, UINT64_MAX)->mark = a->version;
    if (!a->up)
        settle(a, a->version, true);
    sync(a);
}

static enum nl_error pack(struct nl_buffer *data, const struct nl_request *r, const char **why) {
    enum nl_error error = nl_msgpack_from_json(data, r->data, NL_PACK_PLAIN, why);

    if (error != NL_OK || data->len <= NL_PRESENCE_MAX)
        return error;
    *why = "presence data is larger than 65536 bytes, packed";
    return NL_ERROR_BAD_PAYLOAD;
}

void nl_announcement_set(struct nl_announcement *a, struct nl_peer *peer, struct nl_request *r,
                         uint64_t now_ms) {
    const char *why = NULL;
    enum nl_error error;
    struct nl_buffer data;

    (void)now_ms;
    if (too_many(a, peer, r))
        return;
    if (conflicts(a, peer, r->room)) {
        refuse(
            a, peer, r, NL_ERROR_WISH_CONFLICT,
            "another client of this session is present in another room, and one connection is in one room");
        return;
    }
    nl_buffer_init(&data);
    error = pack(&data, r, &why);
    if (error != NL_OK) {
        refuse(a, peer, r, error, why);
    } else {
        hold(a, peer, r, &data);
        ask(a, peer, r);
    }
    nl_buffer_deinit(&data);
}

void nl_announcement_clear(struct nl_announcement *a, struct nl_peer *peer, struct nl_request *r,
                           uint64_t now_ms) {
    struct nl_holder *h = find(a, peer);

    (void)now_ms;
    if (too_many(a, peer, r))
        return;
    if (h == NULL || (r->room.ptr != NULL && !nl_slice_equal(nl_slice_str(h->held.room), r->room))) {
        refuse(a, peer, r, NL_ERROR_NOT_PRESENT, NULL);
        return;
    }
    drop(a, h);
    ask(a, peer, r);
}

void nl_announcement_leave(struct nl_announcement *a, struct nl_peer *peer) {
    struct nl_holder *h = find(a, peer);

    nl_asks_leave(peer, a);
    if (h == NULL)
        return;
    drop(a, h);
    sync(a);
}

void nl_announcement_fail_all(struct nl_announcement *a, enum nl_error error) {
    nl_asks_fail(&a->asks, &a->ops, error, nl_slice(NULL, 0));
}

/* ---- the link ---- */

void nl_announcement_up(struct nl_announcement *a) {
    a->up = true;
    sync(a);
}

/* The first such close makes it a suspect, the second one is proof. */
static void judge(struct nl_announcement *a, int close_code) {
    struct nl_holder *h = holder_of_out(a);

    if ((close_code != CLOSE_TOO_LARGE && close_code != CLOSE_INTERNAL_ERROR) || h == NULL)
        return;
    if (a->struck_version == h->version)
        undo(a, h, NL_ERROR_BROKER_REJECTED);
    else
        a->struck_version = h->version;
}

void nl_announcement_down(struct nl_announcement *a, int close_code) {
    a->up = false;
    if (a->out)
        judge(a, close_code);
    forget_out(a);
    a->sure = a->again = false;
    set_room(a, NULL);
    free(a->shown.room);
    a->shown = (struct nl_held){0};
    settle(a, a->version, true);
}

static bool moving(const struct nl_announcement *a) {
    return a->out && a->room != NULL && strcmp(a->room, a->out_room) != 0;
}

void nl_announcement_own_event(struct nl_announcement *a, bool join, struct nl_slice data) {
    bool null = data.len == 0 || data.ptr[0] == 0xc0;
    uint64_t digest = null ? 0 : nl_digest(data, a->seed);

    if (!a->out || (null ? 0 : digest + (digest == 0)) != a->out_digest)
        return;
    /* A broker that tells us no leave of our own still tells the join. */
    if (moving(a) && join)
        set_room(a, a->out_room);
    if (!moving(a))
        confirm(a);
}

void nl_announcement_own_leave(struct nl_announcement *a) {
    if (moving(a)) {
        set_room(a, a->out_room);
        return;
    }
    if (a->holders == NULL)
        return;
    a->again = true;
    sync(a);
}

void nl_announcement_fence_passed(struct nl_announcement *a, uint64_t fence) {
    if (a->out && a->fence != 0 && a->fence <= fence)
        unknown_room(a);
}

void nl_announcement_run(struct nl_announcement *a, uint64_t now_ms) {
    sync(a);
    if (!a->out)
        return;
    if (a->out_ms == 0)
        a->out_ms = now_ms == 0 ? 1 : now_ms;
    if (a->fence == 0 && a->up && now_ms >= a->out_ms + a->deadline_ms)
        a->fence = a->ops.fence(a->ops.ctx);
}

uint64_t nl_announcement_next(const struct nl_announcement *a) {
    if (!a->up)
        return UINT64_MAX;
    if (!a->out)
        return shows(a) ? UINT64_MAX : 0;
    if (a->fence != 0)
        return UINT64_MAX;
    return a->out_ms == 0 ? 0 : a->out_ms + a->deadline_ms;
}

bool nl_announcement_suspected(const struct nl_announcement *a) {
    const struct nl_holder *h = a->out && a->struck_version != 0 ? holder_of_out(a) : NULL;

    return h != NULL && h->version == a->struck_version;
}

uint64_t nl_announcement_oldest(const struct nl_announcement *a) {
    return a->out ? a->out_position : UINT64_MAX;
}
