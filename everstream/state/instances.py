"""Dataclasses and pydantic models in snapshots: by the names of their fields.

An instance is saved as the name of its class, the names of its fields and their values, which msgspec
packs if they are plain. So state can be read without the class, and the class can change: a new field
begins with its default. An instance whose class lost a field, or is gone, is read as `SavedFields`, which
a migration turns into what the program keeps now. Classes that say how they are pickled, or that cannot
be imported by name, are pickled as before.
"""

import contextlib
import copy
import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NoReturn

import msgspec

from everstream.errors import UserError

_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None)})
"""Types that msgspec keeps exactly, without knowing what to expect."""
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_HOOKS: Final = (
    *("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__"),
    *("__getstate__", "__setstate__"),
)
Reduced = tuple[Any, ...]


class SavedFields(Mapping[str, Any]):
    """An instance whose class is gone or has other fields: its values by the names of the fields."""

    def __init__(self, name: str, fields: tuple[str, ...], unset: tuple[str, ...] = ()) -> None:
        self._name, self._fields, self._unset = name, fields, unset
        self._values: tuple[Any, ...] = ()

    def __getitem__(self, field: str) -> Any:
        if field not in self._fields:
            raise KeyError(field)
        return self._values[self._fields.index(field)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={self[name]!r}" for name in self._fields)
        return f"{self._name.rpartition(':')[2]}({pairs})"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f"the state has a value of {self._name} with the fields {', '.join(self._fields)}, which that "
            "class no longer has, or has no default for. Give es.Keyed a higher version and migrate=, "
            "which gets the fields like a dict: migrate=lambda value, version: Order(value['user'])."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "SavedFields":
        same = SavedFields(self._name, self._fields, self._unset)
        same._values = copy.deepcopy(self._values, memo)
        return same

    def __reduce__(self) -> Reduced:
        return _reduced(self._name, self._fields, self._values, self._unset)


def reducer_for(kind: type) -> Callable[[Any], Reduced] | None:
    """How instances of this class are saved; None for a class that is pickled as before."""
    found = _fields_of(kind)
    if not found or not _by_name(kind) or any(_defines(kind, hook) for hook in _HOOKS):
        return None
    made_by: Any = kind.__new__
    if made_by is not object.__new__ and not _is_pydantic(kind):
        return None
    name, fields = _name_of(kind), tuple(found)
    values_of = attrgetter(*fields) if len(fields) > 1 else None
    pydantic = _is_pydantic(kind)

    def reduce(instance: Any) -> Reduced:
        try:
            values = (
                [getattr(instance, field) for field in fields]
                if values_of is None
                else [*values_of(instance)]
            )
        except AttributeError:  # a field that was never set
            return _as_ever(instance)
        unset: tuple[str, ...] = ()
        own = getattr(instance, "__dict__", None)
        if own is not None and len(own) != len(fields):
            return _as_ever(instance)  # it has more than its fields
        if pydantic:
            if instance.__pydantic_extra__ or instance.__pydantic_private__:
                return _as_ever(instance)
            unset = tuple(
                field for field in fields if field not in instance.__pydantic_fields_set__
            )
        return _reduced(name, fields, values, unset)

    return reduce


def _reduced(
    name: str, fields: tuple[str, ...], values: Sequence[Any], unset: tuple[str, ...]
) -> Reduced:
    from everstream.state import saved

    packed: Any = tuple(values)
    if _PLAIN.issuperset(map(type, values)):
        with contextlib.suppress(
            OverflowError, ValueError
        ):  # an integer too large, half a surrogate
            packed = _encode(values)
    return saved.instance, (name, fields, unset), (fields, packed), None, None, saved.filled


def empty(name: str, fields: tuple[str, ...], unset: tuple[str, ...]) -> Any:
    """An instance without values; `SavedFields` if the class is gone or does not fit."""
    made_by = (name, fields)
    if made_by not in _known:
        kind = _class_named(name)
        _known[made_by] = kind if kind is not None and _fits(kind, fields) else None
    kind = _known[made_by]
    if kind is None:
        return SavedFields(name, fields, unset)
    made = kind.__new__(kind)
    if _is_pydantic(kind):
        for attribute, value in (
            ("__pydantic_fields_set__", {*fields} - {*unset}),
            ("__pydantic_extra__", None),
            ("__pydantic_private__", None),
        ):
            object.__setattr__(made, attribute, value)
    return made


_known: dict[tuple[str, tuple[str, ...]], Any] = {}
"""Class and fields -> the class, if it fits."""
_additions: dict[tuple[type, tuple[str, ...]], list[tuple[str, Callable[[], Any]]]] = {}


def fill(made: Any, state: tuple[tuple[str, ...], Any]) -> None:
    """Set the values of an instance; a field that it has not had gets its default."""
    fields, packed = state
    values = _decode(packed) if isinstance(packed, bytes) else packed
    if isinstance(made, SavedFields):
        made._values = tuple(values)
        return
    own = getattr(made, "__dict__", None)
    if own is not None:
        own.update(zip(fields, values, strict=True))
    else:
        for name, value in zip(fields, values, strict=True):
            object.__setattr__(made, name, value)
    shape = (type(made), fields)
    if shape not in _additions:
        known = _fields_of(type(made)) or {}
        added = [(name, make) for name, make in known.items() if name not in fields]
        _additions[shape] = [(name, make) for name, make in added if make is not None]
    for name, make in _additions[shape]:
        object.__setattr__(made, name, make())


class Packed:
    """A dict whose values are instances of one class with plain fields: all values in one piece."""

    def __init__(self, keys: list[Any], name: str, fields: tuple[str, ...], values: bytes) -> None:
        self._saved = keys, name, fields, values

    def __reduce__(self) -> Reduced:
        from everstream.state import saved

        return saved.instances_of, self._saved


def packed(entries: dict[Any, Any]) -> Any:
    """The same to pickle: in one piece if possible."""
    kinds = {*map(type, entries.values())} if len(entries) > 1 else set()
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or not dataclasses.is_dataclass(kind) or reducer_for(kind) is None:
        return entries
    fields = tuple(_fields_of(kind) or ())
    values = [*entries.values()]
    own = [getattr(value, "__dict__", None) for value in values]
    if any(one is not None and len(one) != len(fields) for one in own):
        return entries
    try:
        columns = [[*map(attrgetter(field), values)] for field in fields]
        if not all(_PLAIN.issuperset(map(type, column)) for column in columns):
            return entries
        data = _encode(columns)
    except (AttributeError, OverflowError, ValueError):
        return entries
    return Packed([*entries], _name_of(kind), fields, data)


def unpacked(keys: list[Any], name: str, fields: tuple[str, ...], data: bytes) -> dict[Any, Any]:
    kind: Any = type(empty(name, fields, ()))
    if kind is not SavedFields and len(_fields_of(kind) or ()) == len(fields):
        new, rows = kind.__new__, zip(*_decode(data), strict=True)
        if "__dict__" in dir(kind):
            entries = {key: new(kind) for key in keys}
            for made, values in zip(entries.values(), rows, strict=True):
                made.__dict__.update(zip(fields, values, strict=True))
            return entries
    entries = {key: empty(name, fields, ()) for key in keys}
    for made, values in zip(entries.values(), zip(*_decode(data), strict=True), strict=True):
        fill(made, (fields, values))
    return entries


def fields_of(kind: Any) -> list[str] | None:
    """The fields of a class whose instances are saved by their fields; `name=` if it has a default."""
    if not isinstance(kind, type) or reducer_for(kind) is None:
        return None
    return [f"{n}=" if default else n for n, default in (_fields_of(kind) or {}).items()]


def _fits(kind: type, fields: tuple[str, ...]) -> bool:
    known = _fields_of(kind)
    if known is None:
        return False
    added = [default for name, default in known.items() if name not in fields]
    return all(name in known for name in fields) and None not in added


def _fields_of(kind: Any) -> dict[str, Callable[[], Any] | None] | None:
    """Field -> what makes its default, if it has one; None for another class."""
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            one.name: _maker(one.default, one.default_factory, missing)
            for one in dataclasses.fields(kind)
        }
    if _is_pydantic(kind):
        return {
            name: None if one.is_required() else _maker(one.default, one.default_factory, None)
            for name, one in kind.model_fields.items()
        }
    return None


