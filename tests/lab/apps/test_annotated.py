"""The annotated program of every application gives the sequential result, through a kill, too."""

from pathlib import Path

import pytest

import everstream as es
from everstream.audit.rehearsal import Rehearsal, rehearsed
from everstream.pipeline.graph import Kind
from everstream_lab.apps.catalogue import NAMES
from everstream_lab.apps.running import run_pipeline
from tests.docs import simulated

from .conftest import MASTER, Folder, application

KILLS = {
    "prime": "count@2500",
    "mandelbrot": "output@30",
    "compress": "output@in-commit",
    "decompress": "output@after-prepare",
    "eye": "output@2",
    "sentiment": "score@after-snapshot",
    "lane": "output@after-commit",
    "face": "output@4",
    "ferret": "source@6",
}
"""Each is at a place that every run comes to, whichever shard asks first."""
IN_THE_SUITE = ("compress",)
SLOW = ("eye", "face", "lane", "sentiment")


def check_through_a_kill(name: str, folder: Path, place: Path) -> None:
    app = application(name)
    run = run_pipeline(
        app,
        folder,
        place / app.result,
        checkpoint=es.Coordinated(every="200ms"),
        kill=[KILLS[name]],
        master=MASTER,
        annotated=True,
    )
    assert any(report.injected for report in run.run.recoveries), "nobody was killed"
    assert run.exact


@pytest.mark.parametrize("name", IN_THE_SUITE)
def test_annotated_code_gives_the_sequential_result_through_a_kill(
    name: str, folder: Folder, tmp_path: Path
) -> None:
    check_through_a_kill(name, folder(name), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in IN_THE_SUITE])
def test_all_other_annotated_code_gives_the_sequential_result_through_a_kill(
    name: str, folder: Folder, tmp_path: Path
) -> None:
    check_through_a_kill(name, folder(name), tmp_path)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in NAMES],
)
def test_annotated_code_computes_what_the_pipeline_computes(
    name: str, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = application(name)
    found = []
    for make in (app.pipeline, app.annotated):
        pipeline = make(folder(name), tmp_path / "parts", batch=app.batch)
        writes = [
            n for n in pipeline.graph.of_kind(Kind.SINK) if not isinstance(n.what, es.Collect)
        ]
        result = simulated.run(rehearsed(pipeline, Rehearsal()) if writes else pipeline)
        records = result.collected(writes[0].name) if writes else [result.returned]
        found.append([app.encode(record) for record in records])
    written, annotated = found
    assert written and (
        annotated == written if app.ordered else sorted(annotated) == sorted(written)
    )
