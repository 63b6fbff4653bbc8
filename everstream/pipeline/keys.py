"""Keys: which shard a record belongs to, the same on every machine and in every process.

Python's own hash changes from process to process, and Polars' from version to version, so both
would scatter a key's records over shards after a restart. These hashes never change. A hash gives
the key group, and the number of key groups is fixed; the group gives the shard. So when the number
of shards changes, the new shard of a key follows from the key alone.
"""

import datetime as dt
import struct
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of, records_of
from everstream.state.canonical_key import (
    KINDS,
    canonical_key,
    canonical_keys,
    column_keys,
    equal_number,
    fields_of,
    instant,
)

# CRC-32 of every text of a column at once: the same numbers as `zlib.crc32` of each, but a step of the
# loop takes the n-th byte of all texts together, so a column of short keys costs a few passes instead of
# a call per text.
LONGEST = 24
"""Longer texts need too many passes: hashing them one by one is faster."""
BLOCK = 8_192
"""Texts per block: the intermediate results of the passes stay in the cache."""

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_TABLE = np.array([zlib.crc32(bytes([n]), 0xFFFFFFFF) ^ 0xFFFFFFFF for n in range(256)], np.uint32)


def crc32_column(texts: pl.Series, start: int) -> _Array | None:
    """`zlib.crc32(text, start)` of each text or binary value, 0 for null; None if one is long.

    >>> crc32_column(pl.Series(["apple", ""]), 0).tolist()
    [2838417488, 0]
    """
    array: Any = texts.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offset_bytes, data_bytes = array.buffers()
    count = len(texts)
    if data_bytes is None:
        return np.full(count, zlib.crc32(b"", start), np.uint32)
    offsets = np.frombuffer(offset_bytes, np.int64)[array.offset : array.offset + count + 1]
    data = np.frombuffer(data_bytes, np.uint8)
    lengths = np.diff(offsets)
    if lengths.max(initial=0) > LONGEST:
        return None
    code = np.full(count, start ^ 0xFFFFFFFF, np.uint32)
    for first in range(0, count, BLOCK):
        rows = slice(first, first + BLOCK)
        _advance(code[rows], data, offsets[:-1][rows], lengths[rows])
    code ^= np.uint32(0xFFFFFFFF)
    return code


def _advance(code: _Array, data: _Array, begins: _Array, lengths: _Array) -> None:
    """Feed all bytes of some texts into `code`, in place."""
    shortest = int(lengths.min())
    for place in range(int(lengths.max())):
        # Once some texts have ended, continue with the others.
        rows: Any = slice(None) if place < shortest else np.flatnonzero(lengths > place)
        some = code[rows]
        at = (some ^ data[begins[rows] + place]) & np.uint32(0xFF)
        code[rows] = _TABLE[at] ^ (some >> np.uint32(8))


Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
KeySelector: TypeAlias = Callable[[Any], Hashable] | str | pl.Expr

KEY_GROUPS = 128
"""Default number of key groups: an upper bound on the shards of a keyed operator."""

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(3)
_CACHE_LIMIT = 200_000
_FEW_TEXTS = 512
"""Up to this many, looking up each text is cheaper than setting up to hash them at once."""
_MANY_TEXTS = 16_384
"""Up to this many, looking up each text is cheaper than finding the distinct ones."""
_SMALL_FRAME = 16_384
"""Up to this many values in a frame, filtering its columns one by one is faster."""
_TEXT_CODES: dict[Any, int] = {}


def stable_hash(key: Any) -> int:
    """A hash of a Python key that is the same everywhere; equal keys have equal hashes."""
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
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
        return zlib.crc32(repr(float(key)).encode(), 2)
    if isinstance(key, Decimal | Fraction):
        number = equal_number(key)
        if isinstance(number, Fraction):
            return zlib.crc32(f"{number.numerator}/{number.denominator}".encode(), 4)
        return stable_hash(number)
    if isinstance(key, dt.date | dt.time | dt.timedelta):
        kind, count = instant(key)
        return zlib.crc32(f"{kind} {count}".encode(), 5)
    if isinstance(key, np.generic):
        return stable_hash(canonical_key(key))
    fields = fields_of(key)
    if fields is not None:
        return stable_hash(fields)
    raise UserError(
        f"a key must be {KINDS}, not {type(key).__name__} ({key!r}). Return such a value in key_by."
    )


