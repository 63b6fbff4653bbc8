"""The methods of a stream that have to do with time, and with aggregates over columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregates import Aggregates
from everstream.pipeline.event_time import EventTime
from everstream.pipeline.joins import interval_join, window_join
from everstream.pipeline.rejects import OnError
from everstream.pipeline.running import running_aggregates
from everstream.pipeline.times import US_PER, TimeOf, Unit, microseconds
from everstream.pipeline.windowed import Windowed, time_of
from everstream.pipeline.windows import Session, Sliding, Window

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream


class TimeMethods:
    """What a `Stream` can do with event time; it is the only one to inherit this."""

    @property
    def _stream(self) -> Stream:
        from everstream.pipeline.stream import Stream

        assert isinstance(self, Stream)
        return self

    def event_time(
        self,
        time: str | pl.Expr | Callable[[Any], Any],
        *,
        lateness: str | float | timedelta = 0,
        unit: Unit = "us",
        name: str | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """Say when records happened: a column, a Polars expression or a function of the record.

        Times are datetimes, or whole numbers in this unit. Records may come out of order by at
        most `lateness`: time for those behind is the greatest seen so far, less that. Put it
        right behind the source, so that it sees each source shard by itself.
        """
        late_us = microseconds(lateness)
        if late_us < 0:
            raise UserError(f"lateness={lateness!r} is negative; records cannot be early.")
        operator = EventTime(TimeOf(time, unit), late_us)
        return self._stream._then("event_time", operator, {"name": name, "on_error": on_error})

    def window(
        self,
        window: Window,
        *,
        time: Literal["event", "processing"] = "event",
        at: str | pl.Expr | Callable[[Any], Any] | None = None,
        unit: Unit = "us",
        allowed_lateness: str | float | timedelta = 0,
    ) -> Windowed:
        """Cut the stream into windows: es.Tumbling("1s"), es.Sliding("10s", every="2s") or
        es.Session("5s"). Per key behind a key_by; without one, of the stream as a whole.

        Times are those that `event_time` was given upstream, unless `at` names others. Windows
        of processing time take the time of this machine, and so differ from run to run.
        """
        if not isinstance(window, Sliding | Session):
            raise UserError(
                f"window() takes es.Tumbling, es.Sliding or es.Session, not {window!r}."
            )
        allowed_us = microseconds(allowed_lateness)
        if time == "processing":
            if isinstance(window, Session) or at is not None or allowed_us:
                raise UserError(
                    "windows of processing time are tumbling or sliding, and know no `at` and no "
                    "lateness."
                )
            return Windowed(self._stream, window, None, 0)
        found = TimeOf(at, unit) if at is not None else self._time()
        if isinstance(window, Sliding) and window.pane_us % US_PER[found.unit]:
            raise UserError(
                f"{window!r} is finer than the times, which are whole {found.unit}. Give "
                "event_time a finer unit."
            )
        return Windowed(self._stream, window, found, allowed_us)

    def aggregates(
        self,
        *,
        emit: Literal["changes", "record"] = "changes",
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **aggregates: Any,
    ) -> Stream:
        """Running aggregates per key: a row of the key and the aggregates as they stand now.

        With emit="changes", one row for each key that a batch has changed. With emit="record",
        each record with the aggregates up to it as further columns.
        """
        options = {"name": name, "shards": shards, "on_error": on_error}
        return running_aggregates(self._stream, Aggregates(aggregates), emit, options)

    def window_join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str],
        window: Sliding,
        other_on: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Stream:
        """Rows of this stream and the other that have equal keys and lie in the same window.

        Emitted when the window is over, with window_start and window_end; columns of the other
        stream that this one also has end in `_right`. Late rows are at `.port("late")`.
        """
        return window_join(self._stream, other, on, other_on, window, options)

    def interval_join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str],
        between: tuple[str | float | timedelta, str | float | timedelta],
        other_on: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Stream:
        """Rows of both streams with equal keys whose times are close.

        That of the other row less that of this one must be at least between[0] and at most
        between[1], for example ("-1s", "2s"). Late rows are at `.port("late")`.
        """
        return interval_join(self._stream, other, on, other_on, between, options)

    def _time(self) -> TimeOf:
        """Where records have their event time."""
        found = time_of(self._stream.pipeline.graph, self._stream._origins)
        if found is None:
            raise UserError(
                "windows and joins of event time need to know when records happened: put "
                ".event_time(...) behind each source, in the same way."
            )
        return found
