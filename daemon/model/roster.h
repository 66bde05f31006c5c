/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is present, as far as we were told, and what is new in what we are told next: the memory against which
 * join, update and leave are worked out. One for each room, and one for each lobby, whose keys name the room
 * too.
 *
 * An entry is what the broker said about an actor, packed. Two are the same when their digests are: the
 * caller digests what counts (the presence; not when the actor came).
 *
 * All rosters of a session share one allowance of bytes. What does not fit is not remembered, and so not
 * told either: each later look at it would make a join of it again.
 */
#ifndef NL_MODEL_ROSTER_H
#define NL_MODEL_ROSTER_H

#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#include "protocol/buffer.h"

struct nl_roster_entry {
    uint8_t *key; /* owned, with value behind it */
    size_t key_len;
    struct nl_slice value; /* MessagePack, for the owner's use */
    uint64_t digest;
    bool seen;   /* by the list that is being compared */
    bool untold; /* for the owner: not everybody was told of it; false when it is new */
    UT_hash_handle hh;
};

struct nl_roster_allowance {
    uint64_t used, limit; /* bytes */
};

struct nl_roster {
    struct nl_roster_entry *entries;
    struct nl_roster_allowance *allowance;
    bool incomplete; /* something did not fit since the last list */
};

enum nl_roster_change { NL_ROSTER_SAME, NL_ROSTER_JOINED, NL_ROSTER_UPDATED, NL_ROSTER_NO_ROOM };

void nl_roster_init(struct nl_roster *r, struct nl_roster_allowance *allowance);
void nl_roster_clear(struct nl_roster *r); /* forgets everybody; also the end of it */

struct nl_slice nl_roster_key(const struct nl_roster_entry *e);
struct nl_roster_entry *nl_roster_find(const struct nl_roster *r, struct nl_slice key);

/* Remembers value, whatever it was before, and says what that changed. */
enum nl_roster_change nl_roster_put(struct nl_roster *r, struct nl_slice key, struct nl_slice value,
                                    uint64_t digest);
void nl_roster_remove(struct nl_roster *r, struct nl_roster_entry *e);

/*
 * A whole list comes: begin, put each of it, and end gives whoever was not in it to left(), which must not
 * touch the roster, and forgets them.
 */
void nl_roster_begin(struct nl_roster *r);
void nl_roster_end(struct nl_roster *r, void (*left)(void *ctx, const struct nl_roster_entry *e), void *ctx);

#endif
