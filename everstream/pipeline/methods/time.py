"""The methods of a stream that deal with time (event time, windows and joins), and `WindowedStream`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregate_kinds import Aggregate
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.local_parts import (
    LAST,
    LATE,
    PANE,
    LocalParts,
    keyed_by_columns,
)
from everstream.pipeline.aggregation.running_functions import RunningFunctions
from everstream.pipeline.aggregation.window_functions import WindowFunction
from everstream.pipeline.batch import Batch
from everstream.pipeline.event_time.count_windows import CountWindows
from everstream.pipeline.event_time.joins import TimeJoin
from everstream.pipeline.event_time.outer import LEFT, RIGHT
from everstream.pipeline.event_time.session_updates import SessionUpdates
from everstream.pipeline.event_time.window_aggregates import (
    END,
    START,
    TIMING,
    PaneAggregates,
    ProcessingTimeAggregates,
    SessionAggregates,
)
from everstream.pipeline.event_time.window_join import WindowJoin
from everstream.pipeline.event_time.window_rows import WindowRows, WindowTop
from everstream.pipeline.event_time.windows import (
    ONCE,
    CountWindow,
    Duration,
    Emission,
    PanedWindow,
    Session,
    Sliding,
    Window,
)
from everstream.pipeline.graph import ByKey, Edge, Graph, Kind, OnDemand, Routing
from everstream.pipeline.keys import Keying
from everstream.pipeline.methods.base import Options, StreamBase
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.rejects import OnError
from everstream.pipeline.source import Source
from everstream.pipeline.times import TimeOf, Unit, microseconds
from everstream.pipeline.types import Row, T

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream


class TimeMethods(StreamBase[T]):
    """The time methods of a `Stream`."""

    def event_time(
        self,
        time: str | pl.Expr | Callable[[T], Any],
        *,
        lateness: Duration = 0,
        idle_after: Duration | None = None,
        max_drift: Duration | None = None,
        unit: Unit | None = None,
        name: str | None = None,
        on_error: OnError = "fail",
    ) -> Stream[T]:
        """Declare the event time of records: a column, a Polars expression or a function.

        Times are datetimes, or whole numbers since 1970 in `unit`: "s", "ms", "us" or "ns". Numbers
        without a unit are refused. Records may be out of order by at most `lateness` (default 0):
        the watermark is the greatest time of the records before, minus the lateness. Call it right
        after the source, so that it sees each source shard separately.

        idle_after: a source shard that has no records for this time does not hold back time: its
        watermark is then the present, minus `idle_after` and the lateness. For records whose times are
        close to the present. Default: a silent shard holds back time.

        max_drift: a source shard whose watermark is further ahead of the slowest one than this waits, so that
        joins and windows keep less. All source shards with a `max_drift` are compared. Default: none waits.

        >>> clicks = [{"at": 0}, {"at": 7}, {"at": 3}, {"at": 12}]
        >>> timed = es.Pipeline("clicks").source(es.FromList(clicks)).event_time("at", unit="s")
        >>> counts = timed.window(es.Tumbling("10s")).aggregate(clicks=es.count())
        >>> counts.collect().run().to_polars().rows()
        [(0, 10, 3), (10, 20, 1)]
        """
        late_us = microseconds(lateness)
        if late_us < 0:
            raise UserError(f"lateness={lateness!r} is negative: give 0 or more.")
        idle_us = None if idle_after is None else microseconds(idle_after)
        if idle_us is not None and idle_us <= 0:
            raise UserError(f"idle_after={idle_after!r}: give a time greater than 0.")
        idle_s = None if idle_us is None else idle_us / 1e6
        drift_us = None if max_drift is None else microseconds(max_drift)
        if drift_us is not None and drift_us <= 0:
            raise UserError(f"max_drift={max_drift!r}: give a time greater than 0.")
        operator = EventTime(TimeOf(self._on_rows(time), unit), late_us, idle_s, drift_us)
        return self._then("event_time", operator, Options(name, on_error=on_error))

    def window(
        self,
        window: Window,
        *,
        time: Literal["event", "processing"] = "event",
        at: str | pl.Expr | Callable[[T], Any] | None = None,
        unit: Unit | None = None,
        allowed_lateness: Duration = 0,
        early: Duration | None = None,
        panes: Literal["accumulating", "discarding"] = "accumulating",
        timing: bool | None = None,
    ) -> WindowedStream:
        """Divide the stream into windows: es.Tumbling("1s"), es.Sliding("10s", every="2s"),
        es.Calendar("1 day", timezone="Europe/Berlin"), es.Session("5s") or es.CountWindow(100). After a
        key_by the windows are per key, otherwise for the whole stream.

        Times come from the `event_time` upstream, unless `at` gives others. Windows of processing
        time use the clock of the machine, so their results differ from run to run.

        early: also give results before a window ends, this often in processing time, for keys that have
        changed. allowed_lateness: how long a window is kept after its end, to give its results again when
        late records change them. panes: each result is about all records of the window
        ("accumulating"), or about those since its last result ("discarding").

        timing: add the column `timing` with "early", "on_time" or "late". Default: if `early` is given.
        Sessions with `timing` are emitted when they end and corrected within the allowed lateness:
        results that no longer hold are emitted again as "retracted". Without it they are emitted
        once, after the allowed lateness.

        >>> rows = [{"user": n % 2, "at": n} for n in range(4)]
        >>> timed = es.Pipeline("visits").source(es.FromList(rows)).event_time("at", unit="s")
        >>> visits = timed.key_by("user").window(es.Session("5s")).aggregate(n=es.count())
        >>> sorted(visits.collect().run().to_polars().rows())
        [(0, 0, 7, 2), (1, 1, 8, 2)]
        """
        if not isinstance(window, PanedWindow | Session | CountWindow):
            raise UserError(
                "window() takes es.Tumbling, es.Sliding, es.Calendar, es.Session or es.CountWindow, "
                f"not {window!r}."
            )
        emission = _emission(window, allowed_lateness, early, panes, timing)
        if isinstance(window, CountWindow) or time == "processing":
            if at is not None or emission != ONCE:
                raise UserError(
                    "windows of processing time, and of a number of records, take neither `at` nor "
                    "allowed_lateness, early, panes or timing."
                )
            if isinstance(window, Session):
                raise UserError(
                    "windows of processing time are tumbling, sliding or calendar windows."
                )
            return WindowedStream(self, window, None, emission)
        event_time = TimeOf(self._on_rows(at), unit) if at is not None else self._time()
        if isinstance(window, Sliding) and not (
            event_time.fits(window.pane_us) and event_time.fits(window.offset_us)
        ):
            raise UserError(
                f"{window!r} is finer than the times, which are whole {event_time.unit}. Give "
                "event_time a finer unit."
            )
        return WindowedStream(self, window, event_time, emission)

    def _time(self) -> TimeOf:
        """How to read the event time of records."""
        time = time_of(self.pipeline.graph, self._origins)
        if time is None:
            raise UserError(
                "windows and joins of event time need the time of records: put "
                ".event_time(...) after each source, with the same arguments. They cannot follow es.lead "
                "without a window. Behind a join with "
                "how='right' or how='full', give the window the time: .window(..., at=pl.coalesce(...))."
            )
        return time


class WindowedStream:
    """A stream divided into windows, per key or, without a key, as a whole.

    >>> rows = [{"at": 1, "price": 5}, {"at": 2, "price": 9}, {"at": 11, "price": 3}]
    >>> timed = es.Pipeline("prices").source(es.FromList(rows)).event_time("at", unit="s")
    >>> windows = timed.window(es.Tumbling("10s"))
    >>> windows.aggregate(highest=es.max("price")).collect().run().to_polars().rows()
    [(0, 10, 9), (10, 20, 3)]
    """

    def __init__(
        self, stream: StreamBase[Any], window: Window, time: TimeOf | None, emission: Emission
    ) -> None:
        self._stream = stream
        self._window = window
        self._time = time
        self._emission = emission

    def aggregate(
        self,
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **columns: Aggregate,
    ) -> Stream[Row]:
        """Emit a row per key and window when it ends: key, window_start, window_end, aggregates.

        Late records are at `.side_output("late")` of the returned stream.

        >>> rows = [{"room": n % 2, "at": n} for n in range(20)]
        >>> timed = es.Pipeline("rooms").source(es.FromList(rows)).event_time("at", unit="s")
        >>> windows = timed.key_by("room").window(es.Sliding("10s", every="5s"))
        >>> counts = windows.aggregate(n=es.count(), last=es.max("at")).collect().run()
        >>> sorted(counts.to_polars().rows())[:3]
        [(0, -5, 5, 3, 4), (0, 0, 10, 5, 8), (0, 5, 15, 5, 14)]
        """
        return self._build(Aggregates(columns), Options(name, shards, on_error))

    def top_k(
        self,
        k: int,
        *,
        by: str | Sequence[str],
        reverse: bool | Sequence[bool] = False,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Emit the k records of each key and window with the greatest values, when the window ends.

        by: a column, or several to decide between equal values; then the earliest record is first.
        With reverse=True, those with the least values. Records come best first, with window_start and
        window_end. Nulls come last. Only the k best are kept. Late records are at
        `.side_output("late")`. For one row per key and window with a list, aggregate `es.top_k`.

        >>> rows = [{"at": n, "price": n * 7 % 10} for n in range(10)]
        >>> timed = es.Pipeline("best").source(es.FromList(rows)).event_time("at", unit="s")
        >>> best = timed.window(es.Tumbling("10s")).top_k(2, by="price")
        >>> best.collect().run().to_polars().rows()
        [(7, 9, 0, 10), (4, 8, 0, 10)]
        """
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise UserError(
                f"top_k: k={k!r}: give how many records of each window, for example top_k(10, "
                "by='price'). For lists: aggregate(top=es.top_k('price', 10))."
            )
        columns = [by] if isinstance(by, str) else list(by)
        least = [reverse] * len(columns) if isinstance(reverse, bool) else list(reverse)
        if not columns or not all(isinstance(column, str) for column in columns):
            raise UserError(f"top_k: by={by!r}: give the name of a column, or several.")
        if len(least) != len(columns):
            raise UserError(f"top_k: reverse={reverse!r}: give one value for each column of by=.")
        keys, time, window, shards = self._of_rows("top_k", shards)
        operator = WindowTop(keys, time, window, k, columns, least)
        return self._stream._then("top_k", operator, Options(name, shards, on_error))

    def with_columns(
        self,
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **columns: WindowFunction,
    ) -> Stream[Row]:
        """Emit the records of each window when it ends, in order of time, with further columns.

        Columns are es.rank(...), es.lag(...), es.lead(...) or es.cumulative(...), each over the records
        of one key and window; window_start and window_end follow. For the k greatest as one row per
        key and window, use `top_k`. Late records are at `.side_output("late")`.

        >>> rows = [{"item": n % 2, "at": n, "price": n * 7 % 5} for n in range(6)]
        >>> timed = es.Pipeline("best").source(es.FromList(rows)).event_time("at", unit="s")
        >>> windows = timed.key_by("item").window(es.Tumbling("10s"))
        >>> places = windows.with_columns(place=es.rank("price", descending=True))
        >>> best = places.filter(pl.col("place") == 1).select("item", "price")
        >>> sorted(best.collect().run().to_polars().rows())
        [(0, 4), (1, 2)]
        """
        if not columns or not all(isinstance(one, WindowFunction) for one in columns.values()):
            raise UserError(
                "with_columns takes es.rank(...), es.lag(...), es.lead(...) or es.cumulative(...), each "
                "with the name of its column, for example place=es.rank('price')."
            )
        keys, time, window, shards = self._of_rows("with_columns", shards)
        operator = WindowRows(keys, time, window, columns)
        return self._stream._then("window_rows", operator, Options(name, shards, on_error))

    def _of_rows(
        self, method: str, shards: int | None
    ) -> tuple[list[pl.Expr], TimeOf, PanedWindow, int | None]:
        """The keys, the time and the window of an operator that keeps rows, and its shards."""
        window, time, routing = self._window, self._time, self._stream._routing
        if time is None or not isinstance(window, PanedWindow) or self._emission != ONCE:
            raise UserError(
                f"{method} needs tumbling, sliding or calendar windows of event time without "
                "allowed_lateness, early, panes or timing."
            )
        if isinstance(routing, ByKey):
            return [key_column(method, routing)], time, window, shards
        if shards not in (None, 1):
            raise UserError(
                f"{method} without a key needs one shard, which sees all records: give shards=1, or "
                "put .key_by(...) before the window."
            )
        return [], time, window, 1

    def _build(self, aggregates: Aggregates, options: Options) -> Stream[Row]:
        routing, window = self._stream._routing, self._window
        keying = routing.keying if isinstance(routing, ByKey) else None
        if isinstance(window, CountWindow):
            shards = one_shard("window", keying, options.shards)
            counting = CountWindows(aggregates, window)
            return self._stream._then(
                "window", counting, Options(options.name, shards, options.on_error)
            )
        times = [START, END, *([TIMING] if self._emission.timing else [])]
        twice = {*times} & {*aggregates.named}
        if twice:
            raise UserError(
                f"'{twice.pop()}' is a column of every result: name the aggregate otherwise."
            )
        allowed_us = self._emission.allowed_us
        local = LocalParts(keying, aggregates, window, self._time, allowed_us, times)
        besides = [PANE, LAST, *aggregates.part_names]
        operator = self._operator(aggregates)
        return two_stages(self._stream, "window", local, operator, besides, options)

    def _operator(self, aggregates: Aggregates) -> Operator:
        window, time, emission = self._window, self._time, self._emission
        if isinstance(window, Session):
            assert time is not None
            kind = SessionUpdates if emission.timing else SessionAggregates
            return kind(aggregates, time.unit, window, emission)
        assert isinstance(window, PanedWindow)
        if time is None:
            return ProcessingTimeAggregates(aggregates, window)
        return PaneAggregates(aggregates, time.unit, window, emission)


