# SPDX-License-Identifier: Apache-2.0
"""What shall go wrong: rules that tests set over the control socket.

A rule has a kind ("delay", "mute", "refuse", "drop", "auth", "http"), selectors
(request types, topic, token, connection; absent = any), and may wait for its
`nth` match and end after `count` more.
"""

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass
class Rule:
    kind: str
    action: dict
    types: frozenset = frozenset()
    topic: Optional[str] = None
    token: Optional[str] = None
    connection: Optional[int] = None
    nth: int = 1
    count: Optional[int] = None  # None: until cleared
    seen: int = field(default=0, compare=False)

    def selects(self, session: Any, request: Any) -> bool:
        return ((not self.types or (request is not None and request.type in self.types))
                and self.topic in (None, request and request.topic)
                and self.token in (None, session and session.token)
                and self.connection in (None, session and session.number))


class Faults:
    """The rules in force, in the order in which they were set."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self.restored: dict[str, list] = {}  # token -> restoredSubscriptions
        self.hydration: dict[str, Any] = {}  # topic -> data
        self.split_bytes = 0
        self.split_level = "frame"
        self.stall_new = False
        self.silence_new = False

    def add(self, rule: Rule) -> None:
        self._rules.append(rule)

    def take(self, kind: str, session: Any = None, request: Any = None,
             **action: Any) -> Optional[dict]:
        """The action of the first rule that applies now, None when there is none.

        `action` narrows further, e.g. when="before".
        """
        for rule in self._rules:
            fits = all(rule.action.get(name) == value for name, value in action.items())
            if rule.kind == kind and fits and rule.selects(session, request):
                rule.seen += 1
                if rule.seen >= rule.nth:
                    self._use_up(rule)
                    return rule.action
        return None

    def _use_up(self, rule: Rule) -> None:
        if rule.count is not None and rule.seen >= rule.nth + rule.count - 1:
            self._rules.remove(rule)

    def clear(self) -> None:
        self.__init__()
