"""The gate opens when the kills have happened, or when it is idle to wait for more."""

from pathlib import Path

from everstream.audit.gatekeeper import Gatekeeper
from everstream.core.orders import Phase
from everstream.spark.kills import Kill


def test_the_gate_opens_with_the_last_kill(tmp_path: Path) -> None:
    keeper = Gatekeeper(tmp_path / "gate", 2, patience_s=10.0)
    keeper.on_kill(Kill("a"))
    assert not keeper.gate.exists()
    keeper.on_kill(Kill("b"))
    assert keeper.gate.exists()


def test_the_gate_opens_after_a_long_quiet_time_of_running_only(tmp_path: Path) -> None:
    keeper = Gatekeeper(tmp_path / "gate", 2, patience_s=10.0)
    keeper.on_progress(Phase.RUNNING, 0.0)
    keeper.on_progress(Phase.RUNNING, 9.0)
    keeper.on_kill(Kill("a"))
    keeper.on_progress(Phase.RESTORING, 15.0)
    keeper.on_progress(Phase.RUNNING, 30.0)
    keeper.on_progress(Phase.RUNNING, 39.0)
    assert not keeper.gate.exists()
    keeper.on_progress(Phase.RUNNING, 41.0)
    assert keeper.gate.exists()
