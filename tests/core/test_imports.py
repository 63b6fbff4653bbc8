"""Imports go one way, and the core performs nothing: read off the source, not off luck."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstream

ROOT = Path(everstream.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "state": {"errors"},
    "pipeline": {"errors", "state"},
    "core": {"errors", "state", "pipeline"},
    "connectors": {"errors", "state", "pipeline"},
    "inspection": {"errors", "state", "pipeline", "core"},
    "transactions": {"errors", "state", "pipeline"},
    "simulation": {"errors", "state", "pipeline", "core", "connectors"},
    "spark": {"errors", "state", "pipeline", "core", "connectors", "planning"},
}
"""Package -> the packages of ours it may import at the top of a module."""

LAZY = {
    *(("pipeline", "spark"), ("pipeline", "connectors"), ("pipeline", "transactions")),
    ("inspection", "transactions"),
}
"""Inside a function only: `pipeline.run()`, `.collect()`, `.transact()` and `read_tables` reach
for what performs them."""

PERFORMING = {
    *("pyspark", "zmq", "time", "threading", "socket", "fsspec", "asyncio", "subprocess"),
    *("multiprocessing", "random", "os", "io", "pathlib", "uuid", "datetime", "select"),
}


def modules_in(package: str) -> list[Path]:
    folder = ROOT / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{package}.py"]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module, and whether it is imported when the module itself is."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in late
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module, id(node) not in late


def test_the_core_imports_nothing_that_performs() -> None:
    for path in modules_in("core"):
        found = {name.partition(".")[0] for name, _ in imports(path)}
        assert not found & PERFORMING, f"{path} imports {found & PERFORMING}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    for path in modules_in(package):
        for name, at_once in imports(path):
            first, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if first != "everstream" or target in ("", package):
                continue
            if (package, target) in LAZY:
                assert not at_once, f"{path} imports {name} at its top"
            else:
                assert target in MAY_IMPORT[package], f"{path} imports {name}"
