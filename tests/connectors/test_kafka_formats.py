"""What the bytes of Kafka records become: values, keys, headers and times, broken ones included."""

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest

from everstream.connectors import Avro, Kafka
from everstream.connectors.kafka.formats import BROKEN, AvroDecoder, Json, unpacked_bytes
from everstream.errors import ConnectorError, EverstreamError, UserError
from everstream.pipeline.source import EndOfStream
from tests.connectors.kafka_reading import all_of, opened, read_until, topic_of
from tests.kafka_server import KafkaServer

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECRET = "hunter2-and-more"


def avro(record: dict[str, Any], schema: Any = None, number: int | None = None) -> bytes:
    buffer = io.BytesIO()
    if number is not None:
        buffer.write(b"\0" + number.to_bytes(4, "big"))
    fastavro.schemaless_writer(buffer, schema or SCHEMA, record)
    return buffer.getvalue()


def frame_of(source: Kafka) -> pl.DataFrame:
    """All there is, of a source that ends."""
    reader, frames = opened(source), list[pl.DataFrame]()
    while not isinstance(batch := reader.read(), EndOfStream):
        assert batch is None or isinstance(batch, pl.DataFrame)
        frames += [] if batch is None else [batch]
    reader.close()
    return pl.concat(frames)


@pytest.fixture(scope="module")
def topic(kafka: KafkaServer) -> str:
    """Three records: with everything, with little, and without a value."""
    name = topic_of(kafka)
    headers = [("by", b"web"), ("by", None)]
    kafka.produce(
        name,
        [
            {"value": b'{"n": 1}', "key": b"a", "headers": headers, "timestamp": 1_500},
            {"value": b'{\n "n": 2\n}', "timestamp": 2_500},
            {"key": b"a", "timestamp": 3_500},
        ],
    )
    return name


ROW = {
    "value": {"n": 1},
    "key": "a",
    "headers": [("by", b"web"), ("by", None)],
    "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
    "partition": 0,
    "offset": 0,
}


def test_records_are_values_or_rows_with_all_that_a_record_has(
    kafka: KafkaServer, topic: str
) -> None:
    assert all_of(Kafka(kafka.bootstrap, topic, stop="latest")) == [{"n": 1}, {"n": 2}, None]
    rows = all_of(Kafka(kafka.bootstrap, topic, stop="latest", fields=[*ROW, "topic"]))
    assert rows[0] == {**ROW, "topic": topic}
    assert rows[1]["key"] is None and rows[1]["headers"] == []
    assert rows[2]["value"] is None and rows[2]["offset"] == 2
    raw = Kafka(kafka.bootstrap, topic, value="bytes", key="bytes", fields=["key", "value"])
    reader = opened(raw)
    first = read_until(reader, bool)[0]
    reader.close()
    assert first == {"key": b"a", "value": b'{"n": 1}'}


def test_columns_have_the_same(kafka: KafkaServer, topic: str) -> None:
    names = ["key", "headers", "timestamp", "partition", "offset"]
    source = Kafka(kafka.bootstrap, topic, schema={"n": pl.Int64}, fields=names, stop="latest")
    frame = frame_of(source)
    assert frame.columns == source.column_names() == ["n", *names]
    assert frame["n"].to_list() == [1, 2, None]
    assert frame["timestamp"].to_list()[0] == ROW["timestamp"]
    assert frame["headers"].to_list() == [
        [{"name": "by", "value": b"web"}, {"name": "by", "value": None}],
        [],
        [],
    ]
    text = Kafka(kafka.bootstrap, topic, value="text", columns=True, stop="latest")
    assert frame_of(text).rows() == [('{"n": 1}',), ('{\n "n": 2\n}',), (None,)]
    keys = Kafka(kafka.bootstrap, topic, value="bytes", columns=True, fields=["key"], stop="latest")
    assert frame_of(keys).rows() == [("a",), (None,), ("a",)] and keys.column_names() == ["key"]


