"""The model keeps the laws every schedule obeys."""

from dataclasses import replace

import numpy as np
import pytest

from everstream_lab.bench.transactions.makespan import list_schedule, model
from everstream_lab.workloads.transactions import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_makespans_lie_between_the_work_shared_evenly_and_the_work_in_a_row(name: str) -> None:
    workload = WORKLOADS[name](replace(WORKLOADS[name](None).shape, keys=200))
    events = workload.events(2_000, seed=1)
    one, four, many = model(workload, events, 500, 1e-6, (1, 4, 64))
    assert one.seconds["wal"] == pytest.approx(one.seconds["dependency"])
    assert one.seconds["wal"] == pytest.approx(one.seconds["lsn-vector"])
    assert one.seconds["checkpoint"] >= one.seconds["wal"] >= one.seconds["fast"]
    for scheme in ("checkpoint", "dependency", "lsn-vector", "fast"):
        assert one.seconds[scheme] / 4 <= four.seconds[scheme] * (1 + 1e-9)
        assert many.seconds[scheme] <= four.seconds[scheme] <= one.seconds[scheme]
    assert four.seconds["wal"] == one.seconds["wal"]


def test_a_chain_of_transactions_takes_its_whole_length_on_any_number_of_workers() -> None:
    incoming = np.array([0, 1, 1, 0], np.int32)
    start = np.array([0, 1, 2, 2, 2])
    successors = np.array([1, 2], np.int32)
    finish, worker_of = list_schedule(incoming, start, successors, np.array([1.0, 2, 3, 4]), 8)
    assert finish == 6.0
    assert len(worker_of) == 4
