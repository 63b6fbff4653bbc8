"""The thread that writes the log: in order, few syncs, and nothing behind a gap."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.transactions import InputError, LogError, Table
from everstream.transactions.recovery import LogWriter
from everstream.transactions.tables import TableState
from tests.transactions import bank


def test_writes_that_queue_up_while_the_disk_is_busy_share_one_sync() -> None:
    disk_is_free, disk_is_busy = threading.Event(), threading.Event()
    syncs: list[list[int]] = []
    written: list[int] = []

    def sync() -> None:
        syncs.append(list(written))
        disk_is_busy.set()
        assert disk_is_free.wait(60)

    writer = LogWriter(sync, 0)
    writer.submit(1, lambda: written.append(1))
    assert disk_is_busy.wait(60)
    for epoch in range(2, 10):
        writer.submit(epoch, lambda epoch=epoch: written.append(epoch))  # type: ignore[misc]
    assert writer.durable_epoch == 0
    disk_is_free.set()
    writer.close()
    assert syncs == [[1], list(range(1, 10))]
    assert writer.durable_epoch == 9


def test_after_a_failed_write_nothing_more_is_written_until_it_starts_over() -> None:
    written: list[int] = []
    writer = LogWriter(lambda: None, 0)

    def fails() -> None:
        raise OSError("no room")

    writer.submit(1, lambda: written.append(1))
    writer.submit(2, fails)
    with pytest.raises(OSError, match="no room"):
        writer.flush()
    writer.submit(3, lambda: written.append(3))
    with pytest.raises(LogError, match="earlier commit"):
        writer.flush()
    assert (written, writer.durable_epoch) == ([1], 1)
    writer.abandon(1)
    writer.submit(2, lambda: written.append(2))
    writer.close()
    assert (written, writer.durable_epoch) == ([1, 2], 2)


@settings(max_examples=60)
@given(rounds=st.lists(st.sets(st.integers(0, 40)), max_size=5), keys=st.integers(41, 60))
def test_a_table_knows_which_slots_were_written_since_it_was_asked(
    rounds: list[set[int]], keys: int
) -> None:
    state = TableState(Table("t"))
    state.index.extend(np.arange(keys))
    state.reserve()
    everything: set[int] = set()
    for slots in rounds:
        chosen = np.array(sorted(slots), np.int32)
        state.scatter(chosen, [chosen.astype(np.int64)])
        everything |= slots
        assert set(state.take_changed().tolist()) == slots
        assert not len(state.take_changed())
        assert {key for key, _ in state.items()} == everything


def test_a_key_that_is_no_whole_number_is_refused() -> None:
    engine = bank.engine()
    events = bank.random_events(5, 1)
    with pytest.raises(InputError, match="'a' must hold whole numbers"):
        engine.process_batch(events.with_columns(a=events["a"].cast(float)))
