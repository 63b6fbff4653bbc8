"""`pipeline.run(...)` and `pipeline.start(...)`: from a pipeline and its options to a result."""

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Unpack

from everstream.core.orders import Outcome
from everstream.core.plan import Plan, make_plan, spread
from everstream.engine.availability.heartbeat import HeartbeatThread, beating
from everstream.engine.availability.standby import stood_by
from everstream.engine.availability.start_retry import StartRetry
from everstream.engine.catch_up import overlooked_in, sources_of, stop_at_now, without_work
from everstream.engine.engine import (
    COMPLETE,
    Engine,
    EngineEnd,
    EngineJob,
    RunControl,
    engine_named,
)
from everstream.engine.handle import RunHandle, Seeing
from everstream.engine.reporting.building import About, run_started
from everstream.engine.reporting.listener import Listeners, Logging
from everstream.engine.reporting.progress import heard_early, watching
from everstream.engine.reporting.recording import recording, served
from everstream.engine.result import RunResult, result_of
from everstream.engine.settings.configuration import in_force
from everstream.engine.settings.options import RunConfig
from everstream.engine.slot_sharing import SHARES, SlotGrant, WaitingRun
from everstream.engine.store_session import (
    OpenStore,
    check_store,
    open_store,
    owner_of,
    store_folder,
)
from everstream.errors import StoreError
from everstream.events import Note, Resumed, StartDelayed, StartReached
from everstream.pipeline.keyed_state.backend_choice import any_on_disk, placed
from everstream.pipeline.keys import KEY_GROUPS
from everstream.pipeline.options import RunOptions, RunOptionsDict
from everstream.pipeline.stream import Pipeline
from everstream.runtime.sendable import check_sendable
from everstream.state.backends.table import require_engine
from everstream.state.signing import StoreUrl
from everstream.state.store import Lease
from everstream.state.store_lock import held


def _waiting(config: RunConfig, handle: RunHandle) -> WaitingRun:
    """How a run waits for slots that other runs of this process use."""
    told, timeout_s = config.listener.on_event, config.start_timeout_s
    return WaitingRun(
        timeout_s,
        config.engine != "local",
        lambda: bool(handle.stop_requested),
        lambda what: told(StartDelayed(what, timeout_s)),
        lambda waited_s: told(StartReached(waited_s)),
    )


def launch(pipeline: Pipeline, config: RunConfig) -> RunHandle:
    """A run of a pipeline until its sources end or it is stopped, ready to start.

    Mistakes in the pipeline or its options are raised here, before anything starts.
    """
    began_s = time.monotonic()
    groups = KEY_GROUPS if config.key_groups is None else config.key_groups
    placed_pipeline = pipeline.with_nodes(placed(pipeline.graph, config.state))
    # Wrong graphs fail here, before Spark starts.
    starting = StartRetry(config.start_timeout_s, heard_early(config.listener, config.progress))
    plan = starting.reach(
        lambda: make_plan(placed_pipeline, config.workers or 1, key_groups=groups)
    )
    if any_on_disk(plan.graph) is not None:
        require_engine()
    config.check(plan)
    engine = engine_named(config.engine)
    engine.check(config, plan)
    if config.policy.until_caught_up:
        plan = starting.reach(lambda: stop_at_now(plan))
    check_sendable(plan.graph)
    if config.store is not None:
        plan = check_store(config, plan, config.store)

    def conducted(handle: RunHandle) -> RunResult:
        with (
            watching(
                pipeline.name, config.listener, config.progress, live=not handle.in_background
            ) as told,
            store_folder(config.store) as folder,
        ):
            url = StoreUrl(folder, config.store_key)
            turn = handle.belongs_to(config.turn)
            everybody = Listeners(told, Logging(pipeline.name), Seeing(handle))
            heard = replace(config, listener=everybody, turn=turn)
            taken = stood_by(heard, plan, url, lambda: handle.stop_requested, engine.warm)
            if isinstance(taken, Outcome):
                return result_of(plan, url, taken, None, 0)
            own = partial(held, url, owner_of(pipeline.name), config.take_over or taken is not None)
            with own():
                idle = without_work(heard, plan, url)
            if idle is not None:
                return idle
            with (
                own(),
                SHARES.taking(
                    pipeline.graph,
                    lambda others: engine.reserve(heard, plan, others),
                    _waiting(heard, handle),
                ) as grant,
            ):
                if grant is None:
                    return result_of(plan, url, Outcome.STOPPED, None, 0)
                more = config.workers is not None or config.autoscale is not None
                least = grant.workers if more else 0  # for shards added later
                spread_out = spread(plan, grant.workers, at_least=least)
                with (
                    served(handle, config.ui, url, config.key_file),
                    recording(heard, config.engine, url, grant.spark_page) as recorded,
                ):
                    run = _Run(
                        recorded.config, spread_out, grant, began_s, engine, handle, recorded.about
                    )
                    result = run.to_the_end(url, taken)
                    recorded.outcome = result.outcome.value
                    return result

    def perform(handle: RunHandle) -> RunResult:
        result = conducted(handle)
        result.events = handle.events
        pipeline.ended(result)
        return result

    return RunHandle(
        plan.graph, config.checkpoint is not None, perform, keeps_store=config.store is not None
    )


