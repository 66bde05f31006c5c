/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outbox of a session: see outbox.h for what it promises.
 *
 * An entry is on two lists at a time: on "all", in the order pushed, which is the order of deadlines because
 * one ttl holds for the whole outbox; and either on its lane's "waiting" or on the outbox's "in_flight". A
 * lane is one client's queue. A home is one uid's ring of lanes; the outbox has a ring of homes. Only lanes
 * with waiting entries are in a ring, and only homes with such lanes, so the next entry is always the head of
 * the head of the head. Who was served goes to the end of its ring.
 *
 * A lane lives as long as it has entries, a home as long as it has lanes. The outbox owns them, and the
 * entries until done has returned. done is always the last thing that happens to an entry, when the outbox is
 * consistent again: it may push and forget.
 */
#include "daemon/model/outbox.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/model/backoff.h"
#include "protocol/alloc.h"

#define uthash_malloc(size) nl_malloc(size)
#include <uthash.h>
#include <utlist.h>

#define MAX_IN_FLIGHT 256
#define BURST 10
#define SLOW_MS 10000
#define SLOW_RATE_WITHOUT_LIMIT 25 /* half of what the broker is known to take */
#define BLOCKED_RETRY_MS 10
#define RETRY_AFTER_DOWN_MS 1000
#define RETRY_AFTER_MIN_MS 100
#define KEPT_SCRATCH (64 * 1024) /* a frame can have 1 MiB; an idle outbox should not */

/* Tokens a publish costs: so many that half a rate, and nine tenths of one, are whole numbers. */
#define COST 20

#define CLOSE_TOO_BIG 1009
#define CLOSE_INTERNAL_ERROR 1011
#define CODE_RATE_LIMIT 42910

/* When the next publish may go. Copied to look ahead. */
struct pace {
    struct nl_bucket bucket;
    uint64_t rate;          /* the bucket's when not slow; 0 = no limit */
    uint64_t slow_until_ms; /* 0 = not slow */
};

struct nl_outbox_lane {
    void *owner; /* NULL when it is gone; then the lane is not in nl_outbox.lanes */
    struct home *home;
    struct nl_publish *waiting; /* by seq; linked by nl_publish.prev and next */
    uint64_t entries, bytes;    /* waiting or in flight */
    struct nl_outbox_lane *prev, *next;
    UT_hash_handle hh;
};

struct home {
    uid_t uid;
    struct nl_outbox_lane *ring; /* lanes with waiting entries; linked by nl_outbox_lane.prev and next */
    uint64_t lanes;              /* with entries of any kind */
    uint64_t entries, bytes;     /* of all its lanes */
    struct home *prev, *next;
    UT_hash_handle hh;
};

struct nl_outbox {
    struct nl_outbox_limits limits;
    struct nl_outbox_ops ops;
    struct pace pace;
    struct nl_outbox_lane *lanes; /* by owner; linked by nl_outbox_lane.hh */
    struct home *homes;           /* by uid; linked by home.hh */
    struct home *ring;            /* homes with waiting entries; linked by home.prev and next */
    struct nl_publish *all;       /* by seq; linked by nl_publish.older and newer */
    struct nl_publish *in_flight; /* by ref; linked by nl_publish.prev and next */
    struct nl_publish *suspect;   /* waiting or in flight */
    uint64_t messages, bytes, flying;
    uint64_t last_seq, last_ref;
    bool up;
    bool unanswered;
    bool blocked; /* send said false in the last run */
    bool running;
    struct nl_buffer frame, filter; /* scratch for encoding */
};

struct nl_publish *nl_publish_new(void) {
    return nl_calloc(1, sizeof(struct nl_publish));
}

struct nl_publish *nl_publish_free(struct nl_publish *p) {
    if (!p)
        return NULL;
    free(p->topic);
    free(p->data);
    free(p->filter_key);
    free(p->id);
    free(p->msg_ref);
    free(p);
    return NULL;
}

/* --- pace --- */

