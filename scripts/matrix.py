"""Runs the smoke tests of tests/matrix on several versions of Spark, with the library as a wheel.

    python scripts/matrix.py 4.0 4.3

Each version has an environment in .matrix/, which is made once and again when the dependencies
change: the newest patch of that Spark, the wheel, pytest, and the other packages as constraints.txt
pins them. The tests are copied out of the repository, so that they see the wheel and not the source.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".matrix"
TESTS = ROOT / "tests" / "matrix"
TOOLS = ("pytest", "pytest-timeout")
CHECK = """
import sys, everstream, pyspark
assert everstream.__file__.startswith(sys.prefix), everstream.__file__
print(pyspark.__version__)
"""


@dataclass(frozen=True)
class Tried:
    """The outcome of one version."""

    spark: str
    installed: str
    outcome: str
    took_s: float
    passed: bool


class CommandFailed(Exception):
    """A command of ours ended with an error; holds its output."""


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command, which does not see the source tree; raises CommandFailed."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise CommandFailed(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The library as a wheel, from the files that git knows or would add."""
    source = folder / "source"
    wanted = ("everstream", "everstream_*.py", "pyspark_everstream", "docs")
    files = (*wanted, "setup.py", "pyproject.toml", "README.md", "LICENSE")
    for name in run("git", "ls-files", "-co", "--exclude-standard", *files, cwd=ROOT).splitlines():
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
    run(*pip, "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def needed() -> str:
    """Changes when the packages of an environment do."""
    files = ("pyproject.toml", "constraints.txt", "scripts/matrix.py")
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in files)).hexdigest()


def environment(spark: str, wheel: Path) -> Path:
    """The Python of an environment with this Spark and this wheel."""
    place = PLACE / f"spark-{spark}"
    python, stamp = place / "bin" / "python", place / "ready"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    if not stamp.exists() or stamp.read_text() != needed():
        print(f"Spark {spark}: making an environment (once) ...", flush=True)
        venv.create(place, clear=True, symlinks=True, with_pip=True)
        pins = place / "constraints.txt"
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        pins.write_text("\n".join(pin for pin in lines if not re.match("(pyspark|py4j)==", pin)))
        run(*pip, "-c", pins, f"pyspark=={spark}.*", wheel, *TOOLS, cwd=PLACE)
        stamp.write_text(needed())
    run(*pip, "--no-deps", "--force-reinstall", wheel, cwd=PLACE)
    return python


def smoke(spark: str, wheel: Path, folder: Path) -> Tried:
    """Run the tests on one version."""
    began_s, installed = time.monotonic(), "none"
    try:
        python = environment(spark, wheel)
        installed = run(python, "-c", CHECK, cwd=folder).strip()
        print(f"Spark {spark}: testing {installed} ...", flush=True)
        tests = folder / f"spark-{spark}" / "smoke"
        shutil.copytree(folder / "tests", tests)
        options = ("-q", "-p", "no:cacheprovider", "--timeout", "600", "--rootdir", tests.parent)
        said = run(python, "-m", "pytest", *options, tests, cwd=tests.parent)
    except CommandFailed as error:
        print(error, flush=True)
        return Tried(spark, installed, "failed", time.monotonic() - began_s, False)
    return Tried(spark, installed, said.splitlines()[-1], time.monotonic() - began_s, True)


def main(versions: list[str]) -> int:
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("Building the wheel ...", flush=True)
        wheel = build_wheel(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(TESTS, folder / "tests", ignore=ignored)  # as old as the wheel
        tried = [smoke(spark, wheel, folder) for spark in versions]
    print(f"\n{'Spark':8}{'installed':12}{'took':>8}  outcome")
    for one in tried:
        print(f"{one.spark:8}{one.installed:12}{one.took_s:7.0f}s  {one.outcome}")
    return 0 if all(one.passed for one in tried) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
