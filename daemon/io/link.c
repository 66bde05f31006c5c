/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link goes through its addresses one at a time; each try is one lws connection (wsi),
 * whose opaque user data is the link for as long as it is the link's try. A wsi that is given up is
 * cut loose first (user data NULL), so that whatever it still reports reaches nobody.
 *
 * libwebsockets on somebody else's libuv loop arms its own timers only at the end of its own events.
 * So every call made from outside one is followed by kick(), every phase has a uv timer of ours,
 * and a slow timer kicks while there are links, in case something was missed.
 */
#include <uv.h>

#include <libwebsockets.h>

#include "daemon/io/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/util/url.h"
#include "daemon/io/resolver.h"
#include "protocol/alloc.h"

#define KICK_MS 250
#define CLOSE_MS 800 /* for the close handshake; on_closed comes within a second */
#define RX_CHUNK 65536
#define ADDRESS_MAX 64 /* "fe80::...%interface" */

struct vhost {
    char *ca_file; /* NULL = the system's */
    struct lws_vhost *lws;
    struct vhost *next;
};

struct nl_link_context {
    uv_loop_t *loop;
    void *loops[1]; /* as lws wants it */
    struct lws_context *lws;
    struct vhost *vhosts;
    struct nl_link *links; /* linked by prev, next */
    uv_timer_t kicker;
    bool closing;
};

enum state {
    RESOLVING,
    CONNECTING,
    OPEN,
    CLOSING, /* the close handshake is under way */
    ENDED,   /* on_closed is to be called from the loop */
};

struct out {
    struct out *next;
    size_t len;
    uint8_t bytes[]; /* LWS_PRE, then the frame */
};

struct nl_link {
    struct nl_link_context *context;
    struct nl_link_handler handler;
    uint64_t connect_timeout_ms, resolve_timeout_ms;
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
    struct lws *wsi; /* the try; NULL = none */
    bool in_connect; /* inside lws_client_connect_via_info() */
    struct nl_link_ending ending;
    struct nl_buffer rx; /* fragments of a frame that is not whole yet */
    struct out *out, *out_last;
    size_t queued;
    struct nl_link *prev, *next;
};

/* ---- small things ---- */

static void kick(struct nl_link_context *context) {
    if (context->lws != NULL)
        lws_cancel_service(context->lws);
}

/* What the peer or the library says goes to people: printable ASCII only. */
static void set_detail(struct nl_link_ending *ending, const char *text, size_t len) {
    size_t n = 0;

    for (; n < len && n < sizeof(ending->detail) - 1 && text[n] != '\0'; n++)
        ending->detail[n] = text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?';
    ending->detail[n] = '\0';
}

static void on_timer(uv_timer_t *timer);

static void set_state(struct nl_link *link, enum state state, uint64_t deadline_ms) {
    link->state = state;
    if (deadline_ms == UINT64_MAX)
        uv_timer_stop(&link->timer);
    else
        uv_timer_start(&link->timer, on_timer, deadline_ms, 0);
}

/* Cuts the try loose and has lws end it soon. */
static void drop_wsi(struct nl_link *link) {
    struct lws *wsi = link->wsi;

    link->wsi = NULL;
    if (wsi == NULL)
        return;
    lws_set_opaque_user_data(wsi, NULL);
    lws_set_timeout(wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_ASYNC);
    kick(link->context);
}

/* The link is over; it is told from the loop. The first ending counts. */
static void end(struct nl_link *link) {
    if (link->state == ENDED)
        return;
    drop_wsi(link);
    nl_resolution_cancel(link->resolution);
    link->resolution = NULL;
    set_state(link, ENDED, 0);
}

static void end_with(struct nl_link *link, enum nl_link_end why, const char *detail) {
    link->ending.end = why;
    set_detail(&link->ending, detail, strlen(detail));
    end(link);
}

/* ---- tries ---- */

static void try_next(struct nl_link *link);

/* The try came to nothing; link->ending says why. */
static void try_failed(struct nl_link *link) {
    link->wsi = NULL;
    if (link->in_connect) /* try_next() is on the stack and goes on */
        return;
    try_next(link);
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
        .ssl_connection = link->tls ? LCCSCF_USE_SSL : 0,
        .alpn = "http/1.1",
        .ietf_version_or_minus_one = -1,
        .opaque_user_data = link,
        .pwsi = &link->wsi,
        .retry_and_idle_policy = &patient,
    };

    return info;
}

