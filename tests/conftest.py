"""What all tests share: how Spark and Python start for them, their order, and what counts as an error.

Spark's Python workers can import the tests from any working directory. Its Java processes live for
seconds and are started by the dozen, so they do not compile for a long life, and they map Spark's
classes from an archive if `make` has written one: each of the two halves what a start costs.
Python processes are started by the hundred and keep their bytecode: compiling Everstream again
would be half of what each start costs. Runs are quiet. Hypothesis measures no
time: how long an example takes depends on the machine.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from everstream.pipeline.checkpointing import EngineName
from tests.balancing import BalancedScheduling, DurationRecorder, duration_of
from tests.connectors.postgres_server import PostgresServer, postgres_server
from tests.kafka_server import KafkaServer, install_kafka
from tests.s3_server import S3Server
from tests.shared_memory import folder_in_memory
from tests.spark import MASTER, shared_session

_ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(
    [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
)
os.environ["EVERSTREAM_PROGRESS"] = "0"
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # The working tree stays clean, and the processes of the tests need not compile.
    sys.pycache_prefix = os.path.join(_ROOT, ".pytest_cache", "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    sys.dont_write_bytecode = False
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CLASSES = Path(sys.prefix) / "spark.jsa"
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    f"{_SHORT_LIVED} -XX:SharedArchiveFile={_CLASSES} -Xlog:cds=off "
    "-Dspark.sql.shuffle.partitions=2 -Dspark.sql.streaming.pollingDelay=100ms",
)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", _SHORT_LIVED)
# For runs that name no master, those in a reader's program included.
os.environ["EVERSTREAM_MASTER"] = MASTER
settings.register_profile("everstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everstream")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder())


def pytest_collection_finish() -> None:
    """What thousands of collected tests have created stays: the collector need not walk it again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=lambda item: -duration_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BalancedScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # longest first, not those with most tests
    return BalancedScheduling(config, log)


@pytest.fixture(autouse=True, scope="module")
def engine_of_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs that name no engine are local, except in modules that say what Spark adds."""
    on_spark = request.node.get_closest_marker("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERSTREAM_ENGINE", "tasks" if on_spark else "local")
        yield


@pytest.fixture(autouse=True)
def engine_of_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("spark") or "spark" in request.fixturenames:
        monkeypatch.setenv("EVERSTREAM_ENGINE", "tasks")


@pytest.fixture
def default_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EngineName:
    """The engine of runs that do not name one, those in a reader's program included."""
    engine: EngineName = request.param
    monkeypatch.setenv("EVERSTREAM_ENGINE", engine)
    return engine


@pytest.fixture
def spark() -> SparkSession:
    return shared_session()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A real broker, for tests that take topics of their own and do not kill it."""
    install_kafka()
    with folder_in_memory() as folder, KafkaServer(folder) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real server, for tests that take tables of their own and do not stop it."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real object store, for tests that take folders of their own and do not kill it."""
    with S3Server(tmp_path_factory.mktemp("seaweedfs") / "s3") as server:
        yield server
