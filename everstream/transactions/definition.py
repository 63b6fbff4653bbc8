"""The `transaction` decorator: a pure function of the values of declared keys and event fields.

The declaration lists the keys of tables that the function reads and those it writes, so read and
write sets are known before anything runs. The function is checked at definition: a function that
numba cannot compile, or that returns the wrong number of values, is refused with the reason.
"""

import dis
import hashlib
import importlib
import inspect
import sys
import types as python_types
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from everstream.extras import extra
from everstream.transactions.compiled import cache_folder
from everstream.transactions.errors import DefinitionError
from everstream.transactions.kernels.committed_path import CommittedPath, committed_path
from everstream.transactions.tables import KeyReference, Table

with extra("transactions"):
    import numba
    from numba import types
    from numba.core.errors import NumbaError, UnsupportedBytecodeError
    from numba.extending import typeof_impl

Function = Callable[..., Any]


class Abort:
    """The type of `ABORT`. Compiled code sees it as None; Python code as this one object."""

    def __repr__(self) -> str:
        return "ABORT"

    def __reduce__(self) -> str:
        return "ABORT"


ABORT = Abort()
"""Return this from a transaction to change nothing."""


def _abort_is_none(_value: Abort, _context: Any) -> Any:
    return types.none


typeof_impl.register(Abort)(_abort_is_none)


@dataclass(frozen=True)
class Key:
    """One key a transaction accesses: its parameter, its table and the event column naming it."""

    parameter: str
    table: Table
    column: str


@dataclass(frozen=True, eq=False)
class Transaction:
    """A declared transaction type; calling it calls the function as plain Python."""

    name: str
    function: Function
    keys: tuple[Key, ...]
    fields: tuple[str, ...]
    parameters: tuple[str, ...]
    writes: tuple[int, ...]
    interpreted: bool
    fingerprint: str
    path: CommittedPath | None

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __reduce__(self) -> Any:
        """Pickles by name if the name leads here; otherwise piece by piece, as for a script's own."""
        module, qualname = self.function.__module__, self.function.__qualname__
        if module != "__main__" and _within(sys.modules.get(module), qualname) is self:
            return _by_name, (module, qualname)
        return Transaction, tuple(getattr(self, piece.name) for piece in fields(self))

    @property
    def needs(self) -> tuple[frozenset[int], ...]:
        """Per write, the positions of other keys whose values its new value depends on."""
        everything = frozenset(range(len(self.keys)))
        if self.path is None:
            return tuple(everything - {write} for write in self.writes)
        positions = {key.parameter: position for position, key in enumerate(self.keys)}
        return tuple(
            frozenset(positions[name] for name in names if name in positions) - {write}
            for write, names in zip(self.writes, self.path.needs, strict=True)
        )


def _by_name(module: str, qualname: str) -> Any:
    return _within(importlib.import_module(module), qualname)


