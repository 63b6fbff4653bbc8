"""What a driver is asked to do with an application, and what it says when it is done.

All drivers get the same: an input, a place for the result, how many workers. Each gives back the
time from its workers standing ready to the result being written, and, if asked, one row of times
per item; so what is compared was measured alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from everstream.apps.application import Application
from everstream.meters.monitor import Monitor
from everstream.pipeline.checkpointing import Checkpointing

Array = np.ndarray[Any, np.dtype[np.int64]]
Progress = Callable[[int, int], None]
"""Told how many of how many items are done."""


class Pace(Protocol):
    """When items may be given: asked before each, in the order of the items."""

    def wait(self) -> int:
        """Return when one more item may be given; when that was, in ns of the steady clock."""


@dataclass
class Job:
    """One run of one application by one driver."""

    application: Application
    reference: str
    """How a process elsewhere finds the application: its name or its file."""
    folder: Path
    """The input."""
    output: Path
    """The result file to write."""
    workers: int = 2
    batch: int = 1
    """Items that travel together."""
    interval_s: float = 0.0
    """Items that came within so long travel together, though they are fewer; 0: never."""
    in_memory: bool = False
    """All items are read before the clock starts, and all results kept until it has stopped."""
    clocked: bool = False
    """Whether to take the time of each item in each stage."""
    pace: Pace | None = None
    monitor: Monitor | None = None
    progress: Progress = lambda done, total: None
    checkpoint: Checkpointing | None = None
    kills: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stamps:
    """One row per item, in the order of the items, all in nanoseconds of one steady clock."""

    operators: tuple[str, ...]
    """The source, the stages; the sink has what is left of the time."""
    began: Array
    """When the source turned to the item."""
    took: Array
    """Item by operator: how long each worked on it."""
    ended: Array
    """When its result was with the sink."""

    @property
    def latency(self) -> Array:
        return self.ended - self.began


@dataclass
class Done:
    """What a run came to."""

    items: int
    wall_s: float
    startup_s: float = 0.0
    stamps: Stamps | None = None
    checkpoints: int = 0
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    monitored: pl.DataFrame = field(default_factory=pl.DataFrame)
    """What the monitor saw, a row per sample."""

    @property
    def items_per_s(self) -> float:
        return self.items / self.wall_s if self.wall_s > 0 else 0.0


Driver = Callable[[Job], Done]


def stage_names(application: Application) -> tuple[str, ...]:
    """The names of the stages: those of their functions."""
    return tuple(getattr(stage, "__name__", type(stage).__name__) for stage in application.stages)


def preloaded(items: Sequence[Any], in_memory: bool) -> Sequence[Any]:
    """The items, all read already if they are to be in memory."""
    return [items[position] for position in range(len(items))] if in_memory else items
