"""The events of a run: every event it can send, as plain values, and the sentence for each.

A run sends a stream of events: to your listener, the terminal, the log, the history in the store,
the web page, metrics and traces. All of them read the same frozen dataclasses, so you see the same
facts everywhere.

An event holds fields, not prose. `sentence(event)` returns the English sentence that the terminal,
the log and the notes of a run show for it; `is_warning(event)` tells whether it needs your
attention. This module performs no I/O and has no dependencies, so that the core can create events
as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

if TYPE_CHECKING:
    from everstream.core.coordinators.recovery_report import RecoveryReport
    from everstream.core.orders import Phase

NAMES_SHOWN = 4


@dataclass(frozen=True)
class RunStatus:
    """The progress of a run: the argument of `until=` and the content of `Progressed`.

    >>> def enough(status):
    ...     return status.records_read >= 1_000_000
    >>> pipeline = es.Pipeline("enough").source(es.Range(3)).collect()
    >>> result = pipeline.run(until=enough)
    """

    phase: "Phase"
    workers: int
    """How many workers are present."""
    records_read: int
    """Records that the sources have emitted so far."""
    totals: dict[str, int]
    """Operator -> records it has received so far; for a source: has emitted."""
    epoch: int
    """The newest stable epoch."""
    recoveries: list["RecoveryReport"]
    """One for each failure so far."""


@dataclass(frozen=True)
class Event:
    """The fields of every event."""

    at: float = field(default=0.0, kw_only=True)
    """When it was sent: seconds since 1970."""


# The run itself.


@dataclass(frozen=True)
class OperatorLayout:
    """An operator of a running pipeline."""

    name: str
    kind: str
    """"source", "operator" or "sink"."""
    chain: str
    """The first operator of those that share its shards."""
    shards: int


@dataclass(frozen=True)
class EdgeLayout:
    """A stream from one operator to another."""

    sender: str
    receiver: str
    routing: str
    """"fused", "on demand", "by key" or "broadcast"."""
    feedback: bool
    """Whether it closes a cycle."""


@dataclass(frozen=True)
class RunStarted(Event):
    """The plan is made, and the engine is about to start the workers."""

    run: str
    """Identifies this run among all runs of the store."""
    pipeline: str
    store: str
    """Where the checkpoints are stored, without passwords."""
    engine: str
    protocol: str
    interval_s: float | None
    """Seconds between two checkpoints; None: not by time."""
    logs: bool
    """Whether senders log their messages, so that there is a recovery line."""
    operators: tuple[OperatorLayout, ...]
    edges: tuple[EdgeLayout, ...]
    shards: dict[str, int]
    """Shard -> its worker."""
    workers: int
    spark_ui: str | None = None
    configuration: dict[str, str] = field(default_factory=dict)
    """The options of the run, without secrets."""
    total_records: int | None = None
    """How many records the sources will emit, if all of them know."""
    shown_once: tuple[str, ...] = ()
    """The sinks that show no record twice."""


@dataclass(frozen=True)
class Resumed(Event):
    """The store has a checkpoint: the run resumes from it."""

    epoch: int
    final: bool
    """The pipeline had already read everything: only the last results are shown again."""


@dataclass(frozen=True)
class Progressed(Event):
    """The status of the run, several times a second."""

    status: RunStatus


@dataclass(frozen=True)
class MetricsSampled(Event):
    """What shards and workers have measured so far, twice a second."""

    phase: str
    epoch: int
    """The newest stable epoch."""
    records_read: int
    totals: dict[str, int]
    """Operator -> records it has received; for a source: has emitted."""
    shards: dict[str, dict[str, Any]]
    """Shard -> its meter: sums since its process started, and `counts`, operator -> [in, out]."""
    workers: dict[str, dict[str, Any]]
    """Worker -> machine, pid, attempt, CPU time, memory and garbage collection."""


@dataclass(frozen=True)
class Stopping(Event):
    """A run in micro-batches stops after this epoch, because of your request, a signal or a timeout."""

    reason: str
    epoch: int


@dataclass(frozen=True)
class StoppedWithoutCheckpoint(Event):
    """The last checkpoint did not complete in time, and the run stops without it."""

    waited_for: str | None
    """What was not complete."""
    epoch: int
    """Where the next run resumes; 0: at the start."""


@dataclass(frozen=True)
class RunEnded(Event):
    """The run is over."""

    outcome: str
    """"finished", "stopped", "caught up", "failed" or "killed"."""
    error: str | None = None


@dataclass(frozen=True)
class DriverLost(Event):
    """The driver process died. `everstream run` restarts it."""

    how: str
    restart: int = 0
    """The number of this restart; 0: it is not restarted."""
    limit: int = 0
    """The maximum number of restarts."""


# Starting.


@dataclass(frozen=True)
class StartDelayed(Event):
    """Something that the run needs to start cannot be reached, or other runs use all slots; it retries."""

    reason: str
    timeout_s: float


@dataclass(frozen=True)
class StartReached(Event):
    """What the run waited for is available, and the run starts."""

    waited_s: float


@dataclass(frozen=True)
class StoreTaken(Event):
    """This run takes the store over from another owner, which is fenced: it can commit nothing more."""

    owner: str
    standby: bool
    """Whether this run was its standby."""


@dataclass(frozen=True)
class WorkersLimited(Event):
    """You requested more workers than Spark has slots."""

    asked: int
    available: int
    """How many workers the shards are packed onto."""
    slots: str
    """The slots that Spark has, in words."""


@dataclass(frozen=True)
class WaitingForWorkers(Event):
    """Spark has not started all workers for a long time."""

    missing: int
    workers: int


# Workers and failures.


@dataclass(frozen=True)
class WorkerStarted(Event):
    """A worker process has taken its place."""

    worker: int
    machine: str
    pid: int
    attempt: int
    """0 for the first process of this Spark task."""


@dataclass(frozen=True)
class StartFailed(Event):
    """A worker process could not start. Spark restarts it."""

    process: int
    reason: str
    spare: bool = False


@dataclass(frozen=True)
class SpareLost(Event):
    """A spare is gone. No work is lost."""

    how: str


@dataclass(frozen=True)
class Failure(Event):
    """The fields of every failure; `RecoveryUpdated` reports how the run recovers from it."""

    shards: tuple[str, ...] = field(kw_only=True)
    """The shards that lost their state."""
    injected: bool = field(default=False, kw_only=True)
    """Whether it was killed on purpose."""
    from_epoch: int | None = field(default=None, kw_only=True)
    """The epoch that the run rolls back to; None: the recovery line is being computed."""
    retry_s: float = field(default=0.0, kw_only=True)
    """How long the run waits before it retries."""


@dataclass(frozen=True)
class WorkerLost(Failure):
    """A worker process is gone, or has been silent for too long."""

    worker: int
    how: str


@dataclass(frozen=True)
class OperatorFailed(Failure):
    """An operator, a source or a sink raised."""

    reason: str


@dataclass(frozen=True)
class ConnectionCut(Failure):
    """The connection between two workers broke, and what was in flight is lost."""

    sender: int
    receiver: int
    how: str


@dataclass(frozen=True)
class EpochRepeated(Failure):
    """The microbatch engine runs an epoch again."""

    reason: str


@dataclass(frozen=True)
class RecoveryUpdated(Event):
    """The progress of the recovery from one failure; sent again when more is known.

    `at` is when the failure happened. Times are milliseconds after that; None: not yet.
    """

    id: str
    """The same in all events about this failure."""
    what: str
    shards: tuple[str, ...]
    injected: bool
    from_epoch: int
    records_replayed: int
    duplicates_suppressed: int
    went_back: tuple[str, ...] = ()
    """The shards that rolled back to a checkpoint."""
    rollback_s: float = 0.0
    """The age of the oldest checkpoint that one of them rolled back to."""
    checkpoints_back: int = 0
    """The maximum number of checkpoints that one of them discarded."""
    detected_ms: float | None = None
    restarted_ms: float | None = None
    restored_ms: float | None = None
    replayed_ms: float | None = None
    caught_up_ms: float | None = None


@dataclass(frozen=True)
class PeerUnreachable(Event):
    """A worker cannot reach another one; it keeps retrying."""

    worker: int
    peer: int
    waited_s: float


@dataclass(frozen=True)
class WorkerSilent(Event):
    """A worker sends no heartbeats, but its process is alive: something holds the interpreter lock."""

    worker: int | None
    """None: a spare."""
    silent_s: float
    doing: str | None
    """Where its threads are, if known."""


@dataclass(frozen=True)
class MemoryNear(Event):
    """A worker has almost reached its memory limit: its shards wait until it uses less."""

    worker: int
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class Killing(Event):
    """A kill that you requested is about to happen."""

    operator: str
    shard: int
    kill: str = ""
    """In the form of `--kill`."""
    of_driver: bool = False


# Checkpoints.


@dataclass(frozen=True)
class ShardCheckpoint:
    """One shard's part of an epoch."""

    shard: str
    number: int
    aligned_s: float
    """How long inputs were blocked until all markers had arrived."""
    capture_s: float
    """How long the shard was paused."""
    upload_s: float
    bytes: int
    forced: bool
    """Whether the protocol forced the shard to take it."""
    spilled: bool = False
    """Whether output of the shard waited on its local disk."""


