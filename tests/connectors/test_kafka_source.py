"""Kafka as a source, against a real broker: the suite, where it begins and ends, what it refuses."""

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from everstream.connectors import Kafka
from everstream.connectors.kafka.offsets import KafkaOffset, owner
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.source import EndOfStream
from everstream.testing.sources import check_source
from tests.connectors.kafka_reading import (
    all_of,
    numbers,
    opened,
    read_records,
    read_until,
    topic_of,
)
from tests.kafka_server import KafkaServer

WHERE = ("value", "partition", "offset")


def test_the_source_suite(kafka: KafkaServer) -> None:
    topic = topic_of(kafka, 3)
    kafka.produce(topic, numbers(60, 3))
    expected = [{"value": n, "partition": n % 3, "offset": n // 3} for n in range(60)]
    check_source(
        lambda: Kafka(kafka.bootstrap, topic, stop="latest", fields=WHERE, batch_records=7),
        expected=expected,
        shards=(1, 2),
        redistributes=True,
        lane=lambda record: record["partition"],
    )


def test_the_source_suite_in_columns_with_one_partition_in_one_order(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(30))
    check_source(
        lambda: Kafka(
            kafka.bootstrap, topic, value="text", columns=True, stop="latest", batch_records=5
        ),
        expected=[{"value": str(n)} for n in range(30)],
        shards=(1, 2),
        redistributes=True,
    )


def test_partitions_are_dealt_out_to_all_shards() -> None:
    for shards in (1, 2, 3, 4):
        hands = [owner(("orders", number), shards) for number in range(12)]
        assert [hands.count(shard) for shard in range(shards)] == [12 // shards] * shards


def test_it_begins_and_ends_where_it_is_told(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, ({"value": b"%d" % n, "timestamp": 1000 * (n + 1)} for n in range(10)))

    def read(**bounds: Any) -> list[Any]:
        return all_of(Kafka(kafka.bootstrap, topic, **bounds))

    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    assert read(stop="latest") == list(range(10))
    assert read(start="latest", stop="latest") == []
    assert read(start=at(4), stop="latest") == list(range(3, 10))
    assert read(start=at(99), stop="latest") == []
    assert read(stop=at(4)) == [0, 1, 2]
    assert read(stop=at(3.5)) == [0, 1, 2]
    assert read(start={0: 8}, stop="latest") == [8, 9]
    assert read(start={0: 2}, stop={0: 4}) == [2, 3]
    assert read(start={(topic, 0): 2}, stop={(topic, 0): 2}) == []


class Slowly:
    """A client that was not asked for long: gives all there is, ends of partitions included, at once."""

    def __init__(self, consumer: Any, partitions: int) -> None:
        self._consumer = consumer
        self._partitions = partitions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, most: int, timeout_s: float) -> list[Any]:
        found: list[Any] = []
        while sum(message.error() is not None for message in found) < self._partitions:
            found += self._consumer.consume(most, 0.1)
        self._partitions = 0
        return found


def test_records_that_come_together_with_the_end_of_their_partition_are_not_lost(
    kafka: KafkaServer,
) -> None:
    topic = topic_of(kafka, 2)
    kafka.produce(topic, numbers(20, 2))
    reader = opened(Kafka(kafka.bootstrap, topic, stop="latest"))
    while reader._consumer is None:  # type: ignore[attr-defined]
        reader._look_around()  # type: ignore[attr-defined]
    reader._consumer = Slowly(reader._consumer, 2)  # type: ignore[attr-defined]
    assert sorted(read_records(reader, 20)) == list(range(20))
    assert isinstance(reader.read(), EndOfStream)
    reader.close()


def test_latest_is_where_the_run_began_not_where_a_shard_opens_it(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(3))
    source = Kafka(kafka.bootstrap, topic, start="latest")
    source.check()
    kafka.produce(topic, numbers(2, start=3))
    shipped = pickle.loads(pickle.dumps(source))
    reader = shipped.open(0, 1)
    assert read_records(reader, 2) == [3, 4]
    reader.close()


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ({"start": "newest"}, "earliest"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),
        ({"start": {0: -1}}, "offset"),
        ({"start": {7: 1}}, "no .*7"),
        ({"start": {0: 99}}, "0 to 4, but not 99"),
        ({"stop": "earliest"}, "latest"),
        ({"stop": {}}, "is missing"),
    ],
)
def test_a_bound_that_cannot_be_is_refused(
    kafka: KafkaServer, bounds: dict[str, Any], problem: str
) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(4))
    with pytest.raises(UserError, match=problem):
        Kafka(kafka.bootstrap, topic, **bounds).check()


@contextmanager
def transaction(kafka: KafkaServer, topic: str, values: range) -> Iterator[Any]:
    from confluent_kafka import Producer

    client = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    client.init_transactions(60)
    client.begin_transaction()
    for value in values:
        client.produce(topic, b"%d" % value, partition=0)
    client.flush(60)
    yield client


