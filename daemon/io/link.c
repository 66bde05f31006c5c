/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link goes through its addresses one at a time. Each try is an attempt: one lws connection (wsi), whose
 * opaque user data the attempt is until the wsi is destroyed, which may be long after the link has given it
 * up and even after the link is freed. An attempt that is given up is cut loose (its link is NULL), so
 * that whatever its wsi still reports reaches nobody. A link has at most one attempt.
 *
 * libwebsockets on somebody else's libuv loop arms its own timers only at the end of its own events.
 * So every call made from outside one is followed by kick(), every phase has a uv timer of ours,
 * and a slow timer kicks while there are links, in case something was missed. Its own time limits are
 * out of the way.
 */
#include <uv.h>

#include <libwebsockets.h>

#include "daemon/io/link.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/io/resolver.h"
#include "daemon/io/tcp.h"
#include "daemon/io/trust.h"
#include "daemon/util/url.h"
#include "protocol/alloc.h"

#define KICK_MS 250
#define CLOSE_MS 800       /* for the close handshake; on_closed comes within a second */
#define NO_TIMEOUT_S 86400 /* of libwebsockets: the link has its own */
#define READ_SIZE 65536    /* above a TLS record, of which it would else leave the rest for later (4.1.6) */
#define TLS_HOST_MAX 127   /* what libwebsockets would cut off is not checked */

/* What libwebsockets calls a virtual host: the settings that connections share. */
struct vhost {
    bool tls;
    char *ca_file;          /* NULL = the system's */
    struct nl_trust *trust; /* NULL without TLS */
    struct lws_vhost *lws;
    struct vhost *next;
};

struct nl_link_context {
    uv_loop_t *loop;
    void *loops[1]; /* as lws wants it */
    struct lws_context *lws;
    struct nl_resolver *resolver;
    struct vhost *vhosts;
    struct nl_link *links;    /* linked by prev, next */
    struct attempt *attempts; /* linked by prev, next: all whose wsi is not destroyed */
    uv_timer_t kicker;
    bool closing;
};

enum state {
    RESOLVING,
    CONNECTING, /* with an attempt; or without, and the next one begins from the loop */
    OPEN,
    CLOSING,        /* nl_link_close() was called; the close handshake is under way */
    CLOSED_BY_PEER, /* its close frame came; ours goes out */
    ENDED,          /* on_closed is to be called from the loop */
};

struct attempt {
    struct nl_link *link; /* NULL = given up */
    struct nl_link_context *context;
    struct lws *wsi; /* NULL inside lws_client_connect_via_info() */
    bool connecting; /* inside it */
    bool destroyed;  /* the wsi is gone, but not the call */
    bool asked;      /* the request to upgrade went out */
    struct attempt *prev, *next;
};

struct out {
    struct out *next;
    size_t len;
    uint8_t bytes[]; /* LWS_PRE, then the frame */
};

struct nl_link {
    struct nl_link_context *context;
    struct nl_link_handler handler;
    uint64_t connect_timeout_ms;
    size_t max_frame, max_queued;
    struct vhost *vhost;
    bool tls;
    char *host, *path;
    char *authority; /* host and port, for the Host header */
    uint16_t port;
    enum state state;
    uv_timer_t timer; /* the deadline of the state; ENDED: at once */
    struct nl_resolution *resolution;
    struct nl_addresses addresses;
    size_t next_address;
    struct attempt *attempt; /* NULL = none */
    struct nl_link_ending ending;
    struct nl_buffer rx; /* fragments of a frame that is not whole yet */
    struct out *out, *out_last;
    size_t queued;
    unsigned heartbeats;    /* empty frames among them */
    bool heartbeat_passed;  /* one went to lws, and where its end is among all bytes is not known yet */
    uint64_t heartbeat_end; /* of the last one where it is */
    struct nl_link *prev, *next;
};

/* ---- small things ---- */

