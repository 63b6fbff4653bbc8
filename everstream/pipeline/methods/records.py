"""The methods of a stream that transform records, one by one or a batch at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

import polars as pl

from everstream.errors import GraphError, UserError
from everstream.pipeline.calls.options import AnswerCache, CallOptions, RateLimit, Replay
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.graph import Broadcast, ByKey, ByRoute, base_name
from everstream.pipeline.keys import Keying
from everstream.pipeline.methods.base import Options, StreamBase, function_for, predicate_for
from everstream.pipeline.operator import Operator, StateKind, expires_by_event_time
from everstream.pipeline.operators import builtin
from everstream.pipeline.operators.batching import Batches
from everstream.pipeline.operators.forms import Form
from everstream.pipeline.operators.models import is_model, row_type
from everstream.pipeline.rejects import OnError
from everstream.pipeline.times import TimeOf, Unit
from everstream.pipeline.types import Row, T, U, Value, Values

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream
    from everstream.transactions import Transaction


class RecordMethods(StreamBase[T]):
    """The transforming methods of a `Stream`, the only class that inherits this."""

    def map(
        self,
        function: Callable[[T], U],
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[U]:
        """Replace each record by function(record).

        >>> numbers = es.Pipeline("squares").source(es.Range(4))
        >>> numbers.map(lambda n: n * n).collect().run().collected()
        [0, 1, 4, 9]
        """
        operator = builtin.Map(function_for("map", function))
        return self._then("map", operator, Options(name, shards, on_error))

    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[U]:
        """Replace each record by all items of function(record).

        >>> lines = es.Pipeline("words").source(es.FromList(["to be", "or not"]))
        >>> lines.flat_map(str.split).collect().run().collected()
        ['to', 'be', 'or', 'not']
        """
        operator = builtin.FlatMap(function_for("flat_map", function))
        return self._then("flat_map", operator, Options(name, shards, on_error))

    def filter(
        self,
        predicate: Callable[[T], object] | pl.Expr,
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[T]:
        """Keep the records for which a function or a Polars expression is true.

        >>> numbers = es.Pipeline("odd").source(es.Range(6))
        >>> numbers.filter(lambda n: n % 2 == 1).collect().run().collected()
        [1, 3, 5]
        >>> rows = es.Pipeline("large").source(es.Range(6, column="n"))
        >>> rows.filter(pl.col("n") > 3).collect().run().collected()
        [{'n': 4}, {'n': 5}]
        """
        operator = builtin.Filter(predicate_for("filter", predicate))
        return self._then("filter", operator, Options(name, shards, on_error))

    def as_rows(
        self,
        model: type[U],
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[U]:
        """Bring records into the columns of a model: a dataclass, a pydantic model or a msgspec Struct.

        Records are rows, dicts or instances of the model. Functions after it get instances; column
        operators, windows and sinks see columns with the model's types. A record that does not fit is
        an error, or goes where `on_error` sends it. Columns that the model does not have are left out.

        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     item: str
        ...     cents: int
        >>> orders = es.Pipeline("typed").source(es.FromList([{"item": "pear", "cents": 30}]))
        >>> dear = orders.as_rows(Order).filter(lambda order: order.cents > 20)
        >>> dear.with_columns(euros=pl.col("cents") / 100).collect().run().collected()
        [{'item': 'pear', 'cents': 30, 'euros': 0.3}]
        """
        if not is_model(model):
            raise UserError(
                f"as_rows takes a dataclass, a pydantic model or a msgspec Struct, not {model!r}."
            )
        return self._then(
            "as_rows", builtin.AsRows(row_type(model)), Options(name, shards, on_error)
        )

    @overload
    def map_batches(
        self,
        function: Callable[[Any], pl.DataFrame],
        *,
        as_: Form | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]: ...
    @overload
    def map_batches(
        self,
        function: Callable[[Any], list[U]],
        *,
        as_: Form | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[U]: ...
    @overload
    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        as_: Form | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream: ...
    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        as_: Form | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """Replace each batch by function(batch): a Polars DataFrame or a list of records.

        as_: the form in which the function wants the batch: "polars", "pandas", "arrow" (a Table) or
        "numpy" (a dict of arrays, or an array if the records are plain values). Default: as its
        parameter is annotated (`pd.DataFrame`, `pa.Table`, `pa.RecordBatch`, `np.ndarray`), otherwise
        as it comes. It may return any of these forms. A value that has no exact counterpart is
        refused.

        >>> rows = es.Pipeline("sorted").source(es.Range(3, column="n"))
        >>> rows.map_batches(lambda frame: frame.reverse()).collect().run().collected()
        [{'n': 2}, {'n': 1}, {'n': 0}]
        >>> def halves(columns):
        ...     return {"half": columns["n"] / 2}
        >>> rows = es.Pipeline("halves").source(es.Range(3, column="n"))
        >>> rows.map_batches(halves, as_="numpy").collect().run().collected()
        [{'half': 0.0}, {'half': 0.5}, {'half': 1.0}]
        """
        operator = builtin.MapBatches(function_for("map_batches", function), as_)
        return self._then("map_batches", operator, Options(name, shards, on_error))

    @overload
    def map_async(
        self,
        function: Callable[[T], Awaitable[U]],
        *,
        concurrency: int = 10,
        timeout: str | float | timedelta | None = None,
        retries: int = 0,
        backoff: str | float | timedelta = "200ms",
        rate: RateLimit | str | float | None = None,
        ordered: bool = True,
        replay: Replay = "logged",
        cache: AnswerCache | str | float | timedelta | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[U]: ...
    @overload
    def map_async(
        self,
        function: Callable[[T], U],
        *,
        concurrency: int = 10,
        timeout: str | float | timedelta | None = None,
        retries: int = 0,
        backoff: str | float | timedelta = "200ms",
        rate: RateLimit | str | float | None = None,
        ordered: bool = True,
        replay: Replay = "logged",
        cache: AnswerCache | str | float | timedelta | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[U]: ...
    def map_async(
        self,
        function: Callable[[T], Any],
        *,
        concurrency: int = 10,
        timeout: str | float | timedelta | None = None,
        retries: int = 0,
        backoff: str | float | timedelta = "200ms",
        rate: RateLimit | str | float | None = None,
        ordered: bool = True,
        replay: Replay = "logged",
        cache: AnswerCache | str | float | timedelta | None = None,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream:
        """Replace each record by the answer of a service: many calls at once, none in the way of others.

        Coroutine functions run on an event loop, all others in threads. Each shard has up to
        `concurrency` calls under way. They are part of every checkpoint: after a failure, those without
        an answer are made again. With replay="logged", an answer is written to the store before it is
        emitted, and that call is not made again. replay="repeat" is for calls that may be repeated: it
        logs nothing.

        timeout: for each attempt; default: none. retries: how often a failed call is repeated.
        backoff: the wait before the first retry; it doubles with each, up to 30 s. A service that asks
        to wait (`es.RetryAfter`, Retry-After) is left alone for that time. rate: calls per second,
        "90/min" or an `es.RateLimit`. ordered: emit answers in the order of their records. cache: how
        long an answer is used for equal records ("10m"), or an `es.AnswerCache`.

        >>> async def price(item):
        ...     return {"item": item, "price": len(item)}
        >>> items = es.Pipeline("prices").source(es.FromList(["pear", "fig"]))
        >>> items.map_async(price, concurrency=50).collect().run().collected()
        [{'item': 'pear', 'price': 4}, {'item': 'fig', 'price': 3}]
        """
        from everstream.pipeline.calls.map_async import MapAsync
        from everstream.pipeline.calls.result_log import content_key

        options = CallOptions.of(
            concurrency, timeout, retries, backoff, rate, ordered, replay, cache
        )
        operator = MapAsync(self._on_rows(function_for("map_async", function)), options)
        asked: StreamBase[T] = self
        if replay == "logged" and isinstance(self._routing, Broadcast | ByRoute):
            raise UserError(
                "map_async after broadcast() or route() cannot log answers, because it must choose the "
                "shard of a record, to find its answer there. Use key_by, or replay='repeat'."
            )
        if replay == "logged" and not isinstance(self._routing, ByKey):
            # A record that comes again must reach the shard that has its answer.
            asked = self._leaving(self._origins, ByKey(Keying(content_key)))
        return asked._then("map_async", operator, Options(name, shards, on_error))

    def batch(
        self,
        *,
        count: int | None = None,
        within: str | float | None = None,
        name: str | None = None,
        shards: int | None = None,
    ) -> Stream[list[T]]:
        """Gather records into lists: of `count` records, of records that came `within` a time, or both.

        With both, a batch is emitted when it has `count` records or its first record has waited
        for `within`, whichever comes first. Empty batches are never emitted; the last batch, when
        the input ends, may be smaller. Waiting records are part of every checkpoint. Each shard
        makes its own batches. You cannot put it before an ordered sink, because batches that are
        emitted by time have no defined order.

        >>> numbers = es.Pipeline("threes").source(es.Range(7))
        >>> numbers.batch(count=3).collect().run().collected()
        [[0, 1, 2], [3, 4, 5], [6]]
        """
        within_s = None if within is None else seconds(within)
        return self._then("batch", Batches(count, within_s), Options(name, shards))

    def with_columns(
        self,
        *columns: Values,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **named: Value,
    ) -> Stream[Row]:
        """Add or replace columns, as in Polars.

        >>> rows = es.Pipeline("doubled").source(es.Range(2, column="n"))
        >>> rows.with_columns(twice=pl.col("n") * 2).collect().run().collected()
        [{'n': 0, 'twice': 0}, {'n': 1, 'twice': 2}]
        """
        operator = builtin.WithColumns(columns, named)
        return self._then("with_columns", operator, Options(name, shards, on_error))

    def select(
        self,
        *columns: Values,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        **named: Value,
    ) -> Stream[Row]:
        """Keep or compute exactly these columns, as in Polars.

        >>> rows = es.Pipeline("halves").source(es.Range(3, column="n"))
        >>> rows.select(half=pl.col("n") / 2).collect().run().collected()
        [{'half': 0.0}, {'half': 0.5}, {'half': 1.0}]
        """
        operator = builtin.Select(columns, named)
        return self._then("select", operator, Options(name, shards, on_error))

    def process(
        self,
        operator: Operator,
        *,
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
        ordered: bool = False,
        state: StateKind | None = None,
    ) -> Stream:
        """Add your own operator: an instance of a subclass of es.Operator.

        ordered: one shard processes the records in the order in which the source read them.
        Default: False. With state="disk" the state may be larger than memory (docs/guides/keep-large-state-on-disk.md).

        >>> class Countdown(es.Operator):
        ...     def process(self, record, ctx):
        ...         for n in range(record, 0, -1):
        ...             ctx.emit(n)
        >>> numbers = es.Pipeline("down").source(es.FromList([3, 1]))
        >>> numbers.process(Countdown()).collect().run().collected()
        [3, 2, 1, 1]
        """
        if isinstance(operator, type) or not isinstance(operator, Operator):
            raise UserError(
                f"process() takes an instance of a subclass of es.Operator, not {operator!r}. "
                "For a plain function use map, flat_map or map_batches."
            )
        if ordered:
            shards = 1 if shards is None else shards
        if expires_by_event_time(operator):
            operator.time_of_state = self._time_of_state(operator)
        options = Options(name, shards, on_error, state)
        return self._then(base_name(operator), operator, options, ordered)

    def _time_of_state(self, operator: Operator) -> TimeOf:
        """How to read the time of the records that come to an operator whose state expires by it."""
        from everstream.pipeline.methods.time import time_of

        time = time_of(self.pipeline.graph, self._origins)
        if time is None:
            raise UserError(
                f"{type(operator).__name__} declares state with ttl_time='event', and its records have no "
                "event time: put .event_time(...) in front of it, or use ttl_time='processing'."
            )
        if type(operator).process_batch is not Operator.process_batch:
            raise UserError(
                f"{type(operator).__name__} declares state with ttl_time='event', which counts by the time "
                "of each record: define process(record, ctx) instead of process_batch."
            )
        return time

    def transact(
        self,
        *transactions: Transaction,
        parallelism: int = 1,
        recovery: str = "delta",
        timestamp: str | None = None,
        unit: Unit | None = None,
        epoch: Literal["batch", "watermark"] | int = "batch",
        select: str = "transaction",
        name: str | None = None,
        shards: int | None = None,
        on_error: OnError = "fail",
    ) -> Stream[Row]:
        """Run a transaction over shared tables for each event; emits the outcome of each.

        Transactions are functions declared with `es.transaction`. If there are several, the
        column `select` names the one to run for each event. The result is the same as running the
        events one by one, but it is computed on `parallelism` threads. The order is that of
        arrival or, with `timestamp=`, that of this column within each epoch. An epoch is a
        "batch", a number of events, or what a "watermark" completes (see `event_time`; `unit` is
        the unit of the times). `recovery` chooses how checkpoints save the tables. With `shards`
        above 1 (default: 1) the tables are partitioned by key, `NAME-order` puts the events in
        order, and aligned checkpoints are refused. See docs/explanation/transactions.md.

        >>> stock = es.Table("stock", value="int64", initial=5)
        >>> @es.transaction(left=stock.key("item"), writes="left")
        ... def buy(left, count):
        ...     return es.ABORT if left < count else left - count
        >>> orders = [{"item": 7, "count": 3}, {"item": 7, "count": 3}]
        >>> bought = es.Pipeline("shop").source(es.FromList(orders)).transact(buy)
        >>> [row["committed"] for row in bought.collect().run().collected()]
        [True, False]
        """
        from everstream.transactions.operator import Transact
        from everstream.transactions.sharded import attach_sharded

        if epoch == "watermark" and not self._has_event_time():
            raise GraphError(
                name or "transact",
                "waits for watermarks, but no operator before it emits any",
                "Put .event_time(...) right after the source.",
            )
        operator = Transact(
            transactions,
            parallelism=parallelism,
            recovery=recovery,
            timestamp=timestamp,
            unit=unit,
            epoch=epoch,
            select=select,
        )
        if shards not in (None, 1):
            return attach_sharded(self, operator, Options(name, shards, on_error))
        return self._then("transact", operator, Options(name, 1, on_error))

    def _has_event_time(self) -> bool:
        """Whether an operator upstream emits watermarks."""
        graph = self.pipeline.graph
        waiting, seen = [name for name, _ in self._origins], set[str]()
        while waiting:
            name = waiting.pop()
            what = graph.nodes[name].what
            if isinstance(what, Operator) and what.announces_watermarks and not what.holds_records:
                return True
            if name not in seen:
                seen.add(name)
                waiting += [edge.sender for edge in graph.inputs(name)]
        return False
