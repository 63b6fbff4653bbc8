"""The part of the sink suite in which the number of shards changes.

This is what the engine does then: each new shard opens, for every earlier number that it inherits, a
writer under that number, which recovers what the earlier one had prepared; then its own. Removed
numbers write nothing from then on, and may come back later. What any number has committed stays, and
a zombie of a removed number commits nothing.
"""

import pickle
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from everstream.core.permits import permit
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.sink import Committable, Delivery, Writer
from everstream.testing.sink_world import OPERATOR, PIPELINE, SinkUnderTest

TOUR = (2, 3, 1, 4)
"""Numbers of shards: more, fewer, and numbers that come back."""
BATCHES = 3
Crash: TypeAlias = Literal["none", "before recover", "in recover", "after recover", "in commit"]
CRASHES: tuple[Crash, ...] = ("in commit", "in recover", "after recover", "before recover", "none")
Scenario: TypeAlias = tuple[str, Callable[[SinkUnderTest], None]]


def rescalings(delivery: Delivery, max_shards: int | None) -> list[Scenario]:
    """The scenarios for a sink that can have this many shards."""
    if delivery is Delivery.AT_LEAST_ONCE or (max_shards is not None and max_shards < max(TOUR)):
        return []
    if delivery is Delivery.IDEMPOTENT:
        return [("rescaled and written again", _shows_once_though_other_shards_write_again)]
    return [*tours(), ("a run from nothing after a rescale", _starts_over)]


def tours() -> Iterator[Scenario]:
    """Each crash before each change of the number, with zombies; and once without."""
    for first, zombie in [*((first, "active") for first in range(len(CRASHES))), (0, "silent")]:
        crashes = [CRASHES[(first + leg) % len(CRASHES)] for leg in range(len(TOUR) - 1)]
        name = f"shards {TOUR}, crashes {crashes}, zombie {zombie}"
        yield name, partial(_rescale, crashes=crashes, haunted=zombie == "active")


@dataclass
class _Shards:
    """All shards of one generation, and the content of their newest checkpoint."""

    world: SinkUnderTest
    number: int
    generation: int
    writers: dict[int, Writer] = field(default_factory=dict)
    prepared: dict[int, Committable] = field(default_factory=dict)
    saved: dict[int, bytes] = field(default_factory=dict)

    def recover(
        self, earlier: "_Shards | None", checkpoint: int, only: Collection[int] | None = None
    ) -> None:
        """Recover what the earlier shards left; with `only`, for some of these shards."""
        for shard in range(self.number) if only is None else only:
            if earlier is not None:
                for gone in range(shard, earlier.number, self.number):
                    heir = self._open(gone, earlier.number)
                    assert not heir.recover(earlier.restored(gone), permit(checkpoint))
                    heir.close()
            own = self._open(shard, self.number)
            held = earlier.restored(shard) if earlier is not None else []
            assert not own.recover(held, permit(checkpoint))
            self.writers[shard] = own

    def restored(self, shard: int) -> list[Committable]:
        return [pickle.loads(self.saved[shard])] if shard in self.saved else []

    def take(self, checkpoint: int) -> list[int]:
        """A checkpoint in which all but one have written; returns the numbers of the batches."""
        self.prepared, self.saved, written = {}, {}, list[int]()
        for shard, writer in self.writers.items():
            if self.number > 1 and shard == checkpoint % self.number:
                assert writer.prepare(checkpoint) is None
                continue
            batch = 1 + (shard + checkpoint) % BATCHES
            writer.write(self.world.batches[batch])
            transaction = writer.prepare(checkpoint)
            assert transaction is not None, f"{self.world.scenario}: prepare gave no transaction"
            transaction.persist()
            self.prepared[shard], self.saved[shard] = transaction, pickle.dumps(transaction)
            written.append(batch)
        return written

    def commit(self, checkpoint: int, only: Collection[int] | None = None) -> None:
        for shard, transaction in self.prepared.items():
            if only is None or shard in only:
                transaction.commit(permit(checkpoint))

    def haunt(self, checkpoint: int) -> None:
        """Continue as zombies: everything but a commit, for which they have no permit."""
        for shard, writer in self.writers.items():
            with suppress(EverstreamError):
                writer.write(self.world.batches[0])
                prepared = writer.prepare(checkpoint + 1)
                if prepared is not None:
                    prepared.persist()
                writer.write(self.world.batches[0])
            late = self._open(shard, self.number)
            with suppress(EverstreamError):
                late.recover([], permit(checkpoint))

    def _open(self, shard: int, shards: int) -> Writer:
        return self.world.open(self.generation, shard=shard, shards=shards)


