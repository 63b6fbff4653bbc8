"""Detaching values from the running operator, so that no later change can reach them.

A snapshot is taken in one instant and encoded later, on another thread, while the operator
continues. `freeze` returns something that later changes cannot affect: values that cannot change
are shared, arrays are copied, and everything else is pickled immediately.
"""

import datetime
import decimal
import fractions
import io
import pickle
import uuid
from collections.abc import Collection, Iterable
from enum import Enum
from itertools import chain
from typing import Any, Final

import numpy as np

from everstream.errors import UserError
from everstream.state import saved
from everstream.state.instances import packed

_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError)


class ValueKind(Enum):
    """How a value of some type behaves between a capture and its encoding."""

    ATOMIC = "atomic"
    """Never changes: shared."""
    FRAME = "frame"
    """Polars and Arrow data: replaced rather than changed, so shared, as a cheap clone."""
    ARRAY = "array"
    """A numpy array: copied."""
    MUTABLE = "mutable"
    """Anything else may change in place: pickled at once."""


_ATOMIC_TYPES = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type(...), range),
        *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, saved.NanKey),
    }
)
_POLARS_FRAMES = frozenset({"DataFrame", "Series"})


def _kind_of(type_: type) -> ValueKind:
    """Exact types only: a subclass of int can carry attributes that change."""
    package = type_.__module__.partition(".")[0]
    if type_ in _ATOMIC_TYPES or issubclass(type_, Enum):
        return ValueKind.ATOMIC
    if type_ is np.ndarray:
        return ValueKind.ARRAY
    if package == "numpy" and issubclass(type_, np.generic):
        # np.void is a view of memory that can change; np.object_ is never a value's type.
        return ValueKind.MUTABLE if issubclass(type_, np.void) else ValueKind.ATOMIC
    if package == "polars" and type_.__name__ in _POLARS_FRAMES:
        return ValueKind.FRAME
    if type_.__module__ == "pyarrow.lib" and not type_.__name__.endswith(("Buffer", "Builder")):
        return ValueKind.FRAME
    return ValueKind.MUTABLE


class _Kinds(dict[type, ValueKind]):
    def __missing__(self, type_: type) -> ValueKind:
        kind = self[type_] = _kind_of(type_)
        return kind


class _Steadiness(dict[type, bool]):
    def __missing__(self, type_: type) -> bool:
        steady = self[type_] = KINDS[type_] in (ValueKind.ATOMIC, ValueKind.FRAME)
        return steady


KINDS: Final = _Kinds()
STEADY: Final = _Steadiness()
"""By type: reading such a value cannot lead to a change in place. A dict, for the hot path."""


def is_steady(value: Any) -> bool:
    """Whether this value can never change in place; looks into plain tuples, one level."""
    if type(value) is tuple:
        return all(STEADY[type(item)] for item in value)
    return STEADY[type(value)]


def all_steady(types: Iterable[type]) -> bool:
    """Whether `is_steady` holds for all values that have these `types_within`."""
    return all(STEADY[type_] for type_ in types)


def types_within(values: Collection[Any]) -> set[type]:
    """The types of these values, with those of their items for plain tuples."""
    types: set[type] = set(map(type, values))
    if tuple in types:
        tuples = values if len(types) == 1 else [value for value in values if type(value) is tuple]
        types.remove(tuple)
        types.update(map(type, chain.from_iterable(tuples)))
    return types


def dumps(value: Any) -> bytes:
    """Pickle; classes that cannot be imported by name (a script's own) are pickled by value.

    Raises one of the errors of the pickle module if neither way works.
    """
    try:
        return saved.dumps(value)
    except _UNPICKLABLE:
        return saved.dumps_by_value(value)


APART_BYTES: Final = 1 << 12
"""Arrays from this size on are kept out of a pickle that can have them beside it."""


