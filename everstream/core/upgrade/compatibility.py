"""Checks whether a pipeline can resume from a checkpoint that an earlier version of it wrote.

Each manifest describes every operator that may keep state. Before any state is restored, these
descriptions are compared with those of the pipeline as it is now. State that no operator would pick
up, or that another operator would, is an error and never ignored silently. The user can override
this: `renamed` moves state to another name, `dropped` leaves it behind.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from everstream.core.checkpointing.manifest import EpochManifest, check_fits
from everstream.core.checkpointing.record import DEAD_LETTERS, CheckpointRecord, LogKind
from everstream.core.ids import ShardId
from everstream.core.plan import Plan, shard_counts
from everstream.core.upgrade.migration_rules import Carried, alike, carried, changed_in
from everstream.core.upgrade.redistribute import (
    as_it_was,
    check_can_move,
    is_quiesced,
    moved,
    on_their_way,
    redistribute,
)
from everstream.errors import UserError
from everstream.pipeline.describing import Description
from everstream.pipeline.graph import Kind
from everstream.pipeline.operator import Operator

_CHANNEL = re.compile(r"(\d+)/(.+):(\d+)->(.+):(\d+)")
V = TypeVar("V")


def without(values: Mapping[str, V], aliases: Mapping[str, str]) -> dict[str, V]:
    """The values by their present names, without those that were dropped."""
    return {aliases.get(n, n): value for n, value in values.items() if aliases.get(n) != ""}


def aliased(record: CheckpointRecord, aliases: Mapping[str, str], log: LogKind) -> CheckpointRecord:
    """A record by the present names; "" marks what was dropped."""
    if not aliases.keys() & set(record.operators):
        return _renamed_channels(record, aliases, log)
    own = dict(record.aliases)
    for name in record.operators:
        if name in aliases:
            saved = next((old for old, new in own.items() if new == name), name)
            own[saved] = aliases[name]
    head = aliases.get(record.shard.operator) or record.shard.operator
    keeps = record.keeps
    changed = replace(
        record,
        shard=ShardId(head, record.shard.number),
        operators=tuple(aliases.get(name) or name for name in record.operators),
        keeps=None if keeps is None else tuple(without(dict.fromkeys(keeps), aliases)),
        aliases=own,
        counts=without(record.counts, aliases),
        skipped=without(record.skipped, aliases),
    )
    return _renamed_channels(changed, aliases, log)


def _renamed_channels(
    record: CheckpointRecord, aliases: Mapping[str, str], log: LogKind
) -> CheckpointRecord:
    """Channels by the present names of their ends.

    Except where the checkpoint holds frames, which are found by their earlier names: `check_fits`
    refuses a pipeline whose channels have other names.
    """
    if record.holds_frames or log != "none":
        return record

    def now(channel: str) -> str:
        match = _CHANNEL.fullmatch(channel)
        if match is None:
            return channel
        edge, sender, s, receiver, r = match.groups()
        ends = [aliases.get(name) or name for name in (sender, receiver)]
        return f"{edge}/{ends[0]}:{s}->{ends[1]}:{r}"

    return replace(
        record,
        received=_by(now, record.received),
        sent=_by(now, record.sent),
        ended=tuple(map(now, record.ended)),
        watermarks=_by(now, record.watermarks),
    )


def _by(name: Callable[[str], str], values: Mapping[str, int]) -> dict[str, int]:
    return {name(key): value for key, value in values.items()}


@dataclass(frozen=True)
class UpgradeOverrides:
    """The user's decisions about state that does not fit without them."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Earlier name of an operator -> its name now. To itself: keep the state despite changes."""
    dropped: frozenset[str] = frozenset()
    """Operators that begin with no state, whatever the checkpoint holds."""

    def check(self, manifest: EpochManifest, plan: Plan) -> None:
        """Raise a UserError for overrides that make no sense or cannot be applied."""
        before, now = _known(manifest), plan.graph.nodes
        targets = list(self.renamed.values())
        for old, new in self.renamed.items():
            if new not in now:
                raise UserError(
                    f"renamed {old}={new}: the pipeline has no operator '{new}'; it has: "
                    f"{', '.join(now)}."
                )
            if old not in before and new not in before:
                raise UserError(
                    f"renamed {old}={new}: the checkpoint has no operator '{old}'; it has: "
                    f"{', '.join(sorted(before))}."
                )
            if targets.count(new) > 1 or old in self.dropped or new in self.dropped:
                raise UserError(f"renamed {old}={new}: '{new}' can get one operator's state only.")
            taken = old in before and new in before and old != new and new not in self.renamed
            if taken and new in _keeping(manifest):
                raise UserError(
                    f"renamed {old}={new}: the checkpoint has state of an operator '{new}' already. "
                    f"Decide what happens to that: rename it, too, or drop '{old}'."
                )
            if old != new and old in before and now[new].kind is Kind.SINK:
                raise UserError(
                    f"renamed {old}={new}: a sink keeps its name, because its committed output "
                    f"carries it. Call it '{old}' again."
                )
        for name in sorted(self.dropped):
            if name not in before and name not in now:
                raise UserError(
                    f"there is no operator '{name}' whose state could be dropped; the checkpoint "
                    f"has: {', '.join(sorted(before))}."
                )
            if name in now:
                self._check_dropped(name, manifest, now[name].kind)

    def _check_dropped(self, name: str, manifest: EpochManifest, kind: Kind) -> None:
        holding = [record for record in manifest.records.values() if name in record.operators]
        if any(record.final for record in holding) and not manifest.final:
            raise UserError(
                f"'{name}' has already ended, so it cannot start over while others continue. Leave "
                "its state as it is."
            )
        on_their_way = manifest.log != "none" or any(record.holds_frames for record in holding)
        if kind is Kind.SOURCE and on_their_way:
            raise UserError(
                f"source '{name}' cannot start over: records that it had read are in flight in "
                "this checkpoint. Resume with the pipeline as it was, and stop it under aligned "
                "checkpoints first."
            )

    def applied(self, manifest: EpochManifest) -> EpochManifest:
        """The manifest with these overrides applied: same objects, other names."""
        names = {old: new for old, new in self.renamed.items() if old != new}
        moved = {old: new for old, new in names.items() if old in _known(manifest)}
        left = self.dropped & set(_known(manifest))
        if not moved and not left:
            return manifest
        aliases = {**moved, **dict.fromkeys(left, "")}
        records = [aliased(r, aliases, manifest.log) for r in manifest.records.values()]
        about = manifest.described
        return replace(
            manifest,
            records={record.shard: record for record in records},
            shard_counts={moved.get(n, n): count for n, count in manifest.shard_counts.items()},
            described=None if about is None else without(about, aliases),
        )


