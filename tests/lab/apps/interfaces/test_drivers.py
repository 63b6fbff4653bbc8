"""Every driver gives the sequential result, and times that can be true."""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everstream.connectors.generate.load import Load
from everstream.connectors.generate.sources import FromList
from everstream.core.plan import make_plan
from everstream.errors import UserError
from everstream.observability.monitoring.sampler import Monitor
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.source import EndOfStream
from everstream_lab.apps.cycle import perform as performing
from everstream_lab.apps.cycle.benchmarks import Benchmark, plan
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.interfaces.arrivals import Arrivals
from everstream_lab.apps.interfaces.engine import everstream, preloaded_sources, stamps_of
from everstream_lab.apps.interfaces.job import Done, Driver, Job, batch_at, farmed
from everstream_lab.apps.interfaces.loading import Sizes, Together, gathers, loaded, uncut
from everstream_lab.apps.interfaces.plain_spark import plain_spark
from everstream_lab.apps.interfaces.pools import processes, sequential, threads
from everstream_lab.apps.interfaces.probes import ENDING, NOTE
from everstream_lab.apps.interfaces.registry import driver_of
from everstream_lab.apps.interfaces.tasks import tasks
from tests.docs import simulated
from tests.lab.apps.tiny import APPLICATION, ORDERED, job, pipeline, right

LOCAL: list[Driver] = [sequential, threads, processes]


@pytest.mark.parametrize("driver", LOCAL)
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_driver_gives_the_sequential_result(
    driver: Driver, in_memory: bool, tmp_path: Path
) -> None:
    wanted = job(tmp_path, workers=2, batch=7, in_memory=in_memory)
    done = driver(wanted)
    assert done.items == 60 and done.wall_s > 0
    assert wanted.output.read_bytes() == b"".join(sorted(right(wanted.folder).splitlines(True)))


@pytest.mark.parametrize("driver", LOCAL)
def test_a_driver_keeps_the_order_of_an_ordered_application(driver: Driver, tmp_path: Path) -> None:
    wanted = job(tmp_path, ORDERED, workers=2, batch=4, clocked=True)
    driver(wanted)
    assert wanted.output.read_bytes() == right(wanted.folder)


