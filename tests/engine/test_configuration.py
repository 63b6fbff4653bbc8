"""Options come from the defaults, a file, the environment and the program, in this order."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import everstream as es
from everstream.engine.settings.configuration import Configured, configuration, in_force


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program, in a folder of its own; the working directory is another one."""
    (tmp_path / "elsewhere").mkdir()
    program = tmp_path / "project" / "jobs"
    program.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    main = SimpleNamespace(__file__=str(program / "job.py"))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[misc]
    for name in ("EVERSTREAM_WORKERS", "EVERSTREAM_PROGRESS", "EVERSTREAM_MASTER"):
        monkeypatch.delenv(name, raising=False)
    return program


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_each_place_wins_over_the_one_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_force(None, {}).resources.workers is None
    write(folder / "everstream.toml", "workers = 2\nspares = 1\n")
    assert in_force(None, {}).resources == es.Resources(workers=2, spares=1)
    monkeypatch.setenv("EVERSTREAM_WORKERS", "3")
    assert in_force(None, {}).resources == es.Resources(workers=3, spares=1)
    options = es.RunOptions(resources=es.Resources(workers=4))
    assert in_force(options, {}).resources == es.Resources(workers=4, spares=1)
    assert in_force(options, {"workers": 5}).resources == es.Resources(workers=5, spares=1)
    assert in_force(options, {"spares": 0}).resources == es.Resources(workers=4)


def test_the_nearest_file_counts_and_its_own_name_before_the_project(folder: Path) -> None:
    write(folder.parent / "pyproject.toml", "[project]\nname = 'x'\n")
    assert configuration(folder, {}) == {}
    above = write(folder.parent / "pyproject.toml", "[tool.everstream]\nworkers = 2\n")
    assert configuration(folder, {}) == {"workers": Configured(2, f"{above}, line 2")}
    own = write(folder / "everstream.toml", "workers = 3\n")
    assert configuration(folder, {}) == {"workers": Configured(3, f"{own}, line 1")}
    write(folder / "pyproject.toml", "[tool.everstream]\nworkers = 4\n")
    assert configuration(folder, {})["workers"].value == 3


def test_without_a_file_at_the_program_the_working_directory_counts(folder: Path) -> None:
    write(Path.cwd() / "everstream.toml", "workers = 2\n")
    assert configuration(folder, {})["workers"].value == 2
    write(folder / "everstream.toml", "workers = 3\n")
    assert configuration(folder, {})["workers"].value == 3


def test_a_folder_that_everybody_can_write_to_is_not_searched(folder: Path) -> None:
    write(folder.parent / "everstream.toml", "workers = 2\n")
    folder.parent.chmod(0o777)
    assert configuration(folder, {}) == {}
    folder.parent.chmod(0o755)
    assert configuration(folder, {})["workers"].value == 2


def test_paths_in_a_file_begin_at_the_file_and_urls_stay(folder: Path) -> None:
    write(folder / "everstream.toml", 'store = "checkpoints"\nstore_key = "a.key"\n')
    found = configuration(folder, {"EVERSTREAM_STORE": "here"})
    assert (found["store"].value, found["store_key"].value) == ("here", str(folder / "a.key"))
    assert configuration(folder, {})["store"].value == str(folder / "checkpoints")
    write(folder / "everstream.toml", 'store = "s3://bucket/a"\n')
    assert configuration(folder, {})["store"].value == "s3://bucket/a"


def test_a_program_without_options_of_its_own_has_those_of_the_file(folder: Path) -> None:
    write(
        folder / "everstream.toml",
        'checkpoint = "uncoordinated"\nevery = "2s"\nhistory = false\n[renamed]\na = "b"\n',
    )
    options = in_force(None, {})
    assert options.checkpoint == es.Uncoordinated(every="2s")
    assert not options.history and options.upgrade.renamed == {"a": "b"}
    assert in_force(None, {"checkpoint": None}).checkpoint is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("store = 'a'\nworker = 2\n", "line 2: there is no option 'worker'. Did you mean workers?"),
        ("workers = 0\n", "line 1: workers = 0: give a whole number from 1 up"),
        ("\nfresh = true\n", "line 2: 'fresh' is for one run only.*--fresh or fresh="),
        ("[recovery]\nmax_restarts = 3\n", "line 1: 'recovery' is a group.*max_restarts"),
        ("workers = \n", "is not valid TOML"),
        ("spark = 'local'\n", "no option 'spark'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(folder: Path, text: str, says: str) -> None:
    write(folder / "everstream.toml", text)
    with pytest.raises(es.UserError, match=rf"everstream\.toml.*{says}"):
        es.Pipeline("asked").run()


def test_what_is_wrong_in_the_environment_is_named(folder: Path) -> None:
    with pytest.raises(es.UserError, match="EVERSTREAM_TIMEOUT=soon: 'soon' is not a duration"):
        configuration(folder, {"EVERSTREAM_TIMEOUT": "soon"})
    assert configuration(folder, {"EVERSTREAM_TIMEOUT": "", "EVERSTREAM_FRESH": "yes"}) == {}
