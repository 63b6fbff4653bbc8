"""What a user wants of one run, in the engine's own terms: made once, then only read."""

import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from everstream.core.changes import Wishes
from everstream.core.orders import Policy
from everstream.core.plan import Plan
from everstream.core.scheme import Scheme, scheme_of
from everstream.errors import UserError
from everstream.monitoring.monitor import Monitor
from everstream.pipeline.autoscale import AutoScale
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, seconds
from everstream.spark.autopace import AutoPace
from everstream.spark.kills import Kill
from everstream.spark.listener import Listener, Snapshot
from everstream.state.savepoints import checked_name
from everstream.state.signing import KEY_FILE, StoreKey

Duration = str | float
"""As a user gives it: "5s", or seconds."""


@dataclass(frozen=True)
class Origin:
    """A savepoint in another store, which a run begins with."""

    store: str
    name: str

    def __str__(self) -> str:
        return f"savepoint '{self.name}' of {self.store}"

    @classmethod
    def parse(cls, text: str | None, store: str | None) -> "Origin | None":
        """`STORE@NAME` as a user gives it, for a run in this store."""
        if text is None:
            return None
        folder, at, name = text.rpartition("@")
        if not at or not folder:
            raise UserError(f"'{text}' names no savepoint: write STORE@NAME.")
        if store is None:
            raise UserError("a run that begins with a savepoint needs a store of its own: store=.")
        url = store_url(folder)
        assert url is not None
        if url.rstrip("/") == store.rstrip("/"):
            raise UserError(
                f"savepoint '{name}' is in this run's own store: 'everstream rewind {folder} --to "
                f"{name}' goes back to it; a fork needs a store and output of its own."
            )
        return cls(url, checked_name(name))


SILENCE_S = 1.5
"""A driver of which a standby sees no sign of life for so long is taken for dead."""


@dataclass(frozen=True)
class Turn:
    """When a run may have its store."""

    command: str = field(default_factory=lambda: uuid.uuid4().hex)
    """All drivers that a monitor starts one after the other have the same."""
    goes_on: bool = False
    """It takes the place of a driver of its command that has died."""
    silence_s: float | None = None
    """It stands by until the store's driver ends badly, or is silent for so long."""


@dataclass(frozen=True)
class RunConfig:
    """The keywords of `run`, parsed; see there for what they mean."""

    checkpoint: Checkpointing | None
    policy: Policy
    store: str | None
    fresh: bool
    wishes: Wishes
    take_over: bool
    start_from: Origin | None
    master: str
    spark: SparkSession | None
    workers: int | None
    timeout_s: float | None
    until: Callable[[Snapshot], bool] | None
    kills: tuple[Kill, ...]
    listener: Listener
    heartbeat_timeout_s: float
    always_tcp: bool
    store_key: StoreKey | None
    monitor: Monitor | None
    key_file: str | None = None
    """Where the key of the store is, for processes that read it themselves."""
    host_memory_bytes: int | None = None
    """What a host may have; None: as much as the system gives."""
    history: bool = True
    """Whether what happens is kept in the store."""
    turn: Turn = field(default_factory=Turn)
    autoscale: AutoScale | None = None
    pack_after_s: float = 30.0
    """So long hosts may be gone before their shards go to those that are there."""
    key_groups: int | None = None
    """Into how many groups keys are to be spread; None: as the store has it."""
    spares: int = 0
    """Processes beyond those of the hosts, which stand by."""

    @property
    def scheme(self) -> Scheme:
        return scheme_of(self.checkpoint)

    def check(self, plan: Plan) -> None:
        """Raise a UserError for what this pipeline cannot be asked for."""
        for kill in self.kills:
            kill.check(plan)
        if self.key_groups is not None and not 1 <= self.key_groups <= 32_768:
            raise UserError(f"max_shards={self.key_groups}: say 1 to 32768.")
        if self.autoscale is not None and self.checkpoint is None:
            raise UserError("autoscale= needs checkpoints: say checkpoint=es.Coordinated().")
        if self.spares < 0:
            raise UserError(f"spares={self.spares}: say how many stand by, 0 or more.")

    def pace(self) -> AutoPace | None:
        """What adjusts the interval of this run, if it is to be adjusted."""
        if isinstance(self.checkpoint, Coordinated) and self.checkpoint.automatic:
            return AutoPace(self.checkpoint)
        return None


def policy_of(
    checkpoint: Checkpointing | None,
    max_restarts: int,
    restart_window: Duration,
    slow_after: Duration,
    checkpoint_timeout: Duration,
) -> Policy:
    """What the coordinator goes by."""
    return Policy(
        checkpoints=checkpoint is not None,
        every_s=checkpoint.every_s if checkpoint else None,
        every_records=checkpoint.every_records if isinstance(checkpoint, Coordinated) else None,
        max_restarts=max_restarts,
        restart_window_s=seconds(restart_window),
        slow_after_s=seconds(slow_after),
        checkpoint_timeout_s=positive("checkpoint_timeout", checkpoint_timeout),
    )


def positive(name: str, time: Duration) -> float:
    """A duration that means nothing unless some time passes."""
    time_s = seconds(time)
    if not time_s > 0:
        raise UserError(f"{name}={time!r}: the time must be positive, as in {name}='10s'.")
    return time_s


def turn_of(standby: bool | Duration, store: str | os.PathLike[str] | None, fresh: bool) -> Turn:
    """When a run may have its store."""
    if standby is False:
        return Turn()
    if store is None:
        raise UserError("a standby needs the store of the run it stands by for: say store=.")
    if fresh:
        raise UserError(
            "a standby goes on from the store's checkpoints, and --fresh deletes them: leave it out."
        )
    return Turn(silence_s=SILENCE_S if standby is True else positive("standby", standby))


def parsed_kills(kills: Sequence[str | Kill]) -> tuple[Kill, ...]:
    return tuple(kill if isinstance(kill, Kill) else Kill.parse(kill) for kill in kills)


def store_url(store: str | os.PathLike[str] | None) -> str | None:
    """A URL as it is; a folder by its full name, which means the same in every process."""
    if store is None:
        return None
    url = os.fspath(store)
    return url if "://" in url else str(Path(url).absolute())


def key_file(
    store: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None
) -> str | None:
    """Where the key of this store is; None if it has none."""
    named = key if key is not None else os.environ.get(KEY_FILE) or None
    return None if store is None or named is None else str(Path(named).absolute())


def wishes_of(renamed: Mapping[str, str] | None, drop_state: Collection[str]) -> Wishes:
    """What was said about state of a pipeline that has changed."""
    if isinstance(drop_state, str):
        raise UserError(f"drop_state={drop_state!r}: give a list of names, ['{drop_state}'].")
    return Wishes(dict(renamed or {}), frozenset(drop_state))


def always_tcp(transport: str) -> bool:
    if transport not in ("auto", "tcp"):
        raise UserError(f"transport={transport!r}: say 'auto' or 'tcp'.")
    return transport == "tcp"
