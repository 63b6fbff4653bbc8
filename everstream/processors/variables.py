"""The state variables of a processor: what `handle.getValueState`, `getListState` and `getMapState` return.

Each variable is kept in a state of the operator with its own name, as if the operator had declared it.
Values are fitted to the variable's schema when they are written. With a time to live they are kept with the
time at which they expire, so that each entry of a list or a map is gone at its own time. A timer of the key
removes what has expired.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from everstream.pipeline.keyed_state.collections import KeyedList, KeyedMap
from everstream.pipeline.operator import Context, Keyed
from everstream.processors.schemas import Fields

VariableKind: TypeAlias = Literal["value", "list", "map"]


@dataclass(frozen=True)
class Variable:
    """A state variable as the processor's `init` has declared it."""

    name: str
    kind: VariableKind
    values: Fields
    keys: Fields | None
    """Of a map."""
    ttl_ms: int | None

    def declared(self) -> Keyed[Any]:
        """The state that holds it."""
        if self.kind == "value":
            return Keyed()
        return KeyedList() if self.kind == "list" else KeyedMap()

    def describe(self) -> str:
        schemas = (
            [self.values.schema] if self.keys is None else [self.keys.schema, self.values.schema]
        )
        text = ", ".join(schema.simpleString() for schema in schemas)
        return f"{self.kind} of {text}" + ("" if self.ttl_ms is None else f", {self.ttl_ms} ms")

    def bound(self, store: Any, ctx: Context) -> "_Bound":
        kinds: dict[VariableKind, type[_Bound]] = {
            "value": _ValueState,
            "list": _ListState,
            "map": _MapState,
        }
        return kinds[self.kind](self, store, ctx)


class _Bound:
    """A variable for the key at work."""

    def __init__(self, variable: Variable, store: Any, ctx: Context) -> None:
        self._variable = variable
        self._fields = variable.values
        self._store = store
        self._ctx = ctx

    def clear(self) -> None:
        """Remove this state."""
        if self._ctx.key in self._store:
            del self._store[self._ctx.key]

    def forget_all(self) -> None:
        """Remove it for all keys."""
        for key in list(self._store.keys()):
            del self._store[key]

    @property
    def _timer(self) -> str:
        return f"{EXPIRES}{self._variable.name}"

    def _now_ms(self) -> int | None:
        return None if self._variable.ttl_ms is None else int(self._ctx.now_s * 1000)

    def _split(self, kept: Any) -> tuple[Any, int | None]:
        """The values, and when they expire."""
        return (kept, None) if self._variable.ttl_ms is None else kept

    def _living(self, kept: Any, now_ms: int | None) -> Any:
        """The values as Spark shows them; None if there are none, or if they have expired."""
        if now_ms is None or kept is None:
            return None if kept is None else self._fields.shown(kept)
        values, at_ms = kept
        return self._fields.shown(values) if lives(at_ms, now_ms) else None

    def _kept(self, given: Any) -> Any:
        values, ttl_ms = self._fields.values(given), self._variable.ttl_ms
        if ttl_ms is None:
            return values
        now_ms = int(self._ctx.now_s * 1000)
        timers = self._ctx.timers
        if timers.get(self._timer, time="processing") is None:
            timers.set((now_ms + ttl_ms) * 1000, self._timer, time="processing")
        return values, now_ms + ttl_ms

    def _await_next(self, expiries: list[int | None]) -> None:
        times = [at_ms for at_ms in expiries if at_ms is not None]
        if times:
            self._ctx.timers.set(min(times) * 1000, self._timer, time="processing")


class _ValueState(_Bound):
    def exists(self) -> bool:
        return self.get() is not None

    def get(self) -> Any:
        return self._living(self._store.get(self._ctx.key), self._now_ms())

    def update(self, newValue: Any) -> None:
        self._store.put(self._ctx.key, self._kept(newValue))

    def expire(self) -> None:
        if self.exists():
            self._await_next([self._split(self._store.get(self._ctx.key))[1]])
        else:
            self.clear()


class _ListState(_Bound):
    def exists(self) -> bool:
        return next(self.get(), None) is not None

    def get(self) -> Iterator[Any]:
        now_ms = self._now_ms()
        found = (self._living(kept, now_ms) for kept in self._store[self._ctx.key])
        return (values for values in found if values is not None)

    def put(self, newState: Any) -> None:
        self._store[self._ctx.key] = [self._kept(one) for one in newState]

    def appendValue(self, newState: Any) -> None:
        self._store[self._ctx.key].append(self._kept(newState))

    def appendList(self, newState: Any) -> None:
        self._store[self._ctx.key].extend([self._kept(one) for one in newState])

    def expire(self) -> None:
        now_ms, entries = self._now_ms(), self._store[self._ctx.key]
        left = [kept for kept in entries if lives(self._split(kept)[1], now_ms)]
        if len(left) < len(entries):
            self._store[self._ctx.key] = left
        self._await_next([self._split(kept)[1] for kept in left])


class _MapState(_Bound):
    def exists(self) -> bool:
        return next(self.iterator(), None) is not None

    def getValue(self, key: Any) -> Any:
        return self._living(self._entries.get(self._keys.values(key)), self._now_ms())

    def containsKey(self, key: Any) -> bool:
        return self.getValue(key) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        self._entries[self._keys.values(key)] = self._kept(value)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        now_ms, shown = self._now_ms(), self._keys.shown
        found = ((key, self._living(kept, now_ms)) for key, kept in self._entries.items())
        return ((shown(key), values) for key, values in found if values is not None)

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Any]:
        return (values for _, values in self.iterator())

    def removeKey(self, key: Any) -> None:
        self._entries.pop(self._keys.values(key), None)

    def expire(self) -> None:
        now_ms, entries = self._now_ms(), self._entries
        for key, kept in list(entries.items()):
            if not lives(self._split(kept)[1], now_ms):
                del entries[key]
        self._await_next([self._split(kept)[1] for kept in entries.values()])

    @property
    def _entries(self) -> Any:
        return self._store[self._ctx.key]

    @property
    def _keys(self) -> Fields:
        assert self._variable.keys is not None
        return self._variable.keys


EXPIRES = "expires "
"""Before the name of a variable: the timer that removes what has expired."""


def lives(at_ms: int | None, now_ms: int | None) -> bool:
    return at_ms is None or now_ms is None or now_ms < at_ms
