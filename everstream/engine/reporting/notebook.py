"""The notebook display of runs: tables in HTML, without scripts, every name escaped.

Colours are the notebook's, so that it is readable in a light and in a dark theme.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstream.engine.result import RunResult

View = Mapping[str, Any]
NOTES = 5
FAILURES = 10
UNKNOWN = "&ndash;"
_CELL = "padding:2px 12px 2px 0;text-align:{};border-bottom:1px solid rgba(128,128,128,.35)"


def result_html(result: "RunResult") -> str:
    operators = [
        [escape(name), f"{given[0]:,}", f"{given[1]:,}", f"{result.skipped.get(name, 0):,}"]
        for name, given in result.counts.items()
    ]
    told = [f"{result.checkpoint_count:,} checkpoints"]
    if result.checkpoints:
        told.append(f"the last one epoch {result.checkpoints[-1].epoch}")
    told.append(f"{result.recovery_count:,} failures survived")
    failures = [
        [
            escape(report.what),
            _ms(report.milliseconds()["caught_up_ms"]),
            f"{report.records_replayed:,}",
            f"{report.duplicates_suppressed:,}",
        ]
        for report in list(result.recoveries)[-FAILURES:]
    ]
    return _framed(
        _heading(result.pipeline, result.outcome.value, f"{result.wall_s:,.1f} s"),
        _table(["operator", "records in", "records out", "skipped"], operators),
        _line(", ".join(told)),
        _table(
            ["failure", "caught up after", "records replayed", "duplicates suppressed"], failures
        ),
        *(_line(escape(note)) for note in result.notes[-NOTES:]),
    )


def run_html(view: View) -> str:
    ended = view["ended"]
    rows = [
        [
            escape(operator["name"]),
            escape(operator["kind"]),
            f"{operator['shards']:,}",
            _rate(operator["in_per_s"]),
            _rate(operator["out_per_s"]),
            _share(operator["busy"]),
            _share(operator["blocked"]),
            escape(_fed_by(view, operator["name"])),
        ]
        for operator in view["operators"]
    ]
    stable = next((row for row in view["checkpoints"] if row["failed"] is None), None)
    last = max(view["failures"], key=lambda failure: float(failure["at"]), default=None)
    said = [] if stable is None else [f"last checkpoint: epoch {stable['epoch']}"]
    if last is not None:
        how = _ms(last["caught_up_ms"])
        caught_up = f"caught up after {how}" if last["caught_up_ms"] is not None else "recovering"
        said.append(f"last failure: {escape(last['what'])}, {caught_up}")
    names = ["operator", "kind", "shards", "in", "out", "busy", "back-pressured", "fed by"]
    return _framed(
        _heading(
            str(view["pipeline"] or ""),
            str(ended["outcome"] if ended else view["phase"]),
            f"epoch {view['epoch']}",
        ),
        _table(names, rows, left=("operator", "kind", "fed by")),
        _line("; ".join(said)),
    )


def _framed(*parts: str) -> str:
    return f'<div style="font-variant-numeric:tabular-nums">{"".join(parts)}</div>'


def _heading(pipeline: str, state: str, more: str) -> str:
    return f"<p><b>{escape(pipeline)}</b> &nbsp; {escape(state)} &nbsp; {escape(more)}</p>"


def _line(text: str) -> str:
    return f"<p>{text}</p>" if text else ""


def _table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[str] = ("operator", "failure"),
) -> str:
    """Cells are HTML already."""
    sides = ["left" if name in left else "right" for name in names]

    def row(cells: Sequence[str], tag: str) -> str:
        pairs = zip(cells, sides, strict=True)
        filled = (f'<{tag} style="{_CELL.format(side)}">{cell}</{tag}>' for cell, side in pairs)
        return f"<tr>{''.join(filled)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    if not body:
        return ""
    return f"<table><thead>{row(names, 'th')}</thead><tbody>{body}</tbody></table>"


def _fed_by(view: View, name: str) -> str:
    return ", ".join(edge["from"] for edge in view["edges"] if edge["to"] == name)


def _rate(per_s: float | None) -> str:
    return UNKNOWN if per_s is None else f"{per_s:,.0f}/s"


def _share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def _ms(milliseconds: float | None) -> str:
    return UNKNOWN if milliseconds is None else f"{milliseconds:,.0f} ms"
