# SPDX-License-Identifier: Apache-2.0
"""Load-balanced groups, and messages that clients acknowledge themselves."""

import subprocess
from typing import Any, Callable, Optional

import pytest
import wsclient
from control import Broker
from harness import NOLAG, Client, Daemon, Json, alice, wait_until

TOPIC = "demo/ops/events"
TASKS = "demo/ops/tasks"

Connect = Callable[..., Client]


def join(client: Client, topic: str = TOPIC, group: Optional[str] = "workers", **fields: Any) -> Json:
    if group is not None:
        fields["loadBalanceGroup"] = group
    return client.ok(type="subscribe", topic=topic, loadBalance=True, **fields)


def pending(client: Client) -> list[Json]:
    """The messages that have come: the fence is answered behind them."""
    client.request(type="ping", id="fence")
    lines, client.waiting = client.waiting, []
    assert all(line["type"] == "message" for line in lines), lines
    return lines


def upstream(broker: Broker, token: str = "tok-alice") -> list[Json]:
    broker.settle()
    return [s for c in broker.state() if c["token"] == token and c["authenticated"] for s in c["subscriptions"]]


def acked(broker: Broker) -> list[str]:
    return [entry["msgId"] for entry in broker.acks()]


def publish_all(broker: Broker, bob: wsclient.Client, count: int) -> None:
    broker.configure(rateLimit=0)
    for n in range(count):
        bob.publish(TOPIC, n)
    bob.ask(wsclient.HEARTBEAT)


def collect(clients: list[Client], count: int) -> list[list[Json]]:
    """What each has got, when all together have that many messages."""
    got: list[list[Json]] = [[] for _ in clients]

    def enough() -> bool:
        for lines, client in zip(got, clients):
            lines += pending(client)
        return sum(map(len, got)) >= count
    wait_until(enough, f"{count} messages")
    return got


def data(lines: list[Json]) -> list[Any]:
    return [line["data"] for line in lines]


