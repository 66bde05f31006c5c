/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/publisher.h"

#include <stdlib.h>

#include "daemon/model/echoes.h"
#include "daemon/model/penalties.h"
#include "daemon/model/seen.h"
#include "protocol/alloc.h"
#include "protocol/hazards.h"
#include "protocol/line.h"
#include "protocol/object.h"
#include "protocol/transcode.h"

/* What the broker takes of one payload until it says otherwise. */
#define DEFAULT_MAX_DATA 921600
#define CODE_MESSAGE_TOO_LARGE 42930
#define CLOSE_INTERNAL_ERROR 1011

struct nl_publisher {
    const struct nl_session_config *config;
    struct nl_publisher_ops ops;
    struct nl_outbox *outbox;
    struct nl_subscriptions *subscriptions;
    struct nl_fanout *fanout;
    struct nl_echoes echoes;
    char *actor;       /* NULL = not told */
    uint64_t max_data; /* bytes of packed data that the broker takes */
    unsigned carried;  /* sets of enum nl_hazard: the broker took such a publish, */
    unsigned refused;  /* or closed the link because of one */
    struct nl_penalties penalties;
    bool stopped;
    uint64_t seed;
    uint64_t tokens; /* given to retained messages so far */
    uint64_t now_ms; /* of the call being served */
};

static char *copy(struct nl_slice s) {
    return nl_strndup((const char *)s.ptr, s.len);
}

/* ---- the outcome of publishes ---- */

static struct nl_line *published_line(const struct nl_publish *p) {
    struct nl_object o;

    nl_object_begin(&o, "published");
    if (p->id != NULL)
        nl_object_json(&o, "id", nl_slice_str(p->id));
    nl_object_cstr(&o, "topic", p->topic);
    nl_object_cstr(&o, "msgRef", p->msg_ref);
    if (p->redelivered)
        nl_object_bool(&o, "redelivered", true);
    return nl_object_line(&o);
}

/* The most that one publish may have: more would never get through the outbox, or the broker. */
static uint64_t max_data(const struct nl_publisher *pub) {
    return pub->max_data < pub->config->outbox_max_bytes ? pub->max_data : pub->config->outbox_max_bytes;
}

/* An error of our own that answers a publish; max_data is told where the size is the matter. */
static struct nl_line *publish_error_line(const struct nl_publisher *pub, enum nl_error error, const char *id,
                                          const char *msg_ref, struct nl_slice topic, const char *hint,
                                          uint64_t retry_after_ms) {
    struct nl_object o;

    nl_object_begin(&o, "error");
    nl_object_cstr(&o, "request", "publish");
    if (id != NULL)
        nl_object_json(&o, "id", nl_slice_str(id));
    nl_object_cstr(&o, "error", nl_error_name(error));
    if (nl_error_code(error) != 0)
        nl_object_int(&o, "code", nl_error_code(error));
    nl_object_str(&o, "topic", topic);
    nl_object_cstr(&o, "msgRef", msg_ref);
    nl_object_cstr(&o, "hint", hint != NULL ? hint : nl_error_hint(error));
    if (error == NL_ERROR_MESSAGE_TOO_LARGE)
        nl_object_int(&o, "maxSizeBytes", (int64_t)max_data(pub));
    if (retry_after_ms != 0)
        nl_object_int(&o, "retryAfterMs", (int64_t)retry_after_ms);
    return nl_object_line(&o);
}

/* Stands for the msgId of a retained message until the broker tells it. */
static uint64_t new_token(struct nl_publisher *pub) {
    pub->tokens++;
    return nl_seen_hash(nl_slice((const uint8_t *)&pub->tokens, sizeof(pub->tokens)), pub->seed);
}

static struct nl_slice own_actor(const struct nl_publisher *pub) {
    return nl_slice_str(pub->actor == NULL ? "" : pub->actor);
}

