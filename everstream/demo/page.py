"""A report as one HTML page that needs nothing else: text, tables, and its picture inside it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 3rem auto;
       padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.verdict { display: inline-block; padding: .5rem 1rem; border-radius: .4rem; font-weight: 600 }
.good { background: #d9ead3 } .bad { background: #f4c7c3 }
table { border-collapse: collapse } td, th { padding: .3rem 1.4rem .3rem 0; text-align: right;
       border-bottom: 1px solid #e3e3e3; font-variant-numeric: tabular-nums }
td:first-child, th:first-child { text-align: left } th { font-weight: 600; color: #666 }
img { max-width: 100% } .dim { color: #666 }
"""


@dataclass
class HtmlReport:
    """Put together from top to bottom, then written."""

    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, text: str) -> None:
        self.parts.append(f"<p>{escape(text)}</p>")

    def verdict(self, text: str, good: bool) -> None:
        kind = "good" if good else "bad"
        self.parts.append(f'<p class="verdict {kind}">{escape(text)}</p>')

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def picture(self, png: Path, says: str) -> None:
        data = base64.b64encode(png.read_bytes()).decode()
        source = f"data:image/png;base64,{data}"
        self.parts.append(f'<p><img alt="{escape(says, quote=True)}" src="{source}"></p>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        cells = "".join(f"<th>{escape(name)}</th>" for name in head)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        self.parts.append(f"<table><tr>{cells}</tr>{body}</table>")

    def facts(self, facts: Mapping[str, str]) -> None:
        self.table(("", ""), list(facts.items()))

    def write(self, path: Path) -> None:
        title = escape(self.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
            + "\n".join(self.parts)
            + "\n</body></html>\n"
        )
