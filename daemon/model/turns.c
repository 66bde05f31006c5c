/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of users and clients, and whose turn it is. A queue or user that has no turns and no slots is freed.
 */
#include "daemon/model/turns.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"

struct nl_turn_user {
    uint64_t uid;
    uint32_t in_flight;
    struct nl_turn_queue *queues;     /* of its clients, linked by prev, next; whose turn it is first */
    struct nl_turn_user *prev, *next; /* in nl_turns.users */
};

struct nl_turn_queue {
    uint64_t number;
    struct nl_turn_user *user;
    struct nl_turn *turns; /* linked by prev, next; oldest first */
    uint32_t in_flight;
    struct nl_turn_queue *prev, *next; /* in nl_turn_user.queues */
    UT_hash_handle hh;                 /* in nl_turns.queues */
};

void nl_turns_init(struct nl_turns *turns) {
    *turns = (struct nl_turns){0};
}

void nl_turns_deinit(struct nl_turns *turns) {
    assert(turns->queues == NULL && turns->users == NULL && turns->in_flight == 0);
    (void)turns;
}

/* The queues of nobody and of restoring are users of their own, whatever uid is given for them. */
static bool is_users(uint64_t number) {
    return number < NL_TURN_NOBODY;
}

static struct nl_turn_user *user_for(struct nl_turns *turns, uint64_t uid) {
    struct nl_turn_user *user;

    DL_FOREACH(turns->users, user) {
        if (user->uid == uid)
            return user;
    }
    user = nl_calloc(1, sizeof(*user));
    user->uid = uid;
    DL_APPEND(turns->users, user);
    return user;
}

static struct nl_turn_queue *queue_for(struct nl_turns *turns, uint64_t uid, uint64_t number) {
    struct nl_turn_queue *queue;

    HASH_FIND(hh, turns->queues, &number, sizeof(number), queue);
    if (queue != NULL)
        return queue;
    queue = nl_calloc(1, sizeof(*queue));
    queue->number = number;
    queue->user = user_for(turns, is_users(number) ? uid : number);
    DL_APPEND(queue->user->queues, queue);
    HASH_ADD(hh, turns->queues, number, sizeof(queue->number), queue);
    return queue;
}

static void release(struct nl_turns *turns, struct nl_turn_queue *queue) {
    struct nl_turn_user *user = queue->user;

    if (queue->turns != NULL || queue->in_flight > 0)
        return;
    HASH_DEL(turns->queues, queue);
    DL_DELETE(user->queues, queue);
    free(queue);
    if (user->queues != NULL)
        return;
    DL_DELETE(turns->users, user);
    free(user);
}

void nl_turns_wait(struct nl_turns *turns, struct nl_turn *turn, uint64_t uid, uint64_t number) {
    struct nl_turn_queue *queue;

    if (turn->queue != NULL && turn->queue->number == number)
        return;
    nl_turns_withdraw(turns, turn);
    queue = queue_for(turns, uid, number);
    turn->queue = queue;
    DL_APPEND(queue->turns, turn);
}

void nl_turns_withdraw(struct nl_turns *turns, struct nl_turn *turn) {
    struct nl_turn_queue *queue = turn->queue;

    if (queue == NULL)
        return;
    DL_DELETE(queue->turns, turn);
    turn->queue = NULL;
    release(turns, queue);
}

static bool may_have_slot(const struct nl_turns *turns, const struct nl_turn_queue *queue) {
    uint32_t left = NL_CONTROL_IN_FLIGHT - turns->in_flight, of_user = left;

    if (is_users(queue->user->uid))
        of_user = NL_CONTROL_PER_USER - queue->user->in_flight;
    return queue->number == NL_TURN_RESTORE ? left > 0
                                            : queue->in_flight < left && queue->in_flight < of_user;
}

static struct nl_turn *next_of(const struct nl_turns *turns, const struct nl_turn_user *user) {
    struct nl_turn_queue *queue;

    DL_FOREACH(user->queues, queue) {
        if (queue->turns != NULL && may_have_slot(turns, queue))
            return queue->turns;
    }
    return NULL;
}

struct nl_turn *nl_turns_next(const struct nl_turns *turns) {
    struct nl_turn *turn = NULL;
    struct nl_turn_user *user;

    DL_FOREACH(turns->users, user) {
        if (turn == NULL)
            turn = next_of(turns, user);
    }
    return turn;
}

struct nl_turn_queue *nl_turns_take(struct nl_turns *turns, struct nl_turn *turn) {
    struct nl_turn_queue *queue = turn->queue;
    struct nl_turn_user *user = queue->user;

    queue->in_flight++;
    user->in_flight++;
    turns->in_flight++;
    DL_DELETE(user->queues, queue);
    DL_APPEND(user->queues, queue);
    DL_DELETE(turns->users, user);
    DL_APPEND(turns->users, user);
    nl_turns_withdraw(turns, turn);
    return queue;
}

void nl_turns_give_back(struct nl_turns *turns, struct nl_turn_queue *queue) {
    assert(queue->in_flight > 0 && queue->user->in_flight > 0 && turns->in_flight > 0);
    queue->in_flight--;
    queue->user->in_flight--;
    turns->in_flight--;
    release(turns, queue);
}