/*
 * Burst plus one second's refill is publish_rate. A rate of 1 cannot be split, so it is not used up: at 0.9
 * two publishes are never in one second, wherever that begins.
 */
static void pace_init(struct pace *pace, uint64_t publish_rate, uint64_t now_ms) {
    uint64_t burst = publish_rate >= 2 * BURST || publish_rate == 0 ? BURST : publish_rate / 5;
    if (burst == 0)
        burst = 1;
    uint64_t rate = publish_rate ? publish_rate - burst : 0;
    *pace = (struct pace){.rate = rate > UINT64_MAX / COST ? 0 : rate * COST};
    if (publish_rate == 1)
        pace->rate = COST * 9 / 10;
    nl_bucket_init(&pace->bucket, pace->rate, burst * COST, now_ms);
}

/* Ends the slow time at its own end, not when somebody comes to look. */
static void pace_settle(struct pace *pace, uint64_t now_ms) {
    if (pace->slow_until_ms == 0 || now_ms < pace->slow_until_ms)
        return;
    nl_bucket_set_rate(&pace->bucket, pace->rate, pace->slow_until_ms);
    pace->slow_until_ms = 0;
}

static uint64_t pace_take(struct pace *pace, uint64_t now_ms) {
    pace_settle(pace, now_ms);
    uint64_t wait = nl_bucket_take_many(&pace->bucket, COST, now_ms);
    if (pace->slow_until_ms && wait > pace->slow_until_ms - now_ms)
        wait = pace->slow_until_ms - now_ms; /* it fills faster from then on */
    return wait;
}

static uint64_t pace_wait(const struct pace *pace, uint64_t now_ms) {
    struct pace copy = *pace;
    return pace_take(&copy, now_ms);
}

static void pace_slow_down(struct pace *pace, uint64_t now_ms) {
    pace_settle(pace, now_ms);
    nl_bucket_set_rate(&pace->bucket, pace->rate ? pace->rate / 2 : SLOW_RATE_WITHOUT_LIMIT * COST, now_ms);
    nl_bucket_drain(&pace->bucket, now_ms);
    pace->slow_until_ms = now_ms + SLOW_MS;
}

/* --- lanes and homes --- */

static struct home *find_or_make_home(struct nl_outbox *o, uid_t uid) {
    struct home *home;
    HASH_FIND(hh, o->homes, &uid, sizeof(uid), home);
    if (!home) {
        home = nl_calloc(1, sizeof(*home));
        home->uid = uid;
        HASH_ADD(hh, o->homes, uid, sizeof(home->uid), home);
    }
    return home;
}

static struct nl_outbox_lane *find_or_make_lane(struct nl_outbox *o, void *owner, uid_t uid) {
    struct nl_outbox_lane *lane;
    HASH_FIND_PTR(o->lanes, &owner, lane);
    if (!lane) {
        lane = nl_calloc(1, sizeof(*lane));
        lane->owner = owner;
        lane->home = find_or_make_home(o, uid);
        lane->home->lanes++;
        HASH_ADD_PTR(o->lanes, owner, lane);
    }
    return lane;
}

static void free_lane_if_empty(struct nl_outbox *o, struct nl_outbox_lane *lane) {
    if (lane->entries)
        return;
    struct home *home = lane->home;
    if (lane->owner)
        HASH_DEL(o->lanes, lane);
    free(lane);
    if (--home->lanes)
        return;
    HASH_DEL(o->homes, home);
    free(home);
}

static void enter_rings(struct nl_outbox *o, struct nl_outbox_lane *lane) {
    struct home *home = lane->home;
    if (!home->ring)
        DL_APPEND(o->ring, home);
    DL_APPEND(home->ring, lane);
}

static void leave_rings(struct nl_outbox *o, struct nl_outbox_lane *lane) {
    struct home *home = lane->home;
    DL_DELETE(home->ring, lane);
    if (!home->ring)
        DL_DELETE(o->ring, home);
}

