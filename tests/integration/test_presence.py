# SPDX-License-Identifier: Apache-2.0
"""Presence of a session shared by many local clients, against a broker and its other actors."""

from typing import Any, Callable, Iterator, Optional

import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, Json, alice, wait_until

Connect = Callable[..., Client]

ROOM = "ops"


def shown(broker: Broker, token: str = "tok-alice") -> Optional[Json]:
    """The presence that the broker has of the daemon's connection."""
    broker.settle()
    found = [c["presence"] for c in broker.state() if c["token"] == token and c["authenticated"]]
    return found[0] if found else None


def fetched(broker: Broker) -> int:
    return len(broker.received("getPresence", token="tok-alice"))


def announced(broker: Broker) -> list[Any]:
    return [r["frame"].get("data") for r in broker.received("presence", token="tok-alice")]


def show(client: wsclient.Client, data: Any, room: str = ROOM) -> None:
    """Another actor shows this at the broker, which has taken it when this returns."""
    client.send({"type": "presence", "roomId": room, "data": data}, wsclient.HEARTBEAT)
    while client.recv() != wsclient.HEARTBEAT:
        pass


def event(client: Client, what: str, actor: str, presence: Any = None, room: str = ROOM) -> Json:
    """The next line must be this event."""
    line = client.waiting.pop(0) if client.waiting else client.read_line()
    assert line is not None and line["type"] == "presence", line
    assert (line["event"], line["actorTokenId"], line["roomId"]) == (what, actor, room), line
    assert line["data"]["actorTokenId"] == actor and line["data"].get("presence") == presence, line
    return line


@pytest.fixture
def polled(broker: Broker) -> Iterator[Daemon]:
    """A daemon that polls often."""
    with Daemon({"default": alice(broker.url, presence_poll_interval="50ms")}) as running:
        running.wait_status()
        yield running


def test_set_shows_and_is_confirmed(broker: Broker, connect: Connect) -> None:
    client = connect()
    answer = client.ok(type="presence", roomId=ROOM, data={"status": "online", "n": 2**60})
    assert answer["type"] == "presenceSet" and answer["roomId"] == ROOM and "pending" not in answer
    assert shown(broker) == {"room": "room-ops", "data": {"status": "online", "n": 2**60}}
    # As to everybody in the room, our own join is told; the update with the same data is not.
    event(client, "join", "alice", {"status": "online", "n": 2**60})
    client.ok(type="presence", roomId=ROOM, data={"status": "away"})
    event(client, "update", "alice", {"status": "away"})
    client.send(type="presence", roomId=ROOM, data={"status": "back"})
    event(client, "update", "alice", {"status": "back"})
    client.nothing_else()
    assert client.ok(type="clearPresence")["type"] == "presenceCleared"
    assert shown(broker) == {"room": "room-ops", "data": None}
    client.nothing_else()


