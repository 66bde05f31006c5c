# SPDX-License-Identifier: Apache-2.0
"""Late joiners get what a first subscriber gets, those who were there get nothing twice; hydration."""

from typing import Any, Callable, Iterator

import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, alice
from replay import Replay, load

TOPIC = "demo/ops/events"
GENERAL = "demo/general/events"
TASKS = "demo/ops/tasks"

Connect = Callable[..., Client]


def retain(bob: wsclient.Client, data: Any, topic: str = TOPIC, **fields: Any) -> None:
    answer = bob.ask({"type": "publish", "topic": topic, "data": data, "retain": True, "msgRef": "r", **fields})
    assert answer["type"] == "published"


def subscribes(broker: Broker, topic: str = TOPIC) -> int:
    return len(broker.received("subscribe", topic=topic))


def nothing_more(broker: Broker, bob: wsclient.Client, *clients: Client, **fields: Any) -> None:
    """Proven by a message that comes behind all that the broker has sent."""
    broker.settle()
    bob.publish(TOPIC, "behind", **fields)
    for client in clients:
        client.message("behind")
        client.nothing_else()


def test_the_second_one_gets_it_and_the_first_not_again(broker: Broker, connect: Connect,
                                                        bob: wsclient.Client) -> None:
    retain(bob, {"online": True})
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC)
    told = first.message({"online": True})
    bob.publish(TOPIC, "live")
    first.message("live")
    answer = second.ok(type="subscribe", topic=TOPIC)
    assert "lateJoin" not in answer and "pending" not in answer
    assert second.message({"online": True}) == told, "as the first one had it"
    nothing_more(broker, bob, first, second)
    assert subscribes(broker) == 2


def test_the_answer_comes_before_what_it_brings(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    retain(bob, "kept")
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC)
    first.message("kept")
    second.send(type="subscribe", topic=TOPIC, id="late")
    line = second.read_line()
    assert line is not None and (line["type"], line["id"]) == ("subscribed", "late")
    second.message("kept")


