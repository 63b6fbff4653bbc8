"""Collections of pictures in which some look alike: those of a kind share shapes and colours.

A kind is drawn from the seed: its ground, and three to five figures with their colours and places.
Pictures of a kind differ in where the figures are, how large, and how the light falls.
"""

from pathlib import Path
from typing import Any

import cv2
import numpy as np

SEED = 12
WIDTH, HEIGHT = 128, 96


def make_pictures(folder: Path, numbers: range, kinds: int) -> None:
    """`NNNNN-KIND.png` for these numbers; the same number is the same picture every time."""
    folder.mkdir()
    for number in numbers:
        kind = number % kinds
        cv2.imwrite(str(folder / f"{number:05d}-{kind:04d}.png"), _picture(kind, number))


def _picture(kind: int, number: int) -> Any:
    shared, own = np.random.default_rng((SEED, kind)), np.random.default_rng((SEED, kind, number))
    image = np.full((HEIGHT, WIDTH, 3), shared.integers(30, 226, 3), np.uint8)
    for _ in range(shared.integers(3, 6)):
        colour = shared.integers(0, 256, 3).tolist()
        middle = shared.uniform(0.15, 0.85, 2) * (WIDTH, HEIGHT) + own.normal(0, 6, 2)
        size = shared.uniform(10, 28, 2) * own.uniform(0.85, 1.15)
        if shared.random() < 0.5:
            one, other = (middle - size).astype(int), (middle + size).astype(int)
            cv2.rectangle(image, one.tolist(), other.tolist(), colour, -1)
        else:
            cv2.ellipse(image, (middle.tolist(), (2 * size).tolist(), 0), colour, -1)
    lit = image * own.uniform(0.85, 1.15) + own.normal(0, 4, image.shape)
    return lit.clip(0, 255).astype(np.uint8)
