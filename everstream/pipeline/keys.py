"""Keys: which shard a record belongs to, the same on every machine and in every process.

Python's own hash changes from process to process, and Polars' from version to version, so both
would scatter a key's records over shards after a restart. These hashes never change. A hash gives
the group of a key, of which there are always as many, and the group its shard: so a key's place
among other shards, when their number changes, can be told from the key alone.
"""

import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of, records_of
from everstream.pipeline.text_hash import crc32_column

Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
KeySelector: TypeAlias = Callable[[Any], Hashable] | str | pl.Expr

KEY_GROUPS = 128
"""Groups of keys, unless a store has others: the most shards that keys can be spread over."""

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(3)
_CACHE_LIMIT = 200_000
_FEW_TEXTS = 512
"""Up to here looking up each text costs less than setting up to hash them at once."""
_MANY_TEXTS = 16_384
"""Up to here looking up each text costs less than finding the distinct ones."""
_SMALL_FRAME = 16_384
"""Values in a frame, up to which filtering its columns one by one is the faster way."""
_TEXT_CODES: dict[Any, int] = {}


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

    def __init__(self, selector: KeySelector, groups: int | None = KEY_GROUPS) -> None:
        """groups: None for as many as there are shards, which older stores have."""
        self.selector = selector
        self.groups = groups
        self._cache: dict[int, dict[Any, int]] = {}
        """Number of shards -> key -> shard: one keyed stream may feed several operators."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Keying, (self.selector, self.groups))

    @property
    def on_columns(self) -> bool:
        return not callable(self.selector) or isinstance(self.selector, pl.Expr)

    def keys(self, batch: Batch) -> list[Hashable]:
        """The key of each record."""
        if not self.on_columns:
            function: Callable[[Any], Hashable] = self.selector  # type: ignore[assignment]
            return [function(record) for record in records_of(batch)]
        column = self.key_column(batch)
        if column.dtype == pl.Struct:
            return [*map(_as_tuple, column.to_list())]
        return column.to_list()

    def key_column(self, batch: Batch) -> pl.Series:
        """The keys as one Polars column."""
        frame = columns_of(batch, "key_by")
        if isinstance(self.selector, str):
            if self.selector in frame.columns:
                return frame.get_column(self.selector)
            return frame.select(
                pl.col(self.selector)
            ).to_series()  # a pattern of names, or an error
        return frame.select(self.selector).to_series()  # type: ignore[arg-type]

    def split(self, batch: Batch, shards: int) -> list[tuple[int, Batch]]:
        """The batch cut into parts, one for each shard that gets any, order kept."""
        if shards == 1:
            return [(0, batch)]
        if not self.on_columns and not isinstance(batch, pl.DataFrame):
            return self._split_objects(batch, shards)
        frame = columns_of(batch, "key_by")
        places = self.places(frame, shards)
        present = np.unique(places).tolist()
        if len(present) == 1:
            return [(present[0], frame)]
        return [(shard, _filtered(frame, places == shard)) for shard in present]

    def places(self, frame: pl.DataFrame, shards: int) -> Hashes:
        """The shard of each row."""
        if self.on_columns:
            return self._spread(hash_column(self.key_column(frame)), shards)
        return np.array(self._places(records_of(frame), shards), dtype=np.uint64)

    def _split_objects(self, batch: list[Any], shards: int) -> list[tuple[int, Batch]]:
        parts: list[list[Any]] = [[] for _ in range(shards)]
        for record, shard in zip(batch, self._places(batch, shards), strict=True):
            parts[shard].append(record)
        return [(shard, part) for shard, part in enumerate(parts) if part]

    def _places(self, records: list[Any], shards: int) -> list[int]:
        function: Callable[[Any], Hashable] = self.selector  # type: ignore[assignment]
        cache = self._cache.setdefault(shards, {})
        places: list[int] = []
        for record in records:
            key = function(record)
            try:
                shard = cache.get(key)
            except TypeError:
                shard = None  # Not hashable: the next line says so in words.
            places.append(self._shard_of(key, shards) if shard is None else shard)
        return places

    def shards_of(self, keys: Sequence[Any], shards: int) -> Hashes:
        """The shard of each of these keys, which are as `keys` gives them."""
        hashes = hash_keys(keys) if self.on_columns else np.array([*map(stable_hash, keys)])
        return self._spread(hashes.astype(np.uint64), shards)

    def _spread(self, hashes: Hashes, shards: int) -> Hashes:
        groups = self.groups or shards
        grouped = hashes if groups % shards == 0 else hashes % np.uint64(groups)
        return np.asarray(grouped % np.uint64(shards), dtype=np.uint64)

    def _shard_of(self, key: Any, shards: int) -> int:
        shard = stable_hash(key) % (self.groups or shards) % shards
        cache = self._cache.setdefault(shards, {})
        if len(cache) >= _CACHE_LIMIT:
            cache.clear()
        cache[key] = shard
        return shard


def _filtered(frame: pl.DataFrame, mask: Any) -> pl.DataFrame:
    """These rows. Going through Polars' planner takes longer than filtering a small frame does."""
    chosen = pl.Series(mask)
    if frame.height * frame.width > _SMALL_FRAME:
        return frame.filter(chosen)
    return pl.DataFrame([column.filter(chosen) for column in frame.get_columns()])


