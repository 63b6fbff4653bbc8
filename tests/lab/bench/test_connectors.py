"""The benchmark of the connectors, small: every row moves all its records, on both sides."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.errors import RunFailed, UserError
from everstream.pipeline.batch import Batch
from everstream_lab.bench.connectors.catalogue import ROWS, SERVERS, chosen
from everstream_lab.bench.connectors.file_sources import TextSource
from everstream_lab.bench.connectors.measure import Compared, _timed, measure
from everstream_lab.bench.connectors.row import EVERY_S, Place, Row, per_checkpoint
from everstream_lab.bench.connectors.servers import running
from everstream_lab.bench.connectors.word_count import WordsIntoJson


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], dict[str, str]]]:
    """Starts a server when the first row needs it; gives the addresses of those that run."""
    with ExitStack() as stack:
        found: dict[str, str] = {}

        def started(kind: str) -> dict[str, str]:
            addresses, missing = stack.enter_context(running([kind], found, SERVERS))
            if missing:
                pytest.skip(f"there is no {kind} server here: {missing[kind]}")
            found.update(addresses)
            return found

        yield started


ONE_OF_EACH_KIND = ("text-source", "json-sink", "postgres-sink", "redis-hash-sink", "webhook-sink")


@pytest.mark.parametrize(
    "name",
    [n if n in ONE_OF_EACH_KIND else pytest.param(n, marks=pytest.mark.long) for n in ROWS],
)
def test_both_sides_of_a_row_move_every_record(
    name: str, servers: Callable[[str], dict[str, str]]
) -> None:
    kind = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        row = kind(700, Place(Path(folder), servers(kind.server) if kind.server else {}))
        row.make()
        assert _timed(row, Path(folder, "ours"), bare=False) > 0
        assert _timed(row, Path(folder, "bare"), bare=True) > 0


@pytest.mark.parametrize("name", ["text-source", "json-sink"])
def test_a_side_that_loses_a_record_has_no_figure(name: str, tmp_path: Path) -> None:
    kind = ROWS[name]

    class Losing(kind):  # type: ignore[valid-type, misc]
        def read(self) -> Iterator[Batch]:
            yield from (batch[1:] for batch in super().read())

        def write(self, folder: Path, batches: Iterator[Batch]) -> None:
            super().write(folder, (batch[1:] for batch in batches))

    row: Row = Losing(700, Place(tmp_path))
    row.make()
    with pytest.raises(RunFailed, match="the bare client moved 699 records and not 700"):
        _timed(row, tmp_path / "bare", bare=True)


def test_ratios_are_taken_round_by_round_and_the_median_counts() -> None:
    compared = Compared(TextSource, 100, ours_s=[1.0, 8.0, 2.0], bare_s=[0.9, 4.0, 4.0])
    assert compared.ratios == pytest.approx([0.9, 0.5, 2.0])
    figure = compared.figure()
    assert (figure.ratio, figure.value, figure.reached) == (0.9, 50, True)
    assert figure.repetitions == (100, 12, 50)


def test_a_bare_client_makes_durable_what_came_within_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = iter([0.0, 0.1, EVERY_S, 5.0, 5.1, 5.2])
    monkeypatch.setattr("time.monotonic", lambda: next(now_s))
    batches: list[Batch] = [[1], [2], [3], [4]]
    groups = [list(group) for group in per_checkpoint(batches)]
    assert groups == [[[1], [2]], [[3], [4]]]


def test_rows_are_chosen_by_name_or_its_beginning() -> None:
    assert [row.name for row in chosen(["json-sink", "csv"])] == [
        "csv-source",
        "json-sink",
        "csv-sink",
    ]
    assert len(chosen([])) == len(ROWS)
    with pytest.raises(UserError, match=r"no row 'jason'\. There are: text-source"):
        chosen(["jason"])


def test_every_row_says_whether_it_is_of_a_source_or_a_sink() -> None:
    for name, row in ROWS.items():
        assert name.endswith(f"-{row.kind}")


def test_a_row_with_a_rate_to_reach_is_held_to_that() -> None:
    for took_s, reached in ((1.0, True), (4.0, False)):
        counted = Compared(WordsIntoJson, 2_000_000, ours_s=[took_s], bare_s=[0.1])
        assert counted.figure().reached is reached


def test_a_server_that_cannot_be_had_is_a_reason_and_one_that_is_given_is_used() -> None:
    with running(["postgres", "oracle"], {"postgres": "host=elsewhere"}, SERVERS) as found:
        assert found[0] == {"postgres": "host=elsewhere"}
        assert "--at oracle=ADDRESS" in found[1]["oracle"]


def test_the_rounds_are_as_many_as_asked_for() -> None:
    (one,) = measure([TextSource], {}, rounds=2, scale=0.0001)
    assert len(one.ours_s) == len(one.bare_s) == 2
    assert one.records == 600


def test_the_command_prints_ratios_and_writes_the_figures(tmp_path: Path) -> None:
    file = tmp_path / "connectors.json"
    asked = ["--only", "text", "--rounds", "1", "--scale", "0.001", "--json", str(file)]
    done = CliRunner().invoke(app, ["bench", "connectors", *asked], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "text-source" in done.output and "readlines" in done.output
    ((name, figure),) = json.loads(file.read_text())["figures"].items()
    assert name == "text-source" and figure["ratio"] > 0
    assert figure["target"] == "ratio at least 0.8"


def test_the_command_does_not_show_an_address_it_cannot_use() -> None:
    done = CliRunner().invoke(app, ["bench", "connectors", "--at", "hunter2"])
    assert isinstance(done.exception, UserError)
    assert "hunter2" not in str(done.exception)
