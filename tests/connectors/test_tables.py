"""SQLite and PostgreSQL as sinks: exactly-once and keyed upsert, zombies and lost connections."""

import pickle
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors import Postgres, Sqlite
from everstream.connectors.sql.database import TOKEN, WRITERS
from everstream.connectors.sql.postgres import sql_csv
from everstream.connectors.sql.tables import TableTransaction
from everstream.core.permits import permit
from everstream.errors import ConnectorError, RefusedRecords, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Delivery, SinkShard, Writer
from everstream.testing.sinks import check_sink, default_batches
from tests.connectors.postgres_server import PostgresServer
from tests.connectors.table_places import Place, postgres_rows, sqlite_rows, table_for
from tests.state.holders import running

FRAMES: dict[int, Batch] = {k: pl.DataFrame(batch) for k, batch in default_batches().items()}


@pytest.mark.usefixtures("quick_disk")
def test_sqlite_is_exactly_once_through_every_crash() -> None:
    def make(place: str) -> Sqlite:
        Path(place).mkdir(exist_ok=True)
        return Sqlite(f"{place}/out.db", "rows")

    check_sink(make, lambda _, who: sqlite_rows(Path(who.store).parent / "out.db", "rows", who))


@pytest.mark.usefixtures("quick_disk")
def test_postgres_is_exactly_once_through_some_crashes(postgres: PostgresServer) -> None:
    conform(postgres, every=5)


@pytest.mark.long
@pytest.mark.usefixtures("quick_disk")
def test_postgres_is_exactly_once_through_every_crash(postgres: PostgresServer) -> None:
    conform(postgres, every=1)


def conform(postgres: PostgresServer, every: int) -> None:
    check_sink(
        lambda place: Postgres(postgres.dsn, table_for(place)),
        lambda _, who: postgres_rows(postgres.dsn, table_for(str(Path(who.store).parent)), who),
        batches=FRAMES,
        every=every,
    )


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("batches", [default_batches(), FRAMES])
def test_sqlite_upsert_is_idempotent(batches: dict[int, Batch]) -> None:
    def make(place: str) -> Sqlite:
        Path(place).mkdir(exist_ok=True)
        return Sqlite(f"{place}/out.db", "rows", upsert_on=["n"])

    check_sink(
        make,
        lambda _, who: sqlite_rows(Path(who.store).parent / "out.db", "rows"),
        batches=batches,
    )


@pytest.mark.usefixtures("quick_disk")
def test_postgres_upsert_is_idempotent(postgres: PostgresServer) -> None:
    check_sink(
        lambda place: Postgres(postgres.dsn, table_for(place), upsert_on=["n"]),
        lambda _, who: postgres_rows(postgres.dsn, table_for(str(Path(who.store).parent))),
    )


@pytest.mark.usefixtures("quick_disk")
def test_an_upsert_of_a_shard_whose_number_is_gone_is_refused(tmp_path: Path) -> None:
    sink = Sqlite(tmp_path / "out.db", "rows", upsert_on=["n"])

    def opened(shard: int, shards: int, generation: int) -> Writer:
        writer = sink.open(SinkShard("p", "out", shard, shards, generation, str(tmp_path)))
        writer.recover([], permit(0))
        return writer

    zombies = [opened(shard, 3, 1) for shard in range(3)]
    heirs = [opened(0, 3, 2), opened(1, 3, 2), opened(2, 3, 2), opened(0, 1, 2)]
    heirs[-1].write([{"n": 1, "text": "right"}])
    for zombie in zombies:
        with pytest.raises(ConnectorError, match="must stop"):
            zombie.write([{"n": 1, "text": "old"}])
    assert [row["text"] for row in sqlite_rows(tmp_path / "out.db", "rows")] == ["right"]


