"""A separate topic for an audit beside the user's: created like it, read back, removed."""

import time
from typing import Any

from everstream.connectors.kafka.client import ANSWER_S, Cluster, administration, driver
from everstream.connectors.kafka.commits import partitions_of
from everstream.connectors.retry import Deadline
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch


def make_like(cluster: Cluster, topic: str, audit_copy: str) -> None:
    """Create a topic with as many partitions and replicas as the other; harmless if it exists."""
    kafka, like = driver(), partitions_of(cluster, topic)
    copies = max(like.values(), default=-1)
    new, admin = administration().NewTopic(audit_copy, len(like) or 1, copies), cluster.admin()
    try:
        admin.create_topics([new], operation_timeout=ANSWER_S)[audit_copy].result()
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    while len(partitions_of(cluster, audit_copy)) < (len(like) or 1):
        time.sleep(0.05)


def remove(cluster: Cluster, *topics: str) -> None:
    there, admin = [topic for topic in topics if partitions_of(cluster, topic)], cluster.admin()
    if there:
        for asked in admin.delete_topics(there, operation_timeout=ANSWER_S).values():
            asked.result()


def committed(cluster: Cluster, topic: str, patience_s: float) -> Batch:
    """Every message of a topic that is no longer written to: key, value and headers."""
    kafka = driver()
    settings = {
        **cluster.settings(),
        "group.id": "everstream",  # never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    asking = kafka.Consumer({**settings, "isolation.level": "read_uncommitted"})
    reading = kafka.Consumer({**settings, "isolation.level": "read_committed"})
    try:
        messages: list[dict[str, Any]] = []
        deadline = Deadline(patience_s)
        for number in sorted(partitions_of(cluster, topic)):
            place = kafka.TopicPartition(topic, number)
            _, end = asking.get_watermark_offsets(place, timeout=ANSWER_S)
            # Brokers report a transaction as committed a little before it is visible everywhere.
            while reading.get_watermark_offsets(place, timeout=ANSWER_S)[1] < end:
                _refuse_if_late(deadline, topic)
            messages += _read(reading, topic, number, end, deadline)
        return messages
    finally:
        asking.close()
        reading.close()


def _read(
    reading: Any, topic: str, number: int, end: int, deadline: Deadline
) -> list[dict[str, Any]]:
    kafka, messages, at = driver(), list[dict[str, Any]](), 0
    reading.assign([kafka.TopicPartition(topic, number, 0)])
    while at < end:
        _refuse_if_late(deadline, topic)
        for message in reading.consume(10_000, timeout=0.1):
            error = message.error()
            if error is None:
                messages.append(
                    {"key": message.key(), "value": message.value(), "headers": message.headers()}
                )
            elif error.code() != kafka.KafkaError._PARTITION_EOF:
                raise kafka.KafkaException(error)
            at = max(at, message.offset() + (error is None))
    return messages


def _refuse_if_late(deadline: Deadline, topic: str) -> None:
    if deadline.passed:
        raise ConnectorError(
            f"topic '{topic}' could not be read back to its end. Check that its brokers run and "
            "that no transaction is left open in it."
        )
