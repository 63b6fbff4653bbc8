"""Rules for keeping state across changes of an operator, one rule per kind of change.

An operator's description of its state now is compared with the saved description. If a rule covers
every part of the change, the run resumes and reports what happens to the state. Any other change is
refused. Rules see descriptions only, so they can be checked before a run, or without one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.plan import Plan
from everstream.pipeline.describing import Description

KEYED, VERSIONS, FIELDS = "keyed", "versions", "fields"
AGGREGATES, WINDOW = "aggregates", "window"
HOW, WITHIN = "how", "within_us"


@dataclass(frozen=True)
class Carried:
    """How the state of an operator is kept."""

    says: tuple[str, ...]
    """What is kept, migrated, new or dropped, in words."""
    parts: bool = False
    """Rows made for the earlier version would not fit: none may be in flight to the operator."""


def carried(before: Description, now: Description) -> Carried | None:
    """How state with the description `before` is kept under `now`; None if no rule covers it."""
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    if not changed:
        return Carried(())
    if changed <= {KEYED, VERSIONS, FIELDS}:
        notes = _keyed(before, now)
        return None if notes is None else Carried(notes)
    if changed <= {AGGREGATES, WINDOW} and before.get("operator") in ("aggregates", "window"):
        of_aggregates = _aggregates(before[AGGREGATES], now[AGGREGATES])
        of_window = _window(before.get(WINDOW), now.get(WINDOW))
        if of_aggregates is None or of_window is None:
            return None
        return Carried((*of_aggregates, *of_window), parts=True)
    if changed == {WITHIN} and before.get("operator") == "deduplicate":
        had, has = before[WITHIN], now[WITHIN]
        if had is None or has is None or has > had:
            return None
        return Carried((f"keys are kept for {has / 1e6:g} s instead of {had / 1e6:g} s",))
    if changed == {HOW}:
        notes = _how(before, now)
        return None if notes is None else Carried(notes)
    return None


def changed_in(manifest: EpochManifest, plan: Plan) -> dict[str, Carried]:
    """Operator -> how its state in this manifest is kept, for those that have changed."""
    changes: dict[str, Carried] = {}
    for name, before in (manifest.described or {}).items():
        now = plan.described.get(name)
        if now is not None and now != before:
            how = carried(before, now)
            if how is not None:
                changes[name] = how
    return changes


def alike(older: EpochManifest, newest: EpochManifest, plan: Plan) -> bool:
    """Whether the descriptions of the newest manifest hold for an older one as well."""
    then, now = older.described or {}, newest.described or {}
    other = [name for name in then if name in now and then[name] != now[name]]
    for name in other:
        for about in (then[name], now[name]):
            how = carried(about, plan.described.get(name, {}))
            if how is None or how.parts:
                return False
    return True


def _keyed(before: Description, now: Description) -> tuple[str, ...] | None:
    """Declared state: a later version is migrated, an additional field begins empty."""
    had: Mapping[str, Any] = before.get(KEYED, {})
    has: Mapping[str, Any] = now.get(KEYED, {})
    notes: list[str] = []
    for name, kind in had.items():
        if name not in has:
            return None
        earlier, later = (about.get(VERSIONS, {}).get(name, 1) for about in (before, now))
        if later < earlier or (later == earlier and has[name] != kind):
            return None
        if later == earlier:
            changes = _fields(name, before, now)
            if changes is None:
                return None
            notes += changes
        if later > earlier:
            notes.append(
                f"'{name}' is migrated from version {earlier} to {later}, each value when it is "
                "first used"
            )
    notes += (f"'{name}' is new: begins empty" for name in has if name not in had)
    return tuple(notes)


def _fields(state: str, before: Description, now: Description) -> tuple[str, ...] | None:
    """Fields of the class of the values: a new one begins with its default, none may go."""
    had, has = (about.get(FIELDS, {}).get(state) for about in (before, now))
    if had is None or has is None or had == has:
        return ()
    names = {field.rstrip("=") for field in had}
    new = [field for field in has if field.rstrip("=") not in names]
    if names - {field.rstrip("=") for field in has} or not all(f.endswith("=") for f in new):
        return None
    return tuple(
        f"'{state}': the field {f.rstrip('=')} is new: begins with its default" for f in new
    )


def _aggregates(before: list[str], now: list[str]) -> tuple[str, ...] | None:
    """New aggregates begin empty, removed ones are dropped."""
    had, has = (dict(text.split("=", 1) for text in listed) for listed in (before, now))
    gone = {name: what for name, what in had.items() if name not in has}
    new = {name: what for name, what in has.items() if name not in had}
    same = had.keys() & has.keys()
    # A renamed aggregate would lose its value, and a rename cannot be told from a replacement.
    if any(had[name] != has[name] for name in same) or set(gone.values()) & set(new.values()):
        return None
    if not same:
        return None
    return (
        *(
            f"{name}={what} is new: begins empty, also for existing keys"
            for name, what in new.items()
        ),
        *(f"{name}={what} is dropped" for name, what in gone.items()),
    )


_KEPT: Mapping[str, set[str]] = {
    "inner": set(),
    "left": {"left"},
    "right": {"right"},
    "full": {"left", "right"},
}
"""The sides whose rows come out even without a partner."""


def _how(before: Description, now: Description) -> tuple[str, ...] | None:
    """A window is joined when it ends, and a record as of its time when that is over, so any `how` will
    do. An interval join marks the rows that have found a partner, but only on the sides that need it:
    these may only become fewer."""
    had, has = (about.get(HOW, "inner") for about in (before, now))
    if before.get("operator") == "window_join":
        return (f"windows that are open end as {_an(has)} join instead of {_an(had)} join",)
    kept_before = before.get("operator") == "interval_join" and _KEPT[has] <= _KEPT[had]
    if kept_before or before.get("operator") in ("as_of_join", "broadcast_join"):
        return (f"continues as {_an(has)} join instead of {_an(had)} join",)
    return None


def _an(how: str) -> str:
    return f"an {how}" if how == "inner" else f"a {how}"


def _window(before: str | None, now: str | None) -> tuple[str, ...] | None:
    """Open windows end as they began; sessions continue with the new gap."""
    if before == now:
        return ()
    if before is None or now is None:
        return None
    sessions = [text.startswith("a gap of ") for text in (before, now)]
    if all(sessions):
        return (f"open sessions continue with {now} instead of {before}",)
    if any(sessions):
        return None
    return (
        f"open windows of {before} finish as they are, with the records received so far; later "
        f"records go to windows of {now}",
    )
