"""`pipeline.run(...)`: from a pipeline and some wishes to a result."""

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
from pyspark import SparkContext
from pyspark.sql import SparkSession

from everstream.core.ids import first_generation
from everstream.core.manifest import EpochManifest, check_fits
from everstream.core.message_log import LogKind
from everstream.core.orders import Outcome, Policy
from everstream.core.plan import Plan, make_plan, spread
from everstream.core.scheme import Checkpointing, Scheme, scheme_of
from everstream.errors import RunFailed, UserError
from everstream.pipeline.checkpointing import Coordinated, seconds
from everstream.pipeline.graph import Kind
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline
from everstream.spark.autopace import AutoPace
from everstream.spark.context import check_context, is_local, make_context, slots
from everstream.spark.driver import Driver
from everstream.spark.endpoints import Address, Doors, RunKeys, address_seen_by_others
from everstream.spark.host import HostTask
from everstream.spark.kills import Kill
from everstream.spark.listener import Listener, Snapshot
from everstream.spark.result import RunResult
from everstream.spark.waiting import said_when_slow
from everstream.state.store import CheckpointStore, Lease

DEFAULT = Coordinated()


def run(
    pipeline: Pipeline,
    *,
    checkpoint: Checkpointing | None = DEFAULT,
    store: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    master: str = "local[*]",
    spark: SparkSession | None = None,
    workers: int | None = None,
    max_restarts: int = 3,
    restart_window: str | float = "10m",
    timeout: str | float | None = None,
    until: Callable[[Snapshot], bool] | None = None,
    kill: Sequence[str | Kill] = (),
    listener: Listener | None = None,
    heartbeat_timeout: str | float = "10s",
    slow_after: str | float = "10s",
    transport: str = "auto",
) -> RunResult:
    """Run a pipeline on Spark until its sources end or it is stopped.

    checkpoint: es.Coordinated(every="5s"), es.Uncoordinated(...), es.Induced(...), or None to run
        without.
    store: folder or fsspec URL for the checkpoints. A later run with the same store goes on from
        the last one. Without a store a temporary folder is used and nothing is kept.
    fresh: forget earlier checkpoints and output, start from nothing.
    master, spark: a Spark master, or a session you already have.
    workers: how many hosts (Spark tasks) to spread the shards over; default: all slots.
    max_restarts: how many failures within restart_window are too many.
    timeout: stop with a checkpoint after so long.
    until: stop with a checkpoint when this function of the run's Snapshot says so.
    kill: kill hosts on purpose, "OPERATOR[:SHARD]@5s", "@10000" records or "@after-prepare" (see
        everstream.spark.kills); "driver@..." kills this process.
    slow_after: say so when a checkpoint, a restore or the store takes longer than this.
    transport: "auto" (unix sockets on one machine, encrypted TCP between machines) or "tcp".
    """
    if transport not in ("auto", "tcp"):
        raise UserError(f"transport={transport!r}: say 'auto' or 'tcp'.")
    listener = listener or Listener()
    kills = [item if isinstance(item, Kill) else Kill.parse(item) for item in kill]
    began_s = time.monotonic()
    plan = make_plan(pipeline, workers or 1)  # wrong graphs fail here, before Spark starts
    scheme = scheme_of(checkpoint)
    scheme.check(plan)
    for wanted in kills:
        wanted.check(plan)
    if spark is not None:
        context = spark.sparkContext
        for warning in check_context(context):
            listener.note(warning, True)
    else:
        context = make_context(master, f"everstream {pipeline.name}")
    plan = spread(plan, _hosts(context, workers, listener))
    coordinated = checkpoint if isinstance(checkpoint, Coordinated) else None
    with _store_folder(store) as url:
        return _Run(pipeline, plan, context, url, listener, began_s).to_the_end(
            scheme=scheme,
            auto=AutoPace(coordinated) if coordinated and coordinated.automatic else None,
            fresh=fresh,
            policy=Policy(
                checkpoints=checkpoint is not None,
                every_s=checkpoint.every_s if checkpoint else None,
                every_records=coordinated.every_records if coordinated else None,
                max_restarts=max_restarts,
                restart_window_s=seconds(restart_window),
                slow_after_s=seconds(slow_after),
            ),
            timeout_s=None if timeout is None else seconds(timeout),
            kills=kills,
            until=until,
            heartbeat_timeout_s=seconds(heartbeat_timeout),
            always_tcp=transport == "tcp",
        )


