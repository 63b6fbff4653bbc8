"""Cutting a large store loose from its operator in slices, while the operator goes on.

At the capture only the dict of the store is copied, not its values: that costs a small part of
pickling them. What can change in place is pickled afterwards, a slice at a time between two pieces
of work, or at the last moment before somebody gets hold of it: a key store says of each key that
its value may change from now on (`save`). So every value is saved as it was at the capture.

Until the last slice, a capture holds one more reference for each key and value and keeps what has
been replaced since; what is pickled is let go of.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from everstream.state import saved
from everstream.state.freezing import KINDS, STEADY, Kind, all_atomic, freeze

AT_ONCE_ENTRIES: Final = 1000
"""Stores up to this size are cut loose at once."""
SLICE_S: Final = 0.025
"""How long a slice lasts, unless one value alone takes longer."""
SLICE_ENTRIES: Final = 100_000
"""The most that a slice has, also where the clock stands still."""
_FIRST_PIECE = 16
_LARGEST_PIECE = 4096


def can_be_sliced(entries: dict[Any, Any]) -> bool:
    """Whether it is worth it, and nothing is in there that could change unseen.

    Numbers and texts cannot change, so there a copy of the dict is all it takes. Frames are shared
    with their reader, who may change one in place and put it back.
    """
    if len(entries) <= AT_ONCE_ENTRIES:
        return False
    kinds = {KINDS[type_] for type_ in set(map(type, entries.values()))}
    return Kind.FRAME not in kinds and (kinds != {Kind.ATOMIC} or not all_atomic(entries))


class Slices:
    """The entries of one store at one instant; unpickles as a dict of them, in their order."""

    def __init__(self, entries: dict[Any, Any], whose: str) -> None:
        """Takes over `entries`: a dict that nobody else holds."""
        self._entries = entries
        """What is not saved yet."""
        self._whose = whose
        self._keys = list(entries)
        self._next = 0
        self._pieces: list[Any] = []
        self._early: list[Any] = []
        """What had to be saved out of turn. Its keys stand in the pieces, with None."""
        self._piece_size = _FIRST_PIECE
        self._broken: BaseException | None = None

    @property
    def whole(self) -> bool:
        """Whether no later change can reach it any more."""
        return self._next >= len(self._keys)

    def holds(self, key: Any, value: Any) -> bool:
        """Whether it refers to this value, as that of this key."""
        return self._entries.get(key) is value

    def save(self, keys: Iterable[Any]) -> None:
        """The values of these keys may change after this. Those that share one go on sharing it.

        Never raises: it is called in the middle of an operator's work, whose fault it is not.
        """
        entries = self._entries
        early = {
            key: entries.pop(key)
            for key in keys
            if key in entries and not STEADY[type(entries[key])]
        }
        if early and self._broken is None:
            try:
                self._early.append(freeze(early, self._whose))
            except BaseException as error:  # raised by the next `go_on`
                self._broken = error

    def go_on(self, clock_s: Callable[[], float]) -> None:
        """Do one slice. Raises a UserError if a value cannot be saved."""
        if self._broken is not None:
            raise self._broken
        began_s = clock_s()
        stop = min(self._next + SLICE_ENTRIES, len(self._keys))
        while self._next < stop:
            before_s = clock_s()
            if before_s - began_s >= SLICE_S:
                break
            self._save_piece(stop)
            took_s = clock_s() - before_s
            if took_s > SLICE_S / 4:
                self._piece_size = max(1, self._piece_size // 2)
            elif took_s < SLICE_S / 16:
                self._piece_size = min(_LARGEST_PIECE, self._piece_size * 2)
        if self.whole:
            self._keys = []
            self._next = 0

    def _save_piece(self, stop: int) -> None:
        following = min(self._next + self._piece_size, stop)
        take = self._entries.pop
        piece = {key: take(key, None) for key in self._keys[self._next : following]}
        self._next = following
        try:
            self._pieces.append(freeze(piece, self._whose))
        except BaseException as error:  # what was taken is gone: there is no second try
            self._broken = error
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return (saved.merged, ([*self._pieces, *self._early],))


class Watched(dict[Any, None]):
    """The changed keys of a store while slices of it are being saved.

    A dict as any other, so that marking a key costs nothing extra when none are.
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
