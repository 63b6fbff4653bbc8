"""What a shard has measured of itself so far: sums, from which differences say how it goes just now.

Batches carry the moment they came in (`Frame.born_s`); sinks compare it with the moment they have
written them. It costs a few additions per batch, so it is always on.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Meter:
    """Counts since this process began; what is written again after a failure counts again."""

    batches: int = 0
    """Batches that sinks have written."""
    records: int = 0
    timed: int = 0
    """Those of the records for which the moment they came in is known."""
    waited_s: float = 0.0
    """From there to the sink, summed over them."""
    target_per_s: float = 0.0
    """What the sources are to give just now; 0 if nobody paces them."""
    behind: float = 0.0
    """Records that are due and not given yet."""
    forfeited: float = 0.0
    """Records that were due and whose time has passed, at sources that do not catch up."""

    def wrote(self, records: int, born_s: float, now_s: float) -> None:
        """A sink has written so many records that came in then."""
        self.batches += 1
        self.records += records
        if born_s:
            self.timed += records
            self.waited_s += records * (now_s - born_s)
