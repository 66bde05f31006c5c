# SPDX-License-Identifier: Apache-2.0
"""Lobbies of a session shared by many local clients."""

import json
from pathlib import Path
from typing import Any, Callable

import wsclient
from control import AUTH, Broker
from harness import Client, Daemon, Json, alice, wait_until

Connect = Callable[..., Client]


def asked(broker: Broker, *types: str) -> list[str]:
    broker.settle()
    return [r["type"] for r in broker.received(*types, token="tok-alice")]


def show(client: wsclient.Client, data: Any, room: str = "ops") -> None:
    client.send({"type": "presence", "roomId": room, "data": data}, wsclient.HEARTBEAT)
    while client.recv() != wsclient.HEARTBEAT:
        pass


def event(client: Client, what: str, actor: str, data: Any, room: str = "ops", lobby: str = "all") -> None:
    line = client.receive(type="lobbyPresence")
    assert line == {"type": "lobbyPresence", "event": what, "lobbyId": lobby, "roomId": room,
                    "actorId": actor, "data": data}, line


def presences(snapshot: Json) -> Json:
    return {room: {actor: entry["presence"] for actor, entry in actors.items()}
            for room, actors in snapshot["presence"].items()}


def test_subscribe_and_events(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    client = connect()
    answer = client.ok(type="lobbySubscribe", lobbyId="all")
    assert answer["type"] == "lobbySubscribed" and answer["lobbyId"] == "all"
    assert answer["presence"] == {"general": {}, "ops": {}}
    show(bob, {"status": "busy"})
    event(client, "join", "bob", {"status": "busy"})
    show(bob, {"status": "away"})
    event(client, "update", "bob", {"status": "away"})
    answer = client.ok(type="getLobbyPresence", lobbyId="all")
    assert answer["type"] == "lobbyPresenceList"
    assert presences(answer) == {"general": {}, "ops": {"bob": {"status": "away"}}}
    entry = answer["presence"]["ops"]["bob"]
    assert entry["actorTokenId"] == "bob" and isinstance(entry["joinedAt"], int)
    show(bob, {"status": "away"}, room="general")
    lines = [client.receive(type="lobbyPresence") for _ in range(2)]
    assert {(line["event"], line["roomId"]) for line in lines} == {("leave", "ops"), ("join", "general")}
    show(bob, None, room="general")
    event(client, "leave", "bob", {}, room="general")
    client.nothing_else()
    assert client.ok(type="lobbyUnsubscribe", lobbyId="all")["type"] == "lobbyUnsubscribed"
    show(bob, {"status": "back"})
    client.nothing_else()


def test_every_joiner_has_a_snapshot(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    show(bob, {"n": 1})
    clients = [connect() for _ in range(5)]
    for client in clients:
        # The broker's own first snapshot may be empty; what a client gets is not.
        assert presences(client.ok(type="lobbySubscribe", lobbyId="all"))["ops"] == {"bob": {"n": 1}}
    assert asked(broker, "lobbySubscribe") == ["lobbySubscribe"]
    show(bob, {"n": 2})
    for client in clients:
        event(client, "update", "bob", {"n": 2})
        client.nothing_else()
    for client in clients[:-1]:
        client.ok(type="lobbyUnsubscribe", lobbyId="all")
        client.ok(type="lobbyUnsubscribe", lobbyId="all")
    assert asked(broker, "lobbyUnsubscribe") == []
    clients[-1].close()
    broker.wait_for(what="received", type="lobbyUnsubscribe", token="tok-alice")
    assert asked(broker, "lobbyUnsubscribe") == ["lobbyUnsubscribe"]


def test_refused(broker: Broker, connect: Connect) -> None:
    client = connect()
    for _ in range(2):
        refused = client.refused("not_authorized", type="lobbySubscribe", lobbyId="nope")
        assert refused["lobbyId"] == "nope" and refused["request"] == "lobbySubscribe"
        assert client.refused("not_authorized", type="getLobbyPresence", lobbyId="nope")["lobbyId"] == "nope"
    for bad in ("", "a/b", "#", 7, ["all"], "x" * 129):
        for request in ("lobbySubscribe", "lobbyUnsubscribe", "getLobbyPresence"):
            assert client.refused("bad_field", type=request, lobbyId=bad)["field"] == "lobbyId"
            client.refused("missing_field", type=request)
    client.half_close()
    assert client.ended() == []


def test_after_an_outage_only_true_differences(broker: Broker, connect: Connect, daemon: Daemon,
                                               bob: wsclient.Client) -> None:
    client, late = connect(), connect()
    show(bob, {"n": 1})
    client.ok(type="lobbySubscribe", lobbyId="all")
    for n, told in ((1, False), (2, True)):
        broker.command("stop_listening")
        broker.command("drop", token="tok-alice")
        daemon.wait_status("reconnecting")
        if told:
            show(bob, {"n": n})
            assert late.ok(type="lobbySubscribe", lobbyId="all")["pending"] is True
        broker.command("listen")
        client.receive(type="reconnect")
        # Behind the lists that follow the reconnect.
        wait_until(lambda: asked(broker, "getLobbyPresence").count("getLobbyPresence") >= n + 1, "listed")
        client.ok(type="getLobbyPresence", lobbyId="all")
        if told:
            event(client, "update", "bob", {"n": n})
            event(late, "join", "bob", {"n": n})
        assert [line["type"] for line in client.waiting] == ["disconnect"] * len(client.waiting)
        client.waiting.clear()


def test_a_lobby_refused_later_is_an_event(broker: Broker, connect: Connect, daemon: Daemon) -> None:
    client = connect()
    broker.command("stop_listening")
    broker.command("drop", token="tok-alice")
    daemon.wait_status("reconnecting")
    assert client.ok(type="lobbySubscribe", lobbyId="nope")["pending"] is True
    broker.command("listen")
    assert client.receive(type="error", error="not_authorized")["lobbyId"] == "nope"
    client.half_close()
    assert all(line["type"] in ("connect", "reconnect", "disconnect") for line in client.ended())


def two_lobbies(folder: Path) -> Path:
    """The usual tokens, with a second lobby."""
    grants = json.loads(Path(AUTH).read_text())
    for grant in grants["tokens"].values():
        grant["allowedLobbies"].append({"lobby_slug": "more", "lobby_id": "lobby-more"})
    path = folder / "auth.json"
    path.write_text(json.dumps(grants))
    return path


def test_two_lobbies_with_the_same_rooms(tmp_path: Path) -> None:
    """Where the broker's ids cannot be told apart each client still gets what its own lobby says."""
    with Broker(auth=two_lobbies(tmp_path)) as broker, Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        bob = wsclient.Client(broker.url, "tok-bob")
        with daemon.client() as client:
            client.ok(type="lobbySubscribe", lobbyId="all")
            client.ok(type="lobbySubscribe", lobbyId="more")
            for n, what in ((1, "join"), (2, "update")):
                show(bob, {"n": n})
                lines = [client.receive(type="lobbyPresence", event=what, roomId="ops") for _ in range(2)]
                assert {line["lobbyId"] for line in lines} == {"all", "more"}
                assert all(line["data"] == {"n": n} for line in lines)
            client.nothing_else()
        bob.socket.close()


def test_a_question_without_an_answer_times_out(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url, request_timeout="200ms")}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            broker.command("mute", type="lobbySubscribe", count=1)
            client.refused("timeout", type="lobbySubscribe", lobbyId="all")
            assert client.ok(type="lobbySubscribe", lobbyId="all")["presence"]
