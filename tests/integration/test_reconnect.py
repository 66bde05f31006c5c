# SPDX-License-Identifier: Apache-2.0
"""Coming back: how soon it is tried again, and that everything is there again, once, in order."""

import os
import resource
import signal
import socket
import time
from collections import Counter
from typing import Any, Callable, Iterator

import pytest
import wsclient
from control import Broker
from fakes import RawServer, gaps
from harness import SANITIZERS, Client, Daemon, Json, alice, wait_until

TOPIC = "demo/ops/events"
TASKS = "demo/ops/tasks"

Connect = Callable[..., Client]


def general(n: Any) -> str:
    return f"demo/general/{n}"


def auth_times(broker: Broker, count: int) -> list[float]:
    broker.wait_for(type="auth", count=count, timeoutMs=15000)
    return [entry["mono"] for entry in broker.received("auth")]


def our_connection(broker: Broker) -> Json:
    (connection,) = [each for each in broker.state() if each["token"] == "tok-alice"]
    return connection


def events_of(client: Client, *types: str) -> list[Json]:
    """What came of these types, or of all types, up to now."""
    client.request(type="ping", id="fence")
    lines = [line for line in client.waiting if not types or line["type"] in types]
    client.waiting = [line for line in client.waiting if line not in lines]
    return lines


# How soon

def test_retries_become_rarer_up_to_the_cap() -> None:
    with RawServer(RawServer.close_at_once) as server, \
            Daemon({"default": alice(server.url, reconnect_interval="20ms", reconnect_max_interval="160ms")},
                   {"connect_rate": 0}):
        waits = gaps(server.wait_attempts(36))
    slack = 0.06
    assert all(wait < min(0.16, 0.02 * 2 ** n) + slack for n, wait in enumerate(waits)), waits
    late = waits[5:]
    assert sum(late) / len(late) > 0.045, "on average half the cap"
    assert max(late) - min(late) > 0.05, "and not all alike"


def test_a_broker_that_accepts_and_closes_is_still_failing(kraken: Broker) -> None:
    kraken.drop_at(type="auth", when="after", code=1001, count=25)
    keys = alice(kraken.url, reconnect_interval="20ms", reconnect_max_interval="320ms")
    with Daemon({"default": keys}, {"connect_rate": 0}) as daemon:
        waits = gaps(auth_times(kraken, 26))
        daemon.wait_status()
        assert daemon.log().count("connected\n") >= 25, "each time it was live"
    assert sum(waits[-16:]) > 0.8, waits


def test_after_a_stable_time_it_comes_back_at_once(kraken: Broker) -> None:
    kraken.refuse_auth(error="broker_unavailable", count=8)
    keys = alice(kraken.url, reconnect_interval="10ms", reconnect_max_interval="2s", stable_after="200ms",
                 heartbeat_interval="100ms")
    with Daemon({"default": keys}, {"connect_rate": 0}) as daemon:
        daemon.wait_status()
        for n in range(4):
            kraken.wait_for(type="heartbeat", count=3 * (n + 1))
            before = time.monotonic()
            kraken.drop(abort=True)
            times = auth_times(kraken, 10 + n)
            assert times[-1] - before < 0.15


@pytest.mark.parametrize("name", ["access_denied", "revoked"])
def test_a_refused_token_is_tried_again_slowly(kraken: Broker, name: str) -> None:
    with Daemon({"default": alice(kraken.url, denied_interval="400ms")}) as daemon:
        daemon.wait_status()
        if name == "access_denied":
            kraken.refuse_auth(count=3)
            kraken.drop(abort=True)
            waits = gaps(auth_times(kraken, 5)[1:])
        else:
            before = time.monotonic()
            kraken.drop(code=4001, reason="revoked")
            waits = [auth_times(kraken, 2)[1] - before]
        assert all(0.35 < wait < 0.6 for wait in waits), waits
        daemon.wait_status()