static void kick(struct nl_link_context *context) {
    lws_cancel_service(context->lws);
}

/* What the peer or the library says goes to people: printable ASCII only. */
static void set_detail(struct nl_link_ending *ending, const char *text, size_t len) {
    size_t n = 0;

    for (; n < len && n < sizeof(ending->detail) - 1 && text[n] != '\0'; n++)
        ending->detail[n] = text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?';
    ending->detail[n] = '\0';
}

/* What the link ends with unless something better is known later. */
static void set_ending(struct nl_link *link, enum nl_link_end why, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void set_ending(struct nl_link *link, enum nl_link_end why, const char *format, ...) {
    char text[sizeof(link->ending.detail)];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    link->ending = (struct nl_link_ending){.end = why};
    set_detail(&link->ending, text, strlen(text));
}

static void on_timer(uv_timer_t *timer);

static void set_state(struct nl_link *link, enum state state, uint64_t deadline_ms) {
    link->state = state;
    if (deadline_ms == UINT64_MAX)
        uv_timer_stop(&link->timer);
    else
        uv_timer_start(&link->timer, on_timer, deadline_ms, 0);
}

/* From now on the attempt is nobody's. */
static void cut_loose(struct nl_link *link) {
    if (link->attempt != NULL)
        link->attempt->link = NULL;
    link->attempt = NULL;
}

/* Has lws end the attempt soon. */
static void give_up(struct nl_link *link) {
    struct attempt *attempt = link->attempt;

    if (attempt == NULL)
        return;
    cut_loose(link);
    lws_set_timeout(attempt->wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_ASYNC);
    kick(link->context);
}

/* The link is over, with link->ending; it is told from the loop. */
static void end(struct nl_link *link) {
    if (link->state == ENDED)
        return;
    give_up(link);
    nl_resolution_cancel(link->resolution);
    link->resolution = NULL;
    set_state(link, ENDED, 0);
}

/* ---- attempts ---- */

static void free_attempt(struct attempt *attempt) {
    DL_DELETE(attempt->context->attempts, attempt);
    free(attempt);
}

/* The attempt came to nothing; link->ending says why. Not from inside lws: the next one begins from the loop.
 */
static void attempt_failed(struct nl_link *link) {
    cut_loose(link);
    set_state(link, CONNECTING, 0);
}

static struct lws_client_connect_info connect_info(struct nl_link *link, const char *address) {
    static const lws_retry_bo_t patient = {.secs_since_valid_ping = 3600, .secs_since_valid_hangup = 7200};
    struct lws_client_connect_info info = {
        .context = link->context->lws,
        .vhost = link->vhost->lws,
        .address = address,
        .port = link->port,
        .path = link->path,
        .host = link->authority,
        .origin = link->authority,
        .local_protocol_name = "nolag",
        .ssl_connection = LCCSCF_HTTP_NO_FOLLOW_REDIRECT | (link->tls ? LCCSCF_USE_SSL : 0),
        .alpn = "http/1.1",
        .ietf_version_or_minus_one = -1,
        .opaque_user_data = link->attempt,
        .retry_and_idle_policy = &patient,
    };

    return info;
}

static void begin_attempt(struct nl_link *link, const char *address) {
    struct attempt *attempt = link->attempt = nl_calloc(1, sizeof(*attempt));
    struct lws_client_connect_info info = connect_info(link, address);

    attempt->link = link;
    attempt->context = link->context;
    attempt->connecting = true;
    DL_APPEND(link->context->attempts, attempt);
    set_ending(link, NL_LINK_CONNECT, "%s: cannot connect", address);
    set_state(link, CONNECTING, link->connect_timeout_ms);
    errno = 0;
    attempt->wsi = lws_client_connect_via_info(&info);
    attempt->connecting = false;
    if (attempt->wsi == NULL) {
        if (errno != 0)
            set_ending(link, NL_LINK_CONNECT, "%s: %s", address, uv_strerror(uv_translate_sys_error(errno)));
        attempt_failed(link);
    }
    if (attempt->destroyed)
        free_attempt(attempt);
    kick(link->context);
}

static void try_next(struct nl_link *link) {
    if (link->next_address < link->addresses.count)
        begin_attempt(link, link->addresses.items[link->next_address++].text);
    else
        end(link);
}

static void on_attempt_timeout(struct nl_link *link) {
    if (link->attempt->asked)
        set_ending(link, NL_LINK_CONNECT, "the server did not answer the request to upgrade in time");
    else if (lws_get_ssl(link->attempt->wsi) != NULL)
        set_ending(link, NL_LINK_TLS, "the TLS handshake did not end in time");
    else
        set_ending(link, NL_LINK_CONNECT, "%s: no connection in time",
                   link->addresses.items[link->next_address - 1].text);
    give_up(link);
    try_next(link);
}

static void on_resolved(void *ctx, struct nl_addresses *addresses, const char *error) {
    struct nl_link *link = ctx;

    link->resolution = NULL;
    if (error != NULL) {
        set_ending(link, NL_LINK_DNS, "%s", error);
        end(link);
        return;
    }
    link->addresses = *addresses;
    *addresses = (struct nl_addresses){0};
    try_next(link);
}

/* ---- why an attempt failed ---- */

static uint64_t retry_after_ms(struct lws *wsi) {
    char text[16];
    size_t digits;

    /* A date would need a clock that is right, and does not fit. */
    if (lws_hdr_copy(wsi, text, sizeof(text), WSI_TOKEN_HTTP_RETRY_AFTER) <= 0)
        return 0;
    digits = strspn(text, "0123456789");
    return digits <= 9 && text[digits] == '\0' ? strtoul(text, NULL, 10) * 1000 : 0;
}

static void explain_upgrade(struct nl_link *link, struct lws *wsi, const char *text) {
    int status = (int)lws_http_client_http_response(wsi);

    if (status == 0)
        set_ending(link, NL_LINK_UPGRADE, "no answer to the request to upgrade: %s", text);
    else if (status == 101)
        set_ending(link, NL_LINK_UPGRADE, "no valid answer to the request to upgrade: %s", text);
    else
        set_ending(link, NL_LINK_UPGRADE, "the server answered with HTTP status %d", status);
    link->ending.http_status = status;
    link->ending.retry_after_ms = retry_after_ms(wsi);
}

/* lws says "connect SYSCALL N" with an errno when the connection broke. */
static const char *broken_connection(const char *text) {
    int error = 0;

    if (sscanf(text, "connect SYSCALL %d", &error) != 1)
        return text;
    return error == 0 ? "the server closed the connection" : uv_strerror(uv_translate_sys_error(error));
}

static void explain_tls(struct nl_link *link, struct lws *wsi, const char *text) {
    const char *why;
    enum nl_trust_failure failure = nl_trust_failure(link->vhost->trust, lws_get_ssl(wsi), &why);

    if (failure == NL_TRUST_CERTIFICATE)
        set_ending(link, NL_LINK_TLS, "certificate: %s", why == NULL ? "not valid" : why);
    else
        set_ending(link, NL_LINK_TLS, "TLS handshake: %s", why == NULL ? broken_connection(text) : why);
    link->ending.certificate = failure == NL_TRUST_CERTIFICATE;
}

static void on_error(struct nl_link *link, struct lws *wsi, const char *in, size_t len) {
    char text[160];

    snprintf(text, sizeof(text), "%.*s", (int)len, in == NULL ? "" : in);
    if (link->state != CONNECTING)
        return;
    if (link->attempt->asked)
        explain_upgrade(link, wsi, strncmp(text, "HS: ", 4) == 0 ? text + 4 : text);
    else if (lws_get_ssl(wsi) != NULL)
        explain_tls(link, wsi, text);
    attempt_failed(link);
}

/* ---- what lws reports ---- */

static void on_established(struct nl_link *link) {
    set_state(link, OPEN, UINT64_MAX);
    link->ending = (struct nl_link_ending){.end = NL_LINK_LOST};
    link->handler.on_open(link->handler.ctx);
}

/* A frame that came in pieces is put together; one in one piece is passed on where it lies. */
static int on_receive(struct nl_link *link, struct lws *wsi, const uint8_t *in, size_t len) {
    bool whole = lws_is_final_fragment(wsi) && lws_remaining_packet_payload(wsi) == 0;

    if (link->state != OPEN)
        return 0;
    if (link->rx.len + len > link->max_frame) {
        set_ending(link, NL_LINK_OVERSIZE, "a frame is larger than allowed");
        end(link);
        return -1;
    }
    if (whole && link->rx.len == 0) {
        link->handler.on_frame(link->handler.ctx, nl_slice(in, len));
        return 0;
    }
    if (len > 0)
        nl_buffer_append(&link->rx, in, len);
    if (!whole)
        return 0;
    link->handler.on_frame(link->handler.ctx, nl_slice(link->rx.bytes, link->rx.len));
    nl_buffer_deinit(&link->rx);
    nl_buffer_init(&link->rx);
    return 0;
}

static void drop_first(struct nl_link *link) {
    struct out *first = link->out;

    link->queued -= first->len;
    if (first->len == 0) {
        link->heartbeats--;
        link->heartbeat_passed = true;
    }
    LL_DELETE(link->out, first);
    if (link->out == NULL)
        link->out_last = NULL;
    free(first);
}

/*
 * Not by returning -1, as one would: after that a libwebsockets that is built with _DEBUG, as Debian's 4.1.6
 * is, closes a second time when it runs on libuv, which ends the connection before the frame is out.
 */
static void send_close_frame(struct lws *wsi) {
    lws_close_reason(wsi, LWS_CLOSE_STATUS_NORMAL, NULL, 0);
    lws_set_timeout(wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_SYNC);
}

static int on_writable(struct nl_link *link, struct lws *wsi) {
    struct out *first = link->out;
    int n;

    if (link->state == CLOSING) {
        send_close_frame(wsi);
        return 0;
    }
    if (link->state != OPEN || first == NULL)
        return 0;
    n = lws_write(wsi, first->bytes + LWS_PRE, first->len, LWS_WRITE_BINARY);
    if (n < 0)
        return -1;
    drop_first(link);
    if (link->out != NULL)
        lws_callback_on_writable(wsi);
    return 0;
}

/* The peer's close frame: a code in network order, then a reason. Its answer goes out by itself, if it can.
 */
static void on_close_frame(struct nl_link *link, const uint8_t *in, size_t len) {
    if (link->state != OPEN)
        return;
    set_state(link, CLOSED_BY_PEER, CLOSE_MS);
    link->ending = (struct nl_link_ending){.end = NL_LINK_CLOSED};
    if (len < 2)
        return;
    link->ending.code = in[0] << 8 | in[1];
    set_detail(&link->ending, (const char *)in + 2, len - 2);
}

static void on_wsi_closed(struct nl_link *link) {
    switch (link->state) {
    case CONNECTING:
        attempt_failed(link);
        break;
    case OPEN:
    case CLOSING:
    case CLOSED_BY_PEER:
        cut_loose(link);
        end(link);
        break;
    case RESOLVING:
    case ENDED:
        assert(!"without an attempt");
    }
}

static void on_wsi_destroyed(struct attempt *attempt) {
    if (attempt->link != NULL && !attempt->connecting)
        on_wsi_closed(attempt->link);
    if (attempt->connecting)
        attempt->destroyed = true;
    else
        free_attempt(attempt);
}

static int on_lws(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len) {
    struct attempt *attempt = wsi == NULL ? NULL : lws_get_opaque_user_data(wsi);
    struct nl_link *link = attempt == NULL ? NULL : attempt->link;

    (void)user;
    if (attempt != NULL && reason == LWS_CALLBACK_WSI_DESTROY) {
        on_wsi_destroyed(attempt);
        return 0;
    }
    if (link == NULL || attempt->connecting)
        return 0;
    switch (reason) {
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER:
        attempt->asked = true;
        return 0;
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        on_error(link, wsi, in, len);
        return 0;
    case LWS_CALLBACK_CLIENT_ESTABLISHED:
        on_established(link);
        return 0;
    case LWS_CALLBACK_CLIENT_RECEIVE:
        return on_receive(link, wsi, in, len);
    case LWS_CALLBACK_CLIENT_WRITEABLE:
        return on_writable(link, wsi);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
        on_close_frame(link, in, len);
        return 0;
    case LWS_CALLBACK_CLIENT_CLOSED:
        on_wsi_closed(link);
        return 0;
    default:
        return 0;
    }
}

/* ---- the end of a link ---- */

static void free_link(uv_handle_t *handle) {
    struct nl_link *link = handle->data;

    free(link->host);
    free(link->path);
    free(link->authority);
    free(link);
}

static void destroy_lws(struct nl_link_context *context);

static void report(struct nl_link *link) {
    struct nl_link_context *context = link->context;

    DL_DELETE(context->links, link);
    if (context->links == NULL)
        uv_timer_stop(&context->kicker);
    while (link->out != NULL)
        drop_first(link);
    nl_buffer_deinit(&link->rx);
    nl_addresses_deinit(&link->addresses);
    link->handler.on_closed(link->handler.ctx, &link->ending);
    uv_close((uv_handle_t *)&link->timer, free_link);
    if (context->closing && context->links == NULL)
        destroy_lws(context);
}

static void on_timer(uv_timer_t *timer) {
    struct nl_link *link = timer->data;

    switch (link->state) {
    case RESOLVING:
        set_ending(link, NL_LINK_DNS, "no answer in time");
        end(link);
        break;
    case CONNECTING:
        if (link->attempt == NULL)
            try_next(link);
        else
            on_attempt_timeout(link);
        break;
    case CLOSING:
    case CLOSED_BY_PEER:
        end(link);
        break;
    case ENDED:
        report(link);
        break;
    case OPEN:
        assert(!"without a deadline");
    }
}

/* ---- the context ---- */

static const struct lws_protocols protocols[] = {
    {.name = "nolag", .callback = on_lws, .rx_buffer_size = READ_SIZE},
    {0},
};

static void on_kick(uv_timer_t *timer) {
    kick(timer->data);
}

struct nl_link_context *nl_link_context_new(uv_loop_t *loop, const char **why) {
    struct nl_link_context *c = nl_calloc(1, sizeof(*c));
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
                   LWS_SERVER_OPTION_EXPLICIT_VHOSTS,
        .foreign_loops = c->loops,
        .timeout_secs = NO_TIMEOUT_S,
        .pt_serv_buf_size = READ_SIZE,
        .gid = (gid_t)-1,
        .uid = (uid_t)-1,
    };

    lws_set_log_level(0, NULL);
    /* lws takes it up at vhost creation; a proxy is used only when configured. */
    unsetenv("http_proxy");
    c->loop = loop;
    c->loops[0] = loop;
    c->lws = lws_create_context(&info);
    if (c->lws == NULL) {
        *why = "libwebsockets cannot use libuv: the package libwebsockets-evlib-uv is missing";
        free(c);
        return NULL;
    }
    c->resolver = nl_resolver_new(loop);
    uv_timer_init(loop, &c->kicker);
    c->kicker.data = c;
    return c;
}