NO_OVERRIDES = UpgradeOverrides()


@dataclass(frozen=True)
class Incompatibility:
    """State that the pipeline as it is now would lose, or mistake for something else."""

    operator: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"'{self.operator}' {self.problem}. {self.fix}"


@dataclass(frozen=True)
class GoingOn:
    """What a run resumes from."""

    manifests: list[EpochManifest]
    """Newest first."""
    wished: EpochManifest | None = None
    """The newest with the user's overrides applied: to be written before anything else."""
    unwritten: bool = False
    """The first of `manifests` is the newest, redistributed over other shards: to be written once
    these have loaded it."""
    notes: tuple[str, ...] = ()
    settles: Plan | None = None
    """Records are in flight, and the numbers of shards have changed: the plan that the run begins
    with in order to quiesce first."""
    before: Mapping[str, Description] = field(default_factory=dict)
    """Operator -> the earlier description of its state, if it has changed and is kept."""

    def tell(self, plan: Plan) -> None:
        """Pass to the operators the descriptions of the state that they resume from."""
        for name, node in plan.graph.nodes.items():
            if isinstance(node.what, Operator):
                node.what.goes_on_from(self.before.get(name))


def going_on(
    earlier: Sequence[EpochManifest],
    plan: Plan,
    log: LogKind = "none",
    overrides: UpgradeOverrides = NO_OVERRIDES,
) -> GoingOn:
    """What this pipeline resumes from; raises a UserError with everything that does not fit."""
    if not earlier:
        return GoingOn([])
    newest = earlier[0]
    if newest.final:
        check_fits(newest, plan, log)
        if not moved(newest, plan):
            return GoingOn([newest, *fallbacks(earlier, plan, log)])
        if any(record.parts for record in newest.records.values()):
            before = as_it_was(newest, plan)
            return GoingOn([newest, *fallbacks(earlier, before, log)], settles=before)
        return GoingOn([redistribute(newest, plan), *fallbacks(earlier, plan, log)], unwritten=True)
    overrides.check(newest, plan)
    adapted = overrides.applied(newest)
    changed = moved(adapted, plan)
    before = as_it_was(adapted, plan) if changed else plan
    check_fits(adapted, before, log)
    begins = plan if is_quiesced(adapted) else before
    problems = differences(adapted, plan, overrides)
    if problems:
        raise UserError(refusal(problems))
    notes = [*_notes(newest, plan, overrides), *_redistributing(adapted, plan, begins is not plan)]
    described = {name: (adapted.described or {})[name] for name in changed_in(adapted, plan)}
    if changed:
        _check_one_change(changed, described, plan)
        check_can_move(adapted, plan)
    wished = adapted if adapted is not newest else None
    unwritten = bool(changed) and begins is plan
    if unwritten:
        adapted = redistribute(adapted, plan)
    older = [m for m in fallbacks(earlier, begins, log) if alike(m, adapted, plan)]
    settles = None if begins is plan else begins
    return GoingOn([adapted, *older], wished, unwritten, tuple(notes), settles, described)


