"""Real processes and SIGKILL in the middle of windows: the output equals plain Polars'."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

import everstream as es

from .conftest import KEYS, MASTER, RECORDS, Gated, Killer, Register, kill, pid_of
from .places import store_of

OFTEN = es.Coordinated(every="200ms")
JITTER = 100


def time_of(number: int) -> int:
    """Milliseconds, out of order by less than the jitter."""
    return number + number * 7919 % JITTER


def windowed(folder: Path) -> es.Pipeline:
    """numbers -> windows x2 -> out: sliding counts, and sessions, each with its own sink."""
    pids = folder / "pids"
    pids.mkdir()
    pipeline = es.Pipeline("windowed")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    front = numbers.process(Register(str(pids)), name="front")
    timed = front.event_time(time_of, unit="ms", lateness="100ms")
    keyed = timed.key_by(lambda n: n % KEYS)
    sliding = keyed.window(es.Sliding("2s", every="1s"))
    counts = sliding.aggregate(n=es.count(), total=es.sum("value"), name="count", shards=2)
    counts.side_output("late").sink(es.JsonLines(str(folder / "late")), name="late")
    middle = counts.process(Register(str(pids)), name="middle")
    middle.on_demand().sink(es.JsonLines(str(folder / "counts")), name="out", shards=1)
    gaps = keyed.window(es.Session("60ms")).aggregate(n=es.count(), name="sessions", shards=1)
    gaps.sink(es.JsonLines(str(folder / "sessions")), name="sessions-out")
    return pipeline


def shown(folder: Path) -> Counter[Any]:
    return Counter(
        tuple(json.loads(line).values())
        for path in folder.glob("part-*.jsonl")
        for line in path.read_text().splitlines()
    )


def events() -> pl.DataFrame:
    numbers = range(RECORDS)
    return pl.DataFrame(
        {"key": [n % KEYS for n in numbers], "t": map(time_of, numbers), "value": numbers}
    )


def sliding_counts() -> Counter[Any]:
    start = pl.col("t") - pl.col("t") % 1000
    copies = [events().with_columns(start=start - shift) for shift in (0, 1000)]
    counted = pl.concat(copies).group_by("key", "start").agg(pl.len(), pl.col("value").sum())
    rows = counted.select("key", "start", pl.col("start").alias("end") + 2000, "len", "value")
    return Counter(rows.rows())


def sessions() -> Counter[Any]:
    ordered = events().sort("key", "t")
    apart = (pl.col("t").diff().over("key") >= 60).fill_null(True)
    numbered = ordered.with_columns(session=apart.cast(pl.Int64).cum_sum())
    spans = numbered.group_by("key", "session").agg(
        start=pl.col("t").min(), end=pl.col("t").max() + 60, n=pl.len()
    )
    return Counter(spans.select("key", "start", "end", "n").rows())


def test_killing_workers_in_the_middle_of_windows_loses_and_doubles_nothing(tmp_path: Path) -> None:
    def kill_at(epoch: int) -> None:
        if epoch == 3:
            kill(pid_of(tmp_path, "middle"))

    def kill_the_source(failure: int) -> None:
        if failure == 1:
            kill(pid_of(tmp_path, "front"))

    result = windowed(tmp_path).run(
        checkpoint=OFTEN,
        store=store_of(tmp_path),
        master=MASTER,
        workers=6,
        max_restarts=10,
        listener=Killer(tmp_path, 2, at_epoch=kill_at, at_failure=kill_the_source),
    )
    assert len(result.recoveries) == 2
    assert shown(tmp_path / "counts") == sliding_counts()
    assert shown(tmp_path / "sessions") == sessions()
    assert shown(tmp_path / "late") == Counter()
