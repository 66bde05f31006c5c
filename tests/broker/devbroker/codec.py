# SPDX-License-Identifier: Apache-2.0
"""MessagePack as the broker reads and writes it, and a lossless JSON form.

The broker knows one kind of string: `bin` and `str` arrive alike and leave as
`str`. Bytes that are not UTF-8 are held as lone surrogates (Python's
"surrogateescape"), so that they can be recognised and written back unchanged.
"""

import base64
import math
from typing import Any

import msgpack

MAX_DEPTH = 400


class Unreadable(Exception):
    """The frame is one that the broker drops without an answer."""


class BrokenMap:
    """Stands for a map with keys that the broker cannot handle."""


def _utf8_keys_only(pairs: list) -> Any:
    for key, _ in pairs:
        if not isinstance(key, (str, bytes, int, bool, type(None))):
            return BrokenMap()
    return dict(pairs)


def read(data: bytes) -> Any:
    """Decode one frame exactly as it was sent: bytes stay bytes."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False,
                               unicode_errors="surrogateescape",
                               object_pairs_hook=_utf8_keys_only)
    except Exception as error:  # the library raises many kinds
        raise Unreadable(str(error)) from error


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _number(value: float) -> Any:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "positive_infinity" if value > 0 else "negative_infinity"
    return value


def as_broker_sees(value: Any, depth: int = 0) -> Any:
    """What the broker makes of a decoded frame. Raises Unreadable on ext types."""
    if depth > MAX_DEPTH or isinstance(value, (msgpack.ExtType, msgpack.Timestamp)):
        raise Unreadable("extension type, or too deep")
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return [as_broker_sees(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_text(key) if isinstance(key, bytes) else key: as_broker_sees(item, depth + 1)
                for key, item in value.items()}
    return value


def write(value: Any) -> bytes:
    """Encode one frame."""
    return msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")


def is_utf8(text: str) -> bool:
    """False when the text holds bytes that were not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_clean(value: Any) -> bool:
    """True when the broker can route this value without falling over."""
    if isinstance(value, str):
        return is_utf8(value)
    if isinstance(value, list):
        return all(is_clean(item) for item in value)
    if isinstance(value, dict):
        return all(is_clean(key) and is_clean(item) for key, item in value.items())
    return not isinstance(value, BrokenMap)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _dict_to_json(value: dict) -> Any:
    if all(isinstance(key, str) and is_utf8(key) for key in value):
        return {key: to_json(item) for key, item in value.items()}
    return {"$map": [[to_json(key), to_json(item)] for key, item in value.items()]}


def _float_to_json(value: float) -> Any:
    if math.isnan(value):
        return {"$float": "nan"}
    if math.isinf(value):
        return {"$float": "inf" if value > 0 else "-inf"}
    return value


def _str_to_json(value: str) -> Any:
    if is_utf8(value):
        return value
    return {"$str": _base64(value.encode("utf-8", "surrogateescape"))}


_TO_JSON = {
    bytes: lambda value: {"$bytes": _base64(value)},
    str: _str_to_json,
    float: _float_to_json,
    list: lambda value: [to_json(item) for item in value],
    dict: _dict_to_json,
    msgpack.ExtType: lambda value: {"$ext": [value.code, _base64(value.data)]},
    msgpack.Timestamp: lambda value: {"$ext": [-1, _base64(value.to_bytes())]},
    BrokenMap: lambda value: {"$map": "unreadable keys"},
}


def to_json(value: Any) -> Any:
    """A decoded frame in the JSON form of the control socket."""
    convert = _TO_JSON.get(type(value))
    return convert(value) if convert else value


_FROM_JSON = {
    "$bytes": base64.b64decode,
    "$str": lambda text: _text(base64.b64decode(text)),
    "$float": float,
    "$ext": lambda pair: msgpack.ExtType(pair[0], base64.b64decode(pair[1])),
    "$map": lambda pairs: {from_json(key): from_json(item) for key, item in pairs},
}


def from_json(value: Any) -> Any:
    """The reverse of to_json."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        tag, content = next(iter(value.items()))
        if tag in _FROM_JSON:
            return _FROM_JSON[tag](content)
    return {key: from_json(item) for key, item in value.items()}
