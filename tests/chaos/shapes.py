"""A fork and a pipeline that feeds itself, for every protocol; what they put out, done plainly."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import everstream as es
from everstream.pipeline.checkpointing import Checkpointing

from .conftest import KEYS, RECORDS, Gated

EVERY = "200ms"
SCHEMES: dict[str, Checkpointing] = {
    "unaligned": es.Coordinated(every=EVERY, mode="unaligned"),
    "at-least-once": es.Coordinated(every=EVERY, mode="at-least-once"),
    "uncoordinated": es.Uncoordinated(every=EVERY, jitter=0.3),
    "hmnr": es.CommunicationInduced(every=EVERY, rule="hmnr", jitter=0.3),
    "bcs": es.CommunicationInduced(every=EVERY, rule="bcs", jitter=0.3),
}


class Starts(es.Operator):
    """Passes records on, and writes down each process in which this shard has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def on_start(self, ctx: es.Context) -> None:
        with (Path(self.folder) / f"{ctx.operator}.{ctx.shard}").open("a") as file:
            file.write(f"{os.getpid()}\n")

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        ctx.emit_batch(batch)


class Visits(Starts):
    """Counts the visits of each key; a third of the records come by once more."""

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        for number, left in batch:
            key = number % KEYS
            visits = ctx.state.get(key, 0) + 1
            ctx.state.put(key, visits)
            ctx.emit((key, visits), output="visits")
            if left:
                ctx.emit((number + 1, left - 1), output="round")


def starts(folder: Path, shard: str) -> list[int]:
    """The processes in which a shard has started, the first one first."""
    return [int(line) for line in (folder / "pids" / shard).read_text().split()]


def _counting(stream: es.Stream, folder: Path, side: str) -> None:
    counts = stream.on_demand().process(Starts(folder / "pids"), name=side)
    counted = counts.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, n: count + 1, name=f"{side}-count"
    )
    counted.sink(es.JsonLines(str(folder / side)), name=f"{side}-out")


def fork(folder: Path) -> es.Pipeline:
    """front | left | right: three workers, and the branches know nothing of each other."""
    (folder / "pids").mkdir(exist_ok=True)
    pipeline = es.Pipeline("fork")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    front = numbers.process(Starts(folder / "pids"), name="front")
    for side in ("left", "right"):
        _counting(front, folder, side)
    return pipeline


def loop(folder: Path) -> es.Pipeline:
    """front | visits x2, which feed themselves and each other | end."""
    (folder / "pids").mkdir(exist_ok=True)
    pipeline = es.Pipeline("loop")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    front = numbers.process(Starts(folder / "pids"), name="front")
    pairs = front.map(lambda n: (n, 1 if n % 3 == 0 else 0), name="pairs")
    visits = pairs.key_by(lambda pair: pair[0] % KEYS).process(
        Visits(folder / "pids"), name="visits", shards=2
    )
    visits.side_output("round").feedback(to=visits)
    end = (
        visits.side_output("visits")
        .on_demand()
        .process(Starts(folder / "pids"), name="end", shards=1)
    )
    end.sink(es.JsonLines(str(folder / "out")), name="out")
    return pipeline


def _rows(visited: Counter[int]) -> Counter[Any]:
    return Counter((key, i + 1) for key, total in visited.items() for i in range(total))


def fork_rows() -> Counter[Any]:
    """What each branch puts out, as a plain sequential program."""
    return _rows(Counter(n % KEYS for n in range(RECORDS)))


def loop_rows() -> Counter[Any]:
    again = Counter((n + 1) % KEYS for n in range(0, RECORDS, 3))
    return _rows(Counter(n % KEYS for n in range(RECORDS)) + again)
