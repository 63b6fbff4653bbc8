"""`ToStream` and `Stage`: what a user writes around a loop and around the parts of its body.

They are read, never run: `annotated` takes them out of the function it is given. So their
signatures are for people, editors and type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn

from everstream.errors import UserError
from everstream.pipeline.rejects import OnError
from everstream.pipeline.sink import Sink

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", default=None)
else:  # defaults are known to Python from 3.13 on
    from typing import TypeVar

    R = TypeVar("R")


class _Block:
    """The marker after `with`. Its exit does nothing, because it never runs."""

    def __exit__(self, *exception: object) -> Literal[False]:
        return False


class ToStream(_Block):
    """Around a loop, in a function with `@es.annotated`: each turn of it becomes an item of a stream.

    inputs: names from before the loop that it and its stages read; left out, they are found.
    state: names that the loop carries from turn to turn (outside its stages); saved with every
        checkpoint.
    batch: how many items travel together; left out, as many as take some milliseconds.
    name: what the source is called.

    >>> @es.annotated
    ... def squares(limit):
    ...     total = 0
    ...     with es.ToStream(inputs=[limit]):
    ...         for n in range(limit):
    ...             with es.Stage(state=[total]):
    ...                 total += n * n
    ...     return total
    >>> squares(4), squares.run(4)
    (14, 14)
    """

    def __init__(
        self,
        *,
        inputs: Sequence[object] | None = None,
        state: Sequence[object] = (),
        batch: int | None = None,
        name: str | None = None,
    ) -> None:
        _not_here("ToStream")

    def __enter__(self) -> None:
        """Only for type checkers: `annotated` takes it out."""


class Stage(_Block, Generic[R]):
    """A part of the loop's body, in a function with `@es.annotated`: it becomes an operator.

    inputs, outputs: names it gets from the stage before, and gives to the next; left out, they are
        found: what this stage and later ones read. What the last stage outputs is collected.
    state: names from before the loop that it changes, kept from item to item and across failures.
    key: with state of dicts: each item reads and writes their entry of this key alone, so that
        replicas can share the keys.
    replicate: how many shards do this work side by side.
    ordered: items come in the order of the loop; left out, so for a stage with state without key.
        Of a last stage with replicas, its outputs are put in that order.
    name: what the operator is called; left out, stage-1, stage-2 and so on.
    sink: of the last stage: where its outputs go, if they are not to be collected.
    on_init: called before the first item, in each process; `with es.Stage(on_init=load) as model`
        names what it returns.
    on_exit: called when all is done, and before the stage is built anew after a failure; it may take
        what on_init returned.
    on_snapshot: called when a checkpoint can no longer be rolled back; it may take its number.
    before_snapshot, on_commit: of the last stage, to write to a system of yours exactly once, in two
        phases. before_snapshot prepares the open transaction with each checkpoint: it takes a name
        for it, and what on_init returned. on_commit takes the name once the checkpoint can no longer
        be rolled back, and commits it; it may be called again for the same name.
    on_rollback: with these, called when a run begins and after every failure, with a function that
        says of the name of a prepared transaction whether it will never be committed.
    on_recover: called after on_init if the stage has rolled back, because it or another one failed;
        it may take the reason, as text, and what on_init returned.
    on_error: "fail", "skip" or "dead_letter", or a function of the error and the item, which raises
        to fail or returns to leave the item out.

    >>> @es.annotated
    ... def initials(words):
    ...     counts = {}
    ...     with es.ToStream():
    ...         for word in words:
    ...             with es.Stage(replicate=2):
    ...                 first = word[0].upper()
    ...             with es.Stage(state=[counts], key=first, replicate=2):
    ...                 counts[first] = counts.get(first, 0) + 1
    ...     return sorted(counts.items())
    >>> initials.run(["to", "be", "or", "not", "to", "be"])
    [('B', 2), ('N', 1), ('O', 1), ('T', 2)]
    """

    def __init__(
        self,
        *,
        inputs: Sequence[object] | None = None,
        outputs: Sequence[object] | None = None,
        state: Sequence[object] = (),
        key: object = None,
        replicate: int = 1,
        ordered: bool | None = None,
        name: str | None = None,
        sink: Sink | None = None,
        on_init: Callable[[], R] | None = None,
        on_exit: Callable[[], object] | Callable[[R], object] | None = None,
        on_snapshot: Callable[[], object] | Callable[[int], object] | None = None,
        before_snapshot: Callable[[str], object] | Callable[[str, R], object] | None = None,
        on_commit: Callable[[str], object] | None = None,
        on_rollback: Callable[[Callable[[str], bool]], object] | None = None,
        on_recover: Callable[[], object]
        | Callable[[str], object]
        | Callable[[str, R], object]
        | None = None,
        on_error: OnError | Callable[[Exception, Any], object] = "fail",
    ) -> None:
        _not_here("Stage")

    def __enter__(self) -> R:
        """Only for type checkers: `annotated` takes it out."""
        raise NotImplementedError


def _not_here(name: str) -> NoReturn:
    raise UserError(
        f"es.{name} means something only in a function with @es.annotated above it: write "
        f"`with es.{name}(...):` there."
    )
