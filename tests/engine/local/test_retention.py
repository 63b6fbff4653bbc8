"""More checkpoints than the newest three stay in the store, whole, and a run can be rewound to them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import everstream as es
from everstream.cli.app import app
from everstream.errors import UserError
from everstream.inspection import look, open_store, rewind
from everstream.pipeline.calls.services import CallServices
from everstream.pipeline.operator import Context
from everstream.runtime.stage import ChainStage
from everstream.state.backends.memory import MemoryBackend
from everstream.state.retention import Retention

PROTOCOLS: dict[str, Any] = {
    "aligned": es.Coordinated(every="30ms"),
    "uncoordinated": es.Uncoordinated(every="30ms"),
    "hmnr": es.CommunicationInduced(every="30ms", rule="hmnr"),
}


class Sum(es.Operator):
    """Keeps some of its state, and adds to it: so that checkpoints name objects of earlier ones."""

    total = es.Keyed(init=int)

    def process(self, n: int, ctx: es.Context) -> None:
        self.total[ctx.key] += n
        ctx.emit((ctx.key, n, self.total[ctx.key]))


def sums(total: int, per_s: float = 3_000) -> es.Pipeline:
    pipeline = es.Pipeline("sums")
    numbers = pipeline.source(es.Paced(es.Range(total, batch=20), per_s), name="numbers")
    keyed = numbers.key_by(lambda n: n % 7)
    return keyed.process(Sum(), name="sum", shards=2).collect(name="out")


def with_checkpoints(store: str, number: int, **options: Any) -> int:
    """Run until there are this many checkpoints, and stop. Returns how many records were read."""
    first: list[int] = []

    def enough(status: es.RunStatus) -> bool:
        first.append(status.epoch)
        return status.epoch >= first[0] + number

    pipeline = sums(1_000_000)
    result = pipeline.run(engine="local", store=store, until=enough, progress=False, **options)
    return result.counts["numbers"][1]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_as_many_checkpoints_as_wanted_are_kept_and_can_be_rewound_to(
    tmp_path: Path, name: str
) -> None:
    store = str(tmp_path / "store")
    total = 500 + with_checkpoints(store, 9, checkpoint=PROTOCOLS[name], keep_checkpoints=7)
    overview = look(open_store(store), verify=True)
    kept = [row for row in overview.checkpoints if row.manifest is not None]
    assert len(kept) == 7 and all(row.complete for row in kept)
    assert overview.kept == (7, 0.0)
    oldest = kept[-1].manifest
    assert oldest is not None
    rewind(open_store(store), oldest.epoch, owner="test", now=0.0)
    checkpoint = PROTOCOLS[name]
    result = sums(total).run(engine="local", store=store, checkpoint=checkpoint, progress=False)
    expected, totals = [], dict.fromkeys(range(7), 0)
    for n in range(total):
        totals[n % 7] += n
        expected.append((n % 7, n, totals[n % 7]))
    assert sorted(result.collected("out")) == sorted(expected)


def test_checkpoints_are_kept_until_they_have_an_age(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with_checkpoints(store, 5, checkpoint=PROTOCOLS["aligned"], keep_checkpoints_for="1h")
    overview = look(open_store(store), verify=True)
    assert len(overview.checkpoints) >= 5 and all(row.complete for row in overview.checkpoints)
    shown = CliRunner().invoke(app, ["checkpoints", store])
    assert "Kept: the newest 3, and all that are younger than 3600 s" in shown.output
    as_json = json.loads(CliRunner().invoke(app, ["checkpoints", store, "--json"]).stdout)
    assert as_json["kept"] == {"newest": 3, "age_s": 3600.0}
    with_checkpoints(store, 1, checkpoint=PROTOCOLS["aligned"], keep_checkpoints_for="1ms")
    assert len(look(open_store(store)).checkpoints) <= 4


def test_fewer_than_a_run_needs_to_fall_back_to_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keep_checkpoints=2: at least 3 are kept"):
        sums(10).run(engine="local", keep_checkpoints=2)


@pytest.mark.parametrize(
    ("retention", "forgotten"),
    [
        (Retention(), [None, None, None, 1, 2, 3]),
        (Retention(5), [None, None, None, None, None, 1]),
        (Retention(3, 25.0), [None, None, None, 1, 2, 3]),
        (Retention(3, 45.0), [None, None, None, None, None, 1]),
    ],
)
def test_a_source_keeps_what_kept_checkpoints_need(
    retention: Retention, forgotten: list[int | None]
) -> None:
    class Log:
        last: int | None = None

        def stable(self, offset: int) -> None:
            """Nothing to do."""

        def forget(self, offset: int) -> None:
            self.last = offset

    now_s, log = [0.0], Log()
    ctx = Context("log", 0, 1, MemoryBackend())
    ctx.services = CallServices(now_s=lambda: now_s[0], retention=retention)
    stage = ChainStage("log", ctx, reader=log)  # type: ignore[arg-type]
    found = []
    for checkpoint in range(6):
        now_s[0] = checkpoint * 10.0
        stage.offsets.append((checkpoint, checkpoint))
        stage.note_stable(checkpoint)
        found.append(log.last)
    assert found == forgotten
