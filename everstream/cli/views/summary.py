"""The summary at the end of a run: records read and written, checkpoints, recoveries."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
    _line(console, _rates(result))
    if checkpoints:
        _line(console, describe_checkpoints(checkpoints))
    show_recoveries(console, recoveries)
    if "returned" in result:
        _line(console, f"returned: {result['returned']}")


def _show_counts(console: Console, result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("operator")
    table.add_column("records in", justify="right")
    table.add_column("records out", justify="right")
    for name, (records_in, records_out) in result["counts"].items():
        table.add_row(escape(name), _count(records_in), _count(records_out))
    if result["counts"]:
        console.print(table)


def _count(records: int) -> str:
    return f"{records:,}" if records else "-"


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
        f"{readable_bytes(size_bytes)} written"
    )


def readable_bytes(size_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} GB"


def show_recoveries(console: Console, recoveries: Sequence[RecoveryReport]) -> None:
    """Times are in ms after the kill, or after detection if the time of the failure is unknown."""
    for report in recoveries:
        is_stated = "killed on purpose" in report.what
        how = "killed on purpose, " if report.injected and not is_stated else ""
        _line(console, f"{report.what}: {how}rolled back to epoch {report.from_epoch}")
        times = zip(STEPS, report.milliseconds().values(), strict=True)
        steps = [f"{step} {ms:,.0f} ms" for step, ms in times if ms is not None]
        replayed = f"{report.records_replayed:,} records replayed"
        suppressed = f"{report.duplicates_suppressed:,} duplicates suppressed"
        _line(console, f"  {', '.join(steps)}; {replayed}, {suppressed}")


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
