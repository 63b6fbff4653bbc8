"""The conformance suite for sources of runs that end when they have caught up.

`check_catching_up` simulates several such runs: input is added, the source reports where it ends, more
input is added, and every shard reads up to that point. Each run starts from the offsets of the one
before, and is repeated from offsets in its middle, as after a failure. A violation is an
AssertionError that names the broken guarantee.
"""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from everstream.pipeline.batch import records_of
from everstream.pipeline.source import NOT_KNOWN, EndOfStream, Source


def check_catching_up(
    make_source: Callable[[], Source],
    add: Callable[[], Sequence[Any]],
    *,
    shards: Sequence[int] = (2, 2, 2),
    max_reads: int = 10_000,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Raise an AssertionError if records are lost, repeated or read too early.

    add: adds input, and returns the records that it adds. shards: the number for each of the runs.
    """
    pending: Counter[str] = Counter(map(repr, add()))
    saved: Sequence[Any] | None = None
    for run, count in enumerate(shards):
        where = f"run {run + 1} with {count} shard(s)"
        source = make_source()
        source.check()
        if saved is not None and len(saved) != count:
            saved = source.redistribute(saved, count)
        point = source.stopping_point()
        assert point is not None, "a stopping point is not None"
        if saved is not None:
            assert source.unread(saved, point) is not None, f"{where}: unread input is not seen"
        later = Counter(map(repr, add()))
        found: Counter[str] = Counter()
        offsets = []
        for shard in range(count):
            whole = _Played(source, point, shard, count, max_reads, wait)
            start = None if saved is None else pickle.dumps(saved[shard])
            records, stands = whole.read_from(start)
            found.update(records)
            offsets.append(pickle.loads(stands[-1][1]))
            for before, offset in stands[:: max(1, len(stands) // 5)]:
                again, _ = whole.read_from(offset)
                rest = Counter(records[before:])
                assert Counter(again) == rest, f"{where}: other records after {before} of them"
        assert found == pending, (
            f"{where}: lost {pending - found or 'nothing'}, "
            f"too many or too early {found - pending or 'nothing'}"
        )
        left = source.unread(offsets, point)
        assert left in (None, NOT_KNOWN), f"{where}: all is read, but {left!r} is reported as left"
        saved, pending = offsets, later


class _Played:
    """One shard of one run, which can be repeated."""

    def __init__(
        self,
        source: Source,
        point: Any,
        shard: int,
        shards: int,
        max_reads: int,
        wait: Callable[[float], None],
    ) -> None:
        self._source = cloudpickle.dumps(source)
        self._point = pickle.dumps(point)
        self._place = (shard, shards)
        self._max_reads = max_reads
        self._wait = wait

    def read_from(self, offset: bytes | None) -> tuple[list[str], list[tuple[int, bytes]]]:
        """What is read up to the stopping point, and the offsets by number of records."""
        reader = pickle.loads(self._source).open(*self._place)
        try:
            reader.stop_at(pickle.loads(self._point))
            if offset is not None:
                reader.seek(pickle.loads(offset))
            records = list[str]()
            stands = [(0, pickle.dumps(reader.offset))]
            for _ in range(self._max_reads):
                batch = reader.read()
                if isinstance(batch, EndOfStream):
                    return records, [*stands, (len(records), pickle.dumps(reader.offset))]
                if batch is None:
                    self._wait(reader.ready_in_s())
                    continue
                records += map(repr, records_of(batch))
                stands.append((len(records), pickle.dumps(reader.offset)))
        finally:
            reader.close()
        raise AssertionError(f"shard {self._place[0]} never reached its stopping point")
