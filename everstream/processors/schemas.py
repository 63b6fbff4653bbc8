"""Spark's schemas without Spark's Java: schema strings, values that fit a type, rows as columns.

Spark parses schema strings in Java, and changes values that do not fit silently, to null or to another
number. Here they are refused, with the name of the field.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import DataType, Row, StructField, StructType

from everstream.errors import UserError

Schema: TypeAlias = StructType | str
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|'((?:[^'\\]|\\.)*)'|([\w.]+)|([<>(),:]))")
_WORDS: Final[dict[str, Callable[[], DataType]]] = {
    "boolean": types.BooleanType,
    "byte": types.ByteType,
    "tinyint": types.ByteType,
    "short": types.ShortType,
    "smallint": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "long": types.LongType,
    "bigint": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "string": types.StringType,
    "binary": types.BinaryType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "decimal": types.DecimalType,
    "dec": types.DecimalType,
    "numeric": types.DecimalType,
}
_ARROW: Final[dict[type[DataType], pa.DataType]] = {
    types.BooleanType: pa.bool_(),
    types.ByteType: pa.int8(),
    types.ShortType: pa.int16(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.StringType: pa.large_string(),
    types.BinaryType: pa.large_binary(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", tz="UTC"),
    types.TimestampNTZType: pa.timestamp("us"),
}
_BITS: Final[dict[type[DataType], int]] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
_PLAIN: Final[dict[type[DataType], type]] = {
    types.BooleanType: bool,
    types.ByteType: int,
    types.ShortType: int,
    types.IntegerType: int,
    types.LongType: int,
    types.DoubleType: float,
    types.StringType: str,
    types.BinaryType: bytes,
}


def schema_of(given: Any, where: str) -> StructType:
    """A schema as Spark's methods take it: a StructType, or a string such as "id string, n bigint"."""
    if isinstance(given, StructType):
        return given
    if isinstance(given, str):
        return _Words(given, where).schema()
    raise UserError(
        f'{where}: give the schema as a StructType, or as a string such as "id string, n bigint", '
        f"not {given!r}."
    )


