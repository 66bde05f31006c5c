# SPDX-License-Identifier: Apache-2.0
"""Fixtures: brokers that are shared by a test module, and clients that get closed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from control import Broker  # noqa: E402
from wsclient import Client  # noqa: E402


@pytest.fixture(scope="module")
def shared_broker(request):
    """One broker a test module; FLAVOR in the module chooses the flavor."""
    with Broker(flavor=getattr(request.module, "FLAVOR", "kraken")) as broker:
        yield broker
        assert broker.counters().get("internalErrors", 0) == 0


@pytest.fixture
def broker(shared_broker):
    """The module's broker, with nothing left over from the test before."""
    shared_broker.reset()
    yield shared_broker
    shared_broker.clear()


@pytest.fixture
def connect(broker):
    """Open a client: connect(), connect("alice"), connect("bob", reconnect=True)."""
    clients = []

    def connect(actor=None, **auth):
        token = None if actor is None else f"tok-{actor}"
        clients.append(Client(broker.url, token, **auth))
        return clients[-1]

    yield connect
    broker.clear()
    for client in clients:
        client.close()


@pytest.fixture
def fence(broker):
    """fence(client): all frames that reached it, now that all is quiet."""
    def fence(client):
        client.send(b"")
        frames = []
        while (frame := client.recv()) != b"":
            frames.append(frame)
        broker.settle()
        number = broker.state()[0]["connection"]  # any: the fence goes to all
        assert number
        broker.inject(frame={"type": "fence"})
        while (frame := client.recv()) != {"type": "fence"}:
            frames.append(frame)
        return frames

    return fence