def _emission(
    window: Window, allowed: Duration, early: Duration | None, panes: str, timing: bool | None
) -> Emission:
    """The options of `window` that say when results come."""
    allowed_us = microseconds(allowed)
    early_us = None if early is None else microseconds(early)
    if allowed_us < 0 or (early_us is not None and early_us <= 0):
        raise UserError(
            f"allowed_lateness={allowed!r}, early={early!r}: give 0 or more, and more than 0 for early."
        )
    if panes not in ("accumulating", "discarding"):
        raise UserError(f"panes={panes!r}: use 'accumulating' or 'discarding'.")
    discarding = panes == "discarding"
    told = early_us is not None if timing is None else timing
    if isinstance(window, Session) and (discarding or (early_us is not None and not told)):
        raise UserError(
            "sessions take neither panes='discarding' nor timing=False with early: the bounds of a "
            "session change, so a result without its timing could not be told from one that still holds."
        )
    return Emission(allowed_us, early_us, discarding, told)


def one_shard(name: str, keying: Keying | None, shards: int | None) -> int | None:
    """How many shards an aggregation has: one if there is no key."""
    if keying is None and shards not in (None, 1):
        raise UserError(
            f"'{name}' has no key, so one shard must see all records: give shards=1, "
            "or put .key_by(...) before it."
        )
    return shards if keying is not None else 1


