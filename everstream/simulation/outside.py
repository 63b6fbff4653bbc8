"""The outside world of a simulated run: an exactly-once sink whose output a checker watches.

It behaves like a sink on a disk. Prepared output is synced with its checkpoint and carries a
checksum; committing moves it, and is synced, too; removals are not, so a power cut may undo them.
"""

import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias
from weakref import WeakValueDictionary

from everstream.errors import ConnectorError, InternalError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Committable, Delivery, Permit, Sink, SinkShard, Writer
from everstream.simulation.faults import OPERATORS, raise_one

Place: TypeAlias = Literal["visible", "waiting"]
Prepared: TypeAlias = tuple[str, int, int, int]
"""Operator, shard, checkpoint, generation."""


class Outside:
    """Committed output by (operator, shard, checkpoint), and prepared output that waits."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.visible: dict[Any, list[Any]] = {}
        self.waiting: dict[Any, list[Any]] = {}
        self.fences: dict[tuple[str, int], int] = {}
        """By operator and shard: the generation that took over last."""
        self.watch: Callable[[str, int, int], None] | None = None
        """Called with every transaction (operator, shard, checkpoint) that becomes visible."""
        self.odd: list[str] = []
        """What the next calls of sinks raise errors of any kind about."""
        self.rotten: set[Prepared] = set()
        """Output that was damaged, or has vanished, before its commit."""
        self.refused = False
        """A commit of damaged output was refused."""
        self.wall_s: Callable[[], float] = lambda: 0.0
        """The clock of the machine that the sources read."""
        self.asked: Counter[Any] = Counter()
        """Question -> how often a service was asked."""
        self.on_ask: Callable[[Any], None] = lambda record: None
        """Called with every question."""
        self._chance = chance or random.Random(0)
        self._unsynced: dict[tuple[Place, Any], list[Any] | None] = {}
        self.worked_s = 0.0
        """The virtual time that operators have worked in the step under way."""

    def output(self, operator: str) -> list[Any]:
        """Everything an operator has committed, by checkpoint, then shard."""
        keys = sorted((k for k in self.visible if k[0] == operator), key=lambda k: (k[2], k[1]))
        return [record for key in keys for record in self.visible[key]]

    def counts(self, operator: str) -> Counter[Any]:
        return Counter(self.output(operator))

    def change(self, place: Place, key: Any, records: list[Any] | None) -> None:
        """Put something there, or remove it; durable when it is synced."""
        outputs: dict[Any, list[Any]] = getattr(self, place)
        before = outputs.pop(key, None)
        self._unsynced.setdefault((place, key), before)
        if records is not None:
            outputs[key] = records

    def sync(self, place: Place, operator: str) -> None:
        """This operator's changes there become durable."""
        for changed in [c for c in self._unsynced if c[0] == place and c[1][0] == operator]:
            del self._unsynced[changed]

    def lose_unsynced(self) -> None:
        """The power is cut: each change that was not synced may be undone."""
        for (place, key), before in self._unsynced.items():
            if self._chance.random() < 0.5:
                outputs: dict[Any, list[Any]] = getattr(self, place)
                outputs.pop(key, None)
                if before is not None:
                    outputs[key] = before
        self._unsynced.clear()
        self.fences.clear()  # of processes that are all dead

    def rot(self, key: Prepared) -> None:
        """Prepared output is changed, or is gone."""
        self.rotten.add(key)
        if self._chance.random() < 0.5:
            self.waiting[key] = [*self.waiting[key][1:], "rot"]
        else:
            del self.waiting[key]

    def may_fail(self) -> None:
        """A sink is at work: a pending fault may strike here."""
        if self.odd and self._chance.random() < 0.5:
            raise_one(OPERATORS, self.odd.pop(), self._chance)


class OutsideSink(Sink):
    """Exactly-once into an `Outside`, found by name because sinks are pickled."""

    delivery = Delivery.EXACTLY_ONCE
    worlds: ClassVar[WeakValueDictionary[int, Outside]] = WeakValueDictionary()

    def __init__(self, world: int) -> None:
        self.world = world

    def open(self, shard: SinkShard) -> Writer:
        return OutsideWriter(self.world, shard)


