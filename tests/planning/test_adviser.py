"""The adviser: what it recommends, why, and whether the simulation agrees."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstream.planning import AdviceError, RunResultError, advise, analytic, parse_run
from everstream.planning.units import QuantityError
from everstream_lab.queueing import model as m
from everstream_lab.queueing.formulas import check_recoveries
from everstream_lab.queueing.simulation import estimate, replicate
from tests.planning.typical import TYPICAL


def test_the_interval_is_near_dalys_when_replay_runs_at_full_speed() -> None:
    """Replaying costs `load` seconds per second, so the interval is Daly's over root load."""
    advice = advise(**TYPICAL)
    still_s = advice.known.costs.stands_still_s["aligned"]
    daly_s = analytic.daly_interval_s(0.1 + still_s, 3600)
    assert advice.interval_s == pytest.approx(daly_s / math.sqrt(1 / 3), rel=0.05)
    assert advice.near_optimal_s[0] < advice.interval_s < advice.near_optimal_s[1]
    assert advice.protocol == "aligned"


def test_the_promised_cost_and_catch_up_come_true_in_the_simulation() -> None:
    advice = advise(**TYPICAL)
    known = advice.known
    # One simulated tuple stands for a thousand records; the ratios stay the same.
    rate, capacity = known.rate_per_s / 1000, known.capacity_per_s / 1000
    model = m.Model(
        (m.OperatorModel("job", m.constant(1 / capacity), 1),),
        (m.SourceModel("job", m.constant(1 / rate)),),
        window_tuples=int(rate * 20_000),
        checkpoints=m.Checkpoints(
            advice.interval_s, 0.1 + known.costs.stands_still_s["aligned"], known.upload_s
        ),
        failures=m.Failures(("job",), m.exponential(1000.0), known.outage_s),
        behaviour="backlog",
        in_flight_limit=2,
    )
    runs = replicate(model, 6, seed=1)
    recoveries = [p for run in runs for p in run.pauses if p.kind == "recovery"]
    catch_up = estimate([p.catch_up_s for p in recoveries if p.catch_up_s is not None])
    assert catch_up.mean == pytest.approx(advice.catch_up_s, rel=0.15)
    replayed = estimate([float(p.replayed) * 1000 for p in recoveries])
    assert replayed.mean == pytest.approx(advice.records_replayed, rel=0.15)
    worst_s = max(p.end_s - p.start_s + (p.catch_up_s or 0) for p in recoveries)
    assert worst_s < 2 * advice.worst_recovery_s
    paused_s = sum(p.end_s - p.start_s for p in runs[0].pauses if p.kind == "checkpoint")
    assert paused_s / runs[0].window_s == pytest.approx(advice.overhead, rel=0.1)


def test_a_recovery_target_shortens_the_interval_until_the_worst_case_meets_it() -> None:
    free, bound = advise(**TYPICAL), advise(**TYPICAL, target_recovery="10s")
    assert bound.interval_s < free.interval_s
    assert bound.worst_recovery_s <= 10
    assert "to meet the target of 10 s" in bound.why_interval


def test_an_overhead_limit_lengthens_the_interval() -> None:
    free, bound = advise(**TYPICAL), advise(**TYPICAL, max_overhead="0.1%")
    assert free.overhead > 0.001 >= bound.overhead
    assert bound.interval_s > free.interval_s


def test_promises_that_cannot_be_kept_are_admitted() -> None:
    advice = advise(**TYPICAL, target_recovery="2s", max_overhead="0.1%")
    assert any("no protocol meets the recovery target" in text for text in advice.warnings)
    assert advice.interval_s >= advice.known.upload_s


def test_cycles_rule_out_alignment_and_say_why() -> None:
    advice = advise(**TYPICAL, cycles=True)
    assert advice.protocol != "aligned"
    aligned = next(o for o in advice.options if o.protocol == "aligned")
    assert not aligned.usable and "deadlock" in aligned.note


