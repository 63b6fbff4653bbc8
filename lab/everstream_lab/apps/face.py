"""Recognises people in a video: faces are found first, then compared with pictures of each person.

The pictures are learned once in each process, as local binary patterns; what no picture is near
enough to stays a stranger.
"""

from pathlib import Path
from typing import Any

import cv2
import numpy as np

import everstream as es
from everstream_lab.apps.application import Application
from everstream_lab.apps.generators.faces import make_people
from everstream_lab.apps.models import once_per_thread
from everstream_lab.apps.video import (
    BLUE,
    GREEN,
    RED,
    Box,
    Frame,
    Video,
    even_grey,
    find_faces,
    jpeg,
)

FRAMES = {"test": 9, "small": 30, "medium": 90, "large": 450, "huge": 900}
FACE = (96, 96)
"""All faces are compared at this size."""


def frames(folder: Path) -> Video:
    return Video(folder / "video.avi")


@once_per_thread
def recogniser(training: Path) -> Any:
    """One that has learned the pictures in `training/PERSON/`."""
    faces, people = [], []
    for path in sorted(training.glob("*/*.png")):
        grey = even_grey(cv2.imread(str(path)))
        for left, top, width, height in find_faces(grey)[:1]:
            faces.append(cv2.resize(grey[top : top + height, left : left + width], FACE))
            people.append(int(path.parent.name))
    model = cv2.face.LBPHFaceRecognizer.create(3, 8, 8, 8, 180.0)
    model.train(faces, np.array(people))
    return model


def detect(frame: Frame) -> tuple[Frame, Any, list[Box]]:
    grey = even_grey(frame.image)
    return frame, grey, find_faces(grey)


def recognise(scene: tuple[Frame, Any, list[Box]]) -> Frame:
    frame, grey, faces = scene
    model = recogniser(Path(frame.video).parent / "training")
    image = frame.image.copy()
    for face in faces:
        left, top, width, height = face
        person, _ = model.predict(cv2.resize(grey[top : top + height, left : left + width], FACE))
        cv2.rectangle(image, face, RED if person < 0 else GREEN, 2)
        name = "?" if person < 0 else str(person)
        cv2.putText(image, name, (left, top - 6), cv2.FONT_HERSHEY_SIMPLEX, 0.8, BLUE, 2)
    return frame._replace(image=image)


def sequential(folder: Path, output: Path) -> None:
    with output.open("wb") as video:
        for frame in frames(folder):
            video.write(jpeg(recognise(detect(frame))))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    face = es.Pipeline("face")
    source = face.source(es.FromList(frames(folder), batch=batch), name="frames")
    detected = source.map(detect, name="detect", shards=shards)
    marked = detected.map(recognise, name="recognise", shards=shards)
    return marked.sink(es.Binary(parts, encode=jpeg), ordered=True)


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    video = es.Binary(parts, encode=jpeg)
    with es.ToStream(batch=batch):
        for frame in frames(folder):
            with es.Stage(replicate=shards, name="detect"):
                scene = detect(frame)
            with es.Stage(replicate=shards, outputs=[frame], ordered=True, sink=video):
                frame = recognise(scene)


APPLICATION = Application(
    name="face",
    title="people in a video",
    sizes=FRAMES,
    make_input=make_people,
    items=frames,
    stages=(detect, recognise),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="people.mjpeg",
    ordered=True,
    encode=jpeg,
)