def _rescale(world: SinkUnderTest, crashes: list[Crash], haunted: bool) -> None:
    shards = _Shards(world, TOUR[0], 1)
    shards.recover(None, 0)
    zombies: _Shards | None = None
    shown = list[int]()
    legs = zip((*TOUR[1:], None), (*crashes, CRASHES[-1]), strict=True)
    for checkpoint, (number, crash) in enumerate(legs, start=1):
        more = shards.take(checkpoint)
        if zombies is not None:
            zombies.haunt(checkpoint - 1)
        _commit(world, shards, checkpoint, shown, more, crash)
        shown = shown + more
        if number is not None:
            heirs = _succeed(world, shards, number, checkpoint, shown, crash)
            zombies, shards = shards if haunted else None, heirs
        if zombies is not None:
            zombies.haunt(checkpoint)
            world.must_show(shown, f"while {zombies.number} zombies continue")


def _commit(
    world: SinkUnderTest,
    shards: _Shards,
    checkpoint: int,
    shown: list[int],
    more: list[int],
    crash: Crash,
) -> None:
    """Commit as far as the crash allows."""
    world.must_show(shown, f"with checkpoint {checkpoint} of {shards.number} shards prepared")
    if crash == "in commit":
        shards.commit(checkpoint, only=[0])
    elif crash != "before recover":
        for _ in range(2):
            shards.commit(checkpoint)
            world.must_show(shown + more, f"after checkpoint {checkpoint} was committed")


def _succeed(
    world: SinkUnderTest,
    earlier: _Shards,
    number: int,
    checkpoint: int,
    shown: list[int],
    crash: Crash,
) -> _Shards:
    """Another number of shards takes over, in as many attempts as the crash takes."""
    generation = earlier.generation + 1
    if crash == "in recover":
        _Shards(world, number, generation).recover(earlier, checkpoint, only=[number - 1])
        generation += 1
    if crash == "after recover":
        dead = _Shards(world, number, generation)
        dead.recover(earlier, checkpoint)
        dead.take(checkpoint + 1)
        for writer in dead.writers.values():
            writer.write(world.batches[0])
        world.must_show(shown, f"before {number} shards crashed")
        generation += 1
    heirs = _Shards(world, number, generation)
    heirs.recover(earlier, checkpoint)
    world.must_show(shown, f"after {earlier.number} shards became {number}")
    return heirs


def _starts_over(world: SinkUnderTest) -> None:
    """A fresh start sees the output of every number that was ever used."""
    first, second = _Shards(world, 3, 1), _Shards(world, 1, 2)
    first.recover(None, 0)
    shown = first.take(1)
    first.commit(1)
    second.recover(first, 1)
    shown += second.take(2)
    second.commit(2)
    world.must_show(shown, "after three shards became one")
    try:
        world.sink().start_fresh(PIPELINE, OPERATOR, world.store, replace=False)
    except UserError:
        world.must_show(shown, "after start_fresh refused")
    else:
        raise AssertionError(f"{world.scenario}: output of earlier shards was not noticed")
    world.sink().start_fresh(PIPELINE, OPERATOR, world.store, replace=True)
    world.must_show([] if world.takes_back else shown, "after start_fresh with replace")


def _shows_once_though_other_shards_write_again(world: SinkUnderTest) -> None:
    earlier: _Shards | None = None
    for generation, number in enumerate((2, 3, 1, 2), start=1):
        shards = _Shards(world, number, generation)
        shards.recover(earlier, generation - 1)
        for batch in range(1, BATCHES + 1):
            writer = shards.writers[(batch + generation) % number]
            writer.write(world.batches[batch])
        for writer in shards.writers.values():
            assert writer.prepare(generation) is None, f"{world.scenario}: prepare must give None"
        world.must_show(range(1, BATCHES + 1), f"written again by {number} shards")
        earlier = shards
