"""Stores on a local disk, in memory and in a bucket, for the tests of this folder."""

import uuid
from pathlib import Path

import pytest

from tests.s3_server import BUCKET


@pytest.fixture(params=["disk", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "store")
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    for name, value in request.getfixturevalue("s3").variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
