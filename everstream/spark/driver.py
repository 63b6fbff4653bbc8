"""The driver: carries the coordinator's orders to the hosts and the hosts' reports to it.

One loop on the caller's thread does everything but three things that block: the Spark job runs in
a thread, manifests are written in a thread, and whoever wants to stop the run only sets a flag.
A host's death is noticed at once where it shares our machine (its process handle becomes
readable), when Spark's next attempt says hello, or when it has been silent for too long.
"""

import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import zmq
from pyspark import SparkContext

from everstream.core.control import RunControl
from everstream.core.ids import HostId
from everstream.core.manifest import EpochManifest
from everstream.core.messages import CheckpointTaken, Committed, Restored, StartCheckpoint
from everstream.core.orders import Discard, EndRun, Note, Order, Phase, SendTo, WriteManifest
from everstream.core.points import Point
from everstream.errors import EnvironmentFault, LeaseLost, RunFailed, StoreError
from everstream.spark.autopace import AutoPace
from everstream.spark.endpoints import Doors
from everstream.spark.host import HostTask
from everstream.spark.injection import Injector
from everstream.spark.kills import Kill
from everstream.spark.listener import Listener, Snapshot
from everstream.spark.talk import Beat, Hello, HostBroke, KillFired, Nod, Unreachable
from everstream.state.store import CheckpointStore, Lease

POLL_MS = 10
SNAPSHOT_EVERY_S = 0.1
KEEP_MANIFESTS = 3
START_PATIENCE_S = 30.0
"""How long hosts may take to start before we say what is missing."""


_REPORTED_AT: dict[type, Point] = {
    CheckpointTaken: Point.IN_SNAPSHOT,
    Committed: Point.IN_COMMIT,
    Restored: Point.IN_RESTORE,
}
"""Where the run stands when such a report comes in."""


@dataclass
class Attempt:
    """A host as we know it."""

    hello: Hello
    identity: bytes
    heard_s: float
    pidfd: int | None = None


