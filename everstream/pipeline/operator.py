"""Operators: what a user subclasses, and the context an operator is given.

An operator sees batches (`process_batch`) or single records (`process`), emits through its
context, and keeps whatever must survive a crash in its context's state. It never knows which
engine runs it, which protocol checkpoints it, or how many shards it has unless it asks.
"""

from collections.abc import Callable, Hashable, Iterator
from operator import length_hint
from typing import Any, Generic, TypeVar, overload

from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.keys import Keying
from everstream.state.keystore import KeyStore

V = TypeVar("V")
OUT = "out"
"""The name of the port that records leave by unless another is named."""


class Keyed(Generic[V]):
    """Declares keyed state on an Operator class: one value per key, kept across crashes.

    class Total(es.Operator):
        total = es.Keyed(init=float)

        def process(self, record, ctx):
            self.total[ctx.key] += record["amount"]
            ctx.emit((ctx.key, self.total[ctx.key]))
    """

    def __init__(self, init: Callable[[], V] | None = None) -> None:
        self.init = init
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Keyed[V]": ...
    @overload
    def __get__(self, instance: "Operator", owner: type) -> KeyStore[Hashable, V]: ...
    def __get__(
        self, instance: "Operator | None", owner: type
    ) -> "Keyed[V] | KeyStore[Hashable, V]":
        if instance is None:
            return self
        store: KeyStore[Hashable, V] = instance.__dict__["_keyed"][self.name]
        return store


class Context:
    """What an operator may ask for and do while it runs."""

    def __init__(
        self,
        operator: str,
        shard: int,
        shards: int,
        state: KeyStore[Any, Any],
        keying: Keying | None = None,
    ) -> None:
        self.operator = operator
        self.shard = shard
        self.shards = shards
        self.state = state
        self.keying = keying
        self.key: Hashable = None
        """The key of the record in `process`, if the operator stands behind a key_by."""
        self.skipped = 0
        self._reading: tuple[list[Any], Iterator[Any]] = ([], iter(()))
        self._emitted: list[tuple[str, Batch]] = []
        self._records: list[Any] = []
        self._port = OUT

    def emit(self, record: Any, port: str = OUT) -> None:
        """Send one record on."""
        if port != self._port:
            self._flush()
            self._port = port
        self._records.append(record)

    def emit_batch(self, batch: Batch, port: str = OUT) -> None:
        """Send a whole batch on."""
        self._flush()
        if len(batch):
            self._emitted.append((port, batch))

    def reading(self, batch: Batch) -> Iterator[Any]:
        """Iterates over the records so that an error report can name the one that failed."""
        records = records_of(batch)
        iterator = iter(records)
        self._reading = (records, iterator)
        return iterator

    @property
    def record(self) -> Any:
        """The record being read, if `reading` is under way; it costs nothing until asked."""
        records, iterator = self._reading
        position = len(records) - length_hint(iterator) - 1
        return records[position] if 0 <= position < len(records) else None

    def take_emitted(self) -> list[tuple[str, Batch]]:
        """What was emitted by the step that is over now. For engines."""
        self._flush()
        self._reading = ([], iter(()))
        emitted, self._emitted = self._emitted, []
        return emitted

    def _flush(self) -> None:
        if self._records:
            self._emitted.append((self._port, self._records))
            self._records = []


class Operator:
    """A stage of a pipeline. Override `process` or `process_batch`, and the hooks you need.

    State belongs in `ctx.state` or in a declared `es.Keyed`; plain attributes are lost in a
    crash. Do not change records in place: another branch may hold the same objects.
    """

    def process(self, record: Any, ctx: Context) -> None:
        """Handle one record."""
        raise TypeError(f"{type(self).__name__} must define process or process_batch")

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        """Handle a batch. As given here: calls `process` for each record."""
        process = self.process
        keys = iter(ctx.keying.keys(batch)) if ctx.keying is not None else None
        for record in ctx.reading(batch):
            if keys is not None:
                ctx.key = next(keys)
            try:
                process(record, ctx)
            except Exception as error:
                self.on_error(error, record, ctx)
                ctx.skipped += 1

    def on_start(self, ctx: Context) -> None:
        """Before the first record of each generation, after state was restored."""

    def on_end(self, ctx: Context) -> None:
        """All inputs have ended; the last chance to emit."""

    def on_stop(self, ctx: Context) -> None:
        """This shard is going away in good order; close what you opened."""

    def on_error(self, error: Exception, record: Any, ctx: Context) -> None:
        """`process` raised. Raise to fail (the default), or return to skip the record."""
        raise error

    def on_checkpoint(self, checkpoint: int, ctx: Context) -> None:
        """My checkpoint of this number is durable."""

    def on_commit(self, checkpoint: int, ctx: Context) -> None:
        """Everything up to this checkpoint is stable: it will never be rolled back."""


def bind_state(
    operator: Operator, keystore: Callable[[str, Callable[[], Any] | None], KeyStore[Any, Any]]
) -> None:
    """Give an operator's declared state its key stores: keystore(name, init) makes or finds one."""
    stores: dict[str, KeyStore[Any, Any]] = {}
    for kind in type(operator).__mro__:
        for name, declared in vars(kind).items():
            if isinstance(declared, Keyed) and name not in stores:
                stores[name] = keystore(name, declared.init)
    operator.__dict__["_keyed"] = stores
