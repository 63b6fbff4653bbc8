"""Loads are exact: what is due by when follows from the closed forms, and nothing else."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everstream as es
from everstream.connectors.generate.load import PATTERNS, Load, Pieces, Steady
from everstream.errors import UserError
from everstream.pipeline.source import EndOfStream, Reader

P, LOW, HIGH = 8.0, 20.0, 100.0


def closed_form(name: str, t: float) -> float:
    """SPBench's patterns, as the paper writes them."""
    u = t % P
    match name:
        case "wave":
            a = (HIGH - LOW) / 2
            return a * math.sin(2 * math.pi * t / P) + a + LOW
        case "binary":
            return LOW if u < P / 2 else HIGH
        case "increasing":
            return min(HIGH, LOW + (HIGH - LOW) * t / P)
        case "decreasing":
            return max(LOW, HIGH - (HIGH - LOW) * t / P)
        case _:
            rise = P * 0.9  # over the whole rest of the period: a sawtooth
            return LOW if u <= rise else LOW + (HIGH - LOW) * (u - rise) / (P - rise)


def load(name: Any) -> es.Load:
    return es.Load(name, period=P, min=LOW, max=HIGH)


@pytest.mark.parametrize("name", ["wave", "binary", "increasing", "decreasing", "spike"])
def test_rates_are_the_closed_forms(name: str) -> None:
    times = np.linspace(0.003, 3 * P, 997)
    expected = [closed_form(name, float(t)) for t in times]
    assert np.allclose(load(name).rate(times), expected, rtol=1e-9, atol=0)


ITEMS_OF_A_PERIOD = {
    "wave": (LOW + HIGH) / 2 * P,
    "binary": (LOW + HIGH) / 2 * P,
    "increasing": (LOW + HIGH) / 2 * P,
    "decreasing": (LOW + HIGH) / 2 * P,
    "spike": LOW * P + (HIGH - LOW) * 0.1 * P / 2,
}


@pytest.mark.parametrize("name", ITEMS_OF_A_PERIOD)
def test_a_period_has_as_many_items_as_the_integral_says(name: str) -> None:
    assert load(name).items(P) == pytest.approx(ITEMS_OF_A_PERIOD[name], rel=1e-12)


LOADS: dict[str, Callable[[], es.Load]] = {
    **{name: (lambda name=name: load(name)) for name in PATTERNS},  # type: ignore[misc]
    "constant": lambda: es.Load(37.5),
    "function": lambda: es.Load(lambda t: 30 + 20 * math.sin(t) ** 2),
    "wave-to-zero": lambda: es.Load("wave", period=P, min=0, max=HIGH),
    "binary-from-zero": lambda: es.Load("binary", period=P, min=0, max=HIGH),
    "whole-spike": lambda: es.Load("spike", period=P, min=1, max=HIGH, spike=100),
}


