"""Lines and Halstead's measures of every application on every interface.

It counts the program that a user has to write for one interface: the stages, the way to
the items, and what joins them, all from the application's own module. Modules that several
applications share (a video's frames, a file's pieces) count as libraries, as OpenCV's reader of
videos does in the published figures; the lines they would add are listed beside it. Threads,
processes and plain Spark have one driver for all applications: its own module is counted for each.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from everstream.annotations import AnnotatedFunction
from everstream_lab.apps.application import Application
from everstream_lab.apps.interfaces import plain_spark, pools
from everstream_lab.apps.productivity.halstead import Halstead, count
from everstream_lab.apps.productivity.program import program_of

HELPERS = "everstream_lab.apps."
FRAME = ("application", "catalogue", "inputs", "lookup", "generators", "running")
"""What is no part of any program: the frame that all applications share, and made inputs."""
CALL_PLAIN = '\nsequential(Path("input"), Path("output"))\n'
CALL_PIPELINE = '\npipeline(Path("input"), Path("output")).run()\n'
ARGUMENTS = {"folder": 'Path("input")', "parts": 'Path("output")', "limit": "500_000"}
"""What a program calls its annotated function with."""
DRIVERS = {
    "threads": (pools, "threads"),
    "processes": (pools, "processes"),
    "pyspark": (plain_spark, "plain_spark"),
}


@dataclass(frozen=True)
class Counted:
    """One application on one interface."""

    application: str
    interface: str
    program: str
    measures: Halstead
    shared_lines: int
    """Lines of modules that several applications share and that this program uses."""


def counted(application: Application) -> list[Counted]:
    """All interfaces on which the application is written."""
    home = sys.modules[application.sequential.__module__]
    own = inspect.getsource(home)
    parts = _names(
        home, [*application.stages, application.items, application.encode, application.gather]
    )
    programs = {
        "sequential": program_of(own, _names(home, [application.sequential])) + CALL_PLAIN,
        "everstream": program_of(own, _names(home, [application.pipeline])) + CALL_PIPELINE,
    }
    for name, value in vars(home).items():
        if isinstance(value, AnnotatedFunction):
            programs["annotated"] = program_of(own, [name]) + _call(name, value)
    for interface, (module, entry) in DRIVERS.items():
        driver = program_of(inspect.getsource(module), [entry])
        programs[interface] = f"{program_of(own, parts)}\n{driver}"
    return [_count(application.name, name, program) for name, program in programs.items()]


def _count(application: str, interface: str, program: str) -> Counted:
    shared = "\n".join(_shared(program, set()))
    return Counted(application, interface, program, count(program), count(shared).lines)


def _shared(program: str, seen: set[str]) -> Iterator[str]:
    """What a program needs of our modules that applications share, and they of each other."""
    for statement in ast.walk(ast.parse(program)):
        if not isinstance(statement, ast.ImportFrom):
            continue
        place = (statement.module or "").removeprefix(HELPERS)
        first = place.partition(".")[0]
        if place == statement.module or first in (*FRAME, "interfaces"):
            continue
        names = [one.name for one in statement.names if f"{place}.{one.name}" not in seen]
        seen.update(f"{place}.{name}" for name in names)
        if names:
            text = program_of(inspect.getsource(import_module(HELPERS + place)), names)
            yield text
            yield from _shared(text, seen)


def _call(name: str, function: AnnotatedFunction[..., Any]) -> str:
    """The line that runs an annotated function, and shows what it returns."""
    signature = inspect.signature(function.function)
    given = [p.name for p in signature.parameters.values() if p.default is p.empty]
    call = f"{name}.run({', '.join(f'{one}={ARGUMENTS[one]}' for one in given)})"
    silent = signature.return_annotation in (None, "None")
    return f"\n{call}\n" if silent else f"\nprint({call})\n"


def _names(module: ModuleType, functions: list[Any]) -> list[str]:
    """Those of the functions that the module itself defines or imports, by name."""
    names = {id(value): name for name, value in vars(module).items()}
    return [names[id(function)] for function in functions if id(function) in names]
