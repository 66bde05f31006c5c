# SPDX-License-Identifier: Apache-2.0
"""Every recorded conversation, replayed: the stand-in says what the broker said.

What was sent is sent byte for byte. What was received must come to the same peer,
in the same order, with the same content and types, and nothing else may come. May
differ: map order, joinedAt, which new msgId stands for a recorded one (but the
same one stands for it everywhere), who gets a load-balanced message, and the order
between peers.
"""

import json
import re
import time
import uuid
from pathlib import Path

import msgpack
import pytest
from wsclient import Client, recv_any, unpack

FOLDER = Path(__file__).parent / "transcripts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
FENCE = {"type": "fence"}
VARIES = {"msgId": type, "joinedAt": type}


def load(name):
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return closes_before_leaves([json.loads(line) for line in lines])


def closes_before_leaves(steps):
    """The recorder noted a client's close behind the `leave` which it caused."""
    ordered = []
    for step in steps:
        at = len(ordered)
        if step["dir"] == "close" and step["code"] == 1000:
            while is_leave_of_another(ordered[at - 1], step):
                at -= 1
        ordered.insert(at, step)
    return ordered


def is_leave_of_another(step, close):
    frame = step.get("frame")
    return (step["dir"] == "recv" and step["peer"] != close["peer"]
            and isinstance(frame, dict) and frame.get("event") == "leave")


def sent_bytes(step):
    if "..." not in step["hex"]:
        return bytes.fromhex(step["hex"])
    letters = int(re.search(r"\d+", step["note"]).group())
    return msgpack.packb({**step["frame"], "data": "x" * letters})


def typed(value):
    """A value in which 1, 1.0 and True, 0.0 and -0.0 are different, and maps have no order."""
    if isinstance(value, dict):
        return {(type(key).__name__, repr(key)): typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, repr(value)


class Replay:
    """One conversation with one broker."""

    def __init__(self, broker, name):
        self.broker = broker
        self.name = name
        self.peers = {}
        self.ids = {}  # recorded msgId -> the one received here

    def run(self, steps):
        for index, step in enumerate(steps):
            self.one(step, steps[index - 1] if index else None, steps[index + 1:])

    def one(self, step, before, after):
        if step["dir"] == "send":
            self.send(step, before, after)
        elif step["dir"] == "recv":
            self.check(step, self.receive(step))
        else:
            self.close(step)

    def send(self, step, before, after):
        """What follows directly from the same peer goes out in the same write."""
        if before is not None and before["dir"] == "send" and before["peer"] == step["peer"]:
            return
        name = step["peer"]
        batch = [sent_bytes(step)]
        for later in after:
            if later["dir"] != "send" or later["peer"] != name:
                break
            batch.append(sent_bytes(later))
        if name not in self.peers:
            self.peers[name] = Client(self.broker.url)
        self.peers[name].send(*batch)

    def receive(self, step):
        peer = step["peer"]
        if self.name == "load_balance" and step["frame"]["type"] == "message":
            return recv_any([self.peers["worker0"], self.peers["worker1"]])
        return self.peers[peer].recv()

    def check(self, step, frame):
        assert "..." not in step["hex"]
        expected = unpack(bytes.fromhex(step["hex"]))
        assert typed(self.comparable(frame)) == typed(self.comparable(expected)), step["frame"]
        if isinstance(expected, dict) and "msgId" in expected:
            self.check_id(expected["msgId"], frame["msgId"])

    def comparable(self, value):
        """Without what differs from run to run."""
        if isinstance(value, list):
            return [self.comparable(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {key: VARIES[key](item) if key in VARIES else self.comparable(item)
                for key, item in value.items()}

    def check_id(self, recorded, received):
        assert uuid.UUID(received).version == 4
        assert self.ids.setdefault(recorded, received) == received
        assert len(set(self.ids.values())) == len(self.ids)

    def close(self, step):
        client = self.peers[step["peer"]]
        if step["code"] != 1000:
            closed = client.wait_closed()
            assert (closed.code, closed.reason) == (step["code"], step["reason"])
        else:
            self.fence()
            client.close()
            assert (client.closed.code, client.closed.reason) == (1000, "")
        del self.peers[step["peer"]]
        self.broker.settle()

    def fence(self):
        """Nobody has received anything that was not in the transcript."""
        authenticated = [each for name, each in self.peers.items() if name != "mallory"]
        for client in authenticated:
            client.send(b"")
        for client in authenticated:
            assert client.recv() == b""
        self.broker.settle()
        self.broker.inject(frame=FENCE)
        for client in self.peers.values():
            assert client.recv() == FENCE


class RateReplay(Replay):
    """Which of the publishes fit into the second varies; their number does not."""

    published = 0

    def send(self, step, before, after):
        if step["frame"]["type"] == "publish":
            while time.time() % 1 > 0.5:  # all of them must fit into one second
                time.sleep(0.01)
        super().send(step, before, after)

    def check(self, step, frame):
        if step["frame"]["type"] == "auth":
            return super().check(step, frame)
        topic, ref = step["frame"]["topic"], step["frame"]["msgRef"]
        if frame["type"] == "published":
            self.published += 1
            assert frame == {"type": "published", "topic": topic, "msgRef": ref}
        else:
            assert frame == {"type": "error", "error": "rate_limit_exceeded", "code": 42910,
                             "topic": topic, "msgRef": ref}

    def run(self, steps):
        super().run(steps)
        assert self.published == 50


@pytest.mark.parametrize("name", NAMES)
def test_transcript(broker, name):
    replay = (RateReplay if name == "rate_limit" else Replay)(broker, name)
    replay.run(load(name))
    assert replay.peers == {}


def test_all_transcripts_are_here():
    assert len(NAMES) == 30
