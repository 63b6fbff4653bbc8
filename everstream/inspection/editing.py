"""Edit savepoints from Python: read one, change values, write it as a new one.

A savepoint itself never changes. What is written is a copy of it with other state. Offsets, prepared
transactions, frames in transit and message logs are those of the original, so a run resumes from it
under any protocol as from any other savepoint. A new key is put into the shard that the records of
that key will be routed to; where that cannot be known, it is refused.
"""

import copy
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import ShardId
from everstream.errors import UserError
from everstream.inspection.checkpoints import open_store
from everstream.inspection.operator_state import known_operators
from everstream.pipeline.describing import A_FUNCTION
from everstream.pipeline.keys import Keying
from everstream.pipeline.spreading import CONTEXT_STATE
from everstream.state.freezing import is_steady
from everstream.state.migrating import Outdated
from everstream.state.objects import ObjectRef
from everstream.state.savepoints import (
    Incoming,
    Savepoint,
    checked_name,
    objects_in,
    savepoint,
)
from everstream.state.snapshot import ShardState
from everstream.state.store import CheckpointStore

OWN_FORM: Final = frozenset(
    {
        *("aggregates", "window", "window_rows", "batch", "transact", "deduplicate"),
        *("window_join", "interval_join", "as_of_join", "broadcast_join"),
    }
)
"""Built-in operators that keep more than a value per key: they cannot be edited by key."""


def edit_savepoint(
    store: str | os.PathLike[str],
    name: str,
    *,
    store_key: str | os.PathLike[str] | None = None,
) -> "SavepointEdit":
    """Change the state in a savepoint, and save it as another one.

    store, name: the folder or URL that was given to the run, and the savepoint there.
    store_key: the key file of a signed store. Default: the one that EVERSTREAM_STORE_KEY_FILE names.

    `edit.state("count")` is the state of an operator over all its shards: `map` its values, `put` and
    `delete` keys, or take it as a Polars frame (`frame`) and put that back (`put_frame`). Nothing is
    written before `edit.save("patched")`. Then `everstream rewind STORE --to patched` resumes from
    it, or `everstream run app.py --store OTHER --start-from STORE@patched`.
    """
    return SavepointEdit(open_store(store, store_key), name)


class SavepointEdit:
    """A savepoint that is being changed: what `edit_savepoint` returns."""

    def __init__(self, store: CheckpointStore, name: str) -> None:
        self._store = store
        self._kept = savepoint(store, name)
        self._manifest = EpochManifest.from_json(self._kept.body)
        self._objects = dict(objects_in(store, self._kept))
        self._shards: dict[ShardId, tuple[ShardState, dict[str, Any]]] = {}
        self._states: dict[tuple[str, str], StateEdit] = {}

    def __enter__(self) -> "SavepointEdit":
        return self

    def __exit__(self, *exception: object) -> None:
        """Changes that were not saved are discarded."""

    @property
    def operators(self) -> list[str]:
        """The operators in the savepoint, in the order of the graph."""
        return known_operators(self._manifest)

    def state(self, operator: str, name: str | None = None) -> "StateEdit":
        """The state of an operator; `name` selects an `es.Keyed`, if it declares several.

        Without a name: its only state, of `ctx.state` or declared.
        """
        if operator not in self.operators:
            raise UserError(
                f"there is no operator '{operator}' in savepoint '{self._kept.name}'; it has: "
                f"{', '.join(self.operators)}."
            )
        about = (self._manifest.described or {}).get(operator, {})
        if about.get("operator") in OWN_FORM:
            raise UserError(
                f"'{operator}' ({about['operator']}) keeps its state in its own format, which "
                "cannot be changed by key."
            )
        parts = [self._part(r, operator) for r in self._records_of(operator)]
        names = {name for part in parts for name in part.names} | {*about.get("keyed", ())}
        names = names or {CONTEXT_STATE}
        if name is None and len(names) != 1:
            known = ", ".join(sorted(names))
            raise UserError(
                f"name the state of '{operator}': state('{operator}', NAME). It has: {known}."
            )
        chosen = name if name is not None else names.pop()
        if chosen not in names and chosen != CONTEXT_STATE:
            raise UserError(
                f"'{operator}' has no state '{chosen}'; it has: {', '.join(sorted(names))}."
            )
        if (operator, chosen) not in self._states:
            key = about.get("key")
            manifest = self._manifest
            count, groups = manifest.shard_counts[operator], manifest.key_groups
            edit = StateEdit(operator, chosen, parts, key, count, groups)
            self._states[operator, chosen] = edit
        return self._states[operator, chosen]

    def save(self, name: str) -> Savepoint:
        """Write everything as a savepoint with this name, which must not exist."""
        checked_name(name)
        records, objects = dict(self._manifest.records), dict(self._objects)
        for shard, (state, extras) in self._shards.items():
            record = records[shard]
            whole = ShardState()
            whole.adopt(state, lambda saved: saved)
            data = whole.capture(extras).encode()
            ref = ObjectRef.of(f"{shard.operator}-{shard.number}/edited", data)
            objects[ref] = data
            records[shard] = replace(
                record, objects=(ref,), keeps=_keeps(record, state), size_bytes=len(data)
            )
        manifest = replace(self._manifest, records=records)
        saved = Savepoint(name, manifest.to_json(), time.time(), self._kept.slot, edited=True)
        incoming = Incoming(self._store, saved)
        for ref in saved.objects:
            incoming.add(ref.name, objects[ref])
        incoming.finish()
        return saved

    def _records_of(self, operator: str) -> list[CheckpointRecord]:
        records = [r for r in self._manifest.records.values() if operator in r.operators]
        if any(record.files for record in records):
            raise UserError(
                f"'{operator}' is in shards that keep state on disk, which cannot be changed in a "
                "savepoint yet. Run it once with state='memory', and take another savepoint."
            )
        if any(record.parts for record in records):
            raise UserError(
                f"the number of shards of '{operator}' has just changed in savepoint "
                f"'{self._kept.name}'. Let the pipeline take one more checkpoint, and edit a "
                "savepoint of that."
            )
        return sorted(records, key=lambda record: record.shard.number)

    def _part(self, record: CheckpointRecord, operator: str) -> "_ShardPart":
        """The state of a shard, read only once."""
        if record.shard not in self._shards:
            state, extras = ShardState(), {}
            if record.objects:
                data = [self._objects[ref] for ref in record.objects]
                extras = state.restore(data, record.objects)
            self._shards[record.shard] = (state, extras)
        return _ShardPart(record, self._shards[record.shard][0], operator)


