"""Exactly-once output as part files: one file per shard and checkpoint, visible only when whole.

A writer fills a file in `<folder>/_pending/`. `prepare` hands that file to a transaction and the
writer starts another; `commit` renames it to
`part-<pipeline>.<operator>-<shard>-<checkpoint>-g<generation>`. Checkpoint numbers are reused after
a rewind, but generations never are, so no name is used twice: a writer that wakes up late can
neither replace nor remove what its successor has committed. Pending names contain the generation
and a random token. A fence file records the latest generation: a writer that wakes up too late
finds a higher one and changes nothing. Earlier versions wrote names without a generation, which
are read, and rolled back, like the others.
"""

import re
import tempfile
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, cast
from urllib.parse import quote

from everstream.connectors.encoding import STRONG, RunningSum
from everstream.connectors.files.filesystem import (
    create,
    filesystem_of,
    folders_in,
    is_local,
    make_folders,
    names_in,
    remove,
    rename,
    sync_file,
    sync_folder,
)
from everstream.connectors.ownership import Claim, FolderClaim, Owner, refuse_replaced
from everstream.errors import ConnectorError, InternalError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Committable, Permit, SinkShard, Writer
from everstream.state.saved import Saved
from everstream.state.signing import StoreKey, key_of

PENDING = "_pending"
BYTES_PER_READ = 1 << 20
IN_MEMORY_BYTES = 64 << 20
"""Output about to be committed is kept in memory up to this size, then in a temporary file."""


def owner_of(pipeline: str, operator: str) -> str:
    """`pipeline.operator` as used in file names; no two pairs give the same text."""
    return ".".join(quote(name, safe=" ").replace(".", "%2E") for name in (pipeline, operator))


@dataclass(frozen=True)
class PartName(Saved, word="part-name"):
    """A committed file: its owner, its checkpoint and its generation."""

    owner: str
    shard: int
    checkpoint: int
    generation: int | None = field(default=None, compare=False)
    """None if it was written by a version that left it out."""
    number: int = 0
    """Among the parts of this shard, checkpoint and partition."""
    partition: str = ""
    """The folder below that of the sink: `day=2026-03-01/hour=7`."""

    def __str__(self) -> str:
        stem = f"part-{self.owner}-{self.shard:04d}-{self.checkpoint:08d}"
        if self.number:
            stem = f"{stem}-p{self.number}"
        return stem if self.generation is None else f"{stem}-g{self.generation}"

    @staticmethod
    def parse(name: str, ending: str, partition: str = "") -> "PartName | None":
        match = re.fullmatch(
            rf"part-(.+)-(\d{{4,}})-(\d{{8,}})(?:-p(\d+))?(?:-g(\d+))?{re.escape(ending)}", name
        )
        if match is None:
            return None
        number, generation = int(match[4] or 0), None if match[5] is None else int(match[5])
        return PartName(match[1], int(match[2]), int(match[3]), generation, number, partition)


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
        match = re.fullmatch(r"(.+)-(\d{4,})-g(\d+)-(fence|[0-9a-f]{32})", name)
        return PendingName(match[1], int(match[2]), int(match[3]), match[4]) if match else None