def test_many_shards_and_frequent_failures_make_logging_worth_it() -> None:
    calm = advise(**{**TYPICAL, "shards": 64})
    stormy = advise(**{**TYPICAL, "shards": 64, "mtbf": "5min", "recovery": "20s"})
    assert calm.protocol == "aligned"
    assert stormy.protocol == "uncoordinated"
    assert "about 32 of 64 shards" in str(stormy), "half went back when it was measured"


def test_logging_is_not_offered_when_it_would_eat_all_spare_capacity() -> None:
    close = {**TYPICAL, "rate": "149.9k/s", "shards": 64}
    for changes, words in (
        ({"record_size": "10kB", "write_bandwidth": "10GB/s"}, "capacity than there is to spare"),
        ({"write_bandwidth": "10MB/s"}, "bandwidth than the store has"),
    ):
        advice = advise(**{**close, **changes})
        logging = next(o for o in advice.options if o.protocol == "uncoordinated")
        assert not logging.usable and words in logging.note
        assert advice.protocol in ("aligned", "unaligned")


def test_what_is_assumed_is_said_and_makes_the_answer_less_sure() -> None:
    vague = advise(state_size="200MB", rate="50k/s")
    exact = advise(**TYPICAL)
    for words in (
        "assumed, not known",
        "time between failures",
        "record size",
        "reading the state",
    ):
        assert words in vague.sureness
    assert "every input was given" in exact.sureness

    def width(likely: tuple[float, float]) -> float:
        return likely[1] / likely[0]

    assert width(vague.likely_s) > width(exact.likely_s)


def test_the_curve_has_its_lowest_point_at_the_advised_interval() -> None:
    advice = advise(**TYPICAL)
    lowest = min(advice.curve, key=lambda row: row[1] + row[2])
    assert lowest[0] == pytest.approx(advice.interval_s, rel=0.15)


@pytest.mark.parametrize(
    "changes,error,words",
    [
        ({"capacity": "40k/s"}, AdviceError, "never catch up"),
        ({"rate": None}, AdviceError, "--rate"),
        ({"state_size": None}, AdviceError, "--state-size"),
        ({"mtbf": "1 fortnight"}, QuantityError, "unit of time"),
        ({"state_size": "-2GB"}, QuantityError, "write it like"),
        ({"rate": 0}, AdviceError, "above zero"),
        ({"max_overhead": 2.0}, AdviceError, "share below 1"),
    ],
)
def test_input_that_makes_no_sense_is_refused_with_help(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        advise(**{**TYPICAL, **changes})


def run_result() -> dict[str, Any]:
    return {
        "wall_s": 120.0,
        "records_in": 6_000_000,
        "records_out": 6_000_000,
        "records_per_s": 50_000.0,
        "checkpoints": [
            {
                "epoch": i,
                "started_s": 5.0 * i,
                "duration_s": 0.8,
                "bytes": 2e8,
                "shards": [
                    {
                        "shard": f"count/{j}",
                        "capture_s": 0.01 * (j + 1),
                        "upload_s": 0.7,
                        "bytes": 1e8,
                    }
                    for j in range(2)
                ],
            }
            for i in range(1, 24)
        ],
        "recoveries": [
            {
                "shard": "count/0",
                "detected_ms": 200,
                "restarted_ms": 700,
                "restored_ms": 1500,
                "caught_up_ms": 3500,
                "records_replayed": 125_000,
            }
        ],
    }


def test_a_measured_run_supplies_rates_pauses_and_restore_times(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(run_result()))
    advice = advise(from_run=path, mtbf="2h", record_size=100)
    known = advice.known
    assert known.pause_s == pytest.approx(0.02)
    assert known.upload_s == pytest.approx(0.78)
    assert known.outage_s == pytest.approx(1.5)
    # 125,000 replayed and 3.5 s of input, done in 2 s.
    assert known.capacity_per_s == pytest.approx((125_000 + 50_000 * 3.5) / 2)
    assert known.shards == 2 and not known.assumed
    assert advise(from_run=path, mtbf="2h", rate="10k/s").known.rate_per_s == 10_000


def test_failures_of_the_run_itself_are_used_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(run_result()))
    advice = advise(from_run=path)
    assert advice.known.mtbf_s == 120
    assert any("--mtbf" in text for text in advice.warnings)


