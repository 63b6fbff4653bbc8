"""Types that hold each other's values, and conversions that lose nothing.

A value may change its type on the way into a column only if it stays the same value: a whole number
becomes a float that equals it, a date the midnight that begins it. Everything else is refused. A
boolean is not a number, a float is not an integer, and nothing is ever turned into text.

A DataFrame's column is converted there and back and compared, in Polars. Python values are checked
one by one only where a column mixes types; for a column of one type only the types are checked.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import polars as pl

Kind: TypeAlias = pl.DataType
Misfits: TypeAlias = dict[int, str]
"""Row -> why its value does not fit."""

_SIGNED: tuple[Kind, ...] = (pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64(), pl.Int128())
_UNSIGNED: tuple[Kind, ...] = (pl.UInt8(), pl.UInt16(), pl.UInt32(), pl.UInt64(), pl.UInt128())
_BITS = {
    **{kind: 8 << place for place, kind in enumerate(_SIGNED)},
    **{kind: 8 << place for place, kind in enumerate(_UNSIGNED)},
}
_WHOLE: tuple[Kind, ...] = (pl.Int64(), pl.UInt64(), pl.Int128(), pl.UInt128())
"""The types for a Python integer; the first one with room is used."""
_UNITS = ("ms", "us", "ns")
_DIGITS = 38
_WIDE = Context(prec=100)
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_SHOWN = 80
_LAST_WHOLE_FLOAT = 2**53
"""Up to here every integer is exactly a float, and stays the same when written as text."""


def parts_of(kind: Kind) -> Iterator[Kind]:
    """The type, and all types it is made of."""
    yield kind
    if isinstance(kind, pl.List | pl.Array):
        yield from parts_of(_inner(kind))
    elif isinstance(kind, pl.Struct):
        for one in _fields(kind).values():
            yield from parts_of(one)


def is_open(kind: Kind) -> bool:
    """Whether a part of the type is not known yet, because all values were None."""
    return any(part == pl.Null for part in parts_of(kind))


def holds(kind: Kind, other: Kind) -> bool:
    """Whether this type may hold values of the `other` type, where they stay the same."""
    if kind == other or other == pl.Null:
        return True
    if other.is_integer():
        return kind.is_numeric()
    if other.is_float():
        return kind.is_float()
    if isinstance(other, pl.Decimal):
        return isinstance(kind, pl.Decimal)
    if isinstance(other, pl.Categorical | pl.Enum):
        return kind == pl.String
    if other == pl.Date:
        return isinstance(kind, pl.Datetime) and kind.time_zone is None
    if isinstance(other, pl.Datetime):
        return isinstance(kind, pl.Datetime) and _zone_holds(kind.time_zone, other.time_zone)
    if isinstance(other, pl.Duration):
        return isinstance(kind, pl.Duration)
    if isinstance(other, pl.Array) and isinstance(kind, pl.Array):
        return kind.shape == other.shape and holds(_inner(kind), _inner(other))
    if isinstance(other, pl.List | pl.Array):
        return isinstance(kind, pl.List) and holds(_inner(kind), _inner(other))
    if isinstance(other, pl.Struct) and isinstance(kind, pl.Struct):
        known = _fields(kind)
        return all(name in known and holds(known[name], k) for name, k in _fields(other).items())
    return False


def wider(one: Kind, other: Kind) -> Kind | None:
    """The narrowest type that holds the values of both; None if there is none."""
    if one == other or other == pl.Null:
        return one
    if one == pl.Null:
        return other
    if one.is_integer() and other.is_integer():
        return _wider_integer(one, other)
    for first, second in ((one, other), (other, one)):
        if first.is_float() and second.is_numeric() and not isinstance(second, pl.Decimal):
            return first if first == second else pl.Float64()
        if isinstance(first, pl.Decimal) and second.is_integer():
            return pl.Decimal(_DIGITS, first.scale)
        if first == pl.String and holds(first, second):
            return first
        if isinstance(first, pl.Datetime) and second == pl.Date and first.time_zone is None:
            return first
    if isinstance(one, pl.Decimal) and isinstance(other, pl.Decimal):
        return pl.Decimal(_DIGITS, max(one.scale, other.scale))
    if isinstance(one, pl.Datetime) and isinstance(other, pl.Datetime):
        unit, zones = _finer(one.time_unit, other.time_unit), (one.time_zone, other.time_zone)
        if one.time_zone == other.time_zone:
            return pl.Datetime(unit, one.time_zone)
        return pl.Datetime(unit, "UTC") if "UTC" in zones and None not in zones else None
    if isinstance(one, pl.Duration) and isinstance(other, pl.Duration):
        return pl.Duration(_finer(one.time_unit, other.time_unit))
    if isinstance(one, pl.List | pl.Array) and isinstance(other, pl.List | pl.Array):
        inner = wider(_inner(one), _inner(other))
        if inner is None:
            return None
        same = isinstance(one, pl.Array) and isinstance(other, pl.Array) and one.size == other.size
        return pl.Array(inner, one.size) if same else pl.List(inner)  # type: ignore[union-attr]
    if isinstance(one, pl.Struct) and isinstance(other, pl.Struct):
        return _wider_struct(_fields(one), _fields(other))
    return None


def _wider_integer(one: Kind, other: Kind) -> Kind | None:
    pair = sorted((one, other), key=_BITS.__getitem__)
    if one.is_signed_integer() == other.is_signed_integer():
        return pair[1]
    signed, unsigned = (one, other) if one.is_signed_integer() else (other, one)
    needed = max(_BITS[signed], 2 * _BITS[unsigned])
    return next((kind for kind in _SIGNED if _BITS[kind] == needed), None)


def _wider_struct(one: Mapping[str, Kind], other: Mapping[str, Kind]) -> Kind | None:
    fields: dict[str, Kind] = {}
    for name in dict.fromkeys((*one, *other)):
        kind = wider(one.get(name, pl.Null()), other.get(name, pl.Null()))
        if kind is None:
            return None
        fields[name] = kind
    return pl.Struct(fields)


def _finer(one: str, other: str) -> Any:
    return max(one, other, key=_UNITS.index)


def _zone_holds(zone: str | None, other: str | None) -> bool:
    """An instant of any zone stays the same in UTC."""
    return zone == other or (zone == "UTC" and other is not None)


def _kind(kind: Any) -> Kind:
    """Polars also accepts types by their class."""
    result: Kind = kind() if isinstance(kind, type) else kind
    return result


def _inner(kind: pl.List | pl.Array) -> Kind:
    return _kind(kind.inner)


def _fields(kind: pl.Struct) -> dict[str, Kind]:
    return {field.name: _kind(field.dtype) for field in kind.fields}


def _becomes_float(before: Kind, after: Kind) -> bool:
    """Whether integers in a column of the first type may become floats in one of the second."""
    return any(part.is_integer() for part in parts_of(before)) and any(
        part.is_float() for part in parts_of(after)
    )


def nulls(name: str, rows: int, kind: Kind) -> pl.Series:
    return pl.repeat(None, rows, dtype=kind, eager=True).alias(name)


class Unfit(Exception):
    """A value that cannot be kept unchanged."""


def shown(value: Any, most: int = _LONGEST_SHOWN) -> str:
    """A value as an error shows it: its repr, shortened."""
    try:
        text = repr(value).encode(errors="backslashreplace").decode()
    except Exception as error:  # the repr of a user's class may fail
        return f"a {type(value).__name__} whose repr raised {type(error).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


@dataclass(frozen=True)
class SeriesColumn:
    """A column of a batch whose values have one type."""

    values: pl.Series

    @property
    def kind(self) -> Kind:
        return self.values.dtype

    def fitted(self, kind: Kind) -> tuple[pl.Series, Misfits]:
        """The column as this type, with None in the rows whose values do not fit, and those rows."""
        mine = self.values
        if mine.dtype == kind:
            return mine, {}
        if not holds(kind, mine.dtype):
            lost = mine.is_not_null()
            converted = nulls(mine.name, len(mine), kind)
        else:
            if mine.dtype.is_nested() and _becomes_float(mine.dtype, kind):
                return MixedColumn(mine.name, mine.to_list()).fitted(kind)
            converted = mine.cast(kind, strict=False)
            lost = ~converted.cast(mine.dtype, strict=False).eq_missing(mine)
            if kind.is_float() and _BITS.get(mine.dtype, 0) > 32:
                lost |= (mine > _LAST_WHOLE_FLOAT).fill_null(False)
                if mine.dtype.is_signed_integer():
                    lost |= (mine < -_LAST_WHOLE_FLOAT).fill_null(False)
        if not lost.any():
            return converted, {}
        rows = lost.arg_true().to_list()
        return converted, {row: f"{self.shown(row)} is not an exact {kind}" for row in rows}

    def shown(self, row: int) -> str:
        (value,) = self.values[row : row + 1].to_list()
        return shown(value)


@dataclass(frozen=True)
class MixedColumn:
    """A column of Python values that Polars would change, or cannot hold in one type."""

    name: str
    values: Sequence[Any]

    @cached_property
    def kind(self) -> Kind:
        """The type of the first value, widened for the later ones as far as possible."""
        kind: Kind = pl.Null()
        for value in self.values:
            try:
                common = wider(kind, kind_of(value))
            except Unfit:
                continue
            kind = kind if common is None else common
        return _unsigned_if_all(self.values, kind)

    def fitted(self, kind: Kind) -> tuple[pl.Series, Misfits]:
        misfits: Misfits = {}
        converted: list[Any] = []
        for row, value in enumerate(self.values):
            try:
                converted.append(as_kind(value, kind))
            except Unfit as problem:
                converted.append(None)
                misfits[row] = f"{shown(value)} {problem}"
        return pl.Series(self.name, converted, dtype=kind, strict=True), misfits

    def shown(self, row: int) -> str:
        return shown(self.values[row])


Column: TypeAlias = SeriesColumn | MixedColumn

_PLAIN: dict[type, Kind] = {
    str: pl.String(),
    bool: pl.Boolean(),
    float: pl.Float64(),
    bytes: pl.Binary(),
    date: pl.Date(),
}


def column_of(name: str, values: Sequence[Any]) -> Column:
    """Python values as a column that keeps them unchanged."""
    types = set(map(type, values))
    types.discard(type(None))
    if not types:
        return SeriesColumn(pl.Series(name, values, dtype=pl.Null))
    if len(types) == 1:
        (only,) = types
        kind = pl.Int64() if only is int else _PLAIN.get(only)
        if only is datetime and all(v is None or v.tzinfo is None for v in values):
            kind = pl.Datetime("us")
        if kind is not None:
            try:
                return SeriesColumn(pl.Series(name, values, dtype=kind, strict=True))
            except (TypeError, OverflowError, UnicodeError, pl.exceptions.PolarsError):
                pass  # An integer too large, or half a surrogate: check each value.
    return MixedColumn(name, values)


def together(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """All rows with the columns of all frames, in types that hold every value; otherwise Unfit."""
    if all(frame.schema == frames[0].schema for frame in frames):
        return pl.concat(frames)
    kinds: dict[str, Kind] = {}
    for frame in frames:
        for name, kind in frame.schema.items():
            both = wider(kinds.get(name, pl.Null()), kind)
            if both is None:
                raise Unfit(f"column '{name}' is {kinds[name]} in some rows and {kind} in others")
            kinds[name] = both
    return pl.concat([in_kinds(frame, pl.Schema(kinds)) for frame in frames])


def in_kinds(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """The rows with these columns and types, None where a column is missing; otherwise Unfit."""
    if frame.schema == schema:
        return frame
    columns: list[pl.Series] = []
    for name, kind in schema.items():
        if name not in frame.columns:
            columns.append(nulls(name, frame.height, kind))
            continue
        values, misfits = SeriesColumn(frame[name]).fitted(kind)
        if misfits:
            raise Unfit(f"column '{name}': {next(iter(misfits.values()))}")
        columns.append(values)
    return pl.DataFrame(columns)


def kind_of(value: Any) -> Kind:
    """The type that keeps a Python value unchanged; Unfit if there is none."""
    match _plain(value):
        case None:
            return pl.Null()
        case bool():
            return pl.Boolean()
        case int() as number:
            kinds = [kind for kind in _WHOLE if _in_range(number, kind)]
            if not kinds:
                raise Unfit("is larger than any integer type")
            return kinds[0]
        case float():
            return pl.Float64()
        case str():
            return pl.String()
        case bytes():
            return pl.Binary()
        case Decimal() as number:
            exponent = number.as_tuple().exponent
            return pl.Decimal(_DIGITS, max(0, -exponent) if isinstance(exponent, int) else 0)
        case datetime() as moment:
            return pl.Datetime("us", _zone(moment))
        case date():
            return pl.Date()
        case time():
            return pl.Time()
        case timedelta():
            return pl.Duration("us")
        case list() as values:
            inner: Kind = pl.Null()
            for one in values:
                both = wider(inner, kind_of(one))
                if both is None:
                    raise Unfit("is a list of values of several types")
                inner = both
            return pl.List(_unsigned_if_all(values, inner))
        case dict() as fields:
            if not all(isinstance(key, str) for key in fields):
                raise Unfit("is a dict whose keys are not all text")
            return pl.Struct({name: kind_of(one) for name, one in fields.items()})
    raise Unfit("is a Python object. Turn it into numbers, text, lists or dicts with a map")


def _unsigned_if_all(values: Sequence[Any], kind: Kind) -> Kind:
    """Large and small numbers fit together as unsigned integers if none is negative."""
    if kind != pl.Int128:
        return kind
    numbers = [value for value in values if value is not None]
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
    return pl.UInt64() if whole and all(_in_range(n, pl.UInt64()) for n in numbers) else kind


def as_kind(value: Any, kind: Kind) -> Any:
    """The value as Polars takes it for this type, if it stays the same; otherwise Unfit."""
    plain = _plain(value)
    if plain is None:
        return None
    accepted, convert = _CONVERSIONS.get(kind.base_type(), ((), _as_it_is))
    # A boolean is not a number, although Python's is an int.
    fits = isinstance(plain, accepted) and (accepted is bool or not isinstance(plain, bool))
    converted = convert(plain, kind) if fits else None
    if converted is None:
        kind_of(plain)
        raise Unfit(f"is not an exact {kind}")
    return converted


def _plain(value: Any) -> Any:
    """Converts NumPy values, tuples and subclasses to Python's built-in types."""
    if value is None or type(value) in (bool, int, float, str, bytes, Decimal, list, dict):
        return value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value).__module__ == "numpy":
        return _from_numpy(value)
    if isinstance(value, datetime | timedelta) and _nanoseconds(value):
        raise Unfit("has nanoseconds, which Python's own times do not have")
    # Subclasses may have a repr of another type.
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return "".join(value)
    return b"".join((value,)) if isinstance(value, bytes) else value


