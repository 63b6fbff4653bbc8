"""A pipeline whose output shows every lost and every doubled record."""

from collections import Counter
from typing import Any

import everstream as es

RECORDS = 2000
SMALL = es.Coordinated(every_records=600)
"""Several epochs, whatever the machine does."""


def counting() -> es.Pipeline:
    """Every count of every key."""
    pipeline = es.Pipeline("counting")
    numbers = pipeline.source(es.Range(RECORDS, batch=50), name="numbers", shards=2)
    keyed = numbers.key_by(lambda x: x % 7)
    keyed.fold(init=int, update=lambda n, x: n + 1, name="count", shards=2).collect()
    return pipeline


def counted() -> Counter[Any]:
    totals = Counter(x % 7 for x in range(RECORDS))
    return Counter((key, i + 1) for key, total in totals.items() for i in range(total))
