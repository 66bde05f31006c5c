/* SPDX-License-Identifier: Apache-2.0 */
/* Topic names and patterns, level by level, without taking memory. */
#include "protocol/topic.h"

#define MIN_PARTS 3
#define MAX_PARTS 4

bool nl_topic_valid(struct nl_slice topic) {
    unsigned parts = 1;
    size_t part_len = 0;

    if (topic.len > NL_TOPIC_MAX)
        return false;
    for (size_t i = 0; i < topic.len; i++) {
        if (nl_topic_letter(topic.ptr[i])) {
            part_len++;
        } else if (topic.ptr[i] == '/' && part_len > 0) {
            parts++;
            part_len = 0;
        } else {
            return false;
        }
    }
    return part_len > 0 && parts >= MIN_PARTS && parts <= MAX_PARTS;
}

struct nl_slice nl_topic_name(struct nl_slice topic) {
    size_t start = topic.len;

    while (start > 0 && topic.ptr[start - 1] != '/')
        start--;
    return nl_slice(topic.ptr + start, topic.len - start);
}

/* Takes the next level off rest; false when there is none. */
static bool next_level(struct nl_slice *rest, struct nl_slice *level) {
    size_t n = 0;

    if (rest->ptr == NULL)
        return false;
    while (n < rest->len && rest->ptr[n] != '/')
        n++;
    *level = nl_slice(rest->ptr, n);
    *rest = n < rest->len ? nl_slice(rest->ptr + n + 1, rest->len - n - 1) : nl_slice(NULL, 0);
    return true;
}

bool nl_topic_matches(struct nl_slice pattern, struct nl_slice topic) {
    struct nl_slice want, have;

    while (next_level(&pattern, &want)) {
        if (nl_slice_equal(want, nl_slice_str("#")))
            return pattern.ptr == NULL;
        if (!next_level(&topic, &have))
            return false;
        if (!nl_slice_equal(want, nl_slice_str("+")) && !nl_slice_equal(want, have))
            return false;
    }
    return topic.ptr == NULL;
}
