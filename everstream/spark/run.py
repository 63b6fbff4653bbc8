"""`pipeline.run(...)` and `pipeline.start(...)`: from a pipeline and some wishes to a result."""

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec, TypeVar, get_args

import cloudpickle
from pyspark import SparkContext
from pyspark.sql import SparkSession

from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import first_generation
from everstream.core.orders import Outcome
from everstream.core.plan import Plan, make_plan, spread
from everstream.errors import EnvironmentFault, RunFailed, StoreError, UserError
from everstream.monitoring.monitor import Monitor
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, Engine
from everstream.pipeline.graph import Kind
from everstream.pipeline.keys import KEY_GROUPS
from everstream.pipeline.operator import StateKind
from everstream.pipeline.placing import any_on_disk, checked_state, placed
from everstream.pipeline.sizes import size_bytes
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline
from everstream.runtime.sendable import check_sendable
from everstream.spark import operator_logs
from everstream.spark.config import (
    Origin,
    RunConfig,
    always_tcp,
    key_file,
    parsed_kills,
    policy_of,
    positive,
    store_url,
    turn_of,
    wishes_of,
)
from everstream.spark.context import is_local
from everstream.spark.driver import Driver
from everstream.spark.endpoints import Address, Doors, RunKeys, address_of
from everstream.spark.gate import Ticket
from everstream.spark.handle import RunHandle, Seeing
from everstream.spark.heart import Heart, beating
from everstream.spark.host import PROGRESS_EVERY_S, HostTask
from everstream.spark.kills import Kill
from everstream.spark.listener import Listener, Snapshot
from everstream.spark.logs import Logging
from everstream.spark.measuring import measures
from everstream.spark.opening import (
    OpenStore,
    check_store,
    open_store,
    owner_of,
    store_folder,
)
from everstream.spark.page import served
from everstream.spark.progress import Both, watching
from everstream.spark.recording import recording
from everstream.spark.result import RunResult, result_of
from everstream.spark.room import find_room
from everstream.spark.scratch import scratch_folder, sweep
from everstream.spark.sharing import SHARES
from everstream.spark.signals import stopping_on_signals
from everstream.spark.standing_by import stood_by
from everstream.state.holding import held
from everstream.state.near import Near, helps
from everstream.state.signing import StoreKey
from everstream.state.store import Lease
from everstream.state.table import require_engine

DEFAULT = Coordinated()
P = ParamSpec("P")
T = TypeVar("T")


