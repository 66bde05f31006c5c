# SPDX-License-Identifier: Apache-2.0
"""The link by itself (daemon/io/link.h), by way of the program link_probe: what no session of the daemon shows.

The servers are threads with plain sockets, so that they can do what no library would.
The probe aborts when a callback comes from inside a call, or after on_closed, and fails when its
loop is not empty at the end.
"""

import base64
import contextlib
import hashlib
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

import pytest
from certificates import Authority
from fakes import BlackHole, Names, RawServer
from harness import BUILD, LIMIT, SANITIZERS, wait_until

PROBE = BUILD / "tests" / "unit" / "link_probe"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10

# Seconds by which a busy host may be late; the limits of the libraries, that must not be met, are 5 s and more.
BUSY = 2.0


class Ending(NamedTuple):
    end: str
    code: int
    status: int
    retry_after: int
    certificate: bool
    detail: str


class Probe:
    """One running link_probe. At the end it must have closed every link, once, and left its loop empty."""

    def __init__(self, environment: Optional[dict[str, str]] = None) -> None:
        self.process = subprocess.Popen([str(PROBE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env={**os.environ, **SANITIZERS, **(environment or {})})
        assert self.process.stdout is not None
        self._data = b""
        self.waiting: list[str] = []
        os.set_blocking(self.process.stdout.fileno(), False)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def read_lines(self) -> None:
        """Takes what there is to read. A probe whose pipe is full stands still."""
        assert self.process.stdout is not None
        more = self.process.stdout.read()
        *lines, self._data = (self._data + (more or b"")).split(b"\n")
        self.waiting += [line.decode() for line in lines]

    def take(self, start: str, limit: float = LIMIT) -> str:
        """The rest of the first line that starts so; those before it stay."""
        def found() -> Optional[str]:
            self.read_lines()
            return next((line for line in self.waiting if line.startswith(start + " ")), None)
        line = wait_until(lambda: found() or self.process.poll() is not None, start, limit)
        assert isinstance(line, str), (self.process.returncode, self.process.stderr and self.process.stderr.read())
        self.waiting.remove(line)
        return line[len(start) + 1:]

    def ask(self, line: str, start: str, limit: float = LIMIT) -> list[str]:
        self.send(line)
        return self.take(start, limit).split(" ")

    def open(self, url: str, name: str = "a", wait: bool = True, **options: Union[int, str, Path]) -> None:
        self.send(" ".join(["open", name, url] + [f"{key}={value}" for key, value in options.items()]))
        if wait:
            self.wait_open(name)

    def wait_open(self, name: str) -> None:
        def found() -> bool:
            self.read_lines()
            return f"open {name}" in self.waiting
        wait_until(found, f"{name} is open")
        self.waiting.remove(f"open {name}")

    def ended(self, name: str = "a", limit: float = LIMIT) -> Ending:
        end, code, status, retry_after, certificate, detail = self.take(f"closed {name}", limit).split(" ", 5)
        return Ending(end, int(code), int(status), int(retry_after), certificate == "1", detail)

    def fails(self, url: str, **options: Any) -> Ending:
        self.open(url, wait=False, **options)
        return self.ended()

    def frames(self, count: int, name: str = "a", limit: float = LIMIT) -> str:
        """Waits for so many frames from the beginning; returns their digest."""
        wait_until(lambda: int(self.ask(f"digest {name}", f"digest {name}")[0]) >= count, f"{count} frames", limit)
        number, digest = self.ask(f"digest {name}", f"digest {name}")
        assert int(number) == count
        return digest

    def finish(self, limit: float = LIMIT) -> None:
        assert self.process.stdin is not None and self.process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        wait_until(lambda: (self.read_lines(), self.process.poll() is not None)[1], "the end", limit)
        self.read_lines()
        errors = self.process.stderr.read().decode(errors="replace")
        assert self.process.returncode == 0 and errors == "", (self.process.returncode, self.waiting[-5:], errors[-6000:])

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.finish()
        elif self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe and pipe.close()


@pytest.fixture
def probe() -> Iterator[Probe]:
    with Probe() as running:
        yield running


# A WebSocket server, bare

def pattern(number: int, size: int) -> bytes:
    """What the probe's frame of that number has."""
    return (bytes(range(256)) * (size // 256 + 2))[number % 256:][:size]


def digest(frames: Iterator[bytes]) -> str:
    hash_ = hashlib.sha256()
    for frame in frames:
        hash_.update(struct.pack(">Q", len(frame)) + frame)
    return hash_.hexdigest()


def encode(payload: bytes, opcode: int = BINARY, final: bool = True) -> bytes:
    first = bytes([opcode | (0x80 if final else 0)])
    if len(payload) < 126:
        return first + bytes([len(payload)]) + payload
    if len(payload) < 65536:
        return first + struct.pack(">BH", 126, len(payload)) + payload
    return first + struct.pack(">BQ", 127, len(payload)) + payload


def fragments(payload: bytes, size: int) -> list[bytes]:
    pieces = [payload[at:at + size] for at in range(0, len(payload), size)] or [b""]
    return [encode(piece, BINARY if n == 0 else 0, n == len(pieces) - 1) for n, piece in enumerate(pieces)]


def read_request(connection: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = connection.recv(1)
        if not more:
            raise ConnectionResetError
        data += more
    return data.decode()


def header(request: str, name: str) -> str:
    return next((line.split(": ", 1)[1] for line in request.split("\r\n")
                 if line.lower().startswith(name.lower() + ":")), "")


def accepted(request: str) -> bytes:
    key = header(request, "Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    return ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n").encode()


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 1 << 20))
        if not more:
            raise ConnectionResetError
        data += more
    return bytes(data)


def read_frame(connection: socket.socket) -> tuple[int, bytes]:
    first, second = read_exactly(connection, 2)
    assert first & 0x80 and second & 0x80, "clients mask, and this one does not fragment"
    size = second & 0x7f
    if size == 126:
        size = struct.unpack(">H", read_exactly(connection, 2))[0]
    elif size == 127:
        size = struct.unpack(">Q", read_exactly(connection, 8))[0]
    mask = read_exactly(connection, 4)
    masked = int.from_bytes(read_exactly(connection, size), "big")
    whole = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return first & 0x0f, (masked ^ whole).to_bytes(size, "big")


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Server(RawServer):
    """Upgrades each connection, then does `act(connection)`; closes come back as the protocol wants.

    received: what came as data; pongs; closes: the payloads of close frames; requests.
    """

    def __init__(self, act: Optional[Callable[[socket.socket], Any]] = None, tls: Optional[ssl.SSLContext] = None) -> None:
        self.received: list[bytes] = []
        self.pongs: list[bytes] = []
        self.closes: list[bytes] = []
        self.requests: list[str] = []
        self.active: list[socket.socket] = []
        self._act = act
        self._tls = tls
        super().__init__(Server._upgraded)
        if tls is not None:
            self.url = f"wss://localhost:{self.port}/ws"

    def _upgraded(self, connection: socket.socket) -> None:
        if self._tls is not None:
            connection = self._handshake(connection, self._tls)
        request = read_request(connection)
        self.requests.append(request)
        connection.sendall(accepted(request))
        self.active.append(connection)
        if self._act is not None:
            self._act(connection)
        self._read(connection)

    @staticmethod
    def _handshake(connection: socket.socket, context: ssl.SSLContext) -> socket.socket:
        """After a failure the client reads our alert and leaves first: closing could overtake the alert."""
        wrapped = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        try:
            wrapped.do_handshake()
        except ssl.SSLError:
            while os.read(wrapped.fileno(), 4096):
                pass
            wrapped.close()
            raise
        return wrapped

    def _read(self, connection: socket.socket) -> None:
        while True:
            opcode, payload = read_frame(connection)
            if opcode == CLOSE:
                self.closes.append(payload)
                connection.sendall(encode(payload, CLOSE))
                return
            (self.pongs if opcode == PONG else self.received).append(payload)

    def connection(self, number: int = 0) -> socket.socket:
        wait_until(lambda: len(self.active) > number, "an upgraded connection")
        return self.active[number]


# Smaller ones make the kernel's sender wait for its probe timer, 200 ms a time, whoever sends.
SMALL_WINDOW = 65536


def stalls(released: threading.Event) -> Callable[[socket.socket], None]:
    """Reads no more, as a stopped process does, until it is released."""
    def act(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
        released.wait(LIMIT)
    return act


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


# Names and addresses

def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_connection_refused(probe: Probe) -> None:
    ending = probe.fails(f"ws://127.0.0.1:{free_port()}/ws")
    assert ending.end == "connect" and ending.detail.startswith("127.0.0.1: ")


def test_a_name_that_does_not_exist(tmp_path: Path) -> None:
    with Probe(Names(tmp_path).environment) as probe:
        ending = probe.fails("ws://broker.test/ws")
        assert ending.end == "dns" and ending.detail != ""


@pytest.mark.parametrize("seconds", [0.6, 5.6])  # the library's own limit is 5 s
def test_a_black_hole_fails_at_the_deadline(probe: Probe, seconds: float) -> None:
    with BlackHole() as hole:
        began = time.monotonic()
        ending = probe.fails(hole.url, connect=int(seconds * 1000))
        assert ending.end == "connect" and "in time" in ending.detail
        assert 0 <= time.monotonic() - began - seconds < BUSY


def test_each_address_has_the_whole_deadline(tmp_path: Path) -> None:
    with BlackHole() as hole:
        names = Names(tmp_path, broker="127.0.0.1 127.0.0.1")
        with Probe(names.environment) as probe:
            began = time.monotonic()
            assert probe.fails(f"ws://broker.test:{hole.port}/ws", connect=500).end == "connect"
            assert 1.0 <= time.monotonic() - began < 1.0 + BUSY


@pytest.mark.parametrize("answer, order", [
    ("127.0.0.2 127.0.0.3 ::1 127.0.0.4", "127.0.0.2 ::1 127.0.0.3 127.0.0.4"),
    ("::1 127.0.0.2 127.0.0.3", "::1 127.0.0.2 127.0.0.3"),
    ("127.0.0.3 127.0.0.2", "127.0.0.3 127.0.0.2"),
])
def test_families_take_turns(tmp_path: Path, answer: str, order: str) -> None:
    tried: list[str] = []
    port = free_port()

    def accept(listener: socket.socket, address: str) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            tried.append(address)
            reset(connection)

    with contextlib.ExitStack() as stack:
        for address in answer.split():
            listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
            stack.enter_context(listener)
            threading.Thread(target=accept, args=(listener, address), daemon=True).start()
        with Probe(Names(tmp_path, broker=answer).environment) as probe:
            probe.fails(f"ws://broker.test:{port}/ws")
            assert tried == order.split()


@pytest.mark.parametrize("answer", ["::1 127.0.0.1", "127.0.0.2 127.0.0.1", "::1 127.0.0.2 127.0.0.1", "127.0.0.1 ::1"])
def test_a_closed_address_before_an_open_one(tmp_path: Path, answer: str) -> None:
    with Server() as server, Probe(Names(tmp_path, broker=answer).environment) as probe:
        probe.open(f"ws://broker.test:{server.port}/ws")


def test_localhost(probe: Probe) -> None:
    with Server() as server:
        probe.open(f"ws://localhost:{server.port}/ws")


def test_an_ipv6_literal(probe: Probe) -> None:
    requests: list[str] = []
    listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    port = listener.getsockname()[1]

    def serve() -> None:
        connection, _ = listener.accept()
        requests.append(read_request(connection))
        connection.sendall(accepted(requests[0]))
        connection.recv(100)
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    with listener:
        probe.open(f"ws://[::1]:{port}/ws")
        assert header(requests[0], "Host") == f"[::1]:{port}"
        probe.send("close a")
        assert probe.ended().end == "closed_by_us"


def test_a_resolver_that_does_not_answer(tmp_path: Path) -> None:
    names = Names(tmp_path, dead="hang", broker="127.0.0.1")
    with Server() as server, Probe(names.environment) as probe:
        began = time.monotonic()
        for n in range(20):
            probe.open(f"ws://dead.test:{server.port}/ws", name=f"dead{n}", wait=False, resolve=1500 if n < 10 else 9000)
        probe.open(f"ws://broker.test:{server.port}/ws", name="other")
        assert probe.waiting == [], "others do not wait for it"
        for n in range(10):
            ending = probe.ended(f"dead{n}")
            assert ending.end == "dns" and ending.detail == "no answer in time"
        assert 1.5 <= time.monotonic() - began < 1.5 + BUSY
        probe.send("close dead10")
        assert probe.ended("dead10").end == "closed_by_us"
        names.set(dead="127.0.0.1")
        for n in range(11, 20):
            probe.wait_open(f"dead{n}")


def test_the_end_does_not_wait_for_the_resolver(tmp_path: Path) -> None:
    with Probe(Names(tmp_path, dead="hang").environment) as probe:
        probe.open("ws://dead.test/ws", wait=False)
        probe.ask("use", "use")
        began = time.monotonic()
        probe.finish()
        assert time.monotonic() - began < 1 + BUSY


# The upgrade

def answers(*lines: str, end: bool = False) -> RawServer:
    def serve(server: RawServer, connection: socket.socket) -> None:
        server.data.append(read_request(connection).encode())
        connection.sendall("\r\n".join(lines + ("", "")).encode())
        if not end:
            connection.recv(1)
    return RawServer(serve)


@pytest.mark.parametrize("status", [200, 301, 302, 307, 400, 401, 403, 404, 429, 500, 502, 503])
@pytest.mark.parametrize("end", [False, True])
def test_refused_upgrades(probe: Probe, status: int, end: bool) -> None:
    with RawServer() as elsewhere, answers(f"HTTP/1.1 {status} No", f"Location: {elsewhere.url}", "Content-Length: 0",
                                           end=end) as server:
        ending = probe.fails(server.url)
        assert ending == ("upgrade", 0, status, 0, False, f"the server answered with HTTP status {status}")
        assert len(server.times) == 1 and elsewhere.times == []


@pytest.mark.parametrize("value, milliseconds", [
    ("0", 0), ("7", 7000), ("120", 120_000), ("999999999", 999_999_999_000), ("12345678901", 0), ("-1", 0), ("1.5", 0), ("", 0),
    ("Wed, 21 Oct 2099 07:28:00 GMT", 0)])
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after(probe: Probe, status: int, value: str, milliseconds: int) -> None:
    with answers(f"HTTP/1.1 {status} Later", f"Retry-After: {value}", "Content-Length: 5", "", "later") as server:
        ending = probe.fails(server.url)
        assert (ending.end, ending.status, ending.retry_after) == ("upgrade", status, milliseconds)


@pytest.mark.parametrize("lines", [
    ("HTTP/1.1 101 Yes", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA="),
    ("HTTP/1.1 101 Yes", "Upgrade: websocket", "Connection: Upgrade"),
    ("HTTP/1.1 101 Yes", "Upgrade: h2c", "Connection: Upgrade"),
    ("HTTP/1.1 101 Yes",),
    ("HTTP/1.0 200 OK",),
])
def test_answers_that_are_no_upgrade(probe: Probe, lines: tuple[str, ...]) -> None:
    with answers(*lines) as server:
        ending = probe.fails(server.url)
        assert ending.end == "upgrade" and ending.status in (101, 200) and ending.detail != ""


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 1000, b"HTTP/1.1 ", b"HTTP/1.1 101 Yes\r\nUpgrade: webs",
                                    b"HTTP/1.1 101 Yes\r\nX: " + b"x" * 100_000, b"\xff\xfe" * 5000])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_garbage_for_an_answer(probe: Probe, answer: bytes, how: str) -> None:
    def serve(server: RawServer, connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)
        if how == "reset":
            reset(connection)

    with RawServer(serve) as server:
        ending = probe.fails(server.url, connect=2000)
        assert ending.end in ("upgrade", "connect") and ending.detail != ""


def test_no_answer_at_all(probe: Probe) -> None:
    with RawServer() as server:
        began = time.monotonic()
        ending = probe.fails(server.url, connect=600)
        assert ending.end == "connect" and "upgrade" in ending.detail
        assert 0.6 <= time.monotonic() - began < 0.6 + BUSY


def test_many_that_do_not_answer(probe: Probe) -> None:
    """More than the library's tables for requests might hold do not keep a good one waiting."""
    with RawServer() as silent, Server() as server:
        for n in range(100):
            probe.open(silent.url, name=f"n{n}", wait=False, connect=3000)
        silent.wait_attempts(100)
        probe.open(server.url)
        for n in range(100):
            assert probe.ended(f"n{n}").end == "connect"


def test_the_request(probe: Probe) -> None:
    with Server() as server:
        probe.open(f"ws://localhost:{server.port}/a/b?c=d&e=%20f")
        request = server.requests[0]
        assert request.startswith("GET /a/b?c=d&e=%20f HTTP/1.1\r\n")
        assert header(request, "Host") == f"localhost:{server.port}"
        assert header(request, "Upgrade") == "websocket" and header(request, "Sec-WebSocket-Version") == "13"
        assert header(request, "Sec-WebSocket-Extensions") == "" and header(request, "Sec-WebSocket-Protocol") == ""


@pytest.mark.parametrize("length", [200, 1000, 1900])
def test_long_paths(probe: Probe, length: int) -> None:
    with Server() as server:
        probe.open(f"{server.url}/{'x' * length}")
        assert f"/{'x' * length} HTTP/1.1" in server.requests[0]


def test_small_frames_go_out_at_once(probe: Probe) -> None:
    with Server() as server:
        probe.open(server.url)
        assert probe.ask("nodelay", "nodelay") == ["1", "of", "1"]


def test_the_proxy_of_the_environment_is_not_used() -> None:
    environment = {name: "http://127.0.0.1:1" for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY")}
    with Server() as server, Probe(environment) as probe:
        probe.open(server.url)


# Frames

def test_frames_behind_the_answer(probe: Probe) -> None:
    """In the same segment as the answer to the upgrade, with nothing behind them."""
    frames = [pattern(n, size) for n, size in enumerate([1, 0, 300, 5000, 70_000, 3])]

    def serve(server: RawServer, connection: socket.socket) -> None:
        connection.sendall(accepted(read_request(connection)) + b"".join(map(encode, frames)))
        connection.recv(100)

    with RawServer(serve) as server:
        probe.open(server.url)
        assert probe.frames(len(frames)) == digest(iter(frames))


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 4095, 4096, 4097, 65535, 65536, 65537, 300_000, 1 << 20])
def test_sizes(probe: Probe, size: int) -> None:
    with Server() as server:
        probe.open(server.url)
        server.connection().sendall(encode(pattern(0, size)) + encode(b"end"))
        assert probe.frames(2) == digest(iter([pattern(0, size), b"end"]))
        assert probe.ask(f"send a {size} 2", "sent a") == ["2"]
        wait_until(lambda: len(server.received) == 2, "both came")
        assert server.received == [pattern(0, size), pattern(1, size)]
        assert probe.ask("queued a", "queued a") == ["0"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_bytes_that_trickle_in(probe: Probe, size: int) -> None:
    """Any split of the stream, between and inside of headers."""
    frames = [pattern(n, length) for n, length in enumerate([0, 1, 2, 130, 0, 300])]
    stream = b"".join(map(encode, frames))
    with Server() as server:
        probe.open(server.url)
        connection = server.connection()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(stream), size):
            connection.sendall(stream[at:at + size])
        assert probe.frames(len(frames)) == digest(iter(frames))


@pytest.mark.parametrize("size", [1, 2, 3, 125, 126, 4096, 65536])
@pytest.mark.parametrize("ping", [False, True])
def test_fragments(probe: Probe, size: int, ping: bool) -> None:
    length = min(size * 300, 400_000)
    frames = [pattern(1, length), b"", pattern(2, size), pattern(3, 2 * size), b"end"]
    pieces = [piece for frame in frames for piece in fragments(frame, size)]
    if ping:
        pieces = [part for piece in pieces for part in (encode(b"?", PING), piece)]
    with Server() as server:
        probe.open(server.url)
        server.connection().sendall(b"".join(pieces))
        assert probe.frames(len(frames)) == digest(iter(frames))
        wait_until(lambda: not ping or server.pongs != [], "pings are answered")
        assert set(server.pongs) <= {b"?"}


def test_ten_thousand_frames_each_way_through_small_windows(probe: Probe) -> None:
    count, size = 10_000, 333

    def act(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_WINDOW)
        frames = b"".join(encode(pattern(n, size)) for n in range(count))
        threading.Thread(target=connection.sendall, args=(frames,), daemon=True).start()

    with Server(act) as server:
        probe.open(server.url)
        assert probe.ask(f"send a {size} {count}", "sent a") == [str(count)]
        wait_until(lambda: (probe.read_lines(), len(server.received) == count)[1], "all arrive there", 20)
        expected = digest(pattern(n, size) for n in range(count))
        assert digest(iter(server.received)) == expected
        assert probe.frames(count, limit=20) == expected
        assert probe.ask("queued a", "queued a") == ["0"]


def test_large_frames_through_small_windows(probe: Probe) -> None:
    def act(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)

    with Server(act) as server:
        probe.open(server.url)
        assert probe.ask("send a 1000000 8", "sent a") == ["8"]
        wait_until(lambda: len(server.received) == 8, "all arrive", 20)
        assert server.received == [pattern(n, 1_000_000) for n in range(8)]


def test_the_queue_is_bounded(probe: Probe, released: threading.Event) -> None:
    with Server(stalls(released)) as server:
        probe.open(server.url, queue=1_000_000)
        server.connection()
        sent, queued = 0, 0

        def full() -> bool:
            """The kernel takes no more either."""
            nonlocal sent, queued
            before = queued
            sent += int(probe.ask("send a 100000 100", "sent a")[0])
            queued = int(probe.ask("queued a", "queued a")[0])
            assert queued <= 1_000_000
            return queued == before and queued > 900_000
        wait_until(full, "all buffers are full")
        assert probe.ask("send a 0 3", "sent a") == ["3"], "an empty one always fits"
        assert int(probe.ask("queued a", "queued a")[0]) <= queued
        released.set()
        wait_until(lambda: len(server.received) == sent + 3, "all arrive")
        assert server.received[-3:] == [b"", b"", b""]
        assert all(len(frame) == 100_000 for frame in server.received[:-3])


@pytest.mark.parametrize("size, whole", [(10_001, True), (100_000, True), (100_000, False)])
@pytest.mark.parametrize("piece", [1 << 30, 5000, 100])
def test_frames_above_the_limit(probe: Probe, size: int, piece: int, whole: bool) -> None:
    """The end comes when too much has come (the library hands on 64 KiB at a time), not with the rest."""
    with Server() as server:
        probe.open(server.url, frame=10_000)
        stream = encode(pattern(0, 10_000)) + b"".join(fragments(pattern(0, size), piece))
        server.connection().sendall(stream if whole else stream[:-1])
        ending = probe.ended()
        assert ending.end == "oversize" and ending.detail != ""
        assert "frame a 10000" in probe.waiting and len([x for x in probe.waiting if x.startswith("frame")]) == 1


def test_sending_when_not_open(probe: Probe, released: threading.Event) -> None:
    with RawServer() as silent, Server(stalls(released)) as server:
        probe.open(silent.url, wait=False)
        assert probe.ask("send a 10 1", "sent a") == ["0"]
        assert probe.ask("send a 0 1", "sent a") == ["0"]
        probe.open(server.url, name="b")
        probe.send("close b")
        assert probe.ask("send b 10 1", "sent b") == ["0"]


# Ends

CODES = [(1000, "bye"), (1001, ""), (1009, "too large"), (1011, "internal error"), (4001, "revoked"), (4002, "x" * 123)]


@pytest.mark.parametrize("code, reason", CODES)
def test_close_frames(probe: Probe, code: int, reason: str) -> None:
    with Server() as server:
        probe.open(server.url)
        server.connection().sendall(encode(b"last") + encode(struct.pack(">H", code) + reason.encode(), CLOSE))
        assert probe.ended() == ("closed", code, 0, 0, False, reason)
        assert "frame a 4" in probe.waiting
        wait_until(lambda: server.closes, "it is answered")
        assert server.closes[0][:2] == struct.pack(">H", code)


def test_a_reason_that_is_not_fit_to_print(probe: Probe) -> None:
    with Server() as server:
        probe.open(server.url)
        server.connection().sendall(encode(struct.pack(">H", 4000) + "a\n\x1b[1mü".encode(), CLOSE))
        assert probe.ended() == ("closed", 4000, 0, 0, False, "a??[1m??")


def test_a_close_frame_without_a_code(probe: Probe) -> None:
    with Server() as server:
        probe.open(server.url)
        server.connection().sendall(encode(b"", CLOSE))
        assert probe.ended() == ("closed", 0, 0, 0, False, "")


@pytest.mark.parametrize("how", ["reset", "close", "half_frame_reset", "half_frame_close", "half_header"])
def test_broken_connections(probe: Probe, released: threading.Event, how: str) -> None:
    def act(connection: socket.socket) -> None:
        """All in one thread: a socket that another one reads is not reset by closing it."""
        whole = encode(pattern(0, 5000))
        if how.startswith("half"):
            connection.sendall(encode(b"before") + (whole[:3] if how == "half_header" else whole[:2000]))
        released.wait(LIMIT)
        if how.endswith("reset"):
            reset(connection)
        else:
            connection.shutdown(socket.SHUT_RDWR)

    with Server(act) as server:
        probe.open(server.url)
        if how.startswith("half"):
            probe.take("frame a")
        released.set()
        assert probe.ended().end == "lost"
        assert [line for line in probe.waiting if line.startswith("frame")] == []


@pytest.mark.parametrize("stream", [b"\xf2\x00", b"\x83\x00", b"\x00\x01x", b"\x82\xffxxxxxxxx", b"\x89\x7e\xff\xff",
                                    b"\x02\x01x\x82\x01x", b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_what_is_no_websocket(probe: Probe, stream: bytes) -> None:
    """Broken, or too large; never a crash, and never quiet for ever."""
    with Server() as server:
        probe.open(server.url)
        with contextlib.suppress(OSError):  # the probe may be gone before we are through
            server.connection().sendall(stream + b"x" * 70_000)
            server.connection().shutdown(socket.SHUT_WR)
        assert probe.ended().end in ("lost", "oversize", "closed")


def test_closing(probe: Probe) -> None:
    with Server() as server:
        probe.open(server.url)
        probe.send("close a")
        probe.send("close a")
        assert probe.ended() == ("closed_by_us", 0, 0, 0, False, "")
        wait_until(lambda: server.closes == [struct.pack(">H", 1000)], "it was told")


@pytest.mark.parametrize("at", ["open", "frame"])
def test_closing_from_a_callback(probe: Probe, at: str) -> None:
    """After which no frame comes, though some wait in the same read."""
    frames = b"".join(encode(b"x") for _ in range(100))
    with Server(lambda connection: connection.sendall(frames)) as server:
        probe.open(server.url, at=at, wait=False)
        assert probe.ended().end == "closed_by_us"
        assert len([line for line in probe.waiting if line.startswith("frame")]) == (at == "frame")


@pytest.mark.parametrize("amount", [0, 10, 20_000_000])
def test_closing_with_a_peer_that_has_stopped(probe: Probe, released: threading.Event, amount: int) -> None:
    with Server(stalls(released)) as server:
        probe.open(server.url)
        server.connection()
        if amount:
            assert probe.ask(f"send a {min(amount, 1_000_000)} {max(amount // 1_000_000, 1)}", "sent a") != ["0"]
        began = time.monotonic()
        probe.send("close a")
        assert probe.ended().end == "closed_by_us"
        assert time.monotonic() - began < 1 + BUSY
        wait_until(lambda: int(probe.ask("use", "use")[0]) <= idle_descriptors(), "its descriptor is gone")


def test_closing_with_a_peer_that_answers_with_frames_only(probe: Probe) -> None:
    def act(connection: socket.socket) -> None:
        while True:
            connection.sendall(encode(pattern(0, 1000)))

    with Server(act) as server:
        probe.open(server.url)
        probe.take("frame a")
        began = time.monotonic()
        probe.send("close a")
        assert probe.ended().end == "closed_by_us"
        assert time.monotonic() - began < 1 + BUSY


@pytest.mark.parametrize("amount", [0, 20])
def test_a_peer_that_closes_and_hangs(probe: Probe, released: threading.Event, amount: int) -> None:
    with Server(stalls(released)) as server:
        probe.open(server.url)
        connection = server.connection()
        assert probe.ask(f"send a 1000000 {amount}", "sent a") == [str(amount)]
        began = time.monotonic()
        connection.sendall(encode(struct.pack(">H", 1011), CLOSE))
        assert probe.ended()[:2] == ("closed", 1011)
        assert time.monotonic() - began < 1 + BUSY


def idle_descriptors() -> int:
    with Probe() as idle, Server() as server:
        idle.open(server.url)
        idle.send("close a")
        idle.ended()
        return int(idle.ask("use", "use")[0])


def test_a_thousand_links_leave_nothing_behind() -> None:
    environment = {"ASAN_OPTIONS": SANITIZERS["ASAN_OPTIONS"] + ":quarantine_size_mb=1"}
    with Server() as server, Probe(environment) as probe:
        probe.ask(f"cycle {server.url} 100", "cycled")
        descriptors, memory = map(int, probe.ask("use", "use")[:2])
        probe.ask(f"cycle {server.url} 1000", "cycled", 25)
        after = probe.ask("use", "use")
        assert int(after[0]) <= descriptors and int(after[1]) < memory + 2000
        assert after[2:] == ["1100", "1100"]


def test_failed_links_leave_nothing_behind() -> None:
    environment = {"ASAN_OPTIONS": SANITIZERS["ASAN_OPTIONS"] + ":quarantine_size_mb=1"}
    closed = f"ws://127.0.0.1:{free_port()}/ws"
    with answers("HTTP/1.1 503 No", end=True) as refuses, Probe(environment) as probe:
        for turn in range(2):
            for n in range(300):
                probe.open(closed if n % 2 else refuses.url, name=f"{turn}.{n}", wait=False)
                probe.ended(f"{turn}.{n}")
            descriptors, memory = map(int, probe.ask("use", "use")[:2])
            if turn == 0:
                before = (descriptors, memory)
        assert descriptors <= before[0] and memory < before[1] + 2000


# The end of all

STATES = ["idle", "resolving", "connecting", "tls", "upgrading", "open", "sending", "stalled", "closing", "all"]


@pytest.mark.parametrize("state", STATES)
def test_the_context_ends_in_any_state(tmp_path: Path, authority: Authority, released: threading.Event, state: str) -> None:
    with BlackHole() as hole, RawServer() as silent, Server() as server, Server(stalls(released)) as stopped, \
            Probe(Names(tmp_path, dead="hang").environment) as probe:
        wanted = set(STATES) if state == "all" else {state}
        begin = {
            "resolving": lambda: probe.open("ws://dead.test/ws", name="r", wait=False),
            "connecting": lambda: probe.open(hole.url, name="c", wait=False),
            "tls": lambda: (probe.open(f"wss://localhost:{silent.port}/", name="t", wait=False, ca=authority.certificate),
                            wait_until(lambda: any(silent.data), "a client hello")),
            "upgrading": lambda: (probe.open(silent.url, name="u", wait=False),
                                  wait_until(lambda: any(b"GET" in data for data in silent.data), "a request")),
            "open": lambda: probe.open(server.url, name="o"),
            "sending": lambda: (probe.open(server.url, name="s"), probe.send("send s 100000 100")),
            "stalled": lambda: (probe.open(stopped.url, name="w"), probe.send("send w 100000 100")),
            "closing": lambda: (probe.open(stopped.url, name="x"), probe.send("close x")),
        }
        for name, reach in begin.items():
            if name in wanted:
                reach()
        probe.ask("use", "use")
        began = time.monotonic()
        probe.finish()
        assert time.monotonic() - began < 1.2 + BUSY


# TLS

@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("link") / "ours")


def serving(authority: Authority, name: str = "good", *issue: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(name, *issue))
    return context


@pytest.fixture(scope="module")
def good(authority: Authority) -> ssl.SSLContext:
    return serving(authority)


def test_tls_with_a_ca_file(probe: Probe, authority: Authority, good: ssl.SSLContext) -> None:
    with Server(tls=good) as server:
        probe.open(server.url, ca=authority.certificate)
        assert probe.ask("send a 1000000 3", "sent a") == ["3"]
        wait_until(lambda: len(server.received) == 3, "all arrive")
        assert server.received == [pattern(n, 1_000_000) for n in range(3)]
        probe.send("close a")
        assert probe.ended().end == "closed_by_us"


def test_tls_with_the_systems_cas(authority: Authority, good: ssl.SSLContext) -> None:
    with Server(tls=good) as server:
        with Probe({"SSL_CERT_FILE": str(authority.certificate)}) as probe:
            probe.open(server.url)
        with Probe({"SSL_CERT_FILE": "/dev/null", "SSL_CERT_DIR": "/nowhere"}) as probe:
            assert probe.fails(server.url)[:5] == ("tls", 0, 0, 0, True)


def test_no_certificates_of_the_working_directory(authority: Authority, good: ssl.SSLContext, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """The library by itself would look in ../share of wherever it runs."""
    folder, share = tmp_path / "here", tmp_path / "share"
    folder.mkdir()
    share.mkdir()
    (share / "ca.pem").write_bytes(authority.certificate.read_bytes())
    subprocess.run(["openssl", "rehash", str(share)], check=True)
    monkeypatch.chdir(folder)
    with Server(tls=good) as server, Probe({"SSL_CERT_FILE": "/dev/null", "SSL_CERT_DIR": "/nowhere"}) as probe:
        assert probe.fails(server.url).certificate


BAD = {
    # name: (arguments of issue, what the detail has)
    "wrong_host": (("DNS:broker.example",), "hostname mismatch"),
    "expired": (("DNS:localhost", "past"), "expired"),
    "not_yet_valid": (("DNS:localhost", "future"), "not yet valid"),
    "address_for_a_name": (("IP:127.0.0.1",), "hostname mismatch"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_certificates(probe: Probe, authority: Authority, name: str) -> None:
    arguments, words = BAD[name]
    with Server(tls=serving(authority, name, *arguments)) as server:
        ending = probe.fails(server.url, ca=authority.certificate)
        assert ending.end == "tls" and ending.certificate and words in ending.detail
        assert server.requests == []


def test_an_unknown_authority(probe: Probe, good: ssl.SSLContext, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    with Server(tls=good) as server:
        ending = probe.fails(server.url, ca=stranger.certificate)
        assert ending.end == "tls" and ending.certificate and ending.detail.startswith("certificate: ")


def test_the_name_is_sent_and_checked_for_each_link(tmp_path: Path, authority: Authority) -> None:
    asked: list[str] = []
    context = serving(authority, "named", "DNS:*.broker.test")
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    names = Names(tmp_path, **{"eu.broker": "127.0.0.1", "eu.other": "127.0.0.1", "a.eu.broker": "127.0.0.1"})
    with Server(tls=context) as server, Probe(names.environment) as probe:
        probe.open(f"wss://eu.broker.test:{server.port}/", ca=authority.certificate)
        for name in ("eu.other", "a.eu.broker"):
            probe.open(f"wss://{name}.test:{server.port}/", name=name, wait=False, ca=authority.certificate)
            assert probe.ended(name).certificate
        assert asked == ["eu.broker.test", "eu.other.test", "a.eu.broker.test"]


@pytest.mark.parametrize("url, words", [
    ("wss://[::1]:1/ws", "IPv6"),
    (f"wss://{'x' * 63}.{'y' * 64}/ws", "too long"),
])
def test_names_that_cannot_be_checked(probe: Probe, url: str, words: str) -> None:
    ending = probe.fails(url)
    assert ending.end == "tls" and words in ending.detail


@pytest.mark.parametrize("content", [None, "", "nothing\n", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_ca_files_that_are_none(probe: Probe, authority: Authority, good: ssl.SSLContext, tmp_path: Path,
                                content: Optional[str]) -> None:
    """And one that is mended is read."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with Server(tls=good) as server:
        ending = probe.fails(server.url, ca=path)
        assert ending.end == "tls" and not ending.certificate and "CA file" in ending.detail
        path.write_bytes(authority.certificate.read_bytes())
        probe.open(server.url, name="b", ca=path)


@pytest.mark.parametrize("how", ["plain_http", "garbage", "close", "reset", "after_hello"])
def test_servers_without_tls(probe: Probe, how: str) -> None:
    def serve(server: RawServer, connection: socket.socket) -> None:
        if how == "after_hello":
            connection.recv(5)
        elif how != "close":
            connection.recv(10_000)
        if how in ("plain_http", "garbage"):
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" if how == "plain_http" else b"\0" * 1000)
        elif how == "reset":
            reset(connection)

    with RawServer(serve) as server:
        ending = probe.fails(f"wss://localhost:{server.port}/ws", connect=2000)
        assert ending.end == "tls" and not ending.certificate and ending.detail != ""
        if how == "plain_http":
            assert "wrong version number" in ending.detail


def test_a_tls_handshake_without_an_answer(probe: Probe) -> None:
    with RawServer() as server:
        began = time.monotonic()
        ending = probe.fails(f"wss://127.0.0.1:{server.port}/ws", connect=500)
        assert ending.end == "tls" and "in time" in ending.detail and not ending.certificate
        assert 0.5 <= time.monotonic() - began < 0.5 + BUSY


def test_a_server_that_is_too_old(probe: Probe, authority: Authority, good: ssl.SSLContext) -> None:
    context = serving(authority, "client_wanted")
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Server(tls=context) as server:
        ending = probe.fails(server.url, ca=authority.certificate)
        assert ending.end == "tls" and not ending.certificate and "alert" in ending.detail


@pytest.mark.parametrize("sizes", [[1] * 2000, [16_384] * 20, [4096, 4097, 1, 65_536, 3], [300_000, 1]])
def test_bursts_over_tls(probe: Probe, authority: Authority, good: ssl.SSLContext, sizes: list[int]) -> None:
    """All is delivered though nothing comes behind it: records that the library has read ahead are not forgotten."""
    frames = [pattern(n, size) for n, size in enumerate(sizes)]
    stream = b"".join(map(encode, frames))
    with Server(tls=good) as server:
        probe.open(server.url, ca=authority.certificate)
        began = time.monotonic()
        for n in range(5):
            server.connection().sendall(stream)
            assert probe.frames(len(frames) * (n + 1)) == digest(iter(frames * (n + 1)))
        assert time.monotonic() - began < 2 + BUSY


def test_a_tls_peer_that_has_stopped(probe: Probe, authority: Authority, good: ssl.SSLContext,
                                     released: threading.Event) -> None:
    with Server(stalls(released), tls=good) as server:
        probe.open(server.url, ca=authority.certificate)
        server.connection()
        probe.ask("send a 1000000 20", "sent a")
        began = time.monotonic()
        probe.send("close a")
        assert probe.ended().end == "closed_by_us"
        assert time.monotonic() - began < 1 + BUSY
