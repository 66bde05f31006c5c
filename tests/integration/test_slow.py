# SPDX-License-Identifier: Apache-2.0
"""Clients that read slowly or not at all: bounded, told, and nobody else notices."""

import json
import select
import signal
import time
from pathlib import Path
from threading import Thread
from typing import Any, Callable

import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, Json, alice, wait_until

TOPIC = "demo/ops/events"
TASKS = "demo/ops/tasks"
LIMIT = 256 * 1024
BLOCK = "x" * 8000


def daemon_with(broker: Broker, policy: str, **keys: Any) -> Daemon:
    broker.configure(rateLimit=0)
    return Daemon({"default": alice(broker.url)}, {"client_output_limit": LIMIT, "slow_consumer": policy, **keys})


def flood(bob: wsclient.Client, count: int, topic: str = TOPIC, start: int = 0) -> None:
    bob.send(*({"type": "publish", "topic": topic, "data": [n, BLOCK]} for n in range(start, start + count)))


def feed(bob: wsclient.Client, good: Client, count: int, topic: str = TOPIC, start: int = 0) -> None:
    """As flood(), but never more at once than a client that reads may have waiting; it gets them all."""
    step = LIMIT // 2 // len(BLOCK)
    for first in range(start, start + count, step):
        last = min(first + step, start + count)
        flood(bob, last - first, topic, first)
        for n in range(first, last):
            good.message([n, BLOCK])


def rss(daemon: Daemon) -> int:
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.fixture
def bob(kraken: Broker) -> Any:
    client = wsclient.Client(kraken.url, "tok-bob")
    yield client
    client.socket.close()


def test_disconnect_says_why(kraken: Broker, bob: wsclient.Client) -> None:
    """What was begun is a whole line, then the reason, then the end; the others get everything."""
    with daemon_with(kraken, "disconnect") as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as slow, daemon.client() as good:
            slow.ok(type="subscribe", topic=TOPIC)
            good.ok(type="subscribe", topic=TOPIC)
            feed(bob, good, 300)
            wait_until(lambda: "slow_consumer" in daemon.log(), "it is found out")
            lines = slow.ended()
            assert lines[-1]["type"] == "error" and lines[-1]["error"] == "slow_consumer" and lines[-1]["hint"]
            got = [line["data"][0] for line in lines[:-1]]
            assert got == list(range(len(got))) and len(got) < 300
        wait_until(lambda: daemon.status()["subscriptions"] == 0, "both are gone")


def test_one_that_never_reads_is_cut_off(kraken: Broker, bob: wsclient.Client) -> None:
    with daemon_with(kraken, "disconnect") as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as dead:
            dead.ok(type="subscribe", topic=TOPIC)
            before = rss(daemon)
            flood(bob, 1000)
            wait_until(lambda: daemon.status()["subscriptions"] == 0, "it is closed although it reads nothing", 20)
            assert rss(daemon) - before < 40 << 20


def test_drop_tells_how_many(kraken: Broker, bob: wsclient.Client) -> None:
    """received + dropped = sent, in order, and the gap is told where it is."""
    with daemon_with(kraken, "drop") as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as slow, daemon.client() as good:
            slow.ok(type="subscribe", topic=TOPIC)
            good.ok(type="subscribe", topic=TOPIC)
            for cycle in range(5):
                feed(bob, good, 200, start=cycle * 200)
                slow.send(type="ping", id=f"end {cycle}")
                check_gaps(slow, cycle)


def check_gaps(slow: Client, cycle: int) -> None:
    """Reads one cycle of 200 messages and its ping."""
    expected, dropped, received = cycle * 200, 0, 0
    while True:
        line = slow.read_line()
        assert line is not None
        if line["type"] == "pong":
            break
        if line["type"] == "dropped":
            assert line["topic"] == TOPIC and line["count"] > 0
            expected += line["count"]
            dropped += line["count"]
        else:
            assert line["data"][0] == expected, "in order, and the gap is where it is told"
            expected += 1
            received += 1
    assert received + dropped == 200 and dropped > 0 and received > 0