def launch(
    pipeline: Pipeline,
    *,
    engine: Engine = "tasks",
    checkpoint: Checkpointing | None = DEFAULT,
    store: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    renamed: Mapping[str, str] | None = None,
    drop_state: Collection[str] = (),
    take_over: bool = False,
    start_from: str | None = None,
    master: str = "local[*]",
    spark: SparkSession | None = None,
    workers: int | None = None,
    spares: int = 0,
    autoscale: AutoScale | None = None,
    max_shards: int | None = None,
    standby: bool | str | float = False,
    max_restarts: int = 3,
    restart_window: str | float = "10m",
    timeout: str | float | None = None,
    until: Callable[[Snapshot], bool] | None = None,
    kill: Sequence[str | Kill] = (),
    listener: Listener | None = None,
    progress: bool | None = None,
    heartbeat_timeout: str | float = "10s",
    pack_after: str | float = "30s",
    slow_after: str | float = "10s",
    checkpoint_timeout: str | float = "10m",
    transport: str = "auto",
    store_key: str | os.PathLike[str] | None = None,
    monitor: Monitor | str | None = None,
    history: bool = True,
    ui: bool | str = False,
    state: StateKind | None = None,
    host_memory: str | int | None = None,
) -> RunHandle:
    """A run of a pipeline on Spark until its sources end or it is stopped, about to begin.

    What is wrong with the pipeline, or with what is asked for, is raised here, before Spark starts.

    engine: "tasks" keeps Spark tasks running that send each other records; with "microbatch" each
        epoch is one Spark job, and Spark carries the records (docs/engines.md).
    checkpoint: es.Coordinated(every="5s"), es.Uncoordinated(...), es.Induced(...), or None to run
        without.
    store: folder or fsspec URL for the checkpoints. A later run with the same store goes on from
        the last one. Without a store a temporary folder is used and nothing is kept.
    fresh: delete earlier checkpoints and output, start from nothing.
    take_over: run on this store even if another run is using it, which then ends.
    start_from: "STORE@NAME", a savepoint that a run in a store without checkpoints begins with.
    renamed: operators that have another name than in the checkpoint, {"old": "new"}.
    drop_state: operators that begin with nothing while the others go on from the checkpoint.
    master, spark: a Spark master, or a session you already have.
    workers: how many hosts (Spark tasks) to spread the shards over; default: all slots.
    spares: so many further Spark tasks stand by, with everything loaded but the state; one takes
        the place of a host that dies at once (docs/standby.md).
    autoscale: an es.AutoScale: the run changes numbers of shards by itself.
    max_shards: the most shards an operator behind key_by can ever have in this store: into so many
        groups keys are spread; default 128.
    standby: wait until whoever runs on this store ends badly or falls silent, and take over; "2s"
        says how long a silence that is.
    max_restarts: how many failures within restart_window are too many.
    timeout: stop with a checkpoint after so long; without one, and saying so, if it cannot be had.
    until: stop with a checkpoint when this function of the run's Snapshot says so.
    kill: kill hosts on purpose, "OPERATOR[:SHARD]@5s", "@10000" records or "@after-prepare" (see
        everstream.spark.kills); "driver@..." kills this process.
    progress: show on standard error how the run goes; default: unless there is a listener, or
        EVERSTREAM_PROGRESS is 0.
    heartbeat_timeout: a host that is silent for so long is taken for dead.
    pack_after: a host that does not come back for so long leaves its shards to the others, until there
        is room again.
    slow_after: say so when a checkpoint, a restore or the store takes longer than this.
    checkpoint_timeout: give up a checkpoint that is not complete after so long, and start the next.
        The last one of a run is waited for three times as long; then the run fails.
    transport: "auto" (unix sockets on one machine, encrypted TCP between machines) or "tcp".
    store_key: the file with the key that signs the store, so that whoever else can write there cannot
        run code in here; default: the one that EVERSTREAM_STORE_KEY_FILE names, or none.
    monitor: an es.Monitor, or how often one is to sample, "100ms".
    history: keep in the store what happened, bounded, for `everstream ui`.
    ui: serve a page of this run while it goes on, on loopback or on "HOST:PORT"; its link is printed.
    state: "disk" keeps the state of operators that have not said otherwise on the local disk, where it
        may be larger than memory (docs/state.md).
    host_memory: what the process of a host may have, "2g". Near it the host takes nothing in until it
        has less; at it the run fails and says whose state it is.
    """
    began_s = time.monotonic()
    config = RunConfig(
        checkpoint=checkpoint,
        policy=policy_of(checkpoint, max_restarts, restart_window, slow_after, checkpoint_timeout),
        store=store_url(store),
        fresh=fresh,
        wishes=wishes_of(renamed, drop_state),
        take_over=take_over,
        start_from=Origin.parse(start_from, store_url(store)),
        master=master,
        spark=spark,
        workers=workers,
        timeout_s=None if timeout is None else positive("timeout", timeout),
        until=until,
        kills=parsed_kills(kill),
        listener=listener or Listener(),
        heartbeat_timeout_s=positive("heartbeat_timeout", heartbeat_timeout),
        pack_after_s=positive("pack_after", pack_after),
        always_tcp=always_tcp(transport),
        store_key=None if store is None else StoreKey.given(store_key),
        monitor=Monitor(monitor) if isinstance(monitor, str) else monitor,
        key_file=key_file(store, store_key),
        history=history,
        spares=spares,
        autoscale=autoscale,
        key_groups=max_shards,
        turn=turn_of(standby, store, fresh),
        host_memory_bytes=None if host_memory is None else size_bytes("host_memory", host_memory),
    )
    groups = KEY_GROUPS if max_shards is None else max_shards
    placed_pipeline = pipeline.with_nodes(placed(pipeline.graph, checked_state(state, "run()")))
    # Wrong graphs fail here, before Spark starts.
    plan = make_plan(placed_pipeline, workers or 1, key_groups=groups)
    if any_on_disk(plan.graph) is not None:
        require_engine()
    config.check(plan)
    _check_engine(engine, config, plan)
    check_sendable(plan.graph)
    if config.store is not None:
        plan = check_store(config, plan, config.store)

    def perform(handle: RunHandle) -> RunResult:
        with (
            watching(pipeline.name, listener, progress, live=not handle.in_background) as told,
            store_folder(config.store) as url,
        ):
            logged = Both(told, Logging(pipeline.name))
            turn = handle.belongs_to(config.turn)
            heard = replace(config, listener=Both(logged, Seeing(handle)), turn=turn)
            taken = stood_by(heard, plan, engine, url, lambda: handle.stop_requested)
            if isinstance(taken, Outcome):
                result = result_of(plan, url, taken, None, 0)
                pipeline.ended(result)
                return result
            with (
                held(url, owner_of(pipeline.name), take_over or taken is not None),
                SHARES.taking(
                    pipeline.graph, lambda others: find_room(heard, plan, engine, others)
                ) as room,
            ):
                more = workers is not None or autoscale is not None
                idle = room.hosts if more else 0  # for shards that come later
                spread_out = spread(plan, room.hosts, at_least=idle)
                with (
                    served(handle, ui, url, config.key_file),
                    recording(heard, engine, url, room.context) as recorded,
                ):
                    run = _Run(recorded.config, spread_out, room.context, began_s, engine, handle)
                    result = run.to_the_end(url, taken)
                    recorded.outcome = result.outcome.value
        pipeline.ended(result)
        return result

    return RunHandle(
        plan.graph, checkpoint is not None, perform, keeps_store=config.store is not None
    )


