"""The driver: carries the coordinator's orders to the hosts and the hosts' reports to it.

One loop on the caller's thread does everything but two things that block, which have threads of
their own: the Spark job and the writing of manifests. Whoever wants to stop the run sets a flag.
A host's death is noticed at once where it shares our machine (its process handle becomes
readable), when Spark's next attempt says hello, or when it has been silent for too long.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import zmq
from pyspark import SparkContext

from everstream.core.autoscaling import Scaler
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import HostId, ShardId, TaskNumber
from everstream.core.manifest import EpochManifest
from everstream.core.measures import Measures
from everstream.core.messages import (
    CheckpointTaken,
    Committed,
    Progress,
    Report,
    Restored,
    Shutdown,
    StartCheckpoint,
)
from everstream.core.meter import Meter
from everstream.core.newest import Newest
from everstream.core.orders import (
    Discard,
    Dismiss,
    EndRun,
    Note,
    Order,
    Outcome,
    Phase,
    Place,
    SendTo,
    WriteManifest,
)
from everstream.core.plan import Plan
from everstream.core.points import Point
from everstream.errors import EverstreamError, LeaseLost, UserError
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.tuning import Tuning, tunable_in
from everstream.spark.asking import Asking
from everstream.spark.attempts import Attempts
from everstream.spark.config import RunConfig
from everstream.spark.control import control_of, in_words
from everstream.spark.endpoints import Address, Doors
from everstream.spark.gate import Admission, Gate, Ticket
from everstream.spark.gone import NO_ANSWER
from everstream.spark.host import HostTask
from everstream.spark.injection import Injector
from everstream.spark.job import HostsJob
from everstream.spark.kills import Kill
from everstream.spark.listener import Snapshot
from everstream.spark.manifest_writer import ManifestWriter
from everstream.spark.operator_logs import Logged, pass_on
from everstream.spark.replanning import Replanning
from everstream.spark.rescaling import Rescaling
from everstream.spark.scrubber import Scrubber
from everstream.spark.stillborn import Births
from everstream.spark.switchboard import Switchboard
from everstream.spark.talk import (
    Beat,
    Hello,
    HostBroke,
    KillFired,
    Nod,
    Noticed,
    TakePlace,
    ToDriver,
    Tune,
    Unreachable,
    WantsTuning,
)
from everstream.spark.wishes import Wishes
from everstream.state.blobs import Blobs
from everstream.state.store import CheckpointStore, Lease

POLL_MS = 10
CALM_POLL_MS = 50
"""While everybody works and no checkpoint is under way: less would only cost processor time."""
CALM_FROM_S = 0.5
"""Checkpoints that come more often than this are to come in time."""
SNAPSHOT_EVERY_S = 0.1
MEASURES_EVERY_S = 0.5
START_PATIENCE_S = 30.0
"""How long hosts may take to start before we say what is missing."""


_REPORTED_AT: dict[type, Point] = {
    CheckpointTaken: Point.IN_SNAPSHOT,
    Committed: Point.IN_COMMIT,
    Restored: Point.IN_RESTORE,
}
"""Where the run stands when such a report comes in."""


@dataclass
class Driver(Replanning):
    """Runs one pipeline to its end."""

    config: RunConfig
    context: SparkContext
    coordinator: Coordinator
    store: CheckpointStore
    lease: Lease
    doors: Doors
    task: Callable[[Address, Ticket], HostTask]
    """Makes the host task once it is known where we listen."""
    store_url: str = ""
    replaced: Callable[[], LeaseLost | None] = lambda: None
    """What is known of another driver that has taken over."""
    next_plan: Plan | None = None
    """What the run goes on with as soon as nothing is on its way any more."""

    def __post_init__(self) -> None:
        self.poller = zmq.Poller()
        plan = self.coordinator.plan
        self.attempts = Attempts(
            plan, self.config.spares, self.doors.machine, self.poller, self._warn
        )
        self.end: EndRun | None = None
        self.written: Newest[EpochManifest] = Newest()
        self.notes: Newest[str] = Newest()
        self.running_s: float | None = None
        self.ended_s = 0.0
        self.listener = self.config.listener
        self.injector = Injector(self.config.kills, plan, self.listener)
        self.pace = self.config.pace()
        self.writer = ManifestWriter(
            self.store,
            self.lease,
            removes_objects=not self.coordinator.names_what_goes,
            on_done=self._manifest_done,
            on_trouble=self._warn,
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
        """What each shard has measured of itself, as it last said."""
        self.counts: dict[ShardId, dict[str, tuple[int, int]]] = {}
        self._measures_due_s = 0.0
        self.tuning = Tuning()
        """The settings that were changed, as all hosts know them."""
        self.settings = control_of(plan.graph, self.store, self.store_url, self._warn)
        self.rescaling = Rescaling(self.config, plan, self.next_plan, self.settings)
        autoscale = self.config.autoscale
        self.scaler = None if autoscale is None else Scaler(autoscale)
        self.plan_number = 0
        self._pickled_plan = b""
        self._heed_settings()
        self._hosts = len(plan.hosts)
        self._missing_since_s: float | None = None
        self._settles = False
        self._said_of_peer_s: dict[HostId, float] = {}
        self._stop_reason: str | None = None
        self._asking = Asking()
        self._wishes = Wishes()
        self._patience_s = time.monotonic() + START_PATIENCE_S

    @property
    def stop_requested(self) -> bool:
        return self._stop_reason is not None

    def request_stop(self, reason: str) -> None:
        """Stop with a checkpoint. Safe from a signal handler or another thread."""
        self._stop_reason = reason

    def ask_checkpoint(self) -> Future[int]:
        """The epoch that has in it all that was done up to now, once stable. From any thread."""
        return self._asking.ask()

    @property
    def blobs(self) -> Blobs:
        """Where the checkpoints are."""
        return self.store.blobs

    def tune(self, wishes: Mapping[str, str]) -> None:
        """Change settings while the run goes on, `batch` or `NAME.batch` -> value. From any thread."""
        if tunable_in(self.coordinator.plan.graph):
            self.settings.tune(wishes)
        else:
            self._warn("nothing in this pipeline can be tuned: it has no paced source or batch")

    def scale(self, shards: Mapping[str, int]) -> Future[str]:
        """Other numbers of shards while the run goes on: what was done, once it is. From any thread."""
        return self.rescaling.ask(shards, self.coordinator.plan)

    def set_interval(self, every_s: float) -> Future[str]:
        """Another time between two epochs, from now on. From any thread."""
        return self._wishes.ask(lambda: self._set_interval(every_s))

    def kill_host(self, host: int) -> Future[str]:
        """SIGKILL for the process of a host, as `kill=` asks for one. From any thread."""
        return self._wishes.ask(lambda: self._kill_host(HostId(host)))

    def _set_interval(self, every_s: float) -> str:
        if not isinstance(self.config.checkpoint, Coordinated):
            raise UserError(
                "the interval cannot be changed while this runs: under this protocol each shard has "
                "a timer of its own. Stop, and run again with another --every."
            )
        self.pace = None  # whoever sets it by hand wants just that
        self.coordinator.set_interval(every_s)
        self.listener.interval(every_s)
        text = f"checkpoints every {every_s:g} s from now on, as asked for"
        self._note(text, False)
        return text

    def _kill_host(self, host: HostId) -> str:
        plan = self.coordinator.plan
        if not 0 <= host < len(plan.hosts):
            raise UserError(f"there is no host {host}; there are 0 to {len(plan.hosts) - 1}.")
        if self.attempts.of(host) is None or self.running_s is None:
            raise UserError(f"host {host} is not there just now: it cannot be killed.")
        if not plan.hosts[host]:
            raise UserError(f"host {host} has no shards: nothing would be seen of its death.")
        shard = plan.hosts[host][0]
        self.injector.add(Kill(shard.operator, shard.number, after_s=0.0))
        return f"host {host} is about to be killed"

    def _heed_settings(self) -> None:
        news = self.settings.news()
        if news is not None:
            self.tuning = news
            self._note(f"tuned: {in_words(news.settings)}", False)
            for identity in self.attempts.identities():
                self.switchboard.tell(identity, Tune(news))

    def run(self) -> EndRun:
        self.switchboard = Switchboard(self.doors)
        self.poller.register(self.switchboard.socket, zmq.POLLIN)
        plan = self.coordinator.plan
        self.gate = Gate(
            self.doors,
            Admission(self.doors.keys, self.config.store_key),
            lambda number, task: self.job.is_running(number, task),
        )
        self.poller.register(self.gate.socket, zmq.POLLIN)
        group = f"everstream-{uuid.uuid4().hex}"  # no other run of this process has it
        self.births = Births(self.context, group)
        self.job = HostsJob(
            self.context,
            group=group,
            description=f"everstream {plan.graph.name}",
            processes=len(plan.hosts) + self.config.spares,
            task=self.task(self.switchboard.address, self.gate.ticket),
        )
        self.writer.start()
        self.scrubber.start()
        self.settings.start()
        self.job.start()
        try:
            self._loop()
        finally:
            finished = self.end is not None and self.end.outcome is Outcome.FINISHED
            self._asking.end(self.coordinator.stable_epoch if finished else None)
            self._wishes.end()
            self.writer.stop()
            self.scrubber.stop()
            self.settings.stop()
            self.rescaling.end()
            self.job.leave(told=self.end is not None)
            self._hear_last_logs()
            self.attempts.close()
            self.switchboard.close()
            self.gate.close()
        assert self.end is not None
        return self.end

    def _loop(self) -> None:
        began_s = time.monotonic()
        snapshot_due_s = 0.0
        stopped = False
        while self.end is None:
            events = self.poller.poll(self._poll_ms())
            now_s = time.monotonic()
            for waited, _ in events:
                if waited is self.gate.socket:
                    for text in self.gate.answer():
                        self._warn(text)
                elif waited is not self.switchboard.socket:
                    for number, how in self.attempts.ended(int(waited)):
                        self._lose(number, how, now_s)
            self._drain(now_s)
            self.writer.deliver()
            self._watch_hosts(now_s)
            self._wishes.fulfil()
            self._kill_in_time(now_s)
            if self._out_of_time(now_s - began_s):
                self._stop_reason = self._stop_reason or f"{self.config.timeout_s:g} s have passed"
            if self._stop_reason is not None and not stopped:
                stopped = True
                self._obey(self.coordinator.on_stop(self._stop_reason, now_s))
            if self._asking.is_due:
                self._asking.begin()
                self._obey(self.coordinator.on_asked(now_s))
                self._answer()
            if (lost := self.replaced()) is not None:
                self._obey(self.coordinator.on_replaced(lost))
            self._obey(self.coordinator.on_tick(now_s))
            if self.job.ended and self.end is None:
                raise self.job.failure()
            if now_s >= snapshot_due_s:
                snapshot_due_s = now_s + SNAPSHOT_EVERY_S
                self._look_around(now_s)
        self.ended_s = time.monotonic()
        self.listener.progress(self._snapshot())

    def _poll_ms(self) -> int:
        """Messages of hosts wake us; how long to wait for all else."""
        calm = self.coordinator.is_calm(CALM_FROM_S) and not self.config.kills
        return CALM_POLL_MS if calm else POLL_MS

    def _out_of_time(self, passed_s: float) -> bool:
        return self.config.timeout_s is not None and passed_s > self.config.timeout_s

    def _look_around(self, now_s: float) -> None:
        """What is done now and then: tell how far we are, and see whether that is enough."""
        self._heed_settings()
        self._rescale(now_s)
        snapshot = self._snapshot()
        self.listener.progress(snapshot)
        if now_s >= self._measures_due_s:
            self._measures_due_s = now_s + MEASURES_EVERY_S
            self.listener.measured(self._measures())
        for text in self.scrubber.found():
            self._warn(text)
        if self.pace is not None:
            self._note_pace(self.pace.on_recoveries(self.coordinator.recoveries, now_s))
        if self.config.until is not None and self.config.until(snapshot):
            self.request_stop("told to")

    # Messages.

    def _drain(self, now_s: float) -> None:
        while self.end is None and (heard := self.switchboard.next()) is not None:
            self._handle(*heard, now_s)

    def _hear_last_logs(self) -> None:
        """What operators logged while the run ended; nothing else that is said now matters."""
        while (heard := self.switchboard.next()) is not None:
            if isinstance(heard[1], Logged):
                pass_on(heard[1], self.coordinator.plan.graph.name)

    def _handle(self, identity: bytes, message: ToDriver, now_s: float) -> None:
        match message:
            case Hello():
                self._welcome(identity, message, now_s)
            case Beat():
                self.switchboard.tell(identity, Nod())
                self.attempts.beat(message, now_s)
            case KillFired(kill=kill, host=host):
                self.injector.happening(kill)
                self.coordinator.on_injected_kill(host, now_s)
                if (attempt := self.attempts.of(host)) is not None:
                    attempt.told_to_die = True
                self.switchboard.tell(identity, Nod())
            case Unreachable(host=host, peer=peer, waited_s=waited_s):
                if now_s >= self._said_of_peer_s.get(peer, 0.0) + waited_s / 2:  # one for all
                    self._said_of_peer_s[peer] = now_s
                    text = f"host {host} has not reached host {peer} for {waited_s:.3g} s"
                    self._warn(f"{text}; it keeps trying: check the network between them")
            case WantsTuning(wishes=wishes):
                self.tune(wishes)
            case Noticed(host=host, text=text):
                self._warn(f"host {host}: {text}")
            case Logged():
                pass_on(message, self.coordinator.plan.graph.name)
            case HostBroke(number=number, attempt=attempted, error=error):
                self.attempts.heard(number, attempted)
                if self.attempts.is_current(identity, number):
                    self._warn(str(error))
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
        if self.coordinator.is_settled:
            return  # who comes between two plans is given the next one with all others
        if hello.plan != self.plan_number:
            self._tell_plan(identity)
            return
        self._obey(self.coordinator.on_process_joined(hello.number, hello.address, now_s))

    def _place(self, order: Place) -> None:
        identity = self.attempts.place(order.process, order.host).identity
        self.switchboard.tell(identity, TakePlace(order.host))
        for kill in self.injector.for_new_host(order.host):
            self.switchboard.tell(identity, kill)
        if self.tuning.version:
            self.switchboard.tell(identity, Tune(self.tuning))

    # Hosts that die.

    def _watch_hosts(self, now_s: float) -> None:
        limit_s = self.config.heartbeat_timeout_s
        for number, task in self.attempts.silent(limit_s, now_s):
            self._lose(number, f"silent for {limit_s:g} s", now_s)
            # Spark does not know; it starts the task again once it was told to kill it.
            with suppress(*NO_ANSWER):  # then it is gone, which ends the job
                self.context._jsc.sc().killTaskAttempt(task, True, "silent")
        missing = self.attempts.missing
        self._pack(missing, now_s)
        if not self.attempts.all_here:
            self._look_for_stillborn(now_s)
        if missing and now_s > self._patience_s and not self.job.ended:
            self._patience_s = now_s + START_PATIENCE_S
            self._warn(
                f"still waiting for {missing} of {len(self.coordinator.plan.hosts)} hosts: the "
                "cluster may have too few free slots; stop other jobs or use fewer --workers"
            )

    def _look_for_stillborn(self, now_s: float) -> None:
        for lost in self.births.failed(self.attempts.newest, now_s):
            self.attempts.heard(lost.number, lost.attempt)
            self._obey(self.coordinator.on_start_failed(lost.number, lost.error, now_s))

    def _lose(self, number: TaskNumber, how: str, now_s: float) -> None:
        self.attempts.forget(number)
        self._patience_s = now_s + START_PATIENCE_S
        self._obey(self.coordinator.on_process_lost(number, how, now_s))

    def _kill_in_time(self, now_s: float) -> None:
        if self.running_s is None:
            return
        for host, order in self.injector.due(now_s - self.running_s):
            if (attempt := self.attempts.of(host)) is not None:
                self.injector.asked(host, order.kill)
                self.switchboard.tell(attempt.identity, order)

    # Orders.

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case SendTo(host=host, command=command):
                    if isinstance(command, StartCheckpoint) and host == 0:
                        self.injector.reached(Point.BEFORE_SNAPSHOT)
                    if (attempt := self.attempts.of(host)) is not None:
                        self.switchboard.tell(attempt.identity, command)
                case Place():
                    self._place(order)
                case Dismiss(process=number):
                    if (attempt := self.attempts.process(number)) is not None:
                        self.switchboard.tell(attempt.identity, Shutdown())
                case WriteManifest(manifest=manifest):
                    self.injector.reached(Point.AFTER_SNAPSHOT)
                    self.writer.put(manifest)
                case Discard():
                    self.writer.put(order)
                case Note(text=text, warning=warning, given_up=number):
                    self._note(text, warning)
                    if number is not None:
                        self.listener.given_up(number, text)
                case EndRun(outcome=Outcome.SETTLED):
                    self.writer.put(self.rescaling.settled(self.coordinator))
                case EndRun():
                    self.end = order

    def _note(self, text: str, warning: bool) -> None:
        self.notes.append(text)
        self.listener.note(text, warning)

    def _warn(self, text: str) -> None:
        self._note(text, True)

    def _snapshot(self) -> Snapshot:
        coordinator = self.coordinator
        return Snapshot(
            coordinator.phase,
            coordinator.host_count,
            coordinator.records_read(),
            coordinator.totals(),
            coordinator.stable_epoch,
            coordinator.recoveries,
        )

    def _measures(self) -> Measures:
        return Measures(time.time(), dict(self.meters), dict(self.counts), self.attempts.measures())

    def _manifest_done(self, manifest: EpochManifest, error: EverstreamError | None) -> None:
        now_s = time.monotonic()
        if manifest is self.rescaling.writing:
            self._go_on_with_other_shards(error)
        elif error is None:
            self.injector.reached(Point.AFTER_PREPARE)
            self.written.append(manifest)
            self.listener.epoch(manifest)
            self._obey(self.coordinator.on_manifest_written(now_s))
            self._answer()
            if self.pace is not None:
                self._note_pace(self.pace.on_epoch(manifest, now_s))
        else:
            self._obey(self.coordinator.on_manifest_failed(error, now_s))

    def _answer(self) -> None:
        if not self.coordinator.is_asked:
            self._asking.answer(self.coordinator.stable_epoch)

    def _note_pace(self, reason: str | None) -> None:
        if reason is not None and self.pace is not None:
            self.coordinator.set_interval(self.pace.every_s)
            self.listener.interval(self.pace.every_s)
            self._note(reason, False)
