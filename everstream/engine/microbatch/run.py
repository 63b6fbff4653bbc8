"""`pipeline.run(engine="microbatch")`: from a pipeline and its options to a result."""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from pyspark import SparkContext

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.newest import Newest
from everstream.core.coordinators.progress import CheckpointStats
from everstream.core.fault_points import Point
from everstream.core.ids import ShardId
from everstream.core.orders import Outcome, Phase
from everstream.core.plan import Plan
from everstream.engine.engine import EngineEnd, EngineJob
from everstream.engine.microbatch.epochs import Epochs, Watcher
from everstream.engine.microbatch.kills import Death, KillPlan
from everstream.engine.microbatch.layout import Layout
from everstream.engine.microbatch.orders import ShardReport
from everstream.engine.microbatch.sizing import Sizing
from everstream.engine.microbatch.spark_job import SparkJobs
from everstream.engine.reporting.building import epoch_stable, sampled_from
from everstream.engine.requests import CheckpointRequests
from everstream.engine.settings.live_settings import NOT_TUNABLE, Control, control_of, flattened
from everstream.engine.settings.options import RunConfig
from everstream.engine.signals import Stoppable, stopping_on_signals
from everstream.engine.spark.slots import OnSpark
from everstream.engine.store_session import OpenStore
from everstream.errors import UserError
from everstream.events import (
    IntervalChanged,
    Note,
    Progressed,
    RequestRefused,
    RunEvent,
    RunStatus,
    SettingsChanged,
    Stopping,
)
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.graph import Kind
from everstream.pipeline.keyed_state.backend_choice import any_on_disk
from everstream.pipeline.operator import Operator
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.sink import Sink
from everstream.pipeline.tuning import tunable_in
from everstream.state.blobs import Blobs

DEFAULT_EVERY_S = 1.0
"""The default duration of an epoch, which is also how long a result takes to become visible."""
_LOOK_EVERY_S = 0.05
SAMPLE_EVERY_S = 0.5


class MicroBatchEngine(OnSpark):
    """One Spark job per epoch; Spark moves the records and retries lost tasks."""

    keeps_slots = False

    def check(self, config: RunConfig, plan: Plan) -> None:
        _check(config, plan)

    def drive(self, job: EngineJob) -> EngineEnd:
        if job.opened.next_plan is not None:
            raise UserError(
                "this checkpoint has records in flight, and the numbers of shards have changed: run it "
                'once with engine="tasks", which delivers them first.'
            )
        run = MicroBatches(job.config, job.plan, job.place.spark, job.opened)
        job.begin(run)
        outcome = run.to_the_end()
        return EngineEnd(
            outcome,
            job.plan,
            run.epochs.newest,
            run.running_s or run.ended_s,
            run.ended_s,
            run.written,
            run.epochs.recoveries.reports,
            run.checkpoint_stats,
            forfeited=run.forfeited,
        )


def _check(config: RunConfig, plan: Plan) -> None:
    """Raise a UserError for options that this engine does not support."""
    checkpoint = config.checkpoint
    if not isinstance(checkpoint, Coordinated) or checkpoint.mode != "aligned":
        raise UserError(
            'engine="microbatch" takes aligned checkpoints only: every epoch ends with one, with '
            "nothing in flight that another protocol could treat differently. Use "
            'checkpoint=es.Coordinated(every="1s") (--checkpoint aligned), or engine="tasks".'
        )
    drifting = [
        node.name
        for node in plan.graph.nodes.values()
        if isinstance(node.what, EventTime) and node.what.max_drift_us is not None
    ]
    if drifting:
        raise UserError(
            f"operator '{drifting[0]}' has a max_drift, but with engine=\"microbatch\" all sources of an "
            'epoch read independently. Remove max_drift, or use engine="tasks".'
        )
    if config.worker_memory_bytes is not None:
        raise UserError(
            'worker_memory= is for engine="tasks"; with engine="microbatch" Spark chooses the worker '
            "of a shard. Leave it out, and set spark.executor.pyspark.memory."
        )
    kept = any_on_disk(plan.graph)
    if kept is not None:
        raise UserError(
            f"'{kept}' keeps its state on disk, which needs a permanent process: with "
            'engine="microbatch" Spark may run a shard anywhere in each epoch. Leave state="disk" '
            'out, or use engine="tasks".'
        )
    for node in plan.graph.of_kind(Kind.SINK):
        if isinstance(node.what, Sink) and node.what.permanent_process:
            raise UserError(
                f"'{node.name}' prepares transactions that only its next process may roll back: with "
                'engine="microbatch" Spark may run a shard anywhere, and twice. Use engine="tasks".'
            )
    if config.always_tcp:
        raise UserError(
            'transport="tcp" is for engine="tasks"; with engine="microbatch" Spark moves the '
            "records. Leave it out."
        )
    if config.workers is not None:
        raise UserError(
            'workers= is for engine="tasks"; with engine="microbatch" an epoch has as many tasks as '
            "the pipeline has shards, and Spark runs as many at once as it has slots. Leave it out."
        )
    if config.spares:
        raise UserError(
            'spares= is for engine="tasks"; engine="microbatch" has no permanent process that a '
            "spare could replace: Spark retries a task that has died. Leave it out."
        )
    if config.monitor is not None:
        raise UserError(
            'monitor= samples running shards, which engine="microbatch" has only during an epoch. '
            'Leave it out, or use engine="tasks".'
        )
    KillPlan(config.kills, plan, config.listener)


