"""The conformance suites must fail for connectors that break a promise."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from everstream.connectors import FromList, JsonLines, Range
from everstream.connectors.files.parts import PartTransaction, PartWriter, owner_of
from everstream.core.permits import permit as engine_permit
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Committable, Permit, Sink, SinkShard
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.testing.sinks import check_sink
from everstream.testing.sources import check_source

pytestmark = pytest.mark.usefixtures("quick_disk")


class Bent(Source):
    """A list source with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def open(self, shard: int, shards: int) -> Reader:
        return BentReader(self.fault, shard, shards)


class BentReader(Reader):
    def __init__(self, fault: str, shard: int, shards: int) -> None:
        self.fault = fault
        self.place: dict[str, Any] = {"next": shard, "step": shards}
        if fault == "ignores its shard":
            self.place = {"next": 0, "step": 1}
        if fault == "loses a record between shards" and shards > 1:
            self.place["next"] += 1

    @property
    def offset(self) -> Any:
        if self.fault == "offset does not pickle":
            return lambda: 1
        return self.place if self.fault == "offset changes in place" else dict(self.place)

    def seek(self, offset: Any) -> None:
        if self.fault != "seek does nothing":
            self.place = offset if self.fault == "offset changes in place" else dict(offset)
        if self.fault == "seek is off by one":
            self.place["next"] += self.place["step"]

    def read(self) -> Batch | EndOfStream | None:
        n = self.place["next"]
        if n >= 20:
            if self.fault == "goes on after the end" and n < 100:
                self.place["next"] = 100
                return END
            if n < 110 and self.fault == "goes on after the end":
                self.place["next"] = 200
                return [n]
            return END
        self.place["next"] = n + self.place["step"]
        return [n]


def test_the_source_suite_passes_the_same_source_without_a_fault() -> None:
    check_source(lambda: Bent("none"), expected=range(20))


@pytest.mark.parametrize(
    "fault",
    [
        "ignores its shard",
        "loses a record between shards",
        "offset changes in place",
        "offset does not pickle",
        "seek does nothing",
        "seek is off by one",
        "goes on after the end",
    ],
)
def test_the_source_suite_finds_a_source_that(fault: str) -> None:
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        check_source(lambda: Bent(fault))


class Mixed(Source):
    """Two streams that a reader mixes by chance; with a fault, not even each is in order."""

    max_shards = 1

    def __init__(self, fault: bool) -> None:
        self.fault = fault

    def open(self, shard: int, shards: int) -> Reader:
        if shards > 1:
            raise UserError("one shard")
        return MixedReader(self.fault)


class MixedReader(Reader):
    chance = Random(7)

    def __init__(self, fault: bool) -> None:
        self.fault = fault
        self.place = (0, 0)

    @property
    def offset(self) -> tuple[int, int]:
        return self.place

    def seek(self, offset: tuple[int, int]) -> None:
        self.place = offset

    def read(self) -> Batch | EndOfStream | None:
        left = [stream for stream in (0, 1) if self.place[stream] < 10]
        if not left:
            return END
        stream = self.chance.choice(left)
        n = self.place[stream]
        self.place = (n + 1, self.place[1]) if stream == 0 else (self.place[0], n + 1)
        if self.fault and n in (3, 4) and self.chance.random() < 0.5:
            n = 7 - n
        return [(stream, n)]


def test_the_source_suite_passes_streams_that_are_mixed_by_chance_and_each_in_order() -> None:
    expected = [(stream, n) for stream in (0, 1) for n in range(10)]
    check_source(lambda: Mixed(False), expected=expected, lane=lambda record: record[0])
    with pytest.raises(AssertionError, match="other records than before"):
        check_source(lambda: Mixed(False), expected=expected)


def test_the_source_suite_finds_a_stream_out_of_order_among_mixed_ones() -> None:
    with pytest.raises(AssertionError, match="other records than before"):
        check_source(lambda: Mixed(True), lane=lambda record: record[0])


