"""Draws the pictures of the documents, as SVG.

The states of a shard and the phases of a run come from the tables in the code. Moves into a state that
nearly all others can reach would cover the picture with arrows: they are words under each state.
The way of a marker and a recovery line are drawn by hand, from the shapes below.

`python scripts/drawings.py` writes the pictures into docs/images; a test keeps them current.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeAlias
from xml.sax.saxutils import escape

from everstream.core.orders import PHASE_MOVES, Phase
from everstream.core.status import MOVES, ShardStatus

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 136, 40, 58, 84, 22
INK, BOX, LINE, FAINT = "#1b1f24", "#eef3fb", "#3f51b5", "#6b7280"

Place: TypeAlias = tuple[int, int]
"""Column and row."""
Point: TypeAlias = tuple[float, float]

SHARD: dict[Enum, Place] = {
    ShardStatus.NEW: (0, 0),
    ShardStatus.RESTORING: (1, 0),
    ShardStatus.READY: (2, 0),
    ShardStatus.RUNNING: (3, 0),
    ShardStatus.ENDED: (4, 0),
    ShardStatus.FAILED: (1, 1),
    ShardStatus.CLOSED: (2, 1),
    ShardStatus.STOPPED: (3, 1),
}
RUN: dict[Enum, Place] = {phase: (number, 0) for number, phase in enumerate(Phase)}


def drawing(
    places: Mapping[Enum, Place],
    moves: Mapping[Enum, Collection[Enum]],
    common: Collection[Enum],
    names: Mapping[Enum, str],
) -> str:
    """An SVG of all states and moves. Moves to a `common` state are words, but for the first way in."""
    columns = 1 + max(column for column, _ in places.values())
    rows = 1 + max(row for _, row in places.values())
    width = columns * (WIDTH + ACROSS) - ACROSS + 2 * MARGIN
    height = rows * (HEIGHT + DOWN) + MARGIN + 30
    shapes = []
    for state, (column, row) in places.items():
        left, top = _corner(column, row)
        words = []
        for target in (other for other in places if other in moves[state]):
            (to_column, to_row), steps = places[target], places[target][0] - column
            if target in common and not (steps == 1 and to_row == row):
                words.append("again" if target is state else names[target])
            elif to_row == row:
                shapes.append(_arc(left + WIDTH, _corner(to_column, row)[0], top, steps))
            else:
                shapes.append(_down(left + 30, top + HEIGHT, _corner(0, to_row)[1]))
        shapes.append(_box(left, top, names[state]))
        shapes += [
            f'<text x="{left + WIDTH - 4}" y="{top + HEIGHT + 16 + 15 * line}" text-anchor="end" '
            f'font-size="12" fill="{FAINT}">→ {escape(word)}</text>'
            for line, word in enumerate(words)
        ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="system-ui, sans-serif">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8Z" fill="{LINE}"/></marker></defs>',
            *shapes,
            "</svg>\n",
        ]
    )


def _corner(column: int, row: int) -> tuple[int, int]:
    return MARGIN + column * (WIDTH + ACROSS), MARGIN + 30 + row * (HEIGHT + DOWN)


def _box(left: int, top: int, name: str) -> str:
    return (
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{BOX}" '
        f'stroke="{LINE}"/><text x="{left + WIDTH / 2:g}" y="{top + HEIGHT / 2 + 5:g}" '
        f'text-anchor="middle" font-size="14" fill="{INK}">{escape(name)}</text>'
    )


def _arc(start: int, end: int, top: int, steps: int) -> str:
    """To the next state straight ahead, over the heads of those between to another."""
    if steps == 1:
        path = f"M{start} {top + HEIGHT / 2:g}H{end - 2}"
    else:
        begin, finish, peak = start - 30, end + 30, top - 14 - 18 * abs(steps)
        path = f"M{begin} {top}C{begin} {peak} {finish} {peak} {finish} {top - 2}"
    return f'<path d="{path}" fill="none" stroke="{LINE}" marker-end="url(#tip)"/>'


def _down(x: int, start: int, end: int) -> str:
    path = f"M{x} {start}V{end - 2}"
    return f'<path d="{path}" fill="none" stroke="{LINE}" marker-end="url(#tip)"/>'


OLD, NEXT, MARK, LOST = "#9fb3e8", "#f0b866", "#c2185b", "#c62828"
"""Frames before the marker, frames after it, the marker itself, and what a failure takes."""


def _svg(width: int, height: int, shapes: list[str]) -> str:
    tips = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8Z" fill="{colour}"/></marker>'
        for name, colour in (("line", LINE), ("faint", FAINT), ("lost", LOST), ("next", "#b26a00"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="system-ui, sans-serif">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            f"<defs>{tips}</defs>",
            *shapes,
            "</svg>\n",
        ]
    )


def _text(
    x: float, y: float, words: str, size: int = 12, colour: str = INK, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def _line(x: float, y: float, to_x: float, to_y: float, colour: str = LINE, more: str = "") -> str:
    return f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" fill="none" stroke="{colour}" {more}/>'


def _shard(x: float, y: float, name: str, saved: bool = False) -> str:
    """A shard; with a badge if it has taken its snapshot."""
    shape = (
        f'<rect x="{x:g}" y="{y:g}" width="62" height="32" rx="6" fill="{BOX}" stroke="{LINE}"/>'
        + _text(x + 31, y + 21, name, 12, anchor="middle")
    )
    if saved:
        shape += f'<circle cx="{x + 58:g}" cy="{y + 2:g}" r="7" fill="{LINE}"/>' + _text(
            x + 58, y + 6, "✓", 10, "#ffffff", "middle"
        )
    return shape


def _channel(start: Point, end: Point, frames: str) -> list[str]:
    """A channel with what is on it, from sender to receiver: o old frames, n next ones, m a marker."""
    (x, y), (to_x, to_y) = start, end
    shapes = [_line(x, y, to_x - 2, to_y, LINE, 'marker-end="url(#line)"')]
    for place, kind in enumerate(frames):
        share = (place + 1) / (len(frames) + 1)
        at_x, at_y = x + (to_x - x) * share, y + (to_y - y) * share
        if kind == "m":
            shapes.append(f'<path d="M{at_x:g} {at_y - 10:g}l8 10l-8 10l-8 -10Z" fill="{MARK}"/>')
        elif kind in "on":
            colour = OLD if kind == "o" else NEXT
            shapes.append(
                f'<rect x="{at_x - 6:g}" y="{at_y - 6:g}" width="12" height="12" rx="2" '
                f'fill="{colour}" stroke="#ffffff"/>'
            )
    return shapes


def aligned_marker() -> str:
    """Three moments of an epoch at a shard with two inputs."""
    moments = [
        (
            "1. One input has shown the marker",
            "It is held. The other one is read.",
            "nm",
            "oo",
            "o",
            "",
        ),
        ("2. All inputs have shown it", "The shard saves its state.", "nnm", "nm", "o", "j"),
        ("3. The marker is forwarded", "The inputs are released.", "nn", "nn", "mn", "j"),
    ]
    wide, shapes = 320, []
    for number, (title, below, upper, lower, out, saved) in enumerate(moments):
        left = 20 + number * wide
        top, bottom, middle = 66, 156, 111
        shapes += [_text(left, 28, title, 14), _text(left, 46, below, 12, FAINT)]
        shapes += _channel((left + 62, top + 16), (left + 140, middle + 10), upper)
        shapes += _channel((left + 62, bottom + 16), (left + 140, middle + 22), lower)
        shapes += _channel((left + 202, middle + 16), (left + 228, middle + 16), "")
        shapes += _channel((left + 202, middle + 16), (left + 228, middle + 16), out[:1])
        shapes.append(_shard(left, top, "source 1", saved=True))
        shapes.append(_shard(left, bottom, "source 2", saved=number > 0 or "m" in lower))
        shapes.append(_shard(left + 140, middle, "join", saved=bool(saved)))
        shapes.append(_shard(left + 228, middle, "sink"))
        if number == 0:
            shapes.append(_text(left + 96, top + 4, "held", 12, MARK))
    key = [("o", "records of epoch 7"), ("n", "records of epoch 8"), ("m", "marker 7")]
    for number, (kind, words) in enumerate(key):
        x = 20 + number * 180
        shapes += _channel((x, 226), (x + 16, 226), kind)[1:]
        shapes.append(_text(x + 24, 231, words))
    x = 20 + len(key) * 180
    shapes.append(f'<circle cx="{x + 8}" cy="226" r="7" fill="{LINE}"/>')
    shapes += [
        _text(x + 8, 230, "✓", 10, "#ffffff", "middle"),
        _text(x + 24, 231, "snapshot taken"),
    ]
    return _svg(20 + 3 * wide, 250, shapes)


def recovery_line() -> str:
    """Four shards over time: one fails, one rolls back with it, two keep running."""
    rows = {"numbers": 60, "left": 120, "left-out": 180, "right": 240}
    begin, now = 110, 690
    shapes = [
        _text(
            20,
            28,
            "left:0 fails. It and left-out:0 roll back; numbers:0 and right:0 keep running.",
            14,
        )
    ]
    for name, y in rows.items():
        shapes.append(_text(20, y + 4, f"{name}:0", 13))
        shapes.append(_line(begin, y, 560 if name == "left" else now, y, FAINT))
    taken = {"numbers": (190, 430), "left": (250, 380), "left-out": (300, 450), "right": (220, 560)}
    for name, times in taken.items():
        shapes += [
            f'<rect x="{x - 7}" y="{rows[name] - 7}" width="14" height="14" rx="2" fill="{LINE}"/>'
            for x in times
        ]
    sent = [
        ("numbers", 140, "left", 180, "line"),
        ("left", 200, "left-out", 240, "line"),
        ("numbers", 300, "right", 400, "line"),
        ("left", 330, "left-out", 360, "line"),
        ("numbers", 350, "left", 440, "next"),
        ("left", 470, "left-out", 520, "lost"),
    ]
    colours = {"line": LINE, "lost": LOST, "next": "#b26a00"}
    for sender, at, receiver, until, kind in sent:
        dashes = ' stroke-dasharray="5 3"' if kind == "lost" else ""
        more = f'stroke-width="1.5" marker-end="url(#{kind})"{dashes}'
        shapes.append(_line(at, rows[sender], until, rows[receiver] - 2, colours[kind], more))
    y = rows["left"]
    cross = f'stroke="{LOST}" stroke-width="3"'
    shapes.append(f'<path d="M552 {y - 8}l16 16m0 -16l-16 16" {cross}/>')
    shapes.append(_text(576, y - 8, "failure", 12, LOST))
    for name, start in (("left", 387), ("left-out", 457)):
        end = 560 if name == "left" else now
        shapes.append(
            _line(start, rows[name], end, rows[name], LOST, 'stroke-width="4" opacity="0.3"')
        )
    path = f"M{now} 44V{rows['numbers'] + 12}L380 {rows['left']}L450 {rows['left-out']}L{now} {rows['right'] - 14}V258"
    shapes.append(
        f'<path d="{path}" fill="none" stroke="{MARK}" stroke-width="2" stroke-dasharray="7 4"/>'
    )
    shapes.append(_text(now + 8, 152, "recovery line", 13, MARK))
    shapes.append(_text(now + 8, rows["numbers"] + 4, "live", 12, FAINT))
    shapes.append(_text(now + 8, rows["right"] + 4, "live", 12, FAINT))
    y = 292
    shapes.append(f'<rect x="20" y="{y - 11}" width="14" height="14" rx="2" fill="{LINE}"/>')
    shapes.append(_text(42, y, "checkpoint"))
    for x, kind, words in (
        (140, "next", "sent before, received after the line: replayed from the log"),
        (540, "lost", "sent after the line: rolled back"),
    ):
        dashes = 'stroke-dasharray="5 3" ' if kind == "lost" else ""
        tip = f'{dashes}stroke-width="1.5" marker-end="url(#{kind})"'
        shapes.append(_line(x, y - 4, x + 30, y - 4, colours[kind], tip))
        shapes.append(_text(x + 38, y, words))
    return _svg(800, 310, shapes)


def state_drawings() -> dict[Path, str]:
    """The pictures that are made from tables, by file."""
    shard_ends = (ShardStatus.RESTORING, ShardStatus.FAILED, ShardStatus.CLOSED)
    return {
        IMAGES / "shard-states.svg": drawing(
            SHARD, MOVES, shard_ends, {status: status.value for status in ShardStatus}
        ),
        IMAGES / "run-phases.svg": drawing(
            RUN,
            PHASE_MOVES,
            (Phase.RESTORING, Phase.DONE),
            {phase: phase.name.lower() for phase in Phase},
        ),
    }


def drawings() -> dict[Path, str]:
    """All pictures by file."""
    return {
        **state_drawings(),
        IMAGES / "aligned-marker.svg": aligned_marker(),
        IMAGES / "recovery-line.svg": recovery_line(),
    }


if __name__ == "__main__":
    for file, text in drawings().items():
        file.write_text(text)
