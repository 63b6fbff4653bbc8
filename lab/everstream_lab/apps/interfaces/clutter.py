"""Stress by item clutter: items come in another order, and a stage has to put them back in order.

With a displacement of d, the first of each d + 1 items comes after the d behind it: d results wait
for the one in front of them. Nothing else changes, so that results must be the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from everstream.connectors.generate.sources import FromList
from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Edge, Graph, Kind, Node, OnDemand
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream_lab.apps.application import Application
from everstream_lab.apps.interfaces.job import Array, Stamps

REORDER = "reorder"


def item_at(place: int, displacement: int, items: int) -> int:
    """Which item comes in this place.

    >>> [item_at(place, 2, 7) for place in range(7)]
    [1, 2, 0, 4, 5, 3, 6]
    """
    block = place - place % (displacement + 1)
    last = min(block + displacement, items - 1)
    return block if place == last else place + 1


class Displaced(Sequence[Any]):
    """Items in another order; each is read when it is asked for."""

    def __init__(self, items: Sequence[Any], displacement: int) -> None:
        self._items = items
        self._displacement = displacement

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._items[item_at(place, self._displacement, len(self))]


class DisplacedItems:
    """What opens the items of an input, displaced."""

    def __init__(self, items: Callable[[Path], Sequence[Any]], displacement: int) -> None:
        self._items = items
        self._displacement = displacement

    def __call__(self, folder: Path) -> Sequence[Any]:
        return Displaced(self._items(folder), self._displacement)


def cluttered(application: Application, displacement: int) -> Application:
    """The application with its items displaced; itself without a displacement."""
    if not displacement:
        return application
    return replace(application, items=DisplacedItems(application.items, displacement))


def check_clutter(displacement: int) -> None:
    if displacement < 0:
        raise UserError(f"clutter={displacement}: say how many items come before the one in front.")


class Buffer:
    """Puts displaced results back in order. It knows which item comes in which place."""

    def __init__(self, displacement: int, items: int) -> None:
        self._displacement = displacement
        self._items = items
        self.came = 0
        self.given = 0
        self.waiting: dict[int, Any] = {}
        """By item: results that wait for those in front of them."""
        self.most = 0

    def add(self, result: Any) -> Iterator[Any]:
        """The results that are in order with this one."""
        self.waiting[item_at(self.came, self._displacement, self._items)] = result
        self.came += 1
        while self.given in self.waiting:
            yield self.waiting.pop(self.given)
            self.given += 1
        self.most = max(self.most, len(self.waiting))


def reordered(results: Iterable[Any], displacement: int, items: int) -> Iterator[Any]:
    """Results in the order of their items, from those in the order in which these came."""
    buffer = Buffer(displacement, items)
    for result in results:
        yield from buffer.add(result)


class Reorder(Operator):
    """The same in a pipeline: results that wait are state, so that a failure loses none."""

    def __init__(self, displacement: int, items: int) -> None:
        self.displacement = displacement
        self.items = items

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        buffer = Buffer(self.displacement, self.items)
        kept = ctx.state.get(REORDER)
        if kept is not None:
            buffer.came, buffer.given, buffer.waiting = kept[0], kept[1], dict(kept[2])
        for record in batch:
            for result in buffer.add(record):
                ctx.emit(result)
        ctx.state.put(REORDER, (buffer.came, buffer.given, tuple(buffer.waiting.items())))


def with_clutter(pipeline: Pipeline, displacement: int, items: int) -> Pipeline:
    """A copy of a pipeline whose source displaces its items, and whose ordered sink gets them in order."""
    if not displacement:
        return pipeline
    graph = pipeline.graph
    nodes = dict(graph.nodes)
    for node in graph.of_kind(Kind.SOURCE):
        nodes[node.name] = replace(node, what=_displaced(node.what, displacement))
    edges: list[Edge] = []
    for edge in graph.edges:
        receiver = nodes[edge.receiver]
        if not (receiver.kind is Kind.SINK and receiver.ordered):
            edges.append(edge)
            continue
        nodes[REORDER] = Node(
            REORDER, Kind.OPERATOR, Reorder(displacement, items), shards=1, ordered=True
        )
        edges.append(replace(edge, receiver=REORDER, routing=OnDemand()))
        edges.append(Edge(REORDER, edge.receiver))
    changed = pipeline.with_nodes({})
    changed.graph = Graph(graph.name, nodes, edges)
    return changed


def _displaced(source: Any, displacement: int) -> Any:
    if not isinstance(source, FromList):
        raise UserError(
            "clutter displaces the items of a source that is es.FromList, and this one is "
            f"{type(source).__name__}."
        )
    made: Any = source._make
    return FromList(Displaced(made.records, displacement), source._batch)


def by_item(stamps: Stamps | None, displacement: int, items: int) -> Stamps | None:
    """Rows under the items that came in their places, in the order of the items."""
    if stamps is None or not displacement:
        return stamps
    numbers: Array = np.array(
        [item_at(place, displacement, items) for place in stamps.numbers.tolist()], np.int64
    )
    order = np.argsort(numbers, kind="stable")
    return Stamps(
        stamps.operators,
        stamps.began[order],
        stamps.took[order],
        stamps.ended[order],
        None if len(order) == items else numbers[order],
        None if stamps.left is None else stamps.left[order],
    )
