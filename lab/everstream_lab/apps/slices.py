"""Sequences whose items lie in a file and are read when they are asked for, wherever that is."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Slices(Sequence[T], Generic[T]):
    """A sequence that reads a run of items at once; a subclass says how."""

    @abstractmethod
    def read(self, start: int, stop: int) -> list[T]:
        """Items start to stop - 1, which are there."""

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self.read(start, max(start, stop))[::step]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.read(place % len(self), place % len(self) + 1)[0]


class Pieces(Slices[bytes]):
    """A file cut at the given places; the first is where it begins, the last where it ends."""

    def __init__(self, path: str, cuts: Sequence[int]) -> None:
        self._path = path
        self._cuts = cuts

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def read(self, start: int, stop: int) -> list[bytes]:
        with open(self._path, "rb") as file:
            file.seek(self._cuts[start])
            lengths = [self._cuts[n + 1] - self._cuts[n] for n in range(start, stop)]
            return [file.read(length) for length in lengths]
