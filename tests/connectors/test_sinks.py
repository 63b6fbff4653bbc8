"""Every sink through the conformance suite, and what each promises beyond it."""

import io
import json
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest

from everstream.connectors import Callback, Collect, Console, Csv, JsonLines, Parquet
from everstream.connectors.dead_letters import DeadLetters
from everstream.connectors.encoding import decode
from everstream.connectors.files.parts import (
    PENDING,
    PartFolder,
    PartTransaction,
    owner_of,
)
from everstream.core.permits import permit
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.sink import Committable, Delivery, Sink, SinkShard
from everstream.testing.sinks import check_sink, default_batches
from tests.connectors.writing import sink_shard, write_checkpoint

pytestmark = pytest.mark.usefixtures("quick_disk")

DATAFRAMES: dict[int, Batch] = {k: pl.DataFrame(batch) for k, batch in default_batches().items()}
MIXED: dict[int, Batch] = {
    k: DATAFRAMES[k] if k % 2 else batch for k, batch in default_batches().items()
}


def json_records(folder: str, sink_shard: SinkShard) -> Iterator[Any]:
    owner = owner_of(sink_shard.pipeline, sink_shard.operator)
    fs, path = fsspec.core.url_to_fs(folder)
    for name in fs.glob(f"{path}/part-{owner}-????-????????-g*.jsonl"):
        for line in fs.cat_file(name).decode().splitlines():
            yield json.loads(line)


def collected(sink: Sink, sink_shard: SinkShard) -> Iterator[Any]:
    for batch in sink.results(sink_shard.pipeline, sink_shard.operator, sink_shard.store) or []:
        yield from records_of(batch)


@pytest.mark.parametrize("batches", [default_batches(), MIXED], ids=["records", "mixed"])
def test_json_lines_is_exactly_once_through_every_crash(batches: dict[int, Batch]) -> None:
    check_sink(
        lambda place: JsonLines(f"{place}/out"),
        lambda _, sink_shard: json_records(str(Path(sink_shard.store).parent / "out"), sink_shard),
        batches=batches,
    )


@pytest.mark.parametrize("batches", [default_batches(), MIXED], ids=["records", "mixed"])
def test_collect_is_exactly_once_through_every_crash(batches: dict[int, Batch]) -> None:
    check_sink(lambda _: Collect(), collected, batches=batches)


def test_json_lines_is_exactly_once_on_a_filesystem_without_rename() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    check_sink(
        lambda place: JsonLines(f"{root}{place}/out"),
        lambda _, sink_shard: json_records(
            f"{root}{sink_shard.store.removesuffix('/store')}/out", sink_shard
        ),
    )


CALLED: list[Any] = []


def remember(record: Any) -> None:
    CALLED.append(record)


def test_callback_and_console_say_that_they_are_at_least_once() -> None:
    assert Callback.delivery is Delivery.AT_LEAST_ONCE
    assert Console.delivery is Delivery.AT_LEAST_ONCE


@pytest.mark.parametrize("batches", [default_batches(), DATAFRAMES])
def test_callback_is_called_with_every_record(batches: dict[int, Batch]) -> None:
    CALLED.clear()
    check_sink(lambda _: Callback(remember), lambda *_: CALLED, batches=batches)


def test_callback_can_take_whole_batches() -> None:
    seen: list[Batch] = []
    writer = Callback(seen.append, batches=True).open(sink_shard())
    writer.write([1, 2])
    writer.write(DATAFRAMES[1])
    assert seen[0] == [1, 2]
    assert seen[1] is DATAFRAMES[1]


def test_callback_refuses_what_cannot_be_called() -> None:
    with pytest.raises(UserError, match="needs a function, not str"):
        Callback("print")  # type: ignore[arg-type]


def test_console_prints_records_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Console(prefix="> ").open(sink_shard())
    writer.write(["a", (1, 2)])
    writer.write(pl.DataFrame({"n": [1], "t": ["x"]}))
    assert capsys.readouterr().out == "> a\n> (1, 2)\n> {'n': 1, 't': 'x'}\n"


def restored(transaction: Committable) -> Committable:
    """As another process reads it from a checkpoint, bound to where it was prepared."""
    assert isinstance(transaction, PartTransaction)
    return replace(pickle.loads(pickle.dumps(transaction)), folder=transaction.folder)


def test_part_files_are_named_after_pipeline_operator_shard_and_checkpoint(tmp_path: Path) -> None:
    transaction = write_checkpoint(JsonLines(tmp_path), [("the", 3), {"é": None}], checkpoint=12)
    assert [entry.name for entry in tmp_path.iterdir()] == [PENDING]
    transaction.commit(permit(12))
    file = tmp_path / "part-words.counts-0000-00000012-g1.jsonl"
    assert file.read_text() == '["the",3]\n{"é":null}\n'
    assert not list((tmp_path / PENDING).iterdir())


