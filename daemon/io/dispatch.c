/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/dispatch.h"

#include <stdlib.h>

#include "daemon/io/server.h"
#include "daemon/io/upstream.h"
#include "daemon/model/lobbies.h"
#include "daemon/model/presence.h"
#include "daemon/version.h"
#include "protocol/alloc.h"
#include "protocol/object.h"

/* What a program may find in `features`: see PROTOCOL.md. */
static const char features[] =
    "[\"filters\",\"tap\",\"tokens\",\"bigint\",\"lateJoin\",\"hydration\",\"presence\",\"lobbies\","
    "\"groups\",\"ack\"]";

static void answer(struct nl_client *c, struct nl_object *o) {
    nl_client_send(c, nl_object_line(o), false);
}

/* Begins an answer that carries the request's id. */
static void begin(struct nl_object *o, const char *type, const struct nl_request *r) {
    nl_object_begin(o, type);
    nl_object_id(o, r->id);
}

static void refuse(struct nl_client *c, const struct nl_request *r, enum nl_error error, const char *hint) {
    nl_client_send(c, nl_request_error_line(error, r, hint), false);
}

static struct nl_access_question question(const struct nl_client *c, enum nl_right right,
                                          const struct nl_session *session, struct nl_slice topic) {
    return (struct nl_access_question){
        .uid = c->peer.uid,
        .gid = c->peer.gid,
        .session = session == NULL ? NULL : nl_session_name(session),
        .right = right,
        .topic = topic,
    };
}

static bool permitted(const struct nl_client *c, enum nl_right right, const struct nl_session *session,
                      struct nl_slice topic, const char **why) {
    struct nl_access_question q = question(c, right, session, topic);

    return nl_access_permits(&c->server->access, &q, why);
}

static bool may_use(const struct nl_client *c, const struct nl_session *session) {
    const char *why;

    return permitted(c, NL_RIGHT_SESSION, session, nl_slice(NULL, 0), &why);
}

/* ---- which session ---- */

/* The session that a client without one would be on; NULL when there is none for it. */
static struct nl_session *session_of(struct nl_client *c) {
    struct nl_upstream *u;

    if (c->peer.session != NULL || c->auth_failed)
        return c->peer.session;
    u = nl_server_default(c->server);
    return u == NULL || !may_use(c, u->session) ? NULL : u->session;
}

/* Puts the client on its session at the first request that needs one. */
static struct nl_session *attached(struct nl_client *c) {
    struct nl_session *s = session_of(c);

    if (s != NULL && c->peer.session == NULL)
        nl_session_attach(s, &c->peer);
    c->attached_once = c->attached_once || s != NULL;
    return s;
}

static void auth_answer(struct nl_client *c, const struct nl_session *s, const char *id) {
    struct nl_object o;

    nl_object_begin(&o, "auth");
    nl_object_id(&o, id);
    nl_object_bool(&o, "success", true);
    nl_session_describe_auth(s, &o);
    answer(c, &o);
}

static void auth_refusal(struct nl_client *c, const char *id, enum nl_error error, const char *hint) {
    struct nl_object o;

    c->auth_failed = true;
    nl_object_begin(&o, "auth");
    nl_object_id(&o, id);
    nl_object_bool(&o, "success", false);
    nl_object_error(&o, error, hint);
    answer(c, &o);
}

void nl_dispatch_auth_outcome(struct nl_client *c, struct nl_upstream *upstream, enum nl_error error) {
    char *id = c->auth_id;

    if (!c->auth_waits)
        return;
    c->auth_waits = false;
    c->auth_id = NULL;
    c->peer.pending--;
    if (error != NL_OK) {
        nl_session_detach(upstream->session, &c->peer, nl_server_now(c->server));
        auth_refusal(c, id, error, NULL);
    } else {
        auth_answer(c, upstream->session, id);
    }
    free(id);
    nl_client_resume(c);
}

static struct nl_upstream *find_session(struct nl_client *c, const struct nl_request *r, enum nl_error *error,
                                        const char **hint) {
    struct nl_upstream *u;

    if (r->token.ptr != NULL) {
        u = nl_upstream_by_token(c->server, r->token, c->peer.quota, error, hint);
    } else {
        u = nl_upstream_by_name(c->server, r->session);
        *error = NL_ERROR_UNKNOWN_SESSION;
    }
    if (u == NULL || permitted(c, NL_RIGHT_SESSION, u->session, nl_slice(NULL, 0), hint))
        return u;
    *error = NL_ERROR_NOT_PERMITTED;
    return NULL;
}

