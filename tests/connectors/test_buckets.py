"""The file connectors on a real object store, which is killed in the middle."""

import io
import json
import pickle
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.connectors.files.filesystem import filesystem_of, names_in
from everstream.connectors.files.parts import PartFolder, owner_of
from everstream.core.permits import permit
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.sink import SinkShard
from everstream.pipeline.source import EndOfStream
from everstream.testing import sinks
from everstream.testing.sinks import check_sink
from everstream.testing.sources import check_source
from tests.s3_server import BUCKET, SECRET, S3Server
from tests.spark import MASTER


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture
def folder(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new folder in the bucket; the environment says how to get there."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def put(server: S3Server, folder: str, name: str, data: bytes) -> None:
    server.put(f"{folder.removeprefix('s3://')}/{name}", data)


def lines_in(server: S3Server, folder: str) -> list[str]:
    objects = server.objects(folder.removeprefix(f"s3://{BUCKET}/"))
    parts = [data for name, data in sorted(objects.items()) if "_pending" not in name]
    return [line for data in parts for line in data.decode().splitlines()]


def test_the_sources_give_what_is_in_the_bucket(server: S3Server, folder: str) -> None:
    texts = [f"line {n}" for n in range(200)]
    rows = pl.DataFrame({"n": range(200), "text": texts})
    put(server, folder, "a.txt", "\n".join(texts[:150]).encode() + b"\n")
    put(server, folder, "b.txt", "\n".join(texts[150:]).encode())
    put(server, folder, "rows.jsonl", rows.write_ndjson().encode())
    parquet = io.BytesIO()
    rows.write_parquet(parquet, row_group_size=64)
    put(server, folder, "rows.parquet", parquet.getvalue())
    check_source(
        lambda: es.TextLines(f"{folder}/*.txt", batch_bytes=300), expected=texts, redistributes=True
    )
    check_source(lambda: es.JsonLines(f"{folder}/rows.jsonl"), expected=rows.to_dicts())
    check_source(lambda: es.Parquet(f"{folder}/rows.parquet"), expected=rows.to_dicts())


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
def test_output_in_a_bucket_is_exactly_once_whoever_crashes_where(
    server: S3Server, folder: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, rescaled = sinks._scenarios, sinks.rescalings
    monkeypatch.setattr(sinks, "_scenarios", lambda kind: whole(kind)[::every])
    monkeypatch.setattr(sinks, "rescalings", lambda *about: rescaled(*about)[::every])

    def read_back(sink: Any, who: SinkShard) -> Iterator[Any]:
        parts = PartFolder.at(f"{folder}/{Path(who.store).parent.name}", ".jsonl")
        for part in parts.parts(owner_of(who.pipeline, who.operator)):
            for line in parts.fs.cat_file(parts.path_of(part)).splitlines():
                yield json.loads(line)

    def make(place: str) -> es.JsonLines:
        return es.JsonLines(f"{folder}/{Path(place).name}/")

    check_sink(make, read_back)


def test_partitions_and_small_parts_in_a_bucket_are_exactly_once(
    server: S3Server, folder: str
) -> None:
    def make(place: str) -> es.JsonLines:
        target = f"{folder}/{Path(place).name}/"
        return es.JsonLines(target, partition_by="day", roll_bytes=10, prefix="shop")

    def read_back(sink: Any, who: SinkShard) -> Iterator[Any]:
        parts = sink._part_folder()
        for part in parts.parts(owner_of(who.pipeline, who.operator)):
            for line in parts.fs.cat_file(parts.path_of(part)).splitlines():
                yield {**json.loads(line), "day": int(part.partition.removeprefix("day="))}

    batches: Any = {k: [{"n": 10 * k + i, "day": i % 2} for i in range(4)] for k in range(4)}
    check_sink(make, read_back, batches=batches, every=17)


def test_a_file_appears_when_it_is_closed_and_not_before(server: S3Server, folder: str) -> None:
    fs, path = filesystem_of(folder)
    file = fs.open(f"{path}/torn", "wb")
    file.write(b"x" * 100)
    assert names_in(fs, path) == []
    file.close()
    file.close()
    assert names_in(fs, path) == ["torn"]
    assert fs.cat_file(f"{path}/torn", 90, 200) == b"x" * 10
    assert fs.cat_file(f"{path}/torn", 500, 600) == b""


def test_only_one_of_many_creates_a_file(server: S3Server, folder: str) -> None:
    fs, path = filesystem_of(folder)
    won: list[int] = []

    def create(number: int) -> None:
        try:
            fs.pipe_file(f"{path}/owner", str(number).encode(), mode="create")
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number).encode() for number in won] == [fs.cat_file(f"{path}/owner")]


