"""A history in a store: bounded blobs of entries, written beside the run, read by whoever looks later.

One blob grows until it is full, then the next one begins; the oldest go when there are too many, or
when they are too old. Each begins with the entry of its run, so that it can be understood alone. A blob
that cannot be read is left out, and that is said: no run ever depends on one.
"""

import gzip
import json
import zlib
from collections.abc import Iterator

from everstream.errors import StoreError
from everstream.observability.history.entries import FORMAT, Entry, note_entry
from everstream.state.blobs import Blobs
from everstream.state.objects import check_format

FOLDER = "history/"
ENDING = ".jsonl.gz"
BLOB_BYTES = 256 * 1024
"""A blob that has more than this is full."""
KEPT_BLOBS = 64
KEPT_S = 14 * 86_400.0
"""With the two above: what a store keeps of the past is at most 16 MB, and at most two weeks old."""
EARLIER_NAMES = {"hosts": "workers"}
"""What entries of earlier versions call it."""
SHARDS_KEPT = 16
"""Of each checkpoint the shards that took longest are kept; a live view has all."""


def encoded(entries: list[Entry]) -> bytes:
    lines = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
    return gzip.compress(lines.encode(), 6)


def decoded(data: bytes) -> list[Entry]:
    """The entries of a blob; a StoreError says what is wrong with it."""
    try:
        lines = gzip.decompress(data).decode().splitlines()
        found = [json.loads(line) for line in lines]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise StoreError(f"it is damaged: {error}") from None
    if not found:
        raise StoreError("it is damaged: there is nothing in it")
    if not all(isinstance(e, dict) and "kind" in e and "at" in e for e in found):
        raise StoreError("it is damaged: not all its lines are entries")
    check_format("it", found[0].get("format", 1), FORMAT)
    return [{EARLIER_NAMES.get(name, name): value for name, value in e.items()} for e in found]


def shortened(entry: Entry) -> Entry:
    """An entry as it is kept."""
    if entry["kind"] != "checkpoint" or len(entry["shards"]) <= SHARDS_KEPT:
        return entry
    longest = sorted(entry["shards"], key=lambda s: s["capture_s"] + s["upload_s"])
    return {**entry, "shards": longest[-SHARDS_KEPT:]}


def blob_name(began_at: float, run: str, number: int) -> str:
    """Names sort by time."""
    return f"{FOLDER}{int(began_at * 1000):014d}-{run[:8]}-{number:06d}{ENDING}"


def began_at(name: str) -> float | None:
    """When the run of a blob began, by its name."""
    stamp = name.removeprefix(FOLDER).partition("-")[0]
    return int(stamp) / 1000 if stamp.isdigit() else None


def prune(blobs: Blobs, now: float, keep_blobs: int = KEPT_BLOBS) -> None:
    """Delete what is too much or too old; of a run that has gone on for long, only what is too much."""
    names = blobs.list(FOLDER)
    too_many = names[: max(0, len(names) - keep_blobs)]
    newest = names[-1:]
    too_old = [n for n in names if (at := began_at(n)) is not None and now - at > KEPT_S]
    own = newest[0].rpartition("-")[0] if newest else ""
    for name in dict.fromkeys([*too_many, *(n for n in too_old if not n.startswith(own))]):
        blobs.delete(name)


class StoredHistory:
    """Reads a history, and what is added to it between one call and the next."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._read: dict[str, int] = {}
        """Blob -> how many of its entries were given already."""
        self._full: set[str] = set()
        self._damaged: set[str] = set()

    def news(self) -> Iterator[Entry]:
        """Entries that were not given before, oldest first."""
        names = self._blobs.list(FOLDER)
        for position, name in enumerate(names):
            if name in self._full:
                continue
            yield from self._of(name)
            if position < len(names) - 1 and _same_run(name, names[position + 1]):
                self._full.add(name)  # the next one has begun: nothing is added here any more
        self._read = {name: count for name, count in self._read.items() if name in names}
        self._full &= set(names)

    def _of(self, name: str) -> Iterator[Entry]:
        try:
            entries = decoded(self._blobs.read(name))
        except FileNotFoundError:
            return  # pruned meanwhile
        except StoreError as error:
            if name not in self._damaged:
                self._damaged.add(name)
                text = f"a part of the history is left out, {name}: {error.message}"
                yield note_entry(text, True, began_at(name) or 0.0)
            return
        yield from entries[self._read.get(name, 0) :]
        self._read[name] = len(entries)


def _same_run(name: str, later: str) -> bool:
    return name.rpartition("-")[0] == later.rpartition("-")[0]
