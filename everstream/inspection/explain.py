"""A pipeline explained before it runs: operators, columns, shards, chains, how records travel, state.

As text, as a Mermaid flowchart, or as an SVG drawing.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import polars as pl

from everstream.core.plan import Plan, edges_of, make_plan
from everstream.errors import UserError
from everstream.pipeline.aggregation.local_parts import LocalParts
from everstream.pipeline.describing import key_text
from everstream.pipeline.graph import ByKey, Edge, Kind, Node
from everstream.pipeline.operator import Operator
from everstream.pipeline.operators.schemas import known_schema
from everstream.pipeline.sink import Delivery
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline

ExplainForm: TypeAlias = Literal["text", "mermaid", "svg"]
_MOST_COLUMNS: Final = 8
"""In a drawing; the text has all."""
_LINE, _CHARACTER, _PADDING, _GAP, _LABEL = 17, 7, 10, 46, 14
"""In a drawing, in pixels."""


@dataclass(frozen=True)
class _Explained:
    """One operator."""

    name: str
    title: str
    columns: tuple[str, ...] | None
    inputs: tuple[tuple[Edge, str], ...]
    """Each with how records travel."""
    lines: tuple[str, ...]
    """What else there is to say."""


def explain(pipeline: Pipeline, form: ExplainForm = "text") -> str:
    """See `Pipeline.explain`."""
    if form not in get_args(ExplainForm):
        choices = ", ".join(map(repr, get_args(ExplainForm)))
        raise UserError(f"explain(form={form!r}): use one of {choices}.")
    plan = make_plan(pipeline, 1)
    layouts = zip(plan.graph.edges, edges_of(plan), strict=True)
    routes = {id(edge): _travels(plan, edge, layout.routing) for edge, layout in layouts}
    operators = [_explained(plan, node, routes) for node in plan.graph.upstream_first()]
    match form:
        case "text":
            return _text(plan, operators)
        case "mermaid":
            return _mermaid(operators)
        case "svg":
            return _svg(plan, operators)


def _travels(plan: Plan, edge: Edge, routing: str) -> str:
    return (
        f"{edge.side} side: {_way(plan, edge, routing)}" if edge.side else _way(plan, edge, routing)
    )


def _way(plan: Plan, edge: Edge, routing: str) -> str:
    if routing == "fused":
        return "same process, no copy"
    if isinstance(edge.routing, ByKey):
        if plan.graph.nodes[edge.sender].part_of == edge.receiver:
            return "one row per key and batch, by key"
        return f"by key {key_text(edge.routing.keying)}"
    return f"{routing}, as feedback" if edge.feedback else routing


def _explained(plan: Plan, node: Node, routes: dict[int, str]) -> _Explained:
    head = plan.chain_of[node.name]
    shards, chain = plan.chains[head].shards, list(plan.chains).index(head) + 1
    schema = None if node.kind is Kind.SINK else known_schema(plan.graph, [(node.name, "out")])
    return _Explained(
        node.name,
        f"{node.kind.value} {_class_of(node.what)}, {_counted(shards, 'shard')}, chain {chain}",
        None if schema is None else tuple(f"{name} {_kind(kind)}" for name, kind in schema.items()),
        tuple((edge, routes[id(edge)]) for edge in plan.graph.inputs(node.name)),
        tuple(_saved(node)),
    )


def _class_of(what: object) -> str:
    """The class as the user wrote it: a declared schema wraps a source, which it describes."""
    about = what.describe_offsets() if isinstance(what, Source) else {}
    return str(about.get("source", type(what).__name__))


def _kind(kind: Any) -> str:
    return str(kind) if isinstance(kind, pl.DataType) else str(kind())


def _saved(node: Node) -> list[str]:
    """What a checkpoint has of the operator."""
    if node.kind is Kind.SOURCE:
        return ["checkpoint: how far each shard has read"]
    if node.kind is Kind.SINK:
        delivery = getattr(node.what, "delivery", None)
        if delivery is None:
            return []
        uncommitted = delivery is Delivery.EXACTLY_ONCE
        return [f"delivery: {delivery.value}"] + uncommitted * ["checkpoint: output to commit"]
    assert isinstance(node.what, Operator)
    about = node.what.describe_state()
    lines = []
    if isinstance(node.what, LocalParts):
        keying = node.what.keying
        lines.append("aggregates in advance" + (f", by {key_text(keying)}" if keying else ""))
    if about is not None:
        parts = [f"{name}: {_plain(value)}" for name, value in about.items() if name != "operator"]
        place = "on disk" if node.state == "disk" else "in memory"
        lines.append(f"state {place}" + (f" ({'; '.join(parts)})" if parts else ""))
    if node.on_error != "fail":
        lines.append(f"records with an error: {node.on_error}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return str(value)


def _text(plan: Plan, operators: Sequence[_Explained]) -> str:
    shards = sum(chain.shards for chain in plan.chains.values())
    lines = [
        f"Pipeline '{plan.graph.name}': {_counted(len(operators), 'operator')} in "
        f"{_counted(len(plan.chains), 'chain')}, {_counted(shards, 'shard')}"
    ]
    for one in operators:
        lines += ["", f"{one.name} ({one.title})"]
        lines += [f"    from {_origin(edge)}: {travels}" for edge, travels in one.inputs]
        if one.columns is not None:
            lines.append(f"    columns: {', '.join(one.columns)}")
        lines += [f"    {line}" for line in one.lines]
    return "\n".join(lines) + "\n"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _origin(edge: Edge) -> str:
    return edge.sender if edge.output == "out" else f"{edge.sender} ({edge.output})"


def _in_short(one: _Explained) -> list[str]:
    """The lines of a box."""
    lines = [one.name, one.title, *one.lines]
    if one.columns is not None:
        more = len(one.columns) - _MOST_COLUMNS
        lines += one.columns[:_MOST_COLUMNS]
        lines += [f"and {more} more columns"] if more > 0 else []
    return lines


def _mermaid(operators: Sequence[_Explained]) -> str:
    numbers = {one.name: f"n{number}" for number, one in enumerate(operators)}
    lines = ["flowchart TD"]
    for one in operators:
        text = "<br/>".join(_escaped(line) for line in _in_short(one))
        lines.append(f'    {numbers[one.name]}["{text}"]')
    for one in operators:
        for edge, travels in one.inputs:
            arrow = "-.->" if edge.feedback else "-->"
            label = f'|"{_escaped(travels)}"|'
            lines.append(f"    {numbers[edge.sender]} {arrow}{label} {numbers[one.name]}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Mermaid writes special characters as their numbers."""
    return "".join(f"#{ord(one)};" if one in '#&<>"' else one for one in text)


