"""What a server shows: a live run, or the stored history of one; and the actions on a run."""

from collections.abc import Mapping
from typing import Any, Protocol

from everstream.errors import UserError
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
        self.store = store
        """The store with state and dead letters; None until it is known."""
        self.store_key: str | None = None

    def view(self) -> dict[str, Any]:
        view = self.live.view()
        view["actions"] = self.actor is not None and view["ended"] is None
        return view


PATIENCE_S = 60.0
"""How long a page waits for a checkpoint before it gets the answer that it is still in progress."""


class Steerable(Protocol):
    """A run, as its handle provides it."""

    def checkpoint(self, timeout: str | float | None = None) -> int: ...

    def savepoint(self, name: str, timeout: str | float | None = None) -> Any: ...

    def set_interval(self, every: str | float) -> None: ...

    def kill_worker(self, worker: int) -> None: ...

    def scale(self, shards: Mapping[str, int], timeout: str | float | None = None) -> None: ...

    def stop(self) -> None: ...


class Actions:
    def __init__(self, run: Steerable) -> None:
        self._run = run

    def act(self, action: str, wishes: Mapping[str, Any]) -> str:
        match action:
            case "checkpoint":
                epoch = self._run.checkpoint(PATIENCE_S)
                return f"epoch {epoch} is stable"
            case "savepoint":
                name = _wished(wishes, "name", str, '{"name": "before-the-upgrade"}')
                saved = self._run.savepoint(name, PATIENCE_S)
                return f"savepoint '{name}' keeps epoch {saved.body['epoch']}"
            case "stop":
                self._run.stop()
                return "stopping with a checkpoint"
            case "interval":
                every = _wished(wishes, "every", str | int | float, '{"every": "5s"}')
                self._run.set_interval(every)
                return f"a checkpoint every {every} from now on"
            case "kill":
                worker = _wished(wishes, "worker", int, '{"worker": 0}')
                self._run.kill_worker(worker)
                return f"worker {worker} is being killed"
            case "scale":
                example = '{"operator": "count", "shards": 4}'
                operator = _wished(wishes, "operator", str, example)
                shards = _wished(wishes, "shards", int, example)
                self._run.scale({operator: shards}, PATIENCE_S)
                return f"'{operator}' has {shards} shard(s) now"
            case _:
                raise UserError(f"there is no action '{action}'.")


def _wished(wishes: Mapping[str, Any], name: str, kind: Any, example: str) -> Any:
    value = wishes.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"send the parameters as JSON, as in {example}.")
    return value
