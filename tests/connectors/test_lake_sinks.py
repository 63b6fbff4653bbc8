"""Delta Lake and Iceberg as sinks: exactly-once through crashes, zombies, conflicts, going back."""

import pickle
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from everstream.connectors import Delta, Iceberg
from everstream.connectors.lake import delta, iceberg, sink
from everstream.connectors.lake.table import Conflict, LakeTable, Standing, TableMark
from everstream.core.permits import permit
from everstream.errors import ConnectorError, UserError
from everstream.testing import sinks
from tests.connectors import delta_reading, iceberg_reading
from tests.connectors.lake_places import LakePlace

SECRET = "hunter2-and-more"


# Every crash.


def check_delta() -> None:
    sinks.check_sink(
        lambda place: Delta(f"{place}/lake"),
        lambda _, who: delta_reading.rows_of(f"{Path(who.store).parent}/lake", who),
    )


def check_iceberg() -> None:
    @cache
    def catalog(folder: str) -> Catalog:
        return iceberg_reading.opened(folder)

    sinks.check_sink(
        lambda place: Iceberg(iceberg_reading.NAME, iceberg_reading.catalog_in(f"{place}/lake")),
        lambda _, who: iceberg_reading.rows_of(catalog(f"{Path(who.store).parent}/lake"), who),
    )


