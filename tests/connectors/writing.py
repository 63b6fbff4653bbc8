"""A sink that is written to and prepared, as an operator called counts does it."""

from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Committable, Sink, SinkShard


def sink_shard(generation: int = 1, store: str = "") -> SinkShard:
    return SinkShard("words", "counts", 0, 1, generation, store)


def write_checkpoint(sink: Sink, batch: Batch, checkpoint: int = 1, store: str = "") -> Committable:
    writer = sink.open(sink_shard(store=store))
    writer.write(batch)
    transaction = writer.prepare(checkpoint)
    assert transaction is not None
    transaction.persist()
    return transaction
