"""What a reader of a store asks for: the options of `spark.read.format("everstream")`, checked.

Options travel to every task in the clear, so none of them holds a secret: `store_key` is the name
of a file, and each process reads that file itself.
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

What: TypeAlias = Literal["output", "state", "checkpoints", "dead_letters"]

TAKES: Final[dict[What, frozenset[str]]] = {
    "output": frozenset({"operator"}),
    "state": frozenset({"operator", "epoch"}),
    "checkpoints": frozenset({"verify"}),
    "dead_letters": frozenset({"operator"}),
}
"""The options each kind takes, besides those that all take."""
ALWAYS: Final = frozenset({"store", "path", "store_key", "what"})


@dataclass(frozen=True)
class Asked:
    """The options of one read."""

    store: str
    store_key: str | None = None
    what: What | None = None
    """None: not said; the store tells what the operator has to show."""
    operator: str | None = None
    epoch: int | None = None
    verify: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Asked":
        """Raises a UserError for what nobody understands: a misspelt option is not left out."""
        given = {name.lower(): text for name, text in options.items()}
        what = _what(given.get("what"))
        takes = TAKES[what] if what is not None else frozenset({"operator", "epoch"})
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
                'say which store to read: .option("store", "checkpoints/"), or .load("checkpoints/").'
            )
        key = given.get("store_key")
        return cls(
            # Tasks may run elsewhere: from here on the names of folders and files are whole.
            store=store if "://" in store else str(Path(store).absolute()),
            store_key=None if key is None else os.path.abspath(key),
            what=what,
            operator=given.get("operator"),
            epoch=_epoch(given.get("epoch")),
            verify=_yes("verify", given.get("verify", "false")),
        )

    def of_kind(self, what: What) -> "Asked":
        """What was meant, where it was not said."""
        if what != "state" and self.epoch is not None:
            raise UserError(f'option("epoch", ...) is for reads of state; this one is of {what}.')
        return replace(self, what=what)

    @property
    def place(self) -> StoreUrl:
        """The store for those who read files in it; with its key, which this process reads itself."""
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