static bool same_ca_file(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* NULL when libwebsockets cannot. */
static struct vhost *make_vhost(struct nl_link_context *c, bool tls, const char *ca_file,
                                struct nl_trust *trust) {
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .protocols = protocols,
        .options = tls ? LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT : 0,
        .provided_client_ssl_ctx = tls ? nl_trust_context(trust) : NULL,
        .connect_timeout_secs = NO_TIMEOUT_S,
        .vhost_name = "nolag",
    };
    struct lws_vhost *lws = lws_create_vhost(c->lws, &info);
    struct vhost *v;

    if (lws == NULL)
        return NULL;
    v = nl_calloc(1, sizeof(*v));
    v->tls = tls;
    v->ca_file = ca_file == NULL ? NULL : nl_strdup(ca_file);
    v->trust = trust;
    v->lws = lws;
    LL_PREPEND(c->vhosts, v);
    return v;
}

/* One that failed is not kept: the file may be mended until the next link. */
static struct vhost *vhost_for(struct nl_link_context *c, bool tls, const char *ca_file, const char **why) {
    struct nl_trust *trust = NULL;
    struct vhost *v;

    ca_file = tls ? ca_file : NULL;
    for (v = c->vhosts; v != NULL; v = v->next)
        if (v->tls == tls && same_ca_file(v->ca_file, ca_file))
            return v;
    if (tls && (trust = nl_trust_new(ca_file, why)) == NULL)
        return NULL;
    v = make_vhost(c, tls, ca_file, trust);
    if (v == NULL) {
        *why = "libwebsockets could not set up the connection";
        nl_trust_free(trust);
    }
    return v;
}