@dataclass(frozen=True)
class PartFolder:
    """A folder of part files on some filesystem; knows the names, not the content."""

    fs: Any
    path: str
    ending: str
    private: str | None = None
    """The store it belongs to, which is closed to other users; None for output visible to all."""
    key: StoreKey | None = None
    """The key of that store, if it is signed."""
    prefix: str = ""
    """What the names of its parts begin with."""
    levels: int = 0
    """How many folders lie below each other, for partitions."""

    @staticmethod
    def at(folder: str, ending: str) -> "PartFolder":
        """A folder, or the URL of one, for output visible to all."""
        fs, path = filesystem_of(folder)
        return PartFolder(fs, path, ending)

    @staticmethod
    def in_store(store: str, kind: str, operator: str, ending: str) -> "PartFolder":
        """The folder of one operator for output of one kind that stays in the store."""
        # The pipeline's name comes second in file names; here only the operator's part is needed.
        name = owner_of("", operator).removeprefix(".")
        fs, root = filesystem_of(store)
        return PartFolder(fs, f"{root}/{kind}/{name}", ending, private=root, key=key_of(store))

    @property
    def pending_path(self) -> str:
        return f"{self.path}/{PENDING}"

    def path_of(self, name: PartName | PendingName) -> str:
        if "/" in str(name):  # names are saved, and must never lead out of the folder
            raise ConnectorError(f"'{name}' is not the name of a file in '{self.path}'.")
        if isinstance(name, PartName):
            levels = name.partition.split("/") if name.partition else []
            if not all("=" in level for level in levels):
                raise ConnectorError(f"'{name.partition}' is not a partition of '{self.path}'.")
            return "/".join((self.path, *levels, f"{self._before}{name}{self.ending}"))
        return f"{self.pending_path}/{name}"

    def signed_as(self, name: PartName | PendingName) -> str:
        """The name of a file in its signature: its path inside the store."""
        return self.path_of(name).removeprefix(f"{self.private}/")

    def create(self) -> None:
        try:
            for folder in (self.path, self.pending_path):
                make_folders(self.fs, folder, self.private)
        except OSError as error:
            raise ConnectorError(
                f"cannot create the folder '{self.pending_path}': {error}. "
                "Check that it is writable, or name another folder."
            ) from error

    def parts(self, owner: str | None = None) -> list[PartName]:
        """The committed parts, of one pipeline and operator or of all, by checkpoint, then shard."""
        parts = [
            part
            for partition in self._partitions()
            for name in names_in(self.fs, f"{self.path}/{partition}".rstrip("/"))
            if name.startswith(self._before)
            and (part := PartName.parse(name.removeprefix(self._before), self.ending, partition))
            and owner in (None, part.owner)
        ]
        return sorted(parts, key=lambda p: (p.checkpoint, p.shard, p.partition, p.number))

    @property
    def _before(self) -> str:
        return f"{self.prefix}-" if self.prefix else ""

    def _partitions(self) -> list[str]:
        """The folders that parts can be in, below this one."""
        found = [""]
        for _ in range(self.levels):
            found = [
                f"{above}/{name}".lstrip("/")
                for above in found
                for name in folders_in(self.fs, f"{self.path}/{above}".rstrip("/"))
                if "=" in name
            ]
        return found

    def pendings(self, owner: str) -> list[PendingName]:
        names = (PendingName.parse(name) for name in names_in(self.fs, self.pending_path))
        return [name for name in names if name is not None and name.owner == owner]

    def begin(self, name: PendingName) -> Any:
        """A new file in `_pending`, open for writing."""
        return create(self.fs, self.path_of(name), self.private)

    def remove(self, name: PartName | PendingName) -> None:
        remove(self.fs, self.path_of(name))

    def claim(self, pipeline: str, operator: str, store: str) -> Claim:
        """The claim of a run with this store to write here."""
        self.create()
        path = f"{self.pending_path}/{owner_of(pipeline, operator)}.owner"
        return FolderClaim(self.fs, self.path, path, Owner.of(pipeline, operator, store))

    def start_fresh(
        self, pipeline: str, operator: str, replace: bool, store: str | None = None
    ) -> None:
        """Make room for a run that does not resume; see `Sink.start_fresh`.

        Pending files were never visible: they are removed without asking. With a `store` the
        folder belongs to it from now on; a folder inside the store always does.
        """
        claim = None if store is None else self.claim(pipeline, operator, store)
        if claim is not None:
            claim.check()
        owner = owner_of(pipeline, operator)
        parts = self.parts(owner)
        if parts and not replace:
            raise UserError(
                f"'{self.path}' already holds {len(parts)} part files of pipeline '{pipeline}', "
                f"operator '{operator}', from an earlier run. Name another folder, or use --fresh, "
                "which deletes them."
            )
        if claim is not None:
            claim.take()
        for pending in self.pendings(owner):
            self.remove(pending)
        for part in parts:
            self.remove(part)

    def left_behind(self, pipeline: str, operator: str) -> str | None:
        parts = len(self.parts(owner_of(pipeline, operator)))
        return f"{parts} part file(s) in '{self.path}'" if parts else None


def require_permit(permit: Permit, checkpoint: int, output: str) -> None:
    """Raise if output of this checkpoint may not be committed yet."""
    if permit.checkpoint < checkpoint:
        raise InternalError(
            f"{output} of checkpoint {checkpoint} was to be committed with a permit for checkpoint "
            f"{permit.checkpoint} only"
        )