def test_of_transactions_only_what_was_committed_is_read(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    with transaction(kafka, topic, range(3)) as client:
        client.commit_transaction(60)
    with transaction(kafka, topic, range(100, 103)) as client:
        client.abort_transaction(60)
    with transaction(kafka, topic, range(3, 6)) as client:
        client.commit_transaction(60)
    with transaction(kafka, topic, range(200, 203)) as client:
        client.abort_transaction(60)
    source = Kafka(kafka.bootstrap, topic, stop="latest", fields=["value", "offset"])
    rows = all_of(source)
    assert [row["value"] for row in rows] == list(range(6))
    dirty = Kafka(kafka.bootstrap, topic, stop="latest", isolation="read_uncommitted")
    assert sorted(all_of(dirty)) == [*range(6), *range(100, 103), *range(200, 203)]


def test_what_is_in_an_open_transaction_is_waited_for(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(2))
    with transaction(kafka, topic, range(2, 4)) as client:
        assert all_of(Kafka(kafka.bootstrap, topic, stop="latest")) == [0, 1]
        reader = opened(Kafka(kafka.bootstrap, topic))
        assert read_records(reader, 2) == [0, 1]
        client.commit_transaction(60)
        assert read_records(reader, 2) == [2, 3]
        reader.close()


def test_new_partitions_and_topics_that_match_are_found(kafka: KafkaServer) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = topic_of(kafka)
    source = Kafka(kafka.bootstrap, f"^{topic}(-.*)?$", fields=["value", "topic"], discover="20ms")
    reader = opened(source)
    kafka.produce(topic, numbers(2))
    assert [row["value"] for row in read_records(reader, 2)] == [0, 1]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    kafka.produce(topic, ({"value": b"%d" % n, "partition": n} for n in (1, 2)))
    assert sorted(row["value"] for row in read_records(reader, 2)) == [1, 2]
    kafka.create_topic(f"{topic}-more", 1)
    kafka.produce(f"{topic}-more", numbers(1, start=7))
    assert read_records(reader, 1) == [{"value": 7, "topic": f"{topic}-more"}]
    offset = reader.offset
    reader.close()
    kafka.create_topic(f"{topic}-last", 2)
    kafka.produce(f"{topic}-last", numbers(2, 2, start=8))
    again = [opened(source, shard, 2) for shard in (0, 1)]
    assert set(offset.places) == {(topic, 0), (topic, 1), (topic, 2), (f"{topic}-more", 0)}
    for shard, reader in enumerate(again):
        reader.seek(offset.of_shard(shard, 2))
        assert [row["value"] for row in read_records(reader, 1)] in ([8], [9])
        reader.close()


def test_offsets_are_committed_to_the_group_for_others_to_see(kafka: KafkaServer) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic = topic_of(kafka)
    kafka.produce(topic, numbers(5))
    reader = opened(Kafka(kafka.bootstrap, topic, group="shown", batch_records=1))
    assert read_records(reader, 2) == [0, 1]
    offset = reader.offset
    read_records(reader, 3)
    reader.stable(offset)
    reader.close()
    other = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "shown"})
    try:
        (place,) = other.committed([TopicPartition(topic, 0)], 60)
        assert place.offset == 2
    finally:
        other.close()


def test_a_topic_that_is_not_there_is_refused(kafka: KafkaServer) -> None:
    with pytest.raises(UserError, match=f"no topic 'nowhere' at {kafka.bootstrap}"):
        Kafka(kafka.bootstrap, "nowhere").check()
    with pytest.raises(UserError, match="matches"):
        Kafka(kafka.bootstrap, "^nowhere.*", stop="latest").check()
    waiting = Kafka(kafka.bootstrap, "^nowhere.*")
    waiting.check()
    assert "waits" in (waiting.waits_for() or "")


def test_brokers_out_of_reach_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstream.connectors.kafka.offsets.ANSWER_S", 0.3)
    with pytest.raises(ConnectorError, match=r"Kafka at 127\.0\.0\.1:1 cannot be reached"):
        Kafka("127.0.0.1:1", "orders").check()


def delete_before(kafka: KafkaServer, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    where = TopicPartition(topic, 0, offset)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([where])[where].result(60)


def test_records_that_retention_deleted_since_the_checkpoint_are_not_skipped(
    kafka: KafkaServer,
) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(10))
    source = Kafka(kafka.bootstrap, topic, batch_records=1)
    reader = opened(source)
    read_records(reader, 4)
    saved = pickle.dumps(reader.offset)
    reader.close()
    delete_before(kafka, topic, 4)
    reader = opened(source)
    reader.seek(pickle.loads(saved))
    assert read_records(reader, 6) == list(range(4, 10))
    delete_before(kafka, topic, 6)
    reader.seek(pickle.loads(saved))
    with pytest.raises(UserError, match=r"from offset 4 on were deleted .* now is 6.*--fresh"):
        read_records(reader, 1)
    reader.close()


