"""A history that does not grow for ever: the newest of its entries, and how many there were."""

from typing import Final, SupportsIndex, TypeVar

T = TypeVar("T")

KEPT: Final = 1000
"""How many checkpoints, failures and notes of a run are kept one by one."""


class Newest(list[T]):
    """A list that forgets its oldest entries once it has too many."""

    def __init__(self, limit: int = KEPT) -> None:
        super().__init__()
        self.limit = limit
        self.total = 0
        """How many entries were ever added."""

    @property
    def forgotten(self) -> int:
        return self.total - len(self)

    def append(self, entry: T) -> None:
        super().append(entry)
        self.total += 1
        if len(self) > self.limit:
            del self[0]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[list[T]], tuple[list[T]]]:
        """Pickled, it becomes a plain list of the entries that are left."""
        return list, (self[:],)