def _check_one_change(
    moving: Mapping[str, int], described: Mapping[str, Description], plan: Plan
) -> None:
    for name in sorted(moving.keys() & described.keys()):
        raise UserError(
            f"'{name}' has changed, and would resume with {shard_counts(plan)[name]} shard(s) "
            f"instead of {moving[name]}. Do one after the other: set shards={moving[name]}, run "
            "until the next checkpoint, then change the shards (everstream scale does that while "
            "the run continues)."
        )


def _redistributing(manifest: EpochManifest, plan: Plan, settles: bool) -> Iterator[str]:
    now = shard_counts(plan)
    for name, before in moved(manifest, plan).items():
        if before != now[name]:
            yield f"'{name}' resumes with {now[name]} shard(s) instead of {before}"
    if settles:
        yield "records in flight in the checkpoint are processed first, by the earlier shards"


def refusal(problems: Sequence[Incompatibility]) -> str:
    first = "the pipeline has changed, and state in its checkpoint would be lost or mixed up:"
    return "\n".join([first, *(f"  {difference}" for difference in problems)])


def differences(
    manifest: EpochManifest, plan: Plan, overrides: UpgradeOverrides = NO_OVERRIDES
) -> list[Incompatibility]:
    """State in this manifest that does not fit; none if the manifest has no descriptions."""
    if manifest.described is None:
        return []
    kept = _keeping(manifest)
    problems = []
    for name, before in manifest.described.items():
        if name not in kept or overrides.renamed.get(name) == name:
            continue
        now = plan.described.get(name)
        if now is None:
            problems.append(_gone(name, before, manifest, plan))
        elif (how := carried(before, now)) is None:
            problems.append(_changed(name, before, now))
        elif how.parts and on_their_way(manifest):
            problems.append(_late(name, how))
        else:
            problems += _ambiguous(name, now, manifest, plan)
    return problems


