"""The real server with a view that was made, for tests of what the page draws."""

from collections.abc import Mapping
from typing import Any

from everstream.errors import UserError
from everstream.observability.history.run_view import Live
from everstream.observability.ui.serving import Serving
from everstream.observability.ui.views import Shown
from tests.observability.ui.views import View


class MadeLive(Live):
    """Tells a view as it is, and another one when it is set."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view
        self._number = 0

    def view(self) -> View:
        return dict(self._view)

    def becomes(self, view: View) -> None:
        self._view, self._number = view, self._number + 1

    @property
    def event_counts(self) -> tuple[int, int]:
        return self._number, self._number


class Asked:
    """Remembers what a page asks for, and does nothing."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, dict[str, Any]]] = []

    def act(self, action: str, wishes: Mapping[str, Any]) -> str:
        if wishes.get("every") == "2000s":
            raise UserError("so long an interval is none.")
        self.acts.append((action, dict(wishes)))
        return f"{action}: done"


def serving(live: Live, actor: Asked | None = None, port: int = 0) -> Serving:
    return Serving(Shown(live, actor), f"127.0.0.1:{port}")
