"""Kafka as a sink, against a real broker: exactly once through crashes, zombies and lost answers."""

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.partitioner.default import murmur2

import everstream as es
from everstream.connectors import Delivery
from everstream.connectors.kafka import commits
from everstream.connectors.kafka.commits import CommitMark, Marks, ShardCommits, topic_of_marks
from everstream.connectors.kafka.sink import KafkaTransaction
from everstream.core.permits import permit
from everstream.errors import ConnectorError, EverstreamError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import SinkShard
from everstream.testing.sinks import check_sink
from tests.connectors.kafka_topics import (
    Reading,
    Tagged,
    delete_topic,
    make_topic,
    tagged,
    topic_for,
    topics,
)
from tests.kafka_server import KafkaServer
from tests.state.holders import running


@pytest.fixture
def reading(kafka: KafkaServer) -> Iterator[Reading]:
    reading = Reading(kafka)
    yield reading
    reading.close()


class Place:
    """A topic of one test's own, and a store."""

    def __init__(self, kafka: KafkaServer, reading: Reading, folder: Path, partitions: int) -> None:
        self.kafka = kafka
        self.folder = folder
        self.topic = topic_for(str(folder))
        self.partitions = partitions
        self._reading = reading
        make_topic(kafka, self.topic, partitions)

    def sink(self, **options: Any) -> es.Kafka:
        return es.Kafka(self.kafka.bootstrap, self.topic, **options)

    def sink_shard(self, generation: int = 1, shard: int = 0) -> SinkShard:
        return SinkShard("words", "counts", shard, 2, generation, f"{self.folder}/store")

    def messages(self) -> list[Any]:
        return self._reading.messages(self.topic, self.partitions)

    def values(self) -> list[Any]:
        return [json.loads(message.value()) for message in self.messages()]

    def prepared(self, batch: Batch, checkpoint: int = 1, **options: Any) -> KafkaTransaction:
        writer = self.sink(**options).open(self.sink_shard())
        writer.recover([], permit(0))
        writer.write(batch)
        transaction = writer.prepare(checkpoint)
        assert isinstance(transaction, KafkaTransaction)
        transaction.persist()
        return transaction


@pytest.fixture
def place(kafka: KafkaServer, reading: Reading, tmp_path: Path) -> Place:
    return Place(kafka, reading, tmp_path, partitions=1)


def conform(kafka: KafkaServer, reading: Reading, every: int) -> None:
    made: set[str] = set()

    def make(place: str) -> es.Kafka:
        if place not in made:
            make_topic(kafka, topic_for(place))
            made.add(place)
        return Tagged(kafka.bootstrap, topic_for(place))

    def read_back(_: Any, who: SinkShard) -> Any:
        return tagged(reading.messages(topic_for(str(Path(who.store).parent))), who)

    check_sink(make, read_back, takes_back=False, every=every)


@pytest.mark.usefixtures("quick_disk")
def test_kafka_is_exactly_once_through_some_crashes(kafka: KafkaServer, reading: Reading) -> None:
    conform(kafka, reading, every=40)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("quick_disk")
def test_kafka_is_exactly_once_through_every_crash(kafka: KafkaServer, reading: Reading) -> None:
    conform(kafka, reading, every=1)


class Unsure:
    """A producer that does not hear what became of its first transaction with messages in it."""

    def __init__(self, producer: Any, committed: bool) -> None:
        self._producer = producer
        self._committed = committed
        self._messages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def produce_batch(self, topic: str, messages: list[Any]) -> Any:
        self._messages += len(messages)
        return self._producer.produce_batch(topic, messages)

    def commit_transaction(self, timeout_s: float) -> None:
        if not self._messages or self._committed:
            self._producer.commit_transaction(timeout_s)
        if self._messages:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))


