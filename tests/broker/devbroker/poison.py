# SPDX-License-Identifier: Apache-2.0
"""Requests with a wrong type inside, which make the broker close with 1011.

One check a field; a field that is absent passes.
"""

from typing import Any, Callable

from .codec import is_clean, is_utf8


class Poison(Exception):
    """The sender's connection is closed with 1011."""


def _text(value: Any) -> bool:
    return isinstance(value, str) and is_utf8(value)


def _text_if_text(value: Any) -> bool:
    return not isinstance(value, str) or is_utf8(value)


def _texts_are_utf8(value: Any) -> bool:
    return not isinstance(value, list) or all(_text_if_text(item) for item in value)


def _text_or_none(value: Any) -> bool:
    return value is None or _text(value)


Checks = dict[str, Callable[[Any], bool]]

EVERYWHERE: Checks = {
    "topic": _text,
    "roomId": _text_if_text,
    "lobbyId": _text_if_text,
    "msgRef": _text_if_text,
}
BY_TYPE: dict[str, Checks] = {
    "publish": {
        "retain": lambda value: isinstance(value, bool),
        "filters": _texts_are_utf8,
        "data": is_clean,
    },
    "subscribe": {"loadBalanceGroup": _text_or_none},
    "batchAck": {"msgIds": lambda value: isinstance(value, list)},
}


def check(kind: str, frame: dict) -> None:
    """Raises Poison when the broker would fall over this frame."""
    for checks in (EVERYWHERE, BY_TYPE.get(kind, {})):
        for name, passes in checks.items():
            if name in frame and not passes(frame[name]):
                raise Poison(name)
