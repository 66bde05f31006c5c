# SPDX-License-Identifier: Apache-2.0
"""What happened: frames received, publishes accepted, counters.

Memory is bounded: the oldest entries go first, and `dropped` counts them. The
accept log file, when there is one, keeps everything.
"""

import asyncio
import collections
import contextlib
import json
import time
from typing import Any, Callable, Iterator, Optional, TextIO

from . import codec

MAX_ENTRIES = 200_000
MAX_BYTES = 64 * 1024 * 1024
LOOK_AGAIN_S = 0.002  # a condition may have to read a long log: not for every single frame


class Log:
    """Entries with a sequence number, bounded in number and in bytes."""

    def __init__(self) -> None:
        self._entries: collections.deque = collections.deque()
        self._bytes = 0
        self.seq = 0
        self.dropped = 0

    def add(self, size: int, entry: Any) -> int:
        self.seq += 1
        self._entries.append((self.seq, size, entry))
        self._bytes += size
        while len(self._entries) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self._bytes -= self._entries.popleft()[1]
            self.dropped += 1
        return self.seq

    def since(self, seq: int) -> Iterator[tuple[int, Any]]:
        for number, _, entry in self._entries:
            if number > seq:
                yield number, entry

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = self.dropped = 0


class Journal:
    """All logs and counters, and a way to wait until they change."""

    def __init__(self, accept_file: Optional[TextIO] = None) -> None:
        self.received = Log()
        self.accepts = Log()
        self.acks = Log()
        self.counters: collections.Counter = collections.Counter()
        self._accept_file = accept_file
        self._changed = asyncio.Event()

    def count(self, name: str) -> None:
        self.counters[name] += 1
        self._notify()

    def note_received(self, session: Any, request: Any) -> None:
        entry = {"connection": session.number, "token": session.token, "type": request.type,
                 "topic": request.topic, "mono": time.monotonic(),
                 "time": time.time(), "raw": request.raw}
        self.received.add(len(request.raw) + 200, entry)
        self.count(f"received.{request.type}")

    def note_accepted(self, entry: dict) -> None:
        line = json.dumps({"seq": self.accepts.seq + 1, "time": time.time(), **entry})
        self.accepts.add(len(line), json.loads(line))
        if self._accept_file is not None:
            self._accept_file.write(line + "\n")
            self._accept_file.flush()
        self.count("accepted")

    def note_ack(self, session: Any, msg_ids: list) -> None:
        for msg_id in msg_ids:
            self.acks.add(100, {"connection": session.number, "token": session.token,
                                "msgId": codec.to_json(msg_id)})
            self.count("acked")

    def clear(self) -> None:
        for log in (self.received, self.accepts, self.acks):
            log.clear()
        self.counters.clear()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """True as soon as the condition holds, False when the time is over."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
            await asyncio.sleep(LOOK_AGAIN_S)
        return True
