"""Writes and compiles the kernels for one set of transactions.

A kernel sees one tuple, `data`, of which `Layout` says what stands where: the batch's
transaction types, slots and verdicts, then every table's columns, the event fields and
the values read. The generated source is a copy of `drivers` with the real `step`,
`redo`, `project` and `walk`, kept in the kernel cache under a name that changes with
anything that matters, so that machine code on disk is never stale.
"""

import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from everstream.transactions import compiled, drivers
from everstream.transactions.cache import cache_folder
from everstream.transactions.definition import ABORT, Transaction
from everstream.transactions.errors import DefinitionError
from everstream.transactions.tables import Table

TYPES, SLOTS, COMMITTED, SPIN = range(4)
_FIXED = 4


@dataclass(frozen=True)
class ReadColumn:
    """One outcome column: the value read for a parameter, or one field of a record."""

    name: str
    field: str | None
    dtype: str
    users: tuple[tuple[int, int], ...]  # (transaction, key position) pairs that fill it


class Layout:
    """What stands where in `data`, and the shape of the transactions in arrays."""

    def __init__(self, tables: Sequence[Table], transactions: Sequence[Transaction]) -> None:
        self.tables = tuple(tables)
        self.transactions = tuple(transactions)
        names = [declared.name for declared in transactions]
        for name in names:
            if names.count(name) > 1:
                raise DefinitionError(f"two transactions are named {name}; events ask by name")
        self.width = max(len(declared.keys) for declared in transactions)
        table_number = {table.name: number for number, table in enumerate(self.tables)}
        for declared in transactions:
            for key in declared.keys:
                if (
                    key.table.name not in table_number
                    or key.table != self.tables[table_number[key.table.name]]
                ):
                    raise DefinitionError(
                        f"transaction {declared.name} uses table {key.table.name}, "
                        "which the engine was not given"
                    )
        shape = (len(transactions), self.width)
        self.table_of = np.full(shape, -1, np.int8)
        self.is_write = np.zeros(shape, np.uint8)
        self.key_count = np.zeros(len(transactions), np.int64)
        for number, declared in enumerate(transactions):
            self.key_count[number] = len(declared.keys)
            for position, key in enumerate(declared.keys):
                self.table_of[number, position] = table_number[key.table.name]
            self.is_write[number, list(declared.writes)] = 1
        self.fields = tuple(dict.fromkeys(f for declared in transactions for f in declared.fields))
        self.reads = _read_columns(transactions)
        needs = [frozenset[int]().union(*declared.needs) for declared in transactions]
        self.needed = [
            tuple(user for user in column.users if user[1] in needs[user[0]])
            for column in self.reads
        ]
        """Per read column, those of its users on whose value some other key's new one depends."""
        self.column_at: list[int] = []
        self.written_at: list[int] = []
        place = _FIXED
        for table in self.tables:
            self.column_at.append(place)
            self.written_at.append(place + len(table.fields))
            place += len(table.fields) + 1
        self.field_at = {name: place + offset for offset, name in enumerate(self.fields)}
        place += len(self.fields)
        self.read_at = place

    def users_of(self, field: str) -> npt.NDArray[np.bool_]:
        """Which transactions look at an event field."""
        return np.array([field in declared.fields for declared in self.transactions])

    def read_places(self, number: int, position: int) -> list[int]:
        """Where in `data` the value read by a key of a transaction is recorded."""
        return [
            self.read_at + offset
            for offset, column in enumerate(self.reads)
            if (number, position) in column.users
        ]

    def empty_reads(self, rows: int) -> list[npt.NDArray[Any]]:
        return [np.zeros(rows, column.dtype) for column in self.reads]


