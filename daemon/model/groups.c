/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/groups.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"
#include "protocol/object.h"

/* The watch of one line. It may live longer than the message is that client's: then work is NULL. */
struct ticket {
    struct nl_line_watch watch; /* first */
    struct nl_work *work;
};

/* The messages of a group that wait and have one filter, by order: a worker with filters finds what it can
 * have without a look at all that waits. */
struct lane {
    struct nl_work *works; /* linked by lane_prev, lane_next; never NULL */
    struct nl_work *hint;  /* near which the next one may belong; or NULL */
    UT_hash_handle hh;     /* in nl_group.lanes */
    char key[];
};

/* An event in its place between the messages that were there before it came and those behind. */
struct mark {
    struct nl_line *line;
    enum nl_event event;
    uint64_t order;
    struct mark *prev, *next; /* in nl_group.marks */
};

/* A message that waits or is outstanding. */
struct nl_work {
    struct nl_group *group;
    struct nl_worker *worker; /* NULL = it waits */
    struct ticket *ticket;    /* its line is on the way */
    uint8_t *frame;
    size_t len;
    struct nl_slice key, msg_id; /* views into frame */
    uint64_t msg_hash;
    struct nl_receipt *receipt;
    uint64_t order;      /* of arrival, over all groups */
    uint64_t serial;     /* of the message */
    uint64_t ack_id;     /* manual, outstanding */
    uint64_t lost_at_ms; /* nobody's filters match: until then; 0 = somebody's do */
    bool settling, redelivered;
    struct nl_work *prev, *next; /* in nl_group.waiting or nl_worker.outstanding */
    struct lane *lane;           /* while it waits; NULL = it has no filter */
    struct nl_work *lane_prev, *lane_next;
    UT_hash_handle hh;     /* in nl_group.by_hash */
    UT_hash_handle hh_ack; /* in nl_groups.by_ack_id */
    uint64_t msg_key;      /* see msg_key(); while it is in nl_groups.by_msg_id */
    UT_hash_handle hh_msg;
};

/* ---- groups and their places ---- */

void nl_groups_init(struct nl_groups *all, const struct nl_groups_ops *ops) {
    *all = (struct nl_groups){.ops = *ops};
}

void nl_groups_deinit(struct nl_groups *all) {
    for (int i = 0; i <= NL_GROUP_DIRTY; i++)
        assert(all->lists[i] == NULL);
    assert(all->by_ack_id == NULL && all->by_msg_id == NULL && all->bytes == 0);
}

static void move(struct nl_group *g, int place) {
    if ((int)g->place == place)
        return;
    DL_DELETE(g->all->lists[g->place], g);
    g->place = place;
    DL_APPEND(g->all->lists[g->place], g);
}

/* To be looked at in the next run. */
static void stir(struct nl_group *g) {
    bool wake = g->all->lists[NL_GROUP_DIRTY] == NULL;

    move(g, NL_GROUP_DIRTY);
    if (wake)
        g->all->ops.wake(g->all->ops.ctx);
}

void nl_group_touch(struct nl_group *g) {
    g->changed = true;
    stir(g);
}

struct nl_group *nl_group_new(struct nl_groups *all, struct nl_wishes *wishes, struct nl_slice topic,
                              bool shared, void *owner) {
    struct nl_group *g = nl_calloc(1, sizeof(*g));

    g->all = all;
    g->wishes = wishes;
    g->owner = owner;
    g->topic = topic;
    g->shared = shared;
    g->loss_ms = UINT64_MAX;
    DL_APPEND(all->lists[NL_GROUP_IDLE], g);
    return g;
}

bool nl_group_busy(const struct nl_group *g) {
    return g != NULL && g->messages > 0;
}

/* ---- a message's life ---- */

/* Stands for the msgId at that client. */
static uint64_t msg_key(const struct nl_peer *peer, uint64_t msg_hash) {
    return msg_hash + peer->number * UINT64_C(0x9e3779b97f4a7c15);
}