def test_drop_counts_by_topic_and_spares_answers(kraken: Broker, bob: wsclient.Client) -> None:
    with daemon_with(kraken, "drop") as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as slow, daemon.client() as good:
            for topic in (TOPIC, TASKS):
                slow.ok(type="subscribe", topic=topic)
            good.ok(type="subscribe", topic=TASKS)
            slow.write(b"".join(b'{"type":"ping","id":%d}\n' % n for n in range(100)))
            flood(bob, 200)
            feed(bob, good, 200, TASKS)
            slow.send(type="ping", id="end")
            lines: list[Json] = []
            while not lines or lines[-1].get("id") != "end":
                line = slow.read_line()
                assert line is not None
                lines.append(line)
    assert [line["id"] for line in lines if line["type"] == "pong"] == [*range(100), "end"]
    for topic in (TOPIC, TASKS):
        received = sum(line["type"] == "message" and line["topic"] == topic for line in lines)
        dropped = sum(line["count"] for line in lines if line["type"] == "dropped" and line["topic"] == topic)
        assert received + dropped == 200


def write_until_blocked(client: Client, line: bytes) -> int:
    """Writes the line again and again until nolagd takes no more; returns how many are written."""
    client.socket.setblocking(False)
    sent = 0
    while select.select([], [client.socket], [], 1)[1]:
        try:
            sent += client.socket.send(line * 500)
        except BlockingIOError:
            continue
    count, begun = divmod(sent, len(line))
    Thread(target=client.write, args=[line[begun:]]).start()
    return count + 1


@pytest.mark.parametrize("policy", ["disconnect", "drop"])
def test_who_asks_and_does_not_read_is_held_back(kraken: Broker, policy: str) -> None:
    """It is not cut off, stops being read, and gets every answer when it reads at last."""
    with daemon_with(kraken, policy) as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as greedy, daemon.client() as other:
            line = b'{"type":"status","id":1}\n'
            count = write_until_blocked(greedy, line)
            assert count * len(line) < 1 << 20, "what the sockets hold, and answers up to a part of the limit"
            other.ok(type="publish", topic=TOPIC, data=1)
            for _ in range(count):
                assert greedy.receive(id=1)["type"] == "status"
            greedy.nothing_else()


@pytest.mark.parametrize("line", [b"x", b'{"type":"hello"}', b'{"type":"status"}'])
def test_who_reads_while_it_asks_gets_every_answer(kraken: Broker, line: bytes) -> None:
    """However much it asks at once; and others have their turn between."""
    count = 20000
    with daemon_with(kraken, "disconnect") as daemon:
        daemon.wait_status()
        with daemon.client() as eager, daemon.client() as other:
            eager.socket.settimeout(60)
            writer = Thread(target=eager.socket.sendall, args=[(line + b"\n") * count])
            writer.start()
            for n in range(count):
                assert eager.read_line(60), f"cut off after {n} answers"
                if n % 1000 == 0:
                    other.ok(type="ping")
            writer.join()
            eager.nothing_else()


def test_others_have_their_turn_between(kraken: Broker) -> None:
    """Although all of what the first one wrote is there: the broker is the witness of the order."""
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as eager, daemon.client() as modest:
            daemon.signal(signal.SIGSTOP)
            eager.write(b"".join(b'{"type":"subscribe","topic":"demo/ops/%d"}\n' % n for n in range(2000)))
            modest.send(type="subscribe", topic=TOPIC, id=1)
            daemon.signal(signal.SIGCONT)
            assert modest.receive(id=1)["type"] == "subscribed"
            wait_until(lambda: len(kraken.received("subscribe")) == 2001, "all are asked for")
            order = [entry["topic"] for entry in kraken.received("subscribe")]
            assert order.index(TOPIC) < 1000


