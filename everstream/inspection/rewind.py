"""Rewinding to an older checkpoint on purpose.

A rewind does what a fall back of the coordinator does: it writes the older manifest again, as the
newest. That gives up every newer epoch, and at the next run the sinks roll back the output of those
epochs. Until a run has begun, nothing is rolled back, and what was given up still exists: another
rewind can undo it.

Not every output can be rolled back. Each checkpoint records which sinks cannot remove what they have
committed, and why (`Sink.irrevocable`): Kafka topics, and sinks of users. If one of them has received
records since the older checkpoint, the rewind is refused before anything is given up.
"""

from collections.abc import Sequence
from dataclasses import replace

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.errors import StoreError, UserError
from everstream.inspection.checkpoints import problems_of, survey_of
from everstream.pipeline.sink import Delivery
from everstream.state.manifest_append import Wait, pause
from everstream.state.manifests import standing
from everstream.state.savepoints import objects_in, put_back, savepoint
from everstream.state.store import CheckpointStore


def check_rewind(store: CheckpointStore, to: int) -> tuple[EpochManifest, EpochManifest]:
    """The checkpoint to rewind to and the current one; raises if that is not possible.

    Reads every object of the older one, so that a good checkpoint is not given up for a broken one.
    """
    survey, _ = survey_of(store)
    stored = [(EpochManifest.from_json(entry.body), entry) for entry in survey.manifests]
    if not stored:
        raise UserError("the store holds no checkpoint yet: there is nothing to go back to.")
    current, *older = standing(manifest for manifest, _ in stored)
    older += _undoes(current, [manifest for manifest, _ in stored])
    choices = f"It can go back to: {', '.join(str(m.epoch) for m in older) or 'none'}."
    if to == current.epoch:
        raise UserError(f"epoch {to} is the current one already. {choices}")
    target = next((manifest for manifest in older if manifest.epoch == to), None)
    if target is None:
        given_up = any(manifest.epoch == to for manifest, _ in stored)
        gone = "was given up before, and its output may have been rolled back"
        raise UserError(f"epoch {to} {gone if given_up else 'is not in the store'}. {choices}")
    entry = next(entry for manifest, entry in stored if manifest is target)
    problems = problems_of(store, entry, {})
    if problems:
        raise StoreError(f"epoch {to} cannot be restored: {problems[0]}. {choices}")
    _check_sinks(target, current)
    return target, current


def _undoes(current: EpochManifest, stored: Sequence[EpochManifest]) -> list[EpochManifest]:
    """What the rewind to the current checkpoint gave up, if no run has begun since."""
    if not current.rewound:
        return []
    before = [m for m in stored if m.returns == current.returns[:-1] and m.epoch > current.epoch]
    return standing(before)


def _check_sinks(target: EpochManifest, current: EpochManifest) -> None:
    """Raise a UserError for the first sink with newer output that it cannot roll back."""
    for name, reason in _irrevocable(current).items():
        since = _taken(current, name) - _taken(target, name)
        if since > 0:
            raise UserError(
                f"sink '{name}' has received {since} record(s) since epoch {target.epoch}, and what it "
                f"has committed stays: {reason.rstrip('.')}. A run from there would commit them twice. "
                "Nothing was changed. Continue from the current checkpoint, or begin another store "
                "with a savepoint and another output (--start-from STORE@NAME)."
            )


def _irrevocable(manifest: EpochManifest) -> dict[str, str]:
    """Exactly-once sink -> why its output cannot be removed."""
    if manifest.irrevocable is not None:
        return manifest.irrevocable
    # Earlier versions recorded only the topics of Kafka sinks.
    return {
        name: f"Kafka cannot remove messages from topic '{about['topic']}'"
        for name, about in (manifest.described or {}).items()
        if "topic" in about and about.get("delivery") == Delivery.EXACTLY_ONCE.value
    }


def _taken(manifest: EpochManifest, operator: str) -> int:
    """The records that an operator had received at this checkpoint."""
    records = [part for record in manifest.records.values() for part in record.parts or (record,)]
    return sum(record.counts.get(operator, (0, 0))[0] for record in records)


def _gone_back(current: EpochManifest, target: EpochManifest, now: float) -> EpochManifest:
    """The manifest to write: the older checkpoint, as the newest; or, to undo that, the newer one."""
    if target.epoch > current.epoch:
        return replace(target, written_at=now)
    return replace(current.gone_back_to(target), written_at=now, rewound=True)


def rewind(
    store: CheckpointStore, to: int, *, owner: str, now: float, wait: Wait = pause
) -> EpochManifest:
    """Make an older kept checkpoint the current one. `now`: seconds since 1970.

    Takes the lease, so a driver that is still running is fenced: it can make nothing stable any
    more and ends. Returns, or raises, only when the outcome is known; `wait` is called while it
    cannot be determined.
    """
    check_rewind(store, to)
    lease = store.acquire_lease(owner)
    # Again, because a live driver may have pruned it before it was fenced.
    target, current = check_rewind(store, to)
    manifest = _gone_back(current, target, now)
    store.append_manifest(lease, manifest.to_json(), wait)
    return manifest


def check_rewind_to_savepoint(
    store: CheckpointStore, name: str
) -> tuple[EpochManifest, EpochManifest]:
    """The checkpoint of a savepoint and the current one; raises if a rewind to it is impossible.

    A store's output has one history. A savepoint is in it unless the store was rewound to before it.
    """
    kept = savepoint(store, name)
    for _ in objects_in(store, kept):
        pass
    target = EpochManifest.from_json(kept.body)
    survey, _ = survey_of(store)
    fork = f"Start another store from it: --start-from STORE@{name}."
    if kept.slot is None:
        raise UserError(f"savepoint '{name}' was imported: this store never had it. {fork}")
    if not survey.manifests:
        raise UserError(f"the store has been started afresh since savepoint '{name}'. {fork}")
    current = EpochManifest.from_json(survey.manifests[0].body)
    since = current.returns[len(target.returns) :]
    if (
        store.fresh_slot() > kept.slot
        or current.returns[: len(target.returns)] != target.returns
        or min(since, default=target.epoch) < target.epoch
        or current.epoch < target.epoch
    ):
        raise UserError(
            f"savepoint '{name}' (epoch {target.epoch}) is not in the past of epoch {current.epoch}: "
            f"the store was rewound to before it, and its output was rolled back. {fork}"
        )
    if (current.epoch, current.returns) == (target.epoch, target.returns) and not kept.edited:
        raise UserError(f"savepoint '{name}' is epoch {target.epoch}, the current one already.")
    _check_sinks(target, current)
    return target, current


def rewind_to_savepoint(
    store: CheckpointStore, name: str, *, owner: str, now: float, wait: Wait = pause
) -> EpochManifest:
    """Make the checkpoint of a savepoint the current one; otherwise like `rewind`."""
    check_rewind_to_savepoint(store, name)
    lease = store.acquire_lease(owner)
    target, current = check_rewind_to_savepoint(store, name)
    put_back(store, savepoint(store, name), store)
    manifest = _gone_back(current, target, now)
    store.append_manifest(lease, manifest.to_json(), wait)
    return manifest