def _maker(default: Any, factory: Any, missing: Any) -> Callable[[], Any] | None:
    if factory is not None and factory is not missing:
        made: Callable[[], Any] = factory
        return made
    return None if missing is not None and default is missing else lambda: default


def _is_pydantic(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def _by_name(kind: type) -> bool:
    """Whether another process finds this very class by its name."""
    return kind.__module__ != "__main__" and _class_named(_name_of(kind)) is kind


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_named(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) else None


def _defines(kind: type, hook: str) -> bool:
    """Whether a class of the user, and not its library, says how it is pickled."""
    own = getattr(kind, hook, None)
    if own is getattr(object, hook, None):
        return False
    module = getattr(own, "__module__", None) or ""
    return module.partition(".")[0] not in ("dataclasses", "pydantic")


def _as_ever(value: Any) -> Reduced:
    reduced: Reduced = value.__reduce_ex__(5)
    return reduced


class Reducers(dict[type, Callable[[Any], Reduced]]):
    """A dispatch table that finds the reducers of classes when their first instance is saved."""

    def __missing__(self, kind: type) -> Callable[[Any], Reduced]:
        if kind not in _unfit:
            found = reducer_for(kind)
            if found is not None:
                self[kind] = found
                return found
            _unfit.add(kind)
        raise KeyError(kind)


_unfit: set[type] = set()
"""Classes that are pickled as before."""
