"""Delta Lake and Iceberg as sources: a version, and what later ones add."""

import pickle
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors.lake.table import HistoryLost
from everstream.core.permits import permit
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader
from everstream.testing.sources import check_source
from tests.connectors.lake_places import LakePlace


def numbers(*values: int) -> pl.DataFrame:
    return pl.DataFrame({"n": list(values), "text": [f"t{n}" for n in values]})


def all_of(reader: Reader) -> list[Any]:
    """What there is up to the end, or up to where nothing more has come."""
    found: list[Any] = []
    while (batch := reader.read()) is not None and not isinstance(batch, EndOfStream):
        found += records_of(batch)
    return found


def values(reader: Reader) -> list[int]:
    return [record["n"] for record in all_of(reader)]


def test_a_lake_table_keeps_the_promises_of_a_source(lake: LakePlace) -> None:
    for start in range(0, 24, 8):
        lake.append(numbers(*range(start, start + 8)))
    expected = numbers(*range(24)).to_dicts()
    check_source(lambda: lake.open(batch_rows=5), expected=expected, redistributes=True)


def test_a_table_is_read_as_it_was_at_a_version_and_at_a_time(lake: LakePlace) -> None:
    lake.append(numbers(1))
    first, then = lake.version(), datetime.now(UTC)
    lake.append(numbers(2))
    assert values(lake.open(version=first).open(0, 1)) == [1]
    assert values(lake.open(version=then).open(0, 1)) == [1]
    assert sorted(values(lake.open().open(0, 1))) == [1, 2]
    settled = lake.open()
    settled.check()
    lake.append(numbers(3))
    assert sorted(values(settled.open(0, 1))) == [1, 2], "all shards see what the check has seen"
    with pytest.raises((UserError, ConnectorError), match=r"has no (version|snapshot) 99"):
        lake.open(version=99).check()


def test_a_followed_table_gives_version_after_version_and_goes_on_at_an_offset(
    lake: LakePlace,
) -> None:
    lake.append(numbers(1, 2))
    readers = [lake.open(follow=True).open(shard, 2) for shard in range(2)]
    begun = [value for reader in readers for value in values(reader)]
    assert sorted(begun) == [1, 2]
    saved = [pickle.dumps(reader.offset) for reader in readers]
    later = range(10, 16)
    for n in later:
        lake.append(numbers(n))
    for _ in range(2):
        found = [values(reader) for reader in readers]
        assert sorted(found[0] + found[1]) == [*later]
        assert all(one == sorted(one) for one in found), "in the order of the versions"
        for reader, offset in zip(readers, saved, strict=True):
            assert reader.read() is None and reader.ready_in_s() > 0
            reader.seek(pickle.loads(offset))


def test_an_offset_holds_nothing_that_is_locked_while_it_is_saved(lake: LakePlace) -> None:
    lake.append(numbers(1, 2))
    offset = lake.open().open(0, 1).offset
    # Polars locks a frame that is written, and a thread that has Python's lock waits for that one.
    assert not [v for v in vars(offset).values() if isinstance(v, pl.DataFrame | pl.Series)]


def test_a_followed_table_that_is_not_there_yet_is_waited_for(lake: LakePlace) -> None:
    source = lake.open(follow=True)
    source.check()
    assert "the run waits for it" in (source.waits_for() or "")
    reader = source.open(0, 1)
    assert reader.read() is None
    lake.append(numbers(1))
    assert values(reader) == [1]
    with pytest.raises(UserError, match="nothing to read"):
        LakePlace(lake.kind, lake.folder / "nowhere").open().open(0, 1)


def test_rows_that_were_deleted_end_a_run_that_follows_unless_they_are_to_be_skipped(
    lake: LakePlace,
) -> None:
    lake.append(numbers(1, 2, 3))
    strict, lax = (lake.open(follow=True, on_change=what).open(0, 1) for what in ("fail", "skip"))
    assert values(strict) == values(lax) == [1, 2, 3]
    lake.delete("n = 2")
    lake.append(numbers(4))
    with pytest.raises(UserError, match=r"deletes or replaces rows .* on_change='skip'"):
        values(strict)
    assert values(lax) == [4]


def test_a_compaction_gives_no_rows_again(tmp_path: Path) -> None:
    lake = LakePlace("delta", tmp_path)
    lake.append(numbers(1))
    lake.append(numbers(2))
    reader = lake.open(follow=True).open(0, 1)
    assert sorted(values(reader)) == [1, 2]
    assert lake.delta.optimize.compact()["numFilesRemoved"] == 2
    lake.append(numbers(3))
    assert values(reader) == [3]


def test_versions_that_are_gone_since_the_checkpoint_are_missed(lake: LakePlace) -> None:
    lake.append(numbers(1))
    reader = lake.open(follow=True).open(0, 1)
    assert values(reader) == [1]
    for n in (2, 3):
        lake.append(numbers(n))
    if lake.kind == "delta":
        lake.delta.create_checkpoint()
        (lake.lake / "_delta_log" / f"{1:020d}.json").unlink()
    else:
        snapshots = sorted(lake.iceberg.snapshots(), key=lambda one: one.sequence_number)
        gone = [snapshot.snapshot_id for snapshot in snapshots[:2]]
        lake.iceberg.maintenance.expire_snapshots().by_ids(gone).commit()
    with pytest.raises(HistoryLost, match="unknown what came after"):
        values(reader)


def test_a_file_that_a_vacuum_took_is_missed(lake: LakePlace) -> None:
    lake.append(numbers(1))
    source = lake.open()
    source.check()
    for path in lake.parquet_files():
        Path(path).unlink()
    with pytest.raises(HistoryLost, match=r"is missing: .* before it was read"):
        values(source.open(0, 1))


def test_partitions_further_columns_and_a_choice_of_columns_are_read(lake: LakePlace) -> None:
    frame = pl.DataFrame(
        {
            "n": [1, 2, 3],
            "word": ["a b/c%", None, "ü"],
            "day": [date(2020, 1, 2), date(2021, 1, 1), None],
            "yes": [True, None, False],
        }
    )
    lake.prepared(frame, partition_by=["word", "day", "yes"]).commit(permit(1))
    more = frame.with_columns(pl.Series("more", [1.5, None, 2.5]), n=pl.col("n") + 10)
    lake.prepared(more, checkpoint=2, evolve=True).commit(permit(2))
    found = pl.DataFrame(all_of(lake.open().open(0, 1))).sort("n")
    expected = pl.concat([frame.with_columns(more=pl.lit(None, pl.Float64)), more]).sort("n")
    assert found.select(expected.columns).equals(expected)
    chosen = all_of(lake.open(columns=["day", "n"]).open(0, 1))
    assert sorted(chosen, key=lambda row: row["n"])[0] == {"day": date(2020, 1, 2), "n": 1}
    assert len(all_of(lake.open(columns=["word"]).open(0, 1))) == 6
    assert lake.open(columns=["n"]).column_names() == ["n"]
    with pytest.raises(UserError, match=r"no column nothing; it has"):
        lake.open(columns=["nothing"]).check()


def test_options_that_cannot_be_meant_are_refused(lake: LakePlace) -> None:
    for wrong in ({"columns": "n"}, {"partition_by": "n"}, {"on_change": "ignore"}):
        with pytest.raises(UserError, match=r"must be a list of names|use 'fail' or 'skip'"):
            lake.open(**wrong)
