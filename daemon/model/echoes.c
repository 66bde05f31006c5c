/* SPDX-License-Identifier: Apache-2.0 */
/* Own retained messages on two lists: those whose copy is expected, and those that may come as retained ones.
 */
#include "daemon/model/echoes.h"

#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"

struct nl_echo {
    char *topic;
    char *key; /* "" = no filter */
    uint64_t digest;
    uint64_t token;
    uint64_t published_ms, until_ms;
    bool late; /* an equal message came after all */
    struct nl_echo *prev, *next;
};

void nl_echoes_init(struct nl_echoes *e, bool never, uint64_t seed) {
    *e = (struct nl_echoes){.never = never, .seed = seed};
    e->copies = never ? NL_COPIES_NEVER : NL_COPIES_UNKNOWN;
}

static struct nl_echo *unlink_echo(struct nl_echo_list *list, struct nl_echo *echo) {
    DL_DELETE(list->head, echo);
    list->count--;
    return echo;
}

static void forget(struct nl_echo_list *list, struct nl_echo *echo) {
    unlink_echo(list, echo);
    free(echo->topic);
    free(echo->key);
    free(echo);
}

static void append(struct nl_echo_list *list, struct nl_echo *echo) {
    if (list->count == NL_ECHOES_MAX)
        forget(list, list->head);
    DL_APPEND(list->head, echo);
    list->count++;
}

void nl_echoes_deinit(struct nl_echoes *e) {
    while (e->expected.head != NULL)
        forget(&e->expected, e->expected.head);
    while (e->kept.head != NULL)
        forget(&e->kept, e->kept.head);
}

static struct nl_echo *find(const struct nl_echo_list *list, struct nl_slice topic, struct nl_slice key) {
    struct nl_echo *echo;

    DL_FOREACH(list->head, echo) {
        if (nl_slice_equal(nl_slice_str(echo->topic), topic) && nl_slice_equal(nl_slice_str(echo->key), key))
            break;
    }
    return echo;
}

/* The broker keeps one retained message for each topic and filter, the last one. */
static void keep(struct nl_echoes *e, struct nl_echo *echo) {
    struct nl_echo *before = find(&e->kept, nl_slice_str(echo->topic), nl_slice_str(echo->key));

    if (before != NULL)
        forget(&e->kept, before);
    append(&e->kept, echo);
}

static void expire(struct nl_echoes *e, uint64_t now_ms) {
    while (e->expected.head != NULL && e->expected.head->until_ms <= now_ms) {
        if (e->copies == NL_COPIES_UNKNOWN)
            e->copies = NL_COPIES_NEVER;
        keep(e, unlink_echo(&e->expected, e->expected.head));
    }
}

void nl_echoes_down(struct nl_echoes *e) {
    while (e->expected.head != NULL)
        keep(e, unlink_echo(&e->expected, e->expected.head));
    e->copies = e->never ? NL_COPIES_NEVER : NL_COPIES_UNKNOWN;
    e->late = 0;
}

void nl_echoes_expect(struct nl_echoes *e, struct nl_slice topic, const char *key, struct nl_slice data,
                      uint64_t token, uint64_t now_ms) {
    struct nl_echo *echo = nl_calloc(1, sizeof(*echo));

    expire(e, now_ms);
    echo->topic = nl_strndup((const char *)topic.ptr, topic.len);
    echo->key = nl_strdup(key == NULL ? "" : key);
    echo->digest = nl_digest(data, e->seed);
    echo->token = token;
    echo->published_ms = now_ms;
    echo->until_ms = now_ms + (e->copies == NL_COPIES_COME ? NL_ECHO_WAIT_MS : NL_ECHO_FIRST_WAIT_MS);
    if (e->kept.head != NULL && !e->kept.head->prev->late)
        e->late = 0;
    if (e->copies == NL_COPIES_NEVER)
        keep(e, echo);
    else
        append(&e->expected, echo);
}

