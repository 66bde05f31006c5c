# SPDX-License-Identifier: Apache-2.0
"""Bad input kills nothing but itself: one error line, and the next line works."""

import json
import os
import re
import signal
import socket
import struct
from pathlib import Path
from typing import Any, Callable

import pytest
from control import Broker
from harness import Client, Daemon, alice

TOPIC = "demo/ops/events"

Connect = Callable[..., Client]

BAD_LINES = [
    (b"not json", "bad_json"), (b"[]", "bad_json"), (b'"text"', "bad_json"), (b"{", "bad_json"),
    (b'{"type":"ping"} x', "bad_json"), (b'{"type":"ping",}', "bad_json"), (b"{'type':'ping'}", "bad_json"),
    (b'{"type":"ping"}\0', "bad_json"), (b"\0", "bad_json"), (b'{"a":NaN,"type":"ping"}', "bad_json"),
    (b'{"type":"publish","topic":"demo/ops/events","data":18446744073709551616}', "bad_payload"),
    (b'{"type":"publish","topic":"demo/ops/events","data":[1e999]}', "bad_payload"),
    (b'{"type":"publish","topic":"demo/ops/events","data":{"\\u0000":1}}', "bad_payload"),
    (b'{"type":"publish","topic":"demo/ops/events","data":"\\ud800"}', "bad_payload"),
    (b'{"type":"publish","topic":"demo/ops/events","data":1,"filter":"\\udc00"}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","filter":"region:us"}', "bad_field"),
    (b'{"type":"status","session":"other"}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","filters":["a|"]}', "bad_filter"),
    (b'{"type":"ping","x":[' + b"{}," * 200000 + b"0]}", "too_many_values"),
    (b'{"type":"ping","x":"\xff"}', "bad_utf8"), (b'{"type":"ping","x":"\xed\xa0\x80"}', "bad_utf8"),
    (b'{"type":"ping","x":"\xc0\xaf"}', "bad_utf8"), (b"\xfe\xff", "bad_utf8"),
    (b'{"type":"ping","x":' + b"[" * 65 + b"]" * 65 + b"}", "too_deep"),
    (b'{"type":"nonsense"}', "unknown_type"), (b"{}", "missing_field"), (b'{"type":1}', "bad_field"),
    (b'{"type":"ping","id":1.5}', "bad_field"), (b'{"type":"ping","id":{}}', "bad_field"),
    (b'{"type":"subscribe"}', "missing_field"), (b'{"type":"subscribe","topic":1}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops"}', "bad_topic"), (b'{"type":"subscribe","topic":"a/b/+"}', "bad_topic"),
    (b'{"type":"subscribe","topic":"demo/ops/events","filters":"x"}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","filters":["a/b"]}', "bad_filter"),
    (b'{"type":"subscribe","topic":"demo/ops/events","filters":[["one"]]}', "bad_filter"),
    (b'{"type":"subscribe","topic":"demo/ops/events","qos":3}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","loadBalanceGroup":1}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","lateJoin":"auto"}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","lateJoin":false}', "bad_field"),
    (b'{"type":"subscribe","topic":"*","lateJoin":"none"}', "bad_field"),
    (b'{"type":"setFilters","topic":"demo/ops/events","filters":["a"],"lateJoin":"none"}', "bad_field"),
    (b'{"type":"publish","topic":"demo/ops/events"}', "missing_field"),
    (b'{"type":"publish","topic":"demo/ops/events","data":1,"retain":"yes"}', "bad_field"),
    (b'{"type":"publish","topic":"demo/ops/events","data":1,"echo":0}', "bad_field"),
    (b'{"type":"publish","topic":"demo/ops/events","data":1,"msgRef":7}', "bad_field"),
    (b'{"type":"publish","topic":"demo/ops/events","data":1,"msgRef":""}', "bad_field"),
    (b'{"type":"publish","topic":"demo/ops/events","data":1,"filters":[1]}', "bad_filter"),
    (b'{"type":"publish","topic":"demo/ops/events","data":{"$bytes":"?"}}', "bad_payload"),
    (b'{"type":"publish","topic":"demo/ops/events","data":{"$ext":[300,""]}}', "bad_payload"),
    (b'{"type":"setFilters","topic":"demo/ops/events"}', "missing_field"),
    (b'{"type":"events","only":["nothing"]}', "bad_field"), (b'{"type":"auth"}', "missing_field"),
    (b'{"type":"stats"}', "not_supported"),
    (b'{"type":"getPresence","roomId":"a/b"}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","loadBalance":true,"loadBalanceGroup":"a/b"}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","loadBalance":true,"loadBalanceGroup":""}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","loadBalance":1}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","ack":"by hand"}', "bad_field"),
    (b'{"type":"subscribe","topic":"demo/ops/events","prefetch":1}', "bad_field"),
    (b'{"type":"ack"}', "missing_field"), (b'{"type":"ack","ackId":"x"}', "bad_field"),
    (b'{"type":"ack","ackId":1}', "unknown_ack"), (b'{"type":"ack","msgId":"x"}', "unknown_ack"),
    (b'{"type":"batchAck","msgIds":"x"}', "bad_field"), (b'{"type":"batchAck","msgIds":[1]}', "bad_field"),
    (b'{"type":"batchAck","ackIds":[1,2]}', "unknown_ack"),
]


