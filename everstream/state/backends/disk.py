"""State on the local disk: for more keys than fit into memory.

Recently used entries are kept in a dict and written to a table (`table.py`) together, when the dict
is full and at every capture; `changing` looks up all keys of a batch together. The dict has two
generations: an entry that is used again moves to the younger one, and the older one is evicted when
the younger is full.

Four things differ from state in memory: keys are ordered by their bytes, not by arrival; keys must
be of the kinds that `key_by` accepts; a value belongs to one key alone; and there is no raw dict of
everything (`entries`). A capture is always of everything: it names the files of the table, and
files that an earlier capture has put into the store are not saved again. So there are no layers of
changes.
"""

import pickle
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from everstream.errors import UserError
from everstream.state.backends.files import (
    Frozen,
    Load,
    SavedFiles,
    Shelf,
    new_folder,
    place_of,
    temporary_folder,
)
from everstream.state.backends.key_bytes import (
    Group,
    is_itself,
    key_in_bytes,
    key_of,
    keys_in_bytes,
)
from everstream.state.backends.protocol import StateBackend, StorePart, about_bytes, held_outside
from everstream.state.backends.table import RocksTable
from everstream.state.freezing import STEADY, pickled_value
from everstream.state.migrating import FIRST_VERSION, Migration
from everstream.state.objects import ObjectRef

K = TypeVar("K")
V = TypeVar("V")

HOT_BYTES: Final = 32 << 20
"""The approximate size of one generation of the dict."""
ENTRY_BYTES: Final = 300
"""The cost of an entry in a dict, besides four times its bytes on disk."""
MOST_WHILE_MADE: Final = 1.5
"""How far the dict may grow beyond that before the writer waits until a capture is made."""
FEWEST: Final = 16
AT_FIRST: Final = 256
"""Entries in the dict while their size is unknown."""
LOADED_AT_ONCE: Final = 10_000
SHELVED: Final = 3
"""Checkpoints whose files stay on the local disk."""
_PLAIN: Final = frozenset({int, float, bool, str, bytes, type(None)})
_WITH_KEY: Final = b"K"
"""Prefix of the pickle of a key and a value, where the key cannot be restored from its bytes alone.
A pickle alone begins with 0x80."""


@dataclass(frozen=True)
class DiskSpace:
    """Where a shard keeps state on disk, and which state."""

    folder: str
    group: Group
    on_disk: Callable[[str, str], bool]
    """Operator, name of the state -> whether it is kept on disk."""


