"""The page of supported versions says what the package declares, the pins have and the matrix runs."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from everstream.engine.spark.launcher import SUPPORTED

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROW = re.compile(r"^\| (\w+)(?: \(`(\w+)`\))? \| `([^`]+)` \| ([^|]+) \|$", re.MULTILINE)
PAGE = {
    name: (package, allowed, tested.strip())
    for name, package, allowed, tested in ROW.findall(
        (ROOT / "docs" / "reference" / "versions.md").read_text()
    )
}
SPARKS = [f"{major}.{minor}" for major, minor in SUPPORTED]


def test_the_page_allows_what_the_package_requires() -> None:
    needed = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    assert PAGE.keys() == {"Spark", "Python", "Polars", "pandas", "PyArrow"}
    for package, allowed, _ in (row for name, row in PAGE.items() if name != "Python"):
        assert Requirement(f"{package}{allowed}").specifier == needed[package], package
    assert PAGE["Python"][1] == PROJECT["requires-python"]


def test_the_page_names_the_pins_and_the_declared_pythons_as_tested() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    for name in ("Polars", "pandas", "PyArrow"):
        package, _, tested = PAGE[name]
        assert tested == pins[package], package
    declared = [
        name.rpartition(" ")[2]
        for name in PROJECT["classifiers"]
        if name.startswith("Programming Language :: Python :: 3.")
    ]
    assert PAGE["Python"][2].split(", ") == declared


def test_the_page_the_launcher_and_the_matrix_have_the_same_sparks() -> None:
    assert PAGE["Spark"][2].split(", ") == SPARKS
    (found,) = re.findall(r"^matrix: ONLY \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found.split() == SPARKS
