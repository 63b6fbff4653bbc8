"""The environment of the sink suite: a sink with its own location, and generations that write to it."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from everstream.core.permits import permit
from everstream.errors import EverstreamError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Committable, Sink, SinkShard, Writer

MakeSink = Callable[[str], Sink]
ReadBack = Callable[[Sink, SinkShard], Iterable[Any]]

PIPELINE, OPERATOR = "suite", "out"


@dataclass
class SinkUnderTest:
    """One sink with its own location, and all the writers that ever opened it."""

    make_sink: MakeSink
    read_back: ReadBack
    place: str
    batches: dict[int, Batch]
    scenario: str = ""
    takes_back: bool = True
    """Whether the sink can remove what it has committed."""
    writers: list[Writer] = field(default_factory=list)

    @property
    def store(self) -> str:
        return f"{self.place}/store"

    def who(self, generation: int, **other: Any) -> SinkShard:
        return replace(SinkShard(PIPELINE, OPERATOR, 0, 2, generation, self.store), **other)

    def sink(self) -> Sink:
        shipped: Sink = pickle.loads(cloudpickle.dumps(self.make_sink(self.place)))
        return shipped

    def open(self, generation: int, **other: Any) -> Writer:
        """A writer that stays referenced: a crash must not flush its buffers."""
        writer = self.sink().open(self.who(generation, **other))
        self.writers.append(writer)
        return writer

    def start(self, generation: int, **other: Any) -> Writer:
        writer = self.open(generation, **other)
        writer.recover([], permit(0))
        return writer

    def close(self) -> None:
        for writer in self.writers:
            with suppress(EverstreamError):
                writer.close()

    def must_show(self, checkpoints: Iterable[int], when: str, **other: Any) -> None:
        wanted = Counter(repr(r) for k in checkpoints for r in records_of(self.batches[k]))
        found = Counter(map(repr, self.read_back(self.sink(), self.who(0, **other))))
        lost, surplus = wanted - found, found - wanted
        assert not lost, f"{self.scenario}: {when}: lost {sorted(lost)[:5]}"
        assert not surplus, f"{self.scenario}: {when}: too many or too early {sorted(surplus)[:5]}"

    def prepare(self, writer: Writer, checkpoint: int) -> Committable:
        writer.write(self.batches[checkpoint])
        transaction = writer.prepare(checkpoint)
        assert transaction is not None, f"{self.scenario}: prepare gave no transaction"
        assert transaction.checkpoint == checkpoint, f"{self.scenario}: wrong checkpoint number"
        return transaction

    def commit_next(self, writer: Writer, checkpoint: int) -> Committable:
        transaction = self.prepare(writer, checkpoint)
        transaction.persist()
        transaction.commit(permit(checkpoint))
        return transaction


class SinkGeneration:
    """One generation that follows the script until it is stopped."""

    def __init__(self, world: SinkUnderTest) -> None:
        self.world = world
        self.writer = world.start(1)
        self.prepared: dict[int, Committable] = {}
        self.saved: dict[int, bytes] = {}
        self.committed: set[int] = set()

    def step(self, what: str) -> None:
        act, checkpoint = what[0], int(what[1])
        if act == "w":
            self.writer.write(self.world.batches[checkpoint])
        elif act == "p":
            transaction = self.writer.prepare(checkpoint)
            assert transaction is not None, f"{self.world.scenario}: prepare gave no transaction"
            self.prepared[checkpoint] = transaction
        elif act == "s":
            self.prepared[checkpoint].persist()
            self.saved[checkpoint] = pickle.dumps(self.prepared[checkpoint])
        else:
            self.prepared[checkpoint].commit(permit(max(self.saved)))
            self.committed.add(checkpoint)
        self.world.must_show(self.committed, f"after step {what}")

    def restored(self, checkpoint: int, only_uncommitted: bool) -> list[Committable]:
        """The transactions of a checkpoint, as another process reads them."""
        return [
            pickle.loads(data)
            for number, data in self.saved.items()
            if number <= checkpoint and not (only_uncommitted and number in self.committed)
        ]

    def haunt(self, restored: int) -> None:
        """Continue as a zombie: everything but a commit, for which it no longer has a permit."""
        for number, transaction in self.prepared.items():
            if number > restored:
                with suppress(EverstreamError):
                    transaction.persist()
        for _ in range(2):
            with suppress(EverstreamError):
                self.writer.write(self.world.batches[0])
                prepared = self.writer.prepare(restored + 1)
                if prepared is not None:
                    prepared.persist()
                self.writer.write(self.world.batches[0])
