# SPDX-License-Identifier: Apache-2.0
"""The control socket: one JSON object a line, one line of answer to each.

{"cmd":"state"} -> {"ok":true,"connections":[...]}; what cannot be done is
{"ok":false,"error":"..."}. README.md lists every command with its fields; COMMANDS
at the end of this file is the table.

Common selectors, all optional: `token`, `connection` (its number), `topic`,
`type` (a frame type or a list of them; an empty frame is "heartbeat").
`nth` lets a rule wait for its nth match, `count` ends it after that many more;
without `count` it stays until `clear`.
"""

import asyncio
import dataclasses
import json
from http import HTTPStatus
from typing import Any, Awaitable, Callable, Iterable

from . import codec
from .faults import Rule
from .server import Server

DEFAULT_TIMEOUT_MS = 5000
MAX_LINE = 16 * 1024 * 1024


class BadCommand(Exception):
    """The command is answered with this text."""


def _types(command: dict) -> frozenset:
    kinds = command.get("type", [])
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


def _rule(kind: str, command: dict, **action: Any) -> Rule:
    return Rule(kind, action, _types(command), command.get("topic"), command.get("token"),
                command.get("connection"), command.get("nth", 1), command.get("count"))


class Control:
    """Executes commands on one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._broker = server.broker

    async def serve_client(self, reader: asyncio.StreamReader,
                           writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._execute(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the test has gone, or its line is beyond all measure
        finally:
            writer.close()

    async def _execute(self, line: bytes) -> dict:
        try:
            command = json.loads(line)
            name = command["cmd"]
            execute = COMMANDS.get(name)
            if execute is None:
                raise BadCommand(f"no such command: {name}")
            answer = execute(self, command)
            if isinstance(answer, Awaitable):
                answer = await answer
            return {"ok": True, **(answer or {})}
        except BadCommand as error:
            return {"ok": False, "error": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _connections(self, command: dict) -> list:
        return [each for each in list(self._server.connections)
                if command.get("token") in (None, each.session.token)
                and command.get("connection") in (None, each.session.number)]

    # Faults

    def refuse_auth(self, command: dict) -> None:
        error = command.get("error", "access_denied")
        self._broker.faults.add(_rule("auth", {**command, "type": []}, error=error))

    def delay(self, command: dict) -> None:
        self._broker.faults.add(_rule("delay", command, ms=command["ms"]))

    def mute(self, command: dict) -> None:
        self._broker.faults.add(_rule("mute", command))

    def refuse(self, command: dict) -> None:
        fields = {name: command[name] for name in ("code", "hint") if name in command}
        fields.update(codec.from_json(command.get("fields", {})))
        self._broker.faults.add(_rule("refuse", command, error=command["error"], fields=fields))

    def rate_limit_next(self, command: dict) -> None:
        rule = {"count": 1, **command, "type": "publish"}
        self._broker.faults.add(_rule("refuse", rule, error="rate_limit_exceeded", fields={}))

    def drop(self, command: dict) -> dict:
        action = _drop_action(command)
        connections = self._connections(command)
        for connection in connections:
            connection.drop(action)
        return {"connections": [each.session.number for each in connections]}

    def drop_at(self, command: dict) -> None:
        when = command.get("when", "after")
        if when not in ("receipt", "before", "after"):
            raise BadCommand('when is "receipt", "before" or "after"')
        rule = {"count": 1, **command}
        self._broker.faults.add(_rule("drop", rule, when=when, **_drop_action(command)))

    def half_open(self, command: dict) -> None:
        self._broker.faults.stall_new = command.get("new", False)
        if command.get("existing", True):
            for connection in self._connections(command):
                connection.stall()

    def inbound_dead(self, command: dict) -> None:
        self._broker.faults.silence_new = command.get("new", False)
        if command.get("existing", True):
            for connection in self._connections(command):
                connection.silence()

    def resume(self, command: dict) -> None:
        self._broker.faults.stall_new = self._broker.faults.silence_new = False
        for connection in self._connections(command):
            connection.resume()

    def http_status(self, command: dict) -> None:
        self._broker.faults.add(_rule("http", {"count": command.get("count")},
                                      status=HTTPStatus(command["status"]),
                                      headers=command.get("headers", {}),
                                      body=command.get("body", "")))

    async def stop_listening(self, _: dict) -> None:
        await self._server.stop_listening()

    async def listen(self, _: dict) -> None:
        await self._server.listen()

    def split(self, command: dict) -> None:
        level = command.get("level", "frame")
        if level not in ("frame", "tcp"):
            raise BadCommand('level is "frame" or "tcp"')
        faults = self._broker.faults
        faults.split_bytes, faults.split_level = int(command["bytes"]), level

    def restored(self, command: dict) -> None:
        entries = codec.from_json(command["subscriptions"])
        self._broker.faults.restored[command["token"]] = entries

    def hydration(self, command: dict) -> None:
        self._broker.faults.hydration[command["topic"]] = codec.from_json(command["data"])

    def inject(self, command: dict) -> dict:
        opcode = command.get("opcode", "binary")
        if opcode not in ("binary", "text", "tcp"):
            raise BadCommand('opcode is "binary", "text" or "tcp"')
        if "hex" in command:
            packed = bytes.fromhex(command["hex"])
        else:
            packed = codec.write(codec.from_json(command["frame"]))
        connections = self._connections(command)
        for connection in connections:
            connection.deliver_packed(packed, opcode)
        return {"connections": [each.session.number for each in connections]}

    def configure(self, command: dict) -> dict:
        changes = {name: value for name, value in command.items() if name != "cmd"}
        self._broker.configure(changes)
        self._watch_idle()
        return {"settings": dataclasses.asdict(self._broker.settings)}

    def _watch_idle(self) -> None:
        for connection in list(self._server.connections):
            connection.watch_idle()

    async def clear(self, command: dict) -> None:
        self._broker.clear_faults()
        self.resume({})
        self._watch_idle()
        await self._server.listen()

    async def reset(self, command: dict) -> None:
        await self.clear(command)
        self._broker.forget()

    # Questions

    def state(self, _: dict) -> dict:
        return {"connections": [self._session_state(session)
                                for session in self._broker.sessions.values()]}

    def _session_state(self, session: Any) -> dict:
        broker = self._broker
        present = broker.rooms.of_session(session)
        presence = present and {"room": present[0][1], "data": codec.to_json(present[1].data)}
        return {"connection": session.number, "token": session.token,
                "actorTokenId": session.grant and session.grant.actor,
                "authenticated": session.grant is not None, "protocolVersion": session.version,
                "reconnect": session.reconnect, "openedAt": session.opened_at,
                "subscriptions": [_subscription_state(each)
                                  for each in broker.topics.of_session(session)],
                "presence": presence, "lobbies": broker.lobbies.watched_by(session)}

    def accepts(self, command: dict) -> dict:
        log = self._broker.journal.accepts
        entries = [entry for _, entry in log.since(command.get("since", 0))
                   if command.get("topic") in (None, entry["topic"])
                   and command.get("token") in (None, entry["token"])]
        return {"accepts": entries, "dropped": log.dropped}

    def received(self, command: dict) -> dict:
        log = self._broker.journal.received
        entries = [_received_entry(seq, entry, command.get("hex", False))
                   for seq, entry in self._select_received(command)]
        return {"received": entries, "dropped": log.dropped}

    def _select_received(self, command: dict) -> Iterable[tuple[int, dict]]:
        types = _types(command)
        for seq, entry in self._broker.journal.received.since(command.get("since", 0)):
            if ((not types or entry["type"] in types)
                    and command.get("token") in (None, entry["token"])
                    and command.get("connection") in (None, entry["connection"])
                    and command.get("topic") in (None, entry["topic"])):
                yield seq, entry

    def acks(self, command: dict) -> dict:
        log = self._broker.journal.acks
        entries = [{"seq": seq, **entry} for seq, entry in log.since(command.get("since", 0))]
        return {"acks": entries, "dropped": log.dropped}

    def counters(self, _: dict) -> dict:
        return {"counters": dict(self._broker.journal.counters)}

    async def wait_for(self, command: dict) -> dict:
        """Until `count` entries are in a log, or connections are there."""
        what, wanted = command.get("what", "received"), command.get("count", 1)
        if what not in COUNTERS_OF:
            raise BadCommand(f"what is one of {', '.join(COUNTERS_OF)}")
        count = COUNTERS_OF[what]
        timeout = command.get("timeoutMs", DEFAULT_TIMEOUT_MS) / 1000
        met = await self._broker.journal.until(lambda: count(self, command) >= wanted, timeout)
        found = count(self, command)
        if not met:
            raise BadCommand(f"timeout: {found} of {wanted} {what}")
        return {"found": found}

    def _count_received(self, command: dict) -> int:
        return sum(1 for _ in self._select_received(command))

    def _count_sessions(self, command: dict) -> int:
        return sum(session.grant is not None and command.get("token") in (None, session.token)
                   for session in self._broker.sessions.values())

    async def settle(self, command: dict) -> None:
        """Until every connection has handled what it got and sent what it had."""
        deadline = command.get("timeoutMs", DEFAULT_TIMEOUT_MS) / 1000
        clock = asyncio.get_running_loop().time
        end = clock() + deadline
        while not all(each.settled for each in self._server.connections):
            if clock() > end:
                raise BadCommand("timeout: not settled")
            await asyncio.sleep(0.001)

    def ping(self, _: dict) -> dict:
        return {"url": self._server.url, "flavor": self._broker.flavor}


def _drop_action(command: dict) -> dict:
    abort = command.get("abort", False)
    if abort not in (True, False, "fin"):
        raise BadCommand('abort is true, false or "fin"')
    return {"abort": abort, "code": command.get("code", 1000),
            "reason": command.get("reason", "")}


def _subscription_state(subscription: Any) -> dict:
    return {"topic": subscription.topic, "filters": codec.to_json(subscription.filters),
            "loadBalance": subscription.group is not None, "group": subscription.group}


def _plain(raw: bytes) -> Any:
    try:
        return codec.read(raw) if raw else None
    except codec.Unreadable:
        return None


def _received_entry(seq: int, entry: dict, with_hex: bool) -> dict:
    answer = {name: value for name, value in entry.items() if name != "raw"}
    answer.update(seq=seq, bytes=len(entry["raw"]), frame=codec.to_json(_plain(entry["raw"])))
    if with_hex:
        answer["hex"] = entry["raw"].hex()
    return answer


COUNTERS_OF: dict[str, Callable[[Control, dict], int]] = {
    "received": Control._count_received,
    "accepts": lambda control, command: len(control.accepts(command)["accepts"]),
    "acks": lambda control, command: len(control.acks(command)["acks"]),
    "connections": Control._count_sessions,
    "opened": lambda control, _: control._broker.journal.counters["connections"],
    "left": lambda control, _: control._broker.journal.counters["left"],
}

COMMANDS: dict[str, Callable[[Control, dict], Any]] = {
    name: getattr(Control, name) for name in (
        "refuse_auth", "delay", "mute", "refuse", "rate_limit_next", "drop", "drop_at",
        "half_open", "inbound_dead", "resume", "http_status", "stop_listening", "listen",
        "split", "restored", "hydration", "inject", "configure", "clear", "reset",
        "state", "accepts", "received", "acks", "counters", "wait_for", "settle", "ping")
}
