"""Event time: what a watermark is, and how times, durations and sizes are parsed.

Event times are whole microseconds. A watermark is a promise about later records: each has a time
of at least the watermark, unless it is late. So a window that ends at `end` (its own times are all
smaller) is complete as soon as the watermark is `end` or more. Watermarks never go back.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of, records_of
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.exact import SeriesColumn, column_of

NO_WATERMARK: Final = -(2**63)
"""No watermark yet."""
END_OF_TIME: Final = 2**63 - 1
"""The watermark of an input that has ended."""

Unit: TypeAlias = Literal["s", "ms", "us", "ns"]
_NS_PER: Final[dict[str, int]] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def microseconds(duration: str | float | timedelta) -> int:
    """A duration such as "10s", "250ms", "-1s", a timedelta or a number of seconds.

    >>> microseconds("1s"), microseconds("-250ms"), microseconds(0.5)
    (1000000, -250000, 500000)
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    if isinstance(duration, str) and duration.strip().startswith("-"):
        return -microseconds(duration.strip()[1:])
    if isinstance(duration, str) and duration.strip() in ("0", "0s"):
        return 0
    return round(seconds(duration) * 1e6) if duration else 0


def in_seconds(time_us: int) -> str:
    return f"{f'{time_us / 1e6:.6f}'.rstrip('0').rstrip('.')} s"


@dataclass(frozen=True)
class TimeOf:
    """Where a record's event time is: a column, a Polars expression or a function of the record."""

    what: str | pl.Expr | Callable[[Any], Any]
    unit: Unit | None = None
    """The unit of times that are numbers; None if they are datetimes."""

    def __post_init__(self) -> None:
        if self.unit is not None and self.unit not in _NS_PER:
            raise UserError(
                f'unit={self.unit!r} is not a unit of time: use "s", "ms", "us" or "ns".'
            )
        if not isinstance(self.what, str | pl.Expr) and not callable(self.what):
            raise UserError(
                f"event times come from a column, a Polars expression or a function, "
                f"not {self.what!r}."
            )

    def read(self, batch: Batch, wanted_by: str) -> pl.Series:
        """The times as they are given: a datetime or integer column."""
        if isinstance(self.what, str):
            times = _only_column(self.what, batch, wanted_by)
        elif isinstance(self.what, pl.Expr):
            times = columns_of(batch, wanted_by).select(self.what).to_series()
        else:
            function = self.what
            times = pl.Series([function(record) for record in records_of(batch)])
        if isinstance(times.dtype, pl.Datetime):
            return times
        if times.dtype == pl.Null:
            return times.cast(pl.Int64)
        source = f"'{times.name}'" if times.name else "a function"
        if not times.dtype.is_integer():
            raise UserError(
                f"'{wanted_by}' takes times from {source}, which is {times.dtype}. Give it "
                'datetimes, or whole numbers with unit="s", "ms", "us" or "ns".'
            )
        if self.unit is None:
            first = next((time for time in times if time is not None), None)
            raise UserError(
                f"'{wanted_by}' takes times from {source}, which is {times.dtype}, for example "
                f'{first}, but their unit is unknown. Give unit="s", "ms", "us" or '
                '"ns" for seconds, milliseconds, microseconds or nanoseconds since 1970.'
            )
        return times

    def microseconds(self, times: pl.Series) -> pl.Series:
        """Times from `read`, as int64 microseconds."""
        if isinstance(times.dtype, pl.Datetime):
            return times.dt.epoch("us")
        numbers = times.cast(pl.Int64)
        match self.unit:
            case "us" | None:
                return numbers
            case "ns":
                return numbers // 1_000
            case unit:
                return numbers * (_NS_PER[unit] // 1_000)

    def fits(self, duration_us: int) -> bool:
        """Whether a duration is a whole number of the unit."""
        return self.unit is None or duration_us * 1_000 % _NS_PER[self.unit] == 0


def _only_column(name: str, batch: Batch, wanted_by: str) -> pl.Series:
    """The times of a batch; of dicts, no other column is made."""
    if isinstance(batch, list):
        try:
            column = column_of(name, [record[name] for record in batch])
        except (KeyError, TypeError):
            pass  # A record without this key: the columns of all of them tell which there are.
        else:
            if isinstance(column, SeriesColumn):
                return column.values
    frame = columns_of(batch, wanted_by)
    if name not in frame.columns:
        raise UserError(
            f"'{wanted_by}' looks for times in column '{name}', but the records have: "
            f"{', '.join(frame.columns)}."
        )
    return frame.get_column(name)


def in_unit(times_us: Any, unit: Unit | None) -> Any:
    """Microseconds (a number, a column or an expression) as numbers of this unit."""
    match unit:
        case "us" | None:
            return times_us
        case "ns":
            return times_us * 1_000
        case _:
            return times_us // (_NS_PER[unit] // 1_000)


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def size_bytes(name: str, size: str | int) -> int:
    """A size in bytes; the UserError for an invalid size names the option."""
    match = _SIZE.fullmatch(str(size))
    if match is None or float(match[1]) <= 0:
        raise UserError(f"{name}={size!r} is not a size: give '2g', '512m' or a number of bytes.")
    return int(float(match[1]) * _UNITS[match[2].lower()])


# Administrators and time services set clocks: back by an hour, say, when one was an hour ahead. A timer
# would then fire an hour late, or a second time. So when the clock of the machine is set back, processing
# time continues from where it was, a little slower until the machine has caught up. When it is set
# forward, processing time follows at once.
PACE_WHILE_AHEAD = 0.9


class ForwardClock:
    """Seconds since 1970 by `clock`, but they never go back.

    >>> given = iter([100.0, 101.0, 41.0, 51.0])
    >>> now_s = ForwardClock(lambda: next(given))
    >>> [now_s(), now_s(), now_s()]
    [101.0, 101.0, 110.0]
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._read_s = self._now_s = clock()

    def __call__(self) -> float:
        read_s = self._clock()
        passed_s = max(0.0, read_s - self._read_s)
        self._read_s = read_s
        self._now_s = max(read_s, self._now_s + PACE_WHILE_AHEAD * passed_s)
        return self._now_s

    def not_before(self, time_s: float) -> None:
        """Processing time had already reached this time before a restart."""
        self._now_s = max(self._now_s, time_s)
