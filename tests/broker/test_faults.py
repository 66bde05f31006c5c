# SPDX-License-Identifier: Apache-2.0
"""Every command of the control socket does what README.md says."""

import socket
import struct
import time

import msgpack
import pytest
from control import CommandFailed
from wsclient import HEARTBEAT, Client, Rejected

TOPIC = "demo/ops/events"
OTHER = "demo/ops/tasks"
PUBLISH = {"type": "publish", "topic": TOPIC, "data": 1, "msgRef": "r"}
PUBLISHED = {"type": "published", "topic": TOPIC, "msgRef": "r"}
RATE_LIMITED = {"type": "error", "error": "rate_limit_exceeded", "code": 42910,
                "topic": TOPIC, "msgRef": "r"}
DENIED = {"type": "auth", "success": False, "error": "broker_unavailable"}


def closed_as(client):
    closed = client.wait_closed()
    return closed.code, closed.reason


# Authentication


def test_refuse_auth_by_token_and_count(broker, connect):
    broker.refuse_auth(error="broker_unavailable", token="tok-alice", count=1)
    assert connect("bob").auth["success"] is True
    assert connect("alice").auth == DENIED
    assert connect("alice").auth["success"] is True


def test_refuse_auth_until_cleared(broker, connect):
    broker.refuse_auth()
    assert [connect(actor).auth["error"] for actor in ("alice", "bob", "alice")] == [
        "access_denied"] * 3
    broker.clear()
    assert connect("alice").auth["success"] is True


def test_restored(broker, connect):
    broker.restored(token="tok-alice", subscriptions=[TOPIC, {"topic": OTHER, "filters": ["x"]}])
    client = connect("alice", reconnect=True)
    assert client.auth["restoredSubscriptions"] == [TOPIC, {"topic": OTHER, "filters": ["x"]}]
    connect("bob").publish(TOPIC, "really subscribed")
    assert client.recv()["data"] == "really subscribed"


def test_restored_and_group_is_too_much_for_kraken(broker, connect):
    broker.restored(token="tok-alice", subscriptions=[{"topic": TOPIC, "filters": [["a", "b"]]}])
    client = connect()
    client.send({"type": "auth", "token": "tok-alice", "reconnect": True})
    assert closed_as(client) == (1011, "")


def test_protocol_version_of_an_old_broker(broker, connect):
    broker.configure(protocolVersion=1)
    assert connect("alice").auth["protocolVersion"] == 1


# Answers late or never


def test_delay_holds_back_the_answer_not_the_deed(broker, connect):
    broker.delay(type="publish", ms=150)
    client = connect("alice")
    start = time.monotonic()
    client.send(PUBLISH, HEARTBEAT)
    broker.wait_for(what="accepts")
    assert time.monotonic() - start < 0.15
    assert client.recv() == PUBLISHED
    assert time.monotonic() - start >= 0.15
    assert client.recv() == HEARTBEAT


def test_mute_one_type_on_one_topic(broker, connect):
    broker.mute(type="subscribe", topic=TOPIC)
    client = connect("alice")
    client.send({"type": "subscribe", "topic": TOPIC}, {"type": "subscribe", "topic": OTHER})
    assert client.recv()["topic"] == OTHER
    assert [each["topic"] for each in broker.state()[-1]["subscriptions"]] == [TOPIC, OTHER]


def test_mute_heartbeats_only(broker, connect):
    broker.mute(type="heartbeat", count=2)
    client = connect("alice")
    client.send(HEARTBEAT, HEARTBEAT, PUBLISH, HEARTBEAT)
    assert [client.recv(), client.recv()] == [PUBLISHED, HEARTBEAT]


def test_nth(broker, connect):
    broker.mute(type="publish", nth=2, count=1)
    client = connect("alice")
    client.send(*[{**PUBLISH, "msgRef": ref} for ref in "abc"])
    assert [client.recv()["msgRef"], client.recv()["msgRef"]] == ["a", "c"]


# Half dead connections