def _nanoseconds(value: Any) -> int:
    """The nanoseconds of a pandas Timestamp or Timedelta, which are subclasses of Python's own."""
    nanoseconds: int = getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)
    return nanoseconds


def _from_numpy(value: Any) -> Any:
    if value.dtype.kind in "mM":  # Python's own times have microseconds
        coarser = value.astype(f"{value.dtype.kind}8[us]")
        if not (coarser.astype(value.dtype) == value).all():
            raise Unfit("has nanoseconds, or is not a time")
        return coarser.tolist()
    if value.dtype.kind not in "biufSU" or (value.dtype.itemsize > 8 and value.dtype.kind == "f"):
        raise Unfit(f"is of NumPy's type {value.dtype}")
    return value.tolist()


def _zone(moment: datetime) -> str | None:
    """The name of its zone; a fixed offset from UTC is kept as the same instant in UTC."""
    if moment.tzinfo is None:
        return None
    return moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) and moment.tzinfo.key else "UTC"


def _in_range(number: int, kind: Kind) -> bool:
    bits = _BITS[kind]
    if kind.is_signed_integer():
        return -(1 << bits - 1) <= number < 1 << bits - 1
    return 0 <= number < 1 << bits


def _as_it_is(value: Any, kind: Kind) -> Any:
    return value


