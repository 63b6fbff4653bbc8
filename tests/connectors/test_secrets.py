"""A password given to a connector is found nowhere but in the program that gave it."""

import os
import pickle
import stat
import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import everstream as es
from everstream.connectors.sql.postgres import connect
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.sink import Sink, SinkShard
from everstream.state import FsspecBlobs
from tests.connectors.kafka_reading import numbers, opened, read_records, topic_of
from tests.connectors.postgres_server import PostgresServer
from tests.kafka_server import KafkaServer

SECRET = "hunter2-and-more"


def holding_the_secret(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if SECRET.encode() in path.read_bytes()]


def others_may_use(folder: Path) -> list[Path]:
    """What in a folder, and the folder itself, is open to more than its owner."""
    everything = [folder, *folder.rglob("*")]
    return [path for path in everything if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_secret_is_neither_in_the_store_nor_in_the_journal_nor_in_the_logs(
    spark: SparkSession,
    postgres: PostgresServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dsn = f"{postgres.dsn} password={SECRET}"
    with psycopg.connect(postgres.dsn) as server:
        server.execute("CREATE TABLE secret_rows AS SELECT n FROM generate_series(1, 600) AS n")
    options = {"token": SECRET}
    feed = es.PostgresTable(dsn, "secret_rows", key="n", batch_rows=20)
    pipeline = es.Pipeline("secrets")
    rows = pipeline.source(
        es.Journal(es.Paced(feed, rate=1500), tmp_path / "journal", storage_options=options),
        name="read",
    )
    rows.sink(es.Postgres(dsn, "secret_copy"), name="postgres")
    rows.sink(es.JsonLines(tmp_path / "out", storage_options=options), name="files")
    rows.map(lambda row: 1 // (row["n"] % 100), on_error="dead_letter", name="divide").collect()
    result = pipeline.run(
        spark=spark,
        store=tmp_path / "store",
        checkpoint=es.Coordinated(every="100ms"),
        kill=["postgres@300"],
    )
    assert len(result.recoveries) == 1
    with psycopg.connect(postgres.dsn) as server:
        assert server.execute("SELECT count(*) FROM secret_copy").fetchall() == [(600,)]
    for folder in (tmp_path / "store", tmp_path / "journal", tmp_path / "out"):
        assert not holding_the_secret(folder)
    for folder in (tmp_path / "store", tmp_path / "journal"):
        assert not others_may_use(folder)
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err + caplog.text


@pytest.mark.parametrize("kind", ["postgres", "files"])
def test_a_transaction_that_waits_holds_no_secret(
    kind: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    sinks: dict[str, Sink] = {
        "postgres": es.Postgres(f"{postgres.dsn} password={SECRET}", "waiting_secret"),
        "files": es.JsonLines(tmp_path / "out", storage_options={"token": SECRET}),
    }
    writer = sinks[kind].open(SinkShard("p", "out", 0, 1, 1, str(tmp_path / "store")))
    writer.write([{"n": 1}])
    transaction = writer.prepare(1)
    assert SECRET.encode() not in pickle.dumps(transaction)
    assert SECRET not in repr(transaction)
    writer.close()


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:p@{SECRET}@localhost/db",
        f"postgresql://me:{SECRET}/x@localhost/db",
        f"postgresql://me:{SECRET}?x@localhost/db",
        f"postgresql://me:1#{SECRET}@localhost/db",
        f"postgres://me:{SECRET}@localhost:not-a-port/db?bad={SECRET}",
        f"host=localhost password=some {SECRET}",
        f"host=localhost password='{SECRET}",
        f"{SECRET}",
        f"host=127.0.0.1 port=1 password={SECRET}",
    ],
)
def test_a_wrong_connection_string_is_refused_without_its_password(dsn: str) -> None:
    with pytest.raises(EverstreamError) as refused:
        connect(dsn, "rows")
    shown: BaseException | None = refused.value
    while shown is not None:
        assert SECRET not in str(shown) + repr(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def test_the_source_of_a_table_does_not_show_its_password() -> None:
    source = es.PostgresTable(f"host=nowhere password={SECRET}", "rows", key="n")
    shown = f"{source!r} {vars(source)!r}"
    assert SECRET not in shown
    with pytest.raises(UserError, match="%40"):
        es.PostgresTable(f"postgresql://me:@{SECRET}@x/db", "rows", key="n").check()


def test_a_password_for_kafka_is_neither_stored_nor_shown(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(2))
    unused = {"sasl.password": SECRET, "ssl.key.password": SECRET}
    source = es.Kafka(kafka.bootstrap, topic, stop="latest", options=unused)
    reader = opened(source)
    assert read_records(reader, 2) == [0, 1]
    reader.close()
    assert SECRET.encode() not in pickle.dumps(reader.offset)
    assert SECRET not in f"{source!r} {vars(source)!r} {source.describe_offsets()}"
    monkeypatch.setattr("everstream.connectors.kafka.offsets.ANSWER_S", 0.3)
    for options in (
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"},
        {"security.protocol": SECRET},
    ):
        wrong = es.Kafka(kafka.bootstrap, topic, options={**options, "sasl.password": SECRET})
        with pytest.raises(EverstreamError) as refused:
            wrong.check()
        said = "".join(traceback.format_exception(refused.value)) + caplog.text
        assert SECRET not in said


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_a_store_is_closed_to_others_and_visible_output_is_not(tmp_path: Path) -> None:
    FsspecBlobs(str(tmp_path / "new" / "store")).write("objects/deep/a", b"1")
    assert not others_may_use(tmp_path / "new" / "store")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o755, "above it the umask counts"
    writer = es.JsonLines(tmp_path / "out").open(SinkShard("p", "o", 0, 1, 1, str(tmp_path)))
    writer.write([1])
    (pending,) = (tmp_path / "out" / "_pending").iterdir()
    assert stat.S_IMODE(pending.stat().st_mode) == 0o644
    writer.close()


@pytest.mark.usefixtures("usual_umask")
def test_a_store_whose_folder_was_opened_to_a_group_is_the_groups(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o770)
    FsspecBlobs(str(store)).write("objects/a", b"1")
    assert stat.S_IMODE((store / "objects").stat().st_mode) == 0o770
    assert stat.S_IMODE((store / "objects" / "a").stat().st_mode) == 0o660