/* Begins one try. False when it has failed already. */
static bool try_address(struct nl_link *link, const char *address) {
    struct lws_client_connect_info info = connect_info(link, address);

    link->ending = (struct nl_link_ending){.end = NL_LINK_CONNECT};
    set_state(link, CONNECTING, link->connect_timeout_ms);
    link->in_connect = true;
    if (lws_client_connect_via_info(&info) == NULL)
        link->wsi = NULL;
    link->in_connect = false;
    kick(link->context);
    return link->wsi != NULL;
}

static void try_next(struct nl_link *link) {
    while (link->next_address < link->addresses.count)
        if (try_address(link, link->addresses.items[link->next_address++].text))
            return;
    end(link);
}

static void on_resolved(void *ctx, struct nl_addresses *addresses, const char *error) {
    struct nl_link *link = ctx;

    link->resolution = NULL;
    if (error != NULL) {
        end_with(link, NL_LINK_DNS, error);
        return;
    }
    link->addresses = *addresses;
    *addresses = (struct nl_addresses){0};
    try_next(link);
}

/* ---- what lws reports ---- */

static bool contains(const char *text, const char *word) {
    return strstr(text, word) != NULL;
}

/* From the text that lws gives (4.1.6), as it has no codes. */
static void read_error(struct nl_link *link, struct lws *wsi, const char *text) {
    struct nl_link_ending *e = &link->ending;

    e->http_status = (int)lws_http_client_http_response(wsi);
    set_detail(e, text, strlen(text));
    if (contains(text, "cert")) {
        e->end = NL_LINK_TLS;
        e->certificate = true;
    } else if (contains(text, "HS:") || e->http_status != 0) {
        e->end = NL_LINK_UPGRADE;
    } else if (contains(text, "tls") || contains(text, "SSL") || contains(text, "ssl")) {
        e->end = NL_LINK_TLS;
    } else {
        e->end = NL_LINK_CONNECT;
    }
}

static void on_error(struct nl_link *link, struct lws *wsi, const char *text, size_t len) {
    char copy[160];

    snprintf(copy, sizeof(copy), "%.*s", (int)len, text == NULL ? "" : text);
    if (link->state != CONNECTING)
        return;
    read_error(link, wsi, copy);
    try_failed(link);
}

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
        end_with(link, NL_LINK_OVERSIZE, "a frame is larger than allowed");
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
    LL_DELETE(link->out, first);
    if (link->out == NULL)
        link->out_last = NULL;
    free(first);
}

