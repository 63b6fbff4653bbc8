"""Whose output a folder or a table takes: one pipeline's, operator's and store's, as it says itself.

Parts and rows are told apart by pipeline, operator and checkpoint. Two runs of one pipeline with
different stores would take each other's output for their own, so the second is refused while the
first is alive. When it is over, its place can be taken, by a run that starts from nothing; the
earlier store then cannot go on from its checkpoints, because its output is gone.
"""

import json
import os
import socket
import uuid
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from everstream.connectors.files import is_local, remove, sync_folder
from everstream.errors import ConnectorError, UserError
from everstream.state.holding import holder_of
from everstream.state.identity import identity_of


@dataclass(frozen=True)
class Owner:
    """Who writes to a folder or a table, and from which machine the run was started."""

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


class Claim(ABC):
    """A run's wish to write to a place, where it is noted whose it is."""

    kind: ClassVar[str]
    """What to name another of."""

    def __init__(self, place: str, owner: Owner) -> None:
        self.place = place
        """As a reader of an error knows it."""
        self.owner = owner

    @abstractmethod
    def read(self) -> Owner | None:
        """Whose it is; None if nobody is noted."""

    @abstractmethod
    def create(self) -> bool:
        """Note that it is ours; False if somebody is noted already."""

    @abstractmethod
    def remove(self) -> None:
        """Forget who was noted."""

    @abstractmethod
    def how_to_free(self) -> str:
        """What to do to have it forgotten by hand."""

    def check(self) -> None:
        """Raise a UserError if a run with another store is writing there."""
        theirs = self._theirs()
        if theirs is not None:
            self._refuse_if_alive(theirs)

    def take(self) -> None:
        """For a run from nothing: it is ours from now on, unless somebody is writing there."""
        while not self.create():
            theirs = self._theirs()
            if theirs is None:
                return
            self._refuse_if_alive(theirs)
            self.remove()

    def keep(self) -> None:
        """For a run that goes on: it must still be ours."""
        theirs = None if self.create() else self._theirs()
        if theirs is not None:
            self._refuse_if_alive(theirs)
            raise UserError(
                f"{self._said(theirs)}; since then the output of the store '{self.owner.store}' is "
                f"gone from there. Go on with that store, or name another {self.kind} and start "
                "over."
            )

    def _theirs(self) -> Owner | None:
        """Whose it is, if not ours."""
        owner = self.read()
        return None if owner is None or self.owner.is_same(owner) else owner

    def _said(self, theirs: Owner) -> str:
        return (
            f"{self.place} takes the output of pipeline '{theirs.pipeline}', operator "
            f"'{theirs.operator}', with the store '{theirs.store}'"
        )

    def _refuse_if_alive(self, theirs: Owner) -> None:
        if theirs.host != self.owner.host:
            raise UserError(
                f"{self._said(theirs)}, written from the machine '{theirs.host}'; this run has the "
                f"store '{self.owner.store}'. Name another {self.kind}, or, if that run is over for "
                f"good, {self.how_to_free()}."
            )
        alive = holder_of(theirs.store)
        if alive is not None:
            raise UserError(
                f"{self._said(theirs)}, on which {alive} is running; this run has the store "
                f"'{self.owner.store}'. Name another {self.kind}, or stop that run first."
            )


class FolderClaim(Claim):
    """To a folder; `path` is the file in it that says whose it is."""

    kind = "folder"

    def __init__(self, fs: Any, folder: str, path: str, owner: Owner) -> None:
        super().__init__(f"'{folder}'", owner)
        self._fs = fs
        self._path = path

    def read(self) -> Owner | None:
        try:
            data = self._fs.cat_file(self._path)
        except FileNotFoundError:
            return None
        try:
            return Owner(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise ConnectorError(
                f"'{self._path}', which says whose folder this is, cannot be read: {error}. If no "
                "other run writes to the folder, remove this file."
            ) from error

    def remove(self) -> None:
        remove(self._fs, self._path)

    def how_to_free(self) -> str:
        return f"remove '{self._path}'"

    def create(self) -> bool:
        data = json.dumps(asdict(self.owner)).encode()
        try:
            if not is_local(self._fs):
                self._fs.pipe_file(self._path, data, mode="create")
                return True
            whole = f"{self._path}.{uuid.uuid4().hex}"
            try:
                with open(whole, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(whole, self._path)
            finally:
                remove(self._fs, whole)
            sync_folder(self._fs, os.path.dirname(self._path))
        except FileExistsError:
            return False
        return True