@pytest.mark.parametrize("name", LOADS)
def test_the_integral_is_that_of_the_rate(name: str) -> None:
    made = LOADS[name]()
    # Cut at multiples of a power of two of the period, where binary and the walk jump.
    times = np.linspace(0, 2.5 * P, 2**14 * 5 + 1)
    middles = (times[1:] + times[:-1]) / 2
    summed = np.concatenate([[0.0], np.cumsum(made.rate(middles) * np.diff(times))])
    assert np.allclose(made.items(times), summed, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", LOADS)
def test_due_times_invert_the_integral(name: str) -> None:
    made = LOADS[name]()
    numbers = np.arange(1, 1001, dtype=float)
    due = made.due_s(numbers)
    assert np.all(np.diff(due) >= 0)
    assert np.allclose(made.items(due), numbers, rtol=1e-9, atol=0)
    assert made.due_s(7.0) == pytest.approx(float(due[6]), abs=1e-12)


@settings(max_examples=40)
@given(
    name=st.sampled_from(PATTERNS),
    period=st.floats(0.01, 1e4),
    low=st.floats(0, 1e5),
    more=st.floats(1e-3, 1e5),
    share=st.floats(0, 1),
)
def test_any_pattern_inverts_and_never_runs_ahead(
    name: Any, period: float, low: float, more: float, share: float
) -> None:
    made = es.Load(name, period=period, min=low, max=low + more)
    number = max(1e-3, share * made.items(3 * period))
    due_s = made.due_s(number)
    if due_s != math.inf:
        # A moment can be told no finer than this, and at the highest rate that makes so many items.
        unknown = (low + more) * math.ulp(due_s)
        assert made.items(due_s) == pytest.approx(number, rel=1e-6, abs=2 * unknown)


def test_nothing_is_due_while_the_rate_is_zero_and_the_earliest_moment_counts() -> None:
    binary = es.Load("binary", period=2, min=0, max=10)
    assert binary.items(1.0) == 0
    assert binary.due_s(1) == pytest.approx(1.1)
    assert binary.due_s(10) == pytest.approx(2.0), "not after the next stretch of nothing"
    assert binary.due_s(11) == pytest.approx(3.1)
    gone = es.Load("decreasing", period=2, min=0, max=10)
    assert gone.items(100.0) == pytest.approx(10)
    assert gone.due_s(11) == math.inf
    silent = es.Load(lambda t: 0.0)
    assert silent.due_s(1, until_s=5.0) == math.inf


def test_a_walk_is_that_of_its_seed_and_stays_within_its_bounds() -> None:
    def rates(seed: int) -> Any:
        walk = es.Load("random-walk", period=1, min=LOW, max=HIGH, seed=seed)
        return walk.rate(np.arange(5_000) + 0.5)

    first = rates(1)
    assert np.array_equal(first, rates(1)) and not np.array_equal(first, rates(2))
    assert first.min() >= LOW and first.max() <= HIGH
    assert np.abs(np.diff(first)).max() <= (HIGH - LOW) / 10 + 1e-9
    assert first.max() - first.min() > (HIGH - LOW) / 2, "it does walk"
    walk = es.Load("random-walk", period=1, min=LOW, max=HIGH, seed=1)
    before = walk.items(1234.5)
    assert pickle.loads(pickle.dumps(walk)).items(1234.5) == before


@pytest.mark.parametrize(
    "text",
    ["500", "wave,10,100,1000", "spike,10,100,1000,5", "random-walk,1,1,9,42", "binary,4,0,2"],
)
def test_words_say_a_load_and_a_load_says_its_words(text: str) -> None:
    made = es.Load.parse(text)
    assert made.text == text
    assert es.Load.parse("wave,10s,100,1000").text == es.Load.parse("wave,10,100,1000").text


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"pattern": "wave", "period": 0, "min": 1, "max": 2}, "period"),
        ({"pattern": "wave", "period": -1, "min": 1, "max": 2}, "period"),
        ({"pattern": "wave", "period": 1, "min": -1, "max": 2}, "min"),
        ({"pattern": "wave", "period": 1, "min": 3, "max": 2}, "below"),
        ({"pattern": "wave", "period": 1, "min": 0, "max": 0}, "never"),
        ({"pattern": "spike", "period": 1, "min": 1, "max": 2, "spike": 101}, "100"),
        ({"pattern": "spike", "period": 1, "min": 1, "max": 2, "spike": -1}, "100"),
        ({"pattern": "wav", "period": 1, "min": 1, "max": 2}, "Did you mean wave"),
        ({"pattern": "wave", "period": 1}, "needs"),
        ({"pattern": 5, "period": 1}, "belong"),
        ({"pattern": 0}, "positive"),
        ({"pattern": lambda t: -1.0}, "-1"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(es.UserError, match=said):
        es.Load(**wrong)


@pytest.mark.parametrize("text", ["wav,1,2,3", "wave,1,2", "wave,x,1,2", "binary,1,1,2,3", "fast"])
def test_words_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(es.UserError):
        es.Load.parse(text)


def test_a_trace_holds_its_rates_and_repeats_if_told_to(tmp_path: Path) -> None:
    frame = pl.DataFrame({"at_s": [0, 2, 5], "rate": [10, 30, 0]})
    frame.write_csv(tmp_path / "trace.csv")
    frame.write_parquet(tmp_path / "trace.parquet")
    for name in ("trace.csv", "trace.parquet"):
        once = es.Load.trace(tmp_path / name)
        assert [once.rate(t) for t in (0.0, 1.9, 2.1, 4.9, 7.0)] == [10, 10, 30, 30, 0]
        assert once.items(100.0) == pytest.approx(110)
        again = es.Load.trace(tmp_path / name, repeat=True)
        assert again.items(10.0) == pytest.approx(220)
        assert again.rate(6.0) == 10
    for wrong in ({"at_s": [1, 2], "rate": [1, 1]}, {"at_s": [0, 0], "rate": [1, 1]}, {"x": [1]}):
        pl.DataFrame(wrong).write_csv(tmp_path / "wrong.csv")
        with pytest.raises(es.UserError, match=r"wrong\.csv"):
            es.Load.trace(tmp_path / "wrong.csv")


def test_a_load_is_calibrated_by_a_run_at_full_speed(tmp_path: Path) -> None:
    run = {"records_per_s": 2000.0, "wall_s": 30.0}
    assert es.Load.calibrated("wave", run).text == "wave,10,200,2200"
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert es.Load.calibrated("increasing", tmp_path / "run.json").text == "increasing,30,200,2200"
    with pytest.raises(es.UserError, match="full speed"):
        es.Load.calibrated("wave", tmp_path / "none.json")
    with pytest.raises(es.UserError, match="calibrate"):
        es.Load.calibrated("wave", {})


# Paced, with a clock of the test's own.


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def polled(reader: Reader, clock: Clock, until_s: float) -> list[tuple[float, int]]:
    """Ask as an engine does: again when the reader said. When, and how many."""
    seen = []
    while clock.now_s < until_s:
        batch = reader.read()
        if isinstance(batch, EndOfStream):
            break
        if batch is None:
            clock.now_s = min(until_s, clock.now_s + reader.ready_in_s())
        else:
            seen.append((clock.now_s - 1_000.0, len(batch)))
    return seen


@pytest.mark.parametrize("rate", [10, 1_000, 100_000])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_paced_source_gives_what_is_due_in_every_period(name: Any, rate: float) -> None:
    """Never more, and never a frame's worth less; at 100,000 a second, too."""
    clock = Clock()
    period = min(1.0, 10_000 / rate)
    made = es.Load(name, period=period, min=rate / 10, max=rate)
    reader = es.Paced(es.Range(10**9, batch=4096), made, clock=clock).open(0, 1)
    given = 0
    for number in range(1, 4):
        given += sum(count for _, count in polled(reader, clock, 1_000.0 + number * period))
        due = made.items(number * period)
        assert due - 1 - 0.002 * rate <= given <= due + 1e-3


def test_shards_share_a_load() -> None:
    clock = Clock()
    made = es.Load("wave", period=1, min=10, max=70)
    source = es.Paced(es.Range(10**6, batch=50), made, clock=clock)
    readers = [source.open(shard, 4) for shard in range(4)]
    clock.now_s += 2.5
    given = [len(batch) for reader in readers if isinstance(batch := reader.read(), list)]
    assert given == [int(made.items(2.5) / 4)] * 4


def stalled(catch_up: bool) -> tuple[list[tuple[float, int]], Reader]:
    """10 records a second, and nobody asks between 5 and 15 s."""
    clock = Clock()
    source = es.Paced(es.Range(10**6), 10, clock=clock, catch_up=catch_up)
    reader = source.open(0, 1)
    seen = polled(reader, clock, 1_005.0)
    clock.now_s = 1_015.0
    return [*seen, *polled(reader, clock, 1_020.0)], reader


def test_due_times_make_up_for_a_stall_and_gaps_do_not() -> None:
    caught_up, reader = stalled(True)
    assert sum(count for _, count in caught_up) == pytest.approx(200, abs=1)
    assert reader.load().forfeited == 0
    held_up, reader = stalled(False)
    assert sum(count for _, count in held_up) == pytest.approx(100, abs=2)
    assert max(count for _, count in held_up) == 1, "SPBench gives one, and waits for the next"
    assert reader.load().forfeited == pytest.approx(100, abs=1), "and the report says so"


def test_without_catching_up_a_fast_source_may_be_late_by_a_moment_and_no_more() -> None:
    clock = Clock()
    reader = es.Paced(es.Range(10**6), 10_000, clock=clock, catch_up=False).open(0, 1)
    assert reader.read() is None
    clock.now_s += 0.04
    assert len(reader.read()) == 400  # type: ignore[arg-type]
    clock.now_s += 1.0
    assert len(reader.read()) == pytest.approx(500, abs=1)  # type: ignore[arg-type]
    assert reader.load().forfeited == pytest.approx(9_500, abs=1)


def test_a_paced_source_has_no_more_once_it_has_given_what_is_due() -> None:
    clock = Clock()
    reader = es.Paced(es.Range(10**6, batch=30), 1_000, clock=clock).open(0, 1)
    assert reader.read() is None
    clock.now_s += 0.04
    assert len(reader.read()) == 30  # type: ignore[arg-type]
    assert not reader.drained(), "the source has given a part of what is due"
    clock.now_s += 0.001
    assert len(reader.read()) == 11  # type: ignore[arg-type]
    assert reader.drained()


def test_waiting_counts_as_latency_only_where_it_is_caught_up() -> None:
    clock = Clock()
    for catch_up, born in ((True, 1_005.05), (False, 0.0)):
        clock.now_s = 1_000.0
        reader = es.Paced(es.Range(10**6), 10, clock=clock, catch_up=catch_up).open(0, 1)
        assert reader.read() is None
        clock.now_s = 1_010.0
        assert reader.read() is not None
        assert reader.born_s() == pytest.approx(born, abs=1e-6)


def test_the_place_in_a_pattern_survives_a_restart() -> None:
    clock = Clock()
    made = es.Load("binary", period=10, min=10, max=100)
    source = es.Paced(es.Range(10**6), made, clock=clock)
    reader = source.open(0, 1)
    polled(reader, clock, 1_004.0)
    offset = pickle.dumps(reader.offset)
    clock.now_s = 1_006.0
    reader = source.open(0, 1)
    reader.seek(pickle.loads(offset))
    polled(reader, clock, 1_010.0)
    assert reader.offset.given == pytest.approx(made.items(10.0), abs=1)


class Clocks:
    """A wall clock that somebody sets, and one that never jumps."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1_700_000_000.0, 50.0

    def reader(self, source: es.Source[int]) -> Reader:
        reader = source.open(0, 1)
        reader.keep_time(lambda: self.wall_s, lambda: self.steady_s)
        return reader

    def wait(self, time_s: float) -> None:
        self.wall_s += time_s
        self.steady_s += time_s


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_wall_clock_that_jumps_changes_nothing(jump_s: float) -> None:
    clocks, source = Clocks(), es.Paced(es.Range(10**6), 10)
    reader = clocks.reader(source)
    clocks.wait(1.0)
    assert len(reader.read()) == 10  # type: ignore[arg-type]
    clocks.wall_s += jump_s
    clocks.wait(1.0)
    assert len(reader.read()) == 10, "while it runs"  # type: ignore[arg-type]
    again = clocks.reader(source)
    again.seek(pickle.loads(pickle.dumps(reader.offset)))
    clocks.wall_s += jump_s
    clocks.wait(1.0)
    assert len(again.read()) == 10, "and from one process to the next"  # type: ignore[arg-type]


def test_on_another_machine_the_wall_clock_tells_and_time_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, source = Clocks(), es.Paced(es.Range(10**6), 10)
    reader = clocks.reader(source)
    clocks.wait(1.0)
    reader.read()
    offset = reader.offset
    monkeypatch.setattr("everstream.connectors.generate.paced.clock_name", lambda: "another boot")
    clocks.steady_s = 3.0
    clocks.wait(2.0)
    later = clocks.reader(source)
    later.seek(offset)
    assert len(later.read()) == 20  # type: ignore[arg-type]
    clocks.wall_s -= 7200.0
    set_back = clocks.reader(source)
    set_back.seek(offset)
    assert set_back.read() is None
    clocks.wait(1.0)
    assert len(set_back.read()) == 10  # type: ignore[arg-type]


def test_offsets_of_stores_from_before_loads_are_understood() -> None:
    clock = Clock()
    source = es.Paced(es.Range(100), 10, clock=clock)
    reader = source.open(0, 1)
    old = reader.offset
    for name in ("steady_s", "clock", "shift", "forfeited", "load", "version"):
        old.__dict__.pop(name)
    clock.now_s += 1.0
    reader.seek(pickle.loads(pickle.dumps(old)))
    assert reader.read() == list(range(10))


def test_a_steady_load_is_a_line_of_one_piece() -> None:
    steady, line = Steady(250.0), Pieces([0.0, 1.0], [250.0], [250.0], repeats=False)
    at_s, numbers = np.array([0.0, 0.3, 1.0, 7.25]), np.array([-1.0, 0.0, 0.5, 100.0, 1e6])
    assert steady.rate(at_s) == pytest.approx(line.rate(at_s))
    assert steady.items(at_s) == pytest.approx(line.items(at_s))
    assert steady.due_s(numbers) == pytest.approx(line.due_s(numbers))


@pytest.mark.parametrize("name", ["wave", "binary", "increasing", "decreasing", "spike"])
def test_a_pattern_by_item_follows_the_items_and_not_the_time(name: str) -> None:
    by_item = Load.parse(f"{name},100 items,10,50")
    assert by_item.text is not None and Load.parse(by_item.text).text == by_item.text
    by_time = Load.parse(f"{name},100,10,50")
    due_s = by_item.due_s(np.arange(1.0, 301.0))
    gaps_s = np.diff(np.concatenate([[0.0], due_s]))
    assert gaps_s == pytest.approx(1 / by_time.rate(np.arange(0.0, 300.0)))
    assert by_item.items(due_s) == pytest.approx(np.arange(1.0, 301.0))
    middles_s = due_s - gaps_s / 2
    assert by_item.rate(middles_s) == pytest.approx(by_time.rate(np.arange(0.0, 300.0)))


def test_a_slow_program_sees_the_same_pattern_by_item() -> None:
    """By time, a program that stands still for a period misses one; by item it misses none."""
    load = Load("binary", period="10 items", min=1, max=1000)
    assert load.due_s(5) == 5.0 and load.due_s(10) == pytest.approx(5.005)
    assert load.items(5.0) == pytest.approx(5.0) and load.rate(5.001) == 1000
    copied = pickle.loads(pickle.dumps(load))
    assert copied.due_s(2_000_000.0) == load.due_s(2_000_000.0)
    fresh = Load("binary", period="10 items", min=1, max=1000)
    assert fresh.due_s(2_000_000.0, until_s=10.0) == np.inf


def test_a_pattern_by_item_must_not_stop() -> None:
    with pytest.raises(UserError, match="would stop for ever at 0"):
        Load("wave", period="10 items", min=0, max=5)
    with pytest.raises(UserError, match="write how many items"):
        Load("wave", period="ten items", min=1, max=5)
    with pytest.raises(UserError, match="must be positive"):
        Load("wave", period="0 items", min=1, max=5)


class Hands:
    """A clock that only moves when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def clock(self) -> float:
        return self.now_s

    def pass_by(self, wait_s: float) -> None:
        self.now_s += wait_s


def paced(load: Load, works_s: list[float], *, catch_up: bool = False) -> list[float]:
    """When each item was given to a program that takes this time for each."""
    hands, given_s = Hands(), []
    items = load.pace(works_s, catch_up=catch_up, clock=hands.clock, sleep=hands.pass_by)
    for work_s in items:
        given_s.append(round(hands.now_s - 100.0, 6))
        hands.pass_by(work_s)
    return given_s


def test_any_iterable_is_paced_and_what_was_held_up_moves_the_rest_back() -> None:
    assert paced(Load(10), [0.0] * 4) == [0.1, 0.2, 0.3, 0.4]
    assert paced(Load(10), [0.0, 0.35, 0.0, 0.0]) == [0.1, 0.2, 0.55, 0.65]
    assert paced(Load(10), [0.0, 0.35, 0.0, 0.0, 0.0], catch_up=True) == [
        0.1, 0.2, 0.55, 0.55, 0.55,
    ]  # fmt: skip
    ending = Load("decreasing", period=1.0, min=0, max=4)
    assert len(paced(ending, [0.0] * 9)) == 2
    by_item = Load("binary", period="4 items", min=1, max=10)
    assert paced(by_item, [0.0, 0.0, 7.0, 0.0]) == [1.0, 2.0, 2.1, 9.1]