/* Lane and home had their turn: they go behind the others, as far as they are in the rings at all. */
static void end_turn(struct nl_outbox *o, struct nl_outbox_lane *lane) {
    struct home *home = lane->home;
    if (lane->waiting) {
        DL_DELETE(home->ring, lane);
        DL_APPEND(home->ring, lane);
    }
    if (home->ring) {
        DL_DELETE(o->ring, home);
        DL_APPEND(o->ring, home);
    }
}

/*
 * Puts p where its seq belongs. That is the end when it is new; when it comes back it is the head or close to
 * it: only what was in flight together with p can be older.
 */
static void enqueue(struct nl_outbox *o, struct nl_publish *p) {
    struct nl_outbox_lane *lane = p->lane;
    if (!lane->waiting)
        enter_rings(o, lane);
    struct nl_publish *at = lane->waiting;
    if (at && at->prev->seq < p->seq)
        at = NULL; /* prev of the head is the tail */
    while (at && at->seq < p->seq)
        at = at->next;
    DL_PREPEND_ELEM(lane->waiting, at, p);
}

static void dequeue(struct nl_outbox *o, struct nl_publish *p) {
    DL_DELETE(p->lane->waiting, p);
    if (!p->lane->waiting)
        leave_rings(o, p->lane);
}

/* --- entries --- */

static void land(struct nl_outbox *o, struct nl_publish *p) {
    DL_DELETE(o->in_flight, p);
    p->in_flight = false;
    o->flying--;
}

static void launch(struct nl_outbox *o, struct nl_publish *p) {
    dequeue(o, p);
    end_turn(o, p->lane);
    p->in_flight = true;
    o->flying++;
    DL_APPEND(o->in_flight, p);
}

static void acquit(struct nl_outbox *o, struct nl_publish *p) {
    p->suspect = false;
    if (o->suspect == p)
        o->suspect = NULL;
}

/* It comes to the sums, or goes from them. */
static void count(struct nl_outbox *o, const struct nl_publish *p, bool comes) {
    uint64_t one = comes ? 1 : UINT64_MAX, bytes = comes ? p->data_len : 0 - (uint64_t)p->data_len;

    o->messages += one;
    o->bytes += bytes;
    p->lane->entries += one;
    p->lane->bytes += bytes;
    p->lane->home->entries += one;
    p->lane->home->bytes += bytes;
}

/* Takes an entry off everything; it is the caller's then. */
static void remove_entry(struct nl_outbox *o, struct nl_publish *p) {
    if (p->in_flight)
        land(o, p);
    else
        dequeue(o, p);
    DL_DELETE2(o->all, p, older, newer);
    if (o->suspect == p)
        o->suspect = NULL;
    count(o, p, false);
    free_lane_if_empty(o, p->lane);
    p->lane = NULL;
}

/* done may change the outbox: the caller looks at nothing it has found before. */
static void finish(struct nl_outbox *o, struct nl_publish *p, enum nl_error error,
                   const struct nl_frame *broker_error) {
    remove_entry(o, p);
    o->ops.done(o->ops.ctx, p, (struct nl_outcome){error, broker_error, 0});
    nl_publish_free(p);
}

/* The broker has closed the link because of it, twice. */
static void convict(struct nl_outbox *o, struct nl_publish *p, int close_code) {
    remove_entry(o, p);
    o->ops.done(o->ops.ctx, p, (struct nl_outcome){NL_ERROR_BROKER_REJECTED, NULL, close_code});
    nl_publish_free(p);
}

static void requeue(struct nl_outbox *o, struct nl_publish *p) {
    land(o, p);
    enqueue(o, p);
}

struct nl_outbox *nl_outbox_new(const struct nl_outbox_limits *limits, const struct nl_outbox_ops *ops,
                                uint64_t now_ms) {
    struct nl_outbox *o = nl_calloc(1, sizeof(*o));
    o->limits = *limits;
    o->ops = *ops;
    pace_init(&o->pace, limits->publish_rate, now_ms);
    nl_buffer_init(&o->frame);
    nl_buffer_init(&o->filter);
    return o;
}

