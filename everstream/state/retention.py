"""Which checkpoints a store keeps: the newest ones, and those that are not too old."""

from dataclasses import dataclass

from everstream.errors import UserError

LEAST = 3
"""A run must be able to fall back if the newest checkpoints turn out to be damaged."""


@dataclass(frozen=True)
class Retention:
    """Checkpoints that are among the newest, or younger than an age, are kept."""

    newest: int = LEAST
    age_s: float = 0.0

    def __post_init__(self) -> None:
        if self.newest < LEAST:
            raise UserError(
                f"keep_checkpoints={self.newest}: at least {LEAST} are kept, because a run falls back to "
                "an older one if the newest is damaged."
            )

    def since_s(self, now_s: float) -> float | None:
        """Checkpoints from this time on are kept, whatever their number; None: only the newest."""
        return now_s - self.age_s if self.age_s else None

    def keeps(self, newer: int, age_s: float) -> bool:
        """Whether a checkpoint of this age is kept. newer: how many newer ones there are."""
        return newer < self.newest or age_s <= self.age_s


DEFAULT = Retention()
