# SPDX-License-Identifier: Apache-2.0
"""The listening socket and the connections that came from it."""

import asyncio
import ssl
from typing import Optional

from .broker import Broker
from .connection import PATH, Connection


class Server:
    """Listens, stops listening, and listens again on the same port."""

    def __init__(self, broker: Broker, host: str, port: int,
                 tls: Optional[ssl.SSLContext]) -> None:
        self.broker = broker
        self.connections: set[Connection] = set()
        self._host = host
        self._port = port
        self._tls = tls
        self._listener: Optional[asyncio.AbstractServer] = None

    @property
    def url(self) -> str:
        scheme = "ws" if self._tls is None else "wss"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self._port}{PATH}"

    async def listen(self) -> None:
        if self._listener is not None:
            return
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self.broker, self.connections), self._host, self._port,
            ssl=self._tls, backlog=1024)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Existing connections stay; new ones are refused by the kernel."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def stop(self) -> None:
        await self.stop_listening()
        for connection in list(self.connections):
            connection.drop({"abort": False, "code": 1001, "reason": ""})
        await asyncio.sleep(0)
