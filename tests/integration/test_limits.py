# SPDX-License-Identifier: Apache-2.0
"""Limits of the daemon and of each user; the tap's right; many clients."""

import json
import os
import re
import resource
import select
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
from control import Broker
from harness import Client, Daemon, Json, alice, wait_until

TOPIC = "demo/ops/events"
NOBODY = 65534

# Another user's client: connects, sends its arguments as lines, prints so many lines.
AS_NOBODY = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall("".join(line + chr(10) for line in sys.argv[3:]).encode())
f = s.makefile("r", encoding="utf-8")
for _ in range(int(sys.argv[2])):
    print(f.readline(), end="", flush=True)
sys.stdin.readline()
"""


class Nobody:
    """A client of another uid, in a process of its own; it stays connected until it is left."""

    def __init__(self, daemon: Daemon, count: int, *lines: Json) -> None:
        os.chmod(daemon.folder, 0o755)
        os.chmod(daemon.socket, 0o666)
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-c", AS_NOBODY, str(daemon.socket), str(count), *map(json.dumps, lines)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.answers = [json.loads(self.process.stdout.readline() or "null") for _ in range(count)]

    def __enter__(self) -> "Nobody":
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.communicate("leave\n", timeout=20)


def test_the_tap_is_not_for_everyone(broker: Broker, daemon: Daemon) -> None:
    with Nobody(daemon, 2, {"type": "subscribe", "topic": "*", "id": 1},
                {"type": "publish", "topic": TOPIC, "data": 1, "id": 2}) as nobody:
        refusal, published = sorted(nobody.answers, key=lambda line: line["id"])
        assert refusal["error"] == "not_permitted" and "tap" in refusal["hint"]
        assert published["type"] == "published"


def test_too_many_clients(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}, {"max_clients": 5}) as daemon:
        wait_until(lambda: daemon.status()["status"] == "connected", "connected")
        clients = [daemon.client() for _ in range(5)]
        for client in clients:
            client.ok(type="ping")
        with daemon.client() as one_more:
            (line,) = one_more.ended()
            assert line["error"] == "too_many_clients" and line["code"] == 43032
        clients.pop().close()
        wait_until(lambda: accepted(daemon), "there is room again")
        for client in clients:
            client.ok(type="publish", topic=TOPIC, data=1)
            client.close()


def accepted(daemon: Daemon) -> bool:
    with daemon.client() as client:
        client.send(type="ping")
        line = client.read_line()
        return line is not None and line["type"] == "pong"


def test_refused_clients_do_not_fill_the_log(broker: Broker) -> None:
    """Some are logged one by one, the others are counted."""
    count = 300
    with Daemon({"default": alice(broker.url)}, {"max_clients": 1}) as daemon:
        with wait_until(lambda: admitted(daemon), "the last one is gone"):
            before = refusals(daemon)
            for _ in range(count):
                with daemon.client() as refused:
                    assert refused.ended()[0]["error"] == "too_many_clients"
            wait_until(lambda: refusals(daemon) - before == count, "the suppressed ones are counted")
            assert daemon.log().count("too_many_clients") < 100


def admitted(daemon: Daemon) -> Optional[Client]:
    client = daemon.client()
    client.send(type="ping")
    line = client.read_line()
    return client if line == {"type": "pong"} else None


def refusals(daemon: Daemon) -> int:
    told = re.findall(r"(\d+) more clients were refused", daemon.log())
    return daemon.log().count("too_many_clients") + sum(map(int, told))


def test_lines_without_an_end_are_bounded_per_user(broker: Broker) -> None:
    """Beyond it a line is given up with an error; its client goes on, and short lines always work."""
    size = 200 << 10
    with Daemon({"default": alice(broker.url)}, {"line_limit": 256 << 10}) as daemon:
        daemon.wait_status()
        clients = [daemon.client() for _ in range(60)]
        for client in clients:
            client.write(b'{"type":"ping","id":1,"x":"' + b"x" * size)
        with daemon.client() as short:
            short.ok(type="ping")
        must = len(clients) - 32 * 256 // 200  # the others' lines fill the bound
        wait_until(lambda: len(readable(clients)) >= must, "as many are refused as must be")
        refused = readable(clients)
        assert len(refused) == must, "and not more"
        for client in clients:
            client.write(b'"}\n')
            client.send(type="ping", id=2)
            line = client.read_line()
            assert line is not None
            if client in refused:
                assert line["type"] == "error" and line["error"] == "limit_reached" and "skipped" in line["hint"]
            else:
                assert line == {"type": "pong", "id": 1}
            assert client.receive(id=2) == {"type": "pong", "id": 2}
        for client in clients:
            client.write(b'{"type":"ping","id":3,"x":"' + b"x" * size + b'"}\n')
            assert client.receive(id=3)["type"] == "pong", "there is room again"
            client.close()


def readable(clients: list[Client]) -> list[Client]:
    ready = select.select([client.socket for client in clients], [], [], 0)[0]
    return [client for client in clients if client.socket in ready]


def test_one_user_does_not_use_up_the_others_share(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}, {"max_clients_per_uid": 2}) as daemon:
        daemon.wait_status()
        with daemon.client() as one, daemon.client() as two, daemon.client() as three:
            one.ok(type="ping")
            two.ok(type="ping")
            assert three.ended()[0]["error"] == "too_many_clients"
            with Nobody(daemon, 1, {"type": "ping", "id": 1}) as nobody:
                assert nobody.answers == [{"type": "pong", "id": 1}]


def test_few_file_descriptors(broker: Broker) -> None:
    """More clients than descriptors: each gets a line or an end, the daemon lives, the session too."""
    limit = ["prlimit", "--nofile=96:96"]
    with Daemon({"default": alice(broker.url)}, wrapper=iter(limit)) as daemon:
        daemon.wait_status()
        clients = [daemon.client() for _ in range(200)]
        outcomes = [first_line(client) for client in clients]
        assert outcomes.count("pong") >= 20 and outcomes.count("too_many_clients") >= 20
        for client in clients:
            client.close()
        wait_until(lambda: accepted(daemon), "there is room again")
        assert daemon.wait_status()
    assert broker.counters()["connections"] == 1


def first_line(client: Client) -> Optional[str]:
    """What a client that pings is told first; the daemon may have closed the connection before it could ask."""
    try:
        client.send(type="ping")
    except (BrokenPipeError, ConnectionResetError):
        pass
    line = client.read_line()
    return None if line is None else line.get("error", line["type"])


def test_ten_thousand_clients_one_after_the_other(broker: Broker, daemon: Daemon) -> None:
    """Nothing is left of a client that went away: no descriptor, no memory."""
    def cycle(count: int) -> None:
        for n in range(count):
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(str(daemon.socket))
                s.sendall(b'{"type":"subscribe","topic":"demo/general/t%d","id":1}\n' % (n % 50))
                s.recv(4096)

    cycle(1000)
    files, memory = descriptors(daemon), resident(daemon)
    cycle(3000)
    wait_until(lambda: descriptors(daemon) <= files, "all descriptors are closed")
    assert resident(daemon) - memory < slack(daemon)
    wait_until(lambda: daemon.status()["subscriptions"] == 0, "all subscriptions are gone")


def slack(daemon: Daemon) -> int:
    """Growth that is not a leak: a sanitizer keeps freed memory for a while."""
    sanitized = "libasan" in Path(f"/proc/{daemon.process.pid}/maps").read_text()
    return (256 if sanitized else 2) << 20


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def resident(daemon: Daemon) -> int:
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_a_thousand_clients_at_once(broker: Broker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with Daemon({"default": alice(broker.url)}, {"max_clients": 1100}) as daemon:
        daemon.wait_status()
        clients = [daemon.client() for _ in range(1000)]
        began = time.monotonic()
        for client in clients:
            client.send(type="subscribe", topic=TOPIC, id=1)
        for client in clients:
            assert client.receive(id=1)["type"] == "subscribed"
        took = time.monotonic() - began
        with daemon.client() as publisher:
            publisher.ok(type="publish", topic=TOPIC, data="to all")
        for client in clients:
            client.message("to all")
            client.close()
    # The first one, and one for all that come late within 50 ms.
    assert len(broker.received("subscribe")) <= 2 + took / 0.05
