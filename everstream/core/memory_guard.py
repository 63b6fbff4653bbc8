"""Keeps a worker within its memory limit: bytes in, decision out.

Near the limit the worker accepts no new input, so that pending saves and sends can finish and
memory falls. If it does not fall within a while, because state has grown, waiting does not help:
work resumes. At the limit the worker fails with a clear error, before the system kills it without
one.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

NEAR: Final = 0.85
"""Share of the limit above which no new input is accepted."""
CALM: Final = 0.75
"""Share of the limit below which the worker is out of danger again."""
PATIENCE_S: Final = 10.0


class Strain(Enum):
    """The memory pressure of a worker."""

    NONE = "none"
    HELD = "held"
    """No new input is accepted."""
    IN_VAIN = "in vain"
    """Waiting did not help: work resumes."""
    OVER = "over"
    """The limit is exceeded."""


@dataclass
class MemoryGuard:
    limit_bytes: int
    strain: Strain = Strain.NONE
    _since_s: float = 0.0

    def look(self, used_bytes: int, now_s: float) -> bool:
        """This much is in use. Returns whether `strain` has changed."""
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
