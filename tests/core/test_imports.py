"""Imports go one way, and the core performs nothing: read off the source, not off luck."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.core.imported import ROOT, imports, modules_in

TESTS = Path(__file__).parents[1]

WRITING = {"errors", "events", "state", "pipeline"}
"""What it takes to write a pipeline."""
RUNNING = {*WRITING, "core", "runtime", "connectors"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "events": set(),
    "extras": {"errors"},
    "hiding": set(),
    "lazy": set(),
    "state": {"errors", "extras"},
    "pipeline": {"errors", "events", "state"},
    "connectors": {*WRITING, "hiding", "engine.spark.launcher"},
    "annotations": {*WRITING, "connectors"},
    "transactions": WRITING,
    "processors": WRITING,
    "core": WRITING,
    "runtime": {*WRITING, "core"},
    "planning": {*WRITING, "core", "extras"},
    "inspection": {*WRITING, "core"},
    "inspection.datasource": {*RUNNING, "inspection", "engine.spark.launcher"},
    "observability": set(),
    "observability.monitoring": {*WRITING, "core", "extras"},
    "observability.history": {*WRITING, "core", "planning", "hiding"},
    "observability.ui": {
        *(*WRITING, "core", "extras", "observability.history", "inspection", "connectors")
    },
    "testing": {*RUNNING, "simulation", "audit.comparison"},
    "simulation": RUNNING,
    "engine": {*RUNNING, "hiding", "planning", "observability.monitoring", "observability.history"},
    "engine.spark": {*RUNNING, "engine", "engine.spark.launcher"},
    "engine.spark.launcher": {"errors"},
    "engine.continuous": {*RUNNING, "engine"},
    "engine.tasks": {
        *(*RUNNING, "engine", "engine.spark", "engine.spark.launcher", "engine.continuous")
    },
    "engine.microbatch": {*RUNNING, "engine", "engine.spark", "engine.spark.launcher"},
    "engine.local": {*RUNNING, "engine", "engine.continuous"},
    "audit": {*(*RUNNING, "engine", "simulation", "inspection", "audit.comparison")},
    "audit.comparison": set(),
    "demo": {"core", "extras"},
    "cli": {
        *(*RUNNING, "engine", "simulation", "inspection", "audit", "audit.comparison"),
        *("planning", "annotations", "engine.local"),
        *("observability.monitoring", "observability.history", "observability.ui"),
        *("demo", "hiding", "engine.spark.launcher"),
    },
}
"""Package of the library -> those it may import at the top of a module; tests/lab has the laboratory's.

A package in a package has a row of its own where it may import more or less: no engine imports another,
and what engines share imports none of them."""

LAZY = {
    *(("pipeline", "engine"), ("pipeline", "connectors"), ("pipeline", "transactions")),
    *(("pipeline", "processors"), ("pipeline", "inspection")),
    *(("inspection", "transactions"), ("engine", "observability.ui")),
}
"""Inside a function only: `pipeline.run()`, `.collect()`, `.transact()`, `read_tables` and `run(ui=True)`
reach for what performs them."""

WRITTEN_AS_A_USER_WOULD = {"demo"}
"""May `import everstream as es`: all others would go round in a circle."""

PERFORMING = {
    *("pyspark", "zmq", "time", "threading", "socket", "fsspec", "asyncio", "subprocess"),
    *("multiprocessing", "random", "os", "io", "pathlib", "uuid", "datetime", "select"),
}


def unit_of(module: str) -> str:
    """The row of the table that a module of ours belongs to; "" for the public names."""
    parts = module.split(".")[1:]
    rows = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((row for row in rows if row in MAY_IMPORT), "")


def test_every_package_is_in_the_table_and_the_table_has_no_others() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert packages | modules == {row.partition(".")[0] for row in MAY_IMPORT}
    assert all(modules_in(row) for row in MAY_IMPORT)


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
        module = ".".join(("everstream", *path.relative_to(ROOT).with_suffix("").parts))
        if unit_of(module) != package:
            continue  # a row of its own
        for name, at_once in imports(path):
            if name.partition(".")[0] != "everstream":
                continue
            target = unit_of(name)
            if target in ("extras", "lazy", package):
                continue
            if not target:
                assert package in WRITTEN_AS_A_USER_WOULD, f"{path} imports the public names"
            elif (package, target) in LAZY:
                assert not at_once, f"{path} imports {name} at its top"
            else:
                assert target in MAY_IMPORT[package], f"{path} imports {name}"


BEYOND_PUBLIC = {
    *("pyspark.daemon", "pyspark.worker", "pyspark.util", "pyspark.serializers", "pyspark.core"),
    *("pyspark.java_gateway", "pyspark.sql.pandas", "pyspark.accumulators"),
}
PRIVATE_OF_SPARK = {
    *("_jsc", "_jvm", "_jrdd", "_jbroadcast", "_jdf", "_jsparkSession", "_gateway", "_conf"),
    *("_active_spark_context", "_ensure_initialized", "_python_includes", "_javaAccumulator"),
    *("_pickled_broadcast_vars", "_load_from_socket", "_create_local_socket"),
}
LAUNCHER = ROOT / "engine" / "spark" / "launcher.py"


def beyond_the_public(path: Path) -> set[str]:
    """What a module uses of PySpark that its versions do not promise to keep."""
    modules = {
        name
        for name, _ in imports(path)
        if any(name == known or name.startswith(f"{known}.") for known in BEYOND_PUBLIC)
    }
    names = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_OF_SPARK
    }
    return modules | names


def test_only_the_launcher_uses_spark_beyond_its_public_interface() -> None:
    assert {"pyspark.util", "pyspark.daemon", "_jsc", "_jvm"} <= beyond_the_public(LAUNCHER)
    found = {
        str(path.relative_to(ROOT)): used
        for path in ROOT.rglob("*.py")
        if path != LAUNCHER and (used := beyond_the_public(path))
    }
    assert found == {}


def test_tests_borrow_from_helpers_and_not_from_each_other() -> None:
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.rpartition(".")[2]
                assert not module.startswith("test_"), f"{path} borrows from {node.module}"