def _as_tuple(key: Any) -> Any:
    """A compound key as Polars gives it, as one that can be looked up."""
    return tuple(map(_as_tuple, key.values())) if isinstance(key, dict) else key


def hash_column(column: pl.Series) -> Hashes:
    """A 64-bit hash of each value of a column, vectorised for numbers and strings.

    Equal keys have equal hashes whatever the type of the column: batches of one stream can
    differ in it, if some hold only whole numbers or only nulls.
    """
    if column.dtype == pl.Struct:
        code = np.zeros(len(column), dtype=np.uint64)
        for field in column.struct.unnest():
            code = _mix(code ^ hash_column(field))
    else:
        code = _mix(_codes(column))
    return np.where(column.is_null().to_numpy(), _NULL, code) if column.null_count() else code


def hash_keys(keys: Sequence[Any]) -> Hashes:
    """What `hash_column` gives for a column of these values, which `Keying.keys` has made of one."""
    hashes = np.empty(len(keys), dtype=np.uint64)
    kinds: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        kinds.setdefault((len(key), tuple) if type(key) is tuple else type(key), []).append(
            position
        )
    for kind, positions in kinds.items():
        alike = [keys[position] for position in positions]
        if isinstance(kind, tuple):
            code = np.zeros(len(alike), dtype=np.uint64)
            for field in zip(*alike, strict=True):
                code = _mix(code ^ hash_keys(field))
            hashes[positions] = code
        else:
            hashes[positions] = hash_column(pl.Series(alike))
    return hashes


def _codes(column: pl.Series) -> Hashes:
    kind = column.dtype
    if kind == pl.Null:
        return np.zeros(len(column), dtype=np.uint64)
    if kind == pl.Int64 and not column.null_count():
        return column.to_numpy().view(np.uint64)
    if isinstance(kind, pl.Datetime | pl.Duration):
        column = column.dt.cast_time_unit("us")  # as Python has them
    if kind.is_integer() or kind == pl.Boolean or kind.is_temporal():
        values = column.to_physical().cast(pl.Int64, wrap_numerical=True)
        return values.fill_null(0).to_numpy().view(np.uint64)
    if kind.is_float():
        return _hash_floats(column.fill_null(0.0).to_numpy().astype(np.float64))
    if kind in (pl.String, pl.Binary, pl.Categorical, pl.Enum):
        return _hash_texts(column)
    raise UserError(
        f"key_by cannot use column '{column.name}' of type {kind}: use a number, string, "
        "date or a struct of these."
    )


def _hash_floats(values: np.ndarray[Any, np.dtype[np.float64]]) -> Hashes:
    """Whole numbers count as the integers they equal."""
    values = np.where(np.isnan(values), np.nan, values)
    whole = (np.abs(values) < 2.0**63) & (np.trunc(values) == values)
    integers = np.where(whole, values, 0.0).astype(np.int64)
    return np.where(whole, integers.view(np.uint64), values.view(np.uint64))


def _hash_texts(column: pl.Series) -> Hashes:
    """Short ones are hashed all at once; long ones once each, and looked up: keys repeat."""
    coded = column.cast(pl.String) if column.dtype in (pl.Categorical, pl.Enum) else column
    if len(coded) > _FEW_TEXTS:
        at_once = crc32_column(coded, 1 if coded.dtype == pl.Binary else 0)
        if at_once is not None:
            return at_once.astype(np.uint64)
    if len(coded) <= _MANY_TEXTS:
        return _text_codes(coded.to_list())
    distinct = coded.unique()
    codes = pl.Series(_text_codes(distinct.to_list()))
    joined = coded.replace_strict(distinct, codes, return_dtype=pl.UInt64)
    return joined.to_numpy()


def _text_codes(texts: list[Any]) -> Hashes:
    codes = [*map(_TEXT_CODES.get, texts)]
    if None in codes:
        if len(_TEXT_CODES) + len(texts) > _CACHE_LIMIT:
            _TEXT_CODES.clear()
        codes = []
        for text in texts:
            code = _TEXT_CODES.get(text)
            if code is None:
                code = _TEXT_CODES[text] = stable_hash(text)
            codes.append(code)
    return np.array(codes, dtype=np.uint64)


def _mix(values: Hashes) -> Hashes:
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
