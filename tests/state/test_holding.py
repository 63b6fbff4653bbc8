"""A store whose run is alive is refused to others; a dead run holds nothing."""

import stat
import tempfile
from pathlib import Path

import pytest

from everstream.errors import EnvironmentFault, UserError
from everstream.state.store_lock import _path, held, holder_of
from tests.state.holders import running


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return f"{tmp_path}/new/store" if request.param == "folder" else "memory://bucket/store"


def must_refuse(place: str, why: str) -> None:
    with pytest.raises(UserError, match=why), held(place, "another", take_over=False):
        raise AssertionError("it was let in")


def test_a_store_in_use_is_refused_unless_it_is_taken_over(place: str) -> None:
    with running(place, "words pid 7 on here"):
        assert holder_of(place) == "'words pid 7 on here'"
        must_refuse(place, "'words pid 7 on here' is running.*--take-over")
        with running(place, "the third", "taking over"):
            must_refuse(place, "'the third' is running")


def test_a_killed_run_holds_nothing(place: str) -> None:
    with running(place, "first") as first:
        first.kill()
        first.wait()
        assert holder_of(place) is None
        with held(place, "second", take_over=False):
            assert holder_of(place) is None, "a process does not stand in its own way"


def test_a_run_that_has_ended_holds_nothing_though_its_process_lives(place: str) -> None:
    with running(place, "first") as first:
        assert first.stdin is not None and first.stdout is not None
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "let go\n"
        with held(place, "second", take_over=False):
            pass


def test_a_store_that_cannot_be_written_is_left_to_those_who_open_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with held(f"{tmp_path}/file/store", "first", take_over=False):
        pass
    assert holder_of(f"{tmp_path}/nowhere") is None


def test_the_lock_of_a_remote_store_lies_where_only_its_owner_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with held("memory://bucket/store", "first", take_over=False):
        [folder] = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        [lock] = folder.iterdir()
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    folder.chmod(0o777)
    with (
        pytest.raises(EnvironmentFault, match="only you can enter"),
        held("memory://bucket/store", "first", take_over=False),
    ):
        raise AssertionError("others can put anything there")
    lock.unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with (
        pytest.raises(EnvironmentFault, match="only you can enter"),
        held("memory://bucket/store", "first", take_over=False),
    ):
        raise AssertionError("a link leads anywhere")


@pytest.mark.parametrize("take_over", [False, True])
def test_a_link_in_the_place_of_a_lock_changes_no_other_file(place: str, take_over: bool) -> None:
    with held(place, "first", take_over=False):
        pass
    precious = Path(tempfile.gettempdir()) / "precious"
    precious.write_text("do not change")
    lock = _path(place)
    lock.unlink()
    lock.symlink_to(precious)
    assert holder_of(place) is None
    try:
        with held(place, "second", take_over=take_over):
            assert take_over, "whoever takes over makes a new lock"
    except EnvironmentFault as error:
        assert "is a link" in str(error) and not take_over
    assert precious.read_text() == "do not change"
