# SPDX-License-Identifier: Apache-2.0
"""What the broker does beyond the recorded conversations (flavor kraken)."""

import msgpack
import pytest
from wsclient import HEARTBEAT, Closed

TOPIC = "demo/ops/events"
OTHER = "demo/ops/tasks"
BAD = b"\xff\xfeA"  # not UTF-8


def publish(**fields):
    return {"type": "publish", "topic": TOPIC, "data": 1, "msgRef": "x", **fields}


def raw_map(pairs):
    """A packed map that may have keys which Python dicts cannot have."""
    packer = msgpack.Packer()
    return packer.pack_map_pairs(pairs)


def payload_with_key(key):
    head = msgpack.packb({"type": "publish", "topic": TOPIC, "data": 0})
    assert head.endswith(b"\xa4data\x00")
    return head[:-1] + raw_map([(key, 1)])


POISON = {
    "data as bin": publish(data=BAD),
    "data as str": publish(data=BAD.decode("utf-8", "surrogateescape")),
    "data deep inside": publish(data=[{"k": {BAD: 1}}]),
    "float key": payload_with_key(1.5),
    "list key": payload_with_key([1]),
    "retain 1": publish(retain=1),
    "publish filters": publish(filters=["a", BAD]),
    "group integer": {"type": "subscribe", "topic": TOPIC, "loadBalance": True,
                      "loadBalanceGroup": 7},
    "topic integer": {"type": "subscribe", "topic": 5},
    "topic not UTF-8": publish(topic=BAD),
    "roomId not UTF-8": {"type": "getPresence", "roomId": BAD},
    "msgRef not UTF-8": publish(msgRef=BAD),
    "msgIds not a list": {"type": "batchAck", "msgIds": "x"},
}

# What is performed or ignored, but never answered.
UNANSWERED = {
    "msgRef integer": publish(msgRef=5),
    "msgRef empty": publish(msgRef=""),
    "ext": publish(data=msgpack.ExtType(5, b"\xaa")),
    "timestamp": publish(data=msgpack.Timestamp(1)),
    "presence room integer": {"type": "presence", "roomId": 5, "data": {}},
    "setFilters without filters": {"type": "setFilters", "topic": TOPIC},
    "publish without data": {"type": "publish", "topic": TOPIC, "msgRef": "x"},
    "unknown type": {"type": "nonsense"},
    "reserved byte": b"\xc1",
    "cut off": b"\x82\xa4type",
    "not a map": [1, 2],
    "auth again": {"type": "auth", "token": "tok-bob"},
}


def pack(frame):
    if isinstance(frame, bytes):
        return frame
    return msgpack.packb(frame, unicode_errors="surrogateescape")


@pytest.mark.parametrize("case", POISON)
def test_poison_closes_the_sender_only(connect, case):
    sender, bystander = connect("alice"), connect("bob")
    sender.send(pack(POISON[case]))
    closed = sender.wait_closed()
    assert (closed.code, closed.reason) == (1011, "")
    assert bystander.ask(HEARTBEAT) == HEARTBEAT


@pytest.mark.parametrize("case", UNANSWERED)
def test_never_answered(connect, quiet, case):
    client = connect("alice")
    client.send(pack(UNANSWERED[case]))
    assert quiet(client) == []


def test_text_frames_are_ignored(connect, quiet):
    client = connect("alice")
    client.send_text("hello")
    assert quiet(client) == []


def test_poisoned_presence_closes_all_in_the_room(connect):
    inside, elsewhere, sender = connect("bob"), connect("bob"), connect("alice")
    inside.send({"type": "presence", "roomId": "ops", "data": 1})
    elsewhere.send({"type": "presence", "roomId": "general", "data": 1})
    for client in (inside, elsewhere):
        assert [client.recv()["event"], client.recv()["event"]] == ["join", "update"]
    sender.send({"type": "presence", "roomId": "ops", "data": {"k": BAD}})
    assert sender.wait_closed().code == 1011
    assert inside.wait_closed().code == 1011
    assert elsewhere.ask(HEARTBEAT) == HEARTBEAT


@pytest.mark.parametrize("fields", [{"qos": 9}, {"echo": "no"}, {"filters": [1, 2]},
                                    {"filter": BAD}], ids=str)
def test_wrong_values_that_pass(connect, fields):
    assert connect("alice").ask(publish(**fields))["type"] == "published"


def test_echo_other_than_false_counts_as_true(connect):
    client = connect("alice")
    client.subscribe(TOPIC)
    assert client.ask(publish(echo="no"))["type"] == "published"
    assert client.recv()["data"] == 1