@dataclass
class PartTransaction(Committable, Saved, word="part-transaction"):
    """One prepared part file.

    Pickles without its open file, which only `persist` needs, and without its folder: a checkpoint
    must contain no credentials, and the folder may have moved. `recover` sets the writer's own.
    """

    pending: PendingName
    part: PartName
    checkpoint: int
    size_bytes: int
    checksum: str | None = None
    """None if it was written by a version that kept none."""
    folder: PartFolder | None = field(default=None, repr=False, compare=False)
    file: Any = field(default=None, repr=False, compare=False)
    written_here: bool = field(default=False, repr=False, compare=False)
    """Whether this process wrote it moments ago; restored output may be much older."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None, "folder": None, "written_here": False}

    @property
    def place(self) -> PartFolder:
        if self.folder is None:
            raise InternalError(f"part {self.part} was restored but not passed to `recover`")
        return self.folder

    @property
    def path(self) -> str:
        return self.place.path_of(self.pending)

    @property
    def _strong(self) -> bool:
        return self.checksum is not None and self.checksum.startswith(STRONG)

    def content(self) -> IO[bytes]:
        """The pending output, verified, in a private copy; FileNotFoundError if it is gone."""
        copy = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115
        self.require_whole(*self._measured(copy))
        copy.seek(0)
        return cast("IO[bytes]", copy)

    def _measured(self, copy: Any = None) -> tuple[int, str]:
        """Size and checksum of the pending output; a copy does not grow far beyond its size."""
        size_bytes, checksum = 0, RunningSum(self._strong)
        with self.place.fs.open(self.path, "rb") as file:
            while piece := file.read(BYTES_PER_READ):
                size_bytes += len(piece)
                checksum.add(piece)
                if copy is not None and size_bytes <= self.size_bytes:
                    copy.write(piece)
        return size_bytes, str(checksum)

    def require_whole(self, size_bytes: int, checksum: str | None) -> None:
        """Raise unless the pending output has the size and the checksum it was written with."""
        if self.place.key is not None and not self._strong:
            raise ConnectorError(
                f"'{self.path}' was written by an earlier version, which did not sign pending "
                "output, so changes to it cannot be detected. Let that version finish "
                "the run, or go back to a checkpoint before it with `everstream rewind`."
            )
        if size_bytes != self.size_bytes:
            problem = f"has {size_bytes} bytes, but {self.size_bytes} were written"
        elif self.checksum is not None and checksum != self.checksum:
            problem = "is damaged: its checksum does not match what was written"
        else:
            return
        raise ConnectorError(
            f"'{self.path}' {problem}. None of it is committed. Restore the file from a copy, or go "
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
        require_permit(permit, self.checkpoint, f"part {self.part}")
        if self.file is not None:
            self.persist()
        folder, pending = self.place, self.path
        final = folder.path_of(self.part)
        try:
            if self.written_here and not is_local(folder.fs):  # measuring downloads it
                self.require_whole(folder.fs.size(pending), self.checksum)
            else:
                self.require_whole(*self._measured())
            rename(folder.fs, pending, final)
        except FileNotFoundError as error:
            # Already renamed: by an earlier attempt, or by another process that had the permit.
            folder.fs.invalidate_cache(final.rpartition("/")[0])
            if not folder.fs.exists(final):
                raise ConnectorError(
                    f"part file '{final}' and its pending file '{pending}' are both missing: "
                    "something else removed them. Restore one of them, or start over with --fresh, "
                    "which deletes the existing output."
                ) from error
        except OSError as error:
            raise ConnectorError(f"cannot rename '{pending}' to '{final}': {error}") from error
        sync_folder(folder.fs, final.rpartition("/")[0])

    def abort(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        self.place.remove(self.pending)


@dataclass
class PartsTransaction(Committable, Saved, word="parts-transaction"):
    """The parts of one checkpoint."""

    parts: tuple[PartTransaction, ...]
    checkpoint: int

    def persist(self) -> None:
        for part in self.parts:
            part.persist()

    def commit(self, permit: Permit) -> None:
        for part in self.parts:
            if part.part.partition:
                make_folders(part.place.fs, f"{part.place.path}/{part.part.partition}")
            part.commit(permit)

    def abort(self) -> None:
        for part in self.parts:
            part.abort()

    def in_folder(self, folder: PartFolder) -> "PartsTransaction":
        bound = tuple(replace(part, folder=folder) for part in self.parts)
        return replace(self, parts=bound)


class PartWriter(Writer):
    """Writes batches to part files; a subclass defines how a batch becomes bytes."""

    _file: Any
    _pending: PendingName | None

    def __init__(self, folder: PartFolder, shard: SinkShard) -> None:
        self._folder = folder
        self._shard = shard
        self._owner = owner_of(shard.pipeline, shard.operator)
        self._begin_anew()
        folder.create()

    @abstractmethod
    def encode(self, batch: Batch) -> bytes:
        """The batch as bytes that can follow those of the batch before."""

    def finish(self) -> bytes:
        """The bytes that end a part; called when it is prepared."""
        return b""

    def seal(self, part: PartName) -> bytes:
        """The bytes appended after all others of the part with this name."""
        return b""

    @property
    def starts_a_part(self) -> bool:
        """Whether nothing has been written since the last checkpoint."""
        return self._file is None

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        self.append(self.encode(batch))

    @property
    def size_bytes(self) -> int:
        """Of the open part, as far as it has been encoded."""
        return self._size_bytes

    def append(self, data: bytes) -> None:
        """Add bytes to the open part; the first ones open it."""
        self._append(data)

    def end(self) -> None:
        """No more is added to the open part."""
        self._append(self.finish())
        self._ended = True

    def _append(self, data: bytes) -> None:
        try:
            if self._file is None:
                self._pending = self._name(uuid.uuid4().hex)
                self._file = self._folder.begin(self._pending)
            self._file.write(data)
        except OSError as error:
            raise ConnectorError(
                f"cannot write to '{self._folder.pending_path}': {error}. "
                "Check that the disk has space and the folder is writable."
            ) from error
        self._size_bytes += len(data)
        self._checksum.add(data)

    def prepare(self, checkpoint: int) -> Committable | None:
        return self.prepared(checkpoint)

    def prepared(
        self, checkpoint: int, partition: str = "", number: int = 0
    ) -> PartTransaction | None:
        """The open part as a transaction; None if there is none."""
        if self._file is None or self._pending is None:
            return None
        shard = self._shard
        part = PartName(self._owner, shard.shard, checkpoint, shard.generation, number, partition)
        if not self._ended:
            self.end()
        self._append(self.seal(part))
        transaction = PartTransaction(
            folder=self._folder,
            pending=self._pending,
            part=part,
            checkpoint=checkpoint,
            size_bytes=self._size_bytes,
            checksum=str(self._checksum),
            file=self._file,
            written_here=True,
        )
        self._begin_anew()
        return transaction

    def _begin_anew(self) -> None:
        self._file, self._pending, self._ended = None, None, False
        self._size_bytes, self._checksum = 0, RunningSum(strong=self._folder.key is not None)

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        pendings = self._pendings_unless_fenced()
        fence = self._name("fence")
        self._folder.begin(fence).close()
        bound = [self._bound(transaction) for transaction in transactions]
        held = [t for t in bound if t.checkpoint > permit.checkpoint]
        for transaction in bound:
            if transaction.checkpoint <= permit.checkpoint:
                transaction.commit(permit)
        kept = {fence, *(name for t in held for name in self._pending_of(t))}
        for pending in pendings:
            if pending not in kept:
                self._folder.remove(pending)
        if permit.takes_back:
            self._take_back(permit.checkpoint)
        return held

    def _take_back(self, checkpoint: int) -> None:
        """Remove what earlier generations have committed since this checkpoint.

        Their pending files are gone, so they can commit nothing more. No later generation had
        begun when the parts were listed, so none of the parts belongs to a later one.
        """
        parts = self._mine(self._folder.parts(self._owner))
        self._pendings_unless_fenced()
        for part in parts:
            if part.checkpoint > checkpoint and (part.generation or 0) < self._shard.generation:
                self._folder.remove(part)

    def _pendings_unless_fenced(self) -> list[PendingName]:
        """The shard's pending files; raises if a later generation has taken over."""
        pendings = self._mine(self._folder.pendings(self._owner))
        newest = max((name.generation for name in pendings), default=0)
        refuse_replaced(self._shard, newest, f"'{self._folder.path}'")
        return pendings

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        return [self._bound(transaction) for transaction in transactions]

    def _bound(self, transaction: Committable) -> Committable:
        """A restored transaction, bound to this writer's folder."""
        if isinstance(transaction, PartsTransaction):
            return transaction.in_folder(self._folder)
        assert isinstance(transaction, PartTransaction)
        return replace(transaction, folder=self._folder)

    def _pending_of(self, transaction: Committable) -> list[PendingName]:
        if isinstance(transaction, PartsTransaction):
            return [part.pending for part in transaction.parts]
        return [transaction.pending] if isinstance(transaction, PartTransaction) else []

    def close(self) -> None:
        if self._file is not None and self._pending is not None:
            self._file.close()
            self._folder.remove(self._pending)
            self._begin_anew()

    def _name(self, token: str) -> PendingName:
        return PendingName(self._owner, self._shard.shard, self._shard.generation, token)

    def _mine(self, names: list[Any]) -> list[Any]:
        return [name for name in names if name.shard == self._shard.shard]
