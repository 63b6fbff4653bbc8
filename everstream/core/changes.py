"""A pipeline goes on from the checkpoint of an earlier version of itself, or is told why not.

Each manifest carries a description of every operator that may keep state. What the pipeline says
of itself now is compared with that before any state is taken up: state that nobody would find, or
that somebody else would, is never passed over in silence. A user who means it says so: `renamed`
carries state over to another name, `dropped` leaves it behind.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from everstream.core.checkpoint_record import CheckpointRecord, LogKind
from everstream.core.ids import ShardId
from everstream.core.manifest import EpochManifest, check_fits
from everstream.core.plan import Plan
from everstream.errors import UserError
from everstream.pipeline.describing import Description
from everstream.pipeline.graph import Kind

_CHANNEL = re.compile(r"(\d+)/(.+):(\d+)->(.+):(\d+)")
V = TypeVar("V")


@dataclass(frozen=True)
class Wishes:
    """What a user has said about state that does not fit by itself."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Operator as it was -> as it is called now; to itself: it is the same in spite of all."""
    dropped: frozenset[str] = frozenset()
    """Operators that begin with nothing, whatever the checkpoint has."""

    def check(self, manifest: EpochManifest, plan: Plan) -> None:
        """Raise a UserError for what cannot be meant, or cannot be done."""
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
                    f"Say what becomes of that: rename it, too, or drop '{old}'."
                )
            if old != new and old in before and now[new].kind is Kind.SINK:
                raise UserError(
                    f"renamed {old}={new}: a sink keeps its name, because what it has written bears "
                    f"it. Call it '{old}' again."
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
                f"'{name}' has ended already, so it cannot begin again while others go on. Leave "
                "its state as it is."
            )
        on_their_way = manifest.log != "none" or any(record.holds_frames for record in holding)
        if kind is Kind.SOURCE and on_their_way:
            raise UserError(
                f"source '{name}' cannot begin again: records that it had read are on their way in "
                "this checkpoint. Go on with the pipeline as it was, and stop it under aligned "
                "checkpoints first."
            )

    def applied(self, manifest: EpochManifest) -> EpochManifest:
        """The manifest as these wishes make it: same objects, other names."""
        names = {old: new for old, new in self.renamed.items() if old != new}
        moved = {old: new for old, new in names.items() if old in _known(manifest)}
        left = self.dropped & set(_known(manifest))
        if not moved and not left:
            return manifest
        aliases = {**moved, **dict.fromkeys(left, "")}
        records = [_aliased(r, aliases, manifest.log) for r in manifest.records.values()]
        about = manifest.described
        return replace(
            manifest,
            records={record.shard: record for record in records},
            shard_counts={moved.get(n, n): count for n, count in manifest.shard_counts.items()},
            described=None if about is None else _without(about, aliases),
        )


NO_WISHES = Wishes()


@dataclass(frozen=True)
class Difference:
    """State that the pipeline as it is now would lose, or take for something else."""

    operator: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"'{self.operator}' {self.problem}. {self.fix}"


@dataclass(frozen=True)
class GoingOn:
    """What a run goes on from."""

    manifests: list[EpochManifest]
    """Newest first."""
    rewritten: bool = False
    """The newest is not the one in the store: it is to be written again before anything else."""
    notes: tuple[str, ...] = ()


def going_on(
    earlier: Sequence[EpochManifest],
    plan: Plan,
    log: LogKind = "none",
    wishes: Wishes = NO_WISHES,
) -> GoingOn:
    """What this pipeline goes on from; raises a UserError that lists all that does not fit."""
    if not earlier:
        return GoingOn([])
    newest = earlier[0]
    if newest.final:
        check_fits(newest, plan, log)
        return GoingOn(list(earlier))
    wishes.check(newest, plan)
    adapted = wishes.applied(newest)
    check_fits(adapted, plan, log)
    found = differences(adapted, plan, wishes)
    if found:
        raise UserError(refusal(found))
    older = [manifest for manifest in earlier[1:] if _fits(manifest, plan, log)]
    return GoingOn([adapted, *older], adapted is not newest, tuple(_notes(newest, plan, wishes)))


def refusal(found: Sequence[Difference]) -> str:
    """All differences as one text."""
    first = "the pipeline has changed, and state in its checkpoint would be lost or mixed up:"
    return "\n".join([first, *(f"  {difference}" for difference in found)])


def differences(
    manifest: EpochManifest, plan: Plan, wishes: Wishes = NO_WISHES
) -> list[Difference]:
    """State in this manifest that does not fit; none if it was written without descriptions."""
    if manifest.described is None:
        return []
    kept = _keeping(manifest)
    found = []
    for name, before in manifest.described.items():
        if name not in kept or wishes.renamed.get(name) == name:
            continue
        now = plan.described.get(name)
        if now is None:
            found.append(_gone(name, before, manifest, plan))
        elif now != before:
            found.append(_changed(name, before, now))
        else:
            found += _ambiguous(name, now, manifest, plan)
    return found


def _gone(name: str, before: Description, manifest: EpochManifest, plan: Plan) -> Difference:
    if name in plan.graph.nodes:
        problem = f"kept state as {_what(before)}, and what has this name now keeps none"
    else:
        problem = f"({_what(before)}) is in the checkpoint and not in the pipeline"
    drop = f"drop_state=['{name}'] (--drop-state {name}) leaves its state behind."
    if "sink" in before:
        return Difference(name, problem, f"A sink keeps its name: call it '{name}' again. {drop}")
    new = {n: now for n, now in plan.described.items() if n not in _known(manifest)}
    alike = [n for n, now in new.items() if now == before]
    alike = alike or [n for n, now in new.items() if _what(now) == _what(before)]
    if not alike:
        return Difference(name, problem, f"Put it back, or {drop}")
    return Difference(
        name,
        problem,
        f"If it is called '{alike[0]}' now, say renamed={{'{name}': '{alike[0]}'}} "
        f"(--renamed {name}={alike[0]}), or {drop}",
    )