def test_half_open_neither_reads_nor_answers(broker, connect):
    dead, alive = connect("alice"), connect("bob")
    broker.half_open(token="tok-alice")
    dead.send(PUBLISH)
    for _ in range(3):
        assert alive.ask(HEARTBEAT) == HEARTBEAT
    broker.inject(frame={"type": "x"}, token="tok-alice")
    broker.settle()
    assert broker.received("publish") == []
    broker.resume()
    assert {dead.recv()["type"], dead.recv()["type"]} == {"x", "published"}


def test_half_open_does_not_read(broker, connect):
    client = connect("alice")
    broker.half_open()
    client.socket.setblocking(False)
    sent = 0
    with pytest.raises(BlockingIOError):
        while sent < 256 * 1024 * 1024:
            sent += client.socket.send(bytes(1024 * 1024))
    client.closed = True


def test_half_open_new_connections(broker, connect):
    alive = connect("bob")
    broker.half_open(new=True, existing=False)
    stalled = socket.create_connection(("127.0.0.1", broker.port), 5)
    stalled.sendall(b"GET /ws HTTP/1.1\r\n\r\n")
    assert alive.ask(HEARTBEAT) == HEARTBEAT
    stalled.setblocking(False)
    with pytest.raises(BlockingIOError):
        stalled.recv(1)
    broker.resume()
    stalled.settimeout(5)
    assert stalled.recv(4) == b"HTTP"
    stalled.close()


def test_inbound_dead_reads_but_sends_nothing(broker, connect):
    client = connect("alice")
    client.subscribe(TOPIC)
    broker.inbound_dead()
    client.send(PUBLISH)
    broker.wait_for(what="accepts")
    broker.settle()
    broker.resume()
    assert client.ask(HEARTBEAT) == HEARTBEAT


# Drops


def test_drop_now_with_code_and_reason(broker, connect):
    alice, bob = connect("alice"), connect("bob")
    answer = broker.drop(token="tok-alice", code=4001, reason="token_revoked")
    assert answer["connections"] == [alice.number]
    assert closed_as(alice) == (4001, "token_revoked")
    assert bob.ask(HEARTBEAT) == HEARTBEAT


def test_after_the_close_frame_nothing_is_performed(broker, connect):
    client = connect("alice")
    broker.drop(code=4002)
    client.send(PUBLISH)
    client.close()
    assert client.closed.code == 4002
    assert broker.received("publish") == []


@pytest.mark.parametrize("abort", [True, "fin"])
def test_drop_without_a_close_frame(broker, connect, abort):
    client = connect("alice")
    broker.drop(abort=abort)
    assert closed_as(client) == (1006, "")


def test_abort_is_a_reset(broker, connect):
    client = connect("alice")
    broker.drop(abort=True)
    with pytest.raises(ConnectionResetError):
        client.socket.recv(1)


@pytest.mark.parametrize("when, accepted, answered", [
    ("receipt", False, False), ("before", True, False), ("after", True, True)])
@pytest.mark.parametrize("how, code", [({"code": 1011}, 1011), ({"abort": True}, 1006)],
                         ids=["close", "abort"])
def test_drop_at_a_publish(broker, connect, when, accepted, answered, how, code):
    broker.drop_at(type="publish", when=when, nth=2, **how)
    client = connect("alice")
    assert client.ask({**PUBLISH, "msgRef": "first"})["msgRef"] == "first"
    client.send(PUBLISH)
    if answered:
        assert client.recv() == PUBLISHED
    assert client.wait_closed().code == code
    assert len(broker.accepts()) == 1 + accepted
    assert connect("alice").ask(PUBLISH) == PUBLISHED


def test_drop_of_a_client_that_was_faster(broker, connect):
    """It resets the connection itself while its answer is held back: nothing is left to be dropped."""
    broker.delay(type="publish", ms=50)
    broker.drop_at(type="publish", when="before", abort=True)
    client = connect("alice")
    client.send(PUBLISH)
    broker.wait_for(what="accepts")
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    deadline = time.monotonic() + 5
    while "dropped" not in broker.counters() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert broker.counters()["dropped"] == 1
    assert connect("alice").ask(PUBLISH) == PUBLISHED


