/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop owns the look-ups and all who wait for them. A look-up's answer is its thread's until the thread
 * says `finished`. The lock guards that word, `closed` and the count of users. When the resolver is closed,
 * each look-up that is not finished is its thread's; the last user frees the resolver.
 */
#include "daemon/io/resolver.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "protocol/alloc.h"

struct lookup {
    struct nl_resolver *resolver;
    char *host;
    pthread_t thread;
    bool finished;
    int error; /* of getaddrinfo() */
    int system_error;
    struct addrinfo *answer;
    struct nl_resolution *waiting; /* linked by prev, next */
    struct lookup *prev, *next;
};

struct nl_resolver {
    uv_async_t wake;        /* a look-up is finished */
    struct lookup *lookups; /* linked by prev, next */
    pthread_mutex_t lock;
    bool closed;
    unsigned users; /* the handle, and each thread */
};

struct nl_resolution {
    struct lookup *lookup;
    void (*done)(void *ctx, struct nl_addresses *addresses, const char *error);
    void *ctx;
    struct nl_resolution *prev, *next;
};

/* ---- answers ---- */

void nl_addresses_deinit(struct nl_addresses *a) {
    free(a->items);
    *a = (struct nl_addresses){0};
}

static void append(struct nl_addresses *a, const struct addrinfo *info) {
    struct nl_address *address = &a->items[a->count];

    if (getnameinfo(info->ai_addr, info->ai_addrlen, address->text, sizeof(address->text), NULL, 0,
                    NI_NUMERICHOST) == 0)
        a->count++;
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

static const char *error_of(const struct lookup *lookup) {
    if (lookup->error == EAI_SYSTEM)
        return strerror(lookup->system_error);
    return lookup->error != 0 ? gai_strerror(lookup->error) : "the name has no address";
}

static void tell(const struct lookup *lookup, struct nl_resolution *resolution) {
    struct nl_addresses addresses = {0};

    if (lookup->answer != NULL)
        interleave(&addresses, lookup->answer);
    resolution->done(resolution->ctx, &addresses, addresses.count > 0 ? NULL : error_of(lookup));
    nl_addresses_deinit(&addresses);
    free(resolution);
}

/* ---- look-ups ---- */

static void free_lookup(struct lookup *lookup) {
    if (lookup->answer != NULL)
        freeaddrinfo(lookup->answer);
    free(lookup->host);
    free(lookup);
}

/* With the lock held; gives it back. */
static void leave(struct nl_resolver *resolver) {
    bool last = --resolver->users == 0;

    pthread_mutex_unlock(&resolver->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&resolver->lock);
    free(resolver);
}

static void *run(void *arg) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct lookup *lookup = arg;
    struct nl_resolver *resolver = lookup->resolver;

    lookup->error = getaddrinfo(lookup->host, NULL, &hints, &lookup->answer);
    lookup->system_error = errno;
    if (lookup->error != 0)
        lookup->answer = NULL;
    pthread_mutex_lock(&resolver->lock);
    if (resolver->closed) {
        free_lookup(lookup);
    } else {
        lookup->finished = true;
        uv_async_send(&resolver->wake);
    }
    leave(resolver);
    return NULL;
}

/* Signals are the loop's. */
static bool start_thread(struct lookup *lookup) {
    sigset_t all, before;
    bool started;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&lookup->thread, NULL, run, lookup) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static struct lookup *start_lookup(struct nl_resolver *resolver, const char *host) {
    struct lookup *lookup = nl_calloc(1, sizeof(*lookup));

    lookup->resolver = resolver;
    lookup->host = nl_strdup(host);
    pthread_mutex_lock(&resolver->lock);
    resolver->users++;
    pthread_mutex_unlock(&resolver->lock);
    if (!start_thread(lookup)) {
        pthread_mutex_lock(&resolver->lock);
        leave(resolver);
        free_lookup(lookup);
        return NULL;
    }
    DL_APPEND(resolver->lookups, lookup);
    return lookup;
}

static struct lookup *find_running(struct nl_resolver *resolver, const char *host) {
    struct lookup *lookup;

    DL_FOREACH(resolver->lookups, lookup) {
        if (strcmp(lookup->host, host) == 0)
            break;
    }
    return lookup;
}

static struct lookup *take_finished(struct nl_resolver *resolver) {
    struct lookup *lookup;

    pthread_mutex_lock(&resolver->lock);
    DL_FOREACH(resolver->lookups, lookup) {
        if (lookup->finished)
            break;
    }
    pthread_mutex_unlock(&resolver->lock);
    if (lookup != NULL)
        DL_DELETE(resolver->lookups, lookup);
    return lookup;
}

static void on_wake(uv_async_t *wake) {
    struct nl_resolver *resolver = wake->data;
    struct lookup *lookup;

    while ((lookup = take_finished(resolver)) != NULL) {
        pthread_join(lookup->thread, NULL);
        while (lookup->waiting != NULL) {
            struct nl_resolution *first = lookup->waiting;

            DL_DELETE(lookup->waiting, first);
            tell(lookup, first);
        }
        free_lookup(lookup);
    }
}

struct nl_resolution *nl_resolve(struct nl_resolver *resolver, const char *host,
                                 void (*done)(void *ctx, struct nl_addresses *addresses, const char *error),
                                 void *ctx) {
    struct lookup *lookup = find_running(resolver, host);
    struct nl_resolution *resolution;

    if (lookup == NULL)
        lookup = start_lookup(resolver, host);
    if (lookup == NULL)
        return NULL;
    resolution = nl_calloc(1, sizeof(*resolution));
    resolution->lookup = lookup;
    resolution->done = done;
    resolution->ctx = ctx;
    DL_APPEND(lookup->waiting, resolution);
    return resolution;
}

void nl_resolution_cancel(struct nl_resolution *resolution) {
    if (resolution == NULL)
        return;
    DL_DELETE(resolution->lookup->waiting, resolution);
    free(resolution);
}

/* ---- the resolver ---- */

struct nl_resolver *nl_resolver_new(uv_loop_t *loop) {
    struct nl_resolver *resolver = nl_calloc(1, sizeof(*resolver));

    uv_async_init(loop, &resolver->wake, on_wake);
    resolver->wake.data = resolver;
    /* Who waits has a deadline of its own that keeps the loop. */
    uv_unref((uv_handle_t *)&resolver->wake);
    pthread_mutex_init(&resolver->lock, NULL);
    resolver->users = 1;
    return resolver;
}

static void on_wake_closed(uv_handle_t *handle) {
    struct nl_resolver *resolver = handle->data;

    pthread_mutex_lock(&resolver->lock);
    leave(resolver);
}

/* With the lock held, as the resolver is closed just now. */
static void abandon(struct lookup *lookup) {
    if (lookup->finished) {
        pthread_join(lookup->thread, NULL);
        free_lookup(lookup);
    } else {
        pthread_detach(lookup->thread);
    }
}

void nl_resolver_close(struct nl_resolver *resolver) {
    struct lookup *lookup, *tmp;

    pthread_mutex_lock(&resolver->lock);
    resolver->closed = true;
    DL_FOREACH_SAFE(resolver->lookups, lookup, tmp) {
        abandon(lookup);
    }
    resolver->lookups = NULL;
    pthread_mutex_unlock(&resolver->lock);
    uv_close((uv_handle_t *)&resolver->wake, on_wake_closed);
}
