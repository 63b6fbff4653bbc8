"""The examples in the docstrings run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["adviser", "analytic", "closed_forms", "model", "queueing", "units"]
)
def test_the_examples_in_the_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(f"everstream.planning.{name}")
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
