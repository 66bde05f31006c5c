# SPDX-License-Identifier: Apache-2.0
"""The broker's error frames: one table of names, codes and further fields."""

from typing import Any

# The control character in this text is the broker's own.
UNKNOWN_ROOM_HINT = ("room is not configured \x14 provision it via the control-plane "
                     "rooms API before use")

FIELDS: dict[str, dict[str, Any]] = {
    "rate_limit_exceeded": {"code": 42910},
    "monthly_quota_exceeded": {"code": 42920},
    "message_too_large": {"code": 42930},
    "unknown_topic": {"code": 42940, "hint": UNKNOWN_ROOM_HINT},
    "wake_failed": {"code": 42950},
}
BAD_FILTER = "invalid_filter_chars (/, #, +, | not allowed)"
TOO_MANY_FILTERS = "too_many_filters (max 100)"

ECHOED = ("topic", "lobbyId")


class Refused(Exception):
    """A request is answered with an error frame."""

    def __init__(self, error: str, **fields: Any) -> None:
        super().__init__(error)
        self.error = error
        self.fields = fields


def error_frame(refused: Refused, frame: dict, version: int) -> dict:
    """The answer to `frame`, for a client that speaks protocol `version`."""
    if version < 2 and refused.error == "unknown_topic":
        refused = Refused("not_authorized")
    answer = {"type": "error", "error": refused.error}
    answer.update(FIELDS.get(refused.error, {}))
    answer.update(refused.fields)
    answer.update({key: frame[key] for key in ECHOED if isinstance(frame.get(key), str)})
    if version >= 2 and has_ref(frame):
        answer["msgRef"] = frame["msgRef"]
    return answer


def has_ref(frame: dict) -> bool:
    """Only a non-empty string is a message reference; others are never answered."""
    return isinstance(frame.get("msgRef"), str) and frame["msgRef"] != ""
