# SPDX-License-Identifier: Apache-2.0
"""Publishing: checks, answers, pace, local delivery, the outbox while the broker is away."""

import base64
import json
import os
import time
from typing import Any, Callable

import msgpack
import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, alice, wait_until

TOPIC = "demo/ops/events"
TASKS = "demo/ops/tasks"

Connect = Callable[..., Client]


def data_of(broker: Broker) -> list[Any]:
    return [entry["data"] for entry in broker.accepts()]


def test_published_is_said_when_the_broker_has_it(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.ok(type="publish", topic=TOPIC, data={"n": 1}, qos=2, filter="f")
    (entry,) = broker.accepts()
    assert entry["topic"] == TOPIC and entry["data"] == {"n": 1} and entry["filter"] == "f"
    assert entry["echo"] is False and entry["msgRef"] not in (None, "")
    assert broker.received("publish")[0]["frame"]["qos"] == 2


def test_without_id_success_is_silent_and_an_error_is_not(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.send(type="publish", topic=TOPIC, data=1)
    client.send(type="publish", topic="demo/nowhere/events", data=2)
    error = client.receive(type="error")
    assert error["error"] == "unknown_topic" and error["code"] == 42940 and error["request"] == "publish"
    assert "id" not in error and "msgRef" not in error and error["topic"] == "demo/nowhere/events"
    client.nothing_else()
    assert data_of(broker) == [1]


def test_msg_ref_is_the_clients_own(broker: Broker, connect: Connect) -> None:
    one, two = connect(), connect()
    one.send(type="publish", topic=TOPIC, data=1, msgRef="same")
    two.send(type="publish", topic=TOPIC, data=2, msgRef="same")
    for client in (one, two):
        answer = client.receive(type="published")
        assert answer["msgRef"] == "same" and "id" not in answer
        client.nothing_else()
    refs = [entry["msgRef"] for entry in broker.accepts()]
    assert len(set(refs)) == 2 and "same" not in refs


def test_every_error_of_a_publish_has_its_msg_ref(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    for fields in ({"topic": "bad"}, {"filter": ""}, {"qos": 9}, {"data": {"$bytes": "?"}}, {"id": []},
                   {"topic": "demo/nowhere/events"}):
        client.send(**{"type": "publish", "topic": TOPIC, "data": 1, "msgRef": "mine", **fields})
        assert client.receive(type="error")["msgRef"] == "mine"
    client.send(type="publish", topic=TOPIC, msgRef="mine")
    assert client.receive(error="missing_field")["msgRef"] == "mine"
    with daemon.client() as other:
        other.request(type="auth", session="nowhere")
        other.send(type="publish", topic=TOPIC, data=1, msgRef="mine")
        assert other.receive(error="not_authenticated")["msgRef"] == "mine"


SHAPES: list[Any] = [
    {"type": "Buffer", "data": [n % 256 for n in range(560_000)]}, [[n % 100, n % 200] for n in range(225_000)],
    [{"x": n % 100 + 0.5, "y": n % 50 + 0.5} for n in range(38_000)], [{"id": n, "ok": True} for n in range(70_000)],
    {f"k{n}": n for n in range(80_000)}]


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_data_as_large_as_the_broker_takes_of_every_shape(broker: Broker, connect: Connect, shape: int) -> None:
    """The limits of a line are no limit for what people publish: numbers, points, records, bytes as a list."""
    client, data = connect(), SHAPES[shape]
    line = json.dumps({"type": "publish", "topic": TOPIC, "data": data, "id": 1}, separators=(",", ":")).encode()
    packed = len(msgpack.packb(data))
    assert len(line) > 1_900_000 or 700_000 < packed < 921_600, "as large as it can be"
    client.write(line + b"\n")
    assert client.receive(id=1)["type"] == "published"
    assert broker.accepts()[0]["data"] == data


def test_joined_and_listed_filters_are_the_same(broker: Broker, connect: Connect) -> None:
    """What comes as the filter of a message can be published with, and subscribed to, as it is."""
    publisher, listed, joined = connect(), connect(), connect()
    listed.ok(type="subscribe", topic=TOPIC, filters=[["Lang:EN", "b"]])
    answer = joined.ok(type="subscribe", topic=TOPIC, filters=["lang:en|b"])
    assert answer["filters"] == [["lang:en", "b"]]
    for fields in ({"filters": ["b", "lang:en"]}, {"filter": "b|lang:en"}, {"filter": "lang:en|B"}):
        publisher.ok(type="publish", topic=TOPIC, data=1, **fields)
        for client in (listed, joined):
            client.message(1, filter="b|lang:en")
    assert broker.accepts()[2]["filter"] == "b|lang:en"


def test_others_on_this_session_get_it_and_the_publisher_does_not(
        broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    publisher, all_, filtered = connect(), connect(), connect()
    assert bob.subscribe(TASKS)["type"] == "subscribed"
    publisher.ok(type="subscribe", topic=TOPIC, filters=["a"])
    all_.ok(type="subscribe", topic=TASKS)
    publisher.ok(type="subscribe", topic=TASKS)
    filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])
    publisher.ok(type="publish", topic=TASKS, data={"b": [1]})
    message = all_.message({"b": [1]}, topic=TASKS, **{"from": "alice"})
    assert "filter" not in message
    publisher.ok(type="publish", topic=TOPIC, data=1)
    publisher.ok(type="publish", topic=TOPIC, data=2, filter="a")
    publisher.ok(type="publish", topic=TOPIC, data=3, filters=["b", "A"])
    filtered.message(2, filter="a", **{"from": "alice"})
    for client in (publisher, all_, filtered):
        client.nothing_else()
    assert bob.recv()["data"] == {"b": [1]}


def test_own_messages_echo(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url, own_messages="echo")}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="subscribe", topic=TOPIC)
            client.send(type="publish", topic=TOPIC, data=1)
            client.message(1, **{"from": "alice"})
            client.nothing_else()


