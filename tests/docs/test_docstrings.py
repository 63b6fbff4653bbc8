"""The examples in docstrings give what they say.

Those that name a Spark session, as `spark`, run on Spark, all in one session. The others run in
virtual time: see `tests.docs.simulated`.
"""

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
from pyspark.sql import SparkSession

import everstream as es
import everstream.engine.run
from tests.docs import simulated

ROOT = Path(es.__file__).parent


def modules_with_examples() -> Iterator[str]:
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " in path.read_text():
            parts = ("everstream", *path.relative_to(ROOT).with_suffix("").parts)
            yield ".".join(parts).removesuffix(".__init__")


def examples_in(module: ModuleType) -> list[doctest.DocTest]:
    """One for each docstring that has any.

    An example of a public name has what a user has, who imported Everstream and Polars; one of
    something inside has its module.
    """
    found = [example for example in doctest.DocTestFinder().find(module) if example.examples]
    for example in found:
        if any("es." in line.source for line in example.examples):
            example.globs = {"es": es, "pl": pl}
    return found


def on_spark(example: doctest.DocTest) -> bool:
    return any("spark" in line.source for line in example.examples)


def try_out(example: doctest.DocTest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it in a folder of its own."""
    place = folder / example.name
    place.mkdir()
    monkeypatch.chdir(place)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    failed, _ = runner.run(example, out=said.append)
    assert failed == 0, "".join(said)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everstream.engine.run, "run", simulated.run)
    monkeypatch.setattr(everstream.engine.run, "start", simulated.start)
    for example in examples_in(importlib.import_module(name)):
        if not on_spark(example):
            try_out(example, tmp_path, monkeypatch)


def test_examples_with_a_spark_session_give_what_they_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0
    for name in modules_with_examples():
        for example in filter(on_spark, examples_in(importlib.import_module(name))):
            example.globs["spark"] = spark
            try_out(example, tmp_path, monkeypatch)
            tried += 1
    assert tried > 0
