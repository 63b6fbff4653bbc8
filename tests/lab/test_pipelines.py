"""Applications as targets of the commands that take a pipeline."""

from pathlib import Path

import pytest

from everstream.cli.runs.finding import load_pipeline
from everstream.errors import UserError


@pytest.fixture(autouse=True)
def _inputs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTREAM_INPUTS", str(tmp_path / "inputs"))


@pytest.mark.parametrize(
    ("target", "name"),
    [("prime", "prime"), ("prime_test", "prime"), ("mandelbrot_small", "mandelbrot")],
)
def test_an_application_is_found_by_its_name_and_the_class_of_its_input(
    target: str, name: str
) -> None:
    assert load_pipeline(f"everstream_lab.pipelines:{target}").name == name


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("prim", "no application 'prim'; did you mean 'prime'?"),
        ("prime_tiny", "no class of inputs 'tiny'; there are: test, small"),
    ],
)
def test_an_application_that_does_not_exist_is_refused_in_one_line(
    target: str, reason: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_pipeline(f"everstream_lab.pipelines:{target}")
    assert reason in str(caught.value) and "\n" not in str(caught.value)
