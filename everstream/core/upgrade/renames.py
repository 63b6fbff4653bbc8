"""Checkpoint records under other names: the objects stay, the record has their present names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from everstream.core.checkpointing.record import CheckpointRecord, LogKind
from everstream.core.ids import ShardId

_CHANNEL = re.compile(r"(\d+)/(.+):(\d+)->(.+):(\d+)")
V = TypeVar("V")


def without(values: Mapping[str, V], aliases: Mapping[str, str]) -> dict[str, V]:
    """The values by their present names, without those that were dropped."""
    return {aliases.get(n, n): value for n, value in values.items() if aliases.get(n) != ""}


def aliased(record: CheckpointRecord, aliases: Mapping[str, str], log: LogKind) -> CheckpointRecord:
    """A record by the present names; "" marks what was dropped."""
    if not aliases.keys() & set(record.operators):
        return _renamed_channels(record, aliases, log)
    own = dict(record.aliases)
    for name in record.operators:
        if name in aliases:
            saved = next((old for old, new in own.items() if new == name), name)
            own[saved] = aliases[name]
    head = aliases.get(record.shard.operator) or record.shard.operator
    keeps = record.keeps
    changed = replace(
        record,
        shard=ShardId(head, record.shard.number),
        operators=tuple(aliases.get(name) or name for name in record.operators),
        keeps=None if keeps is None else tuple(without(dict.fromkeys(keeps), aliases)),
        aliases=own,
        counts=without(record.counts, aliases),
        skipped=without(record.skipped, aliases),
    )
    return _renamed_channels(changed, aliases, log)


def _renamed_channels(
    record: CheckpointRecord, aliases: Mapping[str, str], log: LogKind
) -> CheckpointRecord:
    """Channels by the present names of their ends.

    Except where the checkpoint holds frames, which are found by their earlier names: `check_fits`
    refuses a pipeline whose channels have other names.
    """
    if record.holds_frames or log != "none":
        return record

    def now(channel: str) -> str:
        match = _CHANNEL.fullmatch(channel)
        if match is None:
            return channel
        edge, sender, s, receiver, r = match.groups()
        ends = [aliases.get(name) or name for name in (sender, receiver)]
        return f"{edge}/{ends[0]}:{s}->{ends[1]}:{r}"

    return replace(
        record,
        received=_by(now, record.received),
        sent=_by(now, record.sent),
        ended=tuple(map(now, record.ended)),
        watermarks=_by(now, record.watermarks),
    )


def _by(name: Callable[[str], str], values: Mapping[str, int]) -> dict[str, int]:
    return {name(key): value for key, value in values.items()}