def unsure_once(monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    """The first producer is unsure; those that are made afterwards are not."""
    make = commits.producer_of
    made: list[Any] = []

    def producer_of(cluster: Any, settings: Any) -> Any:
        producer = make(cluster, settings)
        made.append(producer)
        return producer if len(made) > 1 else Unsure(producer, committed)

    monkeypatch.setattr(commits, "producer_of", producer_of)


@pytest.mark.parametrize("committed", [True, False])
def test_when_no_answer_comes_to_a_commit_the_mark_says_what_became_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    unsure_once(monkeypatch, committed)
    place.prepared([{"n": 1}, {"n": 2}]).commit(permit(1))
    assert place.values() == [{"n": 1}, {"n": 2}]


def test_without_a_look_at_the_mark_messages_come_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsure_once(monkeypatch, committed=True)
    monkeypatch.setattr(Marks, "read", lambda self, shard: CommitMark(1, 0))
    place.prepared([{"n": 1}]).commit(permit(1))
    assert place.values() == [{"n": 1}, {"n": 1}]


def commit_while_an_heir_takes_over(place: Place) -> None:
    """A zombie has begun its transaction and sent its messages when the heir goes back to 0."""
    transaction = place.prepared([{"n": 1}])
    frames = transaction._messages

    def slowly() -> Iterator[pl.DataFrame]:
        yield from frames()
        if not heirs:
            heirs.append(place.sink().open(place.sink_shard(2)))
            heirs[0].recover([], permit(0))

    heirs: list[Any] = []
    transaction._messages = slowly  # type: ignore[method-assign]
    # The heir has removed what waited; a zombie has it in memory still.
    waiting = Path(transaction.part.path)
    data = waiting.read_bytes()
    transaction.target = replace_reading(transaction, waiting, data)
    transaction.commit(permit(1))


def replace_reading(transaction: KafkaTransaction, waiting: Path, data: bytes) -> ShardCommits:
    commits = transaction.target
    assert commits is not None
    begin = commits._begin

    def with_its_messages() -> None:
        waiting.write_bytes(data)
        begin()

    commits._begin = with_its_messages  # type: ignore[method-assign]
    return commits


def test_a_zombie_in_the_middle_of_a_commit_is_fenced_off(place: Place) -> None:
    with pytest.raises(ConnectorError, match=r"generation 2 .* has taken over"):
        commit_while_an_heir_takes_over(place)
    assert place.values() == []


def test_without_a_look_at_the_generation_a_zombie_gets_through(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardCommits, "_refuse_if_replaced", lambda self, found: None)
    commit_while_an_heir_takes_over(place)
    assert place.values() == [{"n": 1}]


def test_a_late_starter_that_fences_off_its_heir_changes_nothing(place: Place) -> None:
    transaction = place.prepared([{"n": 1}])
    assert transaction.target is not None
    late = place.sink().open(place.sink_shard(0))
    with pytest.raises(ConnectorError, match="generation 0 must stop"):
        late.recover([], permit(0))
    transaction.commit(permit(1))
    transaction.commit(permit(1))
    assert place.values() == [{"n": 1}]


def test_a_run_that_would_send_messages_again_is_refused(place: Place) -> None:
    writer = place.sink().open(place.sink_shard())
    writer.recover([], permit(0))
    for checkpoint in (1, 2):
        writer.write([{"n": checkpoint}])
        transaction = writer.prepare(checkpoint)
        assert transaction is not None
        transaction.commit(permit(checkpoint))
    with pytest.raises(UserError, match=r"up to checkpoint 2, but .* from checkpoint 1.*deletes"):
        place.sink().open(place.sink_shard(2)).recover([], permit(1))
    with pytest.raises(
        UserError, match=r"up to checkpoint 2, but .* undo that: `everstream rewind"
    ):
        place.sink().check_resume("words", "counts", "", {0: 1})
    place.sink().check_resume("words", "counts", "", {0: 2})
    assert [value["n"] for value in place.values()] == [1, 2]


def test_when_what_was_noted_is_gone_messages_that_may_be_there_are_not_sent_again(
    place: Place,
) -> None:
    transaction = place.prepared([{"n": 1}])
    saved = pickle.dumps(transaction)
    waiting = Path(transaction.part.path)
    data = waiting.read_bytes()
    transaction.commit(permit(1))
    waiting.write_bytes(data)  # as if the process had died before it could remove it
    marks = topic_of_marks("words", "counts", place.topic)
    delete_topic(place.kafka, marks)
    with pytest.raises(
        UserError, match=rf"unknown whether.*: the topic '{marks}'.*gone.*which deletes"
    ):
        place.sink().open(place.sink_shard(2)).recover([pickle.loads(saved)], permit(1))
    waiting.unlink()
    heir = place.sink().open(place.sink_shard(3))
    assert not heir.recover([pickle.loads(saved)], permit(1))
    heir.write([{"n": 2}])
    following = heir.prepare(2)
    assert following is not None
    following.commit(permit(2))
    assert place.values() == [{"n": 1}, {"n": 2}]


def test_a_bit_that_flips_in_messages_that_wait_keeps_all_of_them_out_of_the_topic(
    place: Place,
) -> None:
    transaction = place.prepared([{"text": "some text"}])
    waiting = Path(transaction.part.path)
    data = waiting.read_bytes()
    for damaged in (data.replace(b"some text", b"some tent"), b"?" + data[1:], data[:-9]):
        assert damaged != data
        waiting.write_bytes(damaged)
        with pytest.raises(ConnectorError, match=waiting.name):
            transaction.commit(permit(1))
    waiting.unlink()
    with pytest.raises(ConnectorError, match="neither in it nor in"):
        transaction.commit(permit(1))
    waiting.write_bytes(data)
    transaction.commit(permit(1))
    assert place.values() == [{"text": "some text"}]


def test_an_epoch_may_have_more_messages_than_the_client_holds(
    kafka: KafkaServer, reading: Reading, tmp_path: Path
) -> None:
    place = Place(kafka, reading, tmp_path, partitions=1)
    numbers = pl.DataFrame({"n": range(120_000)}).with_columns(value=pl.col("n").cast(pl.String))
    place.prepared(numbers, value="text", key_by="n").commit(permit(1))
    assert [int(message.value()) for message in place.messages()] == list(range(120_000))


def test_a_topic_takes_the_output_of_one_store(place: Place) -> None:
    first, second = f"{place.folder}/store", f"{place.folder}/second"
    sink = place.sink()
    with running(first, "words pid 7 on here"):
        sink.start_fresh("words", "counts", first, replace=False)
        with pytest.raises(UserError, match=r"topic '.*' takes the output.*pid 7.*another topic"):
            sink.start_fresh("words", "counts", second, replace=True)
        with pytest.raises(UserError, match="running"):
            sink.before_resume("words", "counts", second)
        sink.before_resume("words", "counts", first)
    place.prepared([{"n": 1}]).commit(permit(1))
    assert "stay there" in str(sink.left_behind("words", "counts", first))
    with pytest.raises(UserError, match="already holds messages of pipeline 'words'"):
        sink.start_fresh("words", "counts", second, replace=False)
    sink.start_fresh("words", "counts", second, replace=True)
    with pytest.raises(UserError, match=r"second'; since then"):
        sink.before_resume("words", "counts", first)


def test_shards_commit_side_by_side(place: Place) -> None:
    errors: list[BaseException] = []

    def work(shard: int) -> None:
        try:
            writer = place.sink().open(place.sink_shard(1, shard))
            writer.recover([], permit(0))
            for checkpoint in (1, 2, 3):
                writer.write([{"n": 10 * shard + checkpoint}])
                transaction = writer.prepare(checkpoint)
                assert transaction is not None
                transaction.commit(permit(checkpoint))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(shard,)) for shard in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(value["n"] for value in place.values()) == [1, 2, 3, 11, 12, 13]


