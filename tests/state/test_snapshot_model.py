"""Random histories of a shard's state against plain dicts.

Whatever is put, deleted, changed in place (also by somebody who held on to a value), captured,
uploaded in any order or lost: each durable chain restores exactly the dicts of its instant.
"""

import copy
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everstream.state import Capture, ObjectRef, ShardState
from everstream.state.snapshot import CHAIN_LIMIT

STORES = ("first", "second")
Model = dict[str, dict[Any, Any]]

stores = st.sampled_from(STORES)
keys = st.one_of(st.integers(0, 5), st.tuples(st.integers(0, 1), st.sampled_from("ab")))
atoms = st.one_of(st.integers(-3, 3), st.text(max_size=2), st.none(), st.floats(0, 1))
values = st.one_of(
    atoms,
    st.lists(atoms, max_size=2),
    st.tuples(atoms, atoms),
    st.builds(lambda inner: {"deep": inner}, st.lists(atoms, max_size=2)),
    st.builds(lambda inner: (0, inner), st.lists(atoms, max_size=2)),
)
picks = st.integers(0, 1_000)


@dataclass
class Upload:
    capture: Capture
    expected: Model
    data: bytes | None = None


def inner_list(value: Any) -> list[Any] | None:
    """The part of a value that can be changed in place."""
    match value:
        case list():
            return value
        case {"deep": list(deep)}:
            return deep
        case (0, list(deep)):
            return deep
    return None


class ShardStateMachine(RuleBasedStateMachine):
    @initialize(ballast=st.booleans())
    def start(self, ballast: bool) -> None:
        self.state = ShardState()
        self.real = {name: self.state.keystore("op", name) for name in STORES}
        # The model never shares an object with the store: that would count as holding it.
        self.model: Model = {name: {} for name in STORES}
        self.held: list[tuple[Any, Any]] = []
        self.uploads: list[Upload] = []
        self.durable: list[tuple[tuple[ObjectRef, ...], Model]] = []
        self.objects: dict[ObjectRef, bytes] = {}
        self.extra = 0
        if ballast:
            self.state.keystore("op", "ballast").put("x", "y" * 2_000)

    @rule(store=stores, key=keys, value=values)
    def put(self, store: str, key: Any, value: Any) -> None:
        self.real[store].put(key, copy.deepcopy(value))
        self.model[store][key] = copy.deepcopy(value)

    @rule(store=stores, key=keys)
    def delete(self, store: str, key: Any) -> None:
        self.real[store].delete(key)
        self.model[store].pop(key, None)

    @rule(store=stores)
    def clear(self, store: str) -> None:
        self.real[store].clear()
        self.model[store].clear()

    @rule(store=stores, key=keys, item=atoms, how=st.sampled_from(["get", "item", "items"]))
    def change_in_place(self, store: str, key: Any, item: Any, how: str) -> None:
        if key in self.model[store]:
            real = self.real[store]
            value = {
                "get": lambda: real.get(key),
                "item": lambda: real[key],
                "items": lambda: dict(real.items())[key],
            }[how]()
            self._append(value, self.model[store][key], item)

    @rule(store=stores, key=keys, item=atoms)
    def change_through_entries(self, store: str, key: Any, item: Any) -> None:
        entries = self.real[store].entries
        if key in entries and inner_list(entries[key]) is not None:
            self._append(entries[key], self.model[store][key], item)
        else:
            entries[key] = item
            self.model[store][key] = item
        self.real[store].touch([key])

    @rule(store=stores, key=keys)
    def delete_through_entries(self, store: str, key: Any) -> None:
        self.real[store].entries.pop(key, None)
        self.real[store].touch([key])
        self.model[store].pop(key, None)

    @rule(store=stores, key=keys)
    def hold_on_to(self, store: str, key: Any) -> None:
        if key in self.model[store]:
            self.held.append((self.real[store].get(key), self.model[store][key]))

    @precondition(lambda self: self.held)
    @rule(pick=picks, item=atoms)
    def change_what_is_held(self, pick: int, item: Any) -> None:
        self._append(*self.held[pick % len(self.held)], item)

    @precondition(lambda self: self.held)
    @rule(pick=picks, store=stores, key=keys)
    def put_what_is_held_under_another_key(self, pick: int, store: str, key: Any) -> None:
        real, model = self.held[pick % len(self.held)]
        self.real[store].put(key, real)
        self.model[store][key] = model

    @rule()
    def let_go(self) -> None:
        self.held.clear()

    @rule()
    def capture(self) -> None:
        self.extra += 1
        capture = self.state.capture({"offset": self.extra})
        expected = copy.deepcopy(self.model)
        expected["extras"] = {"offset": self.extra}
        self.uploads.append(Upload(capture, expected))

    @precondition(lambda self: self.uploads)
    @rule(pick=picks)
    def encode(self, pick: int) -> None:
        self._encoded(self.uploads[pick % len(self.uploads)])

    @precondition(lambda self: self.uploads)
    @rule(pick=picks)
    def upload_is_durable(self, pick: int) -> None:
        upload = self.uploads.pop(pick % len(self.uploads))
        data = self._encoded(upload)
        ref = ObjectRef.of(f"object-{len(self.objects)}", data)
        self.objects[ref] = data
        chain = self.state.mark_durable(upload.capture, ref)
        assert chain[-1] == ref and len(chain) <= CHAIN_LIMIT
        self.durable.append((chain, upload.expected))
        self._restores_as(ShardState(), chain, upload.expected)

    @precondition(lambda self: self.uploads)
    @rule(pick=picks)
    def upload_fails(self, pick: int) -> None:
        self.state.mark_failed(self.uploads.pop(pick % len(self.uploads)).capture)

    @precondition(lambda self: self.durable)
    @rule(pick=picks)
    def roll_back(self, pick: int) -> None:
        chain, expected = self.durable[pick % len(self.durable)]
        self._restores_as(self.state, chain, expected)
        # Copied from the store, so that keys that share one value do so in the model.
        self.model = {name: copy.deepcopy(self.real[name].entries) for name in STORES}

    @rule()
    def reset(self) -> None:
        self.state.reset()
        self.model = {name: {} for name in STORES}

    @invariant()
    def the_live_state_is_the_model(self) -> None:
        for name in STORES if hasattr(self, "model") else ():
            assert list(self.real[name].entries.items()) == list(self.model[name].items())

    def _append(self, real: Any, model: Any, item: Any) -> None:
        changeable = inner_list(real)
        if changeable is not None:
            mirror = inner_list(model)
            assert mirror is not None
            changeable.append(item)
            mirror.append(item)

    def _encoded(self, upload: Upload) -> bytes:
        if upload.data is None:
            upload.data = upload.capture.encode()
        return upload.data

    def _restores_as(
        self, state: ShardState, chain: tuple[ObjectRef, ...], expected: Model
    ) -> None:
        extras = state.restore([self.objects[ref] for ref in chain], chain)
        assert extras == expected["extras"]
        for name in STORES:
            assert state.keystore("op", name).entries == expected[name]


TestShardState = ShardStateMachine.TestCase
TestShardState.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
