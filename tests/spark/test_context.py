"""Which masters Spark knows is said before it starts."""

import pytest

from everstream.errors import UserError
from everstream.spark.context import check_master, make_context


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[2]",
        "local[*]",
        "local[4,4]",
        "local-cluster[2, 2, 1024]",
        "spark://head:7077",
        "k8s://https://host:6443",
        "yarn",
    ],
)
def test_masters_that_spark_knows_are_let_through(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize("master", ["locl[2]", "local[x]", "local[2", "", "head:7077"])
def test_a_mistyped_master_is_told_from_a_missing_java(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(UserError, match="there is no Spark master") as caught:
        make_context(master, "test")
    assert "local[2]" in str(caught.value) and "Java" not in str(caught.value)
