# SPDX-License-Identifier: Apache-2.0
"""The program itself: its options, its token file, its end."""

import json
import signal
import subprocess
import threading

import control as client_side
import pytest
from control import AUTH, PROGRAM, Broker
from wsclient import Client

from devbroker import control
from devbroker.auth import matches

TOPIC = "demo/ops/events"


def run(*arguments):
    return subprocess.run([str(PROGRAM), *map(str, arguments)], capture_output=True, text=True,
                          timeout=10, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_and_clean_end(number):
    with subprocess.Popen([str(PROGRAM), "--port", "0", "--auth", str(AUTH)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        ready = process.stdout.readline()
        url = ready.removeprefix("ready ").strip()
        client = Client(url, "tok-alice")
        port = client.socket.getpeername()[1]
        process.send_signal(number)
        assert client.wait_closed().code == 1001
        assert process.wait(5) == 0
        assert ready == f"ready ws://127.0.0.1:{port}/ws\n"
        assert process.stdout.read() == "" and process.stderr.read() == ""
    client.close()


def test_help():
    result = run("--help")
    assert result.returncode == 0
    assert "--flavor" in result.stdout


@pytest.mark.parametrize("arguments, said", [
    ((), "--port"), (("--port", "x", "--auth", AUTH), "invalid port"),
    (("--port", 0, "--auth", AUTH, "--tls-cert", "c"), "--tls-key"),
    (("--port", 0, "--auth", AUTH, "--rate-limit", -1), "rate")], ids=str)
def test_bad_arguments(arguments, said):
    result = run(*arguments)
    assert result.returncode == 2
    assert said in result.stderr


@pytest.mark.parametrize("content, said", [
    (None, "No such file"), ("{", "not JSON"), ("[]", 'expected an object with "tokens"'),
    ('{"tokens": {"t": {}}}', "'actorTokenId' is missing"), ('{"tokens": {"t": 1}}', "wrong type"),
    ('{"tokens": {"t": {"actorTokenId": "a", "allowedTopics": [{"pattern": "#", '
     '"permission": "all"}]}}}', "permission 'all'")])
def test_bad_token_files(tmp_path, content, said):
    path = tmp_path / "auth.json"
    if content is not None:
        path.write_text(content)
    result = run("--port", 0, "--auth", path)
    assert result.returncode == 1
    assert result.stderr.startswith(f"nolag-devbroker: {path}") and said in result.stderr


def test_port_in_use():
    with Broker() as broker:
        result = run("--port", broker.port, "--auth", AUTH)
    assert result.returncode == 1
    assert "in use" in result.stderr


def test_permissions(tmp_path):
    path = tmp_path / "auth.json"
    rules = [{"pattern": f"app/{name}/+", "permission": name} for name in ("publish", "subscribe")]
    path.write_text(json.dumps({"tokens": {"t": {"actorTokenId": "a", "allowedTopics": rules}}}))
    with Broker(auth=path) as broker:
        client = Client(broker.url, "t")
        ask = {name: [client.ask({"type": name, "topic": f"app/{room}/x", "data": 1,
                                  "msgRef": "r"}).get("error") for room in
                      ("publish", "subscribe", "none")] for name in ("publish", "subscribe")}
        client.close()
    assert ask == {"publish": [None, "not_authorized", "unknown_topic"],
                   "subscribe": ["not_authorized", None, "unknown_topic"]}


@pytest.mark.parametrize("pattern, topic, expected", [
    ("a/#", "a/b/c", True), ("a/#", "a", True), ("a/+", "a/b", True), ("a/+", "a", False),
    ("a/+", "a/b/c", False), ("a/+/c", "a/b/c", True), ("#", "a/b", True), ("a/b", "a/b", True),
    ("a/b", "a/c", False), ("a/b", "a/b/c", False), ("a/b/c", "a/b", False)])
def test_patterns(pattern, topic, expected):
    assert matches(pattern.split("/"), topic.split("/")) is expected


def test_no_recording_rate_limit_and_accept_log(tmp_path):
    path = tmp_path / "accepted"
    with Broker(recording=False, rate_limit=0, accept_log=path) as broker:
        client = Client(broker.url, "tok-alice")
        client.subscribe(TOPIC)
        for number in range(100):
            client.publish(TOPIC, number)
        messages = [client.recv() for _ in range(100)]
        client.close()
    assert all("msgId" not in message and "requiresAck" not in message for message in messages)
    accepted = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["data"] for each in accepted] == list(range(100))
    assert accepted[0]["seq"] == 1 and accepted[0]["msgId"] is None


def test_tls(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate,
                    "-subj", "/CN=localhost", "-days", "1"], check=True, capture_output=True)
    with Broker(tls=(certificate, key)) as broker:
        assert broker.url.startswith("wss://127.0.0.1:")
        client = Client(broker.url, "tok-alice")
        client.subscribe(TOPIC)
        client.publish(TOPIC, "x" * 500_000)
        assert client.recv()["data"] == "x" * 500_000
        client.close()
        aborted = Client(broker.url, "tok-alice")
        broker.drop(abort=True)
        assert aborted.wait_closed().code == 1006


def test_a_crash_of_the_broker_is_a_reset_or_an_end():
    broker = Broker()
    client = Client(broker.url, "tok-alice")
    port = broker.port
    broker.kill()
    assert client.wait_closed().code == 1006
    with Broker(port=port) as again:
        assert Client(again.url, "tok-alice").auth["success"] is True


def test_every_command_is_documented_and_a_method():
    readme = (PROGRAM.parent / "README.md").read_text(encoding="utf-8")
    assert [name for name in control.COMMANDS if f"`{name}`" not in readme] == []
    methods = control.COMMANDS.keys() - client_side.COMMANDS
    assert [name for name in methods if name not in vars(Broker)] == []
    assert client_side.COMMANDS <= control.COMMANDS.keys()


def test_a_control_path_that_is_a_file_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    assert run("--port", 0, "--auth", AUTH, "--control", path).returncode == 1
    assert path.read_text() == "data"


def test_control_serves_several_at_once():
    with Broker() as broker:
        waiting = threading.Thread(target=broker.wait_for, kwargs={"what": "connections"})
        waiting.start()
        client = Client(broker.url, "tok-alice")
        waiting.join(5)
        assert not waiting.is_alive()
        client.close()