def _changed(name: str, before: Description, now: Description) -> Difference:
    changed = [
        f"{field}: {_shown(before.get(field))} is now {_shown(now.get(field))}"
        for field in dict.fromkeys([*before, *now])
        if before.get(field) != now.get(field)
    ]
    return Difference(
        name,
        f"is not what it was ({'; '.join(changed)})",
        f"Put it back as it was; or drop_state=['{name}'] (--drop-state {name}) lets it begin with "
        f"nothing; or, if its state still fits, renamed={{'{name}': '{name}'}} "
        f"(--renamed {name}={name}) goes on with it.",
    )


def _ambiguous(
    name: str, now: Description, manifest: EpochManifest, plan: Plan
) -> Iterator[Difference]:
    """A default name may have passed from one operator to another that was added.

    Where a user has named both, nothing is left to guess.
    """
    nodes = plan.graph.nodes
    for other, about in plan.described.items():
        if other in _known(manifest) or _what(about) != _what(now):
            continue
        numbered = not nodes[other].named and other.rpartition("-")[0] == name
        if numbered or not nodes[name].named:
            yield Difference(
                name,
                f"may have had this name by default, and there is a new {_what(about)}, '{other}': "
                f"either may be the '{name}' of the checkpoint",
                f"Say name='{name}' where its state belongs, and another name for the other one.",
            )
            return


def _notes(manifest: EpochManifest, plan: Plan, wishes: Wishes) -> Iterator[str]:
    if manifest.described is None:
        yield (
            f"epoch {manifest.epoch} was written by an older Everstream, which did not describe "
            "its operators: whether the pipeline still fits was not compared"
        )
    known = _known(manifest)
    for old, new in wishes.renamed.items():
        if old == new:
            yield f"'{old}' goes on with its state as it is"
        elif old in known:
            yield f"'{new}' goes on with the state of '{old}'"
        else:
            yield f"the checkpoint has no '{old}' any more: there is nothing to rename"
    for name in sorted(wishes.dropped):
        begins = f"the state of '{name}' is dropped"
        yield f"{begins}: it begins with nothing" if name in plan.graph.nodes else begins


def _fits(manifest: EpochManifest, plan: Plan, log: LogKind) -> bool:
    """Whether one can fall back to this older manifest; it gets no wishes."""
    try:
        check_fits(manifest, plan, log)
    except UserError:
        return False
    return not differences(manifest, plan)


def _known(manifest: EpochManifest) -> set[str]:
    """Every operator of the pipeline as it was."""
    held = {name for record in manifest.records.values() for name in record.operators}
    return held | set(manifest.shard_counts)


def _keeping(manifest: EpochManifest) -> set[str]:
    """The operators of which the manifest has something."""
    return {
        name
        for record in manifest.records.values()
        for name in (record.operators if record.keeps is None else record.keeps)
    }


def _what(about: Description) -> str:
    """The kind of thing that is described."""
    return str(next((about[k] for k in ("operator", "source", "sink") if k in about), about))


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _without(values: Mapping[str, V], aliases: Mapping[str, str]) -> dict[str, V]:
    """By their names now, without what was dropped."""
    return {aliases.get(n, n): value for n, value in values.items() if aliases.get(n) != ""}


def _aliased(
    record: CheckpointRecord, aliases: Mapping[str, str], log: LogKind
) -> CheckpointRecord:
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
        keeps=None if keeps is None else tuple(_without(dict.fromkeys(keeps), aliases)),
        aliases=own,
        counts=_without(record.counts, aliases),
        skipped=_without(record.skipped, aliases),
    )
    return _renamed_channels(changed, aliases, log)


def _renamed_channels(
    record: CheckpointRecord, aliases: Mapping[str, str], log: LogKind
) -> CheckpointRecord:
    """Channels by the names of their ends now.

    Not where frames lie in the checkpoint, which are found by the names from then: `check_fits`
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


def fates(manifest: EpochManifest, plan: Plan, wishes: Wishes = NO_WISHES) -> dict[str, str]:
    """Operator -> what would become of its state, in words: those of the pipeline, then others."""
    adapted = wishes.applied(manifest)
    kept, known = _keeping(adapted), _known(manifest)
    wrong = {found.operator: found for found in differences(adapted, plan, wishes)}
    before = {new: old for old, new in wishes.renamed.items() if old != new and old in known}
    said: dict[str, str] = {}
    for name in plan.graph.nodes:
        if name in wrong:
            said[name] = f"refused: {wrong[name].problem}"
        elif name in wishes.dropped:
            said[name] = "begins with nothing: its state is dropped"
        elif name in kept:
            said[name] = (
                f"goes on with the state of '{before[name]}'" if name in before else "goes on"
            )
        elif name in plan.described:
            said[name] = "nothing saved so far" if name in known else "new: begins with nothing"
        else:
            said[name] = "keeps no state"
    said |= {name: f"refused: {f.problem}" for name, f in wrong.items() if name not in said}
    return said | dict.fromkeys(sorted(wishes.dropped - said.keys()), "dropped")
