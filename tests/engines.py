"""The same test on several engines: runs in it that do not name one take each in turn."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


def on_all_engines(test: Test) -> Test:
    """For a sample: every run of the tests has all of them."""
    return _with_engines(test, "tasks", "microbatch", "local")


def on_all_engines_at_length(test: Test) -> Test:
    """For all others: on Spark only among the long tests."""
    on_spark = [pytest.param(name, marks=pytest.mark.long) for name in ("tasks", "microbatch")]
    return _with_engines(test, "local", *on_spark)


def _with_engines(test: Test, *engines: Any) -> Test:
    each = pytest.mark.parametrize("default_engine", engines, indirect=True)
    return pytest.mark.usefixtures("default_engine")(each(test))
