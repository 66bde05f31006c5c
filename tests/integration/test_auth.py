# SPDX-License-Identifier: Apache-2.0
"""Which session a client is on: the default, one by name, one by token; and refusals."""

from pathlib import Path
from typing import Any, Callable

import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, alice, wait_until

TOPIC = "demo/ops/events"

Connect = Callable[..., Client]


@pytest.fixture
def two(broker: Broker) -> Any:
    with Daemon({"default": alice(broker.url), "other": alice(broker.url, token="tok-bob")}) as daemon:
        daemon.wait_status()
        daemon.wait_status(session="other")
        yield daemon


def connections(broker: Broker) -> list[str]:
    broker.settle()
    return sorted(c["token"] for c in broker.state() if c["authenticated"])


def test_by_name(two: Daemon) -> None:
    with two.client() as a, two.client() as b:
        answer = b.ok(type="auth", session="other")
        assert answer == {"type": "auth", "id": 1, "success": True, "session": "other", "actorTokenId": "bob",
                          "projectId": "p1", "actorType": "device", "protocolVersion": 2}
        a.ok(type="subscribe", topic=TOPIC)
        b.ok(type="publish", topic=TOPIC, data="through the broker")
        a.message("through the broker")


def test_by_the_token_of_a_configured_session(two: Daemon, broker: Broker) -> None:
    with two.client() as client:
        assert client.ok(type="auth", token="tok-bob")["session"] == "other"
        assert connections(broker) == ["tok-alice", "tok-bob"]


def test_by_an_unknown_token(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as one, daemon.client() as two:
            answer = one.ok(type="auth", token="tok-bob")
            assert answer["actorTokenId"] == "bob" and "session" not in answer and "pending" not in answer
            two.ok(type="auth", token="tok-bob")
            assert connections(broker) == ["tok-alice", "tok-bob"], "one session a token"
            one.ok(type="subscribe", topic=TOPIC)
            two.ok(type="publish", topic=TOPIC, data=1)
            one.message(1, **{"from": "bob"})
            one.close()
            assert two.ok(type="status")["status"] == "connected"
        wait_until(lambda: connections(broker) == ["tok-alice"], "it ends with its last client")


def test_a_token_session_is_like_the_default_one(broker: Broker) -> None:
    """All its settings, of which this one is the easiest to see."""
    with Daemon({"default": alice(broker.url, own_messages="echo")}) as daemon, daemon.client() as client:
        client.ok(type="auth", token="tok-bob")
        client.ok(type="subscribe", topic=TOPIC)
        client.ok(type="publish", topic=TOPIC, data="mine")
        client.receive(type="message", data="mine")


def test_what_a_token_session_has_taken_is_sent_before_it_goes(broker: Broker) -> None:
    """More than the broker takes at once."""
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="auth", token="tok-bob")
            for n in range(30):
                client.send(type="publish", topic=TOPIC, data=n)
        wait_until(lambda: connections(broker) == ["tok-alice"], "it ends")
        assert [entry["data"] for entry in broker.accepts()] == list(range(30))


def test_a_token_session_that_cannot_send_ends_with_the_ttl(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url, ttl="500ms", heartbeat_interval="60s")}) as daemon:
        daemon.wait_status()
        broker.mute(type="publish")
        with daemon.client() as client, daemon.client() as other:
            client.ok(type="auth", token="tok-bob")
            client.send(type="publish", topic=TOPIC, data=1)
            broker.wait_for(type="publish", count=1)
            client.close()
            other.ok(type="auth", token="tok-bob")
            other.send(type="publish", topic=TOPIC, data=2)
            broker.wait_for(type="publish", count=2)
            assert len(broker.received("auth")) == 2, "who comes meanwhile finds it"
        wait_until(lambda: connections(broker) == ["tok-alice"], "it ends")


def test_auth_is_a_barrier(broker: Broker) -> None:
    broker.delay(type="auth", token="tok-bob", ms=200)
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.write(b'{"type":"auth","token":"tok-bob","id":1}\n{"type":"ping","id":2}\n'
                         b'{"type":"publish","topic":"demo/ops/events","data":1,"id":3}\n{"type":"pi')
            client.write(b'ng","id":4}\n')
            assert [client.read_line()["id"] for _ in range(4)] == [1, 2, 4, 3]
        assert [entry["token"] for entry in broker.accepts()] == ["tok-bob"]