@dataclass(frozen=True)
class CheckpointStarted(Event):
    """An epoch has started. Sent by the engine `tasks` with a coordinated protocol."""

    epoch: int


@dataclass(frozen=True)
class EpochStable(Event):
    """An epoch, or a recovery line, is durable: nothing before it can be rolled back any more."""

    epoch: int
    final: bool
    """The sources have ended: there is nothing after it."""
    duration_s: float
    bytes: int
    slowest: str | None
    """The slowest shard."""
    shards: tuple[ShardCheckpoint, ...]
    began_s: float = 0.0
    """When it started, on the driver's monotonic clock."""


@dataclass(frozen=True)
class CheckpointAborted(Event):
    """A checkpoint was aborted. The run continues without it."""

    epoch: int
    """The number of the epoch, or of the shard's own checkpoint."""
    reason: str
    """What failed, and why."""
    repeated: bool = False
    """The same cause was reported before."""


@dataclass(frozen=True)
class CheckpointsSucceed(Event):
    """Checkpoints complete again, after some were aborted."""

    number: int
    failed: int
    """How many were aborted in a row."""


@dataclass(frozen=True)
class IntervalChanged(Event):
    """The checkpoint interval has changed."""

    interval_s: float
    reason: str = ""


@dataclass(frozen=True)
class StoreDamaged(Event):
    """Something in the store is unreadable, and the run continues without it."""

    what: str
    reason: str
    fallback_epoch: int | None = None
    """The older epoch, or recovery line, that the run falls back to, if necessary."""