static void deliver_published(struct nl_publisher *pub, const struct nl_publish *p) {
    struct nl_local_message m = {
        .topic = nl_slice_str(p->topic),
        .data = nl_slice(p->data, p->data_len),
        .from = own_actor(pub),
        .token = p->retain ? new_token(pub) : 0,
        .filter_key = p->filter_key,
        .except = pub->config->own_messages == NL_OWN_ECHO ? NULL : p->owner,
    };

    pub->carried |= p->hazards;
    if (p->retain && nl_subscriptions_upstream_matches(pub->subscriptions, m.topic, m.filter_key))
        nl_echoes_expect(&pub->echoes, m.topic, m.filter_key, m.data, m.token, pub->now_ms);
    nl_fanout_local(pub->fanout, pub->subscriptions, &m, pub->now_ms);
}

static void learn_max_data(struct nl_publisher *pub, const struct nl_frame *error) {
    if (NL_FRAME_HAS(error, code) && error->code == CODE_MESSAGE_TOO_LARGE &&
        NL_FRAME_HAS(error, max_size_bytes) && error->max_size_bytes > 0)
        pub->max_data = (uint64_t)error->max_size_bytes;
}

static uint64_t topic_hash(const struct nl_publisher *pub, struct nl_slice topic) {
    return nl_seen_hash(topic, pub->seed);
}

/*
 * Two closes are proof: what the broker has not been seen to carry, and was in this publish, is sent no more,
 * for as long as the session lives. A close for size says nothing about the content. Where no kind is to
 * blame the publisher has to wait with that topic.
 */
static void learn_refused(struct nl_publisher *pub, const struct nl_publish *p, int close_code) {
    unsigned kinds = close_code == CLOSE_INTERNAL_ERROR ? p->hazards & ~pub->carried : 0;

    pub->refused |= kinds;
    if (kinds == 0)
        nl_penalties_add(&pub->penalties, p->uid, topic_hash(pub, nl_slice_str(p->topic)), pub->now_ms);
    pub->ops.rejected(pub->ops.ctx, p->uid, p->topic);
}

static void answer_publish(struct nl_publisher *pub, const struct nl_publish *p,
                           const struct nl_outcome *outcome) {
    struct nl_peer *peer = p->owner;
    struct nl_line *line = NULL;

    if (peer == NULL)
        return;
    peer->pending--;
    if (outcome->error == NL_OK && outcome->broker_error == NULL) {
        if (p->id != NULL || p->msg_ref != NULL)
            line = published_line(p);
    } else if (outcome->broker_error != NULL) {
        line = nl_broker_error_line(outcome->broker_error, "publish", p->id, nl_slice_str(p->topic),
                                    p->msg_ref == NULL ? nl_slice(NULL, 0) : nl_slice_str(p->msg_ref));
    } else {
        line = publish_error_line(pub, outcome->error, p->id, p->msg_ref, nl_slice_str(p->topic), NULL, 0);
    }
    pub->ops.answer(pub->ops.ctx, peer, line);
}

static void publish_done(void *ctx, struct nl_publish *p, struct nl_outcome outcome) {
    struct nl_publisher *pub = ctx;

    if (outcome.broker_error != NULL)
        learn_max_data(pub, outcome.broker_error);
    else if (outcome.close_code != 0)
        learn_refused(pub, p, outcome.close_code);
    else if (outcome.error == NL_OK)
        deliver_published(pub, p);
    answer_publish(pub, p, &outcome);
}

static void refuse_publish(struct nl_publisher *pub, struct nl_peer *peer, const struct nl_request *r,
                           enum nl_error error, const char *hint, uint64_t retry_after_ms) {
    char *msg_ref = r->msg_ref.ptr == NULL ? NULL : copy(r->msg_ref);

    pub->ops.answer(pub->ops.ctx, peer,
                    publish_error_line(pub, error, r->id, msg_ref, r->topic, hint, retry_after_ms));
    free(msg_ref);
}