def test_a_zombie_that_is_in_the_middle_of_a_commit_is_refused(place: Place) -> None:
    writer = place.sink().open(place.sink_shard(1))
    writer.recover([], permit(0))
    writer.write([{"n": 1}])
    transaction = writer.prepare(1)
    assert isinstance(transaction, TableTransaction)
    transaction.persist()
    rows = transaction._rows()
    assert rows is not None
    # It has read its rows; now its successor goes back to checkpoint 0 and takes over.
    place.sink().open(place.sink_shard(2)).recover([], permit(0))
    transaction._rows = lambda: rows  # type: ignore[method-assign]
    with pytest.raises(ConnectorError, match=r"generation 2 .* has taken over"):
        transaction.commit(permit(1))
    assert place.rows() == []


def test_a_zombie_cannot_put_old_values_back(place: Place) -> None:
    sink = place.sink(upsert_on=["word"])
    assert sink.delivery is Delivery.IDEMPOTENT
    zombie = sink.open(place.sink_shard(1))
    zombie.recover([], permit(0))
    zombie.write([{"word": "a", "count": 1}])
    heir = sink.open(place.sink_shard(2))
    heir.recover([], permit(0))
    heir.write([{"word": "a", "count": 2}, {"word": "a", "count": 3}, {"word": "b", "count": 1}])
    with pytest.raises(ConnectorError, match="has taken over"):
        zombie.write([{"word": "a", "count": 1}])
    assert sorted(row["count"] for row in place.rows()) == [1, 3]
    for writer in (zombie, heir):
        writer.close()


def test_shards_commit_side_by_side(place: Place) -> None:
    errors: list[Exception] = []

    def work(shard: int) -> None:
        try:
            writer = place.sink().open(place.sink_shard(1, shard))
            writer.recover([], permit(0))
            for checkpoint in (1, 2, 3):
                writer.write([{"shard": shard, "checkpoint": checkpoint}])
                transaction = writer.prepare(checkpoint)
                assert transaction is not None
                transaction.commit(permit(checkpoint))
                assert not writer.recover(
                    [pickle.loads(pickle.dumps(transaction))], permit(checkpoint)
                )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(shard,)) for shard in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = sorted((row["shard"], row["checkpoint"]) for row in place.rows())
    assert found == [(shard, checkpoint) for shard in range(3) for checkpoint in (1, 2, 3)]


def test_types_survive(place: Place) -> None:
    row = {
        "i": 1,
        "f": 1.5,
        "b": True,
        "t": "é\n\\N\t",
        "raw": b"\x00\xff",
        "day": date(2020, 1, 2),
        "at": datetime(2020, 1, 2, 3, 4, 5, 6),
        "zoned": datetime(2020, 1, 2, tzinfo=UTC),
        "clock": time(1, 2, 3),
        "money": Decimal("1.50"),
        "list": [1, 2],
        "inner": {"a": [1], "b": None},
        "nothing": None,
        'odd "name %s': 7,
    }
    empty = dict.fromkeys(row)
    place.prepared([row, empty]).commit(permit(1))
    if place.kind == "postgres":
        expected: dict[str, Any] = row
    else:
        expected = row | {
            "b": 1,
            "day": "2020-01-02",
            "at": "2020-01-02T03:04:05.000006",
            "zoned": "2020-01-02T00:00:00+00:00",
            "clock": "01:02:03",
            "money": "1.50",
            "list": "[1, 2]",
            "inner": '{"a": [1], "b": null}',
        }
    if place.kind == "postgres":
        # A column gets its type with its first value: until then the table has none.
        expected, empty = ({n: v for n, v in r.items() if n != "nothing"} for r in (row, empty))
    assert place.rows() == [expected, empty]


def test_upsert_replaces_rows_of_a_compound_key_in_a_table_that_is_there(place: Place) -> None:
    place.execute(
        f'CREATE TABLE "{place.table}" (a integer, b text, v text, "p%" text, UNIQUE (a, b))'
    )
    writer = place.sink(upsert_on=["a", "b"]).open(place.sink_shard())
    writer.recover([], permit(0))
    writer.write(pl.DataFrame({"a": [1, 1], "b": ["x", "y"], "v": ["old", "old"], "p%": ["", ""]}))
    writer.write(pl.DataFrame({"a": [1], "b": ["x"], "v": ["new"], "p%": ["1"]}))
    writer.close()
    assert sorted((row["b"], row["v"]) for row in place.rows()) == [("x", "new"), ("y", "old")]
    only_keys = place.sink(upsert_on=["a", "b"]).open(place.sink_shard(2))
    only_keys.write([{"a": 1, "b": "x"}, {"a": 2, "b": "z"}])
    only_keys.close()
    assert len(place.rows()) == 3