static void note_ack_id(struct nl_work *work) {
    struct nl_groups *all = work->group->all;

    work->ack_id = ++all->ack_ids;
    HASH_ADD(hh_ack, all->by_ack_id, ack_id, sizeof(work->ack_id), work);
    if (work->msg_hash == 0)
        return;
    work->msg_key = msg_key(work->worker->subscription->peer, work->msg_hash);
    HASH_ADD(hh_msg, all->by_msg_id, msg_key, sizeof(work->msg_key), work);
}

static void forget_ack_id(struct nl_work *work) {
    struct nl_groups *all = work->group->all;

    if (work->ack_id == 0)
        return;
    HASH_DELETE(hh_ack, all->by_ack_id, work);
    if (work->msg_hash != 0)
        HASH_DELETE(hh_msg, all->by_msg_id, work);
    work->ack_id = 0;
}

static struct lane *lane_find(const struct nl_group *g, struct nl_slice key) {
    struct lane *lane = NULL;

    if (key.len > 0)
        HASH_FIND(hh, g->lanes, key.ptr, key.len, lane);
    return lane;
}

static struct lane *lane_of(struct nl_group *g, struct nl_slice key) {
    struct lane *lane = lane_find(g, key);

    if (lane != NULL || key.len == 0)
        return lane;
    lane = nl_calloc(1, sizeof(*lane) + key.len);
    memcpy(lane->key, key.ptr, key.len);
    HASH_ADD(hh, g->lanes, key, key.len, lane);
    return lane;
}

/* It waits, behind all others. */
static void wait_last(struct nl_work *work) {
    struct nl_group *g = work->group;

    DL_APPEND(g->waiting, work);
    work->lane = lane_of(g, work->key);
    if (work->lane != NULL)
        DL_APPEND2(work->lane->works, work, lane_prev, lane_next);
}

/* The first of a list, by order, that is newer; NULL = none. It is looked for from hint on, both ways: what
 * comes back together belongs together. */
static struct nl_work *first_newer(struct nl_work *head, struct nl_work *hint, uint64_t order, bool in_lane) {
    struct nl_work *at = hint != NULL ? hint : head;

    while (at != NULL && at != head && (in_lane ? at->lane_prev : at->prev)->order > order)
        at = in_lane ? at->lane_prev : at->prev;
    while (at != NULL && at->order < order)
        at = in_lane ? at->lane_next : at->next;
    return at;
}

/* It waits again, in its old place. */
static void wait_again(struct nl_work *work) {
    struct nl_group *g = work->group;
    struct lane *lane = lane_of(g, work->key);
    struct nl_work *next = first_newer(g->waiting, g->hint, work->order, false);

    DL_PREPEND_ELEM(g->waiting, next, work);
    g->hint = work;
    work->lane = lane;
    if (lane == NULL)
        return;
    next = first_newer(lane->works, lane->hint, work->order, true);
    DL_PREPEND_ELEM2(lane->works, next, work, lane_prev, lane_next);
    lane->hint = work;
}

static void wait_no_more(struct nl_work *work) {
    struct nl_group *g = work->group;
    struct lane *lane = work->lane;

    if (g->hint == work)
        g->hint = work->next;
    DL_DELETE(g->waiting, work);
    if (lane == NULL)
        return;
    work->lane = NULL;
    if (lane->hint == work)
        lane->hint = work->lane_next;
    DL_DELETE2(lane->works, work, lane_prev, lane_next);
    if (lane->works == NULL) {
        HASH_DEL(g->lanes, lane);
        free(lane);
    }
}

/* Takes it away from its worker, or from those that wait. */
static void unlink_work(struct nl_work *work) {
    if (work->worker == NULL) {
        wait_no_more(work);
        return;
    }
    forget_ack_id(work);
    DL_DELETE(work->worker->outstanding, work);
    work->worker->count--;
    work->worker->freed = true;
    work->worker = NULL;
    if (work->ticket != NULL)
        work->ticket->work = NULL;
    work->ticket = NULL;
}

