"""A shape: a pipeline for simulated runs, with a plain sequential program of its output."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everstream.pipeline.stream import Pipeline


@dataclass(frozen=True)
class Shape:
    """A pipeline over the numbers 0 to n-1, and its expected output, sink by sink."""

    name: str
    workers: int
    build: Callable[[Pipeline, int], None]
    expected: Callable[[], dict[str, list[Any]]]
    ordered: bool = False
    fixed: frozenset[str] = frozenset()
    """Operators whose number of shards shows in the output."""

    def pipeline(self, world: int) -> Pipeline:
        pipeline = Pipeline(self.name)
        self.build(pipeline, world)
        return pipeline


def chance_batch(n: int) -> int:
    return 1 + n % 4


def chance_shards(n: int) -> int:
    return 1 + n % 2
