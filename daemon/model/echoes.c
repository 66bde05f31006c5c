/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/echoes.h"

#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"

struct nl_echo {
    char *topic;
    char *key; /* NULL = no filter */
    uint64_t digest;
    uint64_t until_ms;
    struct nl_echo *prev, *next;
};

void nl_echoes_init(struct nl_echoes *e) {
    *e = (struct nl_echoes){0};
}

static void forget(struct nl_echoes *e, struct nl_echo *echo) {
    DL_DELETE(e->list, echo);
    e->count--;
    free(echo->topic);
    free(echo->key);
    free(echo);
}

void nl_echoes_deinit(struct nl_echoes *e) {
    while (e->list != NULL)
        forget(e, e->list);
}

void nl_echoes_expect(struct nl_echoes *e, struct nl_slice topic, const char *key, uint64_t digest,
                      uint64_t now_ms) {
    struct nl_echo *echo = nl_calloc(1, sizeof(*echo));

    if (e->count == NL_ECHOES_MAX)
        forget(e, e->list);
    echo->topic = nl_strndup((const char *)topic.ptr, topic.len);
    echo->key = key == NULL ? NULL : nl_strdup(key);
    echo->digest = digest;
    echo->until_ms = now_ms + NL_ECHO_WAIT_MS;
    DL_APPEND(e->list, echo);
    e->count++;
}

static bool is_copy(const struct nl_echo *echo, struct nl_slice topic, struct nl_slice key, bool hidden,
                    uint64_t digest) {
    if (echo->digest != digest || !nl_slice_equal(nl_slice_str(echo->topic), topic))
        return false;
    if (hidden)
        return true;
    return echo->key == NULL ? key.len == 0 : nl_slice_equal(nl_slice_str(echo->key), key);
}

bool nl_echoes_take(struct nl_echoes *e, struct nl_slice topic, struct nl_slice key, bool hidden,
                    uint64_t digest, uint64_t now_ms) {
    struct nl_echo *echo, *tmp;

    while (e->list != NULL && e->list->until_ms <= now_ms)
        forget(e, e->list);
    DL_FOREACH_SAFE(e->list, echo, tmp) {
        if (is_copy(echo, topic, key, hidden, digest)) {
            forget(e, echo);
            return true;
        }
    }
    return false;
}
