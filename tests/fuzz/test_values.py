"""Whatever is sent to a sink with columns is there as it was sent, or was refused by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.column_places import KINDS, ColumnPlace
from tests.fuzz.values import Run
from tests.shared_memory import folder_in_memory

QUICK, LONG = 20, 2_000


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A kind of output, and the database if it needs one."""
    needs = request.param == "postgres"
    yield request.param, request.getfixturevalue("postgres").dsn if needs else ""


def go_through(seed: int, folder: Path, kind: str, dsn: str) -> None:
    place = folder / f"{kind}-{seed}"
    place.mkdir()
    run = Run(ColumnPlace(kind, place, dsn), seed)
    try:
        run.go()
        run.check()
    except Exception as error:
        raise AssertionError(f"{kind}, seed {seed}: {error}") from error


def test_random_values_in_random_batches_are_stored_exactly_or_refused_by_name(
    kind: tuple[str, str], folder: Path
) -> None:
    for seed in range(QUICK):
        go_through(seed, folder, *kind)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_two_thousand_seeds_of_random_values_are_stored_exactly_or_refused_by_name(
    kind: tuple[str, str], folder: Path
) -> None:
    for seed in range(QUICK, LONG):
        go_through(seed, folder, *kind)
