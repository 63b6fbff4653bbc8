"""How often `fast` commits: by the class of workload, as in section VI-B of MorphStreamR."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from everstream.transactions import TransactionEngine
from everstream_lab.bench.transactions.config import default_shape
from everstream_lab.bench.transactions.studies import CONTENTION
from everstream_lab.recovery.chains import Dependencies
from everstream_lab.recovery.fast import epochs_per_commit
from everstream_lab.workloads.transactions import WORKLOADS, Workload

EPOCH_EVENTS = 1_000


def workload(contention: str) -> Workload:
    return WORKLOADS["grep-sum"](default_shape("grep-sum", keys=1_000, **CONTENTION[contention]))


def engine(contention: str, folder: Path) -> TransactionEngine:
    chosen = workload(contention)
    return TransactionEngine(
        chosen.tables,
        chosen.transactions,
        parallelism=2,
        recovery="fast",
        log=folder,
        execution="parallel",
        snapshot_every_epochs=10**6,
    )


@cache
def measured(contention: str) -> tuple[Dependencies, float]:
    """What the scheme measures in two epochs of this class."""
    with TemporaryDirectory() as folder:
        running = engine(contention, Path(folder))
        for seed in range(2):
            running.process_batch(workload(contention).events(EPOCH_EVENTS, seed))
            running.end_epoch()
            running.flush()
        running.close()
        scheme: Any = running.scheme
        return scheme.shape, scheme.logged_per_transaction


def epochs(contention: str, cost_s: float = 1e-6) -> int:
    stand_in: Any = SimpleNamespace(transaction_cost_s=cost_s, parallelism=2)
    return epochs_per_commit(stand_in, *measured(contention), EPOCH_EVENTS)


def test_commits_are_rarest_with_little_contention_and_in_between_with_skew() -> None:
    """Long epochs help both sides under LSFD; under LSMD they cost recovery; skew trades one side
    for the other."""
    found = {contention: epochs(contention) for contention in CONTENTION}
    assert found["LSFD"] > found["HSFD"] == found["HSMD"] > found["LSMD"] == 1


@pytest.mark.parametrize("contention", CONTENTION)
def test_a_commit_is_never_so_late_that_a_crash_loses_much_work(contention: str) -> None:
    assert epochs(contention, cost_s=1e-3) == 1


def test_commits_fall_on_the_end_of_an_epoch_and_are_as_far_apart_as_the_rule_says(
    tmp_path: Path,
) -> None:
    running = engine("LSFD", tmp_path)
    scheme: Any = running.scheme
    events, spans = workload("LSFD").events(12 * 100, seed=1), []
    commit, first = scheme.commit, [1]

    def noted(epoch: int) -> None:
        assert running.between_epochs
        spans.append((epoch - first[0] + 1, scheme.commit_every))
        first[0] = epoch + 1
        commit(epoch)

    scheme.commit = noted
    for number in range(12):
        running.process_batch(events[number * 100 : number * 100 + 100])
        running.transaction_cost_s = 2e-6
        running.end_epoch()
    running.close()
    assert all(span == wanted for span, wanted in spans[:-1])
    assert max(wanted for _, wanted in spans) == 4
