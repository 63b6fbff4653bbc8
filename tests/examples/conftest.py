"""Loads the examples as the command line loads them, each in a folder of its own."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from everstream.cli.runs.finding import load_pipeline
from everstream.pipeline.stream import Pipeline
from tests.spark import MASTER as MASTER

EXAMPLES = Path(__file__).parents[2] / "examples"
Load = Callable[[str], tuple[ModuleType, Pipeline]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads an example in a folder of its own, where its relative paths lead."""
    shutil.copytree(EXAMPLES / "books", tmp_path / "books")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    loaded = []

    def load(name: str) -> tuple[ModuleType, Pipeline]:
        pipeline = load_pipeline(str(EXAMPLES / f"{name}.py"))
        loaded.append(name)
        return sys.modules[name], pipeline

    yield load
    for name in loaded:
        del sys.modules[name]
