"""The conformance suite for sources: what the engine relies on, as one function to call in a test.

`check_source` reads a source with several shard counts, then reopens it at the offsets it has
reported, as the engine does after a failure, and compares. Then the number of shards changes: on a
tour of several numbers, the shards of each read for a while, some to their end, and their offsets are
redistributed to the next number. With the last one all of them read to the end, and every record
must have come once. A violation is an AssertionError that names the broken guarantee.
"""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import cloudpickle

from everstream.errors import UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader, Source

OFFSETS_TRIED = 12


@dataclass
class _Reading:
    """What one reader read: the records, and the offset after each number of records."""

    records: list[str] = field(default_factory=list)
    lanes: list[Any] = field(default_factory=list)
    """The lane of each record: order is kept within a lane."""
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
        """Read to the end, or at most `max_reads` batches."""
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
        """Read this many batches, with as many calls as it takes; None for all."""
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
        assert again.ended == whole.ended, f"{where}: the end is in another place"
        for after, offset in again.live_offsets.items() if self.lane is None else ():
            if count + after in whole.live_offsets:
                was = pickle.loads(whole.saved_offsets[count + after])
                assert offset == was, f"{where}: offset {offset} where it was {was}"

    def compare_lanes(
        self, before: Mapping[Any, Sequence[str]], again: _Reading, ended: bool, problem: str
    ) -> None:
        """Compare the order in each lane; up to the shorter one, if there is no end."""
        found = _in_lanes(again.records, again.lanes)
        for lane, records in before.items():
            others = found.get(lane, [])
            common = len(records) if ended else min(len(records), len(others))
            assert others[:common] == records[:common], problem

    def check_steps(self, shard: int, shards: int, whole: _Reading) -> None:
        """A failure after every single batch must still give every record once."""
        together = _Reading()
        saved = whole.saved_offsets[0]
        # With several lanes, the batches may be different ones, and more.
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
    redistributes: bool | None = None,
) -> None:
    """Check that a source keeps the guarantees of `Source` and `Reader`.

    `make_source` makes the same source each time. `expected` are its records, in any order;
    rows as dicts. An `endless` source is read for `max_reads` reads. `now` and `wait` are for
    sources that wait: pass a test clock to lose no time. Records are compared by repr.

    `lane` is for a source whose shards read several streams at once, each in order but interleaved
    differently each time: it returns the stream of a record. Without it, all records of a shard
    have one order.

    A source may refuse another number of shards with a UserError; with `redistributes=True` it must
    not, with `redistributes=False` it must.
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
                assert isinstance(reader.read(), EndOfStream), "a source that ended gives more"
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
            assert not surplus, f"{count} shards give records too often: {_few(surplus)}"
    records = Counter(map(repr, expected)) if expected is not None else alone
    subject = Subject(make_source, suite.read_on, limit, redistributes)
    check_redistributing(subject, records, orders if lane else {}, endless)


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


FIRST_TOUR = (2, 3, 1, 4)
TOURS = 5
MOST_SHARDS = 5
MOST_BATCHES = 6
SOME_END = 0.25
"""How often a shard reads to its end before the number changes."""

Record = tuple[Any, str]
"""The lane of a record, and the record."""


@dataclass(frozen=True)
class Subject:
    """What the suite needs of a source."""

    make_source: Callable[[], Source[Any]]
    read: Callable[[Reader, int | None], list[Record]]
    """Reads this many batches, or all."""
    max_shards: int | None
    redistributes: bool | None
    """Whether the source must do it, must refuse it, or may."""

    def source(self) -> Source[Any]:
        """The source as a Spark task gets it."""
        source = self.make_source()
        source.check()
        shipped: Source[Any] = pickle.loads(cloudpickle.dumps(source))
        return shipped


def check_redistributing(
    subject: Subject,
    records: Counter[str] | None,
    orders: Mapping[Any, Sequence[str]],
    endless: bool,
) -> None:
    """Raise an AssertionError if records are lost or duplicated when the number of shards changes.

    `records` are all records; `orders` are the lanes, whose order must be kept.
    """
    for tour in _tours(subject.max_shards):
        found = _Tour(subject, tour).run()
        if found is None:
            assert subject.redistributes is not True, f"it refuses the numbers of shards {tour}"
            return
        assert subject.redistributes is not False, (
            f"it does not refuse the numbers of shards {tour}"
        )
        if records is None:
            continue
        counted = Counter(record for _, record in found)
        doubled = counted - records
        assert not doubled, f"shards {tour}: {doubled.total()} too many: {list(doubled)[:5]}"
        if not endless:
            lost = records - counted
            assert not lost, f"shards {tour}: {lost.total()} are lost: {list(lost)[:5]}"
            for lane, wanted in orders.items():
                there = [record for of, record in found if of == lane]
                assert there == list(wanted), f"shards {tour}: {lane} is out of order"


def _tours(max_shards: int | None) -> Iterator[tuple[int, ...]]:
    if max_shards == 1:
        return
    most = min(max_shards or MOST_SHARDS, MOST_SHARDS)
    yield tuple(min(number, most) for number in FIRST_TOUR)
    for seed in range(1, TOURS):
        chance = Random(seed)
        yield (*chance.sample(range(1, most + 1), min(most, 3)), chance.randint(1, most))


class _Tour:
    """One sequence of several numbers of shards."""

    def __init__(self, subject: Subject, numbers: tuple[int, ...]) -> None:
        self.subject = subject
        self.numbers = numbers
        self.chance = Random(repr(numbers))
        self.found: list[Record] = []

    def run(self) -> list[Record] | None:
        """All records, in the order they came; None if the source refuses."""
        saved: list[bytes] | None = None
        for leg, shards in enumerate(self.numbers):
            offsets: Sequence[Any] | None = None
            if saved is not None:
                try:
                    offsets = self._redistribute(saved, shards)
                except UserError:
                    return None
            is_last = leg == len(self.numbers) - 1
            saved = [self._read(shard, shards, offsets, is_last) for shard in range(shards)]
        return self.found

    def _redistribute(self, saved: Sequence[bytes], shards: int) -> Sequence[Any]:
        def spread() -> list[Any]:
            offsets = [pickle.loads(offset) for offset in saved]
            return list(self.subject.source().redistribute(offsets, shards))

        offsets, again = spread(), spread()
        about = f"shards {self.numbers}, from {len(saved)} to {shards}"
        assert len(offsets) == shards, f"{about}: {len(offsets)} offsets"
        assert offsets == again, f"{about}: other offsets each time"
        return [pickle.loads(pickle.dumps(offset)) for offset in offsets]

    def _read(
        self, shard: int, shards: int, offsets: Sequence[Any] | None, to_the_end: bool
    ) -> bytes:
        reader = self.subject.source().open(shard, shards)
        if offsets is not None:
            reader.seek(offsets[shard])
        batches = self.chance.randint(0, MOST_BATCHES)
        some = not to_the_end and self.chance.random() >= SOME_END
        self.found += self.subject.read(reader, batches if some else None)
        saved = pickle.dumps(reader.offset)
        reader.close()
        return saved
