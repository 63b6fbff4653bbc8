"""The options of `spark.read.format("everstream")`, checked.

Options are sent to every task in clear text, so none of them contains a secret: `store_key` is the
name of a file, and each process reads that file itself.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from everstream.errors import UserError
from everstream.inspection import open_store
from everstream.state.signing import StoreKey, StoreUrl
from everstream.state.store import CheckpointStore

What: TypeAlias = Literal["output", "state", "checkpoints", "dead_letters", "topic"]

TAKES: Final[dict[What, frozenset[str]]] = {
    "output": frozenset({"operator"}),
    "state": frozenset({"operator", "epoch", "rows"}),
    "checkpoints": frozenset({"verify"}),
    "dead_letters": frozenset({"operator"}),
    "topic": frozenset(),
}
"""The options of each kind, in addition to those that all take."""
ALWAYS: Final = frozenset({"store", "path", "store_key", "what"})


@dataclass(frozen=True)
class Asked:
    """The options of one read."""

    store: str
    store_key: str | None = None
    what: What | None = None
    """None: not given; the store shows what the operator has."""
    operator: str | None = None
    epoch: int | None = None
    rows: bool = False
    """Of a built-in operator: its rows, with a column for each part of the key and each result."""
    verify: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Asked":
        """Raises a UserError for an unknown option, so that a misspelt one is not ignored."""
        given = {name.lower(): text for name, text in options.items()}
        what = _what(given.get("what"))
        takes = TAKES[what] if what is not None else frozenset({"operator", "epoch", "rows"})
        unknown = sorted(given.keys() - ALWAYS - takes)
        if unknown:
            of_what = f" of {what}" if what is not None else ""
            raise UserError(
                f'there is no option "{unknown[0]}" for a read{of_what}; there are: '
                f"{', '.join(sorted((ALWAYS - {'path'}) | takes))}."
            )
        store = given.get("store") or given.get("path")
        if not store:
            raise UserError(
                'name the store to read: .option("store", "checkpoints/"), or .load("checkpoints/").'
            )
        key = given.get("store_key")
        return cls(
            # Tasks may run elsewhere: from here on the paths of folders and files are absolute.
            store=store if "://" in store else str(Path(store).absolute()),
            store_key=None if key is None else os.path.abspath(key),
            what=what,
            operator=given.get("operator"),
            epoch=_epoch(given.get("epoch")),
            rows=_yes("rows", given.get("rows", "false")),
            verify=_yes("verify", given.get("verify", "false")),
        )

    def of_kind(self, what: What) -> "Asked":
        """Fills in the kind if it was not given."""
        if what != "state" and self.epoch is not None:
            raise UserError(f'option("epoch", ...) is for reads of state; this one reads {what}.')
        return replace(self, what=what)

    @property
    def place(self) -> StoreUrl:
        """The store for readers of its files; with its key, which this process reads itself."""
        return StoreUrl(self.store, StoreKey.given(self.store_key))

    def open(self) -> CheckpointStore:
        """The store, for reading."""
        return open_store(self.store, self.store_key)


def _what(text: str | None) -> What | None:
    if text is not None and text not in TAKES:
        raise UserError(f'option("what", "{text}") must be one of {", ".join(TAKES)}.')
    return text


def _epoch(text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise UserError(f'option("epoch", "{text}") must be the number of an epoch.')
    return None if text is None else int(text)


def _yes(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UserError(f'option("{name}", "{text}") must be true or false.')
    return text.lower() == "true"
