"""Finds the eyes in a video: faces first, then eyes in the upper part of each face.

Frames are independent, so they are processed in parallel; the video that comes out is
in order again.
"""

from pathlib import Path
from typing import Any

import cv2

import everstream as es
from everstream_lab.apps.application import Application
from everstream_lab.apps.generators.faces import make_portraits
from everstream_lab.apps.video import (
    GREEN,
    RED,
    Box,
    Frame,
    Video,
    cascade,
    even_grey,
    find_faces,
    jpeg,
)

FRAMES = {"test": 6, "small": 60, "medium": 300, "large": 900, "huge": 1_800}
SMALLEST, LARGEST = 0.15, 0.45
"""Of an eye, as parts of the width of its face."""


def frames(folder: Path) -> Video:
    return Video(folder / "video.avi")


def find_eyes(grey: Any, face: Box) -> list[Box]:
    left, top, width, height = face
    upper = grey[top : top + height * 3 // 5, left : left + width]
    smallest, largest = int(SMALLEST * width), int(LARGEST * width)
    eyes = cascade("eye").detectMultiScale(
        upper, 1.1, 5, minSize=(smallest, smallest), maxSize=(largest, largest)
    )
    return sorted((int(left + x), int(top + y), int(w), int(h)) for x, y, w, h in eyes)


def mark_eyes(frame: Frame) -> Frame:
    image, grey = frame.image.copy(), even_grey(frame.image)
    for face in find_faces(grey):
        cv2.rectangle(image, face, GREEN, 2)
        for eye in find_eyes(grey, face):
            cv2.rectangle(image, eye, RED, 2)
    return frame._replace(image=image)


def sequential(folder: Path, output: Path) -> None:
    with output.open("wb") as video:
        for frame in frames(folder):
            video.write(jpeg(mark_eyes(frame)))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    eye = es.Pipeline("eye")
    source = eye.source(es.FromList(frames(folder), batch=batch), name="frames")
    marked = source.map(mark_eyes, name="mark_eyes", shards=shards)
    return marked.sink(es.Binary(parts, encode=jpeg), ordered=True)


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    video = es.Binary(parts, encode=jpeg)
    with es.ToStream(batch=batch):
        for frame in frames(folder):
            with es.Stage(replicate=shards, outputs=[frame], ordered=True, sink=video):
                frame = mark_eyes(frame)


APPLICATION = Application(
    name="eye",
    title="eyes in a video",
    sizes=FRAMES,
    make_input=make_portraits,
    items=frames,
    stages=(mark_eyes,),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="eyes.mjpeg",
    ordered=True,
    encode=jpeg,
)
