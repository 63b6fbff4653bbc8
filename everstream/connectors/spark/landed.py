"""Batches that a Spark streaming query has written to the store, for the shards of a `SparkStream`.

Every driver writes a batch to its own folder, under a name that is never used again. A file beside
them, which only one driver can create, records which folder counts. So a driver that was replaced
and does not know it yet may keep writing, but nothing that a shard reads ever changes. A store of
an earlier version has the files of a batch without such a folder.

A batch has a file for each partition. Shards share the files by the partition's number, and read
batch after batch. When the number of shards changes, the files of batches that some have begun are
redistributed by name, and sharing by number starts again with the batch after them.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
import pyarrow as pa
from pyarrow import parquet

from everstream.connectors.files.filesystem import filesystem_of, names_in, opened_for_arrow
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader
from everstream.state.blobs import FsspecBlobs
from everstream.state.saved import Saved

LANDED: Final = "_SUCCESS"
"""Spark writes this file when all others of a batch are complete."""
CHOSEN: Final = "chosen"
"""Records which folder of a batch counts. The driver that creates it first decides."""
ENDED: Final = "ended"
"""Records how many batches there were, once there will be no more."""
CAUGHT_UP: Final = "caught-up"
"""Records the same, but only for this run: the next one removes it and asks Spark again."""
FAILED: Final = "failed"
"""Records why the query has ended early."""
_NAME = re.compile(r"[0-9a-f]{32}")


def sign_of(name: str, driver: str) -> str:
    """The file in which a driver reports one of these three, to its own shards only.

    A driver that was replaced and does not know it may find its query ended, or broken by that of
    its successor, whose shards must ignore it.
    """
    return f"{name}-{driver}" if driver else name


LOOK_EVERY_S: Final = 0.05
_PART = re.compile(r"part-(\d+)-.*\.parquet")


def batch_in(path: str, number: int) -> str:
    return f"{path}/batches/{number:08d}"


class BatchFile(NamedTuple):
    batch: int
    name: str
    group: int = 0


@dataclass(frozen=True)
class StreamOffset(Saved, word="stream-offset"):
    """The next batch, file of this shard, and row group.

    Before that come the files in `left` from the number `index` on, which were assigned when the
    number of shards changed; those before it have been read, by this shard or another. From the
    batch `since` on, files are shared by the partition's number.
    """

    batch: int = 0
    file: int = 0
    group: int = 0
    left: tuple[tuple[int, str, int], ...] = ()
    index: int = 0
    since: int = 0

    @staticmethod
    def of(saved: Any) -> "StreamOffset":
        """As it was saved; before the number of shards could change, as three numbers."""
        return saved if isinstance(saved, StreamOffset) else StreamOffset(*saved)


class Landed:
    def __init__(self, folder: str) -> None:
        self.fs, self.path = filesystem_of(folder)
        self._blobs = FsspecBlobs(folder)
        self._folders: dict[int, str] = {}

    def choose(self, number: int, name: str) -> bool:
        """Choose this folder for a batch; False if another one was chosen already."""
        try:
            self._blobs.create(f"{batch_in('', number)[1:]}/{CHOSEN}", name.encode())
        except FileExistsError:
            return False
        return True

    def folder_of(self, number: int) -> str | None:
        """Where the files of a batch are; None if it has not been written."""
        if number not in self._folders:
            folder = batch_in(self.path, number)
            self.fs.invalidate_cache(folder)
            try:
                name = self.fs.cat_file(f"{folder}/{CHOSEN}").decode(errors="replace")
                if not _NAME.fullmatch(name):  # it must not lead out of the folder
                    raise ConnectorError(
                        f"'{folder}/{CHOSEN}' does not name a folder that Spark has written. "
                        "Restore the file from a copy, or start over with --fresh, which deletes the "
                        "output."
                    )
                self._folders = {number: f"{folder}/{name}"}
            except FileNotFoundError:
                if not self.fs.exists(f"{folder}/{LANDED}"):
                    return None
                self._folders = {number: folder}  # written by an earlier version
        return self._folders[number]

    def has(self, number: int) -> bool:
        return self.folder_of(number) is not None

    def names(self, number: int, shard: int, shards: int) -> list[str]:
        folder = self.folder_of(number)
        if folder is None:
            return []
        matches = ((name, _PART.fullmatch(name)) for name in names_in(self.fs, folder))
        return [name for name, part in matches if part and int(part[1]) % shards == shard]

    def path_of(self, batch: int, name: str) -> str:
        if "/" in name:  # names are saved with the offset
            raise ConnectorError(f"'{name}' is not the name of a file in '{self.path}'.")
        return f"{self.folder_of(batch) or batch_in(self.path, batch)}/{name}"

    def remove_others(self) -> None:
        """Remove batches of drivers that were not chosen."""
        for number in self.batches():
            chosen = self.folder_of(number)
            if chosen is None or chosen == batch_in(self.path, number):
                continue  # not decided yet, or from an earlier version
            for entry in self.fs.ls(batch_in(self.path, number), detail=True):
                path = entry["name"].rstrip("/")
                if (
                    entry["type"] == "directory"
                    and path.rsplit("/", 1)[-1] != chosen.rsplit("/", 1)[-1]
                ):
                    self.fs.rm(path, recursive=True)

    def ended(self) -> int | None:
        """The total number of batches, if a driver's query ended and no batch came after that."""
        over = {name for name in self._signs() if name.partition("-")[0] == ENDED}
        counts = [int(self.fs.cat_file(f"{self.path}/{name}")) for name in over]
        landed = max((number for number in self.batches() if self.has(number)), default=-1) + 1
        return max(counts) if counts and max(counts) >= landed else None

    def remove_signs(self) -> None:
        """Remove reports of earlier drivers that do not hold for the next one."""
        for name in self._signs():
            if name.startswith((FAILED, CAUGHT_UP)):
                self.fs.rm(f"{self.path}/{name}")

    def _signs(self) -> list[str]:
        self.fs.invalidate_cache(self.path)
        named = [name for name in names_in(self.fs, self.path) if not name.endswith(".new")]
        return [name for name in named if name.startswith((ENDED, FAILED, CAUGHT_UP))]

    def remove(self, batch: int, name: str) -> None:
        path = self.path_of(batch, name)
        if self.fs.exists(path):
            self.fs.rm(path)

    def batches(self) -> list[int]:
        """The numbers of the batches that are not removed."""
        folder = f"{self.path}/batches"
        self.fs.invalidate_cache(folder)
        if not self.fs.exists(folder):
            return []
        names = (entry.rstrip("/").rsplit("/", 1)[-1] for entry in self.fs.ls(folder, detail=False))
        return sorted(int(name) for name in names if name.isdigit())


