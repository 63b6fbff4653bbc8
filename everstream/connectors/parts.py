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
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from everstream.connectors.files import (
    create,
    filesystem_of,
    is_local,
    make_folders,
    names_in,
    remove,
    rename,
    sync_file,
    sync_folder,
)
from everstream.connectors.ownership import Claim, FolderClaim, Owner
from everstream.connectors.summing import RunningSum
from everstream.errors import ConnectorError, InternalError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Permit, SinkShard, Transaction, Writer
from everstream.state.saved import Saved

PENDING = "_pending"
BYTES_PER_READ = 1 << 20


def owner_of(pipeline: str, operator: str) -> str:
    """`pipeline.operator` as it stands in file names; no two pairs give the same."""
    return ".".join(quote(name, safe=" ").replace(".", "%2E") for name in (pipeline, operator))


@dataclass(frozen=True)
class PartName(Saved, word="part-name"):
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
class PendingName(Saved, word="pending-name"):
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
    private: str | None = None
    """The store it belongs to, which is closed to others; None for output to be seen by all."""

    @staticmethod
    def at(folder: str, ending: str) -> "PartFolder":
        """A folder, or the URL of one, for output that all may see."""
        fs, path = filesystem_of(folder)
        return PartFolder(fs, path, ending)

    @staticmethod
    def in_store(store: str, kind: str, operator: str, ending: str) -> "PartFolder":
        """The folder of one operator for output of one kind that stays in the store."""
        # The pipeline's name comes second in file names; here only the operator's part is needed.
        name = owner_of("", operator).removeprefix(".")
        fs, root = filesystem_of(store)
        return PartFolder(fs, f"{root}/{kind}/{name}", ending, private=root)

    @property
    def pending_path(self) -> str:
        return f"{self.path}/{PENDING}"

    def path_of(self, name: PartName | PendingName) -> str:
        if isinstance(name, PartName):
            return f"{self.path}/{name}{self.ending}"
        return f"{self.pending_path}/{name}"

    def create(self) -> None:
        try:
            for folder in (self.path, self.pending_path):
                make_folders(self.fs, folder, self.private)
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

    def begin(self, name: PendingName) -> Any:
        """A new file in `_pending`, open for writing."""
        return create(self.fs, self.path_of(name), self.private)

    def remove(self, name: PartName | PendingName) -> None:
        remove(self.fs, self.path_of(name))

    def claim(self, pipeline: str, operator: str, store: str) -> Claim:
        """The wish of a run with this store to write here."""
        self.create()
        path = f"{self.pending_path}/{owner_of(pipeline, operator)}.owner"
        return FolderClaim(self.fs, self.path, path, Owner.of(pipeline, operator, store))

    def start_fresh(
        self, pipeline: str, operator: str, replace: bool, store: str | None = None
    ) -> None:
        """Make room for a run from nothing; see `Sink.start_fresh`.

        Pending files alone were never shown to anyone: they go without asking. With a `store` the
        folder belongs to it from now on; a folder inside the store does anyway.
        """
        claim = None if store is None else self.claim(pipeline, operator, store)
        if claim is not None:
            claim.check()
        owner = owner_of(pipeline, operator)
        parts = self.parts(owner)
        if parts and not replace:
            raise UserError(
                f"'{self.path}' already holds {len(parts)} part files of pipeline '{pipeline}', "
                f"operator '{operator}', from an earlier run. Name another folder, or say --fresh, "
                "which deletes them."
            )
        if claim is not None:
            claim.take()
        for pending in self.pendings(owner):
            self.remove(pending)
        for part in parts:
            self.remove(part)

    def left_behind(self, pipeline: str, operator: str) -> str | None:
        """See `Sink.left_behind`."""
        parts = len(self.parts(owner_of(pipeline, operator)))
        return f"{parts} part file(s) in '{self.path}'" if parts else None