struct nl_outbox *nl_outbox_free(struct nl_outbox *o) {
    if (!o)
        return NULL;
    while (o->all) {
        struct nl_publish *p = o->all;
        remove_entry(o, p);
        nl_publish_free(p);
    }
    assert(!o->lanes && !o->homes && !o->ring && !o->in_flight && o->messages == 0 && o->bytes == 0);
    nl_buffer_deinit(&o->frame);
    nl_buffer_deinit(&o->filter);
    free(o);
    return NULL;
}

/* Who holds so much may not have what is kept for others. */
static bool is_big(uint64_t held, uint64_t limit) {
    return held >= limit / 8;
}

/*
 * Is there room for more, up to the limit, or up to what is kept for small uids, or for small clients? Of a
 * limit below 8 nothing is kept.
 */
static bool fits(uint64_t used, uint64_t more, uint64_t limit, uint64_t of_lane, uint64_t of_home) {
    uint64_t kept = is_big(of_lane, limit) ? 2 * (limit / 8) : is_big(of_home, limit) ? limit / 8 : 0;

    return used <= limit - kept && more <= limit - kept - used;
}

static bool is_full(const struct nl_outbox *o, const struct nl_publish *p) {
    static const struct home nobody;
    static const struct nl_outbox_lane none;
    const struct home *home;
    const struct nl_outbox_lane *lane;

    HASH_FIND(hh, o->homes, &p->uid, sizeof(p->uid), home);
    HASH_FIND_PTR(o->lanes, &p->owner, lane);
    home = home == NULL ? &nobody : home;
    lane = lane == NULL ? &none : lane;
    return !fits(o->messages, 1, o->limits.max_messages, lane->entries, home->entries) ||
           !fits(o->bytes, p->data_len, o->limits.max_bytes, lane->bytes, home->bytes);
}

static uint64_t room_after(const struct nl_outbox *o, uint64_t now_ms) {
    uint64_t wait = o->up ? pace_wait(&o->pace, now_ms) : RETRY_AFTER_DOWN_MS;
    return wait > RETRY_AFTER_MIN_MS ? wait : RETRY_AFTER_MIN_MS;
}

enum nl_error nl_outbox_push(struct nl_outbox *o, struct nl_publish *p, uint64_t now_ms,
                             uint64_t *retry_after_ms) {
    assert(p->owner);
    if (is_full(o, p)) {
        *retry_after_ms = room_after(o, now_ms);
        return NL_ERROR_OUTBOX_FULL;
    }
    uint64_t ttl_ms = o->limits.ttl_ms;
    p->deadline_ms = ttl_ms && ttl_ms < UINT64_MAX - now_ms ? now_ms + ttl_ms : UINT64_MAX;
    p->seq = ++o->last_seq;
    p->ref = 0;
    p->in_flight = p->redelivered = p->suspect = false;
    p->lane = find_or_make_lane(o, p->owner, p->uid);
    count(o, p, true);
    DL_APPEND2(o->all, p, older, newer);
    enqueue(o, p);
    return NL_OK;
}

/* --- sending --- */

static void encode(struct nl_outbox *o, const struct nl_publish *p, uint64_t number) {
    char ref[24];
    snprintf(ref, sizeof(ref), "%" PRIu64, number);
    struct nl_frame frame = {.type = NL_FRAME_PUBLISH};
    NL_FRAME_SET(&frame, topic, nl_slice_str(p->topic));
    NL_FRAME_SET(&frame, data, nl_slice(p->data, p->data_len));
    nl_buffer_clear(&o->filter);
    if (p->filter_key) {
        nl_pack_str(&o->filter, nl_slice_str(p->filter_key));
        NL_FRAME_SET(&frame, filter, nl_slice(o->filter.bytes, o->filter.len));
    }
    NL_FRAME_SET(&frame, qos, p->qos);
    if (p->retain)
        NL_FRAME_SET(&frame, retain, true);
    NL_FRAME_SET(&frame, echo, p->echo);
    NL_FRAME_SET(&frame, msg_ref, nl_slice_str(ref));
    nl_buffer_clear(&o->frame);
    nl_frame_encode(&frame, &o->frame);
}

