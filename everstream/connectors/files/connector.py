"""What file formats share: as a source they read files, as a sink they write part files."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import polars as pl

from everstream.connectors.agreed_schema import Agreement
from everstream.connectors.columns import Columns, Format
from everstream.connectors.files.filesystem import filesystem_of, is_pattern, place_of
from everstream.connectors.files.layout import FileLayout, SplitWriter
from everstream.connectors.files.lines import FileSet, Listing
from everstream.connectors.files.parts import PartFolder, PartWriter, owner_of
from everstream.connectors.files.ranges import LinesOffset, redistribute_splits
from everstream.connectors.two_way import TwoWay
from everstream.errors import UserError
from everstream.pipeline.operators.models import schema_of
from everstream.pipeline.rejects import OnError, checked
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer
from everstream.pipeline.source import Source
from everstream.pipeline.types import T


class PartSink(Sink):
    """Writes part files, exactly once, into a folder that it claims for its operator."""

    delivery = Delivery.EXACTLY_ONCE
    _layout: FileLayout

    def describe_output(self) -> dict[str, Any]:
        return {**super().describe_output(), **self._layout.describe()}

    def _writer(self, make: Callable[[], PartWriter], columns: Columns | None = None) -> Writer:
        """A writer that lays its output out as the user chose. make: makes writers of single parts."""
        return SplitWriter(self._layout, make, columns) if self._layout.splits else make()

    @abstractmethod
    def _part_folder(self) -> PartFolder:
        """The folder; a UserError if the path cannot be one."""

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        self._part_folder().start_fresh(pipeline, operator, replace, store)
        Agreement(pipeline, operator, store).forget()

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        folder, owner = self._part_folder(), owner_of(pipeline, operator)
        folder.claim(pipeline, operator, store).keep()
        begun = any(name.token != "fence" for name in folder.pendings(owner))
        if not begun and not folder.parts(owner):
            Agreement(pipeline, operator, store).forget()

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        return self._part_folder().left_behind(pipeline, operator)


class FileSource(Source[T]):
    """Reads files, whose byte ranges the shards share."""

    _files: FileSet
    _smallest_split_bytes: int | None
    """The smallest range a file may be cut into; None if a file cannot be cut."""

    def describe_offsets(self) -> dict[str, Any]:
        place = place_of(self._files.fs, self._files.path)
        return {**super().describe_offsets(), "path": place}

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        """An offset is a `LinesOffset`, or one with the schema, which is the same for all shards."""
        splits = [_lines_of(offset) for offset in offsets]
        schemas = [offset[1] for offset in offsets if isinstance(offset, tuple)]
        spread = redistribute_splits(splits, shards, self._smallest_split_bytes)
        if not schemas:
            return spread
        known = next((schema for schema in schemas if schema is not None), None)
        return [(offset, known) for offset in spread]

    def stopping_point(self) -> Listing:
        return self._files.stopping_point()

    def unread(self, offsets: Sequence[Any], point: Listing) -> str | None:
        return self._files.unread([_lines_of(offset) for offset in offsets], point)

    def overlooked(self, offsets: Sequence[Any], point: Listing) -> str | None:
        return self._files.overlooked([_lines_of(offset) for offset in offsets], point)

    def waits_for(self) -> str | None:
        return self._files.waits_for()


class FileConnector(FileSource[T], TwoWay[T], PartSink):
    """Files of one format; exactly-once as a sink."""

    max_shards = None
    ending: ClassVar[str]
    _format: ClassVar[Format | None] = None
    """What the columns of its files can hold, if they have any."""
    in_lines: ClassVar[bool] = True
    """Whether files are read as lines: then an unsupported compression is refused."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Mapping[str, Any] | type | None,
        follow: bool,
        on_error: OnError,
        storage_options: Mapping[str, Any] | None,
        layout: FileLayout,
    ) -> None:
        self._layout = layout
        self._fs, self._path = filesystem_of(path, storage_options)
        self._names_a_file = bool(os.path.splitext(os.fspath(path))[1])
        self._files = FileSet(self._fs, self._path, follow)
        self._schema = self._given_schema = schema_of(schema)
        self.on_error = checked(on_error, self._name)

    @property
    def _name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def _learn_schema(self) -> None:
        """Called after the files have been listed, if there are any, to read their columns."""

    def check(self) -> None:
        """Raise a UserError if the path can serve neither as a source nor as a sink.

        A folder that does not exist yet is fine: a sink creates it. A pattern, or a name with an
        ending and no trailing slash, can only be a source: it must match something.
        """
        if is_pattern(self._path) or self._fs.isfile(self._path):
            self._files.check() if self.in_lines else self._files.refresh()
        elif self._files.exists() or self._files.follow:
            self._files.refresh()
        elif self._names_a_file and not self._fs.isdir(self._path):
            raise UserError(
                f"nothing to read: there is no file '{self._path}'. Check the path. To write "
                "there, end it with a slash, so that it names a folder."
            )
        if self._schema is None and self._files.listed:
            self._learn_schema()

    def columns(self, shard: SinkShard) -> Any:
        if self._format is None:
            return None
        given = self._given_schema
        if given is not None:  # the columns of folders are not in the files
            besides = self._layout.partition_by
            given = pl.Schema({n: kind for n, kind in given.items() if n not in besides})
        return Columns(shard, given, self._format)

    def column_types(self) -> pl.Schema | None:
        return self._schema

    def _part_folder(self) -> PartFolder:
        if is_pattern(self._path) or self._fs.isfile(self._path):
            raise UserError(
                f"{self._name} writes into a folder, but '{self._path}' is a file or a pattern. "
                f"Name a folder, for example {self._name}('counts/')."
            )
        return self._layout.folder(PartFolder(self._fs, self._path, self.ending))


def _lines_of(offset: Any) -> LinesOffset:
    """The offset without the schema, which some formats save with it."""
    lines: LinesOffset = offset[0] if isinstance(offset, tuple) else offset
    return lines