class OutsideClock:
    """The clock of a simulated machine, for sources that read one."""

    def __init__(self, world: int) -> None:
        self.world = world

    def __call__(self) -> float:
        return OutsideSink.worlds[self.world].wall_s()


class OutsideTransaction(Committable):
    def __init__(self, world: int, shard: SinkShard, checkpoint: int, records: list[Any]) -> None:
        self.world = world
        self.shard = shard
        self.checkpoint = checkpoint
        self.records: list[Any] | None = records
        self.checksum = _checksum(records)
        self.shown = False

    def __getstate__(self) -> dict[str, Any]:
        """The content of a restored transaction: its name. The records must have been persisted."""
        return {**self.__dict__, "records": None}

    @property
    def _key(self) -> Prepared:
        return (self.shard.operator, self.shard.shard, self.checkpoint, self.shard.generation)

    def persist(self) -> None:
        if self.shown:  # a renamed file cannot be synced under its earlier name
            raise InternalError(f"transaction {self._key} was committed before it was persisted")
        outside = OutsideSink.worlds[self.world]
        outside.may_fail()
        if self.records is not None:
            outside.change("waiting", self._key, self.records)
        outside.sync("waiting", self.shard.operator)
        outside.may_fail()

    def commit(self, permit: Permit) -> None:
        if permit.checkpoint < self.checkpoint:
            raise InternalError(f"permit {permit.checkpoint} used for {self.checkpoint}")
        outside = OutsideSink.worlds[self.world]
        outside.may_fail()
        name = self._key[:3]
        self.shown = True
        if self._key in outside.waiting:
            records = outside.waiting[self._key]
            self.require_whole(records)
            outside.change("waiting", self._key, None)
            outside.change("visible", name, records)
            if outside.watch is not None:
                outside.watch(*name)
        elif name not in outside.visible:
            if self._key in outside.rotten:
                raise self._damaged("is gone")
            raise InternalError(f"transaction {self._key} was neither prepared nor committed")
        outside.sync("visible", self.shard.operator)
        outside.may_fail()

    def require_whole(self, records: list[Any]) -> None:
        """Raise unless the prepared output is what was written."""
        if _checksum(records) != self.checksum:
            raise self._damaged("does not match its checksum")

    def _damaged(self, how: str) -> ConnectorError:
        OutsideSink.worlds[self.world].refused = True
        return ConnectorError(f"prepared output {self._key} {how}; none of it is shown")

    def abort(self) -> None:
        OutsideSink.worlds[self.world].change("waiting", self._key, None)


def _checksum(records: list[Any]) -> int:
    return zlib.crc32(repr(records).encode())


class OutsideWriter(Writer):
    def __init__(self, world: int, shard: SinkShard) -> None:
        self.world = world
        self.shard = shard
        self.open_records: list[Any] = []

    def write(self, batch: Batch) -> None:
        OutsideSink.worlds[self.world].may_fail()
        self.open_records += records_of(batch)

    def prepare(self, checkpoint: int) -> Committable | None:
        records, self.open_records = self.open_records, []
        return OutsideTransaction(self.world, self.shard, checkpoint, records) if records else None

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        outside, me = OutsideSink.worlds[self.world], (self.shard.operator, self.shard.shard)
        outside.may_fail()
        newest = outside.fences.get(me, 0)
        if newest > self.shard.generation:
            raise ConnectorError(f"generation {newest} has taken over {me}")
        outside.fences[me] = self.shard.generation
        held = [t for t in transactions if t.checkpoint > permit.checkpoint]
        for transaction in transactions:
            if transaction.checkpoint <= permit.checkpoint:
                transaction.commit(permit)
        for key in [k for k in outside.visible if k[:2] == me and k[2] > permit.checkpoint]:
            outside.change("visible", key, None)
        kept = {t._key for t in held if isinstance(t, OutsideTransaction)}
        for waiting in [k for k in outside.waiting if k[:2] == me]:
            if waiting[3] < self.shard.generation and waiting not in kept:
                outside.change("waiting", waiting, None)
        return held