static void on_auth(struct nl_client *c, struct nl_request *r) {
    enum nl_error error = NL_OK;
    const char *hint = NULL;
    struct nl_upstream *u;

    if (c->attached_once) {
        refuse(c, r, NL_ERROR_ALREADY_ATTACHED, NULL);
        return;
    }
    if (c->server->stopped) {
        refuse(c, r, NL_ERROR_SHUTTING_DOWN, NULL);
        return;
    }
    c->attached_once = true;
    u = find_session(c, r, &error, &hint);
    if (u == NULL) {
        auth_refusal(c, r->id, error, hint);
        return;
    }
    nl_session_attach(u->session, &c->peer);
    if (!nl_upstream_starting(u)) {
        auth_answer(c, u->session, r->id);
        return;
    }
    c->auth_waits = true;
    c->auth_id = r->id;
    r->id = NULL;
    c->peer.pending++;
    nl_upstream_wake(u);
}

/* ---- answered at once ---- */

static void on_ping(struct nl_client *c, struct nl_request *r) {
    struct nl_object o;

    begin(&o, "pong", r);
    answer(c, &o);
}

static void on_hello(struct nl_client *c, struct nl_request *r) {
    const struct nl_daemon_config *config = &c->server->config->daemon;
    const struct nl_session *s = session_of(c);
    struct nl_object o;

    if (r->has_bigint)
        c->peer.bigint_as_string = r->bigint_as_string;
    begin(&o, "welcome", r);
    nl_object_cstr(&o, "server", "nolagd");
    nl_object_cstr(&o, "version", NL_VERSION);
    nl_object_int(&o, "protocol", 1);
    if (s != NULL)
        nl_session_describe_short(s, &o);
    nl_object_open(&o, "limits", '{');
    nl_object_int(&o, "line", (int64_t)config->line_limit);
    nl_object_int(&o, "depth", (int64_t)config->depth_limit);
    nl_object_int(&o, "values", NL_VALUES_MAX);
    nl_object_int(&o, "filters", NL_FILTERS_MAX);
    nl_object_int(&o, "subscriptions", (int64_t)config->max_subscriptions);
    nl_object_int(&o, "watches", (int64_t)config->max_watches);
    nl_object_int(&o, "output", (int64_t)config->client_output_limit);
    nl_object_close(&o, '}');
    nl_object_json(&o, "features", nl_slice_str(features));
    answer(c, &o);
}

static void on_status(struct nl_client *c, struct nl_request *r) {
    const struct nl_session *s = session_of(c);
    struct nl_object o;

    if (s == NULL) {
        refuse(c, r, NL_ERROR_NOT_AUTHENTICATED,
               c->auth_failed ? NULL : "there is no default session; see sessions");
        return;
    }
    begin(&o, "status", r);
    nl_session_describe(s, &o, nl_server_now(c->server));
    answer(c, &o);
}

static void on_sessions(struct nl_client *c, struct nl_request *r) {
    struct nl_upstream *u;
    struct nl_object o;

    begin(&o, "sessions", r);
    nl_object_open(&o, "sessions", '[');
    for (u = c->server->upstreams; u != NULL; u = u->next) {
        bool own = u->session == c->peer.session;
        if (!own && (nl_session_name(u->session) == NULL || !may_use(c, u->session)))
            continue;
        nl_object_open(&o, NULL, '{');
        nl_session_describe(u->session, &o, nl_server_now(c->server));
        nl_object_close(&o, '}');
    }
    nl_object_close(&o, ']');
    answer(c, &o);
}

static void on_events(struct nl_client *c, struct nl_request *r) {
    struct nl_object o;

    c->peer.only = r->only;
    begin(&o, "events", r);
    nl_object_open(&o, "only", '[');
    for (unsigned e = 0; e < NL_EVENT_COUNT; e++)
        if (r->only & (1u << e))
            nl_object_cstr(&o, NULL, nl_event_name((enum nl_event)e));
    nl_object_close(&o, ']');
    answer(c, &o);
}

/* ---- for the session ---- */

static enum nl_right right_for(const struct nl_request *r) {
    if (r->type == NL_REQUEST_PUBLISH)
        return NL_RIGHT_PUBLISH;
    if (nl_presence_wants(r->type) || nl_lobbies_wants(r->type))
        return NL_RIGHT_PRESENCE;
    return nl_slice_equal(r->topic, nl_slice_str("*")) ? NL_RIGHT_TAP : NL_RIGHT_SUBSCRIBE;
}

