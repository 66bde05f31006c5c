/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/session.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/model/session_private.h"
#include "daemon/util/url.h"
#include "protocol/alloc.h"

/* How long a publish may be unanswered before a heartbeat asks whether its turn has passed. */
#define FENCE_AFTER_MS 1000

/* At least between two reconnects that do not wait. */
#define HURRY_MS 1000

#define CLOSE_INTERNAL_ERROR 1011

/* So much of a token's beginning in a text counts as the token. */
#define TOKEN_SHOWN 6

/* What clients may hold and ask for of topics, see subscriptions.h; PROTOCOL.md tells it under Limits. */
#define PENDING_PER_TOPIC 1000
#define WISH_BYTES_PER_CLIENT (UINT64_C(32) << 20)
#define WISH_BYTES_PER_UID (UINT64_C(256) << 20)

/* How long our own event may take to come back after a presence; then the broker knows no such room. */
#define UNKNOWN_ROOM_MS 5000

/* How soon to try again when the link's queue was full. */
#define FULL_RETRY_MS 20

/* ---- frames to the broker ---- */

static bool send_bytes(struct nl_session *s, struct nl_slice bytes) {
    if (!s->ops.send(s->ops.ctx, bytes))
        return false;
    nl_liveness_sent(&s->liveness, s->now_ms);
    return true;
}

static bool send_frame(void *ctx, const struct nl_frame *frame) {
    struct nl_session *s = ctx;

    nl_buffer_clear(&s->scratch);
    nl_frame_encode(frame, &s->scratch);
    return send_bytes(s, nl_slice(s->scratch.bytes, s->scratch.len));
}

/*
 * Not while a publish is tried alone: an announcement that the broker had no time to confirm before it closed
 * for the publish would be a suspect, too.
 */
static bool send_for_presence(void *ctx, const struct nl_frame *frame) {
    const struct nl_session *s = ctx;

    return nl_outbox_suspect(s->outbox) == NULL && send_frame(ctx, frame);
}

static uint64_t send_heartbeat(void *ctx) {
    struct nl_session *s = ctx;

    send_bytes(s, nl_slice(NULL, 0));
    nl_liveness_asked(&s->liveness, s->now_ms);
    s->heartbeats++;
    nl_acks_heartbeat(&s->acks, s->heartbeats);
    if (s->fence.heartbeat == 0) {
        s->fence.heartbeat = s->heartbeats;
        s->fence.ref = nl_outbox_newest(s->outbox);
        s->fence.sent_ms = s->now_ms;
        s->fence.leaving = true;
    }
    return s->heartbeats;
}

static uint64_t publishes_sent(void *ctx) {
    struct nl_session *s = ctx;

    return nl_outbox_newest(s->outbox);
}

static bool send_publish(void *ctx, struct nl_slice frame) {
    return send_bytes(ctx, frame);
}

static void send_auth(struct nl_session *s) {
    struct nl_frame frame = {.type = NL_FRAME_AUTH};

    NL_FRAME_SET(&frame, token, nl_slice_str(s->config->token));
    NL_FRAME_SET(&frame, protocol_version, 2);
    if (s->was_live && !s->plain_auth)
        NL_FRAME_SET(&frame, reconnect, true);
    send_frame(s, &frame);
    /* The token does not stay in memory longer than it must. */
    explicit_bzero(s->scratch.bytes, s->scratch.len);
}

/* ---- answers and events to clients ---- */

static void forward_answer(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct nl_session *s = ctx;

    s->ops.answer(s->ops.ctx, peer, line);
}

static void forward_error(void *ctx, struct nl_peer *peer, struct nl_line *line) {
    struct nl_session *s = ctx;

    s->ops.event(s->ops.ctx, peer, NL_EVENT_ERROR, line);
}

static void forward_wake(void *ctx) {
    struct nl_session *s = ctx;

    s->ops.wake(s->ops.ctx);
}

static void forward_event(void *ctx, struct nl_peer *peer, enum nl_event event, struct nl_line *line) {
    struct nl_session *s = ctx;

    s->ops.event(s->ops.ctx, peer, event, line);
}

static void forward_hand(void *ctx, struct nl_peer *peer, const struct nl_handout *h) {
    struct nl_session *s = ctx;

    nl_fanout_hand(&s->fanout, peer, h);
}

