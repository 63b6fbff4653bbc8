"""The outside world of a simulated run: an exactly-once sink whose output a checker watches."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from everstream.errors import ConnectorError, InternalError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer


class Outside:
    """Committed output by (operator, shard, checkpoint), and prepared output that waits."""

    def __init__(self) -> None:
        self.visible: dict[tuple[str, int, int], list[Any]] = {}
        self.waiting: dict[tuple[str, int, int, int], list[Any]] = {}
        self.fences: dict[tuple[str, int], int] = {}
        """By operator and shard: the generation that took over last."""
        self.watch: Callable[[str, int, int], None] | None = None
        """Told of every transaction (operator, shard, checkpoint) that becomes visible."""
        self.worked_s = 0.0
        """The virtual time that operators have worked in the step under way."""

    def output(self, operator: str) -> list[Any]:
        """Everything an operator has shown, by checkpoint, then shard."""
        keys = sorted((k for k in self.visible if k[0] == operator), key=lambda k: (k[2], k[1]))
        return [record for key in keys for record in self.visible[key]]

    def counts(self, operator: str) -> Counter[Any]:
        return Counter(self.output(operator))


class OutsideSink(Sink):
    """Exactly-once into an `Outside`, found by name because sinks are pickled on their way."""

    delivery = Delivery.EXACTLY_ONCE
    worlds: ClassVar[WeakValueDictionary[int, Outside]] = WeakValueDictionary()

    def __init__(self, world: int) -> None:
        self.world = world

    def open(self, who: SinkShard) -> Writer:
        return OutsideWriter(self.world, who)


class OutsideTransaction(Transaction):
    def __init__(self, world: int, who: SinkShard, checkpoint: int, records: list[Any]) -> None:
        self.world = world
        self.who = who
        self.checkpoint = checkpoint
        self.records: list[Any] | None = records

    def __getstate__(self) -> dict[str, Any]:
        """What a restored transaction knows: its name. The records must have been persisted."""
        return {**self.__dict__, "records": None}

    @property
    def _key(self) -> tuple[str, int, int, int]:
        return (self.who.operator, self.who.shard, self.checkpoint, self.who.generation)

    def persist(self) -> None:
        if self.records is not None:
            OutsideSink.worlds[self.world].waiting[self._key] = self.records

    def commit(self, permit: Permit) -> None:
        if permit.checkpoint < self.checkpoint:
            raise InternalError(f"permit {permit.checkpoint} used for {self.checkpoint}")
        outside = OutsideSink.worlds[self.world]
        name = self._key[:3]
        if self._key in outside.waiting:
            outside.visible[name] = outside.waiting.pop(self._key)
            if outside.watch is not None:
                outside.watch(*name)
        elif name not in outside.visible:
            raise InternalError(f"transaction {self._key} was neither prepared nor committed")

    def abort(self) -> None:
        OutsideSink.worlds[self.world].waiting.pop(self._key, None)


class OutsideWriter(Writer):
    def __init__(self, world: int, who: SinkShard) -> None:
        self.world = world
        self.who = who
        self.open_records: list[Any] = []

    def write(self, batch: Batch) -> None:
        self.open_records += records_of(batch)

    def prepare(self, checkpoint: int) -> Transaction | None:
        records, self.open_records = self.open_records, []
        return OutsideTransaction(self.world, self.who, checkpoint, records) if records else None

    def recover(self, transactions: Sequence[Transaction], permit: Permit) -> Sequence[Transaction]:
        outside, me = OutsideSink.worlds[self.world], (self.who.operator, self.who.shard)
        newest = outside.fences.get(me, 0)
        if newest > self.who.generation:
            raise ConnectorError(f"generation {newest} has taken over {me}")
        outside.fences[me] = self.who.generation
        held = [t for t in transactions if t.checkpoint > permit.checkpoint]
        for transaction in transactions:
            if transaction.checkpoint <= permit.checkpoint:
                transaction.commit(permit)
        for key in [k for k in outside.visible if k[:2] == me and k[2] > permit.checkpoint]:
            del outside.visible[key]
        kept = {t._key for t in held if isinstance(t, OutsideTransaction)}
        for waiting in [k for k in outside.waiting if k[:2] == me]:
            if waiting[3] < self.who.generation and waiting not in kept:
                del outside.waiting[waiting]
        return held
