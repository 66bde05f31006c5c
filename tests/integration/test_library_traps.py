# SPDX-License-Identifier: Apache-2.0
"""Traps of the libraries under the daemon, each sprung on purpose.

Where the other traps are tested: timers of libwebsockets on a foreign loop, blocking look-ups and the
choice of addresses in test_link_life.py; certificates in test_tls.py; the end of the library from every
state in test_reconnect.py (the daemon reports handles that are left); SIGPIPE in test_bad_input.py; the
socket that systemd passes in test_start.py. Threads: the daemon has one loop and calls the library from
nowhere else.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import wsclient
from control import Broker
from harness import NOLAGD, SANITIZERS, Daemon, alice, wait_until

TOPIC = "demo/ops/events"


@pytest.mark.parametrize("bytes_", [1, 2, 3, 125, 126, 65536])
@pytest.mark.parametrize("level", ["frame", "tcp"])
def test_frames_in_pieces(kraken: Broker, bytes_: int, level: str) -> None:
    """Fragments of any size, and frames whose bytes trickle in."""
    kraken.split(bytes=bytes_, level=level)
    text = "ü" * (300 if bytes_ < 125 else 100000)
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="subscribe", topic=TOPIC)
            kraken.inject(frame={"type": "message", "topic": TOPIC, "data": text}, token="tok-alice")
            kraken.inject(frame={"type": "message", "topic": TOPIC, "data": ""}, token="tok-alice")
            client.message(text)
            client.message("")
            client.ok(type="publish", topic=TOPIC, data=1)


def test_many_frames_in_one_read(kraken: Broker) -> None:
    """A burst in few TCP segments is delivered whole, with no further traffic to help."""
    bob = wsclient.Client(kraken.url, "tok-bob")
    kraken.configure(rateLimit=0)
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="subscribe", topic=TOPIC)
            for start in range(0, 5000, 500):
                bob.send(*({"type": "publish", "topic": TOPIC, "data": n} for n in range(start, start + 500)))
            for n in range(5000):
                client.message(n)
    bob.socket.close()


def test_many_publishes_to_a_broker_that_reads_slowly(kraken: Broker) -> None:
    """What the socket does not take at once is kept, whole and in order."""
    kraken.configure(rateLimit=0)
    with Daemon({"default": alice(kraken.url, publish_rate=0)}) as daemon:
        daemon.wait_status()
        kraken.delay(type="publish", ms=500, count=1)
        with daemon.client() as client:
            for n in range(2000):
                client.send(type="publish", topic=TOPIC, data=[n, "x" * 2000], id=n)
            for n in range(2000):
                assert client.receive(id=n)["type"] == "published"
        assert [entry["data"][0] for entry in kraken.accepts()] == list(range(2000))
        assert all(entry["data"][1] == "x" * 2000 for entry in kraken.accepts())


@pytest.mark.parametrize("hex_", [
    "c1", "df", "dfffffffff", "ddffffffff", "dbffffffff", "81" * 200, "91" * 100 + "c0", "c9ffffffff00",
    "85a474797065a76d657373616765", "81a474797065a76d65737361676500", "80", "90", "a0", "c0",
    "82a474797065a76d657373616765a5746f706963dbffffffff",
])
def test_hostile_frames_from_the_broker(kraken: Broker, hex_: str) -> None:
    """Refused before memory is taken for what they claim; the session goes on."""
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="subscribe", topic=TOPIC)
            kraken.inject(hex=hex_, token="tok-alice")
            kraken.inject(hex=hex_, token="tok-alice", opcode="binary")
            kraken.inject(frame={"type": "message", "topic": TOPIC, "data": "after"}, token="tok-alice")
            client.message("after")
            client.nothing_else()
        assert peak_memory(daemon) < 400 << 20
    assert kraken.counters()["connections"] == 1


def peak_memory(daemon: Daemon) -> int:
    """Bytes; generous, as the sanitizers take their share."""
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("frame", [
    {"type": "subscribed", "topic": "demo/ops/other", "loadBalance": False}, {"type": "filtersUpdated", "topic": TOPIC},
    {"type": "unsubscribed", "topic": TOPIC}, {"type": "published", "msgRef": "999999", "topic": TOPIC},
    {"type": "error", "error": "unknown_topic", "topic": "demo/x/y"}, {"type": "error"}, {"type": "auth", "success": False},
    {"type": "auth", "success": True}, {"type": 7}, {"no": "type"}, {"type": "message"}, {"type": "message", "topic": 1},
    {"type": "published", "msgRef": 1}, {"type": "error", "msgRef": "x", "code": "y"}, {"type": "nonsense"},
])
def test_frames_that_answer_nothing(kraken: Broker, frame: Any) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="subscribe", topic=TOPIC)
            kraken.inject(frame=frame, token="tok-alice")
            kraken.inject(frame={"type": "message", "topic": TOPIC, "data": "after"}, token="tok-alice")
            client.message("after")
            client.ok(type="publish", topic=TOPIC, data=1)
            client.ok(type="setFilters", topic=TOPIC, filters=["a"])
            client.nothing_else()
    assert kraken.counters()["connections"] == 1


def test_a_proxy_of_the_environment_is_not_used(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}, environment={"http_proxy": "127.0.0.1:1"}) as daemon:
        daemon.wait_status()


def test_the_missing_event_loop_plugin_is_named(tmp_path: Path) -> None:
    """A build works without it and a run does not: then the package is named. Its file is hidden in a mount
    namespace of its own."""
    plugins = list(Path("/usr/lib").rglob("libwebsockets-evlib_uv.so"))
    assert plugins, "the package libwebsockets-evlib-uv is installed here"
    config = tmp_path / "nolagd.conf"
    config.write_text("[daemon]\n")
    script = "".join(f"mount --bind /dev/null {plugin}; " for plugin in plugins)
    script += f'exec "$0" --config {config} --socket {tmp_path}/nolagd.sock'
    run = subprocess.run(["unshare", "-m", "sh", "-c", script, str(NOLAGD)], capture_output=True, text=True,
                         timeout=30, env={**os.environ, **SANITIZERS, "ASAN_OPTIONS": "detect_leaks=0"})
    assert run.returncode == 1 and "libwebsockets-evlib-uv" in run.stderr, run.stderr


def test_every_attempt_ends_once(kraken: Broker) -> None:
    """Failures at each stage, one after the other: the session always comes back, and no descriptor stays."""
    with Daemon({"default": alice(kraken.url, connect_timeout="500ms", auth_timeout="300ms",
                                  heartbeat_interval="200ms", heartbeat_timeout="300ms")},
                {"connect_rate": 0}) as daemon:
        daemon.wait_status()
        before = descriptors(daemon)
        for fault in range(4):
            for _ in range(3):
                spring(kraken, fault)
                wait_until(lambda: daemon.status()["status"] != "connected", "the link is lost")
                kraken.clear()
                daemon.wait_status()
        wait_until(lambda: descriptors(daemon) <= before, "no descriptor is left over")


def spring(broker: Broker, fault: int) -> None:
    if fault == 0:
        broker.http_status(status=503, count=2)
        broker.drop(abort=True)
    elif fault == 1:
        broker.mute(type="auth")
        broker.drop(code=1011)
    elif fault == 2:
        broker.half_open(new=True)
    else:
        broker.stop_listening()
        broker.drop(code=1001)


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
