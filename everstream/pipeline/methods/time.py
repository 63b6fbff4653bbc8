"""The methods of a stream that deal with time: event time, windows and joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.event_time.joins import interval_join, window_join
from everstream.pipeline.event_time.windows import Duration, Session, Sliding, Window
from everstream.pipeline.methods.base import Options, StreamBase
from everstream.pipeline.methods.windowed import WindowedStream, time_of
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.rejects import OnError
from everstream.pipeline.times import TimeOf, Unit, microseconds
from everstream.pipeline.types import Row, T

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream


class TimeMethods(StreamBase[T]):
    """The time methods of a `Stream`, the only class that inherits this."""

    def event_time(
        self,
        time: str | pl.Expr | Callable[[T], Any],
        *,
        lateness: Duration = 0,
        unit: Unit | None = None,
        name: str | None = None,
        on_error: OnError = "fail",
    ) -> Stream[T]:
        """Declare the event time of records: a column, a Polars expression or a function.

        Times are datetimes, or whole numbers since 1970 in `unit`: "s", "ms", "us" or "ns". Numbers
        without a unit are refused. Records may be out of order by at most `lateness` (default 0):
        the watermark is the greatest time of the records before, minus the lateness. Call it right
        after the source, so that it sees each source shard separately.

        >>> clicks = [{"at": 0}, {"at": 7}, {"at": 3}, {"at": 12}]
        >>> timed = es.Pipeline("clicks").source(es.FromList(clicks)).event_time("at", unit="s")
        >>> counts = timed.window(es.Tumbling("10s")).aggregate(clicks=es.count())
        >>> counts.collect().run().to_polars().rows()
        [(0, 10, 3), (10, 20, 1)]
        """
        late_us = microseconds(lateness)
        if late_us < 0:
            raise UserError(f"lateness={lateness!r} is negative: give 0 or more.")
        operator = EventTime(TimeOf(time, unit), late_us)
        return self._then("event_time", operator, Options(name, on_error=on_error))

    def window(
        self,
        window: Window,
        *,
        time: Literal["event", "processing"] = "event",
        at: str | pl.Expr | Callable[[T], Any] | None = None,
        unit: Unit | None = None,
        allowed_lateness: Duration = 0,
    ) -> WindowedStream:
        """Divide the stream into windows: es.Tumbling("1s"), es.Sliding("10s", every="2s") or
        es.Session("5s"). After a key_by the windows are per key, otherwise for the whole stream.

        Times come from the `event_time` upstream, unless `at` gives others. Windows of processing
        time use the clock of the machine, so their results differ from run to run.

        >>> rows = [{"user": n % 2, "at": n} for n in range(4)]
        >>> timed = es.Pipeline("visits").source(es.FromList(rows)).event_time("at", unit="s")
        >>> visits = timed.key_by("user").window(es.Session("5s")).aggregate(n=es.count())
        >>> sorted(visits.collect().run().to_polars().rows())
        [(0, 0, 7, 2), (1, 1, 8, 2)]
        """
        if not isinstance(window, Sliding | Session):
            raise UserError(
                f"window() takes es.Tumbling, es.Sliding or es.Session, not {window!r}."
            )
        allowed_us = microseconds(allowed_lateness)
        if time == "processing":
            if isinstance(window, Session) or at is not None or allowed_us:
                raise UserError(
                    "windows of processing time are tumbling or sliding, and take neither `at` nor "
                    "lateness."
                )
            return WindowedStream(self, window, None, 0)
        event_time = TimeOf(at, unit) if at is not None else self._time()
        if isinstance(window, Sliding) and not event_time.fits(window.pane_us):
            raise UserError(
                f"{window!r} is finer than the times, which are whole {event_time.unit}. Give "
                "event_time a finer unit."
            )
        return WindowedStream(self, window, event_time, allowed_us)

    def window_join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str],
        window: Sliding,
        other_on: str | Sequence[str] | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Join rows of both streams that have equal keys and are in the same window.

        Pairs are emitted when the window ends, with window_start and window_end. Columns of the
        other stream whose names this one also has get the suffix `_right`. Late rows are at
        `.side_output("late")`.

        >>> pipeline = es.Pipeline("joined")
        >>> ads = pipeline.source(es.FromList([{"user": 1, "ad": 7, "at": 3}]))
        >>> clicks = pipeline.source(es.FromList([{"user": 1, "at": 9}, {"user": 1, "at": 11}]))
        >>> ads, clicks = ads.event_time("at", unit="s"), clicks.event_time("at", unit="s")
        >>> pairs = ads.window_join(clicks, on="user", window=es.Tumbling("10s"))
        >>> pairs.collect().run().to_polars().select("ad", "at", "at_right").rows()
        [(7, 3, 9)]
        """
        options = Options(name, shards, on_error)
        return window_join(self, other, on, other_on, window, options)

    def interval_join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str],
        between: tuple[Duration, Duration],
        other_on: str | Sequence[str] | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Join rows of both streams that have equal keys and close times.

        The time of the other row minus the time of this row must be at least between[0] and at
        most between[1], for example ("-1s", "2s"). Late rows are at `.side_output("late")`.

        >>> pipeline = es.Pipeline("joined")
        >>> ads = pipeline.source(es.FromList([{"user": 1, "ad": 7, "at": 3}]))
        >>> clicks = pipeline.source(es.FromList([{"user": 1, "at": 5}, {"user": 1, "at": 9}]))
        >>> ads, clicks = ads.event_time("at", unit="s"), clicks.event_time("at", unit="s")
        >>> soon = ads.interval_join(clicks, on="user", between=("0s", "5s"))
        >>> soon.collect().run().to_polars().select("ad", "at", "at_right").rows()
        [(7, 3, 5)]
        """
        options = Options(name, shards, on_error)
        return interval_join(self, other, on, other_on, between, options)

    def _time(self) -> TimeOf:
        """How to read the event time of records."""
        time = time_of(self.pipeline.graph, self._origins)
        if time is None:
            raise UserError(
                "windows and joins of event time need the time of records: put "
                ".event_time(...) after each source, with the same arguments."
            )
        return time