static void on_session_request(struct nl_client *c, struct nl_request *r) {
    struct nl_session *s = attached(c);
    const char *why = NULL;

    if (c->server->stopped) {
        refuse(c, r, NL_ERROR_SHUTTING_DOWN, NULL);
        return;
    }
    if (s == NULL) {
        refuse(c, r, NL_ERROR_NOT_AUTHENTICATED,
               c->auth_failed ? NULL : "there is no default session for this client; choose one with auth");
        return;
    }
    if (!permitted(c, right_for(r), s, r->topic, &why)) {
        refuse(c, r, NL_ERROR_NOT_PERMITTED, why);
        return;
    }
    nl_session_request(s, &c->peer, r, nl_server_now(c->server));
    nl_upstream_wake(nl_upstream_of(s));
}

/* Needs no right of its own: it is about what this client was given. */
static void on_ack(struct nl_client *c, struct nl_request *r) {
    struct nl_session *s = attached(c);

    if (s == NULL) {
        refuse(c, r, NL_ERROR_NOT_AUTHENTICATED,
               c->auth_failed ? NULL : "there is no default session for this client; choose one with auth");
        return;
    }
    nl_session_acknowledge(s, &c->peer, r);
    nl_upstream_wake(nl_upstream_of(s));
}

typedef void request_handler(struct nl_client *c, struct nl_request *r);

static request_handler *const handlers[NL_REQUEST_COUNT] = {
    [NL_REQUEST_HELLO] = on_hello,
    [NL_REQUEST_AUTH] = on_auth,
    [NL_REQUEST_PING] = on_ping,
    [NL_REQUEST_STATUS] = on_status,
    [NL_REQUEST_SESSIONS] = on_sessions,
    [NL_REQUEST_EVENTS] = on_events,
    [NL_REQUEST_SUBSCRIBE] = on_session_request,
    [NL_REQUEST_UNSUBSCRIBE] = on_session_request,
    [NL_REQUEST_SET_FILTERS] = on_session_request,
    [NL_REQUEST_ADD_FILTERS] = on_session_request,
    [NL_REQUEST_REMOVE_FILTERS] = on_session_request,
    [NL_REQUEST_PUBLISH] = on_session_request,
    [NL_REQUEST_PRESENCE] = on_session_request,
    [NL_REQUEST_CLEAR_PRESENCE] = on_session_request,
    [NL_REQUEST_GET_PRESENCE] = on_session_request,
    [NL_REQUEST_GET_ACTOR] = on_session_request,
    [NL_REQUEST_LIST_PRESENCE] = on_session_request,
    [NL_REQUEST_WATCH_PRESENCE] = on_session_request,
    [NL_REQUEST_UNWATCH_PRESENCE] = on_session_request,
    [NL_REQUEST_LOBBY_SUBSCRIBE] = on_session_request,
    [NL_REQUEST_LOBBY_UNSUBSCRIBE] = on_session_request,
    [NL_REQUEST_GET_LOBBY_PRESENCE] = on_session_request,
    [NL_REQUEST_ACK] = on_ack,
    [NL_REQUEST_BATCH_ACK] = on_ack,
};

/* Does a request of this type do nothing but ask? */
static bool only_asks(enum nl_request_type type) {
    switch (type) {
    case NL_REQUEST_HELLO:
    case NL_REQUEST_PING:
    case NL_REQUEST_STATUS:
    case NL_REQUEST_SESSIONS:
    case NL_REQUEST_GET_PRESENCE:
    case NL_REQUEST_GET_ACTOR:
    case NL_REQUEST_LIST_PRESENCE:
    case NL_REQUEST_GET_LOBBY_PRESENCE:
        return true;
    default:
        return false;
    }
}

void nl_dispatch_line(struct nl_client *c, struct nl_slice text) {
    struct nl_refusal refusal;
    struct nl_request r;

    if (nl_request_parse(text, (unsigned)c->server->config->daemon.depth_limit, &r, &refusal) != NL_OK) {
        nl_client_send(c, nl_refusal_line(&refusal), false);
        nl_refusal_deinit(&refusal);
        return;
    }
    if (!c->deaf || !only_asks(r.type)) /* nobody would read the answer, nor does it hold back who asks */
        handlers[r.type](c, &r);
    nl_request_deinit(&r);
}

void nl_dispatch_too_long(struct nl_client *c) {
    nl_client_send(c, nl_error_line(NL_ERROR_LINE_TOO_LONG, NULL, NULL, nl_slice(NULL, 0), NULL), false);
}
