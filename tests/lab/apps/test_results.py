"""The applications find what is there: their results are held against what the inputs are made of."""

import json
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from everstream.audit.rehearsal import Rehearsal, rehearsed
from everstream_lab.apps import eye, face, ferret, lane, mandelbrot, prime
from everstream_lab.apps.catalogue import NAMES
from everstream_lab.apps.generators.text import make_text
from everstream_lab.apps.video import RED, even_grey, find_faces
from tests.docs import simulated

from .conftest import Folder, application


def in_python(number: int) -> bool:
    return all(number % divisor for divisor in range(2, number))


def test_numbers_are_prime_if_nothing_divides_them() -> None:
    assert [n for n in range(2, 500) if prime.is_prime(n)] == [
        n for n in range(2, 500) if in_python(n)
    ]


def test_primes_are_counted(truth: Folder) -> None:
    assert json.loads(truth("prime").read_text()) == {"primes": 669}


@pytest.mark.long
def test_there_are_41538_primes_below_500000(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text(str(prime.LIMITS["medium"]))
    prime.sequential(tmp_path, tmp_path / "primes")
    assert json.loads((tmp_path / "primes").read_text()) == {"primes": 41_538}


def test_the_picture_is_the_mandelbrot_set(truth: Folder) -> None:
    picture = cv2.imread(str(truth("mandelbrot")), cv2.IMREAD_GRAYSCALE)
    size = mandelbrot.SIZES["test"]["size"]
    assert picture.shape == (size, size)

    def at(point: complex) -> int:
        column = round((point.real - mandelbrot.LEFT) / mandelbrot.RANGE * size)
        row = round((point.imag - mandelbrot.TOP) / mandelbrot.RANGE * size)
        return int(picture[row, column])

    assert at(0j) == at(-1 + 0j) == 0, "points of the set are black"
    assert at(0.7 + 1j) > 200, "points far from it are light"


def test_bunzip2_reads_what_was_compressed(folder: Folder, truth: Folder) -> None:
    text = subprocess.run(["bunzip2", "-c", truth("compress")], capture_output=True, check=True)
    assert text.stdout == (folder("compress") / "text.txt").read_bytes()
    assert len(application("compress").items(folder("compress"))) == 4


def test_the_text_is_back_after_decompressing(truth: Folder, tmp_path: Path) -> None:
    make_text(application("decompress").sizes["test"], tmp_path, lambda done, total: None)
    assert truth("decompress").read_bytes() == (tmp_path / "text.txt").read_bytes()


def test_two_eyes_are_found_in_every_face(folder: Folder) -> None:
    for frame in eye.frames(folder("eye")):
        grey = even_grey(frame.image)
        faces = find_faces(grey)
        assert len(faces) == 2, f"frame {frame.number}"
        for found in faces:
            assert len(eye.find_eyes(grey, found)) == 2, f"frame {frame.number}"


def test_the_lane_is_marked_along_its_lines_and_nowhere_else(folder: Folder) -> None:
    for frame in list(lane.frames(folder("lane")))[::6]:
        marked = frame
        for stage in lane.STAGES:
            marked = stage(marked)
        red = np.all(marked.image == RED, axis=2)
        _, columns = np.nonzero(red)
        assert not red[: len(red) // 2].any(), "the sky has no lane"
        left, right = columns[columns < 320], columns[columns > 320]
        assert len(left) > 500 and len(right) > 500, f"frame {frame.number}"
        asphalt = red[300:340, 180:300]
        assert asphalt.mean() < 0.02, "nothing is marked between the lines"


def test_people_are_told_apart(folder: Folder) -> None:
    model = face.recogniser(folder("face") / "training")
    for frame in face.frames(folder("face")):
        _, grey, faces = face.detect(frame)
        people = []
        for left, top, width, height in faces:
            cut = grey[top : top + height, left : left + width]
            people.append(model.predict(cv2.resize(cut, face.FACE))[0])
        assert people == [0, 1], f"frame {frame.number}"


def test_what_was_said_is_heard(folder: Folder, truth: Folder) -> None:
    for line in truth("sentiment").read_text().splitlines():
        told = json.loads(line)
        said = (folder("sentiment") / told["file"]).with_suffix(".txt").read_text()
        words = set(said.lower().replace(".", "").split())
        heard = set(told["text"].split())
        assert len(words & heard) > 0.6 * len(words), told
    assert told["score"] != 0


def test_most_pictures_that_are_found_are_of_the_same_kind(truth: Folder) -> None:
    answers = [json.loads(line) for line in truth("ferret").read_text().splitlines()]

    def kind(name: str) -> str:
        return name.partition("-")[2]

    same = [kind(name) == kind(a["query"]) for a in answers for name in a["similar"]]
    assert len(answers) == ferret.AMOUNTS["test"].queries
    assert len(same) == 10 * len(answers)
    assert np.mean(same) > 0.8


@pytest.mark.parametrize("name", NAMES)
def test_the_stages_one_after_the_other_are_the_sequential_program(
    name: str, folder: Folder, truth: Folder, tmp_path: Path
) -> None:
    app = application(name)
    results = app.items(folder(name))
    for stage in app.stages:
        results = [stage(item) for item in results]
    app.write(folder(name), results, tmp_path / "result")
    assert (tmp_path / "result").read_bytes() == truth(name).read_bytes()


@pytest.mark.parametrize("name", ["eye", "lane", "face"])
def test_frames_are_the_same_before_they_are_encoded(
    name: str, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = application(name)
    frames = list(app.items(folder(name)))[:4]
    pipeline = app.pipeline(folder(name), tmp_path / "parts")
    found = simulated.run(rehearsed(pipeline, Rehearsal())).collected("binary")
    assert len(found) == len(app.items(folder(name)))
    for frame, marked in zip(frames, found, strict=False):
        for stage in app.stages:
            frame = stage(frame)
        assert marked.number == frame.number
        assert np.array_equal(marked.image, frame.image)
        assert not np.array_equal(marked.image, app.items(folder(name))[frame.number].image)
