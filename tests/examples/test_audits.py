"""A small audit of every example: two random kills, drawn from a seed, and the same output.

The parts are those of `everstream audit`, on one Spark for all and without a supervisor; the long
tests run the command itself, with more kills and with drivers among them.
"""

import time
from pathlib import Path

import pytest

import everstream as es
from everstream.audit.comparison import SinkOutput, compare
from everstream.audit.kill_plan import KillSchedule, lasts_s, targets_of
from everstream.audit.rehearsal import Rehearsal, rehearsed
from everstream.audit.trial import EndGate
from everstream.core.plan import make_plan
from everstream.engine.faults.kills import Kill
from everstream.engine.reporting.listener import Listener
from everstream.engine.result import RunResult
from everstream.events import Killing, Progressed, RunEvent
from everstream.pipeline.batch import records_of
from everstream.pipeline.graph import Kind
from tests.sampling import sampled

from .conftest import EXAMPLES, MASTER, Load

KILLS = 2
SEED = 7
QUIET_S = 3.0
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def outputs(result: RunResult) -> dict[str, list[object]]:
    return {
        sink: [record for batch in batches for record in records_of(batch)]
        for sink, batches in result.outputs.items()
    }


class Keeping(Listener):
    """Tells the end_gate what happens."""

    def __init__(self, strategy: EndGate) -> None:
        self.strategy = strategy

    def on_event(self, event: RunEvent) -> None:
        match event:
            case Killing(kill=kill):
                self.strategy.on_kill(Kill.parse(kill))
            case Progressed(status=status):
                self.strategy.on_progress(status.phase, time.monotonic())


@pytest.mark.parametrize("name", sampled(NAMES, ["word_count"]))
def test_an_example_comes_through_random_kills_with_the_same_output(
    load: Load, name: str, tmp_path: Path
) -> None:
    _, pipeline = load(name)
    undisturbed = rehearsed(pipeline, Rehearsal()).run(master=MASTER)
    plan = make_plan(pipeline, 2)
    drawn = KillSchedule(targets_of(plan, undisturbed.counts, drivers=False), SEED).round(KILLS)
    counts = undisturbed.counts
    records = tuple((node.name, counts[node.name][1]) for node in plan.graph.of_kind(Kind.SOURCE))
    gate = tmp_path / "gate"
    strategy = EndGate(gate, KILLS, lasts_s(KILLS) + QUIET_S)
    disturbed = rehearsed(pipeline, Rehearsal(str(gate), lasts_s(KILLS), records)).run(
        master=MASTER,
        checkpoint=es.Coordinated(every="200ms"),
        kill=drawn,
        listener=Keeping(strategy),
    )
    assert strategy.delivered, f"none of {drawn} happened"
    expected, found = outputs(undisturbed), outputs(disturbed)
    assert expected.keys() == found.keys()
    for sink, shown in expected.items():
        assert compare(sink, SinkOutput(shown), SinkOutput(found[sink])).verdict.exact, (
            sink,
            drawn,
        )
    assert any(report.injected for report in disturbed.recoveries)
