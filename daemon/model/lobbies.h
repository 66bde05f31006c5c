/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lobbies of a session: the presence of many rooms, seen from outside. One upstream subscription serves all
 * local clients of a lobby, and ends with the last of them.
 *
 *   idle --(somebody subscribes)--> lobbySubscribe --> subscribed --(the last one leaves)--> lobbyUnsubscribe
 *
 * One request for each lobby is on its way at a time. Every joiner gets a snapshot from a `getLobbyPresence`
 * that was sent after `lobbySubscribed`: that one's own can be empty. What such a list has that was not known
 * is told to those who were there before as events, so that after an outage only true differences are.
 *
 * Some brokers forget which rooms a lobby has 300 s after the last `lobbySubscribe` of anybody: it is sent
 * again every NL_LOBBY_RENEW_MS.
 *
 * Events may name the lobby by an id of the broker's own. It is learned when only one lobby can be meant: the
 * only one whose id is not known and that has the room. As long as several can, they are fetched instead, and
 * the difference is told. It is forgotten when an event shows it in a room that the lobby does not have, and
 * with the link.
 *
 * Pure: no loop, no clock.
 */
#ifndef NL_MODEL_LOBBIES_H
#define NL_MODEL_LOBBIES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/asks.h"

#define NL_LOBBY_RENEW_MS 240000
#define NL_LOBBY_RETRY_MS 10000             /* after a refused list that somebody still waits for */
#define NL_LOBBY_FLIGHTS 32                 /* requests on their way at a time, one a lobby */
#define NL_LOBBY_BYTES (UINT64_C(32) << 20) /* of the rosters of all lobbies */

struct nl_lobbies_limits {
    uint64_t request_timeout_ms;
    struct nl_watch_limits watches;
};

struct nl_lobbies;

struct nl_lobbies *nl_lobbies_new(const struct nl_lobbies_limits *limits, const struct nl_presence_ops *ops,
                                  uint64_t seed);
struct nl_lobbies *nl_lobbies_free(struct nl_lobbies *l); /* asserts that nobody holds anything */

/* lobbySubscribe, lobbyUnsubscribe, getLobbyPresence. The answer comes by ops.answer. */
bool nl_lobbies_wants(enum nl_request_type type);
void nl_lobbies_request(struct nl_lobbies *l, struct nl_peer *peer, struct nl_request *r, uint64_t now_ms);

void nl_lobbies_leave(struct nl_lobbies *l, struct nl_peer *peer);
void nl_lobbies_fail_all(struct nl_lobbies *l, enum nl_error error);

void nl_lobbies_up(struct nl_lobbies *l);
void nl_lobbies_down(struct nl_lobbies *l);

/* lobbySubscribed, lobbyUnsubscribed, lobbyPresenceList, lobbyPresence, or an error with a lobbyId. False:
 * nothing of ours. */
bool nl_lobbies_frame(struct nl_lobbies *l, const struct nl_frame *frame, uint64_t now_ms);

void nl_lobbies_fence_passed(struct nl_lobbies *l, uint64_t fence);
void nl_lobbies_run(struct nl_lobbies *l, uint64_t now_ms);
uint64_t nl_lobbies_next(const struct nl_lobbies *l); /* UINT64_MAX = no need */

#endif
