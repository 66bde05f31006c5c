# SPDX-License-Identifier: Apache-2.0
"""Filters: single values, AND groups, and the key under which both are compared.

- a single filter "Region:US" has the key "Region:US" (case counts)
- an AND group ["Region:US", "a"] has the key "a|region:us"
- no filters at all: every message matches

A publish has one key or none. It matches a subscription that holds that key.
"""

from typing import Any, Optional

from .errors import BAD_FILTER, TOO_MANY_FILTERS, Refused

MAX_FILTERS = 100
FORBIDDEN = frozenset("/#+|")


def group_key(values: list[str]) -> str:
    return "|".join(sorted(value.lower() for value in values))


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not FORBIDDEN & set(value)


def _subscribed_key(entry: Any) -> str:
    if isinstance(entry, list) and len(entry) > 1 and all(map(_is_value, entry)):
        return group_key(entry)
    if _is_value(entry):
        return entry
    raise Refused(BAD_FILTER)


def subscribed_keys(filters: Any) -> tuple[str, ...]:
    """The keys of a subscriber's filter list; empty means every message.

    What is not a list counts as no filters. Raises Refused for a bad list.
    """
    if not isinstance(filters, list):
        return ()
    if len(filters) > MAX_FILTERS:
        raise Refused(TOO_MANY_FILTERS)
    return tuple(dict.fromkeys(_subscribed_key(entry) for entry in filters))


def published_key(frame: dict) -> Optional[str]:
    """The key of a publish, None when it has no filter."""
    values = frame.get("filters")
    if isinstance(values, list):
        texts = [value for value in values if isinstance(value, str)]
        return group_key(texts) if texts else None
    single = frame.get("filter")
    return single if isinstance(single, str) and single else None
