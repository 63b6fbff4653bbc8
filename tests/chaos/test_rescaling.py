"""Shards are changed while processes die: hosts at named points of the change, the driver in its middle."""

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.state.control import Shards, record_settings
from everstream.state.signing import blobs_at
from tests.cli.commands import Command

KEYS, RECORDS = 23, 5_000
APP = f"""
import everstream as es

pipeline = es.Pipeline("counting")
numbers = pipeline.source(es.Paced(es.Range({RECORDS}), rate=700), name="numbers")
counted = numbers.key_by(lambda n: n % {KEYS}).fold(
    init=int, update=lambda count, _: count + 1, name="count", shards=2
)
counted.map(list).sink(es.JsonLines("out"), name="out")
"""
NEVER = "1h"
"""Then the only checkpoints are those of a change, and a kill at a point hits one of them."""


def counting() -> es.Pipeline:
    pipeline = es.Pipeline("counting")
    numbers = pipeline.source(es.Paced(es.Range(RECORDS), rate=400), name="numbers", shards=2)
    counted = numbers.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, _: count + 1, name="count", shards=2
    )
    counted.sink(es.Collect(), name="out")
    return pipeline


def expected() -> Counter[Any]:
    totals = Counter(n % KEYS for n in range(RECORDS))
    return Counter((key, i + 1) for key, total in totals.items() for i in range(total))


class Begun(es.Listener):
    def __init__(self) -> None:
        self.reading = threading.Event()

    def progress(self, snapshot: es.Snapshot) -> None:
        if snapshot.records_read > 300:
            self.reading.set()


@pytest.mark.parametrize(
    "point", ["before-snapshot", "in-snapshot", "after-prepare", "in-commit", "in-restore"]
)
def test_shards_are_changed_while_hosts_are_killed(point: str, tmp_path: Path) -> None:
    begun = Begun()
    run = counting().start(
        checkpoint=es.Coordinated(every=NEVER),
        store=tmp_path / "store",
        workers=2,
        kill=[f"count@{point}"],
        listener=begun,
    )
    assert begun.reading.wait(120)
    run.scale({"count": 3})
    run.scale({"count": 1})
    result = run.wait()
    assert Counter(result.collected("out")) == expected()
    assert [report.injected for report in result.recoveries] == [True]


@pytest.mark.parametrize(
    "checkpoint", [es.Coordinated(every=NEVER, mode="unaligned"), es.Induced()]
)
def test_only_some_go_back_or_frames_are_saved_and_shards_change_all_the_same(
    checkpoint: Any, tmp_path: Path
) -> None:
    begun = Begun()
    run = counting().start(
        checkpoint=checkpoint,
        store=tmp_path / "store",
        workers=2,
        kill=["count:1@in-restore"],
        listener=begun,
    )
    assert begun.reading.wait(120)
    run.scale({"count": 4})
    result = run.wait()
    assert Counter(result.collected("out")) == expected()


@pytest.mark.parametrize("point", ["after-snapshot", "after-prepare"])
def test_a_driver_that_is_killed_in_the_middle_of_a_change_goes_on(
    point: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    arguments = (
        "--every",
        NEVER,
        "--workers",
        "2",
        "--kill",
        f"driver@{point}",
        "--store",
        "store",
    )
    command = Command("run", "app.py", *arguments, cwd=tmp_path)
    command.wait_for("a store", (tmp_path / "store" / "manifests").exists)
    record_settings(blobs_at(str(tmp_path / "store"), None), {}, {"count": Shards(4, 2)})
    assert command.process.wait(timeout=240) == 0, command.output
    lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.open()]
    assert Counter(tuple(json.loads(line)) for line in lines) == expected()
    assert command.says("count 2 to 4") or command.says("4 shard(s) instead of 2"), command.output