def _read_columns(transactions: Sequence[Transaction]) -> tuple[ReadColumn, ...]:
    """Keys of the same name and value share columns; otherwise the transaction's name is added."""
    shapes: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for declared in transactions:
        for key in declared.keys:
            shapes.setdefault(key.parameter, set()).add(tuple(key.table.fields.items()))
    users: dict[tuple[str, str | None, str], list[tuple[int, int]]] = {}
    for number, declared in enumerate(transactions):
        for position, key in enumerate(declared.keys):
            alone = len(shapes[key.parameter]) == 1
            name = key.parameter if alone else f"{declared.name}.{key.parameter}"
            for field, dtype in key.table.fields.items():
                column = (name, field if key.table.is_record else None, dtype)
                users.setdefault(column, []).append((number, position))
    return tuple(ReadColumn(*column, tuple(who)) for column, who in users.items())


@dataclass(frozen=True)
class Kernels:
    """The compiled walks of `drivers` for one set of transactions."""

    run_in_order: Callable[..., None]
    redo_in_order: Callable[..., None]
    run_ready: Callable[..., None]
    redo_levels: Callable[..., None]
    redo_streams: Callable[..., None]
    redo_chains: Callable[..., None]
    redo_partitions: Callable[..., None]
    compiled: bool


# Compiled kernels depend on nothing but what their name is made of, so engines share them.
_built: dict[str, Kernels] = {}


def build(layout: Layout) -> Kernels:
    """Generate, compile (lazily) and return the kernels; interpreted if any transaction is."""
    interpreted = any(declared.interpreted for declared in layout.transactions)
    source = _source(layout, interpreted)
    marks = [source, numba.__version__, *(declared.fingerprint for declared in layout.transactions)]
    marks.append(_primitives())
    name = "everstream_kernels_" + hashlib.sha256("\0".join(marks).encode()).hexdigest()[:24]
    if name in _built:
        return _built[name]
    path = cache_folder() / f"{name}.py"
    _write_once(path, source)
    # Machine code loaded from disk asks for its module by name.
    module = sys.modules.setdefault(name, ModuleType(name))
    module.__file__ = str(path)
    namespace = vars(module)
    if interpreted:
        namespace.update(
            fetch_add=compiled.python_fetch_add,
            load=compiled.python_load,
            store=compiled.python_store,
            unwrap=compiled.python_unwrap,
            cycles=_no_cycles,
            give_way=_no_cycles,
            spin=compiled.spin,
            kernel=lambda function: function,
        )
    else:
        namespace.update(
            fetch_add=compiled.fetch_add,
            load=compiled.load,
            store=compiled.store,
            unwrap=compiled.unwrap,
            cycles=compiled.cycles,
            give_way=compiled.give_way,
            spin=compiled.spin,
            kernel=compiled.walk_kernel,
        )
    compile_function: Callable[..., Any] = (
        _as_none if interpreted else lambda function: numba.njit(function)
    )
    for number, declared in enumerate(layout.transactions):
        committed = declared.path.function if declared.path else declared.function
        for role, function in (("decide", declared.function), ("commit", committed)):
            namespace[f"{role}_{number}"] = compile_function(
                _rehomed(function, name, f"{role}_{number}")
            )
    for number, table in enumerate(layout.tables):
        if table.is_record:
            namespace[f"Record_{number}"] = table.record
    exec(compile(source, str(path), "exec"), namespace)
    walks = [walk for walk in Kernels.__dataclass_fields__ if walk != "compiled"]
    kernels = Kernels(**{walk: namespace[walk] for walk in walks}, compiled=not interpreted)
    if not interpreted:
        _built[name] = kernels
    return kernels


def _rehomed(function: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    """The same function as a member of the generated module.

    Machine code on disk remembers the module of every function in it and imports it when
    loaded; a notebook or a script run by another may not be importable.
    """
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        name,
        function.__defaults__,
        function.__closure__,
    )
    copy.__module__, copy.__qualname__ = module, name
    return copy


def _no_cycles() -> int:
    return 0


def _as_none(function: Callable[..., Any]) -> Callable[..., Any]:
    """Interpreted functions return the ABORT object where compiled ones return None."""

    def call(*args: Any) -> Any:
        result = function(*args)
        return None if result is ABORT else result

    return call


