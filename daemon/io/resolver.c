/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/resolver.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/alloc.h"

struct nl_resolution {
    uv_getaddrinfo_t request;
    void (*done)(void *ctx, struct nl_addresses *addresses, const char *error); /* NULL: cancelled */
    void *ctx;
};

void nl_addresses_deinit(struct nl_addresses *a) {
    free(a->items);
    *a = (struct nl_addresses){0};
}

static bool append(struct nl_addresses *a, const struct addrinfo *info) {
    struct nl_address *address = &a->items[a->count];

    if (getnameinfo(info->ai_addr, info->ai_addrlen, address->text, sizeof(address->text), NULL, 0,
                    NI_NUMERICHOST) != 0)
        return false;
    a->count++;
    return true;
}

/* The next entry of this kind from at on: of the family, or of any other. */
static const struct addrinfo *next_of(const struct addrinfo *at, int family, bool same) {
    while (at != NULL &&
           ((at->ai_family == family) != same || (at->ai_family != AF_INET && at->ai_family != AF_INET6)))
        at = at->ai_next;
    return at;
}

/* So that a host whose one family is broken costs one time-out and not many. */
static void interleave(struct nl_addresses *out, const struct addrinfo *list) {
    int family = list->ai_family;
    const struct addrinfo *same = next_of(list, family, true), *other = next_of(list, family, false);
    size_t n = 0;

    for (const struct addrinfo *i = list; i != NULL; i = i->ai_next)
        n++;
    out->items = nl_calloc(n, sizeof(*out->items));
    while (same != NULL || other != NULL) {
        if (same != NULL) {
            append(out, same);
            same = next_of(same->ai_next, family, true);
        }
        if (other != NULL) {
            append(out, other);
            other = next_of(other->ai_next, family, false);
        }
    }
}

static void on_addresses(uv_getaddrinfo_t *request, int status, struct addrinfo *list) {
    struct nl_resolution *r = request->data;
    struct nl_addresses addresses = {0};

    if (r->done != NULL) {
        if (status == 0 && list != NULL)
            interleave(&addresses, list);
        if (addresses.count > 0)
            r->done(r->ctx, &addresses, NULL);
        else
            r->done(r->ctx, &addresses, status == 0 ? "the name has no address" : uv_strerror(status));
        nl_addresses_deinit(&addresses);
    }
    uv_freeaddrinfo(list);
    free(r);
}

struct nl_resolution *nl_resolve(uv_loop_t *loop, const char *host,
                                 void (*done)(void *ctx, struct nl_addresses *addresses, const char *error),
                                 void *ctx) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct nl_resolution *r = nl_calloc(1, sizeof(*r));
    int error;

    r->done = done;
    r->ctx = ctx;
    r->request.data = r;
    error = uv_getaddrinfo(loop, &r->request, on_addresses, host, NULL, &hints);
    if (error == 0)
        return r;

    free(r);
    return NULL;
}

void nl_resolution_cancel(struct nl_resolution *r) {
    if (r == NULL)
        return;
    r->done = NULL;
    uv_cancel((uv_req_t *)&r->request);
}
