"""Dead letters: rejected records, kept in the run's store beside the checkpoints.

They are part files like any exactly-once output: after a failure, a replayed record is not kept
twice. One line of JSON per record contains the record, the error and the operator.
"""

import json
from typing import Any

from everstream.connectors.files.parts import PartFolder, PartWriter
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer

FOLDER = "dead_letters"
ENDING = ".jsonl"
LONGEST_SHOWN = 100_000
"""How many characters of a record are kept if JSON cannot hold it."""


class DeadLetters(Sink):
    """Writes `Rejected` records to `<store>/dead_letters/<operator>/`."""

    delivery = Delivery.EXACTLY_ONCE

    def open(self, shard: SinkShard) -> Writer:
        return _DeadLetterWriter(folder_of(shard.store, shard.operator), shard)

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        folder_of(store, operator).start_fresh(pipeline, operator, replace)

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        return folder_of(store, operator).left_behind(pipeline, operator)


def folder_of(store: str, operator: str) -> PartFolder:
    return PartFolder.in_store(store, FOLDER, operator, ENDING)


class _DeadLetterWriter(PartWriter):
    def encode(self, batch: Batch) -> bytes:
        return "".join([self._line(rejected) for rejected in records_of(batch)]).encode()

    def _line(self, rejected: Rejected) -> str:
        about = {"operator": self._shard.operator, "error": rejected.error}
        if rejected.place:
            about["place"] = rejected.place
        return json.dumps({**about, **_shown(rejected.record)}) + "\n"


def _shown(record: Any) -> dict[str, Any]:
    """The record as JSON if that restores the same value, otherwise its repr."""
    try:
        if json.loads(json.dumps(record, allow_nan=False)) == record:
            return {"record": record}
    except (TypeError, ValueError, RecursionError):
        pass  # It has no JSON form.
    return {"repr": repr(record)[:LONGEST_SHOWN]}