def test_ten_who_come_together_cost_one_subscribe(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    retain(bob, "kept")
    first, *others = [connect() for _ in range(11)]
    for client in others:
        client.ok(type="ping")
    first.ok(type="subscribe", topic=TOPIC)
    first.message("kept")
    for client in others:
        client.send(type="subscribe", topic=TOPIC, id="late")
    for client in others:
        assert client.receive(id="late")["type"] == "subscribed"
        client.message("kept")
    assert subscribes(broker) == 2
    nothing_more(broker, bob, first, *others)


def test_a_filter_added_later_brings_its_own_to_who_added_it(broker: Broker, connect: Connect,
                                                             bob: wsclient.Client) -> None:
    for name in ("a", "b"):
        retain(bob, f"kept {name}", filter=name)
    both, one = connect(), connect()
    both.ok(type="subscribe", topic=TOPIC, filters=["a", "b"])
    assert {both.receive(type="message")["data"] for _ in range(2)} == {"kept a", "kept b"}
    one.ok(type="subscribe", topic=TOPIC, filters=["b"])
    one.message("kept b")
    assert "lateJoin" not in one.ok(type="addFilters", topic=TOPIC, filters=["a"])
    one.message("kept a")
    nothing_more(broker, bob, both, one, filter="a")
    assert subscribes(broker) == 3 and broker.received("setFilters") == []


def test_a_filter_that_nobody_had_needs_no_subscribe(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    retain(bob, "kept b", filter="b")
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC, filters=["a"])
    second.ok(type="subscribe", topic=TOPIC, filters=["b"])
    second.message("kept b")
    assert subscribes(broker) == 1
    first.nothing_else()


@pytest.mark.parametrize("why", ["asked", "configured", "no_ids"])
def test_where_nothing_is_done_the_answer_says_so(broker: Broker, bob: wsclient.Client, why: str) -> None:
    broker.configure(recording=why != "no_ids")
    keys = {"late_join": "none"} if why == "configured" else {}
    asked = {"lateJoin": "none"} if why == "asked" else {}
    with Daemon({"default": alice(broker.url, **keys)}) as daemon:
        daemon.wait_status()
        with daemon.client() as first, daemon.client() as second:
            retain(bob, "kept")
            assert "lateJoin" not in first.ok(type="subscribe", topic=TOPIC, **asked), "it is not late"
            first.message("kept")
            assert second.ok(type="subscribe", topic=TOPIC, **asked)["lateJoin"] == "none"
            nothing_more(broker, bob, first, second)
            assert subscribes(broker) == 1


def test_resubscribe_works_without_ids_at_a_price(broker: Broker, bob: wsclient.Client) -> None:
    broker.configure(recording=False)
    with Daemon({"default": alice(broker.url, late_join="resubscribe")}) as daemon:
        daemon.wait_status()
        with daemon.client() as first, daemon.client() as second:
            retain(bob, "kept")
            first.ok(type="subscribe", topic=TOPIC)
            first.message("kept")
            assert "lateJoin" not in second.ok(type="subscribe", topic=TOPIC)
            second.message("kept")
            first.message("kept")
            nothing_more(broker, bob, first, second)


def test_a_refused_joiner_changes_nothing_for_others(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    retain(bob, "kept")
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC)
    first.message("kept")
    broker.refuse(type="subscribe", error="not_authorized", count=1)
    second.refused("not_authorized", type="subscribe", topic=TOPIC)
    nothing_more(broker, bob, first)
    second.ok(type="subscribe", topic=TOPIC)
    assert [second.receive(type="message")["data"]] == ["kept"]
    first.nothing_else()


def test_who_joins_while_the_link_is_down(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    retain(bob, "kept")
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC)
    first.message("kept")
    broker.stop_listening()
    broker.drop(token="tok-alice", abort=True)
    first.receive(type="disconnect")
    answer = second.ok(type="subscribe", topic=TOPIC)
    assert answer["pending"] is True and "lateJoin" not in answer
    broker.listen()
    for client in (first, second):
        client.receive(type="reconnect")
    assert second.receive(type="message")["data"] == "kept"
    nothing_more(broker, bob, first, second)


def test_an_own_retained_message_reaches_who_joins_later(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as first, daemon.client() as publisher, daemon.client() as later:
            first.ok(type="subscribe", topic=TOPIC)
            publisher.ok(type="publish", topic=TOPIC, data="kept", retain=True)
            first.message("kept")
            kraken.settle()
            later.ok(type="subscribe", topic=TOPIC)
            later.message("kept")
            first.nothing_else()
            assert subscribes(kraken) == 2


def test_a_second_subscribe_that_is_not_answered(broker: Broker, bob: wsclient.Client) -> None:
    """Who joined is told so in time, and the next one who joins gets what it asks for."""
    with Daemon({"default": alice(broker.url, request_timeout="200ms")}) as daemon:
        daemon.wait_status()
        with daemon.client() as first, daemon.client() as second:
            retain(bob, "kept")
            first.ok(type="subscribe", topic=TOPIC)
            first.message("kept")
            broker.mute(type="subscribe", count=1)
            second.refused("timeout", type="subscribe", topic=TOPIC)
            broker.wait_for(what="received", type="setFilters", topic=TOPIC)
            second.ok(type="subscribe", topic=TOPIC)
            second.message("kept")
            nothing_more(broker, bob, first, second)


def test_late_joiners_take_turns_like_all_others(broker: Broker, connect: Connect) -> None:
    """Who joins many topics late, and is not answered, does not keep others from the broker."""
    topics = [f"demo/general/t{n}" for n in range(100)]
    first, greedy, modest = connect(), connect(), connect()
    for topic in topics:
        first.ok(type="subscribe", topic=topic)
    broker.mute(type="subscribe", count=24)
    for topic in topics:
        greedy.send(type="subscribe", topic=topic)
    broker.wait_for(what="received", type="subscribe", count=124)
    modest.ok(type="subscribe", topic=TOPIC)
    assert len(broker.received("subscribe")) == 125
    greedy.nothing_else()


# ---- hydration ----

def hydration(client: Client, data: Any, topic: str = "events") -> None:
    line = client.waiting.pop(0) if client.waiting else client.read_line()
    assert line == {"type": "hydration", "topic": topic, "data": data}


def test_hydration_reaches_each_subscriber_once(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    broker.hydration(topic=TOPIC, data={"rows": [1]})
    first, second, third = connect(), connect(), connect()
    first.ok(type="subscribe", topic=TOPIC, filters=["a"])
    hydration(first, {"rows": [1]})
    broker.hydration(topic=TOPIC, data={"rows": [2]})
    second.ok(type="subscribe", topic=TOPIC, filters=["a"])
    hydration(second, {"rows": [2]})
    third.ok(type="subscribe", topic=TOPIC, filters=["b"])
    hydration(third, {"rows": [2]})
    first.ok(type="addFilters", topic=TOPIC, filters=["c"])
    nothing_more(broker, bob, first, second, filter="a")
    third.nothing_else()


def test_hydration_comes_again_on_a_new_link(broker: Broker, connect: Connect) -> None:
    broker.hydration(topic=TOPIC, data=1)
    first, second = connect(), connect()
    first.ok(type="subscribe", topic=TOPIC)
    hydration(first, 1)
    second.ok(type="subscribe", topic=TOPIC)
    hydration(second, 1)
    broker.hydration(topic=TOPIC, data=2)
    broker.drop(token="tok-alice", abort=True)
    for client in (first, second):
        assert client.receive(type="hydration")["data"] == 2
        client.receive(type="disconnect")
        client.receive(type="reconnect")
        client.nothing_else()


def test_hydration_is_for_who_waits_on_a_topic_of_that_name(broker: Broker, connect: Connect) -> None:
    """With its room unknown, it goes to the waiting ones of both rooms, and to nobody else."""
    events, general, tasks = connect(), connect(), connect()
    events.ok(type="subscribe", topic=TOPIC)
    general.ok(type="subscribe", topic=GENERAL)
    tasks.ok(type="subscribe", topic=TASKS)
    for data in (1, 2, 3):
        broker.inject(frame={"type": "hydration", "topic": "events", "data": data}, token="tok-alice")
    broker.inject(frame={"type": "hydration", "topic": "tasks", "data": 4}, token="tok-alice")
    hydration(tasks, 4, "tasks")
    for client in (events, general):
        hydration(client, 1)
        hydration(client, 2)
    for client in (events, general, tasks):
        client.nothing_else()


def test_who_does_not_choose_hydration_gets_none(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    broker.hydration(topic=TOPIC, data=1)
    one, other = connect(), connect()
    one.ok(type="events", only=["message"])
    other.ok(type="events", only=["hydration"])
    one.ok(type="subscribe", topic=TOPIC)
    broker.settle()
    bob.publish(TOPIC, "live")
    one.message("live")
    one.nothing_else()
    other.ok(type="subscribe", topic=TOPIC)
    hydration(other, 1)
    bob.publish(TOPIC, "more")
    one.message("more")
    other.nothing_else()


def test_the_tap_hears_hydration(broker: Broker, connect: Connect) -> None:
    broker.hydration(topic=TOPIC, data={"$bytes": "/w=="})
    tap, client = connect(), connect()
    tap.ok(type="subscribe", topic="*")
    client.ok(type="subscribe", topic=TOPIC)
    for each in (client, tap):
        hydration(each, {"$bytes": "/w=="})


# ---- as the broker's own clients ----

REPLAYED = ["retained", "retained_filters", "resubscribe_replaces", "filters_delivery", "filters_and_groups",
            "set_filters"]

# What nolagd changes on purpose, and the replay allows for:
# - a client gets each retained message once, also when it subscribes again or changes its filters within seconds
# - "filter": "#" becomes "filterHidden": true
# - requests have ids, answers tell more, and errors in the request have nolagd's own names


def cases() -> Iterator[tuple[str, str]]:
    """Each peer that receives messages takes its turn as a local client; the others talk to the broker."""
    for name in REPLAYED:
        for peer in sorted({s["peer"] for s in load(name)
                            if s["dir"] == "recv" and s["frame"].get("type") == "message"}):
            yield name, peer


@pytest.mark.parametrize("name,peer", cases())
def test_a_local_client_gets_what_a_client_of_the_broker_gets(kraken: Broker, name: str, peer: str) -> None:
    steps = load(name)
    token = next(s["frame"]["token"] for s in steps if s["peer"] == peer)
    with Daemon({"default": {**alice(kraken.url), "token": token}}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            Replay(kraken, {peer: client}, steps).run()
            kraken.settle()
            client.nothing_else()
