"""Every source through the conformance suite, and what each promises beyond it."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors import (
    FromFunction,
    FromGenerator,
    FromList,
    Paced,
    Range,
    TextLines,
)
from everstream.errors import UserError
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.testing.sources import check_source


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


def squares(start: int, stop: int) -> pl.DataFrame:
    n = pl.int_range(start, stop, eager=True)
    return pl.DataFrame({"n": n, "square": n * n})


def numbers(offset: int) -> Iterator[int]:
    yield from range(offset, 50)


def shared_numbers(offset: int, shard: int, shards: int) -> Iterator[int]:
    yield from range(shard + offset * shards, 50, shards)


def length(batch: Any) -> int:
    return len(batch or [])


def read_all(reader: Reader) -> list[Any]:
    records: list[Any] = []
    while not isinstance(batch := reader.read(), EndOfStream):
        assert batch is not None
        records += batch.rows() if isinstance(batch, pl.DataFrame) else batch
    return records


@pytest.mark.parametrize("batch", [1, 7, 50, 51, None])
def test_range_keeps_the_promises_of_a_source(batch: int | None) -> None:
    check_source(lambda: Range(50, batch=batch), expected=range(50), redistributes=True)
    check_source(lambda: Range(-20, 30, batch=batch), expected=range(-20, 30))
    rows = [{"n": n} for n in range(5, 50)]
    check_source(lambda: Range(5, 50, column="n", batch=batch), expected=rows)


def test_an_empty_range_ends_at_once() -> None:
    for source in (Range(0), Range(5, 5), Range(5, 3), Range(0, column="n")):
        assert isinstance(source.open(0, 1).read(), EndOfStream)


def test_range_gives_an_int64_column() -> None:
    batch = Range(3, column="n").open(0, 1).read()
    assert isinstance(batch, pl.DataFrame)
    assert batch.schema == {"n": pl.Int64}


def test_range_refuses_numbers_that_do_not_fit_the_column() -> None:
    assert Range(2**70, 2**70 + 2).open(0, 1).read() == [2**70, 2**70 + 1]
    with pytest.raises(UserError, match="int64"):
        Range(2**70, 2**70 + 2, column="n")


def test_from_function_keeps_the_promises_of_a_source() -> None:
    rows = squares(0, 100).to_dicts()
    check_source(
        lambda: FromFunction(squares, total=100, batch=9), expected=rows, redistributes=True
    )


def test_an_endless_function_never_ends_and_replays() -> None:
    rows = squares(0, 1000).to_dicts()
    check_source(
        lambda: FromFunction(squares, batch=4),
        endless=True,
        max_reads=20,
        expected=rows,
        redistributes=True,
    )


def test_a_function_that_gives_the_wrong_number_of_records_is_named() -> None:
    reader = FromFunction(lambda start, stop: [1, 2], total=10, batch=5).open(0, 1)
    with pytest.raises(UserError, match=r"make\(0, 5\) must give 5 records, but gave 2"):
        reader.read()


def test_a_later_change_of_the_batch_size_does_not_move_the_blocks() -> None:
    reader = Range(100, batch=10).open(1, 2)
    reader.read()
    saved = pickle.dumps(reader.offset)
    rest = read_all(reader)
    changed = Range(100, batch=33).open(1, 2)
    changed.seek(pickle.loads(saved))
    assert read_all(changed) == rest


def test_from_list_keeps_the_promises_of_a_source() -> None:
    records = ["a", None, {"x": 1}, [1, 2], (3,), 2.5, "a"]
    check_source(lambda: FromList(records, batch=2), expected=records, redistributes=True)
    check_source(lambda: FromList([]), expected=[])


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_from_generator_keeps_the_promises_of_a_source(batch: int) -> None:
    check_source(lambda: FromGenerator(numbers, batch=batch), expected=range(50))
    check_source(
        lambda: FromGenerator(shared_numbers, batch=batch), expected=range(50), redistributes=False
    )


def test_a_generator_without_shards_refuses_a_second_shard_and_says_how_to_write_it() -> None:
    source = FromGenerator(numbers)
    assert source.max_shards == 1
    assert FromGenerator(shared_numbers).max_shards is None
    with pytest.raises(UserError, match=r"def numbers\(offset, shard, shards\)"):
        source.open(0, 2)


def test_a_generator_with_other_parameters_is_refused() -> None:
    with pytest.raises(UserError, match=r"must take \(offset\) or \(offset, shard, shards\)"):
        FromGenerator(lambda: iter([]))
    with pytest.raises(UserError, match="must take"):
        FromGenerator(lambda a, b: iter([]))
    with pytest.raises(UserError, match="needs a function"):
        FromGenerator([1, 2])  # type: ignore[arg-type]


def test_optional_parameters_do_not_make_a_generator_sharded() -> None:
    def stepped(offset: int, step: int = 2, limit: int = 10) -> Iterator[int]:
        yield from range(offset * step, limit, step)

    assert read_all(FromGenerator(stepped).open(0, 1)) == [0, 2, 4, 6, 8]


def test_a_function_that_does_not_yield_is_named() -> None:
    def broken(offset: int) -> Any:
        return 5

    with pytest.raises(UserError, match="'broken' must yield"):
        FromGenerator(broken).open(0, 1).read()


def test_a_slow_generator_does_not_hold_a_batch_back() -> None:
    clock = Clock()

    def slow(offset: int) -> Iterator[int]:
        for n in range(offset, 6):
            clock.wait(0.02)
            yield n

    reader = FromGenerator(slow, clock=clock).open(0, 1)
    assert reader.read() == [0, 1, 2]
    assert reader.read() == [3, 4, 5]
    assert isinstance(reader.read(), EndOfStream)


def test_seek_closes_the_generator_it_leaves() -> None:
    closed = []

    def watched(offset: int) -> Iterator[int]:
        try:
            yield from range(offset, 10)
        finally:
            closed.append(offset)

    reader = FromGenerator(watched, batch=3).open(0, 1)
    reader.read()
    reader.seek(5)
    assert closed == [0]
    assert reader.read() == [5, 6, 7]
    reader.close()
    assert closed == [0, 5]


SHARED_CLOCK = Clock()


def shared_now() -> float:
    """A clock that a source still shares with the test after it was pickled."""
    return SHARED_CLOCK.now_s


@pytest.mark.parametrize("frame", [1, 3, 100])
@pytest.mark.parametrize(
    "inner",
    [
        Range(50, batch=7),
        Range(50, column="n", batch=7),
        FromGenerator(shared_numbers, batch=9, clock=shared_now),
    ],
)
def test_paced_keeps_the_promises_of_a_source(inner: Source, frame: int) -> None:
    check_source(
        lambda: Paced(inner, rate=100, clock=shared_now, batch=frame),
        shards=(1, 2),
        now=shared_now,
        wait=SHARED_CLOCK.wait,
    )


def test_paced_passes_on_what_the_source_says_about_itself(tmp_path: Path) -> None:
    assert Paced(Range(60), rate=1).total_records() == 60
    assert Paced(FromGenerator(numbers), rate=1).max_shards == 1
    with pytest.raises(UserError, match=r"none\.txt"):
        Paced(TextLines(tmp_path / "none.txt"), rate=1).check()


def test_paced_gives_what_is_due_and_never_more() -> None:
    clock = Clock()
    reader = Paced(Range(100), rate=10, clock=clock).open(0, 1)
    given = 0
    start_s = clock()
    while not isinstance(batch := reader.read(), EndOfStream):
        if batch is None:
            clock.wait(reader.ready_in_s())
            continue
        given += len(batch)
        assert given == pytest.approx((clock() - start_s) * 10, abs=1e-4)
    assert given == 100


def test_paced_splits_the_rate_over_the_shards() -> None:
    clock = Clock()
    source = Paced(Range(1000, batch=50), rate=100, clock=clock)
    readers = [source.open(shard, 4) for shard in range(4)]
    assert [reader.read() for reader in readers] == [None] * 4
    clock.wait(0.5)
    assert [length(reader.read()) for reader in readers] == [12] * 4
    clock.wait(0.5)
    assert [length(reader.read()) for reader in readers] == [13] * 4


def test_paced_catches_up_after_a_restart_with_what_became_due() -> None:
    clock = Clock()
    source = Paced(Range(1000, batch=400), rate=10, clock=clock, batch=25)
    reader = source.open(0, 1)
    assert reader.read() is None
    clock.wait(1.0)
    assert reader.read() == list(range(10))
    saved = pickle.dumps(reader.offset)
    clock.wait(4.0)
    reader = source.open(0, 1)
    reader.seek(pickle.loads(saved))
    assert reader.read() == list(range(10, 35)), "a full frame of what became due"
    clock.wait(0.002)
    assert reader.read() == list(range(35, 50))
    clock.wait(0.002)
    assert reader.read() is None
    assert reader.ready_in_s() == pytest.approx(0.096, abs=1e-3)


def test_paced_gives_frames_not_single_records_at_a_high_rate() -> None:
    clock = Clock()
    reader = Paced(Range(10**6), rate=1e6, clock=clock).open(0, 1)
    assert reader.read() is None
    clock.wait(0.0101)
    assert isinstance(reader.read(), list)
    clock.wait(0.00001)
    assert reader.read() is None
    assert reader.ready_in_s() == pytest.approx(0.00039, rel=0.05)


def test_a_frame_that_was_late_does_not_make_the_next_one_late() -> None:
    clock = Clock()
    reader = Paced(Range(10**6), rate=1000, clock=clock).open(0, 1)
    clock.wait(0.0104)
    assert reader.read() == list(range(10))
    assert reader.read() is None
    assert reader.ready_in_s() == pytest.approx(0.0006, rel=0.05)


def test_paced_refuses_a_rate_that_is_not_positive() -> None:
    for rate in (0, -1, float("inf"), float("nan")):
        with pytest.raises(UserError, match="rate"):
            Paced(Range(1), rate=rate)


def test_paced_says_when_each_record_was_due_also_after_a_restart() -> None:
    clock = Clock()
    start_us = round(clock() * 1e6)
    source = Paced(Range(100, column="n", batch=7), rate=20, clock=clock, due="due_us")
    due: dict[int, int] = {}
    for shard in range(2):
        offset: Any = None
        given = 0
        clock.now_s = start_us / 1e6
        while True:
            reader = source.open(shard, 2)
            if offset is not None:
                reader.seek(offset)
            batch = reader.read()
            offset = reader.offset
            if isinstance(batch, EndOfStream):
                break
            if batch is None:
                clock.wait(0.31)
                continue
            assert isinstance(batch, pl.DataFrame)
            for number, due_us in batch.select("n", "due_us").iter_rows():
                given += 1
                assert due_us - start_us == pytest.approx(given * 100_000, abs=2)
                assert due_us <= clock() * 1e6 + 2
                due[number] = due_us
    assert sorted(due) == list(range(100))


def test_paced_needs_columns_for_due_times() -> None:
    clock = Clock()
    reader = Paced(Range(10), rate=10, clock=clock, due="due_us").open(0, 1)
    clock.wait(1.0)
    with pytest.raises(UserError, match="columns"):
        reader.read()


class Squares(Sequence[int]):
    """Remembers which of its items were asked for."""

    def __init__(self) -> None:
        self.asked: list[slice] = []

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, place: Any) -> Any:
        self.asked.append(place)
        return [n * n for n in range(place.start, place.stop)]


def test_a_sequence_that_is_no_list_is_read_slice_by_slice() -> None:
    squares = Squares()
    source: FromList[int] = FromList(squares, batch=3)
    assert not squares.asked
    assert source.total_records() == 1_000_000
    assert source.open(1, 2).read() == [9, 16, 25]
    assert squares.asked == [slice(3, 6)]


def test_a_list_may_change_after_it_was_given() -> None:
    records = [1, 2]
    source = FromList(records)
    records.append(3)
    assert source.open(0, 1).read() == [1, 2]
