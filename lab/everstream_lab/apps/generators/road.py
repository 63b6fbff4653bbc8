"""A video of a road as a driver sees it: a dashed line in the middle, a solid one on each side.

The road sways, the dashes come nearer, and the camera adds its noise.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from everstream_lab.apps.application import Tell
from everstream_lab.apps.video import FRAMES_PER_S, HEIGHT, WIDTH, write_video

SEED = 12
HORIZON = 150
ROAD_HEIGHT = HEIGHT - HORIZON
DASH = 0.5
"""Of a dash and the gap after it, how much is dash."""
SKY, GRASS, ASPHALT = (200, 160, 110), (50, 110, 60), (80, 80, 80)
WHITE, YELLOW = (235, 235, 235), (60, 200, 230)


def make_road(seconds: int, folder: Path, tell: Tell) -> None:
    """`video.avi` of this length."""
    write_video(folder / "video.avi", _drive(seconds * FRAMES_PER_S, tell))


def _drive(frames: int, tell: Tell) -> Iterator[Any]:
    chance = np.random.default_rng(SEED)
    noise = chance.normal(0, 4, (8, HEIGHT, WIDTH, 3))
    for frame in range(frames):
        sway = 40 * np.sin(frame / 50)
        image = _road(sway, frame * 0.12)
        yield (image + noise[chance.integers(8)]).clip(0, 255).astype(np.uint8)
        tell(frame + 1, frames)


def _road(sway: float, driven: float) -> Any:
    image = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    image[:HORIZON], image[HORIZON:] = SKY, GRASS
    _stripe(image, sway, -0.95, 0.95, ASPHALT)
    _stripe(image, sway, -0.86, -0.82, WHITE)
    _stripe(image, sway, 0.82, 0.86, YELLOW)
    for dash in np.arange(20) - driven % 1:
        begins, ends = max(dash, 0.0), max(dash + DASH, 0.0)
        _stripe(image, sway, -0.02, 0.02, WHITE, 1 / (1 + ends), 1 / (1 + begins))
    return image


def _stripe(
    image: Any,
    sway: float,
    left: float,
    right: float,
    colour: tuple[int, int, int],
    far: float = 0.0,
    near: float = 1.0,
) -> None:
    """Paint the road between two places across it (-1 to 1), from far (0: the horizon) to near."""
    corners = [
        (WIDTH / 2 + sway * (1 - depth) + across * depth * WIDTH / 2, HORIZON + depth * ROAD_HEIGHT)
        for across, depth in ((left, far), (right, far), (right, near), (left, near))
    ]
    cv2.fillConvexPoly(image, np.array(corners, np.int32), colour, cv2.LINE_AA)
