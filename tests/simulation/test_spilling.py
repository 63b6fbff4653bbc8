"""Simulated runs in which more goes round than memory is for: it waits on disk, and all ends exactly."""

import errno
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from everstream.connectors.generate.sources import Range
from everstream.core.orders import Outcome, Policy
from everstream.pipeline.keyed_state.spreading import Spread
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream.runtime import spilled, waiting
from everstream.runtime.channel_state import ChannelState
from everstream.runtime.outlets import DirectOutlet
from everstream.runtime.spilled import Spill, Spilled
from everstream.runtime.waiting import SpillingQueue
from everstream.simulation.faults import NO_FAULTS, STORM, Faults
from everstream.simulation.happenings import History
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape, shape_for
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World

CYCLIC = ["unaligned", "uncoordinated", "hmnr", "bcs"]
QUICK = 5
SEEDS_OF_MUTANTS = 10
LONG_CASES = 20
LONG = 50
KILLS = Faults(worker_kills=9)
"""So many that some strike while a checkpoint is the newest that names what was on disk."""


class Split(Operator):
    """Counts the visits of each key, and sends two records round for one, so many times."""

    spread: Spread = "key"

    def process(self, record: tuple[int, int], ctx: Context) -> None:
        number, left = record
        visits = ctx.state.get(ctx.key, 0) + 1
        ctx.state.put(ctx.key, visits)
        ctx.emit((ctx.key, visits), output="visits")
        if left:
            ctx.emit((2 * number, left - 1), output="round")
            ctx.emit((2 * number + 1, left - 1), output="round")