@dataclass(frozen=True)
class Stalled(Event):
    """The run has waited for the same thing for a long time; sent again when it doubles."""

    what: str
    waited_s: float
    missing: tuple[str, ...] = ()
    """The shards that it waits for."""
    held_up_by: str = ""


@dataclass(frozen=True)
class TimeHeldBack(Event):
    """A source has held back event time for a long time; sent again when it doubles."""

    by: str
    """Who: "shard 1 of 'orders'", or "partition 3 of topic 'orders'"."""
    waited_s: float
    """How long its watermark has not advanced."""
    behind_s: float | None = None
    """How far it is behind the source that is furthest ahead; None if it has no event time yet."""


# Changes during the run.


@dataclass(frozen=True)
class SettingsChanged(Event):
    """Settings were tuned."""

    settings: dict[str, str]
    """OPERATOR.SETTING -> value."""


@dataclass(frozen=True)
class QuiesceStarted(Event):
    """Sources pause until nothing is in flight, so that the shards can be changed."""

    before: dict[str, int]
    """Operator -> shards."""
    after: dict[str, int]
    workers_before: int
    workers_after: int


@dataclass(frozen=True)
class QuiesceGivenUp(Event):
    """The pipeline did not quiesce in time. The run continues as before."""

    purpose: str
    reason: str


@dataclass(frozen=True)
class PlanChanged(Event):
    """The run continues with other numbers of shards, or on another number of workers."""

    before: dict[str, int]
    """Operator -> shards."""
    after: dict[str, int]
    workers_before: int
    operators: tuple[OperatorLayout, ...]
    edges: tuple[EdgeLayout, ...]
    shards: dict[str, int]
    """Shard -> its worker."""
    workers: int
    explained: bool = False
    """Whether the event before it gave the reason."""


@dataclass(frozen=True)
class WorkersPacked(Event):
    """Workers did not come back, and the remaining ones take their shards."""

    missing: int
    workers: int
    gone_s: float
    left: int


@dataclass(frozen=True)
class RequestHonoured(Event):
    """Something that you requested earlier is done."""

    request: str
    """"rescale" or "tune"."""
    text: str


@dataclass(frozen=True)
class RequestRefused(Event):
    """Something that you requested cannot be done."""

    request: str
    """"rescale" or "tune"."""
    reason: str


@dataclass(frozen=True)
class Note(Event):
    """Anything else that you should know."""

    topic: str
    """The subject: "upgrade", "standby", "input", "store", "spark", "worker", "sink", "network",
    "history" or "stop"."""
    text: str
    warning: bool = False


AnyFailure: TypeAlias = WorkerLost | OperatorFailed | ConnectionCut | EpochRepeated
"""The events that start a recovery."""