def _late(name: str, how: Carried) -> Incompatibility:
    return Incompatibility(
        name,
        f"has changed ({'; '.join(how.says)}), and the checkpoint holds rows in flight that were "
        "made for its earlier version",
        "Resume with the pipeline as it was, and stop it under aligned checkpoints first; or "
        f"drop_state=['{name}'] (--drop-state {name}) lets it begin with no state.",
    )


def _gone(name: str, before: Description, manifest: EpochManifest, plan: Plan) -> Incompatibility:
    if name in plan.graph.nodes:
        problem = f"kept state as {_what(before)}, and the operator with this name now keeps none"
    else:
        problem = f"({_what(before)}) is in the checkpoint and not in the pipeline"
    drop = f"drop_state=['{name}'] (--drop-state {name}) leaves its state behind."
    if "sink" in before:
        return Incompatibility(
            name, problem, f"A sink keeps its name: call it '{name}' again. {drop}"
        )
    new = {n: now for n, now in plan.described.items() if n not in _known(manifest)}
    alike = [n for n, now in new.items() if now == before]
    alike = alike or [n for n, now in new.items() if _what(now) == _what(before)]
    if not alike:
        return Incompatibility(name, problem, f"Put it back, or {drop}")
    return Incompatibility(
        name,
        problem,
        f"If it is called '{alike[0]}' now, set renamed={{'{name}': '{alike[0]}'}} "
        f"(--renamed {name}={alike[0]}), or {drop}",
    )


def _changed(name: str, before: Description, now: Description) -> Incompatibility:
    changed = [
        f"{field}: {_shown(before.get(field))} is now {_shown(now.get(field))}"
        for field in dict.fromkeys([*before, *now])
        if before.get(field) != now.get(field)
    ]
    return Incompatibility(
        name,
        f"is not what it was ({'; '.join(changed)})",
        f"Change it back; or drop_state=['{name}'] (--drop-state {name}) lets it begin with "
        f"no state; or, if its state still fits, renamed={{'{name}': '{name}'}} "
        f"(--renamed {name}={name}) keeps it.",
    )


def _ambiguous(
    name: str, now: Description, manifest: EpochManifest, plan: Plan
) -> Iterator[Incompatibility]:
    """A default name may have passed from one operator to another that was added.

    Where a user has named both, there is no ambiguity.
    """
    nodes = plan.graph.nodes
    for other, about in plan.described.items():
        if other in _known(manifest) or _what(about) != _what(now):
            continue
        numbered = not nodes[other].named and other.rpartition("-")[0] == name
        if numbered or not nodes[name].named:
            yield Incompatibility(
                name,
                f"may have had this name by default, and there is a new {_what(about)}, '{other}': "
                f"either may be the '{name}' of the checkpoint",
                f"Set name='{name}' on the one that owns the state, and another name on the other "
                "one.",
            )
            return


def _notes(manifest: EpochManifest, plan: Plan, overrides: UpgradeOverrides) -> Iterator[str]:
    if manifest.described is None:
        yield (
            f"epoch {manifest.epoch} was written by an older Everstream, which did not describe "
            "its operators: could not check whether the pipeline still fits"
        )
    known = _known(manifest)
    for old, new in overrides.renamed.items():
        if old == new:
            yield f"'{old}' keeps its state as it is"
        elif old in known:
            yield f"'{new}' resumes with the state of '{old}'"
        else:
            yield f"the checkpoint has no '{old}' any more: there is nothing to rename"
    for name, how in changed_in(overrides.applied(manifest), plan).items():
        if overrides.renamed.get(name) != name:
            yield from (f"'{name}': {text}" for text in how.says)
    for name in sorted(overrides.dropped):
        begins = f"the state of '{name}' is dropped"
        yield f"{begins}: it begins with no state" if name in plan.graph.nodes else begins


