"""Real processes in which one source shard is silent: it is named, and with idle_after it does not matter."""

import time
from pathlib import Path
from typing import Any

import everstream as es
from everstream.connectors import END, Reader
from everstream.events import RunEvent, TimeHeldBack


class Silent(Reader):
    """Shard 0 gives the present again and again; shard 1 nothing, until it ends."""

    def __init__(self, shard: int, over: Path) -> None:
        self._shard, self._over = shard, over
        self._given = 0

    @property
    def offset(self) -> int:
        return self._given

    def seek(self, offset: int) -> None:
        self._given = offset

    def ready_in_s(self) -> float:
        return 0.02

    def read(self) -> Any:
        if self._over.exists():
            return END
        if self._shard or self._given % 2:
            self._given += 1
            return None
        self._given += 1
        return [{"at_ms": int(time.time() * 1000)}]


class Readings(es.Source[dict[str, int]]):
    def __init__(self, over: Path) -> None:
        self.over = over

    def open(self, shard: int, shards: int) -> Reader:
        return Silent(shard, self.over)


class Over:
    """Ends the input when something has happened."""

    def __init__(self, over: Path) -> None:
        self.over = over
        self.warnings: list[TimeHeldBack] = []

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, TimeHeldBack):
            self.warnings.append(event)
            self.over.touch()


def pipeline(over: Path, idle_after: str | None, seen: Path | None = None) -> es.Pipeline:
    pipeline = es.Pipeline("readings")
    source = pipeline.source(Readings(over), name="readings", shards=2)
    timed = source.event_time("at_ms", unit="ms", idle_after=idle_after)
    counts = timed.window(es.Tumbling("100ms")).aggregate(n=es.count())

    def note(row: dict[str, int]) -> dict[str, int]:
        if seen is not None:
            over.touch()
        return row

    counts.map(note).collect(name="out")
    return pipeline


def test_a_warning_names_the_shard_that_windows_wait_for(tmp_path: Path) -> None:
    over = tmp_path / "over"
    listener = Over(over)
    pipeline(over, None).run(
        engine="local", store=str(tmp_path / "store"), slow_after="300ms", listener=listener
    )
    assert {warning.by for warning in listener.warnings} == {"shard 1 of 'readings'"}


def test_windows_do_not_wait_for_a_shard_that_is_idle(tmp_path: Path) -> None:
    """The input ends when a window has fired, so the run would never end otherwise."""
    over = tmp_path / "over"
    run = pipeline(over, "200ms", seen=over).run(engine="local", store=str(tmp_path / "store"))
    assert run.to_polars("out")["n"].sum() > 0


TOTAL = 600


def numbers(start: int, stop: int) -> list[dict[str, int]]:
    return [{"at": n} for n in range(start, stop)]


class Distance(es.Operator):
    """How far the fast source is ahead of the slow one when its records come."""

    def process(self, record: dict[str, Any], ctx: es.Context) -> None:
        if record["fast"]:
            ctx.emit(record["at"] - ctx.state.get("slow", 0))
        else:
            ctx.state.put("slow", record["at"])


def raced(max_drift: str | None) -> es.Pipeline:
    pipeline = es.Pipeline("race")

    def side(name: str, source: Any) -> es.Stream:
        timed = pipeline.source(source, name=name).event_time(
            "at", unit="s", max_drift=max_drift, name=f"{name}-time"
        )
        return timed.map(lambda row: {**row, "fast": name == "fast"}, name=f"{name}-row")

    slow = side("slow", es.Paced(es.FromFunction(numbers, TOTAL, batch=5), 300))
    fast = side("fast", es.Paced(es.FromFunction(numbers, TOTAL, batch=5), 6_000))
    slow.union(fast).process(Distance(), shards=1, name="distance").collect(name="out")
    return pipeline


def test_a_source_that_is_ahead_waits_and_loses_nothing_when_it_is_killed(tmp_path: Path) -> None:
    free = raced(None).run(engine="local", store=str(tmp_path / "free"), workers=3).collected("out")
    result = raced("60s").run(
        engine="local",
        store=str(tmp_path / "aligned"),
        workers=3,
        kill=["fast:0@300"],
        checkpoint=es.Coordinated(every="50ms"),
    )
    aligned = result.collected("out")
    assert len(result.recoveries) == 1
    assert len(aligned) == len(free) == TOTAL
    assert sum(aligned) < sum(free) / 2, "without alignment the fast source is far ahead at once"
