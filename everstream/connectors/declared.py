"""A source with declared columns: records that do not fit are refused, or go where `on_error` sends them."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from everstream.connectors.wrapping import Wrapping, WrappingReader
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch, taken
from everstream.pipeline.operators.models import RowType
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.pipeline.types import T


class Declared(Wrapping[T]):
    """The records of a source in the columns of `declared`. Offsets are those of the source."""

    declared: RowType

    def __init__(self, source: Source[Any], declared: RowType) -> None:
        super().__init__(source)
        self.declared = declared
        self.exact_batches = self._source.exact_batches

    def column_types(self) -> Mapping[str, Any]:
        return self.declared.schema

    def open(self, shard: int, shards: int) -> Reader:
        return _DeclaredReader(self._source.open(shard, shards), self.declared, self.on_error)

    def describe_offsets(self) -> dict[str, Any]:
        return self._source.describe_offsets()

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        return self._source.redistribute(offsets, shards)

    def unread(self, offsets: Sequence[Any], point: Any) -> str | None:
        return self._source.unread(offsets, point)

    def overlooked(self, offsets: Sequence[Any], point: Any) -> str | None:
        return self._source.overlooked(offsets, point)


class _DeclaredReader(WrappingReader):
    def __init__(self, inner: Reader, declared: RowType, on_error: OnError) -> None:
        super().__init__(inner)
        self._declared = declared
        self._on_error = on_error
        self._rejected: list[Rejected] = []

    @property
    def offset(self) -> Any:
        return self._inner.offset

    def inner_offset(self, offset: Any) -> Any:
        return offset

    @property
    def holds(self) -> bool:
        return False

    def ready_in_s(self) -> float:
        return self._inner.ready_in_s()

    def read(self) -> Batch | EndOfStream | None:
        batch = self._inner.read()
        if batch is None or isinstance(batch, EndOfStream) or not len(batch):
            return batch
        frame, wrong = self._declared.rows(batch)
        if not wrong:
            return frame
        if self._on_error == "fail":
            problem = self._declared.problem(batch, wrong)
            raise ConnectorError(
                f"{problem.message} Correct it, or correct schema=. Sources that have on_error= leave "
                "such records out with 'skip' or 'dead_letter'."
            )
        records = taken(batch, list(wrong))
        self._rejected += [
            Rejected(record, f"not {self._declared.name}: {reason}")
            for record, reason in zip(records, wrong.values(), strict=True)
        ]
        kept = pl.Series([row not in wrong for row in range(frame.height)], dtype=pl.Boolean)
        return frame.filter(kept)

    def take_rejected(self) -> list[Rejected]:
        rejected, self._rejected = [*super().take_rejected(), *self._rejected], []
        return rejected