def fallbacks(
    earlier: Sequence[EpochManifest], plan: Plan, log: LogKind
) -> Iterator[EpochManifest]:
    """The manifests before the newest that a run can fall back to if the newest cannot be restored.

    Falling back past a change in the number of shards also takes back output of the later shards.
    """
    newest = earlier[0]
    for manifest in earlier[1:]:
        most = {n: max(newest.ever(n), manifest.ever(n)) for n in manifest.shard_counts}
        alone = all(manifest.ever(name) == most[name] for name in most)
        if alone and _fits(manifest, plan, log):
            yield manifest
        elif is_quiesced(manifest) and manifest.log == log and not differences(manifest, plan):
            with suppress(UserError):
                yield redistribute(replace(manifest, most_shards=most), plan)


def _fits(manifest: EpochManifest, plan: Plan, log: LogKind) -> bool:
    """Whether a run can resume from this older manifest, to which no overrides apply."""
    try:
        check_fits(manifest, plan, log)
    except UserError:
        return False
    return not moved(manifest, plan) and not differences(manifest, plan)


def _known(manifest: EpochManifest) -> set[str]:
    """Every operator of the pipeline that wrote the manifest."""
    held = {name for record in manifest.records.values() for name in record.operators}
    return held | set(manifest.shard_counts)


def _keeping(manifest: EpochManifest) -> set[str]:
    """The operators whose state is in the manifest."""
    return {name for record in manifest.records.values() for name in record.keeping}


def _what(about: Description) -> str:
    """The kind of thing that is described."""
    return str(next((about[k] for k in ("operator", "source", "sink") if k in about), about))


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def fates(
    manifest: EpochManifest, plan: Plan, overrides: UpgradeOverrides = NO_OVERRIDES
) -> dict[str, str]:
    """Operator -> what would happen to its state, in words: those of the pipeline, then others."""
    adapted = overrides.applied(manifest)
    kept, known = _keeping(adapted), _known(manifest)
    wrong = {problem.operator: problem for problem in differences(adapted, plan, overrides)}
    before = {new: old for old, new in overrides.renamed.items() if old != new and old in known}
    other, now = moved(adapted, plan), shard_counts(plan)
    changed = changed_in(adapted, plan)
    texts: dict[str, str] = {}
    for name in plan.graph.nodes:
        if name in wrong:
            texts[name] = f"refused: {wrong[name].problem}"
        elif name in overrides.dropped:
            texts[name] = "begins with no state: its state is dropped"
        elif name in kept:
            going = f"resumes with the state of '{before[name]}'" if name in before else "resumes"
            same = name not in changed or overrides.renamed.get(name) == name
            texts[name] = "; ".join([going, *(() if same else changed[name].says)])
            if name in other and other[name] != now[name]:
                texts[name] += f", redistributed over {now[name]} shard(s) instead of {other[name]}"
        elif name in plan.described:
            texts[name] = "nothing saved so far" if name in known else "new: begins with no state"
        else:
            texts[name] = "keeps no state"
    texts |= {name: f"refused: {f.problem}" for name, f in wrong.items() if name not in texts}
    return texts | dict.fromkeys(sorted(overrides.dropped - texts.keys()), "dropped")


def forked(manifest: EpochManifest, plan: Plan) -> EpochManifest:
    """The manifest that a run of this pipeline in another store begins with, from a savepoint.

    Output that sinks had prepared belongs to the run that took the savepoint, which commits it or
    has done so. The fork takes over everything else: its sinks start empty.
    """
    sinks = {node.name for node in plan.graph.of_kind(Kind.SINK)}
    left = UpgradeOverrides(dropped=frozenset(sinks)).applied(manifest)
    rejecting = [node.name for node in plan.graph.nodes.values() if node.dead_letters is not None]
    records = {shard: _without_output(r, rejecting) for shard, r in left.records.items()}
    return replace(left, records=records, returns=())


def _without_output(record: CheckpointRecord, rejecting: list[str]) -> CheckpointRecord:
    letters = {name + DEAD_LETTERS: "" for name in rejecting if name in record.operators}
    return replace(record, aliases={**record.aliases, **letters}, uncommitted={})