static void destroy_lws(struct nl_link_context *c) {
    uv_close((uv_handle_t *)&c->kicker, NULL);
    nl_resolver_close(c->resolver);
    lws_context_destroy(c->lws);
}

void nl_link_context_close(struct nl_link_context *c) {
    struct nl_link *link;

    if (c->closing)
        return;
    c->closing = true;
    DL_FOREACH(c->links, link) {
        nl_link_close(link);
    }
    if (c->links == NULL)
        destroy_lws(c);
}

void nl_link_context_free(struct nl_link_context *c) {
    struct vhost *v, *tmp;
    struct attempt *attempt, *next;

    if (c == NULL)
        return;
    /* The second call frees what the first one could not while handles were closing. */
    lws_context_destroy(c->lws);
    DL_FOREACH_SAFE(c->attempts, attempt, next) {
        free_attempt(attempt);
    }
    LL_FOREACH_SAFE(c->vhosts, v, tmp) {
        nl_trust_free(v->trust);
        free(v->ca_file);
        free(v);
    }
    free(c);
}

/* ---- a link's life from outside ---- */

static char *make_authority(const struct nl_link *link) {
    bool bare = link->port == (link->tls ? 443 : 80);
    bool v6 = strchr(link->host, ':') != NULL;
    struct nl_buffer b;
    char port[16];
    size_t len;

    snprintf(port, sizeof(port), ":%u", (unsigned)link->port);
    nl_buffer_init(&b);
    nl_buffer_append_str(&b, v6 ? "[" : "");
    nl_buffer_append_str(&b, link->host);
    nl_buffer_append_str(&b, v6 ? "]" : "");
    nl_buffer_append_str(&b, bare ? "" : port);
    nl_buffer_append_byte(&b, '\0');
    return (char *)nl_buffer_take(&b, &len);
}