def redistribute_landed(landed: Landed, saved: Sequence[Any], shards: int) -> list[StreamOffset]:
    """What is left of batches that some shard has begun, by name; later ones are shared by number."""
    offsets = [StreamOffset.of(offset) for offset in saved]
    since = max(offset.batch + bool(offset.file or offset.group) for offset in offsets)
    left = sorted(
        part
        for shard, offset in enumerate(offsets)
        for part in _left_of(landed, offset, shard, len(offsets), since)
    )
    needed = {(batch, name) for batch, name, _ in left}
    # A shard must remove what was read and still exists.
    read = [
        BatchFile(batch, name)
        for batch in landed.batches()
        if batch < since
        for name in landed.names(batch, 0, 1)
        if (batch, name) not in needed
    ]
    hands = [(read[shard::shards], left[shard::shards]) for shard in range(shards)]
    return [
        StreamOffset(
            since, left=tuple((*part,) for part in done + todo), index=len(done), since=since
        )
        for done, todo in hands
    ]


def _left_of(
    landed: Landed, offset: StreamOffset, shard: int, shards: int, stop: int
) -> Iterator[BatchFile]:
    """What a shard would still have read of the batches before `stop`."""
    yield from map(BatchFile._make, offset.left[offset.index :])
    file, group = offset.file, offset.group
    for batch in range(offset.batch, stop):
        for name in landed.names(batch, shard, shards)[file:]:
            yield BatchFile(batch, name, group)
            group = 0
        file = group = 0


