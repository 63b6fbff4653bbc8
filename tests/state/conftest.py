"""Stores on a local disk, in memory and in a bucket, for the tests of this folder."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3_server import BUCKET, S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("seaweedfs") / "s3") as server:
        yield server


@pytest.fixture(params=["disk", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "store")
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    for name, value in request.getfixturevalue("s3").variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
