"""Items that come displaced are put back in order, and how far they were out of order is measured."""

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import everstream as es
from everstream.cli.app import app
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Coordinated
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.interfaces.clutter import (
    Buffer,
    Displaced,
    cluttered,
    item_at,
    reordered,
    with_clutter,
)
from everstream_lab.apps.interfaces.engine import everstream, stamps_of
from everstream_lab.apps.interfaces.job import Job
from everstream_lab.apps.interfaces.pools import sequential
from everstream_lab.apps.interfaces.probes import probed
from everstream_lab.apps.interfaces.registry import driver_of
from tests.docs import simulated
from tests.lab.apps.conftest import Folder, application
from tests.lab.apps.tiny import APPLICATION, ORDERED, job, pipeline, right


@pytest.mark.parametrize("displacement", [1, 2, 5, 59, 200])
def test_every_item_comes_once_and_waits_for_as_many_as_asked(displacement: int) -> None:
    places = [item_at(place, displacement, 60) for place in range(60)]
    assert sorted(places) == [*range(60)] and [*Displaced(range(60), displacement)] == places
    assert [*reordered(places, displacement, 60)] == [*range(60)]
    buffer = Buffer(displacement, 60)
    for place in places:
        [*buffer.add(place)]
    assert buffer.most == min(displacement, 59) and not buffer.waiting


@pytest.mark.parametrize("interface", ["sequential", "threads", "processes", "futures"])
@pytest.mark.parametrize("tiny", [APPLICATION, ORDERED], ids=["unordered", "ordered"])
def test_clutter_changes_no_result(interface: str, tiny: object, tmp_path: Path) -> None:
    wanted = job(tmp_path, tiny, workers=2, batch=4, clutter=5)  # type: ignore[arg-type]
    assert driver_of(interface)(wanted).items == 60
    lines = right(wanted.folder)
    expected = lines if tiny is ORDERED else b"".join(sorted(lines.splitlines(True)))
    assert wanted.output.read_bytes() == expected


def test_rows_are_those_of_the_items_and_say_how_many_overtook_them(tmp_path: Path) -> None:
    wanted = job(tmp_path, ORDERED, batch=1, clutter=3, clocked=True)
    stamps = sequential(wanted).stamps
    assert stamps is not None and stamps.numbers.tolist() == [*range(60)]
    assert stamps.overtaken.tolist() == [3, 0, 0, 0] * 15 and stamps.held_back == 3
    calm = dataclasses.replace(wanted, clutter=0)
    stamps = sequential(calm).stamps
    assert stamps is not None and not stamps.overtaken.any() and stamps.held_back == 0


def test_a_cluttered_pipeline_writes_its_results_in_order(tmp_path: Path, folder: Folder) -> None:
    face = application("face")
    place = folder("face")
    items = len(face.items(place))
    made = face.pipeline(place, tmp_path / "parts", batch=2)
    changed = with_clutter(made, 3, items)
    assert [edge.sender for edge in changed.graph.inputs("binary")] == ["reorder"]
    simulated.run(changed, store=tmp_path / "store")
    face.finish(place, tmp_path / "parts", tmp_path / "output")
    face.sequential(place, tmp_path / "expected")
    assert (tmp_path / "output").read_bytes() == (tmp_path / "expected").read_bytes()
    assert with_clutter(made, 0, items) is made


def test_a_pipeline_by_the_clock_has_a_row_for_every_item(tmp_path: Path) -> None:
    wanted = job(tmp_path)
    notes = tmp_path / "notes"
    notes.mkdir()
    made = with_clutter(pipeline(wanted.folder, tmp_path / "parts", batch=7), 3, 60)
    simulated.run(probed(made, notes), store=tmp_path / "store")
    stamps = stamps_of(made.graph, notes, 60)
    assert stamps is not None and stamps.numbers.tolist() == [*range(60)]
    assert stamps.operators == ("numbers", "square", "in_words", "json_lines")
    assert (stamps.latency >= stamps.took.sum(axis=1)).all()


@pytest.mark.spark("the worker that holds items back is killed")
def test_what_waits_for_the_item_in_front_of_it_survives_a_kill(
    folder: Folder, truth: Folder, tmp_path: Path
) -> None:
    lines = application("mandelbrot")
    wanted = Job(
        lines, "mandelbrot", folder("mandelbrot"), tmp_path / "output", workers=2, clutter=3,
        checkpoint=Coordinated(every="50ms"), kills=("reorder@20",),
    )  # fmt: skip
    assert len(everstream(wanted).recoveries) == 1
    assert wanted.output.read_bytes() == truth("mandelbrot").read_bytes()


def test_only_a_list_can_be_displaced_and_only_forward() -> None:
    numbers = es.Pipeline("numbers")
    numbers.source(es.Range(10)).collect()
    with pytest.raises(UserError, match=r"source that is es\.FromList, and this one is Range"):
        with_clutter(numbers, 2, 10)
    with pytest.raises(UserError, match="clutter=-1: say how many"):
        Settings(clutter=-1).check_all("threads")
    assert cluttered(APPLICATION, 0) is APPLICATION
    with pytest.raises(IndexError):
        Displaced([1, 2], 1)[2]
    assert Displaced([1, 2, 3], 1)[0:3] == [2, 1, 3]


def test_apps_exec_tells_the_order_of_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTREAM_BENCHMARKS", str(tmp_path / "benchmarks"))
    out, facts = tmp_path / "out", tmp_path / "facts.json"
    command = f"apps exec mandelbrot -i threads --input test --workers 1 --clutter 4 --out {out}"
    result = CliRunner().invoke(app, [*command.split(), "--json", str(facts)])
    assert result.exit_code == 0, result.output
    [run] = json.loads(facts.read_text())["runs"]
    assert run["exact"] and run["reorder_buffer"] == 4
    page = (out / "page.html").read_text()
    assert "Order of items" in page and "reorder buffer" in page
    rows = pl.read_parquet(out / "latency.parquet")
    assert rows["item"].to_list() == [*range(rows.height)]
    assert rows["overtaken"].to_list()[:5] == [4, 0, 0, 0, 0]
    general = pl.read_parquet(out / "general.parquet")
    assert general["clutter"].to_list() == [4] and general["reorder_buffer"].to_list() == [4]
