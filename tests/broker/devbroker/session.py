# SPDX-License-Identifier: Apache-2.0
"""One client's state, and one frame of it."""

import time
from typing import Any, Callable, Optional

from . import codec


class Request:
    """One received frame: `type` is a frame type, "heartbeat", "unknown" or "garbage"."""

    def __init__(self, raw: bytes, text: bool = False) -> None:
        self.raw = raw
        self.frame: dict = {}
        self.type = "heartbeat" if raw == b"" and not text else self._decode(text)
        topic = self.frame.get("topic")
        self.topic: Optional[str] = topic if isinstance(topic, str) else None

    def _decode(self, text: bool) -> str:
        if text:
            return "garbage"
        try:
            frame = codec.as_broker_sees(codec.read(self.raw))
        except codec.Unreadable:
            return "garbage"
        if not isinstance(frame, dict):
            return "unknown"
        self.frame = frame
        name = frame.get("type")
        return name if isinstance(name, str) and codec.is_utf8(name) else "unknown"


class RateWindow:
    """So many publishes in one second of the wall clock."""

    def __init__(self) -> None:
        self._second = 0
        self._used = 0

    def admits(self, limit: int) -> bool:
        """Counts one publish; a limit of 0 is none."""
        second = int(time.time())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        return limit == 0 or self._used <= limit


class Session:
    """What the broker knows of one connection."""

    def __init__(self, number: int, deliver: Callable[[dict], None],
                 close: Callable[[int, str], None]) -> None:
        self.number = number
        self.deliver = deliver  # an event: goes out behind what is being answered
        self.close = close
        self.grant: Any = None  # set by auth
        self.token: Optional[str] = None  # as the client gave it, also when refused
        self.version = 1
        self.reconnect = False
        self.opened_at = time.time()
        self.rate = RateWindow()