class _Run:
    """One run, from the lease on the store to the result."""

    def __init__(
        self,
        pipeline: Pipeline,
        plan: Plan,
        context: SparkContext,
        url: str,
        listener: Listener,
        began_s: float,
    ) -> None:
        self.pipeline = pipeline
        self.plan = plan
        self.context = context
        self.url = url
        self.listener = listener
        self.began_s = began_s

    def to_the_end(
        self,
        scheme: Scheme,
        auto: AutoPace | None,
        fresh: bool,
        policy: Policy,
        timeout_s: float | None,
        kills: list[Kill],
        until: Callable[[Snapshot], bool] | None,
        heartbeat_timeout_s: float,
        always_tcp: bool,
    ) -> RunResult:
        store = CheckpointStore.at(self.url)
        with said_when_slow(self.listener, f"opening the store {self.url}", policy.slow_after_s):
            owner = f"{self.pipeline.name} pid {os.getpid()} on {socket.gethostname()}"
            lease = store.acquire_lease(owner)
            manifests = self._earlier(store, lease, fresh, scheme.log)
        if manifests and manifests[0].final:
            self.listener.note(
                f"pipeline '{self.pipeline.name}' has already finished (epoch "
                f"{manifests[0].epoch}); use --fresh to run it again",
                False,
            )
            return self._result(Outcome.FINISHED, manifests[0], manifests[0].epoch)
        if manifests:
            self.listener.note(f"going on from epoch {manifests[0].epoch}", False)
        for node in self.plan.graph.of_kind(Kind.SOURCE):
            assert isinstance(node.what, Source)
            node.what.before_run(self.pipeline.name, node.name, self.url, bool(manifests))
        with said_when_slow(self.listener, f"tidying the store {self.url}", policy.slow_after_s):
            store.sweep(lease)
        local = is_local(str(self.context.master))
        over_tcp = always_tcp or not local
        interface = None
        if over_tcp:
            interface = "127.0.0.1" if local else address_seen_by_others()
        keys = RunKeys.make()
        doors = Doors(keys, interface, always_tcp=always_tcp, silence_s=heartbeat_timeout_s)
        coordinator = scheme.coordinator(
            self.plan, policy, first_generation(lease.number), manifests
        )

        def task(driver: Address) -> HostTask:
            return HostTask(
                pickled_plan=cloudpickle.dumps(self.plan),
                scheme=scheme,
                driver=driver,
                keys=keys,
                store_url=self.url,
                over_tcp=over_tcp,
                always_tcp=always_tcp,
                driver_timeout_s=heartbeat_timeout_s,
                slow_after_s=policy.slow_after_s,
                python_path=[path for path in sys.path if path and os.path.isdir(path)],
            )

        driver = Driver(
            self.context,
            coordinator,
            store,
            lease,
            doors,
            task,
            self.listener,
            heartbeat_timeout_s,
            timeout_s,
            kills,
            until,
            auto,
        )
        self.listener.started(self.plan, self._total_records())
        try:
            with _stopping_on_signals(driver):
                end = driver.run()
        finally:
            doors.close()
        if end.outcome is Outcome.FAILED:
            raise end.error or RunFailed("the run failed")
        newest = coordinator.manifests[0] if coordinator.manifests else None
        result = self._result(end.outcome, newest, manifests[0].epoch if manifests else 0)
        started_s = driver.running_s or driver.ended_s
        result.wall_s = driver.ended_s - started_s
        result.startup_s = started_s - self.began_s
        result.checkpoints = driver.written
        result.recoveries = coordinator.book.reports
        result.notes = driver.notes
        result.tally = coordinator.tally
        result.lost_frames = coordinator.lost_frames
        if coordinator.lost_frames:
            self._note(
                result,
                f"{coordinator.lost_frames} frame(s) were lost with the logs of failed hosts; "
                'use log="durable" to lose nothing',
            )
        for name, count in result.skipped.items():
            kept = self.plan.graph.nodes[name].dead_letters is not None
            where = f"; they are kept in {self.url}/dead_letters/{name}" if kept else ""
            self._note(result, f"'{name}' left out {count} record(s) with errors{where}")
        return result

    def _note(self, result: RunResult, text: str) -> None:
        result.notes.append(text)
        self.listener.note(text, True)

    def _earlier(
        self, store: CheckpointStore, lease: Lease, fresh: bool, log: LogKind
    ) -> list[EpochManifest]:
        """The checkpoints to go on from; none if the run starts from nothing."""
        if fresh:
            store.forget_all(lease)
        found = [EpochManifest.from_json(manifest.body) for manifest in store.manifests()]
        for skipped in store.skipped:
            self.listener.note(f"{skipped.path} is skipped: {skipped.reason}", True)
        if found:
            check_fits(found[0], self.plan, log)
            return found
        for node in self.plan.graph.nodes.values():
            for sink in (node.what if node.kind is Kind.SINK else None, node.dead_letters):
                if isinstance(sink, Sink):
                    sink.start_fresh(self.pipeline.name, node.name, self.url, fresh)
        return []

    def _total_records(self) -> int | None:
        totals = []
        for node in self.plan.graph.of_kind(Kind.SOURCE):
            assert isinstance(node.what, Source)
            totals.append(node.what.total_records())
        return None if any(total is None for total in totals) else sum(t or 0 for t in totals)

    def _result(
        self, outcome: Outcome, newest: EpochManifest | None, resumed_from: int
    ) -> RunResult:
        counts: dict[str, tuple[int, int]] = {}
        skipped: Counter[str] = Counter()
        for record in newest.records.values() if newest is not None else ():
            for name, (records_in, records_out) in record.counts.items():
                before = counts.get(name, (0, 0))
                counts[name] = (before[0] + records_in, before[1] + records_out)
            skipped.update(record.skipped)
        graph = self.plan.graph
        outputs: dict[str, Any] = {}
        for node in graph.of_kind(Kind.SINK):
            assert isinstance(node.what, Sink)
            gathered = node.what.results(self.pipeline.name, node.name, self.url)
            if gathered is not None:
                outputs[node.name] = gathered
        return RunResult(
            pipeline=self.pipeline.name,
            outcome=outcome,
            wall_s=0.0,
            startup_s=0.0,
            counts=counts,
            sources=tuple(node.name for node in graph.of_kind(Kind.SOURCE)),
            sinks=tuple(node.name for node in graph.of_kind(Kind.SINK)),
            store=self.url,
            resumed_from=resumed_from,
            skipped=dict(skipped),
            outputs=outputs,
        )


def _hosts(context: SparkContext, workers: int | None, listener: Listener) -> int:
    """As many hosts as there are slots: more would wait for each other for ever."""
    available = slots(context)
    if workers is not None and workers > available:
        listener.note(
            f"{workers} workers were asked for but Spark has {available} slot(s): the shards are "
            f"packed onto {available} host(s)",
            True,
        )
    return min(workers or available, available)


@contextmanager
def _store_folder(store: str | os.PathLike[str] | None) -> Iterator[str]:
    """The URL of the store; a folder that is thrown away if there is none."""
    if store is None:
        folder = tempfile.mkdtemp(prefix="everstream-store-")
        try:
            yield folder
        finally:
            # A host that was told to leave may still be writing: that must not hide how the run
            # ended, so what cannot be removed now is left to the system's temporary folder.
            shutil.rmtree(folder, ignore_errors=True)
    else:
        url = os.fspath(store)
        yield url if "://" in url else str(Path(url).absolute())


@contextmanager
def _stopping_on_signals(driver: Driver) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop with a checkpoint; a second Ctrl-C stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        if driver._stop_reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        driver.request_stop("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
