"""Keys: which shard a record belongs to, the same on every machine and in every process.

Python's own hash changes from process to process, and Polars' from version to version, so both
would scatter a key's records over shards after a restart. These hashes never change.
"""

import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of, records_of

KeySelector: TypeAlias = Callable[[Any], Hashable] | str | pl.Expr

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_CACHE_LIMIT = 200_000


def stable_hash(key: Any) -> int:
    """A hash of a Python key that is the same everywhere; equal keys have equal hashes."""
    if isinstance(key, str):
        return zlib.crc32(key.encode())
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    if isinstance(key, bool | int):
        return zlib.crc32(
            int(key).to_bytes((int(key).bit_length() + 8) // 8, "little", signed=True)
        )
    if isinstance(key, bytes):
        return zlib.crc32(key, 1)
    if isinstance(key, tuple):
        code = 7
        for part in key:
            code = zlib.crc32(stable_hash(part).to_bytes(4, "little"), code)
        return code
    if key is None:
        return 3
    if isinstance(key, float):
        return zlib.crc32(repr(key).encode(), 2)
    raise UserError(
        f"a key must be a str, bytes, number, None or a tuple of these, not {type(key).__name__} "
        f"({key!r}). Let key_by return such a value."
    )


class Keying:
    """A key selector: from batches to keys, and from batches to one part per shard."""

    def __init__(self, selector: KeySelector) -> None:
        self.selector = selector
        self._shard_of_key: dict[Any, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Keying, (self.selector,))

    @property
    def on_columns(self) -> bool:
        return not callable(self.selector) or isinstance(self.selector, pl.Expr)

    def keys(self, batch: Batch) -> list[Hashable]:
        """The key of each record."""
        if not self.on_columns:
            function: Callable[[Any], Hashable] = self.selector  # type: ignore[assignment]
            return [function(record) for record in records_of(batch)]
        return self.key_column(batch).to_list()

    def key_column(self, batch: Batch) -> pl.Series:
        """The keys as one Polars column."""
        frame = columns_of(batch, "key_by")
        expression = pl.col(self.selector) if isinstance(self.selector, str) else self.selector
        selected = frame.select(expression)  # type: ignore[arg-type]
        return selected.to_series()

    def split(self, batch: Batch, shards: int) -> list[tuple[int, Batch]]:
        """The batch cut into parts, one for each shard that gets any, order kept."""
        if shards == 1:
            return [(0, batch)]
        if self.on_columns:
            frame = columns_of(batch, "key_by")
            places = hash_column(self.key_column(frame)) % np.uint64(shards)
            parts: list[tuple[int, Batch]] = []
            for shard in range(shards):
                chosen = frame.filter(pl.Series(places == shard))
                if chosen.height:
                    parts.append((shard, chosen))
            return parts
        if isinstance(batch, pl.DataFrame):
            shard_of = [self._shard_of(key, shards) for key in self.keys(batch)]
            places = np.array(shard_of)
            return [
                (shard, batch.filter(pl.Series(places == shard))) for shard in sorted(set(shard_of))
            ]
        return self._split_objects(batch, shards)

    def _split_objects(self, batch: list[Any], shards: int) -> list[tuple[int, Batch]]:
        function: Callable[[Any], Hashable] = self.selector  # type: ignore[assignment]
        shard_of = self._shard_of_key
        parts: list[list[Any]] = [[] for _ in range(shards)]
        for record in batch:
            key = function(record)
            shard = shard_of.get(key)
            if shard is None:
                shard = self._shard_of(key, shards)
            parts[shard].append(record)
        return [(shard, part) for shard, part in enumerate(parts) if part]

    def _shard_of(self, key: Any, shards: int) -> int:
        shard = self._shard_of_key.get(key)
        if shard is None:
            if len(self._shard_of_key) >= _CACHE_LIMIT:
                self._shard_of_key.clear()
            shard = self._shard_of_key[key] = stable_hash(key) % shards
        return shard


def hash_column(column: pl.Series) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A 64-bit hash of each value of a column, vectorised for numbers and strings."""
    kind = column.dtype
    if kind.is_integer() or kind == pl.Boolean or kind.is_temporal():
        values = column.to_physical().cast(pl.Int64, wrap_numerical=True)
        return _mix(values.fill_null(-1).to_numpy().view(np.uint64))
    if kind.is_float():
        whole = column.fill_null(-1.0).to_numpy().astype(np.float64) + 0.0
        return _mix(whole.view(np.uint64))
    if kind == pl.Struct:
        code = np.zeros(len(column), dtype=np.uint64)
        for field in column.struct.unnest():
            code = _mix(code ^ hash_column(field))
        return code
    if kind in (pl.String, pl.Binary, pl.Categorical, pl.Enum):
        return _hash_texts(column)
    raise UserError(
        f"key_by cannot use column '{column.name}' of type {kind}: use a number, string, "
        "date or a struct of these."
    )


def _hash_texts(column: pl.Series) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Strings are hashed once per distinct value of the batch: keys repeat."""
    coded = column.cast(pl.String) if column.dtype in (pl.Categorical, pl.Enum) else column
    distinct = coded.unique()
    codes = np.fromiter(
        (stable_hash(value) for value in distinct.to_list()), np.uint64, len(distinct)
    )
    joined = coded.replace_strict(distinct, pl.Series(codes), return_dtype=pl.UInt64)
    return _mix(joined.to_numpy())


def _mix(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The finaliser of splitmix64: every input bit changes every output bit."""
    with np.errstate(over="ignore"):
        x = values ^ (values >> np.uint64(30))
        x = x * _MIX_1
        x = x ^ (x >> np.uint64(27))
        x = x * _MIX_2
        return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def key_selector(selector: Any, more: Sequence[Any]) -> KeySelector:
    """What `key_by` was given, as one selector: several columns become one struct."""
    if more:
        return pl.struct(selector, *more)
    if isinstance(selector, str | pl.Expr) or callable(selector):
        return selector  # type: ignore[no-any-return]
    raise UserError(
        f"key_by takes a function, a column name or a Polars expression, not {selector!r}."
    )
