"""Instances in state: saved by the names of their fields, exact, readable without the class, migratable."""

import math
import pickle
import sys
import types
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pydantic
import pytest

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.state.freezing import dumps, freeze
from everstream.state.instances import SavedFields

HERE = sys.modules[__name__]


class Color(Enum):
    RED = "red"


@dataclass
class Flat:
    name: str
    n: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    n: Any


class Model(pydantic.BaseModel):
    name: str
    n: int = 3


class Row(msgspec.Struct):
    name: str
    n: Any


@dataclass
class Deep:
    color: Color
    flats: list[Flat] = field(default_factory=list)
    at: datetime | None = None
    price: Decimal = Decimal("1.50")


class OwnPickle:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return OwnPickle, (self.value + 1,)


@dataclass
class Hooked:
    value: int

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value + 1}


VALUES = [
    *(Flat("a", n) for n in (1, 1.0, True, None, -(2**63), 2**64 - 1, 2**70, "\ud800", b"\0", "")),
    Flat("a", (1, [2], {"x": {3}})),
    Flat("a", Color.RED),
    Slotted("a", 1.5),
    Slotted("a", [Flat("b", 2)]),
    Row("a", 1),
    Model(name="x"),
    Model(name="x", n=3),
    Deep(Color.RED, [Flat("a", 1)], datetime(2020, 1, 1, tzinfo=UTC)),
]


def shape(value: Any) -> Any:
    """The value with the types of everything in it."""
    if isinstance(value, list | tuple):
        return type(value), [*map(shape, value)]
    fields = getattr(value, "__dict__", None)
    inside = (
        {}
        if fields is None or isinstance(value, Enum)
        else {k: shape(v) for k, v in fields.items()}
    )
    return type(value), repr(value), inside


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_values_and_types_come_back_exactly(value: Any) -> None:
    (one,) = [pickle.loads(dumps(value))]
    assert one == value and shape(one) == shape(value)
    for entries in ({"k": value}, {"k": value, "l": value}):
        again = pickle.loads(pickle.dumps(freeze(entries, "x")))
        assert again == entries and shape([*again.values()]) == shape([*entries.values()])


def test_what_a_model_was_given_is_kept() -> None:
    given = pickle.loads(dumps(Model(name="x")))
    assert given.model_fields_set == {"name"} and given.model_dump(exclude_unset=True) == {
        "name": "x"
    }


def test_nan_cycles_and_shared_values_survive() -> None:
    assert math.isnan(pickle.loads(dumps(Flat("a", math.nan))).n)
    loop = Flat("a", None)
    loop.n = [loop]
    again = pickle.loads(dumps(loop))
    assert again.n[0] is again
    shared = [1]
    first, second = pickle.loads(dumps([Flat("a", shared), Flat("b", shared)]))
    assert first.n is second.n


def test_instances_with_more_than_their_fields_or_own_pickling_are_pickled_as_before() -> None:
    more = Flat("a", 1)
    more.extra = 5  # type: ignore[attr-defined]
    assert pickle.loads(dumps(more)).extra == 5
    frozen = pickle.loads(pickle.dumps(freeze({1: more, 2: Flat("b", 2)}, "x")))
    assert frozen[1].extra == 5
    assert pickle.loads(dumps(OwnPickle(1))).value == 2
    assert pickle.loads(dumps(Hooked(1))).value == 2


def test_a_large_state_is_packed_in_one_piece_without_the_name_per_value() -> None:
    entries = {n: Flat(str(n), n) for n in range(1000)}
    data = pickle.dumps(freeze(entries, "x"))
    assert data.count(b"Flat") == 1 and b"instances_of" in data
    assert pickle.loads(data) == entries


def gone(monkeypatch: pytest.MonkeyPatch, name: str, kind: type | None) -> None:
    """The class has another definition, or none, in the next version of the program."""
    from everstream.state import instances

    monkeypatch.setattr(instances, "_known", {})
    if kind is None:
        monkeypatch.delattr(HERE, name)
    else:
        kind.__module__, kind.__qualname__, kind.__name__ = __name__, name, name
        monkeypatch.setattr(HERE, name, kind)


