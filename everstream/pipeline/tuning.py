"""Settings that can be changed while a pipeline runs: their names, and their valid values.

A change is `batch=10` for every operator that has a batch, or `NAME.batch=10` for one. Changes
are resolved into settings per operator before they are sent to anyone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from everstream.errors import UserError
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.graph import Graph
from everstream.pipeline.operator import Operator
from everstream.pipeline.operators.batching import OFF, WRITTEN
from everstream.pipeline.options import closest
from everstream.pipeline.source import Source

Settings: TypeAlias = Mapping[str, Mapping[str, str]]
"""Operator -> setting -> value, as text."""
ALSO_CALLED = {"frequency": "pattern"}
"""A frequency is the pattern with a constant rate."""


@dataclass(frozen=True)
class Tuning:
    """The settings changed so far; `version` increases with each change."""

    version: int = 0
    settings: Settings = field(default_factory=dict)


def tunable_in(graph: Graph) -> dict[str, dict[str, str]]:
    """What can be changed in a pipeline, with the values in the program."""
    tunable = {
        node.name: node.what.tunable()
        for node in graph.nodes.values()
        if isinstance(node.what, Source | Operator)
    }
    return {name: settings for name, settings in tunable.items() if settings}


def resolved(wishes: Mapping[str, str], tunable: Settings) -> dict[str, dict[str, str]]:
    """Changes such as `batch` or `NAME.batch` as settings per operator; a UserError if none match."""
    settings: dict[str, dict[str, str]] = {}
    for wish, value in wishes.items():
        operator, _, asked = wish.rpartition(".")
        name = ALSO_CALLED.get(asked, asked)
        if operator and operator not in tunable:
            raise _unknown("operator", operator, tunable, "can be tuned")
        within = [operator] if operator else list(tunable)
        having = [target for target in within if name in tunable[target]]
        if not having:
            names = {one for target in within for one in tunable[target]}
            offered = names | {alias for alias, meant in ALSO_CALLED.items() if meant in names}
            raise _unknown("setting", asked, offered, f"of {operator or 'this pipeline'}")
        text = checked(asked, value)
        for target in having:
            settings.setdefault(target, {})[name] = text
    return settings


def checked(name: str, value: str) -> str:
    """The value in the form it is kept, or a UserError that explains what is wrong with it."""
    from everstream.connectors.generate.load import Load

    if value == WRITTEN:
        return value
    match name:
        case "frequency":
            try:
                return Load(float(value)).text or value
            except ValueError:
                raise UserError(f"frequency={value}: give items per second, a number.") from None
        case "pattern":
            return Load.parse(value).text or value
        case "batch":
            if value != OFF and (not value.isdigit() or int(value) < 1):
                raise UserError(f"batch={value}: give a number of records from 1 up, or {OFF}.")
        case "interval":
            if value != OFF and not seconds(value) > 0:
                raise UserError(f"interval={value}: give a time such as 50ms, or {OFF}.")
    return value


def merged(before: Settings, more: Settings) -> dict[str, dict[str, str]]:
    """Both; the later change wins."""
    names = dict.fromkeys([*before, *more])
    return {name: {**before.get(name, {}), **more.get(name, {})} for name in names}


def _unknown(what: str, name: str, known: Collection[str], where: str) -> UserError:
    if not known:
        return UserError(f"'{name}': nothing in this pipeline can be tuned while it runs.")
    meant = closest(name, known)
    return UserError(
        f"there is no {what} '{name}' {where}.{meant} There are {', '.join(sorted(known))}."
    )
