"""What a worker does whatever it is, a loop, a thread, a process or a Spark task: a chunk of items.

Items are read where they are worked on, by their position: nothing but positions goes to a worker,
and only results come back.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everstream_lab.apps.application import Stage
from everstream_lab.apps.interfaces.job import Array


@dataclass(frozen=True)
class Chunk:
    """The results of some items, and the times it took if they were asked for."""

    span: range
    results: list[Any]
    times: Array | None = None
    """Item by: when it began, how long reading took, how long each stage took."""


@dataclass(frozen=True)
class Task:
    """Positions of items to work on, and when they were given, if they were given at a pace."""

    span: range
    due: int | None = None


class StageWork:
    """Applies one of several stages to each item of a chunk; the first also reads the items.

    The times of a chunk travel with it, and each stage fills in its own.
    """

    def __init__(
        self, items: Sequence[Any], stages: Sequence[Stage], own: range, clocked: bool
    ) -> None:
        """own: positions of the stages that are done here, among all stages."""
        self._items = items
        self._stages = stages
        self._own = own
        self._clocked = clocked

    def __call__(self, given: Task | Chunk) -> Chunk:
        first = isinstance(given, Task)
        times = None if isinstance(given, Task) else given.times
        if self._clocked and first:
            times = np.zeros((len(given.span), 2 + len(self._stages)), np.int64)
        clock = time.monotonic_ns
        results = []
        for place, position in enumerate(given.span):
            before = clock()
            if isinstance(given, Task):
                value = self._items[position]
                now = clock()
                if times is not None:
                    times[place, :2] = before if given.due is None else given.due, now - before
            else:
                value, now = given.results[place], before
            for number in self._own:
                before = now
                value = self._stages[number](value)
                now = clock()
                if times is not None:
                    times[place, 2 + number] = now - before
            results.append(value)
        return Chunk(given.span, results, times)


class Work:
    """Applies all stages to each item of a chunk."""

    def __init__(self, items: Sequence[Any], stages: Sequence[Stage], clocked: bool) -> None:
        self._items = items
        self._stages = stages
        self._clocked = clocked

    def __call__(self, task: Task) -> Chunk:
        return self._by_the_clock(task) if self._clocked else self._plain(task.span)

    def _plain(self, span: range) -> Chunk:
        items, results = self._items, []
        for position in span:
            value = items[position]
            for stage in self._stages:
                value = stage(value)
            results.append(value)
        return Chunk(span, results)

    def _by_the_clock(self, task: Task) -> Chunk:
        clock = time.monotonic_ns
        times = np.empty((len(task.span), 2 + len(self._stages)), np.int64)
        results = []
        for row, position in zip(times, task.span, strict=True):
            before = clock()
            row[0] = before if task.due is None else task.due
            value = self._items[position]
            now = clock()
            row[1] = now - before
            for number, stage in enumerate(self._stages):
                before = now
                value = stage(value)
                now = clock()
                row[2 + number] = now - before
            results.append(value)
        return Chunk(task.span, results, times)