def say_later(server: RawServer, connection: socket.socket) -> None:
    """What a proxy may say while its broker is away for long."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n")


def test_retry_after_is_obeyed_within_bounds() -> None:
    with RawServer(say_later) as server, \
            Daemon({"default": alice(server.url, denied_interval="700ms")}, {"connect_rate": 0}):
        waits = gaps(server.wait_attempts(3))
    assert all(0.65 < wait < 5 for wait in waits), waits


# Stalls

def pause(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "the time has passed")


@pytest.mark.parametrize("waits_for", ["heartbeat", "auth"])
def test_a_stall_of_our_own_is_no_silence_of_the_broker(kraken: Broker, waits_for: str) -> None:
    """The answer comes while the daemon is stopped for longer than it would have waited."""
    keys = alice(kraken.url, heartbeat_interval="300ms", heartbeat_timeout="700ms", auth_timeout="700ms")
    kraken.delay(type=waits_for, ms=300)
    with Daemon({"default": keys}) as daemon:
        for n in range(3):
            kraken.wait_for(type=waits_for, count=n + 1, timeoutMs=10000)
            daemon.signal(signal.SIGSTOP)
            pause(1.5)
            daemon.signal(signal.SIGCONT)
            daemon.wait_status()
            if waits_for == "auth":
                kraken.drop(abort=True)
        if waits_for == "heartbeat":
            assert len(kraken.received("auth")) == 1
        assert "heartbeat_timeout" not in daemon.log() and "in time" not in daemon.log(), daemon.log()


def many_sessions(url: str, count: int, **keys: Any) -> dict[str, Json]:
    return {f"s{n}": alice(f"{url}?{n}", **keys) for n in range(count)}


LATE = 0.2
"""Seconds by which a busy broker may notice things too late, and so closer together than they were."""


def test_all_sessions_together_connect_at_a_measured_rate(kraken: Broker) -> None:
    rate, burst, count = 40, 10, 50
    with Daemon(many_sessions(kraken.url, count), {"connect_rate": rate}):
        kraken.wait_for(what="connections", count=count)
        kraken.drop(abort=True)
        times = auth_times(kraken, 2 * count)
        kraken.wait_for(what="connections", count=count)
    for start in range(2 * count):
        for end in range(start + burst, 2 * count):
            assert end - start + 1 <= burst + rate * (times[end] - times[start] + LATE) + 1


def test_sessions_that_are_dropped_together_come_back_spread_out(kraken: Broker) -> None:
    count = 50
    sessions = many_sessions(kraken.url, count, reconnect_interval="1s", reconnect_max_interval="1s")
    with Daemon(sessions, {"connect_rate": 0}):
        kraken.wait_for(what="connections", count=count)
        dropped = time.monotonic()
        kraken.drop(abort=True)
        after = [when - dropped for when in auth_times(kraken, 2 * count)[count:]]
    assert 0.09 < min(after) and max(after) < 1.3
    quarters = Counter(int((when - 0.1) / 0.225) for when in after)
    assert all(quarters[n] >= 2 for n in range(4)), quarters


def test_many_refusals_are_few_lines_in_the_log() -> None:
    keys = alice("", reconnect_interval="10ms", reconnect_max_interval="10ms")
    with RawServer(lambda _server, connection: connection.recv(4096)) as server:  # always for the same reason
        with Daemon({"default": {**keys, "url": server.url}}, {"connect_rate": 0}, level="info") as daemon:
            server.wait_attempts(30)
            assert daemon.log().count("not connected") == 1 and len(daemon.log().splitlines()) <= 4


# The auth of a reconnect

def test_reconnect_is_said_once_it_was_live(broker: Broker) -> None:
    broker.refuse_auth(error="broker_unavailable", count=2)
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        broker.refuse_auth(error="broker_unavailable", count=1)
        broker.drop(abort=True)
        broker.wait_for(type="auth", count=5)
        daemon.wait_status()
    frames = [entry["frame"] for entry in broker.received("auth")]
    assert [frame.get("reconnect") for frame in frames] == [None, None, None, True, True]
    assert all(frame["token"] == "tok-alice" and frame["protocolVersion"] == 2 for frame in frames)


def test_a_restore_that_crashes_the_broker_is_not_asked_for_again(kraken: Broker) -> None:
    """An open-source broker cannot restore some subscriptions and closes with 1011."""
    with Daemon({"default": alice(kraken.url)}) as daemon, daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        kraken.drop_at(type="auth", when="receipt", code=1011)
        kraken.drop(abort=True)
        holder.receive(type="reconnect")
        kraken.drop(abort=True)
        holder.receive(type="reconnect")
    frames = [entry["frame"] for entry in kraken.received("auth")]
    assert [frame.get("reconnect") for frame in frames] == [None, True, None, True], "later it may be better"


# What comes back

WISHES: dict[str, list[Any]] = {
    # topic: the wishes of two clients; None = does not want it
    TOPIC: [[], []],
    TASKS: [["a"], ["b", ["C", "d"]]],
    **{general(n): [[], None] for n in range(4)},
    general("one"): [None, ["x"]],
}

STEPS: dict[str, Json] = {
    "before_the_auth_answer": {"type": "auth", "when": "before"},
    "after_the_auth_answer": {"type": "auth", "when": "after"},
    "subscribe_not_performed": {"type": "subscribe", "when": "receipt", "nth": 3},
    "subscribe_not_answered": {"type": "subscribe", "when": "before", "nth": 4},
    "subscribe_answered": {"type": "subscribe", "when": "after", "nth": 2},
    "last_subscribe_answered": {"type": "subscribe", "when": "after", "nth": len(WISHES)},
    "publish_not_answered": {"type": "publish", "when": "before"},
}

OUTAGES = {"last_subscribe_answered": (1, 2), "publish_not_answered": (2,)}
"""How many outages are told, where it is not one. That last answer may get lost with the connection or not."""


def subscribe_all(clients: list[Client]) -> None:
    for topic, wishes in WISHES.items():
        for client, filters in zip(clients, wishes):
            if filters is not None:
                client.ok(type="subscribe", topic=topic, filters=filters)


def least_upstream() -> dict[str, set]:
    """Of WISHES: what the broker must hold of each topic, as a set of filters; empty = everything."""
    return {topic: {repr(each) for filters in wishes for each in filters or []} for topic, wishes in WISHES.items()}


def held_upstream(broker: Broker) -> dict[str, set]:
    return {each["topic"]: {repr(entry) for entry in each["filters"] or []}
            for each in our_connection(broker)["subscriptions"]}


def check_requests(broker: Broker, connection: int) -> None:
    """On one connection: each topic at most once, and no publish before the last subscribe."""
    frames = broker.received("subscribe", "unsubscribe", "setFilters", "publish", connection=connection)
    counts = Counter(entry["topic"] for entry in frames if entry["type"] == "subscribe")
    assert set(counts.values()) <= {1}, counts
    types = [entry["type"] for entry in frames]
    assert types == sorted(types, key=["subscribe", "publish"].index), types


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("abort", [True, False])
def test_killed_while_it_comes_back(broker: Broker, daemon: Daemon, connect: Connect, step: str, abort: bool) -> None:
    clients = [connect(), connect()]
    subscribe_all(clients)
    broker.stop_listening()
    broker.drop(abort=True)
    daemon.wait_status("reconnecting")
    publisher = connect()
    publisher.send(type="publish", topic=general("queued"), data="q", id="q")
    publisher.ok(type="ping")
    broker.drop_at(**STEPS[step], abort=abort, code=1001)
    since = broker.received()[-1]["seq"]
    broker.listen()
    publisher.receive(id="q", type="published")
    broker.settle()
    connections = sorted({entry["connection"] for entry in broker.received(since=since)})
    assert len(connections) == 2, "one killed, one that stays"
    for each in connections:
        check_requests(broker, each)
    last = connections[-1]
    assert our_connection(broker)["connection"] == last
    assert held_upstream(broker) == least_upstream()
    assert {entry["topic"] for entry in broker.received("subscribe", connection=last)} == set(WISHES)
    for client in clients:
        told = [event["type"] for event in events_of(client)]
        assert told in [["disconnect", "reconnect"] * outages for outages in OUTAGES.get(step, (1,))]


def test_changes_during_the_outage_are_what_comes_back(broker: Broker, daemon: Daemon, connect: Connect) -> None:
    one, two, gone = connect(), connect(), connect()
    one.ok(type="subscribe", topic=TOPIC, filters=["a"])
    two.ok(type="subscribe", topic=TASKS)
    one.ok(type="subscribe", topic=general("left"))
    gone.ok(type="subscribe", topic=general("gone"))
    broker.stop_listening()
    broker.drop(abort=True)
    daemon.wait_status("reconnecting")
    assert one.ok(type="addFilters", topic=TOPIC, filters=["b"])["pending"] is True
    one.ok(type="unsubscribe", topic=general("left"))
    two.ok(type="subscribe", topic=general("new"))
    gone.close()
    broker.listen()
    daemon.wait_status()
    broker.settle()
    assert held_upstream(broker) == {TOPIC: {"'a'", "'b'"}, TASKS: set(), general("new"): set()}


def test_what_the_broker_restored_and_nobody_wants_is_unsubscribed(
        broker: Broker, daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.ok(type="subscribe", topic=TOPIC)
    broker.restored(token="tok-alice", subscriptions=[general("a"), {"topic": general("b")}, TOPIC])
    broker.drop(abort=True)
    client.receive(type="reconnect")
    broker.settle()
    assert held_upstream(broker) == {TOPIC: set()}
    last = our_connection(broker)["connection"]
    assert sorted(each["topic"] for each in broker.received("unsubscribe", connection=last)) == \
        [general("a"), general("b")]
    assert [each["topic"] for each in broker.received("subscribe", connection=last)] == [TOPIC]
    assert daemon.status()["subscriptions"] == 1


def test_a_topic_refused_at_the_restore(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url, refused_interval="300ms")}) as daemon, daemon.client() as holder, \
            daemon.client() as other, wsclient_of(broker) as bob:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        holder.ok(type="subscribe", topic=TASKS)
        other.ok(type="subscribe", topic=TASKS)
        broker.refuse(type="subscribe", topic=TOPIC, error="not_authorized", hint="ask", count=2)
        broker.drop(abort=True, token="tok-alice")
        for client in (holder, other):
            client.receive(type="reconnect")
        assert daemon.status()["refused"] == 1
        broker.wait_for(type="subscribe", topic=TOPIC, count=4)
        wait_until(lambda: "refused" not in daemon.status(), "the third try is taken")
        times = [entry["mono"] for entry in broker.received("subscribe", topic=TOPIC)][1:]
        assert all(0.28 < gap < 0.6 for gap in gaps(times))
        bob.publish(TOPIC, "back")
        bob.publish(TASKS, "there")
        holder.receive(type="message", data="back")
        holder.receive(type="message", data="there")
        other.receive(type="message", data="there")
        assert [line["type"] for line in events_of(other)] == ["disconnect"]
        told = events_of(holder)
        assert [line["type"] for line in told] == ["disconnect", "error"], "once, however often it was refused"
        assert (told[1]["error"], told[1]["topic"], told[1]["hint"]) == ("not_authorized", TOPIC, "ask")


class wsclient_of:
    """Bob, closed at the end."""

    def __init__(self, broker: Broker) -> None:
        self.bob = wsclient.Client(broker.url, "tok-bob")

    def __enter__(self) -> wsclient.Client:
        return self.bob

    def __exit__(self, *_: Any) -> None:
        self.bob.socket.close()


def test_a_topic_that_is_not_answered_keeps_nobody(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url, request_timeout="300ms")}) as daemon, daemon.client() as holder, \
            daemon.client() as other:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        other.ok(type="subscribe", topic=TASKS)
        kraken.mute(type="subscribe", topic=TOPIC, count=1)
        kraken.drop(abort=True)
        other.receive(2, type="reconnect")
        error = holder.receive(type="error")
        assert error["topic"] == TOPIC and error["error"] in ("broker_ignored", "timeout")
        other.ok(type="publish", topic=TASKS, data="through")


def test_at_most_64_subscribes_wait_for_an_answer(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url, heartbeat_interval="100ms")}) as daemon, daemon.client() as client:
        daemon.wait_status()
        for n in range(200):
            client.send(type="subscribe", topic=general(n), id=n)
        for n in range(200):
            assert client.receive(id=n)["type"] == "subscribed"
        kraken.mute(type="subscribe")
        kraken.drop(abort=True)
        kraken.wait_for(type="subscribe", count=200 + 64)
        last = our_connection(kraken)["connection"]
        kraken.wait_for(type="heartbeat", connection=last, count=3)
        assert len(kraken.received("subscribe", connection=last)) == 64
        assert daemon.status()["status"] == "reconnecting"
        kraken.clear()
        kraken.drop(abort=True)
        client.receive(type="reconnect")
        assert len(held_upstream(kraken)) == 200


def test_a_retained_message_is_not_told_again(broker: Broker, daemon: Daemon, connect: Connect,
                                              bob: wsclient.Client) -> None:
    bob.ask({"type": "publish", "topic": TOPIC, "data": "old", "retain": True, "msgRef": "1"})
    holder = connect()
    holder.ok(type="subscribe", topic=TOPIC)
    holder.message("old")
    for n in range(3):
        broker.drop(abort=True, token="tok-alice")
        holder.receive(type="reconnect")
        broker.settle()
        bob.publish(TOPIC, n)
        holder.receive(type="message", data=n)
        assert [line["type"] for line in events_of(holder)] == ["disconnect"]
    broker.stop_listening()
    broker.drop(abort=True, token="tok-alice")
    bob.ask({"type": "publish", "topic": TOPIC, "data": "new", "retain": True, "msgRef": "2"})
    broker.listen()
    holder.receive(type="message", data="new")


# Many

def open_files(daemon: Daemon) -> int:
    """Or how many fit the table, when we may not look into it."""
    try:
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
    except PermissionError:
        return int(process_status(daemon)["FDSize"])


def process_status(daemon: Daemon) -> dict[str, str]:
    with open(f"/proc/{daemon.process.pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def resident_kib(daemon: Daemon) -> int:
    return int(process_status(daemon)["VmRSS"].split()[0])


FRUGAL = {"ASAN_OPTIONS": SANITIZERS["ASAN_OPTIONS"] + ":quarantine_size_mb=1"}
"""So that what a sanitizer keeps of freed memory does not look like a leak."""


def test_200_drops_leave_nothing_behind(kraken: Broker) -> None:
    keys = alice(kraken.url, reconnect_interval="10ms", reconnect_max_interval="10ms")
    with Daemon({"default": keys}, {"connect_rate": 0}, level="info", environment=FRUGAL) as daemon, \
            daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        before: tuple[int, int] = (0, 0)
        for n in range(250):
            kraken.drop(abort=(True, "fin", False)[n % 3])
            holder.receive(type="reconnect")
            holder.waiting.clear()
            if n == 50:
                before = (open_files(daemon), resident_kib(daemon))
        assert open_files(daemon) <= before[0] + 2
        assert resident_kib(daemon) < before[1] + 4096


CLIENTS, TOPICS, EACH = 1000, 10_000, 20


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def subscribe_many(client: Client, number: int) -> None:
    first = number * TOPICS // CLIENTS
    client.write(b"".join(b'{"type":"subscribe","topic":"%s","id":%d}\n' %
                          (general((first + n) % TOPICS).encode(), n) for n in range(EACH)))


def test_10000_topics_of_1000_clients(kraken: Broker, many_files: None) -> None:
    with Daemon({"default": alice(kraken.url)}, {"max_clients": CLIENTS + 10}, level="info",
                environment=FRUGAL) as daemon:
        daemon.wait_status()
        clients = [daemon.client() for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            subscribe_many(client, number)
        for client in clients:
            for n in range(EACH):
                assert client.receive(60, id=n)["type"] == "subscribed"
        assert daemon.status()["subscriptions"] == TOPICS
        before = resident_kib(daemon)
        for _ in range(2):
            dropped = time.monotonic()
            kraken.drop(abort=True)
            for client in clients:
                client.receive(60, type="reconnect")
            took = time.monotonic() - dropped
            print(f"{TOPICS} topics of {CLIENTS} clients were back after {took:.2f} s")
            last = our_connection(kraken)["connection"]
            assert len(our_connection(kraken)["subscriptions"]) == TOPICS
            counters = kraken.counters()
            topics = [entry["topic"] for entry in kraken.received("subscribe", connection=last)]
            assert len(topics) == len(set(topics)) == TOPICS, counters
        assert resident_kib(daemon) < before + 16 * 1024
        assert [line["type"] for line in clients[7].waiting] == ["disconnect"] * 2
        for client in clients:
            client.close()