def run(
    pipeline: Pipeline, options: RunOptions | None = None, **overrides: Unpack[RunOptionsDict]
) -> RunResult:
    """Launch, and wait for the end on the caller's thread; Ctrl-C stops the run."""
    return launch(pipeline, RunConfig.of(in_force(options, overrides))).here()


def start(
    pipeline: Pipeline, options: RunOptions | None = None, **overrides: Unpack[RunOptionsDict]
) -> RunHandle:
    """Launch, and return while the run continues in the background."""
    return launch(pipeline, RunConfig.of(in_force(options, overrides))).start()


@dataclass
class _Run:
    config: RunConfig
    plan: Plan
    place: SlotGrant
    began_s: float
    engine: Engine
    handle: RunHandle
    about: About
    overlooked: list[str] = field(default_factory=list)
    """Input that exists but is not read."""

    def to_the_end(self, url: str, taken: Lease | None) -> RunResult:
        opened = open_store(self.config, self.plan, url, taken)
        self.plan = opened.plan
        newest = opened.newest
        if newest is not None and self.config.policy.until_caught_up:
            self.overlooked = overlooked_in(self.config, self.plan, newest, url)
        if newest is not None:
            self.config.listener.on_event(Resumed(int(newest.epoch), newest.final))
        try:
            with beating(opened, self.config, self.plan.graph.name) as heartbeat:
                result = self._with_sources(opened, heartbeat)
                heartbeat.outcome = result.outcome
                return result
        finally:
            for _, source in sources_of(self.plan):
                source.after_run()

    def _with_sources(self, opened: OpenStore, heartbeat: HeartbeatThread) -> RunResult:
        for name, source in sources_of(self.plan):
            source.before_run(self.plan.graph.name, name, opened.url, opened.newest is not None)
            missing = source.waits_for()
            if missing is not None:
                self.config.listener.on_event(Note("input", f"'{name}': {missing}", True))
        opened.tidy(self.config)
        end = self.engine.drive(
            EngineJob(self.config, self.plan, self.place, opened, heartbeat.replaced, self._begin)
        )
        if end.outcome in COMPLETE:
            with suppress(StoreError):  # the next run then publishes the last results again
                opened.store.note_shown()
        return self._result(opened, end)

    def _begin(self, control: RunControl) -> None:
        self.handle.attach(control)
        started = run_started(self.plan, self.about, self._total_records())
        self.config.listener.on_event(started)

    def _total_records(self) -> int | None:
        totals = [source.total_records() for _, source in sources_of(self.plan)]
        return None if any(total is None for total in totals) else sum(t or 0 for t in totals)

    def _result(self, opened: OpenStore, end: EngineEnd) -> RunResult:
        self.plan = end.plan
        resumed_from = opened.newest.epoch if opened.newest is not None else 0
        result = result_of(self.plan, opened.url, end.outcome, end.newest, resumed_from)
        result.wall_s = end.ended_s - end.started_s
        result.startup_s = end.started_s - self.began_s
        result.started_s = end.started_s
        result.checkpoints = end.written
        result.checkpoint_count = end.written.total
        result.recoveries = end.recoveries
        result.recovery_count = end.recoveries.total
        result.checkpoint_stats = end.checkpoint_stats
        result.lost_frames = end.lost_frames
        result.forfeited = end.forfeited
        if self.config.monitor is not None:
            result.monitored = self.config.monitor.table()
        for text in [*self.overlooked, *result.left_out(self.plan.graph)]:
            self.config.listener.on_event(Note("input", text, True))
        return result