def test_the_source_suite_finds_an_end_that_never_comes_and_records_that_differ() -> None:
    with pytest.raises(AssertionError, match="no end"):
        check_source(lambda: Range(100, batch=1), max_reads=10)
    with pytest.raises(AssertionError, match="lose"):
        check_source(lambda: FromList([1]), expected=[1, 2])


class Dealt(Source):
    """Numbers that are dealt out, and dealt out again; with a fault in the latter."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def open(self, shard: int, shards: int) -> Reader:
        return DealtReader(tuple(range(shard, 40, shards)))

    def redistribute(self, offsets: Sequence[tuple[int, ...]], shards: int) -> Sequence[Any]:
        left = [n for offset in offsets for n in offset]
        if self.fault == "refuses":
            raise UserError("keep the number of shards")
        if self.fault == "fails":
            raise KeyError(shards)
        if self.fault == "loses what the last shard had left":
            left = [n for offset in offsets[:-1] for n in offset]
        if self.fault == "loses what is left when shards become fewer" and shards < len(offsets):
            left = [n for offset in offsets[:shards] for n in offset]
        if self.fault == "gives a record to two shards" and left:
            left.append(left[0])
        if self.fault == "begins again":
            left = list(range(40))
        if self.fault == "deals by chance":
            Random().shuffle(left)
        if self.fault == "gives too few offsets":
            return [tuple(left)]
        return [tuple(left[shard::shards]) for shard in range(shards)]


class DealtReader(Reader):
    def __init__(self, left: tuple[int, ...]) -> None:
        self.left = left

    @property
    def offset(self) -> tuple[int, ...]:
        return self.left

    def seek(self, offset: tuple[int, ...]) -> None:
        self.left = offset

    def read(self) -> Batch | EndOfStream | None:
        if not self.left:
            return END
        first, *rest = self.left
        self.left = tuple(rest)
        return [first]


def test_the_source_suite_passes_a_source_that_can_be_spread_over_other_shards() -> None:
    check_source(lambda: Dealt("none"), expected=range(40), redistributes=True)
    check_source(lambda: Dealt("refuses"), expected=range(40), redistributes=False)
    with pytest.raises(AssertionError, match="refuses"):
        check_source(lambda: Dealt("refuses"), expected=range(40), redistributes=True)
    with pytest.raises(AssertionError, match="does not refuse"):
        check_source(lambda: Dealt("none"), expected=range(40), redistributes=False)


@pytest.mark.parametrize(
    "fault",
    [
        "fails",
        "loses what the last shard had left",
        "loses what is left when shards become fewer",
        "gives a record to two shards",
        "begins again",
        "deals by chance",
        "gives too few offsets",
    ],
)
def test_the_source_suite_finds_a_source_that_when_respread(fault: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_source(lambda: Dealt(fault), expected=range(40))


def records_in(place: str, who: SinkShard) -> list[Any]:
    files = Path(place, "out").glob(f"part-{owner_of(who.pipeline, who.operator)}-????-*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def run_suite() -> None:
    check_sink(
        lambda place: JsonLines(f"{place}/out"),
        lambda _, who: records_in(who.store.removesuffix("/store"), who),
    )


def _commit_early(self: PartTransaction) -> None:
    original_persist(self)
    original_commit(self, engine_permit(self.checkpoint))


def _recover_without_cleaning(
    self: PartWriter, transactions: Sequence[Committable], permit: Permit
) -> None:
    for transaction in transactions:
        transaction.commit(permit)


def _recover_without_commit(
    self: PartWriter, transactions: Sequence[Committable], permit: Permit
) -> None:
    original_recover(self, [], permit)


def _recover_without_what_waits(
    self: PartWriter, transactions: Sequence[Committable], permit: Permit
) -> Sequence[Committable]:
    """As if no permit would ever come."""
    original_recover(self, [t for t in transactions if t.checkpoint <= permit.checkpoint], permit)
    return ()


def _recover_with_all_commits(
    self: PartWriter, transactions: Sequence[Committable], permit: Permit
) -> Sequence[Committable]:
    """As if whatever is restored were stable."""
    newest = max([permit.checkpoint, *(t.checkpoint for t in transactions)])
    return original_recover(self, transactions, engine_permit(newest))


def _commit_fails_twice(self: PartTransaction, permit: Permit) -> None:
    if self.folder.fs.exists(self.folder.path_of(self.part)):
        raise EverstreamError("already there")
    original_commit(self, permit)


def _part_by_generation(self: PartWriter, checkpoint: int) -> Any:
    """Names that differ between generations double what is written again."""
    transaction = original_prepare(self, checkpoint)
    if isinstance(transaction, PartTransaction):
        number = checkpoint + 1000 * transaction.pending.generation
        transaction.part = replace(transaction.part, checkpoint=number)
    return transaction


def _recover_sweeps_other_numbers(
    self: PartWriter, transactions: Sequence[Committable], permit: Permit
) -> Sequence[Committable]:
    """As if only those numbers counted that are in use now."""
    held = original_recover(self, transactions, permit)
    for part in self._folder.parts(self._owner):
        if part.shard >= self._shard.shards:
            self._folder.remove(part)
    return held


def _recover_only_known_numbers(
    self: PartWriter, transactions: Sequence[Committable], permit: Permit
) -> Sequence[Committable]:
    """As if a number that is gone, or new, had nothing to put right: only the suite's first two."""
    if self._shard.shard >= 2:
        return ()
    return original_recover(self, transactions, permit)


