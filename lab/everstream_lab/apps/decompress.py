"""Decompresses a `.bz2` file of many streams, each of which begins with the same ten bytes.

Streams are found by those bytes without decompressing anything, so they can be decompressed at the
same time; in order, they are the text again.
"""

import bz2
import mmap
import re
from pathlib import Path

import everstream as es
from everstream_lab.apps import compress
from everstream_lab.apps.application import Application, Tell
from everstream_lab.apps.generators.text import make_text
from everstream_lab.apps.slices import Pieces

STREAM_BEGINS = re.compile(rb"BZh91AY&SY")


def streams(folder: Path) -> Pieces:
    compressed = folder / "text.txt.bz2"
    with compressed.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        begins = [match.start() for match in STREAM_BEGINS.finditer(data)]
        return Pieces(str(compressed), [*begins, len(data)])


def decompress(stream: bytes) -> bytes:
    return bz2.decompress(stream)


def sequential(folder: Path, output: Path) -> None:
    with output.open("wb") as text:
        for stream in streams(folder):
            text.write(decompress(stream))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    bunzip2 = es.Pipeline("decompress")
    source = bunzip2.source(es.FromList(streams(folder), batch=batch), name="streams")
    blocks = source.map(decompress, name="decompress", shards=shards)
    return blocks.sink(es.Binary(parts), ordered=True)


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    with es.ToStream(batch=batch):
        for stream in streams(folder):
            with es.Stage(replicate=shards, outputs=[stream], ordered=True, sink=es.Binary(parts)):
                stream = decompress(stream)


def make_input(megabytes: int, folder: Path, tell: Tell) -> None:
    make_text(megabytes, folder, tell)
    compress.sequential(folder, folder / "text.txt.bz2")
    (folder / "text.txt").unlink()


APPLICATION = Application(
    name="decompress",
    title="bzip2, decompressing",
    sizes=compress.MEGABYTES,
    make_input=make_input,
    items=streams,
    stages=(decompress,),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="text.txt",
    ordered=True,
    encode=bytes,
)
