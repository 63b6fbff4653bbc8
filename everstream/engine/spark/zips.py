"""Spark gives its Python code to workers as zip files, which are slow: they hold no compiled code.

If the same version is also installed, as it is with pip, a worker uses the installed one.
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
    """Clear Python's cached knowledge of the zip files it has imported from.

    Each worker of Spark makes Python look for modules again, which would read the table of contents
    of Spark's zip file again, for a third of a second. A later import from a zip file looks it up
    once, as usual.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def _in_zip(path: str, package: str) -> bytes | None:
    """The text of the module with the package's version."""
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
