"""State that goes on though what stands there has changed: the rules, one per kind of change.

What an operator says of its state now is compared with what was said when it was saved. Where a rule
tells what becomes of every part of it, the run goes on, and that is said; all else is refused. Rules see
descriptions only, so they can be asked before a run, and without one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.plan import Plan
from everstream.pipeline.describing import Description

KEYED, VERSIONS = "keyed", "versions"
AGGREGATES, WINDOW = "aggregates", "window"


@dataclass(frozen=True)
class Carried:
    """How the state of an operator goes on."""

    says: tuple[str, ...]
    """What is kept, migrated, new or dropped, in words."""
    parts: bool = False
    """Rows that were made for it as it was would not fit: none may be on their way to it."""


def carried(before: Description, now: Description) -> Carried | None:
    """How state that was described so goes on under what is said now; None if no rule says so."""
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    if not changed:
        return Carried(())
    if changed <= {KEYED, VERSIONS}:
        said = _keyed(before, now)
        return None if said is None else Carried(said)
    if changed <= {AGGREGATES, WINDOW} and before.get("operator") in ("aggregates", "window"):
        of_aggregates = _aggregates(before[AGGREGATES], now[AGGREGATES])
        of_window = _window(before.get(WINDOW), now.get(WINDOW))
        if of_aggregates is None or of_window is None:
            return None
        return Carried((*of_aggregates, *of_window), parts=True)
    return None


def changed_in(manifest: EpochManifest, plan: Plan) -> dict[str, Carried]:
    """Operator -> how its state in this manifest goes on, of those that have changed and do."""
    found: dict[str, Carried] = {}
    for name, before in (manifest.described or {}).items():
        now = plan.described.get(name)
        if now is not None and now != before:
            how = carried(before, now)
            if how is not None:
                found[name] = how
    return found


def alike(older: EpochManifest, newest: EpochManifest, plan: Plan) -> bool:
    """Whether what operators are told of the newest manifest holds for an older one as well."""
    then, told = older.described or {}, newest.described or {}
    other = [name for name in then if name in told and then[name] != told[name]]
    for name in other:
        for about in (then[name], told[name]):
            how = carried(about, plan.described.get(name, {}))
            if how is None or how.parts:
                return False
    return True


def on_their_way(manifest: EpochManifest) -> bool:
    """Whether records may be between two operators in this checkpoint."""
    records = manifest.records.values()
    if any(record.holds_frames or record.carried for record in records):
        return True
    if manifest.log == "none":
        return False
    received = {channel: at for record in records for channel, at in record.received.items()}
    return any(
        at != received.get(channel, 0) for record in records for channel, at in record.sent.items()
    )


def _keyed(before: Description, now: Description) -> tuple[str, ...] | None:
    """Declared state: a later version is migrated, a further field begins with nothing."""
    had: Mapping[str, Any] = before.get(KEYED, {})
    has: Mapping[str, Any] = now.get(KEYED, {})
    said: list[str] = []
    for name, kind in had.items():
        if name not in has:
            return None
        earlier, later = (about.get(VERSIONS, {}).get(name, 1) for about in (before, now))
        if later < earlier or (later == earlier and has[name] != kind):
            return None
        if later > earlier:
            said.append(
                f"'{name}' is migrated from version {earlier} to {later}, each value when it is "
                "first touched"
            )
    said += (f"'{name}' is new: begins with nothing" for name in has if name not in had)
    return tuple(said)


def _aggregates(before: list[str], now: list[str]) -> tuple[str, ...] | None:
    """Those that are new begin at nothing, those that are gone are dropped."""
    had, has = (dict(_named(listed)) for listed in (before, now))
    gone = {name: what for name, what in had.items() if name not in has}
    new = {name: what for name, what in has.items() if name not in had}
    same = had.keys() & has.keys()
    # One that may have got another name would lose what it has: nobody can tell.
    if any(had[name] != has[name] for name in same) or set(gone.values()) & set(new.values()):
        return None
    if not same:
        return None
    return (
        *(
            f"{name}={what} is new: begins at nothing, also for keys that were"
            for name, what in new.items()
        ),
        *(f"{name}={what} is dropped" for name, what in gone.items()),
    )


def _named(listed: list[str]) -> Iterator[tuple[str, str]]:
    for text in listed:
        name, _, what = text.partition("=")
        yield name, what


def _window(before: str | None, now: str | None) -> tuple[str, ...] | None:
    """Windows that are open end as they were begun; sessions go on with the new gap."""
    if before == now:
        return ()
    if before is None or now is None:
        return None
    sessions = [text.startswith("a gap of ") for text in (before, now)]
    if all(sessions):
        return (f"open sessions go on with {now} instead of {before}",)
    if any(sessions):
        return None
    return (
        f"open windows of {before} are finished as they are, with what has come so far; what "
        f"comes from now on is in windows of {now}",
    )
