"""Draws the states of a shard and the phases of a run, from the very tables the code goes by.

`python scripts/drawings.py` writes the pictures into docs/images; a test compares them with the
tables. Moves into a state that nearly all others can go to would cover the picture with arrows:
they stand as words under each state instead.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeAlias
from xml.sax.saxutils import escape

from everstream.core.orders import PHASE_MOVES, Phase
from everstream.core.status import MOVES, Status

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 136, 40, 58, 84, 22
INK, BOX, LINE, FAINT = "#1b1f24", "#eef3fb", "#3f51b5", "#6b7280"

Place: TypeAlias = tuple[int, int]
"""Column and row."""

SHARD: dict[Enum, Place] = {
    Status.NEW: (0, 0),
    Status.RESTORING: (1, 0),
    Status.READY: (2, 0),
    Status.RUNNING: (3, 0),
    Status.ENDED: (4, 0),
    Status.FAILED: (1, 1),
    Status.CLOSED: (2, 1),
    Status.STOPPED: (3, 1),
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


def drawings() -> dict[Path, str]:
    """The pictures by file."""
    shard_ends = (Status.RESTORING, Status.FAILED, Status.CLOSED)
    return {
        IMAGES / "shard-states.svg": drawing(
            SHARD, MOVES, shard_ends, {status: status.value for status in Status}
        ),
        IMAGES / "run-phases.svg": drawing(
            RUN,
            PHASE_MOVES,
            (Phase.RESTORING, Phase.DONE),
            {phase: phase.name.lower() for phase in Phase},
        ),
    }


if __name__ == "__main__":
    for file, text in drawings().items():
        file.write_text(text)