/* Ends it. got: a client has it, so it is not taken again. */
static void finish(struct nl_work *work, bool got) {
    struct nl_group *g = work->group;
    struct nl_receipt *receipt = work->receipt;

    unlink_work(work);
    if (g->shared && work->msg_hash != 0) {
        HASH_DEL(g->by_hash, work);
        if (got)
            nl_seen_add(&g->wishes->seen, work->msg_hash);
        if (got && work->settling)
            nl_seen_add(&g->wishes->retained, work->msg_hash);
    }
    g->messages--;
    g->bytes -= work->len;
    g->all->bytes -= work->len;
    free(work->frame);
    free(work);
    nl_receipt_release(receipt, got);
}

static void lose(struct nl_work *work) {
    work->group->all->lost++;
    finish(work, false);
}

static void give_back(struct nl_work *work) {
    struct nl_group *g = work->group;

    unlink_work(work);
    work->redelivered = true;
    wait_again(work);
    nl_group_touch(g);
}

static void mark_free(struct nl_group *g, struct mark *mark) {
    DL_DELETE(g->marks, mark);
    g->mark_count--;
    nl_line_unref(mark->line);
    free(mark);
}

struct nl_group *nl_group_free(struct nl_group *g) {
    if (g == NULL)
        return NULL;
    assert(g->workers == NULL);
    while (g->waiting != NULL) {
        g->all->lost += g->shared;
        finish(g->waiting, false);
    }
    while (g->marks != NULL)
        mark_free(g, g->marks);
    DL_DELETE(g->all->lists[g->place], g);
    free(g);
    return NULL;
}

/* ---- workers ---- */

void nl_group_join(struct nl_group *g, struct nl_subscription *sub, bool manual, uint32_t prefetch) {
    struct nl_worker *worker = nl_calloc(1, sizeof(*worker));

    worker->subscription = sub;
    worker->group = g;
    worker->manual = manual;
    worker->prefetch = prefetch;
    worker->turn = g->all->turns;
    worker->heard = g->all->serial;
    sub->worker = worker;
    DL_APPEND(g->workers, worker);
}

void nl_group_leave(struct nl_subscription *sub) {
    struct nl_worker *worker = sub->worker;
    struct nl_group *g = worker->group;

    while (worker->outstanding != NULL)
        give_back(worker->outstanding);
    DL_DELETE(g->workers, worker);
    sub->worker = NULL;
    free(worker);
    nl_group_touch(g);
}

static bool may_have_more(const struct nl_worker *worker, uint64_t now_ms) {
    return !worker->failed && worker->rests_until_ms <= now_ms &&
           (worker->prefetch == 0 || worker->count < worker->prefetch);
}

/* The next event that the worker is to hear; NULL = none waits. */
static const struct mark *next_mark(const struct nl_worker *worker) {
    const struct mark *mark;

    DL_FOREACH(worker->group->marks, mark) {
        if (mark->order > worker->heard)
            return mark;
    }
    return NULL;
}

/* Has it to hear an event first? */
static bool held_back(const struct nl_worker *worker, const struct nl_work *work) {
    const struct mark *mark = next_mark(worker);

    return mark != NULL && mark->order < work->order;
}

/* Who gets a message: the best so far, while all whose filters match are gone through. */
struct choice {
    const struct nl_work *work; /* NULL: only whether somebody's match */
    struct nl_worker *best;
    bool matched;
    uint64_t now_ms;
};

static void consider(void *ctx, struct nl_subscription *sub) {
    struct choice *c = ctx;
    struct nl_worker *worker = sub->worker;

    if (worker == NULL)
        return;
    c->matched = true;
    if (c->work == NULL || !may_have_more(worker, c->now_ms) || held_back(worker, c->work))
        return;
    if (c->best == NULL || worker->count < c->best->count ||
        (worker->count == c->best->count && worker->turn < c->best->turn))
        c->best = worker;
}

