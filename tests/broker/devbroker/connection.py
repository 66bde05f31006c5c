# SPDX-License-Identifier: Apache-2.0
"""One WebSocket connection: TCP bytes in, requests handled in order, frames out.

Like the broker's own connection process it has one mailbox, which holds received
frames and events to deliver, and works through it in order. Events enter it a few
milliseconds late, so that what a client has pipelined is answered before them.

The protocol object (websockets, without I/O) owns framing; this class owns the
transport and everything that can go wrong on it.
"""

import asyncio
import collections
import contextlib
import itertools
import logging
import socket
import struct
import traceback
from http import HTTPStatus
from typing import Any, Optional

from websockets.frames import OP_BINARY, OP_CLOSE, OP_CONT, OP_TEXT, Frame
from websockets.http11 import Request as Upgrade

try:
    from websockets.server import ServerProtocol
except ImportError:  # websockets 10
    from websockets.server import ServerConnection as ServerProtocol

from . import codec, requests
from .broker import Broker
from .poison import Poison
from .session import Request, Session

PATH = "/ws"
MAX_FRAME_BYTES = 1024 * 1024
FAIR_SHARE = 64  # this many items, then the other connections have a turn
MAX_MAILBOX = 10_000  # above this the broker stops reading
MAX_PENDING = 100_000  # events beyond this are dropped and counted
LINGER_S = 2.0  # for the peer to close TCP after a close frame
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # linger on, for no time at all

log = logging.getLogger("devbroker")


class Protocol(ServerProtocol):
    """As the broker does it: a failure's close frame has a code and no text."""

    def fail(self, code: int, reason: str = "") -> None:
        super().fail(code)


def _quiet() -> logging.Logger:
    quiet = logging.getLogger("devbroker.websockets")
    quiet.setLevel(logging.CRITICAL)
    return quiet


