"""The columns that all shards of a sink have agreed on, kept in the store of the run.

Shards are processes that do not know each other. The first one that has rows proposes their columns:
it creates version 1, which exactly one shard can, and the others adopt what they find. A later version
only adds to the one before: a column, a type for a column that had nothing but None, or a wider type
where the format allows it. So everything written with an earlier version fits into the newest, and
neither a restart, nor a rewind, nor another number of shards changes a type. --fresh deletes them all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from everstream.connectors.files.parts import owner_of
from everstream.errors import StoreError
from everstream.pipeline.exact import Kind
from everstream.pipeline.sink import SinkShard
from everstream.state.signing import blobs_at, key_of

FOLDER = "columns"


@dataclass(frozen=True)
class Settled:
    """Columns with their types, and the version of the agreement."""

    version: int
    schema: pl.Schema

    def as_json(self) -> dict[str, Any]:
        columns = [[name, kind_to_json(kind)] for name, kind in self.schema.items()]
        return {"version": self.version, "columns": columns}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> "Settled":
        columns = {name: kind_from_json(kind) for name, kind in saved["columns"]}
        return Settled(int(saved["version"]), pl.Schema(columns))


class Agreement:
    def __init__(self, pipeline: str, operator: str, store: str) -> None:
        self._folder = f"{FOLDER}/{owner_of(pipeline, operator)}"
        # Without a store there is no other shard to agree with.
        self._blobs = blobs_at(store, key_of(store)) if store else None
        self._alone: Settled | None = None

    @staticmethod
    def of(shard: SinkShard) -> "Agreement":
        return Agreement(shard.pipeline, shard.operator, shard.store)

    def newest(self) -> Settled | None:
        """The newest version; None if nothing has been agreed on."""
        if self._blobs is None:
            return self._alone
        paths = self._blobs.list(f"{self._folder}/")
        return self._read(paths[-1]) if paths else None

    def propose(self, before: Settled | None, schema: pl.Schema) -> Settled:
        """Propose these columns as the next version; returns the one that won."""
        proposed = Settled(before.version + 1 if before is not None else 1, schema)
        if self._blobs is None:
            self._alone = proposed
            return proposed
        path = f"{self._folder}/{proposed.version:08d}.json"
        try:
            self._blobs.create(path, json.dumps(proposed.as_json()).encode())
        except FileExistsError:
            newest = self.newest()
            assert newest is not None
            return newest
        return proposed

    def forget(self) -> None:
        """Start over: the next rows decide the columns."""
        self._alone = None
        if self._blobs is not None:
            for path in self._blobs.list(f"{self._folder}/"):
                self._blobs.delete(path)

    def _read(self, path: str) -> Settled:
        assert self._blobs is not None
        try:
            return Settled.from_json(json.loads(self._blobs.read(path)))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"'{path}' in the store, the columns of the output, cannot be read: {error}. Restore "
                "it from a copy, or start over with --fresh, which deletes the output."
            ) from error


_SIMPLE: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128, pl.UInt8, pl.UInt16, pl.UInt32),
        *(pl.UInt64, pl.UInt128, pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Binary),
        *(pl.Date, pl.Time, pl.Null, pl.Categorical),
    )
}


def kind_to_json(kind: Kind) -> Any:
    match kind:
        case pl.Decimal():
            return {"Decimal": [kind.precision, kind.scale]}
        case pl.Datetime():
            return {"Datetime": [kind.time_unit, kind.time_zone]}
        case pl.Duration():
            return {"Duration": kind.time_unit}
        case pl.Enum():
            return {"Enum": kind.categories.to_list()}
        case pl.List():
            return {"List": kind_to_json(kind.inner)}  # type: ignore[arg-type]
        case pl.Array():
            return {"Array": [kind_to_json(kind.inner), kind.size]}  # type: ignore[arg-type]
        case pl.Struct():
            fields = [[field.name, kind_to_json(field.dtype)] for field in kind.fields]  # type: ignore[arg-type]
            return {"Struct": fields}
    return kind.base_type().__name__


def kind_from_json(saved: Any) -> Kind:
    """The type again; a ValueError if it is not one."""
    if isinstance(saved, str) and saved in _SIMPLE:
        simple: Kind = _SIMPLE[saved]()
        return simple
    match saved:
        case {"Decimal": [precision, scale]}:
            return pl.Decimal(precision, scale)
        case {"Datetime": [unit, zone]}:
            return pl.Datetime(unit, zone)
        case {"Duration": unit}:
            return pl.Duration(unit)
        case {"Enum": categories}:
            return pl.Enum(categories)
        case {"List": inner}:
            return pl.List(kind_from_json(inner))
        case {"Array": [inner, size]}:
            return pl.Array(kind_from_json(inner), size)
        case {"Struct": fields}:
            return pl.Struct({name: kind_from_json(kind) for name, kind in fields})
    raise ValueError(f"{saved!r} is not the type of a column")
