"""A shard's positions in its partitions, and where it begins and ends.

A rule assigns every partition to one shard by its name alone, so new partitions need no
coordination. A checkpoint has the next record to read for each partition. A partition is refused
if it is not the same any more (its topic was recreated, its log was truncated) or no longer has the
records to resume with: nothing is skipped silently.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from everstream.connectors.kafka.client import ANSWER_S, Cluster, administration, driver
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.times import NO_WATERMARK
from everstream.state.saved import Saved

Partition: TypeAlias = tuple[str, int]
Ends: TypeAlias = Mapping[Partition, int]
"""Partition -> the offset after its last record, at some time."""
Bound: TypeAlias = (
    Literal["earliest", "latest"] | datetime | Mapping[int, int] | Mapping[Partition, int]
)
"""A position in every partition: one of its ends, the first record since a time, or offsets."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OVER = "or start over with --fresh, which deletes the output."


@dataclass(frozen=True)
class KafkaOffset(Saved, word="kafka-offset"):
    """Per partition: the next record, the one to stop before (None: never), the greatest time.

    `topics` maps the names of topics to the ids that brokers have given them.
    """

    topics: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[Partition, tuple[int, int | None, int]] = field(default_factory=dict)
    epochs: Mapping[Partition, int] | None = None
    """The leader epoch of the record before the next one, where it is known."""

    def of_shard(self, shard: int, shards: int) -> "KafkaOffset":
        mine = {p: place for p, place in self.places.items() if owner(p, shards) == shard}
        epochs = {p: epoch for p, epoch in (self.epochs or {}).items() if p in mine}
        return KafkaOffset(self.topics, mine, epochs)


def redistribute_places(offsets: Sequence[KafkaOffset], shards: int) -> list[KafkaOffset]:
    """Assigns each partition, with its position and time, to its new shard."""
    known = KafkaOffset(
        {topic: name for offset in offsets for topic, name in offset.topics.items()},
        {partition: place for offset in offsets for partition, place in offset.places.items()},
        {p: epoch for offset in offsets for p, epoch in (offset.epochs or {}).items()},
    )
    for offset in offsets:
        for topic, _ in offset.places:
            if offset.topics[topic] != known.topics[topic]:
                raise UserError(
                    f"topic '{topic}' was deleted and recreated while it was read: its offsets now "
                    f"refer to other records. Read it under another name, {OVER}"
                )
    return [known.of_shard(shard, shards) for shard in range(shards)]


def unread_places(offsets: Sequence[KafkaOffset], ends: Ends) -> str | None:
    """How many records are between these positions and these ends, in words; None if none are."""
    places = {partition: place for offset in offsets for partition, place in offset.places.items()}
    left = 0
    for partition, end in ends.items():
        position, stop, _ = places.get(partition, (0, None, 0))
        left += max(0, (end if stop is None else min(stop, end)) - position)
    return f"up to {left} record(s)" if left else None


def owner(partition: Partition, shards: int) -> int:
    """The shard that reads a partition: those of one topic are dealt out in turn."""
    topic, number = partition
    return (zlib.crc32(topic.encode()) + number) % shards


def milliseconds(bound: datetime, name: str) -> int:
    if bound.tzinfo is None:
        raise UserError(
            f"{name}={bound!r} has no time zone. Give one: datetime(..., tzinfo=timezone.utc)."
        )
    return (bound - _EPOCH) // timedelta(milliseconds=1)


def checked_bound(bound: Any, name: str, topics: Sequence[str]) -> Any:
    """The bound if it is valid; otherwise a UserError that explains how to write one."""
    if isinstance(bound, datetime):
        milliseconds(bound, name)
        return bound
    if isinstance(bound, Mapping):
        single = len(topics) == 1 and not topics[0].startswith("^")
        given = {
            (topics[0], key) if single and isinstance(key, int) else key: at
            for key, at in bound.items()
        }
        for key, at in given.items():
            right = isinstance(key, tuple) and len(key) == 2 and isinstance(at, int) and at >= 0
            if not right or not isinstance(key[0], str) or not isinstance(key[1], int):
                raise UserError(
                    f"{name}: write offsets as {{partition: offset}}, for several topics as "
                    f"{{(topic, partition): offset}}, not {key!r}: {at!r}."
                )
        return given
    if bound in (("earliest", "latest") if name == "start" else ("latest",)):
        return bound
    ends = (
        '"earliest", "latest"'
        if name == "start"
        else '"latest" (what is there when the run begins)'
    )
    raise UserError(f"{name}={bound!r}: use {ends}, a datetime or offsets {{partition: offset}}.")