class Connection(asyncio.Protocol):
    """A client's connection, from accept to the end of TCP."""

    def __init__(self, broker: Broker, live: set["Connection"]) -> None:
        self._broker = broker
        self._live = live
        self._protocol = Protocol(max_size=MAX_FRAME_BYTES, logger=_quiet())
        self.session = Session(broker.next_number(), self.deliver, self.close)
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._last_received = self._loop.time()
        self._idle_timer: Optional[asyncio.TimerHandle] = None
        self._mailbox: collections.deque = collections.deque()
        self._mail = asyncio.Event()
        self._busy = False
        self._pending: list[dict] = []  # events that are not yet in the mailbox
        self._writable = asyncio.Event()
        self._running = asyncio.Event()  # cleared: half-open
        self._gone = asyncio.Event()  # TCP has ended
        self._silent = False
        self._closing = False  # the broker has ended the session
        self._senders = {"binary": self._send, "text": self._send_text, "tcp": self._send_tcp}
        self._message: list[bytes] = []  # fragments of an incoming message
        self._message_is_text = False

    # Transport callbacks

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._live.add(self)
        self._writable.set()
        self._running.set()
        self._silent = self._broker.faults.silence_new
        if self._broker.faults.stall_new:
            self.stall()
        self._broker.journal.count("connections")
        self._worker = self._loop.create_task(self._work())
        self.watch_idle()

    def data_received(self, data: bytes) -> None:
        self._last_received = self._loop.time()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Upgrade):
                self._upgrade(event)
            else:
                self._frame_received(event)
        self._flush()
        if len(self._mailbox) > MAX_MAILBOX:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        self._flush()
        return False

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._gone.set()
        self._live.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._post(self._end, None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # WebSocket events

    def _upgrade(self, request: Upgrade) -> None:
        fault = self._broker.faults.take("http")
        if fault is not None:
            response = self._protocol.reject(fault["status"], fault["body"])
            for name, value in fault["headers"].items():
                response.headers[name] = value
        elif request.path.split("?")[0] != PATH:
            response = self._protocol.reject(HTTPStatus.NOT_FOUND, f"The broker is at {PATH}\n")
        else:
            response = self._protocol.accept(request)
        if response.status_code == 101:
            self._broker.enter(self.session)
            log.debug("connection %d: open", self.session.number)
        self._protocol.send_response(response)

    def _frame_received(self, frame: Frame) -> None:
        if frame.opcode == OP_CLOSE:
            self._post(self._end, None)
        if self._closing or frame.opcode not in (OP_BINARY, OP_TEXT, OP_CONT):
            return
        if frame.opcode != OP_CONT:
            self._message_is_text = frame.opcode == OP_TEXT
        self._message.append(frame.data)
        if frame.fin:
            request = Request(b"".join(self._message), self._message_is_text)
            self._message = []
            log.debug("connection %d: < %s %s", self.session.number, request.type, request.topic)
            self._post(self._handle, request)
            self._broker.journal.note_received(self.session, request)

    # The mailbox and its worker

    def _post(self, action: Any, argument: Any) -> None:
        self._mailbox.append((action, argument))
        self._mail.set()

    async def _work(self) -> None:
        for turn in itertools.count(1):
            if self._gone.is_set() and not self._mailbox:
                return
            if turn % FAIR_SHARE == 0:
                await asyncio.sleep(0)
            self._mail.clear()
            if not self._mailbox:
                await self._mail.wait()
            self._busy = True
            try:
                await self._one()
            except Exception:  # a mistake of this program: say so, and end the connection
                traceback.print_exc()
                self._broker.journal.count("internalErrors")
                self.close(1011, "internal error of the stand-in")
            finally:
                self._busy = False

    async def _one(self) -> None:
        await self._until_gone_or(self._running)
        await self._until_gone_or(self._writable)
        if not self._mailbox:  # a close has emptied it meanwhile
            return
        action, argument = self._mailbox.popleft()
        await action(argument)
        if len(self._mailbox) == MAX_MAILBOX and self._running.is_set():
            self._transport.resume_reading()

    async def _until_gone_or(self, event: asyncio.Event) -> None:
        if event.is_set() or self._gone.is_set():
            return
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._gone)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    async def _end(self, _: None) -> None:
        self._broker.leave(self.session)

    async def _handle(self, request: Request) -> None:
        if self._drops(request, "receipt"):
            return
        try:
            answer = requests.handle(self._broker, self.session, request)
        except Poison:
            self.close(1011, "")
            return
        if answer is not None:
            await self._delay(request)
        if self._drops(request, "before"):
            return
        if answer is not None and not self._muted(request):
            await self._send(answer)
        self._drops(request, "after")

    def _muted(self, request: Request) -> bool:
        return self._broker.faults.take("mute", self.session, request) is not None

    def _drops(self, request: Request, when: str) -> bool:
        action = self._broker.faults.take("drop", self.session, request, when=when)
        if action is not None:
            self.drop(action)
        return action is not None

    async def _delay(self, request: Request) -> None:
        action = self._broker.faults.take("delay", self.session, request)
        if action is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), action["ms"] / 1000)

    # Sending

    def deliver(self, frame: dict) -> None:
        """Queue an event behind what is being answered now."""
        self.deliver_packed(codec.write(frame))

    def deliver_packed(self, packed: bytes, opcode: str = "binary") -> None:
        if len(self._pending) + len(self._mailbox) >= MAX_PENDING:
            self._broker.journal.count("deliveriesDropped")
            return
        if not self._pending:
            delay = self._broker.settings.deliveryDelayMs / 1000
            self._loop.call_later(delay, self._post_pending)
        self._pending.append((packed, opcode))

    def _post_pending(self) -> None:
        pending, self._pending = self._pending, []
        for packed, opcode in pending:
            self._post(self._senders[opcode], packed)

    async def _send(self, payload: bytes) -> None:
        if self._protocol.state.name != "OPEN":
            return
        faults = self._broker.faults
        self._broker.journal.count("sent")
        if faults.split_bytes and faults.split_level == "frame":
            self._send_fragments(payload, faults.split_bytes)
        else:
            self._protocol.send_binary(payload)
        if faults.split_bytes and faults.split_level == "tcp":
            await self._flush_slowly(faults.split_bytes)
        self._flush()

    async def _send_text(self, payload: bytes) -> None:
        if self._protocol.state.name == "OPEN":
            self._protocol.send_text(payload)
            self._flush()

    async def _send_tcp(self, data: bytes) -> None:
        """Bytes that need not be a WebSocket frame."""
        self._transport.write(data)

    def _send_fragments(self, payload: bytes, size: int) -> None:
        pieces = [payload[at:at + size] for at in range(0, len(payload), size)] or [b""]
        self._protocol.send_binary(pieces[0], fin=len(pieces) == 1)
        for number, piece in enumerate(pieces[1:], 2):
            self._protocol.send_continuation(piece, fin=number == len(pieces))

    async def _flush_slowly(self, size: int) -> None:
        """One TCP write for every `size` bytes, with a turn of the loop between them."""
        data = b"".join(self._protocol.data_to_send())
        for at in range(0, len(data), size):
            if not self._silent and not self._gone.is_set():
                self._transport.write(data[at:at + size])
            await asyncio.sleep(0)

    def _flush(self, even_if_silent: bool = False) -> None:
        """Write what the protocol object has; an empty piece ends our side."""
        for piece in self._protocol.data_to_send():
            if self._gone.is_set() or (self._silent and not even_if_silent):
                continue
            if piece:
                self._transport.write(piece)
            else:
                self._end_of_stream()

    def _end_of_stream(self) -> None:
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._loop.call_later(LINGER_S, self._transport.abort)
        else:
            self._transport.close()

    # Closing

    def close(self, code: int, reason: str) -> None:
        """Start the closing handshake; the session ends now."""
        self._leave_now()
        if self._protocol.state.name == "OPEN":
            log.debug("connection %d: close %d %s", self.session.number, code, reason)
            self._protocol.send_close(code, reason)
            self._flush(even_if_silent=True)
            self._loop.call_later(LINGER_S, self._transport.abort)

    def drop(self, action: dict) -> None:
        """End the connection as a fault: a TCP reset, a bare FIN, or a close frame."""
        self._broker.journal.count("dropped")
        if not action["abort"]:
            self.resume()
            self.close(action["code"], action["reason"])
            return
        self._leave_now()
        if action["abort"] != "fin" and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._transport.abort()

    def _leave_now(self) -> None:
        self._closing = True
        self._broker.leave(self.session)
        self._mailbox.clear()
        self._pending.clear()

    def watch_idle(self) -> None:
        """Close with 1000 when nothing was received for the idle timeout."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._gone.is_set():
            return
        timeout = self._broker.settings.idleTimeoutMs / 1000
        left = self._last_received + timeout - self._loop.time()
        if left <= 0 and self._running.is_set():
            self.close(1000, "")
        else:
            wait = left if left > 0 else timeout
            self._idle_timer = self._loop.call_later(wait, self.watch_idle)

    # Faults of the whole connection

    def stall(self) -> None:
        """Half-open: neither read nor answer, and keep TCP."""
        self._running.clear()
        # Not at once: asyncio starts to read after connection_made, paused or not.
        self._loop.call_soon(self._pause_if_stalled)

    def _pause_if_stalled(self) -> None:
        if not self._running.is_set():
            self._transport.pause_reading()

    def silence(self) -> None:
        """Read and handle, but send nothing."""
        self._silent = True

    def resume(self) -> None:
        self._silent = False
        self._running.set()
        self._transport.resume_reading()

    @property
    def settled(self) -> bool:
        """Nothing received waits for an answer, nothing sent waits for its turn.

        A half-open connection has nothing to wait for.
        """
        return not self._running.is_set() or not (self._busy or self._mailbox or self._pending)
