"""Which checkpoints a store holds, which of them are usable, and what is wrong with the others.

A row is a manifest, complete or not, or an epoch whose snapshots no manifest refers to. One of them
is current: the next run resumes from it. You can rewind to rows that were kept, but never to rows
that were given up, because their output may have been rolled back.
"""

import os
import re
import socket
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.ids import Epoch
from everstream.errors import StoreError, UserError
from everstream.state.blobs import FsspecBlobs
from everstream.state.heartbeat import DriverStatus, read_heartbeat
from everstream.state.manifests import standing
from everstream.state.objects import ObjectRef
from everstream.state.signing import StoreKey
from everstream.state.store import CheckpointStore, Holder, Manifest, Survey
from everstream.state.store_lock import is_held

_OBJECT = re.compile(r"(?P<operator>.+)-(?P<number>\d+)/(?P<epoch>\d{8,})-[0-9a-f]+\.ckpt")


class CheckpointStatus(Enum):
    """Whether a checkpoint can be restored."""

    CURRENT = "current"
    """The next run resumes from here."""
    KEPT = "kept"
    """Can be restored: by a fall back, or by a rewind."""
    GIVEN_UP = "given up"
    """A later manifest went back to before it: never restored again."""
    REPLACED = "written again"
    """The same epoch appears further up, because of a rewind to it."""
    UNREADABLE = "unreadable"
    """The manifest itself is torn or corrupt; its epoch is unknown."""
    UNFINISHED = "unfinished"
    """There are snapshots, but no complete manifest: in progress, interrupted, or torn."""


@dataclass(frozen=True)
class Checkpoint:
    """One row of the list."""

    status: CheckpointStatus
    slot: int | None = None
    manifest: EpochManifest | None = None
    problems: tuple[str, ...] = ()
    """Why it is not complete; empty if no problem is known."""
    epoch: Epoch | None = None
    weaknesses: tuple[str, ...] = ()
    """Objects with one damaged copy out of two: the checkpoint is complete all the same."""

    @property
    def complete(self) -> bool:
        return self.manifest is not None and not self.problems

    @property
    def restore_bytes(self) -> int:
        """How much a restore reads: with increments, more than the epoch itself wrote."""
        records = self.manifest.records.values() if self.manifest is not None else ()
        return sum(record.restore_bytes for record in records)

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "status": self.status.value,
            "complete": self.complete,
            "problems": list(self.problems),
            "weaknesses": list(self.weaknesses),
            "slot": self.slot,
        }
        if self.manifest is None:
            return row
        return {
            **row,
            "final": self.manifest.final,
            "written_at": self.manifest.written_at,
            "size_bytes": self.manifest.size_bytes,
            "restore_bytes": self.restore_bytes,
            "duration_s": self.manifest.duration_s,
            "shards": [
                {
                    "shard": str(record.shard),
                    "operators": list(record.operators),
                    "size_bytes": record.size_bytes,
                    "restore_bytes": record.restore_bytes,
                    "objects": len(record.objects) + len(record.files),
                    "capture_s": record.capture_s,
                    "upload_s": record.upload_s,
                    "final": record.final,
                }
                for record in self.manifest.records.values()
            ],
        }


@dataclass(frozen=True)
class Overview:
    """Everything `everstream checkpoints` shows."""

    pipeline: str
    checkpoints: list[Checkpoint]
    """Newest first."""
    holder: Holder
    verified: bool
    held: bool | None = None
    """Whether the run that took the lease is still alive; None if that is not visible from here."""

    @property
    def kept(self) -> tuple[int, float] | None:
        """How many of the newest the last run kept, and those of how many seconds; None if unknown."""
        newest = next((row.manifest for row in self.checkpoints if row.manifest is not None), None)
        return None if newest is None else newest.kept

    @property
    def lease_in_words(self) -> str:
        number, owner = self.holder.number, self.holder.owner
        if not owner:
            return f"Lease {number} is not held: the store was started afresh"
        if self.held:
            return f"Lease {number} is held by {owner}"
        ended = "whether it still runs is not visible from here"
        if self.held is False:
            ended = "which has ended: the store is free"
        return f"Lease {number} was last taken by {owner}, {ended}"

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "lease": {
                "number": self.holder.number,
                "owner": self.holder.owner,
                "held": self.held,
            },
            "verified": self.verified,
            "kept": None
            if self.kept is None
            else {"newest": self.kept[0], "age_s": self.kept[1] or None},
            "checkpoints": [checkpoint.to_json() for checkpoint in self.checkpoints],
        }


def open_store(
    store: str | os.PathLike[str], store_key: str | os.PathLike[str] | None = None
) -> CheckpointStore:
    """The store in this folder or under this URL; a UserError if there is none. Creates nothing.

    store_key: the key file of a signed store. Default: the one that EVERSTREAM_STORE_KEY_FILE names.
    """
    url = os.fspath(store)
    if "://" not in url and not Path(url).is_dir():
        raise UserError(f"there is no store '{url}': no such folder.")
    return CheckpointStore.at(url, StoreKey.given(store_key))


def survey_of(store: CheckpointStore) -> tuple[Survey, Holder]:
    """Read the log; a UserError if no driver has ever written here."""
    survey = store.survey()
    if survey.holder is None:
        if survey.skipped:
            raise StoreError(
                f"nothing in {_name(store)} can be read: {survey.skipped[0].path}: "
                f"{survey.skipped[0].reason}. Restore the folder from a copy."
            )
        raise UserError(
            f"{_name(store)} is not a store: no run has ever used it. Name the folder "
            "given to --store; without that option it is .everstream/<pipeline's name>."
        )
    return survey, survey.holder


