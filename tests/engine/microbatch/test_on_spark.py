"""Micro-batches on local Spark: the same output as the other engine, the same stores, and kills."""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.core.orders import Outcome
from everstream.engine.spark.context import make_context
from everstream.errors import OperatorError, RunFailed
from everstream.events import Killing
from everstream.pipeline.checkpointing import EngineName
from tests.engine.microbatch.pipelines import SMALL, counted, counting
from tests.engine.tasks.running import MASTER, Notes


def run(pipeline: es.Pipeline, engine: EngineName = "microbatch", **options: Any) -> es.RunResult:
    return pipeline.run(
        **{"engine": engine, "master": MASTER, "checkpoint": SMALL, "progress": False, **options}
    )


def everything(bad: Path) -> es.Pipeline:
    """Most of what a pipeline can have."""
    bad.write_text("".join(f"{n if n % 50 else 'x'}\n" for n in range(400)))
    pipeline = es.Pipeline("everything")
    texts = pipeline.source(es.TextLines(str(bad)), name="texts")
    parsed = texts.map(int, name="parse", on_error="dead_letter")
    more = pipeline.source(es.Range(1000, 1400, batch=30), name="more", shards=2)
    low, high = parsed.union(more).branch(lambda n: n < 1200)
    low.broadcast().map(lambda n: n, name="copies", shards=2).collect(name="copied")
    high.on_demand().filter(lambda n: n % 3 > 0, name="farm", shards=3).collect(name="farmed")
    more.on_demand().map(lambda n: -n, name="negate", shards=2).collect(name="negated")
    rows = pipeline.source(es.Range(600, column="t", batch=40), name="rows", shards=2)
    timed = rows.with_columns(k=pl.col("t") % 3).event_time("t", lateness=0, name="time", unit="us")
    window = timed.key_by("k").window(es.Tumbling(100 / 1e6))
    window.aggregate(n=es.count(), name="windows", shards=2).collect(name="counts")
    ordered = pipeline.source(es.Range(300, batch=7), name="numbered")
    ordered.on_demand().map(lambda n: n * 2, name="double", shards=3).on_demand().collect(
        name="in-order", ordered=True
    )
    return pipeline


def outputs(result: es.RunResult) -> dict[str, Counter[str]]:
    return {name: Counter(map(repr, result.collected(name))) for name in result.outputs}


def test_both_engines_give_the_same_output_of_most_of_what_a_pipeline_can_have(
    tmp_path: Path,
) -> None:
    results = {}
    for engine in ("tasks", "microbatch"):
        pipeline = everything(tmp_path / "bad.txt")
        results[engine] = run(pipeline, engine, checkpoint=es.Coordinated(every_records=500))
    want, got = results["tasks"], results["microbatch"]
    assert outputs(got) == outputs(want)
    assert got.collected("in-order") == want.collected("in-order") == [n * 2 for n in range(300)]
    assert (got.records_in, got.records_out) == (want.records_in, want.records_out)
    assert got.skipped == want.skipped == {"parse": 8}
    assert got.checkpoint_count > 1, "it took several epochs"


def test_a_store_goes_from_one_engine_to_the_other_and_back(tmp_path: Path) -> None:
    store = tmp_path / "store"

    def enough(records: int) -> Any:
        return lambda snapshot: snapshot.records_read >= records

    first = run(counting(), store=store, until=enough(600))
    assert first.outcome is Outcome.STOPPED and 0 < first.records_in < 2000
    second = counting().run(
        master=MASTER,
        store=store,
        checkpoint=es.Coordinated(every="100ms"),
        progress=False,
        until=enough(first.records_in + 1),
    )
    assert second.resumed_from == first.checkpoints[-1].epoch
    third = run(counting(), store=store)
    assert third.outcome is Outcome.FINISHED
    assert Counter(third.collected()) == counted()