def test_a_zombie_cannot_show_what_was_given_up_beside_what_its_successor_shows(
    tmp_path: Path,
) -> None:
    sink = JsonLines(tmp_path)
    late = write_checkpoint(sink, ["given up"], checkpoint=2)
    successor = sink.open(sink_shard(generation=2))
    successor.recover([], permit(1))
    with pytest.raises(ConnectorError, match="are both missing"):
        late.commit(permit(2))
    assert not list(tmp_path.glob("part-*"))


def test_parts_with_names_of_earlier_versions_are_taken_back_and_counted(tmp_path: Path) -> None:
    for checkpoint in (1, 2):
        (tmp_path / f"part-words.counts-0000-{checkpoint:08d}.jsonl").write_text("1\n")
    sink = JsonLines(tmp_path)
    assert "2 part file" in str(sink.left_behind("words", "counts", ""))
    sink.open(sink_shard(generation=2)).recover([], permit(1))
    assert [part.name for part in tmp_path.glob("part-*")] == [
        "part-words.counts-0000-00000001.jsonl"
    ]
    sink.start_fresh("words", "counts", f"{tmp_path}/.store", replace=True)
    assert not list(tmp_path.glob("part-*"))


def test_a_transaction_of_an_earlier_version_is_committed_under_the_name_it_has(
    tmp_path: Path,
) -> None:
    transaction = write_checkpoint(JsonLines(tmp_path), [1])
    assert isinstance(transaction, PartTransaction)
    earlier = replace(transaction, part=replace(transaction.part, generation=None))
    JsonLines(tmp_path).open(sink_shard(generation=2)).recover([earlier], permit(1))
    assert [part.name for part in tmp_path.glob("part-*")] == [
        "part-words.counts-0000-00000001.jsonl"
    ]


def test_parts_are_looked_through_only_after_the_store_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    parts = PartFolder.parts
    monkeypatch.setattr(PartFolder, "parts", lambda *a: looked.append(a[1]) or parts(*a))
    JsonLines(tmp_path).open(sink_shard(generation=2)).recover([], permit(1, takes_back=False))
    assert not looked
    JsonLines(tmp_path).open(sink_shard(generation=3)).recover([], permit(1))
    assert looked == ["words.counts"]


def test_json_lines_does_not_write_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("precious")
    for path in (file, tmp_path / "*.txt"):
        with pytest.raises(UserError, match="writes into a folder"):
            JsonLines(path).start_fresh("words", "counts", "", replace=True)
        with pytest.raises(UserError, match="writes into a folder"):
            JsonLines(path).open(sink_shard())
    assert file.read_text() == "precious"


def test_a_fresh_start_leaves_what_others_wrote(tmp_path: Path) -> None:
    write_checkpoint(JsonLines(tmp_path), [1]).commit(permit(1))
    foreign = [tmp_path / "part-mine.jsonl", tmp_path / "notes.txt", tmp_path / PENDING / "x"]
    for file in foreign:
        file.write_text("mine")
    with pytest.raises(UserError, match="--fresh"):
        JsonLines(tmp_path).start_fresh("words", "counts", f"{tmp_path}/.store", replace=False)
    JsonLines(tmp_path).start_fresh("words", "counts", f"{tmp_path}/.store", replace=True)
    owner = tmp_path / PENDING / "words.counts.owner"
    left = [file for file in tmp_path.rglob("*") if file.is_file() and ".store" not in file.parts]
    assert sorted(left) == sorted([*foreign, owner])


def test_a_torn_pending_file_is_never_shown(tmp_path: Path) -> None:
    transaction = write_checkpoint(JsonLines(tmp_path), [1, 2, 3])
    (pending,) = (tmp_path / PENDING).iterdir()
    pending.write_bytes(pending.read_bytes()[:-1])
    with pytest.raises(ConnectorError, match="5 bytes, but 6 were written"):
        transaction.commit(permit(1))
    assert not list(tmp_path.glob("part-*"))


def test_output_that_was_removed_before_its_commit_is_missed(tmp_path: Path) -> None:
    transaction = write_checkpoint(JsonLines(tmp_path), [1, 2, 3])
    (pending,) = (tmp_path / PENDING).iterdir()
    pending.unlink()
    with pytest.raises(ConnectorError, match="both missing"):
        transaction.commit(permit(1))


SINKS_OF_FILES = {
    "json": lambda folder: JsonLines(folder),
    "csv": lambda folder: Csv(folder),
    "parquet": lambda folder: Parquet(folder),
    "collect": lambda _: Collect(),
    "dead letters": lambda _: DeadLetters(),
}