def test_a_retained_message_is_told_once(broker: Broker, connect: Connect) -> None:
    """The broker must be told echo, or it would never give it to us again; what comes back is swallowed."""
    publisher, subscriber = connect(), connect()
    subscriber.ok(type="subscribe", topic=TOPIC)
    data = {"z": 1, "a": [1.5, "ü", None], "m": {"b": 1, "a": 2}}
    publisher.ok(type="publish", topic=TOPIC, data=data, retain=True)
    subscriber.message(data)
    publisher.ok(type="publish", topic=TOPIC, data="after")
    subscriber.message("after")
    subscriber.nothing_else()
    assert broker.accepts()[0]["echo"] is True and broker.accepts()[0]["retain"] is True


def test_a_retained_message_reaches_our_later_subscribers(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as publisher, daemon.client() as later:
            publisher.ok(type="publish", topic=TOPIC, data="kept", retain=True)
            later.ok(type="subscribe", topic=TOPIC)
            later.message("kept")
            later.nothing_else()


@pytest.mark.parametrize("data", [
    None, True, 0, -1, 2**53 + 1, 2**63 - 1, -2**63, 2**64 - 1, 1.5, -0.0, 1e300, 5e-324, 0.1, "", "é😀\0", "a" * 70000,
    [], {}, [[[]]], {"a": {"b": [None, 1]}}, list(range(1000)), {str(n): n for n in range(300)},
])
def test_payloads_are_the_same_on_the_other_side(connect: Connect, data: Any) -> None:
    publisher, subscriber = connect(), connect()
    subscriber.ok(type="subscribe", topic=TOPIC)
    publisher.ok(type="publish", topic=TOPIC, data=data)
    got = subscriber.message(data)["data"]
    assert type(got) is type(data) and repr(got) == repr(data)


@pytest.mark.parametrize("data,raw", [
    ({"$bytes": base64.b64encode(b"plain").decode()}, b"plain"),
    ({"$float": "nan"}, "nan"), ({"$float": "inf"}, "positive_infinity"),
    ({"$esc": {"$bytes": "x"}}, {"$bytes": "x"}), ({"$map": [["a", 1]]}, {"a": 1}),
])
def test_tags_reach_the_broker_as_what_they_stand_for(kraken: Broker, data: Any, raw: Any) -> None:
    bob = wsclient.Client(kraken.url, "tok-bob")
    bob.subscribe(TOPIC)
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="publish", topic=TOPIC, data=data)
    expected = raw.decode() if isinstance(raw, bytes) else raw
    assert bob.recv()["data"] == expected
    bob.socket.close()


def test_too_large_is_found_here(broker: Broker, connect: Connect) -> None:
    client = connect()
    assert client.request(type="publish", topic=TOPIC, data="x" * 900000)["type"] == "published"
    error = client.refused("message_too_large", type="publish", topic=TOPIC, data="x" * 921700)
    assert error["maxSizeBytes"] == 921600 and error["code"] == 42930
    assert len(broker.received("publish")) == 1
    broker.configure(maxSizeBytes=1000)
    assert client.refused("message_too_large", type="publish", topic=TOPIC, data="x" * 2000)["maxSizeBytes"] == 1000
    client.refused("message_too_large", type="publish", topic=TOPIC, data="x" * 1500)
    assert len(broker.received("publish")) == 2, "the second one was not sent: the limit was learned"
    client.ok(type="publish", topic=TOPIC, data="x" * 900)


