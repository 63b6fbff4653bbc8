"""Errors move between processes: each one arrives with all that it knew."""

import inspect
import pickle
import traceback
from typing import Any

import polars as pl
import pytest

from everstream import errors
from everstream.errors import (
    EnvironmentFault,
    EverstreamError,
    GraphError,
    InternalError,
    OperatorError,
    RefusedRecords,
    RunFailed,
    ShareRefused,
    StoreError,
    UserError,
)
from everstream.runtime.explaining import explained
from everstream.runtime.payload import BatchPayload

STORY = ["took checkpoint 1", "running -> failed"]

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, EverstreamError)
]


def made(kind: type[EverstreamError]) -> EverstreamError:
    error: EverstreamError
    if kind is GraphError:
        error = GraphError("count", "has no key", "Put .key_by(...) before it.")
    elif kind is OperatorError:
        error = OperatorError("count", 2, "{'a': 1}", "Traceback\n  line\nKeyError: 'b'\n")
    elif kind is RefusedRecords:
        error = RefusedRecords({3: "column 'a': True is not an exact Int64", 7: "another"})
    elif kind is ShareRefused:
        error = ShareRefused("count", 1, 2, "its keys cannot be spread")
    elif kind is RunFailed:
        error = RunFailed("too many failures", StoreError("no room", story=["inner"]))
    else:
        error = kind("what to do")
    error.story = tuple(STORY)
    return error


def facts(error: EverstreamError) -> dict[str, Any]:
    return {
        name: facts(value) if isinstance(value, EverstreamError) else value
        for name, value in vars(error).items()
    }


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling_with_its_fields_and_story(
    kind: type[EverstreamError], protocol: int
) -> None:
    error = made(kind)
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is kind
    assert facts(back) == facts(error) and back.args == error.args
    assert str(back) == str(error) and back.story == tuple(STORY)


def test_an_error_says_what_the_shard_did_last_only_if_it_knows() -> None:
    assert str(InternalError("broken")) == "broken"
    assert str(InternalError("broken", story=["a", "b"])) == (
        "broken\n  what the shard did last:\n    a\n    b"
    )


def test_the_three_families_tell_where_to_look() -> None:
    assert issubclass(GraphError, UserError) and issubclass(OperatorError, UserError)
    assert issubclass(StoreError, EnvironmentFault)
    families = (UserError, EnvironmentFault, InternalError)
    for kind in CLASSES:
        if kind not in (EverstreamError, RunFailed):
            assert sum(issubclass(kind, family) for family in families) == 1, kind


def test_an_operator_error_leads_with_what_was_raised() -> None:
    error = made(OperatorError)
    first, second = error.message.splitlines()[:2]
    assert first == "operator 'count' (shard 2) failed: KeyError: 'b'"
    assert second == "  record: {'a': 1}"
    assert "unknown error" in OperatorError("a", 0, "None", "").message


def test_a_graph_error_names_the_operator_and_the_fix() -> None:
    assert str(GraphError("count", "has no key", "Put .key_by(...) before it.")) == (
        "operator 'count': has no key. Put .key_by(...) before it."
    )


def test_an_operator_error_leads_with_the_column_that_a_typo_names() -> None:
    try:
        pl.DataFrame({"price": [1]}).filter(pl.col("pirce") > 1)
    except pl.exceptions.ColumnNotFoundError:
        told = traceback.format_exc()
    first = OperatorError("dear", 0, "None", told).message.splitlines()[0]
    assert "ColumnNotFoundError" in first and "pirce" in first


def test_of_errors_that_follow_each_other_the_last_one_leads() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second\n  with a line more") from error
    except ValueError:
        told = traceback.format_exc()
    first = OperatorError("dear", 0, "None", told).message.splitlines()[0]
    assert first.endswith("ValueError: second")


def test_lines_of_a_user_are_shown_whatever_their_folders_are_called() -> None:
    theirs = "/home/me/everstream/core/app.py"
    function: dict[str, Any] = {}
    exec(compile("def fail():\n    raise KeyError('k')", theirs, "exec"), function)
    try:
        BatchPayload.__new__(BatchPayload).batch  # noqa: B018
    except AttributeError as error:
        ours = str(explained(error, "op", 0, None))
    with pytest.raises(KeyError) as raised:
        function["fail"]()
    assert theirs in str(explained(raised.value, "op", 0, None))
    assert "runtime/payload.py" not in ours
