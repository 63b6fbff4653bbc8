"""Videos as sequences of frames: read from any place on, written as Motion JPEG.

A frame is a numpy array that travels as it lies in memory. OpenCV would start a thread for every
core in each process; one is enough where the shards already use all cores.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from everstream.errors import ConnectorError
from everstream_lab.apps.models import once_per_thread
from everstream_lab.apps.slices import Slices

cv2.setNumThreads(1)

WIDTH, HEIGHT = 640, 360
FRAMES_PER_S = 30
CASCADES = Path(cv2.__file__).parent / "data"
QUALITY = 90
GREEN, RED, BLUE = (0, 255, 0), (0, 0, 255), (255, 0, 0)
Box = tuple[int, int, int, int]
"""Left, top, width, height."""


class Frame(NamedTuple):
    """One picture of a video."""

    video: str
    number: int
    image: Any
    """Rows, columns, and blue, green and red from 0 to 255."""


class Video(Slices[Frame]):
    """The frames of a video file."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._length = int(_open(self._path).get(cv2.CAP_PROP_FRAME_COUNT))

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> list[Frame]:
        capture = _open(self._path)
        if int(capture.get(cv2.CAP_PROP_POS_FRAMES)) != start:
            capture.set(cv2.CAP_PROP_POS_FRAMES, start)
        return [Frame(self._path, n, self._next(capture, n)) for n in range(start, stop)]

    def _next(self, capture: Any, number: int) -> Any:
        there, image = capture.read()
        if not there:
            raise ConnectorError(f"cannot read frame {number} of '{self._path}': is it damaged?")
        return image


@once_per_thread
def _open(path: str) -> Any:
    capture = cv2.VideoCapture(path)
    if not capture.isOpened():
        raise ConnectorError(f"cannot open the video '{path}'.")
    return capture


def jpeg(frame: Frame) -> bytes:
    """A frame of a Motion JPEG video, which is one such picture after the other."""
    done, data = cv2.imencode(".jpg", frame.image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    assert done
    return bytes(data)


def write_video(path: Path, images: Iterable[np.ndarray]) -> None:
    """A video of independent frames, so that decoding can start anywhere."""
    kind = cv2.VideoWriter.fourcc(*"MJPG")
    writer = cv2.VideoWriter(str(path), kind, FRAMES_PER_S, (WIDTH, HEIGHT))
    for image in images:
        writer.write(image)
    writer.release()


@once_per_thread
def cascade(name: str) -> Any:
    """One of the detectors that come with OpenCV."""
    return cv2.CascadeClassifier(str(CASCADES / f"haarcascade_{name}.xml"))


def even_grey(image: Any) -> Any:
    """The picture in grey, as bright as any other."""
    return cv2.equalizeHist(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))


def find_faces(grey: Any) -> list[Box]:
    """The faces in a grey picture, from left to right."""
    return sorted(map(tuple, cascade("frontalface_default").detectMultiScale(grey, 1.1, 5)))
