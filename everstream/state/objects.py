"""Objects in the store: references (name, size and checksum), and the check of their format."""

import hashlib
from dataclasses import dataclass
from typing import Any, TypeAlias

from everstream.errors import InternalError, StoreError

Data: TypeAlias = bytes | tuple[bytes, ...]
"""The content of an object, as a whole or in consecutive pieces."""


def pieces_of(data: Data) -> tuple[bytes, ...]:
    return data if isinstance(data, tuple) else (data,)


def checksum_of(data: Data) -> str:
    """128 bits that distinguish any two objects; not meant to resist forgery.

    SHA-1, because processors have instructions for it: half the time of the next best that Python
    includes. Large pieces are read without holding up other threads.
    """
    checksum = hashlib.sha1(usedforsecurity=False)
    for piece in pieces_of(data):
        checksum.update(piece)
    return checksum.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The name of an object, and how to verify that it is complete."""

    name: str
    size_bytes: int
    checksum: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "size_bytes": self.size_bytes, "checksum": self.checksum}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ObjectRef":
        try:
            return cls(str(fields["name"]), int(fields["size_bytes"]), str(fields["checksum"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InternalError(
                f"{fields!r} is no object reference: it needs name, size_bytes and checksum"
            ) from error

    @classmethod
    def of(cls, name: str, data: Data) -> "ObjectRef":
        return cls(name, sum(map(len, pieces_of(data))), checksum_of(data))


# Everything that outlives a run names its format. An older Everstream must not take a newer format for
# damage: it would fall back to an older checkpoint, or end a log early, and not report the loss.
def check_format(what: str, version: int, known: int) -> None:
    """Raise a StoreError if `what` is in a format that came after the newest one known here."""
    if version > known:
        raise StoreError(
            f"{what} has format {version}, and this Everstream reads up to format {known}: it was "
            "written by a newer one. Use that one, or give this run another store."
        )
