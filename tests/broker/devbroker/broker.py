# SPDX-License-Identifier: Apache-2.0
"""The broker's objects, held together. It knows sessions, not sockets."""

import dataclasses
import uuid
from typing import Any, Optional

from .auth import Grant
from .faults import Faults
from .journal import Journal
from .lobbies import REMEMBERED_MS, Lobbies
from .presence import Rooms
from .session import Session
from .topics import Message, Topics

PROTOCOL_VERSION = 2


@dataclasses.dataclass
class Settings:
    """What the control command `configure` can change."""

    recording: bool = True
    rateLimit: Optional[int] = None  # None: the token's own; 0: none
    maxSizeBytes: int = 921_600
    idleTimeoutMs: int = 60_000
    lobbyMemoryMs: int = REMEMBERED_MS
    deliveryDelayMs: int = 3
    protocolVersion: int = PROTOCOL_VERSION
    extraFields: dict = dataclasses.field(default_factory=dict)


class Broker:
    """One broker: tokens, sessions, topics, rooms, lobbies, logs and faults."""

    def __init__(self, grants: dict[str, Grant], flavor: str, settings: Settings,
                 journal: Journal) -> None:
        self.grants = grants
        self.flavor = flavor
        self.settings = settings
        self.initial_settings = dataclasses.replace(settings)
        self.journal = journal
        self.faults = Faults()
        self.topics = Topics(flavor)
        self.lobbies = Lobbies(flavor)
        self.rooms = Rooms(self.lobbies.tell)
        self.stored: dict[str, dict[str, Any]] = {}  # actor -> topic -> restored entry
        self.sessions: dict[int, Session] = {}
        self._last_number = 0

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def enter(self, session: Session) -> None:
        self.sessions[session.number] = session

    def leave(self, session: Session) -> None:
        """The session's connection is gone; may be called again."""
        if self.sessions.pop(session.number, None) is None:
            return
        self.topics.leave(session)
        self.lobbies.leave(session)
        self.rooms.leave(session)
        self.journal.count("left")

    def message(self, session: Session, topic: str, data: Any, key: Optional[str],
                echo: bool) -> Message:
        """A message with an id of its own, when the broker records."""
        msg_id = str(uuid.uuid4()) if self.settings.recording else None
        return Message(topic, data, key, msg_id, session, echo, self.settings.extraFields)

    def rate_limit(self, session: Session) -> int:
        override = self.settings.rateLimit
        return session.grant.rate_limit if override is None else override

    def configure(self, changes: dict) -> None:
        self.settings = dataclasses.replace(self.settings, **changes)
        self.lobbies.remembered_ms = self.settings.lobbyMemoryMs

    def clear_faults(self) -> None:
        """No rule is in force, and the settings are those of the start."""
        self.faults.clear()
        self.configure(dataclasses.asdict(self.initial_settings))

    def forget(self) -> None:
        """Logs, retained messages, what lobbies and restores remember."""
        self.journal.clear()
        self.topics.forget_retained()
        self.lobbies.forget()
        self.stored.clear()
