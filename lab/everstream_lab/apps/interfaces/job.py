"""What a driver is asked to do with an application, and what it says when it is done.

All drivers get the same: an input, a place for the result, how many workers. Each gives back the
time from its workers standing ready to the result being written, and, if asked, one row of times
per item; so what is compared was measured alike.
"""

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from everstream.connectors.generate.load import Load
from everstream.observability.monitoring.sampler import Monitor
from everstream.pipeline.checkpointing import Checkpointing
from everstream_lab.apps.application import Application

Array = np.ndarray[Any, np.dtype[np.int64]]
Progress = Callable[[int, int], None]
"""Told how many of how many items are done."""


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
    batch_to: int = 0
    """The size grows to this during the run; 0: it does not grow."""
    whole: bool = False
    """Whether slow operators get them as they travel, too: the size is what the run is about."""
    interval_s: float = 0.0
    """Send a smaller batch after this time; 0: never."""
    in_memory: bool = False
    """All items are read before the clock starts, and all results kept until it has stopped."""
    clocked: bool = False
    """Whether to take the time of each item in each stage."""
    load: Load | None = None
    """How many items a second the source gives; None: all it can."""
    catch_up: bool = False
    """Whether what could not be given in time is made up for, and its waiting counts."""
    monitor: Monitor | None = None
    progress: Progress = lambda done, total: None
    clutter: int = 0
    """How many items come before the one in front of them; results are put back in order."""
    stages: str = "auto"
    """How stages are spread: as the interface does it, farm, pipeline, or workers as in 2,1,3."""
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
    items: Array | None = None
    """The numbers of the items, where some are missing; None: all, from 0."""
    left: Array | None = None
    """When the last stage was done with it; None: when it was with the sink."""

    @property
    def numbers(self) -> Array:
        """Which item each row is about."""
        return np.arange(len(self.began)) if self.items is None else self.items

    @property
    def overtaken(self) -> Array:
        """Of each item, how many of those behind it were done before it: how cluttered items are."""
        return overtaken(self.ended if self.left is None else self.left)

    @property
    def held_back(self) -> int:
        """The size of the reorder buffer: the most items that wait at a time for one in front."""
        return held_back(self.ended if self.left is None else self.left)

    @property
    def latency(self) -> Array:
        return self.ended - self.began


def overtaken(ended: Array) -> Array:
    """For items in their order: how many of those behind each came out before it.

    >>> overtaken(np.array([10, 30, 20, 40])).tolist(), overtaken(np.array([9, 1, 2, 3])).tolist()
    ([0, 1, 0, 0], [3, 0, 0, 0])
    """
    later: list[int] = []
    """When those behind came, negated: what follows in order is added at the end."""
    counts = np.zeros(len(ended), np.int64)
    for place in range(len(ended) - 1, -1, -1):
        came = -int(ended[place])
        at = bisect_right(later, came)
        counts[place] = len(later) - at
        later.insert(at, came)
    return counts


def held_back(ended: Array) -> int:
    """The most items that wait at a time for one in front of them, if they are to come out in order.

    >>> held_back(np.array([10, 30, 20, 40])), held_back(np.array([9, 1, 2, 3])), held_back(np.arange(9))
    (1, 3, 0)
    """
    waiting: set[int] = set()
    following, most = 0, 0
    for place in np.argsort(ended, kind="stable").tolist():
        waiting.add(place)
        while following in waiting:
            waiting.remove(following)
            following += 1
        most = max(most, len(waiting))
    return most


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
    began_s: float | None = None
    """When the work began, in seconds after the monitor did; None: as long before its end as it took."""

    @property
    def items_per_s(self) -> float:
        return self.items / self.wall_s if self.wall_s > 0 else 0.0


Driver = Callable[[Job], Done]


def farmed(application: Application) -> Application:
    """The application as tuned by hand: workers also encode results, if they can.

    They can if the result file has the results of items as they are, and no sum of them.
    """
    fields = {field.name: field.default for field in dataclasses.fields(Application)}
    if application.gather is not fields["gather"]:
        return application
    stages = (*application.stages, application.encode)
    return dataclasses.replace(application, stages=stages, encode=_as_it_is)


def _as_it_is(piece: Any) -> Any:
    return piece


def stage_names(application: Application) -> tuple[str, ...]:
    """The names of the stages: those of their functions."""
    return tuple(getattr(stage, "__name__", type(stage).__name__) for stage in application.stages)


def batch_at(batch: int, batch_to: int, position: int, items: int) -> int:
    """How many items travel together that begin with the one at this position.

    >>> [batch_at(1, 3, position, 6) for position in range(6)]
    [1, 1, 2, 2, 3, 3]
    """
    if not batch_to:
        return batch
    steps = batch_to - batch + 1
    return batch + min(position * steps // max(items, 1), steps - 1)


def preloaded(items: Sequence[Any], in_memory: bool) -> Sequence[Any]:
    """The items, all read already if they are to be in memory."""
    return [items[position] for position in range(len(items))] if in_memory else items
