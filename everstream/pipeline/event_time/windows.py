"""The kinds of time windows, and which windows a record belongs to.

Tumbling and sliding windows are made of panes, the longest stretches of time that no window cuts
in two: records are added up per pane, and a window is the sum of its panes. Windows are half
open: a record at `window_end` belongs to the next one.
"""

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from everstream.errors import UserError
from everstream.pipeline.times import in_seconds, microseconds

Duration: TypeAlias = str | float | timedelta


@dataclass(frozen=True)
class Sliding:
    """Windows of a fixed size that start every `every`, so each record is in several.

    >>> timed = es.Pipeline("s").source(es.FromList([{"at": 7}])).event_time("at", unit="s")
    >>> counts = timed.window(es.Sliding("10s", every="5s")).aggregate(n=es.count())
    >>> counts.collect().run().to_polars().rows()
    [(0, 10, 1), (5, 15, 1)]
    """

    size: Duration
    every: Duration
    size_us: int = field(init=False)
    every_us: int = field(init=False)
    pane_us: int = field(init=False)

    def __post_init__(self) -> None:
        size_us, every_us = microseconds(self.size), microseconds(self.every)
        if not 0 < every_us <= size_us:
            raise UserError(
                f"a window of {self.size} every {self.every}: both must be positive, and windows "
                "may not leave gaps between them."
            )
        object.__setattr__(self, "size_us", size_us)
        object.__setattr__(self, "every_us", every_us)
        object.__setattr__(self, "pane_us", math.gcd(size_us, every_us))

    def last_end(self, pane: int) -> int:
        """The end of the last window that this pane belongs to."""
        return pane - pane % self.every_us + self.size_us

    def starts(self, pane: int, after: int | None = None, up_to: int | None = None) -> range:
        """The starts of all windows with this pane that end after, and up to, these times."""
        first, last = pane + self.pane_us - self.size_us, pane
        if after is not None:
            first = max(first, after + 1 - self.size_us)
        if up_to is not None:
            last = min(last, up_to - self.size_us)
        return range(first + -first % self.every_us, last + 1, self.every_us)

    def describe(self) -> str:
        """As text: equal windows give the same text, however they were written."""
        return f"{in_seconds(self.size_us)} every {in_seconds(self.every_us)}"

    @classmethod
    def described(cls, text: str) -> "Sliding":
        """The windows that `describe` gave this text for."""
        size, every = text.split(" every ")
        return cls(size.replace(" ", ""), every.replace(" ", ""))

    def panes(self, start: int) -> range:
        """The panes of the window that starts here."""
        return range(start, start + self.size_us, self.pane_us)


class Tumbling(Sliding):
    """Windows of a fixed size, one after the other, without overlap.

    >>> rows = [{"at": 7}, {"at": 9}, {"at": 10}]
    >>> timed = es.Pipeline("t").source(es.FromList(rows)).event_time("at", unit="s")
    >>> counts = timed.window(es.Tumbling("10s")).aggregate(n=es.count())
    >>> counts.collect().run().to_polars().rows()
    [(0, 10, 2), (10, 20, 1)]
    """

    def __init__(self, size: Duration) -> None:
        super().__init__(size, size)

    def __repr__(self) -> str:
        return f"Tumbling({self.size!r})"


@dataclass(frozen=True)
class Session:
    """Sessions: records of one key with less than `gap` between each and the next.

    >>> rows = [{"at": 1}, {"at": 4}, {"at": 20}]
    >>> timed = es.Pipeline("visits").source(es.FromList(rows)).event_time("at", unit="s")
    >>> counts = timed.window(es.Session("5s")).aggregate(n=es.count())
    >>> counts.collect().run().to_polars().rows()
    [(1, 9, 2), (20, 25, 1)]
    """

    gap: Duration
    gap_us: int = field(init=False)

    def __post_init__(self) -> None:
        gap_us = microseconds(self.gap)
        if gap_us <= 0:
            raise UserError(f"a session needs a gap greater than zero, not {self.gap!r}.")
        object.__setattr__(self, "gap_us", gap_us)


Window: TypeAlias = Sliding | Session
