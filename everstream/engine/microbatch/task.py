"""A task: one shard's part of one epoch, from incoming rows to outgoing rows.

It takes its shard from the worker's cache or restores it, sorts the frames, lets the shard work and
save, and ends with a report. Errors are reported too, instead of raised: Spark would only retry the
same task, and the driver can decide better.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from everstream.core.fault_points import Point
from everstream.core.frames import FrameKind
from everstream.core.ids import ShardId
from everstream.engine.microbatch.layout import Layout, TaskPlacement
from everstream.engine.microbatch.orders import (
    Failed,
    Incomplete,
    Order,
    Problem,
    ShardReport,
    Unreadable,
)
from everstream.engine.microbatch.resident import Cache, Resident, TaskEngineApi
from everstream.engine.microbatch.rows import (
    NOTHING,
    Arrived,
    Digest,
    Row,
    arrived,
    header_of,
    in_order,
    parsed,
    position_in,
    report_row,
)
from everstream.errors import CorruptObject
from everstream.runtime.measuring import read_meter
from everstream.state.retention import DEFAULT, Retention
from everstream.state.store import CheckpointStore


def _no_point(shard: ShardId, point: Point) -> None:
    """There is no kill."""


@dataclass
class Surroundings:
    """What a worker process provides to its tasks; tests provide replacements."""

    store: CheckpointStore
    store_url: str
    cache: Cache
    clock_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time
    reached: Callable[[ShardId, Point], None] = _no_point
    retention: Retention = DEFAULT

    def engine(self) -> TaskEngineApi:
        clocks = (self.clock_s, self.wall_s)
        return TaskEngineApi(self.store, self.store_url, *clocks, self.reached, self.retention)


@dataclass
class Task:
    layout: Layout
    order: Order
    place: TaskPlacement
    attempt: int
    around: Surroundings
    retry: int = 0
    """How many earlier attempts were lost, according to Spark."""
    _sent: dict[int, Digest] = field(default_factory=dict)
    _resident: Resident | None = None
    _kept: bool = False
    """The shard is in the cache again, for the next epoch."""

    @property
    def shard(self) -> ShardId:
        return self.layout.levels[self.place.level][self.place.index]

    @property
    def records(self) -> int:
        """Records that the shard has processed so far; for a source: has emitted."""
        if self._resident is None:
            return 0
        return max(self._resident.runner.chain.counts.get(self.shard.operator, (0, 0)))

    def perform(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows for the next stage, including rows that pass through to later stages."""
        mine: list[Arrived] = []
        for row in rows:
            position = position_in(row.header)
            channel = None if position is None else self.layout.plan.channels[position]
            if channel is not None and channel.receiver == self.shard:
                mine.append(parsed(row.header, row.payload))
            else:
                yield row._replace(partition=self.layout.next_partition(self.place, channel))
        if self.order.finished(self.shard) and not self.order.closing:
            return
        began_s = self.around.clock_s()
        rolls_back = self.around.cache.is_ahead(self.order, self.shard)
        cached = self.around.cache.take(self.order, self.shard)
        try:
            yield from self._with(cached, self._reason(rolls_back), in_order(mine), began_s)
        finally:
            if self._resident is not None and not self._kept:
                self._resident.abandon()

    def _reason(self, rolls_back: bool) -> str:
        """What has failed, if the shard must be built anew."""
        if self.order.reason:
            return self.order.reason
        if self.retry:
            return f"{self.shard}: its process died in epoch {self.order.epoch}"
        return f"epoch {self.order.epoch} is run again" if rolls_back else ""

    def _with(
        self, resident: Resident | None, reason: str, frames: list[Arrived], began_s: float
    ) -> Iterator[Row]:
        received = digests(frames)
        missing = "" if self.order.closing else self._missing(frames)
        cached = resident is not None
        report = ShardReport(
            self.shard,
            received=received,
            retry=self.retry,
            cached=cached,
            began_at=self.around.wall_s(),
        )
        if missing:
            if resident is not None:  # untouched: it can still continue from here
                self.around.cache.keep(self.order, resident)
            yield self._report(replace(report, problem=Incomplete(missing)))
            return
        if resident is None:
            generation = self.order.generation_of(self.attempt)
            attempt = self.order.attempt + self.retry
            engine = self.around.engine()
            resident = Resident(
                self.layout, self.shard, self.order, generation, engine, reason, attempt
            )
        report = replace(report, restored_s=self.around.clock_s() - began_s)
        self._resident, processed = resident, 0
        resident.engine.reached = self.around.reached
        problem: Problem | None
        try:
            resident.hear(self.order.stable)
            if cached:
                resident.receive_carried(self.order)
            if self.order.closing:
                resident.leave()
            else:
                processed = resident.go_through(self.order, frames)
            problem = resident.problem()
        except CorruptObject as error:
            problem = Unreadable(str(error))
        except Exception as error:  # a rule of the core; the runner guards user code
            problem = Failed(resident.runner.chain.explain(error))
        if problem is not None or self.order.closing:
            yield self._report(replace(report, problem=problem))
            return
        for frame in resident.take_frames():
            yield self._row(arrived(self.layout.positions[frame.channel], frame))
        self.around.cache.keep(self.order, resident)
        self._kept = True
        done = replace(
            report,
            record=resident.record,
            transactions=tuple(resident.prepared()),
            sent=self._sent,
            carried=resident.carried,
            carried_to=resident.carried_to,
            read=processed if resident.is_source else 0,
            caught_up=resident.runner.caught_up or not resident.is_source,
            processed=processed,
            took_s=self.around.clock_s() - began_s,
            forfeited=read_meter(resident.runner).forfeited,
            wishes=tuple(resident.runner.chain.take_tuning()),
        )
        yield self._report(done)

    def _missing(self, frames: list[Arrived]) -> str:
        """Inputs without the marker of this epoch: a sender has failed, or rows are lost."""
        last = {frame.position: frame.kind for frame in frames}
        ended = {name for record in self.order.records[self.shard] for name in record.ended}
        missing = [
            str(channel)
            for channel in self.layout.plan.inputs[self.shard]
            if not self.layout.plan.feedback(channel)
            and last.get(self.layout.positions[channel], FrameKind.DATA) is FrameKind.DATA
            and str(channel) not in ended
        ]
        return ", ".join(missing)

    def _row(self, frame: Arrived) -> Row:
        self._sent[frame.position] = frame.added_to(self._sent.get(frame.position, NOTHING))
        channel = self.layout.plan.channels[frame.position]
        partition = self.layout.next_partition(self.place, channel)
        return Row(partition, header_of(frame), frame.payload)

    def _report(self, report: ShardReport) -> Row:
        return report_row(self.layout.next_partition(self.place, None), report)


def digests(frames: Iterable[Arrived]) -> dict[int, Digest]:
    found: dict[int, Digest] = {}
    for frame in frames:
        found[frame.position] = frame.added_to(found.get(frame.position, NOTHING))
    return found
