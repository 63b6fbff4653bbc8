"""Runs many simulations as one Spark job: spread over the cluster, with progress, resumable.

A `Task` is one simulated window. Each finished task leaves one small file in the results
folder, written under a temporary name and renamed; what is already there is not run again, so
a job that was stopped resumes where it stopped. The folder must be one that all executors reach
(any fsspec address); for a local master it is simply a folder.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import fsspec

from everstream_lab.queueing import paper
from everstream_lab.queueing.model import Model
from everstream_lab.queueing.simulation import Estimate, estimate, replicate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Variant = Literal["paper", "equation", "backlog", "long", "reading"]
"""The study's grid; with equation 4's intervals; with backlog; many coarse replications of the
failing cases for a precise mean; and those again for each reading of the text."""


class GridError(RuntimeError):
    """The grid cannot be run or read; the message says what to do."""


@dataclass(frozen=True)
class Task:
    """One simulated window of one case, or the mean of `batch` of them."""

    variant: Variant
    case: int
    rate_per_s: int
    replication: int
    tuples: int = paper.WINDOW_TUPLES
    coarse: int = 1
    batch: int = 1
    reading: int = 0
    """Index into `paper.READINGS`; 0 is ours."""

    @property
    def name(self) -> str:
        return (
            f"{self.variant}-case{self.case}-rate{self.rate_per_s}-window{self.tuples}"
            f"-coarse{self.coarse}-batch{self.batch}-reading{self.reading}"
            f"-replication{self.replication}"
        )

    @property
    def seed(self) -> int:
        """Differs by case, rate and replication; the same for all variants, to compare them."""
        return (self.case * 100 + self.rate_per_s // 1250) * 1000 + self.replication

    def model(self) -> Model:
        return paper.case_model(
            paper.CASES[self.case - 1],
            self.rate_per_s,
            self.tuples,
            intervals="equation" if self.variant == "equation" else "used",
            behaviour="backlog" if self.variant == "backlog" else "discard",
            reading=paper.READINGS[self.reading],
            coarse=self.coarse,
        )


@dataclass(frozen=True)
class Row:
    """What one task found; counts are in tuples of the study, whatever `coarse` was."""

    task: Task
    window_s: float
    lost: float
    unprocessed: float
    replayed: float
    recoveries: float
    mean_wait_s: tuple[float, ...]
    mean_latency_s: float
    catch_up_s: tuple[float, ...]
    """Of the recoveries that were caught up within the window."""
    late_share: float
    """Share of the tuples that took longer than a second."""
    cpu_s: float


def paper_tasks(
    replications: int = 10,
    tuples: int = paper.WINDOW_TUPLES,
    coarse: int = 1,
    extra_replications: int = 10,
) -> list[Task]:
    """The study's grid in full; and, where only times and losses count, coarser extras.

    The extras are equation 4's intervals, backlog, other window sizes, a long series of the
    failing cases, and the other readings of the text.
    """
    tasks = [
        Task("paper", case.number, rate, replication, tuples, coarse)
        for case in paper.CASES
        for rate in paper.RATES_PER_S
        for replication in range(replications)
    ]
    coarser = max(coarse, min(20, tuples // 100_000))
    for variant in ("equation", "backlog"):
        tasks += [
            Task(variant, case.number, rate, replication, tuples, coarser)
            for case in paper.CASES[1:]
            for rate in paper.RATES_PER_S
            for replication in range(extra_replications)
        ]
    tasks += [
        Task("paper", case, 5000, replication, tuples * tenths // 10, coarser)
        for case in (2, 3)
        for tenths in (1, 2, 4, 6, 8)
        for replication in range(extra_replications)
    ]
    coarsest = max(coarse, min(400, tuples // 10_000))
    tasks += [
        Task("long", case, rate, 100 + 100 * block, tuples, coarsest, batch=100)
        for case in (3, 4)
        for rate in paper.RATES_PER_S
        for block in range(4)
    ]
    tasks += [
        Task("reading", case, rate, 500, tuples, coarsest, batch=50, reading=reading)
        for reading, how in enumerate(paper.READINGS)
        for case in ((3, 4) if how.clocks == "own" else (4,))
        for rate in paper.RATES_PER_S
    ]
    return tasks


def run_task(task: Task) -> Row:
    """Simulate one window, or a batch of them."""
    started_s = time.process_time()
    results = replicate(task.model(), task.batch, task.seed)

    def mean(values: Iterable[float]) -> float:
        return statistics.fmean(values)

    return Row(
        task=task,
        window_s=mean(result.window_s for result in results),
        lost=mean(result.lost * task.coarse for result in results),
        unprocessed=mean(result.unprocessed * task.coarse for result in results),
        replayed=mean(result.replayed * task.coarse for result in results),
        recoveries=mean(result.recoveries for result in results),
        mean_wait_s=tuple(
            mean(waits) for waits in zip(*(r.mean_wait_s for r in results), strict=True)
        ),
        mean_latency_s=mean(result.mean_latency_s for result in results),
        catch_up_s=tuple(
            pause.catch_up_s
            for result in results
            for pause in result.pauses
            if pause.kind == "recovery" and pause.catch_up_s is not None
        ),
        late_share=mean(result.above_target_fraction for result in results),
        cpu_s=time.process_time() - started_s,
    )


def _filesystem(results: str) -> tuple[Any, str]:
    filesystem, root = fsspec.core.url_to_fs(results)
    return filesystem, root.rstrip("/")


def run_and_store(task: Task, results: str) -> None:
    """What one Spark task does."""
    filesystem, root = _filesystem(results)
    row = run_task(task)
    temporary = f"{root}/.{task.name}.{uuid.uuid4().hex}"
    with filesystem.open(temporary, "w") as file:
        json.dump(asdict(row), file)
    filesystem.mv(temporary, f"{root}/{task.name}.json")


def finished(tasks: Iterable[Task], results: str) -> set[str]:
    """The names of the tasks whose result is there."""
    filesystem, root = _filesystem(results)
    if not filesystem.exists(root):
        return set()
    names = {path.rsplit("/", 1)[-1] for path in filesystem.ls(root, detail=False)}
    return {task.name for task in tasks if f"{task.name}.json" in names}


def load(tasks: Sequence[Task], results: str) -> list[Row]:
    """Read the results of these tasks; all must be there."""
    missing = {task.name for task in tasks} - finished(tasks, results)
    if missing:
        raise GridError(
            f"{len(missing)} of {len(tasks)} results are missing in {results}, for example "
            f"{sorted(missing)[0]}: run the grid again to complete it"
        )
    filesystem, root = _filesystem(results)
    rows = []
    for task in tasks:
        path = f"{root}/{task.name}.json"
        with filesystem.open(path, "r") as file:
            try:
                data = json.load(file)
                data["task"] = Task(**data["task"])
                for key in ("mean_wait_s", "catch_up_s"):
                    data[key] = tuple(data[key])
                rows.append(Row(**data))
            except (ValueError, TypeError, KeyError) as error:
                raise GridError(f"{path} is damaged: delete it and run again") from error
    return rows


def run(
    tasks: Sequence[Task],
    results: str,
    spark: SparkSession,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Run what is missing as one Spark job and return all rows."""
    filesystem, root = _filesystem(results)
    filesystem.makedirs(root, exist_ok=True)
    done = finished(tasks, results)
    # The longest first, so that the job does not end with one slot waiting for the last.
    todo = sorted(
        (t for t in tasks if t.name not in done), key=lambda t: -t.tuples * t.batch / t.coarse
    )
    if progress is not None:
        progress(len(done), len(tasks))
    if todo:
        before = len(done)
        _one_job(
            spark,
            todo,
            results,
            lambda count: progress(before + count, len(tasks)) if progress else None,
        )
    return load(tasks, results)


