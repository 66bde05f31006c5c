# SPDX-License-Identifier: Apache-2.0
"""wss://: which certificates are taken, what is said when one is not, and that nothing is sent then."""

import re
import socket
import ssl
import time
from pathlib import Path
from typing import Any, Iterator

import pytest
from certificates import Authority
from control import Broker
from fakes import Names, RawServer
from harness import Daemon, Json, alice, wait_until

TOPIC = "demo/ops/events"
SLOW = "100s"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "stranger")


@pytest.fixture(scope="module")
def good(authority: Authority) -> Iterator[Broker]:
    with Broker(tls=authority.issue("good")) as broker:
        yield broker


def named(broker: Broker, host: str = "localhost") -> str:
    return f"wss://{host}:{broker.port}/ws"


def trusting(broker: Broker, authority: Authority, **keys: Any) -> Json:
    return alice(named(broker), ca_file=authority.certificate, denied_interval=SLOW, **keys)


def assert_refused(daemon: Daemon, detail: str) -> Json:
    """The certificate was refused, so there is no hurry to try again."""
    status = daemon.wait_status("disconnected", reason="tls")
    assert re.search(detail, status["detail"], re.IGNORECASE), status
    assert 80_000 < status["nextAttemptMs"] <= 110_000
    return status


# Taken

def test_a_certificate_of_the_ca_file(good: Broker, authority: Authority) -> None:
    with Daemon({"default": trusting(good, authority)}) as daemon, daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        for data in ("x", "x" * 900_000, "end"):
            holder.ok(type="publish", topic=TOPIC, data=data)
            assert good.accepts()[-1]["data"] == data


def test_the_systems_certificates_without_a_ca_file(good: Broker, authority: Authority) -> None:
    environment = {"SSL_CERT_FILE": str(authority.certificate)}
    with Daemon({"default": alice(named(good))}, environment=environment) as daemon:
        daemon.wait_status()


def test_a_ca_file_replaces_them(good: Broker, authority: Authority, stranger: Authority) -> None:
    environment = {"SSL_CERT_FILE": str(authority.certificate)}
    with Daemon({"default": trusting(good, stranger)}, environment=environment) as daemon:
        assert_refused(daemon, "cert")


def test_each_session_has_its_own_ca_file(good: Broker, authority: Authority, stranger: Authority) -> None:
    sessions = {"default": trusting(good, authority), "b": {**trusting(good, stranger), "token": "tok-bob"}}
    with Daemon(sessions) as daemon:
        daemon.wait_status()
        daemon.wait_status("disconnected", session="b", reason="tls")
    assert {entry["frame"]["token"] for entry in good.received("auth")[-1:]} == {"tok-alice"}


def test_a_wildcard_name(authority: Authority, tmp_path: Path) -> None:
    names = Names(tmp_path, **{"eu.broker": "127.0.0.1"})
    with Broker(tls=authority.issue("wildcard", "DNS:*.broker.test")) as broker:
        keys = {**trusting(broker, authority), "url": named(broker, "eu.broker.test")}
        with Daemon({"default": keys}, environment=names.environment) as daemon:
            daemon.wait_status()


def test_many_records_at_once_all_arrive(good: Broker, authority: Authority) -> None:
    """What the TLS library has read ahead is not left there until the next byte comes."""
    with Daemon({"default": trusting(good, authority)}) as daemon, daemon.client() as holder:
        daemon.wait_status()
        holder.ok(type="subscribe", topic=TOPIC)
        good.split(bytes=1000)
        for n in range(5):
            for size in (1, 70_000, 300_000, 10, 16_384, 1):
                good.inject(token="tok-alice", frame={"type": "message", "topic": TOPIC, "data": "x" * size})
            for size in (1, 70_000, 300_000, 10, 16_384, 1):
                holder.message("x" * size)
        good.clear()


# Refused

