"""Somebody who can write to a signed store and has no key runs no code, and has no file touched.

Each kind of file that connectors keep in a store is forged with a pickle that would leave a file
behind if it were loaded.
"""

import json
import pickle
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.connectors.collect import batches_in, folder_of
from everstream.connectors.encoding import RECORDS, STRONG, encode, sum_of
from everstream.connectors.files.parts import PartName, PartTransaction, PendingName
from everstream.connectors.journal.log import _end_of_frame
from everstream.connectors.kafka.formats import decoder
from everstream.connectors.kafka.sink import KafkaTransaction
from everstream.connectors.spark.landed import Landed
from everstream.connectors.sql.tables import TableTransaction
from everstream.core.permits import permit
from everstream.errors import ConnectorError, StoreError, UserError
from everstream.pipeline.sink import Committable, Sink, SinkShard
from everstream.pipeline.source import END, Reader
from everstream.state.saved import dumps
from everstream.state.signing import StoreKey, StoreUrl, identity_of
from tests.connectors.lake_places import LakePlace
from tests.connectors.webhook_receiver import Receiver

KEY = StoreKey([b"planted-key-0123456789abcdef-0123456789"])
OTHER = StoreKey([b"another-key-0123456789abcdef-0123456789"])


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """What a bomb leaves behind; it must not be there in the end."""
    found = tmp_path / "code-was-run"
    yield found
    assert not found.exists()


@pytest.fixture
def store(tmp_path: Path) -> StoreUrl:
    return StoreUrl(str(tmp_path / "store"), KEY)


def test_the_bomb_goes_off_where_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "there")))
    assert (tmp_path / "there").exists()


def sink_shard(store: str, generation: int = 1) -> SinkShard:
    return SinkShard("words", "counts", 0, 1, generation, store)


def waiting(sink: Sink, batch: Any, store: str) -> Committable:
    """The output of one checkpoint, as the next process has it from that checkpoint."""
    writer = sink.open(sink_shard(store))
    writer.write(batch)
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    return pickle.loads(dumps(transaction))


def recovered(sink: Sink, transaction: Committable, store: str) -> None:
    sink.open(sink_shard(store, 2)).recover([transaction], permit(1))


def bomb_of(size_bytes: int, marker: Path) -> bytes:
    """A file of this size that holds a bomb where batches are."""
    payload = pickle.dumps([Bomb(marker)], protocol=5)
    room = size_bytes - 9 - len(payload)
    assert room >= 9, "give the sink more to write"
    padding = RECORDS + (room - 9).to_bytes(8, "little") + b"N." + bytes(room - 11)
    return RECORDS + len(payload).to_bytes(8, "little") + payload + padding


def only_file(folder: Path) -> Path:
    [found] = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith("fence")]
    return found


ROWS = pl.DataFrame({"word": [f"word {n}" for n in range(500)], "n": range(500)})


def test_forged_rows_that_wait_for_a_database_are_refused_before_they_are_decoded(
    tmp_path: Path, store: StoreUrl, marker: Path
) -> None:
    sink = es.Sqlite(tmp_path / "rows.db", "counts")
    sink.start_fresh("words", "counts", store, False)
    transaction = waiting(sink, ROWS, store)
    assert isinstance(transaction, TableTransaction)
    assert transaction.part.checksum is not None
    assert transaction.part.checksum.startswith(STRONG), "which nobody can forge"
    file = only_file(Path(store) / "waiting")
    whole = file.read_bytes()
    file.write_bytes(bomb_of(len(whole), marker))
    with pytest.raises(ConnectorError, match="damaged"):
        recovered(sink, transaction, store)
    file.write_bytes(whole)
    recovered(sink, transaction, store)
    with sqlite3.connect(tmp_path / "rows.db") as database:
        assert database.execute("SELECT count(*), sum(n) FROM counts").fetchone() == (500, 124750)


@pytest.mark.parametrize("kind", [TableTransaction, KafkaTransaction])
def test_output_that_waits_is_never_unpickled_even_where_its_checksum_fits(
    tmp_path: Path, marker: Path, kind: Any
) -> None:
    """In a store that is not signed everybody who can write there can make the checksum fit."""
    store = str(tmp_path / "store")
    sink = es.Sqlite(tmp_path / "rows.db", "counts")
    sink.start_fresh("words", "counts", store, False)
    part = waiting(sink, ROWS, store).part  # type: ignore[attr-defined]
    data = bomb_of(part.size_bytes, marker)
    only_file(Path(store) / "waiting").write_bytes(data)
    folder = sink.open(sink_shard(store))._folder  # type: ignore[attr-defined]
    forged = PartTransaction(
        part.pending, part.part, 1, len(data), sum_of(data), folder, written_here=False
    )
    transaction = (
        TableTransaction(forged, 1, "counts")
        if kind is TableTransaction
        else KafkaTransaction(forged, 1, "counts")
    )
    with pytest.raises(ConnectorError, match="not a whole batch of columns"):
        list(transaction.frames())


