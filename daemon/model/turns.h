/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose control request goes to the broker next. At most NL_CONTROL_IN_FLIGHT are in flight, a slot each.
 * Turns go round-robin over users, then over the clients of a user, first in first out within a client. So
 * that nobody has to wait for the answers to somebody else's requests, which may never come:
 *
 *   - the clients of one user together get at most NL_CONTROL_PER_USER;
 *   - a client gets no more slots than it leaves free of these and of all: the first one half, the next a
 * quarter, ...
 *
 * Two queues belong to no client and take turns like a user: NL_TURN_RESTORE, subscriptions that were there
 * before the link was lost, which may have all slots; and NL_TURN_NOBODY, what is left to do for topics that
 * nobody waits for, which has the share of one client.
 *
 * A turn is embedded in what waits (an nl_change, or an nl_topic) and says for which topic it is. A queue is
 * found by the client's number, not its address, and lives as long as it has turns or slots: a client that
 * goes away does not get its share anew.
 */
#ifndef NL_MODEL_TURNS_H
#define NL_MODEL_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#define NL_CONTROL_IN_FLIGHT 64
#define NL_CONTROL_PER_USER 48

/* The numbers of the queues that belong to no client; clients are numbered from 0. */
#define NL_TURN_RESTORE UINT64_MAX
#define NL_TURN_NOBODY (UINT64_MAX - 1)

struct nl_turn_queue;

struct nl_turn {
    void *topic;
    struct nl_turn_queue *queue; /* NULL = does not wait */
    struct nl_turn *prev, *next; /* in nl_turn_queue.turns */
};

struct nl_turns {
    struct nl_turn_queue *queues; /* by number */
    struct nl_turn_user *users; /* those with turns or slots, linked by prev, next; whose turn it is first */
    uint32_t in_flight;
};

void nl_turns_init(struct nl_turns *turns);
void nl_turns_deinit(struct nl_turns *turns); /* asserts that nothing waits and nothing is in flight */

/* Waits in the queue of client number (or NL_TURN_x) of user uid; nothing when it already waits there. */
void nl_turns_wait(struct nl_turns *turns, struct nl_turn *turn, uint64_t uid, uint64_t number);

/* Waits no more; nothing when it does not. */
void nl_turns_withdraw(struct nl_turns *turns, struct nl_turn *turn);

/* The turn that is next and may have a slot now; NULL = none. */
struct nl_turn *nl_turns_next(const struct nl_turns *turns);

/* Gives the turn's queue a slot, until nl_turns_give_back(). The turn waits no more, and others are before
 * the queue. */
struct nl_turn_queue *nl_turns_take(struct nl_turns *turns, struct nl_turn *turn);
void nl_turns_give_back(struct nl_turns *turns, struct nl_turn_queue *queue);

#endif