@pytest.mark.parametrize("when, authenticated", [("before", False), ("after", True)])
def test_drop_at_auth(broker, connect, when, authenticated):
    broker.drop_at(type="auth", when=when, code=1011)
    client = connect()
    client.send({"type": "auth", "token": "tok-alice", "protocolVersion": 2})
    if authenticated:
        assert client.recv()["success"] is True
    assert closed_as(client) == (1011, "")


def test_drop_at_a_request_that_has_no_answer(broker, connect):
    broker.drop_at(type="presence", when="after", code=4000)
    client = connect("alice")
    client.send({"type": "presence", "roomId": "ops", "data": 1})
    assert client.wait_closed().code == 4000


# Before the connection stands


def test_stop_listening_and_listen_again(broker, connect):
    old = connect("alice")
    port = broker.port
    broker.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        Client(broker.url)
    assert old.ask(HEARTBEAT) == HEARTBEAT
    broker.listen()
    assert broker.port == port
    assert connect("alice").ask(HEARTBEAT) == HEARTBEAT


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_http_status(broker, connect, status):
    broker.http_status(status=status, headers={"Retry-After": "7"}, count=1)
    with pytest.raises(Rejected) as rejected:
        Client(broker.url)
    assert rejected.value.status == status
    assert rejected.value.headers["Retry-After"] == "7"
    assert connect("alice").auth["success"] is True


def test_other_paths_are_not_found(broker):
    with pytest.raises(Rejected) as rejected:
        Client(broker.url + "x")
    assert rejected.value.status == 404


# Refusals and limits


def test_refuse_a_topic(broker, connect):
    broker.refuse(topic=TOPIC, error="unknown_topic", type=["subscribe", "publish"])
    client = connect("alice")
    assert client.ask(PUBLISH)["code"] == 42940
    assert client.subscribe(TOPIC)["error"] == "unknown_topic"
    assert client.subscribe(OTHER)["type"] == "subscribed"


def test_refuse_set_filters_only(broker, connect):
    broker.refuse(type="setFilters", error="not_authorized")
    client = connect("alice")
    client.subscribe(TOPIC, filters=["a"])
    answer = client.ask({"type": "setFilters", "topic": TOPIC, "filters": ["b"]})
    assert answer == {"type": "error", "error": "not_authorized", "topic": TOPIC}
    assert broker.state()[-1]["subscriptions"][0]["filters"] == ["a"]


def test_refuse_with_code_hint_and_fields(broker, connect):
    broker.refuse(type="publish", error="odd", code=1, hint="h", fields={"more": 2}, count=1)
    client = connect("alice")
    assert client.ask(PUBLISH) == {"type": "error", "error": "odd", "code": 1, "hint": "h",
                                   "more": 2, "topic": TOPIC, "msgRef": "r"}
    assert client.ask(PUBLISH) == PUBLISHED


def test_rate_limit_next(broker, connect):
    broker.rate_limit_next(count=2)
    client = connect("alice")
    assert [client.ask(PUBLISH) for _ in range(3)] == [RATE_LIMITED, RATE_LIMITED, PUBLISHED]
    assert len(broker.accepts()) == 1


def test_rate_limit_override(broker, connect, quiet):
    broker.configure(rateLimit=0)
    client = connect("alice")
    client.send(*[PUBLISH] * 300)
    assert quiet(client) == [PUBLISHED] * 300
    broker.configure(rateLimit=1)
    client.send(*[PUBLISH] * 3)
    assert RATE_LIMITED in quiet(client)


def test_size_limit(broker, connect):
    broker.configure(maxSizeBytes=10)
    client = connect("alice")
    assert client.ask({**PUBLISH, "data": "x" * 9}) == PUBLISHED
    assert client.ask({**PUBLISH, "data": "x" * 10})["maxSizeBytes"] == 10


