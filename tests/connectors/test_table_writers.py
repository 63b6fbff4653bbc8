"""Writers as a database numbers them, and what finding their rows costs as a table grows."""

import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors.sql.database import EARLIER_CHECKPOINTS, TOKEN, WRITERS, Writing
from everstream.connectors.sql.sqlite import _SqliteFile
from everstream.core.permits import permit
from everstream.errors import ConnectorError
from everstream.pipeline.sink import Writer
from tests.connectors.table_places import Place

SERIAL = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgres": "bigserial PRIMARY KEY"}
OLD_WRITERS = (
    "CREATE TABLE IF NOT EXISTS {writers} (id {serial}, target text NOT NULL, pipeline text NOT NULL, "
    "operator text NOT NULL, shard integer NOT NULL, generation bigint NOT NULL, committed bigint "
    "NOT NULL, UNIQUE (target, pipeline, operator, shard))"
)


def opened(place: Place, generation: int = 1, checkpoint: int = 0, **options: Any) -> Writer:
    writer = place.sink(**options).open(place.sink_shard(generation))
    writer.recover([], permit(checkpoint))
    return writer


def commit(writer: Writer, checkpoint: int, rows: list[Any]) -> None:
    writer.write(rows)
    transaction = writer.prepare(checkpoint)
    assert transaction is not None
    transaction.persist()
    transaction.commit(permit(checkpoint))


def as_an_earlier_version_left_it(place: Place, number: int, rows: int) -> None:
    """A table with a commit of checkpoint 1 and one of checkpoint 2, without an index."""
    place.execute(OLD_WRITERS.format(writers=WRITERS, serial=SERIAL[place.kind]))
    place.execute(f'CREATE TABLE "{place.table}" (n integer, {TOKEN} bigint)')
    place.execute(
        f"INSERT INTO {WRITERS} (id, target, pipeline, operator, shard, generation, committed) "
        f"VALUES ({number}, '{place.table}', 'words', 'counts', 0, 1, {2 if rows else 0})"
    )
    for n in range(rows):
        token = number * EARLIER_CHECKPOINTS + 1 + n % 2
        place.execute(f'INSERT INTO "{place.table}" VALUES ({n}, {token})')


def numbers(place: Place) -> list[int]:
    found = place.select(f"SELECT id FROM {WRITERS} WHERE target = '{place.table}' ORDER BY id")
    return [row[0] for row in found]


def test_commits_and_upserts_use_up_no_numbers(place: Place) -> None:
    place.execute(OLD_WRITERS.format(writers=WRITERS, serial=SERIAL[place.kind]))
    writer = opened(place)
    for checkpoint in range(1, 6):
        commit(writer, checkpoint, [{"n": checkpoint}])
    later = place.sink().open(place.sink_shard(1, shard=1))
    later.recover([], permit(0))
    first, second = numbers(place)
    assert second == first + 1


def test_upsert_batches_use_up_no_numbers(place: Place) -> None:
    writer = opened(place, upsert_on=["n"])
    for n in range(5):
        writer.write([{"n": n}])
    writer.close()
    other = place.sink(upsert_on=["n"]).open(place.sink_shard(1, shard=1))
    other.recover([], permit(0))
    first, second = numbers(place)
    assert second == first + 1


def test_a_run_from_nothing_uses_up_no_number(place: Place) -> None:
    commit(opened(place), 1, [{"n": 1}])
    before = numbers(place)
    place.sink().start_fresh("words", "counts", f"{place.folder}/store", replace=True)
    assert place.rows() == []
    commit(opened(place), 1, [{"n": 2}])
    assert place.rows() == [{"n": 2}]
    assert numbers(place) == before


def test_a_database_whose_numbers_were_used_up_takes_new_writers(place: Place) -> None:
    as_an_earlier_version_left_it(place, number=(1 << 23) + 5 + place.salt, rows=0)
    writer = opened(place, generation=2)
    commit(writer, 1, [{"n": 1}])
    commit(writer, 2, [{"n": 2}])
    assert sorted(row["n"] for row in place.rows()) == [1, 2]
    opened(place, generation=3, checkpoint=1)
    assert [row["n"] for row in place.rows()] == [1]


def test_rows_of_an_earlier_version_are_found_and_taken_back(place: Place) -> None:
    as_an_earlier_version_left_it(place, number=3 + place.salt, rows=4)
    commit(opened(place, generation=2, checkpoint=1), 2, [{"n": 8}])
    assert sorted(row["n"] for row in place.rows()) == [0, 2, 8]
    sink = place.sink()
    assert "3 row(s)" in str(sink.left_behind("words", "counts", f"{place.folder}/store"))
    sink.start_fresh("words", "counts", f"{place.folder}/store", replace=True)
    assert place.rows() == []


def test_a_checkpoint_that_has_no_token_is_refused_and_takes_no_other_writers_place() -> None:
    last = Writing(-2, 1, 0).token((1 << 36) - 1)
    assert last + 1 == Writing(-1, 1, 0).token(0)
    with pytest.raises(ConnectorError, match="checkpoint 68719476736 is beyond"):
        Writing(-2, 1, 0).token(1 << 36)


def test_an_index_finds_the_rows_to_take_back(place: Place) -> None:
    commit(opened(place), 1, [{"n": 1}])
    with place.session() as session:
        assert session.has_token_index(place.table)


def test_a_table_of_an_earlier_version_gets_its_index_when_rows_are_taken_back(
    place: Place,
) -> None:
    as_an_earlier_version_left_it(place, number=7 + place.salt, rows=2)
    opened(place, generation=2, checkpoint=2)
    with place.session() as session:
        assert not session.has_token_index(place.table), "nothing was to be taken back"
    opened(place, generation=3, checkpoint=1)
    with place.session() as session:
        assert session.has_token_index(place.table)
    assert place.rows() == [{"n": 0}]


@pytest.mark.parametrize("checkpoint", [1, 2])
def test_recovery_costs_the_same_however_many_rows_a_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: int
) -> None:
    steps = 0
    connect = _SqliteFile.connect

    def counting(self: _SqliteFile) -> sqlite3.Connection:
        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection = connect(self)
        connection.set_progress_handler(step, 1)
        return connection

    costs = []
    for rows in (100, 20_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        place = Place("sqlite", folder, "")
        writer = opened(place)
        commit(writer, 1, pl.DataFrame({"n": range(rows)}))  # type: ignore[arg-type]
        commit(writer, 2, [{"n": -1}])
        with monkeypatch.context() as context:
            context.setattr(_SqliteFile, "connect", counting)
            steps = 0
            opened(place, generation=2, checkpoint=checkpoint)
            costs.append(steps)
        assert len(place.rows()) == rows + (checkpoint == 2)
    assert costs[1] < costs[0] * 2, "the database's own steps, which are the same in every run"