/* Says in link->ending what is wrong with them. */
static bool read_options(struct nl_link *link, const struct nl_link_options *options) {
    const char *why = NULL;

    set_ending(link, NL_LINK_CONNECT, "the url is not usable");
    if (!nl_url_parse(options->url, &link->tls, &link->host, &link->port, &link->path))
        return false;
    link->authority = make_authority(link);
    set_ending(link, NL_LINK_TLS, "wss:// to an IPv6 address: its certificate cannot be checked; use a name");
    if (link->tls && strchr(link->host, ':') != NULL)
        return false;
    set_ending(link, NL_LINK_TLS, "the host's name is too long for its certificate to be checked");
    if (link->tls && strlen(link->host) > TLS_HOST_MAX)
        return false;
    link->vhost = vhost_for(link->context, link->tls, options->ca_file, &why);
    if (link->vhost == NULL)
        set_ending(link, NL_LINK_TLS, "%s", why);
    return link->vhost != NULL;
}

struct nl_link *nl_link_open(struct nl_link_context *context, const struct nl_link_options *options,
                             const struct nl_link_handler *handler) {
    struct nl_link *link = nl_calloc(1, sizeof(*link));

    assert(!context->closing);
    link->context = context;
    link->handler = *handler;
    link->connect_timeout_ms = options->connect_timeout_ms;
    link->max_frame = options->max_frame;
    link->max_queued = options->max_queued;
    nl_buffer_init(&link->rx);
    uv_timer_init(context->loop, &link->timer);
    link->timer.data = link;
    DL_APPEND(context->links, link);
    uv_timer_start(&context->kicker, on_kick, KICK_MS, KICK_MS);
    set_state(link, RESOLVING, options->resolve_timeout_ms);
    if (!read_options(link, options)) {
        end(link);
        return link;
    }
    set_ending(link, NL_LINK_DNS, "the name cannot be looked up");
    link->resolution = nl_resolve(context->resolver, link->host, on_resolved, link);
    if (link->resolution == NULL)
        end(link);
    return link;
}