_Progress: TypeAlias = RunStarted | Resumed | Progressed | MetricsSampled
_Ending: TypeAlias = Stopping | StoppedWithoutCheckpoint | RunEnded | DriverLost
_Starting: TypeAlias = StartDelayed | StartReached | StoreTaken | WorkersLimited | WaitingForWorkers
_Workers: TypeAlias = WorkerStarted | StartFailed | SpareLost | WorkerSilent | MemoryNear | Killing
_Recovery: TypeAlias = AnyFailure | RecoveryUpdated | PeerUnreachable
_Checkpoints: TypeAlias = CheckpointStarted | EpochStable | CheckpointAborted | CheckpointsSucceed
_Store: TypeAlias = IntervalChanged | StoreDamaged | Stalled | TimeHeldBack
_Plan: TypeAlias = QuiesceStarted | QuiesceGivenUp | PlanChanged | WorkersPacked
_Notes: TypeAlias = SettingsChanged | RequestHonoured | RequestRefused | Note
RunEvent: TypeAlias = (
    _Progress | _Ending | _Starting | _Workers | _Recovery | _Checkpoints | _Store | _Plan | _Notes
)
"""Every event that a run can send."""

_WARNINGS = (
    StoppedWithoutCheckpoint,
    DriverLost,
    StartDelayed,
    WorkersLimited,
    WaitingForWorkers,
    StartFailed,
    PeerUnreachable,
    WorkerSilent,
    MemoryNear,
    StoreTaken,
    CheckpointAborted,
    StoreDamaged,
    Stalled,
    TimeHeldBack,
    QuiesceGivenUp,
    WorkersPacked,
    RequestRefused,
)


def is_warning(event: RunEvent) -> bool:
    """Whether it needs your attention."""
    match event:
        case Note(warning=warning):
            return warning
        case WorkerLost() | OperatorFailed() | ConnectionCut() | EpochRepeated():
            return not event.injected
        case _:
            return isinstance(event, _WARNINGS)


