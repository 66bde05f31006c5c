# SPDX-License-Identifier: Apache-2.0
"""What the integration tests drive: the real daemon, and clients that speak lines to it.

A `Daemon` runs the nolagd of the build folder NL_BUILD (default: build) in a temporary
folder of its own and is stopped with SIGTERM, after which it must have ended with status 0
and without a word from a sanitizer. A `Client` is one connection. Nothing here sleeps: what
must come is waited for with a limit, what must not come is proven by a line that is
answered behind it (`Client.nothing_else`).
"""

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Union

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("NL_BUILD", ROOT / "build"))
NOLAGD = BUILD / "daemon" / "nolagd"
NOLAG = BUILD / "clients" / "nolag"

LIMIT = 10.0
"""Seconds to wait for something that must come; long, for slow machines under sanitizers."""

Json = dict[str, Any]

SANITIZERS = {
    "ASAN_OPTIONS": "abort_on_error=0:exitcode=98:detect_leaks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:exitcode=98:print_stacktrace=1",
}


def wait_until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """Polls until condition() is true; returns what it was. For conditions nobody announces."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit} s in vain for: {what}")
        select.select([], [], [], 0.01)


class Client:
    """One connection to the daemon."""

    def __init__(self, path: Union[str, Path], receive_buffer: Optional[int] = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(str(path))
        self._data = b""
        self._ids = itertools.count(1)
        self.waiting: list[Json] = []
        """Lines that came and nobody has asked for yet."""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def write(self, data: bytes) -> None:
        self.socket.settimeout(LIMIT)
        self.socket.sendall(data)

    def send(self, **fields: Any) -> None:
        self.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")

    def read_line(self, limit: float = LIMIT) -> Optional[Json]:
        """The next line from the socket, or None at the end of the stream."""
        end = time.monotonic() + limit
        while b"\n" not in self._data:
            self.socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                more = self.socket.recv(1 << 20)
            except TimeoutError:
                raise AssertionError(f"no line within {limit} s; waiting: {self.waiting}") from None
            except ConnectionResetError:
                return None
            if not more:
                assert not self._data, f"a line without an end: {self._data!r}"
                return None
            self._data += more
        line, self._data = self._data.split(b"\n", 1)
        value = json.loads(line.decode("utf-8"))
        assert isinstance(value, dict) and isinstance(value.get("type"), str), value
        return value

    def receive(self, limit: float = LIMIT, **fields: Any) -> Json:
        """The first line that has these fields; those before it are kept in `waiting`."""
        for line in self.waiting:
            if matches(line, fields):
                self.waiting.remove(line)
                return line
        while True:
            line = self.read_line(limit)
            assert line is not None, f"the connection ended; wanted {fields}; waiting: {self.waiting}"
            if matches(line, fields):
                return line
            self.waiting.append(line)

    def request(self, limit: float = LIMIT, **fields: Any) -> Json:
        """Sends a request with a fresh id and returns its answer."""
        number = fields.setdefault("id", next(self._ids))
        self.send(**fields)
        return self.receive(limit, id=number)

    def ok(self, **fields: Any) -> Json:
        """A request that must not be refused."""
        answer = self.request(**fields)
        assert answer["type"] != "error", answer
        return answer

    def refused(self, error: str, **fields: Any) -> Json:
        """A request that must be refused with this error."""
        answer = self.request(**fields)
        assert answer["type"] == "error" and answer["error"] == error, answer
        return answer

    def message(self, data: Any, limit: float = LIMIT, **fields: Any) -> Json:
        """The next line must be a message with this data."""
        line = self.waiting.pop(0) if self.waiting else self.read_line(limit)
        assert line is not None and line["type"] == "message" and line["data"] == data, line
        assert matches(line, fields), (line, fields)
        return line

    def nothing_else(self) -> None:
        """Nothing has come but what was asked for: proven by an answer that comes behind it."""
        self.request(type="ping", id="fence")
        assert self.waiting == [], self.waiting

    def ended(self, limit: float = LIMIT) -> list[Json]:
        """All lines until the daemon closes the connection."""
        lines = self.waiting
        self.waiting = []
        while True:
            line = self.read_line(limit)
            if line is None:
                return lines
            lines.append(line)


def matches(line: Json, fields: Json) -> bool:
    return all(name in line and line[name] == value for name, value in fields.items())


class Daemon:
    """One running nolagd.

    sessions: for each session name its keys; "token" is written to a file with mode 0600.
    daemon: keys of [daemon].
    """

    def __init__(self, sessions: dict[str, Json], daemon: Optional[Json] = None, *,
                 level: str = "debug", environment: Optional[dict[str, str]] = None,
                 wrapper: Iterator[str] = iter(()), wait: bool = True,
                 folder: Optional[Path] = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="nolagd-"))
        self.socket = self.folder / "nolagd.sock"
        self.config = self.folder / "nolagd.conf"
        self.log_path = self.folder / "log"
        self.config.write_text(self._config(sessions, daemon or {}))
        self._log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            [*wrapper, str(NOLAGD), "--config", str(self.config), "--socket", str(self.socket),
             "--log-level", level],
            stdout=subprocess.PIPE, stderr=self._log, env={**os.environ, **SANITIZERS, **(environment or {})})
        if wait:
            wait_until(lambda: self.serving() or self.process.poll() is not None, "nolagd serves")
            assert self.process.poll() is None, self.log()

    def _config(self, sessions: dict[str, Json], daemon: Json) -> str:
        lines = ["[daemon]"] + [f"{key} = {value}" for key, value in daemon.items()]
        for name, keys in sessions.items():
            lines.append(f"[session {name}]")
            for key, value in keys.items():
                if key == "token":
                    token = self.folder / f"token-{name}"
                    token.touch(mode=0o600)
                    token.write_text(value + "\n")
                    key, value = "token_file", str(token)
                lines.append(f"{key} = {value}")
        return "\n".join(lines) + "\n"

    def serving(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def client(self, **options: Any) -> Client:
        return Client(self.socket, **options)

    def status(self, session: Optional[str] = None) -> Json:
        with self.client() as client:
            if session is not None:
                client.ok(type="auth", session=session)
            return client.ok(type="status")

    def wait_status(self, status: str = "connected", session: Optional[str] = None,
                    limit: float = LIMIT, **fields: Any) -> Json:
        def reached() -> Optional[Json]:
            now = self.status(session)
            return now if now["status"] == status and matches(now, fields) else None
        return wait_until(reached, f"status {status} {fields}", limit)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, limit: float = LIMIT) -> int:
        """Waits for the end; returns the exit status. A sanitizer's finding fails the test."""
        try:
            status = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"nolagd did not end within {limit} s:\n{self.log()[-4000:]}") from None
        assert self.process.stdout is not None
        assert self.process.stdout.read() == b"", "nolagd prints nothing on stdout"
        log = self.log()
        for word in ("Sanitizer", "runtime error", "open handles"):
            assert word not in log, log[-8000:]
        return status

    def stop(self, limit: float = LIMIT) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        status = self.wait(limit)
        assert status == 0, (status, self.log()[-4000:])
        self._log.close()

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.stop()
            return
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()
        print(self.log()[-6000:])


def alice(url: str, **keys: Any) -> Json:
    """A session of the token that most tests use, quick to come back."""
    return {"url": url, "token": "tok-alice", "reconnect_interval": "50ms", "reconnect_max_interval": "300ms",
            **keys}
