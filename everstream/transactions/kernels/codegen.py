"""Generates and compiles the kernels for one set of transactions.

A kernel sees one tuple, `data`, whose positions `Layout` defines: the batch's transaction types,
slots and verdicts, then every table's columns, the event fields and the values read. The generated
source is a copy of `drivers` with the real `step`, and what the recovery scheme adds. It is cached
under a name that changes with anything that matters, so that machine code on disk is never stale.
"""

import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from everstream.extras import extra
from everstream.transactions import compiled
from everstream.transactions.compiled import cache_folder
from everstream.transactions.definition import ABORT
from everstream.transactions.kernels import drivers
from everstream.transactions.layout import COMMITTED, SLOTS, SPIN, TYPES, DataLayout

with extra("transactions"):
    import numba


Walk = Callable[..., None]


@dataclass(frozen=True)
class KernelParts:
    """What a recovery scheme adds to the kernels.

    `steps` write the source of what walks do with one transaction; `walks` are copied as they are.
    """

    steps: tuple[Callable[["StepWriter"], str], ...] = ()
    walks: tuple[Walk, ...] = ()


def kernel_source(layout: DataLayout, interpreted: bool, parts: KernelParts) -> str:
    writer = StepWriter(layout, interpreted)
    steps = [write_step(writer), *(write(writer) for write in parts.steps)]
    functions = [*steps, *walk_sources(parts.walks).values()]
    head = "from typing import Any\n\n" + "\n".join(_constants())
    return head + "\n\n\n" + "\n\n".join(f"@kernel\n{function}" for function in functions)


def _constants() -> list[str]:
    return [
        f"{name} = {value}"
        for name, value in vars(drivers).items()
        if name.isupper() and isinstance(value, int)
    ]


@cache
def walk_sources(further: tuple[Walk, ...]) -> dict[str, str]:
    """The source of the walks in `drivers`, without their interface, and of further ones."""
    own: list[Any] = [
        value
        for name, value in vars(drivers).items()
        if inspect.isfunction(value)
        and (value.__module__, value.__qualname__) == (drivers.__name__, name)
    ]
    return {walk.__name__: inspect.getsource(walk) for walk in (*own, *further)}


class StepWriter:
    """Writes the functions that know the transactions, from the pieces that these share."""

    def __init__(self, layout: DataLayout, interpreted: bool) -> None:
        self.layout = layout
        self._item = ".item()" if interpreted else ""

    def cases(self, case: Callable[[int], list[str]]) -> str:
        lines = [f"    kind = data[{TYPES}][i]"]
        for number in range(len(self.layout.transactions)):
            lines.append(f"    if kind == {number}:")
            lines.extend(f"        {line}" for line in case(number))
        return "\n".join(lines)

    def slots(self, number: int) -> list[str]:
        keys = self.layout.transactions[number].keys
        return [f"s{p} = data[{SLOTS}][{p}, i]" for p in range(len(keys))]

    def table(self, number: int, position: int) -> int:
        return int(self.layout.table_of[number, position])

    def value(self, number: int, position: int, parts: list[str]) -> str:
        table = self.table(number, position)
        joined = ", ".join(f"{part}{self._item}" for part in parts)
        return f"Record_{table}({joined})" if self.layout.tables[table].is_record else joined

    def live(self, number: int, position: int) -> str:
        table = self.table(number, position)
        first = self.layout.column_at[table]
        fields = range(len(self.layout.tables[table].fields))
        return self.value(
            number, position, [f"data[{first + field}][s{position}]" for field in fields]
        )

    def recorded(self, number: int, position: int) -> str:
        places = self.layout.read_places(number, position)
        return self.value(number, position, [f"data[{place}][i]" for place in places])

    def call(self, function: str, number: int) -> str:
        declared = self.layout.transactions[number]
        positions = {key.parameter: position for position, key in enumerate(declared.keys)}
        arguments = [
            f"v{positions[name]}"
            if name in positions
            else f"data[{self.layout.field_at[name]}][i]{self._item}"
            for name in declared.parameters
        ]
        return f"{function}_{number}({', '.join(arguments)})"

    def write(self, number: int, write: int) -> list[str]:
        """Lines that put output number `write` into its table."""
        declared = self.layout.transactions[number]
        position = declared.writes[write]
        table = self.table(number, position)
        first = self.layout.column_at[table]
        value = f"u[{write}]" if len(declared.writes) > 1 else "u"
        if self.layout.tables[table].is_record:
            fields = range(len(self.layout.tables[table].fields))
            lines = [f"data[{first + f}][s{position}] = {value}[{f}]" for f in fields]
        else:
            lines = [f"data[{first}][s{position}] = {value}"]
        return [*lines, f"data[{self.layout.written_at[table]}][s{position}] = 1"]

    def spin(self, operations: int, otherwise: str) -> list[str]:
        return [
            f"if spin(data[{SPIN}] * {operations}, i) == 0:",
            f"    return {otherwise}".rstrip(),
        ]


