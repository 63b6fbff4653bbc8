"""The part of the source suite in which the shards become more or fewer.

A tour is a row of numbers of shards. With each of them the shards read on for a while, each as far
as chance has it, some to their end, and stop; then their offsets are spread over the next number.
With the last one everybody reads to the end. All records must have come once.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import cloudpickle

from everstream.errors import UserError
from everstream.pipeline.source import Reader, Source

FIRST_TOUR = (2, 3, 1, 4)
TOURS = 5
MOST_SHARDS = 5
MOST_BATCHES = 6
SOME_END = 0.25
"""How often a shard reads to its end before the number changes."""

Record = tuple[Any, str]
"""Which order it is part of, and what it is."""


@dataclass(frozen=True)
class Stage:
    """What the suite needs of a source."""

    make_source: Callable[[], Source[Any]]
    read: Callable[[Reader, int | None], list[Record]]
    """So many batches, or all there are."""
    max_shards: int | None
    respreads: bool | None
    """Whether the source must do it, must refuse it, or may."""

    def source(self) -> Source[Any]:
        """As a Spark task gets it."""
        source = self.make_source()
        source.check()
        shipped: Source[Any] = pickle.loads(cloudpickle.dumps(source))
        return shipped


def check_respreading(
    stage: Stage, records: Counter[str] | None, orders: Mapping[Any, Sequence[str]], endless: bool
) -> None:
    """Raise an AssertionError if records are lost or doubled when the number of shards changes.

    `records` are all there are, `orders` those of one order each, which must stay as it is.
    """
    for tour in _tours(stage.max_shards):
        found = _Tour(stage, tour).run()
        if found is None:
            assert stage.respreads is not True, f"it refuses the numbers of shards {tour}"
            return
        assert stage.respreads is not False, f"it does not refuse the numbers of shards {tour}"
        if records is None:
            continue
        counted = Counter(record for _, record in found)
        doubled = counted - records
        assert not doubled, f"shards {tour}: {doubled.total()} too many: {list(doubled)[:5]}"
        if not endless:
            lost = records - counted
            assert not lost, f"shards {tour}: {lost.total()} are lost: {list(lost)[:5]}"
            for lane, wanted in orders.items():
                there = [record for of, record in found if of == lane]
                assert there == list(wanted), f"shards {tour}: {lane} is out of order"


def _tours(max_shards: int | None) -> Iterator[tuple[int, ...]]:
    if max_shards == 1:
        return
    most = min(max_shards or MOST_SHARDS, MOST_SHARDS)
    yield tuple(min(number, most) for number in FIRST_TOUR)
    for seed in range(1, TOURS):
        chance = Random(seed)
        yield (*chance.sample(range(1, most + 1), min(most, 3)), chance.randint(1, most))


class _Tour:
    """One way through several numbers of shards."""

    def __init__(self, stage: Stage, numbers: tuple[int, ...]) -> None:
        self.stage = stage
        self.numbers = numbers
        self.chance = Random(repr(numbers))
        self.found: list[Record] = []

    def run(self) -> list[Record] | None:
        """All records, in the order they came; None if the source refuses."""
        saved: list[bytes] | None = None
        for leg, shards in enumerate(self.numbers):
            offsets: Sequence[Any] | None = None
            if saved is not None:
                try:
                    offsets = self._respread(saved, shards)
                except UserError:
                    return None
            is_last = leg == len(self.numbers) - 1
            saved = [self._read(shard, shards, offsets, is_last) for shard in range(shards)]
        return self.found

    def _respread(self, saved: Sequence[bytes], shards: int) -> Sequence[Any]:
        def spread() -> list[Any]:
            offsets = [pickle.loads(offset) for offset in saved]
            return list(self.stage.source().respread(offsets, shards))

        offsets, again = spread(), spread()
        about = f"shards {self.numbers}, from {len(saved)} to {shards}"
        assert len(offsets) == shards, f"{about}: {len(offsets)} offsets"
        assert offsets == again, f"{about}: other offsets each time"
        return [pickle.loads(pickle.dumps(offset)) for offset in offsets]

    def _read(
        self, shard: int, shards: int, offsets: Sequence[Any] | None, to_the_end: bool
    ) -> bytes:
        reader = self.stage.source().open(shard, shards)
        if offsets is not None:
            reader.seek(offsets[shard])
        batches = self.chance.randint(0, MOST_BATCHES)
        some = not to_the_end and self.chance.random() >= SOME_END
        self.found += self.stage.read(reader, batches if some else None)
        saved = pickle.dumps(reader.offset)
        reader.close()
        return saved
