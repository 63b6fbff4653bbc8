"""What cannot be sent to the workers is named by the way that leads to it, before Spark starts."""

import functools
import threading
from typing import Any

import pytest

import everstream as es
from everstream.errors import GraphError
from everstream.runtime.sendable import check_sendable

LOCK = threading.Lock()


class Client:
    def __init__(self) -> None:
        self.session = {"held": threading.Lock()}

    def ask(self, record: Any) -> Any:
        return record


class Asks(es.Operator):
    def __init__(self) -> None:
        self.client = Client()

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.emit(record)


def uses_a_variable() -> Any:
    client = Client()
    return lambda n: client.ask(n)


def uses_a_global() -> Any:
    # As a function of a user's main program, which travels whole and not by its name.
    names: dict[str, Any] = {"LOCK": LOCK}
    exec("def guarded(n):\n    with LOCK:\n        return n\n", names)
    return names["guarded"]


def with_a_lock(n: int, lock: Any) -> int:
    return n


@pytest.mark.parametrize(
    ("function", "way"),
    [
        (
            uses_a_variable(),
            "the entry 'held' of attribute 'session' of variable 'client' in function '<lambda>' of "
            "attribute 'function' cannot be sent to the workers: a lock "
            "(TypeError: cannot pickle '_thread.lock' object)",
        ),
        (uses_a_global(), "global 'LOCK' in function 'guarded' of attribute 'function'"),
        (Client().ask, "the object whose method 'ask' is of attribute 'function'"),
        (functools.partial(with_a_lock, lock=LOCK), "argument 'lock' of attribute 'function'"),
    ],
)
def test_a_function_is_named_with_what_it_refers_to(function: Any, way: str) -> None:
    pipeline = es.Pipeline("unsendable")
    pipeline.source(es.Range(3)).map(function, name="ask").collect()
    with pytest.raises(GraphError) as refused:
        check_sendable(pipeline.graph)
    assert refused.value.operator == "ask" and way in str(refused.value)
    assert "on_start" in str(refused.value)


def test_an_operator_is_named_with_its_attribute_before_spark_starts() -> None:
    pipeline = es.Pipeline("unsendable-operator")
    pipeline.source(es.Range(3)).process(Asks(), name="asks").collect()
    with pytest.raises(GraphError, match=r"'asks': .*'session' of attribute 'client' cannot"):
        pipeline.run(engine="tasks", master="spark://nobody.invalid:1")


def test_a_key_function_is_named_with_the_operator_behind_it() -> None:
    pipeline = es.Pipeline("unsendable-key")
    keyed = pipeline.source(es.Range(3)).key_by(uses_a_variable())
    keyed.fold(init=int, update=lambda n, _: n + 1, name="count").collect()
    with pytest.raises(GraphError, match=r"'count': .*variable 'client'"):
        check_sendable(pipeline.graph)


def test_what_can_be_sent_is_let_through() -> None:
    pipeline = es.Pipeline("sendable")
    pipeline.source(es.FromList([1, 2])).map(lambda n: n + 1).collect()
    check_sendable(pipeline.graph)
