"""Reads the JSON result of a run and takes from it what planning needs to know.

The file may come from another version or be cut short, so every value is checked and an error
names the key that is wrong.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RunResultError(ValueError):
    """The result of a run cannot be used; the message names the file and the key."""


@dataclass(frozen=True)
class Measured:
    """What one run showed. Times in seconds; empty tuples where nothing was seen."""

    wall_s: float
    records_in: int
    rate_per_s: float
    pauses_s: tuple[float, ...]
    """Per checkpoint: the longest capture among its shards, which is what stops the hot path."""
    durations_s: tuple[float, ...]
    """Per checkpoint: from its start until it was stable."""
    waits_s: tuple[float, ...]
    """Per checkpoint: what of that no shard captured or wrote, which was waiting for its turn."""
    sizes_bytes: tuple[float, ...]
    outages_s: tuple[float, ...]
    """Per recovery: from the failure until the state was restored."""
    catch_ups_s: tuple[float, ...]
    """Per recovery: from restored until caught up."""
    replayed: tuple[int, ...]
    shards: int

    @property
    def mtbf_s(self) -> float | None:
        """Time per failure in this run; None if nothing failed. Killed on purpose counts too."""
        return self.wall_s / len(self.outages_s) if self.outages_s else None

    @property
    def interval_s(self) -> float | None:
        return self.wall_s / len(self.durations_s) if self.durations_s else None

    @property
    def capacity_per_s(self) -> float | None:
        """The speed of catching up: in each recovery, what waited plus what came, over its time."""
        speeds = [
            (records + self.rate_per_s * (outage_s + catch_up_s)) / catch_up_s
            for records, outage_s, catch_up_s in zip(
                self.replayed, self.outages_s, self.catch_ups_s, strict=True
            )
            if catch_up_s > 0
        ]
        return statistics.median(speeds) if speeds else None


def read_run(path: str | Path) -> Measured:
    """Read a result file."""
    return parse_run(parse_json(path), str(path))


def parse_json(path: str | Path) -> object:
    """What a file holds; an error that names it if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RunResultError(f"cannot read the result {path}: {error.strerror}") from error
    try:
        data: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise RunResultError(
            f"{path} is not JSON (line {error.lineno}): was the run cut short?"
        ) from error
    return data


def parse_run(data: object, name: str = "the result") -> Measured:
    """Check and take apart the result of a run."""
    run = mapping_at(data, name, "the whole file")
    wall_s = number_at(run, "wall_s", name)
    if wall_s <= 0:
        raise RunResultError(f"{name}: wall_s must be above zero, not {wall_s}")
    records_in = number_at(run, "records_in", name)
    rate_per_s = number_at(run, "records_per_s", name) if "records_per_s" in run else 0.0
    pauses, durations, sizes, waits = [], [], [], []
    shards = 0
    for i, entry in enumerate(list_at(run, "checkpoints", name)):
        where = f"{name}: checkpoints[{i}]"
        checkpoint = mapping_at(entry, name, f"checkpoints[{i}]")
        durations.append(number_at(checkpoint, "duration_s", where))
        sizes.append(number_at(checkpoint, "bytes", where) if "bytes" in checkpoint else 0.0)
        captures = [
            number_at(mapping_at(shard, name, f"checkpoints[{i}].shards[{j}]"), "capture_s",
                    f"{where}.shards[{j}]")
            for j, shard in enumerate(list_at(checkpoint, "shards", where))
        ]  # fmt: skip
        pauses.append(max(captures, default=0.0))
        uploads = [
            number_at(shard, "upload_s", f"{where}.shards[{j}]")
            for j, shard in enumerate(list_at(checkpoint, "shards", where))
            if "upload_s" in shard
        ]
        if uploads:
            waits.append(max(0.0, durations[-1] - pauses[-1] - max(uploads)))
        shards = max(shards, len(captures))
    outages, catch_ups, replayed = [], [], []
    for i, entry in enumerate(list_at(run, "recoveries", name)):
        where = f"{name}: recoveries[{i}]"
        recovery = mapping_at(entry, name, f"recoveries[{i}]")
        restored_s = number_at(recovery, "restored_ms", where) / 1000
        caught_up_s = number_at(recovery, "caught_up_ms", where) / 1000
        if caught_up_s < restored_s:
            raise RunResultError(f"{where}: caught_up_ms lies before restored_ms")
        outages.append(restored_s)
        catch_ups.append(caught_up_s - restored_s)
        replayed.append(int(number_at(recovery, "records_replayed", where)))
    return Measured(
        wall_s=wall_s,
        records_in=int(records_in),
        rate_per_s=rate_per_s or records_in / wall_s,
        pauses_s=tuple(pauses),
        durations_s=tuple(durations),
        waits_s=tuple(waits),
        sizes_bytes=tuple(sizes),
        outages_s=tuple(outages),
        catch_ups_s=tuple(catch_ups),
        replayed=tuple(replayed),
        shards=shards,
    )


def mapping_at(value: object, name: str, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RunResultError(
            f"{name}: {what} should be an object, not {type(value).__name__}; "
            "give a file that Everstream wrote with --json"
        )
    return value


def list_at(mapping: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = mapping.get(key, [])
    if not isinstance(value, list):
        raise RunResultError(f"{where}: {key} should be a list, not {type(value).__name__}")
    return value


def number_at(mapping: Mapping[str, Any], key: str, where: str) -> float:
    if key not in mapping:
        raise RunResultError(f"{where} has no {key!r}: did Everstream write this file?")
    value = mapping[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RunResultError(f"{where}: {key} should be a number, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise RunResultError(f"{where}: {key} should be zero or more, not {value!r}")
    return float(value)
