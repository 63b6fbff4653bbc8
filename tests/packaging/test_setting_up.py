"""A command installs what it needs and no more, and continuous integration runs in a clone."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def sets_up(target: str, folder: Path) -> list[str]:
    """What `make TARGET` installs where nothing is: extras of the library, or the laboratory."""
    command = ["make", "--dry-run", f"VENV={folder / 'venv'}", target]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    calls = [line.split() for line in said.splitlines() if "scripts/setup.sh" in line]
    return [words[words.index("scripts/setup.sh") + 1] for words in calls]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [("demo", "report"), ("docs", "docs"), ("apps", "lab"), ("test", "dev"), ("setup", "dev")],
)
def test_a_command_sets_up_what_it_needs(target: str, wanted: str, tmp_path: Path) -> None:
    assert wanted in {*EXTRAS, "lab"}
    assert sets_up(target, tmp_path) == [wanted]


@pytest.mark.parametrize(
    ("wanted", "installed"),
    [
        ("report", ["-e", ".[report]"]),
        ("lab", ["-e", ".", "-e", "./lab"]),
        ("dev", ["-e", ".[dev]", "-e", "./lab[joblib,dask]"]),
    ],
)
def test_only_what_measures_and_tests_installs_the_laboratory(
    wanted: str, installed: list[str], tmp_path: Path
) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    script(tmp_path / "scripts" / "java.sh", "true")
    script(tmp_path / ".venv" / "bin" / "python", 'echo "$@" >installed')
    subprocess.run([tmp_path / "scripts" / "setup.sh", wanted], check=True, capture_output=True)
    words = (tmp_path / "installed").read_text().split()
    assert words[words.index("-e") :] == installed


def test_what_is_set_up_is_not_set_up_again_by_a_command_that_needs_less(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "lab").mkdir()
    for name in ("Makefile", "pyproject.toml", "lab/pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    script(tmp_path / "scripts" / "setup.sh", 'mkdir -p .venv/bin; echo "$1" >>installed')
    script(tmp_path / ".venv" / "bin" / "everstream", "true")
    for target in ("setup", "demo", "apps"):
        subprocess.run(["make", target], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "installed").read_text() == "dev\n"


def with_all_they_need(names: Iterable[Requirement]) -> set[str]:
    found: set[tuple[str, str]] = set()
    left = [(one.name, extra) for one in names for extra in ("", *one.extras)]
    while left:
        name, extra = left.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for line in distribution(name).requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                left += [(needed.name, more) for more in ("", *needed.extras)]
    return {canonicalize_name(name) for name, _ in found}


def test_a_demo_installs_neither_documentation_nor_development_tools() -> None:
    demo = with_all_they_need([Requirement("everstream[report]")])
    own = map(Requirement, EXTRAS["dev"] + EXTRAS["docs"])
    tools = {canonicalize_name(one.name) for one in own} - {"everstream"}
    assert {"pyspark", "matplotlib"} <= demo and {"mkdocs", "pytest", "mypy"} <= tools
    assert not demo & tools


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def java(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2025-04-15' >&2"""


def machine(folder: Path, packages: str, default: str, installed: str | None) -> dict[str, str]:
    """A path on which there is a Debian with these packages of Java, the default one, and a Java."""
    script(folder / "id", "echo 0")
    script(
        folder / "apt-cache",
        f"""
        if [ "$1" = depends ]; then echo "  Depends: openjdk-{default}-jre-headless"; exit; fi
        for version in {packages}; do
          [ "$2" = "openjdk-$version-jre-headless" ] && candidate=1
        done
        echo "$2:"; echo "  Candidate: ${{candidate:-(none)}}"
    """,
    )
    script(folder / "apt-get", f"""
        package=${{*: -1}}
        case $package in update) exit ;; default-*) version={default} ;; *) version=${{package//[!0-9]/}} ;; esac
        echo "$package" >>{folder}/log
        printf '#!/bin/sh\\necho "openjdk version \\\\"%s.0.1\\\\" 2025" >&2\\n' $version >{folder}/java
        chmod +x {folder}/java
    """)  # fmt: skip
    if installed is not None:
        script(folder / "java", java(installed))
    else:
        script(folder / "java", "exit 127")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return environment | {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("packages", "default", "installed", "taken"),
    [
        ("21 17", "17", None, ["openjdk-21-jre-headless"]),
        ("25 21", "21", None, ["openjdk-21-jre-headless"]),
        ("17", "17", "11.0.2", ["openjdk-17-jre-headless"]),
        ("25", "25", None, ["default-jre-headless"]),
        ("21 17", "17", "17.0.15", []),
        ("21 17", "17", "25.0.3", []),
    ],
)
def test_java_is_what_is_there_or_the_newest_that_spark_is_tested_with(
    packages: str, default: str, installed: str | None, taken: list[str], tmp_path: Path
) -> None:
    environment = machine(tmp_path, packages, default, installed)
    done = subprocess.run([ROOT / "scripts" / "java.sh"], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "log"
    assert (log.read_text().splitlines() if log.exists() else []) == taken


def test_a_java_that_is_too_old_is_refused_with_what_to_do(tmp_path: Path) -> None:
    environment = machine(tmp_path, "11", "11", None)
    command = [ROOT / "scripts" / "java.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "JAVA_HOME" in done.stderr
    script(tmp_path / "own" / "bin" / "java", java("11.0.2"))
    environment = machine(tmp_path, "17", "17", None) | {"JAVA_HOME": str(tmp_path / "own")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and f"JAVA_HOME={tmp_path / 'own'}" in done.stderr


def git(*arguments: str, cwd: Path) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.mark.parametrize("name", ["everstream", "repository-17"])
@pytest.mark.parametrize("failing", [None, "check", "test", "fresh-machine", "matrix"])
def test_continuous_integration_runs_in_a_folder_named_as_a_clone_is(
    name: str, failing: str | None, tmp_path: Path
) -> None:
    here = tmp_path / name
    (here / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", here / ".ci")
    (here / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "clone.sh", here / "scripts")
    (here / "Makefile").write_text(
        f"check test fresh-machine matrix:\n\t@echo $@ in $$PWD; [ $@ != {failing} ]\n"
    )
    git("init", "--quiet", cwd=here)
    git("add", ".", cwd=here)
    git("commit", "--quiet", "-m", "All of it", cwd=here)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [here / ".ci" / "run"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    said = [line.split() for line in done.stdout.splitlines() if " in " in line]
    assert (done.returncode == 0) == (failing is None)
    steps = ["check", "test", "fresh-machine", "matrix"]
    expected = steps if failing is None else steps[: steps.index(failing) + 1]
    assert [words[0] for words in said] == expected
    for words in said:
        assert Path(words[2]).name == "everstream"
        assert (Path(words[2]) == here) == (name == "everstream")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "text", "reason"),
    [
        ("id", "echo 1000", "only root"),
        ("unshare", "exit 1", "may not mount"),
    ],
)
def test_a_fresh_machine_is_skipped_with_the_reason_where_none_can_be_made(
    program: str, text: str, reason: str, tmp_path: Path
) -> None:
    script(tmp_path / "id", "echo 0")
    script(tmp_path / program, text)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["make", "fresh-machine"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "skipped" in done.stderr and reason in done.stderr
