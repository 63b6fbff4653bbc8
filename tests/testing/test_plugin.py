"""The plug-in for pytest: fixtures, seeds and readable differences, as a user's own test run has them."""

import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIPELINE = """
import everstream as es
import pytest

def doubled():
    pipeline = es.Pipeline("doubled")
    numbers = pipeline.source(es.FromList([]), name="numbers")
    return numbers.map(lambda n: 2 * n, name="double").sink(es.Collect(), name="out")
"""
RunPytest = Callable[..., str]


@pytest.fixture
def run_pytest(tmp_path: Path) -> RunPytest:
    """Run pytest in a process of its own on a test file, with this plug-in."""

    def run(test: str, *options: str, code: int = 0) -> str:
        (tmp_path / "test_mine.py").write_text(PIPELINE + textwrap.dedent(test))
        command = [sys.executable, "-m", "pytest", "-p", "everstream_pytest"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--strict-markers", *options, "test_mine.py"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_harness_of_the_fixture_is_closed_when_the_test_ends(run_pytest: RunPytest) -> None:
    found = run_pytest(
        """
        made = []

        def test_first(harness):
            h = harness(doubled(), workers=1)
            h.push("numbers", [1, 2])
            assert h.uncommitted("out") == [2, 4]
            made.append(h)

        def test_second():
            with pytest.raises(es.UserError, match="closed"):
                made[0].push("numbers", [3])
        """
    )
    assert "2 passed" in found


def test_an_operator_is_tested_with_a_fixture(run_pytest: RunPytest) -> None:
    found = run_pytest(
        """
        class Twice(es.Operator):
            repeatable = True
            def process(self, record, ctx):
                ctx.emit(record)
                ctx.emit(record)

        def test_twice(operator_harness):
            op = operator_harness(Twice())
            op.push("a")
            assert op.output() == ["a", "a"]
        """
    )
    assert "1 passed" in found


SEEDED = """
    @pytest.mark.everstream_seeds(3)
    def test_one(everstream_seed):
        assert everstream_seed in range(3)

    @pytest.mark.everstream_seeds(2)
    def test_all(check_pipeline):
        report = check_pipeline(doubled(), {"numbers": range(20)})
        print("tried", report.seeds)
"""


def test_the_marker_says_how_many_seeds_a_test_has(run_pytest: RunPytest) -> None:
    found = run_pytest(SEEDED, "-rP")
    assert "4 passed" in found and "tried 2" in found


def test_the_command_line_overrides_the_marker(run_pytest: RunPytest) -> None:
    found = run_pytest(SEEDED, "-rP", "--everstream-seeds", "1")
    assert "2 passed" in found and "tried 1" in found


def test_a_marker_without_a_number_is_refused(run_pytest: RunPytest) -> None:
    found = run_pytest(
        """
        @pytest.mark.everstream_seeds
        def test_one(everstream_seed):
            pass
        """,
        code=2,
    )
    assert "everstream_seeds takes one number" in found


def test_a_failed_comparison_shows_which_records_differ(run_pytest: RunPytest) -> None:
    found = run_pytest(
        """
        def test_records(harness):
            h = harness(doubled())
            h.push("numbers", [1, 2, 3])
            assert h.uncommitted("out") == [2, 5, 6]

        def test_order(harness):
            h = harness(doubled())
            h.push("numbers", [1, 2, 3])
            h.end()
            assert [2, 6, 4] == h.output("out")

        def test_others():
            assert [1] == [2]
        """,
        code=1,
    )
    first, second, third = found.split("____ test_")[1:]
    assert "missing:  5\n" in first and "too many: 4\n" in first
    assert "in another order" in second and "at 1: 4, expected 6\n" in second
    assert "missing" not in third


def test_pytest_starts_without_loading_the_library() -> None:
    program = (
        "import sys, pytest, everstream_pytest\n"
        "heavy = {'everstream', 'polars', 'pyspark', 'hypothesis'} & set(sys.modules)\n"
        "print(sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_plug_in_is_registered_with_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["project"]["entry-points"]["pytest11"].values()
    assert module == "everstream_pytest"
    assert module in project["tool"]["setuptools"]["py-modules"]