def test_records_that_retention_deletes_under_a_reader_are_not_skipped(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(5))
    few = {"queued.min.messages": 1, "fetch.message.max.bytes": 1}
    reader = opened(Kafka(kafka.bootstrap, topic, batch_records=1, options=few))
    assert read_records(reader, 1) == [0]
    kafka.produce(topic, ({"value": b"9" * 100_000} for _ in range(300)))
    delete_before(kafka, topic, 305)
    kafka.produce(topic, numbers(1))
    with pytest.raises(UserError, match="no longer exists"):
        read_records(reader, 400)
    reader.close()


def test_a_topic_that_was_made_anew_is_refused(kafka: KafkaServer) -> None:
    from confluent_kafka.admin import AdminClient

    topic = topic_of(kafka)
    kafka.produce(topic, numbers(3))
    source = Kafka(kafka.bootstrap, topic)
    reader = opened(source)
    read_records(reader, 3)
    offset = reader.offset
    reader.close()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic], operation_timeout=60)[topic].result(60)
    while topic in admin.list_topics(timeout=60).topics:
        time.sleep(0.01)
    kafka.create_topic(topic)
    kafka.produce(topic, numbers(9))
    reader = opened(source)
    reader.seek(offset)
    with pytest.raises(UserError, match="recreated since the checkpoint"):
        read_records(reader, 1)
    reader.close()


def test_a_topic_that_lost_partitions_or_records_is_refused(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(3))
    reader = opened(Kafka(kafka.bootstrap, topic))
    (number,) = reader.offset.topics.values()
    for partition, position, problem in (
        (0, 4, "ends at offset 3"),
        (1, 0, "no longer has partition 1"),
    ):
        reader.seek(KafkaOffset({topic: number}, {(topic, partition): (position, None, 0)}))
        with pytest.raises(UserError, match=problem):
            read_records(reader, 1)
    reader.close()


def test_a_source_that_ended_stays_at_its_end(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, numbers(3))
    reader = opened(Kafka(kafka.bootstrap, topic, stop="latest"))
    kafka.produce(topic, numbers(3, start=3))
    assert read_until(reader, lambda _: False) == [0, 1, 2]
    offset = reader.offset
    assert isinstance(reader.read(), EndOfStream)
    reader.seek(offset)
    assert read_until(reader, lambda _: False) == []
    reader.close()


def test_options_that_the_source_decides_are_refused() -> None:
    with pytest.raises(UserError, match=r"group\.id.*group="):
        Kafka("localhost:9092", "orders", options={"group.id": "mine"})
    with pytest.raises(UserError, match="twice"):
        Kafka("localhost:9092", ["a", "a"])


@pytest.mark.usefixtures("kafka")  # which installs it where it is missing
def test_a_log_that_was_cut_and_written_anew_is_refused(tmp_path: Path) -> None:
    """As after an unclean election: the offset is there, and other records lead up to it."""
    with KafkaServer(tmp_path / "kafka") as server:
        topic = topic_of(server)
        server.produce(topic, [{"value": b"1"}] * 3)
        reader = opened(Kafka(server.bootstrap, topic))
        assert read_records(reader, 3) == [1, 1, 1]
        before = reader.offset
        reader.close()
        server.kill()
        server.start()  # another leader epoch begins
        server.produce(topic, [{"value": b"2"}] * 4)
        reader = opened(Kafka(server.bootstrap, topic))
        reader.seek(pickle.loads(pickle.dumps(before)))
        assert read_records(reader, 4) == [2] * 4, "nothing is wrong with what was read before"
        after = reader.offset
        reader.close()
        epochs, later = before.epochs, after.epochs
        assert epochs is not None and later is not None
        assert later[topic, 0] > epochs[topic, 0]
        # Had the old leader five records when it was read, two are lost now.
        cut = KafkaOffset(before.topics, {(topic, 0): (5, None, 0)}, epochs)
        reader = opened(Kafka(server.bootstrap, topic))
        reader.seek(cut)
        with pytest.raises(UserError, match=r"partition 0: the log was truncated before offset 5"):
            read_records(reader, 1)
        reader.close()
        # An offset of an earlier version knows no epoch.
        reader = opened(Kafka(server.bootstrap, topic))
        reader.seek(KafkaOffset(before.topics, {(topic, 0): (5, None, 0)}))
        assert read_records(reader, 2) == [2, 2]
        reader.close()


def test_a_compacted_topic_is_told_of(kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    plain, compacted = topic_of(kafka), topic_of(kafka, cleanup_policy="compact")
    Kafka(kafka.bootstrap, [plain, compacted]).check()
    (told,) = [record.getMessage() for record in caplog.records if "compacted" in record.msg]
    assert f"'{compacted}'" in told and plain not in told


def test_a_topic_has_no_more_when_a_read_takes_less_than_it_asked_for(kafka: KafkaServer) -> None:
    topic = topic_of(kafka)
    kafka.produce(topic, ({"value": b"%d" % n} for n in range(10)))
    reader = Kafka(kafka.bootstrap, topic).open(0, 1)
    given: list[bool] = []
    while reader.offset.places.get((topic, 0), (0,))[0] < 10:
        if reader.read() is not None:
            given.append(reader.drained())
    assert all(given)
    reader.close()
