"""Settings that were changed during a run, kept in its store: numbered slots, each created once.

To change settings, create the next slot, so that of two concurrent changes neither is lost. Anyone
who may write to the store may do so. Beside the slots a run publishes which settings can be
changed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from everstream.errors import StoreError
from everstream.state.blobs import Blobs
from everstream.state.objects import check_format

CONTROL: Final = "control/"
TUNABLE: Final = f"{CONTROL}tunable.json"
SLOTS: Final = f"{CONTROL}settings/"
FORMAT: Final = 1
KEPT = 3
ATTEMPTS = 20


@dataclass(frozen=True)
class Recorded:
    """The newest settings: operator -> setting -> value."""

    version: int = 0
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    shards: dict[str, "Shards"] = field(default_factory=dict)
    """Operators that are to have other numbers of shards."""


@dataclass(frozen=True)
class Shards:
    """The requested number of shards of an operator."""

    wanted: int
    written: int
    """The number in the program at that time: if the program changes it, the program wins."""


def read_settings(blobs: Blobs) -> Recorded:
    """The newest settings; raises a StoreError that names the slot if it cannot be read."""
    paths = blobs.list(SLOTS)
    if not paths:
        return Recorded()
    newest = paths[-1]
    try:
        body: dict[str, Any] = json.loads(blobs.read(newest))
        check_format(f"{newest} in the store", body.get("format", 1), FORMAT)
        shards = {name: Shards(**fields) for name, fields in body.get("shards", {}).items()}
        return Recorded(_number(newest), body["settings"], shards)
    except FileNotFoundError:  # a newer one has replaced it
        return read_settings(blobs)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{newest} in the store cannot be read ({error}): tuned settings are lost. "
            "Delete that file to continue with the settings in the program."
        ) from None


def record_settings(
    blobs: Blobs,
    more: Mapping[str, Mapping[str, str]],
    shards: Mapping[str, Shards] | None = None,
    instead_of: Mapping[str, int] | None = None,
) -> Recorded:
    """Apply these on top of the present settings.

    instead_of: numbers of shards; operators for which another number is recorded keep that one.
    """
    for _ in range(ATTEMPTS):
        before = read_settings(blobs)
        names = dict.fromkeys([*before.settings, *more])
        kept = before.settings
        settings = {name: {**kept.get(name, {}), **more.get(name, {})} for name in names}
        changed = {
            name: one
            for name, one in (shards or {}).items()
            if instead_of is None
            or name not in before.shards
            or before.shards[name].wanted == instead_of.get(name)
        }
        after = Recorded(before.version + 1, settings, {**before.shards, **changed})
        spread = {name: asdict(one) for name, one in after.shards.items()}
        body = {"format": FORMAT, "settings": after.settings, "shards": spread}
        try:
            blobs.create(_path(after.version), json.dumps(body).encode())
        except FileExistsError:
            continue  # another writer was faster: apply on top of its settings
        for path in blobs.list(SLOTS)[:-KEPT]:
            blobs.delete(path)
        return after
    raise StoreError("other writers keep changing the settings in the store: try again.")


def publish_tunable(blobs: Blobs, tunable: dict[str, dict[str, str]]) -> None:
    """Publish which settings can be tuned here."""
    body = {"format": FORMAT, "tunable": tunable}
    blobs.write(TUNABLE, json.dumps(body, indent=2).encode())


def read_tunable(blobs: Blobs) -> dict[str, dict[str, str]] | None:
    """The settings that the last run here allowed to be tuned; None if there was no run."""
    try:
        body: dict[str, Any] = json.loads(blobs.read(TUNABLE))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreError(f"{TUNABLE} in the store cannot be read: {error}") from None
    if not isinstance(body.get("format"), int):  # of the first releases, by operator
        return body
    check_format(f"{TUNABLE} in the store", body["format"], FORMAT)
    tunable: dict[str, dict[str, str]] = body["tunable"]
    return tunable


def settings_in(blobs: Blobs) -> list[str]:
    """The blobs with all settings recorded so far."""
    return blobs.list(CONTROL)


def forget_settings(blobs: Blobs, paths: Sequence[str]) -> None:
    """A fresh start uses the settings in the program."""
    for path in paths:
        blobs.delete(path)


def _path(version: int) -> str:
    return f"{SLOTS}{version:08d}.json"


def _number(path: str) -> int:
    return int(path.removeprefix(SLOTS).removesuffix(".json"))
