# SPDX-License-Identifier: Apache-2.0
"""Subscriptions of many local clients on one broker connection."""

from typing import Any, Callable, Optional

import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, alice, wait_until

TOPIC = "demo/ops/events"
TASKS = "demo/ops/tasks"

Connect = Callable[..., Client]


def upstream(broker: Broker, token: str = "tok-alice") -> dict[str, Any]:
    """What the broker has of the daemon's connection: topic -> filters, [] for everything."""
    broker.settle()
    found = [c for c in broker.state() if c["token"] == token and c["authenticated"]]
    return {s["topic"]: s["filters"] for c in found for s in c["subscriptions"]}


def asked(broker: Broker, *types: str, topic: Optional[str] = None) -> list[str]:
    """The control requests the broker got, by type."""
    wanted = types or ("subscribe", "setFilters", "unsubscribe")
    return [r["type"] for r in broker.received(*wanted, **({"topic": topic} if topic else {}))]


def test_one_subscription_serves_all(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    clients = [connect() for _ in range(20)]
    for client in clients:
        client.ok(type="subscribe", topic=TOPIC, lateJoin="none")
    assert asked(broker) == ["subscribe"]
    bob.publish(TOPIC, {"n": 1})
    lines = [client.message({"n": 1}, topic=TOPIC) for client in clients]
    assert all(line == lines[0] for line in lines)
    for client in clients[:-1]:
        client.ok(type="unsubscribe", topic=TOPIC)
    bob.publish(TOPIC, 2)
    clients[-1].message(2)
    for client in clients[:-1]:
        client.nothing_else()
    assert asked(broker) == ["subscribe"]
    clients[-1].ok(type="unsubscribe", topic=TOPIC)
    assert asked(broker) == ["subscribe", "unsubscribe"] and upstream(broker) == {}


def test_a_client_that_vanishes_leaves_everything(broker: Broker, connect: Connect) -> None:
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC)
    first.ok(type="subscribe", topic=TASKS)
    second.ok(type="subscribe", topic=TASKS)
    first.close()
    wait_until(lambda: set(upstream(broker)) == {TASKS}, "the topic nobody wants is gone")


