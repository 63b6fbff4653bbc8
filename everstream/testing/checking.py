"""Runs a pipeline of the user under many faults, and compares its output with a run without faults.

Each seed is one run in the simulator: it selects the timing, the number of workers, and which faults
happen when. The output of every operator is captured besides that of the sinks, so that a
difference is attributed to the first operator on the way that emitted something else.
"""

import random
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from everstream.audit.comparison import SinkOutput, fingerprint
from everstream.audit.comparison import compare as differences_of
from everstream.core.orders import Outcome
from everstream.core.plan import make_plan, shard_counts
from everstream.core.scheme import scheme_of
from everstream.errors import EverstreamError, StoreError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import Checkpointing, Coordinated, Uncoordinated
from everstream.pipeline.graph import ByKey, Graph, Kind
from everstream.pipeline.keyed_state.backend_choice import any_on_disk
from everstream.pipeline.operator import Operator
from everstream.pipeline.stream import Pipeline
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.happenings import History
from everstream.simulation.storm import INTERVALS_S, JITTER
from everstream.simulation.world import World
from everstream.testing.feeds import Feed, Feeds, as_batch
from everstream.testing.instrumenting import emitted_name, instrumented
from everstream.testing.pipeline_harness import new_number, shape_of

Outputs: TypeAlias = dict[str, list[Any]]
"""Sink -> its records."""

CHECKED: Final = Faults(
    rotten_objects=0,
    power_cuts=1,
    operator_errors=1,
    sink_errors=1,
    rescales=2,
)
"""What a pipeline is checked under by default: everything that it must survive with its output intact.

Clocks that are set and data that rots on every copy are left out: they may change or end a run.
"""
BATCHES: Final = 60
"""Into how many batches an input is cut, at most: a fault can fall between any two."""
CALM_SEEDS: Final = 3
"""Runs without faults that differ in their timing only."""


class CheckFailed(AssertionError):
    """A pipeline did not give the same output under faults; the message has the way to replay it."""


@dataclass(frozen=True)
class CheckReport:
    """What a pipeline has been through."""

    seeds: int
    faults: int
    """How many faults have happened."""
    recoveries: int
    """How often the pipeline was rolled back to a checkpoint."""


def check(
    pipeline: Pipeline,
    inputs: Mapping[str, Iterable[Any]],
    *,
    faults: Faults = CHECKED,
    seeds: int | Sequence[int] = 100,
    upgrade: Pipeline | None = None,
    checkpoint: Checkpointing | None = None,
    compare: Callable[[Outputs], Any] | None = None,
    only: Collection[int] | None = None,
) -> CheckReport:
    """Run a pipeline under seeded faults, and require the output of a run without faults.

    Workers and the driver are killed, operators are rescaled, writes to the store are slow, torn or
    lost. Values and types are compared; the order counts for sinks with ordered=True. A difference
    raises `CheckFailed`, with the shortest list of faults that still fails and the call that
    replays it. An operator that gives different output for the same input is named.

    inputs: for each source, by its name, the records that it emits before it ends.
    faults: how many faults of each kind a seed may have, at most.
    seeds: how many seeds to try, or which. For a small pipeline, a thousand take a minute or two.
    upgrade: a changed pipeline that each run continues with, from a checkpoint in the middle.
    checkpoint: the protocol (default: aligned). Intervals follow from the seed.
    compare: computes what must be equal from the outputs of all sinks, if not all of it.
    only: which of the faults of a seed happen, by their numbers: to replay a failure.

    >>> from everstream import testing
    >>> pipeline = es.Pipeline("totals")
    >>> orders = pipeline.source(es.FromList([]), name="orders").key_by(lambda order: order % 3)
    >>> _ = orders.fold(init=int, update=lambda n, order: n + order).collect(name="totals")
    >>> testing.check(pipeline, {"orders": range(100)}, seeds=5).seeds
    5
    """
    subject = _Subject(pipeline, inputs, upgrade, checkpoint or Coordinated(), compare, faults)
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if not chosen:
        raise UserError(f"seeds={seeds!r}: give a number from 1 up, or a list of seeds.")
    expected = subject.expected()
    happened = recoveries = 0
    for seed in chosen:
        found = subject.run(seed, faults, only)
        if not subject.agrees(expected, found):
            raise CheckFailed(_Shrunk(subject, expected, seed, found, only).message())
        happened += len(found.history.faults)
        recoveries += found.history.recoveries
    return CheckReport(len(chosen), happened, recoveries)


@dataclass(frozen=True)
class _Ran:
    """One run."""

    history: History
    outputs: Outputs
    emitted: dict[tuple[str, str], list[Any]]
    """Operator and output -> everything emitted there."""
    error: EverstreamError | None
    faults_drawn: int


