# SPDX-License-Identifier: Apache-2.0
"""nolag presence and nolag lobby, with the real daemon."""

import json
import os
import signal
import subprocess
from typing import Any, Iterator

import pytest
import wsclient
from control import Broker
from harness import LIMIT, NOLAG, Daemon, Json, alice, wait_until


class Command:
    """One running nolag, whose lines can be read one by one."""

    def __init__(self, daemon: Daemon, *args: str) -> None:
        self.process = subprocess.Popen(
            [str(NOLAG), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "NOLAGD_SOCKET": str(daemon.socket)}, text=True)

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n").split("\t")

    def note(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def ended(self) -> int:
        return self.process.wait(LIMIT)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def nolag(daemon: Daemon, *args: str) -> tuple[int, str, str]:
    done = subprocess.run([str(NOLAG), *args], capture_output=True, text=True, timeout=LIMIT,
                          env={**os.environ, "NOLAGD_SOCKET": str(daemon.socket)})
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def polled(broker: Broker) -> Iterator[Daemon]:
    keys = {"presence_poll_interval": "50ms", "request_timeout": "500ms"}
    with Daemon({"default": alice(broker.url, **keys)}) as running:
        running.wait_status()
        yield running


def show(client: wsclient.Client, data: Any) -> None:
    client.send({"type": "presence", "roomId": "ops", "data": data}, wsclient.HEARTBEAT)
    while client.recv() != wsclient.HEARTBEAT:
        pass


def shown(broker: Broker) -> Any:
    broker.settle()
    found = [c["presence"] for c in broker.state() if c["token"] == "tok-alice"]
    return found[0] and found[0]["data"]


def test_set_holds_until_it_ends(broker: Broker, polled: Daemon) -> None:
    with Command(polled, "presence", "set", "ops", "-m", '{"status": "online"}', "-d") as command:
        assert command.note() == "nolag: the presence is set\n"
        assert shown(broker) == {"status": "online"}
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == -signal.SIGINT
    wait_until(lambda: shown(broker) is None, "it is gone with its process")
    code, out, err = nolag(polled, "presence", "set", "ops", "-m", "{}", "-W", "0.2")
    assert (code, out, err) == (0, "", "")
    code, out, err = nolag(polled, "presence", "set", "nowhere", "-m", "{}")
    assert code == 1 and out == "" and "unknown_room" in err


def test_get_and_watch(broker: Broker, polled: Daemon, bob: wsclient.Client) -> None:
    assert nolag(polled, "presence", "get", "ops") == (0, "", "")
    show(bob, {"n": 1, "text": "a\tb"})
    code, out, _ = nolag(polled, "presence", "get", "ops")
    actor, data = out.rstrip("\n").split("\t")
    assert code == 0 and actor == "bob" and json.loads(data) == {"n": 1, "text": "a\tb"}
    answer: Json = json.loads(nolag(polled, "presence", "get", "ops", "--json")[1])
    assert answer["type"] == "presenceList" and answer["data"][0]["actorTokenId"] == "bob"
    with Command(polled, "presence", "watch", "ops", "-C", "2") as command:
        assert command.line()[0] == "bob"
        show(bob, {"n": 2})
        assert command.line() == ["update", "bob", '{"n":2}']
        show(bob, None)
        assert command.line() == ["leave", "bob"]
        assert command.ended() == 0
    assert nolag(polled, "presence", "watch", "ops", "-W", "0.2")[0] == 27


def test_lobby(broker: Broker, polled: Daemon, bob: wsclient.Client) -> None:
    with Command(polled, "lobby", "watch", "all", "--json") as command:
        assert json.loads(command.line()[0])["type"] == "lobbySubscribed"
        show(bob, {"n": 1})
        assert json.loads(command.line()[0])["event"] == "join"
        assert nolag(polled, "lobby", "get", "all") == (0, 'ops\tbob\t{"n":1}\n', "")
    with Command(polled, "lobby", "watch", "all", "-C", "2") as command:
        assert command.line() == ["ops", "bob", '{"n":1}']
        show(bob, {"n": 2})
        assert command.line() == ["update", "ops", "bob", '{"n":2}']
        bob.socket.close()
        assert command.line() == ["leave", "ops", "bob"]
        assert command.ended() == 0
    code, _, err = nolag(polled, "lobby", "get", "nope")
    assert code == 5 and "not_authorized" in err


def test_it_ends_with_nolagd(broker: Broker) -> None:
    with Daemon({"default": alice(broker.url)}) as daemon:
        daemon.wait_status()
        with Command(daemon, "presence", "set", "ops", "-m", "{}", "-d") as command:
            command.note()
            daemon.signal(signal.SIGTERM)
            assert command.ended() == 3


@pytest.mark.parametrize("args, hint", [
    ([], "what to do?"), (["put", "ops"], 'no "put"'), (["get"], "which room?"), (["get", "a/b"], "no name"),
    (["get", "ops", "x"], 'unexpected argument "x"'), (["set", "ops"], "-m DATA"),
    (["set", "ops", "-m", "text"], "a JSON object"), (["set", "ops", "-m", "[1]"], "a JSON object"),
    (["get", "ops", "-m", "{}"], "-m is for set")])
def test_wrong_use(args: list[str], hint: str) -> None:
    done = subprocess.run([str(NOLAG), "presence", *args], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and done.stdout == "" and hint in done.stderr