def test_a_table_without_our_column_is_refused_with_the_fix(place: Place) -> None:
    place.execute(f'CREATE TABLE "{place.table}" (n integer)')
    with pytest.raises(UserError, match=f"ALTER TABLE .* ADD COLUMN {TOKEN}"):
        place.sink().check()
    place.execute(f'ALTER TABLE "{place.table}" ADD COLUMN {TOKEN} BIGINT')
    place.sink().check()
    place.prepared([{"n": 1}]).commit(permit(1))
    with pytest.raises(UserError, match="with more where the output has n"):
        place.prepared([{"n": 1, "more": 2}], checkpoint=2).commit(permit(2))
    with pytest.raises(UserError, match="no column id"):
        place.sink(upsert_on=["id"]).check()
    assert place.rows() == [{"n": 1}]


def test_rows_that_break_a_rule_of_the_table_are_refused_whole(place: Place) -> None:
    place.execute(f'CREATE TABLE "{place.table}" (n integer UNIQUE, {TOKEN} bigint)')
    transaction = place.prepared([{"n": 1}, {"n": 1}])
    with pytest.raises(UserError, match="upsert_on"):
        transaction.commit(permit(1))
    assert place.rows() == []
    place.execute(f'DELETE FROM "{place.table}"')
    with pytest.raises(UserError, match="unique index"):
        other = replace(place.sink_shard(2), operator="other")
        place.sink(upsert_on=["_everstream"]).open(other).write([{TOKEN: 1, "n": 5}])


def test_rows_that_were_removed_before_their_commit_are_missed(place: Place) -> None:
    transaction = place.prepared([{"n": 1}])
    assert isinstance(transaction, TableTransaction)
    Path(transaction.part.path).unlink()
    with pytest.raises(ConnectorError, match="neither in it nor in"):
        transaction.commit(permit(1))


def test_a_bit_that_flips_in_prepared_rows_keeps_them_out_of_the_table(place: Place) -> None:
    transaction = place.prepared([{"n": 1, "text": "some text"}])
    assert isinstance(transaction, TableTransaction)
    waiting = Path(transaction.part.path)
    data = waiting.read_bytes()
    waiting.write_bytes(data.replace(b"some text", b"some tent"))
    with pytest.raises(ConnectorError, match=rf"{waiting.name}' is damaged"):
        transaction.commit(permit(1))
    assert place.rows() == []
    waiting.write_bytes(data)
    transaction.commit(permit(1))
    assert len(place.rows()) == 1


def test_a_restored_transaction_uses_the_database_of_the_present_sink(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path, "")
    saved = pickle.dumps(place.prepared([{"n": 1}]))
    moved = Sqlite(tmp_path / "moved.db", place.table).open(place.sink_shard(2))
    moved.recover([pickle.loads(saved)], permit(1))
    connection = sqlite3.connect(tmp_path / "moved.db")
    assert connection.execute(f'SELECT n FROM "{place.table}"').fetchall() == [(1,)]
    connection.close()


@pytest.mark.parametrize("keys", ["id", []])
def test_wrong_keys_are_refused(place: Place, keys: Any) -> None:
    with pytest.raises(UserError, match="upsert_on"):
        place.sink(upsert_on=keys)
    with pytest.raises(UserError, match="have no id"):
        place.sink(upsert_on=["id"]).open(place.sink_shard()).write([{"n": 1}])


