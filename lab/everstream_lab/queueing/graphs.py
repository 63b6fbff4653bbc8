"""Reads a graph of operators from JSON, for `everstream model run --graph`.

    {"operators": [{"name": "split", "service": "normal:80us,10us", "cpus": 3,
                    "next": {"left": 0.3, "right": 0.7}},
                   {"name": "left", "service": "constant:1ms"},
                   {"name": "right", "service": "exponential:1ms", "cpus": 2}],
     "sources": [{"to": "split", "gap": "exponential:2ms", "entities": 1}]}

What the probabilities under `next` leave open leaves the system.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everstream.connectors.generate.load import Load
from everstream_lab.queueing.model import ModelError, OperatorModel, SourceModel, parse_distribution


def read_graph(path: Path) -> tuple[tuple[OperatorModel, ...], tuple[SourceModel, ...]]:
    """Read and check the shape of the file; `Model` checks that it makes sense."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read the graph {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from error
    return parse_graph(data, str(path))


def parse_graph(
    data: object, name: str = "the graph"
) -> tuple[tuple[OperatorModel, ...], tuple[SourceModel, ...]]:
    if not isinstance(data, dict):
        raise ModelError(f"{name} should be an object with 'operators' and 'sources'")
    operators = tuple(
        OperatorModel(
            name=_text(item, "name", name),
            service=parse_distribution(_text(item, "service", name)),
            cpus=_count(item, "cpus", name),
            next=_routes(item, name),
        )
        for item in _items(data, "operators", name)
    )
    sources = tuple(
        SourceModel(
            to=_text(item, "to", name),
            gap=None if "load" in item else parse_distribution(_text(item, "gap", name)),
            entities=_count(item, "entities", name),
            load=Load.parse(_text(item, "load", name)) if "load" in item else None,
        )
        for item in _items(data, "sources", name)
    )
    return operators, sources


def _items(data: dict[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    items = data.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ModelError(f"{name}: {key!r} should be a list of objects")
    return items


def _text(item: dict[str, Any], key: str, name: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise ModelError(f"{name}: {key!r} is missing or not a text in {item}")
    return value


def _count(item: dict[str, Any], key: str, name: str) -> int:
    value = item.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{name}: {key!r} should be a whole number in {item}")
    return value


def _routes(item: dict[str, Any], name: str) -> tuple[tuple[str, float], ...]:
    routes = item.get("next", {})
    if not isinstance(routes, dict) or not all(
        isinstance(value, int | float) for value in routes.values()
    ):
        raise ModelError(f"{name}: 'next' should map operators to probabilities in {item}")
    return tuple((str(to), float(probability)) for to, probability in routes.items())
