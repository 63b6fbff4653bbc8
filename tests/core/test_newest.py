"""Histories stay small however long a run lasts."""

import copy
import gc
import json
import pickle
import tracemalloc

from everstream.core.checkpointing.newest import KEPT, Newest
from everstream.core.messages import Stable
from everstream.core.orders import Policy
from tests.core.coordinators.line_run import Run as LineRun

from .coordinators.coordinating import Run, of


def test_a_history_keeps_its_newest_entries_and_knows_how_many_there_were() -> None:
    history: Newest[int] = Newest(limit=3)
    for number in range(5):
        history.append(number)
    assert (history, history.total, history.forgotten) == ([2, 3, 4], 5, 2)
    for there in (pickle.loads(pickle.dumps(history)), copy.deepcopy(history)):
        assert type(there) is list and there == [2, 3, 4]
    assert json.dumps(history) == "[2, 3, 4]"


EPOCHS = 10_000


def test_the_memory_of_a_driver_does_not_grow_with_its_epochs() -> None:
    run = Run(Policy(every_s=10.0)).to_running()
    written: Newest[object] = Newest(limit=10)
    tracemalloc.start()
    try:
        for epoch in range(1, EPOCHS + 1):
            assert of(run.epoch(epoch, 10.0 * epoch), Stable)
            written.append(run.it.manifests[0])
            if epoch == EPOCHS // 2:
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert written.total == EPOCHS
    assert grown < EPOCHS, "a byte or two for each epoch would be too much"


def test_nor_where_each_shard_has_its_own_numbers() -> None:
    run = LineRun().start()
    for number in range(1, 300):
        run.line(number, position=5 * number)
    book = run.it._strategy._lines  # type: ignore[attr-defined]
    assert len(book._taken_s) < 20 and len(book._known) < 60


def test_a_run_remembers_as_many_failures_as_is_good_for_it() -> None:
    run = Run(Policy(every_s=None, max_restarts=10 * KEPT, restart_window_s=1.0)).to_running()
    for second in range(KEPT + 50):
        run.now_s = float(second)
        run.it.on_process_joined(0, "again", run.now_s)  # type: ignore[arg-type]
        run.restored()
    assert len(run.it.recoveries) == KEPT and run.it.recoveries.total == KEPT + 50
