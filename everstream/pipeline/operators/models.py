"""Typed rows: dataclasses, msgspec structs and pydantic models as columns, and columns as their instances.

A model fixes the columns of rows and their types. Whole batches are converted, a column at a time. Every
value is kept exactly, or its record is refused. pydantic is used only if the user's class is from there.
"""

import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import cached_property, partial
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import msgspec
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.exact import Misfits, SeriesColumn, column_of, nulls, shown

_PLAIN: Final[Mapping[Any, pl.DataType]] = {
    bool: pl.Boolean(),
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
    bytes: pl.Binary(),
    date: pl.Date(),
    datetime: pl.Datetime("us"),
    time: pl.Time(),
    timedelta: pl.Duration("us"),
}
_SEQUENCES: Final = (list, tuple, Sequence)
_UTC: Final = pl.Datetime("us", "UTC")
_NO_DEFAULT: Final = object()


@dataclasses.dataclass(frozen=True)
class Field:
    """A column of typed rows."""

    name: str
    kind: pl.DataType
    nullable: bool = True
    default: Callable[[], Any] | None = None
    """Makes the value where a record has none."""
    wrap: Callable[[Any], Any] | None = None
    """From a value of the column to that of the attribute, if they differ."""

    @property
    def plain(self) -> bool:
        return self.wrap is None


class RowType:
    """Declared columns, and how records are brought into them."""

    def __init__(self, name: str, fields: Iterable[Field]) -> None:
        self.name = name
        self.fields = list(fields)
        self.schema = pl.Schema({field.name: field.kind for field in self.fields})
        self._strict = [field.name for field in self.fields if not field.nullable]

    def rows(self, batch: pl.DataFrame | list[Any]) -> tuple[pl.DataFrame, Misfits]:
        """The records in these columns, and those that do not fit, whose rows hold no meaning."""
        if isinstance(batch, pl.DataFrame) and batch.schema == self.schema and self._whole(batch):
            return batch, {}
        wrong: Misfits = {}
        columns: list[pl.Series] = []
        for field, values in zip(self.fields, self._columns(batch, wrong), strict=True):
            fitted, misfits = values.fitted(field.kind)
            for row, reason in misfits.items():
                wrong.setdefault(row, f"column '{field.name}': {reason}")
            if not field.nullable and fitted.null_count():
                for row in fitted.is_null().arg_true().to_list():
                    wrong.setdefault(row, f"column '{field.name}': a value is missing")
            columns.append(fitted)
        return pl.DataFrame(columns), dict(sorted(wrong.items()))

    def problem(self, batch: pl.DataFrame | list[Any], wrong: Misfits) -> UserError:
        """The error for the first record that does not fit."""
        row, reason = next(iter(wrong.items()))
        record = batch.row(row, named=True) if isinstance(batch, pl.DataFrame) else batch[row]
        return UserError(f"a record is not {self.name}: {reason}. Record: {shown(record)}.")

    def _whole(self, frame: pl.DataFrame) -> bool:
        return not any(frame.get_column(name).null_count() for name in self._strict)

    def _columns(self, batch: pl.DataFrame | list[Any], wrong: Misfits) -> list[Any]:
        if isinstance(batch, pl.DataFrame):
            return [self._of_frame(batch, field) for field in self.fields]
        for row, record in enumerate(batch):
            if not isinstance(record, dict):
                wrong[row] = f"it is of type {type(record).__name__}"
        if wrong:
            batch = [record if isinstance(record, dict) else {} for record in batch]
        return [column_of(field.name, _of_dicts(batch, field)) for field in self.fields]

    def _of_frame(self, frame: pl.DataFrame, field: Field) -> SeriesColumn:
        if field.name in frame.columns:
            return SeriesColumn(frame.get_column(field.name))
        if field.default is None:
            return SeriesColumn(nulls(field.name, frame.height, field.kind))
        values = [_as_plain(field.default()) for _ in range(frame.height)]
        return SeriesColumn(pl.Series(field.name, values, dtype=field.kind))


def _of_dicts(records: Sequence[dict[str, Any]], field: Field) -> list[Any]:
    name = field.name
    if field.default is None:
        values = [record.get(name) for record in records]
    else:
        made = field.default
        values = [record[name] if name in record else made() for record in records]
    return values if field.plain else [*map(_as_plain, values)]


