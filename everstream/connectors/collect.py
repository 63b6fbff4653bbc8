"""`Collect`: returns a bounded pipeline's output to the caller, exactly once.

Batches are kept as part files in the run's store and read back in order of (checkpoint, shard).
"""

from everstream.connectors.encoding import UNSEALED, decode, encode, sum_of
from everstream.connectors.files.parts import PartFolder, PartName, PartWriter, owner_of
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer
from everstream.state.signing import HEAD_BYTES, Forged, StoreKey

FOLDER = "outputs"
ENDING = ".batches"
SEAL, SEAL_BYTES = b"$", 17
"""Ends a part, followed by the checksum of all bytes before it; in a signed store, a signature."""


class Collect(Sink):
    """Keeps the output in the run's store and returns it when the run has ended.

    `stream.collect()` is a shortcut for it.

    >>> pipeline = es.Pipeline("three").source(es.Range(3)).sink(es.Collect(), name="numbers")
    >>> pipeline.run().collected("numbers")
    [0, 1, 2]
    """

    delivery = Delivery.EXACTLY_ONCE

    def open(self, shard: SinkShard) -> Writer:
        return _CollectWriter(folder_of(shard.store, shard.operator), shard)

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        folder_of(store, operator).start_fresh(pipeline, operator, replace)

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        return folder_of(store, operator).left_behind(pipeline, operator)

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch]:
        folder = folder_of(store, operator)
        parts = folder.parts(owner_of(pipeline, operator))
        return [batch for part in parts for batch in batches_in(folder, part)]


def folder_of(store: str, operator: str) -> PartFolder:
    return PartFolder.in_store(store, FOLDER, operator, ENDING)


def batches_in(folder: PartFolder, part: PartName) -> list[Batch]:
    """The batches of one committed part; a ConnectorError if it is incomplete, or not signed."""
    path = folder.path_of(part)
    try:
        data: bytes = folder.fs.cat_file(path)
        if folder.key is None:
            return decode(_unsealed(data))
        return decode(_verified(folder.key, folder.signed_as(part), data))
    except Forged as error:
        raise ConnectorError(
            f"the output '{path}' is not trusted: {error.message}. It was written by an earlier "
            "version, which did not sign output, or without the key of the store. Restore the file "
            "from a copy, or start over with --fresh, which deletes the output."
        ) from error
    except (OSError, ValueError) as error:
        raise ConnectorError(f"cannot read the output '{path}': {error}") from error


class _CollectWriter(PartWriter):
    def encode(self, batch: Batch) -> bytes:
        return encode(batch)

    def seal(self, part: PartName) -> bytes:
        key = self._folder.key
        if key is None:
            return SEAL + str(self._checksum).encode()
        return key.head(self._folder.signed_as(part), str(self._checksum).encode())


def _verified(key: StoreKey, name: str, data: bytes) -> bytes:
    """The batches of a part that was signed under this name; otherwise raises Forged."""
    batches, signature = data[:-HEAD_BYTES], data[-HEAD_BYTES:]
    key.opened(name, signature + sum_of(batches, strong=True).encode())
    return batches


def _unsealed(data: bytes) -> bytes:
    """The batches of a part that is complete; earlier versions wrote no seal."""
    batches, seal = data[:-SEAL_BYTES], data[-SEAL_BYTES:]
    if seal == SEAL + sum_of(batches).encode():
        return batches
    if data[:1] in UNSEALED:
        return data
    raise ValueError("it is damaged or cut off: its checksum does not match")
