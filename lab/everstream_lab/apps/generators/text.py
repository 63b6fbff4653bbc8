"""Text to compress: sentences of made-up words, a few of them frequent and most of them rare.

How often a word comes follows Zipf's law, as in any language, so the text shrinks about as much as
a book does.
"""

from pathlib import Path

import numpy as np

from everstream_lab.apps.application import Tell

WORDS = 20_000
WORDS_PER_CHUNK = 200_000
SEED = 12
LETTERS = np.frombuffer(b"etaoinshrdlcumwfgypbvk", dtype="S1")


def make_text(megabytes: int, folder: Path, tell: Tell) -> None:
    """`text.txt` of this size."""
    chance = np.random.default_rng(SEED)
    words = _vocabulary(chance)
    frequency = 1 / np.arange(1, WORDS + 1)
    upto = np.cumsum(frequency / frequency.sum())
    wanted = megabytes * 1_000_000
    with (folder / "text.txt").open("wb") as file:
        while (written := file.tell()) < wanted:
            chosen = np.searchsorted(upto, chance.random(WORDS_PER_CHUNK)).clip(max=WORDS - 1)
            file.write((b" ".join(words[chosen].tolist()) + b"\n")[: wanted - written])
            tell(min(written, wanted), wanted)


def _vocabulary(chance: np.random.Generator) -> np.ndarray:
    """Frequent words are short; some end a sentence."""
    lengths = chance.integers(2, 5, WORDS) + np.log2(np.arange(1, WORDS + 1)).astype(int) // 3
    weights = np.linspace(2, 0.2, len(LETTERS))
    letters = chance.choice(LETTERS, (WORDS, int(lengths.max())), p=weights / weights.sum())
    ends = chance.choice([b"", b",", b".\n"], WORDS, p=[0.85, 0.08, 0.07])
    words = [letters[n, : lengths[n]].tobytes() + ends[n] for n in range(WORDS)]
    return np.array(words, dtype=object)
