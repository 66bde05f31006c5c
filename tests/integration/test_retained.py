# SPDX-License-Identifier: Apache-2.0
"""Retained messages: to everybody once, whoever published them, whatever becomes of the link."""

import time
from typing import Any, Callable

import pytest
import wsclient
from control import Broker
from harness import Client, wait_until

TOPIC = "demo/ops/events"

Connect = Callable[..., Client]

NO_COPIES = pytest.mark.parametrize("broker", ["cloud"], indirect=True)
"""The flavor that does not send a message to the actor that published it."""


def retained(bob: wsclient.Client, data: Any, **fields: Any) -> None:
    bob.ask({"type": "publish", "topic": TOPIC, "data": data, "retain": True, "msgRef": "r", **fields})


def drop(broker: Broker, client: Client) -> None:
    """The link is lost and made anew; the broker has sent all it retains."""
    broker.command("drop", abort=True, token="tok-alice")
    client.receive(type="disconnect")
    client.receive(type="reconnect")
    broker.settle()


def check_nothing_came(broker: Broker, *clients: Client) -> None:
    """Proven by a message behind it on the same connection."""
    broker.inject(frame=message("behind", msgId=f"behind{time.monotonic()}"), token="tok-alice")
    for client in clients:
        client.message("behind")
        client.nothing_else()


def test_a_retained_message_is_known_after_much_traffic(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    broker.configure(rateLimit=0)
    client = connect()
    client.ok(type="subscribe", topic=TOPIC, filters=["a"])
    retained(bob, "kept", filter="a")
    client.message("kept")
    for n in range(400):
        bob.send({"type": "publish", "topic": TOPIC, "data": n, "filter": "a", "msgRef": f"x{n}"})
    for n in range(400):
        client.message(n)
    drop(broker, client)
    check_nothing_came(broker, client)


def test_a_local_retained_message_is_not_told_again(broker: Broker, connect: Connect) -> None:
    """Neither to who had it just after subscribing, nor to who published it."""
    subscriber, publisher = connect(), connect()
    for client in (subscriber, publisher):
        client.ok(type="subscribe", topic=TOPIC, filters=["a"])
    publisher.ok(type="publish", topic=TOPIC, data="kept", retain=True, filter="a")
    subscriber.message("kept")
    broker.settle()
    drop(broker, subscriber)
    publisher.receive(type="reconnect")
    publisher.receive(type="disconnect")
    check_nothing_came(broker, subscriber, publisher)


def publish_without_copy(broker: Broker, client: Client, data: Any) -> None:
    """On a broker that sends no copies by itself."""
    client.ok(type="publish", topic=TOPIC, data=data, retain=True, filter="a")


def message(data: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "topic": TOPIC, "data": data, "filter": "a", **fields}


@NO_COPIES
def test_a_link_lost_before_the_copy(broker: Broker, connect: Connect) -> None:
    subscriber, publisher = connect(), connect()
    for client in (subscriber, publisher):
        client.ok(type="subscribe", topic=TOPIC, filters=["a"])
    publish_without_copy(broker, publisher, "kept")
    subscriber.message("kept")
    drop(broker, subscriber)
    publisher.receive(type="reconnect")
    publisher.receive(type="disconnect")
    broker.inject(frame=message("kept", msgId="m1"), token="tok-alice")
    check_nothing_came(broker, subscriber, publisher)
    # Who subscribes now has not had it.
    late = connect()
    late.ok(type="subscribe", topic=TOPIC, filters=["a"])
    broker.inject(frame=message("kept", msgId="m1"), token="tok-alice")
    late.message("kept")
    check_nothing_came(broker, subscriber, publisher, late)


@NO_COPIES
def test_another_actors_equal_message_is_not_our_copy(broker: Broker, connect: Connect) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.ok(type="subscribe", topic=TOPIC, filters=["a"])
    publish_without_copy(broker, publisher, {"on": 1})
    subscriber.message({"on": 1})
    broker.inject(frame=message({"on": 1}, msgId="m1", **{"from": "bob"}), token="tok-alice")
    subscriber.message({"on": 1}, **{"from": "bob"})
    broker.inject(frame=message({"on": 1}, msgId="m2", **{"from": "alice"}), token="tok-alice")
    check_nothing_came(broker, subscriber)


@NO_COPIES
def test_a_later_equal_message_is_nobodys_copy(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    """No copy has come in time, so none is expected: also not of the next one."""
    subscriber, publisher = connect(), connect()
    subscriber.ok(type="subscribe", topic=TOPIC, filters=["a"])
    publisher.ok(type="publish", topic=TOPIC, data="first", retain=True, filter="a")
    subscriber.message("first")
    end = time.monotonic() + 1.1
    wait_until(lambda: time.monotonic() > end, "the time for a copy is over")
    bob.publish(TOPIC, "first", filter="a")
    subscriber.message("first")
    publisher.ok(type="publish", topic=TOPIC, data="second", retain=True, filter="a")
    subscriber.message("second")
    bob.publish(TOPIC, "second", filter="a")
    subscriber.message("second")
