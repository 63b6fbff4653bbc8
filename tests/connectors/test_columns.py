"""CSV and Parquet: the conformance suites, and what each promises beyond them."""

import errno
import pickle
from collections.abc import Iterator
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from everstream.connectors import Csv, Parquet
from everstream.connectors.files.parts import PENDING, owner_of
from everstream.core.permits import permit
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Sink, SinkShard
from everstream.pipeline.source import EndOfStream, Reader
from everstream.testing.sinks import check_sink, default_batches
from everstream.testing.sources import check_source

MIXED: dict[int, Batch] = {
    k: pl.DataFrame(batch) if k % 2 else batch for k, batch in default_batches().items()
}


def sink_shard(generation: int = 1) -> SinkShard:
    return SinkShard("words", "counts", 0, 1, generation, "")


def write(sink: Sink, *batches: Batch, checkpoint: int = 1) -> None:
    writer = sink.open(sink_shard())
    for batch in batches:
        writer.write(batch)
    transaction = writer.prepare(checkpoint)
    assert transaction is not None
    transaction.commit(permit(checkpoint))


def read_all(reader: Reader) -> list[Any]:
    records: list[Any] = []
    while not isinstance(batch := reader.read(), EndOfStream):
        records += records_of(batch) if batch is not None else []
    return records


def parts_of(ending: str, sink_shard: SinkShard) -> Iterator[Path]:
    folder = Path(sink_shard.store).parent / "out"
    return folder.glob(
        f"part-{owner_of(sink_shard.pipeline, sink_shard.operator)}-????-????????-g*{ending}"
    )


each_kind_of_batch = pytest.mark.parametrize(
    "batches",
    [MIXED, pytest.param(default_batches(), marks=pytest.mark.long)],
    ids=["mixed", "records"],
)


@pytest.mark.usefixtures("quick_disk")
@each_kind_of_batch
def test_csv_is_exactly_once_through_every_crash(batches: dict[int, Batch]) -> None:
    check_sink(
        lambda place: Csv(f"{place}/out"),
        lambda _, sink_shard: [
            row for f in parts_of(".csv", sink_shard) for row in pl.read_csv(f).to_dicts()
        ],
        batches=batches,
    )


@pytest.mark.usefixtures("quick_disk")
@each_kind_of_batch
def test_parquet_is_exactly_once_through_every_crash(batches: dict[int, Batch]) -> None:
    check_sink(
        lambda place: Parquet(f"{place}/out"),
        lambda _, sink_shard: [
            row for f in parts_of(".parquet", sink_shard) for row in pl.read_parquet(f).to_dicts()
        ],
        batches=batches,
    )


ROWS: list[dict[str, Any]] = [
    {"n": n, "text": ["plain", 'a "quote"', "two\nlines", "", None, "é,;"][n % 6], "x": n / 4}
    for n in range(50)
]


@pytest.mark.parametrize("batch_bytes", [1, 60, 10_000])
def test_csv_keeps_the_promises_of_a_source(tmp_path: Path, batch_bytes: int) -> None:
    pl.DataFrame(ROWS[:30]).write_csv(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(pl.DataFrame(ROWS[30:]).write_csv().rstrip("\n"))
    check_source(
        partial(Csv, f"{tmp_path}/*.csv", batch_bytes=batch_bytes),
        expected=ROWS,
        redistributes=True,
    )


def test_a_csv_file_without_quoted_line_ends_is_shared_by_all_shards(tmp_path: Path) -> None:
    rows = [{"n": n, "text": f'quote " {n}, and comma'} for n in range(200)]
    pl.DataFrame(rows).write_csv(tmp_path / "a.csv")
    make = partial(Csv, tmp_path / "a.csv", quoted_newlines=False, batch_bytes=100)
    check_source(make, expected=rows, redistributes=True)
    assert all(len(read_all(make().open(shard, 3))) > 40 for shard in range(3))


cells = st.one_of(st.none(), st.text(st.sampled_from('a",\n\r é;\t'), max_size=6))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=12),
    st.integers(1, 40),
    st.sampled_from(",;\t"),
)
def test_what_csv_wrote_it_can_read(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str | None, str | None]],
    batch_bytes: int,
    delimiter: str,
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    schema = {"a": pl.String, "b": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    write(Csv(folder, delimiter=delimiter, schema=schema), frame)
    source = Csv(folder, delimiter=delimiter, schema=schema, batch_bytes=batch_bytes)
    source.check()
    assert read_all(source.open(0, 1)) == frame.to_dicts()


def test_csv_types_come_from_the_schema_or_the_first_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"\xef\xbb\xbfday,at,ok,n,none\n2020-01-02,2020-01-02 03:04:05,true,1.5,\n")
    source = Csv(file)
    source.check()
    (row,) = read_all(source.open(0, 1))
    assert row["day"] == date(2020, 1, 2)
    assert row["at"] == datetime(2020, 1, 2, 3, 4, 5)
    assert (row["ok"], row["n"], row["none"]) == (True, 1.5, None)
    kinds = {"day": pl.String, "at": pl.String, "ok": pl.String, "n": pl.Float32, "none": pl.Int8}
    batch = Csv(file, schema=kinds).open(0, 1).read()
    assert isinstance(batch, pl.DataFrame)
    assert batch.schema == pl.Schema(kinds)


