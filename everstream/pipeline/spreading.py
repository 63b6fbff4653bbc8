"""How state is shared out anew when an operator gets another number of shards.

Keyed state goes where its keys go: a key's group tells its shard (`pipeline/keys.py`). What has no
key is dealt out, given to all, or the same everywhere; its owner says which. Everybody works out
his own share from what all the earlier shards had kept, so nobody has to hand anything over.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.keys import Keying

Spread: TypeAlias = Literal["key", "split", "union", "broadcast"]
"""By the key of the records; each entry to one shard; all entries to every shard; all shards have
the same."""
Entries: TypeAlias = Mapping[Any, Any]
V = TypeVar("V")


@dataclass(frozen=True)
class Place:
    """A shard among those that share an operator's state, now and before."""

    operator: str
    shard: int
    shards: int
    before: int
    """How many shards there were."""
    keying: Mapping[str, Keying]
    """By the side that records come in at; none where they do not come by key."""
    keying_before: Mapping[str, Keying]

    def inherits(self, earlier: int) -> bool:
        """Whether what only one may have of an earlier shard goes here."""
        return earlier % self.shards == self.shard

    def owns(self, keys: Sequence[Hashable], side: str = "") -> list[bool]:
        """Of these keys, those whose records come here."""
        mine = self.keying[side].shards_of(keys, self.shards) == self.shard
        return mine.tolist()  # type: ignore[no-any-return]

    def owns_rows(self, frame: pl.DataFrame, side: str = "") -> list[bool]:
        """Of rows that came in at this side, those that come here."""
        mine = self.keying[side].places(frame, self.shards) == self.shard
        return mine.tolist()  # type: ignore[no-any-return]

    def check_keys(self, keys: Sequence[Hashable], earlier: int, state: str) -> None:
        """Raise a UserError if an earlier shard kept something under other keys than its records'."""
        if self.before == 1 or not keys:
            return
        strange = self.keying_before[""].shards_of(keys, self.before) != earlier
        if strange.any():
            key = keys[int(np.flatnonzero(strange)[0])]
            raise UserError(
                f"operator '{self.operator}' keeps {state} under other keys than those of its "
                f"records ({key!r} among them), so nobody can tell which of {self.shards} shards "
                "needs it. Keep the number of shards; or say how it is to be spread: "
                f"{_hint(state)}."
            )


def redistribute_entries(
    spread: Spread | None, parts: Mapping[int, Entries], place: Place, state: str
) -> dict[Any, Any]:
    """This place's share of what earlier shards kept in one state; a UserError if nobody can tell."""
    parts = {number: entries for number, entries in parts.items() if entries}
    if not parts:
        return {}
    match spread:
        case "key":
            return _by_key(parts, place, state)
        case "split":
            together = _together(parts, place, state)
            return dict(list(together.items())[place.shard :: place.shards])
        case "union":
            return _together(parts, place, state)
        case "broadcast":
            return dict(parts[min(parts)])
        case None:
            raise UserError(
                f"operator '{place.operator}' cannot go from {place.before} shard(s) to "
                f"{place.shards}: nothing says what becomes of {state}. Say so ({_hint(state)}), "
                "or keep the number of shards."
            )


def _by_key(parts: Mapping[int, Entries], place: Place, state: str) -> dict[Any, Any]:
    if not place.keying:
        raise UserError(
            f"operator '{place.operator}' keeps {state} by key, and its records do not come by "
            "key: put key_by in front of it, or keep the number of shards."
        )
    mine: dict[Any, Any] = {}
    for number, entries in parts.items():
        keys = list(entries)
        place.check_keys(keys, number, state)
        for key, owned in zip(keys, place.owns(keys), strict=True):
            if owned:
                mine[key] = entries[key]
    return mine


def _together(parts: Mapping[int, Entries], place: Place, state: str) -> dict[Any, Any]:
    together: dict[Any, Any] = {}
    for entries in parts.values():
        twice = together.keys() & entries.keys()
        if twice:
            raise UserError(
                f"operator '{place.operator}' keeps {state}, and two of its shards have an entry "
                f"{next(iter(twice))!r}: nobody can tell which one counts. Keep the number of "
                "shards, or override `redistribute`."
            )
        together |= entries
    return together


def merged(parts: Mapping[int, Entries], name: str, join: Callable[[list[V]], V]) -> dict[str, V]:
    """One entry that all may have, made one; none if nobody has it."""
    values = [entries[name] for entries in parts.values() if name in entries]
    return {name: join(values)} if values else {}


def _hint(state: str) -> str:
    if state == CONTEXT_STATE:
        return 'spread = "split", "union", "broadcast" or "key" in its class'
    return f'{state} = es.Keyed(..., spread="split"), "union" or "broadcast"'


CONTEXT_STATE = "ctx.state"
"""Where `ctx.state` is kept; with a dot, so that no declared `Keyed` can have this name."""
