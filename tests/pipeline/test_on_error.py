"""`on_error`: which records are left out, what is kept of them, and that nothing counts twice."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors import Parquet
from everstream.connectors.dead_letters import DeadLetters
from everstream.core.ids import ShardId
from everstream.core.permits import permit
from everstream.core.plan import make_plan
from everstream.errors import ConnectorError, RefusedRecords, UserError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context, Keyed, Operator, process_tolerantly
from everstream.pipeline.operators import builtin
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.sink import SinkShard
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.stream import Pipeline
from everstream.runtime.chain import ChainStages
from everstream.state.backends.memory import MemoryBackend
from everstream.state.snapshot import ShardState


def context(on_error: OnError = "dead_letter", keying: Any = None) -> Context:
    return Context("op", 0, 1, MemoryBackend(), keying, on_error)


def run(operator: Operator, batch: Batch, ctx: Context) -> dict[str, list[Any]]:
    """What comes out, output by output."""
    process_tolerantly(operator, batch, ctx)
    out: dict[str, list[Any]] = {}
    for output, emitted in ctx.take_emitted():
        out.setdefault(output, []).extend(records_of(emitted))
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
    ((output, batch),) = ctx.take_emitted()
    assert output == "out"
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
        ctx.emit(record, output="copies")
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


HALF = "\ud800"
"""Half a surrogate pair: JSON can write it, UTF-8 cannot."""


def test_half_a_surrogate_pair_is_a_key_like_any_other() -> None:
    keying = Keying(lambda row: row["k"])
    rows = [{"k": key} for key in ("a", HALF, "b", HALF + "x", "a")]
    parts = keying.split(rows, 4)
    assert sorted(row["k"] for _, part in parts for row in part) == sorted(r["k"] for r in rows)
    ctx = context("fail", keying)
    assert run(builtin.Fold(int, lambda count, _: count + 1), rows, ctx)["out"][1] == (HALF, 1)


def total(sum_: int, row: Any) -> int:
    return sum_ + int(row["n"])


@pytest.mark.parametrize("selector", ["k", lambda row: row["k"].upper()])
def test_a_record_whose_key_cannot_be_told_is_left_out_alone(selector: Any) -> None:
    """A column cannot hold half a surrogate pair, and a function fails where there is no key."""
    bad = [{"k": HALF, "n": 2}] if selector == "k" else [{"k": None, "n": 2}]
    rows = [{"k": "a", "n": 1}, {"k": "b", "n": 1}, *bad, {"k": "a", "n": 4}, {"k": "c", "n": 1}]
    keying = Keying(selector)
    sums: dict[str, int] = {}
    left_out = []
    for _, part in keying.split(rows, 3):
        ctx = context(keying=keying)
        for key, value in run(builtin.Fold(int, total), part, ctx).get("out", []):
            sums[key.lower()] = value
        left_out += [rejected.record for rejected in ctx.take_rejected()]
    assert sums == {"a": 5, "b": 1, "c": 1}
    assert left_out == bad


def test_one_shard_leaves_out_such_a_record_alone_as_well() -> None:
    ctx = context(keying=Keying("k"))
    rows = [{"k": key, "n": 1} for key in ("a", HALF, "b", "a")]
    assert run(builtin.Fold(int, total), rows, ctx)["out"] == [("a", 1), ("b", 1), ("a", 2)]
    assert ctx.skipped == 1


def test_an_operator_that_may_leave_nothing_out_gets_no_record_without_a_key() -> None:
    keying = Keying(lambda row: row["k"].upper())
    with pytest.raises(AttributeError):
        keying.split([{"k": "a"}, {"k": None}], 2, tolerant=False)


def test_a_key_of_a_kind_that_cannot_be_spread_is_refused_where_on_error_decides() -> None:
    keying = Keying(lambda row: row)
    assert keying.split([{1}, {2}], 2) == [(0, [{1}, {2}])]
    with pytest.raises(UserError, match="a key must be"):
        keying.keys([{1}, {2}])


def send(stages: ChainStages, rows: Batch) -> None:
    """What the source reads, if it is in the chain; else what comes in at its head."""
    (stages.process if stages.head.reader is None else stages.forward)(rows)


def keyed_chain(folder: Path, on_error: OnError, shards: int, columns: bool) -> ChainStages:
    """Shard 0 of operators behind a key_by that never look at a key: a map and a sink."""
    pipeline = Pipeline("p")
    source = pipeline.source(Halves("fail"), name="halves")
    keyed = source.key_by("k" if columns else lambda row: row["k"].upper())
    mapped = keyed.map(lambda row: {"n": row["n"]}, name="take", on_error=on_error, shards=shards)
    mapped.sink(Parquet(f"{folder}/out/"), name="files")
    plan = make_plan(pipeline, 2)
    head = plan.chain_of["take"]
    stages = ChainStages(plan, ShardId(head, 0), {}, ShardState(), lambda: 0.0)
    stages.build({}, {}, 1, str(folder / "store"), permit(0))
    return stages


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_record_without_a_key_passes_no_operator_that_never_looks_at_keys(
    tmp_path: Path, shards: int, columns: bool
) -> None:
    bad = {"k": HALF if columns else None, "n": 2}
    rows = [{"k": "a", "n": 1}, bad, {"k": "b", "n": 3}]
    stages = keyed_chain(tmp_path, "dead_letter", shards, columns)
    send(stages, rows)
    send(stages, [bad])
    checkpointed(stages, 1)
    assert pl.read_parquet(f"{tmp_path}/out/*.parquet")["n"].to_list() == [1, 3]
    assert [letter["record"]["n"] for letter in letters(tmp_path / "store", "take")] == [2, 2]
    stages.close()


@pytest.mark.parametrize("columns", [True, False])
def test_one_shard_that_may_leave_nothing_out_fails_on_a_record_without_a_key(
    tmp_path: Path, columns: bool
) -> None:
    stages = keyed_chain(tmp_path, "fail", 1, columns)
    with pytest.raises((UserError, AttributeError)) as failed:
        send(stages, [{"k": "a", "n": 1}, {"k": HALF if columns else None, "n": 22}])
    assert "'n': 22" in str(stages.explain(failed.value))
    stages.close()


class Keys:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, row: Any) -> Any:
        self.asked += 1
        return row["k"]


def test_checked_keys_are_not_asked_for_again() -> None:
    function = Keys()
    keying, rows = Keying(function), [{"k": 1}, {"k": 2}]
    keying.check(rows)
    assert keying.keys(rows) == [1, 2] and function.asked == 2
    assert keying.keys(list(rows)) == [1, 2] and function.asked == 4


def sinking(folder: Path, on_error: OnError, store: str = "store", **extras: Any) -> ChainStages:
    """A chain of a source and a Parquet sink, the second generation if it has extras."""
    pipeline = Pipeline("p")
    source = pipeline.source(Halves("fail"), name="halves")
    source.sink(Parquet(f"{folder}/out/"), name="files", on_error=on_error)
    plan = make_plan(pipeline, 1)
    stages = ChainStages(plan, ShardId("halves", 0), {}, ShardState(), lambda: 0.0)
    stable = 1 if extras else 0
    stages.build(extras, {}, 1 + stable, str(folder / store), permit(stable))
    return stages


def checkpointed(stages: ChainStages, checkpoint: int) -> dict[str, Any]:
    saved = stages.prepare(checkpoint)
    for waiting in stages.unpersisted():
        waiting.perform()
    for transaction in stages.committable(permit(checkpoint)):
        transaction.commit(permit(checkpoint))
    stages.mark_committed(permit(checkpoint))
    return saved


DRIFTING: list[Batch] = [
    [{"a": 1}, {"a": 4000.5}, {"a": 3}],
    pl.DataFrame({"a": [True, None]}),
    [{"a": "5"}, {"a": 6}],
]


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_what_a_sink_cannot_store_exactly_goes_where_on_error_says(
    tmp_path: Path, on_error: OnError
) -> None:
    stages = sinking(tmp_path, on_error)
    stages.forward([{"a": 0}])
    for batch in DRIFTING:
        stages.forward(batch)
    checkpointed(stages, 1)
    assert stages.skipped == {"files": 3}
    assert stages.counts["files"] == (8, 5)
    assert pl.read_parquet(f"{tmp_path}/out/*.parquet")["a"].to_list() == [0, 1, 3, None, 6]
    kept = letters(tmp_path / "store", "files")
    refused = [{"a": 4000.5}, {"a": True}, {"a": "5"}] if on_error == "dead_letter" else []
    assert [letter["record"] for letter in kept] == refused
    assert all("operator 'files', column 'a': " in letter["error"] for letter in kept)


def test_a_sink_that_may_not_leave_anything_out_names_the_record(tmp_path: Path) -> None:
    stages = sinking(tmp_path, "fail")
    stages.forward([{"a": 0}])
    with pytest.raises(RefusedRecords) as refused:
        stages.forward(DRIFTING[0])
    told = stages.explain(refused.value)
    assert "operator 'files' (shard 0) failed: " in told.message
    assert "column 'a': 4000.5 is not an exact Int64" in told.message
    assert "record: {'a': 4000.5}" in told.message


@pytest.mark.parametrize("store", ["store", "another"])
def test_a_restored_sink_has_the_types_of_its_checkpoint(tmp_path: Path, store: str) -> None:
    stages = sinking(tmp_path, "skip")
    stages.forward([{"a": 0}])
    saved = checkpointed(stages, 1)
    heir = sinking(tmp_path, "skip", store, **saved)
    heir.forward(pl.DataFrame({"a": [4000.5, 7.0]}))
    heir.forward([{"a": 8}])
    checkpointed(heir, 2)
    assert heir.skipped == {"files": 2}
    assert pl.read_parquet(f"{tmp_path}/out/*.parquet")["a"].to_list() == [0, 8]
