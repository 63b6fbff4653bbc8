"""Keys as bytes, for state on disk: equal keys have equal bytes, and bytes become the key again.

The first two bytes are the key's group, so that a group is a range. The keys can be all that
`key_by` accepts. Numbers that are equal are one key, whatever their type, as in a dict: the
simplest number is written, so that `True`, `1.0` and `Decimal(1)` come back as 1 unless the key is
stored as well (`is_itself`).
"""

import datetime as dt
import struct
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np

from everstream.errors import CorruptObject, UserError
from everstream.state.canonical_key import (
    KINDS,
    canonical_key,
    equal_number,
    fields_of,
    instant,
    time_at,
)
from everstream.state.saved import NAN

Group: TypeAlias = Callable[[Any], int]
"""Key -> the group it belongs to, from 0 to 65,535."""

_GROUP: Final = struct.Struct(">H")
_WHOLE: Final = struct.Struct(">HBQ")
_SIZE: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_FRACTION: Final = struct.Struct(">d")
_NOTHING, _INT, _LARGE, _FLOAT, _TEXT, _BYTES, _TUPLE, _RATIO, _TIME, _FIELDS = range(10)
_HALF: Final = 1 << 63
"""Added to a number, so that bytes sort as numbers do."""


def keys_in_bytes(keys: Iterable[Any], group: Group) -> list[bytes]:
    """The bytes of each key; a UserError names one that cannot be kept on disk."""
    whole, encode = _WHOLE.pack, key_in_bytes
    return [
        whole(group(key), _INT, key + _HALF)
        if type(key) is int and -_HALF <= key < _HALF
        else encode(key, group)
        for key in keys
    ]


def key_in_bytes(key: Any, group: Group) -> bytes:
    """The bytes of one key."""
    inner = _encoded(key)  # first: it rejects keys of other kinds
    return _GROUP.pack(group(key)) + inner


def key_of(data: bytes) -> Any:
    """The key that has these bytes."""
    try:
        if len(data) == _WHOLE.size and data[2] == _INT:
            return _WHOLE.unpack(data)[2] - _HALF
        key, end = _decoded(data, _GROUP.size)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise CorruptObject(f"the bytes {data!r} of state on disk are no key ({error!r})") from None
    if end != len(data):
        raise CorruptObject(f"the bytes {data!r} of state on disk are no key")
    return key


def is_itself(key: Any) -> bool:
    """Whether the key decoded from its bytes has the same type, within tuples as well."""
    kind = type(key)
    if kind is tuple:
        return all(map(is_itself, key))
    if kind is float:
        return not key.is_integer()
    if kind is dt.datetime:
        return key.tzinfo is None
    return kind in (int, str, bytes, type(None), dt.date, dt.timedelta, dt.time, type(NAN))


def _encoded(key: Any) -> bytes:
    if isinstance(key, str):
        text = key.encode("utf-8", "surrogatepass")
        return bytes((_TEXT,)) + _SIZE.pack(len(text)) + text
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    if isinstance(key, int):
        number = int(key)
        if -_HALF <= number < _HALF:
            return bytes((_INT,)) + _NUMBER.pack(number + _HALF)
        size = number.bit_length() // 8 + 1
        return bytes((_LARGE,)) + _SIZE.pack(size) + number.to_bytes(size, "big", signed=True)
    if isinstance(key, bytes):
        return bytes((_BYTES,)) + _SIZE.pack(len(key)) + key
    if isinstance(key, tuple):
        return bytes((_TUPLE,)) + _SIZE.pack(len(key)) + b"".join(map(_encoded, key))
    if key is None:
        return bytes((_NOTHING,))
    if isinstance(key, float):
        return bytes((_FLOAT,)) + _FRACTION.pack(key if key == key else NAN)
    if isinstance(key, Decimal | Fraction):
        equal = equal_number(key)
        if isinstance(equal, Fraction):
            return _sized(_RATIO, f"{equal.numerator}/{equal.denominator}")
        return _encoded(equal)
    if isinstance(key, dt.date | dt.time | dt.timedelta):
        kind, count = instant(key)
        return _sized(_TIME, f"{kind} {count}")
    if isinstance(key, np.generic):
        return _encoded(canonical_key(key))
    fields = fields_of(key)
    if fields is not None:
        return bytes((_FIELDS,)) + _encoded(fields)
    raise UserError(
        f"a key of state on disk must be {KINDS}, not {type(key).__name__} ({key!r}). Use such a key, "
        "or keep this state in memory."
    )


def _sized(kind: int, text: str) -> bytes:
    data = text.encode()
    return bytes((kind,)) + _SIZE.pack(len(data)) + data


def _decoded(data: bytes, at: int) -> tuple[Any, int]:
    """The key that begins here, and where it ends."""
    kind, at = data[at], at + 1
    if kind == _NOTHING:
        return None, at
    if kind == _INT:
        return _NUMBER.unpack_from(data, at)[0] - _HALF, at + _NUMBER.size
    if kind == _FLOAT:
        (number,) = _FRACTION.unpack_from(data, at)
        return number if number == number else NAN, at + _FRACTION.size
    if kind == _FIELDS:
        return _decoded(data, at)
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if kind == _TUPLE:
        parts = []
        for _ in range(size):
            part, at = _decoded(data, at)
            parts.append(part)
        return tuple(parts), at
    content, end = data[at : at + size], at + size
    if len(content) != size:
        raise IndexError("cut short")
    if kind == _TEXT:
        return content.decode("utf-8", "surrogatepass"), end
    if kind == _BYTES:
        return content, end
    if kind == _LARGE:
        return int.from_bytes(content, "big", signed=True), end
    if kind == _RATIO:
        return Fraction(content.decode()), end
    if kind == _TIME:
        name, _, count = content.decode().rpartition(" ")
        return time_at(name, int(count)), end
    raise IndexError(f"kind {kind}")
