"""The kinds of windows, and which windows a record belongs to.

Tumbling, sliding and calendar windows are made of panes, the longest stretches of time that no window
cuts in two: records are added up per pane, and a window is the sum of its panes. Windows are half
open: a record at `window_end` belongs to the next one.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.times import in_seconds, microseconds

Duration: TypeAlias = str | float | timedelta
Instants: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class PanedWindow(ABC):
    """Windows that begin at times which do not depend on the records."""

    pane_us: int
    """How long a pane is; 0 if panes differ."""
    longest_us: int
    """No window is longer."""

    @abstractmethod
    def panes_of(self, times: pl.Series) -> pl.Series:
        """The start of the pane of each time, in microseconds."""

    @abstractmethod
    def open_from(self, watermark: Any) -> Any:
        """All windows with earlier times have ended, at this watermark or at each of these."""

    @abstractmethod
    def last_end(self, pane: int) -> int:
        """The end of the last window that this pane belongs to."""

    @abstractmethod
    def starts(
        self, pane: int, after: int | None = None, up_to: int | None = None
    ) -> Sequence[int]:
        """The starts of all windows with this pane that end after, and up to, these times."""

    @abstractmethod
    def panes(self, start: int) -> Sequence[int]:
        """The panes of the window that starts here."""

    @abstractmethod
    def end(self, start: int) -> int:
        """The end of the window that starts here."""

    @abstractmethod
    def describe(self) -> str:
        """As text: equal windows give the same text, however they were written."""


def described(text: str) -> PanedWindow:
    """The windows that `describe` gave this text for."""
    text, _, offset = text.partition(" from ")
    offset = offset.replace(" ", "") or "0"
    if " in " in text:
        every, zone = text.split(" in ")
        return Calendar(every, timezone=zone, offset=offset)
    size, every = text.replace(" s", "s").split(" every ")
    return Sliding(size, every, offset)


@dataclass(frozen=True)
class Sliding(PanedWindow):
    """Windows of a fixed size that start every `every`, so each record is in several.

    They start at whole multiples of `every` since 1970, plus `offset` (default 0; it may be negative).

    >>> timed = es.Pipeline("s").source(es.FromList([{"at": 7}])).event_time("at", unit="s")
    >>> counts = timed.window(es.Sliding("10s", every="5s")).aggregate(n=es.count())
    >>> counts.collect().run().to_polars().rows()
    [(0, 10, 1), (5, 15, 1)]
    """

    size: Duration
    every: Duration
    offset: Duration = 0
    size_us: int = field(init=False)
    every_us: int = field(init=False)
    pane_us: int = field(init=False)
    offset_us: int = field(init=False)
    longest_us: int = field(init=False)

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
        object.__setattr__(self, "offset_us", microseconds(self.offset) % every_us)
        object.__setattr__(self, "longest_us", size_us)

    def panes_of(self, times: pl.Series) -> pl.Series:
        return times - (times - self.offset_us) % self.pane_us

    def open_from(self, watermark: Any) -> Any:
        # The first pane that still belongs to an open window.
        first = watermark - self.size_us - self.offset_us
        return first // self.every_us * self.every_us + self.every_us + self.offset_us

    def last_end(self, pane: int) -> int:
        return pane - (pane - self.offset_us) % self.every_us + self.size_us

    def starts(self, pane: int, after: int | None = None, up_to: int | None = None) -> range:
        first, last = pane + self.pane_us - self.size_us, pane
        if after is not None:
            first = max(first, after + 1 - self.size_us)
        if up_to is not None:
            last = min(last, up_to - self.size_us)
        return range(first + -(first - self.offset_us) % self.every_us, last + 1, self.every_us)

    def panes(self, start: int) -> range:
        return range(start, start + self.size_us, self.pane_us)

    def end(self, start: int) -> int:
        return start + self.size_us

    def describe(self) -> str:
        offset = f" from {in_seconds(self.offset_us)}" if self.offset_us else ""
        return f"{in_seconds(self.size_us)} every {in_seconds(self.every_us)}{offset}"


class Tumbling(Sliding):
    """Windows of a fixed size, one after the other, without overlap.

    They start at whole multiples of their size since 1970, plus `offset`: es.Tumbling("1d", offset="6h").

    >>> rows = [{"at": 7}, {"at": 9}, {"at": 10}]
    >>> timed = es.Pipeline("t").source(es.FromList(rows)).event_time("at", unit="s")
    >>> counts = timed.window(es.Tumbling("10s")).aggregate(n=es.count())
    >>> counts.collect().run().to_polars().rows()
    [(0, 10, 2), (10, 20, 1)]
    """

    def __init__(self, size: Duration, offset: Duration = 0) -> None:
        super().__init__(size, size, offset)

    def __repr__(self) -> str:
        return f"Tumbling({self.size!r}{f', offset={self.offset!r}' if self.offset_us else ''})"


_CALENDAR = re.compile(
    r"(\d*)\s*(?:(d|days?)|(w|weeks?)|(mo|months?)|(q|quarters?)|(y|years?))", re.IGNORECASE
)
_CALENDAR_UNITS: Final = (("d", 1, 1), ("w", 1, 7), ("mo", 1, 31), ("mo", 3, 31), ("y", 1, 366))
"""How Polars writes each, how many of these it is, and the days that one of these has at most."""
_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = -59_958_144_000_000_000
_LAST_US: Final = 249_000_000_000_000_000
"""The years 70 to 9860: in these, and around them, Python has dates."""


@dataclass(frozen=True)
class Calendar(PanedWindow):
    """Days, weeks, months, quarters or years of a time zone: "1 day", "2 weeks", "1 month" or "1mo".

    They follow the clock of the zone: a day has 23 or 25 hours when daylight saving time begins or ends.
    Weeks start on Monday. `offset` moves the start on that clock: offset="6h" for days from 6 o'clock.

    >>> from datetime import UTC, datetime
    >>> times = [datetime(2024, 3, 30, 23, tzinfo=UTC), datetime(2024, 3, 31, 12, tzinfo=UTC)]
    >>> rows = [{"at": at} for at in times]
    >>> timed = es.Pipeline("days").source(es.FromList(rows)).event_time("at")
    >>> days = timed.window(es.Calendar("1 day", timezone="Europe/Berlin")).aggregate(n=es.count())
    >>> counted = days.collect().run().to_polars()
    >>> counted.select(n="n", hours=(pl.col("window_end") - pl.col("window_start")).dt.total_hours()).rows()
    [(2, 23)]
    """

    every: str
    timezone: str = "UTC"
    offset: Duration = 0
    pane_us: int = field(init=False, default=0)
    longest_us: int = field(init=False, repr=False)
    _step: tuple[int, str] = field(init=False, repr=False)
    _offset: timedelta = field(init=False, repr=False)
    _known: list[Instants] = field(init=False, repr=False, compare=False, default_factory=list)
    """The starts of windows in the stretch of time that was seen so far."""

    def __post_init__(self) -> None:
        match = _CALENDAR.fullmatch(self.every.strip()) if isinstance(self.every, str) else None
        if match is None or match[1].strip("0") == "" != match[1]:
            raise UserError(
                f"es.Calendar({self.every!r}): give days, weeks, months, quarters or years, such as "
                "'1 day', '2 weeks' or '1mo'. For hours and less use es.Tumbling."
            )
        unit, times, days = _CALENDAR_UNITS[next(i for i in range(5) if match[i + 2])]
        object.__setattr__(self, "_step", (int(match[1] or 1) * times, unit))
        # A zone may repeat a day, or leave one out.
        object.__setattr__(self, "longest_us", (self._step[0] * days + 1) * _DAY_US)
        object.__setattr__(self, "_offset", timedelta(microseconds=microseconds(self.offset)))
        try:
            pl.Series([0]).cast(pl.Datetime("us", self.timezone))
        except pl.exceptions.PolarsError:
            raise UserError(
                f"timezone={self.timezone!r} is not a time zone: give a name such as 'Europe/Berlin'."
            ) from None

    def panes_of(self, times: pl.Series) -> pl.Series:
        values = times.to_numpy()
        if len(values) and not _FIRST_US <= values.min() <= values.max() <= _LAST_US:
            raise UserError(
                f"{self!r} takes times of the years 70 to 9860. Check the unit of event_time."
            )
        return pl.Series(times.name, self._starts_of(values))

    def open_from(self, watermark: Any) -> Any:
        values = np.atleast_1d(np.asarray(watermark, dtype=np.int64)).copy()
        inside = (values >= _FIRST_US) & (values <= _LAST_US)
        values[inside] = self._starts_of(values[inside])
        return int(values[0]) if isinstance(watermark, int) else pl.Series(values)

    def last_end(self, pane: int) -> int:
        return self.end(pane)

    def starts(
        self, pane: int, after: int | None = None, up_to: int | None = None
    ) -> Sequence[int]:
        end = self.end(pane)
        within = (after is None or end > after) and (up_to is None or end <= up_to)
        return [pane] if within else []

    def panes(self, start: int) -> Sequence[int]:
        return [start]

    def end(self, start: int) -> int:
        bounds = self._bounds(start, start)
        return int(bounds[np.searchsorted(bounds, start, side="right")])

    def describe(self) -> str:
        offset_us = self._offset // timedelta(microseconds=1)
        offset = f" from {in_seconds(offset_us)}" if offset_us else ""
        return f"{self._step[0]}{self._step[1]} in {self.timezone}{offset}"

    def _starts_of(self, times: Instants) -> Instants:
        if not len(times):
            return times
        bounds = self._bounds(int(times.min()), int(times.max()))
        starts: Instants = bounds[np.searchsorted(bounds, times, side="right") - 1]
        return starts

    def _bounds(self, low: int, high: int) -> Instants:
        """The starts of windows, in order: one at or before `low`, one after `high`, all between."""
        if self._known:
            known = self._known[0]
            if known[0] <= low and high < known[-1]:
                return known
            low, high = min(low, int(known[0])), max(high, int(known[-1]))
        count, unit = self._step
        local = pl.Series([low, high]).cast(pl.Datetime("us", "UTC"))
        local = local.dt.convert_time_zone(self.timezone).dt.replace_time_zone(None) - self._offset
        around = local.dt.truncate(f"{count}{unit}")
        first = around.dt.offset_by(f"-{2 * count}{unit}")[0]
        last = around.dt.offset_by(f"{3 * count}{unit}")[1]
        starts = pl.datetime_range(first, last, f"{count}{unit}", time_unit="us", eager=True)
        bounds = np.unique(self._instants(starts + self._offset))
        self._known[:] = [bounds]
        return bounds

    def _instants(self, local: pl.Series) -> Instants:
        """When the clock of the zone shows these times first, or leaves them out."""
        zoned = local.dt.replace_time_zone(self.timezone, ambiguous="earliest", non_existent="null")
        for row in zoned.is_null().arg_true().to_list():
            left_out: datetime = local[row]
            later = pl.datetime_range(
                left_out, left_out + timedelta(hours=25), "1m", time_unit="us", eager=True
            )
            shown = later.dt.replace_time_zone(
                self.timezone, ambiguous="earliest", non_existent="null"
            )
            zoned[row] = shown.drop_nulls()[0]
        return zoned.dt.epoch("us").to_numpy()


@dataclass(frozen=True)
class CountWindow:
    """Windows of `size` records of one key, in the order in which they arrive.

    A result comes with every `every` records (default: `size`), over the last `size` of them; the first
    windows of a key have fewer if `every` is less than `size`, as in Flink. `window_start` and
    `window_end` count the records of the key from 0. What is left at the end gives no result.

    >>> rows = [{"k": n % 2, "v": n} for n in range(9)]
    >>> keyed = es.Pipeline("pairs").source(es.FromList(rows)).key_by("k")
    >>> sums = keyed.window(es.CountWindow(2)).aggregate(total=es.sum("v"))
    >>> sorted(sums.collect().run().to_polars().rows())
    [(0, 0, 2, 2), (0, 2, 4, 10), (1, 0, 2, 4), (1, 2, 4, 12)]
    """

    size: int
    every: int | None = None
    step: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", self.size if self.every is None else self.every)
        if not (isinstance(self.size, int) and isinstance(self.step, int)) or not (
            0 < self.step <= self.size
        ):
            raise UserError(
                f"{self!r}: give whole numbers of records, with every between 1 and size."
            )

    def describe(self) -> str:
        """As text: equal windows give the same text."""
        return f"{self.size} records every {self.step}"


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


@dataclass(frozen=True)
class Emission:
    """When windows of event time give results, and what these tell about it."""

    allowed_us: int = 0
    """How long a window is kept after its end, to be corrected by late records."""
    early_us: int | None = None
    """How often a window gives results before its end, in processing time."""
    discarding: bool = False
    """Whether a result is about the records since the last one, not about all of the window."""
    timing: bool = False
    """Whether results say that they are early, on time or late."""


ONCE: Final = Emission()
"""One result, when the window ends."""


Window: TypeAlias = PanedWindow | Session | CountWindow