def _recover_begins_anew_where_nothing_waits(
    self: PartWriter, transactions: Sequence[Committable], permit: Permit
) -> Sequence[Committable]:
    """As if a number that comes back had never been there."""
    return original_recover(self, transactions, permit if transactions else engine_permit(0))


def _abort_does_nothing_and_commits(self: PartTransaction) -> None:
    original_commit(self, engine_permit(self.checkpoint))


original_persist = PartTransaction.persist
original_commit = PartTransaction.commit
original_recover = PartWriter.recover
original_prepare = PartWriter.prepare


@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [
        (PartTransaction, "persist", _commit_early),
        (PartTransaction, "commit", _commit_fails_twice),
        (PartTransaction, "abort", _abort_does_nothing_and_commits),
        (PartWriter, "recover", _recover_without_cleaning),
        (PartWriter, "recover", _recover_without_commit),
        (PartWriter, "recover", _recover_without_what_waits),
        (PartWriter, "recover", _recover_with_all_commits),
        (PartWriter, "recover", _recover_sweeps_other_numbers),
        (PartWriter, "recover", _recover_only_known_numbers),
        (PartWriter, "recover", _recover_begins_anew_where_nothing_waits),
        (PartWriter, "prepare", _part_by_generation),
    ],
)
def test_the_sink_suite_finds_a_sink_with(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, replacement: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, EverstreamError)):
        run_suite()


class Casting(JsonLines):
    """Makes every value what the first one of its column was."""

    def _open_writer(self, who: SinkShard) -> Any:
        return CastingWriter(self._part_folder(), who)


class CastingWriter(PartWriter):
    kinds: ClassVar[dict[str, type]] = {}

    def encode(self, batch: Batch) -> bytes:
        lines = []
        for record in records_of(batch):
            for name, value in record.items():
                self.kinds.setdefault(name, type(value))
            cast = {n: v if v is None else self.kinds[n](v) for n, v in record.items()}
            lines.append(json.dumps(cast) + "\n")
        return "".join(lines).encode()


def test_the_sink_suite_finds_a_sink_that_changes_the_type_of_a_value() -> None:
    def read_back(sink: Sink, who: SinkShard) -> list[Any]:
        owner = owner_of(who.pipeline, who.operator)
        parts = sorted(Path(who.store).parent.glob(f"out/part-{owner}-????-????????-g*.jsonl"))
        return [json.loads(line) for part in parts for line in part.read_text().splitlines()]

    CastingWriter.kinds = {}
    with pytest.raises(AssertionError, match="was accepted, but is not there unchanged"):
        check_sink(lambda place: Casting(f"{place}/out"), read_back)
