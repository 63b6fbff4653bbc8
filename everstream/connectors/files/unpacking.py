"""How much memory a row group of a Parquet file can take, known before any of it is decoded.

A small file can unpack to any size: by compression, by a dictionary in which many rows share one
long text, and by lists of equal values. The sizes in the footer can be wrong, so the headers of the
pages are read: a decoder unpacks what they state. From them follow the largest pages, which are in
memory together, and the most bytes that one row can have. So a reader can take as few rows at once
as it must, and refuse a row group of which even that is too much.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from everstream.errors import ConnectorError

ReadAt = Callable[[int, int], bytes]
"""(position, bytes) -> what is there; fewer bytes at the end of the file."""

USUAL_RATIO: Final = 100
"""What honest compression reaches. Up to here large pages are large files, and allowed."""
_FIRST_LOOK_BYTES: Final = 512
_LONGEST_HEADER_BYTES: Final = 16 << 20
_DEEPEST: Final = 16
_DICTIONARY_PAGE: Final = 2
_DATA_PAGES: Final = (0, 3)
_BY_DICTIONARY: Final = (2, 8)
"""Encodings whose values are numbers of texts in the dictionary."""
_BY_PREFIX: Final = 7
"""An encoding whose values repeat the start of the value before them."""
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_ADDRESS_BYTES: Final = 8
"""What a value of any length takes besides its bytes."""


class OversizedRowGroup(ConnectorError):
    """A row group that takes too much memory, or whose pages cannot be followed."""


@dataclass(frozen=True)
class PageHeader:
    kind: int
    packed_bytes: int
    unpacked_bytes: int
    values: int
    encoding: int
    header_bytes: int


@dataclass(frozen=True)
class Column:
    """A column of a row group: its pages, and what its values are."""

    pages: Sequence[PageHeader]
    width: int | None
    """The bytes of a value; None if values differ."""
    repeated: bool
    longest_text: int | None = None
    """The bytes of the longest value in its dictionary, if known."""

    @property
    def packed_bytes(self) -> int:
        return sum(page.packed_bytes + page.header_bytes for page in self.pages)

    @property
    def value_bytes(self) -> int:
        """The most that a value takes; of plain values, on average in a page."""
        if self.width is not None:
            return self.width
        return _ADDRESS_BYTES + max((self._text_bytes(page) for page in self._data), default=0)

    def _text_bytes(self, page: PageHeader) -> int:
        if page.encoding == _BY_PREFIX:
            return page.unpacked_bytes
        if page.encoding not in _BY_DICTIONARY:
            return -(-page.unpacked_bytes // max(page.values, 1))
        return self._dictionary_bytes if self.longest_text is None else self.longest_text

    @property
    def shows_dictionary(self) -> bool:
        """Whether the first values to be decoded bring the whole dictionary of texts with them."""
        first = self._data[:1]
        return self.width is None and bool(first) and first[0].encoding in _BY_DICTIONARY

    @property
    def held_bytes(self) -> int:
        """What is in memory while a row is decoded. The values of one row may be on all pages."""
        largest = max((page.unpacked_bytes for page in self._data), default=0)
        lists = sum(page.values for page in self._data) * self.value_bytes if self.repeated else 0
        return self._dictionary_bytes + max(largest, lists)

    @property
    def row_bytes(self) -> int:
        """The most that a row takes; of lists, at most those of one page."""
        if not self.repeated:
            return self.value_bytes
        return max((page.values for page in self._data), default=0) * self.value_bytes

    @property
    def _dictionary_bytes(self) -> int:
        return sum(p.unpacked_bytes for p in self.pages if p.kind == _DICTIONARY_PAGE)

    @property
    def _data(self) -> list[PageHeader]:
        return [page for page in self.pages if page.kind in _DATA_PAGES]


def pages_of(read_at: ReadAt, start: int, size_bytes: int) -> Iterator[PageHeader]:
    position, stop = start, start + size_bytes
    while position < stop:
        page = _page_at(read_at, position, stop)
        yield page
        position += page.header_bytes + page.packed_bytes


class ParquetBytes:
    """The bytes of a Parquet file: those that Arrow reads, and single ones to look at before.

    Of a file on another machine the column chunks in use are kept, so each is fetched once.
    """

    def __init__(self, file: Any, keeps_chunks: bool) -> None:
        self._file = file
        self._keeps_chunks = keeps_chunks
        self._kept: dict[int, bytes] = {}
        self._at = 0
        self.closed = False

    @property
    def for_arrow(self) -> Any:
        return self if self._keeps_chunks else self._file

    def keep(self, chunks: Sequence[tuple[int, int]]) -> None:
        """Fetch these chunks, each (first byte, bytes), and forget those before."""
        self._kept = {}
        if self._keeps_chunks:
            self._kept = {start: self.read_at(start, size) for start, size in chunks}

    def read_at(self, position: int, size_bytes: int) -> bytes:
        for start, data in self._kept.items():
            if start <= position and position + size_bytes <= start + len(data):
                return data[position - start : position - start + size_bytes]
        self._file.seek(position)
        return bytes(self._file.read(size_bytes))

    # A file, as Arrow takes one.

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            self._at = self._file.seek(position, whence)
        else:
            self._at = position + (self._at if whence == os.SEEK_CUR else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size_bytes: int) -> bytes:
        data = self.read_at(self._at, size_bytes)
        self._at += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self._file.close()


class Unpacker:
    """Decodes the row groups of a Parquet file, never more at once than it may."""

    def __init__(self, file: ParquetBytes, most_bytes: int) -> None:
        self.parquet = parquet.ParquetFile(file.for_arrow)
        self._file = file
        self._most_bytes = most_bytes

    def batches(self, group: int, names: Sequence[str], most_rows: int) -> Iterator[Any]:
        """These columns of a row group as Arrow batches; raises OversizedRowGroup if they take too much."""
        columns = self._columns(group, names)
        _require_room(columns.values(), self._most_bytes)
        for path, longest in self._longest_texts(group, columns).items():
            columns[path] = replace(columns[path], longest_text=longest)
        _require_room(columns.values(), self._most_bytes)
        rows = min(most_rows, _safe_rows(columns.values(), self._most_bytes))
        yield from self.parquet.iter_batches(rows, row_groups=[group], columns=list(names))

    def _columns(self, group: int, names: Sequence[str]) -> dict[str, Column]:
        """Path of a leaf -> its column, for those that are read."""
        metadata, schema = self.parquet.metadata.row_group(group), self.parquet.schema
        leaves = [
            (schema.column(number), metadata.column(number))
            for number in range(metadata.num_columns)
            if any(f"{schema.column(number).path}.".startswith(f"{name}.") for name in names)
        ]
        places = [(first_byte(chunk), chunk.total_compressed_size) for _, chunk in leaves]
        self._file.keep(places)
        found: dict[str, Column] = {}
        for (leaf, _), (start, size_bytes) in zip(leaves, places, strict=True):
            kind = leaf.physical_type
            width = leaf.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
            pages = tuple(pages_of(self._file.read_at, start, size_bytes))
            found[leaf.path] = Column(pages, width, leaf.max_repetition_level > 0)
        return found

    def _longest_texts(self, group: int, columns: Mapping[str, Column]) -> dict[str, int]:
        """Path of a leaf -> the bytes of the longest text in its dictionary."""
        wanted = [path for path, column in columns.items() if column.shows_dictionary]
        if not wanted:
            return {}
        file = self._file.for_arrow
        whole = parquet.ParquetFile(file, metadata=self.parquet.metadata, read_dictionary=wanted)
        found: dict[str, int] = {}
        for path in wanted:
            batch = next(whole.iter_batches(1, row_groups=[group], columns=[path]))
            found[path] = _longest_text(batch.column(0))
        return found


def first_byte(chunk: Any) -> int:
    data: int = chunk.data_page_offset
    return min(data, chunk.dictionary_page_offset) if chunk.dictionary_page_offset else data


def _longest_text(array: Any) -> int:
    """The bytes of the longest text in the dictionaries of a column, wherever it has them."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary)
        return pc.max(lengths).as_py() or 0
    if pa.types.is_struct(kind):
        return max((_longest_text(array.field(n)) for n in range(kind.num_fields)), default=0)
    if pa.types.is_map(kind):
        return max(_longest_text(array.keys), _longest_text(array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _longest_text(array.values)
    return 0


def _require_room(columns: Collection[Column], most_bytes: int) -> None:
    """Raise if the pages that are in memory together are too large for their bytes in the file."""
    held, packed = sum(c.held_bytes for c in columns), sum(c.packed_bytes for c in columns)
    if held > max(most_bytes, USUAL_RATIO * packed):
        raise OversizedRowGroup(
            f"its pages have {packed:,} bytes and unpack to {held:,}, more than "
            f"max_record_bytes={most_bytes:,}"
        )


def _safe_rows(columns: Collection[Column], most_bytes: int) -> int:
    """The number of rows, whichever they are, that take at most this; raises if one takes more."""
    row = sum(column.row_bytes for column in columns)
    if row > max(most_bytes, USUAL_RATIO * sum(column.packed_bytes for column in columns)):
        raise OversizedRowGroup(
            f"a row can unpack to {row:,} bytes, more than max_record_bytes={most_bytes:,}"
        )
    return max(1, most_bytes // max(row, 1))


def _page_at(read_at: ReadAt, position: int, stop: int) -> PageHeader:
    look = _FIRST_LOOK_BYTES
    while True:
        data = read_at(position, min(look, stop - position))
        try:
            return _Thrift(data).page()
        except IndexError:
            if look >= min(stop - position, _LONGEST_HEADER_BYTES):
                raise OversizedRowGroup(
                    f"the header of the page at byte {position:,} is torn"
                ) from None
            look *= 8


class _Thrift:
    """Reads the header of a page, in the compact protocol of Thrift; IndexError if it is cut off."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def page(self) -> PageHeader:
        fields = self._struct(0)
        of_data = fields.get(5) or fields.get(8) or {}
        of_dictionary = fields.get(7) or {}
        found = {
            "kind": fields.get(1),
            "packed_bytes": fields.get(3),
            "unpacked_bytes": fields.get(2),
            "values": (of_data or of_dictionary).get(1, 0),
            "encoding": of_data.get(4 if 8 in fields else 2, 0),
        }
        numbers = {name: n for name, n in found.items() if isinstance(n, int) and n >= 0}
        if len(numbers) < len(found):
            raise OversizedRowGroup("the header of a page states no sizes")
        return PageHeader(**numbers, header_bytes=self._at)

    def _struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise OversizedRowGroup("the header of a page is nested too deeply")
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._varint())
            case 12:
                return self._struct(depth + 1)
        raise OversizedRowGroup(f"the header of a page has a field of the unknown type {kind}")

    def _skip(self, size_bytes: int) -> None:
        self._at += size_bytes
        if self._at > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
            if shift > 63:
                raise OversizedRowGroup("the header of a page has a number that is too long")

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