def _write_once(path: Path, source: str) -> None:
    if path.exists():
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(source)
    os.replace(temporary, path)


def _source(layout: Layout, interpreted: bool) -> str:
    writer = _Writer(layout, interpreted)
    functions = [writer.step(), writer.redo(), writer.project(), writer.walk(), *_walks()]
    head = "from typing import Any\n\n" + "\n".join(_constants())
    return head + "\n\n\n" + "\n\n".join(f"@kernel\n{function}" for function in functions)


def _constants() -> list[str]:
    return [
        f"{name} = {value}"
        for name, value in vars(drivers).items()
        if name.isupper() and isinstance(value, int)
    ]


@lru_cache(maxsize=1)
def _walks() -> tuple[str, ...]:
    """The source of the walks in `drivers`, without the interface they are written against."""
    return tuple(
        inspect.getsource(value)
        for name, value in vars(drivers).items()
        if inspect.isfunction(value)
        and (value.__module__, value.__qualname__) == (drivers.__name__, name)
    )


@lru_cache(maxsize=1)
def _primitives() -> str:
    return inspect.getsource(compiled)


class _Writer:
    """Writes the four functions that know the transactions."""

    def __init__(self, layout: Layout, interpreted: bool) -> None:
        self._layout = layout
        self._item = ".item()" if interpreted else ""

    def _cases(self, case: Callable[[int], list[str]]) -> str:
        lines = [f"    kind = data[{TYPES}][i]"]
        for number in range(len(self._layout.transactions)):
            lines.append(f"    if kind == {number}:")
            lines.extend(f"        {line}" for line in case(number))
        return "\n".join(lines)

    def _slots(self, number: int) -> list[str]:
        keys = self._layout.transactions[number].keys
        return [f"s{p} = data[{SLOTS}][{p}, i]" for p in range(len(keys))]

    def _table(self, number: int, position: int) -> int:
        return int(self._layout.table_of[number, position])

    def _value(self, number: int, position: int, parts: list[str]) -> str:
        table = self._table(number, position)
        joined = ", ".join(f"{part}{self._item}" for part in parts)
        return f"Record_{table}({joined})" if self._layout.tables[table].is_record else joined

    def _live(self, number: int, position: int) -> str:
        table = self._table(number, position)
        first = self._layout.column_at[table]
        fields = range(len(self._layout.tables[table].fields))
        return self._value(
            number, position, [f"data[{first + field}][s{position}]" for field in fields]
        )

    def _recorded(self, number: int, position: int) -> str:
        places = self._layout.read_places(number, position)
        return self._value(number, position, [f"data[{place}][i]" for place in places])

    def _call(self, function: str, number: int) -> str:
        declared = self._layout.transactions[number]
        positions = {key.parameter: position for position, key in enumerate(declared.keys)}
        arguments = [
            f"v{positions[name]}"
            if name in positions
            else f"data[{self._layout.field_at[name]}][i]{self._item}"
            for name in declared.parameters
        ]
        return f"{function}_{number}({', '.join(arguments)})"

    def _write(self, number: int, write: int) -> list[str]:
        """Lines that put output number `write` into its table."""
        declared = self._layout.transactions[number]
        position = declared.writes[write]
        table = self._table(number, position)
        first = self._layout.column_at[table]
        value = f"u[{write}]" if len(declared.writes) > 1 else "u"
        if self._layout.tables[table].is_record:
            fields = range(len(self._layout.tables[table].fields))
            lines = [f"data[{first + f}][s{position}] = {value}[{f}]" for f in fields]
        else:
            lines = [f"data[{first}][s{position}] = {value}"]
        return [*lines, f"data[{self._layout.written_at[table]}][s{position}] = 1"]

    def _spin(self, operations: int, otherwise: str) -> list[str]:
        return [
            f"if spin(data[{SPIN}] * {operations}, i) == 0:",
            f"    return {otherwise}".rstrip(),
        ]

    def step(self) -> str:
        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            for position in range(len(declared.keys)):
                lines.append(f"v{position} = {self._live(number, position)}")
                places = self._layout.read_places(number, position)
                record = (
                    len(places) > 1 or self._layout.tables[self._table(number, position)].is_record
                )
                for field, place in enumerate(places):
                    part = f"v{position}[{field}]" if record else f"v{position}"
                    lines.append(f"data[{place}][i] = {part}")
            lines.extend(self._spin(len(declared.keys), "False"))
            lines.append(f"r = {self._call('decide', number)}")
            lines.append("if r is None:")
            lines.append(f"    data[{COMMITTED}][i] = 0")
            lines.append("    return False")
            lines.append("u = unwrap(r)")
            for write in range(len(declared.writes)):
                lines.extend(self._write(number, write))
            lines.append(f"data[{COMMITTED}][i] = 1")
            lines.append("return True")
            return lines

        return f"def step(i: int, data: Any) -> bool:\n{self._cases(case)}\n    return False\n"

    def redo(self) -> str:
        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            lines.extend(f"v{p} = {self._live(number, p)}" for p in range(len(declared.keys)))
            lines.extend(self._spin(len(declared.keys), ""))
            lines.extend(self._committed_result(number))
            for write in range(len(declared.writes)):
                lines.extend(self._write(number, write))
            lines.append("return")
            return lines

        return f"def redo(i: int, data: Any) -> None:\n{self._cases(case)}\n"

    def _committed_result(self, number: int) -> list[str]:
        return [
            f"r = {self._call('commit', number)}",
            "if r is None:",
            "    return",
            "u = unwrap(r)",
        ]

    def project(self) -> str:
        """One key's share of a transaction.

        Where a transaction names the same key twice, both see the value before it and
        the last write stays, so only the last position naming a key is ever projected.
        """

        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            for write, own in enumerate(declared.writes):
                lines.append(f"if position == {own}:")
                inner = [f"v{own} = {self._live(number, own)}"]
                for position in range(len(declared.keys)):
                    if position == own:
                        continue
                    inner.append(f"v{position} = {self._recorded(number, position)}")
                    if self._table(number, position) == self._table(number, own):
                        inner.append(f"if s{position} == s{own}:")
                        inner.append(f"    v{position} = v{own}")
                inner.extend(self._spin(1, ""))
                inner.extend(self._committed_result(number))
                inner.append("if keep:")
                inner.extend(f"    {line}" for line in self._write(number, write))
                inner.append("return")
                lines.extend(f"    {line}" for line in inner)
            lines.append("return")
            return lines

        head = "def project(i: int, position: int, data: Any, keep: bool) -> None:"
        return f"{head}\n{self._cases(case)}\n"

    def walk(self) -> str:
        """One partition's share: live values inside the partition, recorded ones outside."""

        def case(number: int) -> list[str]:
            declared = self._layout.transactions[number]
            lines = self._slots(number)
            for position in range(len(declared.keys)):
                table = self._table(number, position)
                lines.append(f"in{position} = parts[{table}][s{position}] == part")
                lines.append(f"if in{position}:")
                lines.append(f"    v{position} = {self._live(number, position)}")
                lines.append("else:")
                lines.append(f"    v{position} = {self._recorded(number, position)}")
            lines.append("mine = 0")
            lines.extend(f"if in{position}:\n            mine += 1" for position in declared.writes)
            lines.append(f"if spin(data[{SPIN}] * mine, i) == 0:")
            lines.append("    return")
            lines.extend(self._committed_result(number))
            for write, position in enumerate(declared.writes):
                lines.append(f"if in{position}:")
                lines.extend(f"    {line}" for line in self._write(number, write))
            lines.append("return")
            return lines

        head = "def walk(i: int, part: int, data: Any, parts: Any) -> None:"
        return f"{head}\n{self._cases(case)}\n"
