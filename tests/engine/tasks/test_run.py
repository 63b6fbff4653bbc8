"""Pipelines on local Spark: every kind of edge, operator and ending."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.core.orders import Outcome, Phase
from everstream.errors import OperatorError
from everstream.events import OperatorFailed, WorkersLimited
from tests.engine.tasks.running import Notes, run


def test_columns_flow_through_polars_expressions() -> None:
    pipeline = es.Pipeline("columns")
    (
        pipeline.source(es.Range(100_000, column="n"), shards=2)
        .filter(pl.col("n") % 2 == 0)
        .with_columns(square=pl.col("n") ** 2)
        .key_by("n")
        .select("square", last=pl.col("n") % 10, shards=3)
        .collect()
    )
    frame = run(pipeline).to_polars()
    want = pl.DataFrame({"n": range(0, 100_000, 2)}).select(
        square=pl.col("n") ** 2, last=pl.col("n") % 10
    )
    assert frame.sort("square").equals(want.sort("square"))


def test_branches_unions_and_several_sinks_each_get_their_own() -> None:
    pipeline = es.Pipeline("branches")
    low = pipeline.source(es.Range(1000), name="low")
    high = pipeline.source(es.Range(1000, 3000), name="high", shards=2)
    small, large = low.union(high).branch(lambda n: n < 1500)
    small.collect(name="small")
    large.map(lambda n: -n, shards=3).collect(name="large")
    result = run(pipeline)
    assert Counter(result.collected("small")) == Counter(range(1500))
    assert Counter(result.collected("large")) == Counter(-n for n in range(1500, 3000))


def test_broadcast_reaches_every_shard_and_on_demand_reaches_one() -> None:
    pipeline = es.Pipeline("delivery")
    numbers = pipeline.source(es.Range(500, batch=10))
    numbers.broadcast().map(lambda n: n, name="every", shards=3).collect(name="thrice")
    numbers.on_demand().map(lambda n: n, name="one", shards=3).collect(name="once")
    result = run(pipeline)
    assert Counter(result.collected("thrice")) == Counter(dict.fromkeys(range(500), 3))
    assert Counter(result.collected("once")) == Counter(range(500))


def test_an_ordered_sink_shows_the_order_of_the_source_behind_a_farm_with_kills() -> None:
    pipeline = es.Pipeline("ordered")
    numbers = pipeline.source(es.Paced(es.Range(20_000, batch=50), rate=20_000))
    farm = numbers.on_demand().filter(lambda n: n % 7 != 0, name="work", shards=4)
    farm.on_demand().collect(ordered=True)
    result = run(pipeline, checkpoint=es.Coordinated(every="100ms"), kill=["work:2@200"], workers=6)
    assert result.collected() == [n for n in range(20_000) if n % 7 != 0]
    assert len(result.recoveries) == 1


class Hooked(es.Operator):
    """Uses every hook and both kinds of state."""

    seen = es.Keyed[int](init=int)

    def __init__(self, log: str) -> None:
        self.log = log

    def note(self, text: str) -> None:
        with open(self.log, "a") as file:
            file.write(text + "\n")

    def on_start(self, ctx: es.Context) -> None:
        self.note("start")

    def process(self, record: Any, ctx: es.Context) -> None:
        if record == 13:
            raise ValueError("unlucky")
        self.seen[ctx.key] += 1
        ctx.state.put("total", ctx.state.get("total", 0) + 1)

    def on_error(self, error: Exception, record: Any, ctx: es.Context) -> None:
        self.note(f"error {error} {record}")

    def on_end(self, ctx: es.Context) -> None:
        for key, count in self.seen.items():
            ctx.emit((key, count))
        ctx.emit(("total", ctx.state.get("total")))

    def on_stop(self, ctx: es.Context) -> None:
        self.note("stop")

    def on_checkpoint(self, checkpoint: int, ctx: es.Context) -> None:
        self.note("checkpoint")

    def on_commit(self, checkpoint: int, ctx: es.Context) -> None:
        self.note("commit")


def test_an_operator_of_ones_own_has_all_hooks_and_both_kinds_of_state(tmp_path: Path) -> None:
    pipeline = es.Pipeline("hooks")
    log = str(tmp_path / "log")
    numbers = pipeline.source(es.Range(100))
    numbers.key_by(lambda n: n % 3).process(Hooked(log), name="hooked").collect()
    result = run(pipeline)
    assert dict(result.collected()) == {0: 34, 1: 32, 2: 33, "total": 99}
    calls = Path(log).read_text().splitlines()
    assert calls == ["start", "error unlucky 13", "checkpoint", "commit", "stop"]


def test_output_comes_back_as_a_spark_data_frame() -> None:
    from pyspark.sql import SparkSession

    pipeline = es.Pipeline("to-spark")
    words = pipeline.source(es.FromList(["a", "b", "a"]))
    words.key_by(lambda w: w).fold(init=int, update=lambda n, _: n + 1).collect()
    result = run(pipeline)
    spark = SparkSession.builder.getOrCreate()
    rows = {tuple(row) for row in result.to_spark(spark).collect()}
    assert rows == {("a", 1), ("b", 1), ("a", 2)}


def test_an_exception_in_user_code_ends_the_run_with_operator_record_and_traceback() -> None:
    pipeline = es.Pipeline("broken")
    numbers = pipeline.source(es.Range(1000))
    numbers.on_demand().map(lambda n: 1 // (n - 500), name="divide").collect()
    notes = Notes()
    with pytest.raises(es.RunFailed) as failure:
        run(pipeline, listener=notes)
    cause = failure.value.cause
    assert isinstance(cause, OperatorError)
    assert (cause.operator, cause.record) == ("divide", "500")
    assert "ZeroDivisionError" in cause.traceback
    assert "divide" in str(failure.value) and "ZeroDivisionError" in str(failure.value)
    failures = [failed.shards for failed in notes.of(OperatorFailed)]
    assert failures == [("divide:0",)], "tried again once"
    assert "not retried a third time" in str(failure.value)


def test_a_sink_that_is_away_for_a_while_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    """It comes back when somebody says that a pause has begun: so the pause was needed."""
    back = tmp_path / "back"

    class Outage(Notes):
        def on_event(self, event: es.RunEvent) -> None:
            super().on_event(event)
            if isinstance(event, OperatorFailed) and event.retry_s == 1.0:
                back.touch()

    def show(record: int) -> None:
        if not back.exists():
            raise ConnectionError("the database is away")

    pipeline = es.Pipeline("away")
    pipeline.source(es.Range(100)).sink(es.Callback(show), name="show")
    notes = Outage()
    result = run(pipeline, max_restarts=2, listener=notes)
    assert result.outcome is Outcome.FINISHED and result.records_out == 100
    assert len(notes.of(OperatorFailed)) == 2


@pytest.mark.parametrize("engine", ["tasks", "microbatch"])
def test_an_error_of_a_listener_ends_the_run(engine: Any) -> None:
    def refuse(event: es.RunEvent) -> None:
        if isinstance(event, es.events.RunStarted):
            raise ValueError("of no use")

    pipeline = es.Pipeline("refused").source(es.Range(10)).collect()
    with pytest.raises(ValueError, match="of no use"):
        run(pipeline, listener=refuse, engine=engine)


def test_a_result_keeps_the_events_with_a_sentence(tmp_path: Path) -> None:
    def build() -> es.Pipeline:
        pipeline = es.Pipeline("kept")
        pipeline.source(es.Paced(es.Range(10**9), rate=1000), name="numbers").collect()
        return pipeline

    every = es.Coordinated(every="100ms")
    first, heard = build(), Notes()
    stopped = run(
        first,
        store=tmp_path,
        checkpoint=every,
        workers=1,
        kill=["numbers@100"],
        listener=heard,
        until=lambda status: bool(status.recoveries) and status.phase is Phase.RUNNING,
    )
    assert stopped.events == heard.events and stopped.notes == heard.texts
    (killing,), (lost,) = heard.of(es.events.Killing), heard.of(es.events.WorkerLost)
    assert (killing.kill, lost.worker, lost.injected) == ("numbers:0@100", 0, True)
    second = run(build(), store=tmp_path, checkpoint=every, until=lambda status: status.epoch > 0)
    (resumed,) = [event for event in second.events if isinstance(event, es.events.Resumed)]
    assert resumed.epoch == second.resumed_from > 0


def test_a_finished_pipeline_is_not_run_again_unless_fresh(tmp_path: Path) -> None:
    def build() -> es.Pipeline:
        pipeline = es.Pipeline("once")
        pipeline.source(es.Range(10)).sink(es.JsonLines(str(tmp_path / "out")))
        return pipeline

    first = run(build(), store=tmp_path / "store")
    notes = Notes()
    second = run(build(), store=tmp_path / "store", listener=notes)
    assert first.outcome is second.outcome is Outcome.FINISHED
    assert second.records_in == 10
    assert any("already finished" in text and "--fresh" in text for text in notes.texts)
    third = run(build(), store=tmp_path / "store", fresh=True)
    assert third.records_in == 10
    lines = [p.read_text() for p in (tmp_path / "out").glob("part-*")]
    assert "".join(lines).split() == [str(n) for n in range(10)]


def test_an_operator_that_moved_in_the_graph_keeps_its_state(tmp_path: Path) -> None:
    def build(moved: bool) -> es.Pipeline:
        pipeline = es.Pipeline("moving")
        # Slow at first, so that the first run is stopped in the middle.
        rate = 4_000 if moved else 200
        stream = pipeline.source(es.Paced(es.Range(4_000), rate=rate), name="numbers")
        if moved:
            stream = stream.map(lambda n: n, name="added").on_demand()
        keyed = stream.key_by(lambda n: 0)
        keyed.fold(init=int, update=lambda c, n: c + 1, name="count").collect()
        return pipeline

    stopped = run(build(False), store=tmp_path, until=lambda snapshot: snapshot.records_read > 0)
    assert stopped.outcome is Outcome.STOPPED
    result = run(build(True), store=tmp_path)
    assert result.resumed_from == stopped.checkpoints[-1].epoch
    assert Counter(result.collected()) == Counter((0, n + 1) for n in range(4_000))


def test_without_checkpoints_a_failure_starts_over_and_the_end_is_still_exact() -> None:
    pipeline = es.Pipeline("none")
    numbers = pipeline.source(es.Paced(es.Range(10_000), rate=10_000))
    numbers.on_demand().map(lambda n: n, name="copy").collect()
    result = run(pipeline, checkpoint=None, kill=["copy@3000"])
    assert Counter(result.collected()) == Counter(range(10_000))
    assert [report.from_epoch for report in result.recoveries] == [0]


@pytest.mark.spark("only Spark has slots")
def test_more_workers_than_slots_are_packed_and_said_so() -> None:
    pipeline = es.Pipeline("packed")
    pipeline.source(es.Range(1000), shards=8).key_by(lambda n: n).map(lambda n: n).collect()
    notes = Notes()
    result = run(pipeline, workers=50, listener=notes)
    assert Counter(result.collected()) == Counter(range(1000))
    (limited,) = notes.of(WorkersLimited)
    assert (limited.asked, limited.available) == (50, 6)


def test_a_checkpoint_is_taken_every_so_many_records() -> None:
    pipeline = es.Pipeline("by-records")
    endless = es.FromFunction(lambda start, stop: list(range(start, stop)), batch=100)
    pipeline.source(es.Paced(endless, rate=20_000), name="numbers").collect()
    result = run(
        pipeline,
        checkpoint=es.Coordinated(every_records=2_000),
        until=lambda snapshot: snapshot.epoch >= 3,
    )
    read = [0]
    for manifest in result.checkpoints[:-1]:
        read.append(sum(r.counts["numbers"][1] for r in manifest.records.values()))
    assert all(later - earlier >= 2_000 for earlier, later in itertools.pairwise(read))


def test_frames_travel_over_encrypted_tcp_just_as_well() -> None:
    pipeline = es.Pipeline("tcp")
    numbers = pipeline.source(es.Paced(es.Range(20_000, column="n"), rate=20_000), name="numbers")
    numbers.key_by("n").map(lambda row: row["n"], name="copy", shards=3).collect()
    result = run(
        pipeline,
        transport="tcp",
        checkpoint=es.Coordinated(every="200ms"),
        kill=["copy:1@2000"],
    )
    assert Counter(result.collected()) == Counter(range(20_000))
    # On a slow machine the others may notice the cut before Spark starts the next attempt.
    assert [report.injected for report in result.recoveries].count(True) == 1


def test_a_session_that_lets_no_task_fail_is_refused_with_the_fix() -> None:
    from everstream.engine.spark.context import check_context

    class Context:
        master = "local[2]"

        def getConf(self) -> dict[str, str]:
            return {}

    with pytest.raises(es.UserError, match=r"local\[2,1000000\]"):
        check_context(Context())  # type: ignore[arg-type]


def test_a_pipeline_that_cannot_be_loaded_on_its_workers_is_not_tried_for_ever() -> None:
    class NotThere:
        def __reduce__(self) -> Any:
            return (__import__, ("a_module_nobody_has",))

    broken = NotThere()
    pipeline = es.Pipeline("unloadable")
    pipeline.source(es.Range(10)).map(lambda n: (n, broken)).collect()
    with pytest.raises(es.RunFailed, match=r"cannot be loaded .*a_module_nobody_has"):
        run(pipeline, max_restarts=1)
