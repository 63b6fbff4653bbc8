"""Signed stores: without the key of a store, write access is not enough to forge its content.

Snapshots are pickles, and a pickle runs code when it is loaded; checksums find damage, not forgery.
With a key every manifest and object carries a keyed hash (HMAC-SHA-256) of its content and of its
name in the store. Anything without a valid one is refused before it is read. Connectors that keep
their own files in a store receive a `StoreUrl`, and sign what they write there with the same key.
The key itself is never written to a store, a log, an error or a Spark task: it is read from a file,
and workers receive it in the key exchange.
"""

import hashlib
import hmac
import os
import re
import stat
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from everstream.errors import StoreError, UserError
from everstream.state.blobs import FsspecBlobs
from everstream.state.objects import Data, checksum_of, pieces_of

IDENTITY: Final = "identity"
"""Where a store keeps its identity."""
KEY_FILE: Final = "EVERSTREAM_STORE_KEY_FILE"
"""The environment variable that names the key file where no option does."""
SHORTEST: Final = 32
_ANY_HEAD: Final = re.compile(rb"everstream signed (\d{1,4}) ")
_HEAD: Final = re.compile(rb"everstream signed 1 ([0-9a-f]{16}) ([0-9a-f]{64})\n")
HEAD_BYTES: Final = 102
MAKE_ONE: Final = "Make one with: (umask 077; openssl rand -hex 32 > store.key)"


class Forged(StoreError):
    """Something in a signed store was not signed with its key: it is not read."""


class StoreKey:
    """The key of a store: its first word signs, and each of its words verifies."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = {_name_of(word): word for word in secrets}
        self._signing = next(iter(self._secrets))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "StoreKey":
        """From a file: one word per line, the one to sign with first."""
        file = Path(path)
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise UserError(f"the store key '{path}' cannot be read: {why}. {MAKE_ONE}") from None
        if mode & 0o026:
            raise UserError(
                f"the store key '{path}' is readable by others (mode {mode:04o}): chmod 600 it."
            )
        secrets = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not secrets or any(len(word) < SHORTEST for word in secrets):
            raise UserError(
                f"the store key '{path}' must hold at least {SHORTEST} characters in each line. "
                f"{MAKE_ONE}"
            )
        return cls([word.encode() for word in secrets])

    @classmethod
    def given(cls, path: str | os.PathLike[str] | None) -> "StoreKey | None":
        """From the file named here or in the environment; None if none is."""
        named = path if path is not None else os.environ.get(KEY_FILE) or None
        return None if named is None else cls.read(named)

    def __repr__(self) -> str:
        return "StoreKey(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the key of a store is never pickled: it could be read in transit")

    def words(self) -> list[str]:
        """To be sent only where no one without access to the key can read it."""
        return [word.decode() for word in self._secrets.values()]

    def head(self, path: str, data: Data) -> bytes:
        """The header of these bytes where they are stored under this name."""
        name = self._signing
        return b"everstream signed 1 %s %s\n" % (name, _mac(self._secrets[name], path, data))

    def opened(self, path: str, data: bytes) -> bytes:
        """The content that was signed under this name; raises Forged if the signature is wrong."""
        match = _HEAD.match(data)
        if match is None:
            other = _ANY_HEAD.match(data)
            if other is None:
                raise Forged(f"'{path}' is not signed")
            # This number is not authenticated: it may be damage, and a copy may be complete.
            number = other[1].decode()
            raise Forged(f"'{path}' is signed in format {number}, perhaps by a newer Everstream")
        if match[1] not in self._secrets:
            raise Forged(f"'{path}' is signed with another key")
        content = data[HEAD_BYTES:]
        if not hmac.compare_digest(_mac(self._secrets[match[1]], path, content), match[2]):
            raise Forged(f"the signature of '{path}' does not match")
        return content


class StoreUrl(str):
    """The address of a store, with its key for code in this process that reads or writes there
    directly.

    It is otherwise a plain string, and pickles as one: the key stays in this process.
    """

    key: StoreKey | None

    def __new__(cls, url: str, key: StoreKey | None) -> "StoreUrl":
        made = super().__new__(cls, url)
        made.key = key
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (str(self),))


def key_of(store: str) -> StoreKey | None:
    """The key that came with the address of a store; None if the store is not signed."""
    return store.key if isinstance(store, StoreUrl) else None


class SignedBlobs(FsspecBlobs):
    """Blobs that carry a signature, and are refused without it."""

    def __init__(self, url: str, key: StoreKey, **options: Any) -> None:
        super().__init__(url, **options)
        self._key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return self._key.__reduce__()

    def write(self, path: str, data: Data) -> None:
        super().write(path, (self._key.head(path, data), *pieces_of(data)))

    def write_summed(self, path: str, data: Data) -> str:
        checksum = checksum_of(data)
        self.write(f"{path}.{checksum}", data)
        return checksum

    def create(self, path: str, data: bytes) -> None:
        super().create(path, self._key.head(path, data) + data)

    def read(self, path: str) -> bytes:
        return self._key.opened(path, super().read(path))


def blobs_at(url: str, key: StoreKey | None) -> FsspecBlobs:
    return FsspecBlobs(url) if key is None else SignedBlobs(url, key)


def identity_of(store: str) -> str:
    """The permanent identity of a store; created at the first request.

    Outputs record it as their owner, so in a signed store it counts only with its signature.
    """
    identity = known_identity(store)
    if identity is None:
        with suppress(FileExistsError):
            blobs_at(store, key_of(store)).create(IDENTITY, uuid.uuid4().hex.encode())
        identity = known_identity(store)
    if identity is None:
        raise StoreError(f"the identity of the store '{store}' was deleted by another process.")
    return identity


def known_identity(store: str) -> str | None:
    """The identity of a store that has one; refused if someone without the key has written it."""
    try:
        return blobs_at(store, key_of(store)).read(IDENTITY).decode(errors="replace")
    except FileNotFoundError:
        return None
    except Forged as error:
        raise StoreError(
            f"the identity of the store '{store}' is not trusted: {error.message}. It says which output "
            "belongs to this store. It was replaced by someone without the key, or written by an "
            "earlier version, which did not sign it. Restore the file from a copy of the store, or "
            "finish the run with that version and begin another store with another output."
        ) from error


def is_signed(data: bytes) -> bool:
    return _HEAD.match(data) is not None


def _name_of(word: bytes) -> bytes:
    """Tells keys apart without revealing them."""
    return hmac.digest(word, b"everstream key name", "sha256").hex()[:16].encode()


def _mac(word: bytes, path: str, data: Data) -> bytes:
    mac = hmac.new(word, digestmod=hashlib.sha256)
    mac.update(b"everstream blob 1 %d %s " % (len(path.encode()), path.encode()))
    for piece in pieces_of(data):
        mac.update(piece)
    return mac.hexdigest().encode()
