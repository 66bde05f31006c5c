# SPDX-License-Identifier: Apache-2.0
"""A blocking WebSocket client that speaks the broker's frames, for tests.

It shows what a library would hide: several frames in one TCP write, fragments,
close codes, and the HTTP answer to a refused upgrade.
"""

import select
import socket
import ssl
import time
from typing import Any, Iterable, Optional
from urllib.parse import urlsplit

import msgpack
from websockets.frames import OP_CLOSE, OP_CONT
from websockets.uri import parse_uri

try:
    from websockets.client import ClientProtocol
except ImportError:  # websockets 10
    from websockets.client import ClientConnection as ClientProtocol

TIMEOUT = 5.0
HEARTBEAT = b""


class Closed(Exception):
    """The connection has ended: `code` 1006 without a close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed {code} {reason}")
        self.code = code
        self.reason = reason


class Rejected(Exception):
    """The upgrade was answered with an HTTP status."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.status = response.status_code
        self.headers = response.headers


def pack(frame: Any) -> bytes:
    """One frame's bytes; bytes are taken as they are."""
    return frame if isinstance(frame, bytes) else msgpack.packb(frame)


def unpack(payload: bytes) -> Any:
    if payload == HEARTBEAT:
        return HEARTBEAT
    return msgpack.unpackb(payload, raw=False, strict_map_key=False,
                           unicode_errors="surrogateescape")


class Client:
    """One connection to the broker."""

    def __init__(self, url: str, token: Optional[str] = None, **auth: Any) -> None:
        """Connects, and authenticates when a token is given."""
        self._protocol = ClientProtocol(parse_uri(url), max_size=None)
        self._messages: list[bytes] = []
        self._parts: list[bytes] = []
        self.fragments = 0  # in how many the last message came
        self.closed: Optional[Closed] = None
        self.reads: list[bytes] = []
        self._connect(url)
        if token is not None:
            self.auth = self.ask({"type": "auth", "token": token, "protocolVersion": 2, **auth})

    def _connect(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme == "wss":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket)
        self._response: Any = None
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        self._pump(time.monotonic() + TIMEOUT, lambda: self._response is not None)
        if self._response is None or self._response.status_code != 101:
            self.socket.close()
            raise Rejected(self._response) if self._response else self.closed

    # Sending

    def send(self, *frames: Any) -> None:
        """All frames in one TCP write."""
        for frame in frames:
            self._protocol.send_binary(pack(frame))
        self._flush()

    def send_text(self, text: str) -> None:
        self._protocol.send_text(text.encode())
        self._flush()

    def ask(self, frame: Any) -> Any:
        """Send one frame, return the next that comes."""
        self.send(frame)
        return self.recv()

    def subscribe(self, topic: str, **fields: Any) -> Any:
        return self.ask({"type": "subscribe", "topic": topic, **fields})

    def publish(self, topic: str, data: Any, **fields: Any) -> None:
        self.send({"type": "publish", "topic": topic, "data": data, **fields})

    def _flush(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data:
            self.socket.sendall(data)

    # Receiving

    def recv(self, timeout: float = TIMEOUT) -> Any:
        """The next frame. Raises Closed, or TimeoutError."""
        return unpack(self.recv_raw(timeout))

    def recv_raw(self, timeout: float = TIMEOUT) -> bytes:
        self._pump(time.monotonic() + timeout, lambda: bool(self._messages))
        if self._messages:
            return self._messages.pop(0)
        raise self.closed or TimeoutError(f"nothing received in {timeout} s")

    def wait_closed(self, timeout: float = TIMEOUT) -> Closed:
        """The end of the connection; frames before it must not be there."""
        try:
            frame = self.recv(timeout)
        except Closed as closed:
            return closed
        raise AssertionError(f"received {frame!r} instead of a close")

    def _pump(self, deadline: float, done: Any) -> None:
        while not done() and self.closed is None:
            left = deadline - time.monotonic()
            if left <= 0 or not self._readable(left):
                return
            self._read()

    def _readable(self, timeout: float) -> bool:
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        return bool(pending or select.select([self.socket], [], [], timeout)[0])

    def _read(self) -> None:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        self.reads.append(data)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            self._take(event)
        if not data:
            self.closed = self.closed or Closed(1006, "")
        else:
            self._reply()

    def _reply(self) -> None:
        try:
            self._flush()
        except OSError:
            pass  # the end of the stream tells

    def _take(self, event: Any) -> None:
        if self._response is None:
            self._response = event
        elif event.opcode == OP_CLOSE:
            close = self._protocol.close_rcvd
            self.closed = Closed(close.code, close.reason)
        else:
            if event.opcode != OP_CONT:
                self._parts = []
            self._parts.append(event.data)
            if event.fin:
                self.fragments = len(self._parts)
                self._messages.append(b"".join(self._parts))

    # End

    def close(self) -> None:
        """The closing handshake, when the connection is still open."""
        if self.closed is None:
            try:
                self._protocol.send_close(1000)
                self._flush()
                self._pump(time.monotonic() + TIMEOUT, lambda: False)
            except OSError:
                pass
        self.socket.close()


def recv_any(clients: Iterable[Client], timeout: float = TIMEOUT) -> Any:
    """The next frame that any of these receives."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for client in clients:
            if client._messages:
                return client.recv()
        select.select([each.socket for each in clients], [], [], deadline - time.monotonic())
        for client in clients:
            client._pump(time.monotonic() + 0.001, lambda: bool(client._messages))
    raise TimeoutError("none received anything")
