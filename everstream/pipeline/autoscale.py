"""`es.AutoScale`: the options of a run that changes its numbers of shards automatically."""

import re
from dataclasses import dataclass

from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds


@dataclass(frozen=True)
class AutoScale:
    """Give operators as many shards as keep them busy for a target share of the time.

    A run with `autoscale=es.AutoScale(min=1, max=8)` measures how busy the shards of each operator
    are. It adds shards when they have been too busy for `up_after`, removes shards when they have
    been too idle for `down_after`, and then changes nothing for `calm`. Sources, ordered sinks and
    operators that limit their number of shards keep the shards they have.

    >>> es.AutoScale(max=4).target_busy
    0.7
    """

    min: int = 1
    max: int = 8
    target_busy: float = 0.7
    up_after: str | float = "10s"
    down_after: str | float = "1m"
    calm: str | float = "30s"

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise UserError(f"AutoScale(min={self.min}, max={self.max}): give 1 <= min <= max.")
        if not 0.05 <= self.target_busy <= 0.95:
            raise UserError(f"AutoScale(target_busy={self.target_busy}): give 0.05 to 0.95.")

    @classmethod
    def parse(cls, text: str) -> "AutoScale":
        """Parse the form of the command line: `1-8`, or `1-8@0.6`."""
        match = re.fullmatch(r"(\d+)-(\d+)(?:@(0?\.\d+))?", text)
        if match is None:
            raise UserError(
                f"--autoscale {text!r}: give MIN-MAX or MIN-MAX@BUSY, as in 1-8 or 1-8@0.6."
            )
        low, high, busy = match.groups()
        return cls(int(low), int(high), float(busy) if busy else cls.target_busy)

    @property
    def up_after_s(self) -> float:
        """In seconds."""
        return seconds(self.up_after)

    @property
    def down_after_s(self) -> float:
        """In seconds."""
        return seconds(self.down_after)

    @property
    def calm_s(self) -> float:
        """In seconds."""
        return seconds(self.calm)

    @property
    def look_every_s(self) -> float:
        """Short enough to measure several times before anything changes."""
        return min(self.up_after_s, self.down_after_s) / 5

    @property
    def slack(self) -> float:
        """The share of a shard that may be missing before another one is added."""
        return 0.1
