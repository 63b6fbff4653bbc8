"""The key store behaves like a dict."""

import doctest

import pytest

from everstream.state import KeyStore, keystore


def test_put_get_contains_delete_work_as_on_a_dict() -> None:
    store: KeyStore[str, int] = KeyStore()
    store.put("a", 1)
    store["b"] = 2
    assert (store.get("a"), store["b"], store.get("c"), store.get("c", 7)) == (1, 2, None, 7)
    assert store.contains("a") and "b" in store and not store.contains("c")
    store.delete("a")
    store.delete("a")
    assert store.items() == [("b", 2)] and store.keys() == ["b"] and len(store) == 1
    store.clear()
    assert len(store) == 0 and list(store) == []


def test_a_missing_key_raises_key_error_without_init() -> None:
    store: KeyStore[str, int] = KeyStore()
    with pytest.raises(KeyError):
        store["a"]
    with pytest.raises(KeyError):
        del store["a"]


def test_init_gives_unseen_keys_their_first_value_and_keeps_it() -> None:
    store: KeyStore[str, list[int]] = KeyStore(init=list)
    assert store.get("a") is None and "a" not in store
    store["a"].append(1)
    store["a"].append(2)
    assert store.items() == [("a", [1, 2])]


def test_iterating_ends_even_when_unseen_keys_are_made_up() -> None:
    store: KeyStore[int, int] = KeyStore(init=int)
    store[5] = 1
    assert list(store) == [5]


def test_the_store_can_be_changed_while_looping_over_its_items() -> None:
    store: KeyStore[int, int] = KeyStore()
    for key in range(10):
        store[key] = key
    for key, value in store.items():
        if value % 2:
            store.delete(key)
    assert store.keys() == [0, 2, 4, 6, 8]


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(keystore).failed == 0
