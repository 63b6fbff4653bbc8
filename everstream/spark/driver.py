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

from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import HostId, ShardId
from everstream.core.manifest import EpochManifest
from everstream.core.messages import (
    CheckpointTaken,
    Committed,
    Progress,
    Report,
    Restored,
    StartCheckpoint,
)
from everstream.core.meter import Meter
from everstream.core.newest import Newest
from everstream.core.orders import (
    Discard,
    EndRun,
    Note,
    Order,
    Outcome,
    Phase,
    SendTo,
    WriteManifest,
)
from everstream.core.points import Point
from everstream.errors import EverstreamError
from everstream.pipeline.tuning import Tuning
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
from everstream.spark.listener import Snapshot
from everstream.spark.manifest_writer import ManifestWriter
from everstream.spark.operator_logs import Logged, pass_on
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
    ToDriver,
    Tune,
    Unreachable,
    WantsTuning,
)
from everstream.state.store import CheckpointStore, Lease

POLL_MS = 10
SNAPSHOT_EVERY_S = 0.1
START_PATIENCE_S = 30.0
"""How long hosts may take to start before we say what is missing."""


_REPORTED_AT: dict[type, Point] = {
    CheckpointTaken: Point.IN_SNAPSHOT,
    Committed: Point.IN_COMMIT,
    Restored: Point.IN_RESTORE,
}
"""Where the run stands when such a report comes in."""


@dataclass
class Driver:
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

    def __post_init__(self) -> None:
        self.poller = zmq.Poller()
        plan = self.coordinator.plan
        self.attempts = Attempts(plan, self.doors.machine, self.poller, self._warn)
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
        self.tuning = Tuning()
        """The settings that were changed, as all hosts know them."""
        self.settings = control_of(plan.graph, self.store, self.store_url, self._warn)
        self._heed_settings()
        self._said_of_peer_s: dict[HostId, float] = {}
        self._stop_reason: str | None = None
        self._asking = Asking()
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

    def tune(self, wishes: Mapping[str, str]) -> None:
        """Change settings while the run goes on, `batch` or `NAME.batch` -> value. From any thread."""
        if self.settings is not None:
            self.settings.tune(wishes)
        else:
            self._warn("nothing in this pipeline can be tuned: it has no paced source or batch")

    def _heed_settings(self) -> None:
        news = self.settings.news() if self.settings is not None else None
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
            lambda host, task: self.job.is_running(host, task),
        )
        self.poller.register(self.gate.socket, zmq.POLLIN)
        group = f"everstream-{uuid.uuid4().hex}"  # no other run of this process has it
        self.births = Births(self.context, group)
        self.job = HostsJob(
            self.context,
            group=group,
            description=f"everstream {plan.graph.name}",
            hosts=len(plan.hosts),
            task=self.task(self.switchboard.address, self.gate.ticket),
        )
        self.writer.start()
        self.scrubber.start()
        if self.settings is not None:
            self.settings.start()
        self.job.start()
        try:
            self._loop()
        finally:
            finished = self.end is not None and self.end.outcome is Outcome.FINISHED
            self._asking.end(self.coordinator.stable_epoch if finished else None)
            self.writer.stop()
            self.scrubber.stop()
            if self.settings is not None:
                self.settings.stop()
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
            events = self.poller.poll(POLL_MS)
            now_s = time.monotonic()
            for waited, _ in events:
                if waited is self.gate.socket:
                    for text in self.gate.answer():
                        self._warn(text)
                elif waited is not self.switchboard.socket:
                    for host, how in self.attempts.ended(int(waited)):
                        self._lose(host, how, now_s)
            self._drain(now_s)
            self.writer.deliver()
            self._watch_hosts(now_s)
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
            self._obey(self.coordinator.on_tick(now_s))
            if self.job.ended and self.end is None:
                raise self.job.failure()
            if now_s >= snapshot_due_s:
                snapshot_due_s = now_s + SNAPSHOT_EVERY_S
                self._look_around(now_s)
        self.ended_s = time.monotonic()
        self.listener.progress(self._snapshot())

    def _out_of_time(self, passed_s: float) -> bool:
        return self.config.timeout_s is not None and passed_s > self.config.timeout_s

    def _look_around(self, now_s: float) -> None:
        """What is done now and then: tell how far we are, and see whether that is enough."""
        self._heed_settings()
        snapshot = self._snapshot()
        self.listener.progress(snapshot)
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
                pass_on(heard[1])

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
                pass_on(message)
            case HostBroke(host=host, attempt=number, error=error):
                self.attempts.heard(host, number)
                if self.attempts.is_current(identity, host):
                    self._warn(str(error))
                    self._lose(host, "broke", now_s)
                else:
                    self._obey(self.coordinator.on_start_failed(host, error, now_s))
            case _:
                if identity in self.attempts.identities():
                    self._measure(message)
                    self._obey(self.coordinator.on_report(message, now_s))
                    if type(message) in _REPORTED_AT:
                        self.injector.reached(_REPORTED_AT[type(message)])
                    if self.running_s is None and self.coordinator.phase is Phase.RUNNING:
                        self.running_s = now_s

    def _measure(self, report: Report) -> None:
        if isinstance(report, Progress) and report.meter is not None:
            self.meters[report.shard] = report.meter
            if self.config.monitor is not None:
                self.config.monitor.heard(report.shard, report.meter)

    def _welcome(self, identity: bytes, hello: Hello, now_s: float) -> None:
        self.attempts.welcome(identity, hello, now_s)
        for order in self.injector.for_new_host(hello.host):
            self.switchboard.tell(identity, order)
        if self.tuning.version:
            self.switchboard.tell(identity, Tune(self.tuning))
        self._obey(self.coordinator.on_host_joined(hello.host, hello.address, now_s))

    # Hosts that die.

    def _watch_hosts(self, now_s: float) -> None:
        limit_s = self.config.heartbeat_timeout_s
        for host, task in self.attempts.silent(limit_s, now_s):
            self._lose(host, f"silent for {limit_s:g} s", now_s)
            # Spark does not know; it starts the task again once it was told to kill it.
            with suppress(*NO_ANSWER):  # then it is gone, which ends the job
                self.context._jsc.sc().killTaskAttempt(task, True, "silent")
        missing = self.attempts.missing
        if missing:
            self._look_for_stillborn(now_s)
        if missing and now_s > self._patience_s and not self.job.ended:
            self._patience_s = now_s + START_PATIENCE_S
            self._warn(
                f"still waiting for {missing} of {len(self.coordinator.plan.hosts)} hosts: the "
                "cluster may have too few free slots; stop other jobs or use fewer --workers"
            )

    def _look_for_stillborn(self, now_s: float) -> None:
        for lost in self.births.failed(self.attempts.newest, now_s):
            self.attempts.heard(lost.host, lost.attempt)
            self._obey(self.coordinator.on_start_failed(lost.host, lost.error, now_s))

    def _lose(self, host: HostId, how: str, now_s: float) -> None:
        self.attempts.forget(host)
        self._patience_s = now_s + START_PATIENCE_S
        self._obey(self.coordinator.on_host_lost(host, how, now_s))

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
                case WriteManifest(manifest=manifest):
                    self.injector.reached(Point.AFTER_SNAPSHOT)
                    self.writer.put(manifest)
                case Discard():
                    self.writer.put(order)
                case Note(text=text, warning=warning):
                    self._note(text, warning)
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

    def _manifest_done(self, manifest: EpochManifest, error: EverstreamError | None) -> None:
        now_s = time.monotonic()
        if error is None:
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
            self._note(reason, False)
