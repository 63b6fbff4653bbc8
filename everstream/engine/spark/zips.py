"""Spark hands its Python to workers as zip files, which are slow: no compiled code is kept in them.

Where the same version is installed beside them, as it is with pip, a worker takes that.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from zipimport import ZipImportError, zipimporter


def use_installed(*packages: str) -> None:
    """Drop the zip files of these packages from Python's path if the same version is installed."""
    for package in packages:
        zipped = {path: version for path in sys.path if (version := _in_zip(path, package))}
        others = [path for path in sys.path if path not in zipped]
        if zipped and set(zipped.values()) == {_installed(others, package)}:
            sys.path[:] = others


def forget_zips() -> None:
    """Let go of what Python knows of the zip files it has imported from.

    Each worker of Spark lets Python look for modules anew, and it would read the table of contents
    of Spark's own zip file again, for a third of a second. Whoever imports from a zip file after
    this has it looked up once, as ever.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def _in_zip(path: str, package: str) -> bytes | None:
    """The text of the module that tells the package's version."""
    try:
        return zipimporter(path).get_data(f"{package}/version.py")
    except (ZipImportError, OSError):
        return None


def _installed(paths: list[str], package: str) -> bytes | None:
    found = PathFinder.find_spec(package, paths)
    if found is None or found.origin is None:
        return None
    version = Path(found.origin).with_name("version.py")
    return version.read_bytes() if version.exists() else None
