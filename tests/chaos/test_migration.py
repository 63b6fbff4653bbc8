"""Processes die while values are migrated: before, in and after a checkpoint, and while it is restored."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.inspection import open_store, read_state
from everstream.state.migrating import Outdated
from everstream.state.snapshot import ShardState
from tests.gated_numbers import Gated as GatedNumbers
from tests.sampling import sampled

from .conftest import MASTER, RECORDS, Gated, Killer, shown
from .places import in_a_folder, store_of

KEYS = 20_000
"""Each is seen three times, so most wait for long until they are migrated."""
STORIES = {
    "snapshots": ["count:0@before-snapshot#1", "count:1@in-snapshot#2", "count:0@after-snapshot#3"],
    "restores": ["count:0@in-restore", "count:1@in-snapshot#2", "count:1@in-restore#2"],
}
PROTOCOLS: dict[str, Any] = {
    "aligned": es.Coordinated(every="200ms"),
    "unaligned": es.Coordinated(every="200ms", mode="unaligned"),
    "uncoordinated": es.Uncoordinated(every="200ms"),
}
CASES = [f"{protocol} {story}" for protocol in PROTOCOLS for story in STORIES]


class Count(es.Operator):
    seen = es.Keyed(init=int)

    def process(self, record: int, ctx: es.Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit((ctx.key, self.seen[ctx.key]))


class Count2(es.Operator):
    seen = es.Keyed[Any](
        init=lambda: {"n": 0}, version=2, migrate=lambda had, version: {"n": had, "was": version}
    )

    def process(self, record: int, ctx: es.Context) -> None:
        value = self.seen[ctx.key]
        value["n"] += 1
        ctx.emit((ctx.key, value["n"]))


Count2.__name__ = "Count"


def keeping(folder: Path, operator: es.Operator, source: es.Source[int]) -> es.Pipeline:
    pipeline = es.Pipeline("keeping")
    numbers = pipeline.source(source, name="numbers")
    spread = numbers.on_demand().map(lambda n: n * 7, name="spread")
    counts = spread.key_by(lambda n: n % KEYS).process(operator, name="count", shards=2)
    counts.on_demand().sink(es.JsonLines(str(folder / "out")), name="out", shards=1)
    return pipeline


def expected() -> Counter[Any]:
    totals = Counter(n * 7 % KEYS for n in range(RECORDS))
    return Counter((key, n + 1) for key, total in totals.items() for n in range(total))


def run(
    folder: Path,
    operator: es.Operator,
    protocol: str,
    source: es.Source[int] | None = None,
    **options: Any,
) -> Any:
    return keeping(folder, operator, source or Gated(folder / "gate")).run(
        checkpoint=PROTOCOLS[protocol],
        store=store_of(folder),
        master=MASTER,
        workers=5,
        max_restarts=10,
        **options,
    )


def half(snapshot: es.RunStatus) -> bool:
    return snapshot.records_read >= RECORDS // 2


@pytest.mark.parametrize("case", sampled(CASES, ["aligned snapshots"]))
def test_values_are_migrated_exactly_whoever_dies(case: str, tmp_path: Path) -> None:
    protocol, story = case.split()
    assert run(tmp_path, Count(), protocol, until=half).outcome is Outcome.STOPPED
    kills = STORIES[story]
    listener = Killer(tmp_path, len(kills))
    result = run(tmp_path, Count2(), protocol, kill=kills, listener=listener)
    assert [report.injected for report in result.recoveries] == [True] * len(kills)
    assert "migrated from version 1 to 2" in " ".join(result.notes)
    assert shown(tmp_path) == expected()


@in_a_folder
def test_a_checkpoint_holds_what_was_touched_as_new_and_the_rest_as_old(tmp_path: Path) -> None:
    source = GatedNumbers(tmp_path / "reached", RECORDS, batch=250)
    first = run(tmp_path, Count(), "aligned", source, until=half)
    last = first.checkpoints[-1].epoch
    before = read_state(tmp_path / "store", "count")
    source.gate.write_text(str(RECORDS // 2 + KEYS // 5))
    kept = run(tmp_path, Count2(), "aligned", source, until=lambda seen: seen.epoch > last)
    assert kept.outcome is Outcome.STOPPED
    store = open_store(tmp_path / "store")
    newest = store.manifests()[0]
    kinds: Counter[bool] = Counter()
    for record in EpochManifest.from_json(newest.body).records.values():
        if record.shard.operator == "count":
            state = ShardState()
            state.restore([store.get(ref) for ref in record.objects], record.objects)
            pairs = state.pairs()["count", "seen"]
            kinds.update(isinstance(value, Outdated) for _, value in pairs)
    assert kinds[True] and kinds.total() >= before.height
    source.gate.write_text(str(RECORDS))
    assert run(tmp_path, Count2(), "aligned", source).outcome is Outcome.FINISHED
    assert shown(tmp_path) == expected()
