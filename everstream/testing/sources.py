"""The conformance suite for sources: what the engine relies on, as one function to call in a test.

`check_source` reads a source with several shard counts, then reopens it at the offsets it has
reported, as the engine does after a failure, and compares; then it goes on with other numbers of
shards, as `respreading` tells. It fails with an AssertionError that says which promise was broken.
"""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from everstream.errors import UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.testing.respreading import Stage, check_respreading

OFFSETS_TRIED = 12


@dataclass
class _Reading:
    """What one reader gave: the records, and the offset after each number of records."""

    records: list[str] = field(default_factory=list)
    lanes: list[Any] = field(default_factory=list)
    """Which order each record is part of."""
    live_offsets: dict[int, Any] = field(default_factory=dict)
    saved_offsets: dict[int, bytes] = field(default_factory=dict)
    ended: bool = False

    def note(self, reader: Reader) -> None:
        offset = reader.offset
        self.live_offsets[len(self.records)] = offset
        self.saved_offsets[len(self.records)] = pickle.dumps(offset)


@dataclass
class _Suite:
    make_source: Callable[[], Source]
    max_reads: int
    now: Callable[[], float]
    wait: Callable[[float], None]
    lane: Callable[[Any], Any] | None = None

    def open(self, shard: int, shards: int) -> Reader:
        """A reader as a Spark task gets it: from a source that was checked, then pickled."""
        source = self.make_source()
        source.check()
        shipped: Source = pickle.loads(cloudpickle.dumps(source))
        return shipped.open(shard, shards)

    def drain(self, reader: Reader, max_reads: int | None = None) -> _Reading:
        """Read to the end, or as many batches as allowed."""
        reading = _Reading()
        reading.note(reader)
        for _ in range(max_reads or self.max_reads):
            batch = reader.read()
            if isinstance(batch, EndOfStream):
                reading.ended = True
                break
            if batch is None:
                self.wait(reader.ready_in_s())
                continue
            records = records_of(batch)
            reading.records += map(repr, records)
            reading.lanes += map(self.lane, records) if self.lane else [None] * len(records)
            reading.note(reader)
        return reading

    def read_on(self, reader: Reader, batches: int | None) -> list[tuple[Any, str]]:
        """So many batches, however often that means to ask; or all there are."""
        found = list[tuple[Any, str]]()
        for _ in range(self.max_reads):
            if batches == 0:
                break
            read = self.drain(reader, max_reads=1)
            found += zip(read.lanes, read.records, strict=True)
            if read.ended:
                break
            if read.records and batches is not None:
                batches -= 1
        return found

    def check_reopening(self, shard: int, shards: int, whole: _Reading) -> None:
        counts = sorted(whole.saved_offsets)
        step = -(-len(counts) // OFFSETS_TRIED)
        for count in {*counts[::step], counts[-1]}:
            where = f"shard {shard} of {shards}, reopened after {count} records"
            reader = self.open(shard, shards)
            reader.seek(pickle.loads(whole.saved_offsets[count]))
            self.compare(whole, count, self.drain(reader), where)
            reader.seek(whole.live_offsets[count])
            self.compare(whole, count, self.drain(reader), where + " (offset kept in memory)")
            reader.close()

    def compare(self, whole: _Reading, count: int, again: _Reading, where: str) -> None:
        rest = whole.records[count:]
        before = _in_lanes(rest, whole.lanes[count:])
        self.compare_lanes(before, again, whole.ended, f"{where}: other records than before")
        if whole.ended and again.ended:
            assert len(again.records) == len(rest), f"{where}: more records than before"
        assert again.ended == whole.ended, f"{where}: the end is not where it was"
        for after, offset in again.live_offsets.items() if self.lane is None else ():
            if count + after in whole.live_offsets:
                was = pickle.loads(whole.saved_offsets[count + after])
                assert offset == was, f"{where}: offset {offset} where it was {was}"

    def compare_lanes(
        self, before: Mapping[Any, Sequence[str]], again: _Reading, ended: bool, problem: str
    ) -> None:
        """The same order in each lane; as far as both go, if there is no end."""
        found = _in_lanes(again.records, again.lanes)
        for lane, records in before.items():
            others = found.get(lane, [])
            common = len(records) if ended else min(len(records), len(others))
            assert others[:common] == records[:common], problem

    def check_steps(self, shard: int, shards: int, whole: _Reading) -> None:
        """A failure after every single batch still gives every record once."""
        together = _Reading()
        saved = whole.saved_offsets[0]
        # Of lanes that are mixed anew the batches may be others, and more.
        for _ in range(len(whole.saved_offsets) if self.lane is None else self.max_reads):
            reader = self.open(shard, shards)
            reader.seek(pickle.loads(saved))
            for _ in range(self.max_reads):  # an endless source may have nothing more for now
                step = self.drain(reader, max_reads=1)
                if step.records or step.ended:
                    break
            together.records += step.records
            together.lanes += step.lanes
            saved = pickle.dumps(reader.offset)
            reader.close()
            if step.ended or (not whole.ended and len(together.records) >= len(whole.records)):
                break
        problem = f"shard {shard} of {shards}: records differ if it is reopened after every batch"
        before = _in_lanes(whole.records, whole.lanes)
        self.compare_lanes(before, together, whole.ended, problem)


def check_source(
    make_source: Callable[[], Source],
    *,
    shards: Sequence[int] = (1, 2, 3),
    expected: Iterable[Any] | None = None,
    endless: bool = False,
    max_reads: int = 10_000,
    lane: Callable[[Any], Any] | None = None,
    now: Callable[[], float] = time.time,
    wait: Callable[[float], None] = time.sleep,
    respreads: bool | None = None,
) -> None:
    """Check that a source keeps the promises of `Source` and `Reader`.

    `make_source` makes the same source each time. `expected` are its records, in any order;
    rows as dicts. An `endless` source is read for `max_reads` reads. `now` and `wait` serve
    sources that wait: pass a test's own clock to lose no time. Records are compared by repr.

    `lane` is for a source whose shards read several streams at once, each in order but mixed
    anew each time: which stream a record is of. Without it, all records of a shard have one order.

    A source may refuse another number of shards with a UserError; with `respreads=True` it must
    not, with `respreads=False` it must.
    """
    suite = _Suite(make_source, max_reads, now, wait, lane)
    limit = make_source().max_shards
    alone: Counter[str] | None = None
    orders: dict[Any, list[str]] = {}
    for count in shards:
        if limit is not None and count > limit:
            _check_refusal(suite, count)
            continue
        together: Counter[str] = Counter()
        for shard in range(count):
            reader = suite.open(shard, count)
            whole = suite.drain(reader)
            assert endless or whole.ended, f"shard {shard} of {count}: no end in {max_reads} reads"
            if whole.ended:
                assert isinstance(reader.read(), EndOfStream), "a source that ended goes on"
            reader.close()
            suite.check_reopening(shard, count, whole)
            suite.check_steps(shard, count, whole)
            together.update(whole.records)
            orders |= _in_lanes(whole.records, whole.lanes)
        if not endless:
            wanted = Counter(map(repr, expected)) if expected is not None else alone or together
            _check_same(wanted, together, count)
            alone = together
        elif expected is not None:
            surplus = together - Counter(map(repr, expected))
            assert not surplus, f"{count} shards give too often: {_few(surplus)}"
    records = Counter(map(repr, expected)) if expected is not None else alone
    stage = Stage(make_source, suite.read_on, limit, respreads)
    check_respreading(stage, records, orders if lane else {}, endless)


def _in_lanes(records: Sequence[str], lanes: Sequence[Any]) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = {}
    for record, lane in zip(records, lanes, strict=True):
        found.setdefault(lane, []).append(record)
    return found


def _check_same(wanted: Counter[str], found: Counter[str], shards: int) -> None:
    lost, doubled = wanted - found, found - wanted
    assert not lost, f"{shards} shards lose {lost.total()} records: {_few(lost)}"
    assert not doubled, f"{shards} shards give {doubled.total()} too many: {_few(doubled)}"


def _few(records: Counter[str]) -> str:
    return ", ".join(list(records)[:5])


def _check_refusal(suite: _Suite, shards: int) -> None:
    try:
        suite.open(0, shards)
    except UserError:
        return
    raise AssertionError(f"max_shards is lower, but {shards} shards are not refused")
