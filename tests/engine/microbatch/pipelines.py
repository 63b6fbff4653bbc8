"""A pipeline whose output shows every lost and every doubled record."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import everstream as es

RECORDS = 2000
SMALL = es.Coordinated(every_records=600)
"""Several epochs, whatever the machine does."""


class Waiting(es.Operator):
    """Goes on once there is such a file, if it is given one."""

    def __init__(self, file: str) -> None:
        self.file = file

    def process(self, record: int, ctx: es.Context) -> None:
        while self.file and not Path(self.file).exists():
            time.sleep(0.02)
        ctx.emit(record)


def counting(waits_for: str = "") -> es.Pipeline:
    """Every count of every key; the shards of the second stage wait for a file, if there is a name."""
    pipeline = es.Pipeline("counting")
    numbers = pipeline.source(es.Range(RECORDS, batch=50), name="numbers", shards=2)
    if waits_for:
        numbers = numbers.on_demand().process(Waiting(waits_for), name="wait", shards=2)
    keyed = numbers.key_by(lambda x: x % 7)
    keyed.fold(init=int, update=lambda n, x: n + 1, name="count", shards=2).collect()
    return pipeline


def counted() -> Counter[Any]:
    totals = Counter(x % 7 for x in range(RECORDS))
    return Counter((key, i + 1) for key, total in totals.items() for i in range(total))
