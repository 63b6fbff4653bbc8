"""Sources among another number of shards: what the suite cannot see, each for one connector.

That all records come once, over many changes and from many places, is in the suite that every
connector passes (`everstream/testing/sources.py`).
"""

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.connectors.files.ranges import Split
from everstream.connectors.generate.paced import PacedOffset
from everstream.connectors.generate.sources import BlockOffset
from everstream.connectors.kafka.offsets import KafkaOffset, redistribute_places
from everstream.connectors.spark.landed import StreamOffset
from everstream.errors import UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.state.saved import revive
from everstream.testing.sources import check_source
from tests.connectors.lake_places import LakePlace


def read_available(reader: Reader) -> list[Any]:
    """What can be read until there is nothing more just now."""
    records: list[Any] = []
    while (batch := reader.read()) is not None and not isinstance(batch, EndOfStream):
        records += records_of(batch)
    return records


def opened(source: Source[Any], offsets: Sequence[Any]) -> list[Reader]:
    readers = [source.open(shard, len(offsets)) for shard in range(len(offsets))]
    for reader, offset in zip(readers, offsets, strict=True):
        reader.seek(pickle.loads(pickle.dumps(offset)))
    return readers


def redistribute(source: Source[Any], readers: Sequence[Reader], shards: int) -> list[Reader]:
    return opened(source, source.redistribute([reader.offset for reader in readers], shards))


def test_each_shard_gets_its_blocks_in_order_however_far_apart_the_earlier_ones_were() -> None:
    source = es.Range(1_000, batch=10)
    readers = [source.open(shard, 3) for shard in range(3)]
    given = [n for _ in range(20) for n in readers[1].read()]  # type: ignore[union-attr]
    for shards in (4, 2, 5):
        readers = redistribute(source, readers, shards)
        given += [n for reader in readers for n in reader.read()]  # type: ignore[union-attr]
    for reader in readers:
        rest = read_available(reader)
        assert rest == sorted(rest)
        given += rest
    assert sorted(given) == list(range(1_000))


def test_offsets_of_blocks_stay_small_however_often_the_number_changes() -> None:
    source = es.FromFunction(lambda start, stop: list(range(start, stop)), batch=10)
    offsets: Sequence[Any] = [
        BlockOffset(10**9, 10, 30),
        BlockOffset(10, 10, 30),
        BlockOffset(20, 10, 30),
    ]
    numbers = (4, 7, 3, 50, 2) * 4
    for shards in numbers:
        offsets = source.redistribute(offsets, shards)
    runs = [range(run[0], run[2], run[1]) for offset in offsets for run in offset.left]
    assert len(runs) < 2 * sum(numbers)
    behind = len(range(10, 10**9, 30)) + len(range(20, 10**9, 30))
    since = min(offset.start for offset in offsets) - 10**9
    assert sum(map(len, runs)) == behind + since // 10, "nothing is lost, nothing doubled"


def test_blocks_left_behind_are_given_again_as_the_very_same_batches() -> None:
    source = es.Range(200, batch=10)
    readers = [source.open(shard, 2) for shard in range(2)]
    for _ in range(6):
        readers[0].read()
    [reader, *_] = redistribute(source, readers, 3)
    for _ in range(4):
        offset = reader.offset
        batch = reader.read()
        again = source.open(0, 3)
        again.seek(offset)
        assert again.read() == batch


@pytest.mark.parametrize("follow", [False, True])
def test_a_file_that_is_half_read_goes_on_in_one_shard(tmp_path: Path, follow: bool) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(20)))
    source = es.TextLines(tmp_path, batch_bytes=4, follow=follow)
    source.check()
    readers = [source.open(shard, 2) for shard in range(2)]
    found = [line for reader in readers for _ in range(3) for line in reader.read()]  # type: ignore[union-attr]
    readers = redistribute(source, readers, 5)
    found += [line for reader in readers for line in read_available(reader)]
    assert sorted(found) == sorted(f"{name}{n}" for name in "abc" for n in range(20))


