"""Imports go one way, and the core performs nothing: read off the source, not off luck."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.core.imported import ROOT, imports, modules_in

TESTS = Path(__file__).parents[1]

WRITING = {"errors", "state", "pipeline"}
"""What it takes to write a pipeline."""
RUNNING = {*WRITING, "core", "runtime", "connectors"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "state": {"errors", "extras"},
    "pipeline": {"errors", "state"},
    "connectors": WRITING,
    "annotations": {*WRITING, "connectors"},
    "transactions": WRITING,
    "core": WRITING,
    "runtime": {*WRITING, "core"},
    "monitoring": {*WRITING, "core", "extras"},
    "planning": {*WRITING, "core", "extras"},
    "inspection": {*WRITING, "core"},
    "history": {*WRITING, "core", "planning"},
    "ui": {*WRITING, "core", "extras", "history", "inspection", "connectors"},
    "testing": {*WRITING, "core"},
    "datasource": {*RUNNING, "inspection"},
    "simulation": RUNNING,
    "spark": {*RUNNING, "planning", "monitoring", "history"},
    "microbatch": {*RUNNING, "spark", "monitoring"},
    "audit": {*RUNNING, "spark", "simulation", "inspection"},
    "bench": {*RUNNING, "spark", "simulation", "inspection", "audit", "planning", "transactions"},
    "apps": {*RUNNING, "spark", "monitoring", "annotations"},
    "cli": {
        *(*RUNNING, "spark", "simulation", "inspection", "audit", "planning", "bench", "apps"),
        *("monitoring", "annotations", "history", "ui"),
    },
}
"""Package -> the packages of ours it may import at the top of a module.

`cli, bench, apps → audit → spark, simulation, inspection → runtime → core → pipeline, state`."""

LAZY = {
    *(("pipeline", "spark"), ("pipeline", "connectors"), ("pipeline", "transactions")),
    *(("inspection", "transactions"), ("spark", "microbatch"), ("spark", "ui")),
}
"""Inside a function only: `pipeline.run()`, `.collect()`, `.transact()`, `read_tables`,
`run(engine="microbatch")` and `run(ui=True)` reach for what performs them."""

WRITTEN_AS_A_USER_WOULD = {"bench", "apps"}
"""May `import everstream as es`: all others would go round in a circle."""

PERFORMING = {
    *("pyspark", "zmq", "time", "threading", "socket", "fsspec", "asyncio", "subprocess"),
    *("multiprocessing", "random", "os", "io", "pathlib", "uuid", "datetime", "select"),
}


def test_every_package_is_in_the_table_and_the_table_has_no_others() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert packages | modules == MAY_IMPORT.keys()


def test_the_table_itself_has_no_way_back() -> None:
    assert tuple(TopologicalSorter(MAY_IMPORT).static_order())


@pytest.mark.parametrize("package", ["core", "runtime"])
def test_what_decides_and_what_works_leave_all_else_to_an_engine(package: str) -> None:
    for path in modules_in(package):
        found = {name.partition(".")[0] for name, _ in imports(path)}
        assert not found & PERFORMING, f"{path} imports {found & PERFORMING}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    for path in modules_in(package):
        for name, at_once in imports(path):
            first, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if first != "everstream" or target in ("extras", package):
                continue
            if not target:
                assert package in WRITTEN_AS_A_USER_WOULD, f"{path} imports the public names"
                continue
            if (package, target) in LAZY:
                assert not at_once, f"{path} imports {name} at its top"
            else:
                assert target in MAY_IMPORT[package], f"{path} imports {name}"


def test_tests_borrow_from_helpers_and_not_from_each_other() -> None:
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.rpartition(".")[2]
                assert not module.startswith("test_"), f"{path} borrows from {node.module}"
