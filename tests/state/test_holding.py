"""A store whose run is alive is refused to others; a dead run holds nothing."""

from pathlib import Path

import pytest

from everstream.errors import UserError
from everstream.state.holding import held, holder_of
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
