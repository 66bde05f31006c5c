# SPDX-License-Identifier: Apache-2.0
"""Arguments, start and stop."""

import argparse
import asyncio
import contextlib
import logging
import signal
import ssl
import sys
from pathlib import Path
from typing import Optional

from . import auth
from .broker import Broker, Settings
from .control import MAX_LINE, Control
from .journal import Journal
from .server import Server

DESCRIPTION = """\
A stand-in for the NoLag realtime broker, for development and tests. It speaks the
broker's WebSocket protocol and keeps everything in memory. When it listens it
prints one line, "ready ws://HOST:PORT/ws"; SIGTERM or SIGINT ends it."""

EPILOG = """\
The token file is JSON: {"tokens": {"TOKEN": {"actorTokenId": ..., "projectId": ...,
"actorType": ..., "allowedTopics": [{"pattern": "app/room/#", "permission": "pubSub",
"room_slug": "room", "room_id": ...}], "allowedLobbies": [{"lobby_slug": ...,
"lobby_id": ...}]}}}. auth.json beside this program is an example."""


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError
    return port


def _rate(text: str) -> int:
    rate = int(text)
    if rate < 0:
        raise ValueError
    return rate


_port.__name__, _rate.__name__ = "port", "rate"  # what argparse shows


def _arguments(argv: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="nolag-devbroker", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--port", type=_port, required=True, help="port to listen on, 0 to pick one")
    add("--auth", type=Path, required=True, metavar="FILE", help="token file")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--flavor", choices=("kraken", "cloud"), default="kraken",
        help="behave as the open-source broker or as the vendor's cloud (default: %(default)s)")
    add("--no-recording", action="store_true", help="messages carry no msgId")
    add("--rate-limit", type=_rate, metavar="N",
        help="publishes a second for each connection, 0 for no limit (default: the token's)")
    add("--accept-log", type=Path, metavar="FILE", help="append every accepted publish as JSON")
    add("--control", type=Path, metavar="PATH", help="Unix socket for faults and questions")
    add("--tls-cert", type=Path, metavar="FILE", help="serve wss:// with this certificate")
    add("--tls-key", type=Path, metavar="FILE", help="key of the certificate")
    add("--verbose", action="store_true", help="log connections and frames to stderr")
    arguments = parser.parse_args(argv)
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        parser.error("--tls-cert and --tls-key need each other")
    return arguments


def _tls(arguments: argparse.Namespace) -> Optional[ssl.SSLContext]:
    if arguments.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(arguments.tls_cert, arguments.tls_key)
    except ssl.SSLError as error:
        raise OSError(f"{arguments.tls_cert}: {error}") from error
    return context


async def _stop_signal() -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


async def _serve(arguments: argparse.Namespace, journal: Journal) -> None:
    settings = Settings(recording=not arguments.no_recording, rateLimit=arguments.rate_limit)
    broker = Broker(auth.load(arguments.auth), arguments.flavor, settings, journal)
    server = Server(broker, arguments.host, arguments.port, _tls(arguments))
    path = arguments.control
    if path is not None:
        serve = Control(server).serve_client
        await asyncio.start_unix_server(serve, path, limit=MAX_LINE)
    try:
        await server.listen()
        print(f"ready {server.url}", flush=True)
        await _stop_signal()
        await server.stop()
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def _run(arguments: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        file = arguments.accept_log
        log = stack.enter_context(file.open("a", encoding="utf-8")) if file else None
        asyncio.run(_serve(arguments, Journal(log)))


def main(argv: Optional[list[str]] = None) -> int:
    """Run until a signal. 0: ended by a signal; 1: cannot start; 2: bad arguments."""
    arguments = _arguments(argv)
    logging.basicConfig(stream=sys.stderr, format="nolag-devbroker: %(message)s",
                        level=logging.WARNING)
    logging.getLogger("devbroker").setLevel(logging.DEBUG if arguments.verbose else
                                            logging.WARNING)
    try:
        _run(arguments)
    except (auth.AuthFileError, OSError) as error:
        print(f"nolag-devbroker: {error}", file=sys.stderr)
        return 1
    return 0
