"""The options of a run in the engine's terms: built once from `RunOptions`, then read-only."""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from everstream.core.orders import Policy
from everstream.core.plan import Plan
from everstream.core.scheme import Scheme, scheme_of
from everstream.core.upgrade.compatibility import UpgradeOverrides
from everstream.engine.auto_interval import AutoPace
from everstream.engine.faults.kills import Kill
from everstream.engine.reporting.listener import Listener, listening
from everstream.errors import UserError
from everstream.events import RunStatus
from everstream.observability.monitoring.sampler import Monitor
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.checkpointing import (
    Checkpointing,
    Coordinated,
    EngineName,
    StateKind,
    seconds,
)
from everstream.pipeline.keyed_state.backend_choice import checked_state
from everstream.pipeline.options import CAUGHT_UP, RunOptions, Upgrade
from everstream.pipeline.times import microseconds, size_bytes
from everstream.state.retention import Retention
from everstream.state.savepoints import checked_name
from everstream.state.signing import KEY_FILE, StoreKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """A savepoint in another store, from which a run starts."""

    store: str
    name: str

    def __str__(self) -> str:
        return f"savepoint '{self.name}' of {self.store}"

    @classmethod
    def parse(cls, text: str | None, store: str | None) -> "Origin | None":
        """Parses `STORE@NAME`, for a run in this store."""
        if text is None:
            return None
        folder, at, name = text.rpartition("@")
        if not at or not folder:
            raise UserError(f"'{text}' names no savepoint: write STORE@NAME.")
        if store is None:
            raise UserError("a run that starts from a savepoint needs its own store: set store=.")
        url = store_url(folder)
        assert url is not None
        if url.rstrip("/") == store.rstrip("/"):
            raise UserError(
                f"savepoint '{name}' is in this run's own store: 'everstream rewind {folder} --to {name}' "
                "rolls back to it; a fork needs a separate store and output."
            )
        return cls(url, checked_name(name))


SILENCE_S = 1.5
"""A standby takes over when the driver has been silent for this long."""


@dataclass(frozen=True)
class Turn:
    """When a run may take its store."""

    command: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The same for all drivers that a supervisor starts one after the other."""
    goes_on: bool = False
    """The run replaces a driver of its command that has died."""
    silence_s: float | None = None
    """Wait as a standby until the store's driver fails, or is silent for this long."""


@dataclass(frozen=True)
class RunConfig:
    """`RunOptions` in the engine's terms: checked, parsed, and with units in the names."""

    engine: EngineName
    checkpoint: Checkpointing | None
    policy: Policy
    store: str | None
    fresh: bool
    overrides: UpgradeOverrides
    take_over: bool
    start_from: Origin | None
    master: str
    spark: "SparkSession | None"
    workers: int | None
    timeout_s: float | None
    until: Callable[[RunStatus], bool] | None
    """Also None for a run that ends when it has caught up: the policy covers that."""
    kills: tuple[Kill, ...]
    listener: Listener
    progress: bool
    """Whether the run shows its progress on standard error."""
    ui: bool | str
    state: StateKind | None
    heartbeat_timeout_s: float
    always_tcp: bool
    store_key: StoreKey | None
    monitor: Monitor | None
    start_timeout_s: float
    """How long to retry unreachable services while the run starts."""
    key_file: str | None
    """The file with the key of the store, for processes that read it themselves."""
    worker_memory_bytes: int | None
    """Memory that a worker may use; None: no limit."""
    retention: Retention
    """Which checkpoints stay in the store."""
    history: bool
    """Whether the events of the run are kept in the store."""
    turn: Turn
    autoscale: AutoScale | None
    pack_after_s: float
    """How long a worker may be missing before its shards move to the others."""
    key_groups: int | None
    """The number of key groups; None: the store's."""
    spares: int
    """Processes in addition to the workers, ready to replace one."""
    latency_s: float
    """How long records may wait at a source for others."""

    @classmethod
    def of(cls, options: RunOptions) -> "RunConfig":
        """These options, parsed; a UserError for mistakes that do not depend on the pipeline."""
        resources, recovery, upgrade = options.resources, options.recovery, options.upgrade
        store, monitor, autoscale = store_url(options.store), options.monitor, resources.autoscale
        memory = resources.memory
        return cls(
            engine=_one_of("engine", options.engine, get_args(EngineName)),
            checkpoint=options.checkpoint,
            policy=_policy(options),
            store=store,
            fresh=options.fresh,
            overrides=_overrides(upgrade),
            take_over=options.take_over,
            start_from=Origin.parse(upgrade.start_from, store),
            master=resources.master,
            spark=resources.spark,
            workers=resources.workers,
            timeout_s=None if options.timeout is None else _positive("timeout", options.timeout),
            until=options.until if callable(options.until) else None,
            kills=tuple(
                kill if isinstance(kill, Kill) else Kill.parse(kill) for kill in options.kill
            ),
            listener=listening(options.listener),
            progress=options.listener is None if options.progress is None else options.progress,
            ui=options.ui,
            state=checked_state(options.state, "run()"),
            heartbeat_timeout_s=_positive("heartbeat_timeout", recovery.heartbeat_timeout),
            always_tcp=_one_of("transport", options.transport, ("auto", "tcp")) == "tcp",
            store_key=None if store is None else StoreKey.given(options.store_key),
            monitor=Monitor(monitor) if isinstance(monitor, str) else monitor,
            start_timeout_s=_positive("start_timeout", recovery.start_timeout),
            key_file=_key_file(options),
            worker_memory_bytes=None if memory is None else size_bytes("worker_memory", memory),
            retention=Retention(
                recovery.keep_checkpoints,
                0.0
                if recovery.keep_checkpoints_for is None
                else _positive("keep_checkpoints_for", recovery.keep_checkpoints_for),
            ),
            history=options.history,
            turn=_turn(options),
            autoscale=AutoScale.parse(autoscale) if isinstance(autoscale, str) else autoscale,
            pack_after_s=_positive("pack_after", recovery.pack_after),
            key_groups=resources.max_shards,
            spares=resources.spares,
            latency_s=_latency_s(options.latency),
        )

    @property
    def scheme(self) -> Scheme:
        return scheme_of(self.checkpoint)

    def check(self, plan: Plan) -> None:
        """Raise a UserError for options that do not fit this pipeline."""
        for kill in self.kills:
            kill.check(plan)
        if self.key_groups is not None and not 1 <= self.key_groups <= 32_768:
            raise UserError(f"max_shards={self.key_groups}: use 1 to 32768.")
        if self.policy.until_caught_up and self.checkpoint is None:
            raise UserError(
                "a run with until='caught-up' ends with a checkpoint, from which the next run "
                "resumes: use checkpoint=es.Coordinated()."
            )
        if self.autoscale is not None and self.checkpoint is None:
            raise UserError("autoscale= needs checkpoints: use checkpoint=es.Coordinated().")
        if self.spares < 0:
            raise UserError(f"spares={self.spares}: the number of spares must be 0 or more.")

    def pace(self) -> AutoPace | None:
        """Adjusts the interval of this run; None if the interval is fixed."""
        if self.checkpoint is not None and self.checkpoint.automatic:
            return AutoPace(self.checkpoint)
        return None