def test_the_pace_stays_under_the_limit(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as flood:
            for n in range(200):
                flood.send(type="publish", topic=TOPIC, data=n, id=n)
            for n in range(200):
                assert flood.receive(id=n)["type"] == "published"
    entries = kraken.received("publish")
    assert [entry["frame"]["data"] for entry in entries] == list(range(200)), "no refusal, so the order holds"
    times = [entry["mono"] for entry in entries]
    assert all(times[i + 50] - times[i] >= 0.99 for i in range(150))


def test_a_polite_client_is_served_beside_a_flood(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as flood, daemon.client() as polite:
            flood.write(b"".join(b'{"type":"publish","topic":"demo/ops/events","data":%d}\n' % n for n in range(500)))
            for n in range(3):
                before = time.monotonic()
                polite.ok(type="publish", topic=TOPIC, data=f"polite {n}")
                assert time.monotonic() - before < 1


def test_a_rate_limit_is_nobodys_error(broker: Broker, connect: Connect) -> None:
    client = connect()
    broker.rate_limit_next(count=3)
    for n in range(5):
        client.send(type="publish", topic=TOPIC, data=n, id=n)
    for n in range(5):
        assert client.receive(id=n)["type"] == "published"
    assert sorted(data_of(broker)) == list(range(5))


def test_while_the_broker_is_away(broker: Broker, connect: Connect, daemon: Daemon) -> None:
    client = connect()
    broker.stop_listening()
    broker.drop(abort=True)
    daemon.wait_status("reconnecting")
    client.send(type="publish", topic=TOPIC, data="kept", id=1)
    client.send(type="subscribe", topic=TOPIC, id=2)
    assert client.receive(id=2)["pending"] is True
    broker.listen()
    assert client.receive(id=1)["type"] == "published"
    types = [r["type"] for r in broker.received("publish", "subscribe")]
    assert types == ["subscribe", "publish"], "subscriptions come back before publishes go out"


def test_the_outbox_is_bounded(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url, outbox_max_messages=3, ttl="1s")}) as daemon:
        daemon.wait_status()
        broker.stop_listening()
        broker.drop(abort=True)
        daemon.wait_status("reconnecting")
        with daemon.client() as client:
            for n in range(3):
                client.send(type="publish", topic=TOPIC, data=n, id=n)
            assert client.refused("outbox_full", type="publish", topic=TOPIC, data=3)["retryAfterMs"] >= 100
            for n in range(3):
                assert client.receive(id=n)["error"] == "timeout"
            client.send(type="publish", topic=TOPIC, data="later", id="later")
            broker.listen()
            assert client.receive(id="later")["type"] == "published"
        assert data_of(broker) == ["later"]


def test_an_answer_lost_with_the_link(broker: Broker, connect: Connect) -> None:
    client = connect()
    broker.drop_at(type="publish", when="before", abort=True)
    answer = client.ok(type="publish", topic=TOPIC, data=1)
    assert answer["redelivered"] is True
    assert data_of(broker) == [1, 1]


def test_poison_does_not_take_the_session_down(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as bad, daemon.client() as good:
            bad.send(type="publish", topic=TOPIC, data={"$bytes": "/w=="}, id=1)
            good.send(type="publish", topic=TOPIC, data="fine", id=2)
            assert bad.receive(id=1)["error"] == "broker_rejected"
            assert good.receive(id=2)["type"] == "published"
        assert "fine" in data_of(kraken)
        assert f"uid {os.getuid()} to {TOPIC}" in daemon.log()


def test_one_kind_of_poison_costs_two_links_and_no_more(kraken: Broker) -> None:
    """However often it is tried, by whomever, and with the default reconnect times."""
    session = alice(kraken.url, reconnect_interval="1s", reconnect_max_interval="60s")
    with Daemon({"default": session}) as daemon:
        daemon.wait_status()
        with daemon.client() as bad, daemon.client() as other:
            other.ok(type="subscribe", topic=TOPIC)
            bad.send(type="publish", topic=TASKS, data={"$bytes": "/w=="}, id=1)
            assert bad.receive(id=1)["error"] == "broker_rejected"
            for _ in range(20):
                assert bad.refused("binary_refused", type="publish", topic=TASKS, data=[{"$str": "/w=="}])["hint"]
            assert other.refused("binary_refused", type="publish", topic=TASKS, data={"$bytes": "/w=="})
            assert bad.ok(type="publish", topic=TOPIC, data="plain")["type"] == "published"
            assert other.receive(type="message")["data"] == "plain"
        assert len(kraken.received("auth")) == 3


def test_ignored_publishes_do_not_block_the_others(kraken: Broker) -> None:
    """As many as may be in flight, while other traffic keeps heartbeats away."""
    with Daemon({"default": alice(kraken.url, publish_rate=0)}) as daemon:
        daemon.wait_status()
        with daemon.client() as bad, daemon.client() as good:
            for n in range(256):
                bad.send(type="publish", topic=TASKS, data={"$ext": [1, ""]}, id=n)
            for _ in range(5):
                good.ok(type="subscribe", topic=TOPIC)
                good.ok(type="publish", topic=TASKS, data=1)
                good.ok(type="unsubscribe", topic=TOPIC)
            for n in range(256):
                assert bad.receive(id=n)["error"] == "broker_ignored"


def test_what_the_broker_ignores_is_told(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.send(type="publish", topic=TOPIC, data={"$ext": [1, ""]}, id="lost")
            client.ok(type="publish", topic=TOPIC, data="later")
            assert client.receive(id="lost")["error"] == "broker_ignored"


def test_a_v1_broker(kraken: Broker) -> None:
    kraken.configure(protocolVersion=1)
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client, daemon.client() as other:
            other.ok(type="subscribe", topic=TOPIC)
            client.ok(type="publish", topic=TOPIC, data=1)
            other.message(1)
    wait_until(lambda: data_of(kraken) == [1], "the broker has it")
