"""What every application is made of, so that one command can run, check and compare them all.

An application reads items from a folder, takes each through its stages, and writes one result
file. It comes as a sequential program, which says what is right, and as a pipeline; the stages are
plain functions of one item, so that any other way of running them can be built from the same parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

import everstream as es

CLASSES = ("test", "small", "medium", "large", "huge")
"""The classes of inputs, by size."""
Stage = Callable[[Any], Any]
Tell = Callable[[int, int], None]
"""Told how many of how many pieces of an input are made."""


def json_line(record: Any) -> bytes:
    """A record of a result without order, as `es.JsonLines` writes it."""
    return msgspec.json.encode(record) + b"\n"


class MakePipeline(Protocol):
    """Makes the pipeline that reads `folder` and writes part files into `parts`."""

    def __call__(
        self, folder: Path, parts: Path, *, shards: int = 2, batch: int = 1
    ) -> es.Pipeline: ...


@dataclass(frozen=True)
class Application:
    """One application: where its items come from, what is done to them, what comes out."""

    name: str
    title: str
    sizes: Mapping[str, Any]
    """Class of input -> how much of it, as `make_input` takes it."""
    make_input: Callable[[Any, Path, Tell], None]
    """Fills a folder with an input of this size: the same one every time."""
    items: Callable[[Path], Sequence[Any]]
    """The items of the input in a folder; read as they are asked for."""
    stages: tuple[Stage, ...]
    """What is done to each item, one after the other; operators have the names of these."""
    sequential: Callable[[Path, Path], None]
    """The program without any parallelism, from the folder of an input to the result file."""
    pipeline: MakePipeline
    annotated: MakePipeline
    """The pipeline that is made of the annotated sequential program. One that returns something
    returns the one record of its result, and need not write part files."""
    result: str
    """The name of the result file."""
    ordered: bool = False
    """Whether results stand in the order of the items. If not, they are lines of JSON."""
    encode: Callable[[Any], Any] = json_line
    """The bytes of one result in the result file."""
    opening: Callable[[Path], bytes] = lambda _: b""
    """The bytes before the first result, for the input in this folder."""
    gather: Callable[[Iterable[Any]], Iterable[Any]] = lambda results: results
    """What the results of all items come to, if that is not the results themselves."""
    batch: int = 1
    """Default number of items per batch."""

    witness: str = "binary"
    """An operator or sink of the pipeline that has one shard, through which all items go."""

    def kill_halfway(self, folder: Path) -> str:
        """A kill that every run on this input comes to, in the words of `run(kill=[...])`."""
        return f"{self.witness}@{max(len(self.items(folder)) // 2, 1)}"

    def write(self, folder: Path, results: Iterable[Any], output: Path) -> None:
        """Write the result file from the results of all items, for any way of computing them."""
        pieces = (self.encode(result) for result in self.gather(results))
        with output.open("wb") as file:
            file.write(self.opening(folder))
            for piece in pieces if self.ordered else sorted(pieces):
                file.write(piece)

    def finish(self, folder: Path, parts: Path, output: Path, returned: Any = None) -> None:
        """Write the result file from the part files of the pipeline, or from what it returned."""
        with output.open("wb") as file:
            file.write(self.opening(folder))
            if returned is not None:
                file.write(self.encode(returned))
            elif self.ordered:
                file.writelines(es.Binary(parts).pieces())
            else:
                file.writelines(sorted(lines_in(parts)))


def lines_in(parts: Path) -> list[bytes]:
    """All lines that a pipeline with `es.JsonLines` has written into a folder."""
    return [line for part in parts.glob("*.jsonl") for line in part.read_bytes().splitlines(True)]


def checksum(output: Path) -> str:
    """What two result files have in common if and only if they are the same."""
    with output.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
