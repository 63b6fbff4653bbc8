"""One operator runs inside a test, without a pipeline."""

from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.errors import UserError


class Balance(es.Operator):
    """Adds up per account; overdrawn accounts are reported, at once and a minute later."""

    amount = es.Keyed[int](init=int)

    def process(self, record: tuple[str, int], ctx: es.Context) -> None:
        self.amount[ctx.key] += record[1]
        ctx.emit((ctx.key, self.amount[ctx.key]))
        if self.amount[ctx.key] < 0:
            ctx.emit(ctx.key, output="overdrawn")
            ctx.timers.set(after="60s", time="processing")

    def on_timer(self, key: str, name: str, at: int, ctx: es.Context) -> None:
        if self.amount[key] < 0:
            ctx.emit((key, at / 1e6), output="overdrawn")

    def on_watermark(self, watermark: int, ctx: es.Context) -> None:
        if watermark < es.END_OF_TIME:
            ctx.emit(("watermark", watermark))

    def on_end(self, ctx: es.Context) -> None:
        ctx.emit("end")


def balance(**options: Any) -> testing.OperatorHarness:
    return testing.operator(
        Balance(), key=lambda record: record[0], outputs=["overdrawn"], **options
    )


def test_records_go_in_and_output_and_state_are_seen_at_once() -> None:
    with balance() as op:
        op.push([("ada", 3), ("bob", 4)])
        op.push([("ada", 5)])
        assert op.output() == [("ada", 3), ("bob", 4), ("ada", 8)]
        assert op.state() == op.state("amount") == {"ada": 8, "bob": 4}
        assert op.output("overdrawn") == []


def test_timers_are_called_when_time_has_advanced() -> None:
    with balance(start=1000.0) as op:
        op.push([("ada", -1)])
        assert op.timers() == [("ada", "", 1_060_000_000)]
        op.advance("59s")
        assert op.output("overdrawn") == ["ada"]
        op.advance("1h")
        assert op.output("overdrawn") == ["ada", ("ada", 1060.0)]
        assert op.timers() == []
        assert op.now_s == 1000.0 + 59 + 3600


def test_a_crash_changes_neither_output_nor_state() -> None:
    with balance(shards=2) as op:
        op.push([("ada", 3), ("bob", 4)])
        assert op.checkpoint() == 1
        op.push([("ada", -5)])
        before = sorted(op.output()), op.output("overdrawn"), op.state()
        op.crash(0)
        op.crash(1)
        assert (sorted(op.output()), op.output("overdrawn"), op.state()) == before
        assert before[0] == [("ada", -2), ("ada", 3), ("bob", 4)]


def test_watermarks_and_the_end_of_the_input_reach_the_operator() -> None:
    with balance() as op:
        op.watermark(5)
        op.watermark("1970-01-01T00:00:01")
        op.end()
        assert op.output() == [("watermark", 5), ("watermark", 1_000_000), "end"]


def test_an_operator_of_columns_gets_columns_and_needs_no_key() -> None:
    class Doubled(es.Operator):
        repeatable = True

        def process_batch(self, batch: Any, ctx: es.Context) -> None:
            ctx.emit_batch(batch.with_columns(pl.col("n") * 2))

    with testing.operator(Doubled()) as op:
        op.push(pl.DataFrame({"n": [1, 2]}))
        assert op.output() == [{"n": 2}, {"n": 4}]
        assert op.state() == {}


def test_plain_context_state_is_seen() -> None:
    class Distinct(es.Operator):
        def process(self, record: str, ctx: es.Context) -> None:
            if record not in ctx.state:
                ctx.state.put(record, True)
                ctx.emit(record)

    with testing.operator(Distinct()) as op:
        op.push(["a", "b", "a"])
        assert op.output() == ["a", "b"]
        assert op.state() == op.state("ctx.state") == {"a": True, "b": True}


def test_an_output_that_was_not_named_is_refused() -> None:
    with balance() as op, pytest.raises(UserError, match=r"known are: out, overdrawn\. Name"):
        op.output("alerts")


def test_what_is_no_operator_is_refused() -> None:
    with pytest.raises(UserError, match="takes an instance"):
        testing.operator(Balance)  # type: ignore[arg-type]
