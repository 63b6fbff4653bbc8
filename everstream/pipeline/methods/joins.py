"""The methods of a stream that join it with others, look values up, or remove duplicates."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import polars as pl

from everstream.errors import UserError
from everstream.pipeline.event_time.as_of_join import AsOfJoin, BroadcastJoin
from everstream.pipeline.event_time.interval_join import IntervalJoin
from everstream.pipeline.event_time.joins import attach_join, join_sides, outer_of
from everstream.pipeline.event_time.outer import How, Types
from everstream.pipeline.event_time.window_join import WindowJoin
from everstream.pipeline.event_time.windows import Duration, PanedWindow
from everstream.pipeline.graph import ByKey
from everstream.pipeline.keys import Keying
from everstream.pipeline.methods.base import Options
from everstream.pipeline.methods.time import TimeMethods, time_of
from everstream.pipeline.operators.deduplicate import Deduplicate
from everstream.pipeline.operators.lookup import Lookup, LookupTable, asking
from everstream.pipeline.rejects import OnError
from everstream.pipeline.times import microseconds
from everstream.pipeline.types import Row, T

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream


class JoinMethods(TimeMethods[T]):
    """The joins of a `Stream`, the only class that inherits this."""

    def window_join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str],
        window: PanedWindow,
        other_on: str | Sequence[str] | None = None,
        how: How = "inner",
        schema: Types | None = None,
        other_schema: Types | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Join rows of both streams that have equal keys and are in the same window.

        Pairs are emitted when the window ends, with window_start and window_end. Columns of the
        other stream whose names this one also has get the suffix `_right`. Late rows are at
        `.side_output("late")`.

        With how="left", "right" or "full", rows of this stream, of the other one, or of both also
        come out if they have no partner in the window, with nulls for the other side's columns.
        `schema` and `other_schema` give the columns of a side and their types; they are needed for
        the side that may be missing, unless its source knows them.

        >>> pipeline = es.Pipeline("joined")
        >>> ads = pipeline.source(es.FromList([{"user": 1, "ad": 7, "at": 3}]))
        >>> clicks = pipeline.source(es.FromList([{"user": 1, "at": 9}, {"user": 1, "at": 11}]))
        >>> ads, clicks = ads.event_time("at", unit="s"), clicks.event_time("at", unit="s")
        >>> pairs = ads.window_join(clicks, on="user", window=es.Tumbling("10s"))
        >>> pairs.collect().run().to_polars().select("ad", "at", "at_right").rows()
        [(7, 3, 9)]
        """
        if not isinstance(window, PanedWindow):
            raise UserError(
                f"window_join takes es.Tumbling, es.Sliding or es.Calendar, not {window!r}."
            )
        keys, times = join_sides(self, other, on, other_on)
        outer = outer_of("window_join", self, other, keys, how, schema, other_schema)
        join = WindowJoin(keys, times, window, outer)
        return attach_join(self, other, join, "window_join", Options(name, shards, on_error))

    def interval_join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str],
        between: tuple[Duration, Duration],
        other_on: str | Sequence[str] | None = None,
        how: How = "inner",
        schema: Types | None = None,
        other_schema: Types | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Join rows of both streams that have equal keys and close times.

        The time of the other row minus the time of this row must be at least between[0] and at
        most between[1], for example ("-1s", "2s"). Late rows are at `.side_output("late")`.

        With how="left", "right" or "full", rows without a partner also come out, with nulls, as soon
        as the watermark shows that no partner can come. For `schema` and `other_schema` see
        `window_join`.

        >>> pipeline = es.Pipeline("joined")
        >>> ads = pipeline.source(es.FromList([{"user": 1, "ad": 7, "at": 3}]))
        >>> clicks = pipeline.source(es.FromList([{"user": 1, "at": 5}, {"user": 1, "at": 9}]))
        >>> ads, clicks = ads.event_time("at", unit="s"), clicks.event_time("at", unit="s")
        >>> soon = ads.interval_join(clicks, on="user", between=("0s", "5s"))
        >>> soon.collect().run().to_polars().select("ad", "at", "at_right").rows()
        [(7, 3, 5)]
        """
        lowest_us, highest_us = microseconds(between[0]), microseconds(between[1])
        if lowest_us > highest_us:
            raise UserError(f"between={between!r}: the first must not be greater than the second.")
        keys, times = join_sides(self, other, on, other_on)
        outer = outer_of("interval_join", self, other, keys, how, schema, other_schema)
        join = IntervalJoin(keys, times, lowest_us, highest_us, outer)
        return attach_join(self, other, join, "interval_join", Options(name, shards, on_error))

    def join_as_of(
        self,
        table: Stream,
        *,
        on: str | Sequence[str],
        other_on: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        delete: str | pl.Expr | None = None,
        other_schema: Types | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Join each record with the version of a table's row that was valid at the record's time.

        The rows of `table` are versions: a row replaces the one with the same key from its event time
        on. A record waits until the watermarks of both streams have passed its time. With how="left",
        records without a version come out with nulls; `other_schema` gives the types of these unless
        the table's source knows them. A version for which `delete` (a column or an expression) is true
        ends its key. Late rows of both streams are at `.side_output("late")`.

        >>> pipeline = es.Pipeline("prices")
        >>> orders = pipeline.source(es.FromList([{"item": 1, "at": 4}, {"item": 1, "at": 8}]))
        >>> prices = [{"item": 1, "at": 0, "price": 10}, {"item": 1, "at": 5, "price": 12}]
        >>> table = pipeline.source(es.FromList(prices)).event_time("at", unit="s")
        >>> priced = orders.event_time("at", unit="s").join_as_of(table, on="item")
        >>> priced.collect().run().to_polars().select("at", "price").rows()
        [(4, 10), (8, 12)]
        """
        options = Options(name, shards, on_error)
        return self._versioned(
            "join_as_of", table, on, other_on, how, delete, other_schema, options
        )

    def broadcast_join(
        self,
        table: Stream,
        *,
        on: str | Sequence[str],
        other_on: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        delete: str | pl.Expr | None = None,
        other_schema: Types | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """The same as `join_as_of` for a small table: every shard gets all of its rows.

        So records stay where they are, instead of going to the shard of their key, and records of a
        frequent key are not all in one shard.

        >>> pipeline = es.Pipeline("rates")
        >>> orders = pipeline.source(es.FromList([{"of": "EUR", "at": 4}, {"of": "EUR", "at": 8}]))
        >>> rates = [{"of": "EUR", "at": 0, "rate": 1.1}, {"of": "EUR", "at": 5, "rate": 1.2}]
        >>> table = pipeline.source(es.FromList(rates)).event_time("at", unit="s")
        >>> rated = orders.event_time("at", unit="s").broadcast_join(table, on="of")
        >>> rated.collect().run().to_polars().select("at", "rate").rows()
        [(4, 1.1), (8, 1.2)]
        """
        options = Options(name, shards, on_error)
        given = (on, other_on, how, delete, other_schema, options)
        return self._versioned("broadcast_join", table, *given)

    def _versioned(
        self,
        method: Literal["join_as_of", "broadcast_join"],
        table: Stream,
        on: str | Sequence[str],
        other_on: str | Sequence[str] | None,
        how: Literal["inner", "left"],
        delete: str | pl.Expr | None,
        other_schema: Types | None,
        options: Options,
    ) -> Stream[Row]:
        if how not in ("inner", "left"):
            raise UserError(f"{method}: how={how!r} is not valid: use 'inner' or 'left'.")
        if delete is not None and not isinstance(delete, str | pl.Expr):
            raise UserError(
                f"{method}: delete={delete!r} is not valid: give a column or a Polars expression."
            )
        keys, times = join_sides(self, table, on, other_on)
        outer = outer_of(method, self, table, keys, how, None, other_schema)
        broadcast = method == "broadcast_join"
        join = (BroadcastJoin if broadcast else AsOfJoin)(keys, times, delete, outer)
        return attach_join(self, table, join, method, options, broadcast=broadcast)

    def deduplicate(
        self,
        on: str | Sequence[str],
        *,
        within: Duration | None = None,
        time: Literal["event", "processing"] | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[T]:
        """Pass the first record of each key, and drop later ones until `within` after it.

        `on` names the columns of the key. Without `within`, keys are kept forever. The time is that of
        the records (`event_time` upstream); streams without one use the clock of the machine, and
        `time` selects either. Records that are late are at `.side_output("late")`.

        >>> clicks = [{"id": 1, "at": 0}, {"id": 1, "at": 4}, {"id": 2, "at": 5}, {"id": 1, "at": 12}]
        >>> timed = es.Pipeline("clicks").source(es.FromList(clicks)).event_time("at", unit="s")
        >>> timed.deduplicate("id", within="10s").collect().run().to_polars().rows()
        [(1, 0), (2, 5), (1, 12)]
        """
        names = [on] if isinstance(on, str) else list(on)
        if not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"deduplicate: on={on!r}: give the name of a column, or several.")
        within_us = None if within is None else microseconds(within)
        if within_us is not None and within_us <= 0:
            raise UserError(f"deduplicate: within={within!r} is not valid: give more than 0.")
        if time not in (None, "event", "processing"):
            raise UserError(f"deduplicate: time={time!r}: use 'event' or 'processing'.")
        times = None if time == "processing" else time_of(self.pipeline.graph, self._origins)
        if time == "event":
            times = self._time()
        operator = Deduplicate(names, within_us, None if within_us is None else times)
        routing = ByKey(Keying(names[0] if len(names) == 1 else pl.struct(names)))
        keyed = self._leaving(self._origins, routing)
        return keyed._then("deduplicate", operator, Options(name, shards, on_error))

    def lookup(
        self,
        table: Callable[[pl.DataFrame], pl.DataFrame] | LookupTable | str | os.PathLike[str],
        *,
        on: str | Sequence[str],
        schema: Types | None = None,
        how: Literal["inner", "left"] = "left",
        refresh: Duration | None = None,
        cache: int | None = None,
        batch: int = 1_000,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Add columns from a table that is asked for the keys of each batch at once.

        `table` is an es.PostgresTable or es.SqliteTable, the path of Parquet files, or a function that gets a DataFrame
        with distinct keys and returns one row per key that it knows: the key columns, and those of
        `schema`, which gives their types. Parquet files know them. With `refresh` or `cache`, answers are
        kept, as part of the checkpoint: `refresh` is how long one is used before its key is asked about
        again, `cache` how many each shard keeps. At most `batch` keys are asked at once.

        >>> orders = es.Pipeline("orders").source(es.FromList([{"id": 1}, {"id": 2}, {"id": 1}]))
        >>> def cities(keys):
        ...     return keys.filter(pl.col("id") == 1).with_columns(city=pl.lit("Rome"))
        >>> found = orders.lookup(cities, on="id", schema={"city": pl.String}, refresh="10m")
        >>> found.collect().run().to_polars().rows()
        [(1, 'Rome'), (2, None), (1, 'Rome')]
        """
        names = [on] if isinstance(on, str) else list(on)
        if not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"lookup: on={on!r}: give the name of a column, or several.")
        if how not in ("inner", "left"):
            raise UserError(f"lookup: how={how!r} is not valid: use 'inner' or 'left'.")
        if not isinstance(batch, int) or batch < 1:
            raise UserError(f"lookup: batch={batch!r}: give a whole number from 1 up.")
        if cache is not None and (not isinstance(cache, int) or cache < 1):
            raise UserError(
                f"lookup: cache={cache!r}: give how many answers each shard keeps, from 1 up. How long one "
                "is used is refresh='10m'."
            )
        refresh_us = None if refresh is None else microseconds(refresh)
        if refresh_us is not None and refresh_us <= 0:
            raise UserError(f"lookup: refresh={refresh!r} is not valid: give more than 0.")
        ask, columns = asking(table, names, schema)
        operator = Lookup(ask, names, columns, how == "inner", refresh_us, cache, batch)
        options = Options(name, shards, on_error)
        if not operator.keeps:
            return self._then("lookup", operator, options)
        routing = ByKey(Keying(names[0] if len(names) == 1 else pl.struct(names)))
        return self._leaving(self._origins, routing)._then("lookup", operator, options)