class Model(RowType):
    """A class whose instances are rows."""

    def __init__(self, kind: type, fields: Iterable[Field]) -> None:
        super().__init__(f"{_article(kind.__name__)} {kind.__name__}", fields)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self.kind, self.fields))

    def records(self, batch: pl.DataFrame | list[Any]) -> list[Any]:
        """The records as instances; a UserError if one does not fit."""
        if isinstance(batch, list) and all(isinstance(record, self.kind) for record in batch):
            return batch
        frame, wrong = self.rows(batch)
        if wrong:
            raise self.problem(batch, wrong)
        return self._made(frame)

    def record(self, record: Any) -> Any:
        """One record as an instance."""
        return record if isinstance(record, self.kind) else self.records([record])[0]

    def _columns(self, batch: pl.DataFrame | list[Any], wrong: Misfits) -> list[Any]:
        if isinstance(batch, pl.DataFrame) or not any(isinstance(r, self.kind) for r in batch):
            return super()._columns(batch, wrong)
        if not all(isinstance(record, self.kind) for record in batch):
            dicts = [self._as_dict(record) for record in batch]
            return super()._columns(dicts, wrong)
        columns = []
        for field in self.fields:
            values: Any = map(attrgetter(field.name), batch)
            columns.append(
                column_of(field.name, [*(values if field.plain else map(_as_plain, values))])
            )
        return columns

    def _as_dict(self, record: Any) -> Any:
        if not isinstance(record, self.kind):
            return record
        return {field.name: getattr(record, field.name) for field in self.fields}

    def _made(self, frame: pl.DataFrame) -> list[Any]:
        if _is_pydantic(self.kind):
            validated: list[Any] = self._validate(frame.rows(named=True))
            return validated
        columns = [
            values if field.wrap is None else [*map(field.wrap, values)]
            for field, values in zip(self.fields, map(pl.Series.to_list, frame), strict=True)
        ]
        if self._positional:
            return [*map(self.kind, *columns)]
        names = [*self.schema]
        return [
            self.kind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
        ]

    @cached_property
    def _positional(self) -> bool:
        """Whether the columns, in order, are the arguments of the class."""
        arguments = inspect.signature(self.kind).parameters.values()
        places = [one.name for one in arguments if one.kind is one.POSITIONAL_OR_KEYWORD]
        return places == [*self.schema]

    @cached_property
    def _validate(self) -> Callable[[list[dict[str, Any]]], Any]:
        from pydantic import TypeAdapter

        return TypeAdapter(list[self.kind]).validate_python  # type: ignore[name-defined]


@dataclasses.dataclass(frozen=True)
class _Wrap:
    """From a value of a column to that of the attribute; None stays None."""

    make: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return None if value is None else self.make(value)


@dataclasses.dataclass(frozen=True)
class _Each:
    """The same for the items of a list."""

    kind: type
    wrap: Callable[[Any], Any] | None

    def __call__(self, values: Any) -> Any:
        return self.kind(values if self.wrap is None else map(self.wrap, values))


@dataclasses.dataclass(frozen=True)
class _Nested:
    """The same for a struct."""

    model: Model

    def __call__(self, value: dict[str, Any]) -> Any:
        model = self.model
        if _is_pydantic(model.kind):
            return model.kind(**value)
        wraps = ((field.name, field.wrap) for field in model.fields)
        return model.kind(**{n: value[n] if wrap is None else wrap(value[n]) for n, wrap in wraps})


@dataclasses.dataclass(frozen=True)
class OnInstances:
    """A function of the user whose records are rows, which it gets as instances, one at a time."""

    model: Model
    function: Callable[..., Any]

    def __call__(self, record: Any, *more: Any) -> Any:
        return self.function(self.model.record(record), *more)


class OnInstancesAsync(OnInstances):
    """The same for a coroutine function."""

    async def __call__(self, record: Any, *more: Any) -> Any:
        return await self.function(self.model.record(record), *more)


def row_type(declared: Any) -> RowType:
    """The columns that `schema=` declares: Polars types by name, or a model."""
    if isinstance(declared, RowType):
        return declared
    if isinstance(declared, Mapping):
        schema = pl.Schema(declared)
        return RowType("a row of its schema", (Field(n, k) for n, k in schema.items()))
    model = model_of(declared)
    if model is None:
        raise UserError(
            f"schema={declared!r}: give Polars types by column, such as {{'name': pl.String}}, or a "
            "dataclass, a pydantic model or a msgspec Struct."
        )
    return model


def schema_of(declared: Any) -> pl.Schema | None:
    """The same as a Polars schema; None for None."""
    return None if declared is None else row_type(declared).schema


def is_model(kind: Any) -> bool:
    """Whether this is a dataclass, a msgspec Struct or a pydantic model."""
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or _is_pydantic(kind)


def model_of(kind: Any) -> Model | None:
    """The model that this class is, or None; a UserError if a field has no column type."""
    if not is_model(kind):
        return None
    if kind not in _models:
        _models[kind] = _found(kind)
    return _models[kind]


_models: dict[type, Model] = {}


def _restored(kind: type, fields: list[Field]) -> Model:
    """In another process, where a class of a script may lack the names that its annotations use."""
    _known[kind] = _models.setdefault(kind, Model(kind, fields))
    return _models[kind]


def _found(kind: Any) -> Model:
    hints = get_type_hints(kind, include_extras=True)
    fields = []
    for name, default in _defaults(kind).items():
        column, nullable, wrap = _column(hints[name], f"{kind.__name__}.{name}")
        made = None if default is _NO_DEFAULT else default
        fields.append(Field(name, column, nullable, made, wrap))
    return Model(kind, fields)


def model_or_none(kind: Any) -> Model | None:
    """The model that this class is; None also for one whose fields have no column types."""
    if kind not in _known:
        try:
            _known[kind] = model_of(kind)
        except (UserError, NameError, TypeError):
            _known[kind] = None
    return _known[kind]