def test_a_burst_is_not_a_slow_client(kraken: Broker) -> None:
    """More than the limit at once, before it could read any of it: who then reads gets it all."""
    text = "y" * 100000
    kraken.configure(rateLimit=0)
    with Daemon({"default": alice(kraken.url, publish_rate=0)}, {"client_output_limit": LIMIT}) as daemon:
        daemon.wait_status()
        with daemon.client() as reader, daemon.client() as publisher:
            reader.ok(type="subscribe", topic=TOPIC)
            for burst in range(3):
                for n in range(9):
                    publisher.send(type="publish", topic=TOPIC, data=[n, text], id=n)
                for n in range(9):
                    publisher.receive(id=n)
                for n in range(9):
                    reader.message([n, text])
            reader.nothing_else()


def test_bound_per_user(kraken: Broker, bob: wsclient.Client) -> None:
    with daemon_with(kraken, "disconnect", output_per_uid=LIMIT * 2, client_output_limit=LIMIT * 100) as daemon:
        daemon.wait_status()
        clients = [daemon.client(receive_buffer=4096) for _ in range(5)]
        for client in clients:
            client.ok(type="subscribe", topic=TOPIC)
        flood(bob, 100)
        wait_until(lambda: "slow_consumer" in daemon.log(), "the bound is reached")
        ends = [read_all(client, 100) for client in clients]
        cut = [lines for lines in ends if lines[-1].get("error") == "slow_consumer"]
        assert cut and all(len(lines) == 100 for lines in ends if lines not in cut)
        for client in clients:
            client.close()


def test_who_reads_one_long_line_slowly_is_not_cut_off(kraken: Broker, bob: wsclient.Client) -> None:
    """A line far over the limit, of which something is taken all the time."""
    text = "y" * 900000
    with Daemon({"default": alice(kraken.url)}, {"client_output_limit": 64 * 1024}) as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as slow:
            slow.ok(type="subscribe", topic=TOPIC)
            bob.publish(TOPIC, text)
            received = b""
            while b"\n" not in received:
                select.select([], [], [], 0.025)  # about 300 KB in a second
                received += slow.socket.recv(8192)
            assert json.loads(received)["data"] == text
            slow.nothing_else()