def _name(store: CheckpointStore) -> str:
    blobs = store.blobs
    return f"'{blobs.url}'" if isinstance(blobs, FsspecBlobs) else repr(blobs)


def look(store: CheckpointStore, *, verify: bool = False) -> Overview:
    """List the checkpoints; `verify` reads every object they refer to and compares checksums."""
    survey, holder = survey_of(store)
    rows = checkpoints_in(survey)
    pipeline = next((row.manifest.pipeline for row in rows if row.manifest is not None), "")
    if verify:
        rows = _verified(store, survey, rows)
    return Overview(pipeline, rows, holder, verify, _is_held(store, holder))


def _is_held(store: CheckpointStore, holder: Holder) -> bool | None:
    """Whether the run that took the lease is alive, by its own report or as seen here."""
    if not holder.owner:
        return False
    heartbeat = read_heartbeat(store.blobs)
    if (
        heartbeat is not None
        and heartbeat.lease == holder.number
        and heartbeat.life is not DriverStatus.RUNNING
    ):
        return False
    here = holder.owner.rpartition(" on ")[2] == socket.gethostname()
    blobs = store.blobs
    return is_held(blobs.url) if here and isinstance(blobs, FsspecBlobs) else None


def checkpoints_in(survey: Survey) -> list[Checkpoint]:
    """The rows of a survey, newest first."""
    manifests = [(entry.slot, EpochManifest.from_json(entry.body)) for entry in survey.manifests]
    valid = standing(manifest for _, manifest in manifests)
    rows = [
        Checkpoint(_status(manifest, valid), slot, manifest, (), manifest.epoch)
        for slot, manifest in manifests
    ]
    rows += [
        Checkpoint(
            CheckpointStatus.UNREADABLE, skipped.slot, None, (f"{skipped.path}: {skipped.reason}",)
        )
        for skipped in survey.skipped
    ]
    rows.sort(key=lambda row: row.slot or 0, reverse=True)
    return [*_unfinished(survey, valid[0].epoch if valid else Epoch(0)), *rows]


def _status(manifest: EpochManifest, valid: list[EpochManifest]) -> CheckpointStatus:
    if manifest is valid[0]:
        return CheckpointStatus.CURRENT
    if any(manifest is other for other in valid):
        return CheckpointStatus.KEPT
    again = any(manifest.epoch == other.epoch for other in valid)
    return CheckpointStatus.REPLACED if again else CheckpointStatus.GIVEN_UP


def _unfinished(survey: Survey, current: Epoch) -> list[Checkpoint]:
    """Epochs after the current one that have only snapshots.

    Snapshots of earlier ones are leftovers that are about to be removed.
    """
    shards: dict[int, set[str]] = defaultdict(set)
    for name in survey.unnamed:
        match = _OBJECT.fullmatch(name)
        if match is not None and int(match["epoch"]) > current:
            shards[int(match["epoch"])].add(f"{match['operator']}:{match['number']}")
    return [
        Checkpoint(
            CheckpointStatus.UNFINISHED,
            problems=(f"no complete manifest names it; saved: {', '.join(sorted(shards[epoch]))}",),
            epoch=Epoch(epoch),
        )
        for epoch in sorted(shards, reverse=True)
    ]


def _verified(store: CheckpointStore, survey: Survey, rows: list[Checkpoint]) -> list[Checkpoint]:
    entries = {entry.slot: entry for entry in survey.manifests}
    known: dict[ObjectRef, str | None] = {}
    weak: dict[ObjectRef, str | None] = {}
    verified: list[Checkpoint] = []
    for row in rows:
        entry = entries.get(row.slot) if row.slot is not None else None
        problems = problems_of(store, entry, known) if entry is not None else ()
        # A live driver prunes manifests before their objects: then nothing is damaged.
        if entry is None or not problems or store.still_has(entry):
            weaknesses = _found_in(entry, store.weakness_of, weak) if entry is not None else ()
            verified.append(replace(row, problems=row.problems + problems, weaknesses=weaknesses))
    return verified


def _found_in(
    entry: Manifest,
    look: Callable[[ObjectRef], str | None],
    known: dict[ObjectRef, str | None],
) -> tuple[str, ...]:
    """The findings for each object of a manifest; `known` caches those already checked."""
    for ref in entry.objects:
        if ref not in known:
            known[ref] = look(ref)
    return tuple(f"{ref.name}: {known[ref]}" for ref in entry.objects if known[ref] is not None)


def repair(store: CheckpointStore) -> list[str]:
    """Rewrite damaged copies from those that are intact; returns what was done."""
    survey, _ = survey_of(store)
    refs = {ref: None for entry in survey.manifests for ref in entry.objects}
    outcomes = ((ref, store.heal(ref)) for ref in refs)
    return [f"{ref.name}: {problem}" for ref, problem in outcomes if problem is not None]


def problems_of(
    store: CheckpointStore, entry: Manifest, known: dict[ObjectRef, str | None]
) -> tuple[str, ...]:
    """The problems of the objects of a manifest; `known` caches those already read."""
    return _found_in(entry, store.problem_of, known)


def choose(survey: Survey, epoch: int | None) -> Manifest:
    """The newest manifest of this epoch, or the current one; a UserError names the choices."""
    if not survey.manifests:
        raise UserError("the store holds no checkpoint yet: no epoch was ever complete.")
    for entry in survey.manifests:
        if epoch is None or entry.body["epoch"] == epoch:
            return entry
    there = ", ".join(str(number) for number in sorted({e.body["epoch"] for e in survey.manifests}))
    raise UserError(f"there is no checkpoint of epoch {epoch}; the store has: {there}.")