@pytest.mark.parametrize("kind", SINKS_OF_FILES)
def test_a_bit_that_flips_in_prepared_output_keeps_it_from_being_shown(
    tmp_path: Path, kind: str
) -> None:
    records: list[Any] = [{"n": n, "text": "some text"} for n in range(100)]
    if kind == "dead letters":
        records = [Rejected(record, "no good", "here") for record in records]
    transaction = write_checkpoint(SINKS_OF_FILES[kind](tmp_path), records, store=str(tmp_path))
    (pending,) = tmp_path.rglob(f"{PENDING}/*")
    data = bytearray(pending.read_bytes())
    data[len(data) // 2] ^= 1
    pending.write_bytes(data)
    with pytest.raises(ConnectorError, match=rf"{pending.name}' is damaged"):
        transaction.commit(permit(1))
    with pytest.raises(ConnectorError, match=rf"{pending.name}' is damaged.*everstream rewind"):
        heir = SINKS_OF_FILES[kind](tmp_path).open(sink_shard(2, str(tmp_path)))
        heir.recover([pickle.loads(pickle.dumps(transaction))], permit(1))
    pending.write_bytes(data[:-1])
    with pytest.raises(ConnectorError, match="bytes, but"):
        transaction.commit(permit(1))
    assert not list(tmp_path.rglob("part-*")), "nothing is shown"
    data[len(data) // 2] ^= 1
    pending.write_bytes(data)
    transaction.commit(permit(1))
    assert len(list(tmp_path.rglob("part-*"))) == 1


def test_output_prepared_by_a_version_without_checksums_is_committed(tmp_path: Path) -> None:
    transaction = write_checkpoint(JsonLines(tmp_path), [1, 2])
    old = {**transaction.__dict__, "file": None}
    del old["checksum"]
    earlier = PartTransaction.__new__(PartTransaction)
    earlier.__dict__.update(old)
    JsonLines(tmp_path).open(sink_shard(2)).recover([earlier], permit(1))
    assert JsonLines(tmp_path).open(0, 1).read() == [1, 2]


def test_a_restored_transaction_is_committed_in_the_folder_of_the_present_sink(
    tmp_path: Path,
) -> None:
    saved = pickle.dumps(write_checkpoint(JsonLines(tmp_path / "before"), [1, 2]))
    (tmp_path / "before").rename(tmp_path / "after")
    JsonLines(tmp_path / "after").open(sink_shard(2)).recover([pickle.loads(saved)], permit(1))
    assert JsonLines(tmp_path / "after").open(0, 1).read() == [1, 2]


def test_two_processes_may_commit_the_same_transaction_at_once(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path)
    for checkpoint in range(1, 31):
        transaction = write_checkpoint(sink, [checkpoint], checkpoint)
        copies = [restored(transaction) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda one: one.commit(permit(one.checkpoint)), copies))
    assert JsonLines(tmp_path).open(0, 1).read() == list(range(1, 31))


def test_an_older_generation_is_told_to_stop(tmp_path: Path) -> None:
    JsonLines(tmp_path).open(sink_shard(3)).recover([], permit(0))
    with pytest.raises(ConnectorError, match=r"generation 3 .* has taken over"):
        JsonLines(tmp_path).open(sink_shard(2)).recover([], permit(0))


def test_a_generation_that_recovers_twice_still_fences_off_older_ones(tmp_path: Path) -> None:
    for _ in range(2):
        JsonLines(tmp_path).open(sink_shard(3)).recover([], permit(0))
    with pytest.raises(ConnectorError, match="has taken over"):
        JsonLines(tmp_path).open(sink_shard(2)).recover([], permit(0))


def test_recovery_leaves_no_pending_files_behind(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        writer = JsonLines(tmp_path).open(sink_shard(generation))
        writer.recover([], permit(0))
        assert [file.name for file in (tmp_path / PENDING).iterdir()] == [
            f"words.counts-0000-g{generation}-fence"
        ]
        writer.write([1])
        assert writer.prepare(1) is not None
        writer.write([2])


def test_a_closed_writer_leaves_no_pending_files_behind(tmp_path: Path) -> None:
    writer = JsonLines(tmp_path).open(sink_shard())
    writer.write([1])
    writer.close()
    assert not list((tmp_path / PENDING).iterdir())


def test_a_torn_file_of_collected_output_is_named(tmp_path: Path) -> None:
    write_checkpoint(Collect(), [1, 2, 3], store=str(tmp_path)).commit(permit(1))
    (part,) = (tmp_path / "outputs" / "counts").glob("part-*")
    whole = part.read_bytes()
    for cut in range(len(whole)):
        part.write_bytes(whole[:cut])
        with pytest.raises(ConnectorError, match=part.name):
            Collect().results("words", "counts", str(tmp_path))


@pytest.mark.parametrize(
    "batch", [[1, 2, 3], pl.DataFrame({"n": [1, 2, 3]})], ids=["rows", "frame"]
)
def test_a_flipped_bit_in_collected_output_is_never_handed_back(
    tmp_path: Path, batch: Batch
) -> None:
    write_checkpoint(Collect(), batch, store=str(tmp_path)).commit(permit(1))
    (part,) = (tmp_path / "outputs" / "counts").glob("part-*")
    whole = part.read_bytes()
    for position in range(len(whole)):
        part.write_bytes(whole[:position] + bytes([whole[position] ^ 32]) + whole[position + 1 :])
        with pytest.raises(ConnectorError, match=part.name):
            Collect().results("words", "counts", str(tmp_path))


def test_collected_output_of_a_version_without_checksums_is_read() -> None:
    rows, frame = pickle.dumps([1, 2]), io.BytesIO()
    pl.DataFrame({"n": [3]}).write_ipc(frame)
    earlier = [(b"R", rows), (b"C", frame.getvalue())]
    data = b"".join(kind + len(body).to_bytes(8, "little") + body for kind, body in earlier)
    found = decode(data)
    assert found[0] == [1, 2]
    assert list(records_of(found[1])) == [{"n": 3}]


def test_collected_batches_come_back_by_checkpoint_then_shard(tmp_path: Path) -> None:
    for checkpoint, shard in ((2, 0), (1, 1), (10, 0), (1, 0)):
        writer = Collect().open(SinkShard("p", "out/put", shard, 2, 1, str(tmp_path)))
        writer.write([(checkpoint, shard)])
        writer.write(pl.DataFrame({"checkpoint": [checkpoint]}))
        transaction = writer.prepare(checkpoint)
        assert transaction is not None
        transaction.commit(permit(checkpoint))
    batches = Collect().results("p", "out/put", str(tmp_path))
    assert batches[::2] == [[(1, 0)], [(1, 1)], [(2, 0)], [(10, 0)]]
    assert [b["checkpoint"][0] for b in batches[1::2] if isinstance(b, pl.DataFrame)] == [
        1,
        1,
        2,
        10,
    ]


def test_records_of_local_classes_can_be_collected(tmp_path: Path) -> None:
    class Local:
        value = 5

    write_checkpoint(Collect(), [Local()], store=str(tmp_path)).commit(permit(1))
    (record,) = collected(Collect(), sink_shard(store=str(tmp_path)))
    assert record.value == 5


def test_records_that_do_not_pickle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must pickle"):
        write_checkpoint(Collect(), [threading.Lock()], store=str(tmp_path))


CHILD = """
import os, pickle, signal, sys
from everstream.connectors import Collect, JsonLines
from everstream.core.permits import permit
from everstream.pipeline.sink import SinkShard

kind, place, last = sys.argv[1:]
sink = JsonLines(place + "/out") if kind == "JsonLines" else Collect()
writer = sink.open(SinkShard("words", "counts", 0, 1, 1, place))
writer.recover([], permit(0))

def reached(step):
    if step == last:
        os.kill(os.getpid(), signal.SIGKILL)

writer.write([1, 2])
first = writer.prepare(1)
first.persist()
open(place + "/1.saved", "wb").write(pickle.dumps(first))
first.commit(permit(1))
writer.write([3, 4])
reached("write")
second = writer.prepare(2)
reached("prepare")
second.persist()
reached("persist")
open(place + "/2.saved", "wb").write(pickle.dumps(second))
reached("checkpoint")
second.commit(permit(2))
reached("commit")
"""


@pytest.mark.parametrize("step", ["write", "prepare", "persist", "checkpoint", "commit"])
@pytest.mark.parametrize("kind", ["JsonLines", "Collect"])
def test_output_is_exactly_once_after_the_process_is_killed(
    tmp_path: Path, kind: str, step: str
) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, kind, str(tmp_path), step], timeout=60)
    assert child.returncode == -signal.SIGKILL

    def visible() -> list[Any]:
        if kind == "Collect":
            return list(collected(Collect(), sink_shard(store=str(tmp_path))))
        return list(json_records(f"{tmp_path}/out", sink_shard()))

    assert visible() == ([1, 2, 3, 4] if step == "commit" else [1, 2])
    restored = len(list(tmp_path.glob("*.saved")))
    saved = [pickle.loads((tmp_path / f"{k}.saved").read_bytes()) for k in range(1, restored + 1)]
    sink: Sink = Collect() if kind == "Collect" else JsonLines(tmp_path / "out")
    writer = sink.open(sink_shard(2, str(tmp_path)))
    writer.recover(saved, permit(restored))
    if restored == 1:
        writer.write([3, 4])
        again = writer.prepare(2)
        assert again is not None
        again.persist()
        again.commit(permit(2))
    assert visible() == [1, 2, 3, 4]