static void drop_large_scratch(struct nl_outbox *o) {
    if (o->frame.cap > KEPT_SCRATCH)
        nl_buffer_deinit(&o->frame);
}

/* Whose turn it is, or NULL. A suspect comes before all others, and has the link for itself. */
static struct nl_publish *choose(const struct nl_outbox *o) {
    if (!o->up || o->flying >= MAX_IN_FLIGHT)
        return NULL;
    if (o->suspect)
        return o->suspect->in_flight ? NULL : o->suspect;
    return o->ring ? o->ring->ring->waiting : NULL;
}

/* Returns false when nothing more can be sent now. */
static bool send_one(struct nl_outbox *o, uint64_t now_ms) {
    struct nl_publish *p = choose(o);
    if (!p)
        return false;
    struct pace before = o->pace;
    if (pace_take(&o->pace, now_ms) > 0)
        return false;
    if (o->ops.echo != NULL)
        p->echo = o->ops.echo(o->ops.ctx, p);
    encode(o, p, o->last_ref + 1);
    if (!o->ops.send(o->ops.ctx, nl_slice(o->frame.bytes, o->frame.len))) {
        o->pace = before; /* not sent, not counted */
        o->blocked = true;
        return false;
    }
    p->ref = ++o->last_ref;
    p->sent_ms = now_ms;
    launch(o, p);
    if (o->unanswered)
        finish(o, p, NL_OK, NULL);
    return true;
}

/* The deadlines on "all" rise. What is in flight is passed over: no more than MAX_IN_FLIGHT. */
static void time_out(struct nl_outbox *o, uint64_t now_ms) {
    struct nl_publish *p = o->all;
    while (p && p->deadline_ms <= now_ms) {
        struct nl_publish *newer = p->newer; /* done removes nothing, so this one stays */
        if (!p->in_flight)
            finish(o, p, NL_ERROR_TIMEOUT, NULL);
        p = newer;
    }
}

/*
 * Sends at most what waited when it began: without a pace and without answers, an owner that
 * publishes again from done would hold the loop for ever. nl_outbox_next() says to come again at once.
 */
void nl_outbox_run(struct nl_outbox *o, uint64_t now_ms) {
    if (o->running)
        return;
    o->running = true;
    o->blocked = false;
    time_out(o, now_ms);
    for (uint64_t left = o->messages - o->flying; left && send_one(o, now_ms); left--)
        ;
    drop_large_scratch(o);
    o->running = false;
}

static uint64_t next_deadline(const struct nl_outbox *o) {
    const struct nl_publish *p = o->all;
    while (p && p->in_flight)
        p = p->newer;
    return p ? p->deadline_ms : UINT64_MAX;
}

uint64_t nl_outbox_next(const struct nl_outbox *o, uint64_t now_ms) {
    uint64_t at = next_deadline(o);
    if (at < now_ms)
        at = now_ms;
    if (!choose(o))
        return at;
    uint64_t wait = pace_wait(&o->pace, now_ms);
    if (o->blocked && wait < BLOCKED_RETRY_MS)
        wait = BLOCKED_RETRY_MS;
    return at - now_ms > wait ? now_ms + wait : at;
}

/* --- the link --- */

void nl_outbox_up(struct nl_outbox *o) {
    o->up = true;
    o->blocked = false;
}

/* Oldest first, so that lanes with nothing else to send get their turns in this order. */
static void requeue_all(struct nl_outbox *o) {
    while (o->in_flight) {
        struct nl_publish *p = o->in_flight;
        p->redelivered = true;
        requeue(o, p);
    }
}