# Messages


def test_no_recording(broker, connect):
    broker.configure(recording=False)
    client = connect("alice")
    client.subscribe(TOPIC)
    client.send(PUBLISH)
    assert client.recv() == PUBLISHED
    assert client.recv() == {"type": "message", "topic": TOPIC, "data": 1, "filter": "#"}


def test_delivery_delay(broker, connect):
    connect("bob").ask({**PUBLISH, "retain": True})
    broker.configure(deliveryDelayMs=500)
    client = connect("alice")
    client.subscribe(TOPIC)
    assert [client.ask(HEARTBEAT) for _ in range(5)] == [HEARTBEAT] * 5
    assert client.recv()["data"] == 1


def test_extra_fields(broker, connect):
    broker.configure(extraFields={"from": "someone", "timestamp": 5})
    client = connect("bob")
    client.subscribe(TOPIC)
    connect("alice").publish(TOPIC, 1)
    message = client.recv()
    assert (message["from"], message["timestamp"]) == ("someone", 5)


def test_inject_a_frame_to_one_token(broker, connect, quiet):
    alice, bob = connect("alice"), connect("bob")
    frame = {"type": "replayStart", "count": 2}
    assert broker.inject(frame=frame, token="tok-bob")["connections"] == [bob.number]
    of_alice, of_bob = quiet(alice, bob)
    assert (of_alice, of_bob) == ([], [frame])


def test_inject_what_json_cannot_say(broker, connect):
    client = connect("alice")
    broker.inject(frame={"bin": {"$bytes": "AP8="}, "nan": {"$float": "nan"},
                         "map": {"$map": [[1, 2]]}, "ext": {"$ext": [5, "qg=="]}})
    frame = client.recv()
    assert (frame["bin"], frame["map"]) == (b"\x00\xff", {1: 2})
    assert frame["ext"] == msgpack.ExtType(5, b"\xaa")
    assert frame["nan"] != frame["nan"]


@pytest.mark.parametrize("opcode", ["binary", "text"])
def test_inject_raw_bytes(broker, connect, opcode):
    client = connect("alice")
    broker.inject(hex="c1ff00" if opcode == "binary" else "6869", opcode=opcode)
    assert client.recv_raw() == (b"\xc1\xff\x00" if opcode == "binary" else b"hi")


def test_inject_below_the_websocket(broker, connect):
    client = connect("alice")
    broker.inject(hex="82026869", opcode="tcp")
    assert client.recv_raw() == b"hi"


def test_hydration_comes_with_each_subscribe(broker, connect):
    broker.hydration(topic=TOPIC, data={"rows": [1]})
    client = connect("alice")
    for _ in range(2):
        assert client.subscribe(TOPIC)["type"] == "subscribed"
        assert client.recv() == {"type": "hydration", "topic": "events", "data": {"rows": [1]}}