def dumps_apart(header: bytes, value: Any) -> tuple[bytes, list[memoryview]]:
    """`header + dumps(value)`, with the memory of large arrays beside it and not in it.

    `pickle.loads(..., buffers=...)` puts them together again. A large value is not copied twice.
    """
    buffer = io.BytesIO()
    buffer.write(header)
    apart: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        """Whether it must go into the pickle after all."""
        memory = memoryview(buffer)
        if memory.nbytes < APART_BYTES or not memory.contiguous:
            return True
        apart.append(buffer.raw())
        return False

    try:
        saved.dump(value, buffer, take)
    except _UNPICKLABLE:
        return header + dumps(value), []
    return buffer.getvalue(), apart


LARGE_BYTES: Final = 1 << 18
"""Values from this size on are taken as they are; smaller pieces are put together."""


class _Collector:
    """Collects the output of a pickler in pieces: large values are kept, not copied.

    It is called between two pieces, in Python, so other threads can run during a long pickle.
    """

    def __init__(self, first: bytes) -> None:
        self._pieces: list[bytes] = []
        self._small = [first]
        self._small_bytes = len(first)

    def write(self, piece: bytes) -> None:
        if len(piece) >= LARGE_BYTES:
            self._join_small()
            self._pieces.append(piece)
            return
        self._small.append(piece)
        self._small_bytes += len(piece)
        if self._small_bytes >= LARGE_BYTES:
            self._join_small()

    def pieces(self) -> tuple[bytes, ...]:
        self._join_small()
        return tuple(self._pieces)

    def _join_small(self) -> None:
        if self._small:
            self._pieces.append(b"".join(self._small))
            self._small, self._small_bytes = [], 0


def pieces_after(header: bytes, value: Any) -> tuple[bytes, ...]:
    """`header + dumps(value)` in pieces that follow each other; large bytes are not copied at all."""
    collector = _Collector(header)
    try:
        saved.dump(value, collector)
    except _UNPICKLABLE:
        return (header, dumps(value))
    return collector.pieces()


class Pickled:
    """A value that was pickled at the capture; unpickles as the value itself."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return (saved.nested, (self.data,))


def freeze(entries: dict[Any, Any], owner: str) -> Any:
    """Something that unpickles as this dict as it is now. `owner` names it in errors."""
    if all_atomic(entries):
        if all_atomic(entries.values()):
            return entries.copy()
        kinds = {KINDS[type_] for type_ in set(map(type, entries.values()))}
        if ValueKind.FRAME in kinds or ValueKind.ARRAY in kinds:
            return {key: _freeze_value(key, value, owner) for key, value in entries.items()}
    return pickled_whole(entries, owner)


def pickled_whole(entries: dict[Any, Any], owner: str) -> "Pickled":
    """The same as bytes, whatever is in there."""
    try:
        return Pickled(dumps(packed(entries)))
    except _UNPICKLABLE:
        for key, value in entries.items():
            _pickled((key, value), key, owner)
        raise


def freeze_keys(keys: Iterable[Any], owner: str) -> Any:
    """Something that unpickles as the list of these keys as they are now."""
    listed = list(keys)
    return listed if all_atomic(listed) else _pickled(listed, listed[0], owner)


def all_atomic(values: Collection[Any]) -> bool:
    """Whether nothing in here can ever change; checks each type once, not each value."""
    return all(KINDS[type_] is ValueKind.ATOMIC for type_ in types_within(values))


def _freeze_value(key: Any, value: Any, owner: str) -> Any:
    kind = KINDS[type(value)]
    if kind is ValueKind.ATOMIC:
        return value
    if kind is ValueKind.FRAME:
        return value.clone() if type(value).__module__.startswith("polars") else value
    if kind is ValueKind.ARRAY and not value.dtype.hasobject:
        return value.copy(order="K")
    return _pickled(value, key, owner)


def _pickled(value: Any, key: Any, owner: str) -> Pickled:
    return Pickled(pickled_value(value, key, owner))


def pickled_value(value: Any, key: Any, owner: str) -> bytes:
    """The bytes of one value, or a UserError that names its key."""
    try:
        return dumps(value)
    except _UNPICKLABLE as error:
        raise UserError(
            f"{owner}: the value under key {key!r} cannot be saved in a checkpoint ({error}). "
            "Keep only picklable values in state; open files, connections, locks and running "
            "generators belong in on_start."
        ) from error
