"""The log of answers in the store: a call whose answer is in it is never made again.

A checkpoint holds the records whose answers are outstanding. A failure discards everything that
happened after it, except for this log. An answer is written here before it leaves the operator. After
a failure the records come again, and each takes the answer that is logged for an equal record. The
function is called only for those that have none.

Entries are found by the content of the record, because a replayed record has no other identity.
Equal records ask equal questions, so their answers are interchangeable. Each entry is taken once.

An object of the log holds the answers that came at about the same time. Its name has the
generation and a number in that generation. A checkpoint covers all objects up to a position: their
answers had left the operator, or are part of the checkpoint. The other objects are live. The first
object of a generation lists the live objects that it found when it began. So whatever a process that
was mistaken for dead writes later is never read.
"""

import hashlib
import io
import logging
import pickle
import re
import struct
import zlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from everstream.errors import UserError
from everstream.pipeline.calls.attempts import Answer
from everstream.state.saved import dumps
from everstream.state.store import CALLS

if TYPE_CHECKING:
    from everstream.state.blobs import Blobs

_NAME = re.compile(r"(\d+)of(\d+)-(\d{20,})-(\d{8,})")
_CHECKSUM = struct.Struct("<I")
_log = logging.getLogger("everstream")

Position: TypeAlias = tuple[int, int]
"""Generation, and the number of the last object in it."""
Entry: TypeAlias = tuple[Hashable, str, Any, str]
"""The key of the record, its content key, the value, and the error if there is no value."""


def content_key(record: Any) -> str:
    """Equal for equal records of the same types, in every process.

    >>> content_key({"id": 1, "tags": ["a"]}) == content_key({"id": 1, "tags": ["a"]})
    True
    >>> content_key(1) == content_key(1.0)
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, record)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    kind = type(value)
    if kind is str:
        data = value.encode("utf-8", "surrogatepass")
        digest.update(b"s%d:" % len(data))
        digest.update(data)
    elif kind is bytes:
        digest.update(b"b%d:" % len(value))
        digest.update(value)
    elif kind is dict:
        digest.update(b"d%d:" % len(value))
        for key, inner in value.items():
            _feed(digest, key)
            _feed(digest, inner)
    elif kind is list or kind is tuple:
        digest.update(b"%c%d:" % (b"l" if kind is list else b"t", len(value)))
        for inner in value:
            _feed(digest, inner)
    elif kind is set or kind is frozenset:
        digest.update(b"u%d:" % len(value))
        for inner in sorted(map(content_key, value)):
            digest.update(inner.encode())
    elif value is None or kind in (int, float, bool):
        digest.update(f"{kind.__name__} {value!r};".encode())
    else:
        data = _pickled_alone(value)
        digest.update(b"p%d:" % len(data))
        digest.update(data)


def _pickled_alone(value: Any) -> bytes:
    """Without references between its parts: two equal strings in it may be one object or two."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 5)
    pickler.fast = True
    try:
        pickler.dump(value)
    except Exception as error:
        raise UserError(
            f"map_async cannot identify a record of type {type(value).__name__} ({error}), so it could "
            "not find its logged answer after a failure. Give it records that can be pickled, or "
            "replay='repeat'."
        ) from error
    return buffer.getvalue()


@dataclass(frozen=True, order=True)
class LogObject:
    """The name of one object."""

    generation: int
    number: int
    shard: int
    shards: int
    operator: str

    @property
    def path(self) -> str:
        place = f"{self.shard}of{self.shards}"
        return f"{CALLS}{self.operator}/{place}-{self.generation:020d}-{self.number:08d}"

    @staticmethod
    def parse(path: str) -> "LogObject | None":
        operator, _, name = path.removeprefix(CALLS).rpartition("/")
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        shard, shards, generation, number = match.groups()
        return LogObject(int(generation), int(number), int(shard), int(shards), operator)


Covered: TypeAlias = Mapping[str, Position]
"""`0of2` -> the position up to which its objects are covered."""


class ResultLog:
    """The objects of one shard; writing and reading, without threads."""

    def __init__(
        self, blobs: "Blobs", operator: str, shard: int, shards: int, generation: int
    ) -> None:
        self._blobs = blobs
        self._operator = operator
        self._shard = shard
        self._shards = shards
        self._generation = generation
        self._adopted: list[str] = []
        self._written = 0

    @property
    def place(self) -> str:
        return f"{self._shard}of{self._shards}"

    def live(self, covered: Covered, operators: Iterable[str]) -> list[Entry]:
        """The entries that no checkpoint covers, of all shards; from now on others do not count.

        operators: the names under which the log may be.
        """
        names = [
            name
            for operator in dict.fromkeys(operators)
            for path in self._blobs.list(f"{CALLS}{operator}/")
            if (name := LogObject.parse(path)) is not None
            and name.generation < self._generation
            and (name.generation, name.number)
            > covered.get(f"{name.shard}of{name.shards}", (-1, 0))
        ]
        found = {name: self._read(name.path) for name in sorted(names)}
        mine = [n for n in found if f"{n.shard}of{n.shards}" == self.place and found[n] is not None]
        if mine:
            newest = max(name.generation for name in mine)
            first = next(name for name in mine if name.generation == newest)
            content = found[first]
            assert content is not None
            adopted = set(content[0])
            found = {
                name: content
                for name, content in found.items()
                if name.path in adopted or (name in mine and name.generation == newest)
            }
        self._adopted = [name.path for name in found]
        return [entry for content in found.values() if content is not None for entry in content[1]]

    def write(self, number: int, entries: list[Entry]) -> None:
        """Durable when this returns. Numbers begin at 1 and have no gaps."""
        data = dumps((self._adopted, entries))
        name = LogObject(self._generation, number, self._shard, self._shards, self._operator)
        self._blobs.write(name.path, _CHECKSUM.pack(zlib.crc32(data)) + data)
        self._written = number

    def prune(self, covered: Position) -> None:
        """Remove objects that no checkpoint that a run may roll back to leaves live."""
        for path in self._blobs.list(f"{CALLS}{self._operator}/"):
            name = LogObject.parse(path)
            if name is None or (name.generation, name.number) > covered:
                continue
            own = f"{name.shard}of{name.shards}" == self.place
            gone = name.shards != self._shards and name.shard % self._shards == self._shard
            if own or gone:
                self._blobs.delete(path)

    def _read(self, path: str) -> tuple[list[str], list[Entry]] | None:
        try:
            data = self._blobs.read(path)
        except FileNotFoundError:
            return None
        if _CHECKSUM.pack(zlib.crc32(data[_CHECKSUM.size :])) != data[: _CHECKSUM.size]:
            _log.warning(
                "'%s' in the store is damaged: the calls whose answers it had are repeated", path
            )
            return None
        content: tuple[list[str], list[Entry]] = pickle.loads(data[_CHECKSUM.size :])
        return content


def entry_of(key: Hashable, content: str, answer: Answer) -> Entry:
    return (key, content, answer.value, answer.error)
