"""Where the state of operators is kept: in memory, or on the disk of the machine they run on."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, get_args

from everstream.errors import GraphError, UserError
from everstream.pipeline.graph import Graph, Kind, Node
from everstream.pipeline.keys import stable_hash
from everstream.pipeline.operator import Operator, StateKind, declared_state

GROUPS: Final = 128
"""The number of groups that keys are kept in, each of which is one range on disk."""


def checked_state(state: Any, where: str) -> StateKind | None:
    """The value of `state=` if it is valid; otherwise raises a UserError."""
    if state is not None and state not in get_args(StateKind):
        raise UserError(f"{where}: state={state!r}: use 'memory' or 'disk'.")
    return state  # type: ignore[no-any-return]


def placed(graph: Graph, state: StateKind | None) -> dict[str, Node]:
    """The operators that do not choose where their state is kept, with the choice of the run."""
    return {
        node.name: replace(node, state=state)
        for node in graph.of_kind(Kind.OPERATOR)
        if node.state is None and state is not None
    }


def on_disk(graph: Graph) -> Callable[[str, str], bool]:
    """Operator, name of the state -> whether it is kept on disk."""
    names = {name: _on_disk(node) for name, node in graph.nodes.items()}
    return lambda operator, state: operator in names and names[operator](state)


def any_on_disk(graph: Graph) -> str | None:
    """The first operator that keeps state on disk."""
    return next((node.name for node in graph.nodes.values() if _wants_disk(node)), None)


def check_state_backend(node: Node) -> None:
    """Raise a GraphError if an operator cannot keep its state where the user wants it."""
    what = node.what
    if isinstance(what, Operator) and what.why_in_memory is not None and _wants_disk(node):
        raise GraphError(
            node.name,
            f"its state cannot be kept on disk: {what.why_in_memory}",
            "Give state='disk' to the operators that support it, not to the whole run.",
        )


def key_group(key: Any) -> int:
    """The group of a key: the same on every machine and in every process."""
    if type(key) is int:  # as `stable_hash` does it
        return zlib.crc32(key.to_bytes((key.bit_length() + 8) // 8, "little", signed=True)) % GROUPS
    return stable_hash(key) % GROUPS


def _on_disk(node: Node) -> Callable[[str], bool]:
    declared = declared_state(type(node.what)) if isinstance(node.what, Operator) else {}
    chosen = {store: keyed.state for keyed in declared.values() for store in keyed.stores}
    return lambda name: (chosen.get(name) or node.state) == "disk"


def _wants_disk(node: Node) -> bool:
    declared = declared_state(type(node.what)).values() if isinstance(node.what, Operator) else ()
    keeps = not isinstance(node.what, Operator) or node.what.describe_state() is not None
    return keeps and (node.state == "disk" or any(keyed.state == "disk" for keyed in declared))
