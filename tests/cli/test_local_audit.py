"""An audit on the local engine, of a program whose classes its workers import by name."""

import subprocess
import sys
from pathlib import Path

LEDGER = Path(__file__).parents[2] / "examples" / "ledger.py"


def test_an_audit_on_the_local_engine_kills_and_finds_everything(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text(LEDGER.read_text())
    arguments = ["audit", "ledger.py", "--engine", "local", "--kills", "1", "--seed", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "everstream", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, duplicated 0:" in done.stdout
    assert "1 of 1 kills happened" in done.stdout