class Keying:
    """A key selector: maps batches to keys, and splits batches into one part per shard."""

    def __init__(self, selector: KeySelector, groups: int | None = KEY_GROUPS) -> None:
        """groups: None for as many as there are shards, as in older stores."""
        self.selector = selector
        self.groups = groups
        self._cache: dict[int, dict[Any, int]] = {}
        """Number of shards -> key -> shard; one keyed stream may feed several operators."""
        self.failed_on: Batch | None = None
        """The last batch that has records without a key, not processed yet."""
        self._kinds: set[type] = set()
        """The types of keys seen so far that can be hashed."""
        self._known: tuple[Batch, list[Hashable] | pl.Series] | None = None
        """The last batch that was checked, and its keys."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Keying, (self.selector, self.groups))

    @property
    def on_columns(self) -> bool:
        return not callable(self.selector) or isinstance(self.selector, pl.Expr)

    def check(self, batch: Batch) -> None:
        """Raise if a record has no key, or one that cannot be hashed.

        The keys are cached until the next batch is checked, so an operator that needs them too
        does not pay twice.
        """
        self._known = None
        self._known = batch, self.key_column(batch) if self.on_columns else self.keys(batch)

    def keys(self, batch: Batch) -> list[Hashable]:
        """The key of each record, in its canonical form."""
        known = self._known
        if known is not None and known[0] is batch and isinstance(known[1], list):
            return known[1]
        try:
            return self._keys(batch)
        except Exception:
            self.failed_on = batch
            raise

    def _keys(self, batch: Batch) -> list[Hashable]:
        if not self.on_columns:
            function: Callable[[Any], Hashable] = self.selector  # type: ignore[assignment]
            keys = [function(record) for record in records_of(batch)]
            self._check_kinds(keys)
            return canonical_keys(keys)
        return column_keys(self._key_column(batch))

    def _check_kinds(self, keys: Sequence[Any]) -> None:
        """Refuse unsupported kinds of keys even with one shard, where keys are not hashed."""
        for kind in {*map(type, keys)} - self._kinds:
            stable_hash(next(key for key in keys if type(key) is kind))
            self._kinds.add(kind)

    def key_column(self, batch: Batch) -> pl.Series:
        """The keys as one Polars column; a UserError if keys of its type cannot be hashed."""
        try:
            return self._key_column(batch)
        except Exception:
            self.failed_on = batch
            raise

    def _key_column(self, batch: Batch) -> pl.Series:
        known = self._known
        if known is not None and known[0] is batch and isinstance(known[1], pl.Series):
            return known[1]
        column = self._selected(batch)
        _check_type(column.dtype, column.name)
        return column

    def _selected(self, batch: Batch) -> pl.Series:
        frame = columns_of(batch, "key_by")
        if isinstance(self.selector, str):
            if self.selector in frame.columns:
                return frame.get_column(self.selector)
            return frame.select(
                pl.col(self.selector)
            ).to_series()  # a pattern of names, or an error
        return frame.select(self.selector).to_series()  # type: ignore[arg-type]

    def split(self, batch: Batch, shards: int, tolerant: bool = True) -> list[tuple[int, Batch]]:
        """Splits the batch into one part for each shard that gets any records; keeps their order.

        tolerant: records without a key go to shard 0, where the operator's `on_error` applies.
        Otherwise the error is raised here, because an operator may never look at its keys.
        """
        if shards == 1:
            return [(0, batch)]
        try:
            return self._split(batch, shards)
        except Exception:
            if not tolerant:
                raise
            if len(batch) == 1:
                if self._has_key(batch):
                    raise
                return [(0, batch)]
        parts: dict[int, list[Batch]] = {}
        half = len(batch) // 2
        for piece in (batch[:half], batch[half:]):
            for shard, part in self.split(piece, shards):
                parts.setdefault(shard, []).append(part)
        return [(shard, _joined(pieces, batch)) for shard, pieces in sorted(parts.items())]

    def _has_key(self, batch: Batch) -> bool:
        try:
            self._keys(batch)
        except Exception:
            return False
        return True

    def _split(self, batch: Batch, shards: int) -> list[tuple[int, Batch]]:
        if not self.on_columns and not isinstance(batch, pl.DataFrame):
            return self._split_objects(batch, shards)
        frame = columns_of(batch, "key_by")
        places = self.places(frame, shards)
        present = np.unique(places).tolist()
        if len(present) == 1:
            return [(present[0], frame)]
        return [(shard, _filtered(frame, places == shard)) for shard in present]

    def places(self, frame: pl.DataFrame, shards: int) -> Hashes:
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
                shard = None  # Not hashable: the next line raises an error that explains it.
            places.append(self._shard_of(key, shards) if shard is None else shard)
        return places

    def shards_of(self, keys: Sequence[Any], shards: int) -> Hashes:
        """The shard of each of these keys, given in the form that `keys` returns."""
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
        cache[canonical_key(key)] = shard
        return shard


class KeyingByOthers(Keying):
    """The key of rows of parts: all columns except `besides`. Its columns are hashed where they are."""

    def __init__(self, besides: Collection[str], groups: int | None = KEY_GROUPS) -> None:
        super().__init__(pl.struct(pl.exclude(list(besides))), groups)
        self._besides = frozenset(besides)

    def __reduce__(self) -> tuple[Any, ...]:
        return (KeyingByOthers, (self._besides, self.groups))

    def places(self, frame: pl.DataFrame, shards: int) -> Hashes:
        columns = [one for one in frame.get_columns() if one.name not in self._besides]
        for column in columns:
            _check_type(column.dtype, column.name)
        return self._spread(_hash_fields(columns, frame.height), shards)


def _joined(pieces: list[Batch], batch: Batch) -> Batch:
    """Joins pieces of a batch in the form of the batch: pieces of a list may have become columns."""
    frames = [piece for piece in pieces if isinstance(piece, pl.DataFrame)]
    if isinstance(batch, pl.DataFrame):
        return pl.concat(frames)
    return [record for piece in pieces for record in records_of(piece)]


def _filtered(frame: pl.DataFrame, mask: Any) -> pl.DataFrame:
    """These rows. For a small frame, Polars' planner takes longer than the filtering."""
    chosen = pl.Series(mask)
    if frame.height * frame.width > _SMALL_FRAME:
        return frame.filter(chosen)
    return pl.DataFrame([column.filter(chosen) for column in frame.get_columns()])


