"""Connectors that can be read and written: each role takes its own options, and no others."""

import pickle
from typing import Any

import pytest

import everstream as es
from everstream.connectors.two_way import TwoWay
from everstream.errors import UserError

BROKER = ("localhost:9", "orders")
READING: list[tuple[Any, str]] = [
    (lambda: es.JsonLines("out/", follow=True), "JsonLines as a sink takes no follow="),
    (lambda: es.Csv("out/", batch_bytes=5), "Csv as a sink takes no batch_bytes="),
    (lambda: es.Parquet("out/", columns=["n"]), "Parquet as a sink takes no columns="),
    (lambda: es.Delta("out/", version=3), "Delta as a sink takes no version="),
    (lambda: es.Kafka(*BROKER, start="latest"), "Kafka as a sink takes no start="),
    (lambda: es.JsonLines("out/", on_error="skip"), r"on_error=.*\.sink\(\.\.\., on_error"),
]
WRITING: list[tuple[Any, str]] = [
    (lambda: es.Delta("in/", partition_by=["day"]), "Delta as a source takes no partition_by="),
    (lambda: es.Kafka(*BROKER, key_by="id"), "Kafka as a source takes no key_by="),
    (lambda: es.Kafka(*BROKER, delivery="at-least-once"), "takes no delivery="),
]


@pytest.mark.parametrize(("make", "message"), READING)
def test_a_sink_refuses_an_option_for_reading_by_name(make: Any, message: str) -> None:
    stream = es.Pipeline("roles").source(es.Range(3))
    with pytest.raises(UserError, match=message):
        stream.sink(make())
    es.Pipeline("roles").source(make())


@pytest.mark.parametrize(("make", "message"), WRITING)
def test_a_source_refuses_an_option_for_writing_by_name(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        es.Pipeline("roles").source(make())
    with pytest.raises(UserError, match=message):
        es.Paced(make(), es.Load(5))
    es.Pipeline("roles").source(es.Range(3)).sink(make())


def test_what_is_given_as_it_is_by_default_is_no_option_of_the_other_role() -> None:
    es.Pipeline("roles").source(es.Range(3)).sink(es.JsonLines("out/", follow=False))
    es.Pipeline("roles").source(es.Kafka(*BROKER, delivery="exactly-once"))


def test_every_option_for_one_role_is_one_that_the_connector_takes() -> None:
    for connector in (es.JsonLines, es.Csv, es.Parquet, es.Delta, es.Iceberg, es.Kafka):
        assert issubclass(connector, TwoWay)
        taken = set(connector.__init__.__annotations__)
        assert connector.source_options | connector.sink_options <= taken
        assert not connector.source_options & connector.sink_options


def test_options_are_refused_after_a_way_through_pickle_too() -> None:
    sent = pickle.loads(pickle.dumps(es.Csv("out/", follow=True)))
    with pytest.raises(UserError, match="follow"):
        es.Pipeline("roles").source(es.Range(3)).sink(sent)