def flood(seed: int) -> Shape:
    """Shards that feed each other more than they take: what goes round piles up."""
    chance = random.Random(seed)
    n, keys, times = chance.randint(12, 20), chance.randint(6, 12), 4
    workers, shards = chance.randint(1, 3), 4

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=1), name="numbers")
        starts = numbers.map(lambda x: (x, times), name="start")
        split = starts.key_by(lambda r: r[0] % keys).process(Split(), name="split", shards=shards)
        split.side_output("round").feedback(to=split)
        split.side_output("visits").sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        totals: Counter[int] = Counter()
        numbers = list(range(n))
        for _ in range(times + 1):
            totals.update(number % keys for number in numbers)
            numbers = [half for number in numbers for half in (2 * number, 2 * number + 1)]
        return {"out": [(key, i + 1) for key, total in totals.items() for i in range(total)]}

    return Shape("flood", workers, build, expected)


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Next to nothing may wait in memory; how many segments were written, saved and fetched."""
    monkeypatch.setattr(spilled, "MEMORY_BYTES", 8)
    monkeypatch.setattr(waiting, "UNCOUNTED", 0)
    tally: Counter[str] = Counter()
    write_end, write, save = SpillingQueue._write_end, ChannelState._write, Spilled.save
    fetch = Spill.fetch

    def at_outputs(self: SpillingQueue) -> None:
        tally["at outputs"] += 1
        write_end(self)

    def at_inputs(self: ChannelState, spill: Spill) -> None:
        tally["at inputs"] += 1
        write(self, spill)

    def kept(self: Spilled, put: Any, name: str) -> int:
        tally["saved"] += self.ref is None
        return save(self, put, name)

    def fetched(self: Spill, segment: Spilled) -> Spilled:
        tally["fetched"] += 1
        return fetch(self, segment)

    monkeypatch.setattr(SpillingQueue, "_write_end", at_outputs)
    monkeypatch.setattr(ChannelState, "_write", at_inputs)
    monkeypatch.setattr(Spilled, "save", kept)
    monkeypatch.setattr(Spill, "fetch", fetched)
    return tally


def check(protocol: str, seeds: range, faults: Faults, shape: Any = flood) -> list[History]:
    histories = []
    for seed in seeds:
        history = World(seed, shape(seed), faults, scheme_for(protocol, seed)).run()
        assert history.right, f"{protocol}, seed {seed}: {history.violations}"
        histories.append(history)
    return histories


@pytest.mark.parametrize("protocol", CYCLIC)
def test_whatever_waits_on_disk_the_output_is_exactly_right_after_any_faults(
    protocol: str, tally: Counter[str]
) -> None:
    histories = check(protocol, range(QUICK), KILLS)
    assert sum(history.recoveries for history in histories) > QUICK, "they do fail"
    assert tally["at outputs"] > 10 * QUICK, "it does spill"
    assert tally["saved"] > 5 * QUICK and tally["fetched"] > QUICK // 3
    assert protocol != "unaligned" or tally["at inputs"] > QUICK


@pytest.mark.long
@pytest.mark.parametrize("case", range(1, LONG_CASES + 1))
@pytest.mark.parametrize("protocol", CYCLIC)
def test_a_thousand_seeds_with_what_waits_on_disk_end_exactly(
    protocol: str, case: int, tally: Counter[str]
) -> None:
    check(protocol, range(case * LONG, (case + 1) * LONG), STORM if case % 2 else Faults())
    assert tally["at outputs"] > LONG


@pytest.mark.parametrize("protocol", CYCLIC)
def test_the_loops_of_every_day_end_exactly_with_next_to_no_memory(
    protocol: str, tally: Counter[str]
) -> None:
    check(protocol, range(12), Faults(), lambda seed: shape_for(seed, cycles=True))
    assert tally["at outputs"] + tally["at inputs"] > 0


def test_frames_of_an_unaligned_checkpoint_wait_on_disk_without_a_cycle_too(
    tally: Counter[str],
) -> None:
    check("unaligned", range(8), Faults(), shape_for)
    assert tally["at inputs"] > 15 and tally["fetched"] > 3 and not tally["at outputs"]


def test_runs_without_faults_are_the_same_whether_they_spill_or_not(
    tally: Counter[str],
) -> None:
    for seed in (3, 5, 7):
        spilling = World(seed, flood(seed), NO_FAULTS, scheme_for("hmnr", seed))
        assert spilling.run().right
        written = tally["at outputs"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spilled, "MEMORY_BYTES", 32 << 20)
            plain = World(seed, flood(seed), NO_FAULTS, scheme_for("hmnr", seed))
            assert plain.run().right and plain.history.steps == spilling.history.steps
        assert tally["at outputs"] == written > 0


class FullDisk:
    """A local disk without room for a while: so many files cannot be made."""

    def __init__(self, files: float) -> None:
        self.files = files
        self.make = tempfile.mkstemp

    def __call__(self, *args: Any, **more: Any) -> tuple[int, str]:
        if self.files > 0:
            self.files -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.make(*args, **more)


@pytest.mark.parametrize("protocol", CYCLIC)
def test_a_local_disk_that_is_full_for_a_while_costs_a_recovery_and_no_record(
    protocol: str, tally: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (3, 5, 7):
        disk = FullDisk(2)
        monkeypatch.setattr(tempfile, "mkstemp", disk)
        [history] = check(protocol, range(seed, seed + 1), NO_FAULTS)
        assert disk.files == 0 and history.recoveries >= 1


@pytest.mark.parametrize("protocol", CYCLIC)
def test_a_local_disk_that_stays_full_ends_the_run_with_words_that_say_what_to_do(
    protocol: str, tally: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(float("inf"))
    monkeypatch.setattr(tempfile, "mkstemp", disk)
    policy = Policy(every_s=0.05, max_restarts=2)
    world = World(5, flood(5), NO_FAULTS, scheme_for(protocol, 5), policy)
    history = world.run()
    assert history.outcome is Outcome.FAILED and not world.safety.violations
    assert any("larger disk" in note for note in history.notes)
    disk.files = 0
    world.resume()
    assert world.run().outcome is Outcome.FINISHED, "there is room again"
    assert (history.lost, history.duplicated) == (0, 0)


Patch = pytest.MonkeyPatch


def segments_are_not_saved(patch: Patch) -> None:
    def careless(self: SpillingQueue) -> list[Any]:
        return [waiting.to_saved(item) for item in (*self._front, *self._end)]

    patch.setattr(SpillingQueue, "saved", careless)


def checkpoints_do_not_name_segments(patch: Patch) -> None:
    """So the store may remove them."""
    patch.setattr(ChannelState, "saved_segments", ())


def segments_of_the_inputs_are_forgotten_in_a_restore(patch: Patch) -> None:
    patch.setattr(ChannelState, "fetch", lambda self, spill: setattr(self, "segments", ()))


def what_waits_is_not_forgotten_when_a_shard_goes_back(patch: Patch) -> None:
    queue = DirectOutlet._queue

    def careless(self: DirectOutlet, channel: Any, queues: int) -> Any:
        kept = getattr(self, "_waiting", {}).get(channel)
        return queue(self, channel, queues) if kept is None else kept

    patch.setattr(DirectOutlet, "_queue", careless)


@pytest.mark.parametrize(
    "mutant",
    [
        segments_are_not_saved,
        checkpoints_do_not_name_segments,
        segments_of_the_inputs_are_forgotten_in_a_restore,
        what_waits_is_not_forgotten_when_a_shard_goes_back,
    ],
    ids=lambda mutant: mutant.__name__.replace("_", " "),
)
def test_a_mistake_is_caught_by_one_of_a_few_seeds(
    mutant: Callable[[Patch], None], tally: Counter[str], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    faults = replace(KILLS, rotten_objects=0)
    assert any(
        not World(seed, flood(seed), faults, scheme_for(protocol, seed)).run().right
        for seed in range(SEEDS_OF_MUTANTS)
        for protocol in ("unaligned", "hmnr")
    )
