"""What all tests share: how Spark starts for them, and what counts as an error.

Spark's Python workers can import the tests, wherever the process that starts Spark stands. Its
Java processes live for seconds and are started by the dozen, so they do not spend their time on
compiling for a long life, and map its classes from an archive if one was made: each of the two halves
what a start costs. Runs are quiet. What is deprecated in Everstream itself is an error.
"""

import os
import sys
from pathlib import Path

import pytest

from everstream.pipeline.checkpointing import Engine
from everstream.pipeline.stream import Pipeline

_ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(
    [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
)
os.environ["EVERSTREAM_PROGRESS"] = "0"
_CLASSES = Path(sys.prefix) / "spark.jsa"
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={_CLASSES} -Xlog:cds=off",
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
