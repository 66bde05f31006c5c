# SPDX-License-Identifier: Apache-2.0
"""The recorded conversations about presence hold for a local client: alice speaks lines to nolagd, bob frames.

What nolagd changes on purpose, and `translate` so takes into account:

- A join and the update behind it with the same data are one event.
- Events say their room, and the actor as actorTokenId, as lists do.
- Who shows null is not there: not in a list, and an update to null is a leave.
- A lobby's events have the name that was subscribed to, and the answer to lobbySubscribe all of its rooms.
- A presence in an unknown room is told to be so.
"""

import json
from pathlib import Path
from typing import Any, Iterator, Optional

import pytest
import wsclient
from control import Broker
from harness import ROOT, Client, Daemon, Json, alice

TRANSCRIPTS = ROOT / "tests" / "broker" / "transcripts"
ANSWERED = {"getPresence": "presenceList", "lobbySubscribe": "lobbySubscribed",
            "lobbyUnsubscribe": "lobbyUnsubscribed", "getLobbyPresence": "lobbyPresenceList"}


def steps(name: str) -> list[Json]:
    lines = Path(TRANSCRIPTS / f"{name}.jsonl").read_text().splitlines()
    found = [step for step in map(json.loads, lines) if step.get("frame", {}).get("type") != "auth"]
    # A close is noted when it is complete: behind the leave that it causes.
    for i, (step, after) in enumerate(zip(found, found[1:])):
        if step.get("frame", {}).get("event") == "leave" and after["dir"] == "close":
            found[i], found[i + 1] = after, step
    return found


def actors(entries: list[Json]) -> dict[str, Any]:
    return {e["actorTokenId"]: (e["presence"], e.get("status")) for e in entries if e["presence"] is not None}


def rooms(presence: Json) -> Json:
    return {room: {actor: entry["presence"] for actor, entry in found.items()}
            for room, found in presence.items() if found}


def comparable(line: Json) -> Json:
    """A line of nolagd or a translated frame, without what varies."""
    if line["type"] == "presenceList":
        return {"type": line["type"], "roomId": line.get("roomId"), "data": actors(line["data"])}
    if line["type"] == "presence":
        return {"type": line["type"], "event": line["event"], "roomId": line["roomId"],
                "actor": line["actorTokenId"], "presence": line["data"].get("presence")}
    if "presence" in line:
        return {"type": line["type"], "lobbyId": line["lobbyId"], "presence": rooms(line["presence"])}
    return {k: line.get(k) for k in ("type", "event", "lobbyId", "roomId", "actorId", "data", "error")}


class Translation:
    """From the frames that a plain client of the broker got to the lines of a local client."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {}

    def line(self, frame: Json, room: Optional[str]) -> Optional[Json]:
        if frame["type"] == "presence":
            data = dict(frame["data"])
            data["actorTokenId"] = actor = data.pop("actor_token_id")
            if frame["event"] != "leave" and self.shown.get(actor) == data["presence"]:
                return None
            self.shown[actor] = data.get("presence")
            return {**frame, "data": data, "roomId": room, "actorTokenId": actor}
        if frame["type"] == "lobbyPresence":
            if frame["event"] != "leave" and self.shown.get(frame["actorId"]) == frame["data"]:
                return None
            self.shown[frame["actorId"]] = frame["data"]
            return {**frame, "lobbyId": "all"}
        return frame


def as_alice(client: Client, frame: Json, number: int) -> Optional[str]:
    """Sends it, and returns the room of a presence."""
    client.send(**frame, **({"id": number} if frame["type"] in ANSWERED else {}))
    return frame.get("roomId") if frame["type"] == "presence" else None


def as_bob(bob: wsclient.Client, step: Json) -> None:
    if step["dir"] == "close":
        bob.socket.close()
        return
    bob.send(step["frame"], wsclient.HEARTBEAT)
    while bob.recv() != wsclient.HEARTBEAT:
        pass


@pytest.fixture
def quick(broker: Broker) -> Iterator[Daemon]:
    with Daemon({"default": alice(broker.url, request_timeout="300ms")}) as running:
        running.wait_status()
        yield running


@pytest.mark.parametrize("name", ["presence_room", "presence_persistent_fields", "lobby"])
def test_recorded(quick: Daemon, bob: wsclient.Client, name: str) -> None:
    translation, room, checked = Translation(), None, 0
    with quick.client() as client:
        for number, step in enumerate(steps(name)):
            if step["peer"] == "bob" and step["dir"] != "recv":
                as_bob(bob, step)
            elif step["peer"] == "alice" and step["dir"] == "send":
                room = as_alice(client, step["frame"], number) or room
            elif step["peer"] == "alice" and step["dir"] == "recv":
                line = translation.line(step["frame"], "ops" if room == "no-such-room" else room)
                if line is None:
                    continue
                got = client.receive(type=line["type"])
                assert comparable(got) == comparable(line), (got, line)
                checked += 1
        if room == "no-such-room":
            assert client.receive(type="error")["error"] == "unknown_room"
        client.nothing_else()
    assert checked >= 3