static int on_writable(struct nl_link *link, struct lws *wsi) {
    struct out *first = link->out;
    int n;

    if (link->state == CLOSING) {
        lws_close_reason(wsi, LWS_CLOSE_STATUS_NORMAL, NULL, 0);
        return -1;
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

/* The peer's close frame: a code in network order, then a reason. */
static void on_close_frame(struct nl_link *link, const uint8_t *in, size_t len) {
    if (link->state != OPEN)
        return;
    link->ending.end = NL_LINK_CLOSED;
    if (len < 2)
        return;
    link->ending.code = in[0] << 8 | in[1];
    set_detail(&link->ending, (const char *)in + 2, len - 2);
}

static void on_wsi_gone(struct nl_link *link) {
    link->wsi = NULL;
    switch (link->state) {
    case CONNECTING:
        if (link->ending.detail[0] == '\0')
            set_detail(&link->ending, "the connection was closed", 25);
        try_failed(link);
        break;
    case OPEN:
    case CLOSING:
        end(link);
        break;
    case RESOLVING:
    case ENDED:
        break;
    }
}

static int on_lws(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len) {
    struct nl_link *link = wsi == NULL ? NULL : lws_get_opaque_user_data(wsi);

    (void)user;
    if (link == NULL)
        return 0;
    switch (reason) {
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        lws_set_opaque_user_data(wsi, NULL);
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
    case LWS_CALLBACK_WSI_DESTROY:
        lws_set_opaque_user_data(wsi, NULL);
        on_wsi_gone(link);
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
}

static void on_timer(uv_timer_t *timer) {
    struct nl_link *link = timer->data;

    switch (link->state) {
    case RESOLVING:
        end_with(link, NL_LINK_DNS, "no answer in time");
        break;
    case CONNECTING:
        drop_wsi(link);
        if (link->ending.detail[0] == '\0')
            set_detail(&link->ending, "no answer in time", 17);
        try_next(link);
        break;
    case CLOSING:
        end(link);
        break;
    case ENDED:
        report(link);
        break;
    case OPEN:
        break;
    }
}

/* ---- the context ---- */

static const struct lws_protocols protocols[] = {
    {.name = "nolag", .callback = on_lws, .rx_buffer_size = RX_CHUNK},
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
    uv_timer_init(loop, &c->kicker);
    c->kicker.data = c;
    return c;
}

static struct vhost *vhost_for(struct nl_link_context *c, const char *ca_file) {
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .protocols = protocols,
        .options = LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT,
        .client_ssl_ca_filepath = ca_file,
        .vhost_name = "nolag",
    };
    struct vhost *v;

    for (v = c->vhosts; v != NULL; v = v->next)
        if (ca_file == NULL ? v->ca_file == NULL : v->ca_file != NULL && strcmp(v->ca_file, ca_file) == 0)
            return v;
    v = nl_calloc(1, sizeof(*v));
    v->ca_file = ca_file == NULL ? NULL : nl_strdup(ca_file);
    v->lws = lws_create_vhost(c->lws, &info);
    LL_PREPEND(c->vhosts, v);
    return v;
}

void nl_link_context_close(struct nl_link_context *c) {
    struct nl_link *link, *tmp;

    if (c->closing)
        return;
    c->closing = true;
    DL_FOREACH_SAFE(c->links, link, tmp) {
        nl_link_close(link);
    }
    uv_close((uv_handle_t *)&c->kicker, NULL);
    lws_context_destroy(c->lws);
}

void nl_link_context_free(struct nl_link_context *c) {
    struct vhost *v, *tmp;

    if (c == NULL)
        return;
    /* The second call frees what the first one could not while handles were closing. */
    lws_context_destroy(c->lws);
    LL_FOREACH_SAFE(c->vhosts, v, tmp) {
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

static bool read_url(struct nl_link *link, const char *url) {
    if (!nl_url_parse(url, &link->tls, &link->host, &link->port, &link->path))
        return false;
    link->authority = make_authority(link);
    return true;
}

struct nl_link *nl_link_open(struct nl_link_context *context, const struct nl_link_options *options,
                             const struct nl_link_handler *handler) {
    struct nl_link *link = nl_calloc(1, sizeof(*link));

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
    if (!read_url(link, options->url)) {
        end_with(link, NL_LINK_CONNECT, "the url is not usable");
        return link;
    }
    if (link->tls && strchr(link->host, ':') != NULL) {
        end_with(link, NL_LINK_TLS,
                 "wss:// needs a host name: certificates are not checked against IPv6 addresses");
        return link;
    }
    link->vhost = vhost_for(context, options->ca_file);
    if (link->vhost->lws == NULL) {
        end_with(link, NL_LINK_TLS, "the CA file cannot be used");
        return link;
    }
    link->resolution = nl_resolve(context->loop, link->host, on_resolved, link);
    if (link->resolution == NULL)
        end_with(link, NL_LINK_DNS, "the host cannot be looked up");
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
    if (link->out_last == NULL)
        link->out = out;
    else
        link->out_last->next = out;
    link->out_last = out;
    link->queued += frame.len;
    lws_callback_on_writable(link->wsi);
    return true;
}

size_t nl_link_queued(const struct nl_link *link) {
    return link->queued;
}

void nl_link_close(struct nl_link *link) {
    if (link->state == CLOSING || link->state == ENDED)
        return;
    link->ending = (struct nl_link_ending){.end = NL_LINK_CLOSED_BY_US};
    if (link->state != OPEN) {
        end(link);
        return;
    }
    set_state(link, CLOSING, CLOSE_MS);
    lws_callback_on_writable(link->wsi);
    kick(link->context);
}
