"""Runs one operator inside a test: a harness around a pipeline of a source, it and its sinks."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Self

from everstream.connectors.collect import Collect
from everstream.connectors.generate.sources import FromList
from everstream.errors import UserError
from everstream.pipeline.event_time.timers import Timer
from everstream.pipeline.event_time.windows import Duration
from everstream.pipeline.operator import OUT, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream.testing.pipeline_harness import START, Harness, harness
from everstream.testing.records import Records

INPUT: Final = "input"
OPERATOR: Final = "operator"


def operator(
    operator: Operator,
    *,
    key: Any = None,
    outputs: Sequence[str] = (),
    shards: int = 1,
    start: str | datetime | float = START,
) -> "OperatorHarness":
    """Run one operator inside a test, without a pipeline and without Spark.

    key: a function of the record, a column name or a Polars expression, as for `key_by`.
    outputs: the side outputs to look at, besides the main one.
    shards: how many shards the operator has.
    start: the processing time at which it begins (UTC).

    >>> from everstream import testing
    >>> class Total(es.Operator):
    ...     total = es.Keyed(init=int)
    ...     def process(self, record, ctx):
    ...         self.total[ctx.key] += record[1]
    ...         ctx.emit((ctx.key, self.total[ctx.key]))
    >>> with testing.operator(Total(), key=lambda record: record[0]) as op:
    ...     op.push([("ada", 3), ("bob", 4), ("ada", 5)])
    ...     op.output(), op.state()
    ([('ada', 3), ('bob', 4), ('ada', 8)], {'ada': 8, 'bob': 4})
    """
    return OperatorHarness(operator, key, outputs, shards, start)


class OperatorHarness:
    """One operator that runs inside a test. Made by `operator`; use it in a `with` statement."""

    def __init__(
        self,
        operator: Operator,
        key: Any,
        outputs: Sequence[str],
        shards: int,
        start: str | datetime | float,
    ) -> None:
        pipeline = Pipeline(type(operator).__name__.strip("_"))
        records: Stream[Any] = pipeline.source(FromList([]), name=INPUT)
        if key is not None:
            records = records.key_by(key)
        processed = records.process(operator, name=OPERATOR, shards=shards)
        self._outputs = (OUT, *outputs)
        for output in self._outputs:
            processed.side_output(output).sink(Collect(), name=output)
        self._harness: Harness = harness(pipeline, start=start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._harness.__exit__(kind, *error)

    def push(self, records: Iterable[Any]) -> None:
        """Give it these records, as one batch: a list, a DataFrame or any iterable."""
        self._harness.push(INPUT, records)

    def watermark(self, time: str | datetime | int) -> None:
        """Let event time reach this time: a datetime, its text (UTC) or microseconds since 1970."""
        self._harness.watermark(INPUT, time)

    def advance(self, duration: Duration) -> None:
        """Let processing time pass: "10m", a timedelta or seconds. Timers that fall due are called."""
        self._harness.advance(duration)

    def end(self) -> None:
        """End the input: the operator gets `on_end`."""
        self._harness.end()

    def checkpoint(self) -> int:
        """Take a checkpoint. Returns the number of the epoch."""
        return self._harness.checkpoint()

    def crash(self, shard: int = 0) -> None:
        """Kill the worker with this shard. The operator resumes from its last checkpoint, and gets
        the records since then again."""
        self._harness.crash(f"{OPERATOR}:{shard}")

    @property
    def now_s(self) -> float:
        """The processing time, in seconds since 1970."""
        return self._harness.now_s

    def output(self, output: str = OUT) -> list[Any]:
        """Everything it has emitted, each record once: what a crash took back is not in it."""
        if output not in self._outputs:
            raise UserError(
                f"there is no output '{output}'; known are: {', '.join(self._outputs)}. Name others "
                "with outputs=[...]."
            )
        return Records(self._harness.output(output) + self._harness.uncommitted(output))

    def state(self, name: str | None = None) -> dict[Any, Any]:
        """Its state: key -> value; name: which, if it declares several."""
        return self._harness.state(OPERATOR, name)

    def timers(self) -> list[Timer]:
        """Its pending timers (key, name, time in microseconds), the next one first."""
        return self._harness.timers(OPERATOR)