def test_ten_workers_share(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    workers = [connect() for _ in range(10)]
    for worker in workers:
        answer = join(worker)
        assert answer["loadBalance"] is True and answer["loadBalanceGroup"] == "workers" and "ack" not in answer
    assert upstream(broker) == [{"topic": TOPIC, "filters": [], "loadBalance": True, "group": "workers"}]
    assert len(broker.received("subscribe")) == 1, "all of them are one member"
    publish_all(broker, bob, 100)
    got = collect(workers, 100)
    assert sorted(n for lines in got for n in data(lines)) == list(range(100))
    assert all(len(lines) == 10 for lines in got), "they take turns"
    assert all(data(lines) == sorted(data(lines)) for lines in got)
    assert not any("ackId" in line or "redelivered" in line for lines in got for line in lines)
    broker.wait_for(what="acks", count=100)


def test_the_default_group(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    worker = connect()
    assert "loadBalanceGroup" not in join(worker, group=None)
    frame = broker.received("subscribe")[0]["frame"]
    assert frame["loadBalance"] is True and "loadBalanceGroup" not in frame
    bob.publish(TOPIC, 1)
    worker.message(1)


def test_the_last_one_leaves_the_group(broker: Broker, connect: Connect) -> None:
    first, second = connect(), connect()
    join(first)
    join(second)
    first.close()
    second.ok(type="unsubscribe", topic=TOPIC)
    wait_until(lambda: upstream(broker) == [], "nobody is in the group")
    assert len(broker.received("unsubscribe")) == 1


def test_a_second_mode_or_group_is_a_conflict(broker: Broker, connect: Connect) -> None:
    worker, other = connect(), connect()
    join(worker)
    for fields in ({}, {"loadBalance": True}, {"loadBalance": True, "loadBalanceGroup": "others"}):
        for client in (worker, other):
            error = client.refused("wish_conflict", type="subscribe", topic=TOPIC, **fields)
            assert error["code"] == 43040 and "group" in error["hint"]
    other.ok(type="subscribe", topic=TASKS)
    worker.refused("wish_conflict", type="subscribe", topic=TASKS, loadBalance=True)
    assert sorted((s["topic"], s["group"]) for s in upstream(broker)) == [(TOPIC, "workers"), (TASKS, None)]
    worker.ok(type="unsubscribe", topic=TOPIC)
    other.ok(type="subscribe", topic=TOPIC)
    wait_until(lambda: {s["topic"]: s["group"] for s in upstream(broker)} == {TOPIC: None, TASKS: None},
               "the topic has the other mode")


def test_filters_of_workers(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    """In a group the broker tells filters: all and some can be mixed."""
    us, eu, every = connect(), connect(), connect()
    join(us, filters=["us"])
    join(eu, filters=["eu"])
    assert upstream(broker)[0]["filters"] == ["us", "eu"]
    for n in range(6):
        bob.publish(TOPIC, n, filter="us" if n % 2 else "eu")
    bob.publish(TOPIC, "nobody's")
    assert data(collect([us], 3)[0]) == [1, 3, 5]
    assert data(collect([eu], 3)[0]) == [0, 2, 4]
    join(every)
    assert upstream(broker)[0]["filters"] == []
    bob.publish(TOPIC, "plain")
    every.message("plain")
    for n in range(4):
        bob.publish(TOPIC, n, filter="us")
    got = collect([us, every], 4)
    assert len(got[0]) == len(got[1]) == 2
    eu.nothing_else()


def test_a_dead_worker_hands_over_what_it_had(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    first, second = connect(), connect()
    assert join(first, ack="manual", prefetch=5)["prefetch"] == 5
    publish_all(broker, bob, 8)
    given = collect([first], 5)[0]
    assert data(given) == [0, 1, 2, 3, 4]
    join(second, ack="manual", prefetch=100)
    assert data(collect([second], 3)[0]) == [5, 6, 7]
    assert first.ok(type="ack", ackId=given[0]["ackId"])["type"] == "acknowledged"
    broker.wait_for(what="acks", count=1)
    first.close()
    again = collect([second], 4)[0]
    assert data(again) == [1, 2, 3, 4] and all(line["redelivered"] is True for line in again)
    assert acked(broker) == [given[0]["msgId"]], "nobody is done with the others"
    second.refused("unknown_ack", type="ack", ackId=given[1]["ackId"])
    second.ok(type="batchAck", msgIds=[line["msgId"] for line in again])
    broker.wait_for(what="acks", count=5)
    assert sorted(acked(broker)) == sorted(line["msgId"] for line in given)


def test_a_worker_that_does_not_read_hands_over(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    stuck, good, tap = connect(receive_buffer=4096), connect(), connect()
    tap.ok(type="subscribe", topic="*")
    join(stuck)
    for n in range(8):
        bob.publish(TOPIC, str(n) * 200_000)
    collect([tap], 8)
    join(good)
    good.nothing_else()
    stuck.close()
    got = collect([good], 3)[0]
    assert [line["data"][0] for line in got] == sorted(line["data"][0] for line in got)
    assert got[-1]["data"][0] == "7" and all(line["redelivered"] for line in got)
    broker.wait_for(what="acks", count=8)


def test_the_least_busy_first(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    busy, idle = connect(), connect()
    join(busy, ack="manual", prefetch=10)
    publish_all(broker, bob, 3)
    collect([busy], 3)
    join(idle, ack="manual", prefetch=10)
    publish_all(broker, bob, 3)
    assert len(collect([idle], 3)[0]) == 3
    assert pending(busy) == []


def test_what_comes_for_nobody_waits_a_moment(broker: Broker, daemon: Daemon, connect: Connect,
                                              bob: wsclient.Client) -> None:
    first, second = connect(), connect()
    join(first, ack="manual", prefetch=2)
    publish_all(broker, bob, 2)
    collect([first], 2)
    first.close()
    join(second)
    assert data(collect([second], 2)[0]) == [0, 1]
    broker.wait_for(what="acks", count=2)


def test_what_nobody_comes_for_is_lost(broker: Broker, daemon: Daemon, connect: Connect,
                                       bob: wsclient.Client) -> None:
    worker, other = connect(), connect()
    join(worker, ack="manual", prefetch=2)
    publish_all(broker, bob, 2)
    collect([worker], 2)
    worker.close()
    wait_until(lambda: daemon.status().get("lost") == 2, "both are counted")
    join(other)
    other.nothing_else()
    assert acked(broker) == []


def test_own_publishes_on_kraken(kraken: Broker) -> None:
    """They are sent with echo, so that the group does not lose them; who has sent it may get it."""
    with Daemon({"default": alice(kraken.url)}) as daemon, daemon.client() as worker, daemon.client() as other:
        daemon.wait_status()
        join(worker)
        worker.ok(type="publish", topic=TOPIC, data="mine")
        worker.message("mine")
        other.ok(type="publish", topic=TOPIC, data="kept", retain=True)
        worker.message("kept")
        worker.nothing_else()
        worker.ok(type="unsubscribe", topic=TOPIC)
        wait_until(lambda: upstream(kraken) == [], "nobody is in the group")
        other.ok(type="publish", topic=TOPIC, data="without")
        assert [a["echo"] for a in kraken.accepts()] == [True, True, False]


def test_own_publishes_on_the_cloud(cloud: Broker) -> None:
    """They go to another member of the group, or to nobody."""
    outside = wsclient.Client(cloud.url, "tok-bob")
    with Daemon({"default": alice(cloud.url)}) as daemon, daemon.client() as worker:
        daemon.wait_status()
        join(worker)
        worker.ok(type="publish", topic=TOPIC, data="to nobody")
        outside.ask({"type": "subscribe", "topic": TOPIC, "loadBalance": True, "loadBalanceGroup": "workers"})
        worker.ok(type="publish", topic=TOPIC, data="to the other")
        assert outside.recv()["data"] == "to the other"
        worker.nothing_else()
    outside.socket.close()


def test_two_daemons_and_a_plain_connection(broker: Broker, bob: wsclient.Client) -> None:
    plain = wsclient.Client(broker.url, "tok-alice")
    plain.ask({"type": "subscribe", "topic": TOPIC, "loadBalance": True, "loadBalanceGroup": "workers"})
    with Daemon({"default": alice(broker.url)}) as one, Daemon({"default": alice(broker.url)}) as two:
        one.wait_status()
        two.wait_status()
        workers = [d.client() for d in (one, two) for _ in range(3)]
        for worker in workers:
            join(worker)
        publish_all(broker, bob, 60)
        got = collect(workers, 40)
        theirs = [plain.recv()["data"] for _ in range(20)]
        assert sorted(theirs + [n for lines in got for n in data(lines)]) == list(range(60))
        assert all(6 <= len(lines) <= 7 for lines in got)
        for worker in workers:
            worker.close()
    plain.socket.close()


def test_a_retained_message_goes_to_one_once(broker: Broker, daemon: Daemon, connect: Connect,
                                             bob: wsclient.Client) -> None:
    bob.ask({"type": "publish", "topic": TOPIC, "data": "kept", "retain": True, "msgRef": "k"})
    workers = [connect(), connect()]
    for worker in workers:
        join(worker)
    got = collect(workers, 1)
    assert [data(lines) for lines in got] == [["kept"], []]
    broker.drop(token="tok-alice")
    for worker in workers:
        worker.receive(type="reconnect")
    bob.publish(TOPIC, "live")
    wait_until(lambda: upstream(broker) != [], "it is there again")
    for worker in workers:
        worker.receive(type="disconnect")
    assert sorted(map(len, collect(workers, 1))) == [0, 1], "only the live one"


def test_groups_are_back_after_a_reconnect(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    worker, other = connect(), connect()
    join(worker, ack="manual", prefetch=2, filters=["a"])
    join(other, topic=TASKS, group="tasks")
    bob.publish(TOPIC, 1, filter="a")
    first = worker.message(1)
    before = upstream(broker)
    broker.drop(token="tok-alice")
    worker.receive(type="reconnect")
    worker.receive(type="disconnect")
    assert sorted(map(str, upstream(broker))) == sorted(map(str, before))
    bob.publish(TOPIC, 2, filter="a")
    second = worker.message(2)
    for line in (first, second):
        worker.ok(type="ack", msgId=line["msgId"])
    broker.wait_for(what="acks", count=2)
    worker.nothing_else()


def replay(broker: Broker, messages: list[Json]) -> None:
    """As a broker does for workers that came back."""
    for frame in ({"type": "replayStart", "count": len(messages)}, *messages,
                  {"type": "replayEnd", "replayed": len(messages)}):
        broker.inject(token="tok-alice", frame=frame)


def again(line: Json) -> Json:
    return {"type": "message", "topic": TOPIC, "data": line["data"], "msgId": line["msgId"], "requiresAck": True,
            "isReplay": True}


def test_replay_in_order_and_without_doubles(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    auto, manual = connect(), connect()
    join(auto)
    bob.publish(TOPIC, "had")
    had = auto.message("had")
    auto.ok(type="unsubscribe", topic=TOPIC)
    join(manual, topic=TASKS, group="tasks")
    join(auto, prefetch=1, ack="manual")
    bob.publish(TOPIC, "outstanding")
    out = auto.message("outstanding")
    new = {"data": "missed", "msgId": "id-of-the-missed"}
    replay(broker, [again(out), again(new), again(new)])
    start = auto.receive(type="replayStart")
    assert start == {"type": "replayStart", "topic": TOPIC, "count": 3}
    auto.nothing_else()
    auto.ok(type="ack", ackId=out["ackId"])
    line = auto.read_line()
    assert line is not None and line["data"] == "missed" and line["isReplay"] is True
    auto.receive(type="replayEnd", topic=TOPIC, replayed=3)
    auto.ok(type="ack", msgId="id-of-the-missed")
    auto.nothing_else()
    assert manual.receive(type="replayStart")["topic"] == TASKS
    assert manual.receive(type="replayEnd")["topic"] == TASKS
    broker.wait_for(what="acks", count=3)
    wait_until(lambda: set(acked(broker)) == {had["msgId"], out["msgId"], "id-of-the-missed"}, "all are acknowledged")


def test_one_backlog_holds_up_no_event_for_others(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    busy, idle = connect(), connect()
    join(busy, ack="manual", filters=["a"])
    join(idle, ack="manual", filters=["b"])
    for n in (1, 2):
        bob.publish(TOPIC, n, filter="a")
    first = busy.message(1)
    replay(broker, [{"type": "message", "topic": TOPIC, "data": "missed", "filter": "b", "msgId": "r1",
                     "requiresAck": True, "isReplay": True}])
    bob.publish(TOPIC, "live", filter="b")
    idle.receive(type="replayStart")
    missed = idle.message("missed")
    idle.receive(type="replayEnd")
    idle.ok(type="ack", ackId=missed["ackId"])
    idle.message("live")
    busy.nothing_else()  # what it has not had yet came before the events
    busy.ok(type="ack", ackId=first["ackId"])
    assert [busy.read_line()["type"] for _ in range(3)] == ["message", "replayStart", "replayEnd"]


@pytest.mark.parametrize("slow", ["subscribe", "unsubscribe"])
def test_a_new_member_is_waited_for_while_the_broker_is_slow(broker: Broker, connect: Connect,
                                                             bob: wsclient.Client, slow: str) -> None:
    old, new = connect(), connect()
    join(old, ack="manual")
    bob.publish(TOPIC, "work")
    old.message("work")
    broker.delay(type=slow, ms=900)
    old.close()
    wait_until(lambda: broker.received("unsubscribe"), "the last one has left")
    join(new, ack="manual")
    assert new.message("work")["redelivered"] is True
    assert new.ok(type="status").get("lost", 0) == 0


def test_a_double_of_what_is_done_is_acknowledged_again(broker: Broker, connect: Connect,
                                                        bob: wsclient.Client) -> None:
    worker = connect()
    join(worker)
    bob.publish(TOPIC, 1)
    had = worker.message(1)
    broker.wait_for(what="acks", count=1)
    replay(broker, [again(had)])
    broker.wait_for(what="acks", count=2)
    worker.receive(type="replayStart")
    worker.receive(type="replayEnd")
    worker.nothing_else()


def test_without_msg_ids(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    broker.configure(recording=False)
    first, second = connect(), connect()
    join(first, ack="manual")
    bob.publish(TOPIC, 1)
    bob.publish(TOPIC, 2)
    line = first.message(1)
    assert "msgId" not in line
    first.nothing_else()
    first.ok(type="ack", ackId=line["ackId"])
    first.message(2)
    join(second, ack="manual")
    first.close()
    second.message(2, redelivered=True)
    assert broker.received("ack", "batchAck") == []


def test_manual_without_a_group(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    """The broker hears of it when everybody is done, whatever way."""
    auto, first, second = connect(), connect(), connect()
    auto.ok(type="subscribe", topic=TOPIC)
    answer = first.ok(type="subscribe", topic=TOPIC, ack="manual")
    assert answer["ack"] == "manual" and "prefetch" not in answer and answer["loadBalance"] is False
    assert second.ok(type="subscribe", topic=TOPIC, ack="manual", prefetch=1)["prefetch"] == 1
    bob.publish(TOPIC, 1)
    bob.publish(TOPIC, 2)
    for n in (1, 2):
        auto.message(n)
    mine = [first.message(n) for n in (1, 2)]
    theirs = second.message(1)
    second.nothing_else()
    first.ok(type="batchAck", ackIds=[line["ackId"] for line in mine])
    assert acked(broker) == []
    second.ok(type="ack", ackId=theirs["ackId"])
    broker.wait_for(what="acks", count=1)
    second.message(2)
    second.close()
    broker.wait_for(what="acks", count=2)
    assert acked(broker) == [line["msgId"] for line in mine]


def test_acks_that_are_wrong(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    worker, other = connect(), connect()
    join(worker, ack="manual", prefetch=10)
    join(other)
    other.ok(type="unsubscribe", topic=TOPIC)
    publish_all(broker, bob, 2)
    one, two = collect([worker], 2)[0]
    for client, fields in (
            (other, {"ackId": one["ackId"]}), (other, {"msgId": one["msgId"]}), (worker, {"ackId": 99}),
            (worker, {"msgId": "nonsense"})):
        error = client.refused("unknown_ack", type="ack", **fields)
        assert error["code"] == 43044 and error["request"] == "ack"
    worker.refused("unknown_ack", type="batchAck", ackIds=[one["ackId"], 99])
    worker.refused("unknown_ack", type="batchAck", msgIds=[one["msgId"], "x"])
    assert acked(broker) == [], "all or nothing"
    worker.send(type="ack", ackId=one["ackId"])
    worker.send(type="ack", ackId=one["ackId"])
    assert worker.receive(type="error")["error"] == "unknown_ack"
    worker.send(type="batchAck", ackIds=[two["ackId"], two["ackId"]])
    worker.nothing_else()
    broker.wait_for(what="acks", count=2)
    assert acked(broker) == [one["msgId"], two["msgId"]]
    worker.refused("wish_conflict", type="subscribe", topic=TOPIC, loadBalance=True, loadBalanceGroup="workers", ack="auto")
    assert join(worker, prefetch=3, ack="manual")["prefetch"] == 3


def test_a_client_that_hears_no_messages_is_no_worker(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    deaf, good = connect(), connect()
    deaf.ok(type="events", only=["error"])
    join(deaf)
    join(good)
    publish_all(broker, bob, 10)
    assert sorted(data(collect([good], 10)[0])) == list(range(10))


def test_local_messages_need_no_ack(broker: Broker, connect: Connect) -> None:
    manual, publisher = connect(), connect()
    manual.ok(type="subscribe", topic=TOPIC, ack="manual", prefetch=1)
    for n in range(3):
        publisher.ok(type="publish", topic=TOPIC, data=n)
        assert "ackId" not in manual.message(n)


def test_a_tap_hears_a_group(broker: Broker, connect: Connect, bob: wsclient.Client) -> None:
    tap, worker = connect(), connect()
    tap.ok(type="subscribe", topic="*")
    join(worker, ack="manual")
    publish_all(broker, bob, 3)
    assert data(collect([tap], 3)[0]) == [0, 1, 2]
    worker.message(0)
    worker.nothing_else()


@pytest.mark.parametrize("count", [10_020])
def test_a_group_that_nobody_works_in_is_bounded(kraken: Broker, count: int) -> None:
    with Daemon({"default": alice(kraken.url)}, level="info") as daemon, daemon.client() as worker:
        daemon.wait_status()
        join(worker, ack="manual")
        publisher = wsclient.Client(kraken.url, "tok-bob")
        publish_all(kraken, publisher, count)
        first = worker.message(0)
        wait_until(lambda: daemon.status().get("lost") == 20, "what was too much is counted", 60)
        dropped = worker.receive(type="dropped", topic=TOPIC)["count"]
        while dropped < 20:
            dropped += worker.receive(type="dropped", topic=TOPIC)["count"]
        worker.ok(type="ack", ackId=first["ackId"])
        assert worker.receive(type="message")["data"] == 21, "the oldest that waited gave way"
        publisher.socket.close()


def run_nolag(daemon: Daemon, *args: str) -> "subprocess.Popen[bytes]":
    """Has joined the group when this returns."""
    process = subprocess.Popen(
        [str(NOLAG), "sub", "--socket", str(daemon.socket), "-t", TOPIC, "--group", "workers", "--ack", "manual", "-d",
         "-W", "60", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None and process.stderr.readline() == b"nolag: subscribed\n"
    return process


def test_nolag_works_in_a_group(broker: Broker, daemon: Daemon, bob: wsclient.Client) -> None:
    """What the first one was given and has not shown when it ends goes to the second one."""
    first, second = run_nolag(daemon, "-C", "2", "--prefetch", "5"), run_nolag(daemon, "-C", "5")
    publish_all(broker, bob, 7)
    shown, err = first.communicate(timeout=60)
    assert first.returncode == 0 and len(shown.split()) == 2, err
    rest, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert sorted(shown.split() + rest.split()) == [b"%d" % n for n in range(7)]
    broker.wait_for(what="acks", count=7)
