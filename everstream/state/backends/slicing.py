"""Captures a large store in slices while its operator continues.

At the capture at most the dict of the store is copied, not its values. The dict of a very large
store is not copied either: it is frozen from then on, and changes are written above it
(`state/overlay.py`). The captured entries are pickled afterwards, a slice at a time between two
pieces of work. A value that can change in place is pickled just before the operator gets access to
it: the key store announces each key whose value may change from now on (`save`). So every value is
saved as it was at the capture.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from everstream.state import saved
from everstream.state.backends.overlay import pairs
from everstream.state.freezing import KINDS, ValueKind, all_atomic, freeze, is_steady, pickled_whole

AT_ONCE_ENTRIES: Final = 1000
"""Stores up to this size are captured at once."""
COPIED_ENTRIES: Final = 100_000
"""The dict of a larger store is not copied."""
SLICE_S: Final = 0.025
"""How long a slice lasts, unless one value alone takes longer."""
SLICE_ENTRIES: Final = 100_000
"""The most entries of a slice, also if the clock does not advance."""
_FIRST_PIECE = 16
_LARGEST_PIECE = 4096


def can_be_sliced(entries: dict[Any, Any]) -> bool:
    """Whether slicing is worth it, and no value could change unnoticed.

    Numbers and texts cannot change, so a copy of the dict is enough for them. Frames are shared
    with their reader, which may change one in place and put it back.
    """
    if len(entries) <= AT_ONCE_ENTRIES:
        return False
    kinds = {KINDS[type_] for type_ in set(map(type, entries.values()))}
    return ValueKind.FRAME not in kinds and (kinds != {ValueKind.ATOMIC} or not all_atomic(entries))


def can_stand_still(number: int, types: Iterable[type]) -> bool:
    """Whether this many entries, with values of these types, are captured without a copy."""
    return number > COPIED_ENTRIES and all(KINDS[type_] is not ValueKind.FRAME for type_ in types)


class Slices:
    """The entries of one store at one instant; unpickles as a dict of them, in their order."""

    def __init__(
        self, entries: dict[Any, Any], name: str, on_end: "Callable[[Slices], None] | None" = None
    ) -> None:
        """Takes over `entries`: a dict that nothing else refers to. on_end: called by `end`."""
        self._entries = entries
        """The entries that are not saved yet."""
        self._name = name
        self._on_end = on_end
        self._order = iter(list(entries))
        self._left = len(entries)
        self._pieces: list[Any] = []
        self._early: list[Any] = []
        """Entries that had to be saved out of turn. Their keys are in the pieces, with None."""
        self._piece_size = _FIRST_PIECE
        self._broken: BaseException | None = None

    @property
    def whole(self) -> bool:
        """Whether no later change can reach it any more."""
        return not self._left

    @property
    def ended(self) -> bool:
        """Whether it reads nothing any more: complete, or broken for good."""
        return self.whole or self._broken is not None

    def holds(self, key: Any, value: Any) -> bool:
        """Whether it refers to this value, as that of this key."""
        return self._entries.get(key) is value

    def save(self, keys: Iterable[Any]) -> None:
        """The values of these keys may change after this. Keys that share a value keep sharing it.

        Never raises: it is called in the middle of an operator's work, which is not the cause.
        """
        early = self._take_early(keys)
        if early and self._broken is None:
            try:
                self._early.append(freeze(early, self._name))
            except BaseException as error:  # raised by the next `go_on`
                self._broken = error

    def go_on(self, clock_s: Callable[[], float]) -> None:
        """Do one slice. Raises a UserError if a value cannot be saved."""
        if self._broken is not None:
            raise self._broken
        began_s = clock_s()
        stop = max(0, self._left - SLICE_ENTRIES)
        while self._left > stop:
            before_s = clock_s()
            if before_s - began_s >= SLICE_S:
                break
            self._save_piece(min(self._piece_size, self._left - stop))
            took_s = clock_s() - before_s
            if took_s > SLICE_S / 4:
                self._piece_size = max(1, self._piece_size // 2)
            elif took_s < SLICE_S / 16:
                self._piece_size = min(_LARGEST_PIECE, self._piece_size * 2)
        if self.whole:
            self._let_go()

    def end(self) -> None:
        """It is complete, or no longer needed: its store need not track it."""
        if self._on_end is not None:
            self._on_end(self)

    def finish(self) -> None:
        """Do all slices now. Never raises: the next `go_on` reports an unpicklable value."""
        while not self.ended:
            try:
                self.go_on(lambda: 0.0)
            except BaseException as error:
                self._broken = error

    def _save_piece(self, size: int) -> None:
        piece = self._take(size)
        self._left -= size
        try:
            self._pieces.append(self._cut(piece))
        except BaseException as error:  # the entries taken are gone: there is no retry
            self._broken = error
            raise

    def _take(self, size: int) -> dict[Any, Any]:
        """The next entries in turn."""
        take = self._entries.pop
        return {key: take(key, None) for key in islice(self._order, size)}

    def _take_early(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Of these keys, the entries that can change and are not saved."""
        entries = self._entries
        return {
            key: entries.pop(key) for key in keys if key in entries and not is_steady(entries[key])
        }

    def _cut(self, piece: dict[Any, Any]) -> Any:
        return freeze(piece, self._name)

    def _let_go(self) -> None:
        """Drop all references to shared data."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (saved.merged, ([*self._pieces, *self._early],))


class StandingSlices(Slices):
    """The same for entries that are frozen and read in place.

    A key that is saved out of turn may have had its turn. Its value is still as it was at the
    capture: this is the first access to it since then.
    """

    def __init__(
        self, entries: dict[Any, Any], name: str, on_end: Callable[[Slices], None] | None = None
    ) -> None:
        """Of `entries`, which do not change until this is complete or no longer needed."""
        super().__init__({}, name, on_end)
        self._standing = entries
        self._pairs = pairs(entries)
        self._left = len(entries)
        self._seen: dict[Any, None] = {}
        """Keys that were saved out of turn."""

    def _take(self, size: int) -> dict[Any, Any]:
        piece = dict(islice(self._pairs, size))
        for key in self._seen.keys() & piece.keys():
            piece[key] = None
        return piece

    def _take_early(self, keys: Iterable[Any]) -> dict[Any, Any]:
        standing, seen = self._standing, self._seen
        early = {
            key: standing[key]
            for key in keys
            if key not in seen and key in standing and not is_steady(standing[key])
        }
        seen.update(dict.fromkeys(early))
        return early

    def _cut(self, piece: dict[Any, Any]) -> Any:
        # As bytes: a second dict of everything would take as long to free as to build.
        return pickled_whole(piece, self._name)

    def _let_go(self) -> None:
        self._standing, self._pairs = {}, iter(())


class Watched(dict[Any, None]):
    """The changed keys of a store while slices of it are being saved.

    A plain dict is used otherwise, so that marking a key costs nothing extra without slices.
    """

    __slots__ = ("slices",)

    def __init__(self, keys: dict[Any, None], slices: list[Slices]) -> None:
        super().__init__(keys)
        self.slices = slices

    def __setitem__(self, key: Any, value: None) -> None:
        for slices in self.slices:
            slices.save((key,))
        super().__setitem__(key, value)

    def update(self, keys: Iterable[Any]) -> None:  # type: ignore[override]
        """Mark these keys."""
        marked = dict.fromkeys(keys)
        for slices in self.slices:
            slices.save(marked)
        super().update(marked)
