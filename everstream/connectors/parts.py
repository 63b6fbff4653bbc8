"""Exactly-once output as part files: one file per shard and checkpoint, visible only when whole.

A writer fills a file in `<folder>/_pending/`. `prepare` hands that file to a transaction and the
writer starts another; `commit` renames it to `part-<pipeline>.<operator>-<shard>-<checkpoint>`.
Pending names hold the generation and a random token, so two writers, even a zombie and its
successor, never touch the same file. A fence file tells which generation took over last: a
writer that wakes up too late finds a higher one and leaves everything alone.
"""

import re
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from everstream.connectors.files import (
    filesystem_of,
    names_in,
    remove,
    rename,
    sync_file,
    sync_folder,
)
from everstream.errors import ConnectorError, InternalError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Permit, SinkShard, Transaction, Writer

PENDING = "_pending"


def owner_of(pipeline: str, operator: str) -> str:
    """`pipeline.operator` as it stands in file names; no two pairs give the same."""
    return ".".join(quote(name, safe=" ").replace(".", "%2E") for name in (pipeline, operator))


@dataclass(frozen=True)
class PartName:
    """A committed file: whose it is and when it was closed."""

    owner: str
    shard: int
    checkpoint: int

    def __str__(self) -> str:
        return f"part-{self.owner}-{self.shard:04d}-{self.checkpoint:08d}"

    @staticmethod
    def parse(name: str, ending: str) -> "PartName | None":
        found = re.fullmatch(rf"part-(.+)-(\d{{4,}})-(\d{{8,}}){re.escape(ending)}", name)
        return PartName(found[1], int(found[2]), int(found[3])) if found else None


@dataclass(frozen=True)
class PendingName:
    """A file in `_pending`: the open or prepared output, or the fence, of one writer."""

    owner: str
    shard: int
    generation: int
    token: str

    def __str__(self) -> str:
        return f"{self.owner}-{self.shard:04d}-g{self.generation}-{self.token}"

    @staticmethod
    def parse(name: str) -> "PendingName | None":
        found = re.fullmatch(r"(.+)-(\d{4,})-g(\d+)-(fence|[0-9a-f]{32})", name)
        return PendingName(found[1], int(found[2]), int(found[3]), found[4]) if found else None


@dataclass(frozen=True)
class PartFolder:
    """A folder of part files on some filesystem; knows the names, not the content."""

    fs: Any
    path: str
    ending: str

    @staticmethod
    def at(url: str, ending: str) -> "PartFolder":
        fs, path = filesystem_of(url)
        return PartFolder(fs, path, ending)

    @property
    def pending_path(self) -> str:
        return f"{self.path}/{PENDING}"

    def path_of(self, name: PartName | PendingName) -> str:
        if isinstance(name, PartName):
            return f"{self.path}/{name}{self.ending}"
        return f"{self.pending_path}/{name}"

    def create(self) -> None:
        try:
            self.fs.makedirs(self.pending_path, exist_ok=True)
        except OSError as error:
            raise ConnectorError(
                f"cannot create the folder '{self.pending_path}': {error}. "
                "Check that it may be written, or name another folder."
            ) from error

    def parts(self, owner: str) -> list[PartName]:
        """The committed parts of one pipeline and operator, by checkpoint, then shard."""
        names = (PartName.parse(name, self.ending) for name in names_in(self.fs, self.path))
        mine = [name for name in names if name is not None and name.owner == owner]
        return sorted(mine, key=lambda name: (name.checkpoint, name.shard))

    def pendings(self, owner: str) -> list[PendingName]:
        names = (PendingName.parse(name) for name in names_in(self.fs, self.pending_path))
        return [name for name in names if name is not None and name.owner == owner]

    def remove(self, name: PartName | PendingName) -> None:
        remove(self.fs, self.path_of(name))

    def start_fresh(self, pipeline: str, operator: str, replace: bool) -> None:
        """Make room for a run from nothing; see `Sink.start_fresh`.

        Pending files alone were never shown to anyone: they go without asking.
        """
        owner = owner_of(pipeline, operator)
        parts = self.parts(owner)
        if parts and not replace:
            raise UserError(
                f"'{self.path}' already holds {len(parts)} part files of pipeline '{pipeline}', "
                f"operator '{operator}', from an earlier run. "
                "Use --fresh to replace them, or name another folder."
            )
        for pending in self.pendings(owner):
            self.remove(pending)
        for part in parts:
            self.remove(part)


