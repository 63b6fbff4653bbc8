"""A folder takes the output of one pipeline, operator and store; a second run is refused."""

import os
import shutil
from pathlib import Path

import pytest

from everstream.connectors import JsonLines
from everstream.core.permits import permit
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.sink import SinkShard
from tests.state.holders import running


def show(folder: Path, store: str) -> None:
    writer = JsonLines(folder / "out").open(SinkShard("words", "counts", 0, 1, 1, store))
    writer.write([1])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.commit(permit(1))


def parts(folder: Path) -> int:
    return len(list((folder / "out").glob("part-*")))


@pytest.mark.parametrize("replace", [False, True])
def test_a_second_run_with_another_store_is_refused_with_both_names(
    tmp_path: Path, replace: bool
) -> None:
    first, second = f"{tmp_path}/first", f"{tmp_path}/second"
    sink = JsonLines(tmp_path / "out")
    with running(first, "words pid 7 on here"):
        sink.start_fresh("words", "counts", first, replace=False)
        show(tmp_path, first)
        sink.start_fresh("words", "other", second, replace=False)
        with pytest.raises(UserError, match=r"counts.*first'.* 'words pid 7 on here'.*second'"):
            sink.start_fresh("words", "counts", second, replace)
        with pytest.raises(UserError, match=r"first'.*running.*second'"):
            sink.before_resume("words", "counts", second)
        assert parts(tmp_path) == 1
        sink.before_resume("words", "counts", first)


def test_the_folder_of_a_run_that_is_over_can_be_taken_and_the_earlier_store_is_told(
    tmp_path: Path,
) -> None:
    first, second = f"{tmp_path}/first", f"{tmp_path}/second"
    sink = JsonLines(tmp_path / "out")
    sink.start_fresh("words", "counts", first, replace=False)
    show(tmp_path, first)
    with pytest.raises(UserError, match="already holds 1 part files"):
        sink.start_fresh("words", "counts", second, replace=False)
    sink.before_resume("words", "counts", first)
    sink.start_fresh("words", "counts", second, replace=True)
    assert parts(tmp_path) == 0
    with pytest.raises(UserError, match=r"second'; since then the output of the store .*first"):
        sink.before_resume("words", "counts", first)


def test_a_store_that_was_moved_is_known_again(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "out")
    sink.start_fresh("words", "counts", f"{tmp_path}/before", replace=False)
    os.rename(tmp_path / "before", tmp_path / "after")
    sink.before_resume("words", "counts", f"{tmp_path}/after")


@pytest.mark.parametrize("replace", [False, True])
def test_stores_at_the_same_path_of_two_machines_are_two_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    sink, store = JsonLines(tmp_path / "out"), tmp_path / "store"
    sink.start_fresh("words", "counts", str(store), replace=False)
    show(tmp_path, str(store))
    os.rename(store, tmp_path / "store on the first machine")
    monkeypatch.setattr("socket.gethostname", lambda: "second")
    with pytest.raises(UserError, match="written from the machine"):
        sink.start_fresh("words", "counts", str(store), replace)
    with pytest.raises(UserError, match="written from the machine"):
        sink.before_resume("words", "counts", str(store))
    assert parts(tmp_path) == 1


def test_a_store_that_was_deleted_and_made_again_is_another_one_that_can_take_its_place(
    tmp_path: Path,
) -> None:
    sink, store = JsonLines(tmp_path / "out"), tmp_path / "store"
    sink.start_fresh("words", "counts", str(store), replace=False)
    show(tmp_path, str(store))
    shutil.rmtree(store)
    with pytest.raises(UserError, match="since then"):
        sink.before_resume("words", "counts", str(store))
    sink.start_fresh("words", "counts", str(store), replace=True)
    assert parts(tmp_path) == 0
    sink.before_resume("words", "counts", str(store))


def test_output_of_a_version_that_left_no_owner_is_gone_on_with(tmp_path: Path) -> None:
    show(tmp_path, f"{tmp_path}/store")
    JsonLines(tmp_path / "out").before_resume("words", "counts", f"{tmp_path}/store")
    with pytest.raises(UserError, match="since then"):
        JsonLines(tmp_path / "out").before_resume("words", "counts", f"{tmp_path}/other")


def test_an_owner_on_another_machine_is_refused_with_the_file_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = JsonLines(tmp_path / "out")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    sink.start_fresh("words", "counts", f"{tmp_path}/first", replace=False)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"machine 'elsewhere'.*remove '.*words\.counts\.owner'"):
        sink.start_fresh("words", "counts", f"{tmp_path}/second", replace=True)
    (tmp_path / "out" / "_pending" / "words.counts.owner").write_text("{")
    with pytest.raises(ConnectorError, match=r"cannot be read.*words\.counts\.owner"):
        sink.before_resume("words", "counts", f"{tmp_path}/first")
    (tmp_path / "out" / "_pending" / "words.counts.owner").unlink()
    sink.start_fresh("words", "counts", f"{tmp_path}/second", replace=True)


def test_a_folder_on_another_filesystem_has_an_owner_too(tmp_path: Path) -> None:
    sink = JsonLines(f"memory://{tmp_path}/out")
    sink.start_fresh("words", "counts", f"{tmp_path}/first", replace=False)
    with (
        running(f"{tmp_path}/first", "the first"),
        pytest.raises(UserError, match="'the first' is running"),
    ):
        sink.start_fresh("words", "counts", f"{tmp_path}/second", replace=True)
