/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name resolution that does not block: getaddrinfo() in a thread per host. Not uv_getaddrinfo(), whose
 * few threads four dead look-ups would take from everybody, and whose look-ups keep the loop, and so
 * the daemon's end, waiting for a resolver that does not answer.
 *
 * A host is looked up by one thread at a time, whoever asks for it meanwhile, so there are never more threads
 * than hosts. Nothing is cached: who asks after the answer has a new one.
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

struct nl_resolver;

struct nl_resolver *nl_resolver_new(uv_loop_t *loop);

/*
 * Starts the end, when nobody waits for an answer any more. The memory goes when its handle is closed and its
 * last thread is done; threads that still wait for an answer then are left behind and touch nothing else.
 */
void nl_resolver_close(struct nl_resolver *resolver);

/* One who waits for an answer. */
struct nl_resolution;

/*
 * Looks host up and calls done from the loop: with addresses (at least one; done may take them over and
 * leave an empty list), or with error, a text. The resolution is over when done is called. Returns NULL
 * when the look-up cannot even begin.
 */
struct nl_resolution *nl_resolve(struct nl_resolver *resolver, const char *host,
                                 void (*done)(void *ctx, struct nl_addresses *addresses, const char *error),
                                 void *ctx);

/* done is not called any more. Takes NULL. */
void nl_resolution_cancel(struct nl_resolution *resolution);

#endif
