"""What a server shows: a live run, or what the store of one knows; and what it can be asked to do."""

from collections.abc import Mapping
from typing import Any, Protocol

from everstream.observability.history.run_view import Live

ACTIONS = ("checkpoint", "savepoint", "stop", "interval", "kill", "scale")


class Actor(Protocol):
    """Carries out what a page asks for. Each blocks until it is known what became of it."""

    def act(self, action: str, wishes: Mapping[str, Any]) -> str:
        """What was done, in words; a UserError says why it cannot be."""


class Shown:
    """A run and who acts for it."""

    def __init__(self, live: Live, actor: Actor | None = None, store: str | None = None) -> None:
        self.live = live
        self.actor = actor
        self._store = store
        self.store_key: str | None = None

    @property
    def store(self) -> str | None:
        """Where state and dead letters can be looked up; None before that is known."""
        return self._store

    def is_at(self, store: str) -> None:
        self._store = store

    def view(self) -> dict[str, Any]:
        view = self.live.view()
        view["actions"] = self.actor is not None and view["ended"] is None
        return view
