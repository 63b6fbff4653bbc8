"""A dict that is frozen while its owner continues: changes are written on top of it.

A capture of a very large store must not copy its dict. Instead the dict is frozen and an `Overlay`
takes its place: it holds new and changed entries, records deleted ones, and looks up everything
else below. Overlays can lie on overlays, one for each capture under way.

When no capture needs the dict below any more, `fold` moves the changes down, some at a time. A fold
can stop anywhere: an entry that was moved down and is still above is the same in both places. So
the next capture does not wait for it.
"""

from collections.abc import Callable, Iterator, MutableMapping
from itertools import islice
from typing import Any, Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
FOLD_S: Final = 0.025
"""How long one call of `fold` lasts."""
FOLD_PIECE: Final = 1024
"""The entries that are moved down between two looks at the clock."""
FOLD_ENTRIES: Final = 200_000
"""The most entries that one call moves down, also if the clock does not advance."""


class Overlay(dict[K, V]):
    """The changes above `below`, which must not change from now on.

    As a dict it holds its own entries; as a mapping, with its order, it shows the whole.
    """

    __slots__ = ("below", "gone", "size", "steps")

    def __init__(self, below: dict[K, V]) -> None:
        self.below = below
        self.gone: dict[K, None] = {}
        """Keys that were deleted, whether or not they were put again: then they come last."""
        self.size = len(below)
        self.steps: Iterator[None] | None = None
        """The remaining steps of the fold, once that has begun."""

    # What a mapping can do by means of the few methods below, instead of what a dict does.
    get: Any = MutableMapping.get
    setdefault: Any = MutableMapping.setdefault
    update: Any = MutableMapping.update
    keys: Any = MutableMapping.keys
    values: Any = MutableMapping.values
    items: Any = MutableMapping.items
    __eq__: Any = MutableMapping.__eq__

    def __missing__(self, key: K) -> V:
        if key in self.gone:
            raise KeyError(key)
        return self.below[key]

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or (key not in self.gone and key in self.below)

    def __setitem__(self, key: K, value: V) -> None:
        if not dict.__contains__(self, key) and self._is_new(key):
            self.size += 1
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: K) -> None:
        if dict.__contains__(self, key):
            dict.__delitem__(self, key)
        elif self._is_new(key):
            raise KeyError(key)
        if key in self.below:
            self.gone[key] = None
        self.size -= 1

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in pairs(self))

    def __reversed__(self) -> Iterator[K]:
        return reversed(list(self))

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return (dict, (list(pairs(self)),))

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def copy(self) -> dict[K, V]:
        return dict(pairs(self))

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def popitem(self) -> tuple[K, V]:
        for key in reversed(self):
            return key, self.pop(key)
        raise KeyError("there is nothing left")

    def pop(self, key: K, *default: Any) -> Any:
        if default and key not in self:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def _is_new(self, key: K) -> bool:
        """Whether this key exists only because of entries in this overlay."""
        return key in self.gone or key not in self.below


def pairs(entries: dict[K, V]) -> Iterator[tuple[K, V]]:
    """All keys with their values, in order; nothing in there may change until the last."""
    if not isinstance(entries, Overlay):
        return iter(entries.items())
    return _pairs(entries)


def _pairs(overlay: Overlay[K, V]) -> Iterator[tuple[K, V]]:
    gone, own = overlay.gone, dict.get
    for key, value in pairs(overlay.below):
        if key not in gone:
            yield key, own(overlay, key, value)
    for key, value in dict.items(overlay):
        if overlay._is_new(key):
            yield key, value


def depth(entries: dict[Any, Any]) -> int:
    """How many overlays there are."""
    number = 0
    while isinstance(entries, Overlay):
        entries = entries.below
        number += 1
    return number


def times_held(entries: dict[K, V], key: K, value: V) -> int:
    """How often these entries refer to the value of this key, in all layers."""
    times = 0
    while isinstance(entries, Overlay):
        times += dict.get(entries, key) is value
        entries = entries.below
    return times + (entries.get(key) is value)


def fold(entries: dict[K, V], clock_s: Callable[[], float]) -> dict[K, V]:
    """Fold changes for a while. Returns the dict that replaces these entries from now on.

    In the end that is the lowest dict itself, the same object that the first overlay was laid upon.
    """
    began_s, left = clock_s(), FOLD_ENTRIES
    while isinstance(entries, Overlay):
        lowest, above = _lowest(entries)
        if above is None:
            if not dict.__len__(lowest) and not lowest.gone:
                return lowest.below
            above = entries = Overlay(lowest)
        if lowest.steps is None:
            lowest.steps = _bring_down(lowest)
        piece = min(FOLD_PIECE, left)
        done = sum(1 for _ in islice(lowest.steps, piece))
        if done < piece:
            above.below = lowest.below
        left -= done
        if left <= 0 or clock_s() - began_s >= FOLD_S:
            break
    return entries


def _lowest(entries: Overlay[K, V]) -> tuple[Overlay[K, V], Overlay[K, V] | None]:
    """The overlay on the lowest dict, and the one above it."""
    above = None
    while isinstance(entries.below, Overlay):
        entries, above = entries.below, entries
    return entries, above


def _bring_down(overlay: Overlay[K, V]) -> Iterator[None]:
    """Each step keeps the visible content the same. The overlay must not change any more."""
    below, gone = overlay.below, overlay.gone
    for key in gone:
        below.pop(key, None)
        yield
    for key, value in dict.items(overlay):
        below[key] = value
        gone.pop(key, None)
        yield
