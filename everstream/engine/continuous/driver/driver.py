"""The driver: carries the coordinator's orders to the workers and the workers' reports to it.

One loop on the caller's thread does everything except two things that block and have separate
threads: the workers' processes (`Workers`) and the writing of manifests. To stop the run, set a
flag. The driver detects a worker's death at once on its own machine (the process handle becomes
readable); otherwise when the next attempt says hello, or when the worker has been silent for too
long.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import assert_never

import cloudpickle
import zmq

from everstream.core.autoscaling import Scaler
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.newest import Newest
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.coordinators.time_alignment import TimeAlignment
from everstream.core.coordinators.time_watch import TimeWatch
from everstream.core.fault_points import Point
from everstream.core.ids import NO_EPOCH, ShardId, TaskNumber, WorkerId
from everstream.core.measuring import Measures, Meter
from everstream.core.messages import (
    CheckpointTaken,
    Committed,
    Progress,
    Report,
    Restored,
    Shutdown,
    StartCheckpoint,
)
from everstream.core.orders import (
    AssignWorker,
    Discard,
    Dismiss,
    EndRun,
    Order,
    Outcome,
    Phase,
    Publish,
    Quiesced,
    Refused,
    SendTo,
    WriteManifest,
)
from everstream.core.plan import plan_changed
from everstream.core.plan_change import (
    Decision,
    Facts,
    FailRun,
    GiveUp,
    PlanChange,
    ReturnToFormer,
    StartQuiesce,
    TakePlan,
    difference,
)
from everstream.engine.continuous.driver.attempts import Attempts
from everstream.engine.continuous.driver.workers import Workers
from everstream.engine.continuous.transport.control_messages import (
    Beat,
    ControlChannel,
    Hello,
    KillFired,
    LeastTime,
    NewPlan,
    Nod,
    Noticed,
    TakePlace,
    ToDriver,
    Tune,
    Unreachable,
    WantsTuning,
    WorkerBroke,
)
from everstream.engine.continuous.transport.endpoints import Address, SocketFactory
from everstream.engine.continuous.transport.key_exchange import Admission, KeyExchange, Ticket
from everstream.engine.continuous.worker.operator_logs import Logged, pass_on
from everstream.engine.continuous.worker.worker import WorkerTask
from everstream.engine.engine import COMPLETE, EngineJob
from everstream.engine.faults.injection import Injector
from everstream.engine.faults.kills import Kill
from everstream.engine.manifest_writer import ManifestWriter
from everstream.engine.reporting.building import epoch_stable, sampled
from everstream.engine.requests import CheckpointRequests, Requests
from everstream.engine.rescaling import ScaleRequests
from everstream.engine.scrubber import Scrubber
from everstream.engine.settings.live_settings import NOT_TUNABLE, control_of, flattened
from everstream.engine.signals import Stoppable
from everstream.errors import EverstreamError, UserError
from everstream.events import (
    CheckpointStarted,
    IntervalChanged,
    Note,
    PeerUnreachable,
    Progressed,
    RequestRefused,
    RunStatus,
    SettingsChanged,
    WaitingForWorkers,
    WorkerStarted,
)
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.tuning import Tuning, tunable_in
from everstream.state.blobs import Blobs

POLL_MS = 10
CALM_POLL_MS = 100
"""While all workers are active and no checkpoint is in progress; shorter only costs CPU time."""
CALM_FROM_S = 0.5
"""Checkpoints that are more frequent than this must be on time."""
SNAPSHOT_EVERY_S = 0.1
IDLE_SNAPSHOT_EVERY_S = 0.5
"""While no record is read or processed: what has not changed is reported less often."""
MEASURES_EVERY_S = 0.5
START_PATIENCE_S = 30.0
"""How long workers may take to start before the driver reports what is missing."""


_REPORTED_AT: dict[type, Point] = {
    CheckpointTaken: Point.IN_SNAPSHOT,
    Committed: Point.IN_COMMIT,
    Restored: Point.IN_RESTORE,
}
"""The fault point that the run has reached when such a report arrives."""


@dataclass
class Driver(Stoppable):
    """Runs one pipeline to its end."""

    job: EngineJob
    workers: Workers
    coordinator: Coordinator
    sockets: SocketFactory
    task: Callable[[Address, Ticket], WorkerTask]
    """Makes the worker task once the driver's address is known."""

    def __post_init__(self) -> None:
        self.config, self.store, opened = self.job.config, self.job.opened.store, self.job.opened
        self._tell = self.config.listener.on_event
        self.poller = zmq.Poller()
        plan = self.coordinator.plan
        self.attempts = Attempts(
            plan, self.config.spares, self.sockets.machine, self.poller, self._tell
        )
        self.end: EndRun | None = None
        self.written: Newest[EpochManifest] = Newest()
        self.running_s: float | None = None
        self.ended_s = 0.0
        self.injector = Injector(self.config.kills, plan, self.config.listener)
        self.pace = self.config.pace()
        self.writer = ManifestWriter(
            self.store,
            opened.lease,
            removes_objects=not self.coordinator.names_what_goes,
            on_done=self._manifest_done,
            on_trouble=self._warn,
            retention=self.config.retention,
        )
        self.scrubber = Scrubber(
            self.store,
            kept=lambda: [
                ref
                for manifest in tuple(self.coordinator.manifests)
                for record in manifest.records.values()
                for ref in record.all_objects
            ],
        )
        self.meters: dict[ShardId, Meter] = {}
        """The newest measures that each shard has reported."""
        self.counts: dict[ShardId, dict[str, tuple[int, int]]] = {}
        self._measures_due_s = 0.0
        self.tuning = Tuning()
        """The changed settings, as all workers know them."""
        self.settings = control_of(plan.graph, self.store, opened.url, self._warn)
        self.scale_requests = ScaleRequests(self.config, plan, self.settings)
        self.plan_change = PlanChange(
            self.config.scheme,
            self.config.policy,
            self.coordinator,
            target=opened.next_plan,
            spares=self.config.spares,
            pack_after_s=self.config.pack_after_s,
        )
        autoscale = self.config.autoscale
        self.scaler = None if autoscale is None else Scaler(autoscale)
        self.time_watch = TimeWatch(self.config.policy.slow_after_s)
        self.alignment = TimeAlignment(plan)
        self.plan_number = 0
        """How many plans there were before this one."""
        self._pickled_plan = b""
        self._heed_settings()
        self._said_of_peer_s: dict[WorkerId, float] = {}
        self._checkpoint_requests = CheckpointRequests()
        self._requests = Requests()
        self._patience_s = time.monotonic() + START_PATIENCE_S

    def ask_checkpoint(self) -> Future[int]:
        return self._checkpoint_requests.ask()

    @property
    def blobs(self) -> Blobs:
        return self.store.blobs

    def tune(self, wishes: Mapping[str, str]) -> None:
        if tunable_in(self.coordinator.plan.graph):
            self.settings.tune(wishes)
        else:
            self._tell(RequestRefused("tune", NOT_TUNABLE))

    def scale(self, shards: Mapping[str, int]) -> Future[str]:
        return self.scale_requests.ask(shards, self.coordinator.plan)

    def set_interval(self, every_s: float) -> Future[str]:
        return self._requests.ask(lambda: self._set_interval(every_s))

    def kill_worker(self, worker: int) -> Future[str]:
        return self._requests.ask(lambda: self._kill_worker(WorkerId(worker)))

    def _set_interval(self, every_s: float) -> str:
        if not isinstance(self.config.checkpoint, Coordinated):
            raise UserError(
                "the interval cannot be changed during this run: under this protocol each shard has "
                "its own timer. Stop, and run again with another --every."
            )
        self.pace = None  # an interval set by hand ends the automatic one
        self.coordinator.set_interval(every_s)
        text = f"checkpoints every {every_s:g} s from now on, as requested"
        self._tell(IntervalChanged(every_s, text))
        return text

    def _kill_worker(self, worker: WorkerId) -> str:
        plan = self.coordinator.plan
        if not 0 <= worker < len(plan.workers):
            raise UserError(f"there is no worker {worker}; there are 0 to {len(plan.workers) - 1}.")
        if self.attempts.of(worker) is None or self.running_s is None:
            raise UserError(
                f"worker {worker} has no process at the moment, so it cannot be killed."
            )
        if not plan.workers[worker]:
            raise UserError(f"worker {worker} has no shards: killing it would show nothing.")
        shard = plan.workers[worker][0]
        self.injector.add(Kill(shard.operator, shard.number, after_s=0.0))
        return f"worker {worker} is about to be killed"

    def _heed_settings(self) -> None:
        news = self.settings.news()
        if news is not None:
            self.tuning = news
            self._tell(SettingsChanged(flattened(news.settings)))
            for identity in self.attempts.identities():
                self.control_channel.tell(identity, Tune(news))

    def run(self) -> EndRun:
        self.control_channel = ControlChannel(self.sockets)
        self.poller.register(self.control_channel.socket, zmq.POLLIN)
        plan = self.coordinator.plan
        self.key_exchange = KeyExchange(
            self.sockets,
            Admission(self.sockets.keys, self.config.store_key),
            self.workers.is_running,
        )
        self.poller.register(self.key_exchange.socket, zmq.POLLIN)
        self.writer.start()
        self.scrubber.start()
        self.settings.start()
        task = self.task(self.control_channel.address, self.key_exchange.ticket)
        self.workers.start(task, len(plan.workers) + self.config.spares)
        try:
            self._loop()
            self._say_what_is_left_over()
        finally:
            finished = self.end is not None and self.end.outcome in COMPLETE
            self._checkpoint_requests.end(self.coordinator.stable_epoch if finished else None)
            self._requests.end()
            self.writer.stop()
            self.scrubber.stop()
            self.settings.stop()
            self.scale_requests.end()
            self.workers.leave(told=self.end is not None)
            self._hear_last_logs()
            self.attempts.close()
            self.control_channel.close()
            self.key_exchange.close()
        assert self.end is not None
        return self.end

    def _loop(self) -> None:
        began_s, timeout_s = time.monotonic(), self.config.timeout_s
        snapshot_s, snapshot_of = 0.0, (self.coordinator.phase, self.coordinator.totals())
        stopped = False
        while self.end is None:
            events = self.poller.poll(self._poll_ms())
            now_s = time.monotonic()
            for waited, _ in events:
                if waited is self.key_exchange.socket:
                    for text in self.key_exchange.answer():
                        self._tell(Note("network", text, True))
                elif waited is not self.control_channel.socket:
                    for number, how in self.attempts.ended(int(waited)):
                        self._lose(number, how, now_s)
            self._drain(now_s)
            self.writer.deliver()
            self._watch_workers(now_s)
            self._requests.fulfil()
            self._kill_in_time(now_s)
            if timeout_s is not None and now_s - began_s > timeout_s:
                self._stop_reason = self._stop_reason or f"{timeout_s:g} s have passed"
            if self._stop_reason is not None and not stopped:
                stopped = True
                self._obey(self.coordinator.on_stop(self._stop_reason, now_s))
            if self._checkpoint_requests.is_due:
                self._checkpoint_requests.begin()
                self._obey(self.coordinator.on_asked(now_s))
                self._answer()
            if (lost := self.job.replaced()) is not None:
                self._obey(self.coordinator.on_replaced(lost))
            self._obey(self.coordinator.on_tick(now_s))
            if self.workers.ended and self.end is None:
                raise self.workers.failure()
            if now_s >= snapshot_s + SNAPSHOT_EVERY_S:
                progress = (self.coordinator.phase, self.coordinator.totals())
                if progress != snapshot_of or now_s >= snapshot_s + IDLE_SNAPSHOT_EVERY_S:
                    snapshot_s, snapshot_of = now_s, progress
                    self._look_around(now_s)
        self.ended_s = time.monotonic()
        self._tell(Progressed(self._status()))

    def _say_what_is_left_over(self) -> None:
        """Report requests that were not performed: none is dropped silently."""
        plan = self.coordinator.plan
        target = self.plan_change.unfulfilled(plan, self.scale_requests.wanted)
        if target is not None and self.end is not None and self.end.outcome is not Outcome.FAILED:
            finished = self.end.outcome is Outcome.FINISHED
            then = "and the pipeline has finished" if finished else "the next run starts with it"
            change = f"a change of shards ({difference(plan, target)})"
            reason = f"{change} was requested too late for this run: {then}"
            self._tell(RequestRefused("rescale", reason))

    def _poll_ms(self) -> int:
        """Messages of workers wake the driver; this is how long to wait for everything else."""
        calm = self.coordinator.is_calm(CALM_FROM_S) and not self.config.kills
        return CALM_POLL_MS if calm else POLL_MS

    def _look_around(self, now_s: float) -> None:
        """Periodic work: report the progress, and check whether the run is done."""
        self._heed_settings()
        self._look_at_plan(now_s)
        status = self._status()
        self._tell(Progressed(status))
        if now_s >= self._measures_due_s:
            self._measures_due_s = now_s + MEASURES_EVERY_S
            self._tell(sampled(self._measures(), status))
        for text in self.scrubber.found():
            self._warn(text)
        if self.pace is not None:
            self._note_pace(self.pace.on_recoveries(self.coordinator.recoveries, now_s))
        if self.config.until is not None and self.config.until(status):
            self.request_stop("until= is satisfied")

    # Messages.

    def _drain(self, now_s: float) -> None:
        while self.end is None and (heard := self.control_channel.next()) is not None:
            self._handle(*heard, now_s)

    def _hear_last_logs(self) -> None:
        """What operators logged while the run ended; other messages no longer matter."""
        while (heard := self.control_channel.next()) is not None:
            if isinstance(heard[1], Logged):
                pass_on(heard[1], self.coordinator.plan.graph.name)

    def _handle(self, identity: bytes, message: ToDriver, now_s: float) -> None:
        match message:
            case Hello():
                self._welcome(identity, message, now_s)
            case Beat():
                self.control_channel.tell(identity, Nod())
                self.attempts.beat(message, now_s)
            case KillFired(kill=kill, worker=worker):
                self.injector.happening(kill)
                self.coordinator.on_injected_kill(worker, now_s)
                if (attempt := self.attempts.of(worker)) is not None:
                    attempt.told_to_die = True
                self.control_channel.tell(identity, Nod())
            case Unreachable(worker=worker, peer=peer, waited_s=waited_s):
                if now_s >= self._said_of_peer_s.get(peer, 0.0) + waited_s / 2:  # one for all
                    self._said_of_peer_s[peer] = now_s
                    self._tell(PeerUnreachable(int(worker), int(peer), waited_s))
            case WantsTuning(wishes=wishes):
                self.tune(wishes)
            case Noticed(event=event):
                self._tell(event)
            case Logged():
                pass_on(message, self.coordinator.plan.graph.name)
            case WorkerBroke(number=number, attempt=attempted, error=error):
                self.attempts.heard(number, attempted)
                if self.attempts.is_current(identity, number):
                    self._tell(Note("worker", str(error), True))
                    self._lose(number, "broke", now_s)
                else:
                    self._obey(self.coordinator.on_start_failed(number, error, now_s))
            case _:
                if self.attempts.is_placed(identity):
                    self._measure(message)
                    self._obey(self.coordinator.on_report(message, now_s))
                    if type(message) in _REPORTED_AT:
                        self.injector.reached(_REPORTED_AT[type(message)])
                    if self.running_s is None and self.coordinator.phase is Phase.RUNNING:
                        self.running_s = now_s

    def _measure(self, report: Report) -> None:
        if isinstance(report, Progress) and report.meter is not None:
            self.meters[report.shard] = report.meter
            self.counts[report.shard] = report.counts
            if self.config.monitor is not None:
                self.config.monitor.heard(report.shard, report.meter)

    def _welcome(self, identity: bytes, hello: Hello, now_s: float) -> None:
        self.attempts.welcome(identity, hello, now_s)
        if hello.plan != self.plan_number:
            self._tell_plan(identity)
            return
        self._obey(self.coordinator.on_process_joined(hello.number, hello.address, now_s))

    def _place(self, order: AssignWorker) -> None:
        attempt = self.attempts.place(order.process, order.worker)
        identity, hello = attempt.identity, attempt.hello
        machine = hello.machine.partition("/")[0]
        self._tell(WorkerStarted(int(order.worker), machine, hello.pid, hello.attempt))
        self.control_channel.tell(identity, TakePlace(order.worker))
        for kill in self.injector.for_new_worker(order.worker):
            self.control_channel.tell(identity, kill)
        if self.tuning.version:
            self.control_channel.tell(identity, Tune(self.tuning))
        self.control_channel.tell(identity, LeastTime(self.alignment.least_us))

    # Worker failures.

    def _watch_workers(self, now_s: float) -> None:
        limit_s = self.config.heartbeat_timeout_s
        for number, task in self.attempts.silent(limit_s, now_s):
            self._lose(number, f"silent for {limit_s:g} s", now_s)
            self.workers.kill(task)
        missing = self.attempts.missing
        if not self.attempts.all_here:
            for lost in self.workers.failed_starts(self.attempts.newest, now_s):
                self.attempts.heard(lost.number, lost.attempt)
                self._obey(self.coordinator.on_start_failed(lost.number, lost.error, now_s))
        if missing and now_s > self._patience_s and not self.workers.ended:
            self._patience_s = now_s + START_PATIENCE_S
            self._tell(WaitingForWorkers(missing, len(self.coordinator.plan.workers)))

    def _lose(self, number: TaskNumber, how: str, now_s: float) -> None:
        self.attempts.forget(number)
        self._patience_s = now_s + START_PATIENCE_S
        self._obey(self.coordinator.on_process_lost(number, how, now_s))

    def _kill_in_time(self, now_s: float) -> None:
        if self.running_s is None:
            return
        for worker, order in self.injector.due(now_s - self.running_s):
            if (attempt := self.attempts.of(worker)) is not None:
                self.injector.asked(worker, order.kill)
                self.control_channel.tell(attempt.identity, order)

    # Orders.

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case SendTo(worker=worker, command=command):
                    if isinstance(command, StartCheckpoint) and worker == 0:
                        if command.epoch != NO_EPOCH:
                            self._tell(CheckpointStarted(int(command.epoch)))
                        self.injector.reached(Point.BEFORE_SNAPSHOT)
                    if (attempt := self.attempts.of(worker)) is not None:
                        self.control_channel.tell(attempt.identity, command)
                case AssignWorker():
                    self._place(order)
                case Dismiss(process=number):
                    if (attempt := self.attempts.process(number)) is not None:
                        self.control_channel.tell(attempt.identity, Shutdown())
                case WriteManifest(manifest=manifest):
                    if manifest is not self.coordinator.unwritten:
                        self.injector.reached(Point.AFTER_SNAPSHOT)
                    self.writer.put(manifest)
                case Discard():
                    self.writer.put(order)
                case Publish(event=event):
                    self._tell(event)
                case Quiesced():
                    self._perform(self.plan_change.on_quiesced(self.coordinator))
                case Refused(error=error):
                    self._perform(self.plan_change.on_refused(self.coordinator, error))
                case EndRun():
                    self.end = order
                case _:
                    assert_never(order)

    # Plans.

    def _look_at_plan(self, now_s: float) -> None:
        plan = self.coordinator.plan
        if self.coordinator.phase is Phase.RUNNING:
            self.scale_requests.answer(plan)
            if self.alignment.advanced(self.meters):
                for identity in self.attempts.identities():
                    self.control_channel.tell(identity, LeastTime(self.alignment.least_us))
            held_back = self.time_watch.due(self.meters.values(), now_s)
            if held_back is not None:
                self._tell(held_back)
            if self.scaler is not None and (wanted := self.scaler.look(plan, self.meters, now_s)):
                self.scale_requests.want(wanted)
        facts = Facts(self.attempts.present, self.scale_requests.wanted)
        self._perform(self.plan_change.look(self.coordinator, facts, now_s))

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case StartQuiesce(reason=reason):
                    self._obey(self.coordinator.on_quiesce(reason, time.monotonic()))
                case TakePlan(successor=successor, explained=explained):
                    self._take_plan(successor, explained=explained)
                case ReturnToFormer(successor=successor, error=error, refused=refused):
                    self.scale_requests.withdraw(refused, successor.plan, error)
                    self._take_plan(successor, explained=True)
                case GiveUp(error=error):
                    self.scale_requests.fail(error)
                case FailRun(error=error):
                    for identity in self.attempts.identities():
                        self.control_channel.tell(identity, Shutdown())
                    self.end = EndRun(Outcome.FAILED, error)
                case Publish(event=event):
                    self._tell(event)
                case _:
                    assert_never(decision)

    def _take_plan(self, successor: Coordinator, *, explained: bool) -> None:
        """All processes drop their state and say hello again with the plan of this coordinator.

        A process that starts meanwhile gets this plan when it says hello.
        """
        before = self.coordinator.plan
        self.coordinator, plan = successor, successor.plan
        self.plan_number += 1
        self._pickled_plan = cloudpickle.dumps(plan)
        self.attempts.replan(plan)
        self.injector.plan = plan
        self.meters, self.counts = {}, {}
        self.alignment = TimeAlignment(plan)
        if self.scaler is not None:
            self.scaler.changed(time.monotonic())
        self._tell(plan_changed(before, plan, explained=explained))
        for identity in self.attempts.identities():
            self._tell_plan(identity)

    def _tell_plan(self, identity: bytes) -> None:
        self.control_channel.tell(identity, NewPlan(self.plan_number, self._pickled_plan))

    def _warn(self, text: str) -> None:
        """A problem with the store that does not end the run."""
        self._tell(Note("store", text, True))

    def _status(self) -> RunStatus:
        coordinator = self.coordinator
        return RunStatus(
            coordinator.phase,
            coordinator.worker_count,
            coordinator.records_read(),
            coordinator.totals(),
            coordinator.stable_epoch,
            coordinator.recoveries,
        )

    def _measures(self) -> Measures:
        return Measures(time.time(), dict(self.meters), dict(self.counts), self.attempts.measures())

    def _manifest_done(self, manifest: EpochManifest, error: EverstreamError | None) -> None:
        now_s = time.monotonic()
        if error is None and manifest is self.coordinator.unwritten:
            self._obey(self.coordinator.on_manifest_written(now_s))
        elif error is None:
            self.injector.reached(Point.AFTER_PREPARE)
            self.written.append(manifest)
            self._tell(epoch_stable(manifest))
            self._obey(self.coordinator.on_manifest_written(now_s))
            self._answer()
            if self.pace is not None:
                self._note_pace(self.pace.on_epoch(manifest, now_s))
        else:
            self._obey(self.coordinator.on_manifest_failed(error, now_s))

    def _answer(self) -> None:
        if not self.coordinator.is_asked:
            self._checkpoint_requests.answer(self.coordinator.stable_epoch)

    def _note_pace(self, reason: str | None) -> None:
        if reason is not None and self.pace is not None:
            self.coordinator.set_interval(self.pace.every_s)
            self._tell(IntervalChanged(self.pace.every_s, reason))
