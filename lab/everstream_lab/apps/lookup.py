"""Finds an application: one of ours by its name, or a user's by the path of its file."""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import cloudpickle

from everstream.cli.runs.finding import Uncached
from everstream.errors import EverstreamError, UserError
from everstream_lab.apps.application import Application
from everstream_lab.apps.catalogue import find

ATTRIBUTE = "APPLICATION"
_loaded: dict[Path, tuple[int, ModuleType]] = {}
"""File -> when it had been changed last when it was loaded, and its module."""


def application_at(reference: str) -> Application:
    """The application of this name, or the one that a file `FILE.py` defines."""
    if not reference.endswith(".py"):
        return find(reference)
    path = Path(reference).resolve()
    application = getattr(_module(path), ATTRIBUTE, None)
    if not isinstance(application, Application):
        raise UserError(
            f"'{path}' defines no {ATTRIBUTE} = Application(...): see how a new one is made with "
            "'everstream apps new'."
        )
    return application


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file '{path}', where an application was.")
    name = f"everstream_application_{path.stem}"
    changed = path.stat().st_mtime_ns
    known = _loaded.get(path)
    if known is not None and known[0] == changed:
        return known[1]
    spec = importlib.util.spec_from_file_location(name, path, loader=Uncached(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except EverstreamError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = lines[-1].lineno if lines else getattr(error, "lineno", None)
        where = f"{path}, line {line}" if line else str(path)
        raise UserError(f"{where}: {type(error).__name__}: {error}") from error
    _loaded[path] = (changed, module)
    cloudpickle.register_pickle_by_value(module)  # no worker has to have the file
    return module
