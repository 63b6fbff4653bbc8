"""Names that have a better one work on for a release, find their state, and say what to write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.pipeline import builtin
from everstream.pipeline.running import RunningRecords


def keyed() -> Any:
    return es.Pipeline("test").source(es.FromList([{"k": 1}]), name="rows").key_by("k")


def graph_of(build: Callable[[Any], Any]) -> dict[str, type]:
    """Operator -> what it is, of the old names with the warnings they give."""
    stream = keyed()
    build(stream)
    return {node.name: type(node.what) for node in stream.pipeline.graph.nodes.values()}


@pytest.mark.parametrize(
    "build",
    [
        lambda keyed: keyed.aggregate(init=int, update=max),
        lambda keyed: keyed.aggregate(int, max),
        lambda keyed: keyed.aggregate(int, update=max, shards=2, on_error="skip"),
    ],
)
def test_a_fold_under_its_old_name_keeps_its_default_name(build: Callable[[Any], Any]) -> None:
    with pytest.warns(es.EverstreamDeprecationWarning, match=r"is called fold\(init, update\) now"):
        graph = graph_of(build)
    assert graph["aggregate"] is builtin.Fold


def test_the_warning_says_how_to_keep_the_state() -> None:
    with pytest.warns(es.EverstreamDeprecationWarning, match='say name="aggregate"'):
        old = graph_of(lambda keyed: keyed.aggregate(int, max))
    assert graph_of(lambda keyed: keyed.fold(int, max, name="aggregate")) == old
    assert graph_of(lambda keyed: keyed.fold(int, max))["fold"] is builtin.Fold


@pytest.mark.parametrize("emit", ["changes", "record"])
def test_aggregates_under_either_name_are_called_the_same(emit: str) -> None:
    with pytest.warns(es.EverstreamDeprecationWarning, match=r"called aggregate\(\.\.\.\) now"):
        old = graph_of(lambda keyed: keyed.aggregates(n=es.count(), emit=emit))
    assert graph_of(lambda keyed: keyed.aggregate(n=es.count(), emit=emit)) == old
    assert "aggregates" in old


def test_columns_may_be_called_init_and_update() -> None:
    graph = graph_of(
        lambda keyed: keyed.aggregate(init=es.count(), update=es.count(), emit="record")
    )
    assert graph["aggregates"] is RunningRecords


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda keyed: keyed.aggregate(int, max, n=es.count()), "either init and update, or"),
        (lambda keyed: keyed.aggregate(int, max, max), "either init and update, or"),
        (lambda keyed: keyed.aggregate(int), "update takes a function, not None"),
        (lambda keyed: keyed.aggregate(update=max), "init takes a function, not None"),
        (lambda keyed: keyed.aggregate(n=3), "n=3 is no aggregate"),
        (lambda keyed: keyed.aggregate(), "give at least one aggregate"),
    ],
)
@pytest.mark.filterwarnings("ignore::everstream.EverstreamDeprecationWarning")
def test_what_is_neither_is_refused(build: Callable[[Any], Any], problem: str) -> None:
    with pytest.raises(es.UserError, match=problem):
        build(keyed())


def test_the_warning_points_at_the_line_that_has_the_old_name() -> None:
    with pytest.warns(es.EverstreamDeprecationWarning) as caught:
        keyed().aggregates(n=es.count())
        keyed().aggregate(int, max)
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name] * 2
    assert caught[1].lineno == caught[0].lineno + 1


def test_our_own_tests_may_not_use_old_names() -> None:
    with pytest.raises(es.EverstreamDeprecationWarning):
        keyed().aggregates(n=es.count())
