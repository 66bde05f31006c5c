/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name resolution that does not block: uv_getaddrinfo(), whose threads may hang on a dead
 * resolver while the loop goes on.
 */
#ifndef NL_IO_RESOLVER_H
#define NL_IO_RESOLVER_H

#include <stddef.h>
#include <uv.h>

struct nl_address {
    char text[64]; /* numeric */
};

/* In the order to try: the resolver's, the two families taking turns. */
struct nl_addresses {
    struct nl_address *items;
    size_t count;
};

void nl_addresses_deinit(struct nl_addresses *a);

struct nl_resolution;

/*
 * Looks host up and calls done from the loop: with addresses (at least one; done may take them over and
 * leave an empty list), or with error, a text. Returns the look-up, which is over when done was called; NULL
 * when it cannot even begin.
 */
struct nl_resolution *nl_resolve(uv_loop_t *loop, const char *host,
                                 void (*done)(void *ctx, struct nl_addresses *addresses, const char *error),
                                 void *ctx);

/*
 * done is not called any more. Takes NULL. A look-up whose thread is already in the C library cannot be
 * stopped: it keeps the loop alive until the resolver gives up.
 */
void nl_resolution_cancel(struct nl_resolution *r);

#endif
