"""The summary at the end of a run: records read and written, checkpoints, recoveries."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstream.cli.say import in_words, say
from everstream.core.coordinators.recovery_report import RecoveryReport

STEPS = ("detected", "restarted", "restored", "replayed", "caught up")


def show_summary(
    console: Console,
    result: dict[str, Any],
    checkpoints: Sequence[dict[str, Any]],
    recoveries: Sequence[RecoveryReport],
) -> None:
    """`result` is that of `RunResult.to_json`."""
    _show_counts(console, result)
    say(_rates(result), console)
    if checkpoints:
        say(describe_checkpoints(checkpoints), console)
    show_recoveries(console, recoveries)
    if "returned" in result:
        say(f"returned: {result['returned']}", console)


def _show_counts(console: Console, result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("operator")
    table.add_column("records in", justify="right")
    table.add_column("records out", justify="right")
    for name, counts in result["counts"].items():
        table.add_row(escape(name), *(f"{n:,}" if n else "-" for n in counts))
    if result["counts"]:
        console.print(table)


def _rates(result: dict[str, Any]) -> str:
    text = f"{result['records_in']:,} records in, {result['records_out']:,} out"
    if result["resumed_from"]:
        return f"{text}, over all runs since the start (this one resumed from epoch {result['resumed_from']})"
    if result["wall_s"] > 0:
        text += f", in {result['wall_s']:.1f} s ({result['records_per_s']:,.0f} records/s)"
    return text


def describe_checkpoints(checkpoints: Sequence[dict[str, Any]]) -> str:
    took_ms = median(checkpoint["duration_s"] for checkpoint in checkpoints) * 1000
    size_bytes = sum(checkpoint["bytes"] for checkpoint in checkpoints)
    return (
        f"{len(checkpoints)} checkpoint(s), median {took_ms:,.0f} ms, "
        f"{in_words(size_bytes)} written"
    )


def show_recoveries(console: Console, recoveries: Sequence[RecoveryReport]) -> None:
    """Times are in ms after the kill, or after detection if the time of the failure is unknown."""
    for report in recoveries:
        is_stated = "killed on purpose" in report.what
        how = "killed on purpose, " if report.injected and not is_stated else ""
        say(f"{report.what}: {how}rolled back to epoch {report.from_epoch}", console)
        times = zip(STEPS, report.milliseconds().values(), strict=True)
        steps = [f"{step} {ms:,.0f} ms" for step, ms in times if ms is not None]
        replayed = f"{report.records_replayed:,} records replayed"
        suppressed = f"{report.duplicates_suppressed:,} duplicates suppressed"
        say(f"  {', '.join(steps)}; {replayed}, {suppressed}", console)
