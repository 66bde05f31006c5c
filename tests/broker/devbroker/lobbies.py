# SPDX-License-Identifier: Apache-2.0
"""Lobbies: the presence of many rooms seen from outside. No I/O.

kraken learns which rooms a lobby has from the token that subscribes to it, after
that subscriber's own snapshot, and forgets them some time after the last
subscribe. Until then, and after, there are no events and snapshots are empty.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from .presence import Room, Rooms

REMEMBERED_MS = 300_000


@dataclass
class Lobby:
    slug: str
    watchers: dict = field(default_factory=dict)  # session -> None, in order
    rooms: dict[Room, str] = field(default_factory=dict)  # room -> slug
    learned_at: float = 0.0


class Lobbies:
    """All lobbies, by their internal id."""

    def __init__(self, flavor: str) -> None:
        self._cloud = flavor == "cloud"
        self._lobbies: dict[str, Lobby] = {}
        self.remembered_ms = REMEMBERED_MS

    def subscribe(self, session: Any, slug: str, rooms: Rooms) -> dict:
        """Start watching; returns the snapshot."""
        lobby = self._lobbies.setdefault(session.grant.lobbies[slug], Lobby(slug))
        if self._cloud:
            self._learn(lobby, session)
        snapshot = self._snapshot(lobby, rooms)
        self._learn(lobby, session)
        lobby.watchers[session] = None
        return snapshot

    def unsubscribe(self, session: Any, slug: str) -> None:
        lobby = self._lobbies.get(session.grant.lobbies[slug])
        if lobby is not None:
            lobby.watchers.pop(session, None)

    def leave(self, session: Any) -> None:
        for lobby in self._lobbies.values():
            lobby.watchers.pop(session, None)

    def snapshot(self, session: Any, slug: str, rooms: Rooms) -> dict:
        lobby = self._lobbies.get(session.grant.lobbies[slug])
        if lobby is None and self._cloud:
            lobby = Lobby(slug, rooms=_rooms_of(session), learned_at=time.monotonic())
        return {} if lobby is None else self._snapshot(lobby, rooms)

    def watched_by(self, session: Any) -> list[str]:
        return [lobby.slug for lobby in self._lobbies.values() if session in lobby.watchers]

    def forget(self) -> None:
        """Every lobby's rooms are forgotten now."""
        for lobby in self._lobbies.values():
            lobby.rooms = {}

    def tell(self, room: Room, event: str, actor: str, data: Any) -> None:
        """A presence event, to all who watch a lobby that holds the room."""
        for lobby_id, lobby in self._lobbies.items():
            slug = self._known_rooms(lobby).get(room)
            if slug is None:
                continue
            frame = {"type": "lobbyPresence", "event": event, "roomId": slug, "actorId": actor,
                     "lobbyId": lobby.slug if self._cloud else lobby_id, "data": data}
            for session in list(lobby.watchers):
                session.deliver(frame)

    def _learn(self, lobby: Lobby, session: Any) -> None:
        lobby.rooms = _rooms_of(session)
        lobby.learned_at = time.monotonic()

    def _known_rooms(self, lobby: Lobby) -> dict[Room, str]:
        age_ms = (time.monotonic() - lobby.learned_at) * 1000
        forgotten = not self._cloud and age_ms > self.remembered_ms
        return {} if forgotten else lobby.rooms

    def _snapshot(self, lobby: Lobby, rooms: Rooms) -> dict:
        return {slug: {actor: {"actorTokenId": actor, "presence": presence.data,
                               "joinedAt": presence.joined_at}
                       for actor, presence in rooms.by_actor(room).items()}
                for room, slug in self._known_rooms(lobby).items()}


def _rooms_of(session: Any) -> dict[Room, str]:
    return {room: slug for slug, room in session.grant.rooms.items()}
