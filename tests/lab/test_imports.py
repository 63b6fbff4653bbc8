"""The laboratory imports the library, never the other way round; its own imports go one way."""

from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import everstream
import everstream_lab
import pyspark_everstream
from tests.core.imported import imports

LABORATORY = Path(everstream_lab.__file__).parent
LIBRARY = [Path(package.__file__ or "").parent for package in (everstream, pyspark_everstream)]

MAY_IMPORT: dict[str, set[str]] = {
    "apps": set(),
    "workloads": set(),
    "recovery": set(),
    "queueing": {"bench"},
    "bench": {"recovery", "workloads"},
    "reproduce": {"apps", "bench", "queueing", "workloads"},
    "cli": {"apps", "bench", "queueing", "workloads", "reproduce"},
    "pipelines": {"apps"},
}
"""Package or module of the laboratory -> those it may import."""


def test_the_library_does_not_know_the_laboratory() -> None:
    for path in (file for folder in LIBRARY for file in folder.rglob("*.py")):
        assert "everstream_lab" not in path.read_text(), path


def test_every_package_of_the_laboratory_is_in_the_table_and_the_table_has_no_others() -> None:
    packages = {path.parent.name for path in LABORATORY.glob("*/__init__.py")}
    modules = {path.stem for path in LABORATORY.glob("*.py")} - {"__init__"}
    assert packages | modules == MAY_IMPORT.keys()
    assert tuple(TopologicalSorter(MAY_IMPORT).static_order())


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_of_the_laboratory_go_one_way(package: str) -> None:
    folder = LABORATORY / package
    for path in folder.rglob("*.py") if folder.is_dir() else [LABORATORY / f"{package}.py"]:
        for name, _ in imports(path):
            # The command itself loads the laboratory: to import it from here is a circle.
            assert name != "everstream.cli.app", path
            first, _, rest = name.partition(".")
            if first == "everstream_lab":
                assert rest.partition(".")[0] in {package, *MAY_IMPORT[package]}, f"{path}: {name}"