def _integer(value: Any, kind: Kind) -> Any:
    return value if _in_range(value, kind) else None


def _float(value: Any, kind: Kind) -> Any:
    if isinstance(value, int) and abs(value) > _LAST_WHOLE_FLOAT:
        return None
    number = float(value)
    if kind == pl.Float32 and not math.isnan(number):
        narrow = pl.Series([number], dtype=pl.Float64).cast(pl.Float32).cast(pl.Float64)[0]
        return number if narrow == number else None
    return number if number == value or math.isnan(number) else None


def _decimal(value: Any, kind: Kind) -> Any:
    assert isinstance(kind, pl.Decimal)
    number = Decimal(value)
    if not number.is_finite():
        return None
    scaled = _WIDE.scaleb(number, kind.scale) if number.adjusted() < _DIGITS else None
    if scaled is None or scaled != scaled.to_integral_value(context=_WIDE):
        return None
    return number if abs(scaled) < 10 ** (kind.precision or _DIGITS) else None


def _text(value: Any, kind: Kind) -> Any:
    if isinstance(kind, pl.Enum) and value not in set(kind.categories):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit("has half a surrogate, which is not valid text in UTF-8") from None
    return value


def _date(value: Any, kind: Kind) -> Any:
    return None if isinstance(value, datetime) else value