def test_at_least_once_messages_are_there_before_any_checkpoint_and_once_it_is_taken(
    place: Place,
) -> None:
    sink = place.sink(delivery="at-least-once")
    assert sink.delivery is Delivery.AT_LEAST_ONCE
    sink.start_fresh("words", "counts", "", replace=False)
    writer = sink.open(place.sink_shard())
    writer.recover([], permit(0))
    writer.write([{"n": 1}])
    while not place.values():
        pass
    writer.write([{"n": 2}, {"n": 3}])
    assert writer.prepare(1) is None
    assert [value["n"] for value in place.values()] == [1, 2, 3]
    writer.close()
    assert topic_of_marks("words", "counts", place.topic) not in topics(place.kafka)


def test_what_cannot_be_delivered_is_said(kafka: KafkaServer, tmp_path: Path) -> None:
    soon = {"topic.metadata.propagation.max.ms": 0}
    nowhere = es.Kafka(kafka.bootstrap, "nowhere-at-all", delivery="at-least-once", options=soon)
    with pytest.raises(UserError, match="there is no topic 'nowhere-at-all'"):
        nowhere.check()
    writer = nowhere.open(SinkShard("p", "o", 0, 1, 1, str(tmp_path)))
    with pytest.raises(EverstreamError, match=r"nowhere-at-all|Kafka at"):
        for _ in range(2):
            writer.write([{"n": 1}])
            writer.prepare(1)
    writer.close()