@dataclass
class Driver:
    """Runs one pipeline to its end."""

    context: SparkContext
    coordinator: RunControl
    store: CheckpointStore
    lease: Lease
    doors: Doors
    task: Callable[[Any], HostTask]
    """Makes the host task once the control socket's address is known."""
    listener: Listener
    heartbeat_timeout_s: float
    timeout_s: float | None = None
    kills: list[Kill] = field(default_factory=list)
    until: Callable[[Snapshot], bool] | None = None
    auto: AutoPace | None = None

    def __post_init__(self) -> None:
        self.attempts: dict[HostId, Attempt] = {}
        self.end: EndRun | None = None
        self.written: list[EpochManifest] = []
        self.notes: list[str] = []
        self.running_s: float | None = None
        self.ended_s = 0.0
        self.injector = Injector(self.kills, self.coordinator.plan, self.listener)
        self._inbound: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._writes: SimpleQueue[EpochManifest | Discard | None] = SimpleQueue()
        self._said_of_peer_s: dict[HostId, float] = {}
        self._stop_reason: str | None = None
        self._job_ended = threading.Event()
        self._job_error: Exception | None = None
        self._group = f"everstream-{self.lease.number}-{os.getpid()}"
        self._patience_s = time.monotonic() + START_PATIENCE_S

    def request_stop(self, reason: str) -> None:
        """Stop with a checkpoint. Safe from a signal handler or another thread."""
        self._stop_reason = reason

    def run(self) -> EndRun:
        control, address = self.doors.listen(zmq.ROUTER, "driver")
        control.router_handover = True  # a host that connects again is the same host
        self.control = control
        self.poller = zmq.Poller()
        self.poller.register(control, zmq.POLLIN)
        writer = threading.Thread(target=self._write_manifests, daemon=True)
        job = threading.Thread(target=self._run_job, args=(self.task(address),), daemon=True)
        writer.start()
        job.start()
        try:
            self._loop()
        finally:
            self._writes.put(None)
            self._leave(job)
            for attempt in self.attempts.values():
                self._forget_process(attempt)
            control.close()
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
                if waited is not self.control:
                    self._process_ended(int(waited), now_s)
            self._drain(now_s)
            while not self._inbound.empty():
                self._inbound.get()()
            self._watch_hosts(now_s)
            self._kill_in_time(now_s)
            if self.timeout_s is not None and now_s - began_s > self.timeout_s:
                self._stop_reason = self._stop_reason or f"{self.timeout_s:g} s have passed"
            if self._stop_reason is not None and not stopped:
                stopped = True
                self._obey(self.coordinator.on_stop(self._stop_reason, now_s))
            self._obey(self.coordinator.on_tick(now_s))
            if self._job_ended.is_set() and self.end is None:
                raise self._job_failure()
            if now_s >= snapshot_due_s:
                snapshot_due_s = now_s + SNAPSHOT_EVERY_S
                snapshot = self._snapshot()
                self.listener.progress(snapshot)
                if self.auto is not None:
                    self._note_pace(self.auto.on_recoveries(snapshot.recoveries, now_s))
                if self.until is not None and self.until(snapshot):
                    self.request_stop("told to")
        self.ended_s = time.monotonic()
        self.listener.progress(self._snapshot())

    # Messages.

    def _drain(self, now_s: float) -> None:
        while self.end is None:
            try:
                identity, body = self.control.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._handle(identity, pickle.loads(body), now_s)

    def _handle(self, identity: bytes, message: Any, now_s: float) -> None:
        match message:
            case Hello():
                self._welcome(identity, message, now_s)
            case Beat(host=host, attempt=number):
                self._reply(identity, Nod())
                attempt = self.attempts.get(host)
                if attempt is not None and attempt.hello.attempt == number:
                    attempt.heard_s = now_s
            case KillFired(kill=kill, host=host):
                self.injector.happening(kill)
                self.coordinator.on_injected_kill(host, now_s)
                self._reply(identity, Nod())
            case Unreachable(host=host, peer=peer, waited_s=waited_s):
                if now_s >= self._said_of_peer_s.get(peer, 0.0) + waited_s / 2:  # one for all
                    self._said_of_peer_s[peer] = now_s
                    text = f"host {host} has not reached host {peer} for {waited_s:.3g} s"
                    self._note(f"{text}; it keeps trying: check the network between them", True)
            case HostBroke(host=host, error=error):
                if self._is_current(identity, host):
                    self._note(str(error), True)
                    self._lose(host, "broke", now_s)
                else:
                    self._obey(self.coordinator.on_start_failed(host, error, now_s))
            case _:
                if any(attempt.identity == identity for attempt in self.attempts.values()):
                    self._obey(self.coordinator.on_report(message, now_s))
                    if type(message) in _REPORTED_AT:
                        self.injector.reached(_REPORTED_AT[type(message)])
                    if self.running_s is None and self.coordinator.phase is Phase.RUNNING:
                        self.running_s = now_s

    def _welcome(self, identity: bytes, hello: Hello, now_s: float) -> None:
        earlier = self.attempts.get(hello.host)
        if earlier is not None:
            self._forget_process(earlier)
        attempt = Attempt(hello, identity, now_s)
        if hello.machine == self.doors.machine and hasattr(os, "pidfd_open"):
            try:
                attempt.pidfd = os.pidfd_open(hello.pid)
                self.poller.register(attempt.pidfd, zmq.POLLIN)
            except OSError:
                attempt.pidfd = None  # gone already, or not allowed: heartbeats will tell
        self.attempts[hello.host] = attempt
        for order in self.injector.for_new_host(hello.host):
            self._reply(identity, order)
        self._obey(self.coordinator.on_host_joined(hello.host, hello.address, now_s))

    def _is_current(self, identity: bytes, host: HostId) -> bool:
        return host in self.attempts and self.attempts[host].identity == identity

    def _reply(self, identity: bytes, message: Any) -> None:
        self.control.send_multipart([identity, pickle.dumps(message, protocol=5)])

    # Hosts that die.

    def _process_ended(self, pidfd: int, now_s: float) -> None:
        for host, attempt in list(self.attempts.items()):
            if attempt.pidfd == pidfd:
                self._lose(host, "its process ended", now_s)

    def _watch_hosts(self, now_s: float) -> None:
        for host, attempt in list(self.attempts.items()):
            if now_s - attempt.heard_s > self.heartbeat_timeout_s:
                task = attempt.hello.task
                self._lose(host, f"silent for {self.heartbeat_timeout_s:g} s", now_s)
                # Spark does not know; it starts the task again once it was told to kill it.
                self.context._jsc.sc().killTaskAttempt(task, True, "silent")
        missing = len(self.coordinator.plan.hosts) - len(self.attempts)
        if missing and now_s > self._patience_s and not self._job_ended.is_set():
            self._patience_s = now_s + START_PATIENCE_S
            self._note(
                f"still waiting for {missing} of {len(self.coordinator.plan.hosts)} hosts: the "
                "cluster may have too few free slots; stop other jobs or use fewer --workers",
                True,
            )

    def _lose(self, host: HostId, how: str, now_s: float) -> None:
        self._forget_process(self.attempts.pop(host))
        self._patience_s = now_s + START_PATIENCE_S
        self._obey(self.coordinator.on_host_lost(host, how, now_s))

    def _forget_process(self, attempt: Attempt) -> None:
        if attempt.pidfd is not None:
            self.poller.unregister(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = None

    def _kill_in_time(self, now_s: float) -> None:
        if self.running_s is None:
            return
        for host, order in self.injector.due(now_s - self.running_s):
            if host in self.attempts:
                self.injector.asked(host, order.kill)
                self._reply(self.attempts[host].identity, order)

    # Orders.

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case SendTo(host=host, command=command):
                    if isinstance(command, StartCheckpoint) and host == 0:
                        self.injector.reached(Point.BEFORE_SNAPSHOT)
                    if host in self.attempts:
                        self._reply(self.attempts[host].identity, command)
                case WriteManifest(manifest=manifest):
                    self.injector.reached(Point.AFTER_SNAPSHOT)
                    self._writes.put(manifest)
                case Discard():
                    self._writes.put(order)
                case Note(text=text, warning=warning):
                    self._note(text, warning)
                case EndRun():
                    self.end = order

    def _note(self, text: str, warning: bool) -> None:
        self.notes.append(text)
        self.listener.note(text, warning)

    def _snapshot(self) -> Snapshot:
        coordinator = self.coordinator
        return Snapshot(
            coordinator.phase,
            len(coordinator.hosts),
            coordinator.records_read(),
            coordinator.totals(),
            coordinator.stable_epoch,
            coordinator.book.reports,
        )

    # Manifests, in a thread of their own.

    def _write_manifests(self) -> None:
        while (work := self._writes.get()) is not None:
            if isinstance(work, Discard):
                self._remove(partial(self.store.discard, work.objects))
                continue
            error = self._write(work)
            self._inbound.put(lambda m=work, e=error: self._manifest_done(m, e))  # type: ignore[misc]
            if error is None:
                objects = not self.coordinator.names_what_goes
                self._remove(partial(self.store.prune, KEEP_MANIFESTS, objects=objects))

    def _write(self, manifest: EpochManifest) -> StoreError | None:
        """Returns only when it is known whether the manifest is there."""
        try:
            body = replace(manifest, written_at=time.time()).to_json()
            self.store.append_manifest(self.lease, body)
            return None
        except LeaseLost as error:
            return error
        except StoreError as error:
            failure = error
        while True:
            try:
                found = self.store.manifests()
            except StoreError:
                time.sleep(0.5)
                continue
            # Only the newest: an older one of this number may be there from before a fall back.
            mine = [entry.body["epoch"] for entry in found[:1] if entry.lease == self.lease.number]
            return None if mine == [manifest.epoch] else failure

    def _remove(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError as error:
            text = f"older checkpoints could not be removed: {error}"
            self._inbound.put(lambda: self._note(text, True))

    def _manifest_done(self, manifest: EpochManifest, error: StoreError | None) -> None:
        now_s = time.monotonic()
        if error is None:
            self.injector.reached(Point.AFTER_PREPARE)
            self.written.append(manifest)
            self.listener.epoch(manifest)
            self._obey(self.coordinator.on_manifest_written(now_s))
            if self.auto is not None:
                self._note_pace(self.auto.on_epoch(manifest, now_s))
        else:
            self._obey(self.coordinator.on_manifest_failed(error, now_s))

    def _note_pace(self, reason: str | None) -> None:
        if reason is not None and self.auto is not None:
            self.coordinator.every_s = self.auto.every_s
            self._note(reason, False)

    # The Spark job, in a thread of its own.

    def _run_job(self, task: HostTask) -> None:
        context = self.context
        hosts = len(self.coordinator.plan.hosts)
        try:
            context.setJobGroup(self._group, f"everstream {self.coordinator.plan.graph.name}", True)
            context.parallelize(range(hosts), hosts).mapPartitionsWithIndex(task).collect()
        except Exception as error:  # py4j raises many kinds; the loop decides what it means
            self._job_error = error
        finally:
            self._job_ended.set()

    def _job_failure(self) -> RunFailed:
        if self._job_error is None:
            return RunFailed("the Spark job ended before the pipeline did")
        text = str(self._job_error).strip().splitlines()
        cause = next((line for line in text if "Exception" in line or "Error" in line), text[0])
        return RunFailed(f"the Spark job failed: {cause}", EnvironmentFault(str(self._job_error)))

    def _leave(self, job: threading.Thread) -> None:
        """Hosts leave by themselves once told; what does not is cancelled."""
        if self.end is not None:
            job.join(timeout=5.0)
        if job.is_alive():
            self.context.cancelJobGroup(self._group)
            job.join(timeout=10.0)