def test_integer_filters_publish_unfiltered(connect, quiet):
    filtered, everything, sender = connect("bob"), connect("bob"), connect("alice")
    filtered.subscribe(TOPIC, filters=["a"])
    everything.subscribe(TOPIC)
    sender.ask(publish(filters=[1, 2]))
    assert [frame["data"] for frame in quiet(everything)] == [1]
    assert quiet(filtered) == []


@pytest.mark.parametrize("data, delivered", [
    ({"_sender": "s", "data": 5}, 5),
    ({"_msgId": "m", "_data": {"a": 1}}, {"a": 1}),
    ({"_sender": "s"}, {"_sender": "s"}),
    ({None: 1}, {None: 1}),
], ids=str)
def test_payloads_that_look_like_envelopes_are_unwrapped(connect, data, delivered):
    subscriber, sender = connect("bob"), connect("alice")
    subscriber.subscribe(TOPIC)
    sender.publish(TOPIC, data)
    assert subscriber.recv()["data"] == delivered


def test_group_with_slash_is_confirmed_and_gets_nothing(connect, quiet):
    worker, sender = connect("bob"), connect("alice")
    answer = worker.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="a/b")
    assert answer == {"type": "subscribed", "topic": TOPIC, "loadBalance": True}
    sender.ask(publish())
    assert quiet(worker) == []


def test_load_balance_tells_the_real_filter_and_respects_filters(connect, quiet):
    all_, some, sender = connect("bob"), connect("bob"), connect("alice")
    all_.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="one")
    some.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="two", filters=["x"])
    for key in ("x", "y"):
        assert sender.ask(publish(data=key, filter=key))["type"] == "published"
    of_all, of_some = quiet(all_, some)
    assert [(frame["data"], frame["filter"]) for frame in of_all] == [("x", "x"), ("y", "y")]
    assert [(frame["data"], frame["filter"]) for frame in of_some] == [("x", "x")]


def test_a_group_shares_its_messages(connect, quiet):
    workers, sender = [connect("bob"), connect("bob")], connect("alice")
    for worker in workers:
        worker.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="g")
    for number in range(10):
        sender.publish(TOPIC, number)
    sender.ask(publish(data=10))
    first, second = ([frame["data"] for frame in frames] for frames in quiet(*workers))
    assert first and second
    assert sorted(first + second) == list(range(11))


def test_every_group_member_gets_the_retained_message(connect):
    sender = connect("alice")
    sender.ask(publish(retain=True, filter="f"))
    for _ in range(2):
        worker = connect("bob")
        worker.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="g")
        assert worker.recv()["filter"] == "f"


def test_retained_with_echo_false_is_kept_from_its_connection_only(connect, quiet):
    sender, second = connect("alice"), connect("alice")
    sender.ask(publish(retain=True, echo=False))
    sender.subscribe(TOPIC)
    assert quiet(sender) == []
    second.subscribe(TOPIC)
    assert second.recv()["data"] == 1


def test_retained_null_stays_a_retained_message(connect):
    sender, late = connect("alice"), connect("bob")
    sender.ask(publish(retain=True))
    sender.ask(publish(retain=True, data=None))
    late.subscribe(TOPIC)
    assert late.recv()["data"] is None


def test_subscribing_again_with_filters_brings_each_retained_again(connect, quiet):
    sender, late = connect("alice"), connect("bob")
    for key in ("a", "b", "c"):
        sender.ask(publish(retain=True, filter=key, data=key))
    for _ in range(2):
        late.subscribe(TOPIC, filters=["a", "b"])
        assert [frame["data"] for frame in quiet(late)] == ["a", "b"]


def test_set_filters_keeps_the_group(connect, broker):
    worker = connect("bob")
    worker.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="g")
    worker.ask({"type": "setFilters", "topic": TOPIC, "filters": ["x"]})
    assert broker.state()[-1]["subscriptions"] == [
        {"topic": TOPIC, "filters": ["x"], "loadBalance": True, "group": "g"}]


def test_set_filters_that_is_no_list_means_no_filters(connect):
    client = connect("bob")
    client.subscribe(TOPIC, filters=["x"])
    answer = client.ask({"type": "setFilters", "topic": TOPIC, "filters": "y"})
    assert answer == {"type": "filtersUpdated", "topic": TOPIC, "filters": []}


def test_group_values_are_lowercased_by_unicode(connect):
    subscriber, sender = connect("bob"), connect("alice")
    subscriber.subscribe(TOPIC, filters=[["Ä", "b"]])
    sender.publish(TOPIC, 1, filters=["B", "ä"])
    assert subscriber.recv()["filter"] == "b|ä"


def test_before_auth_only_the_error(connect):
    client = connect()
    error = {"type": "error", "error": "not_authenticated"}
    assert client.ask({"type": "getPresence", "roomId": "ops"}) == error
    assert client.ask(HEARTBEAT) == error


