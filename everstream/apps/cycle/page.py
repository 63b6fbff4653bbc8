"""An HTML page that needs nothing else: text, tables and charts, in light and in dark."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from everstream.apps.cycle import charts
from everstream.apps.cycle.charts import Chart

STYLE = (
    charts.STYLE
    + """
a { color: var(--s0) }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2.5rem auto; padding: 0 1.5rem }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.2rem; margin-top: 2.4rem }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem }
.bar { display: inline-block; height: .6rem; min-width: 1px; background: var(--s0);
  border-radius: .15rem }
.verdict { display: inline-block; padding: .45rem 1rem; border-radius: .4rem; font-weight: 600 }
.good { background: var(--good) } .bad { background: var(--bad) } .dim { color: var(--dim) }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr));
  gap: 1.4rem }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: .92rem }
td, th { padding: .28rem 1.1rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap }
td:first-child, th:first-child, .words td, .words th { text-align: left } th { font-weight: 600; color: var(--dim) }
"""
)


@dataclass
class Page:
    """Put together from top to bottom, then written."""

    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, text: str, *, dim: bool = False) -> None:
        kind = ' class="dim"' if dim else ""
        self.parts.append(f"<p{kind}>{escape(text)}</p>")

    def verdict(self, text: str, good: bool) -> None:
        kind = "good" if good else "bad"
        self.parts.append(f'<p class="verdict {kind}">{escape(text)}</p>')

    def heading(self, text: str, level: int = 2) -> None:
        self.parts.append(f"<h{level}>{escape(text)}</h{level}>")

    def bars(self, head: Sequence[str], rows: Sequence[tuple[str, str, str, float]]) -> None:
        """A table of two words and a number each, with a bar of that share of the whole width."""
        cells = "".join(f"<th>{escape(name)}</th>" for name in head)
        body = "".join(
            f"<tr><td>{escape(one)}</td><td>{escape(other)}</td>"
            f'<td style="text-align: right">{escape(number)}</td>'
            f'<td><span class="bar" style="width: {share * 16:.2f}rem"></span></td></tr>'
            for one, other, number, share in rows
        )
        table = f'<table class="words"><tr>{cells}<th></th></tr>{body}</table>'
        self.parts.append(f'<div class="table">{table}</div>')

    def link(self, to: str, text: str) -> None:
        self.parts.append(f'<p><a href="{escape(to, quote=True)}">{escape(text)}</a></p>')

    def charts(self, some: Sequence[Chart]) -> None:
        drawn = "\n".join(f"<div>{chart.svg()}</div>" for chart in some)
        self.parts.append(f'<div class="charts">{drawn}</div>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        cells = "".join(f"<th>{escape(name)}</th>" for name in head)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        self.parts.append(f'<div class="table"><table><tr>{cells}</tr>{body}</table></div>')

    def html(self) -> str:
        title = escape(self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            + "\n".join(self.parts)
            + "\n</body></html>\n"
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html())
