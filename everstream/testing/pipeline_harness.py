"""Runs a whole pipeline inside a test: in this process, in virtual time, without Spark.

Shards, coordinator, protocols, state and store are those of a real run; the simulator takes the
place of Spark, the network and the disk. Nothing happens between two calls: each call returns when
everything it caused is done. Time passes only in `advance`, and a checkpoint is taken only in
`checkpoint` and when the input ends.
"""

import itertools
import math
import tempfile
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, Self

import polars as pl

from everstream.core.checkpointing.manifest import manifests_in
from everstream.core.checkpointing.record import DEAD_LETTERS
from everstream.core.ids import ShardId
from everstream.core.orders import Outcome, Policy
from everstream.core.plan import Plan, make_plan
from everstream.core.scheme import Scheme, scheme_of
from everstream.core.upgrade.compatibility import UpgradeOverrides, going_on
from everstream.errors import EverstreamError, InternalError, UserError
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, Uncoordinated
from everstream.pipeline.describing import check_names
from everstream.pipeline.event_time.timers import Timer
from everstream.pipeline.event_time.windows import Duration
from everstream.pipeline.graph import Kind
from everstream.pipeline.keyed_state.backend_choice import any_on_disk
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.stream import Pipeline
from everstream.pipeline.times import TimeOf, microseconds
from everstream.runtime.runner import ShardRunner
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.shapes import Shape
from everstream.simulation.workers import SimulatedWorker
from everstream.simulation.world import World
from everstream.state.store import CheckpointStore
from everstream.testing.feeds import Feed, Feeds, as_batch
from everstream.testing.instrumenting import (
    CapturedWriter,
    instrumented,
    late_name,
    sorts_out_late_records,
)
from everstream.testing.records import Records

START: Final = "2026-01-01T00:00"
"""The processing time at which a harness begins, unless a test chooses another."""
NEVER: Final = "1000000h"
"""Between two checkpoints that a shard takes without being asked."""
MOST_STEPS: Final = 100_000
"""Far more than any call takes: only an operator that never rests gets there."""

STEPS_OF_A_STANDSTILL: Final = 500
"""Steps without coming to rest, after which what is under way waits for time to pass."""

_numbers = itertools.count(-1, -1)
"""Of runs in this process; simulated runs that have a seed are numbered from 0 up."""


def new_number() -> int:
    """A number for the next run, which no other run of this process has."""
    return next(_numbers)


def harness(
    pipeline: Pipeline,
    *,
    checkpoint: Checkpointing | None = None,
    workers: int = 2,
    start: str | datetime | float = START,
) -> "Harness":
    """Run a pipeline inside a test, without Spark, and control its input, time and failures.

    The sources of the pipeline are replaced: they emit what you push. Its sinks are replaced by
    sinks that keep their output in memory, exactly once.

    checkpoint: the protocol (default: aligned); its interval is ignored.
    workers: over how many processes the shards are distributed.
    start: the processing time at which the run begins (UTC).

    >>> from everstream import testing
    >>> pipeline = es.Pipeline("totals")
    >>> orders = pipeline.source(es.FromList([]), name="orders")
    >>> totals = orders.key_by(lambda order: order[0]).fold(init=int, update=lambda n, o: n + o[1])
    >>> _ = totals.collect(name="totals")
    >>> with testing.harness(pipeline) as h:
    ...     h.push("orders", [("ada", 3), ("bob", 4)])
    ...     _ = h.checkpoint()
    ...     h.push("orders", [("ada", 5)])
    ...     h.crash("fold:0")
    ...     h.state("fold"), h.output("totals"), h.uncommitted("totals")
    ({'ada': 8, 'bob': 4}, [('ada', 3), ('bob', 4)], [('ada', 8)])
    """
    return Harness(pipeline, checkpoint or Coordinated(), workers, start)