def test_fetch_and_cache(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    client = connect()
    show(bob, {"status": "busy"})
    answer = client.ok(type="getPresence", roomId=ROOM)
    assert answer["type"] == "presenceList" and answer["roomId"] == ROOM
    (entry,) = answer["data"]
    assert entry["actorTokenId"] == "bob" and entry["presence"] == {"status": "busy"}
    assert entry["status"] == "online" and isinstance(entry["joinedAt"], int)
    # Nothing keeps the room up to date: what was fetched is there, and is said to be stale.
    actor = client.ok(type="getActor", actorTokenId="bob", roomId=ROOM)
    assert actor["type"] == "actor" and actor["data"] == entry and actor["stale"] is True
    assert client.ok(type="getActor", actorTokenId="bob")["roomId"] == ROOM
    assert client.ok(type="getActor", actorTokenId="nobody")["data"] is None
    client.ok(type="presence", roomId=ROOM, data={"a": 1})
    wait_until(lambda: not client.ok(type="listPresence", roomId=ROOM)["stale"], "the room is live")
    listed = client.ok(type="listPresence")
    assert sorted(a["actorTokenId"] for a in listed["data"]) == ["alice", "bob"]
    assert all(a["roomId"] == ROOM for a in listed["data"]) and listed["stale"] is False
    assert client.ok(type="getPresence")["data"] == []
    assert "roomId" not in client.ok(type="getPresence")
    assert client.ok(type="getPresence", roomId="no-such-room")["data"] == []
    show(bob, None)
    assert [a["actorTokenId"] for a in client.ok(type="getPresence", roomId=ROOM)["data"]] == ["alice"]


def test_watch_while_present(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    watcher, holder = connect(), connect()
    holder.ok(type="presence", roomId=ROOM, data={"a": 1})
    event(holder, "join", "alice", {"a": 1})
    answer = watcher.ok(type="watchPresence", roomId=ROOM)
    assert answer["type"] == "presenceWatched"
    assert [a["actorTokenId"] for a in answer["data"]] == ["alice"]
    show(bob, {"status": "busy", "persistent": True, "capabilities": ["x"], "advertisement": {"k": 1},
               "wake": {"url": "http://127.0.0.1/none", "timeoutMs": 1000}})
    show(bob, {"status": "away"})
    show(bob, {"status": "away"})
    bob.socket.close()
    for client in (watcher, holder):
        joined = event(client, "join", "bob", {
            "status": "busy", "persistent": True, "capabilities": ["x"], "advertisement": {"k": 1},
            "wake": {"url": "http://127.0.0.1/none", "timeoutMs": 1000}})
        assert "actor_token_id" not in joined["data"]
        event(client, "update", "bob", {"status": "away"})
        event(client, "leave", "bob")
        client.nothing_else()


def test_waking_is_passed_on(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.ok(type="presence", roomId=ROOM, data={"a": 1})
    event(client, "join", "alice", {"a": 1})
    broker.command("inject", token="tok-alice", frame={
        "type": "presence", "event": "waking",
        "data": {"actor_token_id": "worker", "presence": {"persistent": True}, "status": "waking"}})
    assert event(client, "waking", "worker", {"persistent": True})["data"]["status"] == "waking"


def test_a_watched_room_is_polled_once_for_all(broker: Broker, polled: Daemon, bob: wsclient.Client) -> None:
    with polled.client() as first, polled.client() as second:
        assert first.ok(type="watchPresence", roomId=ROOM)["data"] == []
        assert second.ok(type="watchPresence", roomId=ROOM)["data"] == []
        show(bob, {"n": 1})
        for client in (first, second):
            event(client, "join", "bob", {"n": 1})
        show(bob, {"n": 2})
        for client in (first, second):
            event(client, "update", "bob", {"n": 2})
        second.ok(type="unwatchPresence", roomId=ROOM)
        show(bob, {"n": 3}, room="general")
        event(first, "leave", "bob")
        second.nothing_else()
        first.ok(type="unwatchPresence", roomId=ROOM)
        before = fetched(broker)
        show(bob, {"n": 4})
        first.ok(type="getPresence", roomId="general")
        assert fetched(broker) == before + 1
        first.nothing_else()


def test_the_newest_shows_and_the_older_one_returns(broker: Broker, connect: Connect) -> None:
    first, second, third = connect(), connect(), connect()
    first.ok(type="presence", roomId=ROOM, data={"n": 1})
    second.ok(type="presence", roomId=ROOM, data={"n": 2})
    third.ok(type="presence", roomId=ROOM, data={"n": 3})
    assert shown(broker)["data"] == {"n": 3}
    third.close()
    wait_until(lambda: shown(broker)["data"] == {"n": 2}, "the one before returns")
    first.ok(type="clearPresence", roomId=ROOM)
    assert shown(broker)["data"] == {"n": 2}
    second.close()
    wait_until(lambda: shown(broker)["data"] is None, "none is left")
    assert announced(broker) == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 2}, None]


def test_one_room_for_all(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    first, second = connect(), connect()
    first.ok(type="presence", roomId=ROOM, data={"n": 1})
    refused = second.refused("wish_conflict", type="presence", roomId="general", data={"n": 2})
    assert refused["roomId"] == "general"
    second.ok(type="presence", roomId=ROOM, data={"n": 3})
    first.refused("wish_conflict", type="presence", roomId="general", data={"n": 4})
    second.ok(type="clearPresence")
    show(bob, {"in": "general"}, room="general")
    first.waiting.clear()
    first.ok(type="presence", roomId="general", data={"n": 5})
    assert shown(broker) == {"room": "room-general", "data": {"n": 5}}
    assert first.receive(type="presence", event="join", roomId="general")["actorTokenId"] == "alice"
    show(bob, {"in": "both"}, room="general")
    line = first.receive(type="presence", event="update", roomId="general")
    assert line["actorTokenId"] == "bob"


def test_unknown_room(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url, request_timeout="200ms")}) as daemon:
        daemon.wait_status()
        with daemon.client() as client, daemon.client() as other:
            refused = client.refused("unknown_room", type="presence", roomId="nowhere", data={"n": 1})
            assert refused["roomId"] == "nowhere"
            client.refused("not_present", type="clearPresence")
            client.ok(type="presence", roomId=ROOM, data={"n": 2})
            client.refused("unknown_room", type="presence", roomId="nowhere", data={"n": 3})
            # What was there before still is.
            assert shown(broker) == {"room": "room-ops", "data": {"n": 2}}
            other.ok(type="presence", roomId=ROOM, data={"n": 4})
            other.close()
            wait_until(lambda: shown(broker)["data"] == {"n": 2}, "the older one returns")


