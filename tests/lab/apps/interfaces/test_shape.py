"""One farm against a pipeline of farms, with a degree per stage: every application, exact results."""

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

import everstream as es
from everstream.cli.app import app
from everstream.core.plan import make_plan
from everstream.errors import UserError
from everstream_lab.apps.catalogue import NAMES
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.interfaces.job import Job, farmed, stage_names
from everstream_lab.apps.interfaces.plugin import Opened, stages_of_farm
from everstream_lab.apps.interfaces.pools import processes, threads
from everstream_lab.apps.interfaces.registry import driver_of
from everstream_lab.apps.interfaces.shape import degrees_of, read_degrees, shaped
from everstream_lab.apps.interfaces.tasks import tasks
from tests.docs import simulated
from tests.lab.apps.conftest import Folder, application
from tests.lab.apps.tiny import APPLICATION, ORDERED, job, pipeline, right


def expected_of(wanted: Job) -> bytes:
    lines = right(wanted.folder)
    return lines if wanted.application.ordered else b"".join(sorted(lines.splitlines(True)))


@pytest.mark.parametrize("driver", [threads, processes, driver_of("futures")],
                         ids=["threads", "processes", "futures"])  # fmt: skip
@pytest.mark.parametrize("tiny", [APPLICATION, ORDERED], ids=["unordered", "ordered"])
@pytest.mark.parametrize("stages", ["farm", "pipeline", "1,2"])
def test_farms_give_the_sequential_result_and_times_of_every_stage(
    driver: object, tiny: object, stages: str, tmp_path: Path
) -> None:
    wanted = job(tmp_path, tiny, workers=2, batch=7, stages=stages, clocked=True)  # type: ignore[arg-type]
    done = driver(wanted)  # type: ignore[operator]
    assert wanted.output.read_bytes() == expected_of(wanted)
    assert done.stamps.operators == ("source", *stage_names(farmed(wanted.application)))
    assert (done.stamps.took[:, 1:].sum(axis=0) > 0).all(), "every stage is timed, of every item"
    assert (done.stamps.latency >= done.stamps.took.sum(axis=1)).all()


@pytest.mark.parametrize("package, interface", [("joblib", "joblib"), ("distributed", "dask")])
def test_plug_ins_for_other_libraries_give_the_sequential_result(
    package: str, interface: str, tmp_path: Path
) -> None:
    pytest.importorskip(package, reason=f"pip install 'everstream-lab[{interface}]'")
    for number, (tiny, stages) in enumerate(
        [(APPLICATION, "auto"), (ORDERED, "farm"), (ORDERED, "1,2"), (APPLICATION, "pipeline")]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        wanted = job(place, tiny, workers=2, batch=7, stages=stages)
        assert driver_of(interface)(wanted).items == 60
        assert wanted.output.read_bytes() == expected_of(wanted)


def shapes_of(name: str) -> tuple[str, ...]:
    count = len(application(name).stages)
    return ("farm", "pipeline", ",".join(str(1 + number % 2) for number in range(count)))


@pytest.mark.parametrize("name", NAMES)
def test_every_application_gives_its_result_in_one_farm_and_in_several(
    name: str, folder: Folder, truth: Folder, tmp_path: Path
) -> None:
    chosen = application(name)
    for number, stages in enumerate(shapes_of(name)):
        output = tmp_path / str(number)
        threads(Job(chosen, name, folder(name), output, workers=2, stages=stages))
        assert output.read_bytes() == truth(name).read_bytes(), stages


@pytest.mark.parametrize("name", NAMES)
def test_every_pipeline_gives_its_result_in_one_farm_and_in_several(
    name: str, folder: Folder, truth: Folder, tmp_path: Path
) -> None:
    chosen = application(name)
    for number, stages in enumerate(shapes_of(name)):
        place = tmp_path / str(number)
        made = chosen.pipeline(folder(name), place / "parts", shards=2)
        result = simulated.run(shaped(made, chosen, stages, 2), store=place / "store")
        chosen.finish(folder(name), place / "parts", place / "output", result.returned)
        assert (place / "output").read_bytes() == truth(name).read_bytes(), stages


def test_a_pipeline_is_fused_or_not_as_asked(folder: Folder, tmp_path: Path) -> None:
    made = pipeline(job(tmp_path).folder, tmp_path / "parts")
    farm = make_plan(shaped(made, APPLICATION, "farm", 2), 4)
    assert farm.chain_of["square"] == farm.chain_of["in_words"]
    several = make_plan(shaped(made, APPLICATION, "pipeline", 2), 4)
    assert several.chain_of["square"] != several.chain_of["in_words"]
    degrees = make_plan(shaped(made, APPLICATION, "3,2", 2), 4)
    counts = [degrees.chains[degrees.chain_of[name]].shards for name in ("square", "in_words")]
    assert counts == [3, 2]
    face = application("face")
    ordered = shaped(face.pipeline(folder("face"), tmp_path / "parts"), face, "2,3", 2).graph
    assert ordered.nodes["detect-collected"].ordered
    assert [edge.sender for edge in ordered.inputs("recognise")] == ["detect-collected"]
    assert shaped(made, APPLICATION, "auto", 2) is made


def test_no_stage_is_merged_with_another_in_a_pipeline_of_farms(tmp_path: Path) -> None:
    wanted = job(tmp_path, batch=60, stages="pipeline")
    [task] = tasks(wanted, 60)
    first = Opened.of(wanted, 0).open()(task)
    assert first.results == [n * n for n in range(60)], "the first stage, and no other"
    last = Opened.of(wanted, 1).open()(first)
    assert last.results == [APPLICATION.encode({"square": n * n}) for n in range(60)]
    assert [*stages_of_farm(2, 3, 1)] == [1, 2], "workers of the last also encode"


def test_wrong_degrees_are_answered_with_the_stages() -> None:
    assert degrees_of(APPLICATION, "pipeline", 3) == (3, 3)
    assert degrees_of(APPLICATION, "farm", 3) == () == read_degrees("auto")
    with pytest.raises(
        UserError, match=r"2 stage\(s\), square, in_words: give one number for each"
    ):
        degrees_of(APPLICATION, "1,2,3", 2)
    for wrong in ("0,1", "two", ""):
        with pytest.raises(UserError, match="write auto, farm, pipeline"):
            read_degrees(wrong)
    for interface in ("sequential", "annotated", "pyspark"):
        with pytest.raises(UserError, match=f"Drop it for '{interface}'"):
            Settings(stages="pipeline").check_all(interface)
    unnamed = dataclasses.replace(APPLICATION, stages=(abs, abs))
    with pytest.raises(UserError, match="has no operator abs"):
        shaped(pipeline_of_nothing(), unnamed, "farm", 2)


def pipeline_of_nothing() -> es.Pipeline:
    nothing = es.Pipeline("nothing")
    nothing.source(es.Range(3)).collect()
    return nothing


def test_apps_compare_shows_one_farm_beside_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTREAM_BENCHMARKS", str(tmp_path / "benchmarks"))
    monkeypatch.setenv("COLUMNS", "200")
    command = (
        "apps compare face --interface sequential,threads --stages farm --stages 1,2 "
        f"--input test --repeats 1 --json {tmp_path}/sides.json"
    )
    result = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for name in ("sequential", "threads (farm)", "threads (1,2)"):
        assert name in result.output
    assert result.output.count("exact") >= 3
