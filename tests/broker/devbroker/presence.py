# SPDX-License-Identifier: Apache-2.0
"""Who is present in which room. No I/O.

A session is present in one room at a time. Events go to the sessions present in
that room, the causing one included, and to whoever `watch` tells about it.
"""

import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

Room = tuple[str, str]  # project, room id
Watch = Callable[[Room, str, str, Any], None]  # room, event, actor, data


@dataclass
class Presence:
    data: Any
    joined_at: int


class Rooms:
    """The presence of all sessions."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._members: dict[Room, dict[Any, Presence]] = {}
        self._room_of: dict[Any, Room] = {}

    def announce(self, session: Any, room: Room, data: Any) -> None:
        """Enter the room, leaving any other, or update what is shown there."""
        if self._room_of.get(session, room) != room:
            self.leave(session)
        members = self._members.setdefault(room, {})
        self._room_of[session] = room
        if session in members:
            members[session].data = data
        else:
            members[session] = Presence(data, int(time.time()))
            self._tell(room, session, "join", data)
        self._tell(room, session, "update", data)

    def leave(self, session: Any) -> None:
        room = self._room_of.pop(session, None)
        if room is None:
            return
        self._send(room, session, "leave", {})
        del self._members[room][session]
        self._watch(room, "leave", session.grant.actor, {})

    def members(self, room: Room) -> list:
        return list(self._members.get(room, {}))

    def by_actor(self, room: Room) -> dict[str, Presence]:
        """One entry an actor: that of the connection which joined last."""
        return {session.grant.actor: presence
                for session, presence in self._members.get(room, {}).items()}

    def of_session(self, session: Any) -> Optional[tuple[Room, Presence]]:
        room = self._room_of.get(session)
        return None if room is None else (room, self._members[room][session])

    def _tell(self, room: Room, session: Any, event: str, data: Any) -> None:
        self._send(room, session, event, {"presence": data})
        self._watch(room, event, session.grant.actor, data)

    def _send(self, room: Room, session: Any, event: str, fields: dict) -> None:
        data = {"actor_token_id": session.grant.actor, **fields}
        for member in self.members(room):
            member.deliver({"type": "presence", "event": event, "data": data})
