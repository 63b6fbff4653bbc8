"""What happened to a key store between two captures: enough to save just that."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Changes:
    """What happened to a store between two captures. Dicts serve as sets that keep their order."""

    dirty: dict[Any, None] = field(default_factory=dict)
    """Keys whose values may have changed, or that are gone if the store has them no longer."""
    deleted: dict[Any, None] = field(default_factory=dict)
    """Keys that were deleted, perhaps to be put back at the end of the order."""
    cleared: bool = False
    """Everything before the other changes was thrown away."""

    def __bool__(self) -> bool:
        return bool(self.dirty or self.deleted or self.cleared)

    def copy(self) -> "Changes":
        return Changes(self.dirty.copy(), self.deleted.copy(), self.cleared)

    def extend(self, later: "Changes") -> None:
        """Take in what happened after."""
        if later.cleared:
            self.dirty, self.deleted, self.cleared = {}, {}, True
        for key in later.deleted:
            self.dirty.pop(key, None)
        self.deleted.update(later.deleted)
        self.dirty.update(later.dirty)
