"""A signed store, from the run that makes it to every command that opens it."""

from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from typer.testing import CliRunner, Result

import everstream as es
from everstream.cli.app import app
from everstream.cli.runs.finding import load_pipeline
from everstream.core.orders import Outcome
from everstream.engine.continuous.worker.worker import WorkerTask
from everstream.engine.tasks.workers import SparkTask, SparkWorkers
from everstream.errors import StoreError
from everstream.state.signing import KEY_FILE, is_signed
from tests.spark import MASTER

pytestmark = pytest.mark.spark("looks into the task that Spark gets")

WORD = "planted-key-0123456789abcdef-0123456789"
PROGRAM = """
import everstream as es

pipeline = es.Pipeline("signed")
numbers = pipeline.source(es.Paced(es.Range(1_000_000, batch=50), rate=2_000), name="numbers")
numbers.key_by(lambda n: n % 7).fold(
    init=int, update=lambda count, _: count + 1, name="count", shards=1
).sink(es.JsonLines("{out}"), name="out")
"""


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed once, and stopped: its program, key, store and output."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "app.py").write_text(PROGRAM.format(out=folder / "out"))
    (folder / "store.key").write_text(f"{WORD}\n")
    (folder / "store.key").chmod(0o600)
    captured: list[bytes] = []
    begin = SparkWorkers.start

    def capturing(self: SparkWorkers, task: WorkerTask, processes: int) -> None:
        begin(self, task, processes)
        captured.append(cloudpickle.dumps(SparkTask(task)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkWorkers, "start", capturing)
        result = run(folder, kill=["count@500"], until=lambda s: s.epoch >= 3 and s.recoveries)
    assert result.outcome is Outcome.STOPPED and len(result.recoveries) == 1
    (folder / "task").write_bytes(captured[0])
    return folder


def run(folder: Path, **options: Any) -> Any:
    return load_pipeline(str(folder / "app.py")).run(
        master=MASTER,
        workers=1,
        store=folder / "store",
        checkpoint=es.Coordinated(every="100ms"),
        **{"store_key": folder / "store.key", **options},
    )


def everstream(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200", **environment})


def test_everything_that_a_run_restores_from_is_signed_and_the_key_is_nowhere(signed: Path) -> None:
    for folder in ("manifests", "objects", "copies"):
        files = [file for file in (signed / "store" / folder).rglob("*") if file.is_file()]
        assert files and all(is_signed(file.read_bytes()) for file in files)
    everywhere = [signed / "task", *signed.glob("store/**/*"), *signed.glob("out/**/*")]
    assert not [f for f in everywhere if f.is_file() and WORD.encode() in f.read_bytes()]


def test_a_run_without_the_key_is_refused_before_spark_starts(
    signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "everstream.engine.spark.slots.make_context", lambda *_: pytest.fail("Spark")
    )
    with pytest.raises(StoreError, match=r"is signed.*--store-key"):
        run(signed, store_key=None)


@pytest.mark.parametrize(
    "command",
    [
        ["checkpoints", "STORE", "--verify"],
        ["state", "STORE", "--operator", "count"],
        ["check", "APP", "--store", "STORE"],
        ["rewind", "STORE", "--to", "1", "--yes"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_opens_a_store_takes_its_key(signed: Path, command: list[str]) -> None:
    places = {"STORE": str(signed / "store"), "APP": str(signed / "app.py")}
    words = [places.get(word, word) for word in command]
    refused = everstream(*words)
    assert refused.exit_code in (1, 2) and "--store-key" in refused.output
    if command[0] == "rewind":  # the epoch may be gone by now: what counts is that it is looked for
        words[words.index("1")] = str(newest(signed))
    for done in (
        everstream(*words, "--store-key", signed / "store.key"),
        everstream(*words, **{KEY_FILE: str(signed / "store.key")}),
    ):
        assert "--store-key" not in done.output and WORD not in done.output
        assert done.exit_code == 0 or "epoch" in done.output


def newest(folder: Path) -> int:
    from everstream.inspection import look, open_store

    overview = look(open_store(folder / "store", folder / "store.key"))
    return max(row.epoch for row in overview.checkpoints if row.epoch is not None)