def fence(client: Client) -> None:
    assert client.request(type="ping", id="fence")["type"] == "pong"


def steady(broker: Broker) -> int:
    """The number of connections the broker has seen; the same before and after: nothing harmed the shared one."""
    return broker.counters()["connections"]


@pytest.mark.parametrize("line,error", BAD_LINES, ids=[f"{n}-{error}" for n, (_, error) in enumerate(BAD_LINES)])
def test_one_error_and_the_next_line_works(daemon: Daemon, broker: Broker, connect: Connect, line: bytes,
                                           error: str) -> None:
    before = steady(broker)
    client = connect()
    client.write(line + b"\n" + b'{"type":"ping","id":"next"}\n')
    first, second = client.read_line(), client.read_line()
    assert first is not None and first["type"] == "error" and first["error"] == error and first["hint"], first
    assert second == {"type": "pong", "id": "next"}
    client.nothing_else()
    assert broker.received("subscribe", "setFilters", "publish", "unknown", "garbage") == []
    assert steady(broker) == before


def test_the_error_for_an_unreadable_line_is_an_answer(connect: Connect) -> None:
    client = connect()
    client.ok(type="events", only=[])
    client.write(b"nonsense\n")
    assert client.receive(type="error")["error"] == "bad_json"


def test_json_that_cannot_be_held_is_answered_with_its_id(connect: Connect) -> None:
    client = connect()
    for data in (b"18446744073709551616", b"[-9223372036854775809]", b"1e999", b'{"\\u0000":1}', b'"\\ud800"'):
        client.write(b'{"type":"publish","topic":"demo/ops/events","data":%s,"id":1,"msgRef":"m"}\n' % data)
        answer = client.receive(id=1)
        assert answer["error"] == "bad_payload" and answer["request"] == "publish" and answer["msgRef"] == "m"
        assert answer["hint"].startswith("byte ")


def test_bad_json_says_where_and_why(connect: Connect) -> None:
    client = connect()
    for line, hint in ((b'{"type":"ping"} {"type":"ping"}', "byte 17: a second object"),
                       (b'{"type":"ping","x":NaN}', "byte 20: NaN"), (b'  "type": "ping",', "byte 3: an object must"),
                       (b'{', "byte 2: the line ends within the object")):
        client.write(line + b"\n")
        assert client.receive(error="bad_json")["hint"].startswith(hint)


def memory_peak(daemon: Daemon) -> int:
    """The most memory that the daemon has had, in bytes."""
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{daemon.process.pid}/status").read_text(), re.M)
    return int(line) * 1024


def test_a_line_of_small_values_costs_little(daemon: Daemon, connect: Connect) -> None:
    """The worst that a line of 2 MiB can hold is refused before anything is made of it."""
    client = connect()
    line = b'{"type":"ping","x":[' + b",".join([b"{}"] * 690000) + b"]}"
    assert len(line) < client.ok(type="hello")["limits"]["line"]
    before = memory_peak(daemon)
    client.write((line + b"\n") * 3)
    for _ in range(3):
        assert client.receive(type="error")["error"] == "too_many_values"
    assert memory_peak(daemon) - before < 60 << 20


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_line_length(connect: Connect, ending: bytes) -> None:
    client = connect()
    limit = client.ok(type="hello")["limits"]["line"]
    for extra in (-1, 0, 1, 2, 3, 100000):
        line = b'{"type":"ping","id":1,"x":"' + b"x" * (limit + extra - 29) + b'"}'
        assert len(line) == limit + extra
        client.write(line + ending)
        answer = client.read_line()
        expected = {"type": "pong", "id": 1} if extra <= 0 else None
        assert answer is not None and (answer == expected or (expected is None and answer["error"] == "line_too_long"))
    client.nothing_else()