def _one_job(
    spark: SparkSession, todo: Sequence[Task], results: str, progress: Callable[[int], None]
) -> None:
    context = spark.sparkContext
    group = f"everstream-grid-{uuid.uuid4().hex}"

    def submit() -> None:
        context.setJobGroup(group, "planning grid", interruptOnCancel=True)
        context.parallelize(todo, len(todo)).foreach(lambda task: run_and_store(task, results))

    def completed() -> int:
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage)

    with ThreadPoolExecutor(max_workers=1) as pool:
        job = pool.submit(submit)
        try:
            while not wait([job], timeout=0.5).done:
                progress(completed())
        except KeyboardInterrupt:
            context.cancelJobGroup(group)
            raise
    error = job.exception()
    if error is not None:
        last_line = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise GridError(
            f"the Spark job failed ({last_line}); finished results are kept, run it again to resume"
        ) from error
    progress(len(todo))


def summarise(
    rows: Iterable[Row], variant: Variant, tuples: int, reading: int = 0
) -> dict[tuple[int, int], paper.Point]:
    """Mean over the replications, by case and rate, for one variant, window and reading."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        task = row.task
        if (task.variant, task.tuples, task.reading) == (variant, tuples, reading):
            groups.setdefault((task.case, task.rate_per_s), []).append(row)
    points = {}
    for key, group in groups.items():
        window, lost = _estimate(group, "window_s"), _estimate(group, "lost")
        points[key] = paper.Point(
            window_s=window.mean,
            lost=lost.mean,
            unprocessed=_estimate(group, "unprocessed").mean,
            mean_wait_s=tuple(
                estimate([row.mean_wait_s[i] for row in group]).mean
                for i in range(len(group[0].mean_wait_s))
            ),
            window_half_width_s=window.half_width,
            lost_half_width=lost.half_width,
        )
    return points


def _estimate(rows: Sequence[Row], field: str) -> Estimate:
    return estimate([float(getattr(row, field)) for row in rows])
