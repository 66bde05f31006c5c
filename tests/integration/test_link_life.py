# SPDX-License-Identifier: Apache-2.0
"""The life of a link: why it is down and who is told, its deadlines, heartbeats, giving up, and the daemon's end.

Not here: what follows a suspend of the host, which nothing but a real one brings about.
"""

import signal
import time
from pathlib import Path
from typing import Any, Callable, Iterator
from urllib.parse import urlsplit

import pytest
import wsclient
from control import Broker
from fakes import BlackHole, Names, RawServer, SlowLine, gaps
from harness import Client, Daemon, Json, alice, wait_until

TOPIC = "demo/ops/events"
TASKS = "demo/ops/tasks"
EVENTS = ("connect", "disconnect", "reconnect")
SLOW = "100s"
PROMPT = 0.05
"""Seconds in which a ping must be answered, whatever the broker does."""

Connect = Callable[..., Client]


def connection_events(client: Client) -> list[Json]:
    """The connection events that have come so far, in order."""
    client.request(type="ping", id="fence")
    events = [line for line in client.waiting if line["type"] in EVENTS]
    client.waiting = [line for line in client.waiting if line["type"] not in EVENTS]
    return events


def ping_time(client: Client) -> float:
    before = time.monotonic()
    client.ok(type="ping")
    return time.monotonic() - before


