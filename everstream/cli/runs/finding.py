"""Finds the pipeline that a user names: `FILE.py`, `FILE.py:NAME`, `module:NAME`.

The name is that of a pipeline, or of a function with `@es.annotated`, which takes arguments and returns one.
A file is loaded as a module, so code under `if __name__ == "__main__"` does not run. Its functions and
classes are sent to the workers by value: other machines do not need the file. All errors are the
user's to fix and are reported in one line.
"""

import ast
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import cloudpickle

from everstream.annotations.problems import AnnotationError
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline

if TYPE_CHECKING:
    from everstream.annotations.function import AnnotatedFunction


class Uncached(SourceFileLoader):
    """Compiles a file as it is now, as Python does with a script.

    Cached bytecode is matched by the size of the file and the second of its last change, so a quick
    change of the same length would be missed.
    """

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def load_pipeline(target: str, arguments: Sequence[str] = ()) -> Pipeline:
    """The pipeline that `target` names; if there is none, a UserError explains what to change.

    `arguments`, as in limit=500, are those of an annotated function.
    """
    pipeline = _choose(*load_module(target))
    if not isinstance(pipeline, Pipeline):
        return pipeline.pipeline(**parsed(pipeline, arguments))
    if arguments:
        raise UserError(
            f"'{arguments[0]}': the pipeline '{pipeline.name}' takes no arguments; a function with "
            "@es.annotated does."
        )
    return pipeline


def load_module(target: str) -> tuple[ModuleType, str, str | None]:
    """The module that `target` names, its place as given, and the name after the colon."""
    place, name = _split(target)
    if place.endswith(".py") or os.sep in place:
        module = _load_file(Path(place))
    else:
        module = _load_module(place)
    cloudpickle.register_pickle_by_value(module)
    return module, place, name


def parsed(function: "AnnotatedFunction[..., Any]", arguments: Sequence[str]) -> dict[str, Any]:
    """limit=500 as {"limit": 500}; a value that is not a Python literal is text."""
    name, known = function.program.name, inspect.signature(function.function).parameters
    example = f"-- {next(iter(known), 'limit')}=500"
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise UserError(f"'{argument}': write NAME=VALUE, as in {example}.")
        if key not in known:
            listed = ", ".join(known) or "none"
            raise UserError(f"'{name}' has no parameter '{key}'; it has: {listed}.")
        values[key] = text
        if known[key].annotation not in (str, "str"):
            with suppress(ValueError, SyntaxError):
                values[key] = ast.literal_eval(text)
    needed = [key for key, one in known.items() if one.default is one.empty and key not in values]
    if needed:
        missing = " ".join(f"{key}=..." for key in needed)
        raise UserError(f"'{name}' needs arguments: say -- {missing} at the end.")
    return values


def _is_annotated(value: object) -> "TypeGuard[AnnotatedFunction[..., Any]]":
    """By its name: to import the class takes time, and most programs have no such function."""
    names = {(kind.__module__, kind.__qualname__) for kind in type(value).__mro__}
    return ("everstream.annotations.function", "AnnotatedFunction") in names


def _split(target: str) -> tuple[str, str | None]:
    place, colon, name = target.rpartition(":")
    if not colon:
        return target, None
    if not place or not name:
        raise UserError(f"'{target}': write FILE.py, FILE.py:NAME or module:NAME.")
    return place, name


def _load_file(path: Path) -> ModuleType:
    if path.is_dir():
        raise UserError(f"'{path}' is a folder: name the Python file in it.")
    if not path.is_file():
        raise UserError(f"there is no file '{path}'.")
    if path.suffix != ".py":
        raise UserError(f"'{path}' is not a Python file: its name must end in .py.")
    path = path.resolve()
    sys.path.insert(0, str(path.parent))  # as Python does for a script: it may import neighbours
    name = _free_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path, loader=Uncached(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _explained(error, str(path)) from error
    return module


def _free_name(stem: str) -> str:
    """The file's own name unless a module has it already: a script may be called `json.py`."""
    name = stem
    while name in sys.modules:
        name = f"{name}_script"
    return name


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            hint = f" To name a file, write {name}.py." if Path(f"{name}.py").exists() else ""
            raise UserError(f"there is no module '{error.name}'.{hint}") from error
        raise _explained(error, name) from error
    except BaseException as error:
        raise _explained(error, name) from error


def _explained(error: BaseException, where: str) -> BaseException:
    """An error that names the failing line of the user's program; interrupts are unchanged."""
    if isinstance(error, KeyboardInterrupt | AnnotationError):
        return error
    if isinstance(error, UserError):
        return UserError(f"{_line_of(error, where)}: {error.message}")
    if isinstance(error, SyntaxError):
        text = f": {error.text.strip()}" if error.text else ""
        return UserError(f"{error.filename}, line {error.lineno}: {error.msg}{text}")
    message = " ".join(str(error).split())
    return UserError(f"{_line_of(error, where)}: {type(error).__name__}: {message}")


def _line_of(error: BaseException, where: str) -> str:
    """The innermost line of the user's file that was running."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name]
    own = [frame for frame in lines if frame.filename == where]
    return f"{where}, line {own[-1].lineno}" if own else where


def _choose(
    module: ModuleType, place: str, name: str | None
) -> "Pipeline | AnnotatedFunction[..., Any]":
    defined: dict[str, Pipeline | AnnotatedFunction[..., Any]] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, Pipeline) or _is_annotated(value)
    }
    if name is not None:
        named = getattr(module, name, None)  # a module may create it on access
        if isinstance(named, Pipeline) or _is_annotated(named):
            return named
        if hasattr(module, name):
            kind = type(named).__name__
            raise UserError(
                f"'{name}' in {place} is of type {kind}, not an es.Pipeline, and no function with "
                "@es.annotated."
            )
        known = ", ".join(defined) or "none"
        raise UserError(f"{place} has no '{name}'; the pipelines in it: {known}.")
    different = {id(pipeline): pipeline for pipeline in defined.values()}
    if not different:
        raise UserError(f"{place} defines no es.Pipeline at its top level.")
    if len(different) > 1:
        choices = " or ".join(f"{place}:{key}" for key in defined)
        raise UserError(f"{place} defines several pipelines: say {choices}.")
    return next(iter(different.values()))
