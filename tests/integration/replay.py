# SPDX-License-Identifier: Apache-2.0
"""Replays recorded conversations with the broker, with local clients in the place of some of its clients."""

import json
from pathlib import Path

import wsclient
from control import Broker
from harness import Client, Json

TRANSCRIPTS = Path(__file__).resolve().parents[1] / "broker" / "transcripts"


def load(name: str) -> list[Json]:
    return [json.loads(line) for line in (TRANSCRIPTS / f"{name}.jsonl").read_text().splitlines()]


def shown(frame: Json) -> Json:
    """What a local client is told of a message of the transcript."""
    line = {key: frame[key] for key in ("type", "topic", "data", "requiresAck", "filter") if key in frame}
    if line.get("filter") == "#":
        del line["filter"]
        line["filterHidden"] = True
    return line


class Replay:
    def __init__(self, broker: Broker, clients: dict[str, Client], steps: list[Json]) -> None:
        self.broker, self.clients = broker, clients
        self.others: dict[str, wsclient.Client] = {}
        self.had: set[str] = set()
        self.steps = steps

    def run(self) -> None:
        for step in self.steps:
            if step["peer"] in self.clients:
                self.local_step(step)
            else:
                self.other_step(step)

    def local_step(self, step: Json) -> None:
        frame, client = step.get("frame"), self.clients[step["peer"]]
        if step["dir"] == "close" or frame["type"] == "auth":
            return
        if step["dir"] == "send":
            client.send(**{**frame, "id": 1})
        elif frame["type"] == "error":
            assert client.receive(id=1)["type"] == "error"
        elif frame["type"] != "message":
            answer = client.receive(id=1)
            assert answer.items() >= frame.items(), (answer, frame)
        elif frame["msgId"] not in self.had:
            self.had.add(frame["msgId"])
            line = client.message(frame["data"])
            assert {k: v for k, v in line.items() if k != "msgId"} == shown(frame)

    def other_step(self, step: Json) -> None:
        if step["dir"] == "send":
            if step["peer"] not in self.others:
                self.others[step["peer"]] = wsclient.Client(self.broker.url)
            self.broker.settle()
            self.others[step["peer"]].send(step["frame"])
        elif step["dir"] == "recv":
            self.others[step["peer"]].recv()
        else:
            for client in self.clients.values():
                client.nothing_else()
            self.others.pop(step["peer"]).close()
