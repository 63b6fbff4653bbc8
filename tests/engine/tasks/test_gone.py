"""Spark's own process is gone: whoever asks it something gets no answer, and no other error."""

import socket
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from everstream.core.ids import WorkerId
from everstream.engine.spark.lost import is_gone
from everstream.engine.tasks.workers import SparkWorkers, StartupWatch


class Orphan:
    """As much of a SparkContext as its users ask for, over a py4j that nobody answers any more."""

    def __init__(self, java: Any) -> None:
        self._jsc = java
        self._jvm = java

    def statusTracker(self) -> Any:
        return self._jsc.statusTracker()

    def cancelJobGroup(self, group: str) -> None:
        self._jsc.cancelJobGroup(group)

    def setJobGroup(self, group: str, description: str, interrupt: bool) -> None:
        self._jsc.setJobGroup(group, description, interrupt)


@pytest.fixture
def orphan() -> Any:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    python = PythonParameters(port=0, eager_load=False)
    return Orphan(ClientServer(JavaParameters(port=port), python).entry_point)


def test_a_connection_refused_is_spark_gone(orphan: Any) -> None:
    with pytest.raises(ConnectionRefusedError):
        orphan.statusTracker()
    assert is_gone(orphan)


def test_nobody_was_stillborn_as_far_as_anyone_can_tell(orphan: Any) -> None:
    assert StartupWatch(orphan, "group").failed({}, now_s=1.0) == []


def test_the_job_of_a_spark_that_is_gone_has_ended_and_can_be_left(orphan: Any) -> None:
    job = SparkWorkers(orphan, "a test")
    assert job.is_running(WorkerId(0), 0), "it keeps nobody out"
    job.start(None, 1)  # type: ignore[arg-type]  # no task will run
    job.leave(told=True)
    assert job.ended
    assert "Connection refused" in str(job.failure())