@pytest.mark.parametrize("watching", [True, False])
def test_after_an_outage_only_true_differences(broker: Broker, connect: Connect, daemon: Daemon,
                                               bob: wsclient.Client, watching: bool) -> None:
    client = connect()
    show(bob, {"n": 1})
    client.ok(type="presence", roomId=ROOM, data={"me": 1})
    event(client, "join", "alice", {"me": 1})
    if watching:
        assert len(client.ok(type="watchPresence", roomId=ROOM)["data"]) == 2
    wait_until(lambda: len(client.ok(type="listPresence", roomId=ROOM)["data"]) == 2, "bob is known")
    client.ok(type="events", only=["presence", "reconnect"])
    broker.command("stop_listening")
    broker.command("drop", token="tok-alice")
    wait_until(lambda: client.ok(type="listPresence", roomId=ROOM)["stale"], "the cache is stale")
    assert len(client.ok(type="listPresence", roomId=ROOM)["data"]) == 2
    assert client.ok(type="getActor", actorTokenId="bob")["stale"] is True
    broker.command("listen")
    client.receive(type="reconnect")
    wait_until(lambda: not client.ok(type="listPresence", roomId=ROOM)["stale"], "the cache is fresh")
    assert shown(broker)["data"] == {"me": 1}
    client.nothing_else()
    broker.command("stop_listening")
    broker.command("drop", token="tok-alice")
    daemon.wait_status("reconnecting")
    show(bob, {"n": 2})
    broker.command("listen")
    client.receive(type="reconnect")
    event(client, "update", "bob", {"n": 2})
    client.nothing_else()


def test_what_is_asked_while_down(broker: Broker, connect: Connect, daemon: Daemon,
                                  bob: wsclient.Client) -> None:
    client, watcher = connect(), connect()
    show(bob, {"n": 1})
    broker.command("stop_listening")
    broker.command("drop", token="tok-alice")
    daemon.wait_status("reconnecting")
    assert client.ok(type="presence", roomId=ROOM, data={"me": 1})["pending"] is True
    assert watcher.ok(type="watchPresence", roomId=ROOM)["pending"] is True
    watcher.send(type="getPresence", roomId=ROOM, id="later")
    broker.command("listen")
    names = [a["actorTokenId"] for a in watcher.receive(id="later")["data"]]
    assert "bob" in names
    told = {watcher.receive(type="presence", event="join")["actorTokenId"] for _ in range(2)}
    assert told == {"alice", "bob"}
    wait_until(lambda: shown(broker)["data"] == {"me": 1}, "announced")


def test_another_connection_of_an_actor_stays(broker: Broker, connect: Connect,
                                              bob: wsclient.Client) -> None:
    client = connect()
    client.ok(type="presence", roomId=ROOM, data={"me": 1})
    event(client, "join", "alice", {"me": 1})
    show(bob, {"n": 1})
    event(client, "join", "bob", {"n": 1})
    twin = wsclient.Client(broker.url, "tok-bob")
    show(twin, {"n": 2})
    event(client, "update", "bob", {"n": 2})
    before = fetched(broker)
    twin.close()
    wait_until(lambda: fetched(broker) == before + 1, "the room is fetched")
    # The other connection shows something else; it is no leave.
    event(client, "update", "bob", {"n": 1})
    client.nothing_else()


