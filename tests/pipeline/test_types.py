"""What a type checker, and so an editor, knows about a pipeline; and what it flags."""

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]

PROGRAM = """
from dataclasses import dataclass
import polars as pl
import everstream as es

pipeline = es.Pipeline("types")
lines = pipeline.source(es.TextLines("books/*.txt"), shards=2)
words = lines.flat_map(str.split, name="words", on_error="skip")
lengths = words.map(len)
keyed = words.key_by(lambda word: word[0])
counts = keyed.fold(init=int, update=lambda count, word: count + 1, shards=2)
longest = keyed.reduce(lambda one, other: max(one, other, key=len))
timed = pipeline.source(es.Range(9, column="n")).event_time("n", unit="s")
windows = timed.key_by("n").window(es.Tumbling("1s"))
per_window = windows.aggregate(n=es.count(), top=es.max("n"))
rows = words.map(lambda word: {"word": word}).with_columns(size=pl.col("word").str.len_chars())
running = rows.key_by("word").aggregate(n=es.count(), emit="record")
long, short = words.branch(lambda word: len(word) > 9)
def framed(batch: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"word": batch})
frames = words.map_batches(framed)
@dataclass
class Order:
    item: str
    cents: int
@dataclass
class Price:
    euros: float
def price(order: Order) -> Price:
    return Price(order.cents / 100)
orders = pipeline.source(es.FromList([{"item": "pear", "cents": 3}]), schema=Order)
declared = pipeline.source(es.Range(3, column="n"), schema={"n": pl.Int32})
"""

REVEALED = {
    "lines": "Stream[str]",
    "words": "Stream[str]",
    "lengths": "Stream[int]",
    "keyed": "KeyedStream[str, str]",
    "counts": "Stream[tuple[str, int]]",
    "longest": "Stream[tuple[str, str]]",
    "timed": "Stream[dict[str, Any]]",
    "windows": "WindowedStream",
    "per_window": "Stream[dict[str, Any]]",
    "rows": "Stream[dict[str, Any]]",
    "running": "Stream[dict[str, Any]]",
    "long": "Stream[str]",
    "frames": "Stream[dict[str, Any]]",
    "orders": "Stream[program.Order]",
    "orders.map(price)": "Stream[program.Price]",
    "rows.as_rows(Order).filter(lambda order: order.cents > 3)": "Stream[program.Order]",
    "declared": "Stream[dict[str, Any]]",
    "words.union(lengths)": "Stream[str | int]",
    "words.filter(pl.lit(True))": "Stream[str]",
    "keyed.map(len)": "Stream[int]",
    "pipeline.source(es.FromList([1.5]))": "Stream[float]",
    "pipeline.source(es.Paced(es.Range(3), rate=9))": "Stream[int]",
    "pipeline.source(es.Range(3)).batch(count=2)": "Stream[list[int]]",
    "keyed.fold(list, lambda seen, word: [*seen, word])": "Stream[tuple[str, list[Any]]]",
    "words.sink(es.JsonLines('out/'))": "Pipeline",
    "pipeline.run()": "RunResult",
}

FLAGGED = {
    "words.fold(int, lambda n, word: n + 1)": '"Stream[str]" has no attribute "fold"',
    "words.aggregate(n=es.count())": '"Stream[str]" has no attribute "aggregate"',
    "words.key_by(len).union(words).reduce(max)": 'has no attribute "reduce"',
    "lengths.map(str.upper)": 'has incompatible type "Callable[[str], str]"',
    "lengths.filter(lambda n: n.upper())": '"int" has no attribute "upper"',
    "orders.map(lambda order: order.cent)": '"Order" has no attribute "cent"',
    "words.map(price)": 'expected "Callable[[str], Price]"',
    "words.map(len, shard=2)": 'Unexpected keyword argument "shard"',
    'words.map(len, on_error="wait")': "incompatible type \"Literal['wait']\"",
    "words.key_by(lambda word: [word])": 'cannot be "list[str]"',
    'keyed.aggregate(n="n")': 'incompatible type "str"; expected "Aggregate"',
    "windows.aggregate(n=3)": 'incompatible type "int"; expected "Aggregate"',
    "es.Strem(pipeline)": 'Module has no attribute "Strem"',
    "windows.map(len)": '"WindowedStream" has no attribute "map"',
    'pipeline.run(evry="5s")': 'Unexpected keyword argument "evry"',
    "pipeline.run(checkpoint=5)": 'incompatible type "int"',
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Line by line, what mypy says of the program, the questions and the misuses."""
    folder = tmp_path_factory.mktemp("types")
    text = PROGRAM + "".join(f"reveal_type({asked})\n" for asked in REVEALED)
    program = folder / "program.py"
    program.write_text(text + "".join(f"{misuse}\n" for misuse in FLAGGED))
    # With the project's own settings and cache, so that what `mypy` has looked at is not read again.
    settings = ["--config-file", str(ROOT / "pyproject.toml")]
    out, err, _ = api.run([*settings, "--cache-dir", str(ROOT / ".mypy_cache"), str(program)])
    assert not err, err
    found: dict[int, str] = {}
    for line, words in re.findall(r"program\.py:(\d+): (.*)", out):
        found[int(line)] = found.get(int(line), "") + words + "\n"
    return found


def line_of(number: int) -> int:
    return PROGRAM.count("\n") + 1 + number


def test_a_typical_pipeline_has_no_errors(said: dict[int, str]) -> None:
    program = range(1, line_of(0))
    assert {line: words for line, words in said.items() if line in program} == {}


@pytest.mark.parametrize("number", range(len(REVEALED)), ids=[*REVEALED])
def test_the_type_of_what_flows_is_known(said: dict[int, str], number: int) -> None:
    revealed = re.sub(r"(everstream|builtins|typing)(\.\w+)*\.", "", said[line_of(number)])
    assert revealed == f'note: Revealed type is "{[*REVEALED.values()][number]}"\n'


@pytest.mark.parametrize("number", range(len(FLAGGED)), ids=[*FLAGGED])
def test_a_misuse_is_flagged(said: dict[int, str], number: int) -> None:
    words = said[line_of(len(REVEALED) + number)]
    assert [*FLAGGED.values()][number] in words and "error: " in words
