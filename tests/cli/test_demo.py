"""`everstream demo` ends with a verdict and a report, and can tell right from wrong."""

import json
from pathlib import Path

import pytest

from everstream.audit.comparison import judge
from everstream.demo.accounts import plain_program
from tests.cli.commands import Command

pytestmark = pytest.mark.timeout(900)  # many processes start; on a busy machine that takes long


def test_the_demo_kills_recovers_and_finds_the_output_exact(tmp_path: Path) -> None:
    command = Command("demo", "--seconds", "6", "--rate", "2000", cwd=tmp_path)
    assert command.end() == 0, command.output
    command.wait_until_all_gone()
    assert command.says("lost 0, duplicated 0: 12,000 records, 12,000 expected")
    assert command.says("caught up")
    report = tmp_path / "reports" / "demo"
    told = json.loads((report / "demo.json").read_text())
    assert told["verdict"]["exact"] is True
    assert [recovery["injected"] for recovery in told["run"]["recoveries"]] == [True]
    assert told["run"]["recoveries"][0]["caught_up_ms"] is not None
    assert (report / "recovery.png").read_bytes().startswith(b"\x89PNG")
    assert "nothing was lost" in (report / "index.html").read_text()


def test_the_comparison_sees_a_lost_a_doubled_and_a_wrong_record() -> None:
    right = list(plain_program(1000))
    assert judge(right, reversed(right)).exact
    assert judge(right, right[1:]).lost == 1
    assert judge(right, [*right, right[7]]).duplicated == 1
    wrong = [*right[:-1], (*right[-1][:2], right[-1][2] + 1)]
    verdict = judge(right, wrong)
    assert (verdict.lost, verdict.duplicated, verdict.exact) == (1, 1, False)
