/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/util/quota.h"

#include <assert.h>
#include <stdlib.h>

#include "protocol/alloc.h"

void nl_quotas_init(struct nl_quotas *q) {
    q->by_uid = NULL;
}

static void quota_free(struct nl_quotas *q, struct nl_uid_quota *u) {
    HASH_DELETE(hh, q->by_uid, u);
    free(u);
}

void nl_quotas_deinit(struct nl_quotas *q) {
    struct nl_uid_quota *u, *tmp;

    HASH_ITER(hh, q->by_uid, u, tmp) {
        assert(u->refs == 0);
        quota_free(q, u);
    }
}

struct nl_uid_quota *nl_quota_ref(struct nl_quotas *q, uid_t uid) {
    struct nl_uid_quota *u;

    HASH_FIND(hh, q->by_uid, &uid, sizeof(uid), u);
    if (u == NULL) {
        u = nl_calloc(1, sizeof(*u));
        u->uid = uid;
        u->owner = q;
        HASH_ADD(hh, q->by_uid, uid, sizeof(u->uid), u);
    }
    u->refs++;
    return u;
}

struct nl_uid_quota *nl_quota_unref(struct nl_uid_quota *u) {
    if (u == NULL || --u->refs > 0)
        return NULL;
    assert(u->clients == 0 && u->subscriptions == 0 && u->token_sessions == 0 && u->output_bytes == 0 &&
           u->input_bytes == 0 && u->wish_bytes == 0);
    if (u->guesses == 0)
        quota_free(u->owner, u);
    return NULL;
}

bool nl_quota_take(uint64_t *used, uint64_t n, uint64_t limit) {
    if (limit != 0 && (*used > limit || n > limit - *used))
        return false;
    *used += n;
    return true;
}

void nl_quota_give(uint64_t *used, uint64_t n) {
    assert(*used >= n);
    *used -= n;
}

void nl_quota_guessed(struct nl_uid_quota *u, bool good, uint64_t now_ms) {
    uint64_t wait = NL_GUESS_MIN_MS;

    if (good) {
        u->guesses = 0;
        u->guess_after_ms = 0;
        return;
    }
    u->guesses += u->guesses < UINT32_MAX;
    if (u->guesses <= NL_GUESSES_FREE)
        return;
    for (uint32_t i = NL_GUESSES_FREE + 1; i < u->guesses && wait < NL_GUESS_MAX_MS; i++)
        wait *= 2;
    u->guess_after_ms = now_ms + (wait < NL_GUESS_MAX_MS ? wait : NL_GUESS_MAX_MS);
}
