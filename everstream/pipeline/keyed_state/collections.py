"""`KeyedMap` and `KeyedList`: a collection per key whose entries are stored one by one.

A change of one entry is one entry of the next checkpoint, however large the collection is. Values are in
one store, under (key, map key) or (key, position). A second store, the index, knows how many there
are, and for maps also which: every entry has a slot, and slots are numbered without gaps. When an entry
is deleted, the last one takes over its slot. So every operation changes a few entries at most.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, overload

from everstream.errors import UserError
from everstream.pipeline.keyed_state.spreading import Spread
from everstream.pipeline.operator import BoundState, Keyed, StateKind
from everstream.state.backends.protocol import StateBackend
from everstream.state.migrating import FIRST_VERSION, Migrate

if TYPE_CHECKING:
    from everstream.pipeline.operator import Operator

K = TypeVar("K")
V = TypeVar("V")
INDEX: Final = ".index"
"""After the name of a state: that of the store of its index."""
_SIZE, _AT, _OF = 0, 1, 2
"""In the index of a map: (key, _SIZE) -> entries, (key, _AT, slot) -> map key, (key, _OF, map key) ->
slot."""


class KeyedMap(Keyed[Any], Generic[K, V]):
    """Declares a dict per key on an Operator class, whose entries are stored one by one.

    Use it instead of `es.Keyed(init=dict)` for dicts that are large: a checkpoint saves only the
    entries that have changed. `self.seen[ctx.key]` is the dict of a key; it has the methods of a dict.
    After a deletion the order is not that of insertion.

    >>> class Distinct(es.Operator):
    ...     seen = es.KeyedMap()
    ...     def process(self, visit, ctx):
    ...         pages = self.seen[ctx.key]
    ...         pages[visit["page"]] = pages.get(visit["page"], 0) + 1
    ...         ctx.emit((ctx.key, len(pages)))
    >>> visits = [{"user": "ada", "page": page} for page in ("/", "/a", "/")]
    >>> keyed = es.Pipeline("distinct").source(es.FromList(visits)).key_by(lambda v: v["user"])
    >>> keyed.process(Distinct()).collect().run().collected()
    [('ada', 1), ('ada', 2), ('ada', 2)]
    """

    what = "map"

    def __init__(
        self,
        init: Callable[[], V] | None = None,
        *,
        version: int = FIRST_VERSION,
        migrate: Migrate | None = None,
        state: StateKind | None = None,
    ) -> None:
        """init: makes the value of a missing entry that is read with `[]`. version, migrate: of the
        values, as for `es.Keyed`. state: "memory" or "disk"."""
        super().__init__(init, version=version, migrate=migrate, state=state)

    @property
    def kind(self) -> str:
        return self.what

    @property
    def stores(self) -> dict[str, Spread]:
        return {self.name: "entry", self.name + INDEX: "entry"}

    def bind(self, to: BoundState) -> Any:
        values = to.keystore(self.name, None, self.migration)
        return MapState(values, to.keystore(self.name + INDEX), self.init)

    @overload  # type: ignore[override]
    def __get__(self, instance: None, owner: type) -> "KeyedMap[K, V]": ...
    @overload
    def __get__(self, instance: "Operator", owner: type) -> "MapState[K, V]": ...
    def __get__(
        self, instance: "Operator | None", owner: type
    ) -> "KeyedMap[K, V] | MapState[K, V]":
        found: Any = super().__get__(instance, owner)
        return cast("KeyedMap[K, V] | MapState[K, V]", found)


class KeyedList(Keyed[Any], Generic[V]):
    """Declares a list per key on an Operator class, whose items are stored one by one.

    Use it instead of `es.Keyed(init=list)` for lists that are large: appending saves one item.
    Inserting or deleting anywhere but at the end moves all items behind, as in a list.

    >>> class History(es.Operator):
    ...     orders = es.KeyedList()
    ...     def process(self, order, ctx):
    ...         self.orders[ctx.key].append(order["total"])
    ...         ctx.emit((ctx.key, list(self.orders[ctx.key])))
    >>> orders = [{"user": "ada", "total": 3}, {"user": "ada", "total": 4}]
    >>> keyed = es.Pipeline("history").source(es.FromList(orders)).key_by(lambda o: o["user"])
    >>> keyed.process(History()).collect().run().collected()
    [('ada', [3]), ('ada', [3, 4])]
    """

    what = "list"

    def __init__(
        self,
        *,
        version: int = FIRST_VERSION,
        migrate: Migrate | None = None,
        state: StateKind | None = None,
    ) -> None:
        """version, migrate: of the items, as for `es.Keyed`. state: "memory" or "disk"."""
        super().__init__(None, version=version, migrate=migrate, state=state)

    @property
    def kind(self) -> str:
        return self.what

    @property
    def stores(self) -> dict[str, Spread]:
        return {self.name: "entry", self.name + INDEX: "key"}

    def bind(self, to: BoundState) -> Any:
        values = to.keystore(self.name, None, self.migration)
        return ListState(values, to.keystore(self.name + INDEX))

    @overload  # type: ignore[override]
    def __get__(self, instance: None, owner: type) -> "KeyedList[V]": ...
    @overload
    def __get__(self, instance: "Operator", owner: type) -> "ListState[V]": ...
    def __get__(self, instance: "Operator | None", owner: type) -> "KeyedList[V] | ListState[V]":
        found: Any = super().__get__(instance, owner)
        return cast("KeyedList[V] | ListState[V]", found)


class MapState(Generic[K, V]):
    """The maps of all keys."""

    def __init__(
        self,
        values: StateBackend[Any, V],
        index: StateBackend[Any, Any],
        init: Callable[[], V] | None = None,
    ) -> None:
        self._values = values
        self._index = index
        self._init = init

    def __getitem__(self, key: Hashable) -> "MapOfKey[K, V]":
        """The map of a key; an empty one if there is none."""
        return MapOfKey(self._values, self._index, self._init, key)

    def __setitem__(self, key: Hashable, entries: Any) -> None:
        """Replace the map of a key."""
        new = dict(entries)
        one = self[key]
        one.clear()
        one.update(new)

    def __contains__(self, key: object) -> bool:
        """Whether the map of this key has entries."""
        return (key, _SIZE) in self._index

    def __delitem__(self, key: Hashable) -> None:
        if key not in self:
            raise KeyError(key)
        self[key].clear()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[Any]:
        """The keys whose maps have entries; looks at every entry."""
        return [entry[0] for entry in self._index.keys() if entry[1] == _SIZE]  # noqa: SIM118

    def pairs(self) -> Iterator[tuple[Any, dict[Any, Any]]]:
        """Each key with its map, for inspection."""
        found: dict[Any, dict[Any, Any]] = {}
        for (key, inner), value in self._values.pairs():
            found.setdefault(key, {})[inner] = value
        return iter(found.items())


class MapOfKey(MutableMapping[K, V]):
    """The map of one key."""

    def __init__(
        self,
        values: StateBackend[Any, V],
        index: StateBackend[Any, Any],
        init: Callable[[], V] | None,
        key: Hashable,
    ) -> None:
        self._values = values
        self._index = index
        self._init = init
        self._key = key

    def __getitem__(self, inner: K) -> V:
        try:
            return self._values[self._key, inner]
        except KeyError:
            if self._init is None:
                raise KeyError(inner) from None
        made = self._init()
        self[inner] = made
        return made

    def get(self, inner: K, default: Any = None) -> Any:
        return self._values.get((self._key, inner), default)

    def __setitem__(self, inner: K, value: V) -> None:
        key, index = self._key, self._index
        if (key, inner) not in self._values:
            size = index.get((key, _SIZE), 0)
            index.put((key, _AT, size), inner)
            index.put((key, _OF, inner), size)
            index.put((key, _SIZE), size + 1)
        self._values.put((key, inner), value)

    def __delitem__(self, inner: K) -> None:
        key, index = self._key, self._index
        if (key, inner) not in self._values:
            raise KeyError(inner)
        self._values.delete((key, inner))
        slot, last = index[key, _OF, inner], index[key, _SIZE] - 1
        index.delete((key, _OF, inner))
        if slot != last:
            moved = index.get((key, _AT, last))
            index.put((key, _AT, slot), moved)
            index.put((key, _OF, moved), slot)
        index.delete((key, _AT, last))
        if last:
            index.put((key, _SIZE), last)
        else:
            index.delete((key, _SIZE))

    def __contains__(self, inner: object) -> bool:
        return (self._key, inner) in self._values

    def __iter__(self) -> Iterator[K]:
        """All map keys, as of now: the map may be changed while looping."""
        size = len(self)
        return iter([self._index[self._key, _AT, slot] for slot in range(size)])

    def __len__(self) -> int:
        size: int = self._index.get((self._key, _SIZE), 0)
        return size

    def clear(self) -> None:
        for inner in self:
            self._values.delete((self._key, inner))
            self._index.delete((self._key, _OF, inner))
        for slot in range(len(self)):
            self._index.delete((self._key, _AT, slot))
        self._index.delete((self._key, _SIZE))

    def __repr__(self) -> str:
        return repr(dict(self))


class ListState(Generic[V]):
    """The lists of all keys."""

    def __init__(self, values: StateBackend[Any, V], index: StateBackend[Any, int]) -> None:
        self._values = values
        self._index = index

    def __getitem__(self, key: Hashable) -> "ListOfKey[V]":
        """The list of a key; an empty one if there is none."""
        return ListOfKey(self._values, self._index, key)

    def __setitem__(self, key: Hashable, items: Iterable[V]) -> None:
        """Replace the list of a key."""
        one, new = self[key], list(items)
        if len(new) < len(one):
            one._cut(len(new))
        one._write(0, new)

    def __contains__(self, key: object) -> bool:
        """Whether the list of this key has items."""
        return key in self._index

    def __delitem__(self, key: Hashable) -> None:
        if key not in self:
            raise KeyError(key)
        self[key].clear()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._index)

    def keys(self) -> list[Any]:
        """The keys whose lists have items."""
        return self._index.keys()

    def pairs(self) -> Iterator[tuple[Any, list[Any]]]:
        """Each key with its list, for inspection."""
        found = {key: [None] * size for key, size in self._index.pairs()}
        for (key, position), value in self._values.pairs():
            found[key][position] = value  # type: ignore[call-overload]
        return iter(found.items())


class ListOfKey(MutableSequence[V]):
    """The list of one key."""

    def __init__(
        self, values: StateBackend[Any, V], index: StateBackend[Any, int], key: Hashable
    ) -> None:
        self._values = values
        self._index = index
        self._key = key

    def __len__(self) -> int:
        return self._index.get(self._key, 0)

    @overload
    def __getitem__(self, at: int) -> V: ...
    @overload
    def __getitem__(self, at: slice) -> list[V]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self._values[self._key, n] for n in range(*at.indices(len(self)))]
        return self._values[self._key, self._position(at)]

    @overload
    def __setitem__(self, at: int, value: V) -> None: ...
    @overload
    def __setitem__(self, at: slice, value: Iterable[V]) -> None: ...
    def __setitem__(self, at: int | slice, value: Any) -> None:
        if isinstance(at, slice):
            raise UserError(
                "a slice of an es.KeyedList cannot be replaced: set its items one by one, or assign a "
                "whole list to the key."
            )
        self._values.put((self._key, self._position(at)), value)

    @overload
    def __delitem__(self, at: int) -> None: ...
    @overload
    def __delitem__(self, at: slice) -> None: ...
    def __delitem__(self, at: int | slice) -> None:
        gone = [*range(*at.indices(len(self)))] if isinstance(at, slice) else [self._position(at)]
        if not gone:
            return
        removed, left = set(gone), min(gone)
        for position in range(left, len(self)):
            if position not in removed:
                self._values.put((self._key, left), self._values[self._key, position])
                left += 1
        self._cut(left)

    def __iter__(self) -> Iterator[V]:
        values, key = self._values, self._key
        return (values[key, position] for position in range(len(self)))

    def append(self, value: V) -> None:
        size = len(self)
        self._values.put((self._key, size), value)
        self._index.put(self._key, size + 1)

    def extend(self, values: Iterable[V]) -> None:
        self._write(len(self), list(values))

    def _write(self, start: int, values: list[V]) -> None:
        """Items from this position on; the list ends with them, if it does not go on already."""
        put, key = self._values.put, self._key
        for position, value in enumerate(values, start):
            put((key, position), value)
        if start + len(values) > len(self):
            self._index.put(key, start + len(values))

    def insert(self, at: int, value: V) -> None:
        size = len(self)
        first = max(0, at + size) if at < 0 else min(at, size)
        self.append(value)
        for position in range(size, first, -1):
            moved = self._values[self._key, position - 1]
            self._values.put((self._key, position), moved)
        self._values.put((self._key, first), value)

    def clear(self) -> None:
        self._cut(0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | ListOfKey) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _cut(self, size: int) -> None:
        for position in range(size, len(self)):
            self._values.delete((self._key, position))
        if size:
            self._index.put(self._key, size)
        else:
            self._index.delete(self._key)

    def _position(self, at: int) -> int:
        size = len(self)
        position = at + size if at < 0 else at
        if not 0 <= position < size:
            raise IndexError("list index out of range")
        return position