@pytest.mark.parametrize("driver", LOCAL)
def test_times_are_taken_of_every_item_in_every_stage(driver: Driver, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    wanted = job(tmp_path, workers=2, batch=7, clocked=True, monitor=Monitor("50ms"))
    wanted.progress = lambda done, total: seen.append((done, total))
    done = driver(wanted)
    stamps = done.stamps
    assert stamps is not None and stamps.operators[:3] == ("source", "square", "in_words")
    assert len(stamps.latency) == 60 and stamps.took.shape == (60, len(stamps.operators))
    assert (stamps.took >= 0).all()
    assert (stamps.latency >= stamps.took.sum(axis=1)).all()
    assert seen[-1] == (60, 60) and done.monitored["records"][-1] == 60


def test_workers_encode_only_what_stands_in_the_result_as_it_is() -> None:
    assert farmed(APPLICATION).stages[-1] is APPLICATION.encode
    summed = farmed(APPLICATION.__class__(**{**vars(APPLICATION), "gather": sum}))
    assert summed.stages == APPLICATION.stages


def test_items_travel_by_count_by_time_or_in_growing_company(tmp_path: Path) -> None:
    wanted = job(tmp_path, batch=25)
    assert [len(task.span) for task in tasks(wanted, 60)] == [25, 25, 10]
    wanted.batch, wanted.batch_to = 1, 3
    sizes = [len(task.span) for task in tasks(wanted, 60)]
    assert (
        sum(sizes) == 60
        and sizes[0] == 1
        and max(sizes) == 3
        and sizes == sorted(sizes[:-1]) + sizes[-1:]
    )
    assert [batch_at(4, 0, position, 10) for position in (0, 9)] == [4, 4]


def test_a_load_gives_items_no_sooner_than_they_are_due(tmp_path: Path) -> None:
    wanted = job(tmp_path, batch=20, load=Load(400), catch_up=True)
    began = time.monotonic_ns()
    given = [*tasks(wanted, 60)]
    assert [len(task.span) for task in given] == [20, 20, 20]
    dues = [task.due for task in given if task.due is not None]
    gaps = [later - sooner for sooner, later in itertools.pairwise(dues)]
    assert gaps == [pytest.approx(50e6, abs=1e4)] * 2  # 20 items at 400 a second, by the due times
    assert time.monotonic_ns() - began >= 150e6


def test_an_interval_ends_a_batch_that_waits_for_company(tmp_path: Path) -> None:
    wanted = job(tmp_path, batch=60, load=Load(400), interval_s=0.02)
    given = [*tasks(wanted, 60)]
    assert len(given) > 1 and sum(len(task.span) for task in given) == 60


def test_a_load_under_which_the_last_item_never_comes_is_refused(tmp_path: Path) -> None:
    never = Load("decreasing", period="100ms", min=0, max=100)
    wanted = job(tmp_path, load=never)
    with pytest.raises(UserError, match="never be due"):
        list(tasks(wanted, 60))


def test_plain_spark_and_a_killed_pipeline_give_the_sequential_result(tmp_path: Path) -> None:
    wanted = job(tmp_path, workers=2, batch=5, clocked=True)
    done = plain_spark(wanted)
    expected = b"".join(sorted(right(wanted.folder).splitlines(True)))
    assert wanted.output.read_bytes() == expected
    assert done.stamps is not None and (done.stamps.latency > 0).all()

    wanted.output.unlink()
    wanted.checkpoint, wanted.kills = Coordinated(every="100ms"), ("square@10",)
    # Slow enough for the kill to find it at work, in company, and with a monitor that sees it.
    wanted.load, wanted.monitor = Load(100), Monitor("50ms")
    done = everstream(wanted)
    assert wanted.output.read_bytes() == expected
    assert len(done.recoveries) == 1
    assert done.stamps is not None and set(done.stamps.operators) >= {"numbers", "square"}
    assert len(done.stamps.latency) >= 60 and (done.stamps.latency > 0).all()
    assert done.monitored.height > 0


def test_an_unknown_interface_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(UserError, match="did you mean 'processes'"):
        driver_of("process")


def test_nothing_was_stamped_if_nobody_asked(tmp_path: Path) -> None:
    assert Arrivals(job(tmp_path), 60).stamps() is None


def test_sources_in_memory_or_in_growing_company_change_no_result(tmp_path: Path) -> None:
    wanted = job(tmp_path, batch=1, batch_to=4)
    made = {
        "memory": preloaded_sources(pipeline(wanted.folder, tmp_path / "memory", batch=7)),
        "company": loaded(pipeline(wanted.folder, tmp_path / "company", batch=1), wanted, 60),
        "whole": uncut(pipeline(wanted.folder, tmp_path / "whole", batch=7)),
    }
    for name, one in made.items():
        simulated.run(one, store=tmp_path / f"{name}-store")
        APPLICATION.finish(wanted.folder, tmp_path / name, wanted.output)
        expected = b"".join(sorted(right(wanted.folder).splitlines(True)))
        assert wanted.output.read_bytes() == expected


def test_batches_whose_size_was_asked_for_are_not_cut_for_slow_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = pipeline(job(tmp_path).folder, tmp_path / "parts")
    for one, cut in ((usual, True), (uncut(usual), False)):
        made = make_plan(one, 2)
        heads = [shard for shard in made.shards if shard.operator == "square"]
        assert heads and all(made.may_cut(shard) is cut for shard in heads)

    asked: list[Job] = []

    def refuse(wanted: Job) -> Done:
        asked.append(wanted)
        raise UserError("seen enough")

    monkeypatch.setattr(performing, "driver_of", lambda name: refuse)
    monkeypatch.setenv("EVERSTREAM_INPUTS", str(tmp_path / "inputs"))
    for batch in ("auto", "7", "1..4"):
        benchmark = Benchmark("tiny", "prime", "everstream", "test", Settings(batch=batch))
        with pytest.raises(UserError, match="seen enough"):
            performing.perform(plan(benchmark)[0], tmp_path, lambda what: lambda done, of: None)
    assert [one.whole for one in asked] == [False, True, True]


def test_a_batch_that_waits_for_company_is_read_again_after_a_failure() -> None:
    source = Together(FromList([*range(10)], batch=1), Sizes(4, 0, 10), 0.0)
    reader = source.open(0, 1)
    given = [batch for _ in range(6) if isinstance(batch := reader.read(), list)]
    assert given == [[0, 1, 2, 3]]  # two more have been read, and wait
    again = source.open(0, 1)
    again.seek(reader.offset)
    rest = []
    while not isinstance(batch := again.read(), EndOfStream):
        rest += [batch] if isinstance(batch, list) else []
    assert rest == [[4, 5, 6, 7], [8, 9]]


def test_items_of_which_nobody_knows_when_they_came_in_have_no_latency(tmp_path: Path) -> None:
    graph = pipeline(job(tmp_path).folder, tmp_path / "parts").graph
    given = [(10, 20, 2, 10, 1.0, 0), (20, 30, 1, 20, 2.0, 2)]
    write_notes(tmp_path, "numbers", given)
    write_notes(tmp_path, "square", [(30, 40, 2, 10, 1.0, -1), (40, 50, 1, 20, 2.0, -1)])
    restored, known = (50, 60, 1, 0, 0.0, -1), (70, 80, 2, 10, 1.0, -1)
    write_notes(tmp_path, "in_words", [restored, known])
    stamps = stamps_of(graph, tmp_path, 3)
    assert stamps is not None and stamps.operators == ("numbers", "square", "in_words")
    assert stamps.latency.tolist() == [70, 70] and stamps.numbers.tolist() == [0, 1]


def write_notes(folder: Path, part: str, rows: Sequence[tuple[float, ...]], shard: int = 1) -> None:
    data = np.array(rows, NOTE).tobytes()
    (folder / f"{part}.{shard}{ENDING}").write_bytes(data)


def test_rows_of_replicas_carry_the_identity_of_their_items(tmp_path: Path) -> None:
    """Four items; one replica takes long for the first and third, the other is quick with the rest."""
    graph = pipeline(job(tmp_path).folder, tmp_path / "parts").graph
    given = [(n, n + 1, 1, n, float(n + 1), n) for n in range(4)]
    write_notes(tmp_path, "numbers", given)
    write_notes(tmp_path, "square", [(10, 60, 1, 0, 1.0, -1), (60, 120, 1, 2, 3.0, -1)], 1)
    write_notes(tmp_path, "square", [(11, 16, 1, 1, 2.0, -1), (16, 22, 1, 3, 4.0, -1)], 2)
    words = [(200, 201, 1, 0, 3.0, -1), (201, 203, 1, 0, 1.0, -1), (203, 206, 1, 0, 4.0, -1),
             (206, 210, 1, 0, 2.0, -1)]  # fmt: skip
    write_notes(tmp_path, "in_words", words)
    stamps = stamps_of(graph, tmp_path, 4)
    assert stamps is not None and stamps.operators == ("numbers", "square", "in_words")
    assert stamps.took[:, 1].tolist() == [50, 5, 60, 6]
    assert stamps.took[:, 2].tolist() == [2, 4, 1, 3]
    assert stamps.began.tolist() == [0, 1, 2, 3] and stamps.ended.tolist() == [203, 210, 201, 206]
    assert stamps.left is not None and stamps.left.tolist() == [203, 210, 201, 206]
    assert stamps.overtaken.tolist() == [1, 2, 0, 0] and stamps.held_back == 2


def test_of_an_item_that_was_done_again_the_last_time_counts(tmp_path: Path) -> None:
    graph = pipeline(job(tmp_path).folder, tmp_path / "parts").graph
    given = [(0, 1, 2, 0, 1.0, 0), (1, 2, 2, 1, 2.0, 2), (50, 51, 2, 50, 3.0, 2)]
    write_notes(tmp_path, "numbers", given)
    # A batch in two pieces, one that was lost with its replica, and the same items again.
    rows = [(10, 14, 1, 0, 1.0, -1), (14, 20, 1, 0, 1.0, -1), (20, 24, 2, 1, 2.0, -1),
            (60, 70, 2, 50, 3.0, -1)]  # fmt: skip
    write_notes(tmp_path, "square", rows)
    write_notes(tmp_path, "in_words", [(0, 1, 1, 0, 1.0, -1)])  # sums are no items
    stamps = stamps_of(graph, tmp_path, 4)
    assert stamps is not None and stamps.operators == ("numbers", "square")
    assert stamps.took[:, 1].tolist() == [4, 6, 5, 5]
    assert stamps.began.tolist() == [0, 0, 50, 50] and stamps.ended.tolist() == [14, 20, 70, 70]
    write_notes(tmp_path, "square", [*rows, (80, 90, 3, 0, 1.0, -1)])
    assert stamps_of(graph, tmp_path, 4) is None, "more records than items: they are others"


class SlowItems(list[int]):
    """Reading an item takes a second of a clock that only reading moves."""

    now_ns = 0

    def __getitem__(self, position: Any) -> Any:
        SlowItems.now_ns += 1_000_000_000
        return super().__getitem__(position)


@pytest.mark.parametrize(
    ("batch", "interval_s", "sizes"),
    [
        (5, 2.0, [2, 2, 2, 2, 2, 1]),
        (5, 9.0, [5, 5, 1]),
        (3, 3.0, [3, 3, 3, 2]),
        (5, 0.0, [5, 5, 1]),
    ],
)
def test_without_a_load_a_batch_is_closed_by_count_or_by_the_time_that_reading_took(
    batch: int, interval_s: float, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job(tmp_path, batch=batch, interval_s=interval_s)
    slow = dataclasses.replace(wanted.application, items=lambda folder: SlowItems(range(11)))
    monkeypatch.setattr("time.monotonic_ns", lambda: SlowItems.now_ns)
    spans = [task.span for task in tasks(dataclasses.replace(wanted, application=slow), 11)]
    assert [len(span) for span in spans] == sizes
    assert [position for span in spans for position in span] == [*range(11)]


@pytest.mark.parametrize("driver", ["sequential", "threads"])
def test_batches_by_time_without_a_load_give_the_same_result(driver: str, tmp_path: Path) -> None:
    wanted = job(tmp_path, batch=7, interval_s=1e-9)
    assert driver_of(driver)(wanted).items == 60
    assert wanted.output.read_bytes() == b"".join(sorted(right(wanted.folder).splitlines(True)))


def test_a_pipeline_puts_items_together_by_time_without_a_load(tmp_path: Path) -> None:
    wanted = job(tmp_path, batch=7, interval_s=1.0)
    assert gathers(wanted)
    assert not gathers(dataclasses.replace(wanted, interval_s=0.0))
    assert not gathers(dataclasses.replace(wanted, load=Load(10)))
    changed = loaded(pipeline(wanted.folder, tmp_path / "parts", batch=1), wanted, 60)
    (source,) = [node.what for node in changed.graph.nodes.values() if node.name == "numbers"]
    assert isinstance(source, Together)
    reader = source.open(0, 1)
    sizes = []
    while not isinstance(batch := reader.read(), EndOfStream):
        if batch is not None:
            sizes.append(len(batch))
    assert sum(sizes) == 60 and max(sizes) <= 7
