"""Videos in which faces wander about, cut from the photographs that scikit-image brings along.

One portrait is large enough to have eyes in it; two hundred small pictures of faces are enough to
tell people from each other.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from skimage import data

from everstream_lab.apps.application import Tell
from everstream_lab.apps.video import FRAMES_PER_S, HEIGHT, WIDTH, write_video

SEED = 12
PEOPLE = (2, 9, 24, 41, 47)
"""Whose pictures of the two hundred are in the video."""
SIDE, EDGE = 130, 26
PACES = np.array([25.0, 17.0, 40.0])
"""How slowly a face goes across, down and near."""
PICTURES_OF_EACH = 8


def make_portraits(frames: int, folder: Path, tell: Tell) -> None:
    """`video.avi`: a portrait twice, once as in a mirror, coming closer and going away."""
    portrait = cv2.cvtColor(data.astronaut(), cv2.COLOR_RGB2BGR)[10:230, 110:330]
    _write(folder, frames, [portrait, portrait[:, ::-1]], (0.75, 1.05), tell)


def make_people(frames: int, folder: Path, tell: Tell) -> None:
    """`video.avi`: people who come by two at a time. `training/N`: pictures of person N."""
    chance = np.random.default_rng(SEED)
    faces = [_person(number) for number in PEOPLE]
    for number, face in enumerate(faces):
        place = folder / "training" / str(number)
        place.mkdir(parents=True)
        for picture in range(PICTURES_OF_EACH):
            cv2.imwrite(str(place / f"{picture}.png"), _varied(face, chance))
    _write(folder, frames, faces, (0.8, 1.1), tell)


def _person(number: int) -> Any:
    small = (data.lfw_subset()[number] * 255).astype(np.uint8)
    large = cv2.resize(small, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    framed = cv2.copyMakeBorder(large, EDGE, EDGE, EDGE, EDGE, cv2.BORDER_REPLICATE)
    return cv2.cvtColor(framed, cv2.COLOR_GRAY2BGR)


def _varied(face: Any, chance: np.random.Generator) -> Any:
    """As another camera might have seen it: turned, lighter or darker, with noise."""
    side = len(face)
    turn = cv2.getRotationMatrix2D((side / 2, side / 2), chance.uniform(-6, 6), 1.0)
    turned = cv2.warpAffine(face, turn, (side, side), borderMode=cv2.BORDER_REPLICATE)
    lit = turned * chance.uniform(0.8, 1.2) + chance.normal(0, 3, face.shape)
    return lit.clip(0, 255).astype(np.uint8)


def _write(
    folder: Path, frames: int, faces: list[Any], scales: tuple[float, float], tell: Tell
) -> None:
    write_video(folder / "video.avi", _wandering(frames, faces, scales, tell))


def _wandering(
    frames: int, faces: list[Any], scales: tuple[float, float], tell: Tell
) -> Iterator[Any]:
    """Frames in each of which one face is in the left half and one in the right."""
    chance = np.random.default_rng(SEED)
    wall = _wall(chance)
    phases = chance.uniform(0, 2 * np.pi, (2, 3))
    for frame in range(frames):
        image = wall.copy()
        turn = frame // FRAMES_PER_S
        for half in range(2):
            face = faces[(turn + half) % len(faces)]
            across, down, near = np.sin(frame / PACES + phases[half])
            scale = scales[0] + (scales[1] - scales[0]) * (near + 1) / 2
            size = int(len(face) * scale)
            left = int((WIDTH / 2 - size) * (across + 1) / 2) + half * WIDTH // 2
            top = int((HEIGHT - size) * (down + 1) / 2)
            image[top : top + size, left : left + size] = cv2.resize(face, (size, size))
        noise = chance.normal(0, 2, image.shape)
        yield (image + noise).clip(0, 255).astype(np.uint8)
        tell(frame + 1, frames)


def _wall(chance: np.random.Generator) -> Any:
    """Soft patches of colour, in which no detector finds a face."""
    rough = chance.uniform(70, 150, (6, 9, 3)).astype(np.float32)
    return cv2.resize(rough, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