class _ShardPart:
    """An operator's state in one shard."""

    def __init__(self, record: CheckpointRecord, state: ShardState, operator: str) -> None:
        self.record = record
        self._state = state
        self._saved = next((s for s, o in record.aliases.items() if o == operator), operator)

    @property
    def names(self) -> set[str]:
        return {
            name
            for (owner, name), entries in self._state.pairs().items()
            if owner == self._saved and entries
        }

    def entries(self, name: str) -> dict[Any, Any]:
        """To be changed."""
        return self._state.keystore(self._saved, name).changing(())


class StateEdit:
    """The state of one operator over all its shards, as it will be saved."""

    def __init__(
        self,
        operator: str,
        name: str,
        parts: list[_ShardPart],
        key: str | list[str] | None,
        shards: int,
        key_groups: int | None,
    ) -> None:
        self._title = f"state '{name}' of '{operator}'"
        self._shards = {part.record.shard.number: part.entries(name) for part in parts}
        self._key = key
        self._count = shards
        self._key_groups = key_groups
        versions = {
            value.version if isinstance(value, Outdated) else None
            for entries in self._shards.values()
            for value in entries.values()
        }
        if len(versions) > 1:
            raise UserError(
                f"{self._title} has values of several versions, of which some are not migrated yet. "
                "Let a run touch all of them first, for example with `self.state.items()` in "
                "on_start, and take another savepoint."
            )
        self._version = next(iter(versions), None)

    def __len__(self) -> int:
        return sum(map(len, self._shards.values()))

    def __contains__(self, key: Hashable) -> bool:
        return any(key in entries for entries in self._shards.values())

    def __getitem__(self, key: Hashable) -> Any:
        for entries in self._shards.values():
            if key in entries:
                return self._plain(entries[key])
        raise KeyError(key)

    def items(self) -> list[tuple[Any, Any]]:
        """All keys and values, shard by shard."""
        every = (pair for entries in self._shards.values() for pair in entries.items())
        return [(key, self._plain(value)) for key, value in every]

    def map(self, function: Callable[[Any, Any], Any]) -> None:
        """Set each key's value to function(key, value); changes nothing if it raises."""
        changed = [
            {
                key: self._kept(function(key, _own(self._plain(value))))
                for key, value in part.items()
            }
            for part in self._shards.values()
        ]
        for entries, values in zip(self._shards.values(), changed, strict=True):
            entries.update(values)

    def put(self, key: Hashable, value: Any) -> None:
        """Set the value of one key, which may be new."""
        self._put({key: value})

    def delete(self, key: Hashable) -> None:
        """Delete this key; a KeyError if it does not exist."""
        for entries in self._shards.values():
            if key in entries:
                del entries[key]
                return
        raise KeyError(key)

    def frame(self) -> pl.DataFrame:
        """Keys and values as columns: `key` (of tuples `key_0`, `key_1`, ...) and `value`.

        Refused where a column would not give back exactly what is kept: then use `map`.
        """
        return framed(self.items(), self._title)

    def put_frame(self, frame: pl.DataFrame, *, keep_others: bool = False) -> None:
        """Replace the state by a frame like that of `frame()`: keys that are not in it are deleted.

        With `keep_others` they stay as they are. Default: False.
        """
        added = unframed(frame, self._title)
        places = self._places([key for key in added if key not in self])
        if not keep_others:
            for entries in self._shards.values():
                for key in [key for key in entries if key not in added]:
                    del entries[key]
        self._put(added, places)

    def _put(self, added: Mapping[Any, Any], places: Mapping[Any, int] | None = None) -> None:
        if places is None:
            places = self._places([key for key in added if key not in self])
        for key, value in added.items():
            there = [number for number, entries in self._shards.items() if key in entries]
            self._shards[there[0] if there else places[key]][key] = self._kept(value)

    def _places(self, new: list[Any]) -> dict[Any, int]:
        """The shards of new keys; raises if they are unknown."""
        if not new or self._count == 1:
            return dict.fromkeys(new, 0)
        if not isinstance(self._key, str) or len(self._shards) < self._count:
            raise UserError(
                f"{self._title} is not kept by the key of one stream, so it is unknown in which of "
                f"its {self._count} shards {new[0]!r} belongs. Change only existing keys."
            )
        known = [key for entries in self._shards.values() for key in entries]
        places = placed([*known, *new], self._key, self._count, self._key_groups)
        for number, entries in self._shards.items():
            for key in entries:
                if places[key] != number:
                    raise UserError(
                        f"{self._title} has the key {key!r} in shard {number}, but its stream "
                        f"would not send it there: its keys are not those of the stream, so it is "
                        f"unknown where {new[0]!r} belongs. Change only existing keys."
                    )
        return {key: places[key] for key in new}

    def _plain(self, value: Any) -> Any:
        return value.value if isinstance(value, Outdated) else value

    def _kept(self, value: Any) -> Any:
        return value if self._version is None else Outdated(value, self._version)


