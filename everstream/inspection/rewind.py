"""Going back to an older checkpoint on purpose.

A rewind does what a fall back of the coordinator does: it writes the older manifest again, as the
newest. Every epoch that was newer is given up with that, and at the next run the sinks take back
what those epochs had shown.
"""

from dataclasses import replace

from everstream.core.manifest import EpochManifest, still_valid
from everstream.errors import StoreError, UserError
from everstream.inspection.checkpoints import problems_of, survey_of
from everstream.state.landing import Wait, pause
from everstream.state.store import CheckpointStore


def check_rewind(store: CheckpointStore, to: int) -> tuple[EpochManifest, EpochManifest]:
    """The checkpoint to go back to and the current one; raises if that is not possible.

    Reads every object of the older one: nobody gives up a good checkpoint for a broken one.
    """
    survey, _ = survey_of(store)
    found = [(EpochManifest.from_json(entry.body), entry) for entry in survey.manifests]
    if not found:
        raise UserError("the store holds no checkpoint yet: there is nothing to go back to.")
    current, *older = still_valid(manifest for manifest, _ in found)
    choices = f"It can go back to: {', '.join(str(m.epoch) for m in older) or 'none'}."
    if to == current.epoch:
        raise UserError(f"epoch {to} is the current one already. {choices}")
    target = next((manifest for manifest in older if manifest.epoch == to), None)
    if target is None:
        given_up = any(manifest.epoch == to for manifest, _ in found)
        gone = "was given up before, and its output may have been taken back"
        raise UserError(f"epoch {to} {gone if given_up else 'is not in the store'}. {choices}")
    entry = next(entry for manifest, entry in found if manifest is target)
    problems = problems_of(store, entry, {})
    if problems:
        raise StoreError(f"epoch {to} cannot be restored: {problems[0]}. {choices}")
    return target, current


def rewind(
    store: CheckpointStore, to: int, *, owner: str, now: float, wait: Wait = pause
) -> EpochManifest:
    """Make an older kept checkpoint the current one. `now`: seconds since 1970.

    Takes the lease, so a driver that is still running is fenced: it can make nothing stable any
    more and ends. Returns, or raises, only when it is known whether the store went back; `wait`
    is called while that cannot be found out.
    """
    check_rewind(store, to)
    lease = store.acquire_lease(owner)
    # Again, because a live driver may have pruned it before it was fenced.
    target, current = check_rewind(store, to)
    manifest = replace(current.gone_back_to(target), written_at=now)
    store.append_manifest(lease, manifest.to_json(), wait)
    store.remove_given_up()
    return manifest
