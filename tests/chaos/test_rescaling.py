"""Shards are changed while processes die: workers at named points of the change, the driver in its middle."""

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
from tests.processes import PATIENCE_S
from tests.sampling import sampled

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
    numbers = pipeline.source(es.Paced(es.Range(RECORDS), rate=100), name="numbers", shards=2)
    counted = numbers.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, _: count + 1, name="count", shards=2
    )
    counted.sink(es.Collect(), name="out")
    return pipeline


def expected() -> Counter[Any]:
    totals = Counter(n % KEYS for n in range(RECORDS))
    return Counter((key, i + 1) for key, total in totals.items() for i in range(total))


def give_the_rest_at_once(run: es.RunHandle) -> None:
    """The source is slow, so that shards change in its midst on any machine; now it need not be."""
    run.tune(operator="numbers", frequency=1e6)


class Begun(es.Listener):
    def __init__(self) -> None:
        self.reading = threading.Event()

    def on_event(self, event: es.RunEvent) -> None:
        if isinstance(event, es.events.Progressed) and event.status.records_read > 50:
            self.reading.set()


WORKER_POINTS = ["before-snapshot", "in-snapshot", "after-prepare", "in-commit", "in-restore"]


@pytest.mark.parametrize("point", sampled(WORKER_POINTS, ["in-snapshot", "in-restore"]))
def test_shards_are_changed_while_workers_are_killed(point: str, tmp_path: Path) -> None:
    begun = Begun()
    run = counting().start(
        checkpoint=es.Coordinated(every=NEVER),
        store=tmp_path / "store",
        workers=2,
        kill=[f"count@{point}"],
        listener=begun,
    )
    assert begun.reading.wait(PATIENCE_S)
    run.scale({"count": 3})
    run.scale({"count": 1})
    give_the_rest_at_once(run)
    result = run.wait()
    assert Counter(result.collected("out")) == expected()
    assert [report.injected for report in result.recoveries] == [True]


@pytest.mark.parametrize(
    "checkpoint", [es.Coordinated(every=NEVER, mode="unaligned"), es.CommunicationInduced()]
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
    assert begun.reading.wait(PATIENCE_S)
    run.scale({"count": 4})
    give_the_rest_at_once(run)
    result = run.wait()
    assert Counter(result.collected("out")) == expected()


@pytest.mark.parametrize("point", sampled(["after-snapshot", "after-prepare"], ["after-prepare"]))
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
    assert command.end() == 0, command.output
    lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.open()]
    assert Counter(tuple(json.loads(line)) for line in lines) == expected()
    assert command.says("count 2 to 4") or command.says("4 shard(s) instead of 2"), command.output
