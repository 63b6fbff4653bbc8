"""A real run that comes near the memory its workers may have."""

from typing import cast

import pytest

import everstream as es
from everstream.engine.continuous.worker import memory
from everstream.engine.continuous.worker.memory import MemoryWatch
from everstream.errors import RunFailed, UserError
from everstream.pipeline.times import size_bytes
from everstream.runtime.runner import ShardRunner
from tests.engine.tasks.running import Notes
from tests.spark import MASTER


def hoarding(values: int) -> es.Pipeline:
    pipeline = es.Pipeline("hoarding")
    keyed = pipeline.source(es.Range(values)).key_by(lambda n: n)
    kept = keyed.fold(init=bytes, update=lambda value, n: bytes(100_000) + bytes([n % 7]))
    kept.map(lambda pair: pair[0]).collect()
    return pipeline


def test_a_worker_at_its_limit_says_whose_state_it_is_and_what_to_do() -> None:
    notes = Notes()
    with pytest.raises(RunFailed) as failed:
        hoarding(20_000).run(
            worker_memory="700m",
            master=MASTER,
            workers=1,
            checkpoint=None,
            listener=notes,
            max_restarts=1,
        )
    told = str(failed.value)
    assert "used all of its 700 MB" in told and "the state of 'fold' in shard 0" in told
    assert "state='disk'" in told and "keys, " in told
    assert len(notes.of(es.events.MemoryNear)) <= 1  # one batch may pass it


def test_a_worker_near_its_limit_tells_once_and_takes_nothing_in_until_there_is_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = cast(ShardRunner, object())
    warned: list[tuple[int, int]] = []
    watch = MemoryWatch(
        100_000_000, [runner], lambda runner: True, lambda used, limit: warned.append((used, limit))
    )
    for now_s, used_mb in enumerate((84, 86, 90, 70, 86)):
        monkeypatch.setattr(memory, "own_memory_bytes", lambda used_mb=used_mb: used_mb * 10**6)
        watch.look(float(now_s))
        assert watch.holds(runner) == (used_mb >= 85)
    assert warned == [(86_000_000, 100_000_000)]


def test_with_its_state_on_disk_the_same_run_stays_below() -> None:
    """More than the limit, which leaves room for what waits on its way to a slow disk."""
    pipeline = hoarding(12_000)
    result = pipeline.run(
        worker_memory="1000m", master=MASTER, workers=1, state="disk", checkpoint=None
    )
    assert result.records_out == 12_000


@pytest.mark.parametrize(
    ("said", "meant"), [("2g", 2_000_000_000), ("512 MB", 512_000_000), (7, 7)]
)
def test_a_size_is_said_in_words_or_bytes(said: str | int, meant: int) -> None:
    assert size_bytes("worker_memory", said) == meant


@pytest.mark.parametrize("said", ["", "much", "-1g", "0"])
def test_what_is_no_size_is_refused(said: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        size_bytes("worker_memory", said)
