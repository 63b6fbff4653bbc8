"""Records wait for others at a source, and in front of windows, and nothing but time depends on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

import everstream as es
from everstream.core.frames import FrameKind
from everstream.core.plan import make_plan
from everstream.core.scheme import Scheme, scheme_of
from everstream.errors import InternalError
from everstream.pipeline.batch import rows_together
from everstream.pipeline.event_time.lateness import RecordWatermarks
from everstream.pipeline.source import END, EndOfStream, Reader
from everstream.pipeline.times import TimeOf
from everstream.runtime.gathering import ENOUGH, MOST_LATENCIES, Gathered
from everstream.simulation.outside import OutsideSink
from tests.pipeline.sim import simulate
from tests.runtime.workbench import WORLD, Bench

LATENCY_S = 0.005


class Clocked(Bench):
    """A shard whose clocks stand at `now_s`."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.now_s = 0.0
        super().__init__(*arguments, **more)
        self.engine.clock_s = self.engine.wall_s = lambda: self.now_s  # type: ignore[method-assign]
        self.runner.chain.clock_s = self.runner.chain.steady_s = self.engine.clock_s


def counted(
    times: Sequence[int],
    scheme: Scheme | None = None,
    lateness: str = "0s",
    allowed: str = "0s",
    latency_s: float = LATENCY_S,
) -> Clocked:
    """The shard of a source that gives records one by one, and counts them per second and key."""
    rows = [{"at": at, "key": 1} for at in times]
    source = es.Pipeline("windows").source(es.FromList(rows, batch=1), name="rows")
    timed = source.event_time("at", unit="ms", lateness=lateness)
    windows = timed.key_by("key").window(es.Tumbling("1s"), allowed_lateness=allowed)
    counts = windows.aggregate(n=es.count(), name="counts", shards=2)
    counts.sink(OutsideSink(WORLD), name="out")
    plan = make_plan(counts.pipeline, 1)
    scheme = scheme_of(es.Coordinated()) if scheme is None else scheme
    return Clocked(plan, scheme=scheme, latency_s=latency_s).restore()  # type: ignore[return-value]


def sent(it: Bench) -> int:
    """Records whose parts were sent on."""
    parts = [f.payload.batch for f in it.engine.frames if f.payload is not None]
    frames = [part for part in parts if isinstance(part, pl.DataFrame) and len(part)]
    if not frames:
        return 0
    together = rows_together(frames, "test")
    return int(together.select(pl.col(together.columns[-1]).sum()).item())


def test_the_input_of_windows_waits_until_one_of_them_ends() -> None:
    it = counted([100, 200, 300, 400, 1_100, 1_200])
    it.step(4)
    assert sent(it) == 1  # the first one, with the first watermark
    it.step()
    assert sent(it) == 5  # before the watermark that ends their window


def test_the_watermark_waits_with_the_records() -> None:
    it = counted([100, 200, 300, 1_100])
    reached = []
    for _ in range(4):
        it.step()
        reached.append(max(frame.watermark for frame in it.engine.frames))
    assert reached == [100_000, 100_000, 100_000, 1_100_000]


def test_input_waits_for_a_limited_time() -> None:
    it = counted([100, 200, 300])
    it.step(2)
    it.now_s = MOST_LATENCIES * LATENCY_S + 0.001
    it.step()
    assert sent(it) == 2


def test_input_waits_for_a_limited_number_of_records() -> None:
    it = counted([5] * (ENOUGH + 2))
    it.step(ENOUGH)
    assert sent(it) == 1
    it.step()
    assert sent(it) == 1 + ENOUGH


def test_a_checkpoint_comes_after_all_records_that_were_read() -> None:
    it = counted([100, 200, 300, 400])
    it.step(3)
    record = it.checkpoint(1)
    assert sent(it) == 3
    kinds = [frame.kind for frame in it.engine.frames]
    assert kinds.index(FrameKind.MARKER) > kinds.index(FrameKind.DATA)
    again = counted([100, 200, 300, 400])
    again.engine.objects = it.engine.objects
    again.restore(record, stable=1)
    again.step(2)
    assert sent(again) == 1


def test_a_checkpoint_that_would_leave_out_waiting_records_is_refused() -> None:
    it = counted([100, 200])
    it.step(2)
    with pytest.raises(InternalError, match="not part of a checkpoint"):
        it.runner.chain.prepare(1)


def test_the_end_of_a_source_comes_after_all_of_its_records() -> None:
    it = counted([100, 200, 300])
    it.step(5)
    assert sent(it) == 3
    assert it.engine.frames[-1].kind is FrameKind.END