def test_a_full_sqlite_file_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path, "")
    place.prepared([{"t": "x"}]).commit(permit(1))
    transaction = place.prepared([{"t": "y" * 200_000}], checkpoint=2)
    assert isinstance(transaction, TableTransaction)
    assert transaction.target is not None
    connect = transaction.target.database.connect

    def full() -> Any:
        connection = connect()
        connection.execute("PRAGMA max_page_count = 20")
        return connection

    transaction.target.database.connect = full  # type: ignore[method-assign]
    with pytest.raises(ConnectorError, match=r"out\.db': database or disk is full.* has space"):
        transaction.commit(permit(2))
    transaction.target.database.connect = connect  # type: ignore[method-assign]
    transaction.commit(permit(2))
    assert len(place.rows()) == 2


def test_a_sqlite_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=r"missing/x\.db"):
        Sqlite(tmp_path / "missing" / "x.db", "rows").check()
    (tmp_path / "text.db").write_text("this is not a database, it only pretends to be " * 20)
    with pytest.raises(ConnectorError, match=r"text\.db"):
        Sqlite(tmp_path / "text.db", "rows").check()


def test_a_lost_postgres_connection_is_named_and_a_new_one_goes_on(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = Place("postgres", tmp_path, postgres.dsn)
    upsert = Postgres(postgres.dsn, place.table + "u", upsert_on=["n"]).open(place.sink_shard())
    upsert.write([{"n": 1}])
    transaction = place.prepared([{"n": 1}])
    postgres.stop()
    try:
        with pytest.raises(ConnectorError, match=f"{place.table}.*Check that the server runs"):
            transaction.commit(permit(1))
    finally:
        postgres.start()
    transaction.commit(permit(1))
    transaction.commit(permit(1))
    assert place.rows() == [{"n": 1}]
    upsert.write([{"n": 2}])  # its connection was lost: it opens another
    upsert.close()
    assert len(postgres_rows(postgres.dsn, place.table + "u")) == 2


def test_a_wrong_address_or_connection_string_is_named() -> None:
    with pytest.raises(ConnectorError, match=r"table .words.*Check that the"):
        Postgres("host=127.0.0.1 port=1 dbname=nope", "words").check()
    with pytest.raises(UserError, match="connection string"):
        Postgres("no equals sign", "words").check()


def test_a_missing_psycopg_is_missed_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r"pip install 'everstream\[postgres\]'"):
        Postgres("dbname=x", "words")
    code = "import everstream, sys; assert 'psycopg' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_durations_become_intervals(postgres: PostgresServer, tmp_path: Path) -> None:
    place = Place("postgres", tmp_path, postgres.dsn)
    place.prepared([{"took": timedelta(seconds=1.5)}]).commit(permit(1))
    assert place.rows() == [{"took": timedelta(seconds=1.5)}]


def test_the_database_keeps_one_row_for_each_shard_however_much_it_commits(place: Place) -> None:
    writer = place.sink().open(place.sink_shard())
    writer.recover([], permit(0))
    saved = []
    for checkpoint in (1, 2, 3):
        writer.write([{"n": checkpoint}])
        transaction = writer.prepare(checkpoint)
        assert transaction is not None
        saved.append(pickle.dumps(transaction))
        transaction.commit(permit(checkpoint))
    assert place.select(f"SELECT committed FROM {WRITERS} WHERE target = '{place.table}'") == [(3,)]
    # Back to checkpoint 2, whose own rows are in already and must not come twice.
    again = place.sink().open(place.sink_shard(2))
    again.recover([pickle.loads(saved[1])], permit(2))
    assert sorted(row["n"] for row in place.rows()) == [1, 2]
    assert place.select(f"SELECT committed FROM {WRITERS} WHERE target = '{place.table}'") == [(2,)]


def test_a_table_takes_the_output_of_one_store(place: Place) -> None:
    first, second = f"{place.folder}/first", f"{place.folder}/second"
    sink = place.sink()
    with running(first, "words pid 7 on here"):
        sink.start_fresh("words", "counts", first, replace=False)
        sink.start_fresh("sums", "counts", second, replace=False)
        for replace in (False, True):
            with pytest.raises(
                UserError,
                match=r"table '.*counts.*first'.* 'words pid 7 on here'.*second'.*another table",
            ):
                sink.start_fresh("words", "counts", second, replace)
        with pytest.raises(UserError, match=r"first'.*running.*second'"):
            sink.before_resume("words", "counts", second)
        sink.before_resume("words", "counts", first)
    place.prepared([{"n": 1}]).commit(permit(1))
    with pytest.raises(UserError, match="already holds rows of pipeline 'words'"):
        sink.start_fresh("words", "counts", second, replace=False)
    sink.start_fresh("words", "counts", second, replace=True)
    assert place.rows() == []
    with pytest.raises(UserError, match=r"second'; since then the output of the store .*first"):
        sink.before_resume("words", "counts", first)


