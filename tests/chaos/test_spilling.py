"""A real loop that sends back more than it takes: it waits on disk, and a SIGKILL costs nothing."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.events import EpochStable, MetricsSampled, RunEvent
from everstream.runtime import spilled, waiting
from tests.output import rows_in
from tests.sampling import sampled

from .conftest import KEYS, MASTER, RECORDS, Gated, Killer, kill, open_gate
from .places import store_of
from .shapes import SCHEMES, Starts, starts

CYCLIC = ["unaligned", "uncoordinated", "hmnr", "bcs"]
TIMES = 9
"""How often a record splits in two on its way round."""
EVERY = 5_000
"""Of so many numbers one goes round."""
MEMORY_BYTES = 2_000


class Split(Starts):
    """Counts the visits of each key, and sends two records round for one, so many times.

    Whichever process it comes to has next to no memory for what waits.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        spilled.MEMORY_BYTES = MEMORY_BYTES  # type: ignore[misc]
        waiting.UNCOUNTED = 0  # type: ignore[misc]

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        time.sleep(0.001)  # however fast the machine is, more goes round than is taken
        for number, left, text in batch:
            key = number % KEYS
            visits = ctx.state.get(key, 0) + 1
            ctx.state.put(key, visits)
            ctx.emit((key, visits), output="visits")
            if left:
                ctx.emit((2 * number, left - 1, text), output="round")
                ctx.emit((2 * number + 1, left - 1, text), output="round")


def flood(folder: Path) -> es.Pipeline:
    """front | split x3, which feed themselves and each other | end."""
    (folder / "pids").mkdir(exist_ok=True)
    pipeline = es.Pipeline("flood")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    some = numbers.filter(lambda n: n % EVERY == 0, name="some")
    begun = some.map(lambda n: (n // EVERY, TIMES, "x" * 50), name="begin")
    split = begun.key_by(lambda record: record[0] % KEYS).process(
        Split(folder / "pids"), name="split", shards=3
    )
    split.side_output("round").feedback(to=split)
    end = (
        split.side_output("visits")
        .on_demand()
        .process(Starts(folder / "pids"), name="end", shards=1)
    )
    end.sink(es.JsonLines(str(folder / "out")), name="out")
    return pipeline


def rows() -> Counter[Any]:
    """What it puts out, as a plain sequential program."""
    visited: Counter[int] = Counter()
    waits = [(n // EVERY, TIMES) for n in range(0, RECORDS, EVERY)]
    while waits:
        number, left = waits.pop()
        visited[number % KEYS] += 1
        if left:
            waits += [(2 * number, left - 1), (2 * number + 1, left - 1)]
    return Counter((key, i + 1) for key, total in visited.items() for i in range(total))


class KillerOfSpillers(Killer):
    """Kills a worker when a checkpoint has named what waited on its disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.killed = False
        self.spilled_bytes: dict[str, int] = {}

    def on_event(self, event: RunEvent) -> None:
        super().on_event(event)
        match event:
            case EpochStable(epoch=epoch, shards=shards):
                for part in shards:
                    operator, _, number = part.shard.rpartition(":")
                    if part.spilled and not self.killed and operator == "split":
                        self.killed = True
                        kill(starts(self.folder, f"split.{number}")[-1])
                if epoch > 200 and not self.killed:
                    open_gate(self.folder)  # nothing waited on disk: let it end, and the test fail
            case MetricsSampled(shards=meters):
                for shard, meter in meters.items():
                    self.spilled_bytes[shard] = meter["spilled_bytes"]


@pytest.mark.parametrize("name", sampled(CYCLIC, ["unaligned"]))
def test_a_killed_worker_whose_output_waits_on_disk_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for place, constant in ((spilled, "MEMORY_BYTES"), (waiting, "UNCOUNTED")):
        monkeypatch.setattr(place, constant, getattr(place, constant))  # and back, afterwards
    listener = KillerOfSpillers(tmp_path)
    result = flood(tmp_path).run(
        checkpoint=SCHEMES[name],
        store=store_of(tmp_path),
        master=MASTER,
        workers=5,
        max_restarts=20,
        listener=listener,
    )
    assert listener.killed and len(result.recoveries) == 1
    assert sum(listener.spilled_bytes.values()) > 10 * MEMORY_BYTES
    want, got = rows(), rows_in(tmp_path / "out")
    assert ((want - got).total(), (got - want).total()) == (0, 0)