@pytest.mark.parametrize("times", [[900, 1_500, 800, 1_600], [900, 1_500, 1_499, 2_100, 1_700]])
def test_a_record_is_as_late_as_if_nothing_had_waited(times: list[int]) -> None:
    waited, at_once = counted(times), counted(times, latency_s=0.0)
    for it in (waited, at_once):
        it.step(len(times) + 2)
    assert sent(waited) == sent(at_once) < len(times)


def test_a_record_after_a_silence_is_judged_by_the_time_that_passed_in_it() -> None:
    time = TimeOf("at", "us")
    first = RecordWatermarks(time, pl.Series([1, 5, 2]), 0, es.NO_WATERMARK)
    second = RecordWatermarks(time, pl.Series([9, 60]), 0, 50)
    whole = RecordWatermarks.joined([first, second])
    assert whole.values.tolist() == [*first.values.tolist(), *second.values.tolist()]
    assert whole.latest == second.latest == 50
    assert whole.of(np.array([0, 1, 1, 1, 0], bool)).values.tolist() == [1, 5, 50]


def test_shards_that_log_their_messages_send_the_same_frames_as_ever() -> None:
    it = counted([100, 200], scheme_of(es.Uncoordinated(every="1h")))
    it.step(2)
    assert not it.runner.chain.gathering


def test_windows_that_are_emitted_again_get_late_records_at_once() -> None:
    it = counted([100, 200], allowed="5s")
    it.step()
    assert sent(it) == 1


class Live(es.Source[int]):
    """Gives what has arrived, and says that there is no more."""

    def open(self, shard: int, shards: int) -> Reader:
        return LiveReader()


class LiveReader(Reader):
    offset = 0

    def __init__(self) -> None:
        self.reads = 0

    def seek(self, offset: int) -> None:
        """It starts anew."""

    def read(self) -> list[int] | EndOfStream | None:
        self.reads += 1
        return [self.reads] if self.reads < 10 else END

    def drained(self) -> bool:
        return True


def live(latency_s: float) -> Clocked:
    stream = es.Pipeline("live").source(Live(), name="live").map(lambda n: n)
    plan = make_plan(stream.sink(OutsideSink(WORLD), name="out"), 1)
    return Clocked(plan, latency_s=latency_s).restore()  # type: ignore[return-value]


def test_a_source_that_had_no_more_is_asked_again_after_the_latency() -> None:
    it = live(LATENCY_S)
    it.step()
    assert it.runner.processed == 1
    assert not it.runner.can_step(0.9 * LATENCY_S)
    assert it.runner.can_step(LATENCY_S)


def test_without_latency_a_source_is_asked_at_once() -> None:
    it = live(0.0)
    it.step()
    assert it.runner.can_step(0.0)


def test_a_source_that_has_more_is_asked_at_once() -> None:
    it = counted([100, 200])
    it.step()
    assert it.runner.can_step(0.0)


ROWS = [{"at": 7 * n + 40 * (n % 5), "key": n % 3, "n": n} for n in range(150)]


def windows(pipeline: es.Pipeline, sink: Any) -> None:
    source = pipeline.source(es.FromList(ROWS, batch=2), name="rows", shards=2)
    keyed = source.event_time("at", unit="ms", lateness="200ms").key_by("key")
    timed = keyed.window(es.Sliding("200ms", every="100ms"))
    sink(timed.aggregate(n=es.count(), total=es.sum("n"), name="counts", shards=2), "out")


def counted_windows(rows: list[dict[str, int]]) -> list[tuple[int, ...]]:
    """The same in plain Python."""
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    for row in rows:
        for start in range(row["at"] // 100 * 100 - 100, row["at"] + 1, 100):
            window = (row["key"], start, start + 200)
            n, total = found.get(window, (0, 0))
            found[window] = (n + 1, total + row["n"])
    return [(*window, *sums) for window, sums in found.items()]


@pytest.mark.parametrize("seed", range(12))
def test_windows_are_exact_under_faults_while_their_input_waits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    add = Gathered.add

    def counting(self: Gathered, *arguments: Any) -> None:
        waited.append(1)
        add(self, *arguments)

    monkeypatch.setattr(Gathered, "add", counting)
    simulate(windows, {"out": counted_windows(ROWS)}, seed)
    assert waited


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 1_000, 100))
def test_windows_are_exact_under_a_thousand_histories(start: int) -> None:
    for seed in range(start, start + 100):
        simulate(windows, {"out": counted_windows(ROWS)}, seed)
