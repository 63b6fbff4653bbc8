"""The view of a run: events in, one view out, however long the run is and whatever dies meanwhile."""

import json

import pytest

from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.measuring import Losses
from everstream.engine.reporting.building import RecoveryUpdates
from everstream.errors import InternalError
from everstream.events import CheckpointAborted, DriverLost, MetricsSampled, Note, RunEvent
from everstream.observability.history.run_view import Live, RunView, Series, View
from tests.observability.history.telling import START, checkpoint, rescaled, run, sample


def told(*events: RunEvent) -> RunView:
    run_view = RunView()
    for event in events:
        run_view.take(event)
    return run_view


def named(rows: list[View], name: str, key: str = "name") -> View:
    return next(row for row in rows if row[key] == name)


def test_a_view_before_anything_is_known_has_no_figures() -> None:
    view = told().view(START)
    assert view["pipeline"] is None and view["operators"] == [] and view["advice"] is None
    view = told(run()).view(START)
    assert named(view["operators"], "fold")["in_per_s"] is None
    assert named(view["shards"], "fold:0", "id")["busy"] is None
    assert [worker["alive"] for worker in view["workers"]] == [False, False]


def test_rates_and_shares_are_those_of_the_last_seconds() -> None:
    run_view = told(run(), sample(0, 0, 0), sample(1, 100, 80), sample(2, 200, 180))
    view = run_view.view(START + 2)
    assert named(view["operators"], "numbers")["out_per_s"] == 100.0
    fold = named(view["operators"], "fold")
    assert (fold["in_per_s"], fold["records_in"], fold["busy"]) == (90.0, 180, 0.5)
    assert named(view["edges"], "fold", "to")["per_s"] == 90.0
    assert view["series"]["in_per_s"][-1] == 100.0
    assert named(view["workers"], 0, "id")["cpu"] == 1.0  # type: ignore[arg-type]
    assert view["workers"][0]["machine"] == "here"
    later = told(
        run(), *(sample(second, second * 10, 0) for second in range(60)), sample(60, 690, 0)
    )
    assert named(later.view(START + 60)["operators"], "numbers")["out_per_s"] > 20, (
        "not of all 60 s"
    )


def test_rates_that_are_old_are_not_shown() -> None:
    run_view = told(run(), sample(0, 0, 0), sample(1, 100, 80))
    assert named(run_view.view(START + 60)["operators"], "fold")["in_per_s"] is None


def test_a_process_that_counts_anew_takes_nothing_away() -> None:
    lost = [{"fold": Losses(late=late, skipped=late)} for late in (7, 2)]
    before = sample(2, 200, 200, meter={"losses": lost[0], "busy_s": 3.0})
    after = sample(3, 250, 150, attempt=1, meter={"losses": lost[1], "busy_s": 0.5})
    run_view = told(run(), sample(0, 0, 0), before, after)
    fold = named(run_view.view(START + 3)["operators"], "fold")
    assert fold["late"] == 9 and fold["dead_letters"] == 0
    assert fold["skipped"] == 2, "counted with the checkpoints, which have 2 of the 7"
    assert fold["records_in"] == 150, "what counts is what the checkpoint it went back to says"
    assert fold["in_per_s"] >= 0
    assert run_view.flow.rising.sums["in", "fold:0", "fold"] == 200, "done, and not undone"


def test_latency_is_of_what_came_lately() -> None:
    slow = [sample(second, 0, 1000, latency_s=2.0) for second in (0, 1)]
    run_view = told(run(), *slow)
    assert run_view.view(START + 1)["latency"]["out"]["p50_ms"] is None, "nothing came since"
    run_view.take(sample(2, 0, 2000, latency_s=2.0))
    assert run_view.view(START + 2)["latency"]["out"]["p99_ms"] == pytest.approx(2000, rel=0.1)


def test_a_worker_that_is_not_there_is_shown_as_gone_with_its_shards() -> None:
    run_view = told(run(), sample(0, 0, 0), sample(1, 10, 10), sample(2, 10, 10, fold_worker=False))
    view = run_view.view(START + 2)
    assert [worker["alive"] for worker in view["workers"]] == [True, False]
    lost = {shard["worker"] for shard in view["shards"] if shard["phase"] == "lost"}
    running = {shard["worker"] for shard in view["shards"] if shard["phase"] == "running"}
    assert (lost, running) == ({1}, {0})


