"""The operators of a shard as its checkpoints see them.

What must be saved of them besides their key stores, under which names, and whose output is
prepared, durable or committed: a sink's transactions stay here until their permit has come.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from everstream.core.checkpoint_record import DEAD_LETTERS
from everstream.core.ids import ShardId
from everstream.core.plan import Plan
from everstream.errors import UserError
from everstream.pipeline.sink import Permit, Transaction
from everstream.pipeline.times import NO_WATERMARK
from everstream.runtime.channel_state import CHANNELS
from everstream.runtime.jobs import Persisting
from everstream.runtime.stage import Stage
from everstream.state.snapshot import ShardState


class WritableNumber(Protocol):
    """One number that is written over."""

    def __setitem__(self, index: Literal[0], value: int, /) -> None: ...


class SavedStages:
    """What a checkpoint takes of a chain; `ChainStages` is the only one to inherit this."""

    plan: Plan
    shard: ShardId
    state: ShardState
    stages: dict[str, Stage]
    place: WritableNumber
    """Says which of the operators is at work; an engine may put it where others can see it."""
    _at: str
    """The name of that operator."""

    @property
    def operators(self) -> tuple[str, ...]:
        return self.plan.chains[self.shard.operator].operators

    def prepare(self, checkpoint: int) -> dict[str, Any]:
        """Close the sinks' transactions; what must be saved besides the key stores."""
        extras: dict[str, Any] = {}
        for stage in self.stages.values():
            if stage.operator is not None:
                self._enter(stage)
                stage.operator.before_checkpoint(stage.ctx)
                if stage.ctx.take_emitted():
                    raise UserError("before_checkpoint cannot emit; emit while processing records.")
            if stage.reader is not None:
                extras[stage.name] = {"offset": stage.reader.offset}
                if stage.rest:
                    extras[stage.name]["rest"] = stage.rest.saved()
                stage.offsets.append((checkpoint, stage.reader.offset))
            elif stage.writer is not None:
                self._enter(stage)
                transaction = stage.writer.prepare(checkpoint)
                if transaction is not None:
                    stage.pending.append(transaction)
                    stage.unpersisted.append(Persisting(transaction))
                if stage.pending:
                    extras[stage.name] = {"transactions": tuple(stage.pending)}
            if stage.name not in self.operators:
                continue
            if stage.ctx.skipped:
                extras.setdefault(stage.name, {})["skipped"] = stage.ctx.skipped
            if stage.ctx.asked_time:
                extras.setdefault(stage.name, {})["now_s"] = stage.ctx.now_s
            times = (stage.ctx.watermark, stage.ctx.announced)
            if times != (NO_WATERMARK, NO_WATERMARK):
                extras.setdefault(stage.name, {})["watermark"] = times
        return extras

    def keeping(self, extras: Mapping[str, Any]) -> list[str]:
        """The operators that would lose something without the state and these extras."""
        full = self.state.full()
        for name, extra in extras.items():
            if name != CHANNELS and extra.keys() & {"offset", "transactions"}:
                full.add(name.removesuffix(DEAD_LETTERS))
        return [name for name in self.operators if name in full]

    def unpersisted(self) -> list[Persisting]:
        for stage in self.stages.values():
            stage.unpersisted = [waiting for waiting in stage.unpersisted if not waiting.done]
        return [waiting for stage in self.stages.values() for waiting in stage.unpersisted]

    def committable(self, permit: Permit) -> list[Transaction]:
        return [
            transaction
            for stage in self.stages.values()
            for transaction in stage.pending
            if transaction.checkpoint <= permit.checkpoint
        ]

    def sink_of(self, transactions: Sequence[Transaction]) -> str | None:
        """The first sink that has one of these transactions."""
        wanted = {id(transaction) for transaction in transactions}
        sinks = (s.name for s in self.stages.values() if wanted & {id(t) for t in s.pending})
        return next(sinks, None)

    def mark_committed(self, permit: Permit) -> None:
        for stage in self.stages.values():
            stage.pending = [t for t in stage.pending if t.checkpoint > permit.checkpoint]
            stage.note_stable(permit.checkpoint)

    def call_hook(self, hook: str, checkpoint: int) -> None:
        """Call on_checkpoint or on_commit of every operator."""
        for stage in self.stages.values():
            if stage.operator is not None:
                self._enter(stage)
                getattr(stage.operator, hook)(checkpoint, stage.ctx)

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        return {
            name: (stage.records_in, stage.records_out)
            for name, stage in self.stages.items()
            if name in self.operators
        }

    @property
    def skipped(self) -> dict[str, int]:
        """Operator -> records left out, of those that left any out."""
        return {
            name: stage.ctx.skipped
            for name, stage in self.stages.items()
            if name in self.operators and stage.ctx.skipped
        }

    def saved_names(self) -> list[str]:
        """The names under which this chain's extras are saved."""
        return [*self.operators, *(name + DEAD_LETTERS for name in self.operators)]

    def _enter(self, stage: Stage) -> None:
        """From here on this operator has the word: an error, or the end of the process, is its own."""
        self._at = stage.name
        self.place[0] = stage.number
