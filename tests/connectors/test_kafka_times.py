"""Event time by the timestamps of records: the slowest partition counts, a silent one only so long."""

import pytest

from everstream.connectors import Kafka
from everstream.connectors.kafka.offsets import owner
from everstream.connectors.kafka.records import PartitionTimes
from everstream.errors import UserError
from everstream.pipeline.times import NO_WATERMARK
from tests.connectors.kafka_reading import opened, read_records, topic_of
from tests.kafka_server import KafkaServer

A, B = ("t", 0), ("t", 1)


class Clock:
    """What a test says the time is."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def times(idle_after_s: float | None, clock: Clock) -> PartitionTimes:
    made = PartitionTimes(2_000_000, idle_after_s)
    made.keep_time(lambda: 50_000 + clock(), clock)
    return made


def test_the_slowest_partition_counts() -> None:
    seen = times(None, Clock())
    seen.seen([A], [], [5_000, 9_000])
    assert seen.watermark([A]) == 7_000_000
    assert seen.watermark([A, B]) == NO_WATERMARK
    seen.seen([B, A], [A, B, B], [8_000, 3_000, 4_000])
    assert seen.greatest == {A: 9_000_000, B: 4_000_000}
    assert seen.watermark([A, B]) == 2_000_000
    assert seen.watermark([A]) == 7_000_000, "one that has ended does not count"


def test_a_silent_partition_holds_back_time_for_so_long() -> None:
    clock = Clock()
    seen = times(10.0, clock)
    seen.seen([A], [], [60_000_000])
    assert seen.watermark([A, B]) == NO_WATERMARK
    seen.at_end(B)
    clock.now_s += 9
    assert seen.watermark([A, B]) == NO_WATERMARK
    clock.now_s += 1
    present_us = int((50_000 + clock() - 10 - 2) * 1e6)
    assert seen.watermark([A, B]) == present_us
    seen.seen([B], [], [40_000_000])
    assert seen.watermark([A, B]) == 40_000_000_000 - 2_000_000, "it speaks again"


def test_a_shard_without_partitions_does_not_hold_back_time_for_ever() -> None:
    clock = Clock()
    seen = times(10.0, clock)
    assert seen.watermark([]) == NO_WATERMARK
    clock.now_s += 10
    assert seen.watermark([]) == int((50_000 + clock() - 12) * 1e6)


def test_a_reader_tells_the_time_of_its_partitions_and_keeps_it(kafka: KafkaServer) -> None:
    topic = topic_of(kafka, 2)
    source = Kafka(
        kafka.bootstrap, topic, fields=["value", "timestamp"], event_time=True, lateness="1s"
    )
    reader = opened(source)
    kafka.produce(topic, [{"value": b"1", "partition": 0, "timestamp": 60_000}])
    read_records(reader, 1)
    assert reader.watermark() == NO_WATERMARK
    kafka.produce(topic, [{"value": b"2", "partition": 1, "timestamp": 30_000}])
    read_records(reader, 1)
    assert reader.watermark() == 29_000_000
    offset = reader.offset
    reader.seek(offset)
    kafka.produce(topic, [{"value": b"3", "partition": 1, "timestamp": 70_000}])
    read_records(reader, 1)
    assert reader.watermark() == 59_000_000, "that of partition 0 is in the offset"
    reader.close()
    (empty,) = {0, 1, 2} - {owner((topic, number), 3) for number in (0, 1)}
    with pytest.raises(UserError, match="fewer shards"):
        source.open(empty, 3)