def _within(value: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


def transaction(
    *, writes: tuple[str, ...] | str = (), interpreted: bool = False, **keys: KeyReference
) -> Callable[[Function], Transaction]:
    """Declare a transaction over keys of tables.

    Each keyword names a parameter of the function that receives the value of a key, as
    in `src=accounts.key("from")`; parameters without a keyword receive the event column of
    that name. The function returns one new value per name in `writes`, in that order, or
    ABORT. With `interpreted=True` it runs as plain Python, slowly, and may use anything
    (default: False, compiled).

    >>> stock = es.Table("stock")
    >>> @es.transaction(left=stock.key("item"), writes="left", interpreted=True)
    ... def buy(left, count):
    ...     return es.ABORT if left < count else left - count
    >>> buy(5, 3), buy(2, 3)
    (2, ABORT)
    """
    written = (writes,) if isinstance(writes, str) else tuple(writes)

    def declare(function: Function) -> Transaction:
        return _declare(function, written, interpreted, keys)

    return declare


def _declare(
    function: Function, writes: tuple[str, ...], interpreted: bool, references: dict[str, Any]
) -> Transaction:
    name = function.__name__
    parameters = tuple(inspect.signature(function).parameters)
    for parameter, reference in references.items():
        if not isinstance(reference, KeyReference):
            raise DefinitionError(
                f'transaction {name}: {parameter} must be a key, as in table.key("column")'
            )
        if parameter not in parameters:
            raise DefinitionError(f"transaction {name} has no parameter {parameter!r}")
    if not references:
        raise DefinitionError(f"transaction {name} declares no keys; it needs at least one")
    for write in writes:
        if write not in references:
            raise DefinitionError(
                f"transaction {name} writes {write!r}, which is not one of its keys: "
                f"{', '.join(references)}"
            )
    keys = tuple(
        Key(parameter, references[parameter].table, references[parameter].column)
        for parameter in parameters
        if parameter in references
    )
    positions = {key.parameter: position for position, key in enumerate(keys)}
    if not interpreted:
        _refuse_silent_return(function)
    declared = Transaction(
        name=name,
        function=function,
        keys=keys,
        fields=tuple(parameter for parameter in parameters if parameter not in references),
        parameters=parameters,
        writes=tuple(positions[write] for write in writes),
        interpreted=interpreted,
        fingerprint=fingerprint(function, keys, writes),
        path=committed_path(function, len(writes), ABORT),
    )
    if not interpreted:
        _refuse_uncompilable(declared)
    return declared


def _refuse_silent_return(function: Function) -> None:
    """Compiled code cannot distinguish `return None` from ABORT, so a missing return is an error."""
    previous = None
    for instruction in dis.get_instructions(function):
        returns_none = (instruction.opname == "RETURN_CONST" and instruction.argval is None) or (
            instruction.opname == "RETURN_VALUE"
            and previous is not None
            and previous.opname == "LOAD_CONST"
            and previous.argval is None
        )
        if returns_none:
            raise DefinitionError(
                f"transaction {function.__name__} can end without returning anything: "
                "return its new values, or ABORT"
            )
        previous = instruction


def _refuse_uncompilable(declared: Transaction) -> None:
    """Compile once per version of the function; the result on disk spares later processes."""
    verdict = cache_folder() / f"compiles-{declared.fingerprint}"
    if verdict.exists():
        return
    reasons = []
    for field_type in (types.int64, types.float64):
        try:
            _check_compiled(declared, field_type)
        except (NumbaError, UnsupportedBytecodeError) as error:
            reasons.append(str(error))
        else:
            Path(verdict).touch()
            return
    raise DefinitionError(
        f"transaction {declared.name} cannot be compiled: {_first_lines(reasons[0])}\n"
        "Use numbers, tuples, if, for and math only, or declare it with interpreted=True."
    )


def _check_compiled(declared: Transaction, field_type: Any) -> None:
    by_parameter = {key.parameter: value_type(key.table) for key in declared.keys}
    signature = tuple(by_parameter.get(name, field_type) for name in declared.parameters)
    dispatcher: Any = numba.njit(declared.function)
    dispatcher.compile(signature)
    returned = dispatcher.overloads[signature].signature.return_type
    if isinstance(returned, types.Optional):
        returned = returned.type
    if isinstance(returned, types.NoneType):
        raise DefinitionError(f"transaction {declared.name} can only ABORT")
    expected = len(declared.writes)
    if expected > 1 and (not isinstance(returned, types.BaseTuple) or len(returned) != expected):
        raise DefinitionError(
            f"transaction {declared.name} writes {expected} keys but returns {returned}: "
            "return one value per written key, in the order of `writes`"
        )
    for position, write in enumerate(declared.writes):
        part = returned[position] if expected > 1 else returned
        table = declared.keys[write].table
        width = len(part) if isinstance(part, types.BaseTuple) else 1
        if width != len(table.fields) or isinstance(part, types.BaseTuple) != table.is_record:
            raise DefinitionError(
                f"transaction {declared.name} returns {part} for {declared.keys[write].parameter}, "
                f"but table {table.name} holds {dict(table.fields)}"
            )


def value_type(table: Table) -> Any:
    """The numba type of a table's value as the function sees it."""
    numba_types: Any = types
    numbers = [numba.from_dtype(np.dtype(number)) for number in table.fields.values()]
    if not table.is_record:
        return numbers[0]
    if len(set(numbers)) == 1:
        return numba_types.NamedUniTuple(numbers[0], len(numbers), table.record)
    return numba_types.NamedTuple(numbers, table.record)


def _first_lines(reason: str, lines: int = 6) -> str:
    useful = [line for line in reason.splitlines() if line.strip()]
    return "\n".join(useful[:lines])


def fingerprint(function: Function, keys: tuple[Key, ...], writes: tuple[str, ...]) -> str:
    """Changes whenever anything that affects the compiled code changes."""
    digest = hashlib.sha256()
    digest.update(repr((numba.__version__, keys, writes)).encode())
    _digest_function(function, digest, set())
    return digest.hexdigest()[:24]


def _digest_function(function: Function, digest: Any, seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    _digest_code(function.__code__, digest)
    closure = inspect.getclosurevars(function)
    for name, value in sorted({**closure.globals, **closure.nonlocals}.items()):
        target = getattr(value, "py_func", value)
        digest.update(name.encode())
        if isinstance(target, python_types.FunctionType):
            _digest_function(target, digest, seen)
        elif isinstance(target, python_types.ModuleType):
            digest.update(target.__name__.encode())
        else:
            digest.update(repr(target).encode())


def _digest_code(code: python_types.CodeType, digest: Any) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            _digest_code(constant, digest)
        else:
            digest.update(repr(constant).encode())
