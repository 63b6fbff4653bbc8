"""What is declared wrongly is refused at definition, with the reason."""

import math
import pickle
from importlib.metadata import EntryPoints
from typing import Any

import pytest

import everstream.transactions as es
from everstream.transactions import recovery
from everstream.transactions.kernels.committed_path import committed_path
from tests.transactions import bank

numbers = es.Table("numbers", value="int64")
pairs = es.Table("pairs", value={"low": "int64", "high": "float64"})


def test_a_function_numba_cannot_compile_is_refused_with_the_reason() -> None:
    with pytest.raises(es.DefinitionError, match="cannot be compiled") as refused:

        @es.transaction(a=numbers.key("a"), writes="a")
        def odd(a):
            return {"a": a}.popitem()[1].nonsense

    assert "interpreted=True" in str(refused.value)


def test_the_same_function_is_accepted_when_interpreted() -> None:
    @es.transaction(a=numbers.key("a"), writes="a", interpreted=True)
    def odd(a):
        return int(str(a) + "1")

    assert odd(4) == 41


def test_a_path_that_returns_nothing_is_refused() -> None:
    with pytest.raises(es.DefinitionError, match="without returning"):

        @es.transaction(a=numbers.key("a"), writes="a")
        def forgetful(a, amount):
            if a > amount:
                return a - amount


def test_the_wrong_number_of_values_is_refused() -> None:
    with pytest.raises(es.DefinitionError, match="writes 2 keys"):

        @es.transaction(a=numbers.key("a"), b=numbers.key("b"), writes=("a", "b"))
        def short(a, b):
            return a + b


def test_a_number_for_a_record_is_refused() -> None:
    with pytest.raises(es.DefinitionError, match="table pairs holds"):

        @es.transaction(pair=pairs.key("a"), writes="pair")
        def flat(pair):
            return pair.low + 1


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda: es.Table("two words"), "identifier"),
        (lambda: es.Table("t", value="decimal"), "type 'decimal'"),
        (lambda: es.Table("t", value={"a": "int64", "b": "int64"}, initial=(1,)), "2 numbers"),
        (lambda: es.Table("t", keys="bytes"), "keys must be"),  # type: ignore[arg-type]
        (lambda: es.transaction(writes="b", a=numbers.key("a"))(lambda a: a), "writes 'b'"),
        (lambda: es.transaction()(lambda a: a), "no keys"),
        (lambda: es.transaction(a="a")(lambda a: a), "must be a key"),  # type: ignore[arg-type]
        (lambda: es.transaction(b=numbers.key("b"))(lambda a: a), "no parameter 'b'"),
        (lambda: bank.engine("sometimes"), "recovery must be one of"),
        (lambda: bank.engine("delta"), "needs a place"),
        (lambda: bank.engine(parallelism=0), "at least 1"),
        (lambda: bank.engine(execution="fast"), "execution must be"),
        (lambda: es.TransactionEngine([numbers], [bank.transfer], recovery="none"), "not given"),
    ],
)
def test_wrong_declarations_say_what_to_change(declare: Any, reason: str) -> None:
    with pytest.raises(es.TransactionError, match=reason):
        declare()


def test_transactions_and_tables_pickle_by_name() -> None:
    assert pickle.loads(pickle.dumps(bank.transfer)) is bank.transfer
    assert pickle.loads(pickle.dumps(bank.meters)) == bank.meters
    assert pickle.loads(pickle.dumps(es.ABORT)) is es.ABORT


def test_the_committed_path_drops_the_branches_that_abort() -> None:
    assert bank.transfer.needs == (frozenset(), frozenset())
    assert bank.borrow.needs == (frozenset({1}),)
    assert bank.measure.needs == (frozenset({0}), frozenset({1}))
    assert bank.transfer.path is not None
    assert bank.transfer.path.function(1, 2, 50) == (-49, 52)


def test_control_flow_that_decides_a_value_counts_as_needed() -> None:
    def chosen(a, b, c):
        if b > 3:  # noqa: SIM108
            bonus = 1
        else:
            bonus = 2
        if c < 0:
            return es.ABORT
        elif c == 7:
            return a, b
        return a + bonus, b

    path = committed_path(chosen, 2, es.ABORT)
    assert path is not None
    assert path.needs == (frozenset({"a", "b", "c"}), frozenset({"b", "c"}))


def test_code_the_analysis_does_not_follow_falls_back_to_everything() -> None:
    def loop(a, b):
        total = a
        for _ in range(3):
            if total > 100:
                return es.ABORT
            total += b
        return total

    assert committed_path(loop, 1, es.ABORT) is None


def test_functions_may_use_constants_and_math_from_their_module() -> None:
    scale = 3

    @es.transaction(a=numbers.key("a"), writes="a")
    def scaled(a, x):
        return int(a + scale * math.floor(x))

    assert scaled(1, 2.5) == 7


def test_a_scheme_of_the_laboratory_names_what_to_install_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "entry_points", lambda group: EntryPoints())
    recovery.scheme_of.cache_clear()
    with pytest.raises(es.DefinitionError, match="not 'wal'; `pip install everstream-lab` adds it"):
        bank.engine("wal")
