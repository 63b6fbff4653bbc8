"""What a run tells while it goes on, as one line for a screen."""

from typing import Any

from everstream.apps.cycle.plan import Planned


def line_of(event: dict[str, Any], runs: list[Planned]) -> str | None:
    """The event in words; None if there is nothing to say."""
    if event["event"] != "progress":
        return None
    planned = next(run for run in runs if run.number == event["run"])
    place = f"{runs.index(planned) + 1}/{len(runs)}"
    step = event["step"]
    share = f" {event['done']:,} of {event['total']:,}" if step != "the sequential result" else ""
    return f"{place} {planned.benchmark}, {planned.workers} worker(s): {step}{share}"
