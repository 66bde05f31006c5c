# SPDX-License-Identifier: Apache-2.0
"""The stand-in broker, one job a module.

From the bottom up, each using only those before it:

- codec: MessagePack as the broker reads and writes it, and its JSON form
- errors, filters, auth: the broker's error frames, filter rules and token file
- topics, presence, lobbies: who gets which message or event (no I/O)
- journal, faults: what happened, and what shall go wrong
- session, poison, requests: one client's state, and a handler per frame type
- broker: the objects above, held together
- connection: one WebSocket, from TCP bytes to requests and back
- server: the listening socket
- control: the control socket, a table of commands
- cli: arguments, start, stop
"""
