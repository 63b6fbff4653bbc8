"""Maps and lists per key: they behave like dicts and lists, and a change saves what has changed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.keyed_state.collections import ListState, MapState
from everstream.state.backends.memory import MemoryBackend
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState

KEYS = st.integers(0, 4)
MAP_CHANGES = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers()),
    st.tuples(st.just("pop"), KEYS, st.none()),
    st.tuples(st.just("clear"), st.none(), st.none()),
    st.tuples(st.just("get"), KEYS, st.none()),
)


@given(st.lists(MAP_CHANGES))
def test_a_map_is_like_a_dict(changes: list[tuple[str, Any, Any]]) -> None:
    state: MapState[int, int] = MapState(MemoryBackend(), MemoryBackend())
    one, plain = state["ada"], dict[int, int]()
    for verb, key, value in changes:
        match verb:
            case "set":
                one[key] = plain[key] = value
            case "pop":
                assert one.pop(key, None) == plain.pop(key, None)
            case "clear":
                one.clear()
                plain.clear()
            case _:
                assert one.get(key, "none") == plain.get(key, "none") and (key in one) == (
                    key in plain
                )
        assert dict(one) == plain and len(one) == len(plain) and ("ada" in state) == bool(plain)
    assert dict(state.pairs()) == ({"ada": plain} if plain else {})


LIST_CHANGES = st.tuples(
    st.sampled_from(["append", "insert", "delete", "pop", "set", "cut", "clear"]),
    st.integers(-5, 5),
    st.integers(),
)


@given(st.lists(LIST_CHANGES))
def test_a_list_is_like_a_list(changes: list[tuple[str, int, int]]) -> None:
    state: ListState[int] = ListState(MemoryBackend(), MemoryBackend())
    one, plain = state["ada"], list[int]()
    for verb, at, value in changes:
        outcomes = []
        for items in (one, plain):
            try:
                match verb:
                    case "append":
                        items.append(value)
                    case "insert":
                        items.insert(at, value)
                    case "delete":
                        del items[at]
                    case "pop":
                        outcomes.append(items.pop())
                    case "set":
                        items[at] = value
                    case "cut":
                        del items[at:]
                    case _:
                        items.clear()
            except IndexError:
                outcomes.append("no such item")
        assert outcomes[:1] == outcomes[1:]
        assert list(one) == plain == one and one[1:3] == plain[1:3] and len(one) == len(plain)
    assert dict(state.pairs()) == ({"ada": plain} if plain else {})


class Pages(es.Operator):
    pages = es.KeyedMap[str, int](init=int)
    path = es.KeyedList[str]()

    def process(self, visit: tuple[str, str], ctx: es.Context) -> None:
        self.pages[ctx.key][visit[1]] += 1
        self.path[ctx.key].append(visit[1])
        ctx.emit((ctx.key, dict(self.pages[ctx.key]), list(self.path[ctx.key])))


def pipeline(
    operator: es.Operator | None = None, shards: int = 1, state: Any = None
) -> es.Pipeline:
    made = es.Pipeline("pages")
    visits = made.source(es.FromList([]), name="visits").key_by(lambda visit: visit[0])
    kept = visits.process(operator or Pages(), name="pages", shards=shards, state=state)
    kept.sink(es.Collect(), name="out", shards=1)
    return made


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_collections_survive_a_crash_and_follow_their_keys(state: Any) -> None:
    users = [f"user {n}" for n in range(12)]
    with testing.harness(pipeline(state=state)) as h:
        h.push("visits", [(user, page) for user in users for page in ("/", "/a", "/")])
        h.checkpoint()
        h.push("visits", [(users[0], "/b")])
        h.crash("pages:0")
        h.checkpoint()
        h.restart(pipeline(shards=3, state=state))
        h.push("visits", [(user, "/c") for user in users])
        for user, counts, path in h.uncommitted("out"):
            more = ["/b"] if user == users[0] else []
            assert path == ["/", "/a", "/", *more, "/c"]
            assert counts == {"/": 2, "/a": 1, **dict.fromkeys([*more, "/c"], 1)}
        assert h.state("pages", "path")[users[1]] == ["/", "/a", "/", "/c"]


@pytest.mark.parametrize("kind", ["map", "list"])
def test_one_change_of_a_large_collection_makes_a_small_snapshot(kind: str) -> None:
    def first_and_second(make: Any, change: Any) -> tuple[int, int]:
        state = ShardState()
        collection = make(state)
        for number in range(20_000):
            change(collection, number)
        sizes = []
        for number in (20_000, 20_001):
            capture = state.capture({})
            data = b"".join(capture.encode_in_pieces())
            state.mark_durable(capture, ObjectRef.of(f"{number}", data))
            sizes.append(len(data))
            change(collection, number)
        return sizes[0], sizes[1]

    def store(name: str) -> Any:
        return lambda state: state.keystore("op", name)

    if kind == "map":

        def make(state: ShardState) -> Any:
            return MapState(store("m")(state), store("m.index")(state))["ada"]

        def change(one: Any, number: int) -> None:
            one[f"page {number}"] = number
    else:

        def make(state: ShardState) -> Any:
            return ListState(store("l")(state), store("l.index")(state))["ada"]

        def change(one: Any, number: int) -> None:
            one.append(f"page {number}")

    full, delta = first_and_second(make, change)
    assert full > 200_000 and delta < 2_000

    def plain(state: ShardState) -> Any:
        return state.keystore("op", "plain", list)

    def append(one: Any, number: int) -> None:
        one["ada"].append(f"page {number}")

    assert first_and_second(plain, append)[1] > 200_000, "as one value, it is saved as a whole"


def test_collections_are_migrated_and_their_kind_cannot_change() -> None:
    class Version2(es.Operator):
        pages = es.KeyedMap[str, Any](version=2, migrate=lambda value, version: [value])
        path = es.KeyedList[Any](version=2, migrate=lambda value, version: (value,))

        def process(self, visit: tuple[str, str], ctx: es.Context) -> None:
            ctx.emit((dict(self.pages[ctx.key]), list(self.path[ctx.key])))

    class Plain(es.Operator):
        pages = es.Keyed[dict[str, int]](init=dict)
        path = es.Keyed[list[str]](init=list)

        def process(self, visit: Any, ctx: es.Context) -> None:
            """Never comes so far."""

    Version2.__name__ = Plain.__name__ = "Pages"
    with testing.harness(pipeline()) as h:
        h.push("visits", [("ada", "/"), ("ada", "/a")])
        h.checkpoint()
        with pytest.raises(UserError, match="pages"):
            h.restart(pipeline(Plain()))
        h.restart(pipeline(Version2()))
        h.push("visits", [("ada", "/")])
        assert h.uncommitted("out")[-1] == ({"/": [1], "/a": [1]}, [("/",), ("/a",)])


def test_a_whole_collection_can_be_assigned_and_deleted(tmp_path: Path) -> None:
    maps: MapState[int, int] = MapState(MemoryBackend(), MemoryBackend())
    maps["ada"] = {1: 2, 3: 4}
    maps["ada"] = maps["ada"]
    assert maps["ada"] == {1: 2, 3: 4} and list(maps) == ["ada"] and len(maps) == 1
    del maps["ada"]
    assert "ada" not in maps and not maps["ada"]
    with pytest.raises(KeyError):
        del maps["ada"]
    with pytest.raises(KeyError):
        maps["ada"][1]
    lists: ListState[int] = ListState(MemoryBackend(), MemoryBackend())
    lists["ada"] = [1, 2]
    lists["ada"] = lists["ada"]
    assert list(lists["ada"]) == [1, 2] and lists.keys() == ["ada"]
    with pytest.raises(UserError, match="slice"):
        lists["ada"][0:1] = [3]
    del lists["ada"]
    assert len(lists) == 0
