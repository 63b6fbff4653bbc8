"""A runner goes on with its work while a large capture is saved in slices."""

import pytest

from everstream.core.ids import Epoch
from everstream.core.messages import StartCheckpoint
from everstream.state.backends import slicing
from tests.runtime.workbench import bench


def test_a_checkpoint_is_uploaded_after_its_last_slice_and_holds_nothing_done_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slicing, "AT_ONCE_ENTRIES", 1)
    monkeypatch.setattr(slicing, "SLICE_ENTRIES", 1)
    it = bench(
        lambda s: s.key_by(lambda n: n % 2).fold(list, lambda seen, n: [*seen, n], name="seen"),
        [1, 2, 3, 4],
    )
    it.step(2)
    it.runner.on_command(StartCheckpoint(Epoch(1)))
    assert it.runner.saving and not it.engine.uploads
    told = it.runner.progress()
    assert (told.taken, told.handed_over) == (1, 0)
    it.step()
    it.runner.save_slice()
    assert it.runner.saving and not it.engine.uploads
    it.runner.save_slice()
    assert not it.runner.saving and it.runner.progress().handed_over == 1
    record = it.save(it.engine.uploads[0])
    it.step()
    it.restore(record, stable=1)
    kept = [store for store in map(dict, it.runner.chain.state.pairs().values()) if store]
    assert kept == [{1: [1], 0: [2]}]