static void look(const struct nl_group *g, struct nl_slice key, struct choice *c) {
    if (g->shared)
        nl_wishes_each(g->wishes, key, consider, c);
    else if (g->workers != NULL)
        consider(c, g->workers->subscription); /* the topic has matched it */
}

static bool anyone_matches(const struct nl_group *g, struct nl_slice key) {
    struct choice c = {0};

    look(g, key, &c);
    return c.matched;
}

static struct choice choose(const struct nl_work *work, uint64_t now_ms) {
    struct choice c = {.work = work, .now_ms = now_ms};

    look(work->group, work->key, &c);
    return c;
}

/* ---- handing out ---- */

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* The line is gone: written, or thrown away. */
static void on_line_end(struct nl_line_watch *watch) {
    struct ticket *ticket = (struct ticket *)(void *)watch;
    struct nl_work *work = ticket->work;
    bool taken = watch->taken;

    free(ticket);
    if (work == NULL)
        return;
    work->ticket = NULL;
    if (!taken) {
        work->worker->failed = true;
        give_back(work);
    } else if (work->ack_id == 0) {
        finish(work, true);
    }
}

static void hand(struct nl_work *work, struct nl_worker *worker) {
    struct nl_group *g = work->group;
    struct ticket *ticket = nl_calloc(1, sizeof(*ticket));
    struct nl_handout h = {.frame = nl_slice(work->frame, work->len),
                           .redelivered = work->redelivered,
                           .serial = work->serial,
                           .watch = &ticket->watch};

    unlink_work(work);
    ticket->watch = (struct nl_line_watch){.holds = 1, .done = on_line_end};
    ticket->work = work;
    work->ticket = ticket;
    work->worker = worker;
    work->lost_at_ms = 0;
    DL_APPEND(worker->outstanding, work);
    worker->count++;
    worker->turn = ++g->all->turns;
    if (worker->manual) {
        note_ack_id(work);
        h.ack_id = work->ack_id;
    }
    g->all->ops.hand(g->all->ops.ctx, worker->subscription->peer, &h);
    nl_line_watch_release(&ticket->watch, false); /* maybe it was thrown away already */
}

static void tell_workers(struct nl_group *g, enum nl_event event, struct nl_line *line) {
    struct nl_worker *worker;

    DL_FOREACH(g->workers, worker) {
        g->all->ops.event(g->all->ops.ctx, worker->subscription->peer, event, nl_line_ref(line));
    }
}

/* Nobody's filters match: how long it waits for one whose do is counted from now on, or from when nobody is
 * on the way. Past that it is lost. */
static void let_linger(struct nl_work *work, uint64_t now_ms) {
    struct nl_group *g = work->group;

    if (work->lost_at_ms == 0 || g->all->ops.awaited(g->all->ops.ctx, g->owner, work->key))
        work->lost_at_ms = now_ms + NL_GROUP_LINGER_MS;
    if (work->lost_at_ms <= now_ms)
        lose(work);
    else
        g->loss_ms = earlier(g->loss_ms, work->lost_at_ms);
}

static void hand_or_keep(struct nl_work *work, uint64_t now_ms) {
    struct choice c = choose(work, now_ms);

    if (c.best != NULL)
        hand(work, c.best);
    else if (!c.matched)
        let_linger(work, now_ms);
    else
        work->lost_at_ms = 0;
}

/* Looks at all that waits, and hands out what can be. */
static void hand_out_all(struct nl_group *g, uint64_t now_ms) {
    struct nl_work *work, *tmp;

    g->loss_ms = UINT64_MAX;
    DL_FOREACH_SAFE(g->waiting, work, tmp) {
        hand_or_keep(work, now_ms);
    }
}

static struct nl_work *older(struct nl_work *a, struct nl_work *b) {
    if (a == NULL || b == NULL)
        return a == NULL ? b : a;
    return a->order < b->order ? a : b;
}

