"""The threads of a worker: what goes wrong in one reaches the main thread, whatever it is."""

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstream.core.ids import Generation, ShardId
from everstream.core.permits import permit
from everstream.engine.continuous.worker.background import Background
from everstream.errors import InternalError
from everstream.runtime.engine_api import CommitJob
from everstream.runtime.message_log import Segment
from everstream.state.store import CheckpointStore
from tests.processes import PATIENCE_S


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    background = Background(CheckpointStore.at(str(tmp_path)), lambda shard, point: None)
    yield background
    background.close()


def wait(background: Background) -> None:
    ready, _, _ = select.select([background.wake_fd], [], [], PATIENCE_S)
    assert ready, "nobody was woken up"
    background.deliver_outcomes()


def test_a_thread_that_breaks_is_raised_on_the_main_thread(background: Background) -> None:
    class Odd(Segment):
        def save(self, put: Any) -> None:
            raise ZeroDivisionError("nobody expects this")

    background.save_segment(Odd.__new__(Odd))
    with pytest.raises(InternalError, match="the thread everstream-upload broke") as raised:
        wait(background)
    assert "nobody expects this" in str(raised.value)


@pytest.mark.parametrize("error", [OSError("no room"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_commit_raises_is_told_to_its_shard(
    background: Background, error: BaseException
) -> None:
    class Raises(CommitJob):
        def perform(self, reached: Any) -> None:
            raise error

    job = Raises(ShardId("out", 0), Generation(1), permit(1), [object()])  # type: ignore[list-item]
    told: list[BaseException] = []
    background.commit(job, lambda job: None, lambda job, error: told.append(error))
    wait(background)
    assert told == [error]