def test_a_wrong_token(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.write(b'{"type":"auth","token":"wrong-token","id":1}\n'
                         b'{"type":"publish","topic":"demo/ops/events","data":1,"id":2}\n')
            answer = client.receive(id=1)
            assert answer["type"] == "auth" and answer["success"] is False and answer["error"] == "access_denied"
            assert client.receive(id=2)["error"] == "not_authenticated"
            client.refused("not_authenticated", type="subscribe", topic=TOPIC)
            client.refused("already_attached", type="auth", session="default")
            client.ok(type="ping")
            assert len(client.ok(type="sessions")["sessions"]) == 1
        assert broker.accepts() == []
        wait_until(lambda: connections(broker) == ["tok-alice"], "the attempt is over")
        assert "wrong-token" not in daemon.log()


@pytest.mark.parametrize("first", ["subscribe", "publish", "auth"])
def test_auth_comes_first_and_once(two: Daemon, first: str) -> None:
    with two.client() as client:
        client.ok(type="status")
        client.ok(**{"subscribe": {"type": "subscribe", "topic": TOPIC},
                     "publish": {"type": "publish", "topic": TOPIC, "data": 1},
                     "auth": {"type": "auth", "session": "other"}}[first])
        client.refused("already_attached", type="auth", session="other")
        assert client.ok(type="status")["session"] == ("other" if first == "auth" else "default")


def test_unknown_session(two: Daemon) -> None:
    with two.client() as client:
        answer = client.request(type="auth", session="nowhere")
        assert answer["success"] is False and answer["error"] == "unknown_session" and answer["code"] == 43020
        client.refused("not_authenticated", type="publish", topic=TOPIC, data=1)
        client.refused("not_authenticated", type="status")


def test_pending_while_the_broker_is_away(broker: Broker) -> None:
    broker.stop_listening()
    with Daemon({"default": alice(broker.url)}) as daemon:
        with daemon.client() as named, daemon.client() as shown:
            assert named.ok(type="auth", session="default")["pending"] is True
            assert shown.ok(type="auth", token="tok-bob")["pending"] is True
            shown.send(type="publish", topic=TOPIC, data=1, id=9)
            broker.listen()
            assert shown.receive(id=9)["type"] == "published"


def test_no_default_session(broker: Broker) -> None:
    with Daemon({"one": alice(broker.url), "two": alice(broker.url, token="tok-bob")}) as daemon:
        daemon.wait_status(session="one")
        with daemon.client() as client:
            assert "session" not in client.ok(type="hello")
            assert "auth" in client.refused("not_authenticated", type="publish", topic=TOPIC, data=1)["hint"]
            assert client.ok(type="auth", session="two")["success"], "what the hint says works"
            client.ok(type="publish", topic=TOPIC, data=1)
            client.refused("already_attached", type="auth", session="one")
    with Daemon({"only": alice(broker.url)}) as daemon:
        assert daemon.wait_status()["session"] == "only"
    with Daemon({"a": alice(broker.url), "b": alice(broker.url, token="tok-bob")}, {"default_session": "b"}) as daemon:
        assert daemon.wait_status()["session"] == "b"


def test_client_tokens_can_be_off_and_are_capped(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}, {"allow_client_tokens": "no"}) as daemon:
        with daemon.client() as client:
            assert client.request(type="auth", token="tok-bob")["error"] == "not_permitted"
        with daemon.client() as client:
            assert client.ok(type="auth", token="tok-alice")["session"] == "default"
    with Daemon({"default": alice(broker.url)}, {"client_token_sessions_per_uid": 1}) as daemon:
        with daemon.client() as one, daemon.client() as two:
            one.ok(type="auth", token="tok-bob")
            answer = two.request(type="auth", token="another")
            assert answer["success"] is False and answer["error"] == "limit_reached"


def test_a_token_that_is_denied_later(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        with daemon.client() as client:
            client.ok(type="auth", token="tok-bob")
            client.ok(type="subscribe", topic=TOPIC)
            broker.refuse_auth(token="tok-bob")
            broker.drop(token="tok-bob", abort=True)
            client.receive(type="disconnect")
            assert client.receive(type="error")["error"] == "access_denied"
            client.refused("not_authenticated", type="publish", topic=TOPIC, data=1)


def test_what_waits_on_a_session_that_is_denied_is_answered(broker: Broker) -> None:
    """Once each, sent already or not, before the client is told that it is on no session."""
    with Daemon({"default": alice(broker.url)}) as daemon, daemon.client() as client:
        daemon.wait_status()
        client.ok(type="auth", token="tok-bob")
        broker.mute(type="publish")
        client.send(type="publish", topic=TOPIC, data=1, id="sent")
        broker.wait_for(type="publish", count=1)
        broker.refuse_auth(token="tok-bob")
        broker.drop(token="tok-bob", abort=True)
        client.send(type="publish", topic=TOPIC, data=2, id="waits")
        lines = [client.read_line() for _ in range(3)]
        assert [line["error"] for line in lines] == ["access_denied"] * 3, lines
        assert [line.get("id") for line in lines] == ["sent", "waits", None]
        assert [line.get("request") for line in lines] == ["publish", "publish", None]
        client.nothing_else()


def test_no_token_anywhere(broker: Broker) -> None:
    """Not in the log at debug level, not in an answer, not in the command line."""
    secrets = ["tok-alice", "tok-bob", "tok-secret-guess"]
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        answers = []
        for token in secrets:
            with daemon.client() as client:
                answers += [client.request(type="auth", token=token), client.request(type="status"),
                            client.request(type="sessions"), client.request(type="hello")]
        with daemon.client() as client:
            client.write(b'{"type":"auth","token":"tok-secret-guess"\n')
            answers.append(client.read_line())
        cmdline = Path(f"/proc/{daemon.process.pid}/cmdline").read_text()
    for secret in secrets:
        assert secret not in daemon.log() and secret not in str(answers) and secret not in cmdline


def test_guesses_are_slowed_down(broker: Broker) -> None:
    """Also over many connections; who shows a good token later is not held back for ever."""
    def show(token: str) -> str:
        with daemon.client() as client:
            answer = client.request(type="auth", token=token)
            return "good" if answer["success"] else answer["error"]

    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        outcomes = [show(f"guess-{n}") for n in range(50)]
        assert outcomes[:5] == ["access_denied"] * 5, "four cost nothing"
        assert outcomes[-1] == "limit_reached"
        assert outcomes.count("access_denied") < 12
        assert show("tok-alice") == "good", "a configured session's token is not a guess"
        wait_until(lambda: show("tok-bob") == "good", "the time is over")
        assert show("guess-again") == "access_denied"
