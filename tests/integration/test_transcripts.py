# SPDX-License-Identifier: Apache-2.0
"""What a plain client of the broker got in a recorded conversation, a local client gets, too.

What nolagd changes on purpose, and the cases below list where it does:

- Who publishes does not get its own message, unless the session has own_messages = echo. `echo` has no effect.
- What another local client of the session publishes comes with `from`, and without msgId, requiresAck and filter.
- Local workers are one member of the broker's group, and take turns. What the session itself publishes a group gets
  when the broker sends it back, whatever `echo` says.
- Filters that are not valid, or too many, nolagd refuses itself, under names of its own. "a|b" is an AND group, and
  filters that are no list are refused.
- Messages are acknowledged by nolagd. Who wants to do it says so, and who does not has nothing to acknowledge.
- Answers tell more, a publish without id or msgRef has none.
"""

import copy
from dataclasses import dataclass, field
from typing import Iterator, Optional

import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, Json, alice
from replay import Replay, load, shown

TOPIC = "demo/ops/events"
WORKERS = ["worker0", "worker1"]
REFUSED = {"invalid_filter_chars (/, #, +, | not allowed)": ("bad_filter", 43013),
           "too_many_filters (max 100)": ("too_many_filters", 43014)}
ANSWERED = {"subscribe", "batchAck"}


def own(data: str) -> Json:
    """What a local client gets of another one, or of itself."""
    return {"type": "message", "topic": TOPIC, "data": data, "from": "alice"}


def balanced(data: str) -> Json:
    return {"type": "message", "topic": TOPIC, "data": data, "requiresAck": True}


@dataclass
class Case:
    name: str
    local: list[str]
    """Who is a local client; all have the same token."""
    keys: Json = field(default_factory=dict)
    """Of the session."""
    subscribe: Json = field(default_factory=dict)
    """More fields of a local client's subscribe."""
    messages: dict[tuple[str, str], Optional[Json]] = field(default_factory=dict)
    """By local peer and data: what comes in the place of what the transcript has. None: nothing. What it does not
    have comes behind the publish."""
    answers: dict[int, Json] = field(default_factory=dict)
    """By the number of the request with an answer: another one than in the transcript."""

    def __str__(self) -> str:
        return "-".join([self.name, *self.local, *self.keys.values(), *map(str, self.subscribe.values())])


ECHO = {"own_messages": "echo"}
BAD_LIST = {"type": "error", "error": "bad_field", "code": 43011, "field": "filters", "topic": TOPIC}
AND_GROUP = {"type": "subscribed", "topic": TOPIC, "loadBalance": False, "filters": [["a", "b"]]}
MANUAL = {"ack": "manual"}

CASES = [
    Case("load_balance", WORKERS),
    Case("load_balance", ["worker0"]),
    Case("load_balance", ["worker1"]),
    Case("load_balance", ["alice"]),
    Case("load_balance", WORKERS, subscribe=MANUAL | {"prefetch": 9}),
    Case("load_balance_self_publish", ["alice"],
         messages={("alice", "own-echo-false"): balanced("own-echo-false")}),
    Case("load_balance_self_publish", ["alice"], ECHO,
         messages={("alice", "own-echo-false"): balanced("own-echo-false")}),
    Case("echo_to_self", ["alice"], messages={("alice", "echo-true"): None}),
    Case("echo_to_self", ["alice"], ECHO, messages={("alice", d): own(d) for d in ("echo-true", "echo-false")}),
    Case("echo_two_connections_one_token", ["alice-1", "alice-2"], messages={
        ("alice-1", "echo-true"): None, ("alice-2", "echo-true"): own("echo-true"),
        ("alice-2", "echo-false"): own("echo-false")}),
    Case("echo_two_connections_one_token", ["alice-1", "alice-2"], ECHO, messages={
        (peer, d): own(d) for peer in ("alice-1", "alice-2") for d in ("echo-true", "echo-false")}),
    Case("echo_two_connections_one_token", ["alice-1"], messages={("alice-1", "echo-true"): None}),
    Case("echo_two_connections_one_token", ["alice-2"]),
    Case("filters_101", ["alice"]),
    Case("filters_invalid", ["alice"], answers={3: AND_GROUP, 7: BAD_LIST}),
    Case("batch_ack", ["alice"]),
    Case("batch_ack", ["bob"], answers={1: {"type": "error", "error": "unknown_ack"}}),
    Case("batch_ack", ["bob"], subscribe=MANUAL, answers={1: {"type": "acknowledged"}}),
]