def test_before_auth_garbage_is_ignored(connect):
    client = connect()
    client.send(b"\xc1", {"type": "auth", "token": "tok-alice"})
    assert client.recv()["success"] is True


def test_a_refused_connection_may_try_again(connect):
    client = connect("mallory")
    assert client.auth == {"type": "auth", "success": False, "error": "access_denied"}
    assert client.ask({"type": "auth", "token": "tok-alice"})["success"] is True


def test_version_is_the_smaller_one(connect):
    assert connect("alice", protocolVersion=7).auth["protocolVersion"] == 2
    assert connect("alice", protocolVersion=1).auth["protocolVersion"] == 1


def test_version_1_has_no_published(connect, quiet):
    client = connect("alice", protocolVersion=1)
    client.send(publish(), publish(topic="demo/nowhere/x"))
    assert quiet(client) == [
        {"type": "error", "error": "not_authorized", "topic": "demo/nowhere/x"}]


def test_largest_payload_and_one_byte_more(connect):
    client = connect("alice")
    header = 5
    assert client.ask(publish(data="x" * (921_600 - header)))["type"] == "published"
    assert client.ask(publish(data="x" * (921_600 - header + 1)))["maxSizeBytes"] == 921_600


def test_only_publishes_count_against_the_rate(connect, broker, quiet):
    broker.configure(rateLimit=1)
    client = connect("alice")
    client.send(*[{"type": "subscribe", "topic": TOPIC}] * 5)
    assert [frame["type"] for frame in quiet(client)] == ["subscribed"] * 5


def test_an_actor_with_two_connections_leaves_and_stays(connect):
    watcher, first, second = connect("alice"), connect("bob"), connect("bob")
    watcher.send({"type": "presence", "roomId": "ops", "data": 0})
    assert [watcher.recv()["event"] for _ in range(2)] == ["join", "update"]
    for data, client in ((1, first), (2, second)):
        client.send({"type": "presence", "roomId": "ops", "data": data})
        assert [watcher.recv()["event"] for _ in range(2)] == ["join", "update"]
    second.close()
    assert watcher.recv()["event"] == "leave"
    listed = watcher.ask({"type": "getPresence", "roomId": "ops"})["data"]
    assert [(each["actorTokenId"], each["presence"]) for each in listed] == [
        ("alice", 0), ("bob", 1)]


def test_lobby_rooms_are_forgotten(connect, broker, quiet):
    watcher, present = connect("alice"), connect("bob")
    lobby = {"lobbyId": "all"}
    watcher.ask({"type": "lobbySubscribe", **lobby})
    broker.configure(lobbyMemoryMs=-1)
    present.send({"type": "presence", "roomId": "ops", "data": 1})
    assert [present.recv()["event"] for _ in range(2)] == ["join", "update"]
    assert quiet(watcher) == []
    assert watcher.ask({"type": "getLobbyPresence", **lobby})["presence"] == {}
    broker.configure(lobbyMemoryMs=300_000)
    assert "ops" in watcher.ask({"type": "getLobbyPresence", **lobby})["presence"]


def test_lobby_subscribed_again_has_a_full_snapshot(connect):
    watcher, present = connect("alice"), connect("bob")
    assert watcher.ask({"type": "lobbySubscribe", "lobbyId": "all"})["presence"] == {}
    present.send({"type": "presence", "roomId": "ops", "data": 1})
    assert [watcher.recv()["event"] for _ in range(2)] == ["join", "update"]
    snapshot = watcher.ask({"type": "lobbySubscribe", "lobbyId": "all"})["presence"]
    assert snapshot["ops"]["bob"]["presence"] == 1


def test_idle_counts_what_is_received_not_what_is_sent(connect, broker):
    sender, listener = connect("alice"), connect("bob")
    listener.subscribe(TOPIC)
    broker.configure(idleTimeoutMs=400, rateLimit=0)
    delivered = 0
    with pytest.raises(Closed) as ended:
        while True:
            sender.publish(TOPIC, delivered, echo=False)
            assert listener.recv()["data"] == delivered
            delivered += 1
    assert (ended.value.code, ended.value.reason) == (1000, "")
    assert delivered > 0
    assert sender.ask(HEARTBEAT) == HEARTBEAT


def test_fragmented_request_is_one_request(connect):
    client = connect("alice")
    packed = msgpack.packb(publish())
    client._protocol.send_binary(packed[:5], fin=False)
    client._protocol.send_continuation(packed[5:], fin=True)
    client._flush()
    assert client.recv()["type"] == "published"


def test_sessions_of_a_client_that_vanishes_are_forgotten(connect, broker):
    client = connect("alice")
    client.subscribe(TOPIC)
    left = broker.counters().get("left", 0)
    client.socket.close()
    broker.wait_for(what="left", count=left + 1)
    assert client.number not in [each["connection"] for each in broker.state()]
    client.closed = True
