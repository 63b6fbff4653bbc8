"""Which masters Spark knows is said before it starts."""

import pytest

from everstream.engine.spark.context import (
    check_master,
    exposure,
    make_context,
    slots_of_an_executor,
)
from everstream.errors import UserError


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


class Cluster:
    """A Spark context, as far as its settings go."""

    defaultParallelism = 8

    def __init__(self, master: str, *on: str) -> None:
        self.master = master
        self._settings = dict.fromkeys(on, "true")

    def getConf(self) -> dict[str, str]:
        return self._settings


@pytest.mark.parametrize(
    "cluster, words",
    [
        (Cluster("local[4,1000000]", "spark.authenticate"), None),
        (Cluster("local-cluster[2,2,1024]", "spark.authenticate"), None),
        (Cluster("local[4,1000000]"), "other users of this machine"),
        (Cluster("local-cluster[2,2,1024]"), "other users of this machine"),
        (Cluster("spark://far:7077"), "anyone who reaches Spark's ports can run code"),
        (Cluster("yarn", "spark.network.crypto.enabled"), "spark.authenticate is off"),
        (Cluster("k8s://far", "spark.authenticate"), "traffic is not encrypted"),
        (Cluster("yarn", "spark.authenticate", "spark.network.crypto.enabled"), None),
        (Cluster("spark://far:7077", "spark.authenticate", "spark.ssl.rpc.enabled"), None),
    ],
)
def test_a_cluster_that_does_not_keep_others_out_is_told_of(
    cluster: Cluster, words: str | None
) -> None:
    said = exposure(cluster)  # type: ignore[arg-type]
    assert (said is None) if words is None else (said is not None and words in said)


@pytest.mark.parametrize(
    ("master", "settings", "slots"),
    [
        ("local[3,1000000]", {}, 8),
        ("local[3,1000000]", {"spark.executor.cores": "2"}, 8),
        ("local-cluster[2, 3, 1024]", {}, 3),
        ("spark://there:7077", {"spark.executor.cores": "2"}, 2),
        ("spark://there:7077", {}, 8),
    ],
)
def test_how_many_tasks_an_executor_runs_at_once_is_what_the_master_says(
    master: str, settings: dict[str, str], slots: int
) -> None:
    cluster = Cluster(master)
    cluster.getConf().update(settings)
    assert slots_of_an_executor(cluster) == slots  # type: ignore[arg-type]