def test_arrow_tables_are_read_row_by_row(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    tables = [pl.DataFrame({"n": [1, 2]}), pl.DataFrame({"n": [3]})]
    values = [table.write_ipc_stream(None).getvalue() for table in tables]
    kafka.produce(topic, [{"value": values[0], "key": b"a"}, {}, {"value": values[1]}])
    source = Kafka(kafka.bootstrap, topic, value="arrow", fields=["key"], stop="latest")
    assert frame_of(source).rows() == [(1, "a"), (2, "a"), (3, None)]


def test_what_cannot_be_read_fails_is_skipped_or_kept(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    values = [b'{"n": 1}', b"oops", b'{"n": 2}', b'{"n": "x"}']
    kafka.produce(topic, [{"value": value} for value in values])
    with pytest.raises(
        ConnectorError, match=rf"topic '{topic}', partition 0, offset 1: .*\n.*oops"
    ):
        all_of(Kafka(kafka.bootstrap, topic, stop="latest"))
    for source, good, bad in (
        (Kafka(kafka.bootstrap, topic, stop="latest", on_error="skip"), 3, [b"oops"]),
        (
            Kafka(
                kafka.bootstrap,
                topic,
                stop="latest",
                on_error="dead_letter",
                schema={"n": pl.Int64},
            ),
            2,
            [b"oops", b'{"n": "x"}'],
        ),
    ):
        reader = opened(source)
        assert len(read_until(reader, lambda _: False)) == good
        rejected = reader.take_rejected()
        assert [each.record for each in rejected] == bad
        assert rejected[0].place == f"topic '{topic}', partition 0, offset 1"
        assert reader.take_rejected() == []
        assert isinstance(reader.read(), EndOfStream)
        reader.close()


def test_a_key_that_is_no_text_says_how_to_read_it(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, [{"value": b"1", "key": b"\xff"}])
    with pytest.raises(ConnectorError, match=r'offset 0: the key .* key="bytes"'):
        all_of(Kafka(kafka.bootstrap, topic, stop="latest", fields=["key"]))


def test_json_in_columns_that_is_none_is_not_taken_for_other_rows() -> None:
    columns = Json(pl.Schema({"n": pl.Int64}))
    for values in ([b""], [b'{"n": 1}', b"", b'{"n": 2}'], [b'{"n": 1}\n{"n": 2}', b""]):
        with pytest.raises(BROKEN):
            columns.frame(list(values))
    assert Json(None).objects([b"NaN", None])[1] is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"value": "xml"}, "avro"),
        ({"key": "json"}, "bytes"),
        ({"columns": True}, "schema="),
        ({"value": "text", "schema": {"n": pl.Int64}}, "takes none"),
        ({"fields": ["when"]}, "timestamp"),
        ({"fields": "value"}, "list"),
        ({"schema": {"offset": pl.Int64}, "fields": ["offset"]}, "both a column"),
        ({"value": "avro"}, "must be given together"),
        ({"event_time": True}, "timestamp"),
        ({"idle_after": "1s"}, "event_time=True"),
        ({"isolation": "dirty"}, "read_committed"),
        ({"on_error": "ignore"}, "dead_letter"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Kafka("localhost:9092", "orders", **options)


def test_avro_with_a_schema_given_by_hand(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, [{"value": avro({"id": 7})}, {"key": b"gone"}, {"value": avro({"id": 8})}])
    given = Avro(json.dumps(SCHEMA))
    source = Kafka(kafka.bootstrap, topic, value="avro", avro=given, stop="latest")
    assert all_of(pickle.loads(pickle.dumps(source))) == [{"id": 7}, None, {"id": 8}]
    columns = Kafka(
        kafka.bootstrap, topic, value="avro", avro=given, schema={"id": pl.Int64}, stop="latest"
    )
    assert frame_of(columns).rows() == [(7,), (None,), (8,)]


def test_avro_values_with_a_header_and_broken_ones() -> None:
    framed = AvroDecoder(Avro(SCHEMA, framed=True), None)
    assert framed.objects([avro({"id": 7}, number=99)]) == [{"id": 7}]
    plain = AvroDecoder(Avro(SCHEMA), None)
    for decoder, value in (
        (framed, avro({"id": 7})),
        (plain, b""),
        (plain, avro({"id": 7}) + b"x"),
    ):
        with pytest.raises(BROKEN):
            decoder.objects([value])
    with pytest.raises(UserError, match="cannot be read"):
        Avro('{"type": "nothing"}')
    with pytest.raises(UserError, match="registry"):
        Avro()


OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


ANSWERS: dict[str, dict[str, Any]] = {
    "/schemas/ids/41": {"schema": json.dumps(OLD)},
    "/schemas/ids/42": {"error_code": 40403, "message": "Schema 42 not found"},
    "/schemas/ids/43": {"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"},
    "/schemas/ids/44": {"schema": json.dumps({"type": "nothing"})},
    "/schemas/ids/45": {"schema": json.dumps({"type": "array", "items": "null"})},
}


class Registry(BaseHTTPRequestHandler):
    """The one call of a schema registry that a reader makes."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers["Authorization"]))
        answer = ANSWERS.get(self.path, {})
        self.send_response(200 if "schema" in answer else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def registry() -> Iterator[str]:
    Registry.asked = []
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_registry_is_asked_once_for_the_schema_a_value_was_written_with(registry: str) -> None:
    default = {"name": "paid", "type": "boolean", "default": False}
    wanted = {**SCHEMA, "fields": [*SCHEMA["fields"], default]}
    decoder = AvroDecoder(Avro(wanted, registry=f"http://me:{SECRET}@{registry}"), None)
    values = [avro({"id": n}, OLD, 41) for n in (1, 2)]
    assert decoder.objects(list(values)) == [{"id": 1, "paid": False}, {"id": 2, "paid": False}]
    ((path, password),) = Registry.asked
    assert path == "/schemas/ids/41" and password is not None


def test_a_registry_that_gives_no_answer_or_is_not_there_is_named_without_its_password(
    registry: str,
) -> None:
    for address, why in ((registry, "HTTP 404"), ("127.0.0.1:1", "refused")):
        given = Avro(registry=f"http://me:{SECRET}@{address}")
        with pytest.raises(EverstreamError, match=f"http://{address} does not .* 5: .*{why}") as no:
            AvroDecoder(given, None).objects([avro({"id": 1}, number=5)])
        assert SECRET not in f"{no.value} {no.value!r} {given!r}"


@pytest.mark.parametrize(
    ("number", "why"), [(42, "has no schema 42"), (43, "type PROTOBUF"), (44, "not Avro")]
)
def test_a_value_whose_schema_nobody_knows_is_left_to_on_error(
    kafka: KafkaServer, registry: str, number: int, why: str
) -> None:
    topic = topic_of(kafka)
    values = [avro({"id": n}, OLD, 41 if n != 2 else number) for n in (1, 2, 3)]
    kafka.produce(topic, [{"value": value} for value in values])
    given = Avro(registry=f"http://{registry}")
    with pytest.raises(ConnectorError, match=f"offset 1: .*{why}"):
        all_of(Kafka(kafka.bootstrap, topic, value="avro", avro=given, stop="latest"))
    Registry.asked = []
    reader = opened(
        Kafka(
            kafka.bootstrap, topic, value="avro", avro=given, stop="latest", on_error="dead_letter"
        )
    )
    assert read_until(reader, lambda _: False) == [{"id": 1}, {"id": 3}]
    ((record, error),) = [(each.record, each.error) for each in reader.take_rejected()]
    assert record == values[1] and why in error
    reader.close()
    paths = [path for path, _ in Registry.asked]
    assert paths.count(f"/schemas/ids/{number}") == 1, "asked again and again for what it lacks"


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "f", "type": "null"}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": EMPTY},
        {"type": "map", "values": {"type": "array", "items": {"type": "null"}}},
        ["null", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}],
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": EMPTY},
                {"name": "b", "type": {"type": "array", "items": "Empty"}},
            ],
        },
    ],
)
def test_an_avro_schema_by_which_a_short_value_can_fill_memory_is_refused(schema: Any) -> None:
    """Ten bytes are enough for a list of 2**62 Nones."""
    with pytest.raises(UserError, match="items that take no bytes"):
        Avro(schema)


def test_an_avro_schema_of_a_registry_by_which_a_value_can_fill_memory_is_refused(
    registry: str,
) -> None:
    decoder = AvroDecoder(Avro(registry=f"http://{registry}"), None)
    count = (1 << 63).to_bytes(9, "little")
    with pytest.raises(ValueError, match=r"schema 45 .*items that take no bytes"):
        decoder.objects([b"\0" + (45).to_bytes(4, "big") + count])


def test_an_avro_schema_that_refers_to_itself_is_read() -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [
            {"name": "n", "type": "int"},
            {"name": "below", "type": {"type": "array", "items": "Tree"}},
        ],
    }
    value = {"n": 1, "below": [{"n": 2, "below": []}]}
    assert AvroDecoder(Avro(tree), None).objects([avro(value, tree)]) == [value]


DEEP = {"type": "record", "name": "R", "fields": [{"name": "f", "type": "double"}]}


def test_bytes_that_no_avro_reader_understands_are_broken_values() -> None:
    decoder = AvroDecoder(Avro(DEEP), None)
    for value in (b"\x01", b"\x00" * 3):
        with pytest.raises(BROKEN):
            decoder.objects([value])


def test_a_key_that_is_no_text_is_left_to_on_error(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, [{"value": b"1", "key": b"\xff"}, {"value": b"2", "key": b"a"}])
    reader = opened(
        Kafka(kafka.bootstrap, topic, stop="latest", fields=["value", "key"], on_error="skip")
    )
    assert read_until(reader, lambda _: False) == [{"value": 2, "key": "a"}]
    (rejected,) = reader.take_rejected()
    assert rejected.record == b"1" and "is not text" in rejected.error
    reader.close()


def ipc(frame: pl.DataFrame, compression: Any = "zstd") -> bytes:
    return frame.write_ipc_stream(None, compression=compression).getvalue()


def nulls(rows: int) -> bytes:
    """A table of nothing, which takes no room on the wire however long it is."""
    table = pa.table({"n": pa.nulls(rows)})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


BOMBS = {
    "zeros": ipc(pl.DataFrame({"n": pl.zeros(1_000_000, dtype=pl.Int64, eager=True)})),
    "zeros in lz4": ipc(
        pl.DataFrame({"n": pl.zeros(1_000_000, dtype=pl.Int64, eager=True)}), "lz4"
    ),
    "nulls": nulls(1 << 22),
    "one text often": ipc(
        pl.DataFrame({"n": pl.Series(["x" * 100_000], dtype=pl.Categorical)}).select(
            pl.col("n").repeat_by(1_000).explode()
        )
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_an_arrow_value_that_unpacks_to_too_much_is_left_to_on_error(
    kafka: KafkaServer, kind: str
) -> None:
    topic = topic_of(kafka)
    table = ipc(pl.DataFrame({"n": [1, 2]}))
    kafka.produce(topic, [{"value": value} for value in (table, BOMBS[kind], table)])
    options: dict[str, Any] = {"value": "arrow", "stop": "latest", "max_record_bytes": 1_000_000}
    with pytest.raises(ConnectorError, match=r"offset 1: .*unpacks to .* max_record_bytes=1,000,"):
        frame_of(Kafka(kafka.bootstrap, topic, **options))
    reader = opened(Kafka(kafka.bootstrap, topic, on_error="dead_letter", **options))
    assert read_until(reader, lambda _: False) == [{"n": 1}, {"n": 2}] * 2
    assert [each.record for each in reader.take_rejected()] == [BOMBS[kind]]
    reader.close()


def test_arrow_values_that_are_large_together_are_unpacked_some_at_a_time(
    kafka: KafkaServer,
) -> None:
    topic = topic_of(kafka)
    value = ipc(pl.DataFrame({"n": pl.zeros(10_000, dtype=pl.Int64, eager=True)}))
    kafka.produce(topic, [{"value": value}] * 20)
    reader = opened(
        Kafka(kafka.bootstrap, topic, value="arrow", stop="latest", max_record_bytes=200_000)
    )
    sizes, offsets = list[int](), list[int]()
    while not isinstance(batch := reader.read(), EndOfStream):
        if batch is not None:
            sizes.append(len(batch))
            ((at, _, _),) = [place[:3] for place in reader.offset.places.values()]
            offsets.append(at)
    assert sum(sizes) == 200_000 and max(sizes) == 20_000
    assert offsets == [2 * n for n in range(1, 11)], "an offset behind what was held back"
    reader.close()


def test_the_unpacked_size_is_told_before_anything_is_unpacked() -> None:
    frame = pl.DataFrame(
        {
            "n": range(1_000),
            "t": ["some text"] * 1_000,
            "l": [[1, 2]] * 1_000,
            "s": [{"a": 1.5, "b": "x"}] * 1_000,
        }
    )
    size = unpacked_bytes(ipc(frame, "uncompressed"))
    assert frame.estimated_size() <= size <= 2 * frame.estimated_size()
    for compression in ("lz4", "zstd"):
        assert unpacked_bytes(ipc(frame, compression)) == size
    for broken in (b"\xff" * 64, b"no table at all"):
        with pytest.raises(ValueError, match="not an Arrow IPC stream"):
            unpacked_bytes(broken)
