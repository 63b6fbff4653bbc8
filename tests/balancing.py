"""Which tests a process of pytest-xdist gets together, and in which order: what takes longest first.

With `--dist loadfile` the tests of a file stay together, so that they share a Spark and the fixtures
of their module. A file that takes long is divided into its tests, unless these share a fixture, so
that no process ends the run alone with the rest of a file. The files about Kafka stay together,
because a broker takes long to start. (`--dist loadgroup` would be the way to say this, but
pytest-xdist 3.8 cannot name groups with pytest 9.)

`durations.json` has the seconds of each file that takes long, right enough for an order. To measure
them again:

    make test RECORD=--record-durations
"""

import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
DURATIONS = Path(__file__).with_name("durations.json")
LONG_S = 15.0
"""A file that takes longer is divided."""
WORTH_RECORDING_S = 2.0
KAFKA = "tests/connectors/test_kafka"
FIXTURE_OF_A_MODULE = re.compile(r"fixture\(.*scope=\"(class|module|package)\"")


@cache
def known_durations() -> dict[str, float]:
    durations: dict[str, float] = json.loads(DURATIONS.read_text())
    return durations


def duration_of(nodeid: str) -> float:
    """How long the file of a test takes, with those that stay together; 0 if not worth knowing."""
    file = file_of(nodeid)
    return _duration_of_kafka() if file.startswith(KAFKA) else known_durations().get(file, 0.0)


@cache
def _duration_of_kafka() -> float:
    return sum(s for file, s in known_durations().items() if file.startswith(KAFKA))


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def group_of(nodeid: str) -> str:
    """The name of the group that a test belongs to: its file, a server, or itself."""
    file = file_of(nodeid)
    if file.startswith(KAFKA):
        return KAFKA
    return nodeid if duration_of(nodeid) > LONG_S and not _shares_a_fixture(file) else file


@cache
def _shares_a_fixture(file: str) -> bool:
    path = ROOT / file
    sources = (path, path.with_name("conftest.py"))
    return any(FIXTURE_OF_A_MODULE.search(s.read_text()) for s in sources if s.exists())


class BalancedScheduling(LoadScopeScheduling):
    """Gives one group after the other to the process that has nothing to do."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class DurationRecorder:
    """Writes down how long each file took, all of its tests together."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        measured = {**known_durations(), **self.seconds}
        kept = {
            file: round(seconds)
            for file, seconds in sorted(measured.items(), key=lambda known: (-known[1], known[0]))
            if seconds >= WORTH_RECORDING_S and (ROOT / file).exists()
        }
        DURATIONS.write_text(json.dumps(kept, indent=1) + "\n")