class LandedReader(Reader):
    def __init__(self, folder: str, shard: int, shards: int, driver: str = "") -> None:
        """driver: the one whose report on whether more will come counts."""
        self._landed = Landed(folder)
        self._driver = driver
        self._shard = shard
        self._shards = shards
        self._at = StreamOffset()
        self._mine: tuple[int, list[str]] | None = None
        self._open: tuple[str, Any, parquet.ParquetFile] | None = None
        self._forgotten = 0
        self._removed = 0

    @property
    def offset(self) -> StreamOffset:
        return self._at

    def seek(self, offset: Any) -> None:
        self._at = StreamOffset.of(offset)
        self._removed = 0

    def ready_in_s(self) -> float:
        return LOOK_EVERY_S

    def read(self) -> Batch | EndOfStream | None:
        while self._at.index < len(self._at.left):
            rows = self._read_left()
            if rows is not None and len(rows):
                return rows
        while True:
            batch, file, group = self._at.batch, self._at.file, self._at.group
            files = self._files(batch)
            if files is None:
                return self._nothing_more(batch)
            if file >= len(files):
                self._at = replace(self._at, batch=batch + 1, file=0, group=0)
                continue
            rows = self._group(self._landed.path_of(batch, files[file]), group)
            file, group = (file, group + 1) if rows is not None else (file + 1, 0)
            self._at = replace(self._at, file=file, group=group)
            if rows is not None and len(rows):
                return rows

    def _read_left(self) -> pl.DataFrame | None:
        """A row group of an assigned file; None at the end of the file."""
        left, index = self._at.left, self._at.index
        part = BatchFile._make(left[index])
        rows = self._group(self._landed.path_of(part.batch, part.name), part.group)
        if rows is None:
            self._at = replace(self._at, index=index + 1)
        else:
            begun = (part.batch, part.name, part.group + 1)
            self._at = replace(self._at, left=(*left[:index], begun, *left[index + 1 :]))
        return rows

    def forget(self, offset: Any) -> None:
        offset = StreamOffset.of(offset)
        for batch, name, _ in offset.left[self._removed : offset.index]:
            self._landed.remove(batch, name)
        self._removed = offset.index
        for number in range(max(self._forgotten, offset.since), offset.batch):
            for name in self._landed.names(number, self._shard, self._shards):
                self._landed.remove(number, name)
        self._forgotten = offset.batch

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _files(self, number: int) -> list[str] | None:
        if self._mine is None or self._mine[0] != number:
            if not self._landed.has(number):
                return None
            self._mine = (number, self._landed.names(number, self._shard, self._shards))
        return self._mine[1]

    def _nothing_more(self, batch: int) -> EndOfStream | None:
        """Called when there is no further batch: for now, or forever."""
        fs, path = self._landed.fs, self._landed.path
        fs.invalidate_cache(path)
        there = names_in(fs, path)
        failed = sign_of(FAILED, self._driver)
        if failed in there:
            reason = fs.cat_file(f"{path}/{failed}").decode(errors="replace")
            raise ConnectorError(
                f"the streaming query that feeds this pipeline has failed: {reason}. Fix that "
                "and run again: the next run resumes from the last checkpoint."
            )
        signs = (sign_of(name, self._driver) for name in (ENDED, CAUGHT_UP))
        over = [name for name in signs if name in there]
        if any(batch >= int(fs.cat_file(f"{path}/{name}")) for name in over):
            return END
        return None

    def _group(self, path: str, number: int) -> pl.DataFrame | None:
        """A row group; None if the file does not have it."""
        try:
            if self._open is None or self._open[0] != path:
                self.close()
                file = opened_for_arrow(self._landed.fs, path)
                self._open = (path, file, parquet.ParquetFile(file))
            whole = self._open[2]
            if number >= whole.metadata.num_row_groups:
                return None
            return pl.DataFrame(pl.from_arrow(whole.read_row_group(number)))
        except (OSError, pa.ArrowException) as error:
            raise ConnectorError(
                f"cannot read '{os.fspath(path)}', which Spark had written: {error}. Restore the file "
                "from a copy, or start over with --fresh, which deletes the output."
            ) from error


if TYPE_CHECKING:
    from pyspark import SparkContext

FAILURES_IN_A_ROW: Final = 16
WATCH_EVERY_S: Final = 0.1


class JobWatchdog:
    """Cancels the jobs of a group when their tasks fail many times in a row and none succeeds.

    A Spark that was started for pipelines never gives up on a task, because a lost worker must
    always be restarted. Any other job would then fail forever.
    """

    def __init__(self, context: "SparkContext", group: str) -> None:
        self._context = context
        self._group = group
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed_before: dict[int, tuple[int, int]] = {}
        self.gave_up = False

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(WATCH_EVERY_S):
            if any(self._is_hopeless(stage) for stage in self._stages()):
                self.gave_up = True
                self._context.cancelJobGroup(self._group)
                return

    def _stages(self) -> Iterator[int]:
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            yield from info.stageIds if info is not None else ()

    def _is_hopeless(self, stage: int) -> bool:
        info = self._context.statusTracker().getStageInfo(stage)
        if info is None:
            return False
        completed, failed = self._failed_before.get(stage, (0, 0))
        if info.numCompletedTasks > completed:
            completed, failed = info.numCompletedTasks, info.numFailedTasks
        self._failed_before[stage] = completed, failed
        return bool(info.numFailedTasks - failed >= FAILURES_IN_A_ROW)
