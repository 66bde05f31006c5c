/* SPDX-License-Identifier: Apache-2.0 */
/* What a session tells about itself: in `status`, in answers, and to those who drive it. */
#include "daemon/model/session_private.h"

/* ---- names ---- */

const char *nl_reason_name(enum nl_reason reason) {
    static const char *const names[] = {
#define X(name, wire) [NL_REASON_##name] = wire,
        NL_REASONS(X)
#undef X
    };

    return names[reason];
}

const char *nl_session_state_name(enum nl_session_state state) {
    static const char *const names[] = {
        [NL_SESSION_WAITING] = "waiting",
        [NL_SESSION_CONNECTING] = "connecting",
        [NL_SESSION_AUTHENTICATING] = "authenticating",
        [NL_SESSION_RESTORING] = "restoring",
        [NL_SESSION_LIVE] = "live",
        [NL_SESSION_CLOSING] = "closing",
        [NL_SESSION_STOPPED] = "stopped",
    };

    return names[state];
}

/* ---- what it is and how it is ---- */

const char *nl_session_name(const struct nl_session *s) {
    return s->named ? s->config->name : NULL;
}

const struct nl_session_config *nl_session_config(const struct nl_session *s) {
    return s->config;
}

void *nl_session_owner(const struct nl_session *s) {
    return s->ops.ctx;
}

enum nl_session_state nl_session_state(const struct nl_session *s) {
    return s->state;
}

const struct nl_ending *nl_session_ending(const struct nl_session *s) {
    return &s->ending;
}

const struct nl_session_stats *nl_session_stats(const struct nl_session *s) {
    return &s->stats;
}

uint64_t nl_session_outbox_messages(const struct nl_session *s) {
    return nl_outbox_messages(s->outbox);
}

const char *nl_session_status_word(const struct nl_session *s, enum nl_session_state state) {
    switch (state) {
    case NL_SESSION_LIVE:
        return "connected";
    case NL_SESSION_STOPPED:
        return "disconnected";
    case NL_SESSION_WAITING:
    case NL_SESSION_CLOSING:
        if (s->ending.slow)
            return "disconnected";
        break;
    case NL_SESSION_CONNECTING:
    case NL_SESSION_AUTHENTICATING:
    case NL_SESSION_RESTORING:
        break;
    }
    return s->was_live ? "reconnecting" : "connecting";
}

/* ---- in words ---- */

void nl_session_describe(const struct nl_session *s, struct nl_object *o, uint64_t now_ms) {
    nl_object_cstr(o, "session", nl_session_name(s));
    nl_object_cstr(o, "status", nl_session_status_word(s, s->state));
    nl_object_int(o, "since", s->since);
    if (s->state != NL_SESSION_LIVE) {
        nl_object_cstr(o, "reason", nl_reason_name(s->ending.reason));
        if (s->ending.detail[0] != '\0')
            nl_object_cstr(o, "detail", s->ending.detail);
        if (s->ending.close_code != 0)
            nl_object_int(o, "code", s->ending.close_code);
    }
    if (s->state == NL_SESSION_WAITING)
        nl_object_int(o, "nextAttemptMs", s->due_ms > now_ms ? (int64_t)(s->due_ms - now_ms) : 0);
    nl_object_cstr(o, "actorTokenId", s->identity.actor_token_id);
    nl_object_cstr(o, "filtersReported", nl_reported_name(nl_subscriptions_reported(s->subscriptions)));
    nl_object_int(o, "subscriptions", (int64_t)nl_subscriptions_topics(s->subscriptions));
    if (nl_subscriptions_refused(s->subscriptions) > 0)
        nl_object_int(o, "refused", (int64_t)nl_subscriptions_refused(s->subscriptions));
    if (nl_subscriptions_lost(s->subscriptions) > 0)
        nl_object_int(o, "lost", (int64_t)nl_subscriptions_lost(s->subscriptions));
    nl_object_int(o, "outbox", (int64_t)nl_outbox_messages(s->outbox));
}

void nl_session_describe_short(const struct nl_session *s, struct nl_object *o) {
    nl_object_cstr(o, "session", nl_session_name(s));
    nl_object_cstr(o, "status", nl_session_status_word(s, s->state));
}

void nl_session_describe_auth(const struct nl_session *s, struct nl_object *o) {
    nl_object_cstr(o, "session", nl_session_name(s));
    nl_object_cstr(o, "actorTokenId", s->identity.actor_token_id);
    nl_object_cstr(o, "projectId", s->identity.project_id);
    nl_object_cstr(o, "actorType", s->identity.actor_type);
    if (s->identity.protocol_version != 0)
        nl_object_int(o, "protocolVersion", s->identity.protocol_version);
    if (!nl_session_up(s))
        nl_object_bool(o, "pending", true);
}
