"""What a store is called by those who must know it again, even if its folder was moved."""

import uuid
from contextlib import suppress
from typing import Final

from everstream.state.blobs import FsspecBlobs

IDENTITY: Final = "identity"


def identity_of(url: str) -> str:
    """The same for ever; made when somebody asks for the first time."""
    blobs = FsspecBlobs(url)
    with suppress(FileNotFoundError):
        return blobs.read(IDENTITY).decode(errors="replace")
    with suppress(FileExistsError):
        blobs.create(IDENTITY, uuid.uuid4().hex.encode())
    return blobs.read(IDENTITY).decode(errors="replace")