def test_csv_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;x\n2;y")
    source = Csv(tmp_path, header=False, delimiter=";", schema={"n": pl.Int64, "t": pl.String})
    assert read_all(source.open(0, 1)) == [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]
    with pytest.raises(UserError, match="schema="):
        Csv(tmp_path, header=False)
    with pytest.raises(UserError, match="one character"):
        Csv(tmp_path, delimiter="::")


BAD_ROWS = ["x,b", "7", "7,b,c", '7,"open']


@pytest.mark.parametrize("broken", BAD_ROWS)
@pytest.mark.parametrize("batch_bytes", [1, 1000])
def test_a_broken_csv_row_is_named_with_file_line_and_byte(
    tmp_path: Path, broken: str, batch_bytes: int
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f'n,t\n1,"two\nlines"\n{broken}\n3,c\n')
    source = Csv(file, schema={"n": pl.Int64, "t": pl.String}, batch_bytes=batch_bytes)
    reader = source.open(0, 1)
    for _ in range(3):
        try:
            reader.read()
        except ConnectorError as error:
            caught = error
    assert "a.csv', line 4, byte 18" in str(caught)
    assert broken in str(caught)
    assert "on_error" in str(caught)


@pytest.mark.parametrize("batch_bytes", [1, 1000])
@pytest.mark.parametrize("quoted_newlines", [True, False])
def test_broken_csv_rows_are_left_out(
    tmp_path: Path, batch_bytes: int, quoted_newlines: bool
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("n,t\n" + "".join(f"{n},ok\n{BAD_ROWS[n % 4]}\n" for n in range(8)) + "9,z")

    def make() -> Csv:
        return Csv(
            file,
            schema={"n": pl.Int64, "t": pl.String},
            batch_bytes=batch_bytes,
            quoted_newlines=quoted_newlines,
            on_error="dead_letter",
        )

    reader = make().open(0, 1)
    found = read_all(reader)
    rejected = reader.take_rejected()
    if not quoted_newlines:
        assert [row["n"] for row in found] == [*range(8), 9]
        assert [one.record for one in rejected] == BAD_ROWS * 2
        assert rejected[0].place == f"'{file}', line 3, byte 9"
    else:
        # The two open quotes close each other, and all between them is one field.
        assert [row["n"] for row in found] == [0, 1, 2, 3, 7, 9]
        assert [one.record for one in rejected[:3]] == BAD_ROWS[:3]
    check_source(make)


def test_a_quote_that_is_never_closed_costs_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('n,t\n1,a\n2,"open\n3,c\n4,d\n')
    schema = {"n": pl.Int64, "t": pl.String}
    reader = Csv(file, schema=schema, on_error="skip").open(0, 1)
    assert [row["n"] for row in read_all(reader)] == [1, 3, 4]
    (rejected,) = reader.take_rejected()
    assert rejected.record == '2,"open'
    assert "quote" in rejected.error


def test_a_csv_file_with_other_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a,c\n1,2\n")
    source = Csv(tmp_path)
    source.check()
    with pytest.raises(ConnectorError, match=r"b\.csv', line 1: the columns are a, c where a, b"):
        read_all(source.open(0, 1))
    for batch_bytes in (1, 1000):
        reader = Csv(tmp_path, on_error="skip", batch_bytes=batch_bytes).open(0, 1)
        assert read_all(reader) == [{"a": 1, "b": 2}]
        assert sum(one.records for one in reader.take_rejected()) == 1


def test_a_csv_file_that_vanished_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    source = Csv(tmp_path)
    source.check()
    (tmp_path / "a.csv").unlink()
    with pytest.raises(ConnectorError, match=r"a\.csv' at byte 0: .*No such file"):
        source.open(0, 1).read()


@pytest.mark.parametrize("make", [Csv, Parquet])
def test_both_follow_a_folder_on_any_filesystem(make: Any, tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    place = f"/follow/{tmp_path.name}"
    fs.makedirs(place)
    source = make(f"memory:/{place}", follow=True, schema={"n": pl.Int64})
    source.check()
    readers = [source.open(shard, 2) for shard in range(2)]
    assert [reader.read() for reader in readers] == [None, None]
    found = []
    for number in range(6):
        with fs.open(f"{place}/{number}", "wb") as file:
            frame = pl.DataFrame({"n": [number]})
            frame.write_csv(file) if make is Csv else frame.write_parquet(file)
        found += [records_of(batch) for r in readers if (batch := r.read()) is not None]
    assert found == [[{"n": number}] for number in range(6)]
    assert {len(reader.offset[0].seen) > 0 for reader in readers} == {True}


def parquet_folder(folder: Path) -> list[dict[str, Any]]:
    pl.DataFrame(ROWS[:35]).write_parquet(folder / "a.parquet", row_group_size=10)
    pl.DataFrame(ROWS[35:]).write_parquet(folder / "b.parquet", row_group_size=4)
    return ROWS


@pytest.mark.parametrize("batch_rows", [3, 1000])
def test_parquet_keeps_the_promises_of_a_source(tmp_path: Path, batch_rows: int) -> None:
    rows = parquet_folder(tmp_path)
    check_source(
        partial(Parquet, tmp_path, batch_rows=batch_rows), expected=rows, redistributes=True
    )


def test_row_groups_of_one_large_file_are_shared_by_all_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstream.connectors.files.parquet.SMALLEST_SPLIT_BYTES", 100)
    file = tmp_path / "a.parquet"
    pl.DataFrame({"n": range(4000)}).write_parquet(file, row_group_size=100, compression="lz4")
    check_source(
        partial(Parquet, file), expected=[{"n": n} for n in range(4000)], redistributes=True
    )
    counts = [len(read_all(Parquet(file).open(shard, 4))) for shard in range(4)]
    assert min(counts) >= 500


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    parquet_folder(tmp_path)
    (tmp_path / "b.parquet").unlink()
    pl.DataFrame({"more": [1], "n": [99]}).write_parquet(tmp_path / "c.parquet")
    found = read_all(Parquet(tmp_path, columns=["n"]).open(0, 1))
    assert found == [{"n": n} for n in [*range(35), 99]]
    with pytest.raises(UserError, match="no column nope"):
        Parquet(tmp_path, columns=["nope"]).check()


def test_a_changed_schema_a_torn_file_and_a_vanished_one_are_named(tmp_path: Path) -> None:
    parquet_folder(tmp_path)
    pl.DataFrame({"n": ["x"]}).write_parquet(tmp_path / "b.parquet")
    source = Parquet(tmp_path)
    source.check()
    reader = source.open(0, 1)
    with pytest.raises(
        ConnectorError, match=r"b\.parquet' has the columns n \(String\) where n \("
    ):
        read_all(reader)
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-3])
    with pytest.raises(UserError, match=r"a\.parquet' is not a complete Parquet file"):
        Parquet(tmp_path).check()
    with pytest.raises(ConnectorError, match=r"a\.parquet' has \d+ bytes; it had \d+"):
        source.open(0, 1).read()
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(ConnectorError, match=r"cannot read '.*a\.parquet'"):
        source.open(0, 1).read()


