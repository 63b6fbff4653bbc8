"""Finds the lane in a video of a road, by straight lines that two ways of looking agree on.

Each stage is a separate farm that could run elsewhere; joined by plain edges with equally many
shards they become one chain, in which pictures stay where they are.
"""

from pathlib import Path
from typing import Any

import cv2
import numpy as np

import everstream as es
from everstream_lab.apps.application import Application
from everstream_lab.apps.generators.road import make_road
from everstream_lab.apps.video import RED, Frame, Video, jpeg

SECONDS = {"test": 1, "small": 15, "medium": 30, "large": 60, "huge": 120}
MOST_VOTES, FEWER, ENOUGH = 225, 5, 5
DEGREE = np.pi / 180
STEEP = ((0.09, 1.48), (1.66, 3.14))
"""The angles of lines that can bound a lane: neither level nor upright."""


def frames(folder: Path) -> Video:
    return Video(folder / "video.avi")


def cut_road(frame: Frame) -> tuple[Frame, Any]:
    """The lower half, where the road is."""
    return frame, frame.image[len(frame.image) // 2 :]


def find_edges(scene: tuple[Frame, Any]) -> tuple[Frame, Any]:
    frame, road = scene
    return frame, cv2.Canny(road, 50, 250)


def find_lines(scene: tuple[Frame, Any]) -> tuple[Frame, Any, Any]:
    """Long lines, drawn from side to side: fewer votes are asked for until there are enough."""
    frame, edges = scene
    votes, lines = MOST_VOTES, None
    while votes > 0 and (lines is None or len(lines) < ENOUGH):
        lines = cv2.HoughLines(edges, 1, DEGREE, votes)
        votes -= FEWER
    drawn = np.zeros_like(edges)
    for rho, theta in np.empty((0, 2)) if lines is None else lines[:, 0]:
        if any(low < theta < high for low, high in STEEP):
            sine, cosine = np.sin(theta), np.cos(theta)
            across = [int((rho - row * sine) / cosine) for row in (0, len(edges))]
            cv2.line(drawn, (across[0], 0), (across[1], len(edges)), 255, 8)
    return frame, edges, drawn


def find_segments(scene: tuple[Frame, Any, Any]) -> tuple[Frame, Any, Any]:
    """Short pieces of line, drawn where they are."""
    frame, edges, lines = scene
    return frame, lines, draw(segments_of(edges, 60, 10), np.zeros_like(edges), 255, 2)


def find_both(scene: tuple[Frame, Any, Any]) -> tuple[Frame, Any]:
    """The edges of what both have found."""
    frame, lines, pieces = scene
    _, rest = cv2.threshold(cv2.bitwise_and(lines, pieces), 150, 255, cv2.THRESH_BINARY_INV)
    return frame, cv2.Canny(rest, 100, 350)


def mark_lane(scene: tuple[Frame, Any]) -> Frame:
    frame, edges = scene
    image = frame.image.copy()
    draw(segments_of(edges, 5, 2), image[len(image) // 2 :], RED, 2)
    return frame._replace(image=image)


def segments_of(edges: Any, length: int, gap: int) -> Any:
    segments = cv2.HoughLinesP(edges, 1, DEGREE, 4, minLineLength=length, maxLineGap=gap)
    return np.empty((0, 4), int) if segments is None else segments[:, 0]


def draw(segments: Any, image: Any, colour: Any, width: int) -> Any:
    for x1, y1, x2, y2 in segments.tolist():
        cv2.line(image, (x1, y1), (x2, y2), colour, width)
    return image


STAGES = (cut_road, find_edges, find_lines, find_segments, find_both, mark_lane)


def sequential(folder: Path, output: Path) -> None:
    with output.open("wb") as video:
        for frame in frames(folder):
            scene: Any = frame
            for stage in STAGES:
                scene = stage(scene)
            video.write(jpeg(scene))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    lane = es.Pipeline("lane")
    source = lane.source(es.FromList(frames(folder), batch=batch), name="frames")
    stream: es.Stream[Any] = source
    for stage in STAGES:
        stream = stream.map(stage, name=stage.__name__, shards=shards)
    return stream.sink(es.Binary(parts, encode=jpeg), ordered=True)


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    video = es.Binary(parts, encode=jpeg)
    with es.ToStream(batch=batch):
        for frame in frames(folder):
            with es.Stage(replicate=shards, name="find_edges"):
                road = find_edges(cut_road(frame))
            with es.Stage(replicate=shards, name="find_lines"):
                found = find_both(find_segments(find_lines(road)))
            with es.Stage(replicate=shards, outputs=[frame], ordered=True, sink=video):
                frame = mark_lane(found)


APPLICATION = Application(
    name="lane",
    title="the lane in a video of a road",
    sizes=SECONDS,
    make_input=make_road,
    items=frames,
    stages=STAGES,
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="lane.mjpeg",
    ordered=True,
    encode=jpeg,
)