/* The oldest that waits and that this worker's filters match. */
static struct nl_work *oldest_for(const struct nl_worker *worker) {
    const struct nl_group *g = worker->group;
    struct nl_work *oldest = g->shared ? NULL : g->waiting; /* not shared: the topic has matched it */
    const struct nl_interest *i;

    LL_FOREACH(worker->subscription->interests, i) {
        const struct lane *lane = lane_find(g, nl_slice(i->key->name, i->key->len));

        if (i->state == NL_ADDING)
            continue;
        if (i->key->len == 0)
            oldest = older(oldest, g->waiting);
        else if (lane != NULL)
            oldest = older(oldest, lane->works);
    }
    return oldest;
}

static void hear(struct nl_worker *worker, const struct mark *mark) {
    struct nl_groups *all = worker->group->all;

    if (worker->heard >= mark->order)
        return;
    worker->heard = mark->order;
    worker->freed = true;
    all->ops.event(all->ops.ctx, worker->subscription->peer, mark->event, nl_line_ref(mark->line));
}

/* The worker hears the events before which nothing waits for it any more. */
static void pass_marks(struct nl_worker *worker) {
    const struct nl_work *oldest = oldest_for(worker);
    const struct mark *mark;

    while ((mark = next_mark(worker)) != NULL && (oldest == NULL || oldest->order > mark->order))
        hear(worker, mark);
}

/* Events go to each worker in their place among what it gets, and end when all have heard them. */
static void pass_all_marks(struct nl_group *g) {
    uint64_t heard = UINT64_MAX;
    struct nl_worker *worker;

    if (g->marks == NULL)
        return;
    DL_FOREACH(g->workers, worker) {
        pass_marks(worker);
        heard = earlier(heard, worker->heard);
    }
    while (g->marks != NULL && g->marks->order <= heard)
        mark_free(g, g->marks);
}

static struct nl_worker *one_freed(const struct nl_group *g) {
    struct nl_worker *worker;

    DL_FOREACH(g->workers, worker) {
        if (worker->freed)
            return worker;
    }
    return NULL;
}

/* One that may have more than before is given what waits for it; nothing else can have changed for the rest.
 * Another may be the less busy one for a message, and gets that. */
static void hand_to_freed(struct nl_group *g, uint64_t now_ms) {
    struct nl_worker *worker;
    struct nl_work *work;

    for (pass_all_marks(g); (worker = one_freed(g)) != NULL; pass_all_marks(g)) {
        worker->freed = false;
        while (may_have_more(worker, now_ms) && (work = oldest_for(worker)) != NULL &&
               !held_back(worker, work))
            hand(work, choose(work, now_ms).best);
    }
}

static void tell_dropped(struct nl_group *g, uint64_t now_ms) {
    struct nl_object o;
    struct nl_line *line;

    if (g->dropped == 0 || now_ms < g->told_ms + NL_GROUP_REST_MS)
        return;
    nl_object_begin(&o, "dropped");
    nl_object_int(&o, "count", (int64_t)g->dropped);
    nl_object_str(&o, "topic", g->topic);
    line = nl_object_line(&o);
    tell_workers(g, NL_EVENT_DROPPED, line);
    nl_line_unref(line);
    g->dropped = 0;
    g->told_ms = now_ms;
}

/* When the passing of time alone changes something for the group. */
static uint64_t group_due(const struct nl_group *g, uint64_t now_ms) {
    uint64_t due = g->dropped > 0 ? g->told_ms + NL_GROUP_REST_MS : UINT64_MAX;
    const struct nl_worker *worker;

    due = earlier(due, g->loss_ms);
    DL_FOREACH(g->workers, worker) {
        if (g->waiting != NULL && worker->rests_until_ms > now_ms)
            due = earlier(due, worker->rests_until_ms);
    }
    return due;
}

