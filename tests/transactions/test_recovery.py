"""After a crash anywhere, every scheme comes back to the interpreter's state, outcomes once."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import everstream.transactions as es
from everstream.transactions.store import LocalStore, ObjectStore, open_store
from everstream_lab.recovery.fast import FastOptions
from tests.transactions import bank

LOGGING = [scheme for scheme in bank.SCHEMES if scheme not in ("none", "checkpoint")]
# Replay that chooses the cheapest way would hide the chains behind in-order redo.
CHAINS = FastOptions(adaptive_replay=False)
VARIANTS: list[tuple[str, FastOptions | None]] = [
    *[(scheme, None) for scheme in bank.SCHEMES],
    ("fast", CHAINS),
    ("fast", FastOptions(adaptive_replay=False, abort_pushdown=False)),
    ("fast", FastOptions(adaptive_replay=False, task_assignment=False)),
    ("fast", FastOptions(adaptive_replay=False, restructure=False)),
    ("fast", FastOptions(adaptive_replay=False, selective=True, partitions=3)),
]


def open_engine(
    scheme: str, folder: Any, threads: int, options: Any = None, commit: str = "every-epoch"
) -> Any:
    return bank.engine(
        scheme,
        log=folder,
        parallelism=threads,
        execution="parallel" if threads > 1 else "serial",
        snapshot_every_epochs=4,
        recovery_options=options,
        commit=commit,
    )


def crash_and_recover(
    scheme: str,
    options: Any,
    folder: Path,
    stream: pl.DataFrame,
    threads: int,
    crash_event: int,
    tear: float | None = None,
) -> None:
    """Run to the crash, keep only durable epochs' outcomes, recover, finish, compare."""
    epoch_events = 20
    run = open_engine(scheme, folder, threads, options)
    before = bank.feed(run, stream, epoch_events, stop=crash_event)
    run.flush()
    if tear is not None:
        tear_newest_log(folder, tear)
    again = open_engine(scheme, folder, threads, options)
    report = again.recover(bank.source(stream))
    assert report.next_event == again.next_event <= crash_event
    assert again.next_event % epoch_events == 0
    assert bank.content(again) == bank.truth(stream[: again.next_event])[0]
    kept = before.filter(pl.col("event") < again.next_event) if len(before) else before
    after = bank.feed(again, stream, epoch_events)
    tables, outcomes = bank.truth(stream)
    assert bank.content(again) == tables
    # Where nothing was lost nothing is left to do, and an empty result has no columns.
    bank.assert_outcomes(pl.concat([part for part in (kept, after) if len(part)]), outcomes)
    again.flush()
    run.close()
    again.close()


def tear_newest_log(folder: Path, share: float) -> None:
    """Cut the newest log file of every stream where a crash inside a write would."""
    logs = sorted(folder.glob("log-*"))
    if not logs:
        return
    newest = logs[-1].name.split("-")[1]
    for log in logs:
        if log.name.split("-")[1] == newest:
            data = log.read_bytes()
            log.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("scheme", "options"), VARIANTS)
def test_every_scheme_recovers_from_every_crash_point(
    scheme: str, options: Any, threads: int, tmp_path: Path
) -> None:
    stream = bank.random_events(230, seed=threads)
    for crash_event in (7, 95, 130, 229):
        crash_and_recover(
            scheme, options, tmp_path / str(crash_event), stream, threads, crash_event
        )


@pytest.mark.parametrize(("scheme", "options"), VARIANTS)
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    crash_event=st.integers(0, 200),
    tear=st.floats(0, 1),
    keys=st.integers(2, 6),
)
@example(seed=0, crash_event=200, tear=1.0, keys=2)
def test_a_crash_inside_a_log_write_loses_only_what_was_not_durable(
    scheme: str, options: Any, tmp_path: Path, seed: int, crash_event: int, tear: float, keys: int
) -> None:
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    stream = bank.random_events(200, seed, keys)
    crash_and_recover(scheme, options, folder, stream, 2, crash_event, tear)


