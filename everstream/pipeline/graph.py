"""The graph behind a pipeline: names, nodes, edges and how records travel along them. Data only."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import polars as pl

from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import OUT, Operator, StateKind
from everstream.pipeline.operators.models import Model
from everstream.pipeline.rejects import OnError
from everstream.pipeline.routes import Router
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source

_USABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_usable(name: str) -> bool:
    """Names become parts of file names."""
    return _USABLE.fullmatch(name) is not None


def base_name(what: object) -> str:
    """The default name of an operator.

    >>> class TextLines: ...
    >>> base_name(TextLines())
    'text_lines'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(what).__name__).lower()


class Kind(Enum):
    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


@dataclass(frozen=True)
class OnDemand:
    """Each frame goes to the shard that asks first."""

    fusable: bool = True
    """Between equal shard counts the two operators may be fused: no channel, no copy."""


@dataclass(frozen=True)
class ByKey:
    """Each record goes to the shard its key belongs to."""

    keying: Keying


@dataclass(frozen=True)
class ByRoute:
    """Each record goes to the shard that the user's route chooses."""

    router: Router


@dataclass(frozen=True)
class Broadcast:
    """Each record goes to every shard."""


Routing: TypeAlias = OnDemand | ByKey | ByRoute | Broadcast


@dataclass
class Node:
    """One operator of the pipeline, source and sink included."""

    name: str
    kind: Kind
    what: Source | Operator | Sink
    shards: int | None = None
    """None until planned; then what the user gave, or as many as upstream."""
    ordered: bool = False
    on_error: OnError = "fail"
    dead_letters: Sink | None = None
    """Where rejected records go, if they are kept."""
    named: bool = True
    """Whether the user gave the name; otherwise it was derived from the class and numbered."""
    state: StateKind | None = None
    """Where its state is kept, if the user chose that."""
    stops_at: Any = None
    """For a source: where reading ends, in a run that ends when it has caught up."""
    part_of: str | None = None
    """The operator that the user wrote, if this node is a part of it."""
    model: Model | None = None
    """The class whose instances its functions get, if its input has typed rows."""
    schemas: dict[str, pl.Schema] = field(default_factory=dict, compare=False, repr=False)
    """Output -> its columns, once they are known."""

    @property
    def written_as(self) -> str:
        """The operator by the name the user knows, for messages."""
        return self.part_of or self.name


@dataclass(frozen=True)
class Edge:
    """A stream between two operators."""

    sender: str
    receiver: str
    routing: Routing = OnDemand()
    output: str = OUT
    side: str = ""
    """Which input of the receiver this is, for operators that tell inputs apart: `ctx.input`."""
    feedback: bool = False
    """Whether it leads back upstream; feedback edges carry no watermarks."""

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver}"


@dataclass
class Graph:
    """The nodes in the order they were added, and the edges between them."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def inputs(self, name: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.receiver == name]

    def outputs(self, name: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.sender == name]

    def of_kind(self, kind: Kind) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind is kind]

    def upstream_first(self) -> list[Node]:
        """The nodes, each after all that feed it; feedback does not count."""
        forward = [edge for edge in self.edges if not edge.feedback]
        waiting = {name: sum(edge.receiver == name for edge in forward) for name in self.nodes}
        ready = [name for name, count in waiting.items() if count == 0]
        order: list[str] = []
        while ready:
            name = ready.pop(0)
            order.append(name)
            for edge in forward:
                if edge.sender == name:
                    waiting[edge.receiver] -= 1
                    if waiting[edge.receiver] == 0:
                        ready.append(edge.receiver)
        return [self.nodes[name] for name in order]

    def leads_to(self, *names: str) -> set[str]:
        """The nodes from which records reach one of these, themselves included."""
        upstream = set(names)
        waiting = list(names)
        while waiting:
            for edge in self.inputs(waiting.pop()):
                if edge.sender not in upstream:
                    upstream.add(edge.sender)
                    waiting.append(edge.sender)
        return upstream
