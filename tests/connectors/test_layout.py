"""Parts of limited size, and a folder for each value of some columns: exactly once, in every format."""

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.connectors.files.layout import FileLayout
from everstream.connectors.files.parts import PENDING, owner_of
from everstream.core.permits import permit
from everstream.errors import RefusedRecords, RunFailed, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import SinkShard
from everstream.testing import sinks
from everstream.testing.sinks import check_sink
from tests.connectors.writing import sink_shard, write_checkpoint

pytestmark = pytest.mark.usefixtures("quick_disk")

DAYS: dict[int, Batch] = {
    k: [{"n": 10 * k + i, "day": f"d {i % 2}"} for i in range(4)] for k in range(4)
}
FRAMES: dict[int, Batch] = {k: pl.DataFrame(batch) for k, batch in DAYS.items()}


def each_part(sink: Any, who: SinkShard) -> Iterator[tuple[dict[str, str], str, Any]]:
    """The columns of its folder, the path and the filesystem of each part."""
    folder = sink._part_folder()
    for part in folder.parts(owner_of(who.pipeline, who.operator)):
        levels = [level.split("=") for level in part.partition.split("/") if level]
        columns = {name: value.replace("%20", " ") for name, value in levels}
        yield columns, folder.path_of(part), folder.fs


def json_rows(sink: Any, who: SinkShard) -> Iterator[Any]:
    for columns, path, fs in each_part(sink, who):
        for line in fs.cat_file(path).splitlines():
            yield {**json.loads(line), **columns}


def frame_rows(read: Callable[[bytes], pl.DataFrame]) -> Any:
    def rows(sink: Any, who: SinkShard) -> Iterator[Any]:
        for columns, path, fs in each_part(sink, who):
            for row in read(fs.cat_file(path)).rows(named=True):
                yield {**row, **columns}

    return rows


