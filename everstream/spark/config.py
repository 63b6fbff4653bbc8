"""What a user wants of one run, in the engine's own terms: made once, then only read."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from everstream.core.changes import Wishes
from everstream.core.orders import Policy
from everstream.core.plan import Plan
from everstream.core.scheme import Scheme, scheme_of
from everstream.errors import UserError
from everstream.monitoring.monitor import Monitor
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, seconds
from everstream.spark.autopace import AutoPace
from everstream.spark.kills import Kill
from everstream.spark.listener import Listener, Snapshot
from everstream.state.signing import KEY_FILE, StoreKey

Duration = str | float
"""As a user gives it: "5s", or seconds."""


@dataclass(frozen=True)
class RunConfig:
    """The keywords of `run`, parsed; see there for what they mean."""

    checkpoint: Checkpointing | None
    policy: Policy
    store: str | None
    fresh: bool
    wishes: Wishes
    take_over: bool
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

    @property
    def scheme(self) -> Scheme:
        return scheme_of(self.checkpoint)

    def check(self, plan: Plan) -> None:
        """Raise a UserError for what this pipeline cannot be asked for."""
        for kill in self.kills:
            kill.check(plan)

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