@pytest.mark.long
@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("check", [check_delta, check_iceberg])
def test_a_lake_table_is_exactly_once_through_every_crash(check: Any) -> None:
    check()


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize(
    ("check", "some"), [(check_delta, slice(0, None, 8)), (check_iceberg, slice(2, None, 20))]
)
def test_a_lake_table_is_exactly_once_through_some_of_the_crashes(
    check: Any, some: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, rescaled = sinks._scenarios, sinks.rescalings
    monkeypatch.setattr(sinks, "_scenarios", lambda delivery: whole(delivery)[some])
    monkeypatch.setattr(sinks, "rescalings", lambda *about: rescaled(*about)[some])
    check()


# Commits that meet.


def test_a_commit_whose_outcome_nobody_heard_of_is_found_and_not_made_again(
    lake: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = lake.prepared([{"n": 1}])
    kind = type(lake.open()._table)
    commit = kind.commit

    def silent(self: LakeTable, *given: Any) -> None:
        commit(self, *given)
        raise ConnectorError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(kind, "commit", silent)
        with pytest.raises(ConnectorError, match="lost"):
            transaction.commit(permit(1))
    assert lake.rows() == [{"n": 1}]
    heir = lake.open().open(lake.sink_shard(2))
    assert not heir.recover([pickle.loads(pickle.dumps(transaction))], permit(1))
    assert lake.rows() == [{"n": 1}]


def commit_after_somebody_else_did(lake: LakePlace, monkeypatch: pytest.MonkeyPatch) -> int:
    """Two processes have the permit and the same transaction, and look at the table at once."""
    transaction = lake.prepared([{"n": 1}])
    twin = lake.open().open(lake.sink_shard()).adopt([pickle.loads(pickle.dumps(transaction))])[0]
    kind = type(lake.open()._table)
    commit = kind.commit
    waiting = [twin]

    def interrupted(self: LakeTable, *given: Any) -> None:
        while waiting:
            waiting.pop().commit(permit(1))
        commit(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "commit", interrupted)
        transaction.commit(permit(1))
    return len(lake.rows())


def test_of_two_that_commit_the_same_at_once_one_finds_it_done(
    lake: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit_after_somebody_else_did(lake, monkeypatch) == 1


def commit_twice(lake: LakePlace) -> list[int]:
    """Stopped after the commit, and done again when the table has been compacted meanwhile."""
    lake.prepared([{"n": 1}]).commit(permit(1))
    transaction = lake.prepared([{"n": 2}], checkpoint=2)
    assert isinstance(transaction, sink.LakeTransaction)
    note = Path(transaction._notes.path_of(transaction.pending))
    kept = note.read_bytes()
    transaction.commit(permit(2))
    note.write_bytes(kept)
    if lake.kind == "delta":
        lake.delta.optimize.compact()
    transaction.commit(permit(2))
    return sorted(row["n"] for row in lake.rows())


def test_without_the_look_at_the_mark_a_repeated_commit_doubles(
    lake: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit_twice(lake) == [1, 2]
    monkeypatch.setattr(sink, "standing_of", lambda *given: Standing())
    assert commit_twice(LakePlace(lake.kind, lake.folder / "mutant")) == [1, 2, 2]


def added_by_both(lake: LakePlace, monkeypatch: pytest.MonkeyPatch) -> int:
    commit_after_somebody_else_did(lake, monkeypatch)
    return sum("add" in action for entry in delta_reading.log_of(lake.lake) for action in entry)


def test_without_application_transactions_two_delta_commits_at_once_are_both_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert added_by_both(LakePlace("delta", tmp_path / "real"), monkeypatch) == 1
    monkeypatch.setattr(delta, "apps_of", lambda *given: (uuid4().hex, uuid4().hex))
    assert added_by_both(LakePlace("delta", tmp_path / "mutant"), monkeypatch) == 2


def test_if_pyiceberg_tries_again_by_itself_two_commits_at_once_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LakePlace("iceberg", tmp_path / "real")
    assert commit_after_somebody_else_did(real, monkeypatch) == 1
    monkeypatch.setattr(iceberg, "NO_RETRIES", {})
    mutant = LakePlace("iceberg", tmp_path / "mutant")
    assert commit_after_somebody_else_did(mutant, monkeypatch) == 2


def test_a_zombie_that_is_in_the_middle_of_a_commit_is_refused(
    lake: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = lake.open().open(lake.sink_shard(1))
    writer.recover([], permit(0))
    writer.write([{"n": 1}])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    kind = type(lake.open()._table)
    commit = kind.commit

    def interrupted(self: LakeTable, *given: Any) -> None:
        monkeypatch.setattr(kind, "commit", commit)
        # Its successor goes back to checkpoint 0 and takes over.
        lake.open().open(lake.sink_shard(2)).recover([], permit(0))
        commit(self, *given)

    monkeypatch.setattr(kind, "commit", interrupted)
    with pytest.raises(ConnectorError, match=r"generation 2 .* has taken over"):
        transaction.commit(permit(1))
    assert lake.rows() == []


def test_shards_commit_side_by_side(lake: LakePlace) -> None:
    errors: list[Exception] = []

    def work(shard: int) -> None:
        try:
            writer = lake.open().open(lake.sink_shard(1, shard))
            writer.recover([], permit(0))
            for checkpoint in (1, 2, 3):
                writer.write([{"shard": shard, "checkpoint": checkpoint}])
                transaction = writer.prepare(checkpoint)
                assert transaction is not None
                transaction.persist()
                transaction.commit(permit(checkpoint))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(shard,)) for shard in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = sorted((row["shard"], row["checkpoint"]) for row in lake.rows())
    assert found == [(shard, checkpoint) for shard in range(3) for checkpoint in (1, 2, 3)]


def test_conflicts_without_end_are_said(lake: LakePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = lake.prepared([{"n": 1}])

    def always(*given: Any) -> None:
        raise Conflict

    monkeypatch.setattr(type(lake.open()._table), "commit", always)
    monkeypatch.setattr("everstream.connectors.lake.table.LONGEST_WAIT_S", 0.0)
    with pytest.raises(ConnectorError, match="other writers committed first"):
        transaction.commit(permit(1))


# What waits.


def test_what_was_staged_and_never_committed_is_removed(lake: LakePlace) -> None:
    lake.prepared([{"n": 1}]).commit(permit(1))
    committed = lake.parquet_files()
    lake.prepared([{"n": 2}, {"n": 3}], checkpoint=2)
    assert len(lake.parquet_files()) == 2
    lake.open().open(lake.sink_shard(2)).recover([], permit(1))
    assert lake.parquet_files() == committed
    assert lake.rows() == [{"n": 1}]


def test_what_a_twin_has_staged_for_a_checkpoint_that_was_committed_is_removed(
    lake: LakePlace,
) -> None:
    transaction, _twin = lake.prepared([{"n": 1}]), lake.prepared([{"n": 1}])
    transaction.commit(permit(1))
    assert len(lake.parquet_files()) == 2
    lake.open().open(lake.sink_shard(2)).recover([], permit(1))
    assert len(lake.parquet_files()) == 1
    assert lake.rows() == [{"n": 1}]


def test_a_staged_file_that_is_gone_is_missed_before_the_table_names_it(lake: LakePlace) -> None:
    lake.prepared([{"n": 1}]).commit(permit(1))
    before = lake.parquet_files()
    transaction = lake.prepared([{"n": 2}], checkpoint=2)
    (staged,) = lake.parquet_files() - before
    Path(staged).unlink()
    heir = lake.open().open(lake.sink_shard(2))
    with pytest.raises(ConnectorError, match=r"is gone\. Nothing of its checkpoint is committed"):
        heir.recover([pickle.loads(pickle.dumps(transaction))], permit(2))
    assert lake.rows() == [{"n": 1}]


def test_a_vacuum_with_its_usual_patience_leaves_what_waits(tmp_path: Path) -> None:
    lake = LakePlace("delta", tmp_path)
    lake.prepared([{"n": 1}]).commit(permit(1))
    transaction = lake.prepared([{"n": 2}], checkpoint=2)
    lake.delta.vacuum(dry_run=False, full=True)
    transaction.commit(permit(2))
    assert sorted(row["n"] for row in lake.rows()) == [1, 2]
    assert (lake.lake / "_everstream").is_dir(), "the owner's note is no part of the table"


def test_a_lake_transaction_that_waits_holds_no_secret(tmp_path: Path) -> None:
    options = {"AWS_SECRET_ACCESS_KEY": SECRET}
    catalog = {**iceberg_reading.catalog_in(tmp_path / "ice"), "s3.secret-access-key": SECRET}
    tables = [
        Delta(tmp_path / "delta", storage_options=options),
        Iceberg(iceberg_reading.NAME, catalog),
    ]
    for table in tables:
        writer = table.open(LakePlace("delta", tmp_path).sink_shard())
        writer.write([{"n": 1}])
        transaction = writer.prepare(1)
        assert transaction is not None
        transaction.persist()
        assert SECRET.encode() not in pickle.dumps(transaction)
        assert SECRET not in f"{transaction!r} {table!r} {table.describe_output()}"
        said = table._table.problem(OSError(f"cannot log in with {SECRET}"), "read")  # type: ignore[attr-defined]
        assert SECRET not in str(said)
    stored = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert stored and not [path for path in stored if SECRET.encode() in path.read_bytes()]


# Going back.


def committed(lake: LakePlace, *checkpoints: int) -> None:
    for checkpoint in checkpoints:
        lake.prepared([{"n": checkpoint}], checkpoint).commit(permit(checkpoint))


def test_going_back_leaves_what_others_have_written(lake: LakePlace) -> None:
    committed(lake, 1, 2)
    lake.append(pl.DataFrame({"n": [100]}))
    committed(lake, 3)
    lake.open().open(lake.sink_shard(2)).recover([], permit(1))
    assert sorted(row["n"] for row in lake.rows()) == [1, 100]
    lake.open().start_fresh("words", "counts", lake.store, replace=True)
    assert [row["n"] for row in lake.rows()] == [100]


def test_going_back_over_a_compaction_is_refused(tmp_path: Path) -> None:
    lake = LakePlace("delta", tmp_path)
    committed(lake, 1, 2)
    lake.delta.optimize.compact()
    committed(lake, 3)
    with pytest.raises(UserError, match="were rewritten since"):
        lake.open().open(lake.sink_shard(2)).recover([], permit(1))
    assert sorted(row["n"] for row in lake.rows()) == [1, 2, 3]


def test_going_back_further_than_the_history_is_refused(lake: LakePlace) -> None:
    committed(lake, 1, 2, 3)
    if lake.kind == "delta":
        lake.delta.create_checkpoint()
        for version in (0, 1):
            (lake.lake / "_delta_log" / f"{version:020d}.json").unlink()
    else:
        first = min(lake.iceberg.snapshots(), key=lambda snapshot: snapshot.sequence_number)
        lake.iceberg.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    with pytest.raises(UserError, match=r"cannot be removed from .* (cleaned up|expired)"):
        lake.open().open(lake.sink_shard(2)).recover([], permit(0))
    assert lake.read()["n"].sort().to_list() == [1, 2, 3]
    lake.open().open(lake.sink_shard(2)).recover([], permit(2))
    assert lake.read()["n"].sort().to_list() == [1, 2]


# Rows and columns.


def test_partitions_of_all_kinds_are_read_by_others(lake: LakePlace) -> None:
    frame = pl.DataFrame(
        {
            "n": [1, 2, 3, 4],
            "word": ["a b/c%", "é=ü", None, "a b/c%"],
            "day": [date(2020, 1, 2), None, date(1999, 12, 31), date(2020, 1, 2)],
            "number": [1, -2, None, 1],
            "yes": [True, False, None, True],
        }
    )
    keys = ["word", "day", "number", "yes"]
    lake.prepared(frame, partition_by=keys).commit(permit(1))
    assert len(lake.parquet_files()) == 3
    assert lake.read().select(frame.columns).sort("n").equals(frame)
    assert lake.read().filter(pl.col("day") == date(2020, 1, 2)).height == 2
    with pytest.raises(UserError, match="is partitioned by"):
        lake.prepared(frame, checkpoint=2, partition_by=["day"])


def test_types_survive_and_statistics_do_not_lie(lake: LakePlace) -> None:
    frame = pl.DataFrame(
        {
            "i": pl.Series([1, None], dtype=pl.UInt32),
            "f": [1.5, float("nan")],
            "t": ["é" * 40, "b"],
            "raw": [b"\x00\xff", None],
            "day": [date(2020, 1, 2), date(2021, 1, 2)],
            "at": [datetime(2020, 1, 2, 3, 4, 5, 678_901), datetime(1960, 1, 1)],
            "zoned": [datetime(2020, 1, 2, tzinfo=UTC), None],
            "money": [Decimal("1.50"), None],
            "list": [[1, 2], []],
            "inner": [{"a": 1, "b": "x"}, {"a": None, "b": None}],
        }
    )
    lake.prepared(frame).commit(permit(1))
    shown = lake.read()
    assert shown.select(frame.columns).to_dicts()[0] == frame.to_dicts()[0]
    late = datetime(2020, 1, 2, 3, 4, 5, 678_900)
    assert lake.read().filter(pl.col("at") > late).height == 1
    files = sorted(lake.parquet_files())
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet({files!r})").fetchall() == [(2,)]
    with pytest.raises(UserError, match=r"has no .* form"):
        LakePlace(lake.kind, lake.folder / "other").prepared(
            pl.DataFrame({"d": pl.Series([1], dtype=pl.Duration)})
        )


def test_columns_that_the_table_does_not_have_are_refused_unless_asked_for(lake: LakePlace) -> None:
    lake.prepared([{"n": 1}]).commit(permit(1))
    with pytest.raises(
        UserError, match=r"with more where the output has n\. .*evolve='add_columns'"
    ):
        lake.prepared([{"n": 2, "more": "x"}], checkpoint=2)
    with pytest.raises(UserError, match="'two' is not an exact Int64"):
        lake.prepared([{"n": "two"}], checkpoint=2)
    lake.prepared([{"n": 2, "more": "x"}, {"n": 3}], checkpoint=2, evolve=True).commit(permit(2))
    lake.prepared([{"n": 4}], checkpoint=3).commit(permit(3))
    assert lake.read().sort("n").to_dicts() == [
        {"n": 1, "more": None},
        {"n": 2, "more": "x"},
        {"n": 3, "more": None},
        {"n": 4, "more": None},
    ]


def test_rules_of_a_table_that_would_not_be_kept_are_refused(tmp_path: Path) -> None:
    lake = LakePlace("delta", tmp_path)
    lake.append(pl.DataFrame({"n": [1]}))
    lake.delta.alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(
        UserError, match=r"constraints .* cannot enforce: delta\.constraints\.positive"
    ):
        lake.prepared([{"n": -1}])
    ice = LakePlace("iceberg", tmp_path / "ice")
    needed = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("m", pa.int64())])
    ice.catalog.create_namespace("lake")
    ice.catalog.create_table(iceberg_reading.NAME, needed)
    ice.prepared([{"n": 1, "m": 1}]).commit(permit(1))
    with pytest.raises(
        UserError, match="column 'n': None, but the table requires a value in every row"
    ):
        ice.prepared([{"m": 1}], checkpoint=2)
    assert ice.rows() == [{"n": 1, "m": 1}]


def test_a_mark_that_is_not_ours_is_nobodys() -> None:
    for text in (None, 7, "no json", "[]", '{"owner": "x"}'):
        assert TableMark.parse(text) is None