void nl_session_announce(struct nl_session *s, enum nl_event event, struct nl_line *line) {
    struct nl_peer *peer;

    DL_FOREACH2(s->peers, peer, session_next) {
        if (nl_peer_stands(peer))
            s->ops.event(s->ops.ctx, peer, event, nl_line_ref(line));
    }
    nl_line_unref(line);
}

static void announce_connection(struct nl_session *s, enum nl_event event) {
    struct nl_object o;

    nl_object_begin(&o, nl_event_name(event));
    nl_object_cstr(&o, "session", nl_session_name(s));
    if (event == NL_EVENT_DISCONNECT) {
        nl_object_cstr(&o, "reason", nl_reason_name(s->ending.reason));
        if (s->ending.detail[0] != '\0')
            nl_object_cstr(&o, "detail", s->ending.detail);
        if (s->ending.close_code != 0)
            nl_object_int(&o, "code", s->ending.close_code);
    }
    nl_session_announce(s, event, nl_object_line(&o));
}

/* ---- making and ending a session ---- */

/* The vendor's cloud is known to tell the filter of a message. */
static bool is_vendor(const char *url) {
    char *host = NULL, *path = NULL;
    uint16_t port;
    bool tls, vendor;

    if (!nl_url_parse(url, &tls, &host, &port, &path))
        return false;
    vendor = strcmp(host, "broker.nolag.app") == 0;
    free(host);
    free(path);
    return vendor;
}

static void close_link(struct nl_session *s, struct nl_ending ending);

/* It is only late while it has not even arrived. */
static bool fence_lost(void *ctx) {
    struct nl_session *s = ctx;

    if (!s->ops.arrival(s->ops.ctx).heartbeats)
        return false;
    close_link(s, (struct nl_ending){.reason = NL_REASON_HEARTBEAT_TIMEOUT,
                                     .detail = "no answer to a request, nor to a heartbeat behind it"});
    return true;
}

static struct nl_subscriptions *make_subscriptions(struct nl_session *s,
                                                   const struct nl_daemon_config *limits) {
    static const enum nl_reported reported[] = {
        [NL_AUTO] = NL_REPORTED_UNKNOWN, [NL_YES] = NL_REPORTED_YES, [NL_NO] = NL_REPORTED_NO};
    enum nl_reported start = reported[s->config->filters_reported];
    struct nl_subscriptions_limits l = {
        .request_timeout_ms = s->config->request_timeout_ms,
        .fence_timeout_ms = s->config->heartbeat_timeout_ms,
        .refused_interval_ms = s->config->refused_interval_ms,
        .per_client = limits->max_subscriptions,
        .per_uid = limits->max_subscriptions_per_uid,
        .pending_per_client = limits->max_subscriptions + PENDING_PER_TOPIC,
        .pending_per_topic = PENDING_PER_TOPIC,
        .bytes_per_client = WISH_BYTES_PER_CLIENT,
        .bytes_per_uid = WISH_BYTES_PER_UID,
        .qos = (uint8_t)s->config->qos,
        .late_join = s->config->late_join,
    };
    struct nl_subscriptions_ops ops = {.send = send_frame,
                                       .position = publishes_sent,
                                       .fence = send_heartbeat,
                                       .stuck = fence_lost,
                                       .answer = forward_answer,
                                       .error = forward_error,
                                       .hand = forward_hand,
                                       .event = forward_event,
                                       .wake = forward_wake,
                                       .ctx = s};

    if (start == NL_REPORTED_UNKNOWN && is_vendor(s->config->url))
        start = NL_REPORTED_YES;
    return nl_subscriptions_new(&l, &ops, start, s->config->filters_reported == NL_AUTO, s->seed);
}

static void forward_rejected(void *ctx, uid_t uid, const char *topic) {
    struct nl_session *s = ctx;

    s->ops.rejected(s->ops.ctx, uid, topic);
}

static struct nl_publisher *make_publisher(struct nl_session *s, uint64_t now_ms) {
    struct nl_publisher_ops ops = {
        .send = send_publish, .answer = forward_answer, .rejected = forward_rejected, .ctx = s};

    return nl_publisher_new(s->config, s->subscriptions, &s->fanout, &ops, is_vendor(s->config->url), s->seed,
                            now_ms);
}