def _with(
    begin: Callable[[RunHandle], T], launch: Callable[P, RunHandle], returns: type[T]
) -> Callable[P, T]:
    """`launch`, and then begin: with the same keywords, for people and type checkers alike."""

    @wraps(launch)
    def launched(*args: P.args, **keywords: P.kwargs) -> T:
        return begin(launch(*args, **keywords))

    launched.__annotations__ = {**launch.__annotations__, "return": returns}
    return launched


run = _with(RunHandle.here, launch, RunResult)
"""Launch, and wait for the end: on the caller's thread, which Ctrl-C stops."""
start = _with(RunHandle.start, launch, RunHandle)
"""Launch, and let it go on by itself."""


@dataclass
class _Run:
    """One run, from the lease on the store to the result."""

    config: RunConfig
    plan: Plan
    context: SparkContext
    began_s: float
    engine: Engine
    handle: RunHandle

    def to_the_end(self, url: str, taken: Lease | None) -> RunResult:
        opened = open_store(self.config, self.plan, url, taken)
        self.plan = opened.plan
        newest = opened.newest
        if newest is not None and opened.finished:
            self.config.listener.note(
                f"pipeline '{self.plan.graph.name}' has already finished (epoch {newest.epoch}); "
                "--fresh runs it again and deletes this output",
                False,
            )
            return result_of(self.plan, url, Outcome.FINISHED, newest, newest.epoch)
        if newest is not None:
            last = "showing the last results of" if newest.final else "going on from"
            self.config.listener.note(f"{last} epoch {newest.epoch}", False)
        try:
            with beating(opened, self.config, self.plan.graph.name) as heart:
                result = self._with_sources(opened, heart)
                heart.outcome = result.outcome
                return result
        finally:
            for _, source in self._sources():
                source.after_run()

    def _with_sources(self, opened: OpenStore, heart: Heart) -> RunResult:
        for name, source in self._sources():
            source.before_run(self.plan.graph.name, name, opened.url, opened.newest is not None)
            missing = source.waits_for()
            if missing is not None:
                self.config.listener.note(f"'{name}': {missing}", True)
        opened.tidy(self.config)
        if self.engine == "microbatch":
            return self._in_micro_batches(opened)
        coordinator = self.config.scheme.coordinator(
            self.plan,
            self.config.policy,
            first_generation(opened.lease.number),
            opened.earlier,
        )
        driver, outcome = self._drive(opened, coordinator, heart)
        if outcome is Outcome.FINISHED:
            with suppress(StoreError):  # then the next run shows the last results once more
                opened.store.note_shown()
        return self._result(opened, driver, outcome)

    def _in_micro_batches(self, opened: OpenStore) -> RunResult:
        """One job after the other, instead of hosts that stay."""
        from everstream.microbatch.run import MicroBatches

        if opened.next_plan is not None:
            raise UserError(
                "records are on their way in this checkpoint, and the numbers of shards have changed: "
                'run it once with engine="tasks", which brings them home first.'
            )
        run = MicroBatches(self.config, self.plan, self.context, opened)
        self.handle.attach(run)
        self.config.listener.started(self.plan, self._total_records())
        outcome = run.to_the_end()
        if outcome is Outcome.FINISHED:
            with suppress(StoreError):  # then the next run shows the last results once more
                opened.store.note_shown()
        resumed_from = opened.newest.epoch if opened.newest is not None else 0
        result = result_of(self.plan, opened.url, outcome, run.epochs.newest, resumed_from)
        started_s = run.running_s or run.ended_s
        result.wall_s = run.ended_s - started_s
        result.startup_s = started_s - self.began_s
        result.started_s = started_s
        result.checkpoints = run.written
        result.checkpoint_count = run.written.total
        result.recoveries = run.epochs.recoveries.reports
        result.recovery_count = run.epochs.recoveries.reports.total
        result.notes = run.notes
        result.tally = run.tally
        result.forfeited = run.forfeited
        self._say_what_is_missing(result)
        return result

    def _sources(self) -> Iterator[tuple[str, Source]]:
        for node in self.plan.graph.of_kind(Kind.SOURCE):
            assert isinstance(node.what, Source)
            yield node.name, node.what

    def _drive(
        self, opened: OpenStore, coordinator: Coordinator, heart: Heart
    ) -> tuple[Driver, Outcome]:
        """Have the hosts do the work; the driver when it is done, and how that ended."""
        sweep()
        with scratch_folder() as scratch:
            return self._drive_with(opened, coordinator, heart, scratch)

    def _drive_with(
        self, opened: OpenStore, coordinator: Coordinator, heart: Heart, scratch: str
    ) -> tuple[Driver, Outcome]:
        doors = self._doors()
        driver = Driver(
            self.config,
            self.context,
            coordinator,
            opened.store,
            opened.lease,
            doors,
            lambda address, ticket: self._task(address, ticket, doors, opened.url, scratch),
            opened.url,
            heart.replaced,
            opened.next_plan,
        )
        self.handle.attach(driver)
        self.config.listener.started(self.plan, self._total_records())
        try:
            with stopping_on_signals(driver), self.config.monitor or nullcontext():
                end = driver.run()
        finally:
            doors.close()
        if (near := self._near(opened.url)) is not None:
            Near(near).remove()  # of a driver that was killed, the next one finds it
        if end.outcome is Outcome.FAILED:
            raise end.error or RunFailed("the run failed")
        return driver, end.outcome

    def _doors(self) -> Doors:
        interface = None
        local = is_local(str(self.context.master))
        if self.config.always_tcp or not local:
            interface = "127.0.0.1" if local else self._address_for_executors()
        return Doors(
            RunKeys.make(),
            interface,
            always_tcp=self.config.always_tcp,
            silence_s=self.config.heartbeat_timeout_s,
        )

    def _address_for_executors(self) -> str:
        """Where Spark's own executors reach this process, they reach us, too."""
        name = self.context.getConf().get("spark.driver.host", socket.gethostname())
        address = address_of(str(name)) or address_of(socket.gethostname())
        if address is None:
            raise EnvironmentFault(
                f"this machine has no address for the name '{name}', under which Spark's executors "
                "reach it. Set spark.driver.host (SPARK_LOCAL_IP) to an address of this machine "
                "that the workers reach."
            )
        return address

    def _task(
        self, driver: Address, ticket: Ticket, doors: Doors, url: str, scratch: str
    ) -> HostTask:
        monitor = self.config.monitor
        return HostTask(
            pickled_plan=cloudpickle.dumps(self.plan),
            scheme=self.config.scheme,
            driver=driver,
            ticket=ticket,
            store_url=url,
            scratch=scratch,
            host_memory_bytes=self.config.host_memory_bytes,
            over_tcp=doors.interface is not None,
            always_tcp=self.config.always_tcp,
            driver_timeout_s=self.config.heartbeat_timeout_s,
            slow_after_s=self.config.policy.slow_after_s,
            log_levels=operator_logs.levels(),
            measures=measures(),
            progress_every_s=min(PROGRESS_EVERY_S, monitor.every_s if monitor else math.inf),
            near=self._near(url),
            python_path=[path for path in sys.path if path and os.path.isdir(path)],
        )

    def _near(self, url: str) -> str | None:
        """Drivers of one command find what the hosts of the one before them left on their machines."""
        return f"{self.config.turn.command} {url}" if helps(url) else None

    def _total_records(self) -> int | None:
        totals = [source.total_records() for _, source in self._sources()]
        return None if any(total is None for total in totals) else sum(t or 0 for t in totals)

    def _result(self, opened: OpenStore, driver: Driver, outcome: Outcome) -> RunResult:
        coordinator = driver.coordinator  # of the last plan
        self.plan = coordinator.plan
        newest = coordinator.manifests[0] if coordinator.manifests else None
        resumed_from = opened.newest.epoch if opened.newest is not None else 0
        result = result_of(self.plan, opened.url, outcome, newest, resumed_from)
        started_s = driver.running_s or driver.ended_s
        result.wall_s = driver.ended_s - started_s
        result.startup_s = started_s - self.began_s
        result.started_s = started_s
        result.checkpoints = driver.written
        result.checkpoint_count = driver.written.total
        result.recoveries = coordinator.recoveries
        result.recovery_count = coordinator.recoveries.total
        result.notes = driver.notes
        result.tally = coordinator.tally
        result.lost_frames = coordinator.lost_frames
        result.forfeited = sum(meter.forfeited for meter in driver.meters.values())
        if self.config.monitor is not None:
            result.monitored = self.config.monitor.table()
        self._say_what_is_missing(result)
        return result

    def _say_what_is_missing(self, result: RunResult) -> None:
        for text in result.left_out(self.plan.graph):
            result.notes.append(text)
            self.config.listener.note(text, True)


def _check_engine(engine: str, config: RunConfig, plan: Plan) -> None:
    """Raise a UserError if there is no such engine, or it cannot do what is asked for."""
    if engine not in get_args(Engine):
        raise UserError(f"engine={engine!r}: say one of {', '.join(get_args(Engine))}.")
    if engine == "microbatch":
        from everstream.microbatch.run import check

        check(config, plan)
    else:
        config.scheme.check(plan)