@dataclass
class _Subject:
    """A pipeline to be checked, with its input."""

    pipeline: Pipeline
    inputs: Mapping[str, Iterable[Any]]
    upgrade: Pipeline | None
    checkpoint: Checkpointing
    compare: Callable[[Outputs], Any] | None
    faults: Faults
    _batches: dict[str, list[Batch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.pipeline.graph
        sources = [node.name for node in graph.of_kind(Kind.SOURCE)]
        for name in dict.fromkeys([*sources, *self.inputs]):
            if name not in sources or name not in self.inputs:
                there = "the pipeline has no source" if name not in sources else "inputs has no"
                known = ", ".join(sources)
                raise UserError(f"{there} '{name}': give the records of each source, {known}.")
        self._batches = {name: _cut(as_batch(given)) for name, given in self.inputs.items()}

    # Runs.

    def expected(self) -> _Ran:
        """A run without faults; raises if another one differs."""
        first = self.run(0, NO_FAULTS)
        if first.error is not None:
            raise first.error
        if first.history.outcome is not Outcome.FINISHED:
            raise CheckFailed(f"without faults the run does not end: {first.history.violations}")
        self._require_same(
            first,
            self.run(0, NO_FAULTS),
            "two runs without faults and with the same timing differ. A random number, the clock, or "
            "something outside the pipeline decides its output",
        )
        for seed in range(1, 1 + CALM_SEEDS):
            self._require_same(
                first,
                self.run(seed, NO_FAULTS),
                "two runs without faults that differ only in their timing differ. The clock, or the "
                "order in which records of several shards arrive, decides its output. Pass "
                "compare=... to compare what does not depend on it",
            )
        return first

    def _require_same(self, first: _Ran, second: _Ran, why: str) -> None:
        if not self.agrees(first, second):
            lines = [
                f"operator '{self.culprit(first, second)}' is not deterministic: {why}.",
                *self.described(first, second),
            ]
            raise CheckFailed("\n".join(lines))

    def run(self, seed: int, faults: Faults, only: Collection[int] | None = None) -> _Ran:
        """One run, from the first record to the last."""
        number, chance = new_number(), random.Random(seed)
        workers, stop_at = chance.randint(1, 4), chance.randint(1, 4)
        feeds = self._feeds(number)
        twin = instrumented(self.pipeline, number, all_outputs=True)
        on_disk = any_on_disk(self.pipeline.graph) is not None
        with tempfile.TemporaryDirectory() if on_disk else nullcontext("") as scratch:
            world = World(
                seed,
                shape_of(twin, workers, _fixed(twin.graph)),
                faults,
                scheme_of(_at_intervals(self.checkpoint, seed)),
                scratch=scratch,
                number=number,
                only=only,
            )
            world.scheme.check(world.plan)
            world.safety.exactly_once = False  # compared below, when all output is there
            if self.upgrade is not None and faults is not NO_FAULTS:
                world.when(f"epoch {stop_at} is stable", world.stop)
            history = world.run()
            if history.outcome is Outcome.STOPPED and self.upgrade is not None:
                _upgrade(world, instrumented(self.upgrade, number, all_outputs=True), feeds)
                history = world.run()
        outside, graph = world.outside, self.pipeline.graph
        return _Ran(
            history,
            {node.name: outside.output(node.name) for node in graph.of_kind(Kind.SINK)},
            {
                (edge.sender, edge.output): outside.output(emitted_name(edge.sender, edge.output))
                for edge in graph.edges
            },
            world.error,
            world.faults_drawn,
        )

    def _feeds(self, number: int) -> Feeds:
        feeds = Feeds(number)
        for name, batches in self._batches.items():
            feed = feeds.by_source[name] = Feed(self.pipeline.graph.nodes[name].shards or 1)
            for batch in batches:
                feed.push(batch)
            feed.ended = True
        return feeds

    # Comparison.

    def agrees(self, expected: _Ran, found: _Ran) -> bool:
        """A run that stops because all its checkpoints are damaged does what it must."""
        if found.history.refused:
            return True
        if found.history.outcome is not Outcome.FINISHED or found.history.violations:
            return False
        if self.compare is not None:
            wanted, got = self.compare(expected.outputs), self.compare(found.outputs)
            return fingerprint(wanted) == fingerprint(got)
        return not self._differing(expected, found)

    def _differing(self, expected: _Ran, found: _Ran) -> list[str]:
        """The sinks that differ."""
        nodes = self.pipeline.graph.nodes
        return [
            sink
            for sink, records in expected.outputs.items()
            if not _same(records, found.outputs[sink], ordered=nodes[sink].ordered)
        ]

    def culprit(self, expected: _Ran, found: _Ran) -> str:
        """The first operator on the way to the sinks whose output differs."""
        for node in self.pipeline.graph.upstream_first():
            for place, records in expected.emitted.items():
                if place[0] == node.name and not _same(records, found.emitted[place]):
                    return node.written_as
        return next(iter(self._differing(expected, found)), self.pipeline.name)

    def described(self, expected: _Ran, found: _Ran) -> list[str]:
        """What is wrong with the output, line by line."""
        if found.error is not None:
            return [f"the run has failed: {found.error}"]
        lines = list(found.history.violations)
        for sink in self._differing(expected, found):
            records, got = expected.outputs[sink], found.outputs[sink]
            difference = differences_of(sink, SinkOutput(records), SinkOutput(got))
            if difference.verdict.exact:
                lines.append(f"sink '{sink}': the same records in another order: {got[:10]!r} ...")
                continue
            verdict = difference.verdict
            lines.append(
                f"sink '{sink}': {verdict.lost} record(s) missing, {verdict.duplicated} too many"
            )
            lines += [f"  missing:  {text}" for text in difference.missing]
            lines += [f"  too many: {text}" for text in difference.surplus]
        return lines


class _Shrunk:
    """The fewest faults of a seed under which a pipeline still fails."""

    def __init__(
        self,
        subject: _Subject,
        expected: _Ran,
        seed: int,
        found: _Ran,
        only: Collection[int] | None,
    ) -> None:
        self._subject, self._expected, self._seed = subject, expected, seed
        self._found = found
        self._drawn = found.faults_drawn
        self._only = list(range(self._drawn)) if only is None else sorted(only)
        self._shrink()

    def _shrink(self) -> None:
        """Leave out parts, large ones first, as long as the rest still fails."""
        size = len(self._only)
        while size:
            start = 0
            while start < len(self._only):
                fewer = self._only[:start] + self._only[start + size :]
                found = self._subject.run(self._seed, self._subject.faults, fewer)
                if self._subject.agrees(self._expected, found):
                    start += size
                else:
                    self._only, self._found = fewer, found
            size //= 2

    def message(self) -> str:
        subject, found = self._subject, self._found
        culprit = subject.culprit(self._expected, found)
        alone = "the timing" if subject.upgrade is None else "the upgrade"
        faults = [f"  {line}" for line in found.history.faults] or [f"  none: {alone} is enough"]
        return "\n".join(
            [
                f"under seed {self._seed} the output differs from that of a run without faults.",
                *subject.described(self._expected, found),
                f"the first operator whose output differs: '{culprit}'. After a failure it gets "
                "records again, and must emit the same: keep what it remembers in es.Keyed or "
                "ctx.state, not in plain attributes.",
                f"the shortest schedule that fails ({len(self._only)} of {self._drawn} faults), in "
                "virtual seconds:",
                *faults,
                f"replay it with: {self._call()}",
            ]
        )

    def _call(self) -> str:
        subject = self._subject
        given = [f"seeds=[{self._seed}]", f"only={self._only}"]
        if subject.faults != CHECKED:
            given.append(f"faults={_changed(subject.faults)}")
        if subject.upgrade is not None:
            given.append("upgrade=upgrade")
        if subject.checkpoint != Coordinated():
            given.append(f"checkpoint=es.{subject.checkpoint!r}")
        if subject.compare is not None:
            given.append("compare=compare")
        return f"testing.check(pipeline, inputs, {', '.join(given)})"


def _changed(faults: Faults) -> str:
    """As it is written, without what is as in `Faults()`."""
    plain = vars(Faults())
    given = (f"{name}={value!r}" for name, value in vars(faults).items() if value != plain[name])
    return f"testing.Faults({', '.join(given)})"


def _cut(batch: Batch) -> list[Batch]:
    size = max(1, -(-len(batch) // BATCHES))
    return [batch[start : start + size] for start in range(0, len(batch), size)]


def _same(expected: Sequence[Any], found: Sequence[Any], *, ordered: bool = False) -> bool:
    if ordered:
        return [*map(fingerprint, expected)] == [*map(fingerprint, found)]
    return differences_of("", SinkOutput(expected), SinkOutput(found)).verdict.exact


def _fixed(graph: Graph) -> frozenset[str]:
    """The operators that keep their shards: without a key, another number may show in the output."""
    return frozenset(
        node.name
        for node in graph.nodes.values()
        if not isinstance(node.what, Operator)
        or node.what.judges_lateness
        or node.what.announces_watermarks
        or not all(isinstance(edge.routing, ByKey) for edge in graph.inputs(node.name))
    )


def _at_intervals(checkpoint: Checkpointing, seed: int) -> Checkpointing:
    if not isinstance(checkpoint, Uncoordinated):
        return checkpoint  # the world chooses
    return replace(checkpoint, every=INTERVALS_S[seed % len(INTERVALS_S)], jitter=JITTER)


def _upgrade(world: World, pipeline: Pipeline, feeds: Feeds) -> None:
    """Continue a run that was stopped with a changed pipeline, by the rules for upgrades."""
    now = shard_counts(world.plan)
    kept = {name: now[name] for name in pipeline.graph.nodes if name in now}
    plan = make_plan(pipeline, len(world.plan.workers), kept)
    for node in plan.graph.of_kind(Kind.SOURCE):
        feeds.by_source.setdefault(node.name, Feed(1)).ended = True
    for attempt in range(10):
        try:
            world.change(plan)
            break
        except StoreError:  # a fault is pending there, too
            if attempt == 9:
                raise
    world.resume()
