/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link: one connection to the broker, over libwebsockets on the daemon's libuv loop.
 * Resolves the name without blocking, tries one address at a time with a
 * deadline of its own, IPv6 and IPv4 in turn, then upgrades to a WebSocket and carries whole
 * binary frames both ways. It knows nothing of the frames' content, of auth, heartbeats or
 * reconnecting: that is the session's business.
 *
 * All callbacks come from the loop, never from inside a call to this module, and none comes
 * after on_closed, which comes exactly once for every nl_link_open().
 */
#ifndef NL_IO_LINK_H
#define NL_IO_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/model/liveness.h"
#include "protocol/buffer.h"

/*
 * The library context that all links share: one lws context on our loop, and one vhost per
 * CA file. Made once.
 */
struct nl_link_context;

/* Returns NULL and *why (static text, e.g. that libwebsockets-evlib-uv is missing) on failure. */
struct nl_link_context *nl_link_context_new(uv_loop_t *loop, const char **why);

/*
 * Starts the end: closes what is left of links, whose on_closed still comes, within a second. No link may be
 * opened any more. After that the loop holds no handle of this module or of libwebsockets, whatever
 * resolvers and peers do. The context is freed by nl_link_context_free() after the loop has run dry.
 */
void nl_link_context_close(struct nl_link_context *context);
void nl_link_context_free(struct nl_link_context *context);

enum nl_link_end {
    NL_LINK_CLOSED_BY_US, /* nl_link_close() was called */
    NL_LINK_DNS,          /* detail: the resolver's message */
    NL_LINK_CONNECT,      /* no address connected, or answered in time; detail: the last one's error */
    NL_LINK_TLS,          /* handshake or certificate; detail: the library's text */
    NL_LINK_UPGRADE,      /* refused; http_status, retry_after_ms: if given. 3xx are not followed */
    NL_LINK_CLOSED,       /* close frame from the broker; code and detail (its reason, sanitised) */
    NL_LINK_LOST,         /* the connection broke without a close frame */
    NL_LINK_OVERSIZE,     /* a frame above max_frame came */
};

struct nl_link_ending {
    enum nl_link_end end;
    int code;                /* WebSocket close code, 0 = none */
    int http_status;         /* 0 = none */
    uint64_t retry_after_ms; /* 0 = none, or given as a date */
    bool certificate;        /* NL_LINK_TLS because of the certificate (unknown CA, name, dates) */
    char detail[160];        /* printable ASCII; "" = none */
};

struct nl_link;

struct nl_link_handler {
    void (*on_open)(void *ctx);                         /* frames can be sent from now on */
    void (*on_frame)(void *ctx, struct nl_slice frame); /* one whole frame; empty for a heartbeat's echo */
    void (*on_closed)(void *ctx, const struct nl_link_ending *ending); /* the last one; frees the link */
    void *ctx;
};

struct nl_link_options {
    const char *url;             /* ws:// or wss://, valid (nl_url_parse) */
    const char *ca_file;         /* NULL = the system's CAs */
    uint64_t connect_timeout_ms; /* per address: TCP, TLS and upgrade together */
    uint64_t resolve_timeout_ms; /* for the name as a whole */
    size_t max_frame;            /* bytes; a larger incoming frame ends the link (NL_LINK_OVERSIZE) */
    size_t max_queued;           /* bytes waiting to be sent; see nl_link_send() */
};

/*
 * Begins to connect. Options are copied. Returns the link, never NULL.
 */
struct nl_link *nl_link_open(struct nl_link_context *context, const struct nl_link_options *options,
                             const struct nl_link_handler *handler);

/*
 * Queues one binary frame (may be empty: a heartbeat). The bytes are copied. Returns false, with nothing
 * queued, when the link is not open or max_queued would be exceeded (an empty frame always fits).
 */
bool nl_link_send(struct nl_link *link, struct nl_slice frame);

/* What of that has arrived at the other end's kernel; all has when there is no connection. */
struct nl_arrival nl_link_arrival(struct nl_link *link);

/* Bytes waiting to be sent. */
size_t nl_link_queued(const struct nl_link *link);

/*
 * Ends the link: idempotent. When open, what is queued is dropped, a close frame with code 1000 goes out if
 * it can at once; on_closed follows within a second, whatever the peer does.
 */
void nl_link_close(struct nl_link *link);

#endif