@dataclass
class _Box:
    lines: list[str]
    x: float
    y: float

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _CHARACTER + 2 * _PADDING

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PADDING


def _svg(plan: Plan, operators: Sequence[_Explained]) -> str:
    """In rows: each operator below all that feed it."""
    depth: dict[str, int] = {}
    for one in operators:
        above = [depth[edge.sender] for edge, _ in one.inputs if edge.sender in depth]
        depth[one.name] = max(above, default=-1) + 1
    boxes: dict[str, _Box] = {}
    y = float(_GAP)
    right = 0.0
    for row in range(max(depth.values()) + 1):
        here = [one for one in operators if depth[one.name] == row]
        y += _LABEL * max(len(one.inputs) for one in here)  # the labels are above the boxes
        x, bottom = float(_GAP), y
        for one in here:
            boxes[one.name] = box = _Box(_in_short(one), x, y)
            labels = [len(travels) * _CHARACTER for _, travels in one.inputs]
            x += max([box.width, *labels]) + _GAP
            bottom = max(bottom, y + box.height)
        y, right = bottom + _GAP, max(right, x)
    drawn = [
        _arrow(boxes, edge, travels, number)
        for one in operators
        for number, (edge, travels) in enumerate(one.inputs)
    ]
    drawn += [_drawn(box) for box in boxes.values()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{right:.0f}" height="{y:.0f}" '
            'font-family="sans-serif" font-size="12">',
            f"<title>{html.escape(plan.graph.name)}</title>",
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
            f'<rect width="{right:.0f}" height="{y:.0f}" fill="white"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _drawn(box: _Box) -> str:
    bold = ' font-weight="bold"'
    rows = [
        f'<text x="{box.x + _PADDING:.0f}" y="{box.y + _PADDING + (n + 0.75) * _LINE:.0f}"'
        f"{'' if n else bold}>{html.escape(line)}</text>"
        for n, line in enumerate(box.lines)
    ]
    frame = (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" '
        'rx="5" fill="#f4f6fb" stroke="#4a5a80"/>'
    )
    return "\n".join([frame, *rows])


def _arrow(boxes: dict[str, _Box], edge: Edge, travels: str, number: int) -> str:
    """number: of the inputs of the receiver, whose labels are above each other."""
    one, other = boxes[edge.sender], boxes[edge.receiver]
    x, y = one.x + _LINE, one.y + one.height
    to_x, to_y = other.x + _LINE * (number + 1), other.y
    if edge.feedback:
        x, y = one.x + one.width, one.y + one.height / 2
        to_x = other.x + other.width - _LINE
    dashed = ' stroke-dasharray="4 3"' if edge.feedback else ""
    label_x = other.x + _LINE * (number + 1) + 6
    label_y = other.y - 6 - _LABEL * number
    return (
        f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}" stroke="#555"{dashed} '
        'marker-end="url(#tip)"/>\n'
        f'<text x="{label_x:.0f}" y="{label_y:.0f}" fill="#555" font-size="11" stroke="white" '
        f'stroke-width="4" paint-order="stroke">{html.escape(travels)}</text>'
    )
