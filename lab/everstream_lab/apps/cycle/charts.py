"""Line charts as SVG text, in the colours of the page they stand on: light or dark, offline.

A chart knows nothing of benchmarks: series of points, perhaps with error bars, two axes that begin
at zero, and a legend. Each series has its own colour and dash, so that no reader needs both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

import polars as pl

WIDTH, HEIGHT = 520, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 42
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "1 4", "10 2 2 2 2 2")
COLOURS = 7
MOST_POINTS = 600
GAP = 8
"""A gap in the samples this many times longer than usual makes a curve faint."""

STYLE = """
:root { --ink: #1d2330; --dim: #5d6675; --line: #e1e5ea; --paper: #fff; --good: #d8efdc;
  --bad: #f7d3cf; --s0: #1f6feb; --s1: #c2410c; --s2: #15803d; --s3: #8b30c9; --s4: #0e7490;
  --s5: #b4235f; --s6: #7a6400 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #9aa4b2; --line: #2d3440;
  --paper: #12161d; --good: #173a22; --bad: #4c1d1a; --s0: #6ea8ff; --s1: #ff9a5c; --s2: #5fd38a;
  --s3: #cf9bff; --s4: #4fc7dd; --s5: #ff86b3; --s6: #dcc04c } }
svg.chart { width: 100%; height: auto; font: 12px system-ui, sans-serif }
svg.chart text { fill: var(--dim) } svg.chart .title { fill: var(--ink); font-weight: 600 }
svg.chart .grid { stroke: var(--line) } svg.chart .axis { stroke: var(--dim) }
svg.chart .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round }
svg.chart .gap { stroke-width: 1; opacity: .35 }
svg.chart .mark { stroke: var(--dim); stroke-dasharray: 3 3 }
"""


@dataclass(frozen=True)
class Series:
    """A curve; `deviations` are drawn as bars to both sides of each point."""

    name: str
    points: Sequence[tuple[float, float]]
    deviations: Sequence[float] = ()
    faint: bool = False
    """For what is only there to compare with."""


@dataclass
class Chart:
    """One pair of axes with some curves."""

    title: str
    across: str
    up: str
    series: list[Series] = field(default_factory=list)
    whole_steps: bool = False
    """Whether the axis across counts things."""
    span: tuple[float, float] | None = None
    """From where to where the axis across goes; default: as far as there are points."""
    marks: Sequence[tuple[float, str]] = ()
    """Moments that something happened at, and what, in a word."""

    def svg(self) -> str:
        known = [(x, y) for one in self.series for x, y in one.points if _drawn(x, y)]
        if not known:
            return f'<p class="dim">{escape(self.title)}: nothing was measured.</p>'
        low_x, high_x = self.span or (min(x for x, _ in known), max(x for x, _ in known))
        if high_x <= low_x:
            low_x, high_x = low_x - 0.5, high_x + 0.5
        tops = [
            y + (one.deviations[place] if one.deviations else 0.0)
            for one in self.series
            for place, (x, y) in enumerate(one.points)
            if _drawn(x, y)
        ]
        up_ticks = ticks(0.0, max(tops) or 1.0)
        frame = _Frame(low_x, high_x, up_ticks[-1])
        parts = [
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT + 18 * self._legends}" '
            f'role="img" aria-label="{escape(self.title, quote=True)}">',
            f'<text class="title" x="{LEFT}" y="11">{escape(self.title)}</text>',
        ]
        parts += self._grid(frame, up_ticks, ticks(low_x, high_x, whole=self.whole_steps))
        parts += self._marks(frame)
        for number, one in enumerate(self.series):
            parts += _curve(one, number, frame)
            if self._legends:
                parts += _legend(one, number)
        return "\n".join([*parts, "</svg>"])

    @property
    def _legends(self) -> int:
        """A curve that is alone needs no name."""
        return len(self.series) if len(self.series) > 1 else 0

    def _marks(self, frame: "_Frame") -> list[str]:
        marks = []
        for at, word in self.marks:
            if frame.low_x <= at <= frame.high_x:
                x = frame.x(at)
                marks.append(
                    f'<line class="mark" x1="{x}" y1="{TOP + 6}" x2="{x}" y2="{HEIGHT - BOTTOM}"/>'
                    f'<text x="{x + 4}" y="{TOP + 14}">{escape(word)}</text>'
                )
        return marks

    def _grid(self, frame: "_Frame", up: list[float], across: list[float]) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        lines = []
        for value in up:
            y = frame.y(value)
            lines.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}"/>')
            lines.append(
                f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{short(value)}</text>'
            )
        for value in across:
            if frame.low_x <= value <= frame.high_x:
                x = frame.x(value)
                lines.append(
                    f'<line class="axis" x1="{x}" y1="{bottom}" x2="{x}" y2="{bottom + 4}"/>'
                )
                lines.append(
                    f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{short(value)}</text>'
                )
        middle = (TOP + bottom) / 2
        return [
            *lines,
            f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>',
            f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{escape(self.across)}</text>",
            f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.up)}</text>",
        ]


@dataclass(frozen=True)
class _Frame:
    low_x: float
    high_x: float
    high_y: float

    def x(self, value: float) -> float:
        share = (value - self.low_x) / (self.high_x - self.low_x)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.high_y * (HEIGHT - TOP - BOTTOM - 6), 1)


def _curve(one: Series, number: int, frame: _Frame) -> list[str]:
    colour = f"var(--s{number % COLOURS})"
    drawn = [(place, x, y) for place, (x, y) in enumerate(one.points) if _drawn(x, y)]
    drawn = drawn[:: max(1, len(drawn) // MOST_POINTS)]
    pieces = unbroken([(x, y) for _, x, y in drawn])
    shapes = [
        f'<polyline class="curve" stroke="{colour}" stroke-dasharray="{_dash(number)}" '
        f'opacity="{0.55 if one.faint else 1}" points="{_path(piece, frame)}"/>'
        for piece in pieces
    ]
    shapes += [
        f'<polyline class="curve gap" stroke="{colour}" points="{path}"/>'
        for before, after in pairwise(pieces)
        for path in [_path([before[-1], after[0]], frame)]
    ]
    if len(drawn) <= 40:
        for place, x, y in drawn:
            shapes.append(f'<circle cx="{frame.x(x)}" cy="{frame.y(y)}" r="2.6" fill="{colour}"/>')
            if one.deviations and one.deviations[place] > 0:
                ends = (
                    frame.y(max(y - one.deviations[place], 0.0)),
                    frame.y(y + one.deviations[place]),
                )
                shapes.append(
                    f'<line stroke="{colour}" x1="{frame.x(x)}" x2="{frame.x(x)}" '
                    f'y1="{ends[0]}" y2="{ends[1]}"/>'
                )
    return shapes


def _path(points: Sequence[tuple[float, float]], frame: _Frame) -> str:
    return " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in points)


def unbroken(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The points in pieces that a line may join; where nothing was measured it is only hinted at.

    >>> unbroken([(0, 1), (1, 1), (2, 1), (30, 1), (31, 1)])
    [[(0, 1), (1, 1), (2, 1)], [(30, 1), (31, 1)]]
    """
    steps = sorted(after[0] - before[0] for before, after in pairwise(points))
    longest = GAP * steps[len(steps) // 2] if len(steps) > 2 else math.inf
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if not pieces or point[0] - pieces[-1][-1][0] > longest:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _legend(one: Series, number: int) -> list[str]:
    y = HEIGHT + 8 + 18 * number
    return [
        f'<line class="curve" stroke="var(--s{number % COLOURS})" '
        f'stroke-dasharray="{_dash(number)}" x1="{LEFT}" x2="{LEFT + 34}" y1="{y}" y2="{y}"/>',
        f'<text x="{LEFT + 42}" y="{y + 4}">{escape(one.name)}</text>',
    ]


def _dash(number: int) -> str:
    return DASHES[number % len(DASHES)]


def _drawn(x: float, y: float) -> bool:
    return math.isfinite(x) and math.isfinite(y)


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers from at most `low` to at least `high`.

    >>> ticks(0, 7.2)
    [0, 2, 4, 6, 8]
    """
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def short(value: float) -> str:
    """A number as an axis has it.

    >>> short(1_500_000), short(20_000), short(0.25)
    ('1.5M', '20k', '0.25')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


OVER_TIME = (
    ("throughput_instant", "throughput", "items per second"),
    ("latency_instant_ms", "latency", "ms"),
    ("cpu_percent", "CPU", "% of one core"),
    ("memory_kb", "memory", "MB"),
)
BY_SETTING = (
    ("throughput", "throughput", "items per second"),
    ("latency_ms", "latency", "ms"),
)


def over_time(
    monitor: pl.DataFrame,
    names: dict[int, str],
    title: str = "",
    marks: Sequence[tuple[float, str]] = (),
) -> list[Chart]:
    """What the monitor saw from moment to moment, one curve per run."""
    charts = []
    span = _span(monitor, names)
    for column, what, unit in OVER_TIME:
        chart = Chart(f"{title}{what} over time", "seconds", unit, span=span, marks=marks)
        scale = 1 / 1024 if column == "memory_kb" else 1.0
        for run, name in names.items():
            chart.series.append(Series(name, _points(monitor, run, column, scale)))
        if what == "throughput":
            for run, name in names.items():
                target = _points(monitor, run, "target_frequency", 1.0)
                if target:
                    chart.series.append(Series(f"{name}: target", target, faint=True))
        charts.append(chart)
    return charts


def batch_over_time(monitor: pl.DataFrame, names: dict[int, str], title: str = "") -> Chart:
    """How many items travelled together, as the sink saw them."""
    chart = Chart(f"{title}batch size over time", "seconds", "items", span=_span(monitor, names))
    for run, name in names.items():
        chart.series.append(Series(name, _points(monitor, run, "batch_size", 1.0)))
    return chart


def _span(monitor: pl.DataFrame, names: dict[int, str]) -> tuple[float, float]:
    """The same for all charts of these runs, so that they can be read one above the other."""
    ends = monitor.filter(pl.col("run").is_in(list(names)))["elapsed_s"].to_list()
    return 0.0, max(ends, default=0.0)


def _points(
    monitor: pl.DataFrame, run: int, column: str, scale: float
) -> list[tuple[float, float]]:
    rows = monitor.filter(pl.col("run") == run).select("elapsed_s", column).drop_nulls()
    return [(at, value * scale) for at, value in rows.iter_rows()]


def by_setting(
    table: pl.DataFrame, across: str, apart: Sequence[str], title: str = ""
) -> list[Chart]:
    """Throughput and latency by workers or by batch, one curve per value of the other columns."""
    charts = []
    for column, what, unit in BY_SETTING:
        chart = Chart(f"{title}{what} by {across}", across, unit, whole_steps=True)
        for key, rows in table.sort(across).group_by(apart, maintain_order=True):
            known = rows.drop_nulls(column)
            points = list(zip(known[across].to_list(), known[column].to_list(), strict=True))
            spread = known[f"{column}_deviation"].to_list()
            chart.series.append(Series(named(apart, key), points, spread))
        charts.append(chart)
    return charts


def named(columns: Sequence[str], key: Sequence[object]) -> str:
    """What tells one curve from the other."""
    counted = ("workers", "batch")
    return ", ".join(
        f"{column} {value}" if column in counted else str(value)
        for column, value in zip(columns, key, strict=True)
    )
