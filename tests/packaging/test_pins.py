"""Every pinned package runs on every Python that we declare, its first release included."""

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LABORATORY = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
NAMED = [
    name.rpartition(" ")[2]
    for name in PROJECT["classifiers"]
    if name.startswith("Programming Language :: Python :: 3.")
]
"""Such as 3.11: those that the project names one by one."""


def test_the_oldest_python_that_is_named_is_the_oldest_that_is_allowed() -> None:
    assert PROJECT["requires-python"] == f">={NAMED[0]}"


def test_the_laboratory_runs_on_the_same_pythons_with_the_library_of_its_own_version() -> None:
    assert LABORATORY["requires-python"] == PROJECT["requires-python"]
    assert LABORATORY["version"] == PROJECT["version"]
    (library,) = [
        needed
        for needed in map(Requirement, LABORATORY["dependencies"])
        if needed.name == "everstream"
    ]
    assert str(library.specifier) == f"=={PROJECT['version']}"
    assert library.extras <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.name)
def test_a_pin_is_installed_and_runs_on_the_first_release_of_each_python(pin: Requirement) -> None:
    try:
        installed = distribution(pin.name)
    except PackageNotFoundError:
        pytest.skip("not needed on this Python")
    assert installed.version in pin.specifier, "constraints.txt is not what is installed"
    runs_on = SpecifierSet(installed.metadata.get("Requires-Python", ""))
    for python in NAMED:
        assert f"{python}.0" in runs_on, f"{pin} needs Python {runs_on}"
