"""`Binary`: the bytes of records, one after the other, exactly once and in order."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from everstream.connectors import Binary
from everstream.connectors.files.parts import owner_of
from everstream.errors import UserError
from everstream.pipeline.sink import SinkShard
from everstream.testing.sinks import check_sink


def line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


def sink_shard(shard: int = 0, shards: int = 1) -> SinkShard:
    return SinkShard("video", "frames", shard, shards, 1, "unused")


def test_binary_is_exactly_once_through_every_crash() -> None:
    def shown(_: Any, sink_shard: SinkShard) -> Iterator[Any]:
        folder = Path(sink_shard.store).parent / "out"
        mine = owner_of(sink_shard.pipeline, sink_shard.operator)
        for part in folder.glob(f"part-{mine}-????-????????-g*.bin"):
            yield from map(json.loads, part.read_text().splitlines())

    check_sink(lambda place: Binary(f"{place}/out", encode=line), shown)


def test_pieces_come_by_checkpoint_whatever_the_order_of_names_on_disk(tmp_path: Path) -> None:
    for checkpoint in (100_000_001, 9, 10):
        name = f"part-video.frames-0000-{checkpoint:08d}.bin"
        (tmp_path / name).write_bytes(str(checkpoint).encode())
    (tmp_path / "readme.bin").write_bytes(b"not ours")
    assert list(Binary(tmp_path).pieces()) == [b"9", b"10", b"100000001"]


def test_arrays_are_written_as_they_lie_in_memory(tmp_path: Path) -> None:
    writer: Any = Binary(tmp_path).open(sink_shard())
    assert writer.encode([np.arange(4, dtype=np.uint8), b"x"]) == b"\x00\x01\x02\x03x"


@pytest.mark.parametrize("batch", [["text"], pl.DataFrame({"n": [1]})], ids=["text", "columns"])
def test_what_has_no_bytes_is_refused_with_what_to_do(tmp_path: Path, batch: Any) -> None:
    with pytest.raises(UserError, match=r"encode=|Parquet"):
        Binary(tmp_path).open(sink_shard()).write(batch)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="into a folder"):
        Binary(tmp_path / "file").check()