def hash_column(column: pl.Series) -> Hashes:
    """A 64-bit hash of each value of a column, vectorised for numbers and strings.

    Equal keys have equal hashes whatever the type of the column: batches of one stream can
    have different types, if some contain only whole numbers, only nulls, or Decimals.
    """
    if column.dtype == pl.Struct:
        code = _hash_fields(column.struct.unnest().get_columns(), len(column))
    else:
        code = _mix(_codes(column))
    return np.where(column.is_null().to_numpy(), _NULL, code) if column.null_count() else code


def _hash_fields(fields: Iterable[pl.Series], rows: int) -> Hashes:
    """The hashes of a struct's values."""
    code = np.zeros(rows, dtype=np.uint64)
    for field in fields:
        code = _mix(code ^ hash_column(field))
    return code


def hash_keys(keys: Sequence[Any]) -> Hashes:
    """What `hash_column` gives for a column of these values, which come from `Keying.keys`."""
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
        elif issubclass(kind, Decimal | Fraction):
            hashes[positions] = _mix(np.array([*map(_number_code, alike)], dtype=np.uint64))
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
    if kind in _TEXTS:
        return _hash_texts(column)
    _check_type(kind, column.name)
    return _hash_decimals(column)


_TEXTS = (pl.String, pl.Binary, pl.Categorical, pl.Enum)


def _check_type(kind: Any, name: str) -> None:
    """Raise a UserError if keys in a column of this type cannot be hashed."""
    if isinstance(kind, pl.Struct):
        for field in kind.fields:
            _check_type(field.dtype, f"{name}.{field.name}")
    elif not (kind.is_numeric() or kind.is_temporal() or kind in (*_TEXTS, pl.Boolean, pl.Null)):
        raise UserError(
            f"key_by cannot use column '{name}' of type {kind}: use a number, string, date or a "
            "struct of these."
        )


def _hash_floats(values: np.ndarray[Any, np.dtype[np.float64]]) -> Hashes:
    """Whole numbers hash like the integers they equal."""
    values = np.where(np.isnan(values), np.nan, values)
    whole = (np.abs(values) < 2.0**63) & (np.trunc(values) == values)
    integers = np.where(whole, values, 0.0).astype(np.int64)
    codes = np.where(whole, integers.view(np.uint64), values.view(np.uint64))
    large = (np.abs(values) >= 2.0**63) & np.isfinite(values)
    if large.any():
        codes[large] = [int(value) % 2**64 for value in values[large].tolist()]
    return codes


def _hash_decimals(column: pl.Series) -> Hashes:
    distinct = column.unique().drop_nulls()
    codes = pl.Series([*map(_number_code, distinct.to_list())], dtype=pl.UInt64)
    if distinct.is_empty():
        return np.zeros(len(column), dtype=np.uint64)
    hashes = column.replace_strict(distinct, codes, default=None, return_dtype=pl.UInt64)
    return hashes.fill_null(0).to_numpy()


def _number_code(number: Decimal | Fraction) -> int:
    """The code of this number in a column of another type that can hold it, if there is one."""
    equal = equal_number(number)
    if isinstance(equal, int):
        return equal % 2**64
    if isinstance(equal, float):
        return int(struct.unpack("<Q", struct.pack("<d", equal))[0])
    text = f"{equal.numerator}/{equal.denominator}".encode()
    return zlib.crc32(text) | zlib.crc32(text, 4) << 32


def _hash_texts(column: pl.Series) -> Hashes:
    """Short texts are hashed all at once. Long ones are hashed once each and cached: keys repeat."""
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
    """The arguments of `key_by` as one selector: several columns become one struct."""
    if more:
        return pl.struct(selector, *more)
    if isinstance(selector, str | pl.Expr) or callable(selector):
        return selector  # type: ignore[no-any-return]
    raise UserError(
        f"key_by takes a function, a column name or a Polars expression, not {selector!r}."
    )