def test_forged_messages_that_wait_for_kafka_are_refused_before_they_are_decoded(
    tmp_path: Path, store: StoreUrl, marker: Path
) -> None:
    sink = es.Sqlite(tmp_path / "rows.db", "counts")
    part = waiting(sink, ROWS, store).part  # type: ignore[attr-defined]
    file = only_file(Path(store) / "waiting")
    bound = PartTransaction(
        part.pending,
        part.part,
        1,
        part.size_bytes,
        part.checksum,
        sink.open(sink_shard(store))._folder,  # type: ignore[attr-defined]
    )
    transaction = KafkaTransaction(bound, 1, "counts")
    assert pl.concat(list(transaction.frames())).equals(ROWS)
    file.write_bytes(bomb_of(part.size_bytes, marker))
    with pytest.raises(ConnectorError, match="damaged"):
        list(transaction.frames())
    file.write_bytes(encode(ROWS.reverse()))
    with pytest.raises(ConnectorError):
        list(transaction.frames())


def test_what_is_verified_is_what_is_decoded_though_the_file_changes_in_between(
    tmp_path: Path, store: StoreUrl, marker: Path
) -> None:
    sink = es.Sqlite(tmp_path / "rows.db", "counts")
    transaction = waiting(sink, ROWS, store)
    assert isinstance(transaction, TableTransaction)
    transaction.part.folder = sink.open(sink_shard(store))._folder  # type: ignore[attr-defined]
    with transaction.part.content() as content:
        only_file(Path(store) / "waiting").write_bytes(b"something else")
        assert sum_of(content.read(), strong=True) == transaction.part.checksum


def test_forged_requests_that_wait_are_not_posted(store: StoreUrl) -> None:
    with Receiver() as receiver:
        sink = es.Webhook(receiver.url, batch=100)
        sink.start_fresh("words", "counts", store, False)
        transaction = waiting(sink, [{"n": n} for n in range(3)], store)
        file = only_file(Path(store) / "waiting")
        file.write_bytes(file.read_bytes().replace(b"1", b"7"))
        with pytest.raises(ConnectorError, match="damaged"):
            recovered(sink, transaction, store)
        assert receiver.seen()["tries"] == {}


def test_output_of_an_earlier_version_that_waits_unsigned_is_refused_with_the_way_back(
    tmp_path: Path, store: StoreUrl
) -> None:
    sink = es.Sqlite(tmp_path / "rows.db", "counts")
    sink.start_fresh("words", "counts", store, False)
    transaction = waiting(sink, ROWS, store)
    assert isinstance(transaction, TableTransaction)
    transaction.part.checksum = sum_of(only_file(Path(store) / "waiting").read_bytes())
    with pytest.raises(ConnectorError, match="Let that version finish the run"):
        recovered(sink, transaction, store)


def collected(store: str) -> list[Any]:
    return es.Collect().results("words", "counts", store)


def committed_output(store: str, records: list[Any]) -> Path:
    sink = es.Collect()
    sink.start_fresh("words", "counts", store, True)
    recovered(sink, waiting(sink, records, store), store)
    return only_file(Path(store) / "outputs")


def test_collected_output_is_read_back_with_its_key_only(store: StoreUrl) -> None:
    records = [("a", 1), ("b", 2)]
    committed_output(store, records)
    assert collected(store) == [records]
    with pytest.raises(ConnectorError, match="another key"):
        collected(StoreUrl(store, OTHER))


def sealed(data: bytes) -> bytes:
    return data + b"$" + sum_of(data).encode()


@pytest.mark.parametrize(
    "forge",
    [lambda bomb: bomb, sealed, lambda bomb: b"R" + bomb[1:], lambda bomb: bomb + bytes(102)],
    ids=["bare", "sealed", "as the first versions wrote it", "with room for a signature"],
)
def test_forged_output_is_refused_before_it_is_unpickled(
    store: StoreUrl, marker: Path, forge: Callable[[bytes], bytes]
) -> None:
    file = committed_output(store, [("a", 1)])
    file.write_bytes(forge(encode([Bomb(marker)])))
    with pytest.raises(ConnectorError, match="is not trusted"):
        collected(store)


