"""Several shards of partitioned transactions in one process: channels are queues, delivery is random."""

import copy
import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import polars as pl

from everstream.pipeline.operator import Context
from everstream.state.backends.memory import MemoryBackend
from everstream.transactions.operator import tables_in
from everstream.transactions.sharded import VALUES, PartitionedTransact, Sequencer
from tests.transactions.piped import assert_true, content

Frames = deque[pl.DataFrame]


class Shards:
    """The order, the shards behind it, and the frames between them."""

    def __init__(
        self, transactions: Sequence[Any], shards: int, seed: int, recovery: str = "delta"
    ) -> None:
        self.transactions = tuple(transactions)
        self.recovery = recovery
        self.chance = random.Random(seed)
        self.shown: list[pl.DataFrame] = []
        self.frames_exchanged = 0
        self._start(shards, MemoryBackend(), [MemoryBackend() for _ in range(shards)], {})
        self.checkpoint()

    def _start(self, shards: int, order: Any, states: list[Any], channels: Any) -> None:
        self.sequencer = Sequencer(self.transactions, recovery=self.recovery)
        self.order = Context("order", 0, 1, order)
        self.sequencer.on_start(self.order)
        self.contexts = [Context("book", n, shards, states[n]) for n in range(shards)]
        self.operators = [
            PartitionedTransact(self.transactions, recovery=self.recovery) for _ in states
        ]
        for operator, ctx in zip(self.operators, self.contexts, strict=True):
            operator.on_start(ctx)
        self.channels: dict[tuple[int, int], Frames] = copy.deepcopy(channels)

    def process(self, events: pl.DataFrame) -> None:
        """The order numbers the events, and every shard is sent them."""
        self.sequencer.process_batch(events, self.order)
        for _, frame in self.order.take_emitted():
            for shard in range(len(self.contexts)):
                self.channels.setdefault((-1, shard), deque()).append(frame)  # type: ignore[arg-type]

    def deliver(self, frames: int | None = None) -> None:
        """This many frames of channels chosen at random; None: until none is left."""
        while frames is None or frames > 0:
            full = [channel for channel, queue in self.channels.items() if queue]
            if not full:
                return
            sender, receiver = self.chance.choice(full)
            frame = self.channels[sender, receiver].popleft()
            ctx = self.contexts[receiver]
            ctx.input = VALUES if sender >= 0 else ""
            self.operators[receiver].process_batch(frame, ctx)
            for output, emitted in ctx.take_emitted():
                self._forward(receiver, output, emitted)
            frames = None if frames is None else frames - 1

    def _forward(self, sender: int, output: str, frame: Any) -> None:
        if output != VALUES:
            self.shown.append(frame)
            return
        for (shard,), part in frame.partition_by("to", as_dict=True, maintain_order=True).items():
            assert shard != sender
            self.frames_exchanged += 1
            self.channels.setdefault((sender, shard), deque()).append(part)

    def checkpoint(self) -> None:
        """State and frames in flight of one instant, as unaligned checkpoints save them."""
        self.sequencer.before_checkpoint(self.order)
        for operator, ctx in zip(self.operators, self.contexts, strict=True):
            operator.before_checkpoint(ctx)
        states = [dict(ctx.state.items()) for ctx in self.contexts]
        saved = (dict(self.order.state.items()), states, self.channels, len(self.shown))
        self.saved = copy.deepcopy(saved)

    def restore(self) -> None:
        """As after the failure of all: nothing but the last checkpoint is left."""
        order, states, channels, shown = self.saved
        del self.shown[shown:]
        self._start(len(states), _backend(order), [_backend(one) for one in states], channels)

    def rescale(self, shards: int) -> None:
        """Nothing is in flight, and new shards take their share of the state."""
        from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Place

        self.deliver()
        self.checkpoint()
        order, states, _, _ = self.saved
        parts = {number: {CONTEXT_STATE: state} for number, state in enumerate(states)}
        shares = [
            self.operators[0].redistribute(
                parts, Place("book", shard, shards, len(states), {}, {})
            )[CONTEXT_STATE]
            for shard in range(shards)
        ]
        self._start(shards, _backend(order), [_backend(share) for share in shares], {})
        self.checkpoint()

    def tables(self) -> dict[str, dict[Any, Any]]:
        """The tables as a checkpoint now would have them."""
        self.checkpoint()
        frames = tables_in(self.operators[0], self.saved[1])
        return {name: content(frame) for name, frame in frames.items()}

    def assert_serial(self, events: pl.DataFrame) -> None:
        """Outcomes and tables, values and types, are those of a plain loop over the events."""
        self.deliver()
        shown = pl.concat(self.shown).sort("position")
        tables = self.tables()
        assert_true(self.operators[0], shown, tables, events)  # type: ignore[arg-type]
        kinds = {type(value) for table in tables.values() for value in table.values()}
        assert kinds <= {int, float, tuple}


def _backend(entries: dict[Any, Any]) -> Any:
    state: Any = MemoryBackend()
    state.load(dict(entries))
    return state
