"""`everstream run --load`: what it takes, what it refuses, and which sources it paces."""

import json
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.under_load import loads_of, put_under_load


def made() -> es.Pipeline:
    pipeline = es.Pipeline("two")
    one = pipeline.source(es.Range(9), name="one")
    two = pipeline.source(es.Paced(es.Range(9), 5, batch=3, due="due_us"), name="two")
    one.union(two).collect()
    return pipeline


def tunable(pipeline: es.Pipeline) -> dict[str, Any]:
    return {n: pipeline.graph.nodes[n].what.tunable() for n in ("one", "two")}  # type: ignore[union-attr]


def test_a_pattern_is_for_all_sources_and_a_name_for_one() -> None:
    pipeline = made()
    put_under_load(pipeline, loads_of(("wave,10s,1,2", "two=7"), None), catch_up=True)
    assert tunable(pipeline) == {"one": {"pattern": "wave,10,1,2"}, "two": {"pattern": "7"}}
    pipeline = made()
    put_under_load(pipeline, loads_of(("one=7",), None), catch_up=True)
    assert tunable(pipeline) == {"one": {"pattern": "7"}, "two": {"pattern": "5"}}
    untouched = made()
    put_under_load(untouched, {}, catch_up=True)
    assert type(untouched.graph.nodes["one"].what) is es.Range


def test_a_source_that_is_paced_already_keeps_all_but_its_load() -> None:
    pipeline = made()
    put_under_load(pipeline, loads_of(("7",), None), catch_up=False)
    paced: Any = pipeline.graph.nodes["two"].what
    assert isinstance(paced, es.Paced) and type(paced._source) is es.Range
    assert (paced._batch, paced._due_column, paced._catch_up) == (3, "due_us", False)


def test_a_load_is_calibrated_from_the_json_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    run.write_text(json.dumps({"records_per_s": 100, "wall_s": 9}))
    assert loads_of(("wave",), str(run))[""].text == "wave,3,10,110"


@pytest.mark.parametrize(
    "load, calibrate, said",
    [
        ("wav,1,2,3", None, "Did you mean wave"),
        ("wave", None, "--calibrate"),
        ("wave,1s,2,3", "run.json", "alone"),
        ("wave", "none.json", "none.json"),
        (None, "run.json", "needs a pattern"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    load: str | None, calibrate: str | None, said: str
) -> None:
    command = RunCommand("p.py", load=(load,) if load else (), calibrate=calibrate)
    with pytest.raises(es.UserError, match=said):
        command.check()
    with pytest.raises(es.UserError, match="Did you mean two"):
        put_under_load(made(), loads_of(("tow=5",), None), catch_up=True)


def test_options_survive_the_way_to_the_driver() -> None:
    command = RunCommand("p.py", {"monitor": "50ms"}, load=("a=5", "7"), catch_up=False)
    assert RunCommand.from_json(command.to_json()) == command
    assert command.once_started().resumes, "the next driver appends to the same file"
