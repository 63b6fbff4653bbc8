"""Dead letters through the conformance suite of sinks."""

import json
from pathlib import Path
from typing import Any

import pytest

from everstream.connectors.dead_letters import DeadLetters
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.sink import SinkShard
from everstream.testing.sinks import check_sink


@pytest.mark.usefixtures("quick_disk")
def test_dead_letters_are_exactly_once_through_every_crash() -> None:
    batches: dict[int, Batch] = {
        k: [Rejected({"n": 10 * k + i}, f"é\n{k}") for i in range(2)] for k in range(4)
    }

    def read_back(_: Any, who: SinkShard) -> list[Any]:
        owner = f"part-{who.pipeline.replace('.', '%2E')}.{who.operator.replace('.', '%2E')}"
        folder = Path(who.store, "dead_letters", who.operator.replace(".", "%2E"))
        lines = [x for f in folder.glob(f"{owner}-????-*") for x in f.read_text().splitlines()]
        return [Rejected(body["record"], body["error"]) for body in map(json.loads, lines)]

    check_sink(lambda _: DeadLetters(), read_back, batches=batches)