/* Makes a publish of a request, but for its data. Takes the id and the filter key. */
static struct nl_publish *make_publish(const struct nl_publisher *pub, struct nl_peer *peer,
                                       struct nl_request *r) {
    struct nl_publish *p = nl_publish_new();

    p->owner = peer;
    p->uid = peer->uid;
    p->topic = copy(r->topic);
    p->msg_ref = r->msg_ref.ptr == NULL ? NULL : copy(r->msg_ref);
    p->id = r->id;
    r->id = NULL;
    p->filter_key = r->filter_key;
    r->filter_key = NULL;
    p->qos = r->qos < 0 ? (int)pub->config->qos : r->qos;
    p->retain = r->retain;
    return p;
}

static enum nl_error check_data(const struct nl_publisher *pub, struct nl_slice data, unsigned *hazards,
                                const char **why) {
    if (data.len > max_data(pub))
        return NL_ERROR_MESSAGE_TOO_LARGE;
    *hazards = nl_hazards(data);
    if (*hazards & pub->refused & NL_HAZARD_BYTES)
        return NL_ERROR_BINARY_REFUSED;
    if ((*hazards & pub->refused) == 0)
        return NL_OK;
    *why = "this broker cannot carry maps with such keys; use strings, integers, booleans or null";
    return NL_ERROR_BROKER_REJECTED;
}

static enum nl_error check_penalty(const struct nl_publisher *pub, const struct nl_peer *peer,
                                   const struct nl_request *r, uint64_t *wait_ms, const char **why) {
    *wait_ms = nl_penalties_wait(&pub->penalties, peer->uid, topic_hash(pub, r->topic), pub->now_ms);
    if (*wait_ms == 0)
        return NL_OK;
    *why = "a publish of this user to this topic made the broker close the connection; wait";
    return NL_ERROR_LIMIT_REACHED;
}

void nl_publisher_request(struct nl_publisher *pub, struct nl_peer *peer, struct nl_request *r,
                          uint64_t now_ms) {
    struct nl_buffer data;
    const char *why = NULL;
    uint64_t retry_after_ms = 0;
    unsigned hazards = 0;
    enum nl_error error;
    struct nl_publish *p;

    pub->now_ms = now_ms;
    nl_buffer_init(&data);
    error = nl_msgpack_from_json(&data, r->data, NL_PACK_TAGGED, &why);
    if (error == NL_OK)
        error = check_data(pub, nl_slice(data.bytes, data.len), &hazards, &why);
    if (error == NL_OK)
        error = check_penalty(pub, peer, r, &retry_after_ms, &why);
    if (error != NL_OK) {
        nl_buffer_deinit(&data);
        refuse_publish(pub, peer, r, error, why, retry_after_ms);
        return;
    }
    p = make_publish(pub, peer, r);
    p->data = nl_buffer_take(&data, &p->data_len);
    p->hazards = hazards;
    error =
        pub->stopped ? NL_ERROR_SHUTTING_DOWN : nl_outbox_push(pub->outbox, p, pub->now_ms, &retry_after_ms);
    if (error == NL_OK) {
        peer->pending++;
        return;
    }
    pub->ops.answer(
        pub->ops.ctx, peer,
        publish_error_line(pub, error, p->id, p->msg_ref, nl_slice_str(p->topic), NULL, retry_after_ms));
    nl_publish_free(p);
}

bool nl_publisher_swallow(struct nl_publisher *pub, const struct nl_frame *m, uint64_t now_ms, bool *mine) {
    bool has_id = NL_FRAME_HAS(m, msg_id) && m->msg_id.len > 0;
    uint64_t changed_ms = 0, token = 0;

    *mine = false;
    if (NL_FRAME_HAS(m, topic) && nl_subscriptions_grouped(pub->subscriptions, m->topic))
        return false; /* it was not delivered to anyone here */
    if (has_id && NL_FRAME_HAS(m, topic))
        changed_ms = nl_subscriptions_changed(pub->subscriptions, m->topic, now_ms);
    *mine = nl_echoes_take(&pub->echoes, m, own_actor(pub), changed_ms, now_ms, &token) != NL_ECHO_NONE;
    if (*mine && has_id)
        nl_subscriptions_note_seen(pub->subscriptions, m->topic, m->msg_id, token, now_ms);
    return *mine && !has_id;
}

