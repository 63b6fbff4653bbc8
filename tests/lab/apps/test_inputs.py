"""Inputs are the same every time, made once, and checked whenever they are used."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everstream.errors import UserError
from everstream_lab.apps.application import CLASSES, Tell, checksum
from everstream_lab.apps.catalogue import NAMES, applications, find
from everstream_lab.apps.inputs import MANIFEST, expected_checksum, input_folder
from everstream_lab.apps.models import once_per_thread
from everstream_lab.apps.slices import Pieces
from everstream_lab.apps.video import Video

from .conftest import Folder, application


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(os.environ, "EVERSTREAM_INPUTS", str(tmp_path / "inputs"))
    return tmp_path / "inputs"


def test_every_application_has_a_size_for_every_class() -> None:
    for app in applications():
        assert tuple(app.sizes) == CLASSES
        assert app.name in NAMES


def test_a_name_that_is_nearly_right_is_told() -> None:
    with pytest.raises(UserError, match="did you mean 'mandelbrot'"):
        find("mandelbrod")
    with pytest.raises(UserError, match="there are: prime, mandelbrot"):
        find("zzz")


@pytest.mark.parametrize("name", ["compress", "eye", "face", "ferret", "sentiment"])
def test_an_input_is_the_same_every_time(name: str, folder: Folder, tmp_path: Path) -> None:
    app = application(name)
    app.make_input(app.sizes["test"], tmp_path, lambda done, total: None)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {
        path.relative_to(folder(name))
        for path in folder(name).rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    for path in made:
        assert checksum(tmp_path / path) == checksum(folder(name) / path)


def test_an_input_is_made_once_and_its_progress_is_told(empty_cache: Path) -> None:
    calls: list[Any] = []
    prime = find("prime")

    def make(amount: int, folder: Path, tell: Tell) -> None:
        calls.append(amount)
        tell(1, 1)
        (folder / "limit").write_text(str(amount))

    app = replace(prime, make_input=make)
    told: list[tuple[int, int]] = []
    first = input_folder(app, "test", lambda done, total: told.append((done, total)))
    assert input_folder(app, "test") == first
    assert calls == [prime.sizes["test"]]
    assert told == [(1, 1)]
    assert input_folder(app, "small") != first


def test_a_damaged_input_is_refused_with_what_to_do(empty_cache: Path) -> None:
    made = input_folder(find("prime"), "test")
    (made / "limit").write_text("1000")
    with pytest.raises(UserError, match="delete the folder"):
        input_folder(find("prime"), "test")


def test_what_could_not_be_made_leaves_nothing_behind(empty_cache: Path) -> None:
    def make(amount: int, folder: Path, tell: Tell) -> None:
        (folder / "half").write_text("of it")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        input_folder(replace(find("prime"), make_input=make), "test")
    assert not list((empty_cache / "prime").iterdir())


def test_the_truth_is_computed_once(empty_cache: Path) -> None:
    prime = find("prime")
    calls: list[Path] = []

    def sequential(folder: Path, output: Path) -> None:
        calls.append(folder)
        prime.sequential(folder, output)

    app = replace(prime, sequential=sequential)
    made = input_folder(app, "test")
    assert expected_checksum(app, made) == expected_checksum(app, made)
    assert calls == [made]


def test_a_video_can_be_read_from_any_frame_on(folder: Folder) -> None:
    path = folder("lane") / "video.avi"
    in_order = Video(path)[:]
    for start in (17, 3, 29, 0):
        [frame] = Video(path)[start : start + 1]
        assert frame.number == start
        assert np.array_equal(frame.image, in_order[start].image)
    with pytest.raises(IndexError):
        in_order[len(in_order)]


def test_pieces_of_a_file_are_those_between_the_cuts(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcdefgh")
    pieces = Pieces(str(tmp_path / "file"), [0, 3, 4, 8])
    assert list(pieces) == [b"abc", b"d", b"efgh"]
    assert pieces[1:] == [b"d", b"efgh"]
    assert pieces[-1] == b"efgh"


def test_a_forked_process_opens_its_own() -> None:
    @once_per_thread
    def opened() -> int:
        return os.getpid()

    assert opened() == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if opened() == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_model_is_made_once_in_each_thread() -> None:
    made: list[str] = []

    @once_per_thread
    def model(name: str) -> list[str]:
        made.append(name)
        return [name]

    assert model("a") is model("a")
    assert model("b") is not model("a")
    other = threading.Thread(target=model, args=("a",))
    other.start()
    other.join()
    assert made == ["a", "b", "a"]