def test_broken_parquet_is_left_out_by_file_and_by_row_group(tmp_path: Path) -> None:
    rows = parquet_folder(tmp_path)
    (tmp_path / "0.parquet").write_bytes(b"no parquet")
    pl.DataFrame({"n": ["x", "y"]}).write_parquet(tmp_path / "c.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    start = parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0)
    first = min(start.data_page_offset, start.dictionary_page_offset or start.data_page_offset)
    data[first : first + 8] = b"\xff" * 8
    (tmp_path / "a.parquet").write_bytes(bytes(data))
    reader = Parquet(tmp_path, on_error="dead_letter").open(0, 1)
    assert read_all(reader) == rows[:10] + rows[20:]
    assert [one.records for one in reader.take_rejected()] == [1, 10, 2]
    check_source(partial(Parquet, tmp_path, on_error="skip"), expected=rows[:10] + rows[20:])
    with pytest.raises(ConnectorError, match=r"a\.parquet', row group 1 \(rows from 10\)"):
        (tmp_path / "0.parquet").unlink()
        read_all(Parquet(tmp_path).open(0, 1))


def test_what_parquet_wrote_duckdb_reads_and_only_what_is_stable(tmp_path: Path) -> None:
    kinds = {
        "n": [1, 2],
        "text": ["é\n", None],
        "when": [datetime(2020, 1, 2, 3, 4, 5, 678901), None],
        "day": [date(2020, 1, 2), None],
        "list": [[1, 2], []],
        "inner": [{"a": 1}, {"a": None}],
    }
    write(Parquet(tmp_path), pl.DataFrame(kinds), pl.DataFrame(kinds))
    writer = Parquet(tmp_path).open(sink_shard(2))
    writer.write(pl.DataFrame(kinds))
    waiting = writer.prepare(2)
    assert waiting is not None
    waiting.persist()
    found = duckdb.sql(f"select * from '{tmp_path}/*.parquet'").pl()
    assert found.to_dicts() == pl.DataFrame(kinds).to_dicts() * 2
    waiting.commit(permit(2))
    assert duckdb.sql(f"select count(*) from '{tmp_path}/*.parquet'").fetchall() == [(6,)]
    assert read_all(Parquet(tmp_path).open(0, 1)) == pl.DataFrame(kinds).to_dicts() * 3


def test_many_small_batches_become_few_row_groups(tmp_path: Path) -> None:
    write(Parquet(tmp_path), *[pl.DataFrame({"n": [n]}) for n in range(300)])
    (part,) = tmp_path.glob("part-*")
    assert parquet.ParquetFile(part).metadata.num_row_groups == 1


def test_what_csv_wrote_duckdb_reads(tmp_path: Path) -> None:
    write(Csv(tmp_path), [("the", 3), ("a,b", 4)], [("c\nd", 5)])
    found = duckdb.sql(f"select * from read_csv('{tmp_path}/part-*.csv')").fetchall()
    assert found == [("the", 3), ("a,b", 4), ("c\nd", 5)]


@pytest.mark.parametrize("make", [Csv, Parquet])
def test_rows_that_do_not_fit_the_first_ones_are_refused_with_the_fix(
    make: Any, tmp_path: Path
) -> None:
    writer = make(tmp_path).open(sink_shard())
    writer.write([{"n": 1, "t": None}, {"n": 2}])
    writer.write([{"t": "x", "n": 3}, {"n": 4}])
    for batch, problem in (
        ([{"n": 1, "more": 2}], "with more where the output has n, t"),
        (pl.DataFrame({"n": [1]}), "without t where"),
        ([{"n": "text", "t": "x"}], "column 'n': 'text' is not an exact Int64.*schema="),
        ([{"n": True}], "column 'n': True is not an exact Int64"),
        ([5], "dict"),
        ([(1, 2, 3)], "has 3 values, not 2"),
        ([{"n": 1, "t": object()}], "column 't': <object object .* is a Python object"),
    ):
        with pytest.raises(UserError, match=problem):
            writer.write(batch)
    transaction = writer.prepare(1)
    transaction.commit(permit(1))
    source = make(tmp_path, schema={"n": pl.Int64, "t": pl.String})
    assert read_all(source.open(0, 1)) == [
        {"n": 1, "t": None},
        {"n": 2, "t": None},
        {"n": 3, "t": "x"},
        {"n": 4, "t": None},
    ]


def test_nested_columns_have_no_csv_form(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"column 'l': \[1\] has no CSV form"):
        Csv(tmp_path).open(sink_shard()).write(pl.DataFrame({"l": [[1]]}))


@pytest.mark.parametrize("make", [Csv, Parquet])
def test_both_are_opened_and_checked_as_what_they_are_asked_to_be(
    make: Any, tmp_path: Path
) -> None:
    make(tmp_path / "new").check()
    for name in ("missing.csv", "*.csv"):
        with pytest.raises(UserError, match="nothing to read"):
            make(tmp_path / name).check()
    (tmp_path / "file").write_text("a\n1\n")
    for path in (tmp_path / "file", tmp_path / "*.csv"):
        with pytest.raises(UserError, match="writes into a folder"):
            make(path).open(sink_shard())
    pickle.loads(pickle.dumps(make(tmp_path / "new")))


@pytest.mark.parametrize("make", [Csv, Parquet])
def test_a_full_disk_is_named_with_the_folder(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make(tmp_path).open(sink_shard())
    writer.write([{"n": 1}])
    (pending,) = (tmp_path / PENDING).iterdir()

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(ConnectorError, match=r"_pending': .*No space left.*has space"):
        writer.write([{"n": 2}])
        writer.prepare(1)
    assert pending.exists()
