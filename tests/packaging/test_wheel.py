"""What pip installs is the whole library: all its files are there, and a killed pipeline recovers."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

import everstream

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """What the command prints. The tests' own path would show it the source tree: it has none."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_the_library() -> set[str]:
    listed = run("git", "ls-files", "-co", "--exclude-standard", "everstream", cwd=ROOT)
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source archive, made from the files git knows and no other."""
    source = tmp_path_factory.mktemp("source")
    for name in {*files_of_the_library(), "pyproject.toml", "README.md", "LICENSE"}:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=source)
    return source / "dist"


def test_wheel_and_source_archive_have_every_file_of_the_library(built: Path) -> None:
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    expected = files_of_the_library()
    with zipfile.ZipFile(wheel) as opened:
        found = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert found == expected
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert expected | {"LICENSE", "README.md"} <= inside


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel; packages it needs are borrowed from this one."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place, symlinks=True, with_pip=False)
    (wheel,) = built.glob("*.whl")
    python = place / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=place)
    (packages,) = place.glob("lib/python*/site-packages")
    # A folder in a .pth file is looked into last, and the .pth files in it are not read: the
    # `pip install -e` of this environment stays behind.
    borrowed = [path for path in sys.path if path.endswith("-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return place


def test_an_installed_wheel_survives_a_kill_with_exact_output(
    installed: Path, tmp_path: Path
) -> None:
    where = "import everstream; print(everstream.__file__, everstream.__version__)"
    file, number = run(installed / "bin" / "python", "-c", where, cwd=tmp_path).split()
    assert Path(file).is_relative_to(installed)
    assert number == version("everstream") == everstream.__version__

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