def test_a_password_is_neither_in_what_waits_nor_in_what_is_said(place: Place) -> None:
    secret = "hunter2-and-more"
    options = {"sasl.password": secret, "sasl.username": "me", "sasl.mechanism": "PLAIN"}
    transaction = place.prepared([{"n": 1}], options=options)
    assert secret.encode() not in pickle.dumps(transaction)
    assert secret not in repr(transaction)
    assert secret not in repr(place.sink(options=options).output)
    for file in Path(place.folder).rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()
    wrong = place.sink(options={"security.protocol": secret})
    with pytest.raises(EverstreamError) as refused:
        wrong.open(place.sink_shard(2)).recover([], permit(0))
    assert secret not in str(refused.value)


def test_keys_go_to_the_partitions_where_other_clients_put_them(
    kafka: KafkaServer, reading: Reading, tmp_path: Path
) -> None:
    place = Place(kafka, reading, tmp_path, partitions=3)
    keys = [f"key-{number}" for number in range(200)] + ["", "é", "x" * 300]
    records = [{"key": key} for key in keys]
    place.prepared(records, key_by="key", encode=str).commit(permit(1))
    partitions = {message.key(): message.partition() for message in place.messages()}
    as_java = {key.encode(): (murmur2(key.encode()) & 0x7FFFFFFF) % 3 for key in keys}
    assert partitions == as_java
    assert set(as_java.values()) == {0, 1, 2}


def test_headers_and_timestamps_arrive(place: Place) -> None:
    rows = pl.DataFrame({"n": [1, 2], "kind": ["a", None], "at": [1_000, 2_000]})
    place.prepared(rows, headers=["kind"], timestamp="at", key_by="n").commit(permit(1))
    found = [(m.key(), m.headers(), m.timestamp()[1]) for m in place.messages()]
    assert found == [(b"1", [("kind", b"a")], 1_000), (b"2", None, 2_000)]


def test_an_audit_has_a_topic_of_its_own_which_goes_with_it(place: Place) -> None:
    real = place.sink()
    audit_copy = pickle.loads(pickle.dumps(real.audit_copy("1234-first")))
    assert real.results("words", "counts", "") is None
    audit_copy.check()
    audit_copy.start_fresh("words", "counts", f"{place.folder}/store", replace=False)
    writer = audit_copy.open(place.sink_shard())
    writer.recover([], permit(0))
    writer.write([{"n": 1}])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.commit(permit(1))
    writer.close()
    [batch] = audit_copy.results("words", "counts", "") or []
    assert batch == [{"key": None, "value": b'{"n":1}', "headers": None}]
    assert place.messages() == []
    audit_copy.clear_audit_copy("words", "counts")
    assert not [topic for topic in topics(place.kafka) if topic.startswith(f"{place.topic}-")]
