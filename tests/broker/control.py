# SPDX-License-Identifier: Apache-2.0
"""The stand-in broker for tests: start it, command it, ask it, stop it.

    with Broker() as broker:
        broker.delay(type="publish", ms=50)
        ...connect to broker.url...
        broker.wait_for(type="publish", count=3)
        assert [each["data"] for each in broker.accepts()] == [1, 2, 3]

Every command of the control socket is a method of the same name that takes the
command's fields as keywords (README.md lists them). Commands that fail raise
CommandFailed.
"""

import json
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "nolag-devbroker"
AUTH = HERE / "auth.json"
START_TIMEOUT = 10.0
STOP_TIMEOUT = 5.0
ANSWER_TIMEOUT = 60.0

COMMANDS = frozenset((
    "refuse_auth", "delay", "mute", "refuse", "rate_limit_next", "drop", "drop_at",
    "half_open", "inbound_dead", "resume", "http_status", "stop_listening", "listen",
    "split", "restored", "hydration", "inject", "configure", "clear", "reset", "settle",
    "ping"))


class CommandFailed(Exception):
    """The broker has answered a command with ok:false."""


class Broker:
    """One running stand-in broker and its control connection."""

    def __init__(self, flavor: str = "kraken", auth: Path = AUTH, *, port: int = 0,
                 recording: bool = True, rate_limit: Optional[int] = None,
                 accept_log: Optional[Path] = None,
                 tls: Optional[tuple[Path, Path]] = None, verbose: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="devbroker-"))
        control = self._folder / "control"
        options: dict[str, Any] = {
            "--port": port, "--auth": auth, "--flavor": flavor, "--control": control,
            "--rate-limit": rate_limit, "--accept-log": accept_log,
            "--tls-cert": tls and tls[0], "--tls-key": tls and tls[1]}
        arguments = [str(part) for option, value in options.items() if value is not None
                     for part in (option, value)]
        arguments += ["--no-recording"] * (not recording) + ["--verbose"] * verbose
        self.process = subprocess.Popen([str(PROGRAM), *arguments], stdout=subprocess.PIPE,
                                        text=True)
        try:
            self.url = self._wait_ready()
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(ANSWER_TIMEOUT)
            self._socket.connect(str(control))
        except BaseException:
            self.kill()
            raise
        self._answers = self._socket.makefile("r", encoding="utf-8")

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].split("/")[0])

    def _wait_ready(self) -> str:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT)
        line = self.process.stdout.readline() if readable else ""
        if not line.startswith("ready "):
            raise RuntimeError(f"the stand-in broker did not start: {line!r}")
        return line.split()[1]

    # Commands

    def command(self, cmd: str, **fields: Any) -> dict:
        """Send one command; returns its answer, or raises CommandFailed."""
        self._socket.sendall(json.dumps({"cmd": cmd, **fields}).encode() + b"\n")
        answer = json.loads(self._answers.readline())
        if not answer.pop("ok"):
            raise CommandFailed(f"{cmd}: {answer['error']}")
        return answer

    def __getattr__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise AttributeError(name)
        return lambda **fields: self.command(name, **fields)

    # Questions

    def state(self) -> list[dict]:
        """The open connections, each with its subscriptions and presence."""
        return self.command("state")["connections"]

    def accepts(self, **fields: Any) -> list[dict]:
        """Every publish that was accepted."""
        return self.command("accepts", **fields)["accepts"]

    def received(self, *types: str, **fields: Any) -> list[dict]:
        """Every frame that was received, of these types when there are any."""
        return self.command("received", type=types, **fields)["received"]

    def acks(self, **fields: Any) -> list[dict]:
        """Every message id that was acknowledged."""
        return self.command("acks", **fields)["acks"]

    def counters(self) -> dict[str, int]:
        return self.command("counters")["counters"]

    def wait_for(self, **fields: Any) -> int:
        """Until a log holds `count` entries; raises CommandFailed at the timeout."""
        return self.command("wait_for", **fields)["found"]

    # End

    def stop(self) -> None:
        """End the broker and check that it ended well. May be called again."""
        self._end(signal.SIGTERM)
        if self.process.returncode != 0:
            raise RuntimeError(f"the stand-in broker ended with {self.process.returncode}")

    def kill(self) -> None:
        """End the broker as a crash does. May be called again."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if hasattr(self, "_answers"):
            self._answers.close()
            self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
