"""`Collect`: a bounded pipeline's output goes back to the caller, exactly once.

Batches wait as part files in the run's store and are read back in order of (checkpoint, shard).
"""

from everstream.connectors.encoding import decode, encode
from everstream.connectors.parts import PartFolder, PartWriter, owner_of
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer

ENDING = ".batches"


class Collect(Sink):
    """Keeps the output in the run's store and hands it back when the run is done."""

    delivery = Delivery.EXACTLY_ONCE

    def open(self, who: SinkShard) -> Writer:
        return _CollectWriter(_folder(who.store, who.operator), who)

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        _folder(store, operator).start_fresh(pipeline, operator, replace)

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch]:
        folder = _folder(store, operator)
        batches: list[Batch] = []
        for part in folder.parts(owner_of(pipeline, operator)):
            path = folder.path_of(part)
            try:
                batches += decode(folder.fs.cat_file(path))
            except (OSError, ValueError) as error:
                raise ConnectorError(f"cannot read the output '{path}': {error}") from error
        return batches


def _folder(store: str, operator: str) -> PartFolder:
    # The pipeline's name comes second in file names; here only the operator's part is needed.
    name = owner_of("", operator).removeprefix(".")
    return PartFolder.at(f"{store.rstrip('/')}/outputs/{name}", ENDING)


class _CollectWriter(PartWriter):
    def encode(self, batch: Batch) -> bytes:
        return encode(batch)
