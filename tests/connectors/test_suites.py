"""The conformance suites must fail for connectors that break a promise."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from everstream.connectors import FromList, JsonLines, Range
from everstream.connectors.parts import PartName, PartTransaction, PartWriter, owner_of
from everstream.core.permits import permit as engine_permit
from everstream.errors import EverstreamError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Permit, SinkShard, Transaction
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


def test_the_source_suite_finds_an_end_that_never_comes_and_records_that_differ() -> None:
    with pytest.raises(AssertionError, match="no end"):
        check_source(lambda: Range(100, batch=1), max_reads=10)
    with pytest.raises(AssertionError, match="lose"):
        check_source(lambda: FromList([1]), expected=[1, 2])


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
    self: PartWriter, transactions: Sequence[Transaction], permit: Permit
) -> None:
    for transaction in transactions:
        transaction.commit(permit)


def _recover_without_commit(
    self: PartWriter, transactions: Sequence[Transaction], permit: Permit
) -> None:
    original_recover(self, [], permit)


def _recover_without_what_waits(
    self: PartWriter, transactions: Sequence[Transaction], permit: Permit
) -> Sequence[Transaction]:
    """As if no permit would ever come."""
    original_recover(self, [t for t in transactions if t.checkpoint <= permit.checkpoint], permit)
    return ()


def _recover_with_all_commits(
    self: PartWriter, transactions: Sequence[Transaction], permit: Permit
) -> Sequence[Transaction]:
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
        transaction.part = PartName(transaction.part.owner, transaction.part.shard, number)
    return transaction


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
        (PartWriter, "prepare", _part_by_generation),
    ],
)
def test_the_sink_suite_finds_a_sink_with(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, replacement: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, EverstreamError)):
        run_suite()
