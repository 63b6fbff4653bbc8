"""The protocols are weighed with what the benchmark measured, and the answer says with what."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.core.registry import PROTOCOLS
from everstream.planning import RunResultError, advise
from everstream.planning.protocol_costs import built_in, parse_costs, read_costs
from everstream_lab.bench.protocols.costs import Costs as BenchCosts
from everstream_lab.bench.protocols.grid import Cell
from everstream_lab.bench.protocols.measure import Measured
from tests.planning.typical import TYPICAL

STRAIGHT, ROUND = "nexmark-2-half", "nhop"


def a_run(query: str, protocol: str, **figures: Any) -> dict[str, Any]:
    cell = Cell(query, protocol, 2.0, failure=True)
    run = Measured(cell, 1e4, 5e3, 30.0, 60.0, 90.0, 9.0, 20, 0, 10_000, 0, 5.0, 0, 0, 0, 0)
    killed = {"restore_s": 0.5, "rollback_s": 1.0, "went_back": 4, "shards": 4}
    return {**run.to_json(), **killed, **figures}


def a_measurement(**rates: float) -> dict[str, Any]:
    """As the benchmark writes it; rates in million records per second, without a cycle."""
    best = {"none": 10.0, "aligned": 10.0, "unaligned": 10.0, "at-least-once": 10.0} | {
        "uncoordinated": 8.0, **{name.replace("_", "-"): rate for name, rate in rates.items()}
    }  # fmt: skip
    by_way = {f"{STRAIGHT}/{name}": [1e6 * rate, 5e5] for name, rate in best.items()}
    for name, rate in (("none", 4e5), ("uncoordinated", 2e5), ("hmnr", 1.98e5), ("bcs", 2.5e5)):
        by_way[f"{ROUND}/{name}"] = [rate]
    return {
        "date": "2026-01-02",
        "machine": {"cores": 16},
        "run_s": 10.0,
        "cyclic": [ROUND],
        "costs": BenchCosts(0.1, 0.1, by_way, every_s=1.0).to_json(),
        "runs": [
            a_run(STRAIGHT, "aligned"),
            a_run(STRAIGHT, "uncoordinated", went_back=1, log_bytes=5_000_000),
            a_run(ROUND, "uncoordinated", went_back=1, rollback_s=14.0),
            a_run(ROUND, "hmnr", went_back=1, forced=5),
        ],
    }


def written(folder: Path, body: object) -> Path:
    path = folder / "protocols.json"
    path.write_text(json.dumps(body))
    return path


def test_the_built_in_measurement_has_a_figure_for_every_protocol() -> None:
    costs = built_in()
    logging = {name for name, protocol in PROTOCOLS.items() if protocol.logs}
    assert set(costs.went_back) == set(costs.restart_s) == set(PROTOCOLS)
    assert set(costs.stands_still_s) == set(PROTOCOLS) - logging - {"none"}
    assert set(costs.log_s_per_byte) == logging
    assert set(costs.forced) == set(costs.vectors_s_per_record) == logging - {"uncoordinated"}
    assert {"uncoordinated", "hmnr"} <= set(costs.rollback)
    assert "2 cores" in costs.source and not costs.from_built_in


def test_the_built_in_measurement_says_with_which_command_it_was_made() -> None:
    import everstream.planning

    assert everstream.planning.__file__ is not None
    file = Path(everstream.planning.__file__).parent / "built_in_costs.json"
    body = json.loads(file.read_text())
    assert body["command"].startswith("everstream bench protocols ")
    assert {run["cell"]["query"] for run in body["runs"]} == {STRAIGHT, ROUND}


def test_every_figure_comes_from_what_was_measured() -> None:
    costs = parse_costs(a_measurement(aligned=9.0, unaligned=11.0), "m.json")
    assert costs.source == "m.json (16 cores, 2026-01-02)"
    assert costs.stands_still_s["aligned"] == pytest.approx(0.1), "a tenth of every second"
    assert costs.stands_still_s["unaligned"] == 0, "quicker than without is noise"
    # 1/8 - 1/9 of a microsecond more for a record of 50 bytes.
    assert costs.log_s_per_byte["hmnr"] == pytest.approx((1 / 8 - 1 / 9) * 1e-6 / 50)
    assert costs.vectors_s_per_record == pytest.approx({"hmnr": 1 / 1.98e5 - 1 / 2e5, "bcs": 0})
    assert costs.forced == {"hmnr": 0.25}
    assert costs.went_back["uncoordinated"] == 0.25
    assert costs.rollback["uncoordinated"] == 7.0
    assert costs.lost_in_noise == [
        "standing still (unaligned)", "standing still (at-least-once)", "vectors (bcs)"
    ]  # fmt: skip


def test_what_a_file_lacks_comes_from_the_built_in_measurement_and_is_named(tmp_path: Path) -> None:
    body = a_measurement()
    body["costs"] = None
    costs = read_costs(written(tmp_path, body))
    assert costs.log_s_per_byte == built_in().log_s_per_byte
    assert costs.went_back["uncoordinated"] == 0.25
    assert costs.went_back["bcs"] == built_in().went_back["bcs"]
    assert "stands_still_s of aligned" in costs.from_built_in
    assert "went_back of bcs" in costs.from_built_in
    assert "went_back of uncoordinated" not in costs.from_built_in
    assert "from the built-in one: stands_still_s of aligned" in str(costs)


def test_logs_in_memory_are_not_taken_for_durable_ones(tmp_path: Path) -> None:
    body = a_measurement()
    lossy = a_run(STRAIGHT, "uncoordinated", went_back=4, log_bytes=1)
    lossy["cell"]["log"] = "memory"
    body["runs"] += [lossy, lossy]
    assert parse_costs(body, "m.json") == parse_costs(a_measurement(), "m.json")


def test_micro_batches_are_not_taken_for_tasks_that_stay(tmp_path: Path) -> None:
    body = a_measurement()
    other = a_run(STRAIGHT, "aligned", restore_s=99.0)
    other["cell"]["engine"] = "microbatch"
    body["runs"] += [other] * 9
    assert parse_costs(body, "it") == parse_costs(a_measurement(), "it")


def test_the_advice_follows_the_measurement(tmp_path: Path) -> None:
    def advised(**rates: float) -> str:
        path = written(tmp_path, a_measurement(**rates))
        return advise(**{**TYPICAL, "mtbf": "10min"}, measured=path).protocol

    assert advised(uncoordinated=0.05) == "aligned", "logs are dear"
    assert advised(uncoordinated=0.05, aligned=8.0) == "unaligned", "alignment is dear, too"
    assert advised(uncoordinated=9.9, aligned=9.9) == "uncoordinated", "logs are next to free"


def test_on_a_cycle_the_rule_that_was_cheaper_is_advised(tmp_path: Path) -> None:
    stormy = {**TYPICAL, "mtbf": "2min", "recovery": "20s", "cycles": True}
    path = written(tmp_path, a_measurement())
    advice = advise(**stormy, measured=path)
    assert advice.protocol == "hmnr", "it stops a quarter of the shards"
    notes = {option.protocol: option.note for option in advice.options}
    assert "7.0 intervals back, and 0.5 under hmnr" in notes["uncoordinated"]
    body = a_measurement()
    body["runs"].append(a_run(ROUND, "bcs", went_back=1, forced=1))
    assert advise(**stormy, measured=written(tmp_path, body)).protocol == "bcs"


def test_every_protocol_is_weighed_and_those_left_out_say_why() -> None:
    options = {option.protocol: option for option in advise(**TYPICAL).options}
    assert list(options) == list(PROTOCOLS)
    assert "count twice" in options["at-least-once"].note
    assert "start the whole run over" in options["none"].note
    assert not options["at-least-once"].usable and not options["none"].usable
    loose = advise(**TYPICAL, exactly_once=False)
    assert next(o for o in loose.options if o.protocol == "at-least-once").usable


def test_without_a_recovery_time_the_measured_restart_is_used() -> None:
    given = {name: value for name, value in TYPICAL.items() if name != "recovery"}
    known = advise(**given).known
    restarts = sorted(built_in().restart_s.values())
    assert known.outage_s == pytest.approx(restarts[len(restarts) // 2] + known.upload_s)
    assert known.assumed == ("reading the state back (as fast as writing it)",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b["runs"][1].pop("regular"), r"runs\[1\] has no 'regular'"),
        (lambda b: b["runs"][0].update(went_back=-1), r"runs\[0\]: went_back should be zero or"),
        (lambda b: b["runs"].append([]), r"runs\[4\]: a run should be an object"),
        (lambda b: b.update(costs={}), "records_per_s should be an object"),
        (lambda b: b.update(cyclic="nhop"), "cyclic should be a list"),
        (lambda b: (b.pop("runs"), b.pop("costs")), "neither runs nor costs"),
    ],
)
def test_a_broken_measurement_is_refused_and_the_key_named(
    change: Any, words: str, tmp_path: Path
) -> None:
    body = a_measurement()
    change(body)
    with pytest.raises(RunResultError, match=words):
        advise(**TYPICAL, measured=written(tmp_path, body))


def test_the_command_says_what_was_measured_and_what_was_assumed(tmp_path: Path) -> None:
    path, answer = written(tmp_path, a_measurement()), tmp_path / "advice.json"
    arguments = ["advise", "--state-size", "2GB", "--rate", "50k/s", "--measured", str(path)]
    said = CliRunner().invoke(app, [*arguments, "--json", str(answer)], env={"COLUMNS": "400"})
    assert said.exit_code == 0, said.output
    assert "protocols.json (16 cores, 2026-01-02)" in said.output
    assert "record size (100 B)" in said.output
    known = json.loads(answer.read_text())["known"]
    assert known["costs"]["went_back"]["uncoordinated"] == 0.25
    assert "record size (100 B)" in known["assumed"]
    path.write_text("{")
    wrong = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert wrong.exit_code == 2 and "protocols.json is not JSON" in wrong.output
