# SPDX-License-Identifier: Apache-2.0
"""After a client closed its sending side: outcomes are still told, then it is closed, or keeps receiving."""

import socket
import subprocess
from typing import Callable

import pytest
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


def test_the_next_wish_is_not_judged_against_one_that_is_gone(kraken: Broker) -> None:
    """A half closed client holds its subscription until it goes away fully, and not a moment longer."""
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        for _ in range(10):
            with daemon.client() as everything:
                everything.send(type="subscribe", topic=TOPIC, id=1)
                everything.half_close()
                assert everything.receive(id=1)["type"] == "subscribed"
            with daemon.client() as filtered:
                filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])


def test_the_same_with_socat(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        for filters in ("", ',"filters":["a"]') * 2:
            out = socat(daemon, "-t0.5", text='{"type":"subscribe","topic":"demo/ops/events"%s}\n' % filters)
            assert '"subscribed"' in out, out


def test_many_half_closed_clients_go_at_once(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        clients = [daemon.client() for _ in range(200)]
        for client in clients:
            client.send(type="subscribe", topic=TOPIC, id=1)
            client.half_close()
        for client in clients:
            assert client.receive(id=1)["type"] == "subscribed"
        for client in clients:
            client.close()
        with daemon.client() as filtered:
            filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])


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


def test_who_closed_its_receiving_side_may_go_on_sending(kraken: Broker) -> None:
    """Its answers are thrown away, what it sends is not."""
    kraken.configure(rateLimit=0)
    with Daemon({"default": alice(kraken.url, publish_rate=0)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.socket.shutdown(socket.SHUT_RD)
            for n in range(100):
                client.send(type="publish", topic=TOPIC, data=n, id=n)
                kraken.wait_for(what="accepts", count=n + 1)
        assert [entry["data"] for entry in kraken.accepts()] == list(range(100))
        wait_until(lambda: daemon.log().count("closed: gone") == daemon.log().count(": pid "), "it is gone fully")


def test_who_closed_its_receiving_side_asks_for_nothing(kraken: Broker) -> None:
    """What only asks is left out: its answer, however large, would be made for nobody."""
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.socket.shutdown(socket.SHUT_RD)
            client.send(type="ping")
            client.send(type="publish", topic=TOPIC, data=1)
            kraken.wait_for(what="accepts", count=1)  # the answer to the ping has failed by then
            client.send(type="getPresence", roomId="ops")
            client.send(type="getLobbyPresence", lobbyId="all")
            client.send(type="publish", topic=TOPIC, data=2)
            kraken.wait_for(what="accepts", count=2)
            daemon.client().ok(type="getPresence", roomId="general")
        assert [r["frame"]["roomId"] for r in kraken.received("getPresence", "getLobbyPresence")] == ["general"]


@pytest.mark.parametrize("between", [b'{"type":"ping"}\n', b"x\n", b""])
def test_all_that_a_client_wrote_before_it_closed_is_taken(kraken: Broker, between: bytes) -> None:
    """Although it never reads, and nolagd cannot write to it in the middle of reading."""
    count = 1000
    kraken.configure(rateLimit=0)
    with Daemon({"default": alice(kraken.url, publish_rate=0)}) as daemon:
        daemon.wait_status()
        for cycle in range(1, 6):
            with daemon.client() as client:
                for n in range(count):
                    client.write(between + b'{"type":"publish","topic":"demo/ops/events","data":%d,"id":%d}\n' % (n, n))
            kraken.wait_for(what="accepts", count=cycle * count)
        assert [entry["data"] for entry in kraken.accepts()] == list(range(count)) * 5


def test_more_answers_than_may_wait(kraken: Broker) -> None:
    """Reading pauses until they are read, and the end of what the client sent is still found."""
    count = 5000
    with Daemon({"default": alice(kraken.url)}, {"client_output_limit": 64 * 1024}) as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as client:
            client.write(b"x\n" * count + b'{"type":"publish","topic":"demo/ops/events","data":1}')
            client.half_close()
            assert len(client.ended()) == count
        kraken.wait_for(what="accepts", count=1)


def test_one_that_goes_away_while_its_answers_wait(kraken: Broker) -> None:
    """What was not read of it for that reason is read then."""
    count = 2000
    kraken.configure(rateLimit=0)
    with Daemon({"default": alice(kraken.url, publish_rate=0)}, {"client_output_limit": 64 * 1024}) as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as client:
            client.write(b"".join(b'x\nx\n{"type":"publish","topic":"demo/ops/events","data":%d}\n' % n
                                  for n in range(count)))
            kraken.wait_for(what="accepts", count=1)
            assert len(kraken.accepts()) < count, "it is held back"
        kraken.wait_for(what="accepts", count=count)
        assert [entry["data"] for entry in kraken.accepts()] == list(range(count))
