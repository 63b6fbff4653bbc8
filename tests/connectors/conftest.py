"""What the connector tests share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders in memory where there is such a place: an fsync there costs nothing."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
