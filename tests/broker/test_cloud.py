# SPDX-License-Identifier: Apache-2.0
"""Where the vendor's cloud differs from the open-source broker."""

import pytest

FLAVOR = "cloud"
TOPIC = "demo/ops/events"
OTHER = "demo/ops/tasks"


def restored(client):
    return client.auth["restoredSubscriptions"]


@pytest.mark.parametrize("echo", [True, False])
def test_an_actor_never_receives_its_own_message(connect, quiet, echo):
    sender, twin, other = connect("alice"), connect("alice"), connect("bob")
    for client in (sender, twin, other):
        client.subscribe(TOPIC)
    sender.publish(TOPIC, 1, echo=echo)
    of_sender, of_twin, of_other = quiet(sender, twin, other)
    assert (of_sender, of_twin) == ([], [])
    assert [frame["data"] for frame in of_other] == [1]


def test_the_real_filter_is_told(connect, quiet):
    everything, sender = connect("bob"), connect("alice")
    everything.subscribe(TOPIC)
    sender.publish(TOPIC, "plain")
    sender.publish(TOPIC, "single", filter="Region:US")
    sender.publish(TOPIC, "group", filters=["B", "a"])
    assert [frame.get("filter") for frame in quiet(everything)] == [None, "Region:US", "a|b"]


def test_a_group_never_hands_a_message_to_its_publisher(connect, quiet):
    sender, worker = connect("alice"), connect("bob")
    for client in (sender, worker):
        client.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="g")
    for number in range(4):
        sender.publish(TOPIC, number)
    of_sender, of_worker = quiet(sender, worker)
    assert of_sender == []
    assert [frame["data"] for frame in of_worker] == [0, 1, 2, 3]


def test_a_publisher_alone_in_the_group_gets_nothing(connect, quiet):
    sender = connect("alice")
    sender.subscribe(TOPIC, loadBalance=True, loadBalanceGroup="g")
    sender.publish(TOPIC, 1)
    assert quiet(sender) == []


def test_reconnect_restores_subscriptions(connect):
    before = connect("bob")
    before.subscribe(TOPIC)
    before.subscribe(OTHER, filters=["x"])
    before.subscribe("demo/general/jobs", loadBalance=True, loadBalanceGroup="g")
    before.subscribe("demo/general/gone")
    before.ask({"type": "unsubscribe", "topic": "demo/general/gone"})
    before.close()

    after = connect("bob", reconnect=True)
    assert restored(after) == [
        TOPIC, {"topic": OTHER, "filters": ["x"]},
        {"topic": "demo/general/jobs", "loadBalance": True, "loadBalanceGroup": "g"}]
    sender = connect("alice")
    sender.publish(OTHER, "no match", filter="y")
    sender.publish(TOPIC, "match")
    assert after.recv()["data"] == "match"


def test_without_the_flag_nothing_is_restored(connect, quiet):
    connect("bob").subscribe(TOPIC)
    after = connect("bob")
    assert restored(after) == []
    connect("alice").publish(TOPIC, 1)
    assert quiet(after) == []


def test_lobby_events_carry_the_slug_and_snapshots_are_full(connect):
    watcher, present = connect("alice"), connect("bob")
    snapshot = watcher.ask({"type": "lobbySubscribe", "lobbyId": "all"})["presence"]
    assert snapshot == {"general": {}, "ops": {}}
    present.send({"type": "presence", "roomId": "ops", "data": 1})
    assert watcher.recv() == {"type": "lobbyPresence", "event": "join", "lobbyId": "all",
                              "roomId": "ops", "actorId": "bob", "data": 1}


def test_lobby_rooms_are_not_forgotten(connect, broker):
    watcher = connect("alice")
    watcher.ask({"type": "lobbySubscribe", "lobbyId": "all"})
    broker.configure(lobbyMemoryMs=-1)
    connect("bob").send({"type": "presence", "roomId": "ops", "data": 1})
    assert watcher.recv()["event"] == "join"


def test_retained_null_clears(connect, quiet):
    sender = connect("alice")
    sender.publish(TOPIC, 1, retain=True)
    sender.publish(TOPIC, None, retain=True)
    assert quiet(sender) == []
    late = connect("bob")
    late.subscribe(TOPIC)
    assert quiet(late) == []
