# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one stand-in broker per flavor for all tests, reset before each; a daemon on demand."""

import signal
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "broker")]

import wsclient  # noqa: E402
from control import Broker  # noqa: E402
from harness import Client, Daemon, alice  # noqa: E402


# A shell starts what it puts in the background with SIGINT ignored, and that would pass to every program of
# the tests; with a handler here they have the default.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kraken_process() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def cloud_process() -> Iterator[Broker]:
    with Broker(flavor="cloud") as broker:
        yield broker


@pytest.fixture
def kraken(kraken_process: Broker) -> Broker:
    kraken_process.reset()
    return kraken_process


@pytest.fixture
def cloud(cloud_process: Broker) -> Broker:
    cloud_process.reset()
    return cloud_process


@pytest.fixture(params=["kraken", "cloud"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Both flavors: the test runs twice."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def daemon(broker: Broker) -> Iterator[Daemon]:
    """A connected daemon with the one session `default` of tok-alice."""
    with Daemon({"default": alice(broker.url)}) as running:
        running.wait_status()
        yield running


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Callable[..., Client]]:
    """Makes clients of `daemon` that are closed at the end."""
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        clients.append(daemon.client(**options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def bob(broker: Broker) -> Iterator[wsclient.Client]:
    """Another actor, on a connection of its own to the broker."""
    client = wsclient.Client(broker.url, "tok-bob")
    yield client
    client.socket.close()
