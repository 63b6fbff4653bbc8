"""Stores that earlier releases have written are read, and run to their right end, by this one.

They are kept in `tests/fixtures/stores`, a folder per release. Each was left behind by a driver that was
killed with SIGKILL half way, most of them with output that was prepared and not committed.
"""

import tarfile
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.core.orders import Outcome
from everstream.errors import StoreError
from everstream.inspection import read_state
from everstream.state.savepoints import import_savepoint
from everstream.state.store import CheckpointStore
from tests.engine.tasks.running import run
from tests.fixtures.make import FOLDER
from tests.fixtures.pipelines import GATE, KEY_FILE, STORES, Kept, write_lines

FIXTURES = sorted(FOLDER.glob("*/*.tar.gz"))
IN_SHORT = {"three-shards", "unaligned", "uncoordinated", "windows", "files", "microbatch"}
"""Those that run on Spark in the short suite; the others in the long one."""
PROGRAM = """
from pathlib import Path
from tests.fixtures.pipelines import STORES

pipeline = STORES["{name}"].build(Path("{folder}"))
"""


def name_of(fixture: Path) -> str:
    return fixture.name.removesuffix(".tar.gz")


def unpacked(fixture: Path, folder: Path) -> tuple[Kept, Path]:
    write_lines()
    with tarfile.open(fixture) as archive:
        archive.extractall(folder, filter="fully_trusted")
    return STORES[name_of(fixture)], folder


def key_of(kept: Kept, folder: Path) -> str | None:
    return str(folder / KEY_FILE) if kept.signed else None


def labelled(fixture: Path) -> str:
    return f"{fixture.parent.name}-{name_of(fixture)}"


def test_there_is_a_store_of_every_kind() -> None:
    assert {name_of(fixture) for fixture in FIXTURES} == STORES.keys()


def invoked(fixture: Path, folder: Path, command: str, *words: str) -> Result:
    """A command about an earlier store, or about the pipeline that wrote it."""
    kept = STORES[name_of(fixture)]
    store, key = str(folder / "store"), key_of(kept, folder)
    signed = ["--store-key", key] if key is not None else []
    if command != "check":
        return CliRunner().invoke(app, [command, store, *words, *signed])
    program = folder / "program.py"
    program.write_text(PROGRAM.format(name=name_of(fixture), folder=folder))
    moved = [word for name in kept.moved for word in ("--renamed", f"{name}={name}")]
    return CliRunner().invoke(app, [command, str(program), "--store", store, *moved, *signed])


@pytest.mark.parametrize("fixture", FIXTURES, ids=labelled)
def test_an_earlier_store_can_be_listed_looked_into_and_compared(
    fixture: Path, tmp_path: Path
) -> None:
    kept, folder = unpacked(fixture, tmp_path)
    for words in (
        ("checkpoints",),
        ("checkpoints", "--verify"),
        ("state", "--operator", kept.look_at),
    ):
        result = invoked(fixture, folder, *words)
        assert result.exit_code == 0, (words, result.output)
    checked = invoked(fixture, folder, "check")
    assert checked.exit_code == (1 if kept.signed else 0), checked.output
    assert len(read_state(str(folder / "store"), kept.look_at, store_key=key_of(kept, folder)))


def check_end(fixture: Path, folder: Path) -> None:
    kept, folder = unpacked(fixture, folder)
    (folder / GATE).touch()
    result = run(
        kept.build(folder),
        store=folder / "store",
        checkpoint=kept.checkpoint,
        renamed={name: name for name in kept.moved},
        store_key=key_of(kept, folder),
        **kept.options,
    )
    assert result.outcome is Outcome.FINISHED
    assert result.resumed_from is not None
    shown = kept.shown(folder)
    assert kept.promise(shown, kept.expected()), shown - kept.expected()


@pytest.mark.parametrize("fixture", [f for f in FIXTURES if name_of(f) in IN_SHORT], ids=labelled)
def test_an_earlier_store_runs_to_its_right_end(fixture: Path, tmp_path: Path) -> None:
    check_end(fixture, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "fixture", [f for f in FIXTURES if name_of(f) not in {*IN_SHORT, "signed"}], ids=labelled
)
def test_every_earlier_store_runs_to_its_right_end(fixture: Path, tmp_path: Path) -> None:
    check_end(fixture, tmp_path)


@pytest.mark.parametrize("fixture", [f for f in FIXTURES if name_of(f) == "signed"], ids=labelled)
def test_an_earlier_signed_store_whose_identity_anyone_could_have_replaced_is_refused(
    fixture: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="written by an earlier version, which did not sign it"):
        check_end(fixture, tmp_path)
    checked = invoked(fixture, tmp_path, "check")
    assert checked.exit_code == 1
    assert "did not sign it" in " ".join(checked.output.split())


@pytest.mark.parametrize(
    "fixture", [f for f in FIXTURES if STORES[name_of(f)].savepoint], ids=labelled
)
def test_earlier_savepoints_and_exported_ones_can_be_begun_with(
    fixture: Path, tmp_path: Path
) -> None:
    kept, folder = unpacked(fixture, tmp_path / "made")
    archive = tmp_path / "archive"
    import_savepoint(CheckpointStore.at(str(archive)), folder / "kept.tar", None, lambda ref: None)
    for place in (folder / "store", archive):
        fork = tmp_path / f"fork-of-{place.name}"
        fork.mkdir()
        (fork / GATE).touch()
        options = {"store": fork / "store", "start_from": f"{place}@kept"}
        assert run(kept.build(fork), checkpoint=kept.checkpoint, **options).outcome is (
            Outcome.FINISHED
        )
        shown = kept.shown(fork)
        assert shown and shown < kept.expected()
        for key in range(7):
            counts = [n for k, n in shown if k == key]
            ends = [n for k, n in kept.expected() if k == key]
            assert sorted(counts) == sorted(ends)[-len(counts) :], "the last of each key, in full"
