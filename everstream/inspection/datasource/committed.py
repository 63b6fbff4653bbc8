"""Up to where a pipeline's output is committed: what a reader may see, and what it must not miss.

An epoch is stable when its manifest is written. Each sink commits its output a little later. A
manifest lists the output that was still pending; once all of that is found in its place, everything
up to that epoch is committed for good. A reader's position also records its branch of the store's
history: if the store was rewound to before it, what it has read was rolled back, and it must raise
an error instead of continuing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from everstream.connectors import collect, dead_letters
from everstream.connectors.files.parts import PartFolder, PartName, owner_of
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import DEAD_LETTERS
from everstream.errors import StoreError, UserError
from everstream.inspection.datasource.asked import Asked
from everstream.state.manifests import standing
from everstream.state.store import CheckpointStore, Manifest


@dataclass(frozen=True)
class OutputPosition:
    """Everything up to an epoch: the offset of a stream, as JSON."""

    epoch: int = 0
    slot: int = 0
    """The slot of its manifest."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """"operator:shard" -> its checkpoint in that epoch, under which its output is stored."""
    returns: tuple[int, ...] = ()
    """The epochs the store had been rewound to by then."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "returns": list(self.returns)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "OutputPosition":
        return cls(body["epoch"], body["slot"], body["shards"], tuple(body["returns"]))


START = OutputPosition()


@dataclass(frozen=True)
class OutputPart:
    """A committed file of one operator."""

    operator: str
    name: PartName

    @property
    def shard(self) -> str:
        return f"{self.operator}:{self.name.shard}"


class CommittedOutput:
    """A snapshot of a store: which of the requested output is committed, and which is not."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._store: CheckpointStore = asked.open()
        # The log first: what it reports as stable may be found committed, never the other way round.
        self._manifests: list[Manifest] = self._store.manifests()
        manifests = [EpochManifest.from_json(entry.body) for entry in self._manifests]
        self._newest = manifests[0] if manifests else None
        self.operators: list[str] = [] if self._newest is None else self._operators(self._newest)
        self._parts = set(self._committed_parts())

    def newest(self) -> OutputPosition:
        """The newest epoch whose output is completely committed; the start if there is none."""
        later: dict[str, int] = {}
        for entry in standing(self._manifests):
            manifest = EpochManifest.from_json(entry.body)
            if self._is_committed(entry, manifest):
                return self._position(entry, manifest, later)
            later.update(self._checkpoints(manifest))
        return START

    def check(self, position: OutputPosition) -> None:
        """Raise a StoreError if what was read up to there is no longer valid."""
        if position == START:
            return
        newest = self._manifests[0] if self._manifests else None
        since = self._newest.returns[len(position.returns) :] if self._newest is not None else ()
        behind = [epoch for epoch in since if epoch < position.epoch]
        if any(skipped.slot == position.slot for skipped in self._store.skipped):
            problem = "the manifest of that epoch was damaged, and the pipeline may have gone back"
        elif newest is None or newest.slot < position.slot:
            problem = "another store has replaced it, or part of it is missing"
        elif self._store.fresh_slot() > position.slot:
            problem = "the pipeline was started over since then, which deletes its output"
        elif behind:
            problem = f"the pipeline went back to epoch {min(behind)} since then"
        elif newest.epoch < position.epoch:
            problem = f"the newest epoch is {newest.epoch}"
        else:
            return
        raise StoreError(
            f"this stream has read up to epoch {position.epoch} of '{self._asked.store}', but "
            f"{problem}: what it read may have been rolled back. Start the query again, with another "
            "checkpointLocation, and drop what it has written."
        )

    def parts(self, after: OutputPosition, until: OutputPosition) -> list[OutputPart]:
        """What was committed in between, in order."""
        parts = [
            part
            for part in self._parts
            if after.shards.get(part.shard, 0)
            < part.name.checkpoint
            <= until.shards.get(part.shard, 0)
        ]
        return sorted(
            parts, key=lambda part: (part.name.checkpoint, part.operator, part.name.shard)
        )

    def _operators(self, manifest: EpochManifest) -> list[str]:
        asked = self._asked
        if asked.what == "dead_letters":
            known = list(manifest.shard_counts)
            if asked.operator is not None and asked.operator not in known:
                there = ", ".join(known)
                raise UserError(f"there is no operator '{asked.operator}'; there are: {there}.")
            return known if asked.operator is None else [asked.operator]
        known = outputs_of(manifest, asked.store)
        if asked.operator is None and len(known) == 1:
            return known
        if asked.operator not in known:
            there = ", ".join(known) or "none"
            named = (
                f"'{asked.operator}' keeps no output in the store"
                if asked.operator
                else "say which"
            )
            raise UserError(
                f'{named}: use option("operator", NAME) with a sink that does; there are: {there}. '
                "(Collect keeps its output in the store; read what other sinks write to folders and "
                "tables with Spark's own formats.)"
            )
        return [asked.operator]

    def folder_of(self, operator: str) -> PartFolder:
        if self._asked.what == "dead_letters":
            return dead_letters.folder_of(self._asked.store, operator)
        return collect.folder_of(self._asked.place, operator)

    def _committed_parts(self) -> Iterable[OutputPart]:
        if self._newest is None:
            return
        for operator in self.operators:
            for name in self.folder_of(operator).parts(owner_of(self._newest.pipeline, operator)):
                yield OutputPart(operator, name)

    def _is_committed(self, entry: Manifest, manifest: EpochManifest) -> bool:
        if all(record.uncommitted is not None for record in manifest.records.values()):
            return all(part in self._parts for part in self._waiting(manifest))
        if entry is self._manifests[0] and self._store.all_shown():
            return True
        raise StoreError(
            f"'{self._asked.store}' was written by an earlier Everstream, which did not record which "
            "output is committed. Let the pipeline run for one more epoch with this version."
        )

    def _waiting(self, manifest: EpochManifest) -> Iterable[OutputPart]:
        """The output that was still to be committed when this epoch was saved.

        Each under the number of the shard that prepared it: a shard that inherits it keeps that.
        """
        suffix = DEAD_LETTERS if self._asked.what == "dead_letters" else ""
        records = [part for r in manifest.records.values() for part in r.parts or (r,)]
        for record in records:
            for saved, numbers in (record.uncommitted or {}).items():
                operator = (record.owner(saved) or "").removesuffix(suffix)
                if operator not in self.operators or saved.endswith(DEAD_LETTERS) != bool(suffix):
                    continue
                owner = owner_of(manifest.pipeline, operator)
                for number in numbers:
                    yield OutputPart(operator, PartName(owner, record.shard.number, number))

    def _position(
        self, entry: Manifest, manifest: EpochManifest, later: Mapping[str, int]
    ) -> OutputPosition:
        shards = {**self._of_earlier_shards(later), **self._checkpoints(manifest)}
        return OutputPosition(
            manifest.epoch, entry.slot, dict(sorted(shards.items())), manifest.returns
        )

    def _checkpoints(self, manifest: EpochManifest) -> dict[str, int]:
        return {
            f"{operator}:{record.shard.number}": int(record.number)
            for record in manifest.records.values()
            for operator in record.operators
            if operator in self.operators
        }

    def _of_earlier_shards(self, later: Mapping[str, int]) -> dict[str, int]:
        """The progress of shards whose number is no longer in use: their output stays.

        A number that an epoch uses again, `later`, has output of that epoch, too.
        """
        reached: dict[str, int] = {}
        for part in self._parts:
            checkpoint = part.name.checkpoint
            if part.shard not in later or checkpoint < later[part.shard]:
                reached[part.shard] = max(checkpoint, reached.get(part.shard, 0))
        return reached


def outputs_of(manifest: EpochManifest, store: str) -> list[str]:
    """The sinks that keep their output in the store."""
    if manifest.described is not None:
        about = manifest.described.items()
        return [name for name, fields in about if fields.get("sink") == collect.Collect.__name__]
    return [
        name
        for name in manifest.shard_counts
        if collect.folder_of(store, name).parts(owner_of(manifest.pipeline, name))
    ]