def stays_prompt_until(daemon: Daemon, condition: Callable[[Client], Any], limit: float = 10.0) -> None:
    """Pings all the time until the condition holds; the median and nine in ten must be prompt."""
    times: list[float] = []
    with daemon.client() as client:
        end = time.monotonic() + limit
        while not condition(client):
            assert time.monotonic() < end, f"waited {limit} s in vain"
            times.append(ping_time(client))
    times.sort()
    assert len(times) > 20 and times[len(times) * 9 // 10] < PROMPT and times[-1] < 0.5, times[-5:]


# Who is told what

def test_connect_is_told_to_who_holds_something(broker: Broker) -> None:
    broker.stop_listening()
    with Daemon({"default": alice(broker.url)}) as daemon, daemon.client() as holder, \
            daemon.client() as tap, daemon.client() as idle, daemon.client() as publisher:
        assert holder.ok(type="subscribe", topic=TOPIC)["pending"] is True
        tap.ok(type="subscribe", topic="*")
        idle.ok(type="ping")
        publisher.send(type="publish", topic=TOPIC, data=1, id="queued")
        broker.listen()
        for client in (holder, tap):
            assert client.receive(type="connect") == {"type": "connect", "session": "default"}
        publisher.receive(id="queued", type="published")
        holder.receive(type="message")
        tap.receive(type="message")
        for client in (holder, tap, idle, publisher):
            client.nothing_else()


def test_an_outage_is_two_lines(broker: Broker, daemon: Daemon, connect: Connect) -> None:
    holder, tap, idle, left = connect(), connect(), connect(), connect()
    for client in (holder, left):
        client.ok(type="subscribe", topic=TOPIC)
    left.ok(type="unsubscribe", topic=TOPIC)
    tap.ok(type="subscribe", topic="*")
    broker.stop_listening()
    broker.drop(abort=True)
    daemon.wait_status("reconnecting", reason="connect")
    broker.http_status(status=503, count=1)
    broker.drop_at(type="auth", when="before", abort=True)
    broker.drop_at(type="subscribe", when="before", abort=True)
    broker.listen()
    daemon.wait_status()
    for client in (holder, tap):
        assert connection_events(client) == [
            {"type": "disconnect", "session": "default", "reason": "lost"},
            {"type": "reconnect", "session": "default"}]
    for client in (holder, tap, idle, left):
        client.nothing_else()


def test_who_came_during_the_outage_is_told_the_end(broker: Broker, daemon: Daemon, connect: Connect) -> None:
    broker.stop_listening()
    broker.drop(abort=True)
    daemon.wait_status("reconnecting")
    late = connect()
    assert late.ok(type="subscribe", topic=TOPIC)["pending"] is True
    broker.listen()
    daemon.wait_status()
    assert [event["type"] for event in connection_events(late)] == ["reconnect"]


def test_events_chooses(broker: Broker, daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.ok(type="events", only=["reconnect"])
    client.ok(type="subscribe", topic=TOPIC)
    broker.drop(abort=True)
    client.receive(type="reconnect")
    client.nothing_else()


# Why it is down: before it is up

def unreachable(broker: Broker) -> None:
    broker.stop_listening()


BEFORE = {
    # name: (how the broker is made to fail, what status says, whether the next attempt is far away)
    "connect": (unreachable, {"reason": "connect"}, False),
    "upgrade_401": (lambda b: b.http_status(status=401), {"reason": "upgrade"}, True),
    "upgrade_403": (lambda b: b.http_status(status=403), {"reason": "upgrade"}, True),
    "upgrade_404": (lambda b: b.http_status(status=404), {"reason": "upgrade"}, False),
    "upgrade_429": (lambda b: b.http_status(status=429), {"reason": "upgrade"}, False),
    "upgrade_503": (lambda b: b.http_status(status=503), {"reason": "upgrade"}, False),
    "no_answer_to_auth": (lambda b: b.mute(type="auth"), {"reason": "auth", "detail": "no answer"}, False),
    "unavailable": (lambda b: b.refuse_auth(error="broker_unavailable"),
                    {"reason": "auth", "detail": "broker_unavailable"}, False),
    "access_denied": (lambda b: b.refuse_auth(), {"reason": "access_denied"}, True),
    "connection_limit": (lambda b: b.refuse_auth(error="connection_limit_reached"),
                         {"reason": "connection_limit"}, False),
    "closed_before_auth_answer": (lambda b: b.drop_at(type="auth", when="before", code=1001, reason="later", count=None),
                                  {"reason": "closed", "code": 1001, "detail": "later"}, False),
    "lost_before_auth_answer": (lambda b: b.drop_at(type="auth", when="before", abort=True, count=None),
                                {"reason": "lost"}, False),
}


@pytest.mark.parametrize("name", BEFORE)
def test_why_it_does_not_come_up(kraken: Broker, name: str) -> None:
    fail, told, slow = BEFORE[name]
    fail(kraken)
    keys = alice(kraken.url, auth_timeout="200ms", denied_interval=SLOW)
    with Daemon({"default": keys}) as daemon:
        word = "disconnected" if slow else "connecting"
        seen: list[Json] = []

        def between_attempts() -> bool:
            now = daemon.status()
            seen.append(now)
            return "nextAttemptMs" in now and now["reason"] == told["reason"]

        wait_until(between_attempts, f"a failure: {told}")
        status = seen[-1]
        assert {line["status"] for line in seen} <= {"connecting", word} and status["status"] == word
        assert told.get("detail", "") in status.get("detail", ""), status
        assert status.get("code") == told.get("code"), status
        assert (80_000 < status["nextAttemptMs"] <= 110_000) if slow else status["nextAttemptMs"] <= 300, status
        assert abs(status["since"] - time.time()) < 10
        assert {line["reason"] for line in seen} <= {"starting", told["reason"]}


def test_a_name_that_does_not_exist() -> None:
    with Daemon({"default": alice("ws://broker.invalid:1/ws")}) as daemon:
        status = daemon.wait_status("connecting", reason="dns")
        assert status["detail"] not in ("", "no answer in time") and status["nextAttemptMs"] >= 0


# Why it is down: once it was up

AFTER = {
    "closed_1011": ({"code": 1011}, {"reason": "closed", "code": 1011}, False),
    "closed_1000": ({"code": 1000, "reason": "bye"}, {"reason": "closed", "code": 1000, "detail": "bye"}, False),
    "not_ascii": ({"code": 3000, "reason": "b\u00fc\n"}, {"reason": "closed", "code": 3000, "detail": "b???"}, False),
    "revoked": ({"code": 4001, "reason": "token revoked"},
                {"reason": "revoked", "code": 4001, "detail": "token revoked"}, True),
    "connection_limit": ({"code": 4002, "reason": "connection_limit_reached"},
                         {"reason": "connection_limit", "code": 4002, "detail": "connection_limit_reached"}, False),
    "reset": ({"abort": True}, {"reason": "lost"}, False),
    "fin": ({"abort": "fin"}, {"reason": "lost"}, False),
}


@pytest.mark.parametrize("name", AFTER)
def test_why_it_went_down(kraken: Broker, name: str) -> None:
    drop, told, slow = AFTER[name]
    with Daemon({"default": alice(kraken.url, denied_interval=SLOW)}) as daemon, daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        before = int(time.time())
        if not slow:
            kraken.http_status(status=503, headers={"Retry-After": "100"})
        kraken.drop(**drop)
        assert holder.receive(type="disconnect") == {"type": "disconnect", "session": "default", **told}
        if not slow:
            daemon.wait_status("reconnecting", reason="upgrade")
            return
        status = daemon.wait_status("disconnected", **told)
        assert 80_000 < status["nextAttemptMs"] <= 110_000
        assert before <= status["since"] <= time.time()


@pytest.mark.parametrize("name", ["half_open", "inbound_dead"])
def test_a_dead_link_is_found(kraken: Broker, name: str) -> None:
    keys = alice(kraken.url, heartbeat_interval="300ms", heartbeat_timeout="200ms")
    with Daemon({"default": keys}) as daemon, daemon.client() as holder, daemon.client() as publisher:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        began = time.monotonic()
        getattr(kraken, name)()
        for n in range(1000):
            publisher.send(type="publish", topic=TASKS, data=n)
            try:
                event = holder.receive(0.02, type="disconnect")
                break
            except AssertionError:
                assert n < 400
        assert event["reason"] == "heartbeat_timeout"
        assert 0.4 < time.monotonic() - began < 2
        holder.receive(type="reconnect")


def test_a_frame_beyond_all_measure(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon, daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        kraken.inject(opcode="tcp", hex="827f" + (17 << 20).to_bytes(8, "big").hex())
        for _ in range(17):
            kraken.inject(opcode="tcp", hex="00" * (1 << 20))
        event = holder.receive(type="disconnect")
        assert event["reason"] == "protocol" and event["detail"] != ""
        holder.receive(type="reconnect")


# Nothing waits for the network

def test_a_dead_resolver_stops_nobody(kraken: Broker, tmp_path: Path) -> None:
    names = Names(tmp_path, broker="hang")
    sessions = {f"s{n}": alice(f"ws://broker.test:{kraken.port}/ws?{n}") for n in range(6)}
    sessions["default"] = alice(kraken.url)
    with Daemon(sessions, {"connect_rate": 0}, environment=names.environment) as daemon:
        daemon.wait_status()
        began = time.monotonic()
        stays_prompt_until(daemon, lambda client: time.monotonic() > began + 1)
        assert {line["status"] for line in statuses(daemon) if line["session"] != "default"} == {"connecting"}
        names.set(broker="127.0.0.1")
        wait_until(lambda: {line["status"] for line in statuses(daemon)} == {"connected"}, "all are up")


def statuses(daemon: Daemon) -> list[Json]:
    with daemon.client() as client:
        return client.ok(type="sessions")["sessions"]


def test_names_are_resolved_for_each_attempt(kraken: Broker, tmp_path: Path) -> None:
    names = Names(tmp_path)
    url = f"ws://broker.test:{kraken.port}/ws"
    with Daemon({"default": alice(url)}, environment=names.environment) as daemon:
        daemon.wait_status("connecting", reason="dns")
        names.set(broker="127.0.0.3")
        daemon.wait_status("connecting", reason="connect")
        names.set(broker="127.0.0.1")
        daemon.wait_status()


def test_a_black_hole_stops_nobody_and_has_a_deadline() -> None:
    with BlackHole() as hole, \
            Daemon({"default": alice(hole.url, connect_timeout="700ms", reconnect_interval="20s",
                                     reconnect_max_interval="20s")}) as daemon:
        began = time.monotonic()
        stays_prompt_until(daemon, lambda client: client.ok(type="status")["reason"] == "connect")
        assert 0.5 < time.monotonic() - began < 1.2


def test_a_server_that_says_nothing_has_the_same_deadline() -> None:
    with RawServer() as server, \
            Daemon({"default": alice(server.url, connect_timeout="500ms", reconnect_interval="20s",
                                     reconnect_max_interval="20s")}) as daemon:
        began = server.wait_attempts(1)[0]
        status = daemon.wait_status("connecting", reason="connect")
        assert 0.4 < time.monotonic() - began < 1 and status["detail"] != ""
        assert b"Upgrade: websocket" in server.data[0] and b"tok-alice" not in server.data[0]


@pytest.mark.parametrize("dead", ["::1", "127.0.0.2"])
@pytest.mark.parametrize("how", ["refused", "black_hole"])
def test_a_dead_address_does_not_keep_from_the_next(kraken: Broker, tmp_path: Path, dead: str, how: str) -> None:
    names = Names(tmp_path, broker=f"{dead} 127.0.0.1")
    keys = alice(f"ws://broker.test:{kraken.port}/ws", connect_timeout="400ms")
    began = time.monotonic()
    hole = BlackHole(dead, kraken.port) if how == "black_hole" else None
    with Daemon({"default": keys}, environment=names.environment) as daemon:
        daemon.wait_status()
        assert (time.monotonic() - began > 0.4) == (how == "black_hole")
        assert "not connected" not in daemon.log(), "one attempt tries all addresses"
    if hole is not None:
        hole.__exit__()


# Heartbeats

def heartbeats(broker: Broker) -> list[float]:
    return [entry["mono"] for entry in broker.received("heartbeat")]


def test_a_silent_link_is_kept_up(kraken: Broker) -> None:
    kraken.configure(idleTimeoutMs=400)
    with Daemon({"default": alice(kraken.url, heartbeat_interval="200ms")}) as daemon:
        daemon.wait_status()
        kraken.wait_for(type="heartbeat", count=6)
        assert all(0.19 < gap < 0.35 for gap in gaps(heartbeats(kraken)))
        assert len(kraken.received("auth")) == 1


def test_a_slow_line_is_no_dead_one(kraken: Broker) -> None:
    """The heartbeats behind a large publish need longer to arrive than the broker may to echo them."""
    with SlowLine(urlsplit(kraken.url).port or 0, 150_000) as line, \
            Daemon({"default": alice(line.url, heartbeat_interval="400ms", heartbeat_timeout="500ms",
                                     request_timeout="500ms")}) as daemon, daemon.client() as client:
        daemon.wait_status()
        client.ok(type="publish", topic=TOPIC, data="x" * 400_000)
        assert connection_events(client) == [] and "heartbeat_timeout" not in daemon.log()
        assert len(kraken.received("auth")) == 1


def test_messages_that_come_do_not_stand_for_ours(kraken: Broker) -> None:
    """The broker's idle timer counts only what it receives."""
    kraken.configure(idleTimeoutMs=600, recording=False)  # else there were acknowledgements to send
    bob = wsclient.Client(kraken.url, "tok-bob")
    with Daemon({"default": alice(kraken.url, heartbeat_interval="300ms")}) as daemon, daemon.client() as client:
        daemon.wait_status()
        client.ok(type="subscribe", topic=TOPIC)
        sent = wait_until(lambda: publish_until_heartbeats(bob, kraken, 4), "heartbeats while messages flow in")
        assert sent > 20
        assert all(0.28 < gap < 0.5 for gap in gaps(heartbeats(kraken)))
        assert len(kraken.received("auth")) == 2, "bob's and ours"
    bob.socket.close()


def publish_until_heartbeats(bob: wsclient.Client, broker: Broker, count: int) -> int:
    """Publishes 25 a second; returns how many were published until so many heartbeats had come."""
    end = time.monotonic() + 5
    for n in range(1000):
        bob.publish(TOPIC, n)
        try:
            broker.wait_for(type="heartbeat", count=count, timeoutMs=40)
            return n
        except Exception:
            assert time.monotonic() < end
    return 0


def test_traffic_both_ways_needs_no_heartbeat(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url, heartbeat_interval="400ms")}) as daemon, daemon.client() as client:
        daemon.wait_status()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            client.ok(type="publish", topic=TOPIC, data=1)
        assert heartbeats(kraken) == []
        kraken.wait_for(type="heartbeat", count=1)


def test_publishes_that_nobody_answers_do_not_stand_for_life(kraken: Broker) -> None:
    """A broker of version 1 answers no publish: nothing comes, so a heartbeat asks."""
    kraken.configure(protocolVersion=1)
    with Daemon({"default": alice(kraken.url, heartbeat_interval="300ms", publish_rate=30)}) as daemon, \
            daemon.client() as client:
        daemon.wait_status()
        end = time.monotonic() + 5
        while len(heartbeats(kraken)) < 3:
            client.ok(type="publish", topic=TOPIC, data=1)
            assert time.monotonic() < end
        assert all(0.28 < gap < 0.6 for gap in gaps(heartbeats(kraken)))


def test_no_heartbeats_when_there_shall_be_none(kraken: Broker) -> None:
    kraken.configure(idleTimeoutMs=500)
    with Daemon({"default": alice(kraken.url, heartbeat_interval="0")}) as daemon:
        daemon.wait_status()
        kraken.wait_for(type="auth", count=2)
        assert heartbeats(kraken) == []
        assert "heartbeat_interval" in daemon.log()


# Giving up

@pytest.mark.parametrize("keys,attempts", [
    ({"max_reconnect_attempts": 0}, 1), ({"max_reconnect_attempts": 2}, 3), ({"reconnect": "no"}, 1)])
def test_giving_up_from_the_start(keys: Json, attempts: int) -> None:
    with RawServer(RawServer.close_at_once) as server, Daemon({"default": alice(server.url, **keys)}) as daemon:
        status = daemon.wait_status("disconnected", reason="attempts")
        assert "nextAttemptMs" not in status and len(server.times) == attempts
        assert "attempts" in daemon.log(), "that nothing more will happen must be in the log"


@pytest.mark.parametrize("keys,attempts", [
    ({"max_reconnect_attempts": 0}, 0), ({"max_reconnect_attempts": 2}, 2), ({"reconnect": "no"}, 0)])
def test_giving_up_after_it_was_up(kraken: Broker, keys: Json, attempts: int) -> None:
    with Daemon({"default": alice(kraken.url, **keys)}) as daemon, daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        kraken.refuse_auth(error="broker_unavailable")
        kraken.drop(abort=True)
        holder.receive(type="disconnect")
        status = daemon.wait_status("disconnected", reason="attempts")
        assert "nextAttemptMs" not in status
        assert len(kraken.received("auth")) == 1 + attempts
        assert [event["type"] for event in connection_events(holder)] == []


def test_success_gives_all_attempts_back(kraken: Broker) -> None:
    with Daemon({"default": alice(kraken.url, max_reconnect_attempts=2)}) as daemon, daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        for _ in range(4):
            kraken.refuse_auth(error="broker_unavailable", count=1)
            kraken.drop(abort=True)
            holder.receive(type="reconnect")


# The daemon's end

ENDS: dict[str, tuple[Callable[[Broker], Any], Json, Callable[[Broker, Daemon], Any]]] = {
    # name: (before the daemon starts, keys, what is waited for)
    "authenticating": (lambda b: b.mute(type="auth"), {}, lambda b, d: b.wait_for(type="auth")),
    "restoring": (lambda b: b.mute(type="subscribe"), {}, lambda b, d: b.wait_for(type="subscribe")),
    "live": (lambda b: None, {}, lambda b, d: d.wait_status()),
    "waiting": (unreachable, {}, lambda b, d: d.wait_status("connecting", reason="connect")),
    "waiting_slowly": (lambda b: b.refuse_auth(), {}, lambda b, d: d.wait_status("disconnected")),
    "given_up": (unreachable, {"reconnect": "no"}, lambda b, d: d.wait_status("disconnected", reason="attempts")),
    "half_open": (lambda b: None, {}, lambda b, d: (d.wait_status(), b.half_open())),
}


@pytest.mark.parametrize("name", ENDS)
def test_sigterm_ends_it(kraken: Broker, name: str) -> None:
    prepare, keys, reach = ENDS[name]
    prepare(kraken)
    with Daemon({"default": alice(kraken.url, **keys)}) as daemon, daemon.client() as holder:
        if name == "restoring":
            holder.send(type="subscribe", topic=TOPIC)
        reach(kraken, daemon)
        ends_within(daemon, 1.5)


def ends_within(daemon: Daemon, seconds: float, signals: int = 1) -> None:
    began = time.monotonic()
    for _ in range(signals):
        daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert time.monotonic() - began < seconds


def test_sigterm_in_a_black_hole() -> None:
    with BlackHole() as hole, Daemon({"default": alice(hole.url)}) as daemon:
        ends_within(daemon, 1.5)


def test_sigterm_during_a_tls_handshake() -> None:
    with RawServer() as server, Daemon({"default": alice(server.url.replace("ws:", "wss:"))}) as daemon:
        wait_until(lambda: server.data and server.data[0], "a client hello")
        ends_within(daemon, 1.5)


def test_sigterm_lets_the_queue_out_and_tells_subscribers(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}) as daemon, daemon.client() as publisher, daemon.client() as holder, \
            daemon.client() as idle:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TASKS)
        idle.ok(type="ping")
        for n in range(30):
            publisher.send(type="publish", topic=TOPIC, data=n, id=n)
        broker.wait_for(type="publish", count=1)
        daemon.signal(signal.SIGTERM)
        assert holder.receive(type="shutdown") == {"type": "shutdown"}
        assert [line["type"] for line in publisher.ended()] == ["published"] * 30
        assert holder.ended() == [] and idle.ended() == []
        assert daemon.wait() == 0
    assert len(broker.accepts()) == 30


def test_sigterm_tells_what_did_not_go_out(kraken: Broker) -> None:
    kraken.stop_listening()
    with Daemon({"default": alice(kraken.url)}, {"drain_timeout": "300ms"}) as daemon, \
            daemon.client() as publisher:
        daemon.wait_status("connecting", reason="connect")
        for n in range(3):
            publisher.send(type="publish", topic=TOPIC, data=n, id=n)
        publisher.send(type="publish", topic=TOPIC, data="no id")
        publisher.ok(type="ping")
        ends_within(daemon, 1.5)
        lines = publisher.ended()
        assert [line["error"] for line in lines] == ["shutting_down"] * 4
        assert [line.get("id") for line in lines] == [0, 1, 2, None]


def test_a_second_sigterm_waits_for_nothing(kraken: Broker) -> None:
    kraken.stop_listening()
    with Daemon({"default": alice(kraken.url)}, {"drain_timeout": "60s"}) as daemon, \
            daemon.client() as publisher:
        publisher.send(type="publish", topic=TOPIC, data=1, id=1)
        publisher.ok(type="ping")
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in daemon.log(), "the first signal is taken")
        ends_within(daemon, 1.5)
        assert [line["error"] for line in publisher.ended()] == ["shutting_down"]
