"""`everstream run --watch`: a changed program continues from a checkpoint, a wrong one waits."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstream.cli.runs.watch import FileWatch, file_of
from everstream.errors import UserError

PROGRAM = """
import everstream as es

pipeline = es.Pipeline("watched")
(
    pipeline.source(es.Paced(es.Range(10**9), 200), name="numbers")
    .key_by(lambda number: 0)
    .fold(init=int, update=lambda count, number: count + 1, name="count")
    .map(lambda pair: (WORD, pair[1]))
    .sink(es.JsonLines("out/"))
)
"""


def program(word: str) -> str:
    return f"WORD = {word!r}\n{PROGRAM}"


def written(folder: Path) -> str:
    return "".join(part.read_text() for part in (folder / "out").glob("*.jsonl"))


def test_changes_continue_and_mistakes_wait_for_the_next_change(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(program("first"))
    arguments = ["run", "app.py", "--watch", "--engine", "local", "--every", "100ms"]
    log = (tmp_path / "log").open("w+")
    watching = subprocess.Popen(
        [sys.executable, "-m", "everstream", *arguments],
        cwd=tmp_path,
        stdout=log,
        stderr=subprocess.STDOUT,
    )

    def wait_for(word: str, where: str = "out") -> None:
        while word not in (written(tmp_path) if where == "out" else Path(log.name).read_text()):
            assert watching.poll() is None, Path(log.name).read_text()
            time.sleep(0.05)

    try:
        wait_for("first")
        path.write_text(program("second"))
        wait_for("second")
        path.write_text("this is no program\n")
        wait_for("invalid syntax", "log")
        wait_for("waiting for the next change", "log")
        path.write_text(program("third"))
        wait_for("third")
        watching.send_signal(signal.SIGINT)
        assert watching.wait() == 0
    finally:
        watching.kill()
        watching.wait()
        log.close()
    counts = [int(line.split(",")[1].rstrip("]")) for line in written(tmp_path).splitlines()]
    assert sorted(counts) == list(range(1, len(counts) + 1)), "each number was counted once"


def test_a_module_cannot_be_watched() -> None:
    assert file_of("app.py:pipeline") == Path("app.py")
    assert file_of("app.py") == Path("app.py")
    with pytest.raises(UserError, match="names a module"):
        file_of("package.module:pipeline")


def test_a_file_that_is_gone_for_a_moment_has_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("one")
    watch = FileWatch(path)
    path.unlink()
    assert not watch.has_changed()
    path.write_text("one")
    assert not watch.has_changed()
    path.write_text("two")
    assert watch.has_changed() and not watch.has_changed()
