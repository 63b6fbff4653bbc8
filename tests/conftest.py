"""What all tests share: how Spark starts for them, and what counts as an error.

Spark's Python workers can import the tests, wherever the process that starts Spark stands. Its
Java processes live for seconds and are started by the dozen, so they do not spend their time on
compiling for a long life, and map its classes from an archive if one was made: each of the two halves
what a start costs. Runs are quiet. What is deprecated in Everstream itself is an error.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstream.pipeline.checkpointing import Engine
from everstream.pipeline.stream import Pipeline
from tests.kafka_server import KafkaServer, install_kafka

_ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(
    [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
)
os.environ["EVERSTREAM_PROGRESS"] = "0"
_CLASSES = Path(sys.prefix) / "spark.jsa"
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={_CLASSES} -Xlog:cds=off "
    "-Dspark.sql.shuffle.partitions=2",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error::everstream.EverstreamDeprecationWarning")


@pytest.fixture
def default_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine of runs that do not name one, those in a reader's program included."""
    engine: Engine = request.param
    for start in (Pipeline.run, Pipeline.start):
        defaults = start.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "engine", engine)
    return engine


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A real broker, for tests that take topics of their own and do not kill it."""
    install_kafka()
    shared = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder,
        KafkaServer(Path(folder)) as server,
    ):
        yield server