class Topics:
    """Queries the brokers about the topics of a source, which may take seconds."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], committed: bool) -> None:
        self._cluster = cluster
        self._topics = topics
        self._committed = committed
        self._admin: Any = None

    @property
    def pattern(self) -> re.Pattern[str] | None:
        return re.compile(self._topics[0]) if self._topics[0].startswith("^") else None

    def listed(self) -> tuple[dict[str, str], list[Partition]]:
        names, kafka = list(self._topics), driver()
        if self.pattern is not None:
            topics = self._call(lambda admin: admin.list_topics(timeout=ANSWER_S).topics)
            names = sorted(name for name in topics if self.pattern.match(name) and name[:2] != "__")
        if not names:
            return {}, []
        asked = kafka.TopicCollection(names)
        answers = self._call(lambda admin: admin.describe_topics(asked, request_timeout=ANSWER_S))
        ids, partitions = dict[str, str](), list[Partition]()
        for name, answer in answers.items():
            try:
                about = answer.result()
            except kafka.KafkaException as error:
                if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    if self.pattern is not None:
                        continue  # deleted in the meantime
                    raise UserError(
                        f"there is no topic '{name}' at {self._cluster.bootstrap}. Check the name, "
                        "or create it: you choose its partitions, replicas and retention."
                    ) from None
                raise self._cluster.explained(error, f", topic '{name}'") from error
            ids[name] = str(about.topic_id)
            partitions += [(name, partition.id) for partition in about.partitions]
        return ids, partitions

    def ends(self) -> dict[Partition, int]:
        return self._ends(self.listed()[1], "latest")

    def begin(self, start: Any, stop: Any) -> KafkaOffset:
        """Where all partitions begin and end, for a run without a checkpoint."""
        ids, partitions = self.listed()
        starts = self._resolved(partitions, start, "start")
        stops: Mapping[Partition, int | None] = dict.fromkeys(partitions)
        if stop is not None:
            stops = self._resolved(partitions, stop, "stop")
        places = {p: (starts[p], stops[p], NO_WATERMARK) for p in partitions}
        return KafkaOffset(ids, places)

    def resume(
        self, offset: KafkaOffset, shard: int, shards: int, bounded: bool, checks_places: bool
    ) -> KafkaOffset:
        """The same positions, if they are still valid, and this shard's new partitions.

        Positions are not checked while they are read: by the time of the answer they have moved.
        """
        ids, partitions = self.listed()
        self._refuse_other_topics(offset, ids, partitions)
        known = list(offset.places)
        new = [] if bounded else [p for p in partitions if p not in offset.places]
        new = [p for p in new if owner(p, shards) == shard]
        earliest = self._ends(known + new if checks_places else new, "earliest")
        if checks_places:
            ends = self._ends(known, "high")
            for partition, (position, stop, _) in offset.places.items():
                if position != stop:
                    self._refuse_lost(partition, position, earliest[partition], ends[partition])
        fresh = {p: (earliest[p], None, NO_WATERMARK) for p in new}
        return KafkaOffset({**offset.topics, **ids}, {**offset.places, **fresh}, offset.epochs)

    def compacted(self) -> list[str]:
        """The topics whose brokers remove records that a later one with the same key replaces."""
        names, _ = self.listed()
        kinds, compacted = administration(), list[str]()
        asked = [kinds.ConfigResource(kinds.ResourceType.TOPIC, name) for name in names]
        if not asked:
            return []
        answers = self._call(lambda admin: admin.describe_configs(asked, request_timeout=ANSWER_S))
        for resource, answer in answers.items():
            try:
                policy = answer.result()["cleanup.policy"].value
            except driver().KafkaException as error:
                code = error.args[0].code()
                if code == driver().KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    continue  # this user may not query the configuration
                raise self._cluster.explained(error, f", topic '{resource.name}'") from error
            if "compact" in (policy or ""):
                compacted.append(resource.name)
        return sorted(compacted)

    def _refuse_other_topics(
        self, offset: KafkaOffset, ids: Mapping[str, str], partitions: Sequence[Partition]
    ) -> None:
        for topic, partition in offset.places:
            if topic not in ids:
                raise ConnectorError(
                    f"topic '{topic}' no longer exists at {self._cluster.bootstrap}, but was not "
                    f"read to the end. Restore it, {OVER}"
                )
            if ids[topic] != offset.topics[topic]:
                raise UserError(
                    f"topic '{topic}' was deleted and recreated since the checkpoint: its offsets "
                    f"now refer to other records. Read it under another name, {OVER}"
                )
            if (topic, partition) not in partitions:
                raise UserError(
                    f"topic '{topic}' no longer has partition {partition}, which the checkpoint "
                    f"has a position in. Restore the topic as it was, {OVER}"
                )

    def _refuse_lost(self, partition: Partition, position: int, first: int, end: int) -> None:
        where = f"topic '{partition[0]}', partition {partition[1]}"
        if position < first:
            raise UserError(
                f"{where}: the records from offset {position} on were deleted before they were "
                f"read; the first one now is {first}, so up to {first - position} are lost. "
                "Give the topic a longer retention (retention.ms, retention.bytes) than a run may "
                f"be down, {OVER}"
            )
        if position > end:
            raise UserError(
                f"{where} ends at offset {end}, but the checkpoint has read up to {position}: the "
                f"brokers have lost records. Restore the topic as it was, {OVER}"
            )

    def _resolved(
        self, partitions: Sequence[Partition], bound: Any, name: str
    ) -> dict[Partition, int]:
        if isinstance(bound, Mapping):
            return self._given(partitions, bound, name)
        if isinstance(bound, datetime):
            offsets = self._ends(partitions, milliseconds(bound, name))
            ends = self._ends([p for p in partitions if offsets[p] < 0], "latest")
            return {**offsets, **ends}
        return self._ends(partitions, bound)

    def _given(
        self, partitions: Sequence[Partition], bound: Mapping[Partition, int], name: str
    ) -> dict[Partition, int]:
        unknown = sorted(set(bound) - set(partitions))
        missing = sorted(set(partitions) - set(bound))
        if unknown or missing:
            problem = f"there is no {unknown[0]}" if unknown else f"{missing[0]} is missing"
            raise UserError(
                f"{name}={{...}} must name every existing partition, and no other: {problem}."
            )
        if name == "start":
            first, end = self._ends(partitions, "earliest"), self._ends(partitions, "high")
            for partition, at in bound.items():
                if not first[partition] <= at <= end[partition]:
                    raise UserError(
                        f"start: {partition} has the offsets {first[partition]} to "
                        f"{end[partition]}, but not {at}."
                    )
        return dict(bound)

    def _ends(self, partitions: Sequence[Partition], which: Any) -> dict[Partition, int]:
        """An offset in each: "earliest", readable "latest", existing "high", or by time."""
        if not partitions:
            return {}
        kafka, specs = driver(), administration().OffsetSpec
        kinds = {"earliest": specs.earliest, "latest": specs.latest, "high": specs.latest}
        spec = kinds[which]() if which in kinds else specs.for_timestamp(which)
        levels = kafka.IsolationLevel
        committed = self._committed and which == "latest"
        asked = {kafka.TopicPartition(topic, number): spec for topic, number in partitions}
        answers = self._call(
            lambda admin: admin.list_offsets(
                asked,
                isolation_level=levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED,
                request_timeout=ANSWER_S,
            )
        )
        ends: dict[Partition, int] = {}
        for where, answer in answers.items():
            try:
                ends[where.topic, where.partition] = answer.result().offset
            except kafka.KafkaException as error:
                about = f", topic '{where.topic}', partition {where.partition}"
                raise self._cluster.explained(error, about) from error
        return ends

    def _call(self, question: Any) -> Any:
        if self._admin is None:
            self._admin = self._cluster.admin()
        try:
            return question(self._admin)
        except driver().KafkaException as error:
            raise self._cluster.explained(error) from error