/* Those that have rested may have more now. */
static void end_rests(struct nl_group *g, uint64_t now_ms) {
    struct nl_worker *worker;

    DL_FOREACH(g->workers, worker) {
        if (worker->failed) {
            worker->rests_until_ms = now_ms + NL_GROUP_REST_MS;
        } else if (worker->rests_until_ms != 0 && worker->rests_until_ms <= now_ms) {
            worker->rests_until_ms = 0;
            worker->freed = true;
        }
        worker->failed = false;
    }
}

/* Brings the group forward as far as it goes now. */
static void serve(struct nl_group *g, uint64_t now_ms) {
    end_rests(g, now_ms);
    if (g->changed || g->loss_ms <= now_ms) {
        g->changed = false;
        hand_out_all(g, now_ms);
    }
    hand_to_freed(g, now_ms);
    tell_dropped(g, now_ms);
}

/* After serve(): puts the group where it is found again. A line that was thrown away at once has made it
 * dirty anew. */
static void put_away(struct nl_group *g, uint64_t now_ms) {
    const struct nl_worker *worker;

    DL_FOREACH(g->workers, worker) {
        if (worker->failed) {
            nl_group_touch(g);
            return;
        }
    }
    g->due_ms = group_due(g, now_ms);
    move(g, g->due_ms == UINT64_MAX ? NL_GROUP_IDLE : NL_GROUP_TIMED);
}

void nl_groups_run(struct nl_groups *all, uint64_t now_ms) {
    struct nl_group *g, *tmp, *last;

    DL_FOREACH_SAFE(all->lists[NL_GROUP_TIMED], g, tmp) {
        if (g->due_ms <= now_ms)
            move(g, NL_GROUP_DIRTY);
    }
    /* One pass: who is dirty again is behind the others, and waits for the next run. */
    last = all->lists[NL_GROUP_DIRTY] == NULL ? NULL : all->lists[NL_GROUP_DIRTY]->prev;
    while ((g = all->lists[NL_GROUP_DIRTY]) != NULL) {
        bool at_end = g == last;

        serve(g, now_ms);
        move(g, NL_GROUP_IDLE);
        put_away(g, now_ms);
        if (g->workers == NULL && g->messages == 0)
            all->ops.over(all->ops.ctx, g->owner, now_ms);
        if (at_end)
            return;
    }
}

uint64_t nl_groups_next(const struct nl_groups *all) {
    uint64_t next = UINT64_MAX;
    const struct nl_group *g;

    if (all->lists[NL_GROUP_DIRTY] != NULL)
        return 0;
    DL_FOREACH(all->lists[NL_GROUP_TIMED], g) {
        next = earlier(next, g->due_ms);
    }
    return next;
}

/* ---- taking messages ---- */

static bool drop_oldest(struct nl_group *g) {
    if (g->waiting == NULL)
        return false;
    g->dropped++;
    lose(g->waiting);
    nl_group_touch(g);
    return true;
}

static struct nl_group *largest(const struct nl_groups *all) {
    struct nl_group *g, *found = NULL;

    for (int i = 0; i <= NL_GROUP_DIRTY; i++) {
        DL_FOREACH(all->lists[i], g) {
            if (found == NULL || g->bytes > found->bytes)
                found = g;
        }
    }
    return found;
}

static bool make_room(struct nl_group *g, uint64_t bytes) {
    while (g->messages >= NL_GROUP_MESSAGES || g->bytes + bytes > NL_GROUP_BYTES)
        if (!drop_oldest(g))
            return false;
    while (g->all->bytes + bytes > NL_GROUPS_BYTES)
        if (!drop_oldest(largest(g->all)))
            return false;
    return true;
}

/* Was it done with before, or is it being? Then nothing more is to be done, but to acknowledge it again: the
 * broker would not send it if it knew. */
static bool had_before(struct nl_group *g, const struct nl_group_message *a) {
    const struct nl_work *work;

    if (!g->shared || a->msg_hash == 0)
        return false;
    HASH_FIND(hh, g->by_hash, &a->msg_hash, sizeof(a->msg_hash), work);
    if (work != NULL)
        return true;
    if (!nl_wishes_seen(g->wishes, a->msg_hash))
        return false;
    nl_seen_add(&g->wishes->retained, a->msg_hash);
    if (a->receipt != NULL)
        a->receipt->watch.taken = true;
    return true;
}