bool nl_link_send(struct nl_link *link, struct nl_slice frame) {
    struct out *out;

    if (link->state != OPEN || (frame.len > 0 && link->queued + frame.len > link->max_queued))
        return false;
    out = nl_malloc(sizeof(*out) + LWS_PRE + frame.len);
    out->next = NULL;
    out->len = frame.len;
    if (frame.len > 0)
        memcpy(out->bytes + LWS_PRE, frame.ptr, frame.len);
    if (link->out_last == NULL) {
        link->out = out;
        lws_callback_on_writable(link->attempt->wsi);
    } else {
        link->out_last->next = out;
    }
    link->out_last = out;
    link->queued += frame.len;
    link->heartbeats += frame.len == 0;
    return true;
}

/* TLS adds bytes that nobody counts, so a heartbeat's end is taken from the kernel, once all of it is there.
 */
static void measure_heartbeat(struct nl_link *link, uint64_t end) {
    if (!link->heartbeat_passed || lws_partial_buffered(link->attempt->wsi))
        return;
    link->heartbeat_end = end;
    link->heartbeat_passed = false;
}

struct nl_arrival nl_link_arrival(struct nl_link *link) {
    struct nl_arrival arrival = {.heartbeats = true};
    uint64_t on_their_way;

    if (link->state != OPEN ||
        !nl_tcp_arrived(lws_get_socket_fd(link->attempt->wsi), &arrival.bytes, &on_their_way))
        return arrival;
    measure_heartbeat(link, arrival.bytes + on_their_way);
    arrival.heartbeats =
        link->heartbeats == 0 && !link->heartbeat_passed && arrival.bytes >= link->heartbeat_end;
    return arrival;
}

size_t nl_link_queued(const struct nl_link *link) {
    return link->queued;
}

void nl_link_close(struct nl_link *link) {
    switch (link->state) {
    case RESOLVING:
    case CONNECTING:
        link->ending = (struct nl_link_ending){.end = NL_LINK_CLOSED_BY_US};
        end(link);
        break;
    case OPEN:
        link->ending = (struct nl_link_ending){.end = NL_LINK_CLOSED_BY_US};
        set_state(link, CLOSING, CLOSE_MS);
        lws_callback_on_writable(link->attempt->wsi);
        kick(link->context);
        break;
    case CLOSING:
    case CLOSED_BY_PEER:
    case ENDED:
        break;
    }
}