def test_bound_per_user_hits_who_has_most_waiting(kraken: Broker, bob: wsclient.Client) -> None:
    """Not the one that happens to get the next line."""
    bound = 4 * LIMIT
    with daemon_with(kraken, "disconnect", output_per_uid=bound, client_output_limit=LIMIT * 100) as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as hog, daemon.client(receive_buffer=4096) as late, \
                daemon.client() as witness:
            hog.ok(type="subscribe", topic=TOPIC)
            witness.ok(type="subscribe", topic=TOPIC)
            late.ok(type="subscribe", topic=TASKS)
            feed(bob, witness, bound // len(BLOCK))
            flood(bob, 100, TASKS)
            wait_until(lambda: "slow_consumer" in daemon.log(), "the bound is reached")
            assert hog.ended()[-1]["error"] == "slow_consumer"
            for n in range(100):
                late.message([n, BLOCK])
            late.nothing_else()
            witness.nothing_else()


def test_bound_per_user_when_messages_are_dropped(kraken: Broker, bob: wsclient.Client) -> None:
    """What all clients of a user have waiting is bounded, and what is left out is told to each."""
    kernel = 256 * 1024  # what a socket holds, at most
    with daemon_with(kraken, "drop", output_per_uid=LIMIT * 2, client_output_limit=LIMIT * 100) as daemon:
        daemon.wait_status()
        clients = [daemon.client(receive_buffer=4096) for _ in range(10)]
        with daemon.client() as good:
            for client in clients:
                client.ok(type="subscribe", topic=TOPIC)
            good.ok(type="subscribe", topic=TASKS)
            flood(bob, 200)
            bob.publish(TASKS, "behind them")
            good.message("behind them")
        received = 0
        for client in clients:
            client.send(type="ping", id="end")
            lines = read_to_pong(client)
            got = sum(line["type"] == "message" for line in lines)
            assert got + sum(line["count"] for line in lines if line["type"] == "dropped") == 200
            received += got * len(BLOCK)
            client.close()
        assert received <= LIMIT * 2 + len(clients) * kernel


def read_to_pong(client: Client) -> list[Json]:
    lines: list[Json] = []
    while True:
        line = client.read_line()
        assert line is not None
        if line["type"] == "pong":
            return lines
        lines.append(line)


def read_all(client: Client, count: int) -> list[Json]:
    """So many lines, or those until the end."""
    lines: list[Json] = []
    while len(lines) < count:
        line = client.read_line()
        if line is None:
            break
        lines.append(line)
    return lines


def test_a_large_message_is_shared(kraken: Broker, bob: wsclient.Client) -> None:
    """One line for all: two hundred clients that do not read cost little more than one."""
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        clients = [daemon.client(receive_buffer=4096) for _ in range(200)]
        for client in clients:
            client.ok(type="subscribe", topic=TOPIC)
        before = rss(daemon)
        text = "y" * 900000
        bob.publish(TOPIC, text)
        for client in clients[:3]:
            client.message(text)
        assert rss(daemon) - before < 60 << 20
        for client in clients[3:]:
            client.message(text)
            client.close()
        for client in clients[:3]:
            client.close()


@pytest.mark.parametrize("ask", [{"type": "getPresence", "roomId": "ops"}, {"type": "watchPresence", "roomId": "ops"},
                                 {"type": "getLobbyPresence", "lobbyId": "all"}], ids=lambda ask: str(ask["type"]))
def test_a_list_is_shared(kraken: Broker, ask: Json) -> None:
    """One list answers a thousand requests, and is written once for all of them: they cost little more than one."""
    mute = {"watchPresence": "getPresence"}.get(ask["type"], ask["type"])
    actor = {"actorTokenId": "bob", "presence": "y" * 60000}
    actors = {f"bob{n}": {**actor, "actorTokenId": f"bob{n}"} for n in range(14)}
    lists = {"getPresence": {"type": "presenceList", "roomId": "ops", "data": list(actors.values())},
             "getLobbyPresence": {"type": "lobbyPresenceList", "lobbyId": "all", "presence": {"ops": actors}}}
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        clients = [daemon.client(receive_buffer=4096) for _ in range(10)]
        before = rss(daemon)
        kraken.mute(type=mute, count=1)
        for client in clients:
            for n in range(100):
                client.send(**ask, id=n)
            client.send(type="ping")
            client.receive(type="pong")
        kraken.wait_for(what="received", type=[mute], count=1)
        kraken.inject(frame=lists[mute], token="tok-alice")
        for client in clients[:2]:
            for n in range(100):
                answer = client.receive(id=n)
                told = answer["presence"]["ops"].values() if "presence" in answer else answer["data"]
                assert [each["presence"] for each in told] == [actor["presence"]] * 14
        assert rss(daemon) - before < 60 << 20
        assert len(kraken.received(mute)) == 1
        for client in clients:
            client.close()


def test_a_small_receive_buffer_gets_every_byte(kraken: Broker, bob: wsclient.Client) -> None:
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=1) as small:
            small.ok(type="subscribe", topic=TOPIC)
            text = "".join(chr(0x100 + n % 500) for n in range(300000))
            bob.publish(TOPIC, text)
            small.message(text)


def test_a_slow_client_does_not_delay_others(kraken: Broker, bob: wsclient.Client) -> None:
    kraken.configure(rateLimit=0)
    with Daemon({"default": alice(kraken.url)}) as daemon:
        daemon.wait_status()
        with daemon.client(receive_buffer=4096) as slow, daemon.client() as good:
            slow.ok(type="subscribe", topic=TOPIC)
            flood(bob, 200)
            good.ok(type="subscribe", topic=TASKS)
            for n in range(50):
                before = time.monotonic()
                good.ok(type="ping")
                bob.publish(TASKS, n)
                good.message(n)
                assert time.monotonic() - before < 0.5
