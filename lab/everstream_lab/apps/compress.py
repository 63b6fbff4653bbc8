"""Compresses a text with bzip2, in blocks of 900 kB that know nothing of each other.

Each block becomes a separate bzip2 stream. Streams one after the other are a `.bz2` file, which
`bunzip2` reads like any other, provided that they are in order.
"""

import bz2
from pathlib import Path

import everstream as es
from everstream_lab.apps.application import Application
from everstream_lab.apps.generators.text import make_text
from everstream_lab.apps.slices import Pieces

BLOCK_BYTES = 900_000
MEGABYTES = {"test": 3, "small": 30, "medium": 130, "large": 532, "huge": 4_200}


def blocks(folder: Path) -> Pieces:
    text = folder / "text.txt"
    size = text.stat().st_size
    return Pieces(str(text), [*range(0, size, BLOCK_BYTES), size])


def compress(block: bytes) -> bytes:
    return bz2.compress(block, 9)


def sequential(folder: Path, output: Path) -> None:
    with output.open("wb") as compressed:
        for block in blocks(folder):
            compressed.write(compress(block))


def pipeline(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> es.Pipeline:
    bzip2 = es.Pipeline("compress")
    source = bzip2.source(es.FromList(blocks(folder), batch=batch), name="blocks")
    streams = source.map(compress, name="compress", shards=shards)
    return streams.sink(es.Binary(parts), ordered=True)


@es.annotated
def annotated(folder: Path, parts: Path, *, shards: int = 2, batch: int = 1) -> None:
    with es.ToStream(batch=batch):
        for block in blocks(folder):
            with es.Stage(replicate=shards, outputs=[block], ordered=True, sink=es.Binary(parts)):
                block = compress(block)


APPLICATION = Application(
    name="compress",
    title="bzip2, compressing",
    sizes=MEGABYTES,
    make_input=make_text,
    items=blocks,
    stages=(compress,),
    sequential=sequential,
    pipeline=pipeline,
    annotated=annotated.pipeline,
    result="text.txt.bz2",
    ordered=True,
    encode=bytes,
)
