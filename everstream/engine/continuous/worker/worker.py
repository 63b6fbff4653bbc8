"""A worker: one Python process that runs one or more shards.

One thread does all the work: it receives frames and commands, lets the runners step, and sends
their output. Shards on the same worker exchange frames in memory. A second thread sends heartbeats
to the driver, and ends the process if the driver or our parent is gone.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from everstream.core.fault_points import Point
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, ShardId, TaskNumber, WorkerId
from everstream.core.messages import CheckpointTaken, Command, Committed, Report, Resume, Shutdown
from everstream.core.plan import Plan
from everstream.core.scheme import Scheme
from everstream.engine.continuous.liveness.crash_breadcrumb import CrashBreadcrumb
from everstream.engine.continuous.transport.control_messages import (
    KillFired,
    LeastTime,
    NewPlan,
    Nod,
    Noticed,
    TakePlace,
    ToWorker,
    Tune,
    WantsTuning,
    WorkerBroke,
)
from everstream.engine.continuous.transport.credit import CreditGrants
from everstream.engine.continuous.transport.endpoints import Address, in_parts
from everstream.engine.continuous.transport.key_exchange import Ticket
from everstream.engine.continuous.transport.links import Peers
from everstream.engine.continuous.transport.poller import Poller, sleep_s
from everstream.engine.continuous.transport.send_coalescing import TURN_S, SendCoalescing
from everstream.engine.continuous.transport.wire import Credit, Wire
from everstream.engine.continuous.worker.background import Background
from everstream.engine.continuous.worker.memory import MemoryWatch
from everstream.engine.continuous.worker.operator_logs import LogCollector
from everstream.engine.continuous.worker.process import WorkerProcess, be_quick
from everstream.engine.faults.injection import KillAfter, KillAt, KillNow
from everstream.errors import EnvironmentFault, EverstreamError, FramesLost, InternalError
from everstream.events import MemoryNear
from everstream.pipeline.calls.services import CallServices
from everstream.runtime.engine_api import CommitJob, Upload
from everstream.runtime.message_log import Segment
from everstream.runtime.runner import ShardRunner
from everstream.state.retention import DEFAULT, Retention
from everstream.state.store import ObjectRef

PROGRESS_EVERY_S = 0.1
"""Or more often, if a sampler needs it."""
IDLE_PROGRESS_EVERY_S = 0.5
"""For an idle shard; often enough for readers that take differences twice a second."""
IDLE_TURN_S = 0.25
"""A worker without work looks around this often; messages wake it at once."""
LARGE_BYTES = 65_536
"""From this size on ZeroMQ sends a payload without copying it."""


@dataclass
class WorkerTask:
    """What a worker needs before it can say hello; pickled and sent to its process."""

    pickled_plan: bytes
    scheme: Scheme
    driver: Address
    ticket: Ticket
    """To get the keys of the run with; the keys are not in here, because others may read it."""
    store_url: str
    over_tcp: bool
    always_tcp: bool
    driver_timeout_s: float
    slow_after_s: float
    latency_s: float = 0.0
    """How long records may wait at a source for others."""
    progress_every_s: float = PROGRESS_EVERY_S
    measures: bool = True
    """Whether shards and workers report their measures."""
    near: str | None = None
    """The name of the folder with copies of snapshots on each machine; None: no copies."""
    worker_memory_bytes: int | None = None
    """Memory that a worker may use; None: no limit."""
    retention: Retention = DEFAULT
    """Which checkpoints are kept."""
    scratch: str = ""
    """Where state and waiting records are kept on the local disk of each machine."""
    python_path: list[str] = field(default_factory=list)
    log_levels: dict[str, int] = field(default_factory=dict)

    def work(self, number: TaskNumber, attempt: int, task_id: int) -> None:
        """The body of a worker's process, until the run is over."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
        sys.path.extend(path for path in self.python_path if path not in sys.path)
        be_quick()
        process = WorkerProcess(self, number, attempt, task_id)
        try:
            while (place := process.wait_for_place()) is not None:
                worker = Worker(self, process, place)
                try:
                    worker.run()
                finally:
                    worker.close()
                if worker.next_plan is None:
                    break
                process.replan(worker.next_plan)
            process.forget_copies()
        finally:
            process.close()


