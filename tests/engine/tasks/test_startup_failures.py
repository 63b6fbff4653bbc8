"""Workers that cannot even start are told of with the cause and the fix, and not tried for ever."""

import sys
from pathlib import Path

import pytest

import everstream as es
from everstream.engine.spark.context import make_context
from everstream.engine.tasks.workers import reason

from .running import MASTER, Notes, run

GONE = """
import sys

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "everstream":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Gone())
"""


@pytest.mark.spark("a worker of Spark has a Python of its own")
def test_a_worker_without_everstream_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(GONE)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    context = make_context(MASTER, "test")
    monkeypatch.setattr(context, "pythonExec", str(python))
    pipeline = es.Pipeline("no-everstream")
    pipeline.source(es.Range(10)).collect()
    notes = Notes()
    with pytest.raises(es.RunFailed) as failed:
        run(pipeline, workers=1, listener=notes, timeout="120s")
    said = str(failed.value)
    assert "could not start, twice for the same reason" in said
    assert f"('{python}') has no everstream: install it there (pip install everstream)" in said
    assert "PYSPARK_PYTHON" in said
    assert any(failed.process == 0 for failed in notes.of(es.events.StartFailed))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'java.io.IOException: Cannot run program "/no/python": error=2, No such file',
            "there is no Python '/no/python' on worker-7",
        ),
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  Fatal: no encodings\n"
            "PYTHONPATH was:\n  /x\norg.apache.spark.SparkException: EOFException\n\tat a.b(C:1)",
            "ended with: Fatal: no encodings",
        ),
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\nRuntimeError: wrong version\n\n\tat a.b(C:1)',
            "ended with: RuntimeError: wrong version",
        ),
        ("ExecutorLostFailure (executor 3 exited)", "ended with: ExecutorLostFailure"),
    ],
)
def test_the_line_that_tells_is_found_in_what_spark_says(text: str, told: str) -> None:
    assert told in reason(text, "worker-7", "python3")
