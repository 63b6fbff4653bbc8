"""Event time: what a watermark is, and how times and durations are read.

Event times are whole microseconds. A watermark is a promise about what is still to come: every
later record has a time of at least the watermark, unless it is late. So a window that ends at
`end` (its own times are all smaller) is complete as soon as the watermark is `end` or more.
Watermarks never go back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of, records_of
from everstream.pipeline.checkpointing import seconds

NO_WATERMARK: Final = -(2**63)
"""Nothing is promised."""
END_OF_TIME: Final = 2**63 - 1
"""The watermark of an input that has ended."""

Unit: TypeAlias = Literal["s", "ms", "us"]
US_PER: Final[dict[str, int]] = {"s": 1_000_000, "ms": 1_000, "us": 1}


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
    """A duration as text."""
    return f"{f'{time_us / 1e6:.6f}'.rstrip('0').rstrip('.')} s"


@dataclass(frozen=True)
class TimeOf:
    """Where a record's event time stands: a column, a Polars expression or a function of it."""

    what: str | pl.Expr | Callable[[Any], Any]
    unit: Unit = "us"

    def __post_init__(self) -> None:
        if self.unit not in US_PER:
            raise UserError(f'unit={self.unit!r} is no unit of time: say "s", "ms" or "us".')
        if not isinstance(self.what, str | pl.Expr) and not callable(self.what):
            raise UserError(
                f"event times come from a column, a Polars expression or a function, "
                f"not {self.what!r}."
            )

    def read(self, batch: Batch, wanted_by: str) -> pl.Series:
        """The times as they are given: a datetime or integer column."""
        if isinstance(self.what, str | pl.Expr):
            frame = columns_of(batch, wanted_by)
            if isinstance(self.what, str):
                if self.what not in frame.columns:
                    raise UserError(
                        f"'{wanted_by}' looks for times in column '{self.what}', but the records "
                        f"have: {', '.join(frame.columns)}."
                    )
                times = frame.get_column(self.what)
            else:
                times = frame.select(self.what).to_series()
        else:
            function = self.what
            times = pl.Series([function(record) for record in records_of(batch)])
        if isinstance(times.dtype, pl.Datetime) or times.dtype.is_integer():
            return times
        raise UserError(
            f"'{wanted_by}' takes times from '{times.name}', which is {times.dtype}. Give it "
            'datetimes, or whole numbers with unit="s", "ms" or "us".'
        )

    def microseconds(self, times: pl.Series) -> pl.Series:
        """Times as `read` gives them, as int64 microseconds."""
        if isinstance(times.dtype, pl.Datetime):
            return times.dt.epoch("us")
        numbers = times.cast(pl.Int64)
        return numbers if self.unit == "us" else numbers * US_PER[self.unit]
