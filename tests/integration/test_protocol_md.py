# SPDX-License-Identifier: Apache-2.0
"""Every example of PROTOCOL.md is true: each `nolagd` block is run as one connection, twice.

`>` lines are sent; each `<` line must be among the answers, `"..."` standing for any value;
`! publish TOPIC DATA` lets another actor publish through the broker. Nothing but the shown
lines may come.
"""

import json
import re
from typing import Any, Iterator

import pytest
import wsclient
from control import Broker
from harness import Client, Daemon, Json, alice
from harness import ROOT

TEXT = (ROOT / "protocol" / "PROTOCOL.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```nolagd?\n(.*?)^```$", TEXT, re.M | re.S)


def lines_of(block: str) -> list[tuple[str, str]]:
    parts = [line.split(" ", 1) for line in block.splitlines()]
    return [(mark, rest) for mark, rest in parts]


def fits(shown: Any, got: Any) -> bool:
    """Is `got` what the document shows? Objects may hold more; lists must be as long."""
    if shown == "...":
        return True
    if isinstance(shown, dict):
        return isinstance(got, dict) and all(k in got and fits(v, got[k]) for k, v in shown.items())
    if isinstance(shown, list):
        return isinstance(got, list) and len(got) == len(shown) and all(map(fits, shown, got))
    return type(shown) is type(got) and shown == got


def publish_as_bob(broker: Broker, topic: str, data: Any) -> None:
    """Another actor publishes, directly at the broker."""
    bob = wsclient.Client(broker.url, "tok-bob")
    bob.publish(topic, data)
    bob.ask(wsclient.HEARTBEAT)
    bob.socket.close()


def converse(client: Client, broker: Broker, block: str) -> None:
    """An ackId that is not shown in a request is that of the last message."""
    ack_id = None
    for mark, rest in lines_of(block):
        if mark == ">":
            client.write(rest.replace('"ackId":"..."', f'"ackId":{ack_id}').encode() + b"\n")
        elif mark == "!":
            verb, topic, data = rest.split(" ", 2)
            assert verb == "publish"
            publish_as_bob(broker, topic, json.loads(data))
        else:
            shown = json.loads(rest)
            line = client.read_line()
            assert line is not None and fits(shown, line), f"shown: {rest}\ngot:   {json.dumps(line)}"
            check_nothing_extra(shown, line)
            ack_id = line.get("ackId", ack_id)
    client.nothing_else()


def check_nothing_extra(shown: Json, line: Json) -> None:
    """An answer never carries another id or topic than shown."""
    for field in ("id", "request", "topic", "error", "code"):
        assert (field in line) == (field in shown), (field, shown, line)


@pytest.fixture(scope="module")
def pair(kraken_process: Broker) -> Iterator[tuple[Daemon, Broker]]:
    kraken_process.reset()
    with Daemon({"default": alice(kraken_process.url)}) as daemon:
        daemon.wait_status()
        yield daemon, kraken_process


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 10
    shown = {json.loads(rest)["type"] for block in BLOCKS for mark, rest in lines_of(block)
             if mark == ">" and rest.startswith("{")}
    table = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`, `(\w+)`)? \|.*\| `\w+`", TEXT, re.M)[0])
    assert table - {""} <= shown


def rows(title: str) -> list[str]:
    """The first cells of the table that begins with this line: all of it, up to the end of its section."""
    section = TEXT.split(f"{title}\n", 1)[1].split("\n#", 1)[0]
    table = section.split("\n\n", 1)[0]
    assert "\n| " not in section[len(table):], "one table, without a gap"
    return re.findall(r"^\| `(\w+)` \|", table, re.M)


def test_reasons_are_those_of_the_source() -> None:
    source = (ROOT / "daemon" / "model" / "session.h").read_text(encoding="utf-8")
    names = re.findall(r'^    X\(\w+, "(\w+)"\)', source.split("#define NL_REASONS(X)")[1].split("enum nl_reason")[0], re.M)
    assert len(names) > 10 and rows("| reason | meaning |") == names


def test_every_event_is_in_the_table() -> None:
    source = (ROOT / "protocol" / "request.h").read_text(encoding="utf-8")
    names = set(re.findall(r'X\(\w+, "(\w+)"\)', source.split("#define NL_EVENTS(X)")[1].split("enum nl_event")[0]))
    listed = rows("| event | fields | when |")
    assert len(names) > 10 and set(listed) == names
    assert len(listed) == len(set(listed)) and {"error", "dropped", "shutdown"} <= set(listed)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example(pair: tuple[Daemon, Broker], number: int) -> None:
    daemon, broker = pair
    for _ in range(2):
        with daemon.client() as client:
            converse(client, broker, BLOCKS[number])