@pytest.mark.parametrize("scheme", LOGGING)
def test_every_byte_position_of_the_last_write_is_a_safe_crash_point(
    scheme: str, tmp_path: Path
) -> None:
    stream = bank.random_events(60, seed=5)
    run = open_engine(scheme, tmp_path, 2)
    sizes = []
    for _ in range(3):
        bank.feed(run, stream, 20, stop=run.next_event + 20)
        run.flush()
        sizes.append({log: log.stat().st_size for log in tmp_path.glob("log-*")})
    run.close()
    whole = {log: log.read_bytes() for log in tmp_path.glob("log-*")}
    states = [bank.truth(stream[: 20 * epochs])[0] for epochs in range(4)]
    log = max(whole)
    start = sizes[1].get(log, 0)
    for cut in range(start, sizes[2][log], max(1, (sizes[2][log] - start) // 25)):
        log.write_bytes(whole[log][:cut])
        again = open_engine(scheme, tmp_path, 2)
        again.recover(bank.source(stream))
        assert again.epoch < 3
        assert bank.content(again) == states[again.epoch]
        again.close()


@pytest.mark.parametrize("scheme", LOGGING)
def test_a_flipped_bit_ends_the_log_there(scheme: str, tmp_path: Path) -> None:
    stream = bank.random_events(60, seed=6)
    run = open_engine(scheme, tmp_path, 2)
    bank.feed(run, stream, 20)
    run.close()
    rng = np.random.default_rng(1)
    log = sorted(tmp_path.glob("log-*"))[0]
    whole = log.read_bytes()
    for _ in range(20):
        damaged = bytearray(whole)
        damaged[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        log.write_bytes(bytes(damaged))
        again = open_engine(scheme, tmp_path, 2)
        again.recover(bank.source(stream))
        assert again.epoch < 3
        assert bank.content(again) == bank.truth(stream[: again.next_event])[0]
        again.close()


@pytest.mark.parametrize("scheme", [*LOGGING, "checkpoint"])
def test_a_damaged_snapshot_falls_back_to_the_one_before(scheme: str, tmp_path: Path) -> None:
    stream = bank.random_events(300, seed=7)
    run = open_engine(scheme, tmp_path, 2)
    bank.feed(run, stream, 20, stop=290)
    run.close()
    newest = max(tmp_path.glob("snapshot-*"))
    newest.write_bytes(newest.read_bytes()[:-3])
    again = open_engine(scheme, tmp_path, 2)
    report = again.recover(bank.source(stream))
    assert report.damaged == [newest.name]
    assert report.next_event == (160 if scheme == "checkpoint" else 280)
    assert bank.content(again) == bank.truth(stream[: again.next_event])[0]


@pytest.mark.parametrize("scheme", bank.SCHEMES)
def test_a_second_crash_right_after_recovery_recovers_again(scheme: str, tmp_path: Path) -> None:
    stream = bank.random_events(400, seed=8)
    for crash_event in (110, 125, 150, 290, 400):
        run = open_engine(scheme, tmp_path, 2)
        run.recover(bank.source(stream))
        assert bank.content(run) == bank.truth(stream[: run.next_event])[0]
        bank.feed(run, stream, 20, stop=crash_event)
        run.flush()
    assert bank.content(run) == bank.truth(stream)[0]


@pytest.mark.parametrize("scheme", LOGGING)
def test_a_log_can_be_recovered_with_another_number_of_threads(scheme: str, tmp_path: Path) -> None:
    stream = bank.random_events(200, seed=9, keys=20)
    run = open_engine(scheme, tmp_path, 3)
    bank.feed(run, stream, 20, stop=150)
    run.flush()
    for threads in (1, 2, 5):
        again = open_engine(scheme, tmp_path, threads)
        again.recover(bank.source(stream))
        assert bank.content(again) == bank.truth(stream[: again.next_event])[0]
        assert again.next_event > 100
        again.close()


@pytest.mark.parametrize("scheme", LOGGING)
def test_logs_live_on_any_fsspec_filesystem(scheme: str) -> None:
    store = open_store(f"memory://ledger-{scheme}")
    assert isinstance(store, ObjectStore)
    stream = bank.random_events(200, seed=10)
    run = bank.engine(scheme, log=store, snapshot_every_epochs=3)
    bank.feed(run, stream, 20, stop=190)
    run.flush()
    again = bank.engine(scheme, log=f"memory://ledger-{scheme}")
    again.recover(bank.source(stream))
    assert again.next_event == 180
    assert bank.content(again) == bank.truth(stream[:180])[0]


def test_restoring_a_snapshot_makes_it_the_beginning_of_the_log(tmp_path: Path) -> None:
    stream = bank.random_events(200, seed=11)
    run = open_engine("delta", tmp_path, 1)
    bank.feed(run, stream, 20, stop=60)
    image = run.snapshot()
    bank.feed(run, stream, 20)
    run.restore(image)
    run.flush()
    again = open_engine("delta", tmp_path, 1)
    again.recover()
    assert again.next_event == 60
    assert bank.content(again) == bank.truth(stream[:60])[0]


@pytest.mark.parametrize(("scheme", "options"), VARIANTS)
def test_keys_that_keep_appearing_after_the_snapshot_are_recovered(
    scheme: str, options: Any, tmp_path: Path
) -> None:
    stream = bank.random_events(3_000, seed=14, keys=2_500)
    run = open_engine(scheme, tmp_path, 2, options)
    bank.feed(run, stream, 400, stop=2_900)
    run.flush()
    again = open_engine(scheme, tmp_path, 2, options)
    again.recover(bank.source(stream))
    bank.feed(again, stream, 400)
    assert bank.content(again) == bank.truth(stream)[0]


class FullDisk(LocalStore):
    """A disk that is full for one write."""

    fails_at = 2

    def append(self, name: str, data: bytes) -> None:
        self.fails_at -= 1
        if self.fails_at == 0:
            super().append(name, data[: len(data) // 2])
            raise OSError("no space left on device")
        super().append(name, data)


@pytest.mark.parametrize("scheme", LOGGING)
def test_a_failed_write_is_reported_and_nothing_after_it_counts(
    scheme: str, tmp_path: Path
) -> None:
    stream = bank.random_events(200, seed=12)
    run = bank.engine(scheme, log=FullDisk(tmp_path), commit="every-epoch")
    with pytest.raises((OSError, es.LogError)):
        bank.feed(run, stream, 20)
        run.flush()
    durable = run.durable_epoch
    assert durable in (1, 4)
    run.recover(bank.source(stream))
    assert run.epoch == durable
    assert bank.content(run) == bank.truth(stream[: run.next_event])[0]


def test_recovering_a_running_engine_starts_from_the_log_not_from_what_it_held(
    tmp_path: Path,
) -> None:
    stream = bank.random_events(100, seed=13)
    for scheme in bank.SCHEMES:
        run = bank.engine(scheme, log=tmp_path / scheme)
        bank.feed(run, stream, 20, stop=50)
        run.recover(bank.source(stream))
        assert bank.content(run) == bank.truth(stream[: run.next_event])[0]
        bank.feed(run, stream, 20)
        assert bank.content(run) == bank.truth(stream)[0]


def test_a_snapshot_inside_an_epoch_is_refused(tmp_path: Path) -> None:
    run = bank.engine("delta", log=tmp_path)
    run.process_batch(bank.random_events(5, seed=1))
    with pytest.raises(es.LogError, match="end_epoch"):
        run.save_snapshot()


@pytest.mark.parametrize("scheme", LOGGING)
def test_epochs_that_share_a_commit_are_recovered_together_or_not_at_all(
    scheme: str, tmp_path: Path
) -> None:
    stream = bank.random_events(2_010, seed=15, keys=40)
    run = open_engine(scheme, tmp_path, 2, commit="adaptive")
    bank.feed(run, stream, 10, stop=1_000)
    run.flush()
    assert run.durable_epoch == run.epoch == 100
    bank.feed(run, stream, 10, stop=1_905)
    run.flush()
    again = open_engine(scheme, tmp_path, 2, commit="adaptive")
    again.recover(bank.source(stream))
    assert again.epoch == run.durable_epoch >= 100
    assert again.next_event == 10 * again.epoch
    assert bank.content(again) == bank.truth(stream[: again.next_event])[0]
    bank.feed(again, stream, 10)
    assert bank.content(again) == bank.truth(stream)[0]