REFUSED: dict[str, tuple[str, str, str]] = {
    # name: (subjectAltName, dates, what the detail has)
    "wrong_host": ("DNS:broker.example", "now", "cert|host"),
    "part_of_the_name": ("DNS:local,DNS:localhost.example,DNS:*.localhost", "now", "cert|host"),
    "expired": ("DNS:localhost", "past", "cert"),
    "not_yet_valid": ("DNS:localhost", "future", "cert"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_certificate(authority: Authority, name: str) -> None:
    alternative, days, detail = REFUSED[name]
    with Broker(tls=authority.issue(name, alternative, days)) as broker:
        with Daemon({"default": trusting(broker, authority)}) as daemon, daemon.client() as client:
            assert client.ok(type="subscribe", topic=TOPIC)["pending"] is True
            assert_refused(daemon, detail)
            assert "tls" in daemon.log() and "tok-alice" not in daemon.log()
        assert broker.received() == []


def test_an_unknown_authority(good: Broker) -> None:
    good.reset()
    keys = alice(named(good), denied_interval=SLOW)
    with Daemon({"default": keys}, environment={"SSL_CERT_FILE": "/dev/null"}) as daemon:
        assert_refused(daemon, "cert")
    assert good.received() == []


def test_nothing_is_sent_to_whom_the_check_failed(authority: Authority) -> None:
    """Not even the request to upgrade, to a server that takes every handshake."""
    certificate, key = authority.issue("other", "DNS:broker.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(server: RawServer, connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            server.read_all(tls)

    with RawServer(serve) as server:
        keys = alice(f"wss://localhost:{server.port}/ws", ca_file=authority.certificate, denied_interval=SLOW)
        with Daemon({"default": keys}) as daemon:
            assert_refused(daemon, "cert|host")
        assert len(server.times) == 1 and b"".join(server.data) == b""


def test_a_mended_certificate_is_taken(authority: Authority) -> None:
    with Broker(tls=authority.issue("bad", "DNS:broker.example")) as broker:
        port = broker.port
        daemon = Daemon({"default": {**trusting(broker, authority), "denied_interval": "200ms"}})
        with daemon:
            daemon.wait_status("disconnected", reason="tls")
            broker.stop()
            with Broker(tls=authority.issue("mended"), port=port):
                daemon.wait_status()


# No TLS at all

def test_a_plain_server(kraken: Broker) -> None:
    with Daemon({"default": alice(f"wss://localhost:{kraken.port}/ws", denied_interval=SLOW)}) as daemon:
        status = daemon.wait_status("connecting", reason="tls")
        assert status["detail"] != "" and status.get("nextAttemptMs", 0) <= 300
    assert kraken.received() == []


def test_a_server_that_closes_at_once() -> None:
    with RawServer(RawServer.close_at_once) as server:
        with Daemon({"default": alice(f"wss://localhost:{server.port}/ws", denied_interval=SLOW)}) as daemon:
            server.wait_attempts(3)
            assert daemon.wait_status("connecting")["reason"] in ("tls", "connect")


def test_a_handshake_that_never_ends() -> None:
    with RawServer() as server:
        keys = alice(f"wss://localhost:{server.port}/ws", connect_timeout="400ms", reconnect_interval="20s",
                     reconnect_max_interval="20s")
        with Daemon({"default": keys}) as daemon:
            began = server.wait_attempts(1)[0]
            wait_until(lambda: "nextAttemptMs" in daemon.status(), "the attempt ends")
            assert 0.3 < time.monotonic() - began < 1
            assert daemon.status()["reason"] in ("tls", "connect")


def test_a_ca_file_without_a_certificate(good: Broker, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate\n")
    with Daemon({"default": {**alice(named(good), denied_interval=SLOW), "ca_file": empty}}) as daemon:
        wait_until(lambda: daemon.status()["reason"] == "tls", "the CA file is refused")
        assert "CA file" in daemon.status()["detail"]


def test_an_address_in_the_place_of_a_name(authority: Authority) -> None:
    with Broker(tls=authority.issue("address", "IP:127.0.0.1")) as broker:
        keys = {**trusting(broker, authority), "url": named(broker, "127.0.0.1")}
        with Daemon({"default": keys}) as daemon:
            daemon.wait_status()