def test_filters_are_merged_and_applied_again(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    us, eu, both = connect(), connect(), connect()
    us.ok(type="subscribe", topic=TOPIC, filters=["us"])
    eu.ok(type="subscribe", topic=TOPIC, filters=["eu"])
    both.ok(type="subscribe", topic=TOPIC, filters=["us", ["B", "a"]], lateJoin="none")
    assert sorted(map(str, upstream(broker)[TOPIC])) in (
        sorted(map(str, ["us", "eu", "a|b"])), sorted(map(str, ["us", "eu", ["B", "a"]])))
    assert asked(broker) == ["subscribe", "setFilters", "setFilters"]
    bob.publish(TOPIC, "to us", filter="us")
    bob.publish(TOPIC, "to eu", filter="eu")
    bob.publish(TOPIC, "to ab", filters=["A", "b"])
    bob.publish(TOPIC, "to nobody")
    us.message("to us", filter="us")
    eu.message("to eu", filter="eu")
    both.message("to us")
    both.message("to ab", filter="a|b")
    for client in (us, eu, both):
        client.nothing_else()


def test_filter_changes(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    client = connect()
    client.ok(type="subscribe", topic=TOPIC, filters=["a"])
    assert client.ok(type="addFilters", topic=TOPIC, filters=["b", "a"])["filters"] == ["a", "b"]
    assert client.ok(type="removeFilters", topic=TOPIC, filters=["a", "zz"])["filters"] == ["b"]
    bob.publish(TOPIC, 1, filter="a")
    bob.publish(TOPIC, 2, filter="b")
    client.message(2)
    assert client.ok(type="removeFilters", topic=TOPIC, filters=["b"])["filters"] == []
    bob.publish(TOPIC, 3)
    client.message(3)
    assert client.ok(type="addFilters", topic=TOPIC, filters=["c"])["filters"] == ["c"]
    bob.publish(TOPIC, 4)
    bob.publish(TOPIC, 5, filter="c")
    client.message(5)
    client.nothing_else()
    assert "subscribe" not in asked(broker)[1:], "a change is never a second subscribe"


def test_a_refusal_goes_to_who_asked_only(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    good, other, unlucky = connect(), connect(), connect()
    good.ok(type="subscribe", topic=TOPIC, filters=["a"])
    broker.refuse(type="setFilters", error="not_authorized", count=1)
    error = unlucky.refused("not_authorized", type="subscribe", topic=TOPIC, filters=["b"])
    assert error["topic"] == TOPIC and error["request"] == "subscribe"
    unlucky.refused("not_subscribed", type="addFilters", topic=TOPIC, filters=["x"])
    other.refused("unknown_topic", type="subscribe", topic="demo/nowhere/events")
    bob.publish(TOPIC, "still there", filter="a")
    good.message("still there")
    for client in (good, other, unlucky):
        client.nothing_else()
    assert upstream(broker) == {TOPIC: ["a"]}


def test_a_refused_change_leaves_what_was(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    client = connect()
    client.ok(type="subscribe", topic=TOPIC, filters=["a"])
    broker.refuse(type="setFilters", error="not_authorized", count=1)
    client.refused("not_authorized", type="setFilters", topic=TOPIC, filters=["b"])
    bob.publish(TOPIC, 1, filter="b")
    bob.publish(TOPIC, 2, filter="a")
    client.message(2)
    client.nothing_else()


def test_the_answer_comes_before_the_first_message(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    bob.ask({"type": "publish", "topic": TOPIC, "data": "kept", "retain": True, "msgRef": "k"})
    broker.delay(type="subscribe", ms=100)
    client = connect()
    client.send(type="subscribe", topic=TOPIC, id="s")
    line = client.read_line()
    assert line is not None and line["type"] == "subscribed" and line["id"] == "s"
    client.message("kept")


def test_retained_messages_are_not_told_twice(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    for kept, name in (("kept a", "a"), ("kept b", "b")):
        bob.ask({"type": "publish", "topic": TOPIC, "data": kept, "filter": name, "retain": True, "msgRef": "k"})
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC, filters=["a"])
    first.message("kept a")
    second.ok(type="subscribe", topic=TOPIC, filters=["b"])
    second.message("kept b")
    second.ok(type="addFilters", topic=TOPIC, filters=["a"])
    second.message("kept a")
    first.ok(type="addFilters", topic=TOPIC, filters=["b"])
    first.message("kept b")
    bob.publish(TOPIC, "fence", filter="a")
    first.message("fence")
    second.message("fence")
    first.nothing_else()
    second.nothing_else()


def test_mixed_wishes_conflict_where_filters_are_hidden(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as everything, daemon.client() as filtered:
            everything.ok(type="subscribe", topic=TOPIC)
            error = filtered.refused("wish_conflict", type="subscribe", topic=TOPIC, filters=["a"])
            assert "filters_reported" in error["hint"]
            filtered.ok(type="subscribe", topic=TASKS, filters=["a"])
            everything.refused("wish_conflict", type="subscribe", topic=TASKS)
            everything.ok(type="unsubscribe", topic=TOPIC)
            filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])


def test_mixed_wishes_where_filters_are_told(cloud: Broker) -> None:
    bob = wsclient.Client(cloud.url, "tok-bob")
    with Daemon({"default": alice(cloud.url, filters_reported="yes")}) as daemon:
        daemon.wait_status()
        with daemon.client() as everything, daemon.client() as filtered:
            filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])
            everything.ok(type="subscribe", topic=TOPIC)
            bob.publish(TOPIC, 1)
            bob.publish(TOPIC, 2, filter="a")
            bob.publish(TOPIC, 3, filter="b")
            everything.message(1)
            everything.message(2, filter="a")
            everything.message(3, filter="b")
            filtered.message(2)
            filtered.nothing_else()
            everything.ok(type="unsubscribe", topic=TOPIC)  # answered at once: it asks nothing of the broker for itself
            wait_until(lambda: upstream(cloud) == {TOPIC: ["a"]}, "only what is still wished is asked for")
    bob.socket.close()


def test_more_filters_than_the_broker_takes(broker: Broker) -> None:
    names = [f"f{n}" for n in range(101)]
    with Daemon({"default": alice(broker.url, filters_reported="no")}) as daemon:
        daemon.wait_status()
        with daemon.client() as one, daemon.client() as two:
            one.refused("too_many_filters", type="subscribe", topic=TOPIC, filters=names)
            one.ok(type="subscribe", topic=TOPIC, filters=names[:100])
            two.refused("too_many_filters", type="subscribe", topic=TOPIC, filters=names[100:])
            two.ok(type="subscribe", topic=TOPIC, filters=names[50:60])
    with Daemon({"default": alice(broker.url, filters_reported="yes")}) as daemon:
        daemon.wait_status()
        with daemon.client() as one, daemon.client() as two:
            one.ok(type="subscribe", topic=TOPIC, filters=names[:100])
            two.ok(type="subscribe", topic=TOPIC, filters=names[100:])
            wait_until(lambda: upstream(broker) == {TOPIC: []}, "everything is asked for, and filtered here")


def test_a_message_of_a_topic_nobody_asked_for(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.ok(type="subscribe", topic=TOPIC)
    broker.inject(frame={"type": "message", "topic": "demo/ops/other", "data": 1}, token="tok-alice")
    broker.inject(frame={"type": "message", "topic": TOPIC, "data": 2, "strange": [1, {"x": None}]}, token="tok-alice")
    client.message(2, strange=[1, {"x": None}])
    client.nothing_else()


def test_the_tap_gets_what_others_get(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    tap, client = connect(), connect()
    tap.ok(type="subscribe", topic="*")
    assert asked(broker) == []
    client.ok(type="subscribe", topic=TOPIC, filters=["a"])
    bob.publish(TOPIC, "a", filter="a")
    tap.message("a", topic=TOPIC)
    client.message("a")
    tap.ok(type="subscribe", topic=TOPIC, filters=["a"])
    bob.publish(TOPIC, "once", filter="a")
    tap.message("once")
    tap.ok(type="unsubscribe", topic="*")
    tap.ok(type="unsubscribe", topic=TOPIC)
    bob.publish(TOPIC, "no more", filter="a")
    client.message("once")
    client.message("no more")
    tap.nothing_else()


def test_subscribe_and_unsubscribe_in_one_write(broker: Broker, connect: Connect) -> None:
    client = connect()
    lines = []
    for n in range(50):
        lines += [f'{{"type":"subscribe","topic":"{TOPIC}","id":{2 * n}}}',
                  f'{{"type":"unsubscribe","topic":"{TOPIC}","id":{2 * n + 1}}}']
    client.write("\n".join(lines).encode() + b"\n")
    for n in range(50):
        assert client.receive(id=2 * n)["type"] == "subscribed"
        assert client.receive(id=2 * n + 1)["type"] == "unsubscribed"
    wait_until(lambda: upstream(broker) == {}, "nothing is left")


@pytest.mark.parametrize("limit", ["max_subscriptions", "max_subscriptions_per_uid"])
def test_limits(kraken: Broker, limit: str) -> None:
    with Daemon({"default": alice(kraken.url)}, {limit: 3}) as daemon:
        daemon.wait_status()
        with daemon.client() as client, daemon.client() as other:
            for n in range(3):
                client.ok(type="subscribe", topic=f"demo/general/t{n}")
            client.refused("limit_reached", type="subscribe", topic="demo/general/t3")
            client.ok(type="subscribe", topic="demo/general/t0", filters=["again"])
            answer = other.request(type="subscribe", topic="demo/general/t3")
            assert answer["type"] == ("subscribed" if limit == "max_subscriptions" else "error")
            client.ok(type="unsubscribe", topic="demo/general/t0")
            client.ok(type="unsubscribe", topic="demo/general/t1")
            client.ok(type="subscribe", topic="demo/general/t4")


def test_requests_on_a_silent_broker_are_bounded(kraken: Broker) -> None:
    """A client that writes on while the broker is silent costs a bounded amount of memory, and nobody else anything."""
    filters = [f"{n:03d}" + "x" * 900 for n in range(100)]
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as greedy, daemon.client() as other:
            greedy.ok(type="subscribe", topic=TOPIC, filters=["a"])
            kraken.mute(type="setFilters", count=1)
            for n in range(200):
                greedy.send(type="setFilters", topic=TOPIC, filters=filters, id=n)
            error = greedy.receive(type="error", error="limit_reached")
            assert "filters" in error["hint"]
            assert other.ok(type="subscribe", topic=TASKS)["topic"] == TASKS


def subscribe_lines(first: int, count: int) -> bytes:
    return b"".join(b'{"type":"subscribe","topic":"demo/general/t%d"}\n' % n for n in range(first, first + count))


def position(broker: Broker, topic: str) -> int:
    """How many control requests the broker got before the one for topic."""
    topics = [request["topic"] for request in broker.received("subscribe", "unsubscribe")]
    return topics.index(topic)


def test_a_greedy_client_does_not_delay_the_next_one(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as greedy, daemon.client() as other:
            kraken.delay(type="subscribe", ms=5)
            greedy.write(subscribe_lines(0, 300))
            greedy.send(type="ping", id="all are read")
            greedy.receive(id="all are read")
            other.ok(type="subscribe", topic=TOPIC)
            assert position(kraken, TOPIC) < 150


def test_what_a_greedy_client_leaves_behind_does_not_delay_the_next_one(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as other:
            with daemon.client() as greedy:
                greedy.write(subscribe_lines(0, 300))
                for _ in range(300):
                    greedy.receive(type="subscribed")
                kraken.delay(type="unsubscribe", ms=5)
            kraken.wait_for(type="unsubscribe", count=1)
            other.ok(type="subscribe", topic=TOPIC)
            assert position(kraken, TOPIC) - 300 < 150


def test_requests_that_the_broker_ignores_do_not_stop_others(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as unlucky, daemon.client() as other:
            for n in range(64):
                kraken.mute(type="subscribe", topic=f"demo/general/t{n}")
            unlucky.write(subscribe_lines(0, 64))
            unlucky.ok(type="ping")
            other.ok(type="subscribe", topic=TOPIC)
            unlucky.nothing_else()


def test_a_heartbeat_that_does_not_come_back_behind_a_request(kraken: Broker) -> None:
    """Messages come all the time, but neither an answer nor an echo: the link is given up, and everybody is answered."""
    with Daemon({"default": alice(kraken.url, request_timeout="200ms", heartbeat_timeout="1s")}) as daemon:
        daemon.wait_status()
        with daemon.client() as holder, daemon.client() as asker:
            holder.ok(type="subscribe", topic=TASKS)
            kraken.mute(type="subscribe", topic=TOPIC, count=1)
            kraken.mute(type="heartbeat", count=1)
            assert asker.request(type="subscribe", topic=TOPIC)["error"] == "timeout"
            asker.send(type="subscribe", topic=TOPIC, id=2)
            asker.send(type="unsubscribe", topic=TOPIC, id=3)
            asker.half_close()

            def busy() -> bool:
                if len(kraken.received("heartbeat")) == 1:
                    kraken.inject(frame={"type": "message", "topic": TASKS, "data": 1}, token="tok-alice")
                holder.ok(type="ping")
                return any(line["type"] == "disconnect" for line in holder.waiting)
            wait_until(busy, "the link is given up")
            assert asker.receive(id=2)["pending"] is True
            assert asker.receive(id=3)["type"] == "unsubscribed"
            holder.receive(type="reconnect")


def test_filters_that_are_told_are_found_out(cloud: Broker) -> None:
    """The second message with the same filter proves it, however short ago the subscription is."""
    bob = wsclient.Client(cloud.url, "tok-bob")
    with Daemon({"default": alice(cloud.url)}) as daemon:
        daemon.wait_status(filtersReported="unknown")
        with daemon.client() as everything, daemon.client() as filtered:
            everything.ok(type="subscribe", topic=TOPIC)
            filtered.refused("wish_conflict", type="subscribe", topic=TOPIC, filters=["a"])
            for n in range(2):
                bob.publish(TOPIC, n, filter="a")
                everything.message(n, filter="a")
            assert daemon.status()["filtersReported"] == "yes"
            filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])
            bob.publish(TOPIC, "to a", filter="a")
            bob.publish(TOPIC, "to b", filter="b")
            filtered.message("to a")
            filtered.nothing_else()
    bob.socket.close()


def test_a_topic_works_on_when_filters_turn_out_hidden(cloud: Broker) -> None:
    """What was judged by filters that are told cannot be served any more: it is answered, and holders are told."""
    hidden = {"type": "message", "topic": TOPIC, "data": 0, "filter": "#"}
    with Daemon({"default": alice(cloud.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as everything, daemon.client() as filtered, daemon.client() as third:
            everything.ok(type="subscribe", topic=TASKS)
            for n in range(2):
                cloud.inject(frame={"type": "message", "topic": TASKS, "data": n, "msgId": f"m{n}"}, token="tok-alice")
                everything.message(n)
            everything.ok(type="subscribe", topic=TOPIC)
            filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])
            cloud.inject(frame=hidden, token="tok-alice")
            event = filtered.receive(type="error")
            assert event["error"] == "wish_conflict" and event["topic"] == TOPIC and "request" not in event
            assert daemon.status()["filtersReported"] == "no"
            third.refused("wish_conflict", type="subscribe", topic=TOPIC)
            filtered.ok(type="unsubscribe", topic=TOPIC)
            third.ok(type="subscribe", topic=TOPIC)
            filtered.nothing_else()


def test_a_configured_yes_stays(cloud: Broker) -> None:
    with Daemon({"default": alice(cloud.url, filters_reported="yes")}) as daemon:
        daemon.wait_status()
        with daemon.client() as everything, daemon.client() as filtered:
            everything.ok(type="subscribe", topic=TOPIC)
            cloud.inject(frame={"type": "message", "topic": TOPIC, "data": 0, "filter": "#"}, token="tok-alice")
            everything.message(0)
            filtered.ok(type="subscribe", topic=TOPIC, filters=["a"])


def test_messages_with_an_empty_id_are_all_delivered(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.ok(type="subscribe", topic=TOPIC)
    for n in range(3):
        broker.inject(frame={"type": "message", "topic": TOPIC, "data": n, "msgId": ""}, token="tok-alice")
        client.message(n)


def test_status_counts_the_topics_that_are_wanted(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status(subscriptions=0)
        with daemon.client() as one, daemon.client() as two:
            one.ok(type="subscribe", topic=TOPIC)
            two.ok(type="subscribe", topic=TOPIC)
            two.ok(type="subscribe", topic=TASKS)
            assert daemon.status()["subscriptions"] == 2
            kraken.mute(type="unsubscribe", count=1)
            two.send(type="unsubscribe", topic=TASKS)
            assert two.ok(type="status")["subscriptions"] == 1
