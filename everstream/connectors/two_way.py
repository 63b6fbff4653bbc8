"""One name for a source and a sink: `es.Kafka(...)` reads topics, or writes to one.

`pipeline.source(...)` calls `as_source` and `stream.sink(...)` calls `as_sink`: options that belong to
the other role are refused there, by name, before anything runs. `open` takes the arguments of
either role: (shard, shards) for a reader, a `SinkShard` for a writer.
"""

import inspect
from abc import abstractmethod
from typing import Any, ClassVar, Self, overload

from everstream.errors import UserError
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.pipeline.source import Reader, Source
from everstream.pipeline.types import T

ELSEWHERE = {"on_error": "Give it where the stream ends: .sink(..., on_error=...)."}


class TwoWay(Source[T], Sink):
    """A connector that can read and write, and lists the options that are for one role only."""

    source_options: ClassVar[frozenset[str]] = frozenset()
    sink_options: ClassVar[frozenset[str]] = frozenset()
    _given: frozenset[str]
    """The options that were given and differ from their defaults."""

    def __new__(cls, *_: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        known = inspect.signature(cls.__init__).parameters
        made._given = frozenset(
            name
            for name, value in options.items()
            if name in known and value != known[name].default
        )
        return made

    def as_source(self) -> Source[T]:
        self._refuse(self.sink_options, "source", "writing", {})
        return self

    def as_sink(self) -> Sink:
        self._refuse(self.source_options, "sink", "reading", ELSEWHERE)
        return self

    def _refuse(
        self, options: frozenset[str], role: str, purpose: str, advice: dict[str, str]
    ) -> None:
        for name in sorted(options & self._given):
            raise UserError(
                f"{type(self).__name__} as a {role} takes no {name}=, which is for {purpose}. "
                + advice.get(name, "Leave it out.")
            )

    @overload
    def open(self, shard: int, shards: int) -> Reader: ...
    @overload
    def open(self, shard: SinkShard) -> Writer: ...
    def open(self, *args: Any, **named: Any) -> Reader | Writer:
        """A reader for (shard, shards), a writer for a `SinkShard`."""
        shard = named.get("shard", args[0] if args else None)
        if isinstance(shard, SinkShard):
            return self._open_writer(shard)
        return self._open_reader(*args, **named)

    @abstractmethod
    def _open_reader(self, shard: int, shards: int) -> Reader: ...

    @abstractmethod
    def _open_writer(self, shard: SinkShard) -> Writer: ...
