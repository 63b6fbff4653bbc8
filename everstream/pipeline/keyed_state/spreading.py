"""How state is redistributed when an operator gets another number of shards.

Keyed state follows its keys: a key's group determines its shard (`pipeline/keys.py`). State
without a key is dealt out, given to all, or the same everywhere; its owner declares which. Every
shard computes its part from what all the earlier shards kept, so none has to hand anything over.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.keys import Keying

Spread: TypeAlias = Literal["key", "entry", "split", "union", "broadcast"]
"""By the key of the records; by a tuple that begins with it; each entry to one shard; all entries to
every shard; all shards have the same."""
Entries: TypeAlias = Mapping[Any, Any]
V = TypeVar("V")


@dataclass(frozen=True)
class Place:
    """A shard among those that share an operator's state, now and before."""

    operator: str
    shard: int
    shards: int
    before: int
    """The number of shards before."""
    keying: Mapping[str, Keying]
    """By input side; empty where records are not keyed."""
    keying_before: Mapping[str, Keying]

    def inherits(self, earlier: int) -> bool:
        """Whether this shard inherits what only one shard may have of an earlier one."""
        return earlier % self.shards == self.shard

    def owns(self, keys: Sequence[Hashable], side: str = "") -> list[bool]:
        """For each of these keys, whether its records come to this shard."""
        mine = self.keying[side].shards_of(keys, self.shards) == self.shard
        return mine.tolist()  # type: ignore[no-any-return]

    def owns_rows(self, frame: pl.DataFrame, side: str = "") -> list[bool]:
        """For each row of this side, whether it comes to this shard."""
        mine = self.keying[side].places(frame, self.shards) == self.shard
        return mine.tolist()  # type: ignore[no-any-return]

    def check_keys(self, keys: Sequence[Hashable], earlier: int, state: str) -> None:
        """Raise a UserError if an earlier shard kept state under keys other than its records'."""
        if self.before == 1 or not keys:
            return
        strange = self.keying_before[""].shards_of(keys, self.before) != earlier
        if strange.any():
            key = keys[int(np.flatnonzero(strange)[0])]
            raise UserError(
                f"operator '{self.operator}' keeps {state} under keys that are not the keys of its "
                f"records ({key!r} among them), so it is unknown which of {self.shards} shards "
                "needs it. Keep the number of shards, or declare how to redistribute it: "
                f"{_hint(state)}."
            )


def redistribute_entries(
    spread: Spread | None, parts: Mapping[int, Entries], place: Place, state: str
) -> dict[Any, Any]:
    """This shard's part of what earlier shards kept in one state; a UserError if it is undefined."""
    parts = {number: entries for number, entries in parts.items() if entries}
    if not parts:
        return {}
    match spread:
        case "key":
            return _by_key(parts, place, state)
        case "entry":
            return _by_key(parts, place, state, lambda entry: entry[0])
        case "split":
            together = _together(parts, place, state)
            return dict(list(together.items())[place.shard :: place.shards])
        case "union":
            return _together(parts, place, state)
        case "broadcast":
            return dict(parts[min(parts)])
        case None:
            raise UserError(
                f"operator '{place.operator}' cannot change from {place.before} shard(s) to "
                f"{place.shards}: it does not declare how to redistribute {state}. Declare it "
                f"({_hint(state)}), or keep the number of shards."
            )


def _by_key(
    parts: Mapping[int, Entries],
    place: Place,
    state: str,
    key_of: Callable[[Any], Hashable] = lambda entry: entry,
) -> dict[Any, Any]:
    if not place.keying:
        raise UserError(
            f"operator '{place.operator}' keeps {state} by key, but its records are not keyed: "
            "put key_by in front of it, or keep the number of shards."
        )
    mine: dict[Any, Any] = {}
    for number, entries in parts.items():
        keys = [key_of(entry) for entry in entries]
        place.check_keys(keys, number, state)
        for entry, owned in zip(entries, place.owns(keys), strict=True):
            if owned:
                mine[entry] = entries[entry]
    return mine


def _together(parts: Mapping[int, Entries], place: Place, state: str) -> dict[Any, Any]:
    together: dict[Any, Any] = {}
    for entries in parts.values():
        twice = together.keys() & entries.keys()
        if twice:
            raise UserError(
                f"operator '{place.operator}' keeps {state}, and two of its shards have an entry "
                f"{next(iter(twice))!r}: it is unknown which one counts. Keep the number of "
                "shards, or override `redistribute`."
            )
        together |= entries
    return together


def merged(parts: Mapping[int, Entries], name: str, join: Callable[[list[V]], V]) -> dict[str, V]:
    """An entry that every shard may have, merged into one; empty if no shard has it."""
    values = [entries[name] for entries in parts.values() if name in entries]
    return {name: join(values)} if values else {}


def _hint(state: str) -> str:
    if state == CONTEXT_STATE:
        return 'spread = "split", "union", "broadcast" or "key" in its class'
    return f'{state} = es.Keyed(..., spread="split"), "union" or "broadcast"'


CONTEXT_STATE = "ctx.state"
"""The name of `ctx.state`; with a dot, so that no declared `Keyed` can have this name."""