def key_column(method: str, routing: ByKey) -> pl.Expr:
    """The key as an expression of columns."""
    selector = routing.keying.selector
    if not isinstance(selector, str | pl.Expr):
        raise UserError(
            f"{method} needs keys that are columns: key_by('item') instead of a function."
        )
    return pl.col(selector) if isinstance(selector, str) else selector


def two_stages(
    stream: StreamBase[Any],
    base: str,
    local: LocalParts,
    operator: Operator,
    besides: list[str],
    options: Options,
) -> Stream[Row]:
    """Local parts in the shards where the records are, then the stage that merges them by key."""
    name = options.name or stream.pipeline._free_name(base)
    keyed = local.keying is not None
    routing: Routing = ByKey(keyed_by_columns(besides)) if keyed else OnDemand()
    shards = one_shard(name, local.keying, options.shards)
    plain = stream._leaving(stream._origins)
    parts = plain._then(
        base, local, Options(f"{name}-local", on_error=options.on_error, part_of=name)
    )
    merged = stream._leaving(parts._origins, routing)
    done = merged._then(base, operator, Options(name, shards))
    nodes = stream.pipeline.graph.nodes
    nodes[name].named = options.name is not None
    done._late_origins = [(local_name, LATE) for local_name, _ in parts._origins]
    return done