def _datetime(value: Any, kind: Kind) -> Any:
    assert isinstance(kind, pl.Datetime)
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    if not _zone_holds(kind.time_zone, _zone(moment)):
        return None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    micros = (moment - _EPOCH) // _MICROSECOND
    if not _in_unit(micros, kind.time_unit):
        return None
    # As an instant: otherwise Polars would ask the zone again which of two equal hours is meant.
    return moment.replace(tzinfo=UTC) if kind.time_zone is not None else moment


def _duration(value: Any, kind: Kind) -> Any:
    assert isinstance(kind, pl.Duration)
    return value if _in_unit(value // _MICROSECOND, kind.time_unit) else None


def _in_unit(micros: int, unit: str) -> bool:
    if unit == "ms":
        return micros % 1000 == 0
    return _in_range(micros * 1000 if unit == "ns" else micros, pl.Int64())


def _time(value: Any, kind: Kind) -> Any:
    return value if value.tzinfo is None else None


def _list(value: Any, kind: Kind) -> Any:
    assert isinstance(kind, pl.List | pl.Array)
    if isinstance(kind, pl.Array) and len(value) != kind.size:
        return None
    return [as_kind(one, _inner(kind)) for one in value]


def _struct(value: Any, kind: Kind) -> Any:
    assert isinstance(kind, pl.Struct)
    fields = _fields(kind)
    surplus = [name for name in value if name not in fields]
    if surplus:
        raise Unfit(f"has the additional field {', '.join(map(str, surplus))}")
    return {name: as_kind(value.get(name), one) for name, one in fields.items()}


_CONVERSIONS: dict[Any, tuple[Any, Callable[[Any, Any], Any]]] = {
    pl.Boolean: (bool, _as_it_is),
    **{kind.base_type(): (int, _integer) for kind in (*_SIGNED, *_UNSIGNED)},
    pl.Float32: ((int, float), _float),
    pl.Float64: ((int, float), _float),
    pl.Decimal: ((int, Decimal), _decimal),
    pl.String: (str, _text),
    pl.Categorical: (str, _text),
    pl.Enum: (str, _text),
    pl.Binary: (bytes, _as_it_is),
    pl.Date: (date, _date),
    pl.Datetime: (date, _datetime),
    pl.Duration: (timedelta, _duration),
    pl.Time: (time, _time),
    pl.List: (list, _list),
    pl.Array: (list, _list),
    pl.Struct: (dict, _struct),
}
"""Type -> the Python types it takes values of, and how; None for a value that would change."""
