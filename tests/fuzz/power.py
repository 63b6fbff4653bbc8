"""What a power cut leaves of a folder: what was synced, and of all else what chance keeps.

A disk keeps the content that a file had at its last fsync, and the names that a folder had at its
own. Of what changed since then any part may be there: a new name or none, an old name that was
removed, a file that is whole, empty or cut short.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Kept:
    """A file on the disk: its content at the last fsync, if there was one."""

    content: bytes | None = None


class Platter:
    """Watches what is synced. Inodes must not be used again: on tmpfs they are not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files: dict[int, Kept] = {}
        self._names: dict[str, dict[str, Kept | None]] = {}
        """Folder -> its names when it was synced; None for a folder."""
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if os.path.isdir(path):
                self._names[path] = self._found_in(path)
            else:
                kept = self._files.setdefault(os.fstat(descriptor).st_ino, Kept())
                kept.content = Path(f"/proc/self/fd/{descriptor}").read_bytes()

        monkeypatch.setattr(os, "fsync", synced)

    def _found_in(self, folder: str) -> dict[str, Kept | None]:
        return {
            entry.name: None if entry.is_dir() else self._files.setdefault(entry.inode(), Kept())
            for entry in os.scandir(folder)
        }

    def cut(self, folder: Path, to: Path, chance: random.Random) -> None:
        """Write what is left of a folder to another, which is not there yet."""
        to.mkdir()
        synced, now = self._names.get(str(folder), {}), self._found_in(str(folder))
        for name in sorted({*synced, *now}):
            if chance.random() < 0.5:
                survives = name in synced
                kept = synced.get(name)
            else:
                survives = name in now
                kept = now.get(name)
            if not survives:
                continue
            if kept is None:
                self.cut(folder / name, to / name, chance)
            else:
                (to / name).write_bytes(self._left_of(kept, folder / name, chance))

    def _left_of(self, kept: Kept, path: Path, chance: random.Random) -> bytes:
        """Its synced content, or something on the way from there to what it is now."""
        synced = kept.content or b""
        current = path.read_bytes() if path.exists() else synced
        is_it = path.exists() and self._files.get(path.stat().st_ino) is kept
        if not is_it or chance.random() < 0.5:
            return synced
        if current.startswith(synced):
            return current[: chance.randint(len(synced), len(current))]
        return current