@pytest.mark.parametrize("size", [1, 7])
def test_split_into_fragments(broker, connect, size):
    client = connect("alice")
    broker.split(bytes=size)
    assert client.ask(PUBLISH) == PUBLISHED
    assert client.fragments == -(-len(msgpack.packb(PUBLISHED)) // size)
    assert client.ask(HEARTBEAT) == HEARTBEAT
    broker.split(bytes=0)
    client.ask(PUBLISH)
    assert client.fragments == 1


def test_split_into_tcp_writes(broker, connect):
    client = connect("alice")
    broker.split(bytes=1, level="tcp")
    client.reads.clear()
    broker.inject(frame={"type": "x", "data": "y" * 5000})
    assert client.recv()["data"] == "y" * 5000
    assert client.fragments == 1
    assert len(client.reads) > 1


# Questions


def test_state(broker, connect):
    client = connect("alice", reconnect=True)
    client.subscribe(TOPIC, filters=["x", ["a", "b"]])
    client.subscribe(OTHER, loadBalance=True)
    client.ask({"type": "lobbySubscribe", "lobbyId": "all"})
    client.send({"type": "presence", "roomId": "ops", "data": {"b": 1}})
    client.recv()
    state = broker.state()[-1]
    assert state.pop("openedAt") <= time.time()
    assert state == {
        "connection": client.number, "token": "tok-alice", "actorTokenId": "alice",
        "authenticated": True, "protocolVersion": 2, "reconnect": True,
        "subscriptions": [
            {"topic": TOPIC, "filters": ["x", ["a", "b"]], "loadBalance": False, "group": None},
            {"topic": OTHER, "filters": [], "loadBalance": True, "group": "default"}],
        "presence": {"room": "room-ops", "data": {"b": 1}}, "lobbies": ["all"]}


def test_accepts(broker, connect):
    client = connect("alice")
    client.send({**PUBLISH, "data": {"k": [1.5, None]}, "filters": ["B", "a"]})
    client.send({**PUBLISH, "topic": OTHER, "msgRef": "s", "echo": False})
    broker.wait_for(what="accepts", count=2)
    first, second = broker.accepts()
    assert (first["topic"], first["data"], first["filter"], first["msgRef"], first["token"]) == (
        TOPIC, {"k": [1.5, None]}, "a|b", "r", "tok-alice")
    assert (second["seq"], second["echo"]) == (first["seq"] + 1, False)
    assert broker.accepts(since=first["seq"]) == [second]
    assert broker.accepts(topic=TOPIC) == [first]


def test_received_shows_what_was_sent(broker, connect):
    client = connect("alice")
    client.send({**PUBLISH, "data": b"\x00\xff"}, b"\xc1")
    broker.wait_for(type="garbage")
    publish, garbage = broker.received("publish", "garbage", hex=True)
    assert publish["frame"] == {**PUBLISH, "data": {"$bytes": "AP8="}}
    assert publish["connection"] == client.number
    assert abs(publish["time"] - time.time()) < 60
    assert (garbage["hex"], garbage["bytes"], garbage["frame"]) == ("c1", 1, None)


def test_acks(broker, connect):
    client = connect("alice")
    client.send({"type": "ack", "msgId": "a"}, {"type": "batchAck", "msgIds": ["b", "c"]})
    broker.wait_for(what="acks", count=3)
    assert [each["msgId"] for each in broker.acks()] == ["a", "b", "c"]
    assert broker.counters()["acked"] == 3


def test_wait_for_tells_what_is_missing(broker, connect):
    connect("alice")
    assert broker.wait_for(what="connections", token="tok-alice") == 1
    with pytest.raises(CommandFailed, match="0 of 1 received"):
        broker.wait_for(type="publish", timeoutMs=20)


def test_reset_forgets(broker, connect, quiet):
    client = connect("alice")
    client.send({**PUBLISH, "retain": True})
    client.recv()
    broker.refuse(error="x", type="publish")
    broker.reset()
    assert broker.accepts() == [] and broker.received() == [] and broker.counters() == {}
    assert client.ask(PUBLISH) == PUBLISHED
    client.subscribe(TOPIC)
    assert quiet(client) == []


def test_clear_restores_settings(broker):
    before = broker.configure()["settings"]
    assert broker.configure(rateLimit=3, recording=False)["settings"] != before
    broker.clear()
    assert broker.configure()["settings"] == before


@pytest.mark.parametrize("command, error", [
    ({"cmd": "nonsense"}, "no such command"), ({"cmd": "delay"}, "ms"),
    ({"cmd": "configure", "nonsense": 1}, "nonsense"),
    ({"cmd": "drop_at", "when": "never"}, "when is"), ({"cmd": "inject"}, "frame"),
    ({"cmd": "drop", "abort": "x"}, "abort is"), ({"cmd": "split", "bytes": "x"}, "x")], ids=str)
def test_bad_commands_are_answered(broker, command, error):
    with pytest.raises(CommandFailed, match=error):
        broker.command(**command)
    assert broker.ping()["url"] == broker.url