def test_tables_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path, "")
    place.execute("CREATE TABLE _everstream_commits (id integer)")
    with pytest.raises(UserError, match=r"_everstream_commits.*which deletes the output"):
        place.sink().start_fresh("words", "counts", f"{tmp_path}/store", replace=False)


def test_every_value_comes_through_a_copy_of_text_as_it_does_row_by_row(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["", None, "NULL", '"', 'a"b,c', "line\nline", "\\N", "a\\.", "\r\n", "é\u2028", " "]
    frame = pl.DataFrame(
        {
            "text": texts,
            "number": [*range(len(texts) - 1), None],
            "share": [1e-300, float("nan"), float("inf"), -1.5, None, *[0.1] * (len(texts) - 5)],
            "sure": [True, False, None] + [True] * (len(texts) - 3),
            "day": [date(2026, 1, 2), None] + [date(1, 1, 1)] * (len(texts) - 2),
            "at": [datetime(2026, 1, 2, 3, 4, 5, 6)] * len(texts),
            "zoned": [datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)] * len(texts),
            "cents": [Decimal("1.50")] * len(texts),
        }
    )
    ways = {
        "as_text": frame,
        "row_by_row": frame,
        "with_an_end": pl.concat([frame, frame[:1].with_columns(text=pl.lit("x\n\\.\ny"))]),
    }
    for way, rows in ways.items():
        with monkeypatch.context() as context:
            if way == "row_by_row":
                context.setattr("everstream.connectors.sql.postgres.sql_csv", lambda frame: None)
            writer = Postgres(postgres.dsn, f"copy_{way}").open(
                Place("x", tmp_path, "").sink_shard()
            )
            writer.recover([], permit(0))
            writer.write(rows)
            transaction = writer.prepare(1)
            assert transaction is not None
            transaction.persist()
            transaction.commit(permit(1))
    found = {way: repr(postgres_rows(postgres.dsn, f"copy_{way}")) for way in ways}
    assert found["as_text"] == found["row_by_row"]
    assert (
        found["with_an_end"].startswith(found["as_text"][:-1])
        and "x\\n\\\\.\\ny" in found["with_an_end"]
    )
    assert sql_csv(ways["as_text"]) is not None
    assert list(sql_csv(pl.DataFrame({"a": [1]})) or ()) == ["1\n"]
    assert sql_csv(ways["with_an_end"]) is None
    assert sql_csv(pl.DataFrame({"a": [[1]]})) is None


NUL = "a\0b"


@pytest.mark.parametrize(
    "bad",
    [
        {"t": NUL},
        {"t": [NUL]},
        {"t": {"inner": NUL}},
        {"t": [{"inner": NUL}]},
        {"t": [{"inner": float("nan")}]},
        {"t": [[1.0, float("inf")]]},
    ],
)
@pytest.mark.parametrize("upsert", [False, True])
def test_what_postgres_cannot_store_is_refused_before_it_enters_a_transaction(
    postgres: PostgresServer, tmp_path: Path, bad: dict[str, Any], upsert: bool
) -> None:
    place = Place("postgres", tmp_path, postgres.dsn)
    good = _harmless(bad["t"])
    options: dict[str, Any] = {"upsert_on": ["n"]} if upsert else {}
    writer = place.sink(**options).open(place.sink_shard())
    writer.recover([], permit(0))
    with pytest.raises(
        RefusedRecords, match=r"'counts', column 't': .* has no PostgreSQL form"
    ) as refused:
        writer.write([{"n": 1, "t": good}, {"n": 2, **bad}, {"n": 3, "t": None}])
    assert list(refused.value.rows) == [1]
    writer.write([{"n": 1, "t": good}, {"n": 3, "t": None}])
    if not upsert:
        transaction = writer.prepare(1)
        assert transaction is not None
        transaction.persist()
        transaction.commit(permit(1))
    writer.close()
    assert sorted((row["n"], row["t"]) for row in place.rows()) == [(1, good), (3, None)]


