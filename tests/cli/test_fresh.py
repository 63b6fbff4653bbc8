"""`--fresh` says what it deletes and asks; no error message advises it without saying so."""

import ast
import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import everstream
from everstream.cli.app import app
from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.fresh import agreed
from everstream.connectors import Collect, JsonLines, Sqlite
from everstream.core.permits import permit
from everstream.errors import UserError
from everstream.pipeline.sink import Sink, SinkShard
from everstream.state.savepoints import take_savepoint
from everstream.state.store import CheckpointStore

PROGRAM = """
import everstream as es

pipeline = es.Pipeline("words")
numbers = pipeline.source(es.Range(5, column="n"))
numbers.sink(es.JsonLines("out/"), name="files")
numbers.sink(es.Sqlite("out.db", "numbers"), name="table")
numbers.collect()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def show(folder: Path) -> None:
    """Output and a checkpoint, as a run leaves them."""
    sinks: dict[str, Sink] = {
        "files": JsonLines(folder / "out"),
        "table": Sqlite(folder / "out.db", "numbers"),
        "collect": Collect(),
    }
    for name, sink in sinks.items():
        writer = sink.open(SinkShard("words", name, 0, 1, 1, str(folder / ".everstream/words")))
        writer.write([{"n": 1}, {"n": 2}, {"n": 3}])
        transaction = writer.prepare(1)
        assert transaction is not None
        transaction.commit(permit(1))
    store = CheckpointStore.at(str(folder / ".everstream/words"))
    store.append_manifest(store.acquire_lease("words"), {"objects": []})


def shown(folder: Path) -> tuple[int, int]:
    connection = sqlite3.connect(folder / "out.db")
    ((rows,),) = connection.execute("SELECT count(*) FROM numbers").fetchall()
    connection.close()
    return len(list((folder / "out").glob("part-*"))), rows


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_fresh_says_what_it_deletes_and_needs_a_yes(program: Path) -> None:
    show(program)
    done = CliRunner().invoke(app, ["run", "program.py", "--fresh"])
    assert done.exit_code == 2
    for line in (
        "say --yes",
        f"1 checkpoint(s) in the store '{program}/.everstream/words'",
        f"1 part file(s) in '{program}/out' (operator 'files')",
        f"3 row(s) in SQLite file '{program}/out.db', table 'numbers' (operator 'table')",
        f"1 part file(s) in '{program}/.everstream/words/outputs/collect' (operator 'collect')",
    ):
        assert line in done.output
    assert shown(program) == (1, 3)


def test_fresh_says_which_savepoints_stay(program: Path) -> None:
    show(program)
    store = CheckpointStore.at(str(program / ".everstream/words"))
    lease = store.acquire_lease("words")
    store.append_manifest(lease, {"epoch": 1, "pipeline": "words", "objects": []})
    take_savepoint(store, "before", now=1.0)
    with pytest.raises(UserError, match=r"and not the savepoint\(s\) 'before': they stay"):
        agreed(RunCommand("program.py"), yes=False)


def test_who_says_no_keeps_everything(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show(program)
    command = RunCommand("program.py", {"fresh": True})
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert not agreed(command, yes=False)
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert agreed(command, yes=False)
    assert shown(program) == (1, 3), "asking deletes nothing"


def test_a_yes_beforehand_is_heard_and_still_told_what_goes(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(program)
    assert agreed(RunCommand("program.py", {"fresh": True}), yes=True)
    assert "3 row(s)" in capsys.readouterr().err


def test_where_nothing_is_nobody_is_asked(program: Path) -> None:
    assert agreed(RunCommand("program.py", {"fresh": True}), yes=False)
    with pytest.raises(UserError, match="no file"):
        agreed(RunCommand("missing.py", {"fresh": True}), yes=False)


def texts(tree: ast.AST) -> Iterator[str]:
    """Every text in a program, those in pieces put together, without documentation."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inside |= {id(value) for value in node.values}
            yield "".join(str(v.value) for v in node.values if isinstance(v, ast.Constant))
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            yield str(node.value)


def test_nothing_advises_fresh_without_saying_that_it_deletes() -> None:
    advising = []
    for path in Path(everstream.__file__).parent.rglob("*.py"):
        for text in texts(ast.parse(path.read_text())):
            if "--fresh" in text.removeprefix("--fresh"):
                advising.append(text)
                assert "delet" in text, f"{path}: {text}"
    assert len(advising) > 10
