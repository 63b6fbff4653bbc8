"""The gate opens when the kills have happened, or when it is idle to wait for more."""

from pathlib import Path

from everstream.audit.trial import EndGate
from everstream.core.orders import Phase
from everstream.engine.faults.kills import Kill


def test_the_gate_opens_with_the_last_kill(tmp_path: Path) -> None:
    strategy = EndGate(tmp_path / "gate", 2, patience_s=10.0)
    strategy.on_kill(Kill("a"))
    assert not strategy.gate.exists()
    strategy.on_kill(Kill("b"))
    assert strategy.gate.exists()


def test_the_gate_opens_after_a_long_quiet_time_of_running_only(tmp_path: Path) -> None:
    strategy = EndGate(tmp_path / "gate", 2, patience_s=10.0)
    strategy.on_progress(Phase.RUNNING, 0.0)
    strategy.on_progress(Phase.RUNNING, 9.0)
    strategy.on_kill(Kill("a"))
    strategy.on_progress(Phase.RESTORING, 15.0)
    strategy.on_progress(Phase.RUNNING, 30.0)
    strategy.on_progress(Phase.RUNNING, 39.0)
    assert not strategy.gate.exists()
    strategy.on_progress(Phase.RUNNING, 41.0)
    assert strategy.gate.exists()
