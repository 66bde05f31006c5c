# SPDX-License-Identifier: Apache-2.0
"""Starting, stopping, and the socket: rights, stale files, systemd."""

import grp
import os
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from control import Broker
from harness import LIMIT, NOLAGD, SANITIZERS, Client, Daemon, alice, wait_until

TOPIC = "demo/ops/events"
NOBODY = 65534

Connect = Callable[..., Client]


def run(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(NOLAGD), *arguments], capture_output=True, text=True, timeout=30,
                          env={**os.environ, **SANITIZERS}, **options)


# The command line and the configuration


def test_help_and_version() -> None:
    assert run("--help").returncode == 0 and "--config" in run("--help").stdout
    assert run("--version").stdout.startswith("nolagd ")
    for wrong in (["--nonsense"], ["argument"], ["--config"]):
        result = run(*wrong)
        assert result.returncode == 2 and result.stdout == "" and "usage" in result.stderr


def test_check_config(tmp_path: Path) -> None:
    config = tmp_path / "nolagd.conf"
    config.write_text("[daemon]\nmax_clients = 10\n")
    result = run("--check-config", "--config", str(config))
    assert result.returncode == 0 and f"{config}: there is no [session NAME]" in result.stderr, "it is said, but served"
    config.write_text("[daemon]\nmax_clinets = 10\n[session x]\nurl = http://x\n")
    result = run("--check-config", "--config", str(config))
    assert result.returncode == 1 and result.stdout == ""
    assert f'{config}:2: unknown key "max_clinets"' in result.stderr and 'did you mean "max_clients"?' in result.stderr
    assert len([line for line in result.stderr.splitlines() if str(config) in line]) == 3


def test_a_bad_configuration_does_not_start(tmp_path: Path) -> None:
    notify = NotifySocket(tmp_path)
    config = tmp_path / "nolagd.conf"
    config.write_text("[session x]\ntoken_file = nowhere\n")
    result = subprocess.run([str(NOLAGD), "--config", str(config), "--socket", str(tmp_path / "s")],
                            capture_output=True, text=True, timeout=30,
                            env={**os.environ, **SANITIZERS, "NOTIFY_SOCKET": notify.path})
    assert result.returncode == 1 and "token_file" in result.stderr
    assert not (tmp_path / "s").exists()
    assert not any("READY=1" in text for text in notify.texts())


def test_a_group_that_does_not_exist(tmp_path: Path) -> None:
    """Found before the start, and told once."""
    config = tmp_path / "nolagd.conf"
    config.write_text("[daemon]\nallow_client_tokens = yes\nsocket_group = nosuch\n")
    for arguments in (["--check-config"], ["--socket", str(tmp_path / "s")]):
        result = run("--config", str(config), *arguments)
        assert result.returncode == 1
        (error,) = [line for line in result.stderr.splitlines() if "error: " in line]
        assert error.endswith(f'{config}:3: socket_group: there is no group "nosuch"')


def test_a_token_that_everyone_can_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("tok-secret\n")
    token.chmod(0o644)
    config = tmp_path / "nolagd.conf"
    config.write_text(f"[session x]\ntoken_file = {token}\n")
    result = run("--check-config", "--config", str(config))
    assert result.returncode == 1 and "everyone" in result.stderr and "tok-secret" not in result.stderr


# The socket


def test_rights_are_as_configured(broker: Broker) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    with Daemon({"default": alice(broker.url)}, {"socket_mode": "0620", "socket_group": group}) as daemon:
        status = daemon.socket.stat()
        assert stat.S_IMODE(status.st_mode) == 0o620 and status.st_gid == os.getgid()


def test_rights_are_never_wider(broker: Broker, tmp_path: Path) -> None:
    """Looked at all the time while daemons start."""
    seen: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                seen.add(stat.S_IMODE((tmp_path / "nolagd.sock").stat().st_mode))
            except FileNotFoundError:
                pass

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(10):
            with Daemon({}, {"socket_mode": "0600"}, folder=tmp_path):
                pass
    finally:
        done.set()
        watcher.join()
    assert seen == {0o600}


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    with Daemon({}, folder=tmp_path) as daemon:
        daemon.signal(signal.SIGKILL)
        daemon.process.wait()
        assert daemon.socket.exists()
        with Daemon({}, folder=tmp_path) as second:
            with second.client() as client:
                client.ok(type="ping")
        assert not daemon.socket.exists(), "an orderly end removes it"
        daemon.process = second.process


