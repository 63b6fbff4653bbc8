"""The same test on both engines: runs in it that do not name an engine take one, then the other."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


def on_both_engines(test: Test) -> Test:
    """For a sample: every run of the tests has both."""
    return _with_engines(test, "tasks", "microbatch")


def on_both_engines_at_length(test: Test) -> Test:
    """For all others: micro-batches only among the long tests."""
    return _with_engines(test, "tasks", pytest.param("microbatch", marks=pytest.mark.long))


def _with_engines(test: Test, *engines: Any) -> Test:
    each = pytest.mark.parametrize("default_engine", engines, indirect=True)
    return pytest.mark.usefixtures("default_engine")(each(test))
