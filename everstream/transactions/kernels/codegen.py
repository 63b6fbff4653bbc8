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
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from everstream.extras import extra
from everstream.transactions import compiled
from everstream.transactions.compiled import cache_folder
from everstream.transactions.definition import ABORT
from everstream.transactions.kernels.kernel_source import KernelParts, kernel_source, walk_sources
from everstream.transactions.layout import DataLayout

with extra("transactions"):
    import numba


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


def _no_cycles() -> int:
    return 0


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
