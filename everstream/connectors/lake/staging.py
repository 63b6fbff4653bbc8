"""Data files that are not committed yet: a note in the run's store lists them.

The note is written before the files, with their names, so that no file is ever orphaned, and again
when they are complete, with everything the commit needs. A note is trusted only if it names data
files that we wrote for its own shard and token, inside the table, and in a signed store only with
its signature. So a forged note cannot make us delete or commit other files.
"""

import json
from dataclasses import asdict, dataclass

from everstream.connectors.files.filesystem import sync_file, sync_folder
from everstream.connectors.files.parts import PartFolder, PendingName
from everstream.connectors.lake.table import HistoryLost, LakeFile, LakeTable, TableSnapshot
from everstream.errors import ConnectorError
from everstream.state.signing import Forged


def notes_of(store: str, operator: str) -> PartFolder:
    """The folder of the notes about uncommitted data files."""
    return PartFolder.in_store(store, "staged", operator, ".json")


@dataclass(frozen=True)
class Staged:
    """The content of a note: the files of one checkpoint, or the names they were going to have."""

    checkpoint: int
    files: tuple[LakeFile, ...] | None
    paths: tuple[str, ...]

    def as_bytes(self) -> bytes:
        files = None if self.files is None else [asdict(file) for file in self.files]
        return json.dumps(
            {"checkpoint": self.checkpoint, "files": files, "paths": self.paths}
        ).encode()

    @staticmethod
    def read(table: LakeTable, folder: PartFolder, name: PendingName) -> "Staged | None":
        """None if there is no such note, or only half of it: then its checkpoint never counted.

        A ConnectorError if it is not trusted.
        """
        path = folder.path_of(name)
        try:
            data: bytes = folder.fs.cat_file(path)
            if folder.key is not None and data:
                data = folder.key.opened(folder.signed_as(name), data)
            fields = json.loads(data)
        except FileNotFoundError:
            return None
        except Forged as error:
            raise ConnectorError(
                f"the note '{path}' of uncommitted output is not trusted: {error.message}. It was "
                "written by an earlier version, which did not sign notes, or without the key of the "
                "store. Let that version finish the run, or remove the note and go "
                "back to a checkpoint before it with `everstream rewind`."
            ) from error
        except ValueError:
            return None
        files = fields["files"]
        staged = Staged(
            fields["checkpoint"],
            None if files is None else tuple(LakeFile(**file) for file in files),
            tuple(fields["paths"]),
        )
        for named in (*staged.paths, *(file.path for file in staged.files or ())):
            if not _is_of(table, named, name, staged.checkpoint):
                raise ConnectorError(
                    f"the note '{path}' names '{named}', which is not a data file of this sink: nothing "
                    "is deleted or committed. The note was not written by this sink: remove it, and go "
                    "back to a checkpoint before it with `everstream rewind`."
                )
        return staged

    def write(self, folder: PartFolder, name: PendingName, durable: bool) -> None:
        path = folder.path_of(name)
        try:
            with folder.begin(name) as file:
                data = self.as_bytes()
                if folder.key is not None:
                    file.write(folder.key.head(folder.signed_as(name), data))
                file.write(data)
            if durable:
                sync_file(folder.fs, path)
                sync_folder(folder.fs, folder.pending_path)
        except OSError as error:
            raise ConnectorError(f"cannot write '{path}': {error}.") from error


def stem_of(name: PendingName, checkpoint: int) -> str:
    """Part of the name of every data file of one checkpoint; the token makes it unique."""
    return f"everstream-{name.shard:04d}-{checkpoint:08d}-{name.token}"


def _is_of(table: LakeTable, path: object, name: PendingName, checkpoint: object) -> bool:
    """Whether this can be a data file of that note: with its name, and inside the table."""
    if not isinstance(path, str) or not isinstance(checkpoint, int):
        return False
    *folders, file = path.split("/")
    if table.relative and (path.startswith("/") or "://" in path):
        return False
    return stem_of(name, checkpoint) in file and not {".", ".."} & {*folders}


def discard(
    table: LakeTable, notes: PartFolder, name: PendingName, state: TableSnapshot | None
) -> None:
    """Delete uncommitted files and their note; of an untrusted note, only the note itself."""
    try:
        staged = Staged.read(table, notes, name)
    except ConnectorError:  # torn by a crash, or forged: nothing that it names is touched
        staged = None
    if staged is not None and not _was_committed(state, name, staged):
        for path in staged.paths:
            table.delete(path)
    notes.remove(name)


def _was_committed(state: TableSnapshot | None, name: PendingName, staged: Staged) -> bool:
    """Whether a version has added these files; also if that is unknown, because a vacuum can clean up."""
    if state is None or state.standing(name.owner, name.shard).checkpoint < staged.checkpoint:
        return False
    try:
        for change in state.history():
            mark = change.mark
            if mark is None or mark.owner != name.owner or mark.shard not in (None, name.shard):
                continue
            if not {file.path for file in change.added}.isdisjoint(staged.paths):
                return True
            if mark.shard is None or mark.checkpoint < staged.checkpoint:
                return False
    except HistoryLost:
        return True
    return False
