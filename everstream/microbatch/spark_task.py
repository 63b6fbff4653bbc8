"""A stage of an epoch as Spark's Python workers run it: Arrow batches of rows in, and out.

What a worker keeps from one task to the next is in this module: its cache of shards, the plan it
has unpickled, and its hand on the store.
"""

import pickle
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from everstream.core.ids import ShardId
from everstream.core.points import Point
from everstream.errors import EnvironmentFault, EverstreamError, InternalError
from everstream.microbatch.cache import Cache
from everstream.microbatch.kills import Death, die
from everstream.microbatch.layout import Layout, Place
from everstream.microbatch.orders import ATTEMPTS, Failed, Order, ShardReport
from everstream.microbatch.rows import Row, report_row
from everstream.microbatch.task import Surroundings, Task
from everstream.state.signing import StoreKey
from everstream.state.store import CheckpointStore

COLUMNS = "partition int, header binary, payload binary"
_BATCH_BYTES = 16 << 20
_CACHE = Cache()
_LAYOUTS: dict[str, Layout] = {}
"""Of the newest run only."""
_STORES: dict[tuple[str, str | None], CheckpointStore] = {}


@dataclass(frozen=True)
class Stage:
    """The function of one stage: what `mapInArrow` is given."""

    level: int
    order: Order
    plan: Any
    """Spark's broadcast of the pickled plan."""
    store_url: str
    key_file: str | None = None
    deaths: tuple[Death, ...] = ()
    python_path: list[str] = field(default_factory=list)
    max_retries: int = 3
    """How often a process may die in one epoch before that is taken for a failure of the run."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        retry, index = context.attemptNumber(), context.partitionId()
        try:
            yield from _batched(self._perform(batches, index, retry, context.taskAttemptId()))
        except Exception as error:  # reported: Spark would try for ever, and say nothing
            who = ShardId(f"stage {self.level}", index)
            broken = InternalError("".join(traceback.format_exception(error)))
            told = error if isinstance(error, EverstreamError) else broken
            yield _batch([report_row(0, ShardReport(who, problem=Failed(told)))])

    def _perform(
        self, batches: Iterable[pa.RecordBatch], index: int, retry: int, task_id: int
    ) -> Iterator[Row]:
        sys.path.extend(path for path in self.python_path if path not in sys.path)
        around = Surroundings(self._store(), self.store_url, _CACHE)
        # Not the number of the attempt: if a stage is run again, that counts from nothing.
        attempt = task_id % ATTEMPTS
        place = Place(self.level, index)
        task = Task(self._layout(), self.order, place, attempt, around, retry)
        if retry > self.max_retries:
            raise EnvironmentFault(
                f"the process that runs {task.shard} has died {retry} times in epoch "
                f"{self.order.epoch}: look for what kills it, such as too little memory"
            )
        deaths = [death for death in self.deaths if death.shard == task.shard and not retry]
        if deaths:
            around.reached = partial(_die_there, deaths, task)
        if any(death.at is Point.IN_RESTORE for death in deaths):
            _CACHE.take(self.order, task.shard)  # so that there is a restore to die in
        # An input that is not read to its end costs the worker its life.
        yield from task.perform(_rows(batches, numbers=self.level == 0))

    def _layout(self) -> Layout:
        layout = _LAYOUTS.get(self.order.run)
        if layout is None:
            layout = Layout(pickle.loads(self.plan.value))
            _LAYOUTS.clear()
            _LAYOUTS[self.order.run] = layout
        return layout

    def _store(self) -> CheckpointStore:
        place = (self.store_url, self.key_file)
        if place not in _STORES:
            key = None if self.key_file is None else StoreKey.read(self.key_file)
            _STORES[place] = CheckpointStore.at(self.store_url, key)
        return _STORES[place]


def _die_there(deaths: list[Death], task: Task, shard: ShardId, point: Point) -> None:
    if any(death.at is point and task.records >= death.records for death in deaths):
        die()


def _rows(batches: Iterable[pa.RecordBatch], *, numbers: bool) -> Iterator[Row]:
    for batch in batches:
        if numbers:  # one for each partition: they only make Spark start the tasks
            continue
        headers, payloads = batch.column(1), batch.column(2)
        for index in range(batch.num_rows):
            yield Row(0, headers[index].as_py(), payloads[index].as_buffer())


def _batched(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Few rows to a batch if they are large: Spark holds a batch as a whole."""
    waiting: list[Row] = []
    size_bytes = 0
    for row in rows:
        waiting.append(row)
        size_bytes += len(row.payload) if row.payload is not None else 0
        if size_bytes > _BATCH_BYTES:
            yield _batch(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    payloads = [None if row.payload is None else memoryview(row.payload) for row in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.partition for row in rows], pa.int32()),
            pa.array([row.header for row in rows], pa.binary()),
            pa.array(payloads, pa.binary()),
        ],
        names=["partition", "header", "payload"],
    )
