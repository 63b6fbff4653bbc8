"""Every sink through the conformance suite, and what each promises beyond it."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest

from everstream.connectors import Collect, JsonLines
from everstream.connectors.parts import owner_of
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.sink import Sink, SinkShard
from everstream.testing.sinks import check_sink, default_batches

DATAFRAMES: dict[int, Batch] = {k: pl.DataFrame(batch) for k, batch in default_batches().items()}
MIXED: dict[int, Batch] = {
    k: DATAFRAMES[k] if k % 2 else batch for k, batch in default_batches().items()
}


def json_records(folder: str, who: SinkShard) -> Iterator[Any]:
    owner = owner_of(who.pipeline, who.operator)
    fs, path = fsspec.core.url_to_fs(folder)
    for name in fs.glob(f"{path}/part-{owner}-????-????????.jsonl"):
        for line in fs.cat_file(name).decode().splitlines():
            yield json.loads(line)


def collected(sink: Sink, who: SinkShard) -> Iterator[Any]:
    for batch in sink.results(who.pipeline, who.operator, who.store) or []:
        yield from records_of(batch)


@pytest.mark.parametrize("batches", [default_batches(), DATAFRAMES, MIXED])
def test_json_lines_is_exactly_once_through_every_crash(batches: dict[int, Batch]) -> None:
    check_sink(
        lambda place: JsonLines(f"{place}/out"),
        lambda _, who: json_records(str(Path(who.store).parent / "out"), who),
        batches=batches,
    )


@pytest.mark.parametrize("batches", [default_batches(), DATAFRAMES, MIXED])
def test_collect_is_exactly_once_through_every_crash(batches: dict[int, Batch]) -> None:
    check_sink(lambda _: Collect(), collected, batches=batches)


def test_json_lines_is_exactly_once_on_a_filesystem_without_rename() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    check_sink(
        lambda place: JsonLines(f"{root}{place}/out"),
        lambda _, who: json_records(f"{root}{who.store.removesuffix('/store')}/out", who),
    )