@pytest.fixture
def names_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a folder is a text, whatever type the value had: types that change are not checked."""
    whole = sinks._scenarios
    drift = "values that drift in type stay what they are"
    monkeypatch.setattr(
        sinks, "_scenarios", lambda kind: [one for one in whole(kind) if one[0] != drift]
    )


SINKS: dict[str, tuple[Any, Any, dict[int, Batch]]] = {
    "json": (es.JsonLines, json_rows, DAYS),
    "json frames": (es.JsonLines, json_rows, FRAMES),
    "csv": (es.Csv, frame_rows(pl.read_csv), FRAMES),
    "parquet": (es.Parquet, frame_rows(pl.read_parquet), FRAMES),
    "parquet of records": (es.Parquet, frame_rows(pl.read_parquet), DAYS),
}


@pytest.mark.usefixtures("names_are_texts")
@pytest.mark.parametrize("kind", SINKS)
def test_partitions_and_small_parts_are_exactly_once_through_every_crash(kind: str) -> None:
    make, read_back, batches = SINKS[kind]
    check_sink(
        lambda place: make(f"{place}/out/", partition_by="day", roll_bytes=10, prefix="shop"),
        read_back,
        batches=batches,
        every=3,
    )


@pytest.mark.usefixtures("names_are_texts")
def test_they_are_on_a_filesystem_without_rename() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    check_sink(
        lambda place: es.JsonLines(f"{root}{place}/out/", partition_by="day", roll_bytes=1),
        json_rows,
        batches=DAYS,
        every=3,
    )


def bytes_of(sink: Any, who: SinkShard) -> Iterator[Any]:
    for _, path, fs in each_part(sink, who):
        yield from fs.cat_file(path).split()


def test_small_parts_of_bytes_are_exactly_once_and_in_order(tmp_path: Path) -> None:
    texts: dict[int, Batch] = {k: [f"{10 * k + i}" for i in range(4)] for k in range(4)}
    check_sink(
        lambda place: es.Binary(f"{place}/out", roll_bytes=3, encode=lambda n: f"{n} ".encode()),
        lambda sink, who: map(bytes.decode, bytes_of(sink, who)),
        batches=texts,
        every=3,
    )
    sink = es.Binary(tmp_path / "out", roll_bytes=4)
    writer = sink.open(sink_shard())
    for text in texts[1]:
        writer.write([f"{text} ".encode()])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.commit(permit(1))
    assert b"".join(sink.pieces()) == b"10 11 12 13 "
    names = sorted(path.name for path in (tmp_path / "out").glob("part*"))
    assert names == [
        "part-words.counts-0000-00000001-g1.bin",
        "part-words.counts-0000-00000001-p1-g1.bin",
    ]


def test_folders_are_named_as_hive_names_them(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"day": date(2026, 3, 1), "ok": True, "city": "São/Paulo", "n": 1},
        {"day": date(2026, 3, 1), "ok": None, "city": "..", "n": 2},
    ]
    sink = es.Parquet(tmp_path, partition_by=["day", "ok", "city"], prefix="orders")
    write_checkpoint(sink, rows).commit(permit(1))
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    name = "orders-part-words.counts-0000-00000001-g1.parquet"
    assert found == [
        f"day=2026-03-01/ok=__HIVE_DEFAULT_PARTITION__/city=%2E%2E/{name}",
        f"day=2026-03-01/ok=true/city=S%C3%A3o%2FPaulo/{name}",
    ]
    whole = pl.read_parquet(tmp_path / "**/*.parquet", hive_partitioning=True).sort("n")
    assert whole.schema["day"] == pl.Date
    assert whole.select("n", "day", "city").rows() == [
        (1, date(2026, 3, 1), "São/Paulo"),
        (2, date(2026, 3, 1), ".."),
    ]


def test_a_record_without_the_column_is_refused_and_none_of_its_batch_is_written(
    tmp_path: Path,
) -> None:
    writer = es.JsonLines(tmp_path, partition_by="day").open(sink_shard())
    with pytest.raises(RefusedRecords, match="names column 'day', but the record has: n") as raised:
        writer.write([{"n": 1, "day": "a"}, {"n": 2}, {"n": 3, "day": 1.5}])
    assert [*raised.value.rows] == [1, 2]
    with pytest.raises(RefusedRecords, match="NaN") as raised:
        writer.write([{"n": 1, "day": "a"}, {"n": float("nan"), "day": "b"}])
    assert [*raised.value.rows] == [1]
    assert writer.prepare(1) is None
    assert not list((tmp_path / PENDING).glob("*-[0-9a-f]*[0-9a-f]"))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: FileLayout.of("many", None, ""), "roll_bytes='many' is not a size"),
        (lambda: FileLayout.of(0, None, ""), "roll_bytes=0 is not a size"),
        (lambda: FileLayout.of(None, ["a", "a"], ""), "each once"),
        (lambda: FileLayout.of(None, None, "_x"), "begin with a letter"),
        (lambda: FileLayout.of(None, None, "a/b"), "prefix='a/b'"),
        (lambda: es.Csv("x", roll_bytes="1MB").as_source(), "takes no roll_bytes="),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        make()


SHARDS, RECORDS = 2, 4_000


def orders(start: int, stop: int) -> pl.DataFrame:
    rows = pl.select(n=pl.int_range(start, stop, dtype=pl.Int64))
    return rows.with_columns(day=pl.lit("d") + (pl.col("n") % 3).cast(pl.String))


def written(folder: Path, ending: str) -> list[tuple[int, str]]:
    read: Any = {"jsonl": pl.read_ndjson, "csv": pl.read_csv, "parquet": pl.read_parquet}[ending]
    return sorted(
        (n, path.parent.name.removeprefix("day="))
        for path in folder.glob(f"day=*/*.{ending}")
        for n in read(path)["n"].to_list()
    )


def layout(folder: Path, kind: Any, shards: int, total: int, **more: Any) -> es.Pipeline:
    pipeline = es.Pipeline("orders")
    source = es.Paced(es.FromFunction(orders, total, batch=50), 4_000)
    sink = kind(folder, partition_by="day", roll_bytes=200, **more)
    pipeline.source(source, name="orders").on_demand().sink(sink, name="out", shards=shards)
    return pipeline


@pytest.mark.parametrize("kind", [es.JsonLines, es.Csv, es.Parquet])
def test_kills_of_the_writers_lose_and_double_nothing(tmp_path: Path, kind: Any) -> None:
    result = layout(tmp_path / "out", kind, SHARDS, RECORDS).run(
        engine="local",
        workers=2,
        store=str(tmp_path / "store"),
        checkpoint=es.Coordinated(every="80ms"),
        kill=["out:0@700", "out:1@1500"],
        max_restarts=10,
    )
    assert len(result.recoveries) == 2
    assert written(tmp_path / "out", kind.ending[1:]) == [(n, f"d{n % 3}") for n in range(RECORDS)]
    if kind is not es.Parquet:
        assert list((tmp_path / "out").glob("day=*/*-p1-g*")), "parts are rolled by size"


def test_other_shards_and_sizes_continue_and_other_folders_are_refused(tmp_path: Path) -> None:
    store, out = str(tmp_path / "store"), tmp_path / "out"

    def run(shards: int, total: int, **more: Any) -> None:
        layout(out, es.Csv, shards, total, **more).run(
            engine="local", store=store, checkpoint=es.Coordinated(every="80ms")
        )

    pipeline = layout(out, es.Csv, 2, 1_000_000)
    handle = pipeline.start(
        engine="local", store=store, checkpoint=es.Coordinated(every="80ms"), workers=2
    )
    handle.checkpoint()
    handle.checkpoint()
    handle.stop()
    handle.wait()
    before = written(out, "csv")
    assert before
    with pytest.raises((UserError, RunFailed), match="prefix"):
        run(2, len(before) + 500, prefix="other")
    run(3, len(before) + 500)
    assert written(out, "csv") == [(n, f"d{n % 3}") for n in range(len(before) + 500)]