class Harness:
    """A pipeline that runs inside a test. Made by `harness`; use it in a `with` statement.

    On leaving the `with` statement without an error, the run is stopped as by Ctrl-C: with a
    checkpoint, and operators get `on_stop`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        checkpoint: Checkpointing,
        workers: int,
        start: str | datetime | float,
    ) -> None:
        self._number = new_number()
        self._feeds = Feeds(self._number)
        self._workers = workers
        self._scheme = unprompted(checkpoint)
        self._closed = False
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._pipeline = pipeline
        plan = self._plan(pipeline)
        self._feed(plan)
        if any_on_disk(plan.graph) is not None:
            self._scratch = tempfile.TemporaryDirectory(prefix="everstream-harness-")
        policy = Policy(every_s=None, max_restarts=1000)
        self._world = World(
            0,
            shape_of(instrumented(pipeline, self._number), workers),
            NO_FAULTS,
            self._scheme,
            policy,
            scratch=self._scratch.name if self._scratch is not None else "",
            number=self._number,
            latency_s=0.0,  # a test sees what a record leads to at once
        )
        self._world.safety.exactly_once = False  # what is right is for the test to say
        self._world.fixed_time_s = seconds_since_1970(start)
        self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self._closed and self._world.outcome is None:
                self._world.stop()
                self._settle()
        finally:
            self._closed = True
            if self._scratch is not None:
                self._scratch.cleanup()

    # What a test does.

    def push(self, source: str, records: Iterable[Any]) -> None:
        """Let a source emit these records: a list, a DataFrame or any iterable.

        They are one batch. If the source has several shards, they get the records in turn.
        """
        self._open_feed(source).push(as_batch(records))
        self._look_again()

    def watermark(self, source: str, time: str | datetime | int) -> None:
        """Let the event time of a source reach this time: earlier records are late from now on.

        time: a datetime, its text ("2026-01-01T00:00", UTC), or a number in the unit that the
        source's event_time uses (microseconds, if it does not have one).
        """
        feed = self._open_feed(source)
        if isinstance(time, int):
            feed.advance(_in_microseconds(self._time_of(source), time))
        else:
            feed.advance(round(seconds_since_1970(time) * 1e6))
        self._look_again()

    def advance(self, duration: Duration) -> None:
        """Let processing time pass: "10m", a timedelta or seconds. Timers that fall due are called."""
        self._check_open()
        until_s = self.now_s + microseconds(duration) / 1e6
        if until_s < self.now_s:
            raise UserError(f"advance({duration!r}): time does not go back.")
        while self.now_s < until_s:
            chains = [runner.chain for runner in self._runners()]
            due_s = min(
                *(chain.timer_at_s for chain in chains),
                *(chain.answers_at_s for chain in chains),
                until_s,
            )
            self._world.fixed_time_s = min(due_s, until_s)
            self._look_again()

    def checkpoint(self) -> int:
        """Take a checkpoint; its output is committed. Returns the number of the epoch."""
        self._check_running()
        driver, world = self._world.driver, self._world
        driver.obey(world.coordinator.on_asked(world.scheduler.now_s))
        self._settle()
        return int(world.coordinator.stable_epoch)

    def crash(self, shard: str) -> None:
        """Kill the worker that runs this shard ("fold:1"); the run recovers from its last checkpoint."""
        self._check_running()
        self._world.kill_worker(self._world.plan.worker_of[self._shard(shard)])
        self._settle()

    def restart(
        self,
        pipeline: Pipeline | None = None,
        *,
        renamed: Mapping[str, str] | None = None,
        drop_state: Collection[str] = (),
    ) -> None:
        """Kill the driver and all workers, and start again from the last checkpoint.

        pipeline: the changed pipeline to start. The rules for upgrades apply: if its state does not
        fit, a UserError says why, and the run continues as it was. renamed, drop_state: as for
        `pipeline.run`.
        """
        self._check_open()
        world = self._world
        plan = self._plan(pipeline or self._pipeline)
        manifests = manifests_in(CheckpointStore(world.disk))
        before = manifests[0].shard_counts if manifests else {}
        dropped = frozenset({*drop_state, *self._unprobed(before, plan)})
        overrides = UpgradeOverrides(renamed or {}, dropped)
        going_on(manifests, plan, self._scheme.log, overrides)
        world.end_processes()
        world.change(plan, overrides)
        self._pipeline = pipeline or self._pipeline
        self._feed(plan)
        world.resume()
        self._settle()

    def end(self, *sources: str) -> None:
        """Let these sources end (default: all). When all have ended, the run finishes.

        A bounded input has the same effect: the watermark reaches the end of time, so windows close,
        and everything is committed.
        """
        for feed in [self._open_feed(source) for source in sources or self._feeds.by_source]:
            feed.ended = True
        self._look_again()

    # What a test looks at.

    @property
    def now_s(self) -> float:
        """The processing time, in seconds since 1970."""
        return self._world.time_s()

    @property
    def finished(self) -> bool:
        """Whether all sources have ended and everything is committed."""
        return self._world.outcome is Outcome.FINISHED

    def output(self, sink: str) -> list[Any]:
        """What a sink has committed so far, in the order of checkpoints; rows as dicts.

        Output is committed by `checkpoint` and when the input has ended; before that it is in
        `uncommitted`.
        """
        return Records(deepcopy(self._world.outside.output(self._sink(sink))))

    def uncommitted(self, sink: str) -> list[Any]:
        """What a sink was given since the last checkpoint: a crash takes it back."""
        return Records(deepcopy(self._uncommitted(self._sink(sink))))

    def late(self, operator: str) -> list[Any]:
        """The records that were too late for a window or a join, committed or not."""
        nodes = self._pipeline.graph.of_kind(Kind.OPERATOR)
        found = {node.written_as: node for node in nodes if sorts_out_late_records(node)}
        if operator not in found:
            self._refuse("operator with late records", operator, found)
        name = late_name(found[operator].name)
        return Records(deepcopy(self._world.outside.output(name) + self._uncommitted(name)))

    def dead_letters(self, operator: str) -> list[Rejected]:
        """What an operator with on_error="dead_letter" has rejected, committed or not."""
        nodes = self._pipeline.graph.nodes
        keeping = [name for name, node in nodes.items() if node.dead_letters is not None]
        if operator not in keeping:
            self._refuse("operator with on_error='dead_letter'", operator, keeping)
        name = operator + DEAD_LETTERS
        return Records(deepcopy(self._world.outside.output(name) + self._uncommitted(name)))

    def state(self, operator: str, name: str | None = None) -> dict[Any, Any]:
        """The state of an operator: key -> value, over all its shards, or of one ("fold:1").

        name: which of its states, if it declares several with `es.Keyed`; "ctx.state" for
        `ctx.state`.
        """
        found: dict[str, dict[Any, Any]] = {}
        for runner in self._runners_of(operator):
            for state, entries in _states(runner, operator.partition(":")[0]).items():
                kept = found.setdefault(state, {})
                twice = kept.keys() & entries.keys()
                if twice:
                    raise UserError(
                        f"'{operator}' has the key {twice.pop()!r} in several shards. Ask for one "
                        f"of them, such as '{operator}:0'."
                    )
                kept |= entries
        filled = [state for state, kept in found.items() if kept or state != CONTEXT_STATE]
        if name is not None and name not in found:
            self._refuse(f"state of '{operator}'", name, found)
        if name is None and len(filled) > 1:
            raise UserError(f"'{operator}' has several states: name one of {', '.join(filled)}.")
        return found[name] if name is not None else found[filled[0]] if filled else {}

    def timers(self, operator: str) -> list[Timer]:
        """The pending timers of an operator (key, name, time in microseconds), the next one first."""
        name = operator.partition(":")[0]
        chains = (runner.chain for runner in self._runners_of(operator))
        pending = (timer for chain in chains for timer in chain.stages[name].ctx.timers.pending())
        return sorted(pending, key=lambda timer: timer.at)

    # Implementation.

    def _plan(self, pipeline: Pipeline) -> Plan:
        """As a run makes and checks it."""
        check_names(pipeline.graph)
        plan = make_plan(instrumented(pipeline, self._number), self._workers)
        self._scheme.check(plan)
        return plan

    def _feed(self, plan: Plan) -> None:
        for node in plan.graph.of_kind(Kind.SOURCE):
            shards = node.shards or 1
            self._feeds.by_source.setdefault(node.name, Feed(shards)).grow(shards)

    def _unprobed(self, before: Iterable[str], plan: Plan) -> set[str]:
        """The sinks that a harness had added for operators that are gone now."""
        added = {late_name(name) for name in self._pipeline.graph.nodes}
        return (added & set(before)) - plan.graph.nodes.keys()

    def _settle(self) -> None:
        """Run until nothing is under way; raise what the run has failed with."""
        world = self._world
        for step in range(1, MOST_STEPS):
            if self._rests():
                break
            if step % STEPS_OF_A_STANDSTILL == 0 and world.coordinator.is_quiescing:
                self._let_answers_come()
            if not world.scheduler.step():
                raise InternalError("the simulated run has stopped")
        else:
            raise UserError("the pipeline does not come to rest: an operator works without end.")
        if world.outcome is Outcome.FAILED:
            raise world.error or EverstreamError("the run has failed")

    def _let_answers_come(self) -> None:
        """The run waits until nothing is under way: the calls of `map_async` take their time."""
        next_s = min((runner.chain.answers_at_s for runner in self._runners()), default=math.inf)
        if self.now_s < next_s < math.inf:
            self._world.fixed_time_s = next_s
            for worker in self._alive():
                worker.look_again()

    def _rests(self) -> bool:
        world = self._world
        if world.scheduler.due:
            return False
        if world.outcome is not None:
            return True
        run = world.coordinator
        waits = run.is_asked or run.is_pausing or run.is_quiescing
        ending = all(feed.ended for feed in self._feeds.by_source.values())
        return run.is_calm(0.0) and not waits and not ending

    def _look_again(self) -> None:
        for worker in self._alive():
            worker.look_again()
        self._settle()

    def _alive(self) -> list[SimulatedWorker]:
        return [worker for worker in self._world.workers.values() if worker.alive]

    def _runners(self) -> list[ShardRunner]:
        return [runner for worker in self._alive() for runner in worker.runners.values()]

    def _runners_of(self, operator: str) -> list[ShardRunner]:
        """Of all shards of an operator, or of one."""
        self._check_running()
        name, _, number = operator.partition(":")
        known = [node.name for node in self._pipeline.graph.of_kind(Kind.OPERATOR)]
        if name not in known:
            self._refuse("operator", name, known)
        chain = self._shard(operator if number else f"{name}:0").operator
        chosen = [r for r in self._runners() if r.shard.id.operator == chain]
        return [r for r in chosen if not number or r.shard.id.number == int(number)]

    def _uncommitted(self, name: str) -> list[Any]:
        prepared = self._world.outside.waiting
        keys = sorted(key for key in prepared if key[0] == name)
        open_records = [
            record
            for runner in sorted(self._runners(), key=lambda runner: runner.shard.id)
            for stage in runner.chain.stages.values()
            if isinstance(stage.writer, CapturedWriter) and stage.writer.output == name
            for record in stage.writer.open_records
        ]
        return [record for key in keys for record in prepared[key]] + open_records

    def _shard(self, text: str) -> ShardId:
        name, _, number = text.partition(":")
        if name not in self._pipeline.graph.nodes or not number.isdigit():
            plan = self._world.plan
            known = (
                f"{node}:{shard}"
                for node in self._pipeline.graph.nodes
                for shard in range(plan.chains[plan.chain_of[node]].shards)
            )
            self._refuse("shard", text, known)
        return self._world.plan.shard_for(name, int(number))

    def _sink(self, name: str) -> str:
        known = [node.name for node in self._pipeline.graph.of_kind(Kind.SINK)]
        if name not in known:
            self._refuse("sink", name, known)
        return name

    def _open_feed(self, source: str) -> Feed:
        self._check_open()
        known = [node.name for node in self._pipeline.graph.of_kind(Kind.SOURCE)]
        if source not in known:
            self._refuse("source", source, known)
        feed = self._feeds.by_source[source]
        if feed.ended:
            raise UserError(f"source '{source}' has ended: push before end().")
        return feed

    def _time_of(self, source: str) -> TimeOf | None:
        """How the event time of a source is read: by the nearest event_time, or by the source."""
        graph = self._pipeline.graph
        waiting = [source]
        for name in waiting:
            what = graph.nodes[name].what
            if isinstance(what, EventTime):
                return what.time
            behind = (edge.receiver for edge in graph.outputs(name))
            waiting += [receiver for receiver in behind if receiver not in waiting]
        return getattr(graph.nodes[source].what, "event_time", None)

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("the harness is closed: use it inside its `with` statement.")

    def _check_running(self) -> None:
        self._check_open()
        if self._world.outcome is not None:
            raise UserError(f"the run has {self._world.outcome.value}: no worker is left for this.")

    def _refuse(self, what: str, name: str, known: Iterable[str]) -> NoReturn:
        names = ", ".join(known) or "none"
        raise UserError(
            f"pipeline '{self._pipeline.name}' has no {what} '{name}'; it has: {names}."
        )


def unprompted(checkpoint: Checkpointing) -> Scheme:
    """The protocol, with checkpoints only when they are requested."""
    if isinstance(checkpoint, Uncoordinated):
        checkpoint = replace(checkpoint, every=NEVER, every_records=None)
    return scheme_of(checkpoint)


def shape_of(pipeline: Pipeline, workers: int, fixed: frozenset[str] = frozenset()) -> Shape:
    """A pipeline as the simulator takes it, with nothing known about its output."""

    def build(empty: Pipeline, _: int) -> None:
        empty.graph = pipeline.graph

    return Shape(pipeline.name, workers, build, dict, fixed=fixed)


def seconds_since_1970(time: str | datetime | float) -> float:
    """A datetime, its text, or the number itself; without a time zone it is UTC."""
    if isinstance(time, int | float):
        return float(time)
    try:
        given = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError as error:
        raise UserError(f"{time!r} is not a time: write it like 2026-01-01T00:00.") from error
    return (given if given.tzinfo is not None else given.replace(tzinfo=UTC)).timestamp()


def _in_microseconds(time: TimeOf | None, number: int) -> int:
    if time is None or time.unit is None:
        return number
    return int(time.microseconds(pl.Series([number]))[0])


def _states(runner: ShardRunner, operator: str) -> dict[str, dict[Any, Any]]:
    """The name of each state of an operator in one shard, and a copy of its entries."""
    stage = runner.chain.stages[operator]
    stores = {**getattr(stage.operator, "_keyed", {}), CONTEXT_STATE: stage.ctx.state}
    return {name: deepcopy(dict(store.pairs())) for name, store in stores.items()}
