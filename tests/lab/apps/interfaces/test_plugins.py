"""A class and an entry point make a library an interface, in this process and in those of a benchmark."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.errors import UserError
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.interfaces.registry import check_interface, driver_of, interfaces
from tests.lab.apps.tiny import APPLICATION, ORDERED, job, right

PLUGIN = """
from concurrent.futures import ThreadPoolExecutor

from everstream_lab.apps.interfaces.plugin import Farm, Interface


class Threaded(Farm):
    def start(self, job, work):
        self.pool = ThreadPoolExecutor(job.workers)

    def apply(self, job, work, given):
        yield from self.pool.map(work, given)

    def close(self):
        self.pool.shutdown()


class Surviving(Interface):
    survives_kills = True

    def run(self, job):
        raise NotImplementedError


nothing = 5
"""
ENTRIES = """
[everstream_lab.interfaces]
threaded = threaded_plugin:Threaded
surviving = threaded_plugin:Surviving
wrong = threaded_plugin:nothing
missing = not_installed_here:Missing
sequential = threaded_plugin:Threaded
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as `pip install` leaves it, on the path of this process and of those it starts."""
    site = tmp_path / "site"
    about = site / "threaded_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "threaded_plugin.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: threaded-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    return site


def test_an_interface_of_another_package_is_one_of_all(plugin: Path, tmp_path: Path) -> None:
    assert {"threaded", "surviving"} <= set(interfaces())
    assert interfaces().count("sequential") == 1, "ours keep their names"
    wanted = job(tmp_path, ORDERED, workers=2, batch=7, clocked=True)
    done = driver_of("threaded")(wanted)
    assert wanted.output.read_bytes() == right(wanted.folder)
    assert done.items == 60 and done.stamps is not None and len(done.stamps.began) == 60


@pytest.mark.parametrize("application", [APPLICATION, ORDERED], ids=["unordered", "ordered"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_futures_give_the_sequential_result(
    application: object, in_memory: bool, tmp_path: Path
) -> None:
    wanted = job(tmp_path, application, workers=2, batch=7, in_memory=in_memory)  # type: ignore[arg-type]
    assert driver_of("futures")(wanted).items == 60
    expected = right(wanted.folder)
    if application is APPLICATION:
        expected = b"".join(sorted(expected.splitlines(True)))
    assert wanted.output.read_bytes() == expected


def test_what_is_wrong_with_a_plug_in_is_told(plugin: Path) -> None:
    with pytest.raises(UserError, match="cannot be loaded from 'not_installed_here:Missing'"):
        driver_of("missing")
    with pytest.raises(UserError, match="no class made from"):
        driver_of("wrong")
    with pytest.raises(UserError, match="did you mean 'threaded'"):
        check_interface("threadet")
    Settings(kills=("square@10",)).check_all("surviving")
    with pytest.raises(UserError, match="does not survive a kill"):
        Settings(kills=("square@10",)).check_all("threaded")


def test_apps_compare_takes_a_plug_in(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTREAM_BENCHMARKS", str(tmp_path / "benchmarks"))
    command = "apps compare prime --interface threads,threaded,futures --input test --repeats 1"
    result = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "threaded" in result.output and "futures" in result.output