def test_a_live_socket_is_left_alone(broker: Broker, daemon: Daemon) -> None:
    result = run("--config", str(daemon.config), "--socket", str(daemon.socket))
    assert result.returncode == 1 and "another process serves it" in result.stderr
    with daemon.client() as client:
        client.ok(type="publish", topic=TOPIC, data=1)


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    config, path = tmp_path / "nolagd.conf", tmp_path / "precious"
    config.write_text("[daemon]\n")
    path.write_text("precious")
    result = run("--config", str(config), "--socket", str(path))
    assert result.returncode == 1 and "something else than a socket" in result.stderr
    assert path.read_text() == "precious"


def test_a_socket_that_is_no_longer_ours_is_left_alone(tmp_path: Path) -> None:
    with Daemon({}, folder=tmp_path) as daemon:
        daemon.socket.unlink()
        daemon.socket.write_text("somebody else's")
    assert daemon.socket.read_text() == "somebody else's"


# systemd


class NotifySocket:
    """Receives what sd_notify() sends."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.received: list[str] = []

    def texts(self) -> list[str]:
        self.socket.setblocking(False)
        try:
            while True:
                self.received.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            return self.received

    def wait_for(self, word: str, limit: float = LIMIT) -> None:
        wait_until(lambda: any(word in text for text in self.texts()), f"{word} is notified", limit)


def test_ready_means_that_the_socket_is_served(broker: Broker, tmp_path: Path) -> None:
    """Also while the broker is away; the status line says how it stands."""
    broker.stop_listening()
    notify = NotifySocket(tmp_path)
    with Daemon({"default": alice(broker.url)}, environment={"NOTIFY_SOCKET": notify.path}, wait=False) as daemon:
        notify.wait_for("READY=1")
        with daemon.client() as client:
            client.ok(type="ping")
        notify.wait_for("STATUS=0 of 1 sessions connected")
        broker.listen()
        notify.wait_for("STATUS=1 of 1 sessions connected")
    assert any("STOPPING=1" in text for text in notify.texts())


def test_watchdog(tmp_path: Path) -> None:
    """Told in time while the loop turns, and not while the daemon is stopped."""
    notify = NotifySocket(tmp_path)
    environment = {"NOTIFY_SOCKET": notify.path, "WATCHDOG_USEC": "300000"}
    with Daemon({}, environment=environment) as daemon:
        notify.wait_for("WATCHDOG=1")
        daemon.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)
        notify.texts()
        notify.received.clear()
        with pytest.raises(AssertionError):
            notify.wait_for("WATCHDOG=1", limit=0.7)
        daemon.signal(signal.SIGCONT)
        notify.wait_for("WATCHDOG=1")


def test_socket_activation(broker: Broker, tmp_path: Path) -> None:
    """A client that comes before the daemon starts is answered; the socket stays when the daemon ends."""
    path = tmp_path / "activated.sock"
    with Daemon({"default": alice(broker.url)}, folder=tmp_path,
                wrapper=iter(["systemd-socket-activate", f"--listen={path}", "-E", "ASAN_OPTIONS", "-E",
                              "UBSAN_OPTIONS"]), wait=False) as daemon:
        wait_until(path.exists, "systemd listens")
        with Client(path) as client:
            client.ok(type="ping", limit=LIMIT)
            assert not daemon.socket.exists(), "no socket of its own"
            client.ok(type="publish", topic=TOPIC, data=1)
    assert path.exists()


# The end


def test_clients_are_told(broker: Broker, daemon: Daemon, connect: Connect) -> None:
    holder, other = connect(), connect()
    holder.ok(type="subscribe", topic=TOPIC)
    other.ok(type="ping")
    daemon.signal(signal.SIGTERM)
    assert [line["type"] for line in holder.ended()] == ["shutdown"]
    assert other.ended() == []
    assert daemon.wait() == 0


def test_what_waits_is_sent_first(broker: Broker, daemon: Daemon, connect: Connect) -> None:
    broker.delay(type="publish", ms=200)
    client = connect()
    for n in range(5):
        client.send(type="publish", topic=TOPIC, data=n, id=n)
    broker.wait_for(type="publish", count=1)
    daemon.signal(signal.SIGTERM)
    lines = client.ended()
    assert [line["type"] for line in lines if "id" in line] == ["published"] * 5
    assert daemon.wait() == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_what_cannot_be_sent_is_told(broker: Broker, signals: int) -> None:
    """After drain_timeout, or at once with a second signal."""
    with Daemon({"default": alice(broker.url)}, {"drain_timeout": "1s" if signals == 1 else "60s"}) as daemon:
        daemon.wait_status()
        broker.delay(type="publish", ms=60_000)
        with daemon.client() as client:
            client.send(type="publish", topic=TOPIC, data=1, id=1)
            broker.wait_for(type="publish", count=1)
            daemon.signal(signal.SIGTERM)
            if signals == 2:
                wait_until(lambda: "stopping" in daemon.log(), "the first signal has come")
                daemon.signal(signal.SIGTERM)
            lines = client.ended()
            assert [line["error"] for line in lines if "id" in line] == ["shutting_down"]
            assert daemon.wait() == 0


def test_every_request_is_answered_at_the_end(broker: Broker) -> None:
    """Control requests in flight and behind one another, and an auth that waits, with what stands behind it."""
    broker.mute(type="subscribe")
    with Daemon({"default": alice(broker.url)}) as daemon, daemon.client() as client, daemon.client() as shown:
        daemon.wait_status()
        broker.mute(type="auth", token="tok-bob")
        client.send(type="subscribe", topic=TOPIC, id=1)
        client.send(type="addFilters", topic=TOPIC, filters=["a"], id=2)
        client.send(type="subscribe", topic="demo/ops/tasks", id=3)
        client.send(type="publish", topic=TOPIC, data=1)
        shown.send(type="auth", token="tok-bob", id=4)
        shown.send(type="subscribe", topic=TOPIC, id=5)
        broker.wait_for(type="subscribe", count=2)
        broker.wait_for(type="auth", count=2)
        daemon.signal(signal.SIGTERM)
        lines = {line["id"]: line["error"] for line in client.ended() + shown.ended() if "id" in line}
        assert lines == {n: "shutting_down" for n in range(1, 6)}
        assert daemon.wait() == 0


def test_what_clients_have_not_read_yet_is_waited_for(kraken: Broker, tmp_path: Path) -> None:
    """More than the kernel keeps for them; a client that reads in time gets all, and the end is told to systemd."""
    notify = NotifySocket(tmp_path)
    count, data = 20, "x" * 100_000
    with Daemon({"default": alice(kraken.url, publish_rate=0)}, {"drain_timeout": "60s"},
                environment={"NOTIFY_SOCKET": notify.path}) as daemon, \
            daemon.client(receive_buffer=4096) as reader, daemon.client() as writer:
        daemon.wait_status()
        reader.ok(type="subscribe", topic=TOPIC)
        for n in range(count):
            writer.ok(type="publish", topic=TOPIC, data=data)
        daemon.signal(signal.SIGTERM)
        assert writer.ended() == [], "who has read all is not kept"
        assert daemon.process.poll() is None
        lines = reader.ended()
        assert [line["type"] for line in lines] == ["message"] * count + ["shutdown"]
        assert all(line["data"] == data for line in lines[:-1])
        assert daemon.wait() == 0
    (stopping,) = [text for text in notify.texts() if "STOPPING=1" in text]
    (extended,) = [line for line in stopping.splitlines() if line.startswith("EXTEND_TIMEOUT_USEC=")]
    assert int(extended.split("=")[1]) > 61_000_000, "the links close after the drain"


def test_who_does_not_read_delays_the_end_no_longer_than_configured(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url, publish_rate=0)}, {"drain_timeout": "1s"}) as daemon, \
            daemon.client(receive_buffer=4096) as reader, daemon.client() as writer:
        daemon.wait_status()
        reader.ok(type="subscribe", topic=TOPIC)
        for _ in range(20):
            writer.ok(type="publish", topic=TOPIC, data="x" * 100_000)
        daemon.signal(signal.SIGTERM)
        before = time.monotonic()
        assert daemon.wait() == 0
        assert time.monotonic() - before > 0.9


def test_a_hangup_ends_nothing(broker: Broker, daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.ok(type="subscribe", topic=TOPIC)
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: "SIGHUP is ignored" in daemon.log(), "the signal has come")
    client.ok(type="publish", topic=TOPIC, data=1)
    client.nothing_else()
    assert daemon.log().count("SIGHUP") == 1


def test_a_stop_is_heeded_from_the_moment_of_ready(tmp_path: Path) -> None:
    """Each time: the signal goes out as soon as READY=1 has come."""
    for n in range(10):
        folder = tmp_path / str(n)
        folder.mkdir()
        notify = NotifySocket(folder)
        notify.socket.settimeout(LIMIT)
        with Daemon({}, environment={"NOTIFY_SOCKET": notify.path}, wait=False, folder=folder) as daemon:
            while "READY=1" not in notify.socket.recv(4096).decode():
                pass
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 0
            assert not daemon.socket.exists()


def test_the_process_keeps_its_memory_to_itself() -> None:
    """Not dumpable: no core file, and its own user may not look in. Linux shows that by giving the files of a
    process in /proc to root, whoever runs it."""
    folder = Path(tempfile.mkdtemp(prefix="nolagd-"))
    os.chown(folder, NOBODY, NOBODY)
    with Daemon({}, folder=folder, environment={"ASAN_OPTIONS": "detect_leaks=0"},
                wrapper=iter(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"])) as daemon:
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        assert f"Uid:\t{NOBODY}" in status
        assert Path(f"/proc/{daemon.process.pid}/environ").stat().st_uid == 0
