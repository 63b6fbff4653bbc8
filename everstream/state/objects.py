"""References to objects in the store: a name, a size and a checksum, small enough for a manifest."""

import hashlib
from dataclasses import dataclass
from typing import Any

from everstream.errors import InternalError


def checksum_of(data: bytes) -> str:
    """A fast checksum that also tells apart objects of equal length."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """Where an object is and how to know that it is whole."""

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
    def of(cls, name: str, data: bytes) -> "ObjectRef":
        return cls(name, len(data), checksum_of(data))