def test_the_death_of_a_driver_interrupts_and_what_was_known_stays() -> None:
    run_view = told(run(), sample(0, 0, 0), sample(1, 90, 80), checkpoint(1, 4))
    run_view.take(DriverLost("SIGKILL", at=START + 2))
    view = run_view.view(START + 2)
    assert (view["phase"], view["drivers_lost"]) == ("the driver is gone", 1)
    assert named(view["operators"], "fold")["in_per_s"] is None
    assert not any(worker["alive"] for worker in view["workers"])
    run_view.take(run(START + 5, run="b" * 32))
    run_view.take(sample(6, 80, 70))
    view = run_view.view(START + 6)
    assert view["started_at"] == START + 5 and view["phase"] == "running"
    assert [c["epoch"] for c in view["checkpoints"]] == [4]


def test_a_failure_is_told_again_as_it_is_made_up_for_and_counts_once() -> None:
    recoveries = RecoveryUpdates("x")
    report = RecoveryReport("worker 1 (killed)", ("fold:0",), True, detected_s=10.1, failed_s=10.0)
    run_view = told(run(), *recoveries.changed([report], 10.2, START))
    assert not recoveries.changed([report], 10.3, START + 0.1), "nothing new"
    report.restored_s = report.caught_up_s = 11.0
    for event in recoveries.changed([report], 11.1, START + 0.9):
        run_view.take(event)
    (failure,) = run_view.view(START + 1)["failures"]
    assert failure["caught_up_ms"] == 1000 and failure["detected_ms"] == 100
    assert failure["at"] == pytest.approx(START - 0.2)
    assert run_view.failures_seen == 1


def test_checkpoints_name_the_slowest_shard_and_those_that_failed_say_why() -> None:
    run_view = told(run(), checkpoint(1, 1), CheckpointAborted(2, "disk full", at=START + 2))
    failed, stable = run_view.view(START + 2)["checkpoints"]
    assert (stable["slowest"], stable["failed"]) == ("fold:1", None)
    assert stable["started_at"] == START + 0.75
    assert (failed["epoch"], failed["failed"]) == (2, "disk full")


def test_there_is_a_recovery_line_where_shards_have_their_own_checkpoints() -> None:
    run_view = told(run(logs=True), checkpoint(1, 1), checkpoint(2, 1), checkpoint(3, 2))
    line = run_view.view(START + 4)["recovery_line"]
    assert line["fold:0"] == {"number": 2, "at": START + 3}
    assert told(run(), checkpoint(1, 1)).view(START)["recovery_line"] is None


def test_the_adviser_shows_the_present_interval_on_the_curve() -> None:
    advice = told(run(), checkpoint(1, 1), checkpoint(6, 2)).view(START + 7)["advice"]
    costs = dict(map(tuple, advice["curve"]))
    nearest = min(costs, key=lambda t: abs(t - advice["best_s"]))
    assert advice["present_s"] == 5.0
    assert costs[nearest] == pytest.approx(min(costs.values()), rel=0.1)
    assert min(costs) < advice["present_s"] < max(costs)


def test_memory_is_bounded_and_the_past_grows_thinner() -> None:
    run_view = told(run())
    for second in range(3000):
        run_view.take(sample(second, second, second))
        run_view.take(checkpoint(second, second + 1))
        run_view.take(Note("input", "said", at=START + second))
    view = run_view.view(START + 3000)
    assert len(view["checkpoints"]) == 100 and len(view["notes"]) == 200
    at = view["series"]["at"]
    assert len(at) <= 600 and at[0] == START and at == sorted(at)
    assert at[-1] - at[-2] == 1 < at[2] - at[1]
    assert len(json.dumps(view)) < 200_000


def test_columns_of_a_series_stay_together() -> None:
    series = Series(points=10)
    for second in range(100):
        series.add(second, {"cpu": float(second)})
    columns = series.to_json()
    assert columns["at"] == columns["cpu"] and len(columns["at"]) <= 10


def test_a_change_of_shards_is_no_new_run() -> None:
    run_view = told(run(), sample(0, 0, 0), checkpoint(1, 1), rescaled(START + 2, 2, 3))
    view = run_view.view(START + 3)
    assert named(view["operators"], "fold")["shards"] == 3
    assert {shard["id"] for shard in view["shards"]} == {"numbers:0", "fold:0", "fold:1", "fold:2"}
    assert view["started_at"] == START and [c["epoch"] for c in view["checkpoints"]] == [1]
    run_view.take(run())
    assert named(run_view.view(START + 3)["operators"], "fold")["shards"] == 3, "only repeated"


def test_an_event_that_breaks_the_view_breaks_its_readers_and_not_the_run() -> None:
    live = Live(lambda: 1.0)
    live.take(MetricsSampled("running", 1, 0, {}, {"fold:0": {}}, {}, at=1.0))
    live.take(Note("input", "the run continues", at=1.0))
    with pytest.raises(InternalError, match="the view of the run broke"):
        live.view()
