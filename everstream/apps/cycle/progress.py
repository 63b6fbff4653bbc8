"""What a run tells while it goes on, as lines for a screen."""

from typing import Any

from everstream.apps.cycle.outcome import Outcome
from everstream.apps.cycle.plan import Planned


def line_of(event: dict[str, Any], runs: list[Planned]) -> str | None:
    """Where a run stands, for a line that the next one replaces; None if there is nothing to say."""
    if event["event"] != "progress":
        return None
    planned = _run_of(event, runs)
    step = event["step"]
    share = f" {event['done']:,} of {event['total']:,}" if step != "the sequential result" else ""
    return f"{_place(planned, runs)}, {planned.workers} worker(s): {step}{share}"


def last_line_of(event: dict[str, Any], runs: list[Planned]) -> tuple[str, bool] | None:
    """What a run came to, for a line that stays, and whether that is good."""
    place = _place(_run_of(event, runs), runs)
    if event["event"] == "failed":
        first = str(event["text"]).strip().splitlines()
        return f"{place}: failed: {first[-1] if first else 'no reason given'}", False
    if event["event"] != "outcome":
        return None
    outcome = Outcome.from_json(event["body"])
    words = [f"{outcome.items:,} items in {outcome.wall_s:.2f} s"]
    if outcome.recoveries:
        words.append(f"{len(outcome.recoveries)} failure(s) survived")
    if outcome.exact is not None:
        words.append("exact" if outcome.exact else "NOT the sequential program's result")
    return f"{place}: {', '.join(words)}", outcome.exact is not False


def _run_of(event: dict[str, Any], runs: list[Planned]) -> Planned:
    return next(run for run in runs if run.number == event["run"])


def _place(planned: Planned, runs: list[Planned]) -> str:
    return f"{runs.index(planned) + 1}/{len(runs)} {planned.benchmark}"
