"""What pip installs is whole: a killed pipeline recovers, and the laboratory adds its commands."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

import everstream
from everstream.cli import guides

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """What the command prints. The tests' own path would show it the source tree: it has none."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked(*folders: str) -> set[str]:
    listed = run("git", "ls-files", "-co", "--exclude-standard", *folders, cwd=ROOT)
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def files_of_the_library() -> set[str]:
    modules = ("everstream_command.py", "everstream_pytest.py")
    return tracked("everstream", *modules, "pyspark_everstream")


def pages() -> set[str]:
    return tracked("docs/*.md")


def files_of_the_laboratory() -> set[str]:
    return {name.removeprefix("lab/") for name in tracked("lab/everstream_lab")}


def build(source: Path, files: set[str], root: Path) -> Path:
    """The folder with the wheel and the source archive, made from these files and no others."""
    for name in {*files, "pyproject.toml", "README.md", "LICENSE"}:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=source)
    return source / "dist"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = files_of_the_library() | pages() | {"setup.py"}
    return build(tmp_path_factory.mktemp("library"), files, ROOT)


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("laboratory"), files_of_the_laboratory(), ROOT / "lab")


def check_contents(built: Path, expected: set[str], moved: Mapping[str, str] | None = None) -> None:
    """`moved`: files of the source archive -> where the wheel has them."""
    moved = moved or {}
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        contents = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert contents == expected | set(moved.values())
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert expected | set(moved) | {"LICENSE", "README.md"} <= inside


def test_wheel_and_source_archive_have_every_file_of_the_library_and_no_other(
    library: Path,
) -> None:
    guides = {page: page.replace("docs/", "everstream/guides/", 1) for page in pages()}
    check_contents(library, files_of_the_library(), guides)


def test_wheel_and_source_archive_have_every_file_of_the_laboratory_and_no_other(
    laboratory: Path,
) -> None:
    check_contents(laboratory, files_of_the_laboratory())


@pytest.fixture(scope="module")
def installed(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the library; packages it needs are borrowed from this one."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place, symlinks=True, with_pip=False)
    install(library, place)
    # Links to all packages but our own: their metadata would announce commands that are not there.
    borrowed = place / "borrowed"
    borrowed.mkdir()
    for folder in (Path(path) for path in sys.path if path.endswith("-packages")):
        for package in folder.iterdir():
            link = borrowed / package.name
            if "everstream" not in package.name and not link.exists():
                link.symlink_to(package)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(f"{borrowed}\n")
    return place


def install(built: Path, place: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = place / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=place)


def test_an_installed_wheel_survives_a_kill_with_exact_output(
    installed: Path, tmp_path: Path
) -> None:
    where = "import everstream; print(everstream.__file__, everstream.__version__)"
    file, number = run(installed / "bin" / "python", "-c", where, cwd=tmp_path).split()
    assert Path(file).is_relative_to(installed)
    assert number == version("everstream") == everstream.__version__

    guide = run(installed / "bin" / "everstream", "help", "protocols", cwd=tmp_path)
    (page,) = (ROOT / "docs").rglob("protocols.md")
    assert guide == guides.shown(page)

    shutil.copy(ROOT / "examples" / "word_count.py", tmp_path)
    shutil.copytree(ROOT / "examples" / "books", tmp_path / "books")
    command = (installed / "bin" / "everstream", "run", "word_count.py", "--every", "200ms")
    run(*command, "--kill", "fold@20", "--json", "result.json", cwd=tmp_path)

    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["recoveries"]) == 1
    words = Counter(" ".join(f.read_text() for f in (tmp_path / "books").iterdir()).split())
    expected = [[word, count] for word, total in words.items() for count in range(1, total + 1)]
    shown = [json.loads(line) for f in (tmp_path / "counts").glob("*.jsonl") for line in f.open()]
    assert sorted(shown) == sorted(expected)


@pytest.mark.timeout(900)  # Spark starts, and runs eight pipelines
def test_the_laboratory_adds_its_commands_to_an_installed_library(
    installed: Path, laboratory: Path, tmp_path: Path
) -> None:
    everstream_command = installed / "bin" / "everstream"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in ("bench overhead --rounds 1", "apps --help", "model paper"):
        done = subprocess.run(
            [everstream_command, *command.split()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.endswith("is part of the laboratory: pip install everstream-lab")

    install(laboratory, installed)
    sizes = ("--records", "100000", "--python-records", "20000", "--checkpoint-records", "100000")
    run(
        *(everstream_command, "bench", "overhead", *sizes, "--rounds", "1"),
        *("--json", "overhead.json"),
        cwd=tmp_path,
    )
    assert json.loads((tmp_path / "overhead.json").read_text())
    assert "is_prime" in run(everstream_command, "apps", "list", "operators", cwd=tmp_path)