def _policy(options: RunOptions) -> Policy:
    checkpoint, until, recovery = options.checkpoint, options.until, options.recovery
    if isinstance(until, str) and until != CAUGHT_UP:
        raise UserError(
            f"until={until!r}: use until='{CAUGHT_UP}', or a function of the run's RunStatus."
        )
    if recovery.tolerable_checkpoint_failures < 0:
        raise UserError(
            f"tolerable_checkpoint_failures={recovery.tolerable_checkpoint_failures}: the number of "
            "checkpoints in a row that may fail must be 0 or more."
        )
    return Policy(
        checkpoints=checkpoint is not None,
        every_s=checkpoint.every_s if checkpoint else None,
        every_records=checkpoint.every_records if isinstance(checkpoint, Coordinated) else None,
        max_restarts=recovery.max_restarts,
        restart_window_s=seconds(recovery.restart_window),
        slow_after_s=seconds(recovery.slow_after),
        checkpoint_timeout_s=_positive("checkpoint_timeout", recovery.checkpoint_timeout),
        until_caught_up=until == CAUGHT_UP,
        tolerable_failures=recovery.tolerable_checkpoint_failures,
    )


def _positive(name: str, time: str | float) -> float:
    time_s = seconds(time)
    if not time_s > 0:
        raise UserError(f"{name}={time!r}: the time must be positive, as in {name}='10s'.")
    return time_s


def _latency_s(latency: str | float) -> float:
    latency_us = microseconds(latency)
    if latency_us < 0:
        raise UserError(f"latency={latency!r}: the time must be 0 or more, as in latency='5ms'.")
    return latency_us / 1e6


def _one_of(name: str, given: T, known: tuple[str, ...]) -> T:
    if given not in known:
        raise UserError(f"{name}={given!r}: say one of {', '.join(known)}.")
    return given


def _turn(options: RunOptions) -> Turn:
    standby = options.standby
    if standby is False:
        return Turn()
    if options.store is None:
        raise UserError("a standby needs the store of the run it waits for: set store=.")
    if options.fresh:
        raise UserError(
            "a standby resumes from the checkpoints of the store, and --fresh deletes them: leave it "
            "out."
        )
    return Turn(silence_s=SILENCE_S if standby is True else _positive("standby", standby))


def store_url(store: str | os.PathLike[str] | None) -> str | None:
    """A URL unchanged; a folder as an absolute path, which means the same in every process."""
    if store is None:
        return None
    url = os.fspath(store)
    return url if "://" in url else str(Path(url).absolute())


def _key_file(options: RunOptions) -> str | None:
    """The file with the key of this store; None if it has none."""
    key = options.store_key
    named = key if key is not None else os.environ.get(KEY_FILE) or None
    return None if options.store is None or named is None else str(Path(named).absolute())


def _overrides(upgrade: Upgrade) -> UpgradeOverrides:
    dropped = upgrade.drop_state
    if isinstance(dropped, str):
        raise UserError(f"drop_state={dropped!r}: give a list of names, ['{dropped}'].")
    return UpgradeOverrides(dict(upgrade.renamed or {}), frozenset(dropped))