def test_a_bomb_under_the_signature_of_other_output_is_refused(
    store: StoreUrl, marker: Path
) -> None:
    file = committed_output(store, [("a", 1)])
    file.write_bytes(encode([Bomb(marker)]) + file.read_bytes()[-102:])
    with pytest.raises(ConnectorError, match="does not match"):
        collected(store)


def test_signed_output_is_believed_under_its_own_name_only(store: StoreUrl) -> None:
    file = committed_output(store, [("a", 1)])
    shutil.copy(file, file.with_name(file.name.replace("00000001", "00000002")))
    with pytest.raises(ConnectorError, match="does not match"):
        collected(store)


def test_output_is_not_signed_where_the_store_is_not(tmp_path: Path) -> None:
    committed_output(str(tmp_path / "store"), [("a", 1)])
    assert collected(str(tmp_path / "store")) == [[("a", 1)]]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("way", ["../{}", "{folder}/{}", "file://{folder}/{}", "a/../../{}"])
def test_a_forged_note_deletes_no_file_and_shows_none(
    tmp_path: Path, kind: str, signed: bool, way: str
) -> None:
    place = LakePlace(kind, tmp_path)
    if signed:
        place.store = StoreUrl(place.store, KEY)
    precious = tmp_path / "precious.txt"
    precious.write_text("do not delete")
    place.prepared(ROWS)
    aborted = only_file(Path(place.store) / "staged")
    transaction = place.prepared(ROWS, 2)
    needed = only_other(aborted)
    path = way.format(precious.name, folder=tmp_path)
    file = {"path": path, "size_bytes": 13, "rows": 1, "details": {}}
    for note, number in ((aborted, 1), (needed, 2)):
        said = {"checkpoint": number, "files": [file], "paths": [path]}
        note.write_bytes(json.dumps(said).encode())
    with pytest.raises(ConnectorError, match=r"is not trusted|which is not a data file"):
        place.open().open(place.sink_shard(2)).recover([transaction], permit(2))
    place.open().open(place.sink_shard(3)).recover([], permit(0))
    assert precious.read_text() == "do not delete"
    assert not aborted.exists() and not needed.exists(), "notes are cleaned up"
    assert place.rows() == []


def only_other(note: Path) -> Path:
    [found] = [path for path in note.parent.iterdir() if path != note]
    return found


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_signed_notes_are_committed_by_the_next_process(tmp_path: Path, kind: str) -> None:
    place = LakePlace(kind, tmp_path)
    place.store = StoreUrl(place.store, KEY)
    saved = pickle.loads(dumps(place.prepared(ROWS)))
    place.open().open(place.sink_shard(2)).recover([saved], permit(1))
    assert len(place.rows()) == 500


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_half_a_signed_note_that_a_crash_has_left_is_cleaned_up(tmp_path: Path, kind: str) -> None:
    place = LakePlace(kind, tmp_path)
    place.store = StoreUrl(place.store, KEY)
    place.prepared(ROWS)
    note = only_file(Path(place.store) / "staged")
    for length in (0, 50, 150):
        note.write_bytes(note.read_bytes()[:length])
        place.open().open(place.sink_shard(2)).recover([], permit(0))
        assert not note.exists()
        note.write_bytes(b"")


@pytest.mark.parametrize("name", [PendingName("../../x", 0, 1, "a"), PartName("../x", 0, 1)])
def test_no_saved_name_leads_out_of_its_folder(store: StoreUrl, name: Any) -> None:
    with pytest.raises(ConnectorError, match="not the name of a file"):
        folder_of(store, "counts").path_of(name)
    with pytest.raises(ConnectorError, match="not the name of a file"):
        folder_of(store, "counts").remove(name)
    if isinstance(name, PartName):
        with pytest.raises(ConnectorError, match="not the name of a file"):
            batches_in(folder_of(store, "counts"), name)


def journal_reader(folder: Path, store: str, generation: int, **options: Any) -> Reader:
    reader = es.Journal(es.FromList([("a", 1), ("b", 2)]), folder, **options).open(0, 1)
    reader.use_store(store)
    reader.fence(generation)
    return reader


def all_of(reader: Reader) -> list[Any]:
    records: list[Any] = []
    while (batch := reader.read()) is not END:
        records += batch or []
    reader.close()
    return records


def test_a_signed_journal_is_replayed_with_its_key_only(tmp_path: Path, store: StoreUrl) -> None:
    records = all_of(journal_reader(tmp_path / "journal", store, 1))
    assert all_of(journal_reader(tmp_path / "journal", store, 2)) == records == [("a", 1), ("b", 2)]
    for other in (StoreUrl(store, OTHER), StoreUrl(store, None)):
        with pytest.raises((ConnectorError, pickle.UnpicklingError)):
            all_of(journal_reader(tmp_path / "journal", other, 3))


