"""Recordings of people who say what they think of something, spoken by Debian's `flite`.

A seed determines the words, and whether the speaker is pleased.
"""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from everstream.errors import UserError
from everstream_lab.apps.application import Tell

SEED = 12
VOICES = ("rms", "awb")
THINGS = ("the hotel", "the food", "my new car", "the film", "our teacher", "the garden")
PLEASED = (
    *("I love {} and I am very happy with it.", "{} was wonderful and we had great fun."),
    *("everybody says that {} is good and I agree.", "I enjoy {} because it is beautiful."),
)
DISAPPOINTED = (
    *("I hate {} and I am sad about it.", "{} was terrible and we had a bad time."),
    *("everybody says that {} is awful and I agree.", "I am angry because {} was a disaster."),
)


class Recordings(NamedTuple):
    """How many, and how many sentences in each; a sentence takes about three seconds."""

    files: int
    sentences: int


def make_speech(amount: Recordings, folder: Path, tell: Tell) -> None:
    """`NN.wav` and, for those who want to check, `NN.txt` with what was said."""
    flite = shutil.which("flite")
    if flite is None:
        raise UserError(
            "speech is made by flite, which is not installed: run scripts/flite.sh, or "
            "'apt-get install flite' as root."
        )
    chance = np.random.default_rng(SEED)
    for number in range(amount.files):
        speech = " ".join(_sentence(chance, number) for _ in range(amount.sentences))
        text = folder / f"{number:02d}.txt"
        text.write_text(speech)
        voice, wav = VOICES[number % len(VOICES)], text.with_suffix(".wav")
        subprocess.run([flite, "-voice", voice, "-f", text, "-o", wav], check=True)
        tell(number + 1, amount.files)


def _sentence(chance: np.random.Generator, number: int) -> str:
    """Every other speaker is pleased with nearly everything."""
    pleased = chance.random() < (0.9 if number % 2 == 0 else 0.1)
    sentence = str(chance.choice(PLEASED if pleased else DISAPPOINTED))
    return sentence.format(chance.choice(THINGS))
