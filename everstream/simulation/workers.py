"""A simulated worker: runners in one process that can die between any two steps.

Messages between two processes keep their order and take a random time. Messages that a dead process
had sent still arrive; messages sent to it are lost.
"""

import math
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from everstream.core.fault_points import Point
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, ShardId, TaskNumber, WorkerId
from everstream.core.messages import Command, Report, Resume, ShardFailed, Shutdown
from everstream.core.scheme import Scheme
from everstream.errors import EnvironmentFault, InternalError, said
from everstream.pipeline.calls.services import CallServices
from everstream.pipeline.tuning import Tuning
from everstream.runtime.engine_api import CommitJob, Upload
from everstream.runtime.message_log import Segment
from everstream.runtime.outlets import CREDIT
from everstream.runtime.payload import BatchPayload
from everstream.runtime.runner import ShardRunner
from everstream.state.objects import ObjectRef

if TYPE_CHECKING:
    from everstream.simulation.driver import SimulatedDriver
    from everstream.simulation.world import World


TICK_S = 0.005
"""How often the shards' timers are checked."""


class Link:
    """A one-way connection: in order, with random delay."""

    def __init__(self, world: "World", typical_s: float) -> None:
        self.world = world
        self.typical_s = typical_s
        self.last_s = 0.0

    def carry(self, deliver: Callable[[], None]) -> None:
        scheduler = self.world.scheduler
        arrival_s = max(self.last_s, scheduler.now_s + scheduler.jitter_s(self.typical_s))
        self.last_s = arrival_s
        scheduler.at(arrival_s, deliver)


class TroubledRunner(ShardRunner):
    """A runner in whose operators, sources and hooks any call may fail."""

    engine: "SimulatedWorker"

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        super()._guarded(self._troubled, work, *arguments)

    def _troubled(self, work: Callable[..., None], *arguments: Any) -> None:
        self.engine.world.trouble()
        work(*arguments)
        self.engine.world.trouble()


