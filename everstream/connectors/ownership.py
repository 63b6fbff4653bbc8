"""The owner of an output folder or table: one pipeline, operator and store, recorded with it.

Parts and rows are identified by pipeline, operator and checkpoint. Two runs of one pipeline with
different stores would mistake each other's output for their own, so the second is refused while the
first is alive. After that, a run that starts over can take ownership; the earlier store then cannot
resume from its checkpoints, because its output is gone.
"""

import json
import os
import socket
import uuid
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from everstream.connectors.files.filesystem import is_local, remove, sync_folder
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.sink import SinkShard
from everstream.state.signing import identity_of
from everstream.state.store_lock import holder_of


@dataclass(frozen=True)
class Owner:
    """The owner of a folder or a table, and the machine on which the run was started."""

    pipeline: str
    operator: str
    store: str
    identity: str
    host: str

    @staticmethod
    def of(pipeline: str, operator: str, store: str) -> "Owner":
        return Owner(pipeline, operator, store, identity_of(store), socket.gethostname())

    def is_same(self, other: "Owner") -> bool:
        """Ignores the path of the store: two machines can have two stores at the same path."""
        return self.identity == other.identity


def refuse_replaced(shard: SinkShard, newest: int, place: object) -> None:
    """Raise if a newer generation of this shard writes to the place."""
    if newest > shard.generation:
        raise ConnectorError(
            f"generation {newest} of shard {shard.shard} of '{shard.operator}' has taken over {place}; "
            f"generation {shard.generation} must stop."
        )


class Claim(ABC):
    """A run's claim to write to a place, which records its owner."""

    kind: ClassVar[str]
    """What the user should name another of."""

    def __init__(self, place: str, owner: Owner) -> None:
        self.place = place
        """The place as a reader of an error knows it."""
        self.owner = owner

    def read(self) -> Owner | None:
        """The recorded owner; None if there is none."""
        data = self.recorded()
        try:
            return None if data is None else Owner(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise ConnectorError(
                f"{self.place}: the record of its owner cannot be read: {error}. If no other run "
                f"writes there, {self.how_to_free()}."
            ) from error

    def recorded(self) -> str | bytes | None:
        """The recorded owner as JSON, for `read`."""
        raise NotImplementedError

    @abstractmethod
    def create(self) -> bool:
        """Record us as the owner; False if there already is one."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the recorded owner."""

    @abstractmethod
    def how_to_free(self) -> str:
        """How to remove the recorded owner by hand."""

    def check(self) -> None:
        """Raise a UserError if a run with another store is writing there."""
        other = self._other()
        if other is not None:
            self._refuse_if_alive(other)

    def take(self) -> None:
        """For a run that starts over: take ownership, unless another run is writing there."""
        while not self.create():
            other = self._other()
            if other is None:
                return
            self._refuse_if_alive(other)
            self.remove()

    def keep(self) -> None:
        """For a run that resumes: it must still be the owner."""
        other = None if self.create() else self._other()
        if other is not None:
            self._refuse_if_alive(other)
            raise UserError(
                f"{self._described(other)}; since then the output of the store '{self.owner.store}' is "
                f"gone from there. Continue with that store, or name another {self.kind} and start "
                "over."
            )

    def _other(self) -> Owner | None:
        """The owner, if it is another one."""
        owner = self.read()
        return None if owner is None or self.owner.is_same(owner) else owner

    def _described(self, other: Owner) -> str:
        return (
            f"{self.place} takes the output of pipeline '{other.pipeline}', operator "
            f"'{other.operator}', with the store '{other.store}'"
        )

    def _refuse_if_alive(self, other: Owner) -> None:
        if other.host != self.owner.host:
            raise UserError(
                f"{self._described(other)}, written from the machine '{other.host}'; this run has the "
                f"store '{self.owner.store}'. Name another {self.kind} or, if that run has ended for "
                f"good, {self.how_to_free()}."
            )
        alive = holder_of(other.store)
        if alive is not None:
            raise UserError(
                f"{self._described(other)}, on which {alive} is running; this run has the store "
                f"'{self.owner.store}'. Name another {self.kind}, or stop that run first."
            )


class FolderClaim(Claim):
    """A claim to a folder; `path` is the file in it that records the owner."""

    kind = "folder"

    def __init__(self, fs: Any, folder: str, path: str, owner: Owner) -> None:
        super().__init__(f"'{folder}'", owner)
        self._fs = fs
        self._path = path

    def recorded(self) -> bytes | None:
        try:
            data: bytes = self._fs.cat_file(self._path)
        except FileNotFoundError:
            return None
        return data

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
