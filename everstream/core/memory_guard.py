"""How a worker keeps within the memory it may have: bytes in, decision out.

Near the limit it takes nothing new in: what is being saved or sent may go first, and memory falls. If
it does not within a while, because it is state that has grown, waiting is of no use: work goes on, and
at the limit the worker fails, with words, before the system kills it without.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

NEAR: Final = 0.85
"""Of the limit: from here on nothing new is taken in."""
CALM: Final = 0.75
"""Of the limit: from here down all is well again."""
PATIENCE_S: Final = 10.0


class Strain(Enum):
    """How it stands with the memory of a worker."""

    NONE = "none"
    HELD = "held"
    """Nothing new is taken in."""
    IN_VAIN = "in vain"
    """That was of no use: work goes on."""
    OVER = "over"
    """There is more than there may be."""


@dataclass
class MemoryGuard:
    """Of one worker."""

    limit_bytes: int
    strain: Strain = Strain.NONE
    _since_s: float = 0.0

    def look(self, used_bytes: int, now_s: float) -> bool:
        """So much is in use; whether `strain` is another now."""
        before = self.strain
        self.strain = self._strain(used_bytes, now_s)
        if self.strain is Strain.HELD and before is Strain.NONE:
            self._since_s = now_s
        return self.strain is not before

    def _strain(self, used_bytes: int, now_s: float) -> Strain:
        if used_bytes >= self.limit_bytes:
            return Strain.OVER
        if used_bytes <= CALM * self.limit_bytes:
            return Strain.NONE
        if self.strain is Strain.NONE:
            return Strain.HELD if used_bytes >= NEAR * self.limit_bytes else Strain.NONE
        if self.strain is Strain.HELD and now_s - self._since_s < PATIENCE_S:
            return Strain.HELD
        return Strain.IN_VAIN