class _Words:
    """Reads a schema string word by word."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._position = 0

    def schema(self) -> StructType:
        fields = self._fields("")
        if not fields:
            raise self._refused("it has no columns")
        return StructType(fields)

    def _fields(self, end: str) -> list[StructField]:
        """Fields up to this sign, or up to the end of the text."""
        fields: list[StructField] = []
        if self._peek() == end:
            self._next()
            return fields
        while True:
            name = self._name()
            if self._peek() == ":":
                self._next()
            kind, nullable = self._type(), True
            if self._peek().lower() == "not":
                self._next()
                if self._next().lower() != "null":
                    raise self._refused("NULL is missing after NOT")
                nullable = False
            if self._peek().lower() == "comment":
                self._next()
                self._next()
            fields.append(StructField(name, kind, nullable))
            sign = self._next()
            if sign == end:
                return fields
            if sign != ",":
                raise self._refused(f"{sign!r} is not expected there")

    def _type(self) -> DataType:
        word = self._next().lower()
        if word == "array":
            (element,) = self._within(1)
            return types.ArrayType(element)
        if word == "map":
            key, value = self._within(2)
            return types.MapType(key, value)
        if word == "struct":
            self._expect("<")
            return StructType(self._fields(">"))
        if word not in _WORDS:
            raise self._refused(f"{word!r} is not a type known here")
        if self._peek() != "(":
            return _WORDS[word]()
        if _WORDS[word] is not types.DecimalType:
            raise self._refused(f"{word!r} takes no arguments")
        self._next()
        precision, scale = int(self._next()), 0
        if self._peek() == ",":
            self._next()
            scale = int(self._next())
        self._expect(")")
        return types.DecimalType(precision, scale)

    def _within(self, count: int) -> list[DataType]:
        """This number of types between angle brackets."""
        self._expect("<")
        kinds = [self._type()]
        while len(kinds) < count:
            self._expect(",")
            kinds.append(self._type())
        self._expect(">")
        return kinds

    def _name(self) -> str:
        quoted = self._text[self._position :].lstrip().startswith("`")
        name = self._next()
        if not quoted and not re.fullmatch(r"\w+", name):
            raise self._refused(f"{name!r} is not a name; put it in backquotes")
        return name

    def _expect(self, sign: str) -> None:
        word = self._next()
        if word != sign:
            raise self._refused(f"{sign!r} is missing" + (f" before {word!r}" if word else ""))

    def _peek(self) -> str:
        position = self._position
        word = self._next()
        self._position = position
        return word

    def _next(self) -> str:
        if not self._text[self._position :].strip():
            return ""
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            raise self._refused(f"it cannot be read from {self._text[self._position :]!r} on")
        self._position = found.end()
        quoted, text, word, sign = found.groups()
        if quoted is not None:
            return str(quoted.replace("``", "`"))
        return next(part for part in (text, word, sign) if part is not None)

    def _refused(self, why: str) -> UserError:
        return UserError(
            f"{self._where}: the schema {self._text!r}: {why}. Write it as "
            '"id string, n bigint", or give a StructType.'
        )


def arrow_type(kind: DataType, where: str) -> pa.DataType:
    """The type of Arrow that holds exactly the values of a type of Spark."""
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.ArrayType):
        return pa.large_list(arrow_type(kind.elementType, where))
    if isinstance(kind, StructType):
        return pa.struct([(one.name, arrow_type(one.dataType, where)) for one in kind.fields])
    if type(kind) in _ARROW:
        return _ARROW[type(kind)]
    raise UserError(
        f"{where}: columns of the type {kind.simpleString()} cannot be held exactly. Use "
        "a number, a string, bytes, a date, a timestamp, an array or a struct."
    )


class Fields:
    """The fields of a schema, and the tuples of values that fit it."""

    def __init__(self, schema: StructType, where: str) -> None:
        self.schema = schema
        self.names = tuple(schema.fieldNames())
        self._where = where
        self._fits = [_fitting(field.dataType) for field in schema.fields]
        self._instants = [
            n
            for n, field in enumerate(schema.fields)
            if isinstance(field.dataType, types.TimestampType)
        ]
        kinds = [type(field.dataType) for field in schema.fields]
        self._plain = [_PLAIN.get(kind) for kind in kinds]
        """The types of a row that is kept as it is, if its integers are within the limits."""
        self._limits = [(n, 1 << _BITS[kind] - 1) for n, kind in enumerate(kinds) if kind in _BITS]
        if len(set(self.names)) < len(self.names):
            raise UserError(f"{where}: two columns of its schema have the same name.")

    def __reduce__(self) -> tuple[Any, ...]:
        return Fields, (self.schema, self._where)

    def values(self, given: Any) -> tuple[Any, ...]:
        """A row of values as it is kept; a UserError if one does not fit."""
        if type(given) is tuple and [*map(type, given)] == self._plain:
            for n, limit in self._limits:
                if not -limit <= given[n] < limit:
                    break
            else:
                return given
        if isinstance(given, Row) and (names := getattr(given, "__fields__", None)) is not None:
            given = self._in_order(given, names)
        elif not isinstance(given, tuple | list):
            raise UserError(f"{self._where}: give a tuple or a Row, not {given!r}.")
        if len(given) != len(self.names):
            raise UserError(
                f"{self._where} has {len(self.names)} columns ({', '.join(self.names)}), and "
                f"{given!r} has {len(given)} values."
            )
        try:
            return tuple([fit(value) for fit, value in zip(self._fits, given, strict=True)])
        except (TypeError, ValueError, OverflowError):
            raise self._misfit(given) from None

    def shown(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """What is kept, as Spark shows it: instants in the time zone of this machine, without its name."""
        if not self._instants:
            return values
        shown = list(values)
        for n in self._instants:
            if values[n] is not None:
                shown[n] = values[n].astimezone().replace(tzinfo=None)
        return tuple(shown)

    def _in_order(self, row: Row, names: Sequence[str]) -> Any:
        if tuple(names) == self.names:
            return row
        if set(names) != set(self.names) or len(names) != len(self.names):
            raise UserError(
                f"{self._where} has the columns {', '.join(self.names)}, and a Row has "
                f"{', '.join(map(str, names))}."
            )
        return [row[name] for name in self.names]

    def _misfit(self, given: Sequence[Any]) -> UserError:
        for field, fit, value in zip(self.schema.fields, self._fits, given, strict=True):
            try:
                fit(value)
            except (TypeError, ValueError, OverflowError):
                kind = field.dataType.simpleString()
                return UserError(
                    f"{self._where}: column '{field.name}' is {kind}, which does not hold {value!r} "
                    f"({type(value).__name__}) exactly. Convert it, or change the schema."
                )
        raise AssertionError("every value fits")


class OutputColumns(Fields):
    """Rows of this schema as columns."""

    def __init__(self, schema: StructType, where: str) -> None:
        super().__init__(schema, where)
        self._kinds = [arrow_type(field.dataType, where) for field in schema.fields]

    def __reduce__(self) -> tuple[Any, ...]:
        return OutputColumns, (self.schema, self._where)

    @property
    def types(self) -> pl.Schema:
        """The columns and their types in Polars."""
        fields = zip(self.names, self._kinds, strict=True)
        return pl.DataFrame(pl.from_arrow(pa.schema(list(fields)).empty_table())).schema

    def is_integer(self, column: str | int) -> bool:
        """Whether a column, by name or position, holds integers."""
        if column in self.names:
            column = self.names.index(column)
        return (
            isinstance(column, int)
            and column < len(self._kinds)
            and pa.types.is_integer(self._kinds[column])
        )

    def frame(self, rows: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
        """What `values` has returned, as columns."""
        columns = list(zip(*rows, strict=True))
        arrays = [pa.array(values, kind) for values, kind in zip(columns, self._kinds, strict=True)]
        for field, array in zip(self.schema.fields, arrays, strict=True):
            if not field.nullable and array.null_count:
                raise UserError(f"{self._where}: column '{field.name}' is NOT NULL, and got None.")
        return pl.DataFrame(pl.from_arrow(pa.table(arrays, list(self.names))))


def _fitting(kind: DataType) -> Callable[[Any], Any]:
    """A function from a value to the one that a state of this type returns."""
    if type(kind) in _BITS:
        limit = 1 << _BITS[type(kind)] - 1
        return lambda value: (
            value if type(value) is int and -limit <= value < limit else (_whole(value, limit))
        )
    if isinstance(kind, types.FloatType):
        return lambda value: None if value is None else float(np.float32(_real(value)))
    if isinstance(kind, types.DoubleType):
        return lambda value: value if type(value) is float or value is None else _real(value)
    if isinstance(kind, types.StringType):
        return _only(str, np.str_)
    if isinstance(kind, types.BooleanType):
        return _only(bool, np.bool_)
    if isinstance(kind, types.BinaryType):
        return _only(bytes, bytearray)
    if isinstance(kind, types.TimestampType | types.TimestampNTZType):
        return _instant if isinstance(kind, types.TimestampType) else _local_time
    if isinstance(kind, types.DateType):
        return _day
    if isinstance(kind, types.DecimalType):
        return lambda value: _number(value, kind)
    if isinstance(kind, types.ArrayType):
        element = _fitting(kind.elementType)
        return lambda value: None if value is None else [element(one) for one in _listed(value)]
    if isinstance(kind, types.MapType):
        key, inner = _fitting(kind.keyType), _fitting(kind.valueType)
        return lambda value: (
            None if value is None else {key(k): inner(v) for k, v in dict(value).items()}
        )
    if isinstance(kind, StructType):
        fields = Fields(kind, "a struct")
        make = Row(*fields.names)
        return lambda value: None if value is None else make(*_inner(value, fields))
    return lambda value: value


def _whole(value: Any, limit: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int or not -limit <= value < limit:
        raise TypeError
    return value


def _real(value: Any) -> float:
    if isinstance(value, np.floating):
        return float(value)
    if type(value) is not float:
        raise TypeError
    return value


def _only(kind: type, also: type) -> Callable[[Any], Any]:
    def fit(value: Any) -> Any:
        if type(value) is kind or value is None:
            return value
        if isinstance(value, also | kind):
            return kind(value)
        raise TypeError

    return fit


def _instant(value: Any) -> datetime | None:
    """A time without a zone is in that of this machine, as for Spark."""
    if value is None:
        return None
    given = _datetime(value)
    return given.astimezone(UTC)


def _local_time(value: Any) -> datetime | None:
    if value is None:
        return None
    given = _datetime(value)
    if given.tzinfo is not None:
        raise TypeError
    return given


def _datetime(value: Any) -> datetime:
    if hasattr(value, "to_pydatetime"):  # of pandas
        value = value.to_pydatetime()
    if not isinstance(value, datetime):
        raise TypeError
    return value


def _day(value: Any) -> date | None:
    if value is not None and (not isinstance(value, date) or isinstance(value, datetime)):
        raise TypeError
    return value


def _number(value: Any, kind: types.DecimalType) -> Decimal | None:
    if value is None:
        return None
    if not isinstance(value, Decimal) or not value.is_finite():
        raise TypeError
    fitted = value.quantize(Decimal(1).scaleb(-kind.scale))
    if fitted != value or len(fitted.as_tuple().digits) > kind.precision:
        raise ValueError
    return fitted


def _listed(value: Any) -> Any:
    if not isinstance(value, list | tuple | np.ndarray):
        raise TypeError
    return value


def _inner(value: Any, fields: Fields) -> tuple[Any, ...]:
    if isinstance(value, dict):
        value = [value[name] for name in fields.names]
    return fields.values(value)
