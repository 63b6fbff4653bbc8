"""A form of a record that is equal where the contents are.

Records may be anything a pipeline makes: lists, dicts, arrays, objects of the user's classes that
know no equality.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object lies in memory is no part of what it is."""
WHOLE = "biu"
"""Kinds of numbers that are equal only if their bytes are: an image has too many to go one by one."""


def fingerprint(value: Any, _above: tuple[int, ...] = ()) -> Hashable:
    """A hashable form that is equal for equal contents, also between two processes.

    >>> fingerprint({"a": [1], "b": 2}) == fingerprint({"b": 2, "a": [1]})
    True
    >>> fingerprint(1) == fingerprint(1.0)
    False
    """
    kind = type(value)
    if kind is bytes:
        return "bytes", value
    if kind in (str, int, float, bool, type(None)):
        return kind.__name__, repr(value)  # by text: NaN equals itself, 0.0 is not -0.0
    if id(value) in _above:
        return "cycle", len(_above) - _above.index(id(value))
    above = (*_above, id(value))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, type):
        return "type", value.__qualname__
    if isinstance(value, Mapping):
        pairs = ((fingerprint(k, above), fingerprint(v, above)) for k, v in value.items())
        return name, frozenset(pairs)
    if isinstance(value, set | frozenset):
        return name, frozenset(fingerprint(item, above) for item in value)
    if isinstance(value, list | tuple):
        return name, tuple(fingerprint(item, above) for item in value)
    if hasattr(value, "dtype") and hasattr(
        value, "tolist"
    ):  # NumPy: its repr leaves out the middle
        shape = tuple(getattr(value, "shape", ()))
        if value.dtype.kind in WHOLE:
            return name, str(value.dtype), shape, value.tobytes()
        return name, str(value.dtype), shape, fingerprint(value.tolist(), above)
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a table within a record
        rows = value.to_dict(as_series=False) if hasattr(value, "to_dicts") else value.to_dict()
        return name, fingerprint(rows, above)
    fields = _fields(value)
    if fields:
        return name, fingerprint(fields, above)
    return name, ADDRESS.sub("", repr(value))


def _fields(value: Any) -> dict[str, Any]:
    """What an object of a class holds, in its dict and in its slots."""
    fields = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                fields[slot] = getattr(value, slot)
    return fields