def kind(step: Json) -> Optional[str]:
    return step.get("frame", {}).get("type")


def answer_of(frame: Json) -> Json:
    """What nolagd tells where the broker told this."""
    if frame["type"] != "error":
        return frame
    error, code = REFUSED[frame["error"]]
    return {"type": "error", "error": error, "code": code, "topic": frame["topic"]}


def expected(case: Case) -> list[Json]:
    """The transcript as it shall be with local clients: what these receive is in "line"."""
    steps: list[Json] = []
    added = dict(case.messages)
    requests = -1
    for step in load(case.name):
        if step["peer"] not in case.local or step["dir"] == "close" or kind(step) == "auth":
            steps.append(step)
        elif step["dir"] == "send":
            steps.append(step)
            requests += kind(step) in ANSWERED
            if kind(step) == "batchAck":
                steps.append({**step, "dir": "recv", "frame": {}, "line": case.answers[requests]})
        elif kind(step) == "message":
            key = step["peer"], step["frame"]["data"]
            line = added.pop(key, shown(step["frame"]))
            steps += [{**step, "line": line}] if line else []
        elif kind(step) == "published":
            steps.append({**step, "line": step["frame"]})
        else:
            steps.append({**step, "line": case.answers.get(requests, answer_of(step["frame"]))})
    for (peer, data), line in added.items():
        steps.insert(behind(steps, data), {"peer": peer, "dir": "recv", "frame": {"type": "message"}, "line": line})
    return steps


def behind(steps: list[Json], data: str) -> int:
    at = 1 + next(i for i, s in enumerate(steps) if kind(s) == "publish" and s["frame"]["data"] == data)
    while kind(steps[at]) == "published" or (steps[at]["dir"] == "recv" and kind(steps[at]) == "message"):
        at += 1
    return at


class Conversation(Replay):
    def __init__(self, broker: Broker, clients: dict[str, Client], case: Case, steps: list[Json]) -> None:
        super().__init__(broker, clients, steps)
        self.case = case
        self.number = 0
        self.published = 0
        self.ids: dict[str, str] = {}
        """Recorded msgId, and the one that stands for it here."""
        self.shares: dict[str, int] = {}

    def run(self) -> None:
        for step in self.steps:
            if kind(step) == "auth":
                self.auth(step)
            elif step["dir"] == "close":
                self.close(step)
            elif step["dir"] == "send":
                self.published += kind(step) == "publish"
                self.send(step)
            elif kind(step) == "message" and self.case.name == "load_balance":
                self.balanced(step)
            elif step["peer"] in self.clients:
                self.local_receives(step)
            else:
                self.compare(self.others[step["peer"]].recv(), step["frame"])

    def auth(self, step: Json) -> None:
        if step["peer"] in self.clients:
            return
        if step["dir"] == "send":
            self.others[step["peer"]] = wsclient.Client(self.broker.url)
            self.others[step["peer"]].send(step["frame"])
        else:
            assert self.others[step["peer"]].recv()["success"] is True

    def send(self, step: Json) -> None:
        frame = step["frame"]
        if "msgIds" in frame:
            self.quiet()
            frame = {**frame, "msgIds": [self.ids[each] for each in frame["msgIds"]]}
            manual = self.case.subscribe.get("ack") == "manual"
            if step["peer"] in self.clients and not manual:
                self.broker.wait_for(what="acks", count=len(frame["msgIds"]))
            else:
                assert self.broker.acks() == []
        if step["peer"] not in self.clients:
            self.others[step["peer"]].send(frame)
            return
        if kind(step) == "subscribe":
            frame = {**frame, **self.case.subscribe}
        if kind(step) in ANSWERED:
            self.number += 1
            frame = {**frame, "id": self.number}
        self.clients[step["peer"]].send(**frame)

    def local_receives(self, step: Json) -> None:
        client, line = self.clients[step["peer"]], step["line"]
        if line["type"] == "message":
            self.compare(client.message(line["data"]), line, step["frame"].get("msgId"))
            return
        answer = client.receive(**({"msgRef": line["msgRef"]} if "msgRef" in line else {"id": self.number}))
        assert answer.items() >= line.items(), (answer, line)

    def compare(self, got: Json, wanted: Json, recorded: Optional[str] = None) -> None:
        """msgId is another one in each run, but the same one for all who get the message."""
        recorded = recorded or wanted.get("msgId")
        varies = {"msgId"} | ({"ackId"} if self.case.subscribe.get("ack") == "manual" else set())
        assert {k: v for k, v in got.items() if k not in varies} == \
            {k: v for k, v in wanted.items() if k != "msgId"}
        assert ("msgId" in got) == (wanted["type"] == "message" and "from" not in wanted), got
        if "msgId" in got and recorded is not None:
            assert self.ids.setdefault(recorded, got["msgId"]) == got["msgId"]
            assert len(set(self.ids.values())) == len(self.ids)

    def balanced(self, step: Json) -> None:
        """One worker gets it, whoever that is."""
        got = [(peer, line) for peer, lines in self.settled().items() for line in lines]
        assert len(got) == 1 and got[0][0] in WORKERS, got
        peer, line = got[0]
        self.shares[peer] = self.shares.get(peer, 0) + 1
        self.compare(line, shown(step["frame"]) if peer in self.clients else step["frame"], step["frame"]["msgId"])

    def settled(self) -> dict[str, list[Json]]:
        """What has come to each, when all that was published has gone wherever it goes."""
        if self.published:
            self.broker.wait_for(what="accepts", count=self.published)
        self.broker.settle()
        next(iter(self.clients.values())).ok(type="getPresence", roomId="general", id="behind all the broker sent")
        got: dict[str, list[Json]] = {}
        for peer, client in self.clients.items():
            client.request(type="ping", id="fence")
            got[peer], client.waiting = client.waiting, []
        for peer, other in self.others.items():
            other.send(wsclient.HEARTBEAT)
            got[peer] = list(iter(other.recv, wsclient.HEARTBEAT))
        return got

    def quiet(self) -> None:
        got = self.settled()
        assert not any(got.values()), got

    def close(self, step: Json) -> None:
        self.quiet()
        if step["peer"] not in self.clients:
            self.others.pop(step["peer"]).close()


