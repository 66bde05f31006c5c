# SPDX-License-Identifier: Apache-2.0
"""Subscriptions, retained messages, and who gets a published message. No I/O.

A session holds at most one subscription per topic: either broadcast or a member
of one group. Sessions are used through `number`, `grant` and `deliver(frame)`.
"""

from dataclasses import dataclass
from typing import Any, Iterator, Optional

Address = tuple[str, str]  # project, topic


@dataclass
class Subscription:
    session: Any
    topic: str
    filters: list  # as the client gave them
    keys: tuple[str, ...]  # empty: every message
    group: Optional[str] = None  # None: broadcast

    def wants(self, key: Optional[str]) -> bool:
        return not self.keys or key in self.keys

    @property
    def hears_nothing(self) -> bool:
        """A group name with a slash is confirmed, and gets nothing."""
        return self.group is not None and "/" in self.group


@dataclass(frozen=True)
class Message:
    topic: str
    data: Any
    key: Optional[str]
    msg_id: Optional[str]
    sender: Any
    echo: bool
    extra: dict

    def frame(self, shown_filter: Optional[str]) -> dict:
        frame = {"type": "message", "topic": self.topic, "data": self.data, **self.extra}
        if shown_filter is not None:
            frame["filter"] = shown_filter
        if self.msg_id is not None:
            frame.update(msgId=self.msg_id, requiresAck=True)
        return frame


class Topics:
    """All subscriptions and retained messages of the broker."""

    def __init__(self, flavor: str) -> None:
        self._cloud = flavor == "cloud"
        self._subscribers: dict[Address, dict[Any, Subscription]] = {}
        self._retained: dict[Address, dict[Optional[str], Message]] = {}
        self._turn: dict[tuple[Address, str], int] = {}

    # Subscriptions

    def subscribe(self, subscription: Subscription) -> None:
        """Add or replace, and deliver what is retained."""
        address = _address(subscription.session, subscription.topic)
        self._subscribers.setdefault(address, {})[subscription.session] = subscription
        self._deliver_retained(address, subscription, subscription.keys or (None,))

    def set_filters(self, subscription: Subscription, filters: list, keys: tuple) -> None:
        """Change the filters, and deliver what is retained for those that are new."""
        before = subscription.keys or (None,)
        subscription.filters, subscription.keys = filters, keys
        added = [key for key in keys or (None,) if key not in before]
        address = _address(subscription.session, subscription.topic)
        self._deliver_retained(address, subscription, added)

    def find(self, session: Any, topic: str) -> Optional[Subscription]:
        return self._subscribers.get(_address(session, topic), {}).get(session)

    def unsubscribe(self, session: Any, topic: str) -> None:
        self._subscribers.get(_address(session, topic), {}).pop(session, None)

    def leave(self, session: Any) -> None:
        for members in self._subscribers.values():
            members.pop(session, None)

    def of_session(self, session: Any) -> Iterator[Subscription]:
        for members in self._subscribers.values():
            if session in members:
                yield members[session]

    # Messages

    def publish(self, message: Message, retain: bool) -> None:
        address = _address(message.sender, message.topic)
        if retain:
            self._retain(address, message)
        groups: dict[str, list[Subscription]] = {}
        for subscription in list(self._subscribers.get(address, {}).values()):
            if not subscription.wants(message.key) or subscription.hears_nothing:
                continue
            if subscription.group is None:
                self._deliver(subscription, message)
            else:
                groups.setdefault(subscription.group, []).append(subscription)
        for name, members in groups.items():
            self._deliver_to_one(address, name, members, message)

    def forget_retained(self) -> None:
        self._retained.clear()

    def _retain(self, address: Address, message: Message) -> None:
        kept = self._retained.setdefault(address, {})
        if self._cloud and message.data is None:
            kept.pop(message.key, None)
        else:
            kept[message.key] = message

    def _deliver_retained(self, address: Address, subscription: Subscription, keys: Any) -> None:
        if subscription.hears_nothing:
            return
        kept = self._retained.get(address, {})
        for key, message in kept.items():
            if (None in keys or key in keys) and not self._withheld(subscription, message):
                subscription.session.deliver(message.frame(key))

    def _deliver_to_one(self, address: Address, name: str, members: list[Subscription],
                        message: Message) -> None:
        if self._cloud:
            members = [member for member in members if not self._withheld(member, message)]
        if not members:
            return
        turn = self._turn.get((address, name), 0)
        self._turn[address, name] = turn + 1
        self._deliver(members[turn % len(members)], message)

    def _deliver(self, subscription: Subscription, message: Message) -> None:
        if not self._withheld(subscription, message):
            shown = self._shown_filter(subscription, message)
            subscription.session.deliver(message.frame(shown))

    def _withheld(self, subscription: Subscription, message: Message) -> bool:
        """Own messages: the cloud withholds by actor, kraken by connection and `echo`."""
        if self._cloud:
            return subscription.session.grant.actor == message.sender.grant.actor
        return subscription.session is message.sender and not message.echo

    def _shown_filter(self, subscription: Subscription, message: Message) -> Optional[str]:
        """kraken hides the filter of a live message from a broadcast wildcard."""
        hides = not self._cloud and subscription.group is None and not subscription.keys
        return "#" if hides else message.key


def _address(session: Any, topic: str) -> Address:
    return session.grant.project, topic
