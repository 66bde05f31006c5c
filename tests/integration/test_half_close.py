# SPDX-License-Identifier: Apache-2.0
"""After a client closed its sending side: outcomes are still told, then it is closed, or keeps receiving."""

import subprocess
from typing import Callable

import wsclient
from control import Broker
from harness import Client, Daemon, alice, wait_until

TOPIC = "demo/ops/events"

Connect = Callable[..., Client]


def test_all_outcomes_then_the_end(broker: Broker, connect: Connect) -> None:
    client = connect()
    broker.delay(type="publish", ms=100)
    client.write(b'{"type":"publish","topic":"demo/ops/events","data":1,"id":1}\n'
                 b'{"type":"publish","topic":"demo/ops/events","data":2}\n'
                 b'{"type":"publish","topic":"demo/nowhere/events","data":3}\n'
                 b'{"type":"ping","id":2}')
    client.half_close()
    lines = client.ended()
    assert lines[0] == {"type": "pong", "id": 2}, "the last line needs no newline"
    assert lines[1]["type"] == "published" and lines[1]["id"] == 1
    assert lines[2]["error"] == "unknown_topic" and len(lines) == 3
    assert [entry["data"] for entry in broker.accepts()] == [1, 2]


def test_nothing_asked(connect: Connect) -> None:
    client = connect()
    client.half_close()
    assert client.ended() == []


def test_a_subscriber_keeps_receiving(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    client = connect()
    client.send(type="subscribe", topic=TOPIC, id=1)
    client.half_close()
    assert client.receive(id=1)["type"] == "subscribed"
    for n in range(3):
        bob.publish(TOPIC, n)
        client.message(n)


def test_a_quiet_half_closed_subscriber_that_dies_is_noticed(
        daemon: Daemon, broker: Broker, connect: Connect) -> None:
    client = connect()
    client.send(type="subscribe", topic=TOPIC, id=1)
    client.half_close()
    client.receive(id=1)
    client.close()
    wait_until(lambda: daemon.status()["subscriptions"] == 0, "its subscription is gone")


def test_behind_an_auth(broker: Broker, daemon: Daemon) -> None:
    broker.delay(type="auth", token="tok-bob", ms=100)
    with daemon.client() as client:
        client.write(b'{"type":"auth","token":"tok-bob","id":1}\n{"type":"ping","id":2}\n'
                     b'{"type":"publish","topic":"demo/ops/events","data":1,"id":3}')
        client.half_close()
        assert [line["id"] for line in client.ended()] == [1, 2, 3]


def socat(daemon: Daemon, *options: str, text: str) -> str:
    return subprocess.run(["socat", *options, "-", f"UNIX-CONNECT:{daemon.socket}"], input=text, text=True,
                          capture_output=True, timeout=20, check=True).stdout


def test_the_documented_pipe(broker: Broker, daemon: Daemon) -> None:
    broker.delay(type="publish", ms=1000)
    text = '{"type":"publish","topic":"demo/ops/events","data":1,"id":1}\n'
    out = socat(daemon, "-t5", text=text)
    jq = subprocess.run(["jq", "-r", ".type"], input=out, text=True, capture_output=True, check=True)
    assert jq.stdout == "published\n"


def test_a_client_that_is_gone_fully_is_gone_at_once(kraken: Broker) -> None:
    """Its filters must not stand in the way of the next client's wish."""
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        for _ in range(10):
            with daemon.client() as filtered:
                filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])
            with daemon.client() as everything:
                everything.ok(type="subscribe", topic=TOPIC)


def test_publishes_of_a_client_that_is_gone_are_sent(broker: Broker, daemon: Daemon) -> None:
    with daemon.client() as client:
        client.write(b"".join(b'{"type":"publish","topic":"demo/ops/events","data":%d}\n' % n for n in range(5)))
    broker.wait_for(what="accepts", count=5)
    assert [entry["data"] for entry in broker.accepts()] == list(range(5))