class LastInstant(TimeOf):
    """The time of a window's result: the last instant of the window."""

    def read(self, batch: Batch, wanted_by: str) -> pl.Series:
        ends = super().read(batch, wanted_by)
        return ends - 1 if ends.dtype.is_integer() else ends - timedelta(microseconds=1)


def time_of(graph: Graph, origins: list[tuple[str, str]]) -> TimeOf | None:
    """How to read the time of records on these streams: as the nearest stages upstream define it."""
    from everstream.pipeline.operators.builtin import EventTime

    times: list[TimeOf] = []
    for name, output in origins:
        node = graph.nodes[name]
        if isinstance(node.what, EventTime):
            times.append(node.what.time)
        elif isinstance(node.what, ProcessingTimeAggregates | CountWindows):
            return None
        elif isinstance(node.what, RunningFunctions) and node.what.leads:
            return None  # a record waits for the next ones, however long that takes
        elif node.kind is Kind.SOURCE:
            if not isinstance(node.what, Source) or node.what.event_time is None:
                return None
            times.append(node.what.event_time)
        elif isinstance(node.what, PaneAggregates | SessionAggregates) and output == OUT:
            times.append(LastInstant(END, node.what.unit))
        elif isinstance(node.what, WindowJoin) and output == OUT:
            times.append(LastInstant(END, node.what.times[LEFT].unit))
        elif isinstance(node.what, TimeJoin) and output == OUT:
            if RIGHT in node.what.outer.sides:
                return None  # a row without a partner has no time of the left side
            times.append(node.what.times[LEFT])
        else:
            above: list[Edge] = [edge for edge in graph.inputs(name) if not edge.feedback]
            further = time_of(graph, [(edge.sender, edge.output) for edge in above])
            if further is None:
                return None
            times.append(further)
    alike = {(time.unit, str(time.what)) for time in times}
    return times[0] if len(alike) == 1 else None
