"""Small Parquet files that unpack to far more than there is memory: read in pieces, or refused."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from everstream.connectors import Parquet
from everstream.connectors.files.filesystem import filesystem_of
from everstream.connectors.files.unpacking import (
    Column,
    OversizedRowGroup,
    PageHeader,
    ParquetBytes,
    pages_of,
)
from everstream.errors import ConnectorError
from everstream.pipeline.source import EndOfStream

MB = 1 << 20
DATA, DICTIONARY = 0, 2
PLAIN, BY_DICTIONARY = 0, 8
POOLS: list[Any] = []
"""Kept, because what was allocated from them may live longer than a test."""


@pytest.fixture
def arrow_memory() -> Iterator[Any]:
    """Counts what Arrow allocates: `max_memory` is the most at once."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    POOLS.append(counted)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


def one_page(path: Path) -> None:
    """100 rows of 2 MB on one page: 200 MB."""
    table = pa.table({"text": ["x" * (2 * MB)] * 100})
    parquet.write_table(
        table, path, use_dictionary=False, compression="zstd", data_page_size=1 << 30
    )


def one_row(path: Path) -> None:
    """A list of 10 million equal numbers: 80 MB."""
    numbers = pa.array(np.zeros(10_000_000, np.int64))
    table = pa.table({"numbers": pa.ListArray.from_arrays([0, len(numbers)], numbers)})
    parquet.write_table(table, path, compression="zstd")


def one_row_among_many(path: Path) -> None:
    """The same on many pages, and so many empty lists that the average is small."""
    numbers = pa.array(np.zeros(10_000_000, np.int64))
    ends = np.full(1_000_001, len(numbers), np.int32)
    ends[0] = 0
    table = pa.table({"numbers": pa.ListArray.from_arrays(pa.array(ends), numbers)})
    parquet.write_table(table, path, use_dictionary=False, compression="zstd", data_page_size=MB)


def one_text(path: Path) -> None:
    """A text of 70 MB in the dictionary, in every row."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), ["x" * (70 * MB)])
    schema = pa.schema({"text": pa.string()})
    _write_as(path, pa.table({"text": texts}), schema, dictionary_pagesize_limit=1 << 30)


def _write_as(path: Path, table: pa.Table, schema: pa.Schema, **options: Any) -> None:
    """With the types of a schema, in which Arrow would not have the room to hold the table."""
    parquet.write_table(
        table.replace_schema_metadata(None), path, compression="zstd", store_schema=False, **options
    )
    assert parquet.read_schema(path).equals(schema)


def read_all(source: Parquet) -> Iterator[pl.DataFrame]:
    reader = source.open(0, 1)
    while not isinstance(batch := reader.read(), EndOfStream):
        assert isinstance(batch, pl.DataFrame)
        yield batch


@pytest.mark.parametrize("bomb", [one_page, one_row, one_row_among_many, one_text])
@pytest.mark.parametrize("place", ["local", "elsewhere"])
def test_a_row_group_that_unpacks_to_too_much_is_refused_before_it_is_decoded(
    tmp_path: Path, arrow_memory: Any, bomb: Any, place: str
) -> None:
    bomb(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < MB
    good = pa.table(
        {name: [None, None] for name in parquet.read_schema(tmp_path / "a.parquet").names}
    )
    good = good.cast(parquet.read_schema(tmp_path / "a.parquet"))
    parquet.write_table(good, tmp_path / "b.parquet", store_schema=False)
    folder = str(tmp_path)
    if place == "elsewhere":
        folder = f"memory://{tmp_path}"
        fsspec.filesystem("memory").put(str(tmp_path), f"{tmp_path.parent}/", recursive=True)
    rows = parquet.read_metadata(tmp_path / "a.parquet").num_rows
    before = arrow_memory.max_memory()
    with pytest.raises(
        ConnectorError, match=r"row group 0 .*more than max_record_bytes=67,108,864"
    ):
        list(read_all(Parquet(folder)))
    reader = Parquet(folder, on_error="dead_letter").open(0, 1)
    batch = reader.read()
    assert isinstance(batch, pl.DataFrame) and batch.height == 2, "the next file is read"
    (rejected,) = reader.take_rejected()
    assert rejected.records == rows and "a.parquet', row group 0" in str(rejected.place)
    assert arrow_memory.max_memory() - before < 8 * MB


def shared_text(path: Path) -> int:
    """A million rows that share one text of 200 KB: 200 GB."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000_000, np.int32)), ["x" * 200_000])
    schema = pa.schema({"text": pa.string()})
    _write_as(path, pa.table({"text": texts}), schema)
    return 200_000


def shared_prefix(path: Path) -> int:
    """1,000 rows that begin with the same 100 KB, which is written once: 100 MB."""
    table = pa.table({"text": ["x" * 100_000] * 1000})
    parquet.write_table(
        table, path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}
    )
    return 100_000