@pytest.mark.parametrize(
    "entries", [{"k": Flat("ada", 3)}, {"k": Flat("ada", 3), "l": Flat("b", 4)}]
)
def test_state_can_be_read_without_its_class(
    monkeypatch: pytest.MonkeyPatch, entries: dict[str, Flat]
) -> None:
    data = pickle.dumps(freeze(entries, "x"))
    gone(monkeypatch, "Flat", None)
    value = pickle.loads(data)["k"]
    assert isinstance(value, SavedFields)
    assert repr(value) == "Flat(name='ada', n=3)" and dict(value) == {"name": "ada", "n": 3}
    with pytest.raises(UserError, match=r"with the fields name, n.*migrate="):
        _ = value.name
    monkeypatch.undo()
    assert pickle.loads(dumps(value)) == entries["k"], "saved again, it is still the same value"


@pytest.mark.parametrize(
    "entries", [{"k": Flat("ada", 3)}, {"k": Flat("ada", 3), "l": Flat("b", 4)}]
)
def test_a_new_field_begins_with_its_default(
    monkeypatch: pytest.MonkeyPatch, entries: dict[str, Flat]
) -> None:
    @dataclass
    class Later:
        name: str
        n: int
        seen: list[int] = field(default_factory=list)

    data = pickle.dumps(freeze(entries, "x"))
    gone(monkeypatch, "Flat", Later)
    first, *others = pickle.loads(data).values()
    assert first == Later("ada", 3, [])
    assert all(other.seen is not first.seen for other in others)


@dataclass
class Account:
    cents: int = 0
    orders: int = 0


class Counting(es.Operator):
    account = es.Keyed(init=Account)

    def process(self, record: tuple[str, int], ctx: es.Context) -> None:
        one = self.account[ctx.key]
        one.cents += record[1]
        one.orders += 1
        ctx.emit((ctx.key, one.cents, one.orders))


def accounts(operator: es.Operator) -> es.Pipeline:
    rows = es.Pipeline("accounts").source(es.FromList([]), name="orders")
    keyed = rows.key_by(lambda order: order[0])
    return keyed.process(operator, name="accounts", shards=2).sink(es.Collect(), name="out")


@dataclass
class WithLast:
    cents: int = 0
    orders: int = 0
    last: int | None = None


@dataclass
class OnlyCents:
    cents: int = 0


def test_an_upgrade_adds_a_field_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.harness(accounts(Counting())) as h:
        h.push("orders", [("ada", 3), ("bob", 1)])
        h.checkpoint()
        gone(monkeypatch, "Account", WithLast)

        class Later(Counting):
            account = es.Keyed(init=WithLast)

        Later.__name__ = "Counting"
        h.restart(accounts(Later()))
        h.push("orders", [("ada", 4)])
        assert h.uncommitted("out") == [("ada", 7, 2)]
        assert h.state("accounts")["ada"].last is None
        h.checkpoint()
        h.restart()
        assert h.state("accounts")["ada"] == WithLast(7, 2, None)


def test_an_upgrade_that_removes_a_field_needs_a_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    with testing.harness(accounts(Counting())) as h:
        h.push("orders", [("ada", 3)])
        h.checkpoint()
        gone(monkeypatch, "Account", OnlyCents)

        class Later(es.Operator):
            account = es.Keyed(init=OnlyCents)

            def process(self, record: tuple[str, int], ctx: es.Context) -> None:
                self.account[ctx.key].cents += record[1]
                ctx.emit((ctx.key, self.account[ctx.key].cents))

        Later.__name__ = "Counting"
        with pytest.raises(UserError, match="'accounts'"):
            h.restart(accounts(Later()))

        class Migrating(Later):
            account = es.Keyed(
                init=OnlyCents,
                version=2,
                migrate=lambda had, version: OnlyCents(had["cents"] * 100),
            )

        Migrating.__name__ = "Counting"
        h.restart(accounts(Migrating()))
        h.push("orders", [("ada", 4)])
        assert h.uncommitted("out") == [("ada", 304)]


def test_a_class_of_a_script_is_still_saved_by_value() -> None:
    script = types.ModuleType("__main__")
    made = dataclass(type("Local", (), {"__annotations__": {"n": int}, "__module__": "__main__"}))
    assert script and pickle.loads(dumps(made(3))).n == 3
