"""A stage of annotated code as an operator, with its state and its hooks.

The subclass that is generated for a stage has the stage's code in `process_batch`, in a loop over the
items: only the user's code runs between two items.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle

from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.keyed_state.spreading import Spread
from everstream.pipeline.keys import KEY_GROUPS, Keying
from everstream.pipeline.operator import Context, Operator
from everstream.state.freezing import is_steady

RESULT = "result"
"""The side output, and the sink, of state that the function uses after its regions."""
KEYED = "keyed_"
"""Begins the name of the `es.Keyed` that holds the entries of a dict."""


class StageOperator(Operator):
    """The operator of a stage. `given`: names from before the region, and first values of state."""

    record_by_record = True
    spread: Spread = "broadcast"  # whatever is no dict that is cut by key has one shard
    state: ClassVar[tuple[str, ...]] = ()
    keyed: ClassVar[tuple[str, ...]] = ()
    """Of these, dicts that are cut by key."""
    collected: ClassVar[tuple[str, ...]] = ()
    """Of these, what is handed out in the end."""

    def __init__(
        self,
        given: Mapping[str, Any] | None = None,
        *,
        on_init: Callable[[], Any] | None = None,
        on_exit: Callable[..., object] | None = None,
        on_snapshot: Callable[..., object] | None = None,
        on_recover: Callable[..., object] | None = None,
        on_error: Callable[[Exception, Any], object] | None = None,
    ) -> None:
        self.given = sendable(given)
        self.init_hook = on_init
        self.exit_hook = on_exit
        self.snapshot_hook = on_snapshot
        self.recover_hook = on_recover
        self.error_hook = on_error
        self.resource: Any = None
        hooks = (on_exit, on_snapshot, on_recover, on_error)
        self.repeatable = not self.state and not any(hooks)

    def describe_state(self) -> dict[str, Any] | None:
        if not self.state:
            return None
        return {"stage": type(self).__name__, "state": list(self.state)}

    def on_start(self, ctx: Context) -> None:
        if self.init_hook is not None:
            self.resource = self.init_hook()
        for name in self.keyed:
            store, first = getattr(self, KEYED + name), self.given[name]
            if not isinstance(first, dict):
                raise UserError(
                    f"'{name}' is state with a key, so it is a dict; it is a {type(first).__name__}."
                )
            store.init = _default_of(first)
            if first and name not in ctx.state:
                groups = KEY_GROUPS if ctx.keying is None else ctx.keying.groups
                keying = Keying(_itself, groups)
                own = dict(keying.split(list(first), ctx.shards)).get(ctx.shard, ())
                for key in own:
                    store[key] = first[key]
                ctx.state.put(name, True)

    def on_recover(self, reason: str, ctx: Context) -> None:
        if self.recover_hook is not None:
            call(self.recover_hook, reason, self.resource)

    def recall(self, name: str, ctx: Context) -> Any:
        """The state of this name as the last batch left it."""
        if name in ctx.state:
            return ctx.state[name]
        return self.given[name]

    def leave_out(self, item: Any, error: Exception, ctx: Context) -> None:
        """An item raised: what on_error says."""
        if self.error_hook is None:
            ctx.reject(item, error)
        else:
            self.error_hook(error, item)
            ctx.skip(item, error)

    def on_end(self, ctx: Context) -> None:
        for name in self.collected:
            if name in self.keyed:
                entries = dict(getattr(self, KEYED + name).items())
                ctx.emit((name, True, entries), output=RESULT)
            else:
                ctx.emit((name, False, self.recall(name, ctx)), output=RESULT)

    def on_stop(self, ctx: Context) -> None:
        if self.exit_hook is not None:
            call(self.exit_hook, self.resource)

    def on_commit(self, checkpoint: int, ctx: Context) -> None:
        if self.snapshot_hook is not None:
            call(self.snapshot_hook, checkpoint)


class InOrder(Operator):
    """Between two farms of different sizes: gives on the items in the order of the loop."""

    record_by_record = True
    repeatable = True

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        ctx.emit_batch(batch)


def frozen(value: Any) -> Any:
    """State as it is now, for an item that travels on while the state changes."""
    return value if is_steady(value) else copy.deepcopy(value)


def call(hook: Callable[..., object], *arguments: Any) -> object:
    """Call a hook with as many of these arguments as it requires."""
    try:
        required = sum(
            p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            for p in inspect.signature(hook).parameters.values()
        )
    except (TypeError, ValueError):  # some built-in functions have no signature
        required = 0
    return hook(*arguments[:required])


def _itself(key: Any) -> Any:
    return key


def _default_of(first: dict[Any, Any]) -> Callable[[], Any] | None:
    """What a dict gives for a key it does not have: a defaultdict's and a Counter's way."""
    factory: Callable[[], Any] | None = getattr(first, "default_factory", None)
    if factory is None and hasattr(first, "most_common"):
        return int
    return factory


def sendable(names: Mapping[str, Any] | None) -> dict[str, Any]:
    """Values that go to other processes; a UserError names the one that cannot."""
    for name, value in (names or {}).items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise UserError(
                f"'{name}' is used in a region, but its value cannot be sent to the processes "
                f"that run it ({type(error).__name__}: {error}). Make it there: in on_init of the "
                "stage that needs it, or in a generator that the loop goes over."
            ) from error
    return dict(names or {})
