# SPDX-License-Identifier: Apache-2.0
"""Who gets the socket when there are several, and what is said when nobody can have it."""

import fcntl
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from harness import LIMIT, NOLAGD, SANITIZERS, Daemon, wait_until


def start(config: Path, path: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([str(NOLAGD), "--config", str(config), "--socket", str(path)],
                            stderr=subprocess.PIPE, env={**os.environ, **SANITIZERS})


def configured(folder: Path, **keys: Any) -> Path:
    config = folder / "nolagd.conf"
    config.write_text("[daemon]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()))
    return config


def serving(path: Path) -> bool:
    """It answers: then it also knows SIGTERM."""
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) != 0:
            return False
        probe.settimeout(LIMIT)
        probe.sendall(b'{"type":"ping"}\n')
        return probe.recv(100) == b'{"type":"pong"}\n'


def errors(process: "subprocess.Popen[bytes]") -> list[str]:
    """What a daemon that cannot start says."""
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    return [line for line in err.decode().splitlines() if "error" in line]


def test_a_socket_that_another_is_just_making_is_left_alone(tmp_path: Path) -> None:
    """Between bind() and listen() it refuses connections, as a stale one does."""
    config, path = configured(tmp_path), tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as making, open(tmp_path / "s.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        making.bind(str(path))
        before = path.stat().st_ino
        (line,) = errors(start(config, path))
        assert "another process serves it" in line
        assert path.stat().st_ino == before


def test_of_many_that_start_at_once_one_serves(tmp_path: Path) -> None:
    config, path = configured(tmp_path), tmp_path / "s"
    for _ in range(5):
        processes = [start(config, path) for _ in range(6)]
        wait_until(lambda: sum(p.poll() is None for p in processes) == 1 and serving(path), "one of them serves")
        (winner,) = [p for p in processes if p.poll() is None]
        for process in processes:
            if process is not winner:
                (line,) = errors(process)
                assert "another process serves it" in line
        assert serving(path), "none has taken its socket away"
        winner.send_signal(signal.SIGTERM)
        winner.communicate(timeout=LIMIT)
        assert winner.returncode == 0
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["nolagd.conf"], "nothing is left"


def test_what_a_killed_one_left_is_no_hindrance(tmp_path: Path) -> None:
    config, path = configured(tmp_path), tmp_path / "s"
    killed = start(config, path)
    wait_until(lambda: serving(path), "it serves")
    killed.kill()
    killed.communicate(timeout=LIMIT)
    assert path.exists() and (tmp_path / "s.lock").exists()
    with Daemon({}, folder=tmp_path) as daemon:
        assert daemon.serving()
    after = start(config, path)
    wait_until(lambda: serving(path), "the next one serves")
    after.send_signal(signal.SIGTERM)
    after.communicate(timeout=LIMIT)
    assert after.returncode == 0


def test_the_lock_is_for_nobody_else(tmp_path: Path) -> None:
    with Daemon({}, folder=tmp_path):
        assert (tmp_path / "nolagd.sock.lock").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "nolagd.sock.lock").exists()


def test_a_failure_is_told_once(tmp_path: Path) -> None:
    cases = [
        (tmp_path / ("x" * 200), {}, "too long"),
        (tmp_path / "nowhere" / "s", {}, "No such file"),
        (tmp_path / "s", {"socket_group": "nosuchgroup"}, "nosuchgroup"),
        (tmp_path / "file", {}, "something else than a socket"),
    ]
    (tmp_path / "file").write_text("precious")
    for path, keys, word in cases:
        lines = errors(start(configured(tmp_path, **keys), path))
        assert len(lines) == 1 and word in lines[0], lines
