"""A `transact` operator in one shard, driven by hand: batches in, checkpoints, kills, restores."""

from collections.abc import Sequence
from typing import Any

import polars as pl

import everstream as es
from everstream.core.ids import ShardId
from everstream.core.permits import permit
from everstream.core.plan import make_plan
from everstream.runtime.chain import ChainStages
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState
from everstream.transactions.interpreter import Interpreter
from everstream.transactions.operator import Transact, tables_in


class Shard:
    """The operator as a shard runs it; `crash` forgets all but what checkpoints have saved."""

    def __init__(self, transactions: Sequence[Any], **options: Any) -> None:
        pipeline = es.Pipeline("piped")
        source = pipeline.source(es.FromList([]), name="events")
        source = source.event_time(lambda record: 0, unit="us").on_demand()
        source.transact(*transactions, name="book", **options).on_demand().collect()
        self.plan = make_plan(pipeline, 1)
        self.id = ShardId("book", 0)
        self.operator: Any = self.plan.graph.nodes["book"].what
        self.objects: list[tuple[ObjectRef, bytes]] = []
        self.shown: list[pl.DataFrame] = []
        self.durable = 0
        self.promised = -1
        self.taken = 0
        self.crash()

    def crash(self) -> None:
        """Start again from the last checkpoint; outcomes after it were never shown."""
        del self.shown[self.durable :]
        outlets: Any = {n: self for n, edge in enumerate(self.plan.graph.edges)}
        self.state = ShardState()
        self.chain = ChainStages(self.plan, self.id, outlets, self.state, lambda: 0.0)
        extras: dict[str, Any] = {}
        if self.objects:
            refs = [ref for ref, _ in self.objects]
            extras = self.state.restore([data for _, data in self.objects], refs)
        self.chain.build(extras, {}, 1, "memory://", permit(0))
        self.chain.start()

    def collect(self, batch: pl.DataFrame) -> None:
        """What the chain does with what the operator emits."""
        self.shown.append(batch)

    def advance(self, watermark: int) -> None:
        """What the chain does with a watermark it passes on."""
        self.promised = watermark

    def process(self, batch: Any) -> None:
        self.chain.process(batch)

    def checkpoint(self) -> None:
        self.taken += 1
        capture = self.state.capture(self.chain.prepare(self.taken))
        data = capture.encode()
        ref = ObjectRef.of(f"object-{self.taken}", data)
        chain = self.state.mark_durable(capture, ref)
        known = dict(self.objects)
        self.objects = [(one, data if one == ref else known[one]) for one in chain]
        self.durable = len(self.shown)

    def finish(self) -> pl.DataFrame:
        """No more input: everything that was shown."""
        self.chain.finish()
        self.checkpoint()
        return pl.concat(self.shown)

    def run(self, events: pl.DataFrame, crashes: Sequence[int]) -> pl.DataFrame:
        """All events in uneven batches, a checkpoint after every third, crashes after these."""
        read = saved = step = 0
        while read < len(events):
            step += 1
            batch = events[read : read + 7 + step * 5 % 40]
            self.process(batch)
            read += len(batch)
            if step % 3 == 0:
                self.checkpoint()
                saved = read
            if step in crashes:
                self.crash()
                read = saved
        assert step > max(crashes)
        return self.finish()

    def tables(self) -> dict[str, dict[Any, Any]]:
        """The tables as the last checkpoint has them: key -> value or tuple."""
        saved = ShardState()
        saved.restore([data for _, data in self.objects], [ref for ref, _ in self.objects])
        frames = tables_in(self.operator, [dict(saved.pairs().get(("book", "ctx.state"), ()))])
        return {name: content(frame) for name, frame in frames.items()}


def content(frame: pl.DataFrame) -> dict[Any, Any]:
    single = frame.width == 2
    return {row[0]: row[1] if single else tuple(row[1:]) for row in frame.iter_rows()}


def assert_true(
    operator: Transact, shown: pl.DataFrame, tables: dict[str, Any], order: pl.DataFrame
) -> None:
    """Outcomes and tables are those of a plain loop over the events in this order."""
    interpreter = Interpreter(operator.tables, operator.transactions, operator.select)
    events = order.to_dicts()
    outcomes = interpreter.run(events)
    assert tables == {name: dict(table) for name, table in interpreter.tables.items()}
    assert shown["position"].to_list() == list(range(len(events)))
    rows = shown.to_dicts()
    for row, event, outcome in zip(rows, events, outcomes, strict=True):
        assert {name: row[name] for name in event if name != "transaction"} == {
            name: value for name, value in event.items() if name != "transaction"
        }
        assert row["committed"] == outcome.committed
        for parameter, value in outcome.reads.items():
            parts = [value] if not isinstance(value, tuple) else value
            names = [parameter] if not isinstance(value, tuple) else value._fields  # type: ignore[attr-defined]
            labels = names if not isinstance(value, tuple) else [f"{parameter}.{n}" for n in names]
            for label, part in zip(labels, parts, strict=True):
                assert row[f"{label}_read" if label in event else label] == part
