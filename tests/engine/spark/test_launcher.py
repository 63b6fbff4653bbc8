"""The launcher knows which Spark it has, and refuses by name what that Spark lacks."""

import re

import pyspark
import pytest

from everstream.engine.spark import launcher
from everstream.errors import UserError


@pytest.mark.parametrize(
    ("text", "version"),
    [("4.0.5", (4, 0)), ("4.3.0", (4, 3)), ("4.10.0", (4, 10)), ("4.2.0.dev1", (4, 2))],
)
def test_a_version_is_compared_by_its_numbers(text: str, version: tuple[int, int]) -> None:
    assert launcher.version_of(text) == version


def test_the_version_is_that_of_the_imported_spark() -> None:
    assert pyspark.__version__.startswith("{}.{}.".format(*launcher.SPARK))
    assert launcher.SPARK in launcher.SUPPORTED


def test_a_missing_feature_is_refused_with_its_name_and_the_version_that_has_it() -> None:
    refusal = re.escape("the gadget needs Spark 4.2 or newer; this is Spark 4.1.")
    with pytest.raises(UserError, match=refusal):
        launcher.require("the gadget", (4, 2), (4, 1))
    launcher.require("the gadget", (4, 2), (4, 2))
    launcher.require("the gadget", (4, 2), (4, 10))
