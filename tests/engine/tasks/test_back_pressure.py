"""A stop while records pile up before a slow function: it comes with its checkpoint, and soon."""

import time
from pathlib import Path

import pytest

import everstream as es
from everstream.core.orders import Outcome

from .running import Notes, run

RECORDS, BATCH = 6_000, 2_000
SLOW_S = 0.02
"""A batch takes 40 s, longer than a stop waits; so without small frames there is no checkpoint."""


def pipeline(folder: Path, apart: bool) -> es.Pipeline:
    quick = folder / "quick"

    def slow(number: int) -> int:
        if not quick.exists():
            time.sleep(SLOW_S)
        return number

    made = es.Pipeline("slow")
    numbers = made.source(es.Range(RECORDS, batch=BATCH), name="numbers")
    stream = numbers.on_demand() if apart else numbers
    stream.map(slow, name="slow").collect(name="out")
    return made


@pytest.mark.parametrize("apart", [False, True], ids=["fused", "apart"])
def test_a_stop_under_back_pressure_takes_its_checkpoint(tmp_path: Path, apart: bool) -> None:
    notes, store = Notes(), tmp_path / "store"
    stopped = run(
        pipeline(tmp_path, apart),
        store=store,
        checkpoint=es.Coordinated(every="1h"),
        until=lambda seen: seen.records_read >= 40,
        listener=notes,
    )
    assert stopped.outcome is Outcome.STOPPED
    assert not notes.of(es.events.StoppedWithoutCheckpoint), notes.texts
    assert stopped.checkpoint_count == 1
    assert stopped.records_in < RECORDS, "it was stopped in the middle"
    (tmp_path / "quick").touch()
    finished = run(pipeline(tmp_path, apart), store=store)
    assert finished.outcome is Outcome.FINISHED
    assert sorted(finished.collected("out")) == list(range(RECORDS))