def sentence(event: RunEvent) -> str | None:
    """The event in plain English; None for events that only carry figures."""
    match event:
        case RunStarted() | Progressed() | MetricsSampled() | RunEnded() | WorkerStarted():
            return None
        case RecoveryUpdated() | CheckpointStarted() | EpochStable() | PlanChanged(explained=True):
            return None
        case Resumed(epoch=epoch, final=final):
            return f"{'showing the last results of' if final else 'resuming from'} epoch {epoch}"
        case Stopping(reason=reason, epoch=epoch):
            return f"stopping after epoch {epoch}: {reason}"
        case StoppedWithoutCheckpoint(waited_for=waited_for, epoch=epoch):
            why = f" ({waited_for} is not complete)" if waited_for is not None else ""
            then = f"the next run resumes from {f'epoch {epoch}' if epoch else 'the start'}"
            return f"stopping without a checkpoint, which did not complete in time{why}: {then}"
        case DriverLost(how=how, restart=restart, limit=limit):
            again = f"; restarting it ({restart} of {limit})"
            return f"the driver died ({how}){again}" if restart else None
        case StartDelayed(reason=reason, timeout_s=timeout_s):
            return (
                f"cannot start yet: {reason} Trying again for up to {timeout_s:g} s "
                "(start_timeout, --start-timeout)"
            )
        case StartReached(waited_s=waited_s):
            return f"reached again after {waited_s:.1f} s: starting"
        case StoreTaken(owner=owner, standby=True):
            return f"taking over from '{owner}'"
        case StoreTaken(owner=owner):
            return (
                f"the store was last used by '{owner}'; if that run is still active, it can commit "
                "nothing more and ends"
            )
        case WorkersLimited(asked=asked, available=available, slots=slots):
            return (
                f"{asked} workers were requested, but {slots}: the shards are packed onto "
                f"{available} worker(s)"
            )
        case WaitingForWorkers(missing=missing, workers=workers):
            return (
                f"still waiting for {missing} of {workers} workers: the cluster may have too few free "
                "slots; stop other jobs or use fewer --workers"
            )
        case StartFailed(process=process, reason=reason, spare=spare):
            return f"{'a spare' if spare else f'worker {process}'} could not start: {reason}"
        case SpareLost(how=how):
            return f"a spare is gone ({how}); Spark starts another one"
        case WorkerLost(worker=worker, how=how):
            return f"worker {worker} is lost ({how}): {_then(event)}"
        case OperatorFailed(shards=shards, reason=reason):
            return f"{', '.join(shards)} failed ({reason}): {_then(event)}"
        case ConnectionCut(sender=sender, receiver=receiver, how=how):
            link = f"the connection from worker {sender} to worker {receiver}"
            return f"{link} was cut ({how}): {_then(event)}"
        case EpochRepeated(reason=reason):
            return f"{_then(event)}: {reason}"
        case PeerUnreachable(worker=worker, peer=peer, waited_s=waited_s):
            return (
                f"worker {worker} has not reached worker {peer} for {waited_s:.3g} s; it keeps "
                "retrying: check the network between them"
            )
        case WorkerSilent(worker=worker, silent_s=silent_s, doing=doing):
            name = "a spare" if worker is None else f"worker {worker}"
            return (
                f"{name} has not sent a heartbeat for {silent_s:.3g} s, but its process is alive: it "
                f"probably holds the interpreter lock{f', {doing}' if doing else ''}. Waiting for it"
            )
        case MemoryNear(worker=worker, used_bytes=used, limit_bytes=limit):
            return (
                f"worker {worker} uses {_megabytes(used)} of the {_megabytes(limit)} it may use "
                "(worker_memory): its shards wait until it uses less"
            )
        case Killing(operator=operator, shard=shard, of_driver=of_driver):
            target = "the driver" if of_driver else f"the process of {operator}:{shard}"
            return f"killing {target}, as requested"
        case CheckpointAborted(reason=reason, repeated=repeated):
            return None if repeated else reason
        case CheckpointsSucceed(number=number, failed=failed):
            return f"checkpoints succeed again (number {number}), after {failed} failed in a row"
        case IntervalChanged(reason=reason):
            return reason or None
        case StoreDamaged(what=what, reason=reason, fallback_epoch=None):
            return f"{what} is skipped: {reason}"
        case StoreDamaged(what=what, reason=reason, fallback_epoch=fallback):
            return f"{what} cannot be restored ({reason}); falling back to number {fallback}"
        case Stalled(what=what, waited_s=waited_s, missing=missing, held_up_by=held_up_by):
            waits = f"; still missing: {listed(missing)}" if missing else ""
            cause = f". Held up by {held_up_by}" if held_up_by else ""
            return f"{what} is taking longer than {waited_s:.3g} s{waits}{cause}"
        case TimeHeldBack(by=by, waited_s=waited_s, behind_s=behind_s):
            behind = (
                "" if behind_s is None else f" and is {behind_s:.3g} s behind the fastest source"
            )
            return (
                f"windows wait for {by}: its event time has not advanced for {waited_s:.3g} s{behind}. If "
                "it has nothing to send, set idle_after"
            )
        case SettingsChanged(settings=settings):
            return f"tuned: {', '.join(f'{name}={value}' for name, value in settings.items())}"
        case QuiesceStarted():
            changes = change_of_shards(
                event.before, event.after, event.workers_before, event.workers_after
            )
            return f"a change of shards ({changes}): waiting until nothing is in flight"
        case QuiesceGivenUp(purpose=purpose, reason=reason):
            return f"{purpose} is given up: {reason}. The run continues as before"
        case PlanChanged():
            changes = change_of_shards(
                event.before, event.after, event.workers_before, event.workers
            )
            return f"the run continues with other shards: {changes}"
        case WorkersPacked(missing=missing, workers=workers, gone_s=gone_s, left=left):
            return (
                f"{missing} of {workers} worker(s) have been gone for {gone_s:g} s: all shards are "
                f"packed onto the remaining {left}"
            )
        case RequestHonoured(text=text) | RequestRefused(reason=text) | Note(text=text):
            return text
        case _:
            assert_never(event)


def change_of_shards(
    before: Mapping[str, int], after: Mapping[str, int], workers_before: int, workers_after: int
) -> str:
    """The changes from one plan to the other, in words."""
    changes = [f"{n} {before.get(n)} to {c}" for n, c in after.items() if before.get(n) != c]
    if not changes and workers_before != workers_after:
        return f"the same on {workers_after} worker(s) instead of {workers_before}"
    return ", ".join(changes) or "keys in other groups"


def listed(names: tuple[str, ...] | list[str], limit: int = NAMES_SHOWN) -> str:
    """The first few of some names."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _then(failure: AnyFailure) -> str:
    """What the run does about a failure."""
    again = f"retrying in {failure.retry_s:g} s, " if failure.retry_s else ""
    if failure.from_epoch is None:
        return f"{again}looking for the recovery line"
    return f"{again}rolling back to epoch {failure.from_epoch}"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
