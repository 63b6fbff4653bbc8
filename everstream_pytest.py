"""The plug-in for pytest: fixtures for tests of pipelines, seeds by a marker, readable differences.

Outside the package, because loading the package takes a second: pytest loads this module at every
start, and everstream only for a test that uses one of the fixtures.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everstream.testing import CheckReport, Harness, OperatorHarness

MARKER = "everstream_seeds"
SEEDS = 100
"""How many seeds a test has without the marker."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everstream")
    group.addoption(
        "--everstream-seeds",
        type=int,
        metavar="N",
        help="number of seeds for tests of pipelines, in place of the marker everstream_seeds",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(n): how many seeds the fixture check_pipeline tries, and how many times a test "
        "with the fixture everstream_seed runs",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a seed runs once for each."""
    if "everstream_seed" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker(MARKER)
        metafunc.parametrize("everstream_seed", range(_seeds(metafunc.config, marker)))


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say which records are missing from an output and which are too many."""
    found, expected = (left, right) if _is_output(left) else (right, left)
    if op != "==" or not _is_output(found) or not isinstance(expected, list):
        return None
    from everstream.testing.records import Records, difference

    assert isinstance(found, Records)
    return difference(found, expected)


@pytest.fixture
def harness() -> Iterator[Callable[..., "Harness"]]:
    """Makes a `testing.harness` from the same arguments; it is closed when the test ends."""
    from everstream import testing

    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(testing.harness(*args, **options))


@pytest.fixture
def operator_harness() -> Iterator[Callable[..., "OperatorHarness"]]:
    """Makes a `testing.operator` from the same arguments; it is closed when the test ends."""
    from everstream import testing

    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(testing.operator(*args, **options))


@pytest.fixture
def check_pipeline(request: pytest.FixtureRequest) -> Callable[..., "CheckReport"]:
    """`testing.check` with as many seeds as the marker or the command line says."""
    from everstream import testing

    seeds = _seeds(request.config, request.node.get_closest_marker(MARKER))

    def check(*args: Any, **options: Any) -> "CheckReport":
        return testing.check(*args, **{"seeds": seeds, **options})

    return check


def _seeds(config: pytest.Config, marker: pytest.Mark | None) -> int:
    given: int | None = config.getoption("--everstream-seeds")
    if given is not None:
        return given
    if marker is None:
        return SEEDS
    if len(marker.args) != 1 or not isinstance(marker.args[0], int) or marker.kwargs:
        raise pytest.UsageError(f"{MARKER} takes one number: @pytest.mark.{MARKER}(20).")
    return marker.args[0]


def _is_output(value: object) -> bool:
    """By name: if everstream is not loaded, it cannot be one."""
    kind = type(value)
    return kind.__name__ == "Records" and kind.__module__ == "everstream.testing.records"
