"""A run that lasts: what its driver holds does not grow with its epochs, on Spark."""

import gc
import tracemalloc
from pathlib import Path

import pytest

import everstream as es
from everstream.core.checkpointing.newest import Newest
from everstream.events import RunStatus
from tests.spark import MASTER

REMEMBERED = 50


def bytes_per_epoch(folder: Path, epochs: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """How much the driver holds more for each epoch, once it has begun to forget."""
    init = Newest.__init__
    monkeypatch.setattr(Newest, "__init__", lambda self, limit=REMEMBERED: init(self, limit))
    held: dict[int, int] = {}

    def until(snapshot: RunStatus) -> bool:
        for mark in (epochs // 2, epochs):
            if snapshot.epoch >= mark and mark not in held:
                gc.collect()
                held[mark] = tracemalloc.get_traced_memory()[0]
        return epochs in held

    pipeline = es.Pipeline("long")
    numbers = pipeline.source(es.Paced(es.Range(10**9, batch=10), rate=2000), name="numbers")
    counts = numbers.key_by(lambda n: n % 5).fold(
        init=int, update=lambda count, _: count + 1, name="count"
    )
    counts.sink(es.JsonLines(folder / "out"), name="out")
    tracemalloc.start()
    try:
        pipeline.run(
            master=MASTER,
            workers=2,
            store=folder / "store",
            checkpoint=es.Coordinated(every="10ms"),
            until=until,
        )
    finally:
        tracemalloc.stop()
    return (held[epochs] - held[epochs // 2]) / (epochs - epochs // 2)


@pytest.mark.long
def test_a_thousand_epochs_on_spark_leave_nothing_behind_in_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bytes_per_epoch(tmp_path, 1000, monkeypatch) < 200