@dataclass
class PartTransaction(Transaction, Saved, word="part-transaction"):
    """One prepared part file.

    Pickles without its open file, which only `persist` needs, and without its folder: a checkpoint
    must hold no credentials, and the folder may have moved. `recover` gives it the writer's own.
    """

    pending: PendingName
    part: PartName
    checkpoint: int
    size_bytes: int
    checksum: str | None = None
    """None if a version wrote it that kept none."""
    folder: PartFolder | None = field(default=None, repr=False, compare=False)
    file: Any = field(default=None, repr=False, compare=False)
    written_here: bool = field(default=False, repr=False, compare=False)
    """By this process, moments ago: what was restored has waited for who knows how long."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None, "folder": None, "written_here": False}

    @property
    def place(self) -> PartFolder:
        if self.folder is None:
            raise InternalError(f"part {self.part} was restored and given to no writer's `recover`")
        return self.folder

    @property
    def path(self) -> str:
        """Where the records wait."""
        return self.place.path_of(self.pending)

    def require_whole(self, size_bytes: int, checksum: str | None) -> None:
        """Raise unless what waits has the size and the checksum of what was written."""
        if size_bytes != self.size_bytes:
            problem = f"has {size_bytes} bytes where {self.size_bytes} were written"
        elif self.checksum is not None and checksum != self.checksum:
            problem = "is damaged: its checksum is not that of what was written"
        else:
            return
        raise ConnectorError(
            f"'{self.path}' {problem}; none of it is shown. Restore the file from a copy, or go "
            "back to a checkpoint before it with `everstream rewind`."
        )

    def persist(self) -> None:
        fs, path = self.place.fs, self.path
        try:
            if self.file is not None:
                self.file.close()
                self.file = None
            sync_file(fs, path)
            sync_folder(fs, self.place.pending_path)
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
        folder, pending = self.place, self.path
        final = folder.path_of(self.part)
        try:
            if self.written_here and not is_local(folder.fs):  # a download of all of it
                self.require_whole(folder.fs.size(pending), self.checksum)
            else:
                self.require_whole(*_measured(folder.fs, pending))
            rename(folder.fs, pending, final)
        except FileNotFoundError as error:
            # Renamed before: by an earlier attempt, or by another process that had the permit.
            folder.fs.invalidate_cache(folder.path)
            if not folder.fs.exists(final):
                raise ConnectorError(
                    f"part file '{final}' and its pending file '{pending}' are both gone. "
                    "Someone else removed one of them: put it back, or start over with --fresh, "
                    "which deletes the output there is."
                ) from error
        except OSError as error:
            raise ConnectorError(f"cannot rename '{pending}' to '{final}': {error}") from error
        sync_folder(folder.fs, folder.path)

    def abort(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        self.place.remove(self.pending)


def _measured(fs: Any, path: str) -> tuple[int, str]:
    """Size and checksum of a file."""
    size_bytes, checksum = 0, RunningSum()
    with fs.open(path, "rb") as file:
        while piece := file.read(BYTES_PER_READ):
            size_bytes += len(piece)
            checksum.add(piece)
    return size_bytes, str(checksum)


class PartWriter(Writer):
    """Writes batches to part files; a subclass says how a batch becomes bytes."""

    def __init__(self, folder: PartFolder, who: SinkShard) -> None:
        self._folder = folder
        self._who = who
        self._owner = owner_of(who.pipeline, who.operator)
        self._file: Any = None
        self._pending: PendingName | None = None
        self._size_bytes = 0
        self._checksum = RunningSum()
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
                self._file = self._folder.begin(self._pending)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._append(data)

    def _append(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._size_bytes += len(data)
        self._checksum.add(data)

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
            checksum=str(self._checksum),
            file=self._file,
            written_here=True,
        )
        self._begin_anew()
        return transaction

    def _begin_anew(self) -> None:
        self._file, self._pending = None, None
        self._size_bytes, self._checksum = 0, RunningSum()

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
        self._folder.begin(fence).close()
        ours = [self._bound(transaction) for transaction in transactions]
        held = [t for t in ours if t.checkpoint > permit.checkpoint]
        for transaction in ours:
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

    def adopt(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        return [self._bound(transaction) for transaction in transactions]

    def _bound(self, transaction: Transaction) -> Transaction:
        """A restored transaction, where this writer writes."""
        assert isinstance(transaction, PartTransaction)
        return replace(transaction, folder=self._folder)

    def _pending_of(self, transaction: Transaction) -> list[PendingName]:
        """The pending files that a transaction needs."""
        return [transaction.pending] if isinstance(transaction, PartTransaction) else []

    def close(self) -> None:
        if self._file is not None and self._pending is not None:
            self._file.close()
            self._folder.remove(self._pending)
            self._begin_anew()

    def _name(self, token: str) -> PendingName:
        return PendingName(self._owner, self._who.shard, self._who.generation, token)

    def _mine(self, names: list[Any]) -> list[Any]:
        return [name for name in names if name.shard == self._who.shard]