def test_a_folder_that_was_emptied_is_gone(server: S3Server, folder: str) -> None:
    fs, path = filesystem_of(f"{folder}/deep/")
    fs.pipe_file(f"{path}/x", b"1")
    assert fs.isdir(path) and not fs.isfile(path) and fs.isfile(f"{path}/x")
    fs.rm(path, recursive=True)
    assert not fs.exists(path) and names_in(fs, path) == []
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{path}/x", f"{path}/y")
    fs.rm_file(f"{path}/x")


def test_workers_and_the_object_store_are_killed_and_the_output_is_exact(
    folder: str, server: S3Server, tmp_path: Path
) -> None:
    for number in range(2):
        numbers = range(number * 3_000, (number + 1) * 3_000)
        put(server, folder, f"in/{number}.txt", "".join(f"{n}\n" for n in numbers).encode())

    class KillsTheStore(es.Listener):
        killed = 0

        def on_event(self, event: es.RunEvent) -> None:
            if isinstance(event, es.events.EpochStable) and not self.killed:
                server.kill()
                self.killed += 1
                server.start()

    killer = KillsTheStore()
    pipeline, own = es.Pipeline("bucket"), server.options
    lines = es.TextLines(f"{folder}/in/*.txt", batch_bytes=200, storage_options=own)
    texts = pipeline.source(es.Paced(lines, rate=4_000), name="read", shards=2)
    rows = texts.map(lambda text: {"n": int(text)}, name="parse")
    rows.sink(es.JsonLines(f"{folder}/json/", storage_options=own), name="json")
    rows.sink(es.Parquet(f"{folder}/parquet/", storage_options=own), name="parquet")
    result = pipeline.run(
        master=MASTER,
        workers=3,
        store=tmp_path / "store",
        checkpoint=es.Coordinated(every="200ms"),
        kill=["parse@1500"],
        listener=killer,
    )
    assert killer.killed == 1 and result.recovery_count >= 1
    found = Counter(lines_in(server, f"{folder}/json"))
    assert found == Counter(f'{{"n":{n}}}' for n in range(6_000))
    reader = es.Parquet(f"{folder}/parquet/", storage_options=own).open(0, 1)
    rows_back: Counter[int] = Counter()
    while not isinstance(batch := reader.read(), EndOfStream):
        assert isinstance(batch, pl.DataFrame)
        rows_back.update(batch["n"].to_list())
    assert rows_back == Counter(range(6_000))
    for path in (tmp_path / "store").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
    objects = server.objects(folder.removeprefix(f"s3://{BUCKET}/"))
    assert not any(SECRET.encode() in data for data in objects.values())


def test_what_is_collected_waits_in_a_store_in_a_bucket(server: S3Server, folder: str) -> None:
    sink = es.Collect()
    writer = sink.open(SinkShard("p", "out", 0, 1, 1, folder))
    writer.recover([], permit(0))
    writer.write([1, 2])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    assert sink.results("p", "out", folder) == []
    transaction.commit(permit(1))
    assert sink.results("p", "out", folder) == [[1, 2]]


def test_options_are_used_and_found_nowhere(server: S3Server, tmp_path: Path) -> None:
    options = server.options
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}/"
    sink = es.JsonLines(place, storage_options=options)
    assert SECRET not in f"{sink!r} {vars(sink)!r}"
    writer = sink.open(SinkShard("p", "out", 0, 1, 1, str(tmp_path)))
    writer.recover([], permit(0))
    writer.write([{"n": 1}])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    assert SECRET.encode() not in pickle.dumps(transaction)
    transaction.commit(permit(1))
    assert lines_in(server, place) == ['{"n":1}']


@pytest.mark.parametrize("wrong", [{"key": SECRET}, {"access_key_id": SECRET, "secret": SECRET}])
def test_options_that_are_none_are_named_without_their_values(wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match=rf"given: {', '.join(wrong)}") as refused:
        es.JsonLines("s3://bucket/x/", storage_options=wrong).check()
    assert SECRET not in str(refused.value)


def test_a_wrong_secret_is_an_error_that_does_not_show_it(server: S3Server) -> None:
    options = {**server.options, "secret_access_key": f"{SECRET}-not"}
    with pytest.raises((EverstreamError, OSError)) as refused:
        es.TextLines(f"s3://{BUCKET}/x/", storage_options=options).check()
    shown: BaseException | None = refused.value
    while shown is not None:
        assert SECRET not in str(shown) + repr(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
