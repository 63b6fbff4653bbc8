"""A pipeline from Kafka to Kafka that a test feeds, and what came out, read by another library."""

import json
import random
from pathlib import Path

from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

from tests.connectors.kafka_topics import make_topic
from tests.kafka_server import PATIENCE_S, KafkaServer

PARTITIONS = 3
KEYS = 30
PROGRAM = """
import everstream as es
from tests.chaos.conftest import Register

pipeline = es.Pipeline("copying")
(
    pipeline.source(
        es.Kafka({bootstrap!r}, {name!r} + "-in", stop={stop!r}, patience="10m"), name="in", shards=2
    )
    .key_by(lambda record: record["key"])
    .fold(init=int, update=lambda count, record: count + 1, name="count", shards=2)
    .map(lambda counted: dict(key=counted[0], count=counted[1]))
    .process(Register({pids!r}), name="back")
    .sink(es.Kafka({bootstrap!r}, {name!r} + "-out", key_by="key", patience="10m"), name="out", shards=2)
)
"""


class Copying:
    """Two topics, and a program that counts how often each key has come."""

    def __init__(self, server: KafkaServer, folder: Path, total: int, name: str) -> None:
        self.server = server
        self._in, self._out = f"{name}-in", f"{name}-out"
        self._keys: list[str] = []
        # Brokers are killed meanwhile, and what is sent again must not come twice.
        self._producer = Producer(
            {"bootstrap.servers": server.bootstrap, "enable.idempotence": True}
        )
        for topic in (self._in, self._out):
            make_topic(server, topic, PARTITIONS)
        stop = dict.fromkeys(range(PARTITIONS), total // PARTITIONS)
        pids = folder / "pids"
        pids.mkdir()
        program = PROGRAM.format(bootstrap=server.bootstrap, stop=stop, name=name, pids=str(pids))
        (folder / "copying.py").write_text(program)

    def feed(self, records: int, chance: random.Random) -> None:
        """So many more records; a key has a partition of its own."""
        batch = []
        for _ in range(records // PARTITIONS):
            for partition in range(PARTITIONS):
                key = f"{chance.randrange(KEYS) * PARTITIONS + partition}"
                self._keys.append(key)
                value = json.dumps({"key": key}).encode()
                batch.append({"value": value, "partition": partition})
        for message in batch:
            self._producer.produce(self._in, **message)
        assert self._producer.flush(PATIENCE_S) == 0

    def committed(self) -> list[tuple[str, int]]:
        """What a reader of another library sees of the output, partition by partition."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.server.bootstrap.split(","),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            places = [TopicPartition(self._out, number) for number in range(PARTITIONS)]
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            counts: list[tuple[str, int]] = []
            while any(consumer.position(place) < ends[place] for place in places):
                for messages in consumer.poll(timeout_ms=200).values():
                    for message in messages:
                        record = json.loads(message.value)
                        assert message.key == record["key"].encode()
                        counts.append((record["key"], record["count"]))
            return counts
        finally:
            consumer.close()

    def problems(self) -> list[str]:
        """What is wrong with the output; nothing, if every key counts up in order and once."""
        wanted: dict[str, int] = {}
        for key in self._keys:
            wanted[key] = wanted.get(key, 0) + 1
        counts: dict[str, list[int]] = {}
        for key, count in self.committed():
            counts.setdefault(key, []).append(count)
        return [
            f"key {key}: {counts.get(key, [])[:20]} is not 1 to {times}"
            for key, times in wanted.items()
            if counts.get(key) != list(range(1, times + 1))
        ] + [f"key {key} was never sent" for key in counts.keys() - wanted.keys()]