def replay(broker: Broker, case: Case, steps: list[Json]) -> Conversation:
    token = next(s["frame"]["token"] for s in steps if s["peer"] == case.local[0])
    with Daemon({"default": {**alice(broker.url), "token": token, **case.keys}}) as daemon:
        daemon.wait_status()
        clients = {peer: daemon.client() for peer in case.local}
        conversation = Conversation(broker, clients, case, steps)
        try:
            conversation.run()
            check_upstream(broker, conversation)
        finally:
            for each in [*clients.values(), *conversation.others.values()]:
                each.close()
    return conversation


def check_upstream(broker: Broker, conversation: Conversation) -> None:
    case = conversation.case
    if case.name == "load_balance" and case.local == WORKERS:
        assert conversation.shares == {"worker0": 3, "worker1": 3}, "they take turns"
        assert len(broker.received("subscribe")) == 1, "and are one member"
    if case.name == "batch_ack":
        broker.wait_for(what="acks", count=3)
        acked = [entry["msgId"] for entry in broker.acks()]
        assert sorted(acked) == sorted(conversation.ids.values()) and len(acked) == 3
    if case.name == "filters_101":
        assert broker.received("subscribe", "setFilters") == [], "the broker is not asked"
    if case.name == "filters_invalid":
        steps = load(case.name)
        last = [s["frame"]["filters"] for s in steps if kind(s) == "subscribe"][-1]
        held = [s for c in broker.state() if c["token"] == "tok-alice" for s in c["subscriptions"]]
        assert [sorted(s["filters"]) for s in held] == [sorted(last)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recorded(kraken: Broker, case: Case) -> None:
    replay(kraken, case, expected(case))


def wrong(case: Case) -> Iterator[tuple[str, list[Json]]]:
    """The transcript with one thing received changed or left out, for each thing that is."""
    steps = expected(case)
    for i, step in enumerate(steps):
        if step["dir"] != "recv" or kind(step) == "auth":
            continue
        changed = copy.deepcopy(steps)
        for told in (changed[i].get("line"), changed[i]["frame"]):
            if told:
                told["topic" if "topic" in told else "type"] = "another"
        yield f"{i} changed", changed
        if kind(step) == "message":
            yield f"{i} left out", steps[:i] + steps[i + 1:]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_replay_tells_the_difference(kraken: Broker, case: Case) -> None:
    for what, steps in wrong(case):
        kraken.reset()
        try:
            replay(kraken, case, steps)
        except AssertionError:
            continue
        pytest.fail(f"not noticed: step {what}")
