"""Runs that end when they have caught up, and runs that have nothing to do.

With until="caught-up" every source reports its current end before Spark starts. The run reads up to
that position and no further, then quiesces and ends with a checkpoint. Unlike the end of a source,
this closes nothing: windows stay open, and the next run resumes with the new input.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.core.plan import Plan, shard_counts
from everstream.core.upgrade.compatibility import going_on
from everstream.core.upgrade.redistribute import is_quiesced
from everstream.engine.rescaling import as_wanted
from everstream.engine.result import RunResult, result_of
from everstream.engine.settings.options import RunConfig
from everstream.engine.store_session import checkpoints_in
from everstream.errors import EnvironmentFault, UserError
from everstream.events import Note
from everstream.pipeline.graph import Kind
from everstream.pipeline.source import NOT_KNOWN, Source
from everstream.state.snapshot import extras_in
from everstream.state.store import CheckpointStore

NOTHING_NEW: Final = "nothing to do: there is no new input since epoch"
"""Prefix of the note of a run that found no new input."""


def stop_at_now(plan: Plan) -> Plan:
    """The same plan, with every source limited to its current end."""
    for name, source in sources_of(plan):
        point = source.stopping_point()
        for graph in (plan.graph, plan.written):
            if graph is not None:
                graph.nodes[name] = replace(graph.nodes[name], stops_at=point)
    return plan


def sources_of(plan: Plan) -> Iterator[tuple[str, Source]]:
    for node in plan.graph.of_kind(Kind.SOURCE):
        assert isinstance(node.what, Source)
        yield node.name, node.what


def without_work(config: RunConfig, plan: Plan, url: str) -> RunResult | None:
    """The result of a run without work, determined before Spark starts; None if there is work."""
    if config.fresh:
        return None
    store = CheckpointStore.at(url, config.store_key)
    earlier = checkpoints_in(store)
    if not earlier or not store.all_shown():
        return None
    plan = as_wanted(plan, store, earlier[0], config.key_groups)
    found = going_on(earlier, plan, config.scheme.log, config.overrides)
    newest = found.manifests[0]
    if newest.final:
        notes = _of_a_finished_store(config, store, plan, newest)
        return _said(config, result_of(plan, url, Outcome.FINISHED, newest, newest.epoch), notes)
    if not config.policy.until_caught_up or found.wished or found.unwritten:
        return None
    if not is_quiesced(newest) or newest.shard_counts != shard_counts(plan):
        return None
    notes = [f"{NOTHING_NEW} {newest.epoch}"]
    for name, source in sources_of(plan):
        offsets = _offsets(store, newest, name)
        point = plan.graph.nodes[name].stops_at
        if offsets is None or source.unread(offsets, point) is not None:
            return None
        overlooked = source.overlooked(offsets, point)
        notes += [f"'{name}': {overlooked}"] if overlooked is not None else []
    return _said(config, result_of(plan, url, Outcome.CAUGHT_UP, newest, newest.epoch), notes)


def overlooked_in(config: RunConfig, plan: Plan, newest: EpochManifest, url: str) -> list[str]:
    """Input that a catch-up run will not read, one sentence per source."""
    store, found = CheckpointStore.at(url, config.store_key), list[str]()
    for name, source in sources_of(plan):
        offsets, point = _offsets(store, newest, name), plan.graph.nodes[name].stops_at
        if offsets is None:
            continue
        text = source.overlooked(offsets, point)
        found += [f"'{name}': {text}"] if text is not None else []
        records = [r for r in newest.records.values() if name in r.operators]
        unread = source.unread(offsets, point)
        if all(record.final for record in records) and unread not in (None, NOT_KNOWN):
            found.append(
                f"'{name}' has new input ({unread}), which is not read: the source ended in an "
                "earlier run without until='caught-up', and operators behind it processed that end"
            )
    return found


def _said(config: RunConfig, result: RunResult, notes: list[str]) -> RunResult:
    """The first note reports that there is nothing to do; the others are warnings."""
    for number, text in enumerate(notes):
        config.listener.on_event(Note("input", text, number > 0))
    return result


def _of_a_finished_store(
    config: RunConfig, store: CheckpointStore, plan: Plan, newest: EpochManifest
) -> list[str]:
    """The notes if the pipeline has ended; a UserError if it should resume with new input."""
    notes = [
        f"nothing to do: pipeline '{plan.graph.name}' has already finished (epoch {newest.epoch}); "
        "--fresh runs it again and deletes this output"
    ]
    for name, source in sources_of(plan):
        offsets = _offsets(store, newest, name)
        if offsets is None:
            continue
        try:
            point = source.stopping_point()
            unread, overlooked = source.unread(offsets, point), source.overlooked(offsets, point)
        except UserError:
            continue  # the source does not know
        except EnvironmentFault as error:
            notes.append(f"'{name}' could not be checked for new input: {error.message}")
            continue
        if unread not in (None, NOT_KNOWN):
            text = (
                f"'{name}' has new input ({unread}), which is not read: the pipeline has finished in "
                "this store, so its windows are closed and its last results are written. To process "
                "later input, use until='caught-up' (--until caught-up) from the first run on: "
                "in another store, or in this one with --fresh, which deletes this output"
            )
            if config.policy.until_caught_up:
                raise UserError(f"{text}.")
            notes.append(text)
        if overlooked is not None:
            notes.append(f"'{name}': {overlooked}")
    return notes


def _offsets(store: CheckpointStore, manifest: EpochManifest, source: str) -> list[Any] | None:
    """A source's offsets in a checkpoint, in shard order; None if a shard has no offset."""
    found: dict[int, Any] = {}
    for record in manifest.records.values():
        if source in record.operators and record.objects:
            newest = record.objects[-1]
            for saved, extra in extras_in(store.get(newest), newest.name).items():
                if record.owner(saved) == source and "offset" in extra:
                    found[record.shard.number] = extra["offset"]
    complete = sorted(found) == list(range(manifest.shard_counts.get(source, 0)))
    return [found[number] for number in sorted(found)] if found and complete else None
