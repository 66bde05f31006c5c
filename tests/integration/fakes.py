# SPDX-License-Identifier: Apache-2.0
"""What the tests of a link put in the place of a healthy network: names, black holes, odd servers."""

import functools
import os
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Optional

from harness import SANITIZERS, wait_until

HERE = Path(__file__).resolve().parent


@functools.lru_cache(maxsize=None)
def _resolver_library() -> Path:
    library = Path(tempfile.mkdtemp(prefix="nolagd-names-")) / "fake_resolver.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library),
                    str(HERE / "fake_resolver.c"), "-ldl"], check=True)
    return library


class Names:
    """A resolver under our command, for a daemon that is started with `environment`."""

    def __init__(self, folder: Path, **names: str) -> None:
        self._path = folder / "names"
        self._names: dict[str, str] = {}
        self.environment = {
            "LD_PRELOAD": str(_resolver_library()), "FAKE_NAMES": str(self._path),
            "ASAN_OPTIONS": SANITIZERS["ASAN_OPTIONS"] + ":verify_asan_link_order=0"}
        self.set(**names)

    def set(self, **names: str) -> None:
        """name="addresses" answers NAME.test so from now on; "hang" never does."""
        self._names.update(names)
        new = self._path.with_suffix(".new")
        new.write_text("".join(f"{name}.test {value}\n" for name, value in self._names.items()))
        new.rename(self._path)


class BlackHole:
    """An address that does not answer a connect: its queue of connections is full."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sockets = [socket.socket(family)]
        self._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets[0].bind((address, port))
        self._sockets[0].listen(0)
        self.port = self._sockets[0].getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/ws"
        while self._connects(family, address):
            pass

    def _connects(self, family: int, address: str) -> bool:
        client = socket.socket(family)
        self._sockets.append(client)
        client.settimeout(0.2)
        try:
            client.connect((address, self.port))
            return True
        except TimeoutError:
            return False

    def __enter__(self) -> "BlackHole":
        return self

    def __exit__(self, *_: Any) -> None:
        for each in self._sockets:
            each.close()


class RawServer:
    """Accepts TCP connections and does with each what `serve` says, in a thread of its own.

    times: when each one came, on the monotonic clock; data: what each one has sent so far.
    """

    def __init__(self, serve: Optional[Callable[["RawServer", socket.socket], None]] = None) -> None:
        self._serve = serve or RawServer.read_all
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/ws"
        self.times: list[float] = []
        self.data: list[bytes] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.times.append(time.monotonic())
            self._open.append(connection)
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        try:
            self._serve(self, connection)
        except OSError:
            pass
        connection.close()

    def read_all(self, connection: socket.socket) -> None:
        """Says nothing, until the other side ends it."""
        at = len(self.data)
        self.data.append(b"")
        while more := connection.recv(65536):
            self.data[at] += more

    def close_at_once(self, connection: socket.socket) -> None:
        """For tests that count attempts."""

    def wait_attempts(self, count: int, limit: float = 10.0) -> list[float]:
        wait_until(lambda: len(self.times) >= count, f"{count} connection attempts", limit)
        return self.times[:count]

    def __enter__(self) -> "RawServer":
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            each.close()


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in zip(times, times[1:])]


class SlowLine:
    """A way to a broker on which `rate` bytes a second go up, and any number come down."""

    def __init__(self, port: int, rate: int) -> None:
        self._broker = port
        self._rate = rate
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}/ws"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._broker))
            threading.Thread(target=self._pump, args=(client, broker, 4096), daemon=True).start()
            threading.Thread(target=self._pump, args=(broker, client, 0), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, slowly: int) -> None:
        try:
            while data := source.recv(slowly or 65536):
                target.sendall(data)
                if slowly:
                    time.sleep(len(data) / self._rate)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self) -> "SlowLine":
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