def _harmless(value: Any) -> Any:
    """The same, with what can be stored in the place of what cannot."""
    match value:
        case str():
            return "ab"
        case float():
            return 1.0
        case list():
            return [_harmless(part) for part in value]
        case dict():
            return {name: _harmless(part) for name, part in value.items()}


def test_an_array_of_numbers_may_hold_nan_in_postgres(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = Place("postgres", tmp_path, postgres.dsn)
    place.prepared([{"list": [1.5, float("inf")], "f": float("nan")}]).commit(permit(1))
    ((row),) = place.rows()
    assert row["list"] == [1.5, float("inf")] and row["f"] != row["f"]


def committed_up_to(place: Place, checkpoints: int) -> list[bytes]:
    """One row with each checkpoint; the transactions as checkpoints save them."""
    writer = place.sink().open(place.sink_shard())
    writer.recover([], permit(0))
    saved = []
    for checkpoint in range(1, checkpoints + 1):
        writer.write([{"n": checkpoint}])
        transaction = writer.prepare(checkpoint)
        assert transaction is not None
        transaction.persist()
        saved.append(pickle.dumps(transaction))
        transaction.commit(permit(checkpoint))
    return saved


def restore_to(place: Place, checkpoint: int) -> None:
    """As a copy of the database that was made after this checkpoint has it."""
    place.execute(f'DELETE FROM "{place.table}" WHERE n > {checkpoint}')
    place.execute(f"UPDATE {WRITERS} SET committed = {checkpoint} WHERE target = '{place.table}'")


def test_a_database_that_was_restored_to_an_earlier_point_is_noticed_at_recovery(
    place: Place,
) -> None:
    saved = committed_up_to(place, 5)
    restore_to(place, 2)
    writer = place.sink().open(place.sink_shard(2))
    with pytest.raises(
        UserError,
        match=r"restored to an earlier point: .*checkpoint 4, .* is 2\. .*`everstream rew",
    ):
        writer.recover([pickle.loads(saved[-1])], permit(5))
    # Back to a checkpoint that the database has is a way out.
    writer = place.sink().open(place.sink_shard(3))
    with pytest.raises(ConnectorError, match="neither in it nor in"):
        writer.recover([pickle.loads(saved[2])], permit(3))
    assert not place.sink().open(place.sink_shard(4)).recover([pickle.loads(saved[1])], permit(2))
    assert [row["n"] for row in place.rows()] == [1, 2]


def test_a_database_that_is_restored_under_a_run_is_noticed_at_the_next_commit(
    place: Place,
) -> None:
    committed_up_to(place, 3)
    writer = place.sink().open(place.sink_shard(2))
    writer.recover([], permit(3))
    restore_to(place, 1)
    writer.write([{"n": 4}])
    transaction = writer.prepare(4)
    assert transaction is not None
    with pytest.raises(UserError, match=r"restored to an earlier point: .*checkpoint 3, .* is 1\."):
        transaction.commit(permit(4))
    assert [row["n"] for row in place.rows()] == [1]


def test_checkpoints_without_rows_and_a_way_back_are_no_restored_database(place: Place) -> None:
    committed_up_to(place, 3)
    writer = place.sink().open(place.sink_shard(2))
    writer.recover([], permit(9))
    writer.write([{"n": 10}])
    transaction = writer.prepare(10)
    assert transaction is not None
    transaction.commit(permit(10))
    back = place.sink().open(place.sink_shard(3))
    back.recover([], permit(2))
    back.write([{"n": 33}])
    transaction = back.prepare(3)
    assert transaction is not None
    transaction.commit(permit(3))
    assert sorted(row["n"] for row in place.rows()) == [1, 2, 33]
