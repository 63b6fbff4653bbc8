"""What the connector tests share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.lake_places import LakePlace
from tests.connectors.postgres_server import PostgresServer
from tests.connectors.table_places import Place
from tests.shared_memory import folder_in_memory


@pytest.fixture
def quick_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Temporary folders in memory where there is such a place: an fsync there costs nothing."""
    tmp_path_factory.getbasetemp()  # settled before, or later tests would look for theirs in here
    with folder_in_memory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield


@pytest.fixture(params=["sqlite", "postgres"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> Iterator[Place]:
    yield Place(request.param, tmp_path, postgres.dsn)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakePlace:
    return LakePlace(request.param, tmp_path)
