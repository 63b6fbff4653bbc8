"""What was set while a run went on, kept in its store: numbered slots, each created once.

Whoever changes settings creates the next slot, so that of two who do so at once neither is lost;
whoever may write into the store may do so. A run publishes beside them what it lets be changed.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from everstream.errors import StoreError
from everstream.state.blobs import Blobs

CONTROL: Final = "control/"
TUNABLE: Final = f"{CONTROL}tunable.json"
SLOTS: Final = f"{CONTROL}settings/"
KEPT = 3
ATTEMPTS = 20


@dataclass(frozen=True)
class Recorded:
    """The newest settings: operator -> setting -> value."""

    version: int = 0
    settings: dict[str, dict[str, str]] = field(default_factory=dict)


def read_settings(blobs: Blobs) -> Recorded:
    """The newest; those of a slot that cannot be read are refused, with its name."""
    paths = blobs.list(SLOTS)
    if not paths:
        return Recorded()
    newest = paths[-1]
    try:
        body: dict[str, Any] = json.loads(blobs.read(newest))
        return Recorded(_number(newest), body["settings"])
    except FileNotFoundError:  # a newer one has replaced it
        return read_settings(blobs)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{newest} in the store cannot be read ({error}): settings that were tuned are lost. "
            "Delete that file to go on with those the pipeline was written with."
        ) from None


def record_settings(blobs: Blobs, more: dict[str, dict[str, str]]) -> Recorded:
    """Put these on top of what was set."""
    for _ in range(ATTEMPTS):
        before = read_settings(blobs)
        names = dict.fromkeys([*before.settings, *more])
        kept = before.settings
        settings = {name: {**kept.get(name, {}), **more.get(name, {})} for name in names}
        after = Recorded(before.version + 1, settings)
        try:
            blobs.create(_path(after.version), json.dumps({"settings": after.settings}).encode())
        except FileExistsError:
            continue  # somebody else was quicker: on top of theirs
        for path in blobs.list(SLOTS)[:-KEPT]:
            blobs.delete(path)
        return after
    raise StoreError("the settings in the store keep being changed by others: try again.")


def publish_tunable(blobs: Blobs, tunable: dict[str, dict[str, str]]) -> None:
    """Let others know what can be tuned here."""
    blobs.write(TUNABLE, json.dumps(tunable, indent=2).encode())


def read_tunable(blobs: Blobs) -> dict[str, dict[str, str]] | None:
    """What the last run here has let be tuned; None if there was no run."""
    try:
        tunable: dict[str, dict[str, str]] = json.loads(blobs.read(TUNABLE))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreError(f"{TUNABLE} in the store cannot be read: {error}") from None
    return tunable


def forget_settings(blobs: Blobs) -> None:
    """A fresh start has the settings the pipeline was written with."""
    for path in blobs.list(CONTROL):
        blobs.delete(path)


def _path(version: int) -> str:
    return f"{SLOTS}{version:08d}.json"


def _number(path: str) -> int:
    return int(path.removeprefix(SLOTS).removesuffix(".json"))
