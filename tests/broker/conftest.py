# SPDX-License-Identifier: Apache-2.0
"""Fixtures: brokers that are shared by a test module, and clients that get closed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from control import Broker  # noqa: E402
from wsclient import HEARTBEAT, Client  # noqa: E402

FENCE = {"type": "fence"}


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
    assert shared_broker.counters().get("internalErrors", 0) == 0
    shared_broker.clear()


@pytest.fixture
def connect(broker):
    """Open a client: connect(), connect("alice"), connect("bob", reconnect=True)."""
    clients = []

    def connect(actor=None, **auth):
        token = None if actor is None else f"tok-{actor}"
        client = Client(broker.url, token, **auth)
        client.number = max(each["connection"] for each in broker.state())
        clients.append(client)
        return client

    yield connect
    broker.clear()
    for client in clients:
        client.close()


@pytest.fixture
def quiet(broker):
    """quiet(client, ...): the frames each has got, once nothing is on its way any more.

    A heartbeat proves that the broker has handled all that was sent, a frame
    behind everything that waited for delivery that the rest has come.
    """
    def collect(client, last):
        frames = []
        while (frame := client.recv()) != last:
            frames.append(frame)
        return frames

    def quiet(*clients):
        before = broker.wait_for(type="heartbeat", count=0)
        for client in clients:
            client.send(HEARTBEAT)
        broker.wait_for(type="heartbeat", count=before + len(clients))
        broker.settle()
        for client in clients:
            broker.inject(frame=FENCE, connection=client.number)
        got = [[frame for frame in collect(client, FENCE) if frame != HEARTBEAT]
               for client in clients]
        return got[0] if len(clients) == 1 else got

    return quiet
