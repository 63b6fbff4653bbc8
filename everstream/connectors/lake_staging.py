"""Data files that wait for their commit: a note in the run's store says which they are.

The note is written before the files, with their names, so that nothing is left lying about, and
again when they are whole, with all that the commit has to say of them.
"""

import json
from dataclasses import asdict, dataclass

from everstream.connectors.files import sync_file, sync_folder
from everstream.connectors.lake import HistoryLost, LakeFile, LakeTable, TableState
from everstream.connectors.parts import PartFolder, PendingName
from everstream.errors import ConnectorError


def notes_of(store: str, operator: str) -> PartFolder:
    """Where it is noted which data files wait."""
    return PartFolder.in_store(store, "staged", operator, ".json")


@dataclass(frozen=True)
class Staged:
    """What a note says: the files of one checkpoint, or the names they were going to have."""

    checkpoint: int
    files: tuple[LakeFile, ...] | None
    paths: tuple[str, ...]

    def as_bytes(self) -> bytes:
        files = None if self.files is None else [asdict(file) for file in self.files]
        return json.dumps(
            {"checkpoint": self.checkpoint, "files": files, "paths": self.paths}
        ).encode()

    @staticmethod
    def read(folder: PartFolder, name: PendingName) -> "Staged | None":
        """None if there is no such note, or only half of it: then its checkpoint never counted."""
        try:
            said = json.loads(folder.fs.cat_file(folder.path_of(name)))
        except FileNotFoundError:
            return None
        except ValueError:
            return None
        files = said["files"]
        return Staged(
            said["checkpoint"],
            None if files is None else tuple(LakeFile(**file) for file in files),
            tuple(said["paths"]),
        )

    def write(self, folder: PartFolder, name: PendingName, durable: bool) -> None:
        path = folder.path_of(name)
        try:
            with folder.begin(name) as file:
                file.write(self.as_bytes())
            if durable:
                sync_file(folder.fs, path)
                sync_folder(folder.fs, folder.pending_path)
        except OSError as error:
            raise ConnectorError(f"cannot write '{path}': {error}.") from error


def discard(
    table: LakeTable, notes: PartFolder, name: PendingName, state: TableState | None
) -> None:
    """Delete what was staged and not committed, and its note."""
    staged = Staged.read(notes, name)
    if staged is not None and not _was_committed(state, name, staged):
        for path in staged.paths:
            table.delete(path)
    notes.remove(name)


def _was_committed(state: TableState | None, name: PendingName, staged: Staged) -> bool:
    """Whether a version has added these files; also if nobody can tell, for then a vacuum can."""
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
