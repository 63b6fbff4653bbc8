"""The cost of records at everyday rates: the same work in a run and in the bare loop, and its figures."""

from collections import Counter
from typing import Any

import pytest

import everstream as es
from everstream.errors import UserError
from everstream_lab.bench import cost

APART_US = 20_000
TOTAL = 400


def of_run(shape: str) -> "Counter[Any]":
    pipeline = es.Pipeline("cost")
    stream = pipeline.source(es.FromFunction(cost.records, total=TOTAL))
    cost.SHAPES[shape](stream, APART_US).collect()
    result = pipeline.run(engine="local", workers=1, progress=False)
    return Counter(map(_plain, result.collected()))


def of_loop(shape: str) -> "Counter[Any]":
    bare, emitted = cost.Bare(shape, APART_US), Counter[Any]()
    ending = {"key": 0, "n": 10**9, "price": 0}  # ends the last window
    for record in [*cost.records(0, TOTAL), *([ending] if shape in ("window", "join") else [])]:
        bare.emitted = None
        bare.work(record)
        results = bare.emitted if isinstance(bare.emitted, list) else [bare.emitted]
        emitted.update(_plain(one) for one in results if one is not None)
    return emitted


def _plain(result: Any) -> Any:
    """What both forms of a result have: the key, and what was made of it."""
    if isinstance(result, dict):
        names = ("n", "double") if "double" in result else ("n",)
        return (result["key"], *(result[name] for name in names))
    return tuple(result)


@pytest.mark.parametrize("shape", cost.SHAPES)
def test_the_bare_loop_does_the_same_work(shape: str) -> None:
    assert of_loop(shape) == of_run(shape)


def test_every_shape_has_its_cost_and_its_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "SETTLE_S", 0.5)
    report = cost.measure([400], ["map"], seconds=1.5)
    assert report["map at 400/s, cores"].value > 0
    per_million = report["map at 400/s, CPU s per million"]
    assert per_million.value > 0 and per_million.beside.startswith("bare loop ")
    assert 0 < report["map at 400/s, p50"].value <= report["map at 400/s, p99"].value


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(UserError, match="no shape 'sort': use map, fold, window, join"):
        cost.measure([100], ["sort"])
