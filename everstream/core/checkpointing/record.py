"""The record of one checkpoint: what a shard reports once it is durable, and a manifest keeps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from everstream.core.ids import NO_CHECKPOINT, CheckpointNumber, ShardId
from everstream.state.objects import ObjectRef

DEAD_LETTERS = "/dead-letters"
"""Ends the name under which an operator's dead letters are saved."""

LogKind: TypeAlias = Literal["none", "durable", "memory"]
"""Where senders keep what they sent."""


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
    """What those objects name: the files of state that is kept on disk."""
    keeps: tuple[str, ...] | None = None
    """Operators that have something in them: state, an offset, transactions. None: not known."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Operator, as the objects call it -> as it is called now; "" if that was dropped."""
    final: bool = False
    """The shard had ended: this also stands for every later epoch."""
    previous: CheckpointNumber = NO_CHECKPOINT
    """The checkpoint this shard took before; a final record stands for the epochs after it."""
    stopped: bool = False
    """The shard was told to stop with this checkpoint."""
    forced: bool = False
    """The protocol demanded it before a delivery; no timer did."""
    loops_ended: bool = False
    """The feedback inputs of the shard's cycle had been declared ended."""
    holds_frames: bool = False
    """Frames that were on their way are part of it, under the names of their channels."""
    spilled: tuple[ObjectRef, ...] = ()
    """What the objects name of those frames: segments that were on the local disk."""
    carried: tuple[ObjectRef, ...] = ()
    """Objects with frames that had come round to the shard and wait at its inputs; they were written
    by those who sent them, after this checkpoint had been."""
    log: tuple[LogSegment, ...] = ()
    """What the shard had sent and somebody may still ask for."""
    received: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    """Input channels that have ended."""
    watermarks: dict[str, int] = field(default_factory=dict)
    """Input channel -> its watermark, of those that have one."""
    ordinal: int = 0
    uncommitted: dict[str, tuple[int, ...]] | None = None
    """Sink -> the checkpoints whose output was not known to be committed when this one was taken,
    its own among them. Whoever finds all of it committed has all output up to here. None: not known."""
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Operator -> records in, records out."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Operator -> records left out because of an error, of those that left any out."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The protocol's own."""
    parts: tuple["CheckpointRecord", ...] = ()
    """What earlier shards had saved, of which this one takes its share: the number of shards was
    changed since. Then it has no objects of its own."""
    shards: int = 0
    """Of such a part: how many shards there were."""
    key_groups: int | None = None
    """Of such a part: in how many groups keys were spread; None for as many as there were shards."""
    most_shards: dict[str, int] = field(default_factory=dict)
    """If it has parts: operator -> how many shards it has ever had, all of which may have output."""
    lost_frames: int = 0
    """Frames sent to this shard that nobody could send again."""
    aligned_s: float = 0.0
    """From the first input that showed the marker to the last; aligned, they are held meanwhile."""
    capture_s: float = 0.0
    upload_s: float = 0.0
    size_bytes: int = 0

    @property
    def all_objects(self) -> tuple[ObjectRef, ...]:
        """Everything in the store that it takes to go back to this checkpoint."""
        logs = (segment.ref for segment in self.log)
        of_parts = (ref for part in self.parts for ref in part.all_objects)
        return (*self.objects, *self.files, *self.spilled, *self.carried, *logs, *of_parts)

    @property
    def restore_bytes(self) -> int:
        """What it takes to have its state again."""
        own = sum(ref.size_bytes for ref in (*self.objects, *self.files))
        return own + sum(part.restore_bytes for part in self.parts)

    def owner(self, saved: str) -> str | None:
        """Who owns what the objects keep under this name; None if nobody does any more."""
        if self.aliases.get(saved) == "":
            return None
        operator, slash, rest = saved.partition("/")
        if operator not in self.aliases:
            return saved
        alias = self.aliases[operator]
        return alias + slash + rest if alias else None

    def to_json(self) -> dict[str, Any]:
        # Not `asdict`, which copies all there is: a driver does this for every shard and epoch.
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
                "log": tuple(LogSegment.from_json(segment) for segment in body["log"]),
                "parts": tuple(cls.from_json(part) for part in body.get("parts", ())),
                "uncommitted": waiting
                and {sink: tuple(numbers) for sink, numbers in waiting.items()},
                "counts": {name: tuple(pair) for name, pair in body["counts"].items()},
            }
        )