/* ---- its life ---- */

static bool send_publish(void *ctx, struct nl_slice frame) {
    struct nl_publisher *pub = ctx;

    return pub->ops.send(pub->ops.ctx, frame);
}

/*
 * A retained message goes to our later subscribers only when it was sent with echo. In a group one that is
 * ours and came back without echo would be lost for all members.
 */
static bool echo_publish(void *ctx, const struct nl_publish *p) {
    const struct nl_publisher *pub = ctx;

    return p->retain || nl_subscriptions_grouped(pub->subscriptions, nl_slice_str(p->topic));
}

static struct nl_outbox *make_outbox(struct nl_publisher *pub, uint64_t now_ms) {
    struct nl_outbox_limits l = {
        .publish_rate = pub->config->publish_rate,
        .max_messages = pub->config->outbox_max_messages,
        .max_bytes = pub->config->outbox_max_bytes,
        .ttl_ms = pub->config->ttl_ms,
    };
    struct nl_outbox_ops ops = {.send = send_publish, .done = publish_done, .echo = echo_publish, .ctx = pub};

    return nl_outbox_new(&l, &ops, now_ms);
}

struct nl_publisher *nl_publisher_new(const struct nl_session_config *config,
                                      struct nl_subscriptions *subscriptions, struct nl_fanout *fanout,
                                      const struct nl_publisher_ops *ops, bool no_copies, uint64_t seed,
                                      uint64_t now_ms) {
    struct nl_publisher *pub = nl_calloc(1, sizeof(*pub));

    pub->config = config;
    pub->subscriptions = subscriptions;
    pub->fanout = fanout;
    pub->ops = *ops;
    pub->seed = seed;
    pub->now_ms = now_ms;
    pub->max_data = DEFAULT_MAX_DATA;
    nl_echoes_init(&pub->echoes, no_copies, seed);
    pub->outbox = make_outbox(pub, now_ms);
    return pub;
}

struct nl_publisher *nl_publisher_free(struct nl_publisher *pub) {
    if (pub == NULL)
        return NULL;
    nl_outbox_free(pub->outbox);
    nl_echoes_deinit(&pub->echoes);
    free(pub->actor);
    free(pub);
    return NULL;
}

struct nl_outbox *nl_publisher_outbox(const struct nl_publisher *pub) {
    return pub->outbox;
}

void nl_publisher_auth(struct nl_publisher *pub, const char *actor, int64_t protocol_version) {
    free(pub->actor);
    pub->actor = actor == NULL ? NULL : nl_strdup(actor);
    pub->max_data = DEFAULT_MAX_DATA; /* the plan may be another one */
    nl_outbox_set_unanswered(pub->outbox, protocol_version < 2);
}

void nl_publisher_run(struct nl_publisher *pub, uint64_t now_ms) {
    pub->now_ms = now_ms;
    nl_outbox_run(pub->outbox, now_ms);
}

bool nl_publisher_answer(struct nl_publisher *pub, const struct nl_frame *frame, uint64_t now_ms) {
    pub->now_ms = now_ms;
    return nl_outbox_answer(pub->outbox, frame, now_ms);
}

bool nl_publisher_down(struct nl_publisher *pub, int close_code, uint64_t now_ms) {
    pub->now_ms = now_ms;
    nl_echoes_down(&pub->echoes);
    return nl_outbox_down(pub->outbox, close_code);
}

void nl_publisher_stop(struct nl_publisher *pub) {
    pub->stopped = true;
    nl_outbox_fail_all(pub->outbox, NL_ERROR_SHUTTING_DOWN);
}