def write_step(writer: StepWriter) -> str:
    layout = writer.layout

    def case(number: int) -> list[str]:
        declared = layout.transactions[number]
        lines = writer.slots(number)
        for position in range(len(declared.keys)):
            lines.append(f"v{position} = {writer.live(number, position)}")
            places = layout.read_places(number, position)
            record = len(places) > 1 or layout.tables[writer.table(number, position)].is_record
            for field, place in enumerate(places):
                part = f"v{position}[{field}]" if record else f"v{position}"
                lines.append(f"data[{place}][i] = {part}")
        lines.extend(writer.spin(len(declared.keys), "False"))
        lines.append(f"r = {writer.call('decide', number)}")
        lines.append("if r is None:")
        lines.append(f"    data[{COMMITTED}][i] = 0")
        lines.append("    return False")
        lines.append("u = unwrap(r)")
        for write in range(len(declared.writes)):
            lines.extend(writer.write(number, write))
        lines.append(f"data[{COMMITTED}][i] = 1")
        lines.append("return True")
        return lines

    return f"def step(i: int, data: Any) -> bool:\n{writer.cases(case)}\n    return False\n"


class Kernels(SimpleNamespace):
    """The compiled walks of `drivers`, and further ones, for one set of transactions."""

    compiled: bool


# Compiled kernels depend only on what their name is made of, so engines share them.
_built: dict[str, Kernels] = {}


def build(layout: DataLayout, parts: KernelParts) -> Kernels:
    """Generate, compile (lazily) and return the kernels; interpreted if any transaction is."""
    interpreted = any(declared.interpreted for declared in layout.transactions)
    source = kernel_source(layout, interpreted, parts)
    marks = [source, numba.__version__, *(declared.fingerprint for declared in layout.transactions)]
    marks.append(_primitives())
    name = "everstream_kernels_" + hashlib.sha256("\0".join(marks).encode()).hexdigest()[:24]
    if name in _built:
        return _built[name]
    path = cache_folder() / f"{name}.py"
    _write_once(path, source)
    # Machine code loaded from disk looks up its module by name.
    module = sys.modules.setdefault(name, ModuleType(name))
    module.__file__ = str(path)
    namespace = vars(module)
    twins = "python_" if interpreted else ""
    for primitive in ("fetch_add", "load", "store", "unwrap", "cycles", "give_way"):
        namespace[primitive] = getattr(compiled, twins + primitive)
    namespace["spin"] = compiled.spin
    namespace["kernel"] = (lambda function: function) if interpreted else compiled.walk_kernel
    compile_function: Callable[..., Any] = (
        _as_none if interpreted else lambda function: numba.njit(function)
    )
    for number, declared in enumerate(layout.transactions):
        committed = declared.path.function if declared.path else declared.function
        for role, function in (("decide", declared.function), ("commit", committed)):
            label = f"{role}_{number}"
            namespace[label] = compile_function(_rehomed(function, name, label))
    for number, table in enumerate(layout.tables):
        if table.is_record:
            namespace[f"Record_{number}"] = table.record
    exec(compile(source, str(path), "exec"), namespace)
    kernels = Kernels(
        **{walk: namespace[walk] for walk in walk_sources(parts.walks)}, compiled=not interpreted
    )
    if not interpreted:
        _built[name] = kernels
    return kernels


def _rehomed(function: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    """The same function as a member of the generated module.

    Machine code on disk records the module of every function in it and imports it when
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


def _as_none(function: Callable[..., Any]) -> Callable[..., Any]:
    """Interpreted functions return the ABORT object where compiled ones return None."""

    def call(*args: Any) -> Any:
        result = function(*args)
        return None if result is ABORT else result

    return call


def _write_once(path: Path, source: str) -> None:
    """The first process writes it; replacing the file would make other processes' code stale."""
    if path.exists():
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(source)
    with suppress(FileExistsError):
        os.link(temporary, path)
    os.unlink(temporary)


@lru_cache(maxsize=1)
def _primitives() -> str:
    return inspect.getsource(compiled)
