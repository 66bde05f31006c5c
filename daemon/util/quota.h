/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each uid uses of this daemon: the accounting behind every limit per user. An entry
 * lives as long as somebody holds a reference to it, or remembers guesses: else who guesses tokens would only
 * have to connect anew.
 */
#ifndef NL_UTIL_QUOTA_H
#define NL_UTIL_QUOTA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uthash.h>

#include "daemon/util/backlog.h"

struct nl_uid_quota {
    uid_t uid;
    uint32_t refs;
    uint64_t clients;         /* connected clients */
    uint64_t subscriptions;   /* topics, summed over its clients */
    uint64_t watches;         /* rooms watched and lobbies, summed over its clients */
    uint64_t asks;            /* requests about presence and lobbies that wait, summed over its clients */
    uint64_t wish_bytes;      /* filters that its clients hold or ask for, and requests that wait */
    uint64_t token_sessions;  /* sessions opened by showing a token */
    uint64_t output_bytes;    /* queued for its clients */
    uint64_t input_bytes;     /* kept of lines of its clients that have not ended */
    struct nl_backlog output; /* beyond the bound of output_bytes */
    uint32_t guesses;         /* tokens shown that the broker denied, since the last good one */
    uint64_t guess_after_ms;  /* until then no other token is tried for it */
    struct nl_quotas *owner;
    UT_hash_handle hh; /* in nl_quotas.by_uid */
};

struct nl_quotas {
    struct nl_uid_quota *by_uid;
};

void nl_quotas_init(struct nl_quotas *q);
void nl_quotas_deinit(struct nl_quotas *q); /* asserts that nobody holds an entry */

/* The entry of uid, made when there is none, with one reference more. */
struct nl_uid_quota *nl_quota_ref(struct nl_quotas *q, uid_t uid);
struct nl_uid_quota *nl_quota_unref(struct nl_uid_quota *u); /* takes NULL; returns NULL */

/*
 * Adds n to *used unless that would exceed limit (0 = no limit). Returns whether it did;
 * on false nothing has changed. nl_quota_give() takes n off again.
 */
bool nl_quota_take(uint64_t *used, uint64_t n, uint64_t limit);
void nl_quota_give(uint64_t *used, uint64_t n);

/*
 * The broker denied, or took, a token that was tried for this user. The first NL_GUESSES_FREE denials cost
 * nothing (people mistype); from then on each doubles the time until another token is tried, from
 * NL_GUESS_MIN_MS to NL_GUESS_MAX_MS. A good token forgets them.
 */
#define NL_GUESSES_FREE 4
#define NL_GUESS_MIN_MS 250
#define NL_GUESS_MAX_MS 60000
void nl_quota_guessed(struct nl_uid_quota *u, bool good, uint64_t now_ms);

#endif