static void make_presence(struct nl_session *s, const struct nl_daemon_config *limits) {
    struct nl_watch_limits watches = {limits->max_watches, limits->max_watches_per_uid};
    uint64_t timeout = s->config->request_timeout_ms;
    struct nl_presence_limits p = {
        .request_timeout_ms = timeout,
        .unknown_room_ms = timeout < UNKNOWN_ROOM_MS ? timeout : UNKNOWN_ROOM_MS,
        .poll_interval_ms = s->config->presence_poll_interval_ms,
        .watches = watches,
    };
    struct nl_lobbies_limits l = {.request_timeout_ms = timeout, .watches = watches};
    struct nl_presence_ops ops = {.send = send_for_presence,
                                  .fence = send_heartbeat,
                                  .position = publishes_sent,
                                  .answer = forward_answer,
                                  .event = forward_event,
                                  .ctx = s};

    s->presence = nl_presence_new(&p, &ops, s->seed);
    s->lobbies = nl_lobbies_new(&l, &ops, s->seed);
}

struct nl_session *nl_session_new(const struct nl_session_config *config, bool named,
                                  const struct nl_daemon_config *limits, const struct nl_session_ops *ops,
                                  uint64_t now_ms) {
    struct nl_session *s = nl_calloc(1, sizeof(*s));

    s->config = config;
    s->named = named;
    s->ops = *ops;
    s->now_ms = now_ms;
    s->due_ms = now_ms;
    s->state = NL_SESSION_WAITING;
    s->since = ops->unix_time(ops->ctx);
    s->ending.reason = NL_REASON_STARTING;
    s->seed = ops->random(ops->ctx);
    nl_backoff_init(&s->backoff, config->reconnect_interval_ms, config->reconnect_max_interval_ms,
                    config->stable_after_ms);
    nl_buffer_init(&s->scratch);
    nl_acks_init(&s->acks, &(struct nl_acks_ops){.send = send_frame, .wake = forward_wake, .ctx = s});
    nl_fanout_init(&s->fanout, &s->acks, forward_event, s);
    s->subscriptions = make_subscriptions(s, limits);
    s->publisher = make_publisher(s, now_ms);
    s->outbox = nl_publisher_outbox(s->publisher);
    make_presence(s, limits);
    return s;
}

static void identity_clear(struct nl_identity *id) {
    free(id->actor_token_id);
    free(id->project_id);
    free(id->actor_type);
    *id = (struct nl_identity){0};
}

struct nl_session *nl_session_free(struct nl_session *s) {
    if (s == NULL)
        return NULL;
    assert(s->peers == NULL && (s->state == NL_SESSION_STOPPED || s->state == NL_SESSION_WAITING));
    nl_publisher_free(s->publisher);
    nl_subscriptions_free(s->subscriptions);
    nl_presence_free(s->presence);
    nl_lobbies_free(s->lobbies);
    nl_acks_deinit(&s->acks);
    nl_buffer_deinit(&s->scratch);
    identity_clear(&s->identity);
    free(s);
    return NULL;
}

bool nl_session_up(const struct nl_session *s) {
    return s->state == NL_SESSION_RESTORING || s->state == NL_SESSION_LIVE;
}

/* ---- state ---- */

static void set_state(struct nl_session *s, enum nl_session_state to, const struct nl_ending *ending) {
    enum nl_session_state from = s->state;
    const char *before = nl_session_status_word(s, from);

    s->state = to;
    if (strcmp(before, nl_session_status_word(s, to)) != 0)
        s->since = s->ops.unix_time(s->ops.ctx);
    s->ops.changed(s->ops.ctx, from, to, ending);
}

/* Takes over how the link ends. Its text may come from the broker or a proxy, and quote the token. */
static void set_ending(struct nl_session *s, const struct nl_ending *ending) {
    char beginning[TOKEN_SHOWN + 1];
    char *quoted;

    s->ending = *ending;
    snprintf(beginning, sizeof(beginning), "%s", s->config->token);
    quoted = strstr(s->ending.detail, beginning);
    if (quoted != NULL)
        snprintf(quoted, sizeof(s->ending.detail) - (size_t)(quoted - s->ending.detail), "(token)");
}

/* Ends the link for a reason of ours. The broker's requests have no more answers from here on. */
static void close_link(struct nl_session *s, struct nl_ending ending) {
    if (s->state == NL_SESSION_CLOSING || s->state == NL_SESSION_WAITING || s->state == NL_SESSION_STOPPED)
        return;
    set_ending(s, &ending);
    set_state(s, NL_SESSION_CLOSING, NULL);
    s->ops.disconnect(s->ops.ctx);
}

