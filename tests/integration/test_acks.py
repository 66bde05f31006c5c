# SPDX-License-Identifier: Apache-2.0
"""What is acknowledged to the broker, and when."""

from typing import Callable

import wsclient
from control import Broker
from harness import Client, Daemon, alice, wait_until

TOPIC = "demo/ops/events"

Connect = Callable[..., Client]


def acked(broker: Broker) -> list[str]:
    return [entry["msgId"] for entry in broker.acks()]


def test_what_all_receivers_have_is_acknowledged_in_batches(broker: Broker, connect: Connect,
                                                            bob: wsclient.Client) -> None:
    broker.configure(rateLimit=0)
    clients = [connect() for _ in range(3)]
    clients[0].ok(type="hello", bigint="string")
    for client in clients:
        client.ok(type="subscribe", topic=TOPIC)
    for n in range(300):
        bob.publish(TOPIC, n)
    ids = []
    for client in clients:
        ids = [client.message(n)["msgId"] for n in range(300)]
    broker.wait_for(what="acks", count=300)
    assert acked(broker) == ids
    assert {r["type"] for r in broker.received("ack", "batchAck")} == {"batchAck"}
    assert len(broker.received("batchAck")) < 150


def test_a_message_for_nobody_is_not_acknowledged(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    deaf, client = connect(), connect()
    deaf.ok(type="events", only=["error"])
    deaf.ok(type="subscribe", topic=TOPIC)
    bob.publish(TOPIC, "told to nobody")
    bob.ask(wsclient.HEARTBEAT)
    broker.settle()
    client.ok(type="subscribe", topic=TOPIC)
    bob.publish(TOPIC, "told to one")
    ids = [client.message("told to one")["msgId"]]
    broker.wait_for(what="acks", count=1)
    assert acked(broker) == ids


def test_a_tap_delays_nothing(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    """It does not read, while a client that does has all."""
    tap, client = connect(receive_buffer=4096), connect()
    tap.ok(type="subscribe", topic="*")
    client.ok(type="subscribe", topic=TOPIC)
    for n in range(10):
        bob.publish(TOPIC, "x" * 100_000)
        client.message("x" * 100_000)
    broker.wait_for(what="acks", count=10)


def test_a_receiver_that_does_not_read_delays_it(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    slow, client = connect(receive_buffer=4096), connect()
    slow.ok(type="subscribe", topic=TOPIC)
    client.ok(type="subscribe", topic=TOPIC)
    ids = []
    for n in range(10):
        bob.publish(TOPIC, str(n) * 100_000)
        ids.append(client.message(str(n) * 100_000)["msgId"])
    broker.wait_for(what="received", type="publish", count=10)
    client.nothing_else()
    assert ids[-1] not in acked(broker)
    slow.close()
    wait_until(lambda: sorted(acked(broker)) == sorted(ids), "it is gone: nothing waits for it")


def test_no_msg_ids_no_acks(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    broker.configure(recording=False)
    client = connect()
    client.ok(type="subscribe", topic=TOPIC)
    for n in range(5):
        bob.publish(TOPIC, n)
        client.message(n)
    client.ok(type="unsubscribe", topic=TOPIC)
    assert broker.received("ack", "batchAck") == []


def test_acks_of_a_lost_link_go_out_on_the_next(broker: Broker, daemon: Daemon, connect: Connect,
                                                bob: wsclient.Client) -> None:
    slow = connect(receive_buffer=4096)
    slow.ok(type="subscribe", topic=TOPIC)
    for n in range(10):
        bob.publish(TOPIC, str(n) * 100_000)
    bob.ask(wsclient.HEARTBEAT)
    broker.settle()
    broker.drop(token="tok-alice")
    daemon.wait_status()
    slow.receive(type="reconnect")
    ids = [line["msgId"] for line in slow.waiting if line["type"] == "message"]
    assert len(ids) == 10
    wait_until(lambda: set(acked(broker)) == set(ids), "all are acknowledged")


def test_the_last_acks_go_out_at_a_stop(broker: Broker, bob: wsclient.Client) -> None:
    with Daemon({"default": alice(broker.url)}) as daemon, daemon.client() as client:
        daemon.wait_status()
        client.ok(type="subscribe", topic=TOPIC)
        bob.publish(TOPIC, 1)
        got = client.message(1)["msgId"]
    wait_until(lambda: acked(broker) == [got], "the ack")
