"""The word count of the README, from lines of text: into `Collect`, and into JSON lines.

Both are asked for a rate, not for a ratio: each word goes from one process to another as a Python
object, which the plain loop beside it, in one process and with nothing to lose, never does.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from everstream.connectors.collect import Collect
from everstream.connectors.files.json_lines import JsonLines
from everstream.connectors.files.text import TextLines
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.connectors.file_sinks import lines_in
from everstream_lab.bench.connectors.row import Row, per_checkpoint

VOCABULARY = 10_000
WORDS_PER_LINE = 10
WORDS_AT_ONCE = 1_000_000
CHUNK_BYTES = 1 << 16


class _WordCount(Row, ABC):
    kind, records, slots = "sink", 4_000_000, 2

    @property
    def path(self) -> Path:
        return self.place.folder / "words.txt"

    def make(self) -> None:
        """Few words are common, most are rare."""
        chance = np.random.default_rng(1)
        with self.path.open("w") as file:
            for start in range(0, self.total, WORDS_AT_ONCE):
                count = min(WORDS_AT_ONCE, self.total - start)
                words = [f"w{rank % VOCABULARY}" for rank in chance.zipf(1.2, count).tolist()]
                for at in range(0, count, WORDS_PER_LINE):
                    file.write(" ".join(words[at : at + WORDS_PER_LINE]) + "\n")

    @abstractmethod
    def sink(self, folder: Path) -> Sink:
        """Where the counts go."""

    def pipeline(self, folder: Path) -> Pipeline:
        pipeline = Pipeline(f"bench-{self.name}")
        lines = pipeline.source(TextLines(self.path), name="lines", shards=2)
        words = lines.flat_map(str.split, name="words").key_by(_as_it_is)
        counts = words.fold(init=int, update=_one_more, name="count", shards=2)
        counts.sink(self.sink(folder), name="out")
        return pipeline

    def counted(self) -> Iterator[Batch]:
        """By hand: each word with how often it has come so far."""
        counts: dict[str, int] = {}
        with self.path.open() as file:
            while lines := file.readlines(CHUNK_BYTES):
                batch = []
                for line in lines:
                    for word in line.split():
                        counts[word] = count = counts.get(word, 0) + 1
                        batch.append((word, count))
                yield batch


class WordsCollected(_WordCount):
    name, bare_client, goal_per_s = "word-count-collect-sink", "one plain loop", 1.2e6

    def sink(self, folder: Path) -> Sink:
        return Collect()

    def bare(self, folder: Path) -> int:
        return len([pair for batch in self.counted() for pair in batch])


class WordsIntoJson(_WordCount):
    name, bare_client, goal_per_s = "word-count-json-sink", "one loop, msgspec", 1.2e6

    def sink(self, folder: Path) -> Sink:
        return JsonLines(f"{folder}/out/")

    def bare(self, folder: Path) -> int:
        encode: Any = msgspec.json.Encoder().encode_lines
        (folder / "out").mkdir()
        for number, part in enumerate(per_checkpoint(self.counted())):
            with (folder / "out" / f"{number}.jsonl").open("wb") as file:
                for batch in part:
                    file.write(encode(batch))
                file.flush()
                os.fsync(file.fileno())
        return self.total

    def arrived(self, folder: Path) -> int:
        return sum(map(lines_in, (folder / "out").glob("*.jsonl")))


def _as_it_is(word: str) -> str:
    return word


def _one_more(count: int, word: str) -> int:
    return count + 1


ROWS: tuple[type[Row], ...] = (WordsCollected, WordsIntoJson)
