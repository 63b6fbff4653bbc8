"""Columns of an output across upgrades: a new one is refused by name or added, a type never changes."""

import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.core.permits import permit
from everstream.errors import RunFailed, UserError

FIRST = [{"n": 1, "x": 0.5}]
MORE = [{"n": 2, "x": 1.5, "note": "two"}]
OTHER_TYPE = [{"n": "three", "x": 1.5}]
EXPECTED = pl.DataFrame(
    {"n": [1, 2], "x": [0.5, 1.5], "note": [None, "two"]},
    schema={"n": pl.Int64, "x": pl.Float64, "note": pl.String},
)


class Place:
    """One kind of output, in a folder of the test's own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.out = folder / "out"

    def sink(self, **options: Any) -> es.Sink:
        match self.kind:
            case "parquet":
                return es.Parquet(f"{self.out}/", **options)
            case "delta":
                return es.Delta(self.out, **options)
            case "sqlite":
                return es.Sqlite(f"{self.out}.db", "t", **options)
        return es.Sqlite(f"{self.out}.db", "t", upsert_on=["n"], **options)

    def run(self, count: int, schema: Any = None, **options: Any) -> None:
        """A version of the program that stops after this many records are written."""
        records = [*FIRST, *(MORE if schema is not OTHER_TYPE else OTHER_TYPE)][:count]
        source = es.FromFunction(lambda start, stop: records[start:stop], count, batch=1)
        rows = es.Pipeline("evolving").source(source, name="rows")
        rows.sink(self.sink(**options), name="out").run(
            engine="local", workers=1, store=f"{self.folder}/store", until="caught-up"
        )

    def rows(self) -> pl.DataFrame:
        if self.kind == "parquet":
            pipeline = es.Pipeline("read").source(es.Parquet(f"{self.out}/")).collect()
            return pipeline.run(engine="local", workers=1).to_polars().sort("n")
        if self.kind == "delta":
            return pl.read_delta(str(self.out)).sort("n")
        with sqlite3.connect(f"{self.out}.db") as connection:
            read = pl.read_database(
                "SELECT n, x, note FROM t", connection, schema_overrides=EXPECTED.schema
            )
        return read.sort("n")


@pytest.fixture(params=["parquet", "delta", "sqlite", "sqlite-upsert"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def test_an_upgrade_with_a_new_column_is_refused_by_name_and_then_adds_it(place: Place) -> None:
    place.run(1)
    with pytest.raises(
        RunFailed, match=r"with note where the output has n, x\..*evolve='add_columns'"
    ):
        place.run(2)
    place.run(2, evolve="add_columns")
    rows = place.rows()
    assert rows.schema == EXPECTED.schema and rows.rows() == EXPECTED.rows()


def test_a_changed_type_is_always_refused(place: Place) -> None:
    place.run(1)
    with pytest.raises(RunFailed, match=r"column 'n': 'three' is not an exact Int64"):
        place.run(2, schema=OTHER_TYPE, evolve="add_columns")


def test_a_declared_schema_may_add_columns_and_not_change_them(tmp_path: Path) -> None:
    def run(count: int, schema: Any, **options: Any) -> None:
        rows = [{"n": 1}, {"n": 2, "note": "two"}][:count]
        source = es.FromFunction(lambda start, stop: rows[start:stop], count, batch=1)
        sink = es.Parquet(f"{tmp_path}/out/", schema=schema, **options)
        pipeline = es.Pipeline("declared").source(source, name="rows").sink(sink, name="out")
        pipeline.run(engine="local", workers=1, store=f"{tmp_path}/store", until="caught-up")

    run(1, {"n": pl.Int32})
    with pytest.raises(
        RunFailed, match=r"'note' is missing there and String here.*evolve='add_columns'"
    ):
        run(2, {"n": pl.Int32, "note": pl.String})
    with pytest.raises(RunFailed, match="'n' is Int32 there and Int64 here"):
        run(2, {"n": pl.Int64}, evolve="add_columns")
    run(2, {"n": pl.Int32, "note": pl.String}, evolve="add_columns")
    result = es.Pipeline("read").source(es.Parquet(f"{tmp_path}/out/")).collect()
    rows = result.run(engine="local", workers=1).to_polars().sort("n")
    assert rows.schema == pl.Schema({"n": pl.Int32, "note": pl.String})
    assert rows.rows() == [(1, None), (2, "two")]


def test_a_column_may_begin_in_the_middle_of_a_file(tmp_path: Path) -> None:
    sink = es.Parquet(f"{tmp_path}/out/", evolve="add_columns")
    writer = sink.open(shard_of(tmp_path))
    writer.recover([], permit(0))
    for rows in ([{"n": 1}], [{"n": 2, "note": "two"}], [{"n": 3}]):
        writer.write(rows)
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    transaction.commit(permit(1))
    read = pl.read_parquet(f"{tmp_path}/out/*.parquet")
    assert read.rows() == [(1, None), (2, "two"), (3, None)]


def shard_of(folder: Path) -> Any:
    from everstream.pipeline.sink import SinkShard

    return SinkShard("p", "out", 0, 1, 1, f"{folder}/store")


def test_files_of_others_must_still_have_the_same_columns(tmp_path: Path) -> None:
    pl.DataFrame({"n": [1]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"n": [2], "m": [2]}).write_parquet(tmp_path / "b.parquet")
    pipeline = es.Pipeline("read").source(es.Parquet(tmp_path)).collect()
    with pytest.raises(RunFailed, match="Give all files the same columns"):
        pipeline.run(engine="local", workers=1)


def test_another_word_is_refused(place: Place) -> None:
    with pytest.raises(UserError, match="evolve='always': use 'refuse' or 'add_columns'"):
        place.sink(evolve="always")


@pytest.mark.parametrize(
    "layout", [{"roll_bytes": "1MB"}, {"partition_by": "day"}, {"prefix": "a"}]
)
def test_files_of_several_parts_do_not_get_columns(tmp_path: Path, layout: dict[str, Any]) -> None:
    with pytest.raises(es.UserError, match="does not go with roll_bytes, partition_by or prefix"):
        es.Parquet(tmp_path, evolve="add_columns", **layout)
