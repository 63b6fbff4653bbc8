"""What takes a sink's place in an audit: it collects what the sink would store.

A sink with columns stores a value in the type its shards have agreed on, or refuses the record. That
depends on which records come first, so its stand-in decides as it would, in the store of the run: an
audit sees a column that drifts in type from batch to batch, though nothing reaches the real output.
"""

from collections.abc import Sequence
from typing import Any

from everstream.connectors.agreed_schema import Agreement
from everstream.connectors.collect import Collect
from everstream.connectors.columns import Columns
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Committable, Permit, Sink, SinkShard, Writer


class StandIn(Collect):
    """Collects what this sink would store."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.max_shards = sink.max_shards
        self._sink = sink

    def open(self, shard: SinkShard) -> Writer:
        columns = self._sink.columns(shard)
        collecting = super().open(shard)
        return collecting if columns is None else _Settling(collecting, columns)

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        super().start_fresh(pipeline, operator, store, replace)
        Agreement(pipeline, operator, store).forget()


class _Settling(Writer):
    def __init__(self, collecting: Writer, columns: Columns) -> None:
        self._collecting = collecting
        self._columns = columns

    def write(self, batch: Batch) -> None:
        if len(batch):
            settled = self._columns.settle(batch)
            # Where types may still widen, a number is written as it came.
            self._collecting.write(batch if self._columns.widens else settled)

    def saved(self) -> Any:
        return self._columns.saved()

    def restore(self, saved: Any) -> None:
        self._columns.restore(saved)

    def prepare(self, checkpoint: int) -> Committable | None:
        return self._collecting.prepare(checkpoint)

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        return self._collecting.recover(transactions, permit)

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        return self._collecting.adopt(transactions)

    def close(self) -> None:
        self._collecting.close()
