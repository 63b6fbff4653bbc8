"""Benchmarks as files, their settings, and what is refused before anything runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from everstream.errors import UserError
from everstream.pipeline.checkpointing import Uncoordinated
from everstream_lab.apps.catalogue import NAMES
from everstream_lab.apps.cycle import benchmarks
from everstream_lab.apps.cycle.benchmarks import Benchmark, Planned, plan
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.interfaces.registry import interfaces

TINY = str(Path(__file__).parents[1] / "tiny.py")


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTREAM_BENCHMARKS", str(tmp_path / "benchmarks"))


def test_every_application_has_a_benchmark_on_every_interface() -> None:
    assert len(benchmarks.ready_made()) == len(NAMES) * len(interfaces())
    found = benchmarks.find("prime-threads")
    assert (found.application, found.interface, found.made) == ("prime", "threads", False)
    assert benchmarks.find("lane").interface == "everstream"
    with pytest.raises(UserError, match="did you mean 'prime-threads'"):
        benchmarks.find("prime-thread")


def test_a_benchmark_is_found_again_as_it_was_saved() -> None:
    settings = Settings(workers="1:4", kills=("square@10",), pattern="wave,1s,1,9")
    made = Benchmark("mine", TINY, "everstream", "small", settings)
    benchmarks.save(made)
    assert benchmarks.find("mine") == made and benchmarks.made() == [made]
    with pytest.raises(UserError, match="already"):
        benchmarks.save(made)
    benchmarks.save(replace(made, size="test"), replacing=True)
    assert benchmarks.find("mine").size == "test"


def test_a_benchmark_is_renamed_and_deleted_with_its_results() -> None:
    benchmarks.save(Benchmark("mine", TINY))
    kept = benchmarks.results_of("mine") / "now" / "general.csv"
    kept.parent.mkdir(parents=True)
    kept.write_text("run")
    benchmarks.rename("mine", "yours")
    assert (benchmarks.results_of("yours") / "now" / "general.csv").exists()
    with pytest.raises(UserError, match="no benchmark 'mine'"):
        benchmarks.find("mine")
    benchmarks.delete("yours")
    assert not benchmarks.results_of("yours").exists() and benchmarks.made() == []
    with pytest.raises(UserError, match="always there"):
        benchmarks.delete("prime-threads")


def test_a_file_that_is_no_benchmark_is_named() -> None:
    benchmarks.home().mkdir(parents=True)
    (benchmarks.home() / "broken.json").write_text(json.dumps({"interface": "threads"}))
    with pytest.raises(UserError, match=r"broken\.json.*put it right"):
        benchmarks.find("broken")


@pytest.mark.parametrize(
    "values, said",
    [
        ({"workers": "4:1"}, "does not end before"),
        ({"repeats": "0"}, "at least one run"),
        ({"repeats": "x"}, "give a number"),
        ({"frequency": "5", "pattern": "wave,1s,1,9"}, "not both"),
        ({"pattern": "wafe,1s,1,9"}, "wave"),
        ({"interval": "soon"}, "soon"),
        ({"monitor": "1ms"}, "50ms"),
        ({"latency": "perhaps"}, "yes or no"),
        ({"batch": "10..1"}, r"FIRST\.\.LAST"),
        ({"checkpoint": "alligned"}, "aligned"),
        ({"kills": "nonsense"}, "OPERATOR"),
        ({"worker": "2"}, "did you mean 'workers'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Settings().with_values(values).check_all("everstream")


def test_only_what_takes_checkpoints_may_be_killed() -> None:
    kills = Settings(kills=("square@10",))
    kills.check_all("everstream")
    with pytest.raises(UserError, match="does not survive a kill"):
        kills.check_all("threads")


def test_settings_become_protocol_and_load() -> None:
    settings = Settings().with_values({"checkpoint": "uncoordinated", "every": "2s"})
    chosen = settings.checkpointing()
    assert isinstance(chosen, Uncoordinated) and chosen.every == "2s"
    assert Settings(checkpoint="none").checkpointing() is None
    load = Settings(frequency=50.0).load()
    assert load is not None and load.rate(3.0) == 50.0
    assert Settings().load() is None and Settings(batch="2..5").batch_to() == 5


def test_a_plan_has_every_setting_in_every_repeat() -> None:
    settings = Settings(workers="1:2", batch="1,8", repeats=2)
    runs = plan(Benchmark("mine", TINY, "threads", settings=settings), 10)
    assert [run.number for run in runs] == list(range(10, 18))
    assert [run.repeat for run in runs] == [0] * 4 + [1] * 4
    assert {(run.workers, run.batch) for run in runs} == {(1, 1), (1, 8), (2, 1), (2, 8)}
    assert Planned.from_json(json.loads(json.dumps(runs[3].to_json()))) == runs[3]
    alone = plan(Benchmark("mine", TINY, "sequential", settings=Settings(workers="1:4")))
    assert [run.workers for run in alone] == [1] and alone[0].batch == 7