class MicroBatches(Stoppable, Watcher):
    def __init__(
        self, config: RunConfig, plan: Plan, context: SparkContext, opened: OpenStore
    ) -> None:
        self.config = config
        self.plan = plan
        self.opened = opened
        self.listener = config.listener
        self.written: Newest[EpochManifest] = Newest()
        self.checkpoint_stats = CheckpointStats()
        self.began_s = time.monotonic()
        self.running_s: float | None = None
        self.ended_s = 0.0
        self._checkpoint_requests = CheckpointRequests()
        self._kills = KillPlan(config.kills, plan, config.listener)
        layout = Layout(plan)
        run = uuid.uuid4().hex
        self._jobs = SparkJobs(
            context,
            layout,
            opened.url,
            config.key_file,
            f"everstream-{run}",
            max(1, config.policy.max_restarts),
            config.retention,
            self._deaths,
            self._kills.settle,
            partial(self.reached, Point.IN_SNAPSHOT)
            if self._kills.awaits(Point.IN_SNAPSHOT)
            else None,
        )
        self.epochs = Epochs(
            layout=layout,
            store=opened.store,
            lease=opened.lease,
            store_url=opened.url,
            run=run,
            jobs=self._jobs,
            manifests=list(opened.earlier),
            sizing=_sizing(config, plan),
            policy=config.policy,
            watcher=self,
            sleep=self._rest,
            retention=config.retention,
        )
        self._forfeited: dict[ShardId, float] = {}
        self._phase: Phase | None = None
        self._sample_due_s = 0.0
        self._control: Control | None = None
        if tunable_in(plan.graph):
            self._control = control_of(
                plan.graph, opened.store, opened.url, lambda t: self.tell(Note("store", t, True))
            )
        self._heed_settings()

    @property
    def forfeited(self) -> float:
        return sum(self._forfeited.values())

    def ask_checkpoint(self) -> Future[int]:
        return self._checkpoint_requests.ask()

    @property
    def blobs(self) -> Blobs:
        return self.opened.store.blobs

    def tune(self, wishes: Mapping[str, str]) -> None:
        if self._control is not None:
            self._control.tune(wishes)
        else:
            self.tell(RequestRefused("tune", NOT_TUNABLE))

    def set_interval(self, every_s: float) -> Future[str]:
        """The target duration of epochs, from the next one on. From any thread."""
        self.epochs.sizing.every_s = every_s
        text = f"epochs of {every_s:g} s from the next one on, as requested"
        self.tell(IntervalChanged(every_s, text))
        done: Future[str] = Future()
        done.set_result(text)
        return done

    def scale(self, shards: Mapping[str, int]) -> Future[str]:
        raise UserError(
            'with engine="microbatch" numbers of shards are changed between two runs: stop this one, '
            "and set shards=... in the program."
        )

    def kill_worker(self, worker: int) -> Future[str]:
        raise UserError(
            'engine="microbatch" has no permanent workers to kill: use kill= '
            "(--kill OPERATOR@WHEN)."
        )

    def to_the_end(self) -> Outcome:
        self._look()
        if self._control is not None:
            self._control.start()
        try:
            with stopping_on_signals(self):
                self.epochs.open()
                self.running_s = time.monotonic()
                self._run_epochs()
                self.epochs.close(hooks=_has_last_words(self.plan))
        except BaseException:
            with suppress(Exception):  # report the first error
                self._jobs.cancel()
            raise
        finally:
            self.ended_s = time.monotonic()
            complete = self.epochs.finished or self.epochs.all_read
            self._checkpoint_requests.end(self.epochs.stable if complete else None)
            self._jobs.close()
            if self._control is not None:
                self._control.stop()
        self._tell_progress(Phase.DONE)
        if self.epochs.finished:
            return Outcome.FINISHED
        caught_up = self.config.policy.until_caught_up and self.epochs.all_read
        return Outcome.CAUGHT_UP if caught_up else Outcome.STOPPED

    def _run_epochs(self) -> None:
        while not self.epochs.finished:
            began_s = time.monotonic()
            if self._checkpoint_requests.is_due:
                self._checkpoint_requests.begin()
            self._kills.reached(Point.BEFORE_SNAPSHOT)
            if self.epochs.step():
                self._checkpoint_requests.answer(self.epochs.stable)
            self._look()
            if self.config.policy.until_caught_up and self.epochs.all_read:
                return
            if self.stop_requested:
                self.tell(Stopping(self._stop_reason or "", int(self.epochs.stable)))
                return
            # With too little input to fill an epoch, the next one starts when it is due.
            if self.epochs.caught_up and not self.epochs.finished:
                self._rest(began_s + (self.epochs.sizing.every_s or 0.0) - time.monotonic())

    def _rest(self, time_s: float) -> None:
        """Wait this long, or for a request to stop or to take a checkpoint."""
        due_s = time.monotonic() + time_s
        while time.monotonic() < due_s and not (
            self.stop_requested or self._checkpoint_requests.is_due
        ):
            time.sleep(min(_LOOK_EVERY_S, max(0.0, due_s - time.monotonic())))
            self._look()

    def _look(self) -> None:
        """Report the progress, and check whether the run is done."""
        self._heed_settings()
        status = self._tell_progress(Phase.RUNNING)
        timeout_s = self.config.timeout_s
        if timeout_s is not None and time.monotonic() - self.began_s > timeout_s:
            self._stop_reason = self._stop_reason or f"{timeout_s:g} s have passed"
        if self.config.until is not None and self.config.until(status):
            self._stop_reason = self._stop_reason or "until= is satisfied"

    def _heed_settings(self) -> None:
        news = self._control.news() if self._control is not None else None
        if news is not None:
            self.epochs.tuning = news
            self.tell(SettingsChanged(flattened(news.settings)))

    def _tell_progress(self, phase: Phase) -> RunStatus:
        """Without permanent workers to measure, checkpoints show the progress of each shard."""
        status, now_s = self._status(phase), time.monotonic()
        self.listener.on_event(Progressed(status))
        if phase is not self._phase or now_s >= self._sample_due_s:
            self._phase, self._sample_due_s = phase, now_s + SAMPLE_EVERY_S
            self.listener.on_event(sampled_from(self.epochs.newest, status))
        return status

    def _status(self, phase: Phase) -> RunStatus:
        newest = self.epochs.newest
        totals: dict[str, int] = {}
        sources = {node.name for node in self.plan.graph.of_kind(Kind.SOURCE)}
        for record in newest.records.values() if newest is not None else ():
            for name, (had, gave) in record.counts.items():
                totals[name] = totals.get(name, 0) + (gave if name in sources else had)
        read = sum(totals.get(name, 0) for name in sources)
        workers = max(map(len, self.epochs.layout.levels))
        recoveries = list(self.epochs.recoveries.reports)
        return RunStatus(phase, workers, read, totals, self.epochs.stable, recoveries)

    def _deaths(self) -> tuple[Death, ...]:
        newest = self.epochs.newest
        running_s = time.monotonic() - (self.running_s or self.began_s)
        return self._kills.for_epoch(running_s, newest.records if newest is not None else {})

    # Callbacks of the epochs.

    def tell(self, event: RunEvent) -> None:
        self.listener.on_event(event)

    def killed(self) -> Collection[ShardId]:
        return self._kills.killed

    def stable(self, manifest: EpochManifest, reports: Sequence[ShardReport]) -> None:
        self.written.append(manifest)
        self.listener.on_event(epoch_stable(manifest))
        for report in reports:
            if report.record is not None:
                self.checkpoint_stats.add(report.record)
            self._forfeited[report.shard] = report.forfeited
            for wishes in report.wishes:
                self.tune(wishes)

    def reached(self, point: Point) -> None:
        self._kills.reached(point)


def _sizing(config: RunConfig, plan: Plan) -> Sizing:
    """The checkpoint options set the size of an epoch."""
    checkpoint = config.checkpoint
    assert isinstance(checkpoint, Coordinated)
    every_s = checkpoint.every_s
    if checkpoint.every is None or checkpoint.automatic:
        every_s = None if checkpoint.every_records is not None else DEFAULT_EVERY_S
    if checkpoint.every_records is None:
        return Sizing(every_s)
    return Sizing(every_s, max(1, checkpoint.every_records // len(plan.source_shards())))


def _has_last_words(plan: Plan) -> bool:
    """Whether an operator needs to be notified of the last epoch, or of the end."""
    operators = [node.what for node in plan.graph.nodes.values() if isinstance(node.what, Operator)]
    return any(
        getattr(type(operator), hook) is not getattr(Operator, hook)
        for operator in operators
        for hook in ("on_commit", "on_stop")
    )
