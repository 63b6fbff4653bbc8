"""Whose output a folder takes: one pipeline, operator and store, as a file in the folder says.

Parts are named after pipeline, operator and checkpoint. Two runs of one pipeline with different
stores would use the same names and take each other's output for their own, so the second is refused
while the first is alive. When it is over, its folder can be taken, by a run that starts from
nothing; the earlier store then cannot go on from its checkpoints, because its output is gone.
"""

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from everstream.connectors.files import is_local, remove, sync_folder
from everstream.errors import ConnectorError, UserError
from everstream.state.holding import holder_of
from everstream.state.identity import identity_of


@dataclass(frozen=True)
class Owner:
    """Who writes to a folder, and from which machine the run was started."""

    pipeline: str
    operator: str
    store: str
    identity: str
    host: str

    @staticmethod
    def of(pipeline: str, operator: str, store: str) -> "Owner":
        return Owner(pipeline, operator, store, identity_of(store), socket.gethostname())

    def is_same(self, other: "Owner") -> bool:
        return self.identity == other.identity or self.store == other.store


@dataclass(frozen=True)
class Claim:
    """A run's wish to write to a folder; `path` is the file that says whose it is."""

    fs: Any
    folder: str
    path: str
    owner: Owner

    def check(self) -> None:
        """Raise a UserError if a run with another store is writing there."""
        theirs = self._theirs()
        if theirs is not None:
            self._refuse_if_alive(theirs)

    def take(self) -> None:
        """For a run from nothing: it is ours from now on, unless somebody is writing there."""
        while not self._create():
            theirs = self._theirs()
            if theirs is None:
                return
            self._refuse_if_alive(theirs)
            remove(self.fs, self.path)

    def keep(self) -> None:
        """For a run that goes on: it must still be ours."""
        theirs = None if self._create() else self._theirs()
        if theirs is not None:
            self._refuse_if_alive(theirs)
            raise UserError(
                f"{self._said(theirs)}; since then the output of the store '{self.owner.store}' is "
                "gone from there. Go on with that store, or name another folder and start over."
            )

    def _theirs(self) -> Owner | None:
        """Whose it is, if not ours."""
        try:
            data = self.fs.cat_file(self.path)
        except FileNotFoundError:
            return None
        try:
            theirs = Owner(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise ConnectorError(
                f"'{self.path}', which says whose folder this is, cannot be read: {error}. If no "
                "other run writes to the folder, remove this file."
            ) from error
        return None if self.owner.is_same(theirs) else theirs

    def _said(self, theirs: Owner) -> str:
        return (
            f"'{self.folder}' takes the output of pipeline '{theirs.pipeline}', operator "
            f"'{theirs.operator}', with the store '{theirs.store}'"
        )

    def _refuse_if_alive(self, theirs: Owner) -> None:
        if theirs.host != self.owner.host:
            raise UserError(
                f"{self._said(theirs)}, written from the machine '{theirs.host}'; this run has the "
                f"store '{self.owner.store}'. Name another folder, or, if that run is over for "
                f"good, remove '{self.path}'."
            )
        alive = holder_of(theirs.store)
        if alive is not None:
            raise UserError(
                f"{self._said(theirs)}, on which {alive} is running; this run has the store "
                f"'{self.owner.store}'. Name another folder, or stop that run first."
            )

    def _create(self) -> bool:
        """Whether the file was made now; false if it was there."""
        data = json.dumps(asdict(self.owner)).encode()
        try:
            if not is_local(self.fs):
                self.fs.pipe_file(self.path, data, mode="create")
                return True
            whole = f"{self.path}.{uuid.uuid4().hex}"
            try:
                with open(whole, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(whole, self.path)
            finally:
                remove(self.fs, whole)
            sync_folder(self.fs, os.path.dirname(self.path))
        except FileExistsError:
            return False
        return True