@pytest.mark.parametrize("bomb", [shared_text, shared_prefix])
def test_rows_that_share_their_bytes_are_unpacked_a_few_at_a_time(
    tmp_path: Path, arrow_memory: Any, bomb: Any
) -> None:
    length = bomb(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < MB
    before = arrow_memory.max_memory()
    for batch in islice(read_all(Parquet(tmp_path, max_record_bytes=2 * MB)), 20):
        assert 0 < batch.estimated_size() < 5 * MB
        assert set(batch["text"].str.len_bytes()) == {length}
    assert arrow_memory.max_memory() - before < 16 * MB


def test_a_large_row_group_is_read_in_pieces_and_not_refused(
    tmp_path: Path, arrow_memory: Any
) -> None:
    """32 MB that do not compress, of which 1 MB may be unpacked at once."""
    numbers = np.random.default_rng(1).integers(0, 1 << 62, 4 * MB)
    frame = pl.DataFrame({"n": numbers})
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=frame.height)
    before = arrow_memory.max_memory()
    row = 0
    for batch in read_all(Parquet(tmp_path, max_record_bytes=MB, batch_rows=1 << 20)):
        assert batch.height <= 2 * MB // 8 and batch.equals(frame[row : row + batch.height])
        row += batch.height
    assert row == frame.height
    assert arrow_memory.max_memory() - before < 48 * MB, "the column chunk and some batches of it"


def test_a_batch_has_as_many_rows_as_asked_for_though_few_are_unpacked_at_once(
    tmp_path: Path,
) -> None:
    """One row has a long text, so each must be expected to have it; but none of the others has."""
    texts = ["x" * 100_000, *(f"{n % 50}" for n in range(4999))]
    pl.DataFrame({"text": texts}).write_parquet(tmp_path / "a.parquet", use_pyarrow=True)
    batches = list(read_all(Parquet(tmp_path, max_record_bytes=MB, batch_rows=1000)))
    assert [batch.height for batch in batches] == [1000] * 5
    assert pl.concat(batches)["text"].to_list() == texts


def test_a_reader_resumes_in_the_middle_of_a_row_group_that_is_read_in_pieces(
    tmp_path: Path,
) -> None:
    pl.DataFrame({"n": range(1000), "tags": [["a", "b"]] * 1000}).write_parquet(
        tmp_path / "a.parquet"
    )
    source = Parquet(tmp_path, batch_rows=300, max_record_bytes=2000)
    reader = source.open(0, 1)
    first = reader.read()
    assert isinstance(first, pl.DataFrame)
    again = source.open(0, 1)
    again.seek(reader.offset)
    rest: list[int] = []
    while isinstance(batch := again.read(), pl.DataFrame):
        rest += batch["n"].to_list()
    assert first["n"].to_list() + rest == list(range(1000))


def test_a_text_in_a_dictionary_that_is_not_seen_first_is_expected_to_be_as_long_as_it_can_be() -> (
    None
):
    dictionary = PageHeader(DICTIONARY, 10, 5000, 3, PLAIN, 20)
    plain, by_number = (
        PageHeader(DATA, 10, 40, 4, PLAIN, 20),
        PageHeader(DATA, 10, 4, 900, BY_DICTIONARY, 20),
    )
    hidden = Column([dictionary, plain, by_number], None, repeated=False)
    assert not hidden.shows_dictionary and hidden.row_bytes == 8 + 5000
    shown = Column([dictionary, by_number, plain], None, repeated=False, longest_text=70)
    assert shown.shows_dictionary and shown.row_bytes == 8 + 70


def test_a_list_is_expected_to_go_over_all_pages() -> None:
    pages = [PageHeader(DATA, 10, 800, 100, PLAIN, 20)] * 50
    assert Column(pages, 8, repeated=True).held_bytes == 50 * 800
    assert Column(pages, 8, repeated=False).held_bytes == 800


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_are_found_as_they_were_written(tmp_path: Path, version: Any) -> None:
    table = pa.table({"n": range(10_000), "text": [f"{n}" for n in range(10_000)]})
    path = tmp_path / "a.parquet"
    parquet.write_table(
        table, path, data_page_version=version, data_page_size=4096, write_batch_size=500
    )
    metadata = parquet.read_metadata(path).row_group(0)
    fs, _ = filesystem_of(path)
    for number in range(2):
        chunk = metadata.column(number)
        file = ParquetBytes(fs.open(str(path), "rb"), keeps_chunks=True)
        start, size_bytes = chunk.dictionary_page_offset, chunk.total_compressed_size
        dictionary, *data = pages_of(file.read_at, start, size_bytes)
        assert dictionary.kind == DICTIONARY and len(data) > 3
        assert sum(page.values for page in data) == 10_000
        pages = [dictionary, *data]
        assert sum(page.header_bytes + page.packed_bytes for page in pages) == size_bytes
        whole = sum(page.header_bytes + page.unpacked_bytes for page in pages)
        assert whole == chunk.total_uncompressed_size
        with pytest.raises(OversizedRowGroup, match=r"torn|states no sizes|unknown type|too long"):
            list(pages_of(lambda *_: b"\xff" * 9, start, size_bytes))
        file.close()