static void go_live(struct nl_session *s) {
    bool first = !s->was_live;

    s->was_live = true;
    s->stats.connects++;
    s->stats.attempts = 0;
    s->plain_auth = false;
    nl_backoff_live(&s->backoff, s->now_ms);
    set_state(s, NL_SESSION_LIVE, NULL);
    nl_outbox_up(s->outbox);
    announce_connection(s, first ? NL_EVENT_CONNECT : NL_EVENT_RECONNECT);
    s->announced = true;
}

static void connect_now(struct nl_session *s) {
    uint64_t delay = s->ops.connect_delay(s->ops.ctx, s->now_ms);

    if (delay > 0) {
        s->due_ms = s->now_ms + delay;
        return;
    }
    s->stats.attempts++;
    set_state(s, NL_SESSION_CONNECTING, NULL);
    s->ops.connect(s->ops.ctx);
}

/* The first attempt ever is no retry; after the link was live, each one is. */
static bool attempts_used_up(const struct nl_session *s) {
    uint64_t retries = s->was_live ? s->stats.attempts : s->stats.attempts - 1;

    return s->stopping || !s->config->reconnect || retries >= s->config->max_reconnect_attempts;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* A Retry-After is obeyed as far as denied_interval: a proxy may say anything. */
static uint64_t retry_delay(struct nl_session *s, const struct nl_ending *ending) {
    uint64_t random = s->ops.random(s->ops.ctx);
    uint64_t delay = ending->slow ? nl_backoff_denied(&s->backoff, s->config->denied_interval_ms, random)
                                  : nl_backoff_failed(&s->backoff, s->now_ms, random);

    uint64_t asked = earlier(ending->retry_after_ms, s->config->denied_interval_ms);

    return delay > asked ? delay : asked;
}

/*
 * When to connect again after a close whose reason is known, a publish of one client: at once, for the
 * others' sake, and it counts for no backoff; but whoever sends such publishes again and again gets the
 * session down once a second at most.
 */
static uint64_t hurried(struct nl_session *s) {
    s->hurried_ms = s->hurried_ms == 0 ? s->now_ms : later(s->now_ms, s->hurried_ms + HURRY_MS);
    return s->hurried_ms;
}

/* A close code as far as it speaks against the oldest publish, and against the presence that is on its way.
 */
struct evidence {
    int publish, presence;
};

/*
 * The broker answers in order, so what it was sent first and has not answered is what made it close; not what
 * it was sent behind that.
 */
static struct evidence evidence_of(const struct nl_session *s, int close_code) {
    const struct nl_publish *oldest = nl_outbox_oldest(s->outbox);
    uint64_t publish = oldest == NULL ? UINT64_MAX : oldest->ref;
    uint64_t control = nl_subscriptions_oldest(s->subscriptions), presence = nl_presence_oldest(s->presence);

    /* A presence in an unknown room has no answer; that of a publish behind it shows that its turn has
     * passed. */
    if ((oldest == NULL ? nl_outbox_newest(s->outbox) : publish - 1) > presence)
        presence = UINT64_MAX;
    return (struct evidence){
        .publish = earlier(control, presence) < publish ? 0 : close_code,
        .presence = presence == UINT64_MAX || publish <= presence || control < presence ? 0 : close_code};
}

void nl_session_link_closed(struct nl_session *s, const struct nl_ending *ending, uint64_t now_ms) {
    enum nl_session_state from = s->state;
    struct evidence evidence = evidence_of(s, ending->close_code);
    bool by_publish;

    s->now_ms = now_ms;
    /* When we closed it, our reason counts. */
    if (from != NL_SESSION_CLOSING)
        set_ending(s, ending);
    if (from == NL_SESSION_AUTHENTICATING && ending->close_code == CLOSE_INTERNAL_ERROR)
        s->plain_auth = !s->plain_auth;
    s->liveness = (struct nl_liveness){0};
    s->heartbeats = s->echoes_seen = 0;
    s->fence.heartbeat = 0;
    s->fence.leaving = false;
    nl_acks_down(&s->acks);
    nl_subscriptions_down(s->subscriptions, now_ms);
    nl_presence_down(s->presence, evidence.presence, now_ms);
    nl_lobbies_down(s->lobbies);
    by_publish = nl_publisher_down(s->publisher, evidence.publish, now_ms);
    if (attempts_used_up(s)) {
        if (!s->stopping)
            s->ending.reason = NL_REASON_ATTEMPTS;
        set_state(s, NL_SESSION_STOPPED, &s->ending);
    } else {
        s->due_ms = by_publish ? hurried(s) : now_ms + retry_delay(s, &s->ending);
        set_state(s, NL_SESSION_WAITING, &s->ending);
    }
    /* Holders know of a stop by `shutdown`. */
    if (s->announced && !s->stopping)
        announce_connection(s, NL_EVENT_DISCONNECT);
    s->announced = false;
}

void nl_session_link_opened(struct nl_session *s, uint64_t now_ms) {
    s->now_ms = now_ms;
    if (s->state != NL_SESSION_CONNECTING)
        return;
    nl_liveness_received(&s->liveness, now_ms);
    s->due_ms = now_ms + s->config->auth_timeout_ms;
    set_state(s, NL_SESSION_AUTHENTICATING, NULL);
    send_auth(s);
}

/* ---- frames from the broker ---- */

static char *copy(struct nl_slice s) {
    return nl_strndup((const char *)s.ptr, s.len);
}

static void auth_granted(struct nl_session *s, const struct nl_frame *frame) {
    struct nl_identity *id = &s->identity;

    identity_clear(id);
    id->actor_token_id = NL_FRAME_HAS(frame, actor_token_id) ? copy(frame->actor_token_id) : NULL;
    id->project_id = NL_FRAME_HAS(frame, project_id) ? copy(frame->project_id) : NULL;
    id->actor_type = NL_FRAME_HAS(frame, actor_type) ? copy(frame->actor_type) : NULL;
    id->protocol_version = NL_FRAME_HAS(frame, protocol_version) ? frame->protocol_version : 1;
    nl_publisher_auth(s->publisher, id->actor_token_id, id->protocol_version);
    set_state(s, NL_SESSION_RESTORING, NULL);
    nl_subscriptions_up(s->subscriptions, NL_FRAME_HAS(frame, restored) ? frame->restored : nl_slice(NULL, 0),
                        s->now_ms);
    nl_presence_up(s->presence, id->actor_token_id, s->now_ms);
    nl_lobbies_up(s->lobbies);
}

static void auth_refused(struct nl_session *s, const struct nl_frame *frame) {
    struct nl_ending ending = {.reason = NL_REASON_AUTH};
    struct nl_slice error = NL_FRAME_HAS(frame, error) ? frame->error : nl_slice(NULL, 0);

    if (nl_slice_equal(error, nl_slice_str("access_denied"))) {
        ending.reason = NL_REASON_ACCESS_DENIED;
        ending.slow = true;
    } else if (nl_slice_equal(error, nl_slice_str("connection_limit_reached"))) {
        ending.reason = NL_REASON_CONNECTION_LIMIT;
    } else {
        size_t len = error.len < sizeof(ending.detail) - 1 ? error.len : sizeof(ending.detail) - 1;
        memcpy(ending.detail, error.len > 0 ? (const char *)error.ptr : "", len);
    }
    close_link(s, ending);
}

static void on_auth(struct nl_session *s, const struct nl_frame *frame) {
    if (s->state != NL_SESSION_AUTHENTICATING)
        s->stats.unexpected++;
    else if (NL_FRAME_HAS(frame, success) && frame->success)
        auth_granted(s, frame);
    else
        auth_refused(s, frame);
}

static void on_control_answer(struct nl_session *s, const struct nl_frame *frame) {
    if (!nl_subscriptions_answer(s->subscriptions, frame, s->now_ms))
        s->stats.unexpected++;
}

static void on_published(struct nl_session *s, const struct nl_frame *frame) {
    if (!nl_publisher_answer(s->publisher, frame, s->now_ms))
        s->stats.unexpected++;
}

static void on_presence(struct nl_session *s, const struct nl_frame *frame) {
    if (!nl_presence_frame(s->presence, frame, s->now_ms))
        s->stats.unexpected++;
}

static void on_lobby(struct nl_session *s, const struct nl_frame *frame) {
    if (!nl_lobbies_frame(s->lobbies, frame, s->now_ms))
        s->stats.unexpected++;
}

/* Publishes always carry a msgRef, control requests never: so an error tells by it what it answers. */
static void on_error(struct nl_session *s, const struct nl_frame *frame) {
    if (NL_FRAME_HAS(frame, msg_ref))
        on_published(s, frame);
    else if (NL_FRAME_HAS(frame, lobby_id))
        on_lobby(s, frame);
    else
        on_control_answer(s, frame);
}

static void on_message(struct nl_session *s, const struct nl_frame *frame) {
    bool known = false, mine = false;

    s->stats.messages++;
    if (!nl_publisher_swallow(s->publisher, frame, s->now_ms, &mine)) {
        s->stats.delivered += nl_fanout_message(&s->fanout, s->subscriptions, frame, s->now_ms, &known);
        s->stats.foreign += !known;
    }
    s->stats.swallowed += mine;
}

static void on_hydration(struct nl_session *s, const struct nl_frame *frame) {
    unsigned n = nl_fanout_hydration(&s->fanout, s->subscriptions, frame, s->now_ms);

    s->stats.delivered += n;
    s->stats.unexpected += n == 0;
}

static void on_replay(struct nl_session *s, const struct nl_frame *frame) {
    nl_subscriptions_replay(s->subscriptions, frame, s->now_ms);
}

static void on_heartbeat(struct nl_session *s) {
    if (s->echoes_seen == s->heartbeats) {
        s->stats.unexpected++;
        return;
    }
    s->echoes_seen++;
    nl_acks_echo(&s->acks, s->echoes_seen);
    nl_subscriptions_fence_passed(s->subscriptions, s->echoes_seen, s->now_ms);
    nl_presence_fence_passed(s->presence, s->echoes_seen, s->now_ms);
    nl_lobbies_fence_passed(s->lobbies, s->echoes_seen);
    if (s->fence.heartbeat != 0 && s->echoes_seen >= s->fence.heartbeat) {
        s->fence.heartbeat = 0;
        nl_outbox_passed(s->outbox, s->fence.ref);
    }
}

typedef void frame_handler(struct nl_session *s, const struct nl_frame *frame);

static frame_handler *handler_for(enum nl_frame_type type) {
    static frame_handler *const handlers[] = {
        [NL_FRAME_AUTH] = on_auth,
        [NL_FRAME_SUBSCRIBED] = on_control_answer,
        [NL_FRAME_UNSUBSCRIBED] = on_control_answer,
        [NL_FRAME_FILTERS_UPDATED] = on_control_answer,
        [NL_FRAME_PUBLISHED] = on_published,
        [NL_FRAME_MESSAGE] = on_message,
        [NL_FRAME_HYDRATION] = on_hydration,
        [NL_FRAME_ERROR] = on_error,
        [NL_FRAME_PRESENCE] = on_presence,
        [NL_FRAME_PRESENCE_LIST] = on_presence,
        [NL_FRAME_LOBBY_SUBSCRIBED] = on_lobby,
        [NL_FRAME_LOBBY_UNSUBSCRIBED] = on_lobby,
        [NL_FRAME_LOBBY_PRESENCE_LIST] = on_lobby,
        [NL_FRAME_LOBBY_PRESENCE] = on_lobby,
        [NL_FRAME_REPLAY_START] = on_replay,
        [NL_FRAME_REPLAY_END] = on_replay,
    };

    return (size_t)type < sizeof(handlers) / sizeof(handlers[0]) ? handlers[type] : NULL;
}

void nl_session_link_frame(struct nl_session *s, struct nl_slice bytes, uint64_t now_ms) {
    struct nl_frame frame;
    frame_handler *handler = NULL;

    s->now_ms = now_ms;
    if (s->state == NL_SESSION_CLOSING)
        return;
    nl_liveness_received(&s->liveness, now_ms);
    s->stats.frames_received++;
    if (bytes.len == 0) {
        on_heartbeat(s);
        return;
    }
    if (nl_frame_decode(bytes, &frame) == NL_SCAN_OK)
        handler = handler_for(frame.type);
    if (handler == NULL || (!nl_session_up(s) && frame.type != NL_FRAME_AUTH))
        s->stats.unexpected++;
    else
        handler(s, &frame);
}

/* ---- peers and their requests ---- */

void nl_session_attach(struct nl_session *s, struct nl_peer *peer) {
    assert(peer->session == NULL);
    peer->session = s;
    DL_APPEND2(s->peers, peer, session_prev, session_next);
}

void nl_session_detach(struct nl_session *s, struct nl_peer *peer, uint64_t now_ms) {
    assert(peer->session == s);
    s->now_ms = now_ms;
    nl_subscriptions_leave(s->subscriptions, peer, now_ms);
    nl_presence_leave(s->presence, peer, now_ms);
    nl_lobbies_leave(s->lobbies, peer);
    nl_outbox_forget(s->outbox, peer);
    nl_fanout_untap(&s->fanout, peer);
    DL_DELETE2(s->peers, peer, session_prev, session_next);
    peer->session = NULL;
    peer->pending = 0;
}

struct nl_peer *nl_session_first_peer(const struct nl_session *s) {
    return s->peers;
}

static void tap(struct nl_session *s, struct nl_peer *peer, const struct nl_request *r) {
    struct nl_object o;

    if (r->type == NL_REQUEST_SUBSCRIBE)
        nl_fanout_tap(&s->fanout, peer);
    else
        nl_fanout_untap(&s->fanout, peer);
    nl_object_begin(&o, r->type == NL_REQUEST_SUBSCRIBE ? "subscribed" : "unsubscribed");
    if (r->id != NULL)
        nl_object_json(&o, "id", nl_slice_str(r->id));
    nl_object_cstr(&o, "topic", "*");
    s->ops.answer(s->ops.ctx, peer, nl_object_line(&o));
}

void nl_session_request(struct nl_session *s, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms) {
    s->now_ms = now_ms;
    if (r->type == NL_REQUEST_PUBLISH)
        nl_publisher_request(s->publisher, peer, r, now_ms);
    else if (nl_slice_equal(r->topic, nl_slice_str("*")))
        tap(s, peer, r);
    else if (s->stopping && r->type != NL_REQUEST_UNSUBSCRIBE)
        s->ops.answer(s->ops.ctx, peer, nl_request_error_line(NL_ERROR_SHUTTING_DOWN, r, NULL));
    else if (nl_presence_wants(r->type))
        nl_presence_request(s->presence, peer, r, now_ms);
    else if (nl_lobbies_wants(r->type))
        nl_lobbies_request(s->lobbies, peer, r, now_ms);
    else
        nl_subscriptions_request(s->subscriptions, peer, r, now_ms);
}

void nl_session_acknowledge(struct nl_session *s, struct nl_peer *peer, const struct nl_request *r) {
    struct nl_object o;

    if (!nl_subscriptions_acknowledge(s->subscriptions, peer, r)) {
        s->ops.answer(s->ops.ctx, peer, nl_request_error_line(NL_ERROR_UNKNOWN_ACK, r, NULL));
        return;
    }
    if (r->id == NULL)
        return;
    nl_object_begin(&o, "acknowledged");
    nl_object_json(&o, "id", nl_slice_str(r->id));
    s->ops.answer(s->ops.ctx, peer, nl_object_line(&o));
}

/* ---- time ---- */

static bool link_open(const struct nl_session *s) {
    return s->state == NL_SESSION_AUTHENTICATING || nl_session_up(s);
}

static uint64_t heartbeat_due(const struct nl_session *s) {
    return nl_liveness_heartbeat_due(&s->liveness, s->config->heartbeat_interval_ms);
}

static uint64_t silence_due(const struct nl_session *s) {
    return nl_liveness_silence_due(&s->liveness, s->config->heartbeat_timeout_ms);
}

/* When to ask whether the oldest publish in flight was passed over. Other traffic proves nothing about it. */
static uint64_t fence_due(const struct nl_session *s) {
    const struct nl_publish *oldest = nl_outbox_oldest(s->outbox);

    return oldest == NULL || s->fence.heartbeat != 0 ? UINT64_MAX : oldest->sent_ms + FENCE_AFTER_MS;
}

/* When the broker must have echoed the heartbeat that is out, whatever else comes from it meanwhile. */
static uint64_t echo_due(const struct nl_session *s) {
    if (s->fence.heartbeat == 0)
        return UINT64_MAX;
    return s->fence.sent_ms + s->config->request_timeout_ms + s->config->heartbeat_timeout_ms;
}

/* While the session is up. */
static uint64_t liveness_due(const struct nl_session *s) {
    return earlier(earlier(heartbeat_due(s), silence_due(s)), earlier(fence_due(s), echo_due(s)));
}

/* What the broker owes us by now, if anything: an answer to the auth, a sign of life, an echo. */
static uint64_t answer_due(const struct nl_session *s) {
    return s->state == NL_SESSION_AUTHENTICATING ? s->due_ms : earlier(silence_due(s), echo_due(s));
}

static void give_up_link(struct nl_session *s) {
    struct nl_ending ending = {.reason = NL_REASON_HEARTBEAT_TIMEOUT};
    const char *why = "";

    if (s->state == NL_SESSION_AUTHENTICATING) {
        ending.reason = NL_REASON_AUTH;
        why = "no answer to the auth in time";
    } else if (s->now_ms < silence_due(s)) {
        why = "the broker sends, but echoes no heartbeat";
    }
    snprintf(ending.detail, sizeof(ending.detail), "%s", why);
    close_link(s, ending);
}

static void check_liveness(struct nl_session *s) {
    if (nl_liveness_missed(&s->liveness, answer_due(s), s->now_ms))
        give_up_link(s);
    else if (nl_session_up(s) && earlier(heartbeat_due(s), fence_due(s)) <= s->now_ms)
        send_heartbeat(s);
}

void nl_session_resumed(struct nl_session *s, uint64_t now_ms) {
    s->now_ms = now_ms;
    if (nl_session_up(s))
        send_heartbeat(s);
}

static void note_arrival(struct nl_session *s) {
    struct nl_arrival arrival;

    if (!s->liveness.leaving && !s->fence.leaving)
        return;
    arrival = s->ops.arrival(s->ops.ctx);
    nl_liveness_turn(&s->liveness, arrival, s->now_ms);
    if (s->fence.leaving)
        s->fence.sent_ms = s->now_ms;
    s->fence.leaving = s->fence.leaving && !arrival.heartbeats;
}

void nl_session_run(struct nl_session *s, uint64_t now_ms) {
    s->now_ms = now_ms;
    note_arrival(s);
    if (s->state == NL_SESSION_WAITING && s->due_ms <= now_ms)
        connect_now(s);
    if (link_open(s))
        check_liveness(s);
    nl_subscriptions_run(s->subscriptions, now_ms);
    nl_presence_run(s->presence, now_ms);
    nl_lobbies_run(s->lobbies, now_ms);
    /* A presence that is a suspect is alone, as publishes wait for the session to be live. */
    if (s->state == NL_SESSION_RESTORING && !nl_subscriptions_restoring(s->subscriptions) &&
        !nl_presence_suspected(s->presence))
        go_live(s);
    nl_publisher_run(s->publisher, now_ms);
    nl_acks_run(&s->acks, nl_session_up(s), now_ms);
}

uint64_t nl_session_next(const struct nl_session *s, uint64_t now_ms) {
    uint64_t next = nl_outbox_next(s->outbox, now_ms);
    uint64_t control = UINT64_MAX;

    if (s->state == NL_SESSION_WAITING || s->state == NL_SESSION_AUTHENTICATING)
        next = earlier(next, s->due_ms);
    if (nl_session_up(s))
        control = nl_subscriptions_next(s->subscriptions);
    /* Their clients are told of a timeout while the link is down, too. */
    control = earlier(control, earlier(nl_presence_next(s->presence), nl_lobbies_next(s->lobbies)));
    /* Ready and not sent: the link's queue was full. */
    if (control <= now_ms)
        control = now_ms + FULL_RETRY_MS;
    next = earlier(next, later(now_ms, nl_subscriptions_groups_next(s->subscriptions)));
    next = earlier(earlier(next, control), nl_acks_next(&s->acks, nl_session_up(s)));
    return nl_session_up(s) ? earlier(next, liveness_due(s)) : next;
}

void nl_session_fail_all(struct nl_session *s, enum nl_error error, uint64_t now_ms) {
    s->now_ms = now_ms;
    nl_outbox_fail_all(s->outbox, error);
    nl_subscriptions_fail_all(s->subscriptions, error, now_ms);
    nl_presence_fail_all(s->presence, error);
    nl_lobbies_fail_all(s->lobbies, error);
}

void nl_session_stop(struct nl_session *s, uint64_t now_ms) {
    s->stopping = true;
    nl_publisher_stop(s->publisher);
    nl_session_fail_all(s, NL_ERROR_SHUTTING_DOWN, now_ms);
    if (nl_session_up(s))
        nl_acks_flush(&s->acks);
    close_link(s, (struct nl_ending){.reason = NL_REASON_STOPPED});
    if (s->state == NL_SESSION_WAITING) {
        s->ending.reason = NL_REASON_STOPPED;
        set_state(s, NL_SESSION_STOPPED, &s->ending);
    }
}
