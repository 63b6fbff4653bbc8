"""What `key_by` returns: a stream keyed by shard, and the methods that need a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal

from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregate_kinds import Aggregate, Simple
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.local_parts import LATE, LocalParts
from everstream.pipeline.aggregation.running import RunningChanges, RunningRecords
from everstream.pipeline.aggregation.running_functions import RunningFunctions
from everstream.pipeline.aggregation.window_functions import WindowFunction
from everstream.pipeline.graph import ByKey
from everstream.pipeline.methods.base import Options, function_for
from everstream.pipeline.methods.time import key_column, time_of, two_stages
from everstream.pipeline.operator import StateKind
from everstream.pipeline.operators import builtin
from everstream.pipeline.rejects import OnError
from everstream.pipeline.stream import Stream
from everstream.pipeline.types import K, Row, T, V, Value, Values


class KeyedStream(Stream[T], Generic[K, T]):
    """Records of type T that are sent to the shard of their key, which is of type K.

    >>> keyed = es.Pipeline("parity").source(es.Range(4)).key_by(lambda n: n % 2)
    >>> keyed.fold(init=int, update=lambda total, n: total + n).collect().run().collected()
    [(0, 0), (1, 1), (0, 2), (1, 4)]
    """

    def fold(
        self,
        init: Callable[[], V],
        update: Callable[[V, T], V],
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        state: StateKind | None = None,
    ) -> Stream[tuple[K, V]]:
        """Keep a value per key: value = update(value, record), from init(). Emits (key, value).

        With state="disk" there may be more keys than fit into memory.

        >>> words = es.Pipeline("counts").source(es.FromList(["to", "be", "to"]))
        >>> keyed = words.key_by(lambda word: word)
        >>> counts = keyed.fold(init=int, update=lambda count, word: count + 1)
        >>> counts.collect().run().collected()
        [('to', 1), ('be', 1), ('to', 2)]
        """
        operator = builtin.Fold(function_for("init", init), function_for("update", update))
        return self._then("fold", operator, Options(name, shards, on_error, state))

    def reduce(
        self,
        function: Callable[[T, T], T],
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        state: StateKind | None = None,
    ) -> Stream[tuple[K, T]]:
        """Per key: value = function(value, record), starting from the first record.

        >>> numbers = es.Pipeline("sums").source(es.Range(1, 6))
        >>> sums = numbers.key_by(lambda n: n % 2).reduce(lambda a, b: a + b)
        >>> sums.collect().run().collected()
        [(1, 1), (0, 2), (1, 4), (0, 6), (1, 9)]
        """
        operator = builtin.Reduce(function_for("reduce", function))
        return self._then("reduce", operator, Options(name, shards, on_error, state))

    def aggregate(
        self,
        *,
        emit: Literal["changes", "record"] = "changes",
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **columns: Aggregate,
    ) -> Stream[Row]:
        """Running aggregates per key: emits rows of the key and the present aggregates.

        With emit="changes" (the default), one row for each key that a batch has changed. With
        emit="record", each record with the aggregates up to it as additional columns. The default
        name of the operator is "aggregates".

        >>> bids = [{"item": 1, "price": 5}, {"item": 2, "price": 3}, {"item": 1, "price": 9}]
        >>> keyed = es.Pipeline("prices").source(es.FromList(bids)).key_by("item")
        >>> highest = keyed.aggregate(bids=es.count(), highest=es.max("price"), emit="record")
        >>> highest.collect().run().to_polars().rows()
        [(1, 5, 1, 5), (2, 3, 1, 3), (1, 9, 2, 9)]
        """
        # The default names of these stages never change, so that their state is found.
        options, aggregates = Options(name, shards, on_error), Aggregates(columns)
        if emit == "record":
            for column, one in aggregates.named.items():
                if not isinstance(one, Simple):
                    raise UserError(
                        f'{column}: es.top_k and es.custom cannot run with emit="record"; use '
                        'emit="changes", or an operator of your own.'
                    )
            return self._then("aggregates", RunningRecords(aggregates), options)
        if emit != "changes":
            raise UserError(f'emit={emit!r} is not valid: use "changes" or "record".')
        assert isinstance(self._routing, ByKey)
        local = LocalParts(self._routing.keying, aggregates)
        besides, merging = aggregates.part_names, RunningChanges(aggregates)
        return two_stages(self, "aggregates", local, merging, besides, options)

    def with_columns(
        self,
        *columns: Values,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **named: Value | WindowFunction,
    ) -> Stream[Row]:
        """Add columns: Polars expressions of each record, or functions of those of its key so far.

        es.rank, es.lag and es.cumulative see the records of the key that have arrived until then.
        With es.lead, a record waits for the next ones of its key, at most until the input ends. For
        such functions within windows, put `.window(...)` before this.

        >>> bids = [{"item": 1, "price": 5}, {"item": 2, "price": 3}, {"item": 1, "price": 9}]
        >>> keyed = es.Pipeline("changes").source(es.FromList(bids)).key_by("item")
        >>> changes = keyed.with_columns(before=es.lag("price"), place=es.rank("price"))
        >>> changes.collect().run().to_polars().rows()
        [(1, 5, None, 1), (2, 3, None, 1), (1, 9, 5, 2)]
        """
        functions = {n: one for n, one in named.items() if isinstance(one, WindowFunction)}
        if not functions:
            plain: Any = named
            return super().with_columns(
                *columns, name=name, shards=shards, on_error=on_error, **plain
            )
        if columns or len(functions) < len(named):
            raise UserError(
                "with_columns takes expressions, or es.rank, es.lag, es.lead and es.cumulative, but not "
                "both. Use two of them."
            )
        assert isinstance(self._routing, ByKey)
        operator = RunningFunctions(key_column("with_columns", self._routing), functions)
        return self._then("running", operator, Options(name, shards, on_error))

    def transform_with_state(
        self,
        processor: Any,
        output_schema: Any,
        time_mode: Literal["None", "ProcessingTime", "EventTime"] = "None",
        output_mode: Literal["Append", "Update"] = "Append",
        *,
        initial_state: Any = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        state: StateKind | None = None,
    ) -> Stream[Row]:
        """Run a `StatefulProcessor` of PySpark as it is: the row form of `transformWithState`.

        output_schema: a StructType, or a string such as "id string, n bigint". initial_state: a
        DataFrame of Polars, pandas or Spark, or a list of dicts, with the columns of the key. With
        "EventTime", records that are late are left out, and are in the side output "late". See
        docs/guides/run-a-spark-processor.md.

        >>> from pyspark.sql import Row
        >>> from pyspark.sql.streaming import StatefulProcessor
        >>> class Visits(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.seen = handle.getValueState("seen", "n bigint")
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         before = self.seen.get() or (0,)
        ...         self.seen.update((before[0] + len(list(rows)),))
        ...         yield Row(user=key[0], visits=self.seen.get()[0])
        ...     def close(self):
        ...         pass
        >>> visits = es.Pipeline("visits").source(es.FromList([{"user": "ada"}, {"user": "ada"}]))
        >>> counts = visits.key_by("user").transform_with_state(Visits(), "user string, visits bigint")
        >>> counts.collect().run().collected()
        [{'user': 'ada', 'visits': 2}]
        """
        given = (processor, output_schema, time_mode, output_mode, initial_state, False)
        return self._with_processor(given, Options(name, shards, on_error, state))

    def transform_with_state_in_pandas(
        self,
        processor: Any,
        output_schema: Any,
        time_mode: Literal["None", "ProcessingTime", "EventTime"] = "None",
        output_mode: Literal["Append", "Update"] = "Append",
        *,
        initial_state: Any = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        state: StateKind | None = None,
    ) -> Stream[Row]:
        """The same for processors of `transformWithStateInPandas`: rows are DataFrames of pandas.

        >>> from pyspark.sql.streaming import StatefulProcessor
        >>> class Visits(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.seen = handle.getValueState("seen", "n bigint")
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         visits = (self.seen.get() or (0,))[0] + sum(len(frame) for frame in rows)
        ...         self.seen.update((visits,))
        ...         yield pandas.DataFrame({"user": [key[0]], "visits": [visits]})
        ...     def close(self):
        ...         pass
        >>> import pandas
        >>> visits = es.Pipeline("visits").source(es.FromList([{"user": "ada"}, {"user": "ada"}]))
        >>> counts = visits.key_by("user").transform_with_state_in_pandas(
        ...     Visits(), "user string, visits bigint")
        >>> counts.collect().run().collected()
        [{'user': 'ada', 'visits': 2}]
        """
        given = (processor, output_schema, time_mode, output_mode, initial_state, True)
        return self._with_processor(given, Options(name, shards, on_error, state))

    def _with_processor(
        self, given: tuple[Any, Any, str, str, Any, bool], options: Options
    ) -> Stream[Row]:
        from everstream.processors.processor import operator_for

        operator = operator_for(*given, time_of(self.pipeline.graph, self._origins))
        done = self._then("processor", operator, options)
        done._late_origins = [(origin, LATE) for origin, _ in done._origins]
        return done
