"""Stores on a local disk and in memory, for the tests of this folder."""

import uuid
from pathlib import Path

import pytest


@pytest.fixture(params=["disk", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "disk" else f"memory://{uuid.uuid4().hex}"