def test_null_of_another_connection_is_no_leave(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    client = connect()
    client.ok(type="presence", roomId=ROOM, data={"me": 1})
    event(client, "join", "alice", {"me": 1})
    show(bob, {"n": 1})
    event(client, "join", "bob", {"n": 1})
    twin = wsclient.Client(broker.url, "tok-bob")
    show(twin, {"n": 2})
    event(client, "update", "bob", {"n": 2})
    before = fetched(broker)
    bob.send({"type": "presence", "roomId": ROOM, "data": None})
    wait_until(lambda: fetched(broker) == before + 1, "the room is fetched")
    broker.settle()
    actors = client.ok(type="listPresence", roomId=ROOM)["data"]
    assert {a["actorTokenId"]: a["presence"] for a in actors}["bob"] == {"n": 2}
    client.nothing_else()
    twin.close()


def test_a_leave_during_a_move_that_fails(broker: Broker, bob: wsclient.Client) -> None:
    twin = wsclient.Client(broker.url, "tok-alice")
    twin.send({"type": "presence", "roomId": ROOM, "data": {"twin": 1}})
    with Daemon({"default": alice(broker.url, request_timeout="1s")}) as daemon, daemon.client() as client:
        daemon.wait_status()
        client.ok(type="presence", roomId=ROOM, data={"me": 1})
        client.send(type="presence", roomId="nowhere", data={"me": 2}, id="move")
        wait_until(lambda: {"me": 2} in announced(broker), "the move is asked for")
        twin.close()
        assert client.receive(id="move")["error"] == "unknown_room"
        show(bob, {"n": 1})
        assert client.receive(type="presence", actorTokenId="bob")["roomId"] == ROOM


def test_our_own_leave_makes_us_announce_again(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.ok(type="presence", roomId=ROOM, data={"me": 1})
    twin = wsclient.Client(broker.url, "tok-alice")
    twin.send({"type": "presence", "roomId": ROOM, "data": {"twin": 1}})
    client.receive(type="presence", event="update")
    twin.close()
    wait_until(lambda: announced(broker).count({"me": 1}) == 2, "announced again")
    assert client.receive(type="presence", event="update")["data"]["presence"] == {"me": 1}


def test_presence_without_a_room_is_passed_on(broker: Broker, connect: Connect) -> None:
    client = connect()
    assert client.ok(type="presence", data={"legacy": 1})["type"] == "presenceSet"
    client.ok(type="getPresence", roomId=ROOM)  # the broker answers in order
    assert [r["frame"] for r in broker.received("presence", token="tok-alice")] == [
        {"type": "presence", "data": {"legacy": 1}}]
    client.refused("not_present", type="clearPresence")


BAD = [
    ({"type": "presence", "roomId": "ops", "data": "text"}, "bad_field", "data"),
    ({"type": "presence", "roomId": "ops", "data": [1]}, "bad_field", "data"),
    ({"type": "presence", "roomId": "ops"}, "missing_field", "data"),
    ({"type": "presence", "roomId": "a/b", "data": {}}, "bad_field", "roomId"),
    ({"type": "presence", "roomId": 7, "data": {}}, "bad_field", "roomId"),
    ({"type": "presence", "roomId": "", "data": {}}, "bad_field", "roomId"),
    ({"type": "presence", "roomId": "ä", "data": {}}, "bad_field", "roomId"),
    ({"type": "presence", "roomId": "ops", "data": {"x": {"$bytes": "/w=="}}}, "bad_payload", None),
    ({"type": "presence", "roomId": "ops", "data": {"$str": "/w=="}}, "bad_payload", None),
    ({"type": "presence", "roomId": "ops", "data": {"x": "y" * 70000}}, "bad_payload", None),
    ({"type": "watchPresence"}, "missing_field", "roomId"),
    ({"type": "unwatchPresence", "roomId": "ops"}, "not_watched", None),
    ({"type": "clearPresence"}, "not_present", None),
    ({"type": "clearPresence", "roomId": "ops"}, "not_present", None),
    ({"type": "presence", "roomId": "ops", "data": None}, "not_present", None),
    ({"type": "getActor", "roomId": "ops"}, "missing_field", "actorTokenId"),
    ({"type": "getActor", "actorTokenId": 7}, "bad_field", "actorTokenId"),
    ({"type": "getPresence", "roomId": ["ops"]}, "bad_field", "roomId"),
    ({"type": "getPresence", "room": "ops", "topic": "a/b/c"}, "bad_field", "topic"),
]


def test_bad_input_changes_nothing(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    client = connect()
    show(bob, {"n": 1})
    for _ in range(2):
        for request, error, field in BAD:
            answer = client.refused(error, **dict(request))
            assert answer.get("field") == field and answer["request"] == request["type"], answer
            assert answer["hint"]
    deep: Any = {}
    for _ in range(40):
        deep = {"d": deep}
    client.refused("bad_payload", type="presence", roomId=ROOM, data=deep)
    client.nothing_else()
    assert announced(broker) == [] and fetched(broker) == 0
    assert len([c for c in broker.state() if c["token"] == "tok-alice"]) == 1
    assert bob.ask({"type": "getPresence", "roomId": ROOM})["data"]


def test_what_makes_the_broker_close_is_given_up(broker: Broker, connect: Connect, daemon: Daemon) -> None:
    client, other = connect(), connect()
    other.ok(type="presence", roomId=ROOM, data={"n": 1})
    broker.command("drop_at", type="presence", token="tok-alice", code=1011, when="receipt", count=2)
    client.send(type="presence", roomId=ROOM, data={"poison": 1}, id="p")
    assert client.receive(id="p")["pending"] is True
    assert client.receive(type="error", error="broker_rejected")["roomId"] == ROOM
    daemon.wait_status()
    wait_until(lambda: (shown(broker) or {}).get("data") == {"n": 1}, "the older one shows")
    client.refused("not_present", type="clearPresence")


def test_a_poison_publish_costs_nobody_a_presence(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as holder, daemon.client() as publisher:
            holder.ok(type="presence", roomId=ROOM, data={"n": 1})
            poison = {"type": "publish", "topic": "demo/ops/events", "data": {"$bytes": "/w=="}}
            publisher.refused("broker_rejected", **poison)
            # Both on their way at once.
            holder.send(type="presence", roomId=ROOM, data={"n": 2}, id="p")
            assert holder.receive(id="p")["type"] == "presenceSet"
            daemon.wait_status()
            wait_until(lambda: (shown(kraken) or {}).get("data") == {"n": 2}, "it shows")
            assert not [line for line in holder.waiting if line["type"] == "error"]


def test_a_presence_on_its_way_at_a_poison_publish(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            # One write: the broker closes for the second before it has told us our own event of the first.
            client.write(b'{"type":"presence","roomId":"ops","data":{"n":1},"id":"p"}\n'
                         b'{"type":"publish","topic":"demo/ops/events","data":{"$bytes":"/w=="},"id":"b"}\n')
            assert client.receive(id="p")["type"] == "presenceSet"
            assert client.receive(id="b")["error"] == "broker_rejected"
            daemon.wait_status()
            wait_until(lambda: (shown(kraken) or {}).get("data") == {"n": 1}, "it shows")
            assert not [line for line in client.waiting if line["type"] == "error"]


@pytest.mark.parametrize("limit", ["max_watches", "max_watches_per_uid"])
def test_watches_are_bounded(kraken: Broker, limit: str) -> None:
    with Daemon({"default": alice(kraken.url)}, {limit: 2}) as daemon:
        daemon.wait_status()
        with daemon.client() as client, daemon.client() as other:
            client.ok(type="watchPresence", roomId="a")
            client.ok(type="watchPresence", roomId="b")
            client.ok(type="watchPresence", roomId="b")
            assert limit in client.refused("limit_reached", type="watchPresence", roomId="c")["hint"]
            client.refused("limit_reached", type="lobbySubscribe", lobbyId="all")
            answer = other.request(type="watchPresence", roomId="a")
            assert answer["type"] == ("presenceWatched" if limit == "max_watches" else "error")
            client.ok(type="unwatchPresence", roomId="a")
            client.ok(type="watchPresence", roomId="c")


def test_a_question_without_an_answer_times_out(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url, request_timeout="200ms")}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            broker.command("mute", type="getPresence", count=1)
            client.refused("timeout", type="getPresence", roomId=ROOM)
            assert client.ok(type="getPresence", roomId=ROOM)["data"] == []