static bool is_foreign(const struct nl_frame *message, struct nl_slice self) {
    struct nl_slice key, value, name, from;
    struct nl_raw_iter fields;

    if (self.len == 0 || !nl_raw_map(message->whole, &fields))
        return false;
    while (nl_raw_next_pair(&fields, &key, &value))
        if (nl_raw_string(key, &name) && nl_slice_equal(name, nl_slice_str("from")))
            return !nl_raw_string(value, &from) || !nl_slice_equal(from, self);
    return false;
}

static struct nl_echo *find_echo(const struct nl_echo_list *list, struct nl_slice topic, struct nl_slice key,
                                 bool hidden, uint64_t digest) {
    struct nl_echo *echo;

    DL_FOREACH(list->head, echo) {
        if (echo->digest == digest && nl_slice_equal(nl_slice_str(echo->topic), topic) &&
            (hidden || nl_slice_equal(nl_slice_str(echo->key), key)))
            break;
    }
    return echo;
}

/* The kept message of this topic and filter is now known, or no longer the one that the broker keeps. */
static bool take_kept(struct nl_echoes *e, struct nl_slice topic, struct nl_slice key, uint64_t digest,
                      uint64_t changed_ms, uint64_t *token) {
    struct nl_echo *echo = find(&e->kept, topic, key);
    bool equal;

    if (echo == NULL || echo->published_ms >= changed_ms)
        return false;
    equal = echo->digest == digest;
    *token = echo->token;
    forget(&e->kept, echo);
    return equal;
}

/*
 * The copy did not come in time, but something equal did. It may be somebody else's; when that happens again
 * and again the broker does send copies, and the one that it was judged by came late.
 */
static void note_late(struct nl_echoes *e, struct nl_echo *echo, uint64_t now_ms) {
    if (echo == NULL || echo->late || e->copies != NL_COPIES_NEVER || e->never ||
        now_ms >= echo->published_ms + NL_ECHO_WAIT_MS)
        return;
    echo->late = true;
    if (++e->late >= NL_ECHOES_LATE)
        e->copies = NL_COPIES_UNKNOWN;
}

/* Nothing was published so lately that a copy of it could still come. */
static bool none_can_be_late(const struct nl_echoes *e, uint64_t now_ms) {
    return e->kept.head == NULL || e->never || now_ms >= e->kept.head->prev->published_ms + NL_ECHO_WAIT_MS;
}

enum nl_echo_kind nl_echoes_take(struct nl_echoes *e, const struct nl_frame *message, struct nl_slice self,
                                 uint64_t changed_ms, uint64_t now_ms, uint64_t *token) {
    struct nl_slice key = nl_slice(NULL, 0);
    struct nl_echo *copy;
    uint64_t digest;
    bool hidden;

    expire(e, now_ms);
    if (e->expected.head == NULL && none_can_be_late(e, now_ms) && (e->kept.head == NULL || changed_ms == 0))
        return NL_ECHO_NONE;
    if (!NL_FRAME_HAS(message, topic) || !NL_FRAME_HAS(message, data) || is_foreign(message, self))
        return NL_ECHO_NONE;
    if (NL_FRAME_HAS(message, filter))
        nl_raw_string(message->filter, &key);
    hidden = nl_slice_equal(key, nl_slice_str("#"));
    digest = nl_digest(message->data, e->seed);
    copy = find_echo(&e->expected, message->topic, key, hidden, digest);
    if (copy != NULL) {
        e->copies = NL_COPIES_COME;
        *token = copy->token;
        forget(&e->expected, copy);
        return NL_ECHO_COPY;
    }
    if (changed_ms != 0 && !hidden && take_kept(e, message->topic, key, digest, changed_ms, token))
        return NL_ECHO_RETAINED;
    note_late(e, find_echo(&e->kept, message->topic, key, hidden, digest), now_ms);
    return NL_ECHO_NONE;
}