def test_checkpoints_that_wait_behind_records_are_not_blamed_on_the_store(tmp_path: Path) -> None:
    path, result = tmp_path / "result.json", run_result()
    for checkpoint in result["checkpoints"]:
        checkpoint["duration_s"] = 16.8
    path.write_text(json.dumps(result))
    slow = advise(from_run=path, mtbf="2h")
    assert slow.known.waited_s == pytest.approx(16.8 - 0.02 - 0.7)
    assert slow.known.bandwidth_bytes_per_s == pytest.approx(2e8 / 0.7), "what the store did"
    [said] = [text for text in slow.warnings if "back-pressure" in text]
    assert "16.1 s" in said and "more shards" in said and "--checkpoint unaligned" in said
    assert "takes 700 ms" in str(slow)


def test_checkpoints_that_take_long_to_write_are(tmp_path: Path) -> None:
    path, result = tmp_path / "result.json", run_result()
    for checkpoint in result["checkpoints"]:
        checkpoint["duration_s"] = 16.8
        for shard in checkpoint["shards"]:
            shard["upload_s"] = 16.5
    path.write_text(json.dumps(result))
    advice = advise(from_run=path, mtbf="2h")
    assert not advice.known.waited_s
    assert not any("back-pressure" in text for text in advice.warnings)


def test_a_run_that_was_killed_mid_recovery_is_still_of_use() -> None:
    result = run_result()
    result["checkpoints"] = []
    result["recoveries"] = []
    assert parse_run(result).mtbf_s is None


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda r: r.pop("wall_s"), "no 'wall_s'"),
        (lambda r: r.update(wall_s="long"), "wall_s should be a number"),
        (lambda r: r.update(wall_s=0), "above zero"),
        (lambda r: r.update(checkpoints={}), "checkpoints should be a list"),
        (lambda r: r["checkpoints"][3].pop("duration_s"), r"checkpoints\[3\] has no 'duration_s'"),
        (
            lambda r: r["checkpoints"][0]["shards"][1].update(capture_s=-1),
            r"shards\[1\]: capture_s",
        ),
        (lambda r: r["recoveries"][0].update(caught_up_ms=10), "before restored_ms"),
        (lambda r: r["recoveries"].append(7), r"recoveries\[1\] should be an object"),
        (lambda r: r.update(records_in=math.nan), "zero or more"),
    ],
)
def test_a_broken_result_is_refused_and_the_key_named(change: Any, words: str) -> None:
    result = run_result()
    change(result)
    with pytest.raises(RunResultError, match=words):
        parse_run(result)


def test_a_missing_or_torn_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(RunResultError, match="cannot read the result"):
        advise(from_run=tmp_path / "nothing.json")
    torn = tmp_path / "torn.json"
    torn.write_text('{"wall_s": 1')
    with pytest.raises(RunResultError, match="cut short"):
        advise(from_run=torn)


def test_a_real_catch_up_is_checked_against_the_formula() -> None:
    run = parse_run(run_result())
    (check,) = check_recoveries(run, capacity_per_s=150_000)
    # 125,000 replayed and 75,000 that came during the outage, at 100,000/s of spare capacity.
    assert check.predicted_s == pytest.approx(2.0, rel=0.01)
    assert check.measured_s == 2.0
    assert check.difference == pytest.approx(0, abs=0.01)
    (slower,) = check_recoveries(run, capacity_per_s=100_000)
    assert slower.difference > 0.9


def test_a_run_without_checkpoints_can_be_checked_too() -> None:
    result = run_result()
    result["checkpoints"] = []
    (check,) = check_recoveries(parse_run(result), capacity_per_s=150_000)
    assert check.predicted_s == pytest.approx(2.0, rel=0.01)


def test_importing_planning_does_not_load_the_compiler() -> None:
    code = "import sys, everstream.planning; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