def test_workers_killed_in_the_middle_of_an_epoch_change_nothing() -> None:
    told = Notes()
    kills = ["numbers:1@before-snapshot", "count:0@after-prepare#2", "count:1@in-restore#3"]
    result = run(counting(), listener=told, kill=kills)
    killed = sorted(event.operator for event in told.of(Killing))
    assert killed == ["count", "count", "numbers"]
    assert sorted(report.shards for report in result.recoveries if report.injected) == [
        ("count:0",),
        ("count:1",),
        ("numbers:1",),
    ]
    for report in result.recoveries:
        restored_s, caught_up_s = report.restored_s or 0.0, report.caught_up_s or 0.0
        assert report.detected_s <= restored_s <= caught_up_s
    assert Counter(result.collected()) == counted()


def test_an_operator_that_fails_names_itself_and_the_run_ends() -> None:
    pipeline = es.Pipeline("failing")
    pipeline.source(es.Range(10)).map(lambda n: 1 // (n - 5), name="divide").collect()
    with pytest.raises(RunFailed) as raised:
        run(pipeline)
    assert isinstance(raised.value.cause, OperatorError)
    assert raised.value.cause.operator == "divide" and raised.value.cause.record == "5"


def test_hooks_hear_of_every_epoch_and_of_the_end(tmp_path: Path) -> None:
    log = tmp_path / "hooks"

    class Hooked(es.Operator):
        def process(self, record: int, ctx: es.Context) -> None:
            ctx.emit(record)

        def on_checkpoint(self, number: int, ctx: es.Context) -> None:
            self.say(f"checkpoint {number}")

        def on_commit(self, number: int, ctx: es.Context) -> None:
            self.say(f"commit {number}")

        def on_stop(self, ctx: es.Context) -> None:
            self.say("stop")

        def say(self, text: str) -> None:
            with log.open("a") as file:
                file.write(text + "\n")

    pipeline = es.Pipeline("hooked")
    pipeline.source(es.Range(1500, batch=50), name="numbers").process(Hooked()).collect()
    result = run(pipeline)
    said = log.read_text().splitlines()
    last = result.checkpoints[-1].epoch
    assert last > 1
    assert {f"{what} {n}" for what in ("checkpoint", "commit") for n in range(1, last + 1)} <= {
        *said
    }
    assert said[-1] == "stop"


def test_a_shard_comes_back_to_the_process_that_has_its_state(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    class Noting(es.Operator):
        def on_start(self, ctx: es.Context) -> None:
            with starts.open("a") as file:
                file.write(f"{ctx.shard}\n")

        def process(self, record: int, ctx: es.Context) -> None:
            ctx.emit(record)

    pipeline = es.Pipeline("affinity")
    numbers = pipeline.source(es.Range(2000, batch=50), name="numbers", shards=2)
    numbers.key_by(lambda n: n % 7).process(Noting(), name="note", shards=2).collect()
    result = run(pipeline)
    assert result.checkpoint_count > 2
    assert sorted(starts.read_text().split()) == ["0", "1"], "each is restored once"


def test_a_finished_pipeline_is_not_run_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(counting(), store=store)
    told = Notes()
    again = run(counting(), store=store, listener=told)
    assert again.outcome is Outcome.FINISHED
    assert Counter(again.collected()) == counted()
    assert any("has already finished" in text for text in told.texts)


def test_an_epoch_is_one_job_of_spark_with_the_names_of_its_operators(tmp_path: Path) -> None:
    pipeline = es.Pipeline("seen-in-spark")
    numbers = pipeline.source(es.Range(1_000, batch=50), name="numbers", shards=2)
    keyed = numbers.key_by(lambda number: number % 7)
    keyed.fold(init=int, update=lambda n, _: n + 1, name="count", shards=2).collect(name="out")
    result = run(pipeline, store=tmp_path)
    told = make_context(MASTER, "test")._jsc.sc().statusStore()
    jobs = [told.jobsList(None).apply(n) for n in range(told.jobsList(None).size())]
    ours = {
        job.description().get(): job.stageIds() for job in jobs if job.description().isDefined()
    }
    for checkpoint in result.checkpoints:
        stages = ours[f"everstream seen-in-spark: epoch {checkpoint.epoch}: numbers → count"]
        in_order = sorted(stages.apply(n) for n in range(stages.size()))
        names = [told.lastStageAttempt(number).name() for number in in_order]
        assert names == ["numbers", "count"]
    epochs = [name for name in ours if name.startswith("everstream seen-in-spark: epoch")]
    assert len(epochs) == len(result.checkpoints)