@dataclass
class PartTransaction(Transaction):
    """One prepared part file. Pickles without its open file, which only `persist` needs."""

    folder: PartFolder
    pending: PendingName
    part: PartName
    checkpoint: int
    size_bytes: int
    file: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}

    def persist(self) -> None:
        path = self.folder.path_of(self.pending)
        try:
            if self.file is not None:
                self.file.close()
                self.file = None
            sync_file(self.folder.fs, path)
            sync_folder(self.folder.fs, self.folder.pending_path)
        except OSError as error:
            raise ConnectorError(f"cannot make '{path}' durable: {error}") from error

    def commit(self, permit: Permit) -> None:
        if permit.checkpoint < self.checkpoint:
            raise InternalError(
                f"part {self.part} was to be committed with a permit "
                f"for checkpoint {permit.checkpoint} only"
            )
        if self.file is not None:
            self.persist()
        fs, pending = self.folder.fs, self.folder.path_of(self.pending)
        final = self.folder.path_of(self.part)
        try:
            found_bytes = fs.info(pending)["size"]
            if found_bytes != self.size_bytes:
                raise ConnectorError(
                    f"'{pending}' has {found_bytes} bytes where {self.size_bytes} were written; "
                    "it is not shown. Restore the file, or restart from an earlier checkpoint."
                )
            rename(fs, pending, final)
        except FileNotFoundError as error:
            # Renamed before: by an earlier attempt, or by another process that had the permit.
            fs.invalidate_cache(self.folder.path)
            if not fs.exists(final):
                raise ConnectorError(
                    f"part file '{final}' and its pending file '{pending}' are both gone. "
                    "Someone else removed one of them: put it back, or start with --fresh."
                ) from error
        except OSError as error:
            raise ConnectorError(f"cannot rename '{pending}' to '{final}': {error}") from error
        sync_folder(fs, self.folder.path)

    def abort(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        self.folder.remove(self.pending)


class PartWriter(Writer):
    """Writes batches to part files; a subclass says how a batch becomes bytes."""

    def __init__(self, folder: PartFolder, who: SinkShard) -> None:
        self._folder = folder
        self._who = who
        self._owner = owner_of(who.pipeline, who.operator)
        self._file: Any = None
        self._pending: PendingName | None = None
        self._size_bytes = 0
        folder.create()

    @abstractmethod
    def encode(self, batch: Batch) -> bytes:
        """The batch as bytes that can follow those of the batch before."""

    def finish(self) -> bytes:
        """The bytes that end a part; called when it is prepared."""
        return b""

    @property
    def starts_a_part(self) -> bool:
        """Nothing has been written since the last checkpoint."""
        return self._file is None

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        data = self.encode(batch)
        try:
            if self._file is None:
                self._pending = self._name(uuid.uuid4().hex)
                self._file = self._folder.fs.open(self._folder.path_of(self._pending), "wb")
        except OSError as error:
            raise self._cannot_write(error) from error
        self._append(data)

    def _append(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._size_bytes += len(data)

    def _cannot_write(self, error: OSError) -> ConnectorError:
        return ConnectorError(
            f"cannot write to '{self._folder.pending_path}': {error}. "
            "Check that the disk has room and the folder may be written."
        )

    def prepare(self, checkpoint: int) -> Transaction | None:
        if self._file is None or self._pending is None:
            return None
        self._append(self.finish())
        transaction = PartTransaction(
            folder=self._folder,
            pending=self._pending,
            part=PartName(self._owner, self._who.shard, checkpoint),
            checkpoint=checkpoint,
            size_bytes=self._size_bytes,
            file=self._file,
        )
        self._file, self._pending, self._size_bytes = None, None, 0
        return transaction

    def recover(self, transactions: Sequence[Transaction], permit: Permit) -> Sequence[Transaction]:
        # Listed first: whatever a newer generation commits after this cannot be in these lists.
        parts = self._mine(self._folder.parts(self._owner))
        pendings = self._mine(self._folder.pendings(self._owner))
        newest = max((name.generation for name in pendings), default=0)
        if newest > self._who.generation:
            raise ConnectorError(
                f"generation {newest} of shard {self._who.shard} of '{self._who.operator}' has "
                f"taken over '{self._folder.path}'; generation {self._who.generation} must stop."
            )
        fence = self._name("fence")
        self._folder.fs.pipe_file(self._folder.path_of(fence), b"")
        held = [t for t in transactions if t.checkpoint > permit.checkpoint]
        for transaction in transactions:
            if transaction.checkpoint <= permit.checkpoint:
                transaction.commit(permit)
        for part in parts:
            if part.checkpoint > permit.checkpoint:
                self._folder.remove(part)
        kept = {fence, *(name for t in held for name in self._pending_of(t))}
        for pending in pendings:
            if pending not in kept:
                self._folder.remove(pending)
        return held

    def _pending_of(self, transaction: Transaction) -> list[PendingName]:
        """The pending files that a transaction needs."""
        return [transaction.pending] if isinstance(transaction, PartTransaction) else []

    def close(self) -> None:
        if self._file is not None and self._pending is not None:
            self._file.close()
            self._folder.remove(self._pending)
            self._file, self._pending, self._size_bytes = None, None, 0

    def _name(self, token: str) -> PendingName:
        return PendingName(self._owner, self._who.shard, self._who.generation, token)

    def _mine(self, names: list[Any]) -> list[Any]:
        return [name for name in names if name.shard == self._who.shard]
