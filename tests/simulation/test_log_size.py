"""How much message logs write and keep, against what was sent: also when shards change.

Every payload that is sent is counted where it enters a log. What a log writes is counted where its
segments go to the store; what it keeps, each time it is told how far the recovery line has come.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import pytest

from everstream.connectors.generate.sources import FromFunction
from everstream.core.frames import Frame
from everstream.core.registry import PROTOCOLS
from everstream.events import PlanChanged
from everstream.pipeline.stream import Pipeline
from everstream.runtime.message_log import DurableLog, Segment
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.storm import policy_for, scheme_for
from everstream.simulation.world import World
from everstream.state.objects import Data, ObjectRef, pieces_of

LOGGED = [name for name in PROTOCOLS if scheme_for(name, 3).log == "durable"]
ROWS, BATCH, KEYS = 3_000, 20, 7
TEXT = "what a record has to say " * 8


def rows(start: int, stop: int) -> pl.DataFrame:
    numbers = range(start, stop)
    return pl.DataFrame({"n": numbers, "text": [f"{TEXT}{n}" for n in numbers]})


def counting() -> Shape:
    def build(pipeline: Pipeline, world: int) -> None:
        source = pipeline.source(FromFunction(rows, ROWS, BATCH), name="rows", shards=2)
        counted = source.key_by(lambda row: row["n"] % KEYS).fold(
            init=int, update=lambda count, _: count + 1, name="count", shards=2
        )
        counted.sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        totals = Counter(n % KEYS for n in range(ROWS))
        return {"out": [(key, i + 1) for key, total in totals.items() for i in range(total)]}

    return Shape("counting", 3, build, expected)


@dataclass
class Measured:
    """What logs have come to in a run."""

    sent_bytes: int = 0
    written_bytes: int = 0
    kept: list[tuple[int, int]] = field(default_factory=list)
    """What a log kept, and how much of that was sent after the recovery line, in bytes."""
    _sizes: dict[int, dict[tuple[str, int], int]] = field(default_factory=lambda: defaultdict(dict))

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        append, prune, save = DurableLog.append, DurableLog.prune, Segment.save

        def appended(log: DurableLog, frame: Frame) -> None:
            append(log, frame)
            size = len(frame.payload.encoded) if frame.payload is not None else 0
            self.sent_bytes += size
            self._sizes[id(log)][str(frame.channel), frame.sequence] = size

        def pruned(log: DurableLog, received: Mapping[str, int]) -> None:
            prune(log, received)
            since = sum(
                size
                for (channel, sequence), size in self._sizes[id(log)].items()
                if sequence > received.get(channel, 0)
            )
            self.kept.append((log.size_bytes, since))

        def saved(segment: Segment, put: Callable[[str, Data], ObjectRef]) -> None:
            def counted(name: str, data: Data) -> ObjectRef:
                self.written_bytes += sum(map(len, pieces_of(data)))
                return put(name, data)

            save(segment, counted)

        patch.setattr(DurableLog, "append", appended)
        patch.setattr(DurableLog, "prune", pruned)
        patch.setattr(Segment, "save", saved)


@pytest.mark.parametrize("changes", [0, 3])
@pytest.mark.parametrize("protocol", LOGGED)
def test_logs_stay_within_twice_what_was_sent_since_the_recovery_line(
    protocol: str, changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured()
    measured.watch(monkeypatch)
    changed = 0
    for seed in range(3):
        faults = replace(NO_FAULTS, rescales=changes)
        world = World(seed, counting(), faults, scheme_for(protocol, seed), policy_for(protocol))
        history = world.run()
        assert history.right, history.violations
        changed += sum(isinstance(event, PlanChanged) for event in history.events)
    assert (changed > 0) == (changes > 0)
    assert measured.sent_bytes > 3 * ROWS * len(TEXT)
    # Each payload is written once, and the heads of frames besides: nothing is written again.
    assert measured.written_bytes <= 1.2 * measured.sent_bytes
    kept, needed = (sum(sizes) for sizes in zip(*measured.kept, strict=True))
    assert 0 < needed <= kept <= 2 * needed