static struct nl_slice moved(struct nl_slice view, const uint8_t *from, const uint8_t *to) {
    return view.len == 0 ? nl_slice(NULL, 0) : nl_slice(to + (view.ptr - from), view.len);
}

static struct nl_work *work_new(struct nl_group *g, const struct nl_group_message *a) {
    struct nl_work *work = nl_calloc(1, sizeof(*work));
    struct nl_slice whole = a->frame->whole;

    work->group = g;
    work->frame = nl_malloc(whole.len);
    work->len = whole.len;
    memcpy(work->frame, whole.ptr, whole.len);
    work->key = moved(a->key, whole.ptr, work->frame);
    if (NL_FRAME_HAS(a->frame, msg_id))
        work->msg_id = moved(a->frame->msg_id, whole.ptr, work->frame);
    work->msg_hash = a->msg_hash;
    work->settling = a->settling;
    work->serial = a->serial;
    work->order = ++g->all->serial;
    work->receipt = nl_receipt_hold(a->receipt);
    g->messages++;
    g->bytes += work->len;
    g->all->bytes += work->len;
    if (g->shared && work->msg_hash != 0)
        HASH_ADD(hh, g->by_hash, msg_hash, sizeof(work->msg_hash), work);
    wait_last(work);
    return work;
}

bool nl_group_take(struct nl_group *g, const struct nl_group_message *a, uint64_t now_ms) {
    struct nl_work *work;

    if (had_before(g, a))
        return false;
    if (!g->shared && !anyone_matches(g, a->key))
        return false;
    if (!make_room(g, a->frame->whole.len)) {
        g->dropped++;
        g->all->lost++;
        nl_group_touch(g);
        return false;
    }
    hand_to_freed(g, now_ms);
    work = work_new(g, a);
    /* Who has it is open while all that is older is to be looked at again. */
    if (!g->changed)
        hand_or_keep(work, now_ms);
    if (g->waiting != NULL)
        stir(g); /* there may be a time to watch */
    return true;
}

void nl_group_mark(struct nl_group *g, enum nl_event event, struct nl_line *line, uint64_t now_ms) {
    struct mark *mark = nl_calloc(1, sizeof(*mark));
    struct nl_worker *worker;

    mark->line = line;
    mark->event = event;
    mark->order = ++g->all->serial;
    DL_APPEND(g->marks, mark);
    if (++g->mark_count > NL_GROUP_MARKS)
        DL_FOREACH(g->workers, worker) {
            hear(worker, g->marks);
        }
    hand_to_freed(g, now_ms);
}

/* ---- acknowledgement ---- */

struct nl_work *nl_groups_find(const struct nl_groups *all, const struct nl_peer *peer, uint64_t ack_id) {
    struct nl_work *work;

    HASH_FIND(hh_ack, all->by_ack_id, &ack_id, sizeof(ack_id), work);
    return work != NULL && work->worker->subscription->peer == peer ? work : NULL;
}

struct nl_work *nl_groups_find_msg(const struct nl_groups *all, const struct nl_peer *peer,
                                   struct nl_slice msg_id, uint64_t msg_hash) {
    uint64_t key = msg_key(peer, msg_hash);
    struct nl_work *work;

    HASH_FIND(hh_msg, all->by_msg_id, &key, sizeof(key), work);
    return work != NULL && work->worker->subscription->peer == peer && nl_slice_equal(work->msg_id, msg_id)
               ? work
               : NULL;
}

void nl_groups_acknowledge(struct nl_work *work) {
    struct nl_group *g = work->group;

    work->worker->failed = false;
    work->worker->rests_until_ms = 0;
    finish(work, true);
    if (g->waiting != NULL)
        stir(g);
}