_known: dict[type, Model | None] = {}


def annotated_models(function: Callable[..., Any]) -> tuple[Model | None, Model | None]:
    """The models of a function's first parameter, and of what it returns or yields."""
    called = function if isinstance(function, types.FunctionType) else None
    if called is None:
        called = getattr(function, "__func__", None) or type(function).__dict__.get("__call__")
    if not isinstance(called, types.FunctionType):
        return None, None
    try:
        hints = get_type_hints(called, include_extras=True)
    except Exception:  # a name that exists only for type checkers
        return None, None
    names = list(called.__code__.co_varnames[: called.__code__.co_argcount])
    if called is not function and names:  # self
        names = names[1:]
    given = hints.get(names[0]) if names else None
    returned = hints.get("return")
    if get_origin(returned) is not None and len(get_args(returned)) in (1, 3):
        returned = get_args(returned)[0]  # Iterable[Order], Generator[Order, None, None]
    return _row_model(given), _row_model(returned)


def _row_model(kind: Any) -> Model | None:
    return model_or_none(kind) if is_model(kind) else None


def _is_pydantic(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def _defaults(kind: Any) -> dict[str, Any]:
    """Field -> a function that makes its default, or `_NO_DEFAULT`."""
    if _is_pydantic(kind):
        return {
            name: _NO_DEFAULT if one.is_required() else _maker(one.default, one.default_factory)
            for name, one in kind.model_fields.items()
        }
    if issubclass(kind, msgspec.Struct):
        missing = msgspec.NODEFAULT
        listed = [(f.name, f.default, f.default_factory) for f in msgspec.structs.fields(kind)]
    else:
        missing = dataclasses.MISSING  # type: ignore[assignment]
        listed = [(f.name, f.default, f.default_factory) for f in dataclasses.fields(kind)]
    return {
        name: _NO_DEFAULT
        if default is missing and factory is missing
        else _maker(default, None if factory is missing else factory)
        for name, default, factory in listed
    }


def _maker(default: Any, factory: Any) -> Callable[[], Any]:
    made: Callable[[], Any] = factory if factory is not None else partial(_same, default)
    return made


def _same(value: Any) -> Any:
    return value


_Wrapper: TypeAlias = Callable[[Any], Any] | None


def _column(hint: Any, where: str) -> tuple[pl.DataType, bool, _Wrapper]:
    """The type of a column, whether it may be null, and how its values become those of the attribute."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        given = next((one for one in parts[1:] if _is_kind(one)), None)
        if given is not None:
            return pl.Schema({"": given})[""], type(None) in get_args(parts[0]), None
        if any(type(one).__name__ == "AwareDatetime" for one in parts[1:]):
            return _UTC, False, None
        return _column(parts[0], where)
    if origin in (Union, types.UnionType):
        others = [one for one in parts if one is not type(None)]
        if len(others) == 1:
            kind, _, wrap = _column(others[0], where)
            return kind, len(others) < len(parts), wrap
    if isinstance(hint, NewType):
        return _column(hint.__supertype__, where)
    if hint in _PLAIN:
        return _PLAIN[hint], False, None
    if getattr(hint, "__name__", "") == "AwareDatetime":
        return _UTC, False, None
    if hint is UUID:
        return pl.String(), False, _Wrap(UUID)
    if origin is Literal:
        kinds = {type(one) for one in parts}
        if len(kinds) == 1 and kinds <= _PLAIN.keys():
            return _PLAIN[kinds.pop()], False, None
    if isinstance(hint, type) and issubclass(hint, Enum):
        kinds = {type(one.value) for one in hint}
        if len(kinds) == 1 and kinds <= _PLAIN.keys():
            return _PLAIN[kinds.pop()], False, _Wrap(hint)
    if origin in _SEQUENCES and (len(parts) == 1 or parts[1:] == (...,)):
        kind, _, wrap = _column(parts[0], where)
        return pl.List(kind), False, _Wrap(_Each(tuple if origin is tuple else list, wrap))
    if is_model(hint):
        inner = model_of(hint)
        assert inner is not None
        return pl.Struct(inner.schema), False, _Wrap(_Nested(inner))
    raise UserError(
        f"{where} is {getattr(hint, '__name__', hint)}, which is not the type of a column. Annotate it "
        "with one: Annotated[Decimal, pl.Decimal(38, 2)]."
    )


def _is_kind(value: Any) -> bool:
    return isinstance(value, pl.DataType) or (
        isinstance(value, type) and issubclass(value, pl.DataType)
    )


def _as_plain(value: Any) -> Any:
    """A value as columns hold it: models as dicts, enums by value, UUIDs as text."""
    if _is_pydantic(type(value)):
        value = {name: _as_plain(getattr(value, name)) for name in type(value).model_fields}
    elif isinstance(value, list | tuple):
        return [*map(_as_plain, value)]
    elif isinstance(value, Enum):
        return value.value
    elif is_model(type(value)):
        return {name: _as_plain(getattr(value, name)) for name in _defaults(type(value))}
    return str(value) if isinstance(value, UUID) else value


def _article(name: str) -> str:
    return "an" if name[:1] in "AEIOU" else "a"