bool nl_outbox_down(struct nl_outbox *o, int close_code) {
    struct nl_publish *oldest = o->in_flight;
    bool evidence = close_code == CLOSE_TOO_BIG || close_code == CLOSE_INTERNAL_ERROR;
    o->up = false;
    requeue_all(o);
    if (!evidence || !oldest)
        return false;
    if (oldest->suspect) {
        convict(o, oldest, close_code);
        return true;
    }
    oldest->suspect = true;
    o->suspect = oldest;
    return true;
}

/* Our refs are decimal digits without leading zeros; 0 for anything else. */
static uint64_t parse_ref(struct nl_slice text) {
    uint64_t ref = 0;
    if (text.len == 0 || text.len > 19 || text.ptr[0] == '0')
        return 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return 0;
        ref = ref * 10 + (text.ptr[i] - '0');
    }
    return ref;
}

/* The answer is to the head, as a rule. */
static bool is_in_flight(const struct nl_outbox *o, uint64_t ref) {
    const struct nl_publish *p = o->in_flight;
    while (p && p->ref < ref)
        p = p->next;
    return p && p->ref == ref;
}

static bool is_rate_limit(const struct nl_frame *frame) {
    return (NL_FRAME_HAS(frame, code) && frame->code == CODE_RATE_LIMIT) ||
           (NL_FRAME_HAS(frame, error) && nl_slice_equal(frame->error, nl_slice_str("rate_limit_exceeded")));
}

bool nl_outbox_answer(struct nl_outbox *o, const struct nl_frame *frame, uint64_t now_ms) {
    bool error = frame->type == NL_FRAME_ERROR;
    if ((!error && frame->type != NL_FRAME_PUBLISHED) || !NL_FRAME_HAS(frame, msg_ref))
        return false;
    uint64_t ref = parse_ref(frame->msg_ref);
    if (!is_in_flight(o, ref))
        return false;
    nl_outbox_passed(o, ref - 1);
    struct nl_publish *p = o->in_flight; /* what was before it is gone */
    acquit(o, p);
    if (error && is_rate_limit(frame)) {
        pace_slow_down(&o->pace, now_ms);
        requeue(o, p);
        return true;
    }
    finish(o, p, error ? NL_ERROR_BROKER_REJECTED : NL_OK, error ? frame : NULL);
    return true;
}

uint64_t nl_outbox_newest(const struct nl_outbox *o) {
    return o->last_ref;
}

void nl_outbox_passed(struct nl_outbox *o, uint64_t ref) {
    while (o->in_flight && o->in_flight->ref <= ref)
        finish(o, o->in_flight, NL_ERROR_BROKER_IGNORED, NULL);
}

const struct nl_publish *nl_outbox_oldest(const struct nl_outbox *o) {
    return o->in_flight;
}

const struct nl_publish *nl_outbox_suspect(const struct nl_outbox *o) {
    return o->suspect;
}

void nl_outbox_set_unanswered(struct nl_outbox *o, bool unanswered) {
    o->unanswered = unanswered;
}

void nl_outbox_forget(struct nl_outbox *o, void *owner) {
    struct nl_outbox_lane *lane;
    HASH_FIND_PTR(o->lanes, &owner, lane);
    if (!lane)
        return;
    struct nl_publish *p;
    DL_FOREACH(lane->waiting, p)
        p->owner = NULL;
    DL_FOREACH(o->in_flight, p)
        if (p->lane == lane)
            p->owner = NULL;
    HASH_DEL(o->lanes, lane);
    lane->owner = NULL;
}

void nl_outbox_fail_all(struct nl_outbox *o, enum nl_error error) {
    uint64_t last_seq = o->last_seq;
    while (o->all && o->all->seq <= last_seq)
        finish(o, o->all, error, NULL);
}

uint64_t nl_outbox_messages(const struct nl_outbox *o) {
    return o->messages;
}

uint64_t nl_outbox_bytes(const struct nl_outbox *o) {
    return o->bytes;
}

uint64_t nl_outbox_in_flight(const struct nl_outbox *o) {
    return o->flying;
}
