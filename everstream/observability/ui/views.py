"""What a server shows: a live run, or the stored history of one; and the actions it offers."""

from collections.abc import Mapping
from typing import Any, Protocol

from everstream.observability.history.run_view import Live

ACTIONS = ("checkpoint", "savepoint", "stop", "interval", "kill", "scale")


class Actor(Protocol):
    """Performs the actions of a page. Each call blocks until its outcome is known."""

    def act(self, action: str, wishes: Mapping[str, Any]) -> str:
        """What was done, in words; a UserError if it cannot be done."""


class Shown:
    """A run, and the actor for it."""

    def __init__(self, live: Live, actor: Actor | None = None, store: str | None = None) -> None:
        self.live = live
        self.actor = actor
        self._store = store
        self.store_key: str | None = None

    @property
    def store(self) -> str | None:
        """The store with state and dead letters; None until it is known."""
        return self._store

    def is_at(self, store: str) -> None:
        self._store = store

    def view(self) -> dict[str, Any]:
        view = self.live.view()
        view["actions"] = self.actor is not None and view["ended"] is None
        return view
