"""A tiny application: numbers that are squared and told in words, with or without order."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import everstream as es
from everstream_lab.apps.application import Application, Tell, json_line
from everstream_lab.apps.interfaces.job import Job

SIZES = {"test": 60, "small": 600, "medium": 6_000, "large": 60_000, "huge": 600_000}


def make_input(size: int, folder: Path, tell: Tell) -> None:
    (folder / "numbers.json").write_text(json.dumps([*range(size)]))


def items(folder: Path) -> list[int]:
    numbers: list[int] = json.loads((folder / "numbers.json").read_text())
    return numbers


def square(number: int) -> int:
    return number * number


def in_words(number: int) -> dict[str, Any]:
    return {"square": number}


def sequential(folder: Path, output: Path) -> None:
    output.write_bytes(b"".join(sorted(json_line(in_words(square(n))) for n in items(folder))))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    tiny = es.Pipeline("tiny")
    numbers = tiny.source(es.FromList(items(folder), batch=batch), name="numbers").on_demand()
    squares = numbers.map(square, name="square", shards=shards)
    words = squares.on_demand().map(in_words, name="in_words", shards=1)
    return words.sink(es.JsonLines(parts))


APPLICATION = Application(
    name="tiny",
    title="squares in words",
    sizes=SIZES,
    make_input=make_input,
    items=items,
    stages=(square, in_words),
    sequential=sequential,
    pipeline=pipeline,
    annotated=pipeline,
    result="squares.jsonl",
    batch=7,
)

ORDERED = dataclasses.replace(APPLICATION, ordered=True, encode=json_line)


def job(tmp_path: Path, application: Application = APPLICATION, **more: Any) -> Job:
    """A job on an input of 60 numbers."""
    folder = tmp_path / "input"
    folder.mkdir()
    make_input(60, folder, lambda done, total: None)
    return Job(application, __file__, folder, tmp_path / "result", **more)


def right(folder: Path) -> bytes:
    """The result in the order of the items."""
    return b"".join(json_line(in_words(square(number))) for number in items(folder))
