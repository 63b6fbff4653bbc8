"""A value is stored exactly, or its record is refused by name, in every sink that has columns."""

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.core.permits import permit
from everstream.errors import RefusedRecords, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Writer
from tests.connectors.column_places import KINDS, ColumnPlace, same
from tests.connectors.postgres_server import PostgresServer

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(params=KINDS)
def output(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer
) -> Iterator[ColumnPlace]:
    yield ColumnPlace(request.param, tmp_path, postgres.dsn)


def started(output: ColumnPlace, generation: int = 1, shard: int = 0, **options: Any) -> Writer:
    writer = output.sink(**options).open(output.sink_shard(generation, shard))
    writer.recover([], permit(generation - 1))
    return writer


def commit(writer: Writer, checkpoint: int) -> None:
    transaction = writer.prepare(checkpoint)
    assert transaction is not None
    transaction.persist()
    transaction.commit(permit(checkpoint))


DRIFTS: dict[str, tuple[list[Any], Any]] = {
    "a fraction after whole numbers": ([1, 2], 4000.5),
    "a number after booleans": ([True, False], 4000),
    "a boolean after numbers": ([1, 2], True),
    "a boolean after floats": ([1.5], False),
    "more digits than before": ([Decimal("1.25")], Decimal("1.2567")),
    "a text after numbers": ([1], "one"),
    "a number after texts": (["one"], 1),
    "a whole number that no float equals": ([0.5], 2**53 + 1),
    "a whole number that no column holds": ([1], 2**63),
    "a time zone after none": (
        [datetime(2024, 1, 1)],
        datetime.fromisoformat("2024-01-01T00:00:00+00:00"),
    ),
    "a moment after dates": ([date(2024, 1, 1)], datetime(2024, 1, 1, 12)),
    "a whole number after floats": ([0.5], 4),
    "a value after None": ([None, None, 7], 8),
    "a list of fractions after one of whole numbers": ([[1, 2]], [1.5]),
    "a further field": ([{"x": 1}], {"x": 2, "y": 3}),
    "a fraction in a field": ([{"x": 1}], {"x": 2.5}),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_value_that_drifts_in_type_is_stored_as_it_is_or_refused(
    output: ColumnPlace, drift: str
) -> None:
    before, after = DRIFTS[drift]
    sent = dict(enumerate(before))
    writer = started(output)
    try:
        writer.write([{"id": number, "a": value} for number, value in sent.items()])
        commit(writer, 1)
    except RefusedRecords as refused:
        assert output.kind == "csv" and isinstance(before[0], list | dict), refused
        return
    for generation, restarted in enumerate((False, True), start=2):
        # The same in the writer that has seen the first rows, and in one that has not.
        writer = started(output, generation) if restarted else writer
        try:
            writer.write([{"id": generation + 10, "a": after}])
        except RefusedRecords as refused:
            assert "operator 'out', column 'a'" in refused.message
            assert repr(after) in refused.message
            continue
        sent[generation + 10] = after
        commit(writer, generation)
    found = {int(row["id"]): row["a"] for row in output.rows()}
    assert found.keys() == sent.keys()
    for number, value in sent.items():
        assert same(value, found[number], output.kind), (value, found[number])


def test_what_a_format_can_express_is_not_refused(output: ColumnPlace) -> None:
    writer = started(output)
    writer.write([{"id": 1, "f": 0.5, "d": Decimal("1.25")}])
    commit(writer, 1)
    writer = started(output, 2)
    writer.write([{"id": 2, "f": 4, "d": Decimal("2.5")}, {"id": 3, "f": None, "d": 7}])
    commit(writer, 2)
    found = {int(row["id"]): row for row in output.rows()}
    for number, name, value in [
        (1, "f", 0.5), (2, "f", 4), (3, "f", None), (2, "d", Decimal("2.5")), (3, "d", 7)
    ]:  # fmt: skip
        assert same(value, found[number][name], output.kind, among_decimals=name == "d")


def test_only_the_record_that_does_not_fit_is_refused(output: ColumnPlace) -> None:
    writer = started(output)
    writer.write([{"id": 0, "a": True}])
    batch: list[Any] = [{"id": 1, "a": False}, {"id": 2, "a": 4000}, {"id": 3, "a": True}]
    with pytest.raises(RefusedRecords) as refused:
        writer.write(batch)
    assert list(refused.value.rows) == [1]
    writer.write([batch[0], batch[2]])
    commit(writer, 1)
    found = {int(row["id"]): row["a"] for row in output.rows()}
    assert found.keys() == {0, 1, 3}
    assert all(
        same(value, found[n], output.kind) for n, value in {0: True, 1: False, 3: True}.items()
    )


def test_two_shards_have_the_same_types_whoever_comes_first(output: ColumnPlace) -> None:
    first, second = started(output), started(output, shard=1)
    first.write([{"id": 1, "a": True, "b": None}])
    with pytest.raises(RefusedRecords, match="column 'a': 4000 is not an exact Boolean"):
        second.write([{"id": 2, "a": 4000, "b": 1.5}])
    second.write([{"id": 3, "a": False, "b": 1.5}])
    for writer in (second, first):
        commit(writer, 1)
    found = {int(row["id"]): row for row in output.rows()}
    assert same(True, found[1]["a"], output.kind) and same(False, found[3]["a"], output.kind)
    assert found[1].get("b") is None and same(1.5, found[3]["b"], output.kind)


@pytest.mark.parametrize("value", [4000.5, 4.0, "4", True])
def test_a_type_that_was_named_refuses_what_it_would_change(
    output: ColumnPlace, value: Any
) -> None:
    writer = started(output, schema={"a": pl.Int64})
    with pytest.raises(RefusedRecords, match=r"column 'a': .* is not an exact Int64"):
        writer.write([{"a": value}])
    with pytest.raises(RefusedRecords, match=r"column 'a': .* is not an exact Int64"):
        writer.write(pl.DataFrame({"a": [value]}))
    writer.write([{"a": 4}])
    commit(writer, 1)
    assert same(4, output.rows()[0]["a"], output.kind)


def test_a_column_without_a_value_has_no_type_yet(output: ColumnPlace) -> None:
    writer = started(output)
    writer.write([{"id": 1, "a": None}])
    try:
        commit(writer, 1)
    except UserError as error:
        # All files of a folder are read together, and a table of PostgreSQL has types.
        assert output.kind in ("parquet", "postgres")
        assert "column 'a' has had no value yet" in error.message and "schema=" in error.message
        writer = started(output, 2)
        writer.write([{"id": 1, "a": None}])
        writer.write([{"id": 2, "a": 5}])
        commit(writer, 2)
    else:
        writer = started(output, 2)
        writer.write([{"id": 2, "a": 5}])
        commit(writer, 2)
    found = {int(row["id"]): row.get("a") for row in output.rows()}
    assert found.keys() == {1, 2}
    assert found[1] is None and same(5, found[2], output.kind)


def test_types_of_a_run_that_wrote_nothing_can_be_corrected(output: ColumnPlace) -> None:
    writer = started(output)
    writer.write([{"a": 1}])
    with pytest.raises(RefusedRecords):
        writer.write([{"a": "x"}])
    writer.close()
    sink = output.sink(schema={"a": pl.String})
    sink.before_resume("values", "out", output.store)
    writer = sink.open(output.sink_shard(2))
    writer.recover([], permit(0))
    writer.write([{"a": "x"}])
    commit(writer, 1)
    assert [row["a"] for row in output.rows()] == ["x"]


def test_types_of_output_that_is_there_cannot_be_changed_by_naming_others(
    output: ColumnPlace,
) -> None:
    writer = started(output)
    writer.write([{"a": True}])
    commit(writer, 1)
    sink = output.sink(schema={"a": pl.Int64})
    sink.before_resume("values", "out", output.store)
    writer = sink.open(output.sink_shard(2))
    writer.recover([], permit(1))
    with pytest.raises(UserError, match="'a'"):
        writer.write([{"a": 4000}])


def test_a_fresh_start_forgets_the_types(output: ColumnPlace) -> None:
    writer = started(output)
    writer.write([{"a": True}])
    commit(writer, 1)
    writer.close()
    if output.kind in ("csv", "parquet"):
        output.sink().start_fresh("values", "out", output.store, replace=True)
        writer = started(output)
        writer.write([{"a": 4000}])
        commit(writer, 1)
        assert same(4000, output.rows()[0]["a"], output.kind)


FRAMES: list[Batch] = [
    pl.DataFrame({"id": [1], "a": [1]}),
    pl.DataFrame({"id": [2, 3], "a": [4000.5, None]}),
]


def test_dataframes_are_held_to_the_same_types(output: ColumnPlace) -> None:
    writer = started(output)
    writer.write(FRAMES[0])
    try:
        writer.write(FRAMES[1])
    except RefusedRecords as refused:
        assert list(refused.rows) == [0] and "4000.5 is not an exact Int64" in refused.message
        writer.write(FRAMES[1][1:])
    commit(writer, 1)
    found = {int(row["id"]): row["a"] for row in output.rows()}
    assert same(1, found[1], output.kind) and found[3] is None
    assert 2 not in found or same(4000.5, found[2], output.kind)


def test_what_reads_as_something_else_is_refused_by_the_format_that_does_so(
    output: ColumnPlace,
) -> None:
    writer = started(output)
    writer.write([{"id": 0, "f": 1.5, "t": "x"}])
    for number, (name, value) in enumerate((("f", float("nan")), ("t", "a\0b")), start=1):
        try:
            writer.write([{"id": number, name: value}])
        except RefusedRecords as refused:
            assert (output.kind, name) in (("sqlite", "f"), ("postgres", "t")), refused
            assert f"column '{name}': {value!r} has no" in refused.message
    commit(writer, 1)
    for row in output.rows():
        sent = {0: {"f": 1.5, "t": "x"}, 1: {"f": float("nan")}, 2: {"t": "a\0b"}}[int(row["id"])]
        assert all(same(sent.get(name), row[name], output.kind) for name in ("f", "t"))