def placed(keys: list[Any], described: str, shards: int, key_groups: int | None) -> dict[Any, int]:
    """Key -> the shard its records go to, for a stream whose key has this description."""
    keying = Keying(_itself if described == A_FUNCTION else "key", key_groups)
    return dict(zip(keys, keying.shards_of(keys, shards).tolist(), strict=True))


def _itself(key: Any) -> Any:
    return key


def _own(value: Any) -> Any:
    """A copy that may be changed in place: the original stays intact if the function fails."""
    return value if is_steady(value) else copy.deepcopy(value)


def _keeps(record: CheckpointRecord, state: ShardState) -> tuple[str, ...] | None:
    """The operators that have state, including those that have just got some."""
    if record.keeps is None:
        return None
    full = {record.owner(saved) for (saved, _), entries in state.pairs().items() if entries}
    return tuple(name for name in record.operators if name in full or name in record.keeps)


def framed(items: Sequence[tuple[Any, Any]], owner: str) -> pl.DataFrame:
    """Columns `key` and `value`; for keys that are tuples of one length `key_0`, `key_1` and so on.

    A column has one type: an int among floats, a tuple or a user's class would come back as something
    else, and a run would resume with that. So what goes into a frame is read back and compared.
    """
    keys = [key for key, _ in items]
    lengths = {len(key) if isinstance(key, tuple) else None for key in keys}
    width = lengths.pop() if len(lengths) == 1 else None
    if width:
        columns = {f"key_{n}": [key[n] for key in keys] for n in range(width)}
    else:
        columns = {"key": keys}
    columns["value"] = [value for _, value in items]
    return pl.DataFrame([_column(name, values, owner) for name, values in columns.items()])


def unframed(frame: pl.DataFrame, owner: str) -> dict[Any, Any]:
    """Key -> value, from a frame like those of `framed`."""
    names = [name for name in frame.columns if name != "value"]
    numbered = [f"key_{n}" for n in range(len(names))]
    if "value" not in frame.columns or names not in (["key"], numbered) or not names:
        raise UserError(
            f"{owner}: a frame needs the columns 'key' (or 'key_0', 'key_1' and so on) and 'value', "
            f"not {', '.join(map(repr, frame.columns))}."
        )
    columns = [frame.get_column(name).to_list() for name in names]
    keys = columns[0] if names == ["key"] else [*zip(*columns, strict=True)]
    entries = dict(zip(keys, frame.get_column("value").to_list(), strict=True))
    if len(entries) < frame.height:
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"{owner}: the frame has the key {twice!r} more than once.")
    return entries


def _column(name: str, values: list[Any], owner: str) -> pl.Series:
    try:
        column = pl.Series(name, values, strict=True)
        again = column.to_list()
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise _unfit(name, owner, str(error).partition("\n")[0]) from None
    for value, back in zip(values, again, strict=True):
        if not _same(value, back):
            raise _unfit(name, owner, f"{value!r} would come back as {back!r}")
    return column


def _unfit(name: str, owner: str, why: str) -> UserError:
    return UserError(
        f"{owner} cannot be a frame: the column '{name}' cannot hold it exactly ({why}). Use map."
    )


def _same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*one] == [*other] and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)