def test_ranges_are_cut_so_that_new_shards_have_something_to_do(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.write_text("".join(f"line {n}\n" for n in range(20_000)))
    source = es.TextLines(file, batch_bytes=1_000)
    reader = source.open(0, 1)
    begun = len(reader.read())  # type: ignore[arg-type]
    counts = [len(read_available(reader)) for reader in redistribute(source, [reader], 8)]
    assert begun + sum(counts) == 20_000
    assert min(counts) > 500


def test_files_that_come_later_are_read_once_by_whoever_they_now_belong_to(tmp_path: Path) -> None:
    def write(names: str) -> None:
        for name in names:
            (tmp_path / f"{name}.txt").write_text(f"{name}1\n{name}2\n")

    write("ab")
    source = es.TextLines(tmp_path, follow=True, batch_bytes=3)
    source.check()
    readers = [source.open(shard, 3) for shard in range(3)]
    found = [line for reader in readers for line in read_available(reader)]
    write("cdef")
    found += [line for reader in readers[:2] for line in read_available(reader)]
    for shards, names in ((2, "ghij"), (4, "klmn"), (1, "opqr")):
        readers = redistribute(source, readers, shards)
        found += [line for reader in readers[1:] for line in read_available(reader)]
        write(names)
        found += [line for reader in readers for line in read_available(reader)]
    assert sorted(found) == sorted(f"{name}{n}" for name in "abcdefghijklmnopqr" for n in (1, 2))


@pytest.mark.parametrize("quoted", [True, False])
def test_a_csv_file_with_line_ends_in_quotes_is_never_cut(tmp_path: Path, quoted: bool) -> None:
    rows = [{"n": n, "text": f"a\nb {n}" if quoted else f"b {n}"} for n in range(300)]
    pl.DataFrame(rows).write_csv(tmp_path / "a.csv")
    make = partial(es.Csv, tmp_path / "a.csv", quoted_newlines=quoted, batch_bytes=200)
    check_source(make, expected=rows, shards=(1, 2), redistributes=True)


def landed(folder: Path, batch: int, parts: int, rows: range) -> None:
    there = folder / "batches" / f"{batch:08d}"
    there.mkdir(parents=True)
    for part in range(parts):
        mine = pl.DataFrame({"n": list(rows)[part::parts]}, schema={"n": pl.Int64})
        mine.write_parquet(there / f"part-{part:05d}-x.parquet", row_group_size=2)
    (there / "_SUCCESS").touch()


class Landed(es.SparkStream):
    """A streaming query whose batches have landed; the query itself is Spark's business."""

    def __init__(self, folder: Path) -> None:
        self._frame, self._landing = None, None
        self._folder, self._driver = str(folder), ""


def test_landed_batches_of_a_spark_stream_keep_the_promises_of_a_source(tmp_path: Path) -> None:
    for batch in range(5):
        landed(tmp_path, batch, 3, range(20 * batch, 20 * batch + 20))
    (tmp_path / "ended").write_text("5")
    expected = [{"n": n} for n in range(100)]
    check_source(lambda: Landed(tmp_path), expected=expected, redistributes=True)


def test_landed_batches_are_removed_when_all_shards_ever_have_read_them(tmp_path: Path) -> None:
    for batch in range(4):
        landed(tmp_path, batch, 3, range(20 * batch, 20 * batch + 20))
    (tmp_path / "ended").write_text("4")
    source = Landed(tmp_path)
    readers = [source.open(shard, 2) for shard in range(2)]
    for _ in range(9):
        readers[0].read()
    readers[0].forget(readers[0].offset)
    readers = redistribute(source, readers, 3)
    for reader in readers:
        reader.forget(reader.offset)
    found = [record["n"] for reader in readers for record in read_available(reader)]
    assert len(set(found)) == len(found) > 50
    for reader in readers:
        reader.forget(reader.offset)
    assert not list(tmp_path.glob("batches/*/*.parquet"))


def test_a_followed_lake_table_goes_on_from_the_version_that_the_first_shard_has_reached(
    lake: LakePlace,
) -> None:
    def rows(start: int) -> pl.DataFrame:
        return pl.DataFrame({"n": list(range(start, start + 4))})

    lake.append(rows(0))
    source = lake.open(follow=True, batch_rows=3)
    source.check()
    readers = [source.open(shard, 3) for shard in range(3)]
    found = []
    for turn, shards in enumerate((2, 4, 1)):
        for version in range(4):
            lake.append(rows(100 * (turn + 1) + 10 * version))
            # One is always behind, and one in the middle of a file.
            batch = readers[0].read()
            found += records_of(batch) if batch is not None else []  # type: ignore[arg-type]
            found += [record for reader in readers[2:] for record in read_available(reader)]
        readers = redistribute(source, readers, shards)
    found += [record for reader in readers for record in read_available(reader)]
    starts = [0, *(100 * turn + 10 * version for turn in (1, 2, 3) for version in range(4))]
    assert sorted(record["n"] for record in found) == sorted(
        n for start in starts for n in range(start, start + 4)
    )


def test_a_partition_keeps_its_place_and_its_time_with_another_shard() -> None:
    places = {("t", n): (10 * n, None, 1_000 * n) for n in range(7)}
    whole = KafkaOffset({"t": "id-1"}, places)
    earlier = [whole.of_shard(shard, 3) for shard in range(3)]
    spread = redistribute_places(earlier, 5)
    assert {p: at for offset in spread for p, at in offset.places.items()} == places
    assert sum(len(offset.places) for offset in spread) == 7
    assert spread == [whole.of_shard(shard, 5) for shard in range(5)]


def test_a_topic_that_was_made_anew_while_shards_read_it_is_refused() -> None:
    earlier = [
        KafkaOffset({"t": "id-1"}, {("t", 0): (5, None, 0)}),
        KafkaOffset({"t": "id-2"}, {("t", 1): (0, None, 0)}),
    ]
    with pytest.raises(UserError, match="'t' was deleted and recreated"):
        redistribute_places(earlier, 1)


def clock(now: list[float]) -> Callable[[], float]:
    return lambda: now[0]


def paced_for(now: list[float], readers: Sequence[Reader], seconds: int) -> int:
    """How many records come in so many seconds, if they are asked for 50 times in each."""
    count = 0
    for _ in range(50 * seconds):
        now[0] += 0.02
        count += sum(len(read_available(reader)) for reader in readers)
    return count


@pytest.mark.parametrize("catch_up", [True, False])
def test_a_paced_source_gives_at_its_rate_whatever_the_number_of_shards(catch_up: bool) -> None:
    now = [100.0]
    source = es.Paced(es.Range(10**6, batch=50), 200, clock=clock(now), catch_up=catch_up)
    readers: Sequence[Reader] = [source.open(shard, 2) for shard in range(2)]
    assert abs(paced_for(now, readers, 5) - 1_000) <= 4
    for shards in (3, 1, 5):
        readers = redistribute(source, readers, shards)
        assert abs(paced_for(now, readers, 5) - 1_000) <= 2 * shards + 4


def test_what_a_paced_source_owed_is_made_up_for_once() -> None:
    now = [0.0]
    source = es.Paced(es.Range(10**6, batch=50), 100, clock=clock(now))
    readers: Sequence[Reader] = [source.open(shard, 2) for shard in range(2)]
    assert paced_for(now, readers, 2) == 200
    now[0] += 10  # it was down
    readers = redistribute(source, readers, 3)
    assert abs(paced_for(now, readers, 1) - 1_100) <= 3


def test_what_a_shard_that_has_ended_did_not_give_nobody_owes() -> None:
    now = [0.0]
    source = es.Paced(es.Range(1_000, batch=500), 100, clock=clock(now))
    readers: Sequence[Reader] = [source.open(shard, 4) for shard in range(4)]
    # Two of the four shards have no block, so the others give half of the rate.
    assert paced_for(now, readers, 6) == 300
    readers = redistribute(source, readers, 2)
    assert abs(paced_for(now, readers, 3) - 300) <= 4


def test_what_was_forfeited_stays_known_over_another_number_of_shards() -> None:
    now = [0.0]
    source = es.Paced(es.Range(10**6), 10, clock=clock(now), catch_up=False)
    readers: Sequence[Reader] = [source.open(shard, 2) for shard in range(2)]
    paced_for(now, readers, 1)
    now[0] += 10
    paced_for(now, readers, 1)
    forfeited = sum(reader.load().forfeited for reader in readers)
    assert forfeited > 90
    again = redistribute(source, readers, 5)
    assert sum(reader.load().forfeited for reader in again) == pytest.approx(forfeited)


def test_a_load_that_was_changed_while_running_stays_changed() -> None:
    now = [0.0]
    source = es.Paced(es.Range(10**6, batch=50), 10, clock=clock(now))
    readers: Sequence[Reader] = [source.open(shard, 2) for shard in range(2)]
    for reader in readers:
        reader.tune({"pattern": "500"}, 1)
    paced_for(now, readers, 2)
    readers = redistribute(source, readers, 3)
    assert abs(paced_for(now, readers, 2) - 1_000) <= 6


def test_a_batch_that_was_given_in_part_is_finished_with_what_was_rejected_in_it(
    tmp_path: Path,
) -> None:
    lines = [json.dumps({"n": n}) if n % 10 else "broken" for n in range(1, 200)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    inner = es.JsonLines(tmp_path / "a.jsonl", on_error="skip", batch_bytes=300)
    now = [0.0]
    source = es.Paced(inner, 100, clock=clock(now), batch=7)
    source.check()
    readers: Sequence[Reader] = [source.open(shard, 2) for shard in range(2)]
    found, rejected = list[int](), 0
    for shards in (3, 1, 4, 1):
        for _ in range(3):
            now[0] += 0.3
            for reader in readers:
                batch = reader.read()
                if batch is not None and not isinstance(batch, EndOfStream):
                    found += [record["n"] for record in records_of(batch)]
                rejected += len(reader.take_rejected())
        readers = redistribute(source, readers, shards)
    now[0] += 100
    for reader in readers:
        while (batch := reader.read()) is not None and not isinstance(batch, EndOfStream):
            found += [record["n"] for record in records_of(batch)]
            rejected += len(reader.take_rejected())
            now[0] += 0.01
        rejected += len(reader.take_rejected())
    assert sorted(found) == [n for n in range(1, 200) if n % 10]
    assert rejected == 19


def test_a_paced_checkpoint_of_an_earlier_version_goes_on_once_before_it_is_respread() -> None:
    source = es.Paced(es.Range(100, batch=10), 10)
    inner = BlockOffset(0, 10, 10)
    with pytest.raises(UserError, match="until a checkpoint is complete"):
        source.redistribute([PacedOffset(0.0, 3, inner, 3)], 2)
    assert len(source.redistribute([PacedOffset(0.0, 10, inner, 0)], 2)) == 2


def test_a_generator_that_shares_out_its_own_records_says_why_it_cannot() -> None:
    def numbers(offset: int, shard: int, shards: int) -> Any:
        yield from range(offset * shards + shard, 10, shards)

    source = es.FromGenerator(numbers)
    with pytest.raises(UserError, match=r"'numbers' divides .*es\.FromFunction"):
        source.redistribute([0, 0], 3)
    assert source.redistribute([3, 4], 2) == [3, 4]


def test_a_journal_says_why_it_cannot(tmp_path: Path) -> None:
    source = es.Journal(es.Range(10), tmp_path)
    with pytest.raises(UserError, match=r"each of them has logged .*Keep the number of shards"):
        source.redistribute([1, 2], 1)


@pytest.mark.parametrize(
    ("word", "kind", "added"),
    [
        ("block-offset", BlockOffset, {"left"}),
        ("file-range", Split, {"resumes_at"}),
        ("paced-offset", PacedOffset, {"held", "after", "begun", "ended", "forgets"}),
    ],
)
def test_offsets_that_were_saved_without_what_respreading_needs_can_be_read(
    word: str, kind: type, added: set[str]
) -> None:
    saved = {field.name: 1 for field in fields(kind) if field.name not in added}
    offset = revive(word, saved)
    assert {name: getattr(offset, name) for name in added} == {
        name: getattr(kind, name) for name in added
    }
    assert offset == pickle.loads(pickle.dumps(offset))


def test_a_spark_stream_goes_on_from_an_offset_of_an_earlier_version(tmp_path: Path) -> None:
    for batch in range(2):
        landed(tmp_path, batch, 2, range(8 * batch, 8 * batch + 8))
    (tmp_path / "ended").write_text("2")
    source = Landed(tmp_path)
    reader = source.open(0, 2)
    reader.seek((0, 0, 1))
    assert reader.offset == StreamOffset(0, 0, 1)
    readers = opened(source, source.redistribute([(0, 0, 1), (1, 0, 0)], 3))
    found = sorted(record["n"] for reader in readers for record in read_available(reader))
    assert found == [4, 6, *range(8, 16)]
