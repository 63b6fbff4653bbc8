"""A stage of an epoch as Spark's Python workers run it: rows in, rows out.

This module holds what a worker keeps from one task to the next: its cache of shards, the unpickled
plan, and its connection to the store.
"""

import gc
import pickle
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from struct import Struct
from typing import Any, BinaryIO

from everstream.core.fault_points import Point
from everstream.core.ids import ShardId
from everstream.engine.microbatch.kills import Death, die
from everstream.engine.microbatch.layout import Layout, TaskPlacement
from everstream.engine.microbatch.orders import ATTEMPTS, Failed, Order, ShardReport
from everstream.engine.microbatch.resident import Cache
from everstream.engine.microbatch.rows import Row, pieces_of, report_row, row_in
from everstream.engine.microbatch.task import Surroundings, Task
from everstream.engine.spark.launcher import FramedSerializer
from everstream.errors import EnvironmentFault, EverstreamError, InternalError
from everstream.state.retention import DEFAULT, Retention
from everstream.state.signing import StoreKey, StoreUrl
from everstream.state.store import CheckpointStore

_LENGTH = Struct("!i")
_KEY = Struct("!iq")
_KEY_BYTES = 8
_LOOK_AT_ALL_EVERY = 500
_TASKS = count(1)
_CACHE = Cache()
_LAYOUTS: dict[str, Layout] = {}
"""Of the newest run only."""
_STORES: dict[tuple[str, str | None], tuple[CheckpointStore, StoreUrl]] = {}


class Arriving(FramedSerializer):
    """Rows as an earlier stage wrote them."""

    def loads(self, obj: bytes) -> Row:
        return row_in(obj)


class Starting(FramedSerializer):
    """The input of the first stage: no data, it only makes Spark start the tasks."""

    def loads(self, obj: bytes) -> None:
        return None


class Leaving(FramedSerializer):
    """Rows for Spark's shuffle, as pairs of a partition and bytes."""

    def dump_stream(self, iterator: Iterable[Row], stream: BinaryIO) -> None:
        for row in iterator:
            stream.write(_KEY.pack(_KEY_BYTES, row.partition))
            _write(row, stream)


class Ending(FramedSerializer):
    """Rows for the driver."""

    def dump_stream(self, iterator: Iterable[Row], stream: BinaryIO) -> None:
        for row in iterator:
            _write(row, stream)


def _write(row: Row, stream: BinaryIO) -> None:
    header, payload = pieces_of(row)
    stream.write(_LENGTH.pack(len(header) + payload.nbytes))
    stream.write(header)
    stream.write(payload)


def _spare_the_collector() -> None:
    """Keep Spark's garbage collection from traversing everything in this process.

    Spark collects after every task, which takes a tenth of a second with our libraries alone, and
    the next task waits for it. When a task starts, a collection has just been done, so all objects
    are in use and can be frozen. Now and then they are not, to find garbage that appeared since.
    """
    if next(_TASKS) % _LOOK_AT_ALL_EVERY:
        gc.freeze()
    else:
        gc.unfreeze()


@dataclass(frozen=True)
class StageTask:
    """The function of one stage, which Spark calls in each of its tasks."""

    level: int
    order: Order
    plan: Any
    """Spark's broadcast of the pickled plan."""
    store_url: str
    key_file: str | None = None
    deaths: tuple[Death, ...] = ()
    python_path: list[str] = field(default_factory=list)
    max_retries: int = 3
    """How often a process may die in one epoch before the run fails."""
    retention: Retention = DEFAULT

    def __call__(self, split: int, rows: Iterator[Row | None]) -> Iterator[Row]:
        from pyspark import TaskContext

        _spare_the_collector()
        context = TaskContext.get()
        assert context is not None
        retry, index = context.attemptNumber(), context.partitionId()
        try:
            yield from self._perform(rows, index, retry, context.taskAttemptId())
        except Exception as error:  # reported: Spark would retry forever without a message
            who = ShardId(f"stage {self.level}", index)
            broken = InternalError("".join(traceback.format_exception(error)))
            told = error if isinstance(error, EverstreamError) else broken
            yield report_row(0, ShardReport(who, problem=Failed(told)))

    def _perform(
        self, rows: Iterator[Row | None], index: int, retry: int, task_id: int
    ) -> Iterator[Row]:
        sys.path.extend(path for path in self.python_path if path not in sys.path)
        around = Surroundings(*self._store(), _CACHE, retention=self.retention)
        # Not the attempt number, which starts at 0 again when a stage is rerun.
        attempt = task_id % ATTEMPTS
        place = TaskPlacement(self.level, index)
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
            cached = _CACHE.take(self.order, task.shard)  # forces a restore, to die in it
            if cached is not None:
                cached.abandon()
        # Spark kills a worker that does not read its input to the end.
        yield from task.perform(row for row in rows if row is not None)

    def _layout(self) -> Layout:
        layout = _LAYOUTS.get(self.order.run)
        if layout is None:
            layout = Layout(pickle.loads(self.plan.value))
            _LAYOUTS.clear()
            _LAYOUTS[self.order.run] = layout
        return layout

    def _store(self) -> tuple[CheckpointStore, StoreUrl]:
        place = (self.store_url, self.key_file)
        if place not in _STORES:
            key = None if self.key_file is None else StoreKey.read(self.key_file)
            store = CheckpointStore.at(self.store_url, key)
            _STORES[place] = (store, StoreUrl(self.store_url, key))
        return _STORES[place]


def _die_there(deaths: list[Death], task: Task, shard: ShardId, point: Point) -> None:
    if any(death.at is point and task.records >= death.records for death in deaths):
        die()
