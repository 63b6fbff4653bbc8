"""Histories of a shard's state against plain dicts, for tests that draw them at random."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from everstream.pipeline.keyed_state.backend_choice import key_group
from everstream.state import CapturedState, ObjectRef, ShardState
from everstream.state.backends.disk import DiskSpace
from everstream.state.backends.protocol import StateBackend
from everstream.state.snapshot import CHAIN_LIMIT

_numbers = count()
STORES = ("first", "second")
KEYS = (1, "two", (3, "three"))
Model = dict[str, dict[Any, Any]]
Chain = tuple[ObjectRef, ...]


@dataclass
class Upload:
    capture: CapturedState
    expected: Model
    data: bytes | None = None

    def encoded(self) -> bytes:
        if self.data is None:
            self.data = self.capture.encode()
        return self.data


def a_value(chance: Random) -> Any:
    number = chance.randrange(10)
    return chance.choice(
        [number, str(number), (number, None), [number], {"deep": [number]}, (0, [number])]
    )


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


def append(real: Any, model: Any, item: int) -> None:
    changeable, mirror = inner_list(real), inner_list(model)
    if changeable is not None and mirror is not None:
        changeable.append(item)
        mirror.append(item)


class History:
    """One shard's state and its model. Each method is something that can happen."""

    def __init__(self, *, in_slices: bool = False, on_disk: Path | None = None) -> None:
        """on_disk: the folder in which all stores but the ballast are kept."""
        self.in_slices = in_slices or on_disk is not None
        self.on_disk = on_disk
        self.state = self._new_state()
        self.real: dict[str, StateBackend[Any, Any]] = {
            name: self.state.keystore("op", name) for name in STORES
        }
        # The model never shares an object with the store: that would count as holding it.
        self.model: Model = {name: {} for name in STORES}
        self.held: list[tuple[Any, Any]] = []
        self.uploads: list[Upload] = []
        self.durable: list[tuple[Chain, Model]] = []
        self.objects: dict[ObjectRef, bytes] = {}
        self.captures = 0
        # Next to something big, many small deltas are worth their while.
        self.state.keystore("op", "ballast").put("x", "y" * 5_000)

    def put(self, chance: Random) -> None:
        store, key, value = chance.choice(STORES), chance.choice(KEYS), a_value(chance)
        self.real[store].put(key, value)
        self.model[store][key] = copy.deepcopy(value)

    def delete(self, chance: Random) -> None:
        store, key = chance.choice(STORES), chance.choice(KEYS)
        self.real[store].delete(key)
        self.model[store].pop(key, None)

    def take_out(self, chance: Random) -> None:
        store, keys = chance.choice(STORES), chance.sample(KEYS, chance.randint(1, len(KEYS)))
        expected = [self.model[store].pop(key, None) for key in keys]
        assert self.real[store].take_out(keys) == expected

    def clear(self, chance: Random) -> None:
        store = chance.choice(STORES)
        self.real[store].clear()
        self.model[store].clear()

    def change_in_place(self, chance: Random) -> None:
        store, key = chance.choice(STORES), chance.choice(KEYS)
        if key in self.model[store]:
            real = self.real[store]
            reads = [lambda: real.get(key), lambda: real[key], lambda: dict(real.items())[key]]
            append(chance.choice(reads)(), self.model[store][key], chance.randrange(10))

    def change_through_entries(self, chance: Random) -> None:
        store, key, item = chance.choice(STORES), chance.choice(KEYS), chance.randrange(10)
        real = self.real[store]
        entries = real.changing([key]) if self.in_slices else real.entries
        if key in entries and inner_list(entries[key]) is not None:
            append(entries[key], self.model[store][key], item)
        else:
            entries[key] = self.model[store][key] = item
        if not self.in_slices:
            real.touch([key])

    def delete_through_entries(self, chance: Random) -> None:
        store, key = chance.choice(STORES), chance.choice(KEYS)
        real = self.real[store]
        if self.in_slices:
            real.changing([key]).pop(key, None)
        else:
            real.entries.pop(key, None)
            real.touch([key])
        self.model[store].pop(key, None)

    def hold_on_to(self, chance: Random) -> None:
        store, key = chance.choice(STORES), chance.choice(KEYS)
        if key in self.model[store]:
            self.held.append((self.real[store].get(key), self.model[store][key]))

    def change_what_is_held(self, chance: Random) -> None:
        if self.held:
            append(*chance.choice(self.held), chance.randrange(10))

    def put_what_is_held_under_another_key(self, chance: Random) -> None:
        if self.held:
            store, key = chance.choice(STORES), chance.choice(KEYS)
            real, model = chance.choice(self.held)
            self.real[store].put(key, real)
            self.model[store][key] = model

    def let_go(self, chance: Random) -> None:
        self.held.clear()

    def capture(self, chance: Random) -> None:
        self.captures += 1
        capture = self.state.capture({"offset": self.captures}, in_slices=self.in_slices)
        expected = copy.deepcopy(self.model)
        expected["extras"] = {"offset": self.captures}
        self.uploads.append(Upload(capture, expected))

    def encode(self, chance: Random) -> None:
        if self.uploads:
            self._encoded(chance.choice(self.uploads))

    def save_slice(self, chance: Random) -> None:
        self.state.save_slice(lambda: 0.0)

    def upload_is_durable(self, chance: Random) -> None:
        if self.uploads:
            self._arrive(self.uploads.pop(chance.randrange(len(self.uploads))))

    def upload_fails(self, chance: Random) -> None:
        if self.uploads:
            upload = self.uploads.pop(chance.randrange(len(self.uploads)))
            self.state.mark_failed(upload.capture)

    def checkpoint_at_once(self, chance: Random) -> None:
        self.capture(chance)
        self._arrive(self.uploads.pop())

    def roll_back(self, chance: Random) -> None:
        if self.durable:
            chain, expected = chance.choice(self.durable)
            self._restores_as(self.state, chain, expected)
            self._give_up_slices()
            # Copied from the store, so that keys that share one value do so in the model.
            self.model = {name: copy.deepcopy(dict(self.real[name].pairs())) for name in STORES}

    def reset(self, chance: Random) -> None:
        self.state.reset()
        self._give_up_slices()
        self.model = {name: {} for name in STORES}
        self.state.keystore("op", "ballast").put("x", "y" * 5_000)

    def check(self) -> None:
        for name in STORES:
            actual, wanted = dict(self.real[name].pairs()), self.model[name]
            assert actual == wanted and len(self.real[name]) == len(wanted)
            assert self.on_disk or list(actual) == list(wanted)

    def _arrive(self, upload: Upload) -> None:
        data = self._encoded(upload)
        ref = ObjectRef.of(f"object-{len(self.objects)}", data)
        self.objects[ref] = data
        chain = self.state.mark_durable(upload.capture, ref)
        assert chain[-1] == ref and len(chain) <= CHAIN_LIMIT
        self.durable.append((chain, upload.expected))
        self._restores_as(ShardState(), chain, upload.expected)
        if self.on_disk:
            again = self._new_state()
            self._restores_as(again, chain, upload.expected)
            again.close()

    def _new_state(self) -> ShardState:
        if self.on_disk is None:
            return ShardState()
        folder = str(self.on_disk / str(next(_numbers)))
        return ShardState(DiskSpace(folder, key_group, lambda operator, name: name in STORES))

    def _give_up_slices(self) -> None:
        """What was not saved when the state went back never will be."""
        self.uploads = [
            upload
            for upload in self.uploads
            if upload.capture.whole and (upload.data is not None or not upload.capture.frozen)
        ]

    def _put(self, name: str, data: bytes) -> ObjectRef:
        ref = ObjectRef.of(name, data)
        assert ref not in self.objects, "nothing is saved twice"
        self.objects[ref] = data
        return ref

    def _load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        return [self.objects[ref] for ref in refs]

    def _encoded(self, upload: Upload) -> bytes:
        while not upload.capture.whole:
            self.state.save_slice(lambda: 0.0)
        if upload.data is None:
            upload.capture.save_files(self._put, f"files-{next(_numbers)}")
        return upload.encoded()

    def _restores_as(self, state: ShardState, chain: Chain, expected: Model) -> None:
        extras = state.restore(self._load(chain), chain, self._load)
        assert extras == expected["extras"]
        for name in STORES:
            assert dict(state.keystore("op", name).pairs()) == expected[name]


HOW_OFTEN = {
    History.put: 6,
    History.delete: 3,
    History.take_out: 1,
    History.change_in_place: 6,
    History.change_through_entries: 2,
    History.delete_through_entries: 1,
    History.hold_on_to: 2,
    History.change_what_is_held: 3,
    History.put_what_is_held_under_another_key: 2,
    History.let_go: 1,
    History.capture: 5,
    History.encode: 2,
    History.save_slice: 4,
    History.upload_is_durable: 4,
    History.upload_fails: 1,
    History.checkpoint_at_once: 2,
    History.roll_back: 1,
    History.clear: 1,
    History.reset: 0.2,
}
Step = Callable[[History, Random], None]
STEPS: list[Step] = [step for step, often in HOW_OFTEN.items() for _ in range(round(often * 5))]


def goes_wrong(seeds: range) -> bool:
    """Whether a history in slices, of one of these seeds, is not what it should be."""
    for seed in seeds:
        chance, history = Random(seed), History(in_slices=True)
        try:
            for _ in range(80):
                chance.choice(STEPS)(history, chance)
                history.check()
        except (AssertionError, RuntimeError, KeyError):
            return True
    return False
