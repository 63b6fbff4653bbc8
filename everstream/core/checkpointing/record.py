"""The record of one checkpoint: what a shard reports once it is durable, and a manifest keeps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from everstream.core.ids import NO_CHECKPOINT, CheckpointNumber, ShardId
from everstream.state.objects import ObjectRef

DEAD_LETTERS = "/dead-letters"
"""Suffix of the name under which an operator's dead letters are saved."""

LogKind: TypeAlias = Literal["none", "durable", "memory"]
"""Where senders keep the frames they sent."""


@dataclass(frozen=True)
class LogSegment:
    """A segment in the store, as a checkpoint names it."""

    ref: ObjectRef
    last: dict[str, int]
    """Channel -> the highest sequence number in here."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "LogSegment":
        return cls(ObjectRef(**body["ref"]), dict(body["last"]))


@dataclass(frozen=True)
class CheckpointRecord:
    """One durable checkpoint of one shard, as reported and as kept in a manifest."""

    shard: ShardId
    number: CheckpointNumber
    operators: tuple[str, ...]
    objects: tuple[ObjectRef, ...] = ()
    """The chain of objects that restores it, the full one first."""
    files: tuple[ObjectRef, ...] = ()
    """Files that those objects name: state that is kept on disk."""
    keeps: tuple[str, ...] | None = None
    """Operators that have something saved: state, an offset, transactions. None: unknown."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Operator, as named in the objects -> its present name; "" if its state was dropped."""
    final: bool = False
    """The shard had ended: this record also counts for every later epoch."""
    previous: CheckpointNumber = NO_CHECKPOINT
    """The checkpoint this shard took before; a final record counts for the epochs after it."""
    stopped: bool = False
    """The shard was asked to stop with this checkpoint."""
    forced: bool = False
    """The protocol demanded it before a delivery; no timer did."""
    loops_ended: bool = False
    """The feedback inputs of the shard's cycle had been declared ended."""
    holds_frames: bool = False
    """It includes frames that were in flight, under the names of their channels."""
    spilled: tuple[ObjectRef, ...] = ()
    """Segments from the local disk with such frames, as the objects name them."""
    carried: tuple[ObjectRef, ...] = ()
    """Objects with frames that had come round to the shard and wait at its inputs. Their senders
    wrote them after this checkpoint."""
    log: tuple[LogSegment, ...] = ()
    """Frames that the shard had sent and that may still be requested."""
    received: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    delivered: tuple[int, ...] = ()
    """Records given to the operators, per channel in the order of `received`; of a source: emitted."""
    ended: tuple[str, ...] = ()
    """Input channels that have ended."""
    watermarks: dict[str, int] = field(default_factory=dict)
    """Input channel -> its watermark, of those that have one."""
    ordinal: int = 0
    uncommitted: dict[str, tuple[int, ...]] | None = None
    """Sink -> the checkpoints whose output was not known to be committed when this one was taken,
    its own among them. Once all of it is committed, all output up to here is. None: unknown."""
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Operator -> records in, records out."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Operator -> records left out because of an error, of those that left any out."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The protocol's variables."""
    parts: tuple["CheckpointRecord", ...] = ()
    """The records of earlier shards, of which this one takes its share, because the number of
    shards was changed since. A record with parts has no objects itself."""
    shards: int = 0
    """Of such a part: how many shards there were."""
    key_groups: int | None = None
    """Of such a part: the number of key groups; None for as many as there were shards."""
    most_shards: dict[str, int] = field(default_factory=dict)
    """If it has parts: operator -> the most shards it ever had, all of which may have output."""
    lost_frames: int = 0
    """Frames sent to this shard that could not be sent again."""
    aligned_s: float = 0.0
    """From the marker on the first input to the marker on the last; aligned inputs are held."""
    capture_s: float = 0.0
    upload_s: float = 0.0
    size_bytes: int = 0

    @property
    def all_objects(self) -> tuple[ObjectRef, ...]:
        """Every object in the store that is needed to roll back to this checkpoint."""
        logs = (segment.ref for segment in self.log)
        of_parts = (ref for part in self.parts for ref in part.all_objects)
        return (*self.objects, *self.files, *self.spilled, *self.carried, *logs, *of_parts)

    @property
    def keeping(self) -> tuple[str, ...]:
        """The operators that have something saved; all of them, if that is unknown."""
        return self.operators if self.keeps is None else self.keeps

    @property
    def restore_bytes(self) -> int:
        """How much must be read to restore its state."""
        own = sum(ref.size_bytes for ref in (*self.objects, *self.files))
        return own + sum(part.restore_bytes for part in self.parts)

    def owner(self, saved: str) -> str | None:
        """The operator that owns what the objects keep under this name; None if it is gone."""
        if self.aliases.get(saved) == "":
            return None
        operator, slash, rest = saved.partition("/")
        if operator not in self.aliases:
            return saved
        alias = self.aliases[operator]
        return alias + slash + rest if alias else None

    def to_json(self) -> dict[str, Any]:
        # Not `asdict`, which copies everything: a driver does this for every shard and epoch.
        return {
            **vars(self),
            "shard": str(self.shard),
            "objects": [ref.to_json() for ref in self.objects],
            "files": [ref.to_json() for ref in self.files],
            "spilled": [ref.to_json() for ref in self.spilled],
            "carried": [ref.to_json() for ref in self.carried],
            "log": [segment.to_json() for segment in self.log],
            "parts": [part.to_json() for part in self.parts],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "CheckpointRecord":
        body = dict(body)
        waiting = body.get("uncommitted")
        if "last_epoch" in body:  # as it was called in older stores
            body["previous"] = body.pop("last_epoch")
        return cls(
            **{
                **body,
                "shard": ShardId.parse(body["shard"]),
                "operators": tuple(body["operators"]),
                "objects": tuple(ObjectRef(**ref) for ref in body["objects"]),
                "files": tuple(ObjectRef(**ref) for ref in body.get("files", ())),
                "spilled": tuple(ObjectRef(**ref) for ref in body.get("spilled", ())),
                "carried": tuple(ObjectRef(**ref) for ref in body.get("carried", ())),
                "ended": tuple(body["ended"]),
                "keeps": None if body.get("keeps") is None else tuple(body["keeps"]),
                "delivered": tuple(body.get("delivered", ())),
                "log": tuple(LogSegment.from_json(segment) for segment in body["log"]),
                "parts": tuple(cls.from_json(part) for part in body.get("parts", ())),
                "uncommitted": waiting
                and {sink: tuple(numbers) for sink, numbers in waiting.items()},
                "counts": {name: tuple(pair) for name, pair in body["counts"].items()},
            }
        )
