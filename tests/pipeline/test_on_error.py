"""`on_error`: which records are left out, what is kept of them, and that nothing counts twice."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors.dead_letters import DeadLetters
from everstream.core.ids import ShardId
from everstream.core.permits import permit
from everstream.core.plan import make_plan
from everstream.errors import ConnectorError, UserError
from everstream.pipeline import builtin
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.operator import Context, Keyed, Operator, process_tolerantly
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.sink import SinkShard
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline
from everstream.runtime.chain import ChainStages
from everstream.state.keystore import KeyStore
from everstream.state.snapshot import ShardState


def context(on_error: OnError = "dead_letter", keying: Any = None) -> Context:
    return Context("op", 0, 1, KeyStore(), keying, on_error)


def run(operator: Operator, batch: Batch, ctx: Context) -> dict[str, list[Any]]:
    """What comes out, port by port."""
    process_tolerantly(operator, batch, ctx)
    out: dict[str, list[Any]] = {}
    for port, emitted in ctx.take_emitted():
        out.setdefault(port, []).extend(records_of(emitted))
    return out


def inverse(n: int) -> float:
    return 1 / n


def test_a_map_leaves_out_the_records_it_fails_on_and_only_those() -> None:
    ctx = context()
    assert run(builtin.Map(inverse), [1, 0, 2, 0, 4], ctx) == {"out": [1.0, 0.5, 0.25]}
    assert ctx.skipped == 2
    (first, second) = ctx.take_rejected()
    assert first == second == Rejected(0, "ZeroDivisionError: division by zero")
    assert ctx.take_rejected() == []


def test_skipping_counts_but_keeps_nothing() -> None:
    ctx = context("skip")
    assert run(builtin.Map(inverse), [1, 0], ctx) == {"out": [1.0]}
    assert ctx.skipped == 1
    assert ctx.take_rejected() == []


def test_without_the_option_the_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run(builtin.Map(inverse), [1, 0], context("fail"))


def test_a_function_sees_no_record_more_than_twice() -> None:
    seen: list[int] = []

    def remember(n: int) -> float:
        seen.append(n)
        return 1 / n

    run(builtin.Map(remember), [5, 4, 0, 3, 2, 1], context())
    assert max(seen.count(n) for n in range(6)) == 2


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (builtin.FlatMap(lambda row: [1 / row["n"]] * 2), [1.0, 1.0, 0.5, 0.5]),
        (builtin.Filter(lambda row: 1 / row["n"] > 0.6), [{"n": 1, "t": "7"}]),
        (
            builtin.WithColumns([pl.col("t").cast(pl.Int64)], {}),
            [{"n": 1, "t": 7}, {"n": 0, "t": 8}],
        ),
        (builtin.Select([pl.col("t").cast(pl.Int64)], {}), [{"t": 7}, {"t": 8}]),
    ],
)
def test_rows_are_left_out_one_by_one_too(operator: Operator, expected: list[Any]) -> None:
    ctx = context()
    rows = pl.DataFrame({"n": [1, 0, 2], "t": ["7", "8", "x"]})
    assert run(operator, rows, ctx) == {"out": expected}
    assert ctx.skipped == 1


def test_one_bad_row_of_many_is_found_and_the_rest_stays_together() -> None:
    ctx = context()
    rows = pl.DataFrame({"t": [str(n) if n != 777 else "x" for n in range(2000)]})
    process_tolerantly(builtin.Select([pl.col("t").cast(pl.Int64)], {}), rows, ctx)
    ((port, batch),) = ctx.take_emitted()
    assert port == "out"
    assert records_of(batch) == [{"t": n} for n in range(2000) if n != 777]
    assert [rejected.record for rejected in ctx.take_rejected()] == [{"t": "x"}]


def test_a_branch_keeps_its_ports_apart() -> None:
    ctx = context()
    found = run(builtin.Branch([lambda n: 1 / n > 0.4]), [1, 0, 5, 2], ctx)
    assert found == {"branch-0": [1, 2], "branch-1": [5]}
    assert ctx.skipped == 1


class Parity:
    """The key of a number, as key_by gives it."""

    def keys(self, batch: Batch) -> list[Any]:
        return [n % 2 for n in batch]


@pytest.mark.parametrize(
    ("operator", "state"),
    [
        (builtin.Fold(int, lambda total, n: total + 12 // (n - 3)), {0: 14, 1: 9}),
        (builtin.Reduce(lambda total, n: total + 12 // (n - 3)), {0: 6, 1: 8}),
    ],
)
def test_state_is_changed_once_for_each_record_that_was_not_left_out(
    operator: Operator, state: dict[int, int]
) -> None:
    ctx = context(keying=Parity())
    found = run(operator, [4, 5, 3, 7, 8], ctx)
    assert ctx.skipped == 1
    assert dict(ctx.state.items()) == state
    assert len(found["out"]) == 4


class Pairs(Operator):
    """Emits before it fails, and counts per key."""

    count = Keyed[int](init=int)

    def process(self, record: Any, ctx: Context) -> None:
        ctx.emit(record)
        ctx.emit(record, port="copies")
        if record == 3:
            raise ValueError("three")
        ctx.state.put(record, ctx.state.get(record, 0) + 1)


def test_what_a_record_emitted_before_it_failed_is_taken_back() -> None:
    ctx = context()
    found = run(Pairs(), [1, 2, 3, 3, 4, 1], ctx)
    assert found == {"out": [1, 2, 4, 1], "copies": [1, 2, 4, 1]}
    assert dict(ctx.state.items()) == {1: 2, 2: 1, 4: 1}
    assert [rejected.error for rejected in ctx.take_rejected()] == ["ValueError: three"] * 2


class Forgiving(Operator):
    """Decides for itself."""

    def process(self, record: Any, ctx: Context) -> None:
        ctx.emit(1 / record)

    def on_error(self, error: Exception, record: Any, ctx: Context) -> None:
        if not isinstance(error, ZeroDivisionError):
            raise error


def test_an_operator_can_decide_for_itself() -> None:
    ctx = context("fail")
    assert run(Forgiving(), [1, 0, 2], ctx) == {"out": [1.0, 0.5]}
    assert ctx.skipped == 1
    with pytest.raises(TypeError):
        run(Forgiving(), ["x"], ctx)


class WholeBatches(Operator):
    def process_batch(self, batch: Batch, ctx: Context) -> None:
        ctx.state.put("batches", ctx.state.get("batches", 0) + 1)
        ctx.emit_batch(batch)
        if 0 in batch:
            raise ValueError("a zero in here")


def test_an_operator_on_batches_loses_the_batch_and_is_not_asked_again() -> None:
    ctx = context()
    assert run(WholeBatches(), [1, 0, 2], ctx) == {}
    assert run(WholeBatches(), [1, 2], ctx) == {"out": [1, 2]}
    assert ctx.skipped == 3
    assert ctx.state.get("batches") == 2


def test_a_fault_of_the_environment_is_never_skipped() -> None:
    def lookup(record: Any) -> Any:
        raise ConnectorError("the database is gone")

    with pytest.raises(ConnectorError):
        run(builtin.Map(lookup), [1, 2], context("skip"))


def test_a_wrong_choice_is_named_with_the_right_ones() -> None:
    stream = Pipeline("p").source(Halves("fail"))
    with pytest.raises(UserError, match=r"on_error='ignore' is not one of 'fail', 'skip', 'dead"):
        stream.map(inverse, on_error="ignore")
    with pytest.raises(UserError, match="on_error"):
        stream.select("a", on_error="ignore")  # type: ignore[arg-type]


class Halves(Source):
    """0 to 9; odd numbers are rejected."""

    def __init__(self, on_error: OnError) -> None:
        self.on_error = on_error

    def open(self, shard: int, shards: int) -> Reader:
        return HalvesReader()


class HalvesReader(Reader):
    def __init__(self) -> None:
        self.position = 0
        self.rejected: list[Rejected] = []

    @property
    def offset(self) -> int:
        return self.position

    def seek(self, offset: int) -> None:
        self.position = offset

    def read(self) -> Batch | EndOfStream | None:
        if self.position == 10:
            return END
        self.rejected.append(Rejected(self.position + 1, "odd", f"line {self.position + 1}"))
        self.position += 2
        return [self.position - 2]

    def take_rejected(self) -> list[Rejected]:
        rejected, self.rejected = self.rejected, []
        return rejected


def letters(store: Path, operator: str) -> list[dict[str, Any]]:
    files = sorted((store / "dead_letters" / operator).glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_dead_letters_of_sources_and_operators_follow_the_checkpoint(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    numbers = pipeline.source(Halves("dead_letter"), name="halves")
    numbers.map(lambda n: 8 // (n - 4), name="divide", on_error="dead_letter").collect()
    plan = make_plan(pipeline, 1)
    assert plan.sink_shards() == [ShardId("halves", 0)]

    def chain(extras: dict[str, Any], generation: int, stable: int) -> ChainStages:
        stages = ChainStages(plan, ShardId("halves", 0), {}, ShardState(), lambda: 0.0)
        stages.build(extras, {}, generation, str(tmp_path), permit(stable))
        return stages

    def through(stages: ChainStages) -> Batch | EndOfStream | None:
        batch = stages.read()
        if batch is not None and not isinstance(batch, EndOfStream):
            stages.forward(batch)
        return batch

    first = chain({}, 1, 0)
    assert [through(first) for _ in range(3)] == [[0], [2], [4]]
    saved = first.prepare(1)
    for waiting in first.unpersisted():
        waiting.perform()
    assert letters(tmp_path, "halves") == []
    for transaction in first.committable(permit(1)):
        transaction.commit(permit(1))
    assert [letter["record"] for letter in letters(tmp_path, "halves")] == [1, 3, 5]
    assert [through(first) for _ in range(2)] == [[6], [8]], "lost in the crash"

    second = chain(saved, 2, 1)
    assert second.skipped == {"halves": 3, "divide": 1}
    while not isinstance(through(second), EndOfStream):
        pass
    second.prepare(2)
    for transaction in second.committable(permit(2)):
        transaction.commit(permit(2))
    assert second.skipped == {"halves": 5, "divide": 1}
    assert "halves/dead-letters" not in second.counts
    assert [letter["record"] for letter in letters(tmp_path, "halves")] == [1, 3, 5, 7, 9]
    assert letters(tmp_path, "halves")[0]["place"] == "line 1"
    assert letters(tmp_path, "divide") == [
        {
            "operator": "divide",
            "error": "ZeroDivisionError: integer division or modulo by zero",
            "record": 4,
        }
    ]


def test_what_json_cannot_hold_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    writer = DeadLetters().open(SinkShard("p", "op", 0, 1, 1, str(tmp_path)))
    writer.write([Rejected((1, {2}), "no"), Rejected({1: "a"}, "no"), Rejected(float("nan"), "")])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.commit(permit(1))
    assert [letter["repr"] for letter in letters(tmp_path, "op")] == ["(1, {2})", "{1: 'a'}", "nan"]
