"""Runs with state on disk: the same results, and every tool for checkpoints works on them."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.errors import GraphError, UserError
from everstream.inspection import read_state
from everstream.inspection.checkpoints import look
from everstream.inspection.rewind import rewind_to_savepoint
from everstream.state.savepoints import (
    export_savepoint,
    import_savepoint,
    savepoint,
    take_savepoint,
)
from everstream.state.store import CheckpointStore
from tests.gated_numbers import Gated
from tests.spark import MASTER

KEYS = 500
RECORDS = 20_000


class LastSeen(es.Operator):
    """Emits what each key was seen with before."""

    last = es.Keyed[int](state="disk")

    def process(self, record: int, ctx: es.Context) -> None:
        ctx.emit((ctx.key, self.last.get(ctx.key, -1)))
        self.last[ctx.key] = record


def counting(gate: Path) -> es.Pipeline:
    """Half of the numbers until the gate is there, so that a run can be stopped half way."""
    pipeline = es.Pipeline("counting")
    keyed = pipeline.source(Gated(gate, RECORDS)).key_by(lambda n: n % KEYS)
    counts = keyed.fold(init=int, update=lambda count, n: count + 1, name="counts", state="disk")
    counts.collect()
    return pipeline


def expected() -> Counter[Any]:
    return Counter((n % KEYS, n // KEYS + 1) for n in range(RECORDS))


def windows_and_joins() -> es.Pipeline:
    pipeline = es.Pipeline("windows")
    rows = [{"user": n % 7, "at": n, "n": n} for n in range(2_000)]
    timed = pipeline.source(es.FromList(rows)).event_time("at", unit="s")
    other = pipeline.source(es.FromList(rows[::3])).event_time("at", unit="s")
    timed.key_by("user").window(es.Tumbling("100s")).aggregate(total=es.sum("n")).collect(
        name="windows"
    )
    timed.window_join(other, on="user", window=es.Tumbling("50s")).collect(name="pairs")
    keyed = timed.key_by(lambda row: row["user"])
    keyed.reduce(lambda a, b: max(a, b, key=lambda row: row["n"])).collect(name="newest")
    return pipeline


def test_operators_of_every_kind_give_the_same_with_their_state_on_disk() -> None:
    in_memory, on_disk = (
        windows_and_joins().run(state=state, master=MASTER, checkpoint=es.Coordinated(every="1s"))
        for state in ("memory", "disk")
    )
    for name in ("windows", "pairs", "newest"):
        assert sorted(map(repr, on_disk.collected(name))) == sorted(
            map(repr, in_memory.collected(name))
        )
    files = [ref for r in on_disk.checkpoints[-1].records.values() for ref in r.files]
    assert files, "nothing was on disk"


def test_declared_state_can_be_on_disk_by_itself() -> None:
    keyed = es.Pipeline("seen").source(es.Range(6)).key_by(lambda n: n % 2)
    result = keyed.process(LastSeen()).collect().run(master=MASTER)
    assert sorted(result.collected()) == [(0, -1), (0, 0), (0, 2), (1, -1), (1, 1), (1, 3)]


def test_a_run_stops_is_looked_at_kept_exported_rewound_and_goes_on_exactly(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    how: dict[str, Any] = {"master": MASTER, "checkpoint": es.Coordinated(every="200ms")}
    gate = tmp_path / "gate"
    counting(gate).run(store=url, until=lambda at: at.totals.get("counts", 0) > 5_000, **how)
    store = CheckpointStore.at(url)
    state = read_state(url, "counts")
    assert len(state) == KEYS and set(state["state"]) == {"ctx.state"}
    done = sum(state["value"])
    assert {int(key): int(value) for key, value in state.select("key", "value").rows()} == Counter(
        n % KEYS for n in range(done)
    )
    take_savepoint(store, "here", time.time())
    file = tmp_path / "here.tar"
    export_savepoint(store, savepoint(store, "here"), file, lambda ref: None)
    gate.touch()
    result = counting(gate).run(store=url, **how)
    assert Counter(result.collected()) == expected()
    overview = look(store, verify=True)
    assert all(not row.problems for row in overview.checkpoints)
    elsewhere = CheckpointStore.at(str(tmp_path / "elsewhere"))
    import_savepoint(elsewhere, file, None, lambda ref: None)
    forked = counting(gate).run(
        store=str(tmp_path / "fork"), start_from=f"{tmp_path / 'elsewhere'}@here", **how
    )
    assert Counter(forked.collected()) == expected() - Counter(
        (n % KEYS, n // KEYS + 1) for n in range(done)
    )
    rewind_to_savepoint(store, "here", owner="test", now=time.time())
    assert sum(read_state(url, "counts")["value"]) == done


def test_what_cannot_be_on_disk_is_refused_with_the_reason_and_what_to_do(tmp_path: Path) -> None:
    def aggregating() -> es.Pipeline:
        rows = es.Pipeline("sums").source(es.FromList([{"k": 1}]))
        return rows.key_by("k").aggregate(n=es.count()).collect()

    with pytest.raises(
        GraphError, match=r"arrays over all keys.*Give state='disk' to the operators"
    ):
        aggregating().run(state="disk")
    with pytest.raises(UserError, match="use 'memory' or 'disk'"):
        aggregating().run(state="tape")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a permanent process"):
        counting(tmp_path).run(engine="microbatch", checkpoint=es.Coordinated(every="1s"))
