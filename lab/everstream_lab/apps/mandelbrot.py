"""Draws the Mandelbrot set, a line at a time; lines through its middle take longest.

The picture is right only if its lines stand in order, whichever was ready first: the sink is
ordered.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

import everstream as es
from everstream_lab.apps.application import Application, Tell

LEFT, TOP, RANGE = -2.125, -1.5, 3.0
SIZES = {
    "test": {"size": 64, "iterations": 500},
    "small": {"size": 400, "iterations": 5_000},
    "medium": {"size": 1_000, "iterations": 10_000},
    "large": {"size": 2_000, "iterations": 10_000},
    "huge": {"size": 4_000, "iterations": 10_000},
}


class Line(NamedTuple):
    """A line of the picture, which is as wide as it is high."""

    number: int
    size: int
    iterations: int


@njit(cache=True)
def grey_values(number: int, size: int, iterations: int) -> Any:
    step = RANGE / size
    row = np.empty(size, np.uint8)
    for column in range(size):
        point = complex(LEFT + column * step, TOP + number * step)
        z, count = 0j, 0
        while count < iterations and z.real * z.real + z.imag * z.imag <= 4.0:
            z = z * z + point
            count += 1
        row[column] = 255 - count * 255 // iterations
    return row


def pixels(line: Line) -> Any:
    return grey_values(*line)


def lines(folder: Path) -> list[Line]:
    view = json.loads((folder / "view.json").read_text())
    return [Line(number, view["size"], view["iterations"]) for number in range(view["size"])]


def header(folder: Path) -> bytes:
    """What makes the grey values a picture: a portable grey map."""
    size = len(lines(folder))
    return f"P5\n{size} {size}\n255\n".encode()


def sequential(folder: Path, output: Path) -> None:
    with output.open("wb") as picture:
        picture.write(header(folder))
        for line in lines(folder):
            picture.write(pixels(line))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    mandelbrot = es.Pipeline("mandelbrot")
    source = mandelbrot.source(es.FromList(lines(folder), batch=batch), name="lines")
    rows = source.map(pixels, name="pixels", shards=shards)
    return rows.sink(es.Binary(parts), ordered=True)


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    with es.ToStream(batch=batch):
        for line in lines(folder):
            with es.Stage(replicate=shards, outputs=[line], ordered=True, sink=es.Binary(parts)):
                line = pixels(line)


def make_input(view: dict[str, int], folder: Path, tell: Tell) -> None:
    (folder / "view.json").write_text(json.dumps(view))


APPLICATION = Application(
    name="mandelbrot",
    title="the Mandelbrot set, line by line",
    sizes=SIZES,
    make_input=make_input,
    items=lines,
    stages=(pixels,),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="mandelbrot.pgm",
    ordered=True,
    encode=bytes,
    opening=header,
)