class Worker:
    """Performs the requests of its runners."""

    def __init__(self, task: WorkerTask, process: WorkerProcess, id: WorkerId) -> None:
        self.id = id
        self.process = process
        self._say = process.say
        self.store_url: str = process.store_url
        self.scratch = task.scratch
        self.store = process.store
        process.note_damage(id)
        self.sockets = process.sockets
        self.to_driver = process.to_driver
        self.control = process.control
        self.inbox = process.inbox
        self.plan: Plan = process.plan
        self.wire = Wire(self.plan.channels)
        self.background = Background(self.store, self.reached)
        self.peers = Peers(self.sockets, id, task.slow_after_s)
        self.coalescing = SendCoalescing(self.peers.post)
        self.grants = CreditGrants(self._send_credit)
        self.asked_s = 0.0
        """When the runners last stepped."""
        self.local_work: deque[Any] = deque()
        self.services = CallServices(
            self.store.blobs, self.background.wake_up, retention=task.retention
        )
        self.runners = {
            shard: ShardRunner(
                self.plan,
                shard,
                task.scheme,
                self,
                measures=task.measures,
                latency_s=task.latency_s,
            )
            for shard in self.plan.workers[id]
        }
        self.measures = task.measures
        shards = self.plan.workers[id]
        self.breadcrumb = CrashBreadcrumb(self.sockets.folder, self.plan, shards)
        for shard, runner in self.runners.items():
            runner.chain.place = self.breadcrumb.of(shard)
        self.logs = LogCollector(id, self.breadcrumb, task.log_levels)
        self.memory: MemoryWatch | None = None
        if task.worker_memory_bytes is not None:
            self.memory = MemoryWatch(
                task.worker_memory_bytes,
                self.runners.values(),
                self._takes_in,
                lambda used, limit: self._say(Noticed(MemoryNear(int(id), used, limit))),
            )
        self.kills: list[KillAfter] = []
        self.kills_at: list[KillAt] = []
        self.times_at: Counter[tuple[ShardId, Point]] = Counter()
        self.running = True
        self.next_plan: NewPlan | None = None
        """The plan with which this process continues, as another worker."""
        self.progress_every_s = task.progress_every_s
        self.progress_due_s = 0.0
        self._told: dict[ShardId, tuple[object, float]] = {}
        """The last report of each shard's progress, and its time."""
        self._idle = False

    # Interface for the runners.

    clock_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)

    def send(self, frame: Frame) -> None:
        worker = self.plan.worker_of[frame.channel.receiver]
        if worker == self.id:
            self.local_work.append(frame)
            return
        if self.measures and frame.payload is not None:
            meter = self.runners[frame.channel.sender].chain.meter
            meter.bytes_out += len(frame.payload.encoded)
        header, *payload = self.wire.frame_to_parts(frame)
        if not payload:
            self.coalescing.add(worker, header)
            return
        large = len(payload[0]) >= LARGE_BYTES
        if large and self.peers.over_network(worker):
            payload = in_parts(payload[0])
        self.coalescing.add_large(worker, header, payload, copy=not large)

    def grant(self, channel: ChannelId, frames: int, most: int) -> None:
        generation = self.runners[channel.receiver].shard.generation_of(channel)
        credit = Credit(channel, generation, frames, most)
        if self.plan.worker_of[channel.sender] == self.id:
            self.local_work.append(credit)
        else:
            self.grants.add(credit, self.clock_s() - self.asked_s)

    def _send_credit(self, credit: Credit) -> None:
        sender = self.plan.worker_of[credit.channel.sender]
        self.coalescing.add(sender, self.wire.credit_to_bytes(credit))
        self.coalescing.send(sender)

    def tell(self, report: Report) -> None:
        if isinstance(report, CheckpointTaken | Committed):
            # The run may end with this: the shard's measures must arrive before it.
            self._say(self.runners[report.shard].progress())
        self._say(report)

    def upload(self, upload: Upload) -> None:
        runner = self.runners[upload.shard]
        self.background.upload(upload, runner.on_uploaded, runner.on_upload_failed)

    def save_segment(self, segment: Segment) -> None:
        self.background.save_segment(segment)

    def commit(self, job: CommitJob) -> None:
        runner = self.runners[job.shard]
        self.background.commit(job, runner.on_commit_done, runner.on_commit_failed)

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        return [self.store.get(ref) for ref in refs]

    # The loop.

    def run(self) -> None:
        """Until the driver ends the run."""
        try:
            self._loop()
            self._say_what_was_logged()
        except Exception as error:
            broken = error
            if not isinstance(error, EverstreamError):
                story = [line for runner in self.runners.values() for line in runner.shard.story]
                text = "".join(traceback.format_exception(error))
                broken = InternalError(f"worker {self.id} broke: {text}", story=story)
            self._say_what_was_logged()
            process = self.process
            self._say(WorkerBroke(process.number, process.attempt, broken))  # type: ignore[arg-type]
            self.to_driver.close(linger_ms=1000)
            raise

    def _loop(self) -> None:
        bed = Poller((self.control, self.inbox, self.background.wake_fd))
        busy = False
        runners = self.runners.values()
        while self.running:
            most_s = IDLE_TURN_S if self._idle else self.progress_every_s
            wait_s = 0.0 if busy else sleep_s(runners, self.asked_s, self.clock_s(), most_s)
            ready = bed.wait(wait_s)
            if self.control in ready:
                self._drain_control()
            if self.inbox in ready:
                self._drain_inbox()
            if self.background.wake_fd in ready:
                self.background.deliver_outcomes()
            self.asked_s = self.clock_s()
            for runner in runners:
                runner.on_tick(self.asked_s)
            news_due_s = self.asked_s + TURN_S
            while (busy := self._step_runners(self.asked_s)) and self.asked_s < news_due_s:
                self._idle = False
                self._drain_local()
                self.asked_s = self.clock_s()
            self._drain_local()
            self.grants.flush()
            self.coalescing.send_all()
            self._report_progress()

    def _step_runners(self, now_s: float) -> bool:
        busy = False
        for position, (shard, runner) in enumerate(self.runners.items()):
            self.breadcrumb.enter(position)
            if self.memory is not None and self.memory.holds(runner):
                runner.use.rests(now_s, blocked=True)
            elif runner.may_step(now_s):
                self.coalescing.before_step(shard)
                stepped = runner.step()
                self.coalescing.after_step(shard, runner.took_s)
                busy |= stepped
                if stepped and self.kills:
                    self._kill_when_due(shard, runner)
            if runner.saving:
                runner.save_slice()
                busy = True
        return busy or bool(self.local_work)

    def _takes_in(self, runner: ShardRunner) -> bool:
        """Whether a shard reads a source, or has an input from another worker."""
        inputs = self.plan.inputs[runner.shard.id]
        return not inputs or any(self.plan.worker_of[one.sender] != self.id for one in inputs)

    def _drain_inbox(self) -> None:
        while True:
            try:
                parts: list[Any] = [self.inbox.recv(zmq.DONTWAIT)]
            except zmq.Again:
                return
            if self.inbox.get(zmq.RCVMORE):
                parts += self.inbox.recv_multipart(copy=False)
            items = self.wire.parse(parts)
            for item in items:
                if isinstance(item, Frame):
                    small = len(parts) == 1 or item is not items[-1]
                    self.grants.saw(item.channel, small)
                    if self.measures and item.payload is not None:
                        meter = self.runners[item.channel.receiver].chain.meter
                        meter.bytes_in += len(item.payload.encoded)
                self._take_in(item)

    def _drain_local(self) -> None:
        while self.local_work:
            self._take_in(self.local_work.popleft())

    def _take_in(self, item: Frame | Credit) -> None:
        if isinstance(item, Frame):
            try:
                self.runners[item.channel.receiver].on_frame(item)
            except FramesLost:
                sender = self.plan.worker_of[item.channel.sender]
                if not self.peers.over_network(sender):
                    raise
                for report in self.peers.frames_lost(sender):
                    self._say(report)
        else:
            self.runners[item.channel.sender].on_grant(*item)

    def _drain_control(self) -> None:
        while True:
            try:
                message = self.process.hear()
            except zmq.Again:
                return
            self._obey(message)

    def _obey(self, message: ToWorker) -> None:
        match message:
            case KillAfter():
                self.kills.append(message)
            case KillAt():
                self.kills_at.append(message)
            case KillNow(kill=kill):
                self._die(kill)
            case Nod():
                pass
            case NewPlan():
                self._command(Shutdown())
                self.next_plan = message
            case TakePlace(worker=worker):
                raise InternalError(f"worker {self.id} was ordered to be worker {worker}")
            case Tune(tuning=tuning):
                for runner in self.runners.values():
                    runner.on_tune(tuning)
            case LeastTime(least_us=least_us):
                for runner in self.runners.values():
                    runner.on_least_time(least_us)
            case _:
                self._command(message)

    def _command(self, command: Command) -> None:
        if isinstance(command, Resume):
            self.coalescing.send_all()
            self.peers.meet(command.addresses, command.generation, self.clock_s())
        for position, runner in enumerate(self.runners.values()):
            self.breadcrumb.enter(position)
            runner.on_command(command)
        if isinstance(command, Shutdown):
            self.running = False

    def _report_progress(self) -> None:
        now_s = self.clock_s()
        if now_s >= self.progress_due_s:
            self.progress_due_s = now_s + self.progress_every_s
            self._idle = True
            for runner in self.runners.values():
                if self._report(runner, now_s):
                    self._idle = False
                for wishes in runner.chain.take_tuning():
                    self._say(WantsTuning(wishes))
            self._say_what_was_logged()
            self._check_links(now_s)
            if self.memory is not None:
                self.memory.look(now_s)

    def _report(self, runner: ShardRunner, now_s: float) -> bool:
        """Report what a shard has done; idle ones report less often. Whether there was anything."""
        shard = runner.shard
        now = (runner.processed, shard.status, shard.generation, shard.last_number)
        before, told_s = self._told.get(shard.id, (None, 0.0))
        if now != before or now_s >= told_s + IDLE_PROGRESS_EVERY_S:
            self._told[shard.id] = (now, now_s)
            self._say(runner.progress())
        return bool(now != before)

    def _check_links(self, now_s: float) -> None:
        self.to_driver.look(now_s)
        if self.running and self.to_driver.is_cut(now_s):
            raise EnvironmentFault(
                f"the connection from worker {self.id} to the driver was cut: orders may be lost"
            )
        for report in self.peers.news(now_s):
            self._say(report)

    def _say_what_was_logged(self) -> None:
        logged = self.logs.take()
        if logged is not None:
            self._say(logged)

    # Injected kills.

    def _kill_when_due(self, shard: ShardId, runner: ShardRunner) -> None:
        for kill in self.kills:
            if kill.shard == shard and runner.processed >= kill.records:
                self._die(kill.kill)

    def reached(self, shard: ShardId, point: Point) -> None:
        """A shard has reached a point; also called from the background threads."""
        self.times_at[shard, point] += 1
        for kill in self.kills_at:
            here = (kill.shard, kill.point) == (shard, point)
            if here and self.times_at[shard, point] == kill.occurrence:
                self._die_here(kill.kill)

    def _die_here(self, kill: int) -> None:
        """The main thread does it, because it owns the socket; this thread stops here."""
        if threading.current_thread() is threading.main_thread():
            self._die(kill)
        self.background.post(lambda: self._die(kill))
        threading.Event().wait()

    def _die(self, kill: int) -> None:
        """The driver must know first, so that it does not order the same kill again."""
        self._say_what_was_logged()
        self._say(KillFired(kill, self.id))
        while not isinstance(pickle.loads(self.control.recv()), Nod):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        if not self.running:  # after a failure, the next process can use the files on disk
            for runner in self.runners.values():
                runner.chain.state.close()
        self.logs.close()
        self.background.close()
        self.peers.close()