class DiskBackend(Generic[K, V]):
    """State whose entries are on disk, except those used recently."""

    saves_files: ClassVar[bool] = True
    __slots__ = (
        *("_absent", "_average", "_blind", "_dirty", "_entries", "_folder", "_frozen", "_group"),
        *("_known", "_lent", "_name", "_newest", "_old", "_shelf", "_shelved", "_size", "_table"),
        *("init", "version"),
    )

    def __init__(
        self, folder: Path, group: Group, name: str, init: Callable[[], V] | None = None
    ) -> None:
        """name: of the operator and its state, for errors and for the names of its files."""
        self.init = init
        self.version = FIRST_VERSION
        self._entries: dict[K, V] = {}
        """The younger generation."""
        self._dirty: dict[K, None] = {}
        """Keys whose entries may differ from the table, or that were deleted."""
        self._folder = folder / place_of(name)
        self._group = group
        self._name = name
        self._table: RocksTable | None = None
        """None while there is nothing to write."""
        self._size = 0
        """Keys in the table."""
        self._old: dict[K, V] = {}
        """The older generation: identical to the table."""
        self._absent: set[K] = set()
        """Keys that are known not to be in the table."""
        self._blind: set[K] = set()
        """Keys that were put without knowing whether they are in the table."""
        self._lent: dict[K, None] = {}
        """Keys of the last batch: they stay in the dict that the operator received."""
        self._average = 0.0
        """The mean size of a value in bytes."""
        self._known: dict[str, ObjectRef] = {}
        """The table's files that are in the store."""
        self._shelf = Shelf(self._folder / "shelf")
        self._shelved: deque[frozenset[ObjectRef]] = deque()
        self._newest: Frozen | None = None
        """The last capture of the table, if nothing was written since."""
        self._frozen: list[Frozen] = []
        """Captures that may still have to be made or saved."""

    # As a dict.

    def put(self, key: K, value: V) -> None:
        if key not in self._entries:
            self._meet(key)
        self._entries[key] = value
        self._dirty[key] = None

    def get(self, key: K, default: Any = None) -> Any:
        if key not in self._entries and not self._find(key):
            return default
        value = self._entries[key]
        if not STEADY[type(value)]:
            self._dirty[key] = None
        return value

    def contains(self, key: K) -> bool:
        return key in self

    def delete(self, key: K) -> None:
        if key in self:
            self._take_out(key)

    def items(self) -> list[tuple[K, V]]:
        return [(key, self[key]) for key in self.keys()]

    def keys(self) -> list[K]:
        return [key for key, _ in self.pairs()]

    def clear(self) -> None:
        self._replace(None, 0, {})

    def __getitem__(self, key: K) -> V:
        if key not in self._entries and not self._find(key):
            if self.init is None:
                raise KeyError(key)
            self.put(key, self.init())
        value = self._entries[key]
        if not STEADY[type(value)]:
            self._dirty[key] = None
        return value

    __setitem__ = put

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._take_out(key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries or self._find(key)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> int:
        self._write_back()
        return self._size

    def __repr__(self) -> str:
        return f"DiskBackend(about {self._size} keys)"

    @property
    def entries(self) -> dict[K, V]:
        raise UserError(
            f"{self._name}: state on disk has no raw dict of its entries. Use `changing(keys)`, "
            "get and put, or keep it in memory with state='memory'."
        )

    def changing(self, keys: Iterable[K]) -> dict[K, V]:
        """A raw dict of these keys, of those that there are, to be let go of after the batch."""
        wanted = dict.fromkeys(keys)
        self._lent = {}
        self._ensure_room(len(wanted))
        self._bring(wanted)
        self._lent = wanted
        self._dirty.update(wanted)
        return self._entries

    def take_out(self, keys: list[K]) -> list[V | None]:
        entries = self.changing(keys)
        return [entries.pop(key, None) for key in keys]

    def touch(self, keys: Iterable[K]) -> None:
        self.changing(keys)

    def pairs(self) -> Iterator[tuple[K, V]]:
        self._write_back()
        if self._table is not None:
            for data, value in self._table.pairs():
                yield _pair(data, value)

    @property
    def size_hint(self) -> int:
        return max(self._size, len(self._entries))

    @property
    def memory_hint(self) -> int:
        return about_bytes(self._entries.items(), len(self._entries))

    # For ShardState.

    def capture(self, *, full: bool, in_slices: bool) -> StorePart:
        """Everything as it is now, as files, or as no entries if there are none."""
        return StorePart(None, {}, files=self._freeze())

    def close_capture(self, sequence: int, part: StorePart | None) -> None:
        """Nothing is kept per capture except its files."""

    def mark_durable(self, sequence: int, files: Frozen | None) -> None:
        """The files of this capture stay on the local disk for a while."""
        if files is None or files.saved is None:
            return
        self._frozen = [frozen for frozen in self._frozen if frozen.saved is None]
        self._shelved.append(frozenset(files.saved.files.values()))
        while len(self._shelved) > SHELVED:
            gone = self._shelved.popleft()
            self._shelf.forget(gone.difference(*self._shelved))

    def mark_failed(self, sequence: int, files: Frozen | None) -> None:
        """The content of this capture is in the table, and so in the next capture."""
        if files is self._newest:
            self._newest = None
        if files is not None and files in self._frozen:
            self._frozen.remove(files)
            files.give_up()

    @property
    def layered(self) -> int:
        return 0

    def fold(self, clock_s: Callable[[], float]) -> None:
        """There are no layers."""

    def declare(self, migration: Migration) -> bool:
        migration.check_not_before(self.version)
        if self.version < migration.version and self.size_hint:
            raise UserError(
                f"{self._name} is on disk, where values of version {self.version} cannot be migrated "
                f"to version {migration.version} yet. Keep it in memory (state='memory') until all are."
            )
        self.version = migration.version
        return False

    def load(self, entries: Mapping[K, V], version: int = FIRST_VERSION) -> None:
        self.version = version
        self._take_in(entries.items())

    def adopt(self, other: StateBackend[K, V]) -> None:
        """Take over the table of another store on disk without reading it."""
        self.version = other.version
        if isinstance(other, DiskBackend):
            other._write_back()
            table, other._table = other._table, None
            self._replace(table, other._size, other._known)
        else:
            self._take_in(other.pairs())

    def remove(self) -> None:
        self._replace(None, 0, {})
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # other stores have their folders beside it
            self._folder.parent.rmdir()

    def open(self, saved: SavedFiles, load: Load, version: int) -> None:
        folder = new_folder(self._folder / "tables")
        saved.fetch(folder, self._shelf, load)
        files = saved.files
        self._replace(RocksTable(folder), saved.keys, files)
        self.version = version
        self._shelf.forget_all_but(files.values())
        self._shelved = deque([frozenset(files.values())])

    # Inside.

    def _freeze(self) -> Frozen | None:
        """Everything as it is now; None if there is nothing."""
        self._lent = {}
        self._write_back()
        if not self._size or self._table is None:
            return None
        if self._newest is None:
            folder = new_folder(self._folder / "frozen")
            self._newest = Frozen(
                self._table, folder, self._size, self._known, self._shelf, self._name
            )
            self._frozen.append(self._newest)
        return self._newest

    @property
    def _most(self) -> int:
        if not self._average:
            return max(FEWEST, min(AT_FIRST, HOT_BYTES // ENTRY_BYTES))
        return max(FEWEST, int(HOT_BYTES / (ENTRY_BYTES + 4 * self._average)))

    def _meet(self, key: K) -> None:
        """A key that is not in the dict is about to be put."""
        self._ensure_room(1)
        if key in self._old:
            del self._old[key]
        elif key not in self._dirty and key not in self._absent:
            self._blind.add(key)

    def _find(self, key: K) -> bool:
        """Bring it into the dict, if it exists anywhere."""
        if key in self._dirty or key in self._absent:
            return False
        self._ensure_room(1)
        self._bring((key,))
        return key in self._entries

    def _bring(self, keys: Collection[K]) -> None:
        entries, old, dirty, absent = self._entries, self._old, self._dirty, self._absent
        missing = []
        for key in keys:
            if key in entries or key in dirty or key in absent:
                continue
            if key in old:
                entries[key] = old.pop(key)
            else:
                missing.append(key)
        if not missing:
            return
        if self._table is None:
            for key in missing:
                key_in_bytes(key, self._group)  # report a key that cannot be kept at once
            absent.update(missing)
            return
        values = self._table.get_many(keys_in_bytes(missing, self._group))
        for key, data in zip(missing, values, strict=True):
            if data is None:
                absent.add(key)
            else:
                entries[key] = _value(data)

    def _take_out(self, key: K) -> None:
        del self._entries[key]
        self._dirty[key] = None

    def _ensure_room(self, number: int) -> None:
        """Make room for this many keys: write changes, and evict entries long unused."""
        wanted = len(self._entries) + len(self._absent) + number
        if wanted <= self._most:
            return
        if wanted <= MOST_WHILE_MADE * self._most and not all(f.made for f in self._frozen):
            return  # another thread is making the capture; a writer would have to wait
        self._write_back()
        entries, stay = self._entries, self._dirty.keys() | self._lent.keys()
        self._old = {key: value for key, value in entries.items() if key not in stay}
        for key in self._old:
            del entries[key]
        self._absent &= stay

    def _write_back(self) -> None:
        """Bring the table up to date. Values that may still change in place stay marked."""
        if not self._dirty:
            return
        held, _ = held_outside(self._entries, self._dirty)
        self._look_up_blind()
        entries, absent = self._entries, self._absent
        changed = [key for key in self._dirty if key in entries]
        gone = [key for key in self._dirty if key not in entries and key not in absent]
        if changed or gone:
            self._write(changed, gone)
        self._size += sum(key in absent for key in changed) - len(gone)
        absent.difference_update(changed)
        absent.update(gone)
        self._dirty = {**held, **self._lent}

    def _write(self, changed: list[K], gone: list[K]) -> None:
        if self._table is None:
            self._table = RocksTable(new_folder(self._folder / "tables"))
        for frozen in self._frozen:
            frozen.make()
        entries = self._entries
        values = [self._data(key, entries[key]) for key in changed]
        if values:
            average = sum(map(len, values)) / len(values)
            self._average = average if not self._average else (3 * self._average + average) / 4
        group = self._group
        self._table.write(
            dict(zip(keys_in_bytes(changed, group), values, strict=True)),
            keys_in_bytes(gone, group),
        )
        self._newest = None

    def _look_up_blind(self) -> None:
        """Look them up, so that keys are counted once."""
        if self._blind:
            blind, self._blind = list(self._blind), set()
            values: list[Any] = [None] * len(blind)
            if self._table is not None:
                values = self._table.get_many(keys_in_bytes(blind, self._group))
            self._absent.update(key for key, had in zip(blind, values, strict=True) if had is None)

    def _data(self, key: K, value: V) -> bytes:
        if not is_itself(key):
            return _WITH_KEY + pickled_value((key, value), key, self._name)
        if type(value) in _PLAIN:
            return pickle.dumps(value, 5)
        return pickled_value(value, key, self._name)

    def _take_in(self, items: Iterable[tuple[K, V]]) -> None:
        self.clear()
        for number, (key, value) in enumerate(items, 1):
            self.put(key, value)
            if number % LOADED_AT_ONCE == 0:
                self._write_back()
        self._write_back()

    def _replace(self, table: RocksTable | None, size: int, known: dict[str, ObjectRef]) -> None:
        """Switch to another table, in which nothing has changed."""
        for frozen in self._frozen:
            if table is None:
                frozen.make()  # a capture may still need it
            else:
                frozen.give_up()
        if self._table is not None:
            self._table.close()
        self._table, self._size, self._known = table, size, dict(known)
        self._frozen, self._newest = [], None
        self._entries.clear()
        self._dirty = {}
        self._old, self._absent, self._blind, self._lent = {}, set(), set(), {}


def entries_in(saved: SavedFiles, load: Load) -> dict[Any, Any]:
    """All entries of a store that was saved as files, for another kind of backend."""
    folder = temporary_folder()
    try:
        tables = new_folder(folder / "tables")
        saved.fetch(tables, Shelf(folder / "shelf"), load)
        table = RocksTable(tables)
        try:
            return dict(_pair(key, value) for key, value in table.pairs())
        finally:
            table.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pair(key: bytes, value: bytes) -> tuple[Any, Any]:
    if value[:1] == _WITH_KEY:
        whole: tuple[Any, Any] = pickle.loads(value[1:])
        return whole
    return key_of(key), pickle.loads(value)


def _value(data: bytes) -> Any:
    return pickle.loads(data) if data[:1] != _WITH_KEY else pickle.loads(data[1:])[1]
