"""Every fact of a run has one writer, `RunState`; coordinator and strategies read it and make moves."""

import ast
import inspect
from types import ModuleType
from typing import Any, get_type_hints

import pytest

from everstream.core.coordinators import coordinated_strategy, coordinator, independent_strategy
from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy
from everstream.core.coordinators.independent_strategy import IndependentStrategy
from everstream.core.coordinators.run_state import RunState
from everstream.core.coordinators.strategy import StrategyRun
from everstream.core.ids import first_generation
from everstream.core.orders import Policy

from .coordinating import plan

CHANGING = ("phase", "generation", "every_s", "stop", "manifests", "unwritten", "writing")
READERS = (coordinator, coordinated_strategy, independent_strategy)


def run_state() -> RunState:
    return RunState(plan(), Policy(), first_generation(1), [])


@pytest.mark.parametrize("fact", CHANGING)
def test_a_fact_that_changes_can_only_be_read_from_outside(fact: str) -> None:
    with pytest.raises(AttributeError, match="no setter"):
        setattr(run_state(), fact, None)


def test_all_that_changes_in_a_run_state_is_such_a_fact() -> None:
    private = {name.removeprefix("_") for name in vars(run_state()) if name.startswith("_")}
    assert private == set(CHANGING)


@pytest.mark.parametrize("module", READERS)
def test_nobody_else_writes_a_field_of_the_run(module: ModuleType) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            owner = ast.unparse(node.value)
            assert owner.partition(".")[0] != "run" and not owner.startswith("self._run"), (
                f"{module.__name__}:{node.lineno} writes {ast.unparse(node)}"
            )


@pytest.mark.parametrize("strategy", [CoordinatedStrategy, IndependentStrategy])
def test_a_strategy_sees_only_the_facts_and_moves_meant_for_it(strategy: Any) -> None:
    assert get_type_hints(strategy.__init__)["run"] is StrategyRun
    hidden = {"quiesce", "restarts", "committing", "failures", "termination", "begin_stop"}
    assert not hidden & vars(StrategyRun).keys()
    assert hidden <= {*vars(run_state()), *vars(RunState)}
