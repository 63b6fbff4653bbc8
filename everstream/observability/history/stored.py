"""A history in a store: bounded blobs of events, written during the run and read later.

A blob grows until it is full, then the next one starts; the oldest are deleted when there are too
many or they are too old. Each starts with the event of its run, so that it can be read on its own.
A blob that cannot be read is skipped with a note: no run depends on one.

In a blob each event is an entry: a line of JSON with its fields and its `kind`. Kinds and keys are
saved, so they never change; entries of earlier versions are translated when they are read.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, TypeAlias, get_args

import msgspec

from everstream.errors import StoreError
from everstream.events import (
    CheckpointStarted,
    EpochStable,
    Note,
    PlanChanged,
    Progressed,
    RunEvent,
    RunStarted,
)
from everstream.state.blobs import Blobs
from everstream.state.objects import check_format

Entry: TypeAlias = dict[str, Any]
"""{"kind": ..., "at": seconds since 1970, ...}"""

FORMAT: Final = 1
"""Version of the entries. Each blob starts with the entry of its run, which has it."""

FOLDER = "history/"
ENDING = ".jsonl.gz"
BLOB_BYTES = 256 * 1024
"""A larger blob is full."""
KEPT_BLOBS = 64
KEPT_S = 14 * 86_400.0
"""With the two above: a store keeps at most 16 MB of history, at most two weeks old."""
SHARDS_KEPT = 16
"""For each checkpoint, the slowest shards are kept; a live view has all."""

LIVE_ONLY: Final = (Progressed, CheckpointStarted)
"""Events that are not kept."""
_SAVED_NAMES: Final = {
    "RunStarted": "run",
    "MetricsSampled": "sample",
    "EpochStable": "checkpoint",
    "CheckpointAborted": "checkpoint_failed",
    "RecoveryUpdated": "failure",
    "Killing": "kill",
    "IntervalChanged": "interval",
    "RunEnded": "end",
}


def _kind_of(name: str) -> str:
    """WorkerLost -> worker_lost, unless it is saved under another name since the first version."""
    parts = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return _SAVED_NAMES.get(name, parts.removeprefix("_"))


KINDS: Final = {_kind_of(kind.__name__): kind for kind in get_args(RunEvent)}
"""Kind of entry -> event."""
KIND_OF: Final = {event: kind for kind, event in KINDS.items()}
_NAMES_IN_EDGES: Final = {"sender": "from", "receiver": "to"}
_EARLIER_NAMES: Final = {"hosts": "workers"}
"""The names in entries of earlier versions."""


def to_entry(event: RunEvent) -> Entry:
    """The event in its saved form."""
    entry = {"kind": KIND_OF[type(event)], **msgspec.to_builtins(event)}
    if isinstance(event, RunStarted):
        entry["format"] = FORMAT
    if "edges" in entry:
        entry["edges"] = [
            {_NAMES_IN_EDGES.get(name, name): value for name, value in edge.items()}
            for edge in entry["edges"]
        ]
    return entry


def from_entry(entry: Entry) -> RunEvent | None:
    """The saved event, of this version or an earlier one; None for a kind of a later version."""
    kind = KINDS.get(entry["kind"])
    if kind is None or kind in LIVE_ONLY:
        return None
    fields = {_EARLIER_NAMES.get(name, name): value for name, value in entry.items()}
    if "edges" in fields:
        known = {saved: name for name, saved in _NAMES_IN_EDGES.items()}
        fields["edges"] = [
            {known.get(name, name): value for name, value in edge.items()}
            for edge in fields["edges"]
        ]
    if fields["kind"] == "checkpoint_failed":
        # Earlier versions saved the sentence in a separate entry.
        fields.setdefault("repeated", True)
    if fields["kind"] == "note":
        fields.setdefault("topic", "")
    return msgspec.convert(fields, kind)  # type: ignore[no-any-return]


def encoded(events: list[RunEvent]) -> bytes:
    lines = (json.dumps(to_entry(event), separators=(",", ":")) + "\n" for event in events)
    return gzip.compress("".join(lines).encode(), 6)


def decoded(data: bytes) -> list[RunEvent | None]:
    """The events of a blob, None for those of later versions; a StoreError explains the damage."""
    try:
        lines = gzip.decompress(data).decode().splitlines()
        entries = [json.loads(line) for line in lines]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise StoreError(f"it is damaged: {error}") from None
    if not entries:
        raise StoreError("it is damaged: it is empty")
    if not all(isinstance(e, dict) and "kind" in e and "at" in e for e in entries):
        raise StoreError("it is damaged: not all its lines are entries")
    check_format("it", entries[0].get("format", 1), FORMAT)
    try:
        return [from_entry(entry) for entry in entries]
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise StoreError(f"it is damaged: {error}") from None


def shortened(event: RunEvent) -> RunEvent:
    """The stored form of an event."""
    if not isinstance(event, EpochStable) or len(event.shards) <= SHARDS_KEPT:
        return event
    longest = sorted(event.shards, key=lambda shard: shard.capture_s + shard.upload_s)
    return replace(event, shards=tuple(longest[-SHARDS_KEPT:]))


def with_plan(run: RunStarted, change: PlanChanged) -> RunStarted:
    """The event of a run as if it had started with this plan."""
    return replace(
        run,
        operators=change.operators,
        edges=change.edges,
        shards=change.shards,
        workers=change.workers,
    )


def blob_name(began_at: float, run: str, number: int) -> str:
    """Names sort by time."""
    return f"{FOLDER}{int(began_at * 1000):014d}-{run[:8]}-{number:06d}{ENDING}"


def began_at(name: str) -> float | None:
    """When the run of a blob started, from its name."""
    stamp = name.removeprefix(FOLDER).partition("-")[0]
    return int(stamp) / 1000 if stamp.isdigit() else None


def prune(blobs: Blobs, now: float, keep_blobs: int = KEPT_BLOBS) -> None:
    """Delete blobs beyond the limit or too old; those of a long active run only beyond the limit."""
    names = blobs.list(FOLDER)
    too_many = names[: max(0, len(names) - keep_blobs)]
    newest = names[-1:]
    too_old = [n for n in names if (at := began_at(n)) is not None and now - at > KEPT_S]
    own = newest[0].rpartition("-")[0] if newest else ""
    for name in dict.fromkeys([*too_many, *(n for n in too_old if not n.startswith(own))]):
        blobs.delete(name)


class StoredHistory:
    """Reads a history, and the additions between one call and the next."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._read: dict[str, int] = {}
        """Blob -> how many of its events have been returned."""
        self._full: set[str] = set()
        self._damaged: set[str] = set()

    def new_events(self) -> Iterator[RunEvent]:
        """New events, oldest first."""
        names = self._blobs.list(FOLDER)
        for position, name in enumerate(names):
            if name in self._full:
                continue
            yield from self._of(name)
            if position < len(names) - 1 and _same_run(name, names[position + 1]):
                self._full.add(name)  # the next one has started: this one is complete
        self._read = {name: count for name, count in self._read.items() if name in names}
        self._full &= set(names)

    def _of(self, name: str) -> Iterator[RunEvent]:
        try:
            events = decoded(self._blobs.read(name))
        except FileNotFoundError:
            return  # pruned meanwhile
        except StoreError as error:
            if name not in self._damaged:
                self._damaged.add(name)
                text = f"a part of the history is skipped, {name}: {error.message}"
                yield Note("history", text, True, at=began_at(name) or 0.0)
            return
        yield from (event for event in events[self._read.get(name, 0) :] if event is not None)
        self._read[name] = len(events)


def _same_run(name: str, later: str) -> bool:
    return name.rpartition("-")[0] == later.rpartition("-")[0]