def test_one_byte_at_a_time(connect: Connect) -> None:
    client = connect()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for byte in b'\xef\xbb\xbf{"type":"ping","id":1}\r\n\n\r\n{"type":"ping","id":"\xc3\xa9"}\n':
        client.write(bytes([byte]))
    assert client.read_line() == {"type": "pong", "id": 1}
    assert client.read_line() == {"type": "pong", "id": "é"}


def test_a_thousand_requests_in_one_write(broker: Broker, connect: Connect) -> None:
    client = connect()
    client.write(b"".join(b'{"type":"ping","id":%d}\n' % n for n in range(1000)))
    assert [client.read_line() for _ in range(1000)] == [{"type": "pong", "id": n} for n in range(1000)]
    client.write(b"".join(b'{"type":"subscribe","topic":"demo/general/t%d","id":%d}\n' % (n, n) for n in range(1000)))
    for n in range(1000):
        assert client.receive(id=n)["type"] == "subscribed"


def test_a_line_of_a_mebibyte(broker: Broker, connect: Connect) -> None:
    client, other = connect(), connect()
    other.ok(type="subscribe", topic=TOPIC)
    data = {"text": "ä" * 400000}
    client.ok(type="publish", topic=TOPIC, data=data)
    other.message(data)


def test_closed_while_a_message_is_written(daemon: Daemon, broker: Broker, connect: Connect) -> None:
    """A reset while much waits for the client must not disturb anyone (SIGPIPE, EPIPE)."""
    good, publisher = connect(), connect()
    good.ok(type="subscribe", topic=TOPIC)
    for _ in range(20):
        bad = daemon.client(receive_buffer=4096)
        bad.ok(type="subscribe", topic=TOPIC)
        publisher.ok(type="publish", topic=TOPIC, data="x" * 400000)
        bad.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        bad.close()
        good.message("x" * 400000)
    fence(good)


def test_garbage_from_a_hundred_clients(daemon: Daemon, broker: Broker, connect: Connect) -> None:
    good = connect()
    good.ok(type="subscribe", topic=TOPIC)
    before = steady(broker)
    for seed in range(100):
        with daemon.client() as bad:
            noise = random_bytes(seed)
            bad.write(noise + b"\n")
            bad.half_close()
            assert all(line["type"] == "error" for line in bad.ended())
    fence(good)
    good.ok(type="publish", topic=TOPIC, data=1)
    assert steady(broker) == before


def random_bytes(seed: int) -> bytes:
    import random
    rng = random.Random(seed)
    letters = bytes(range(256)) + b'{}[]",:\n\\' * 20
    return bytes(rng.choice(letters) for _ in range(2000))


def test_bigint(connect: Connect) -> None:
    plain, old, publisher = connect(), connect(), connect()
    old.ok(type="hello", bigint="string")
    for client in (plain, old):
        client.ok(type="subscribe", topic=TOPIC)
    data = [2**53 - 1, 2**53, -2**53 + 1, -2**53, 2**64 - 1]
    publisher.ok(type="publish", topic=TOPIC, data=data)
    plain.message(data)
    old.message([2**53 - 1, str(2**53), -2**53 + 1, str(-2**53), str(2**64 - 1)])


def test_ids_of_every_kind(connect: Connect) -> None:
    client = connect()
    for id in (0, -1, 2**63 - 1, -2**63, 2**64 - 1, "", "a", "ä\"\\\n\0", "x" * 254):
        assert client.request(type="ping", id=id) == {"type": "pong", "id": id}
    for id in ("x" * 255, 2**64, 1.0, True, [], {}):
        client.send(type="ping", id=id)
        answer = client.receive(type="error")
        assert answer["error"] == "bad_field" and answer["field"] == "id" and "id" not in answer
    client.send(type="ping", id=None)
    assert client.receive(type="pong") == {"type": "pong"}