@pytest.mark.parametrize("where", ["notes", "batch"])
@pytest.mark.parametrize("trusting", [False, True])
def test_a_forged_journal_is_refused_before_it_is_unpickled(
    tmp_path: Path, store: StoreUrl, marker: Path, where: str, trusting: bool
) -> None:
    """Also by who trusts unsigned frames, if somebody changes signed ones."""
    folder = tmp_path / "journal"
    all_of(journal_reader(folder, store, 1))
    forging = journal_reader(folder, StoreUrl(store, OTHER if trusting else None), 2)
    log = forging._log  # type: ignore[attr-defined]
    [segment] = log.segments()
    bomb = Bomb(marker)
    frame = (
        log.encoded(segment, 0, [("a", 1)], bomb, [])
        if where == "notes"
        else log.encoded(segment, 0, [bomb], 0, [])
    )
    Path(log.path_of(segment)).write_bytes(frame)
    Path(log.mark_of(segment)).unlink()
    with pytest.raises(ConnectorError, match="is not replayed"):
        all_of(journal_reader(folder, store, 2, trust_unsigned=trusting))


def test_frames_of_a_journal_cannot_change_places(tmp_path: Path, store: StoreUrl) -> None:
    feed = es.FromList([(n,) for n in range(4)], batch=1)
    reader = es.Journal(feed, tmp_path / "journal").open(0, 1)
    reader.use_store(store)
    assert len(all_of(reader)) == 4
    log = reader._log  # type: ignore[attr-defined]
    [segment] = log.segments()
    data = Path(log.path_of(segment)).read_bytes()
    size = _end_of_frame(data, 0)
    assert size is not None and _end_of_frame(data, size) == 2 * size
    first, second, rest = data[:size], data[size : 2 * size], data[2 * size :]
    Path(log.path_of(segment)).write_bytes(second + first + rest)
    with pytest.raises(ConnectorError, match="is not replayed"):
        all_of(journal_reader(tmp_path / "journal", store, 2))


def test_a_journal_from_before_signing_is_replayed_by_who_says_that_he_trusts_it(
    tmp_path: Path, store: StoreUrl
) -> None:
    folder = tmp_path / "journal"
    records = all_of(journal_reader(folder, StoreUrl(store, None), 1))
    with pytest.raises(ConnectorError, match="trust_unsigned=True"):
        all_of(journal_reader(folder, store, 2))
    assert all_of(journal_reader(folder, store, 2, trust_unsigned=True)) == records


def test_the_key_of_a_store_does_not_travel_with_its_address(store: StoreUrl) -> None:
    for copy in (pickle.loads(pickle.dumps(store)), pickle.loads(dumps(sink_shard(store))).store):
        assert copy == store and type(copy) is str


class NoFrame:
    """A DataFrame of Spark, as far as it is looked at before Spark is asked for anything."""

    isStreaming = True

    def toArrow(self) -> None:
        raise AssertionError("nobody asks for rows")


@pytest.mark.parametrize("source", [es.SparkStream, es.SparkDataFrame])
def test_rows_that_spark_keeps_unsigned_are_refused_in_a_signed_store(
    source: Any, store: StoreUrl
) -> None:
    frame: Any = NoFrame()
    with pytest.raises(UserError, match="trust_unsigned=True"):
        source(frame).before_run("words", "rows", store, False)
    with pytest.raises(AttributeError, match=r"sparkSession|writeStream"):  # Spark is asked
        source(frame, trust_unsigned=True).before_run("words", "rows", store, False)


@pytest.mark.parametrize("name", ["../x.parquet", "/etc/x", "a/b"])
def test_no_saved_name_of_a_landed_file_leads_out_of_its_batch(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConnectorError, match="not the name of a file"):
        Landed(str(tmp_path)).remove(1, name)


@pytest.mark.parametrize("value", ["bytes", "text", "json", "arrow"])
def test_kafka_values_are_parsed_and_never_unpickled(marker: Path, value: Any) -> None:
    reading = decoder(value, False, None, None, 1 << 20)
    with suppress(ValueError, pl.exceptions.PolarsError):
        reading.objects([pickle.dumps(Bomb(marker))])