class SimulatedWorker:
    """One attempt of one Spark task; it has shards once it becomes a worker."""

    store_url = "simulated://"

    def __init__(
        self,
        world: "World",
        number: TaskNumber,
        attempt: int,
        driver: "SimulatedDriver",
        scheme: Scheme,
    ) -> None:
        self.world = world
        self.scratch = world.scratch
        self.number = number
        self.id: WorkerId | None = None
        """The worker that it is; None while it is a spare."""
        self.attempt = attempt
        self.scheme = scheme
        self.driver = driver
        """The driver this worker belongs to; to later drivers it is a zombie."""
        self.alive = True
        self.services = CallServices(world.disk, now_s=self._now_s, delay_s=world.call_delay_s)
        self.step_s = world.scheduler.random.choice((0.0005, 0.002, 0.004))
        """Workers differ in speed, so that frames pile up before the slow ones."""
        self.busy_until_s = 0.0
        """A step of slow operators lasts until then, and nothing interrupts it."""
        self.writing: dict[int, Upload] = {}
        self.plan = driver.coordinator.plan
        self.runners: dict[ShardId, TroubledRunner] = {}
        self.peers: dict[WorkerId, SimulatedWorker] = {}
        self.links: dict[SimulatedWorker, Link] = {}
        self.to_driver = Link(world, world.driver_link_s)
        self.from_driver = Link(world, world.driver_link_s)
        self._asleep = True
        if scheme.log != "none":
            self._tick()

    def take_place(self, worker: WorkerId) -> None:
        plan, self.id = self.plan, worker
        for shard in plan.workers[worker]:
            self.runners[shard] = TroubledRunner(
                plan,
                shard,
                self.scheme,
                self,
                self.world.pace(),
                latency_s=self.world.latency_s,
            )

    # The services of the engine.

    def clock_s(self) -> float:
        return self.world.scheduler.now_s + self.world.outside.worked_s

    def _now_s(self) -> float:
        """Of answers: by the time that a test controls, or by a clock that is never set."""
        return self.clock_s() if self.world.fixed_time_s is None else self.wall_s()

    def wall_s(self) -> float:
        return self.world.wall_s(self.number) + self.world.outside.worked_s

    def send(self, frame: Frame) -> None:
        if self.world.watchers:
            what = f"{frame.kind.name.lower()} {frame.number}, frame {frame.sequence}"
            self._event(f"{frame.channel}: {what}, generation {frame.generation}")
        if frame.payload is not None:
            frame.payload = BatchPayload(encoded=frame.payload.encoded)
        self._carry(self.plan.worker_of[frame.channel.receiver], lambda peer: peer.receive(frame))

    def grant(self, channel: ChannelId, frames: int, most: int) -> None:
        shard = self.runners[channel.receiver].shard
        generation = shard.generation_of(channel)
        self._carry(
            self.plan.worker_of[channel.sender],
            lambda peer: peer.runners[channel.sender].on_grant(channel, generation, frames, most),
        )

    def tell(self, report: Report) -> None:
        # A report that cannot be pickled must be found here, and not on Spark.
        carried = pickle.loads(pickle.dumps(report)) if isinstance(report, ShardFailed) else report
        self.to_driver.carry(lambda: self.driver.on_report(self, carried))

    def upload(self, upload: Upload) -> None:
        final = "its last checkpoint" if upload.record.final else "checkpoint"
        self._event(f"{upload.shard} takes {final} {upload.record.number}")
        self.writing[id(upload)] = upload
        self._after(self.world.next_upload_s(upload.record.final), lambda: self._upload(upload))

    def save_segment(self, segment: Segment) -> None:
        self._later(self.world.upload_s, lambda: self._save(segment))

    def commit(self, job: CommitJob) -> None:
        self._later(0.005, lambda: self._commit(job))

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        return [self.world.store.get(ref) for ref in refs]

    def receive(self, frame: Frame) -> None:
        runner = self.runners[frame.channel.receiver]
        runner.on_frame(frame)
        waiting = runner.shard.waiting_at(frame.channel)
        if len(waiting) > CREDIT:
            data = sum(other.kind is FrameKind.DATA and other.sequence > 0 for other in waiting)
            if data > CREDIT:
                raise InternalError(f"{frame.channel}: {data} frames wait where {CREDIT} may")

    def reached(self, shard: ShardId, point: Point) -> None:
        """Kills come from the scheduler here, between any two steps."""

    # Messages from the driver.

    def on_command(self, command: Command) -> None:
        self._event(f"worker {self.id} receives {_shown(command)}")
        if isinstance(command, Resume):
            self.peers = dict(command.addresses)
        self._each(lambda runner: runner.on_command(command))
        if isinstance(command, Resume):
            self._each(lambda runner: self.tell(runner.progress()))
        elif isinstance(command, Shutdown):
            self.alive = False
        self._wake()

    def on_tune(self, tuning: Tuning) -> None:
        self._each(lambda runner: runner.on_tune(tuning))
        self._wake()

    def look_again(self) -> None:
        """The world outside has changed: sources may have records, and timers may be due."""
        for runner in self.runners.values():
            runner.ready_at_s = 0.0
        self._wake()

    def die(self) -> None:
        """SIGKILL: memory is lost; a pending write may be torn, lost, or done without an answer."""
        self.alive = False
        for upload in self.writing.values():
            try:
                data = upload.prepare(self.reached)
            except BaseException:  # its caller is dead
                continue
            ref = ObjectRef.of(upload.name, data)
            path = f"objects/{ref.name}.{ref.checksum}"
            self.world.disk.crash_during_write(path, data)

    # Implementation.

    def _event(self, text: str) -> None:
        if self.world.watchers:
            zombie = "" if self.world.workers.get(self.number) is self else " (zombie)"
            self.world.event(text + zombie)

    def _each(self, do: Callable[[ShardRunner], None]) -> None:
        for runner in self.runners.values():
            do(runner)

    def _carry(self, worker: WorkerId, deliver: "Callable[[SimulatedWorker], None]") -> None:
        peer = self.peers.get(worker)
        if peer is None:
            return
        if peer is self:
            self.world.scheduler.after(0.0, lambda: _arrive(peer, deliver))
            return
        link = self.links.setdefault(peer, Link(self.world, 0.002))
        link.carry(lambda: _arrive(peer, deliver))

    def _later(self, typical_s: float, work: Callable[[], None]) -> None:
        self._after(self.world.scheduler.jitter_s(typical_s), work)

    def _after(self, delay_s: float, work: Callable[[], None]) -> None:
        self.world.scheduler.after(delay_s, lambda: self.when_free(work))

    def when_free(self, work: Callable[[], None]) -> None:
        """Now, or when the step under way is over; never if the worker is dead by then."""
        if self.busy_until_s > self.world.scheduler.now_s:
            self.world.scheduler.at(self.busy_until_s, lambda: self.when_free(work))
        elif self.alive:
            work()

    def _upload(self, upload: Upload) -> None:
        self.writing.pop(id(upload), None)
        runner = self.runners[upload.shard]
        try:
            ref = upload.perform(self.world.store.put, self.reached)
        except BaseException as error:  # as in a thread of a real worker
            self._event(f"{upload.shard} cannot save {upload.record.number}: {said(error)}")
            runner.on_upload_failed(upload, error)
        else:
            self._event(f"{upload.shard} has saved {upload.record.number}")
            runner.on_uploaded(upload, ref, 0.0)

    def _save(self, segment: Segment) -> None:
        with suppress(EnvironmentFault):  # the next checkpoint retries it
            segment.save(self.world.store.put)

    def _commit(self, job: CommitJob) -> None:
        runner = self.runners[job.shard]
        if job.transactions:
            self._event(f"{job.shard} commits up to {job.permit.checkpoint}")
        try:
            job.perform(self.reached)
        except BaseException as error:  # see above
            runner.on_commit_failed(job, error)
        else:
            runner.on_commit_done(job)

    def _step_soon(self) -> None:
        delay_s = self.world.scheduler.random.expovariate(1 / self.step_s)
        free_s = max(0.0, self.busy_until_s - self.world.scheduler.now_s)
        self.world.scheduler.after(free_s + delay_s, self._step)

    def _tick(self) -> None:
        now_s = self.world.scheduler.now_s
        self._each(lambda runner: runner.on_tick(now_s))
        if any(runner.saving for runner in self.runners.values()):
            self._wake()
        self.world.scheduler.after(TICK_S, lambda: self.when_free(self._tick), waits=True)

    def _wake(self) -> None:
        """Something came in: there may be work again."""
        if self._asleep and self.alive:
            self._asleep = False
            self._step_soon()

    def _step(self) -> None:
        if not self.alive:
            return
        now_s = self.world.scheduler.now_s
        ready = [runner for runner in self.runners.values() if runner.may_step(now_s)]
        self.world.scheduler.random.shuffle(ready)
        worked = next((runner for runner in ready if runner.step()), None)
        saving = [runner for runner in self.runners.values() if runner.saving]
        for runner in saving:
            runner.save_slice()
        if worked is None and saving:
            self._step_soon()
        elif worked is None:
            self._asleep = True
            waits_s = (runner.timer_in_s() for runner in self.runners.values())
            readies_s = (runner.ready_at_s - now_s for runner in self.runners.values())
            wake_in_s = min(
                [*waits_s, *(ready_s for ready_s in readies_s if ready_s > 0), math.inf]
            )
            if wake_in_s != math.inf:
                self.world.scheduler.after(max(0.0, wake_in_s), self._wake, waits=True)
        else:
            self.tell(worked.progress())
            outside = self.world.outside
            worked_s, outside.worked_s = outside.worked_s, 0.0
            self.busy_until_s = now_s + worked_s
            self._step_soon()


def _arrive(worker: SimulatedWorker, deliver: Callable[[SimulatedWorker], None]) -> None:
    def arrived() -> None:
        deliver(worker)
        worker._wake()

    worker.when_free(arrived)


def _shown(command: Command) -> str:
    facts = [
        f"{name} {getattr(command, name)}"
        for name in ("generation", "stable", "epoch")
        if hasattr(command, name)
    ]
    return ", ".join([type(command).__name__, *facts])