@pytest.mark.parametrize("engine", ["tasks", "microbatch"])
def test_a_run_with_a_signed_store_signs_its_output_and_its_journal(
    tmp_path: Path, marker: Path, engine: Any
) -> None:
    key = tmp_path / "store.key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)

    def counted() -> es.Pipeline:
        feed = es.Journal(es.FromList([("a", n) for n in range(20)]), tmp_path / "journal")
        pipeline = es.Pipeline("signed")
        doubled = pipeline.source(feed).map(lambda pair: (pair[0], pair[1] * 2))
        doubled.sink(es.Collect(), name="out")
        rows = doubled.map(lambda pair: {"key": pair[0], "n": pair[1]})
        rows.sink(es.Delta(tmp_path / "table"), name="table")
        return pipeline

    options: dict[str, Any] = {"store": tmp_path / "store", "store_key": key, "engine": engine}
    options |= {"master": "local[2]", "progress": False}
    expected = [("a", 2 * n) for n in range(20)]
    assert sorted(counted().run(**options).collected("out")) == expected
    assert b"everstream signed 1" in only_segment(tmp_path / "journal").read_bytes()
    assert StoreKey.read(key).opened("identity", (tmp_path / "store/identity").read_bytes())
    [part, *_] = (tmp_path / "store" / "outputs").rglob("part-*")
    whole = part.read_bytes()
    part.write_bytes(sealed(encode([Bomb(marker)])))
    with pytest.raises(ConnectorError, match="is not trusted"):
        counted().run(**options)
    part.write_bytes(whole)
    assert sorted(counted().run(**options).collected("out")) == expected
    assert sorted(pl.read_delta(str(tmp_path / "table"))["n"]) == [n for _, n in expected]


def only_segment(journal: Path) -> Path:
    [found] = journal.rglob("segment-*")
    return found


def test_columns_that_shards_have_agreed_on_are_believed_with_their_signature_only(
    store: StoreUrl, tmp_path: Path
) -> None:
    sink = es.Parquet(f"{tmp_path}/out/")
    sink.open(sink_shard(store)).write([{"a": 1}])
    agreed = only_file(Path(store) / "columns" / "words.counts")
    agreed.write_bytes(agreed.read_bytes().replace(b"Int64", b"Int16"))
    with pytest.raises(StoreError, match=r"00000001\.json"):
        sink.open(sink_shard(store, 2)).write([{"a": 2}])


# The identity of the store.


def begun(sink: Sink, store: str) -> None:
    sink.start_fresh("words", "counts", store, replace=False)


@pytest.mark.parametrize("kind", ["files", "delta", "sqlite"])
def test_a_swapped_identity_makes_no_output_of_another_store_ours(
    tmp_path: Path, store: StoreUrl, kind: str
) -> None:
    """Without its signature the run would take over, and roll back, what the other store wrote."""
    other = str(tmp_path / "other")
    sinks: dict[str, Callable[[], Sink]] = {
        "files": lambda: es.JsonLines(tmp_path / "out"),
        "delta": lambda: es.Delta(tmp_path / "out"),
        "sqlite": lambda: es.Sqlite(tmp_path / "out.db", "counts"),
    }
    sink = sinks[kind]()
    begun(sink, other)
    waiting(sink, ROWS, other)
    begun(es.JsonLines(tmp_path / "mine"), store)
    identity = (Path(other) / "identity").read_bytes()
    for forged in (identity, OTHER.head("identity", identity) + identity):
        (Path(store) / "identity").write_bytes(forged)
        with pytest.raises(StoreError, match=r"identity of the store .* is not trusted"):
            sink.before_resume("words", "counts", store)
        with pytest.raises(StoreError, match=r"identity of the store .* is not trusted"):
            sink.start_fresh("words", "counts", store, replace=True)


def test_an_identity_that_an_earlier_version_left_unsigned_is_refused_with_what_to_do(
    tmp_path: Path, store: StoreUrl
) -> None:
    begun(es.JsonLines(tmp_path / "out"), str(store))
    with pytest.raises(StoreError, match=r"'identity' is not signed.*begin another store"):
        es.JsonLines(tmp_path / "out").before_resume("words", "counts", store)


def test_a_signed_identity_stays_and_is_read_with_its_key_only(
    tmp_path: Path, store: StoreUrl
) -> None:
    sink = es.JsonLines(tmp_path / "out")
    begun(sink, store)
    data = (Path(store) / "identity").read_bytes()
    assert KEY.opened("identity", data).decode() == identity_of(store)
    sink.before_resume("words", "counts", store)
    assert (Path(store) / "identity").read_bytes() == data
    with pytest.raises(StoreError, match="signed with another key"):
        sink.before_resume("words", "counts", StoreUrl(str(store), OTHER))
